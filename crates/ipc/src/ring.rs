//! A bounded SPSC ring of cache-line entries, by which one process sends messages to another (P3).
//!
//! The producer writes the header's first line, the consumer its second one.
//!
//! The entry of position `p` is full when its sequence word is `p + 1` (low 32 bits). Flag and data share a
//! line, so a message costs one line transfer. The producer reads `head` only when its cached copy says
//! "full"; the consumer publishes `head` once per batch. All state of a side lives in the ring itself, so a
//! successor resumes where its predecessor stopped. A lying peer can only lose, repeat or garble its own
//! messages: payloads are validated by their decoders, indices are masked, and an impossible head reads as
//! "full".

use core::mem::offset_of;

pub use crate::layout::MESSAGE_BYTES;
use crate::layout::words;
use crate::memory::Memory;

/// The size of one entry in bytes.
pub const ENTRY_BYTES: usize = size_of::<Entry>();

words! {
    /// The header before the entries.
    struct Header {
        tail: u64; 56 unused,
        head: u64; 56 unused,
    }
}

words! {
    /// An entry.
    struct Entry {
        sequence: u32,
        epoch: u32,
        payload: [u8; MESSAGE_BYTES],
    }
}

const HEADER_BYTES: usize = size_of::<Header>();
const TAIL: usize = offset_of!(Header, tail);
const HEAD: usize = offset_of!(Header, head);
const EPOCH: usize = offset_of!(Entry, epoch);
const PAYLOAD: usize = offset_of!(Entry, payload);

/// Returns the size in bytes of a ring of `capacity` entries.
pub const fn ring_bytes(capacity: usize) -> usize {
    HEADER_BYTES + capacity * ENTRY_BYTES
}

/// The sending side of a ring, which one process (or one lock holder) uses at a time.
#[derive(Debug)]
pub struct Producer {
    base: usize,
    capacity: u64,
    tail: u64,
    head_seen: u64,
}

/// The receiving side of a ring, which one process (or one lock holder) uses at a time.
#[derive(Debug)]
pub struct Consumer {
    base: usize,
    capacity: u64,
    head: u64,
    head_published: u64,
}

impl Producer {
    /// Resumes producing into the ring at `base` with `capacity` (a power of two) entries. Its producer is
    /// gone: see [`Producer::join`].
    pub fn resume<M: Memory>(memory: &M, base: usize, capacity: usize) -> Producer {
        let mut producer = Producer::join(memory, base, capacity);
        producer.reload(memory);
        producer
    }

    /// Begins to produce into a ring into which others may push at this moment, and writes nothing. It does
    /// not repair what a producer that died during a push has left; [`Producer::reload`] does, and holders
    /// that take turns call that before each of their turns.
    pub fn join<M: Memory>(memory: &M, base: usize, capacity: usize) -> Producer {
        assert!(capacity.is_power_of_two(), "ring capacity is a power of two");
        let tail = memory.load64(base + TAIL);
        Producer { base, capacity: capacity as u64, tail, head_seen: tail.wrapping_sub(capacity as u64) }
    }

    /// Reads this side's position again, which another holder of the side may have moved meanwhile. No other
    /// holder may push at this moment.
    pub fn reload<M: Memory>(&mut self, memory: &M) {
        self.tail = memory.load64(self.base + TAIL);
        // A producer that died between the last two stores of `push` has sent one message more than its
        // position says.
        let next = memory.load32(self.base + HEADER_BYTES + self.slot() * ENTRY_BYTES);
        if next == self.tail.wrapping_add(1) as u32 {
            self.tail = self.tail.wrapping_add(1);
            memory.store64(self.base + TAIL, self.tail);
        }
        self.head_seen = self.tail.wrapping_sub(self.capacity);
    }

    fn slot(&self) -> usize {
        (self.tail & (self.capacity - 1)) as usize
    }

