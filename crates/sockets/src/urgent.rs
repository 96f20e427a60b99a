//! What urgent octets do to reading: tcp(7), recv(2), sockatmark(3), as on Linux.
//!
//! One octet is *the mark*: the one that the peer called urgent last. One call never reads beyond the mark.
//! If SO_OOBINLINE is not set, a program gets the octet by `recv(MSG_OOB)` alone, and reading from the mark
//! on skips it, whether it was taken or not.
//!
//! ```text
//!          head                mark            tail
//!   --read--|--one read ends here-|X|------------|        X: read(2) with SO_OOBINLINE, else recv(MSG_OOB)
//! ```

use atoll_ipc::Memory;
use atoll_ipc::slot::REPLICA_URGENT;

use crate::errno::{Errno, Failure};
use crate::stream::{Local, Readable, Stream};

#[cfg(test)]
mod tests;

/// The result of `recv(MSG_OOB)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgent {
    /// The urgent octet was received.
    Octet(u8),
    /// No urgent octet will come any more.
    End,
}

impl<M: Memory> Stream<'_, M> {
    /// Returns the stream offset of the urgent octet, unless reading has passed it.
    fn mark(&self) -> Option<u64> {
        if self.slot().replica_flags() & REPLICA_URGENT == 0 || !self.is_current() {
            return None;
        }
        self.slot().mark().filter(|mark| *mark >= self.slot().receive_head())
    }

    /// Returns the number of octets at the head that do not belong to the stream, because they were marked
    /// when reading stopped there.
    pub(crate) fn passed(&self, local: &Local, mark: u64) -> u64 {
        let head = self.slot().receive_head();
        if local.urgent_inline || mark <= head { 0 } else { self.slot().passed_marks(head) }
    }

    /// Returns whether the next octet to read is the urgent one: sockatmark(3), `SIOCATMARK`.
    #[inline]
    pub fn is_at_mark(&self, local: &Local) -> bool {
        self.is_mark_behind(local, 0)
    }

    /// Returns whether the octet behind the next `skip` octets is the urgent one.
    #[inline]
    pub(crate) fn is_mark_behind(&self, local: &Local, skip: u64) -> bool {
        let from = self.slot().receive_head().wrapping_add(skip);
        self.mark().is_some_and(|mark| mark == from.wrapping_add(self.passed(local, mark)))
    }

    /// Returns the offset of the urgent octet while it is there and `recv(MSG_OOB)` has not taken it:
    /// POLLPRI.
    pub fn urgent_octet(&self) -> Option<u64> {
        self.mark().filter(|mark| *mark < self.slot().receive_tail() && self.slot().taken() != Some(*mark))
    }

    /// Implements `recv(MSG_OOB)`; with `peek` the octet stays. Never blocks: [`Failure::WouldBlock`] is
    /// EAGAIN.
    ///
    /// Fails with EINVAL if there is no urgent octet, if it was taken already, or if it is part of the stream
    /// (SO_OOBINLINE).
    pub fn receive_urgent(&self, local: &Local, peek: bool) -> Result<Urgent, Failure> {
        let Some(mark) = self.mark().filter(|_| !local.urgent_inline) else {
            return Err(Errno::EINVAL.into());
        };
        if self.slot().taken() == Some(mark) {
            return Err(Errno::EINVAL.into());
        }
        if self.urgent_octet().is_none() {
            return if self.has_ended() { Ok(Urgent::End) } else { Err(Failure::WouldBlock) };
        }
        let head = self.slot().receive_head();
        let mut octet = [0];
        let readable = self.octets_at(head, 1);
        if !readable.is_some_and(|readable| self.copy_out(&readable, mark, &mut octet)) {
            return Err(Errno::ECONNRESET.into()); // The replica publishes nonsense.
        }
        if !peek {
            self.slot().set_taken(mark);
        }
        Ok(Urgent::Octet(octet[0]))
    }

    /// Returns the part of `readable` that a call may read, given the mark; `None` if nothing may be read.
    #[cold]
    pub(crate) fn up_to_mark(
        &self,
        mark: u64,
        mut readable: Readable,
        local: &mut Local,
    ) -> Option<Readable> {
        let tail = readable.head.wrapping_add(readable.len);
        let start = readable.head;
        readable.head = start.saturating_add(self.passed(local, mark)).min(tail);
        if !local.urgent_inline && mark == readable.head && mark < tail {
            readable.head += 1;
        }
        readable.is_cut = (readable.head..tail).contains(&mark) && mark > readable.head;
        let end = if readable.is_cut { mark } else { tail };
        readable.len = end.wrapping_sub(readable.head);
        if readable.len == 0 {
            local.pass = Some(readable.head);
            return None;
        }
        Some(readable)
    }

    /// Consumes the octets that an attempt to read (not to peek) found not to belong to the stream, if there
    /// was nothing else. Returns whether the replica is to be kicked.
    #[inline]
    pub fn pass(&self, local: &mut Local) -> bool {
        local.pass.take().is_some_and(|to| self.consume(to))
    }

    /// Returns the number of octets that `FIONREAD` counts: as on Linux, those before the mark.
    pub fn unread(&self, local: &Local) -> u64 {
        let Some(mark) = self.mark() else { return self.waiting() };
        let passed = self.passed(local, mark);
        let all = self.waiting().saturating_sub(passed);
        let before = mark.wrapping_sub(self.slot().receive_head()).wrapping_sub(passed);
        if !local.urgent_inline && before < all { before } else { all }
    }
}
