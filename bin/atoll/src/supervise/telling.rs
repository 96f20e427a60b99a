//! When does a replica hear of the sessions that there are? Before it serves of those that its ledger names, afterwards of the others.
//!
//! ```text
//!   a replica is started   sessions that the ledger names -> Adopt -> it is ready -> the others, some in each millisecond, newest first
//!   a supervisor is                                                                  all of them in the same way
//! ```
//! So what a successor is told before it serves does not grow with the programs that hold sessions and do nothing with them. What becomes of
//! a session that a replica has not heard of is told when its turn comes; only that it is cut off does not wait. Commands of such a session
//! lie in its ring until it is opened. A replica passes over what it knows.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use atoll_base::SessionId;
use atoll_ipc::control::Request;

use super::memory::SessionMemory;
use super::supervisor::{ServerSlot, Supervisor};

impl Supervisor {
    /// The sessions of which the next incarnation of a replica can hear when it serves. To be asked when the last one is gone, and before the
    /// next one opens its ledger.
    pub(super) fn can_wait(&self, index: usize) -> BTreeSet<u32> {
        let mut sessions = self.sessions_at(index);
        // Telling of few costs less than looking for connections among many.
        let named = if sessions.len() > TOLD_AT_ONCE { self.memory.sessions_in_ledger(index) } else { None };
        // A ledger that cannot be read may name any.
        let Some(named) = named else { return BTreeSet::new() };
        sessions.retain(|session| !named.contains(&SessionId(*session)));
        sessions
    }

    /// Those that are open, and those that have ended and that the replica has not said to be over.
    pub(super) fn sessions_at(&self, index: usize) -> BTreeSet<u32> {
        let ended = self.lingering.iter().filter(|lingering| lingering.waits_for.contains(&index));
        self.open.keys().copied().chain(ended.map(|lingering| lingering.session)).collect()
    }

    /// Those of them of which it was told, or is to be told before it serves.
    pub(super) fn told_at(&self, index: usize) -> BTreeSet<u32> {
        let mut sessions = self.sessions_at(index);
        sessions.retain(|session| !self.is_untold(index, *session));
        sessions
    }

    fn is_untold(&self, index: usize, session: u32) -> bool {
        self.replicas.get(index).is_some_and(|replica| replica.untold.contains(&session))
    }

    /// Tells a replica what becomes of a session. One that has not heard of the session hears it then.
    pub(super) fn tell_of(&mut self, index: usize, session: u32, request: &Request) -> io::Result<()> {
        if self.is_untold(index, session) {
            return Ok(());
        }
        self.send_to_replica(index, request, Vec::new())
    }

    /// Tells a replica of a session, if it has not heard of it.
    pub(super) fn tell_now(&mut self, index: usize, session: u32) -> io::Result<()> {
        if self.replicas.get_mut(index).is_some_and(|replica| replica.untold.remove(&session)) {
            self.tell_opened(index, session)?;
            self.tell_departed(index, session)?;
        }
        Ok(())
    }

    /// Gives a replica the memory of a session.
    pub(super) fn tell_opened(&mut self, index: usize, session: u32) -> io::Result<()> {
        let Some(memory) = self.memory_of(session) else { return Ok(()) };
        let (opened, descriptors) = (memory.opened(session), memory.for_replica(index));
        self.post(index, &opened, descriptors)
    }

    /// Tells who is in a session no more, or that nobody is. A predecessor may have heard of it, or not.
    pub(super) fn tell_departed(&mut self, index: usize, session: u32) -> io::Result<()> {
        if !self.open.contains_key(&session) {
            let is_known = self.memory_of(session).is_some();
            return if is_known { self.post(index, &Request::SessionGone { session }, Vec::new()) } else { Ok(()) };
        }
        let departed: Vec<u8> = self.sessions.departed(session).collect();
        departed.into_iter().try_for_each(|member| {
            let request = Request::MemberGone { session, member };
            self.post(index, &request, Vec::new())
        })
    }

    /// Of a session that is open, or has ended and is not over.
    fn memory_of(&self, session: u32) -> Option<&SessionMemory> {
        let ended = || self.lingering.iter().find(|lingering| lingering.session == session);
        self.open.get(&session).or_else(|| Some(&*ended()?.memory))
    }

    /// Tells replicas of some of the sessions of which they have not heard, when it is time.
    pub(super) fn tell_some(&mut self, now: Instant) -> io::Result<()> {
        if self.telling_due().is_none_or(|due| now < due) {
            return Ok(());
        }
        for index in 0..self.replicas.len() {
            if !self.replicas.get(index).is_some_and(ServerSlot::takes_more) {
                continue;
            }
            for _ in 0..TOLD_AT_ONCE {
                let replica = self.replicas.get(index).filter(|replica| replica.takes_more());
                let Some(&session) = replica.and_then(|replica| replica.untold.last()) else { break };
                self.tell_now(index, session)?;
            }
            self.ring(index)?;
        }
        // Not from when it was due: others get their turn in between.
        self.tell_at = Instant::now() + TELL_EVERY;
        Ok(())
    }

    /// When [`Supervisor::tell_some`] is due.
    pub(super) fn telling_due(&self) -> Option<Instant> {
        self.replicas.iter().any(ServerSlot::takes_more).then_some(self.tell_at)
    }
}

impl ServerSlot {
    /// Whether there are sessions of which it is to hear now. One whose socket is full reads first.
    fn takes_more(&self) -> bool {
        self.hears() && !self.untold.is_empty() && self.outbox.is_empty()
    }
}

/// Sessions of which a replica is told at once: it opens as many in less than a millisecond.
pub(super) const TOLD_AT_ONCE: usize = 16;
/// And how long it has for them.
const TELL_EVERY: Duration = Duration::from_millis(1);
