//! The network errors of a datagram socket that the program has not read yet.

use alloc::collections::VecDeque;

use atoll_base::Endpoint;
use atoll_ipc::datagram::Fault;

use crate::copies::Copies;
use crate::errno::Errno;

/// The most errors that wait in this process for the program; the oldest goes for a further one. What has not
/// been taken waits in the receive buffer, whose size bounds it.
pub(super) const FAULTS_MAX: usize = 64;

/// The network errors that wait for the program.
#[derive(Debug, Default)]
pub struct Faults {
    /// The errors, with the receivers of the packets that they are about.
    queue: VecDeque<(Endpoint, Fault)>,
    /// What the next call fails with (Linux's `sk_err`).
    error: Option<Errno>,
    /// The completions of sends with MSG_ZEROCOPY.
    pub(super) copies: Copies,
}

impl Faults {
    /// Adds an error.
    pub(super) fn push(&mut self, to: Endpoint, fault: Fault) {
        if self.queue.len() >= FAULTS_MAX {
            self.queue.pop_front();
        }
        self.queue.push_back((to, fault));
        self.error = Some(Errno::of_fault(&fault));
    }

    /// Removes the oldest error. The next call fails for the one behind it, if there is one
    /// (sock_dequeue_err_skb).
    pub(super) fn pop(&mut self) -> Option<(Endpoint, Fault)> {
        let oldest = self.queue.pop_front()?;
        self.error = self.queue.front().map(|(_, fault)| Errno::of_fault(fault));
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
