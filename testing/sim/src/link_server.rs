//! Simulates machines whose link server is a process of its own. A ring that holds few frames lies between it
//! and each replica, and it reads late: a replica whose ring is full has to keep what it wanted to send.

use std::collections::VecDeque;

use atoll_base::{Duration, Instant, Rng};

/// The frames that a ring holds: fewer than a burst has.
const RING_FRAMES: usize = 4;

/// The link server of a machine, with the rings from its replicas.
pub(crate) struct LinkServer {
    rings: Vec<VecDeque<Vec<u8>>>,
    /// When the server runs again; `None` while it sleeps until a frame is put into a ring.
    wakes_at: Option<Instant>,
}

impl LinkServer {
    pub(crate) fn new(replicas: u8) -> LinkServer {
        LinkServer { rings: vec![VecDeque::new(); replicas.into()], wakes_at: None }
    }

    /// Returns how many frames the ring of a replica takes now.
    pub(crate) fn room(&self, replica: usize) -> usize {
        RING_FRAMES - self.rings[replica].len()
    }

    /// Puts a frame of a replica into its ring, and rings the doorbell of the server.
    pub(crate) fn push(&mut self, now: Instant, rng: &mut Rng, replica: usize, frame: Vec<u8>) {
        assert!(self.room(replica) > 0, "the replica was told that there is no room");
        self.rings[replica].push_back(frame);
        self.wakes_at.get_or_insert(now + Duration::from_micros(1 + u64::from(rng.below(50))));
    }

    /// Takes a frame out of each ring if it is time to; returns these frames.
    pub(crate) fn run(&mut self, now: Instant, rng: &mut Rng) -> Vec<Vec<u8>> {
        if self.wakes_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        let frames = self.rings.iter_mut().filter_map(VecDeque::pop_front).collect();
        let is_idle = self.rings.iter().all(VecDeque::is_empty);
        self.wakes_at = (!is_idle).then(|| now + Duration::from_micros(1 + u64::from(rng.below(20))));
        frames
    }

    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        self.wakes_at
    }
}
