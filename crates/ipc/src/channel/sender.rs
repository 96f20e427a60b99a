//! The sending side of a ring: appends messages, and decides when the receiver has to be woken.

use atoll_base::Epoch;

use super::{HEAD, MESSAGE_BYTES, PAYLOAD, SLEEP, TAIL, entry, is_full, mask_of, tag};
use crate::memory::Memory;

/// The sending side of a ring, which one process uses at a time.
#[derive(Debug)]
pub struct Sender {
    base: usize,
    mask: u64,
    epoch: u32,
    /// The position after the last message pushed.
    tail: u64,
    /// The position after the last message that the receiver may see.
    published: u64,
    /// The receiver's head, as last seen.
    head_seen: u64,
    /// The sleep word for which the doorbell was rung.
    rung: u32,
    lies: u64,
}

/// The error of a ring without room: the receiver does not keep up, or is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Whether the receiver has to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Bell {
    /// The receiver is awake, or its doorbell has been rung already.
    Silent,
    /// The receiver sleeps: ring its doorbell. Returned once for each of its sleeps.
    Ring,
}

impl Sender {
    /// Takes the sending side of the ring at `base`, new or of a predecessor, for a process of this epoch.
    ///
    /// What the predecessor had published stays. What it had not published is removed: the successor will
    /// write other messages there, and the receiver must not find the old ones first.
    pub fn resume<M: Memory>(memory: &M, base: usize, capacity: usize, epoch: Epoch) -> Sender {
        let mask = mask_of(capacity);
        let mut tail = memory.load64(base + TAIL);
        // The predecessor may have died between publishing a batch and noting its end.
        for _ in 0..capacity {
            if !is_full(memory.load64(entry(base, mask, tail)), tail) {
                break;
            }
            tail = tail.wrapping_add(1);
        }
        for at in (1..=mask).map(|ahead| tail.wrapping_add(ahead)) {
            let place = entry(base, mask, at);
            if is_full(memory.load64(place), at) {
                memory.store64(place, 0);
            }
        }
        memory.store64(base + TAIL, tail);
        // The head is set as if the ring were full, so that the first push reads the real one.
        let head_seen = tail.wrapping_sub(capacity as u64);
        Sender { base, mask, epoch: epoch.0, tail, published: tail, head_seen, rung: 0, lies: 0 }
    }

    /// Appends a message to the batch; the receiver sees it after [`Sender::publish`]. Fails without change
    /// when the ring is full.
    #[inline]
    pub fn push<M: Memory>(&mut self, memory: &M, payload: &[u8; MESSAGE_BYTES]) -> Result<(), Full> {
        if self.tail.wrapping_sub(self.head_seen) > self.mask && !self.has_room(memory) {
            return Err(Full);
        }
        let at = entry(self.base, self.mask, self.tail);
        memory.write(at + PAYLOAD, payload);
        if self.tail != self.published {
            // The receiver reads no entry before the first of the batch; its release store covers this one.
            memory.store64(at, tag(self.tail, self.epoch));
        }
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Makes the batch visible. Costs a fence; nothing if the batch is empty.
    #[inline]
    pub fn publish<M: Memory>(&mut self, memory: &M) -> Bell {
        if self.tail == self.published {
            return Bell::Silent;
        }
        let first = entry(self.base, self.mask, self.published);
        // Partner: the acquire load in `Receiver::pop`.
        memory.store64_release(first, tag(self.published, self.epoch));
        memory.store64(self.base + TAIL, self.tail);
        self.published = self.tail;
        // Partner: the receiver's fence between its sleep word and its last look.
        memory.fence();
        let word = memory.load32(self.base + SLEEP);
        if word & 1 == 0 || word == self.rung {
            return Bell::Silent;
        }
        self.rung = word;
        Bell::Ring
    }

    /// Returns the number of messages that the ring can take now, as far as the receiver has published.
    pub fn room<M: Memory>(&mut self, memory: &M) -> u64 {
        self.has_room(memory);
        (self.mask + 1) - self.tail.wrapping_sub(self.head_seen)
    }

    /// Returns how often the head was a position that the receiver cannot have reached.
    pub fn lies(&self) -> u64 {
        self.lies
    }

    #[cold]
    fn has_room<M: Memory>(&mut self, memory: &M) -> bool {
        // Partner: the release store in `Receiver::release`.
        let head = memory.load64_acquire(self.base + HEAD);
        // A head counts unless it is beyond what was published, behind what it was, or more than a lap
        // behind.
        let taken = head.wrapping_sub(self.head_seen);
        if taken <= self.published.wrapping_sub(self.head_seen) {
            self.head_seen = head;
        } else {
            self.lies += 1;
        }
        self.tail.wrapping_sub(self.head_seen) <= self.mask
    }
}
