//! Carries frames from one replica to another, of the same stack or of a joined one, without a kernel in
//! between.
//!
//! The transport is a byte ring of records, one per ordered pair of replicas. The internal link of a stack
//! (loopback, software steering) and the shared-memory link that joins two stacks are both made of these.
//!
//! A record is padded to 8 octets and never wraps: a filler record ends the lap. The producer writes the
//! header's first line, the consumer its second one.

use core::mem::offset_of;

use zerocopy::TryFromBytes;

use crate::layout::{Field, numbered, part, record, words};
use crate::memory::Memory;

/// The kind of a record with a frame, preceded by a [`FramePrefix`].
pub const KIND_FRAME: u32 = 1;
/// The kind of a record with the stack's IPv4 address, from the replica that asks DHCP servers for it.
pub const KIND_ADDRESS: u32 = 16;
/// The kind of a record with a message between connection managers ([`crate::balance::PeerMessage`]): P5.
pub const KIND_BALANCE: u32 = 6;
/// The kind of a record with a message between a transport server and a connection manager in another process
/// ([`crate::manager::ManagerMessage`]).
pub const KIND_MANAGER: u32 = 7;
/// The kind of a record with a message between transport servers and IP servers in other processes
/// ([`crate::ip::IpMessage`]).
pub const KIND_IP: u32 = 17;
const KIND_FILLER: u32 = 0xffff_ffff;

words! {
    /// The header before the records.
    struct Header {
        tail: u64; 56 unused,
        head: u64,
        sleep: u32; 52 unused,
    }
}

words! {
    /// The header before the payload of a record.
    struct RecordHeader {
        len: u32,
        kind: u32,
    }
}

/// Where a frame comes from, and where it is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
pub enum Mark {
    /// The frame is of one server of the stack, and for another one.
    Internal = 0,
    /// The frame has come from outside, and is passed on to its owner.
    Forwarded = 1,
    /// The receiver is to send the frame over its device.
    Outbound = 2,
}

numbered!(Mark);

record! {
    /// What stands before the Ethernet header of a frame in a record.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FramePrefix {
        /// The virtio-net header of the frame.
        pub vnet: [u8; 10],
        /// Where the frame comes from, and where it is to go.
        pub mark: Mark; 1 unused,
        /// When the frame was passed on: the low bits of the time in nanoseconds; else 0.
        pub stamp: u32,
    }
}

/// The size of a [`FramePrefix`] in octets.
pub const FRAME_PREFIX: usize = size_of::<<FramePrefix as Field>::Octets>();

impl FramePrefix {
    /// Encodes the prefix.
    #[inline]
    pub fn encode(&self) -> [u8; FRAME_PREFIX] {
        zerocopy::transmute!(self.write())
    }

    /// Decodes the prefix at the beginning of a record; returns `None` if it is none.
    #[inline]
    pub fn decode(record: &[u8]) -> Option<FramePrefix> {
        part(record, 0).and_then(FramePrefix::read).ok()
    }
}

/// Returns the mark of the frame in a record; `None` if the record is too short for one, or has no valid
/// mark.
#[inline]
pub fn mark_of(record: &[u8]) -> Option<Mark> {
    FramePrefix::decode(record).map(|prefix| prefix.mark)
}

const HEADER_BYTES: usize = size_of::<Header>();
const TAIL: usize = offset_of!(Header, tail);
const HEAD: usize = offset_of!(Header, head);
const SLEEP: usize = offset_of!(Header, sleep);
const RECORD_HEADER: usize = size_of::<RecordHeader>();
const KIND: usize = offset_of!(RecordHeader, kind);
/// The maximum length of a record's payload in bytes: a 64 KiB frame with its headers. (The payload length of
/// an IPv6 packet does not count its header.)
pub const PAYLOAD_MAX: usize = 65536 + 96;

/// Returns the size in bytes of a ring with 2^`log2` bytes of records. `log2` is at least 18, so that two of
/// the longest records fit.
pub const fn mesh_bytes(log2: u8) -> usize {
    HEADER_BYTES + (1 << log2)
}

/// The sending side of a mesh ring.
#[derive(Debug)]
pub struct MeshProducer {
    base: usize,
    size: u64,
    tail: u64,
    head_seen: u64,
}

