//! How far has the stack come? It starts, it serves, and something ends it.

use std::io;

use atoll_base::Instant;
use atoll_supervisor::{Activity, ClientId};
use atoll_sys::epoll::{Epoll, EventFlags};
use atoll_sys::signal::Signals;
use atoll_sys::unix::Channel;

use super::ending::Ending;
use super::owner::Owner;
use super::tokens::{OWNER, SIGNALS};

/// The course of a stack.
pub struct Course {
    signals: Option<Signals>,
    /// The `atoll run` for which this stack exists.
    owner: Owner,
    is_ready: bool,
    ending: Option<Ending>,
    /// Whom the next supervisor tells that it has taken over, for which this one makes way.
    exchange_for: Option<ClientId>,
}

impl Course {
    /// Of a stack that starts. `signals`: those that end it.
    pub fn new(signals: Option<Signals>, epoll: &Epoll) -> io::Result<Course> {
        if let Some(signals) = &signals {
            epoll.add(signals, SIGNALS, EventFlags::IN)?;
        }
        Ok(Course { signals, owner: Owner::Nobody, is_ready: false, ending: None, exchange_for: None })
    }

    /// Makes the stack end with the program of the `atoll run` at the other end of `channel`.
    pub fn set_owner(&mut self, channel: Channel, epoll: &Epoll) -> io::Result<()> {
        epoll.add(&channel, OWNER, EventFlags::IN | EventFlags::RDHUP)?;
        self.owner = Owner::Present(channel);
        Ok(())
    }

    /// Whether all servers have been ready once.
    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// All servers are ready, for the first time. Returns whether that is news.
    pub fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.is_ready, true)
    }

    /// Why the stack ends, if it does.
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.as_ref()
    }

    /// The stack ends for this reason, if it does not already.
    pub fn end(&mut self, ending: Ending) {
        self.ending.get_or_insert(ending);
    }

    /// Looks which signals have come.
    pub fn take_signals(&mut self) -> io::Result<()> {
        while let Some(caught) = self.signals.as_ref().map_or(Ok(None), Signals::next)? {
            self.end(Ending::Signal(caught.signal));
        }
        Ok(())
    }

    /// The `atoll run` says something, or is gone.
    pub fn owner_spoke(&mut self, now: Instant, epoll: &Epoll) -> io::Result<()> {
        self.owner.spoke(now).map_or(Ok(()), |channel| epoll.delete(&channel))
    }

    /// In how many milliseconds it is to be looked whether the stack ends; `None`: its program has not ended.
    pub fn look_again_ms(&self) -> Option<u32> {
        self.owner.look_again_ms()
    }

    /// Once the program is gone: ends the stack when nobody needs it any more.
    pub fn look_at_owner(&mut self, activity: Activity, now: Instant) {
        if self.owner.wants_end(activity, now) {
            self.end(Ending::ProgramEnded);
        }
    }

    /// The `atoll run`, if it still listens.
    pub fn owner(&self) -> Option<&Channel> {
        self.owner.channel()
    }

    /// The client that waits for the next supervisor.
    pub fn exchange_for(&self) -> Option<ClientId> {
        self.exchange_for
    }

    /// This client is told when the next supervisor has taken over; `None`: there will be none.
    pub fn exchange(&mut self, client: Option<ClientId>) {
        self.exchange_for = client;
    }
}

#[cfg(test)]
impl Course {
    /// It is not ready yet.
    pub fn set_unready(&mut self) {
        self.is_ready = false;
    }

    /// Nothing has ended it.
    pub fn goes_on(&mut self) {
        self.ending = None;
    }
}
