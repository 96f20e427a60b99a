//! What becomes of connections that nobody has accepted, when their listener is gone? They are reset, so many in a round: there may be thousands.

use alloc::collections::VecDeque;

use atoll_base::Instant;
use atoll_ipc::Memory;

use crate::entry::{Entry, Stage};
use crate::flows::Name;
use crate::transport::Transport;

/// Connections that are reset in one round.
pub(crate) const RESETS: u32 = 128;

/// Which are to be reset.
#[derive(Debug, Default)]
pub(crate) struct Resets {
    /// Those that the CM has given back.
    connections: VecDeque<(u32, Name)>,
    /// Ports at which nobody listens any more, and the place from which on connections that wait for text there (TCP_DEFER_ACCEPT) are looked at.
    /// They would wait for hours, perhaps, and the CM knows no single one of them.
    ports: VecDeque<(u16, u32)>,
    /// Since when some could have been reset.
    since: Instant,
    /// How many have been in this round.
    done: u32,
}

impl Resets {
    pub(crate) fn is_empty(&self) -> bool {
        self.connections.is_empty() && self.ports.is_empty()
    }

    /// Since when some are to be reset, if there are any.
    pub(crate) fn since(&self) -> Option<Instant> {
        (!self.is_empty()).then_some(self.since)
    }

    /// This one is.
    pub(crate) fn add(&mut self, index: u32, name: Name) {
        self.connections.push_back((index, name));
    }

    /// And those that wait for text for a listener at this port that is gone.
    pub(crate) fn add_deferred(&mut self, port: u16) {
        self.ports.push_back((port, 0));
    }

    /// A round is over.
    pub(crate) fn conclude(&mut self) {
        self.done = 0;
    }
}

impl<M: Memory> Transport<M> {
    /// Resets some of them, if there are any.
    pub(crate) fn reset_some(&mut self, now: Instant) {
        while self.resets.done < RESETS
            && let Some((index, name)) = self.resets.connections.pop_front()
        {
            // Others may have its place.
            let is_it = |entry: &Entry| entry.name == name && entry.stage.listener().is_some();
            if self.entries.get(index).is_some_and(is_it) {
                self.reset_unaccepted(index);
            }
        }
        while self.resets.done < RESETS
            && let Some(&(port, from)) = self.resets.ports.front()
        {
            let Some(&(_, index)) = self.deferred.range((port, from)..=(port, u32::MAX)).next() else {
                self.resets.ports.pop_front();
                continue;
            };
            self.resets.ports[0].1 = index + 1;
            let listener = self.entries.get(index).and_then(|entry| entry.stage.listener());
            // Somebody may listen anew.
            if listener.is_some_and(|listener| self.cm.is_listening(listener)) {
                self.resets.done += 1;
            } else {
                self.deferred.remove(&(port, index));
                self.reset_unaccepted(index);
            }
        }
        self.resets.since = now;
    }

    fn reset_unaccepted(&mut self, index: u32) {
        let Some(entry) = self.entries.get_mut(index) else { return };
        entry.stage = Stage::Closing;
        self.orphans += 1;
        entry.deadline = Instant::FAR_FUTURE;
        entry.connection.abort();
        self.touch(index);
        self.resets.done += 1;
    }
}
