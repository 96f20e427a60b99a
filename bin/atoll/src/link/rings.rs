//! Mesh rings to and from a number of peers, with their bells: the internal link to other replicas of the stack, and the
//! shared-memory link to the replicas of a joined stack.

use std::os::fd::OwnedFd;

use atoll_connmgr::Reach;
use atoll_ipc::Memory;
use atoll_ipc::mesh::{Full, KIND_FRAME, MeshConsumer, MeshProducer};
use atoll_shm::ShmMemory;
use atoll_sys::eventfd;

use crate::setup::RING_LOG2;

/// Octets that may wait in the ring of a peer that sleeps before it gets nothing more that does not wake it.
const UNREAD_MAX: u64 = 2048;

/// Bytes before the Ethernet header in a frame record: the virtio-net header, padded.
pub const FRAME_PREFIX: usize = 16;
/// Value of the byte behind the virtio-net header that marks a frame which came from outside.
pub const FORWARDED: u8 = 1;

/// The rings between this replica and each of `peers` others.
///
/// A record that a ring does not take is dropped, as by a full queue of a NIC; the transport retransmits. Lost with the
/// process: nothing, positions live in the rings.
pub struct Rings {
    memory: ShmMemory,
    peers: Vec<Peer>,
    /// Records dropped because a ring was full.
    pub dropped: u64,
}

struct Peer {
    producer: MeshProducer,
    consumer: MeshConsumer,
    bell: OwnedFd,
    unpublished: bool,
    /// Somebody is to be woken for what was sent.
    rings: bool,
    /// Sleep word for which the bell was rung already.
    rung: u32,
}

/// What a frame consists of: headers as bytes, text as bytes or as pieces of an arena.
pub struct Outgoing<'a> {
    /// virtio-net header, then [`FORWARDED`] or 0, then padding.
    pub prefix: [u8; FRAME_PREFIX],
    /// Ethernet, IP and transport headers.
    pub headers: &'a [u8],
    /// Text that lies in private memory.
    pub slice: &'a [u8],
    /// Text that lies in an arena: pieces as absolute offset and length.
    pub pieces: Option<(&'a ShmMemory, &'a [(usize, usize)])>,
}

impl Outgoing<'_> {
    /// Length from the Ethernet header on.
    pub fn frame_len(&self) -> usize {
        let pieces: usize = self.pieces.map_or(0, |(_, parts)| parts.iter().map(|(_, len)| len).sum());
        self.headers.len() + self.slice.len() + pieces
    }
}

impl Rings {
    /// Resumes the rings in `memory`. `places[i]` holds the offsets of the ring to and from peer `i`, `bells[i]` its bell.
    pub fn resume(memory: ShmMemory, places: &[(usize, usize)], bells: Vec<OwnedFd>) -> Rings {
        let peers = places
            .iter()
            .zip(bells)
            .map(|(&(to, from), bell)| Peer {
                producer: MeshProducer::resume(&memory, to, RING_LOG2),
                consumer: MeshConsumer::resume(&memory, from, RING_LOG2),
                bell,
                unpublished: false,
                rings: false,
                rung: 0,
            })
            .collect();
        Rings { memory, peers, dropped: 0 }
    }

    /// Sends a frame to a peer. Returns whether the ring took it.
    pub fn send_frame(&mut self, peer: usize, frame: &Outgoing<'_>) -> bool {
        let Some(to) = self.peers.get_mut(peer) else { return false };
        let len = FRAME_PREFIX + frame.frame_len();
        let Ok(start) = to.producer.begin(&self.memory, KIND_FRAME, len) else {
            self.dropped += 1;
            return false;
        };
        self.memory.write(start, &frame.prefix);
        let mut at = start + FRAME_PREFIX;
        for part in [frame.headers, frame.slice] {
            self.memory.write(at, part);
            at += part.len();
        }
        if let Some((arena, parts)) = frame.pieces {
            for &(from, len) in parts {
                self.memory.copy_from(at, arena, from, len);
                at += len;
            }
        }
        to.producer.commit(len);
        (to.unpublished, to.rings) = (true, true);
        true
    }

    /// Sends a record of another kind to every peer but `except`.
    pub fn broadcast(&mut self, except: usize, kind: u32, payload: &[u8]) {
        for (_, peer) in self.peers.iter_mut().enumerate().filter(|(i, _)| *i != except) {
            match peer.producer.push(&self.memory, kind, &[payload]) {
                Ok(()) => (peer.unpublished, peer.rings) = (true, true),
                Err(Full) => self.dropped += 1,
            }
        }
    }

    /// Sends a record of another kind to the peers of `to`, a bit each. If it does not wake them, they read it whenever they wake up.
    pub fn tell(&mut self, to: u64, wakes: bool, kind: u32, payload: &[u8]) {
        for (_, peer) in self.peers.iter_mut().enumerate().filter(|(i, _)| to >> i & 1 == 1) {
            match peer.producer.push(&self.memory, kind, &[payload]) {
                Ok(()) => (peer.unpublished, peer.rings) = (true, peer.rings || wakes),
                Err(Full) => self.dropped += 1,
            }
        }
    }

    /// Who does not sleep, and who takes a record without being woken: a sleeper's ring is for frames, and is not filled with what
    /// can wait.
    pub fn reach(&self) -> Reach {
        let mut reach = Reach::default();
        for (i, peer) in self.peers.iter().enumerate() {
            let is_awake = !peer.producer.is_consumer_asleep(&self.memory);
            let takes = is_awake || peer.producer.unread(&self.memory) < UNREAD_MAX;
            reach.awake |= u64::from(is_awake) << i;
            reach.takes |= u64::from(takes) << i;
        }
        reach
    }

    /// Takes the next record from any peer, starting with `first`: its kind and length; the payload is in `out`.
    pub fn receive(&mut self, first: usize, out: &mut [u8]) -> Option<(u32, usize)> {
        let count = self.peers.len();
        (0..count).find_map(|i| self.peers[(first + i) % count].consumer.pop(&self.memory, out))
    }

    /// Publishes what was sent and taken, and rings the bells of sleeping peers. Returns how many were rung.
    pub fn publish(&mut self) -> u64 {
        let mut rung = 0;
        for peer in &mut self.peers {
            peer.consumer.publish(&self.memory);
            if std::mem::take(&mut peer.unpublished) {
                let word = peer.producer.publish(&self.memory);
                if std::mem::take(&mut peer.rings) && word & 1 == 1 && word != peer.rung {
                    peer.rung = word;
                    // A full eventfd counter means that the peer has been told 2^64 times already.
                    let _ = eventfd::ring(&peer.bell);
                    rung += 1;
                }
            }
        }
        rung
    }

    /// Tells the peers whether our bell is wanted.
    pub fn set_sleep_word(&self, word: u32) {
        for peer in &self.peers {
            peer.consumer.set_sleep_word(&self.memory, word);
        }
    }

    /// Whether a record is waiting.
    pub fn is_ready(&self) -> bool {
        self.peers.iter().any(|peer| peer.consumer.is_ready(&self.memory))
    }
}
