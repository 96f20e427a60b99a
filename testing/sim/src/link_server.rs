//! How does a machine fare whose link server is a process of its own? Between it and each replica lies a ring
//! that holds few frames, and it takes its time: a replica that finds its ring full has to keep what it
//! wanted to send.

use std::collections::VecDeque;

use atoll_base::{Duration, Instant, Rng};

/// Frames that a ring holds: fewer than a burst has.
const RING_FRAMES: usize = 4;

/// The link server of a machine, with the rings from its replicas.
pub(crate) struct LinkServer {
    rings: Vec<VecDeque<Vec<u8>>>,
    /// When it runs again; `None`: it sleeps until somebody puts a frame into a ring.
    wakes_at: Option<Instant>,
}

impl LinkServer {
    pub(crate) fn new(replicas: u8) -> LinkServer {
        LinkServer { rings: vec![VecDeque::new(); replicas.into()], wakes_at: None }
    }

    /// How many frames the ring of a replica takes now.
    pub(crate) fn room(&self, replica: usize) -> usize {
        RING_FRAMES - self.rings[replica].len()
    }

    /// A replica puts a frame into its ring, and rings the bell.
    pub(crate) fn push(&mut self, now: Instant, rng: &mut Rng, replica: usize, frame: Vec<u8>) {
        assert!(self.room(replica) > 0, "the replica was told that there is no room");
        self.rings[replica].push_back(frame);
        self.wakes_at.get_or_insert(now + Duration::from_micros(1 + u64::from(rng.below(50))));
    }

    /// Takes a frame out of each ring, if it is time to.
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
