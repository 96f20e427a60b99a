//! Mesh rings to and from a number of peers, with their doorbells: the internal link to the other servers of
//! the stack, and the shared-memory link to the replicas of a joined stack.

use std::os::fd::OwnedFd;

use atoll_base::{Duration, Instant};
use atoll_connmgr::Reach;
use atoll_ipc::Memory;
use atoll_ipc::mesh::{FRAME_PREFIX, FramePrefix, Full, KIND_FRAME, Mark, MeshConsumer, MeshProducer};
use atoll_ipc::page::REPLICAS_MAX;
use atoll_shm::ShmMemory;
use atoll_sys::eventfd;
use atoll_wire::vnet;

use crate::mesh::{RING_LOG2, Way};

/// Octets that may wait in the ring of a sleeping peer before it gets no more records that do not wake it.
const UNREAD_MAX: u64 = 2048;

/// A record that was taken out of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The number of the peer that sent it.
    pub peer: usize,
    /// The kind of the record: `KIND_*` of `atoll_ipc::mesh`.
    pub kind: u32,
    /// The length of the payload in bytes.
    pub len: usize,
}

/// The rings between this server and a number of peers.
///
/// A record that a full ring does not take is dropped, as by the full queue of a NIC; the transport
/// retransmits. Positions live in the rings, so nothing is lost with the process.
pub struct Rings {
    /// The peers by number; `None` for those with which this server does not communicate.
    peers: Vec<Option<Peer>>,
    /// Records dropped because a ring was full.
    pub dropped: u64,
}

struct Peer {
    memory: ShmMemory,
    producer: MeshProducer,
    consumer: MeshConsumer,
    bell: OwnedFd,
    unpublished: bool,
    /// Whether the peer is to be woken for what was sent.
    rings: bool,
    /// The sleep word for which the doorbell was last rung.
    rung: u32,
    /// Whether records of this peer stay in its ring for now.
    held_up: bool,
}

/// The parts of a frame: headers as bytes, payload as bytes or as pieces of an arena.
pub struct Outgoing<'a> {
    /// The octets of a [`FramePrefix`].
    pub prefix: [u8; FRAME_PREFIX],
    /// The Ethernet, IP and transport headers.
    pub headers: &'a [u8],
    /// The payload, if it lies in private memory.
    pub slice: &'a [u8],
    /// The payload, if it lies in an arena: pieces as absolute offset and length.
    pub pieces: Option<(&'a ShmMemory, &'a [(usize, usize)])>,
}

/// Returns the prefix of a frame from outside that is passed on to its owner. It has a timestamp, so that the
/// owner knows how long the frame waited.
pub fn forwarded_prefix(now: Instant, vnet: &[u8; vnet::HEADER_LEN]) -> [u8; FRAME_PREFIX] {
    FramePrefix { vnet: *vnet, mark: Mark::Forwarded, stamp: now.as_nanos() as u32 }.encode()
}

/// Returns the prefix of a frame without a timestamp.
pub fn prefix_of(vnet: &[u8; vnet::HEADER_LEN], mark: Mark) -> [u8; FRAME_PREFIX] {
    FramePrefix { vnet: *vnet, mark, stamp: 0 }.encode()
}

/// Returns how long ago a frame with this prefix was passed on. Times beyond two seconds, half the range of
/// the timestamp, read as zero.
pub fn waited(now: Instant, prefix: &FramePrefix) -> Duration {
    let nanos = (now.as_nanos() as u32).wrapping_sub(prefix.stamp);
    // A negative time means that the frame came after the round had begun.
    if nanos > i32::MAX as u32 { Duration::ZERO } else { Duration::from_nanos(nanos.into()) }
}

impl Outgoing<'_> {
    /// Returns the length in bytes from the Ethernet header on.
    pub fn frame_len(&self) -> usize {
        let pieces: usize = self.pieces.map_or(0, |(_, parts)| parts.iter().map(|(_, len)| len).sum());
        self.headers.len() + self.slice.len() + pieces
    }
}

impl Rings {
    /// Resumes the rings to and from each peer, by number. `bells[i]` is the doorbell of peer `i`.
    pub fn resume(ways: Vec<Option<Way>>, bells: Vec<OwnedFd>) -> Rings {
        let peer = |Way { memory, to, from }: Way, bell| Peer {
            producer: MeshProducer::resume(&memory, to, RING_LOG2),
            consumer: MeshConsumer::resume(&memory, from, RING_LOG2),
            memory,
            bell,
            // A predecessor may have published records and died before it rang.
            unpublished: true,
            rings: true,
            rung: 0,
            held_up: false,
        };
        let peers = ways.into_iter().zip(bells).map(|(way, bell)| Some(peer(way?, bell))).collect();
        Rings { peers, dropped: 0 }
    }

    fn peer_mut(&mut self, peer: usize) -> Option<&mut Peer> {
        self.peers.get_mut(peer)?.as_mut()
    }

    /// Returns the number of peers.
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// Sends a frame to a peer. Returns whether the ring took it.
    pub fn send_frame(&mut self, peer: usize, frame: &Outgoing<'_>) -> bool {
        let Some(to) = self.peers.get_mut(peer).and_then(Option::as_mut) else { return false };
        let len = FRAME_PREFIX + frame.frame_len();
        let Ok(start) = to.producer.begin(&to.memory, KIND_FRAME, len) else {
            self.dropped += 1;
            return false;
        };
        to.memory.write(start, &frame.prefix);
        let mut at = start + FRAME_PREFIX;
        for part in [frame.headers, frame.slice] {
            to.memory.write(at, part);
            at += part.len();
        }
        if let Some((arena, parts)) = frame.pieces {
            for &(from, len) in parts {
                to.memory.copy_from(at, arena, from, len);
                at += len;
            }
        }
        to.producer.commit(len);
        (to.unpublished, to.rings) = (true, true);
        true
    }

