//! A channel between two servers: two unidirectional FIFO rings of cache-line entries (P3).
//!
//! The entry of position `p` is full when its sequence is `p + 1` (low 32 bits). Sequence and epoch are one
//! word, stored and loaded at once, and share their line with the payload, so a message costs one line
//! transfer. No process reads `tail` in operation; the sender reads `head` only when the ring seems full. The
//! sequence of the first message of a batch is stored last. Until then the receiver sees nothing of the batch
//! and leaves the lines that are being written alone; afterwards it finds the whole batch.
//!
//! **Doorbell.** The sleep word is odd while the receiver sleeps. After a batch the sender fences between its
//! store of the sequence and its load of the sleep word; the receiver does the reverse (Dekker's pattern).
//! The line of the sleep word is in the sender's cache unless the receiver fell asleep or woke since. So a
//! message to a receiver that is awake costs the store, the batch one fence. `membarrier(2)` could take the
//! fence from senders, at the price of an interrupt of all their processors each time a receiver sleeps:
//! measured in docs/measurements.md, and not worth it.
//!
//! **Epochs.** A message carries the epoch of its sender. The receiver learns its peer's epoch from a third
//! party ([`Receiver::set_peer`]). A message of an earlier epoch is dropped and counted. A message of a later
//! epoch waits until the receiver knows that epoch, and does not keep the receiver awake.
//!
//! **Death.** All state of a side is in the ring. A sender that dies leaves what it published; its successor
//! removes the rest. A receiver that dies leaves a head: its successor gets the messages taken since once
//! more. So a message arrives exactly once while the receiver lives, and at least once otherwise.
//!
//! **Hostility.** A peer that scribbles can lose, repeat or garble messages of this channel, make the sender
//! ring a doorbell without need, and make either side believe that there is nothing to do. It can do nothing
//! else: indices are private and masked, payloads are copied and then judged by their decoders, and an
//! impossible head is counted and ignored.
//!
//! The command and event rings of applications ([`crate::ring`]) differ. There the processes of a family take
//! turns at one side under a lock, so every message has to be complete, and its position stored, before the
//! next begins.

mod receiver;
mod sender;

pub use receiver::Receiver;
pub use sender::{Bell, Full, Sender};

use core::mem::offset_of;

use atoll_base::Epoch;

pub use crate::layout::MESSAGE_BYTES;
use crate::layout::words;
use crate::memory::Memory;

words! {
    /// The header before the entries.
    struct Header {
        /// The sender writes it, for a successor only.
        tail: u64; 56 unused,
        /// The receiver writes it, when a quarter of the ring or a batch has been taken.
        head: u64; 56 unused,
        /// The receiver writes it, when it falls asleep and when it wakes.
        sleep: u32; 60 unused,
    }
}

words! {
    /// An entry.
    struct Entry {
        /// Sequence (low) and epoch.
        tag: u64,
        payload: [u8; MESSAGE_BYTES],
    }
}

const ENTRY_BYTES: usize = size_of::<Entry>();
const PAYLOAD: usize = offset_of!(Entry, payload);
const TAIL: usize = offset_of!(Header, tail);
const HEAD: usize = offset_of!(Header, head);
const SLEEP: usize = offset_of!(Header, sleep);
const HEADER_BYTES: usize = size_of::<Header>();

/// Returns the size in bytes of one ring of `capacity` entries; a channel has two rings.
pub const fn ring_bytes(capacity: usize) -> usize {
    HEADER_BYTES + capacity * ENTRY_BYTES
}

/// One end of a channel: the side that sends and the side that receives. Both rings may lie in one region or
/// in two.
#[derive(Debug)]
pub struct Channel<M: Memory> {
    memory: M,
    sender: Sender,
    receiver: Receiver,
}

/// The places of a channel's rings, as one end sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The offset of the ring into which this end sends.
    pub outgoing: usize,
    /// The offset of the ring from which this end receives.
    pub incoming: usize,
    /// The number of entries of each ring: a power of two, at least 4.
    pub capacity: usize,
}

impl<M: Memory> Channel<M> {
    /// Takes one end: a new one in zeroed memory, or the end of a predecessor. `own` is the epoch of this
    /// process. `peer` is the peer's epoch, or `Epoch(0)` if it is not known: then nothing is received before
    /// [`Channel::set_peer`].
    pub fn resume(memory: M, place: Place, own: Epoch, peer: Epoch) -> Channel<M> {
        let sender = Sender::resume(&memory, place.outgoing, place.capacity, own);
        let receiver = Receiver::resume(&memory, place.incoming, place.capacity, peer);
        Channel { memory, sender, receiver }
    }

    /// Appends a message to the batch; it becomes visible with [`Channel::publish`]. Fails when the ring is
    /// full.
    #[inline]
    pub fn push(&mut self, payload: &[u8; MESSAGE_BYTES]) -> Result<(), Full> {
        self.sender.push(&self.memory, payload)
    }

    /// Makes the batch visible, and returns whether the peer's doorbell must be rung.
    #[inline]
    pub fn publish(&mut self) -> Bell {
        self.sender.publish(&self.memory)
    }

    /// Takes the next message, if there is one.
    #[inline]
    pub fn pop(&mut self) -> Option<[u8; MESSAGE_BYTES]> {
        self.receiver.pop(&self.memory)
    }

    /// Gives the room of taken messages back to the peer. Call once per batch; not needed for every one.
    #[inline]
    pub fn release(&mut self) {
        self.receiver.release(&self.memory);
    }

    /// Returns whether there is a message to take.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.receiver.is_ready(&self.memory)
    }

    /// Asks the peer to ring the doorbell from now on. Before it sleeps, this end fences ([`Memory::fence`])
    /// and calls [`Channel::is_ready`] once more.
    pub fn fall_asleep(&mut self) {
        self.receiver.fall_asleep(&self.memory);
    }

    /// Asks the peer not to ring the doorbell any more.
    pub fn wake_up(&mut self) {
        self.receiver.wake_up(&self.memory);
    }

    /// Sets the peer's current epoch.
    pub fn set_peer(&mut self, peer: Epoch) {
        self.receiver.set_peer(peer);
    }

    /// Returns the number of messages that were dropped because their sender's epoch is over.
    pub fn stale(&self) -> u64 {
        self.receiver.stale()
    }

    /// Returns how often the peer claimed to have taken messages that were never sent.
    pub fn lies(&self) -> u64 {
        self.sender.lies()
    }

    /// Returns the memory of the rings.
    pub fn memory(&self) -> &M {
        &self.memory
    }
}

/// Returns the first word of a full entry at position `at`: sequence and epoch.
const fn tag(at: u64, epoch: u32) -> u64 {
    at.wrapping_add(1) & 0xffff_ffff | (epoch as u64) << 32
}

/// Returns whether the entry of position `at` with this tag is full.
const fn is_full(tag: u64, at: u64) -> bool {
    tag as u32 == at.wrapping_add(1) as u32
}

/// Returns the offset of the entry of position `at`.
const fn entry(base: usize, mask: u64, at: u64) -> usize {
    base + HEADER_BYTES + (at & mask) as usize * ENTRY_BYTES
}

/// Returns the mask that turns positions into entries. Positions differ from entries by whole laps, so the
/// capacity is a power of two; with fewer than four entries a quarter of the ring would be none.
fn mask_of(capacity: usize) -> u64 {
    assert!(capacity.is_power_of_two() && capacity >= 4, "a ring has a power of two of entries, at least 4");
    capacity as u64 - 1
}

#[cfg(test)]
mod tests;
