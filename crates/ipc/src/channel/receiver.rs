//! How does a message come out of a ring, and whose messages count?

use atoll_base::Epoch;

use super::{HEAD, MESSAGE_BYTES, SLEEP, entry, is_full, mask_of};
use crate::memory::Memory;

/// The receiving side of a ring. One process at a time.
#[derive(Debug)]
pub struct Receiver {
    base: usize,
    mask: u64,
    /// Position of the next message.
    head: u64,
    /// What the sender has been told.
    released: u64,
    /// Epoch whose messages count.
    peer: u32,
    /// Odd while this side sleeps.
    sleep_word: u32,
    stale: u64,
}

impl Receiver {
    /// Takes the receiving side of the ring at `base`, new or of a predecessor. Messages that the predecessor
    /// took without giving their room back come again.
    pub fn resume<M: Memory>(memory: &M, base: usize, capacity: usize, peer: Epoch) -> Receiver {
        let head = memory.load64(base + HEAD);
        // A predecessor may have died asleep, and the sender have rung for that sleep. Its number does not
        // come again.
        let sleep_word = memory.load32(base + SLEEP).wrapping_add(1) & !1;
        memory.store32(base + SLEEP, sleep_word);
        Receiver { base, mask: mask_of(capacity), head, released: head, peer: peer.0, sleep_word, stale: 0 }
    }

    /// Whether there is something to take: a message of the peer as it is now, or of one before it. A message
    /// of an epoch that is still to come does not count, so that nobody stays awake for it.
    #[inline]
    pub fn is_ready<M: Memory>(&self, memory: &M) -> bool {
        let tag = memory.load64_acquire(entry(self.base, self.mask, self.head));
        is_full(tag, self.head) && (tag >> 32) as u32 <= self.peer
    }

    /// Takes the next message. Those of dead epochs before it are dropped and counted, at most a ring of them
    /// in one call.
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
            memory.read(at + 8, &mut payload);
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

    /// Tells the sender what has been taken. Once per batch.
    #[inline]
    pub fn release<M: Memory>(&mut self, memory: &M) {
        if self.head != self.released {
            // Partner: the acquire load in `Sender::has_room`. Reads of the payloads come before it.
            memory.store64_release(self.base + HEAD, self.head);
            self.released = self.head;
        }
    }

    /// From now on the bell is wanted. Before it sleeps this side fences and looks once more whether there is
    /// something to take.
    pub fn fall_asleep<M: Memory>(&mut self, memory: &M) {
        self.set_sleep_word(memory, self.sleep_word | 1);
    }

    /// From now on it is not.
    pub fn wake_up<M: Memory>(&mut self, memory: &M) {
        self.set_sleep_word(memory, self.sleep_word.wrapping_add(self.sleep_word & 1));
    }

    fn set_sleep_word<M: Memory>(&mut self, memory: &M, word: u32) {
        if word != self.sleep_word {
            self.sleep_word = word;
            memory.store32(self.base + SLEEP, word);
        }
    }

    /// The peer has this epoch now; messages of earlier ones are stale.
    pub fn set_peer(&mut self, peer: Epoch) {
        self.peer = peer.0;
    }

    /// Messages that were dropped because their sender's epoch is over.
    pub fn stale(&self) -> u64 {
        self.stale
    }
}