/// The receiving side of a mesh ring.
#[derive(Debug)]
pub struct MeshConsumer {
    base: usize,
    size: u64,
    head: u64,
    bad: u64,
}

/// The error of a ring without room; the frame is dropped, as by a full queue of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl MeshProducer {
    /// Resumes producing into the ring at `base`.
    pub fn resume<M: Memory>(memory: &M, base: usize, log2: u8) -> MeshProducer {
        assert!((18..=30).contains(&log2), "mesh rings are 256 KiB to 1 GiB");
        let tail = memory.load64(base + TAIL);
        MeshProducer { base, size: 1 << log2, tail, head_seen: memory.load64_acquire(base + HEAD) }
    }

    /// Appends a record whose payload is made of `parts`. It becomes visible with [`MeshProducer::publish`].
    pub fn push<M: Memory>(&mut self, memory: &M, kind: u32, parts: &[&[u8]]) -> Result<(), Full> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let mut at = self.begin(memory, kind, len)?;
        for part in parts {
            memory.write(at, part);
            at += part.len();
        }
        self.commit(len);
        Ok(())
    }

    /// Reserves a record of `len` payload bytes. Returns the offset of the payload in the memory, which the
    /// caller fills before [`MeshProducer::commit`] of the same `len`.
    pub fn begin<M: Memory>(&mut self, memory: &M, kind: u32, len: usize) -> Result<usize, Full> {
        let needed = record_bytes(len);
        if len > PAYLOAD_MAX {
            return Err(Full);
        }
        let within = self.tail & (self.size - 1);
        let to_end = self.size - within;
        let filler = if to_end < needed { to_end } else { 0 };
        if !self.has_room(memory, filler + needed) {
            return Err(Full);
        }
        if filler > 0 {
            // Records are multiples of 8 bytes, so a filler header always fits.
            let at = self.base + HEADER_BYTES + within as usize;
            memory.store32(at, (filler - RECORD_HEADER as u64) as u32);
            memory.store32(at + KIND, KIND_FILLER);
            self.tail += filler;
        }
        let at = self.base + HEADER_BYTES + (self.tail & (self.size - 1)) as usize;
        memory.store32(at, len as u32);
        memory.store32(at + KIND, kind);
        Ok(at + RECORD_HEADER)
    }

    /// Ends the record begun with the same `len`.
    pub fn commit(&mut self, len: usize) {
        self.tail += record_bytes(len);
    }

    /// Makes all records pushed so far visible. Returns the consumer's sleep word, by which the caller
    /// decides about the doorbell.
    pub fn publish<M: Memory>(&mut self, memory: &M) -> u32 {
        // Partner: the acquire load in `MeshConsumer::pop`.
        memory.store64_release(self.base + TAIL, self.tail);
        memory.fence();
        memory.load32(self.base + SLEEP)
    }

    /// Returns whether the consumer sleeps, as far as it has published.
    pub fn is_consumer_asleep<M: Memory>(&self, memory: &M) -> bool {
        memory.load32(self.base + SLEEP) & 1 == 1
    }

    /// Returns the number of octets of records that the consumer has not given back yet.
    pub fn unread<M: Memory>(&self, memory: &M) -> u64 {
        self.tail.wrapping_sub(memory.load64_acquire(self.base + HEAD))
    }

    fn has_room<M: Memory>(&mut self, memory: &M, bytes: u64) -> bool {
        if self.size - self.tail.wrapping_sub(self.head_seen).min(self.size) >= bytes {
            return true;
        }
        let head = memory.load64_acquire(self.base + HEAD);
        if self.tail.wrapping_sub(head) <= self.size {
            self.head_seen = head;
        }
        self.size - self.tail.wrapping_sub(self.head_seen).min(self.size) >= bytes
    }
}

impl MeshConsumer {
    /// Resumes consuming from the ring at `base`.
    pub fn resume<M: Memory>(memory: &M, base: usize, log2: u8) -> MeshConsumer {
        assert!((18..=30).contains(&log2), "mesh rings are 256 KiB to 1 GiB");
        MeshConsumer { base, size: 1 << log2, head: memory.load64(base + HEAD), bad: 0 }
    }

    /// Returns whether a record is waiting.
    pub fn is_ready<M: Memory>(&self, memory: &M) -> bool {
        memory.load64_acquire(self.base + TAIL) != self.head
    }

