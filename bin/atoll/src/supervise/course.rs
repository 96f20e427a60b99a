//! The progress of a stack: it starts, it serves, and something ends it.

use std::io;

use atoll_base::Instant;
use atoll_supervisor::{Activity, ClientId};
use atoll_sys::epoll::{Epoll, EventFlags};
use atoll_sys::signal::Signals;
use atoll_sys::unix::Channel;

use super::ending::Ending;
use super::owner::Owner;
use super::tokens::{OWNER, SIGNALS};

/// The progress of a stack.
pub struct Course {
    signals: Option<Signals>,
    /// The `atoll run` for which this stack exists.
    owner: Owner,
    is_ready: bool,
    ending: Option<Ending>,
    /// The client that the next supervisor, for which this one makes way, notifies that it has taken over.
    exchange_for: Option<ClientId>,
}

impl Course {
    /// Creates the state of a stack that starts. `signals` are those that end it.
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

    /// Returns whether all servers have been ready once.
    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Notes that all servers are ready. Returns whether this is the first time.
    pub fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.is_ready, true)
    }

    /// Returns why the stack ends, if it does.
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.as_ref()
    }

    /// Ends the stack for this reason, unless it ends already.
    pub fn end(&mut self, ending: Ending) {
        self.ending.get_or_insert(ending);
    }

    /// Reads the signals that have come.
    pub fn take_signals(&mut self) -> io::Result<()> {
        while let Some(caught) = self.signals.as_ref().map_or(Ok(None), Signals::next)? {
            self.end(Ending::Signal(caught.signal));
        }
        Ok(())
    }

    /// Handles a message of the `atoll run`, or its end.
    pub fn owner_spoke(&mut self, now: Instant, epoll: &Epoll) -> io::Result<()> {
        self.owner.spoke(now).map_or(Ok(()), |channel| epoll.delete(&channel))
    }

    /// Returns in how many milliseconds to check whether the stack ends, or `None` while its program has not
    /// ended.
    pub fn look_again_ms(&self) -> Option<u32> {
        self.owner.look_again_ms()
    }

    /// Ends the stack once its program has ended and nothing needs the stack any more.
    pub fn look_at_owner(&mut self, activity: Activity, now: Instant) {
        if self.owner.wants_end(activity, now) {
            self.end(Ending::ProgramEnded);
        }
    }

    /// Returns the channel to the `atoll run`, if it still listens.
    pub fn owner(&self) -> Option<&Channel> {
        self.owner.channel()
    }

    /// Returns the client that waits for the next supervisor.
    pub fn exchange_for(&self) -> Option<ClientId> {
        self.exchange_for
    }

    /// Sets the client that is notified when the next supervisor has taken over; `None` if there will be
    /// none.
    pub fn exchange(&mut self, client: Option<ClientId>) {
        self.exchange_for = client;
    }
}

#[cfg(test)]
impl Course {
    /// Notes that the stack is not ready yet.
    pub fn set_unready(&mut self) {
        self.is_ready = false;
    }

    /// Removes the reason to end.
    pub fn goes_on(&mut self) {
        self.ending = None;
    }
}