    /// Appends a message. Returns false, without change, when the ring is full.
    pub fn push<M: Memory>(&mut self, memory: &M, epoch: u32, payload: &[u8; MESSAGE_BYTES]) -> bool {
        if self.tail.wrapping_sub(self.head_seen) >= self.capacity && !self.has_room(memory) {
            return false;
        }
        let at = self.base + HEADER_BYTES + self.slot() * ENTRY_BYTES;
        memory.store32(at + EPOCH, epoch);
        memory.write(at + PAYLOAD, payload);
        self.tail = self.tail.wrapping_add(1);
        // Partner: the acquire load in `Consumer::pop`.
        memory.store32_release(at, self.tail as u32);
        memory.store64(self.base + TAIL, self.tail);
        true
    }

    /// Returns the number of messages that can be pushed before the ring is full, as far as the consumer has
    /// published.
    pub fn room<M: Memory>(&mut self, memory: &M) -> u64 {
        self.has_room(memory);
        self.capacity - self.tail.wrapping_sub(self.head_seen).min(self.capacity)
    }

    /// Returns the position after the last message pushed.
    pub fn position(&self) -> u64 {
        self.tail
    }

    fn has_room<M: Memory>(&mut self, memory: &M) -> bool {
        // Partner: the release store in `Consumer::publish`.
        let head = memory.load64_acquire(self.base + HEAD);
        if self.tail.wrapping_sub(head) <= self.capacity {
            self.head_seen = head;
        }
        self.tail.wrapping_sub(self.head_seen) < self.capacity
    }
}

impl Consumer {
    /// Resumes consuming from the ring at `base` with `capacity` (a power of two) entries.
    pub fn resume<M: Memory>(memory: &M, base: usize, capacity: usize) -> Consumer {
        assert!(capacity.is_power_of_two(), "ring capacity is a power of two");
        let head = memory.load64(base + HEAD);
        Consumer { base, capacity: capacity as u64, head, head_published: head }
    }

    /// Reads this side's position again, which another holder of the side may have moved meanwhile.
    pub fn reload<M: Memory>(&mut self, memory: &M) {
        self.head = memory.load64(self.base + HEAD);
        self.head_published = self.head;
    }

    /// Returns whether a message is waiting.
    pub fn is_ready<M: Memory>(&self, memory: &M) -> bool {
        memory.load32_acquire(self.entry()) == self.head.wrapping_add(1) as u32
    }

    /// Takes the next message: the sender's epoch and the payload. The slot is given back by
    /// [`Consumer::publish`], at the latest after half a ring.
    pub fn pop<M: Memory>(&mut self, memory: &M) -> Option<(u32, [u8; MESSAGE_BYTES])> {
        if !self.is_ready(memory) {
            return None;
        }
        // Only messages before this one are published, because this one may be put back.
        if self.head.wrapping_sub(self.head_published) >= self.capacity / 2 {
            self.publish(memory);
        }
        let at = self.entry();
        let mut payload = [0; MESSAGE_BYTES];
        memory.read(at + PAYLOAD, &mut payload);
        let epoch = memory.load32(at + EPOCH);
        self.head = self.head.wrapping_add(1);
        Some((epoch, payload))
    }

    /// Puts the message that was taken last back. Do not call after [`Consumer::publish`].
    pub fn put_back(&mut self) {
        if self.head != self.head_published {
            self.head = self.head.wrapping_sub(1);
        }
    }

    /// Publishes to the producer which messages have been taken. Call once per batch.
    pub fn publish<M: Memory>(&mut self, memory: &M) {
        if self.head != self.head_published {
            memory.store64_release(self.base + HEAD, self.head);
            self.head_published = self.head;
        }
    }