    /// Copies the next record's payload to `out` and returns its kind and length. Records that are too long
    /// for `out`, or malformed, are skipped and counted.
    pub fn pop<M: Memory>(&mut self, memory: &M, out: &mut [u8]) -> Option<(u32, usize)> {
        loop {
            let tail = memory.load64_acquire(self.base + TAIL);
            let waiting = tail.wrapping_sub(self.head);
            if waiting == 0 {
                return None;
            }
            let within = self.head & (self.size - 1);
            let at = self.base + HEADER_BYTES + within as usize;
            let (len, kind) = (memory.load32(at) as usize, memory.load32(at + KIND));
            let bytes = record_bytes(len);
            if waiting > self.size
                || !self.head.is_multiple_of(8)
                || bytes > waiting
                || bytes > self.size - within
            {
                // The producer's length is impossible: everything it claims to have sent counts as consumed.
                self.bad += 1;
                self.head = tail & !7;
                if self.head != tail {
                    return None;
                }
                continue;
            }
            self.head += bytes;
            if kind == KIND_FILLER {
                continue;
            }
            if len > out.len() {
                self.bad += 1;
                continue;
            }
            memory.read(at + RECORD_HEADER, &mut out[..len]);
            return Some((kind, len));
        }
    }

    /// Gives the room of the records taken so far back to the producer. Call once per batch.
    pub fn publish<M: Memory>(&self, memory: &M) {
        memory.store64_release(self.base + HEAD, self.head);
    }

    /// Publishes to the producer whether to ring the doorbell (odd: asleep). The consumer fences and checks
    /// the ring again before it blocks.
    pub fn set_sleep_word<M: Memory>(&self, memory: &M, word: u32) {
        memory.store32(self.base + SLEEP, word);
    }

    /// Returns the sleep word that was set last, in this process or in a predecessor.
    pub fn sleep_word<M: Memory>(&self, memory: &M) -> u32 {
        memory.load32(self.base + SLEEP)
    }

    /// Returns the number of records that were skipped because they were malformed.
    pub fn bad_records(&self) -> u64 {
        self.bad
    }
}

const fn record_bytes(len: usize) -> u64 {
    (RECORD_HEADER + len.next_multiple_of(8)) as u64
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;
    use alloc::vec;
    use alloc::vec::Vec;

    use atoll_base::Rng;

    use super::*;
    use crate::memory::HeapMemory;

    #[test]
    fn the_ring_agrees_with_a_queue_over_many_laps() {
        let memory = HeapMemory::new(mesh_bytes(18));
        let mut producer = MeshProducer::resume(&memory, 0, 18);
        let mut consumer = MeshConsumer::resume(&memory, 0, 18);
        let mut model: VecDeque<Vec<u8>> = VecDeque::new();
        let mut rng = Rng::new(4);
        let mut out = vec![0; PAYLOAD_MAX];
        for n in 0..5000u32 {
            if rng.below(2) == 0 {
                let len = if rng.below(20) == 0 { 65000 } else { rng.below(300) as usize };
                let bytes = vec![n as u8; len];
                if producer.push(&memory, KIND_FRAME, &[&bytes[..len / 2], &bytes[len / 2..]]).is_ok() {
                    model.push_back(bytes);
                }
                producer.publish(&memory);
            } else {
                let got = consumer.pop(&memory, &mut out).map(|(_, len)| out[..len].to_vec());
                assert_eq!(got, model.pop_front());
                consumer.publish(&memory);
            }
        }
        assert_eq!(consumer.bad_records(), 0);
    }

    #[test]
    fn a_scribbling_producer_costs_only_its_own_frames() {
        let memory = HeapMemory::new(mesh_bytes(18));
        let mut consumer = MeshConsumer::resume(&memory, 0, 18);
        let mut rng = Rng::new(8);
        let mut out = vec![0; PAYLOAD_MAX];
        for _ in 0..20_000 {
            memory.store64(TAIL, rng.next_u64() >> rng.below(64));
            memory.store64(HEADER_BYTES + rng.below(1 << 15) as usize * 8, rng.next_u64() >> rng.below(64));
            for _ in 0..4 {
                let _ = consumer.pop(&memory, &mut out);
            }
            consumer.publish(&memory);
        }
    }
}
