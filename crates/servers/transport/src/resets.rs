//! Resets connections that no application has accepted when their listener is gone. Their number in one round
//! is limited, because there may be thousands.

use alloc::collections::{BTreeSet, VecDeque};

use atoll_base::Instant;
use atoll_connmgr::ConnMgr;
use atoll_ipc::Cause;

use crate::connections::Connections;
use crate::entry::Entry;
use crate::names::Name;

/// The number of connections that are reset in one round.
pub(crate) const RESETS: u32 = 128;

/// The connections that are to be reset.
#[derive(Debug, Default)]
pub(crate) struct Resets {
    /// The connections that the CM has given back.
    connections: VecDeque<(u32, Name)>,
    /// The ports at which no socket listens any more, and the place from which connections that wait for text
    /// there (TCP_DEFER_ACCEPT) are still to be examined. They might wait for hours, and the CM does not know
    /// them.
    ports: VecDeque<(u16, u32)>,
    /// Since when some could have been reset.
    since: Instant,
    /// The number of resets in this round.
    done: u32,
}

impl Resets {
    pub(crate) fn is_empty(&self) -> bool {
        self.connections.is_empty() && self.ports.is_empty()
    }

    /// Returns since when some are to be reset, if there are any.
    pub(crate) fn since(&self) -> Option<Instant> {
        (!self.is_empty()).then_some(self.since)
    }

    /// Adds a connection.
    pub(crate) fn add(&mut self, index: u32, name: Name) {
        self.connections.push_back((index, name));
    }

    /// Adds the connections that wait for text for a listener at this port that is gone.
    pub(crate) fn add_deferred(&mut self, port: u16) {
        self.ports.push_back((port, 0));
    }

    /// Ends the round.
    pub(crate) const fn conclude(&mut self) {
        self.done = 0;
    }

    /// Resets some of them, if there are any. `deferred` are the connections that wait for text, by port.
    pub(crate) fn go_on(
        &mut self,
        now: Instant,
        deferred: &mut BTreeSet<(u16, u32)>,
        connections: &mut Connections,
        cm: &ConnMgr,
    ) {
        while self.done < RESETS
            && let Some((index, name)) = self.connections.pop_front()
        {
            // Another connection may have its place.
            let is_it = |entry: &Entry| entry.name == name && entry.stage.listener().is_some();
            if connections.get(index).is_some_and(is_it) {
                self.reset(index, connections);
            }
        }
        while self.done < RESETS
            && let Some(&(port, from)) = self.ports.front()
        {
            let Some(&(_, index)) = deferred.range((port, from)..=(port, u32::MAX)).next() else {
                self.ports.pop_front();
                continue;
            };
            self.ports[0].1 = index + 1;
            let listener = connections.get(index).and_then(|entry| entry.stage.listener());
            // A new socket may listen there.
            if listener.is_some_and(|listener| cm.is_listening(listener)) {
                self.done += 1;
            } else {
                deferred.remove(&(port, index));
                self.reset(index, connections);
            }
        }
        self.since = now;
    }

    fn reset(&mut self, index: u32, connections: &mut Connections) {
        connections.orphan(index);
        let Some(entry) = connections.get_mut(index) else { return };
        // What has ended before by the network is kept for accept(2) no more.
        entry.cause = Cause::None;
        entry.connection.abort();
        connections.touch(index);
        self.done += 1;
    }
}
