//! When does a replica hear of the sessions that there are? Before it serves of those that its ledger names,
//! afterwards of the others.
//!
//! ```text
//!   a replica is started   sessions that the ledger names -> Adopt -> it is ready -> the others, some in each millisecond, newest first
//!   a supervisor is                                                                  all of them in the same way
//! ```
//! So what a successor is told before it serves does not grow with the programs that hold sessions and do
//! nothing with them. What becomes of a session that a replica has not heard of is told when its turn comes;
//! only that it is cut off does not wait. Commands of such a session lie in its ring until it is opened. A
//! replica passes over what it knows.

use std::collections::BTreeSet;
use std::io;

use atoll_base::{Instant, SessionId};
use atoll_ipc::control::Request;

use super::Supervisor;
use crate::supervise::servers::ServerSlot;

impl Supervisor {
    /// The sessions of which the next incarnation of a replica can hear when it serves. To be asked when the
    /// last one is gone, and before the next one opens its ledger.
    pub(super) fn can_wait(&self, index: usize) -> BTreeSet<u32> {
        let mut sessions = self.books.at(index);
        // Telling of few costs less than looking for connections among many.
        let named = if sessions.len() > TOLD_AT_ONCE { self.memory.sessions_in_ledger(index) } else { None };
        // A ledger that cannot be read may name any.
        let Some(named) = named else { return BTreeSet::new() };
        sessions.retain(|session| !named.contains(&SessionId(*session)));
        sessions
    }

    /// Those of them of which it was told, or is to be told before it serves.
    pub(super) fn told_at(&self, index: usize) -> BTreeSet<u32> {
        let mut sessions = self.books.at(index);
        sessions.retain(|session| !self.is_untold(index, *session));
        sessions
    }

    fn is_untold(&self, index: usize, session: u32) -> bool {
        self.servers.replica(index).is_some_and(|replica| replica.untold().contains(&session))
    }

    /// Tells a replica what becomes of a session. One that has not heard of the session hears it then.
    pub(super) fn tell_of(&mut self, index: usize, session: u32, request: &Request) -> io::Result<()> {
        if self.is_untold(index, session) {
            return Ok(());
        }
        self.servers.send(index, request, Vec::new())
    }

    /// Tells a replica of a session, if it has not heard of it.
    pub(super) fn tell_now(&mut self, index: usize, session: u32) -> io::Result<()> {
        if self.servers.get_mut(index).is_some_and(|replica| replica.hear_of(session)) {
            self.tell_opened(index, session)?;
            self.tell_departed(index, session)?;
        }
        Ok(())
    }

    /// Gives a replica the memory of a session.
    pub(super) fn tell_opened(&mut self, index: usize, session: u32) -> io::Result<()> {
        let Some(memory) = self.books.memory(session) else { return Ok(()) };
        let (opened, descriptors) = (memory.opened(session), memory.for_replica(index));
        self.servers.post(index, &opened, descriptors)
    }

    /// Tells who is in a session no more, or that nobody is. A predecessor may have heard of it, or not.
    pub(super) fn tell_departed(&mut self, index: usize, session: u32) -> io::Result<()> {
        if self.books.open(session).is_none() {
            let is_known = self.books.memory(session).is_some();
            return if is_known {
                self.servers.post(index, &Request::SessionGone { session }, Vec::new())
            } else {
                Ok(())
            };
        }
        let departed: Vec<u8> = self.books.departed(session).collect();
        departed.into_iter().try_for_each(|member| {
            let request = Request::MemberGone { session, member };
            self.servers.post(index, &request, Vec::new())
        })
    }

    /// Tells replicas of some of the sessions of which they have not heard, when it is time.
    pub(super) fn tell_some(&mut self, now: Instant) -> io::Result<()> {
        if self.servers.telling_due().is_none_or(|due| now < due) {
            return Ok(());
        }
        for index in self.servers.replica_numbers() {
            if !self.servers.replica(index).is_some_and(ServerSlot::takes_more) {
                continue;
            }
            for _ in 0..TOLD_AT_ONCE {
                let replica = self.servers.replica(index).filter(|replica| replica.takes_more());
                let Some(&session) = replica.and_then(|replica| replica.untold().last()) else { break };
                self.tell_now(index, session)?;
            }
            self.servers.ring(index)?;
        }
        self.servers.told_some();
        Ok(())
    }
}

/// Sessions of which a replica is told at once: it opens as many in less than a millisecond.
pub(super) const TOLD_AT_ONCE: usize = 16;
