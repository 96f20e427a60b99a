//! Who has asked for a connection when none waited? The naive accept of P4: applications ask for each one.

use alloc::collections::VecDeque;

use atoll_base::SessionId;

/// Those who are told when a connection waits, each once, oldest first.
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
    /// Remembers one; who is known keeps its place.
    pub(crate) fn add(&mut self, asker: Asker) {
        if !self.0.contains(&asker) {
            self.0.push_back(asker);
        }
    }

    /// The first of a transport server, who is told now.
    pub(crate) fn next(&mut self, ts: u8) -> Option<Asker> {
        let at = self.0.iter().position(|asker| asker.ts == ts)?;
        self.0.remove(at)
    }

    /// Those who are meant will not be told.
    pub(crate) fn forget(&mut self, is_meant: impl Fn(&Asker) -> bool) {
        self.0.retain(|asker| !is_meant(asker));
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
