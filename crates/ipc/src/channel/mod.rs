//! How do two servers talk to each other? A channel: two unidirectional FIFO rings of cache-line entries
//! (P3).
//!
//! ```text
//!   line 0   sender writes:   tail (u64), for a successor only
//!   line 1   receiver writes: head (u64), when a quarter of the ring or a batch has been taken
//!   line 2   receiver writes: sleep word (u32), when it falls asleep and when it wakes
//!   line 3.. entries of 64 bytes: [sequence u32, epoch u32][payload 56 bytes]
//! ```
//!
//! The entry of position `p` is full when its sequence is `p + 1` (low 32 bits). Sequence and epoch are one
//! word, stored and loaded at once, and share their line with the payload, so a message costs one line
//! transfer. Nobody reads `tail` in operation; the sender reads `head` only when the ring seems full. The
//! sequence of the first message of a batch is stored last: until then the receiver sees nothing of the
//! batch, does not tear at lines that are still being written, and afterwards finds all of it.
//!
//! **Doorbell.** The sleep word is odd while the receiver sleeps. After a batch the sender fences (its store
//! of the sequence, then its load of the sleep word: Dekker's pattern; the receiver does the reverse) and
//! reads a line that is in its own cache unless the receiver fell asleep or woke since. So a message to a
//! receiver that is awake costs the store, the batch one fence. `membarrier(2)` could take the fence from
//! senders, at the price of an interrupt of all their processors each time a receiver sleeps: measured in
//! docs/measurements.md, and not worth it.
//!
//! **Epochs.** A message carries the epoch of its sender. The receiver is told by a third party which epoch
//! its peer has ([`Receiver::set_peer`]). A message of an earlier epoch is dropped and counted; one of a
//! later epoch waits until the receiver has been told, and does not keep it awake.
//!
//! **Death.** All state of a side is in the ring. A sender that dies leaves what it published; its successor
//! removes what it did not. A receiver that dies leaves a head: what it took since, its successor gets again.
//! So a message arrives exactly once while the receiver lives, at least once otherwise.
//!
//! **Hostility.** A peer that scribbles can lose, repeat or garble messages of this channel, make the sender
//! ring a bell that nobody needs, and make either side believe that there is nothing to do. It can do nothing
//! else: indices are private and masked, payloads are copied and then judged by their decoders, an impossible
//! head is counted and ignored.
//!
//! The command and event rings of applications ([`crate::ring`]) are others: there the processes of a family
//! take turns at one side under a lock, so that every message has to be complete, and its position noted,
//! before the next begins.

mod receiver;
mod sender;

pub use receiver::Receiver;
pub use sender::{Bell, Full, Sender};

use atoll_base::Epoch;

use crate::memory::Memory;
pub use crate::words::MESSAGE_BYTES;

const ENTRY_BYTES: usize = 64;
const TAIL: usize = 0;
const HEAD: usize = 64;
const SLEEP: usize = 128;
const HEADER_BYTES: usize = 192;

/// Bytes of memory that one ring of `capacity` entries takes; a channel has two.
pub const fn ring_bytes(capacity: usize) -> usize {
    HEADER_BYTES + capacity * ENTRY_BYTES
}

/// One end of a channel: what it sends and what it receives. Both rings may lie in one region or in two.
#[derive(Debug)]
pub struct Channel<M: Memory> {
    memory: M,
    sender: Sender,
    receiver: Receiver,
}

/// Where the rings of a channel lie, as one end sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Offset of the ring that this end sends into.
    pub outgoing: usize,
    /// Offset of the ring that it receives from.
    pub incoming: usize,
    /// Entries of each ring: a power of two, at least 4.
    pub capacity: usize,
}

impl<M: Memory> Channel<M> {
    /// Takes one end: a new one in zeroed memory, or the end of a predecessor. `own`: epoch of this process.
    /// `peer`: the peer's as far as it is known, else `Epoch(0)`, and then nothing is received before
    /// [`Channel::set_peer`].
    pub fn resume(memory: M, place: Place, own: Epoch, peer: Epoch) -> Channel<M> {
        let sender = Sender::resume(&memory, place.outgoing, place.capacity, own);
        let receiver = Receiver::resume(&memory, place.incoming, place.capacity, peer);
        Channel { memory, sender, receiver }
    }

    /// Appends a message to the batch. It becomes visible with [`Channel::publish`].
    #[inline]
    pub fn push(&mut self, payload: &[u8; MESSAGE_BYTES]) -> Result<(), Full> {
        self.sender.push(&self.memory, payload)
    }

    /// Makes the batch visible, and says whether the peer's bell must be rung.
    #[inline]
    pub fn publish(&mut self) -> Bell {
        self.sender.publish(&self.memory)
    }

    /// Takes the next message.
    #[inline]
    pub fn pop(&mut self) -> Option<[u8; MESSAGE_BYTES]> {
        self.receiver.pop(&self.memory)
    }

    /// Gives the room of what was taken back to the peer. Once per batch; not needed for every one.
    #[inline]
    pub fn release(&mut self) {
        self.receiver.release(&self.memory);
    }

    /// Whether there is a message to take.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.receiver.is_ready(&self.memory)
    }

    /// Tells the peer that the bell is wanted. Before it sleeps this end fences ([`Memory::fence`]) and asks
    /// [`Channel::is_ready`] once more.
    pub fn fall_asleep(&mut self) {
        self.receiver.fall_asleep(&self.memory);
    }

    /// Tells the peer that it is not.
    pub fn wake_up(&mut self) {
        self.receiver.wake_up(&self.memory);
    }

    /// The peer has this epoch now.
    pub fn set_peer(&mut self, peer: Epoch) {
        self.receiver.set_peer(peer);
    }

    /// Messages that were dropped because their sender's epoch is over.
    pub fn stale(&self) -> u64 {
        self.receiver.stale()
    }

    /// Times that the peer claimed to have taken what was never sent.
    pub fn lies(&self) -> u64 {
        self.sender.lies()
    }

    /// The memory of the rings.
    pub fn memory(&self) -> &M {
        &self.memory
    }
}

/// First word of the entry of position `at` when it is full: sequence and epoch.
const fn tag(at: u64, epoch: u32) -> u64 {
    at.wrapping_add(1) & 0xffff_ffff | (epoch as u64) << 32
}

/// Whether the entry of position `at` with this tag is full.
const fn is_full(tag: u64, at: u64) -> bool {
    tag as u32 == at.wrapping_add(1) as u32
}

/// Offset of the entry of position `at`.
const fn entry(base: usize, mask: u64, at: u64) -> usize {
    base + HEADER_BYTES + (at & mask) as usize * ENTRY_BYTES
}

/// Positions differ from entries by whole laps: a power of two. In fewer than four, a quarter were none.
fn mask_of(capacity: usize) -> u64 {
    assert!(capacity.is_power_of_two() && capacity >= 4, "a ring has a power of two of entries, at least 4");
    capacity as u64 - 1
}

#[cfg(test)]
mod tests;
