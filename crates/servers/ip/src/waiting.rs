//! Keeps packets until their neighbour is found. RFC 1122 §2.3.2.2 wants at least one kept for each
//! neighbour; here, as on Linux, the limit is a number of octets.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use atoll_base::Addr;
use atoll_wire::vnet;

/// A frame of a transport server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// The number of the transport server.
    pub(crate) from: u8,
    pub(crate) dst: Addr,
    pub(crate) vnet: [u8; vnet::HEADER_LEN],
    /// The frame, from the Ethernet header on.
    pub(crate) bytes: Vec<u8>,
}

/// The waiting frames, by the neighbour that they wait for, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    by_hop: BTreeMap<Addr, Queue>,
    size: usize,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Kept>,
    size: usize,
}

impl Waiting {
    /// Keeps a frame for the neighbour `hop`. Returns how many frames were given up for it: the oldest ones
    /// of the same neighbour or, if too much is kept in all, the new frame itself.
    pub(crate) fn keep(&mut self, hop: Addr, kept: Kept) -> u64 {
        let size = kept.size();
        if self.size + size > SIZE_MAX {
            return 1;
        }
        let queue = self.by_hop.entry(hop).or_default();
        let mut dropped = 0;
        while queue.size + size > HOP_SIZE_MAX
            && let Some(oldest) = queue.frames.pop_front()
        {
            queue.size -= oldest.size();
            self.size -= oldest.size();
            dropped += 1;
        }
        queue.size += size;
        self.size += size;
        queue.frames.push_back(kept);
        dropped
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_hop.is_empty()
    }

    /// Removes and returns the frames for every neighbour for which `is_settled` returns true. Its argument
    /// is the destination of one of the frames.
    pub(crate) fn take(&mut self, mut is_settled: impl FnMut(Addr) -> bool) -> Vec<Kept> {
        let mut taken = Vec::new();
        let size = &mut self.size;
        self.by_hop.retain(|_, queue| {
            let settled = queue.frames.front().is_none_or(|kept| is_settled(kept.dst));
            if settled {
                *size -= queue.size;
                taken.extend(queue.frames.drain(..));
            }
            !settled
        });
        taken
    }
}

impl Kept {
    fn size(&self) -> usize {
        self.bytes.len() + OVERHEAD
    }
}

/// The octets kept for one neighbour, as Linux's `unres_qlen_bytes`.
const HOP_SIZE_MAX: usize = 212_992;
/// The octets kept in all.
const SIZE_MAX: usize = 4 << 20;
/// The octets that a frame takes beside its own, approximately.
const OVERHEAD: usize = 128;

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn kept(n: u8, len: usize) -> Kept {
        Kept { from: 0, dst: Addr::v4(n.into()), vnet: [0; vnet::HEADER_LEN], bytes: vec![n; len] }
    }

    #[test]
    fn frames_leave_in_order_when_their_neighbour_is_found() {
        let mut waiting = Waiting::default();
        let (near, far) = (Addr::v4(1), Addr::v4(2));
        assert!((1..=5).all(|n| waiting.keep(if n % 2 == 1 { near } else { far }, kept(n, 10)) == 0));
        assert!(waiting.take(|_| false).is_empty());
        let seen: Vec<u8> = waiting.take(|dst| dst == near).iter().map(|kept| kept.bytes[0]).collect();
        assert_eq!(seen, [1, 3, 5]);
        assert!(!waiting.is_empty() && waiting.take(|_| true).len() == 2 && waiting.is_empty());
        assert_eq!(waiting.size, 0);
    }

    #[test]
    fn the_oldest_makes_room_and_one_neighbour_does_not_take_all() {
        let mut waiting = Waiting::default();
        let dropped: u64 = (0..40).map(|n| waiting.keep(Addr::v4(1), kept(n, 60_000))).sum();
        assert_eq!(dropped, 37);
        let left = waiting.take(|_| true);
        assert_eq!(left.iter().map(|kept| kept.bytes[0]).collect::<Vec<_>>(), [37, 38, 39]);
        let dropped: u64 = (0..100).map(|n| waiting.keep(Addr::v4(n.into()), kept(n, 60_000))).sum();
        assert_eq!(dropped, 31, "in all there are 4 MiB");
        assert!(waiting.take(|_| true).iter().enumerate().all(|(at, kept)| usize::from(kept.bytes[0]) == at));
        assert_eq!(waiting.size, 0);
    }

    #[test]
    fn what_is_longer_than_a_neighbour_may_have_is_kept_alone() {
        let mut waiting = Waiting::default();
        assert_eq!(
            waiting.keep(Addr::v4(1), kept(1, 10)) + waiting.keep(Addr::v4(1), kept(2, HOP_SIZE_MAX)),
            1
        );
        assert_eq!(waiting.take(|_| true).len(), 1);
    }
}
