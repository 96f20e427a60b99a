//! Counts what all sessions of one user have together: a quota for each session does not limit a user that
//! can open many.
//!
//! Sockets and memory are counted here, by the sessions that have them; requests in force are counted where
//! they are written ([`crate::durability`]). Root, and the user that runs the stack, have no such bound, as
//! resource limits do not bind users that could raise them.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use atoll_ipc::control::User;

/// The resources that the sessions of one user hold here, and their bounds.
#[derive(Debug)]
pub(crate) struct Holdings {
    sockets: AtomicU32,
    /// The octets of receive areas that were touched.
    held: AtomicU64,
    sockets_max: u32,
    is_limited: bool,
}

/// The part of the memory for receive buffers that a user may have: one half.
const PART: u64 = 2;

impl Holdings {
    // A replica is one thread, so no other thread counts meanwhile.
    fn add(counter: &AtomicU32, more: u32) {
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    /// Counts one more socket of the user.
    pub(crate) fn socket_opened(&self) {
        Holdings::add(&self.sockets, 1);
    }

    /// Counts one socket of the user less.
    pub(crate) fn socket_closed(&self) {
        Holdings::add(&self.sockets, u32::MAX);
    }

    /// Returns whether the user may have one more socket.
    pub(crate) fn has_room(&self) -> bool {
        self.sockets.load(Ordering::Relaxed) < self.sockets_max
    }

    /// Replaces `before` octets of the user's memory by `after`.
    pub(crate) fn count(&self, before: u64, after: u64) {
        let held = self.held.load(Ordering::Relaxed).wrapping_sub(before).wrapping_add(after);
        self.held.store(held, Ordering::Relaxed);
    }

    /// Returns whether the user may touch this number of further octets, if all users together may have
    /// `max`.
    pub(crate) fn has_memory(&self, octets: u64, max: u64) -> bool {
        !self.is_limited || self.held.load(Ordering::Relaxed).saturating_add(octets) <= max / PART
    }
}

/// The users that have sessions, by number; all users without bounds are one.
#[derive(Debug, Default)]
pub(crate) struct Users(BTreeMap<Option<u32>, Arc<Holdings>>);

impl Users {
    /// Returns the account of this user, which may have `sockets_max` sockets, if limited.
    pub(crate) fn of(&mut self, user: &User, sockets_max: u32) -> Arc<Holdings> {
        let fresh = || {
            let sockets_max = if user.counts_for.is_some() { sockets_max } else { u32::MAX };
            let (sockets, held) = (AtomicU32::new(0), AtomicU64::new(0));
            Arc::new(Holdings { sockets, held, sockets_max, is_limited: user.counts_for.is_some() })
        };
        self.0.entry(user.counts_for).or_insert_with(fresh).clone()
    }

    /// Removes the users without sessions.
    pub(crate) fn forget_absent(&mut self) {
        self.0.retain(|_, holdings| Arc::strong_count(holdings) > 1);
    }

    /// Returns how many users there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
