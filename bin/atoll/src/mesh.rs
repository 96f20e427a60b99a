//! The memory that servers share. Each pair of servers that communicate has a memory of its own, which only
//! these two map.
//!
//! ```text
//!   ring from the lower number to the higher | ring back | channel from lower to higher | channel back
//! ```
//!
//! A compromised server can therefore harm only what it sends and receives, not what two others send each
//! other. What all servers must know (the keys) is in memory that none of them can write.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use atoll_ipc::channel::{self, Place};
use atoll_ipc::mesh::mesh_bytes;
use atoll_shm::{Access, ShmMemory};

/// Size of the rings of the mesh and of links in bytes, as a power of two.
pub const RING_LOG2: u8 = 20;
/// Distance between two rings in bytes.
pub const RING_STRIDE: usize = mesh_bytes(RING_LOG2).next_multiple_of(4096);
/// Offset of the channels in the memory of a pair.
const CHANNELS: usize = 2 * RING_STRIDE;
/// Number of entries in a channel's ring.
const CHANNEL_CAPACITY: usize = 256;
/// Bytes of the memory of a pair. Only the parts that are used take physical memory.
pub const PAIR_BYTES: usize = (CHANNELS + 2 * channel::ring_bytes(CHANNEL_CAPACITY)).next_multiple_of(4096);
/// Bytes of the memory that holds the keys.
pub const SECRETS_BYTES: usize = 4096;

/// The two rings between this server and another one.
pub struct Way {
    /// The memory of the rings. Another process that maps it may read and write all of it.
    pub memory: ShmMemory,
    /// Offset of the ring that this server sends into.
    pub to: usize,
    /// Offset of the ring that this server receives from.
    pub from: usize,
}

/// The memories that a server shares with other servers, by server number.
#[derive(Clone, Debug)]
pub struct Mesh {
    me: usize,
    pairs: BTreeMap<usize, ShmMemory>,
}

impl Mesh {
    /// Maps the memories of server `me`, which has a descriptor for each of `peers`, in their order. Fails if
    /// a mapping does.
    pub fn map(me: usize, peers: &[u8], descriptors: Vec<OwnedFd>) -> io::Result<Mesh> {
        let map = |(peer, memory): (&u8, OwnedFd)| {
            Ok((usize::from(*peer), ShmMemory::map(memory, PAIR_BYTES, Access::ReadWrite)?))
        };
        Ok(Mesh { me, pairs: peers.iter().zip(descriptors).map(map).collect::<io::Result<_>>()? })
    }

    /// Returns the rings to and from a server; `None` if the two do not communicate.
    pub fn way(&self, peer: usize) -> Option<Way> {
        let memory = self.pairs.get(&peer)?.clone();
        Some(Way { memory, to: ring(self.me, peer), from: ring(peer, self.me) })
    }

    /// Returns the rings to and from each of `peers`, in their order.
    pub fn ways(&self, peers: impl IntoIterator<Item = usize>) -> Vec<Option<Way>> {
        peers.into_iter().map(|peer| self.way(peer)).collect()
    }

    /// Returns the memory and the place of the channel to another replica; `None` if the two do not
    /// communicate.
    pub fn channel(&self, sibling: usize) -> Option<(ShmMemory, Place)> {
        Some((self.pairs.get(&sibling)?.clone(), channel_place(self.me, sibling)))
    }
}

/// Returns the offset of the ring from one server to another in the memory of the two.
const fn ring(from: usize, to: usize) -> usize {
    if from < to { 0 } else { RING_STRIDE }
}

/// Returns where the rings of the channel between two replicas lie in their memory, as replica `me` sees
/// them.
const fn channel_place(me: usize, sibling: usize) -> Place {
    const fn half(from: usize, to: usize) -> usize {
        if from < to { CHANNELS } else { CHANNELS + channel::ring_bytes(CHANNEL_CAPACITY) }
    }
    Place { outgoing: half(me, sibling), incoming: half(sibling, me), capacity: CHANNEL_CAPACITY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_of_a_pair_do_not_overlap_and_end_with_the_memory() {
        assert_eq!((ring(2, 5), ring(5, 2)), (0, RING_STRIDE));
        let (low, high) = (channel_place(2, 5), channel_place(5, 2));
        assert_eq!((low.outgoing, low.incoming), (high.incoming, high.outgoing));
        let bytes = channel::ring_bytes(CHANNEL_CAPACITY);
        assert_eq!((low.outgoing, high.outgoing), (2 * RING_STRIDE, 2 * RING_STRIDE + bytes));
        let end = high.outgoing + bytes;
        assert!(end <= PAIR_BYTES && end + 4096 > PAIR_BYTES);
    }
}
