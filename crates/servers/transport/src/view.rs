//! The contents of the slot of a connection, and the next event for its application.
//!
//! Only changes are written, so that a cache line that the application reads is not taken from it for
//! nothing.

use atoll_ipc::slot::Slot;
use atoll_ipc::{Memory, Ready};

/// An application's view of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// The positions in the slot: of text that the peer has acknowledged, of text that was received, and
    /// where a reader is to report.
    acked: u64,
    tail: u64,
    mark: u64,
    /// The facts for the application's next event.
    ready: Ready,
    /// The `REPLICA_*` flags of the slot.
    flags: u32,
}

/// The mark of a reader that never has to report.
const NO_MARK: u64 = u64::MAX;

impl View {
    /// Creates the view of a connection of which nothing was shown.
    pub(crate) const fn new() -> View {
        View { acked: 0, tail: 0, mark: NO_MARK, ready: Ready::empty(), flags: 0 }
    }

    /// Starts again with another slot, which says nothing yet.
    pub(crate) const fn begin_anew(&mut self) {
        (self.acked, self.tail, self.mark) = (0, 0, NO_MARK);
    }

    /// Continues with a slot that has these values.
    pub(crate) const fn resume(&mut self, acked: u64, tail: u64, mark: u64, flags: u32) {
        (self.acked, self.tail, self.mark, self.flags) = (acked, tail, mark, flags);
    }

    /// Returns up to where the slot says that text was acknowledged.
    #[inline]
    pub(crate) const fn acked(&self) -> u64 {
        self.acked
    }

    /// Returns up to where the slot says that text was received.
    #[inline]
    pub(crate) const fn tail(&self) -> u64 {
        self.tail
    }

    /// Returns whether an application that has seen no more than this may have read up to `head`, of which
    /// `known` is known.
    #[inline]
    pub(crate) fn may_have_read(&self, known: u64, head: u64) -> bool {
        (known..=self.tail).contains(&head)
    }

    /// Publishes that text was received up to `tail`.
    #[inline]
    pub(crate) fn publish_tail<M: Memory>(&mut self, slot: &Slot<'_, M>, tail: u64) {
        if tail != self.tail {
            self.tail = tail;
            slot.set_receive_tail(tail);
        }
    }

    /// Notes that text was acknowledged up to `acked`, which the caller writes to the slot. Returns `false`
    /// if the slot has that value already.
    #[inline]
    pub(crate) const fn note_acked(&mut self, acked: u64) -> bool {
        let is_new = acked != self.acked;
        self.acked = acked;
        is_new
    }

    /// Publishes the mark at which the reader is to report; `None` means never. Returns the mark if it is
    /// new.
    #[inline]
    pub(crate) fn publish_mark<M: Memory>(&mut self, slot: &Slot<'_, M>, mark: Option<u64>) -> Option<u64> {
        let word = mark.unwrap_or(NO_MARK);
        if word == self.mark {
            return None;
        }
        self.mark = word;
        slot.set_read_mark(word);
        mark.filter(|_| word != NO_MARK)
    }

    /// Adds `ready` to what the next event reports.
    #[inline]
    pub(crate) fn tell(&mut self, ready: Ready) {
        self.ready |= ready;
    }

    /// Returns what the event that is sent now reports, and clears it.
    #[inline]
    pub(crate) fn take_ready(&mut self) -> Ready {
        core::mem::take(&mut self.ready)
    }

    /// Returns the `REPLICA_*` flags.
    pub(crate) const fn flags(&self) -> u32 {
        self.flags
    }

    /// Sets some of the flags.
    pub(crate) const fn set_flags(&mut self, flags: u32) {
        self.flags |= flags;
    }

    /// Replaces all flags.
    pub(crate) const fn replace_flags(&mut self, flags: u32) {
        self.flags = flags;
    }
}
