//! The network errors of a datagram socket that the program has not read yet.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use atoll_base::Endpoint;
use atoll_ipc::datagram::Fault;

use crate::copies::Copies;
use crate::errno::Errno;

/// The most errors that wait in this process for the program; the oldest goes for a further one. What has not
/// been taken waits in the receive buffer, whose size bounds it.
const FAULTS_MAX: usize = 64;

/// An error that waits for the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A network error, and what it quotes of the packet behind the first octets of its transport header.
    Network(Fault, Vec<u8>),
    /// This host has not sent a datagram, because it is larger than packets may be: these octets.
    TooLong(u32),
}

impl Entry {
    /// Returns what the next call fails with. A failure of this host was told by the call itself.
    fn errno(&self) -> Option<Errno> {
        match self {
            Entry::Network(fault, _) => Some(Errno::of_fault(fault)),
            Entry::TooLong(_) => None,
        }
    }
}

/// The network errors that wait for the program.
#[derive(Debug, Default)]
pub struct Faults {
    /// The errors, with the receivers of the packets that they are about.
    queue: VecDeque<(Endpoint, Entry)>,
    /// What the next call fails with (Linux's `sk_err`).
    error: Option<Errno>,
    /// The completions of sends with MSG_ZEROCOPY.
    pub(super) copies: Copies,
}

impl Faults {
    /// Adds an error.
    pub(super) fn push(&mut self, to: Endpoint, entry: Entry) {
        if self.queue.len() >= FAULTS_MAX {
            self.queue.pop_front();
        }
        self.error = entry.errno().or(self.error);
        self.queue.push_back((to, entry));
    }

    /// Returns how many more errors may wait.
    pub(super) fn room(&self) -> usize {
        FAULTS_MAX.saturating_sub(self.queue.len())
    }

    /// Removes the oldest error. The next call fails for the one behind it, if there is one
    /// (sock_dequeue_err_skb).
    pub(super) fn pop(&mut self) -> Option<(Endpoint, Entry)> {
        let oldest = self.queue.pop_front()?;
        let next = self.queue.front().and_then(|(_, entry)| entry.errno());
        if next.is_some() || matches!(oldest.1, Entry::Network(..)) {
            self.error = next;
        }
        Some(oldest)
    }

    /// Forgets the errors that are queued, because the program does not ask for them any more. The next call
    /// fails all the same.
    pub(super) fn purge(&mut self) {
        self.queue.clear();
    }

    /// Takes what the next call is to fail with.
    pub(super) const fn take_error(&mut self) -> Option<Errno> {
        self.error.take()
    }

    /// Returns whether poll(2) reports an error.
    pub(super) fn is_pending(&self) -> bool {
        self.error.is_some() || !self.queue.is_empty() || self.copies.is_waiting()
    }
}
