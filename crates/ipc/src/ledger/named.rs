//! The sessions that a ledger names. Its writer has left nothing in force of any other session.
//!
//! A successor asks for these sessions after it has opened the ledger. The supervisor asks before, when the
//! writer is gone: it only reads, so a batch whose commit was interrupted is still in the journal, and counts
//! from there.

use alloc::collections::BTreeSet;

use atoll_base::SessionId;

use super::{
    ENTRY_BYTES, ENTRY_HEAD, ENTRY_PLACE, H_COMMIT, JOURNAL, LEDGER_VERSION, Ledger, LedgerConfig,
    REQUEST_BYTES, RequestRecord, TABLE_CONNECTIONS, TABLE_REQUESTS, Unreadable, connection,
};
use crate::memory::Memory;

/// Returns the sessions named in the ledger in `memory`, whose writer has died, and which no successor has
/// opened since. Writes nothing. Numbers in damaged records may be those of sessions that never existed.
///
/// # Errors
/// Fails as [`Ledger::open`] does; memory of zeros is [`Unreadable::NoLedger`].
pub fn sessions_in(memory: impl Memory, config: LedgerConfig) -> Result<BTreeSet<SessionId>, Unreadable> {
    let ledger = Ledger::look(memory, config, LEDGER_VERSION)?;
    let mut sessions = ledger.sessions();
    sessions.extend(ledger.sessions_in_journal());
    Ok(sessions)
}

impl<M: Memory> Ledger<M> {
    /// Returns the sessions that a successor needs: those of connections, of requests in force, of deaths
    /// charged to a session, and of the work during which the predecessor died.
    pub fn sessions(&self) -> BTreeSet<SessionId> {
        let mut last = None;
        let connections =
            (0..self.connections).filter_map(|place| self.session_at(self.connection_at(place)));
        // Most records are of the same session as the one before.
        let mut sessions: BTreeSet<SessionId> =
            connections.filter(|session| last.replace(*session) != Some(*session)).collect();
        sessions.extend(self.requests().filter_map(|(_, found)| Some(found.ok()?.session)));
        sessions.extend(self.suspects().map(|(session, _)| session));
        sessions.extend(self.past_work.session());
        sessions
    }

    /// Returns the sessions of records that were committed and may not have reached their tables.
    fn sessions_in_journal(&self) -> impl Iterator<Item = SessionId> + '_ {
        let committed = usize::try_from(self.memory.load64_acquire(H_COMMIT)).unwrap_or(0);
        (0..committed.min(self.config.journal() as usize)).filter_map(|entry| {
            let at = JOURNAL + entry * ENTRY_BYTES;
            let (table, place) = (self.memory.load32(at), self.memory.load32(at + ENTRY_PLACE));
            match table {
                TABLE_CONNECTIONS => self.session_at(at + ENTRY_HEAD),
                TABLE_REQUESTS => {
                    let mut bytes = [0; REQUEST_BYTES];
                    self.memory.read(at + ENTRY_HEAD, &mut bytes);
                    Some(RequestRecord::decode(place, &bytes)?.ok()?.session)
                }
                _ => None,
            }
        })
    }

    /// Returns the session that the connection's record at this offset names. The record is not judged.
    fn session_at(&self, at: usize) -> Option<SessionId> {
        connection::session_named(&self.memory, at)
    }
}