    fn entry(&self) -> usize {
        self.base + HEADER_BYTES + (self.head & (self.capacity - 1)) as usize * ENTRY_BYTES
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use atoll_base::Rng;

    use super::*;

    #[test]
    fn a_producer_that_died_before_it_said_that_it_had_sent_is_succeeded_without_a_gap() {
        let memory = HeapMemory::new(ring_bytes(4));
        let mut producer = Producer::resume(&memory, 0, 4);
        let mut consumer = Consumer::resume(&memory, 0, 4);
        assert!(producer.push(&memory, 1, &[1; MESSAGE_BYTES]));
        memory.store64(TAIL, 0);
        assert_eq!(consumer.pop(&memory), Some((1, [1; MESSAGE_BYTES])));
        let mut successor = Producer::resume(&memory, 0, 4);
        assert_eq!(successor.position(), 1);
        assert!(successor.push(&memory, 2, &[2; MESSAGE_BYTES]));
        assert_eq!(consumer.pop(&memory), Some((2, [2; MESSAGE_BYTES])));
    }
    #[test]
    fn a_message_that_was_put_back_is_the_next_one_and_no_successor_misses_it() {
        let memory = HeapMemory::new(ring_bytes(8));
        let mut producer = Producer::resume(&memory, 0, 8);
        (0..8).for_each(|n| assert!(producer.push(&memory, 1, &message(n))));
        for taken in 0..8 {
            let mut consumer = Consumer::resume(&memory, 0, 8);
            memory.store64(HEAD, 0);
            consumer.reload(&memory);
            (0..taken).for_each(|n| assert_eq!(consumer.pop(&memory), Some((1, message(n)))));
            for _ in 0..2 {
                assert_eq!(consumer.pop(&memory), Some((1, message(taken))), "the {taken}th");
                consumer.put_back();
            }
            consumer.publish(&memory);
            let mut successor = Consumer::resume(&memory, 0, 8);
            assert_eq!(successor.pop(&memory), Some((1, message(taken))));
            assert_eq!(consumer.pop(&memory), Some((1, message(taken))));
        }
    }

    use crate::memory::HeapMemory;

    fn message(n: u64) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        bytes
    }

    #[test]
    fn the_ring_agrees_with_a_queue() {
        let memory = HeapMemory::new(ring_bytes(8));
        let mut producer = Producer::resume(&memory, 0, 8);
        let mut consumer = Consumer::resume(&memory, 0, 8);
        let mut model = VecDeque::new();
        let mut rng = Rng::new(3);
        let mut next = 0;
        for _ in 0..100_000 {
            match rng.below(5) {
                0 | 1 => {
                    if producer.push(&memory, 9, &message(next)) {
                        model.push_back(next);
                        next += 1;
                    } else {
                        assert!(model.len() + 4 >= 8, "full although {} are waiting", model.len());
                    }
                }
                2 | 3 => {
                    let got = consumer.pop(&memory);
                    assert_eq!(got, model.pop_front().map(|n| (9, message(n))));
                }
                _ => match rng.below(3) {
                    0 => consumer.publish(&memory),
                    1 => producer = Producer::resume(&memory, 0, 8),
                    _ => {
                        consumer.publish(&memory);
                        consumer = Consumer::resume(&memory, 0, 8);
                    }
                },
            }
        }
    }

    #[test]
    fn a_full_ring_refuses_until_the_consumer_publishes() {
        let memory = HeapMemory::new(ring_bytes(4));
        let mut producer = Producer::resume(&memory, 0, 4);
        let mut consumer = Consumer::resume(&memory, 0, 4);
        for n in 0..4 {
            assert!(producer.push(&memory, 1, &message(n)));
        }
        assert!(!producer.push(&memory, 1, &message(4)));
        assert!(consumer.pop(&memory).is_some());
        consumer.publish(&memory);
        assert!(producer.push(&memory, 1, &message(4)));
    }

    #[test]
    fn a_lying_consumer_cannot_make_the_producer_overrun() {
        let memory = HeapMemory::new(ring_bytes(4));
        let mut producer = Producer::resume(&memory, 0, 4);
        for n in 0..4 {
            assert!(producer.push(&memory, 1, &message(n)));
        }
        memory.store64(HEAD, 0xdead_beef_dead_beef);
        assert!(!producer.push(&memory, 1, &message(4)));
    }

    #[test]
    fn scribbled_entries_never_panic() {
        let memory = HeapMemory::new(ring_bytes(16));
        let mut consumer = Consumer::resume(&memory, 0, 16);
        let mut producer = Producer::resume(&memory, 0, 16);
        let mut rng = Rng::new(11);
        for _ in 0..100_000 {
            let at = rng.below(ring_bytes(16) as u32 / 8) as usize * 8;
            memory.store64(at, rng.next_u64());
            let _ = consumer.pop(&memory);
            consumer.publish(&memory);
            let _ = producer.push(&memory, 1, &message(1));
        }
    }
}
