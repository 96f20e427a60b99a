//! Decides when a replica is notified of the open sessions: of those that its ledger names before it serves,
//! of the others afterwards.
//!
//! ```text
//!   a replica is started   sessions that the ledger names -> Adopt -> it is ready
//!                          -> the others, some in each millisecond, newest first
//!   a supervisor is        all of them, in this way
//! ```
//!
//! So the notifications before a successor serves do not grow with the number of programs that hold idle
//! sessions. Changes of a session of which a replica was not notified are sent when its turn comes; only a
//! cut-off is sent at once. Commands of such a session stay in its ring until it is opened. A replica ignores
//! what it already knows.

use std::collections::BTreeSet;
use std::io;

use atoll_base::{Instant, SessionId};
use atoll_ipc::control::Request;

use super::Supervisor;
use crate::supervise::servers::ServerSlot;

impl Supervisor {
    /// Returns the sessions of which the next incarnation of a replica can be notified after it serves. Call
    /// it when the last incarnation is gone, and before the next one opens its ledger.
    pub(super) fn can_wait(&self, index: usize) -> BTreeSet<u32> {
        let mut sessions = self.books.at(index);
        // To notify of a few sessions costs less than to search the ledger for them.
        let named = if sessions.len() > TOLD_AT_ONCE { self.memory.sessions_in_ledger(index) } else { None };
        // A ledger that cannot be read may name any session.
        let Some(named) = named else { return BTreeSet::new() };
        sessions.retain(|session| !named.contains(&SessionId(*session)));
        sessions
    }

    /// Returns the sessions of which the replica was notified, or is to be notified before it serves.
    pub(super) fn told_at(&self, index: usize) -> BTreeSet<u32> {
        let mut sessions = self.books.at(index);
        sessions.retain(|session| !self.is_untold(index, *session));
        sessions
    }

    fn is_untold(&self, index: usize, session: u32) -> bool {
        self.servers.replica(index).is_some_and(|replica| replica.untold().contains(&session))
    }

    /// Notifies a replica of a change of a session. A replica that was not notified of the session gets the
    /// change with it later.
    pub(super) fn tell_of(&mut self, index: usize, session: u32, request: &Request) -> io::Result<()> {
        if self.is_untold(index, session) {
            return Ok(());
        }
        self.servers.send(index, request, Vec::new())
    }

    /// Notifies a replica of a session, unless that was done.
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

    /// Notifies a replica of members that have left a session, or of the session's end. An earlier
    /// incarnation may have been notified, or not.
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

    /// Notifies replicas of some sessions of which they were not notified yet, when it is time.
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

/// The number of sessions of which a replica is notified at once: it opens as many in less than a
/// millisecond.
pub(super) const TOLD_AT_ONCE: usize = 16;
