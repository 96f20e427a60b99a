//! Remembers the sessions that asked for a connection when none waited: the naive accept of P4, in which
//! applications ask for each connection.

use alloc::collections::VecDeque;

use atoll_base::SessionId;

/// The sessions to notify when a connection waits, each once, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Askers(VecDeque<Asker>);

/// A session that has asked a transport server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    pub(crate) ts: u8,
    pub(crate) session: SessionId,
    pub(crate) lease: u64,
}

impl Askers {
    /// Adds a session; one that is already in the list keeps its place.
    pub(crate) fn add(&mut self, asker: Asker) {
        if !self.0.contains(&asker) {
            self.0.push_back(asker);
        }
    }

    /// Removes and returns the first session that has asked transport server `ts`.
    pub(crate) fn next(&mut self, ts: u8) -> Option<Asker> {
        let at = self.0.iter().position(|asker| asker.ts == ts)?;
        self.0.remove(at)
    }

    /// Removes the sessions for which `is_meant` returns true.
    pub(crate) fn forget(&mut self, is_meant: impl Fn(&Asker) -> bool) {
        self.0.retain(|asker| !is_meant(asker));
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
