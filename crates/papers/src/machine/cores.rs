//! The cores: how they get their work, and what a message costs.

use std::collections::VecDeque;

use super::items::{Batch, Item, Sent};
use super::waiting::Wait;
use super::{Machine, Purpose, What};

/// A core with one process.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) socket: usize,
    inbox: VecDeque<(Origin, Item)>,
    pub(crate) is_busy: bool,
    /// How the core waits; `None` if it looks for work all the time.
    pub(crate) wait: Option<Wait>,
}

/// The queue that an item comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The network device's queue.
    Device,
    /// Another core's ring.
    Core(usize),
    /// The process's own clock.
    Timer,
}

/// The most items that a process takes at a time.
const BATCH_MAX: usize = 64;

impl Core {
    pub(crate) fn new(socket: usize, wait: Option<Wait>) -> Core {
        Core { socket, inbox: VecDeque::new(), is_busy: false, wait }
    }

    pub(crate) fn has_nothing(&self) -> bool {
        self.inbox.is_empty()
    }
}

impl Machine {
    /// Handles an item that reaches a core.
    pub(crate) fn arrive(&mut self, core: usize, from: Origin, item: Item) {
        let is_quiet = matches!(item, Item::Peer { wakes: false, .. });
        self.cores[core].inbox.push_back((from, item));
        // An item that is not worth a wake-up is read when something else wakes the core.
        let is_left = is_quiet && self.sleeps(core, self.now);
        if !self.cores[core].is_busy && !is_left {
            match self.end_wait(core) {
                0 => self.run_batch(core),
                after => self.wake_later(core, after),
            }
        }
    }

    /// Handles the end of a core's batch.
    pub(crate) fn free(&mut self, core: usize) {
        self.cores[core].is_busy = false;
        if self.cores[core].inbox.is_empty() {
            self.begin_wait(core);
        } else {
            self.run_batch(core);
        }
    }

    fn run_batch(&mut self, core: usize) {
        let count = self.cores[core].inbox.len().min(BATCH_MAX);
        let items: Vec<(Origin, Item)> = self.cores[core].inbox.drain(..count).collect();
        self.cores[core].is_busy = true;
        let mut batch = Batch { core, began: self.now, clock: self.now, out: Vec::new() };
        self.look_at_rings(&mut batch);
        let mut seen: Vec<usize> = Vec::new();
        for (from, item) in items {
            if let (Some(connection), Some(wait)) = (item.connection(), &mut self.cores[core].wait) {
                wait.met(connection);
            }
            if let Origin::Core(other) = from {
                // The first message of a ring brings its line here, the others lie in it or were fetched
                // ahead.
                let cost = if seen.contains(&other) {
                    self.costs.receive
                } else {
                    seen.push(other);
                    self.costs.line * self.distance(core, other)
                };
                let is_peer = matches!(item, Item::Peer { .. });
                self.spend(&mut batch, if is_peer { Purpose::Peer } else { Purpose::Message }, cost);
            }
            match core.checked_sub(self.servers.len()) {
                None => self.serve(&mut batch, item),
                Some(app) => {
                    self.run_app(&mut batch, app, item);
                    self.ring_all(&mut batch);
                    self.let_out(&mut batch);
                }
            }
        }
        if core < self.servers.len() {
            self.speak_with_peers(&mut batch);
        }
        // A server's messages leave at the end of its batch, and then it rings.
        self.ring_all(&mut batch);
        for (_, at) in &mut batch.out {
            *at = batch.clock;
        }
        self.let_out(&mut batch);
        self.at(batch.clock.max(self.now), What::Free { core });
    }

    /// Checks every ring. That costs a cache line each, which is in the cache unless its writer has changed
    /// it.
    fn look_at_rings(&mut self, batch: &mut Batch) {
        let servers = self.servers.len();
        let rings = match batch.core.checked_sub(servers) {
            Some(_) => self.ts.len(),
            None => {
                let server = &self.servers[batch.core];
                let apps = if server.roles.ts.is_some() { self.apps.len() } else { 0 };
                apps + servers.saturating_sub(1)
            }
        };
        self.spend(batch, Purpose::Poll, rings as f64 * self.costs.poll);
    }

    fn let_out(&mut self, batch: &mut Batch) {
        for (sent, at) in batch.out.drain(..) {
            match sent {
                Sent::Message { to, item } => {
                    let latency = self.costs.latency * self.distance(batch.core, to);
                    let from = Origin::Core(batch.core);
                    self.at(at + latency as u64, What::Arrive { core: to, from, item });
                }
                Sent::Frame { connection, reply } => {
                    let at = at + self.settings.wire.as_nanos() as u64;
                    self.at(at, What::Client { connection, reply });
                }
            }
        }
    }

    /// Puts a message into the ring to another core.
    pub(crate) fn send(&mut self, batch: &mut Batch, to: usize, item: Item) {
        self.spend(batch, Purpose::Message, self.costs.send);
        batch.out.push((Sent::Message { to, item }, batch.clock));
    }

    /// Fetches lines of slots and buffers that another core has written.
    pub(crate) fn fetch(&mut self, batch: &mut Batch, from: usize, lines: u32) {
        let cost = self.costs.line * self.distance(batch.core, from) * f64::from(lines);
        self.spend(batch, Purpose::Message, cost);
    }

    /// Makes the core busy for a number of nanoseconds.
    pub(crate) fn spend(&mut self, batch: &mut Batch, purpose: Purpose, nanos: f64) {
        batch.clock += nanos as u64;
        self.report.spend(batch.core, purpose, nanos as u64);
    }

    /// Returns by how much lines and messages between two cores cost more than inside a socket.
    fn distance(&self, a: usize, b: usize) -> f64 {
        if self.cores[a].socket == self.cores[b].socket { 1.0 } else { self.settings.off_socket }
    }
}