    /// Sends a record of another kind to a peer. Returns whether the ring took it.
    pub fn send(&mut self, peer: usize, kind: u32, payload: &[u8]) -> bool {
        let Some(to) = self.peer_mut(peer) else { return false };
        let taken = to.producer.push(&to.memory, kind, &[payload]).is_ok();
        (to.unpublished, to.rings) = (to.unpublished | taken, to.rings | taken);
        taken
    }

    /// Sends a record of another kind to the replicas in the bit mask `to`. Sleeping replicas are woken only
    /// if `wakes` is set; otherwise they read the record whenever they wake up.
    pub fn tell(&mut self, to: u64, wakes: bool, kind: u32, payload: &[u8]) {
        let replicas = self.peers.iter_mut().enumerate().take(REPLICAS_MAX);
        for peer in replicas.filter(|(i, _)| to >> i & 1 == 1).filter_map(|(_, peer)| peer.as_mut()) {
            match peer.producer.push(&peer.memory, kind, &[payload]) {
                Ok(()) => (peer.unpublished, peer.rings) = (true, peer.rings || wakes),
                Err(Full) => self.dropped += 1,
            }
        }
    }

    /// Returns which replicas are awake, and which take a record without being woken: the ring of a sleeping
    /// replica is for frames, and is not filled with records that can wait.
    pub fn reach(&self) -> Reach {
        let mut reach = Reach::default();
        for (i, peer) in self.peers.iter().enumerate().take(REPLICAS_MAX) {
            let Some(peer) = peer else { continue };
            let is_awake = !peer.producer.is_consumer_asleep(&peer.memory);
            let takes = is_awake || peer.producer.unread(&peer.memory) < UNREAD_MAX;
            reach.awake |= u64::from(is_awake) << i;
            reach.takes |= u64::from(takes) << i;
        }
        reach
    }

    /// Takes the next record from any peer that is not held up, starting with peer `first`. The payload is in
    /// `out`; `None` means that no record waits.
    pub fn receive(&mut self, first: usize, out: &mut [u8]) -> Option<Received> {
        let count = self.peers.len();
        (0..count).map(|i| (first + i) % count).find_map(|at| {
            let peer = self.peer_mut(at).filter(|peer| !peer.held_up)?;
            let (kind, len) = peer.consumer.pop(&peer.memory, out)?;
            Some(Received { peer: at, kind, len })
        })
    }

    /// Sets whether records of a peer stay in its ring for now. The ring fills then, and the peer notices.
    pub fn hold_up(&mut self, peer: usize, held_up: bool) {
        if let Some(peer) = self.peer_mut(peer) {
            peer.held_up = held_up;
        }
    }

    /// Publishes what was sent and taken, and rings the doorbells of sleeping peers. Returns how many were
    /// rung.
    pub fn publish(&mut self) -> u64 {
        let mut rung = 0;
        for peer in self.peers.iter_mut().flatten() {
            peer.consumer.publish(&peer.memory);
            if std::mem::take(&mut peer.unpublished) {
                let word = peer.producer.publish(&peer.memory);
                if std::mem::take(&mut peer.rings) && word & 1 == 1 && word != peer.rung {
                    peer.rung = word;
                    // Ringing a doorbell does not fail; a descriptor that is no doorbell wakes no process.
                    let _ = eventfd::ring(&peer.bell);
                    rung += 1;
                }
            }
        }
        rung
    }

    /// Writes the sleep word where the peers look: an odd `word` says that this server's doorbell is wanted.
    pub fn set_sleep_word(&self, word: u32) {
        for peer in self.peers.iter().flatten() {
            peer.consumer.set_sleep_word(&peer.memory, word);
        }
    }

    /// Returns the highest sleep word that this server, or a predecessor, has written for a peer.
    pub fn sleep_word(&self) -> u32 {
        let words = self.peers.iter().flatten().map(|peer| peer.consumer.sleep_word(&peer.memory));
        words.fold(0, |last, word| if word.wrapping_sub(last) as i32 > 0 { word } else { last })
    }

    /// Returns whether a record waits that may be taken.
    pub fn is_ready(&self) -> bool {
        self.peers.iter().flatten().any(|peer| !peer.held_up && peer.consumer.is_ready(&peer.memory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_a_frame_waited_is_told_by_its_prefix() {
        let now = Instant::from_nanos(u64::from(u32::MAX) - 10);
        let prefix = forwarded_prefix(now, &[1; vnet::HEADER_LEN]);
        assert_eq!(prefix, [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0xf5, 0xff, 0xff, 0xff]);
        assert_eq!(FramePrefix::decode(&prefix[..15]), None, "too short");
        let prefix = FramePrefix::decode(&prefix).expect("a prefix");
        // The two cases: across the end of the timestamp's range, and backwards.
        assert_eq!(waited(now + Duration::from_micros(7), &prefix), Duration::from_micros(7));
        assert_eq!(waited(Instant::from_nanos(now.as_nanos() - 5), &prefix), Duration::ZERO);
    }
}
