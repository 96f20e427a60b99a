//! What does a server share with the other servers? With each that it talks to a memory of its own, which
//! these two alone map.
//!
//! ```text
//!   ring from the lower number to the higher | ring back | channel from the lower to the higher | channel back
//! ```
//! So a server that was taken over harms what is said to it and by it, and nothing that two others say. What
//! all servers must know (the keys) is in memory that none of them can write.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use atoll_ipc::channel::{self, Place};
use atoll_ipc::mesh::mesh_bytes;
use atoll_shm::{Access, ShmMemory};

/// Size of the rings of the mesh and of links, as a power of two.
pub const RING_LOG2: u8 = 20;
/// Distance between two rings.
pub const RING_STRIDE: usize = mesh_bytes(RING_LOG2).next_multiple_of(4096);
/// Where the channels begin in the memory of a pair.
const CHANNELS: usize = 2 * RING_STRIDE;
/// Entries of a channel's ring.
const CHANNEL_CAPACITY: usize = 256;
/// Bytes of the memory of a pair. Memory is taken by those parts that are used.
pub const PAIR_BYTES: usize = (CHANNELS + 2 * channel::ring_bytes(CHANNEL_CAPACITY)).next_multiple_of(4096);
/// Bytes of the memory with the keys.
pub const SECRETS_BYTES: usize = 4096;
/// Where the key of Fast Open cookies lies in it.
pub const COOKIE_KEY: usize = 0;
/// Where the key of the seals of grants lies.
pub const LEASE_KEY: usize = 16;

/// The two rings between this server and another one.
pub struct Way {
    /// What they lie in, which others may map, too, only if they may read and write all of it.
    pub memory: ShmMemory,
    /// Offset of the ring that this server sends into.
    pub to: usize,
    /// Offset of the ring that it receives from.
    pub from: usize,
}

/// The memory that a server shares with others, by their numbers.
#[derive(Clone, Debug)]
pub struct Mesh {
    me: usize,
    pairs: BTreeMap<usize, ShmMemory>,
}

impl Mesh {
    /// That of server `me`, which has a descriptor for each of `peers`.
    pub fn map(me: usize, peers: &[u8], descriptors: Vec<OwnedFd>) -> io::Result<Mesh> {
        let map = |(peer, memory): (&u8, OwnedFd)| {
            Ok((usize::from(*peer), ShmMemory::map(memory, PAIR_BYTES, Access::ReadWrite)?))
        };
        Ok(Mesh { me, pairs: peers.iter().zip(descriptors).map(map).collect::<io::Result<_>>()? })
    }

    /// The rings to and from a server; `None`: the two say nothing to each other.
    pub fn way(&self, peer: usize) -> Option<Way> {
        let memory = self.pairs.get(&peer)?.clone();
        Some(Way { memory, to: ring(self.me, peer), from: ring(peer, self.me) })
    }

    /// The rings to and from each of these, in their order.
    pub fn ways(&self, peers: impl IntoIterator<Item = usize>) -> Vec<Option<Way>> {
        peers.into_iter().map(|peer| self.way(peer)).collect()
    }

    /// The memory and the place of the channel to another replica.
    pub fn channel(&self, sibling: usize) -> Option<(ShmMemory, Place)> {
        Some((self.pairs.get(&sibling)?.clone(), channel_place(self.me, sibling)))
    }
}

/// Offset of the ring from one server to another in the memory of the two.
const fn ring(from: usize, to: usize) -> usize {
    if from < to { 0 } else { RING_STRIDE }
}

/// Where the rings of the channel between two replicas lie in the memory of the two, as replica `me` sees
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
