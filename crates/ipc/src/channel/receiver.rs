//! The receiving side of a ring: takes messages, and drops those of dead epochs.

use atoll_base::Epoch;

use super::{HEAD, MESSAGE_BYTES, PAYLOAD, SLEEP, entry, is_full, mask_of};
use crate::memory::Memory;

/// The receiving side of a ring, which one process uses at a time.
#[derive(Debug)]
pub struct Receiver {
    base: usize,
    mask: u64,
    /// The position of the next message.
    head: u64,
    /// The position up to which the sender has got its room back.
    released: u64,
    /// The epoch whose messages count.
    peer: u32,
    /// The sleep word, which is odd while this side sleeps.
    sleep_word: u32,
    stale: u64,
}

impl Receiver {
    /// Takes the receiving side of the ring at `base`, new or of a predecessor. Messages that the predecessor
    /// took without giving their room back come again.
    pub fn resume<M: Memory>(memory: &M, base: usize, capacity: usize, peer: Epoch) -> Receiver {
        let head = memory.load64(base + HEAD);
        // A predecessor may have died asleep, and the sender may have rung for that sleep. The number of that
        // sleep is not used again.
        let sleep_word = memory.load32(base + SLEEP).wrapping_add(1) & !1;
        memory.store32(base + SLEEP, sleep_word);
        Receiver { base, mask: mask_of(capacity), head, released: head, peer: peer.0, sleep_word, stale: 0 }
    }

    /// Returns whether there is a message to take: one of the peer's current epoch, or of an earlier one. A
    /// message of a later epoch does not count, so that no receiver stays awake for it.
    #[inline]
    pub fn is_ready<M: Memory>(&self, memory: &M) -> bool {
        let tag = memory.load64_acquire(entry(self.base, self.mask, self.head));
        is_full(tag, self.head) && (tag >> 32) as u32 <= self.peer
    }

    /// Takes the next message. Messages of dead epochs before it are dropped and counted, at most a ring of
    /// them in one call.
    ///
    /// Room is given back to the sender when a quarter of the ring has been taken, and by
    /// [`Receiver::release`].
    #[inline]
    pub fn pop<M: Memory>(&mut self, memory: &M) -> Option<[u8; MESSAGE_BYTES]> {
        for _ in 0..=self.mask {
            let at = entry(self.base, self.mask, self.head);
            // Partner: the release store in `Sender::publish`.
            let tag = memory.load64_acquire(at);
            let epoch = (tag >> 32) as u32;
            if !is_full(tag, self.head) || epoch > self.peer {
                return None;
            }
            let mut payload = [0; MESSAGE_BYTES];
            memory.read(at + PAYLOAD, &mut payload);
            self.head = self.head.wrapping_add(1);
            if self.head.wrapping_sub(self.released) > self.mask / 4 {
                self.release(memory);
            }
            if epoch == self.peer {
                return Some(payload);
            }
            self.stale += 1;
        }
        None
    }

    /// Publishes to the sender which messages have been taken. Call once per batch.
    #[inline]
    pub fn release<M: Memory>(&mut self, memory: &M) {
        if self.head != self.released {
            // Partner: the acquire load in `Sender::has_room`. Reads of the payloads come before it.
            memory.store64_release(self.base + HEAD, self.head);
            self.released = self.head;
        }
    }

    /// Asks the sender to ring the doorbell from now on. Before it sleeps, this side fences and calls
    /// [`Receiver::is_ready`] once more.
    pub fn fall_asleep<M: Memory>(&mut self, memory: &M) {
        self.set_sleep_word(memory, self.sleep_word | 1);
    }

    /// Asks the sender not to ring the doorbell from now on.
    pub fn wake_up<M: Memory>(&mut self, memory: &M) {
        self.set_sleep_word(memory, self.sleep_word.wrapping_add(self.sleep_word & 1));
    }

    fn set_sleep_word<M: Memory>(&mut self, memory: &M, word: u32) {
        if word != self.sleep_word {
            self.sleep_word = word;
            memory.store32(self.base + SLEEP, word);
        }
    }

    /// Sets the peer's current epoch; messages of earlier ones are stale.
    pub fn set_peer(&mut self, peer: Epoch) {
        self.peer = peer.0;
    }

    /// Returns the number of messages that were dropped because their sender's epoch is over.
    pub fn stale(&self) -> u64 {
        self.stale
    }
}
