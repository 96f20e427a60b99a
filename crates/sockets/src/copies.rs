//! The completions of sends with MSG_ZEROCOPY, which wait in the error queue of a socket: `SO_ZEROCOPY`,
//! the kernel's Documentation/networking/msg_zerocopy.rst.
//!
//! The library copies what a program sends, so a send is complete when it returns, and the program is told
//! that its octets were copied (`SO_EE_CODE_ZEROCOPY_COPIED`). As on Linux, sends are numbered from 0 on, and
//! completions of numbers in a row are one entry of the queue. They come in the order of the sends, so there
//! is never more than one.

/// The completions of one socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// The number of the next send.
    next: u32,
    /// The number of the first send of which the program does not know, if there is one.
    first: Option<u32>,
}

/// The sends that an entry of the error queue completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number of the first.
    pub first: u32,
    /// The number of the last.
    pub last: u32,
}

impl Copies {
    /// Notes a send.
    pub fn add(&mut self) {
        self.first.get_or_insert(self.next);
        self.next = self.next.wrapping_add(1);
    }

    /// Takes what waits in the queue.
    pub fn take(&mut self) -> Option<Completion> {
        let last = self.next.wrapping_sub(1);
        self.first.take().map(|first| Completion { first, last })
    }

    /// Returns whether a completion waits: POLLERR.
    pub const fn is_waiting(&self) -> bool {
        self.first.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_in_a_row_are_completed_at_once_and_each_only_once() {
        let mut copies = Copies::default();
        assert_eq!((copies.is_waiting(), copies.take()), (false, None));
        copies.add();
        assert_eq!((copies.is_waiting(), copies.take()), (true, Some(Completion { first: 0, last: 0 })));
        (0..3).for_each(|_| copies.add());
        assert_eq!((copies.take(), copies.take()), (Some(Completion { first: 1, last: 3 }), None));
        copies.next = u32::MAX;
        copies.add();
        copies.add();
        assert_eq!(copies.take(), Some(Completion { first: u32::MAX, last: 0 }), "numbers begin anew");
    }
}
