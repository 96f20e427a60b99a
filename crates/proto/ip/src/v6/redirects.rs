//! Redirects: better next hops for destinations than the default router, which sends them (RFC 4861 §8).
//!
//! A host that can forge a redirect is on the link, and could as well forge advertisements. As little is
//! believed as §8.1 allows, for ten minutes, and nothing about a target that does not answer.

use alloc::collections::BTreeMap;

use atoll_base::{Addr, Duration, Instant};

/// The better next hops, by destination. The table is bounded; the oldest entry goes first.
#[derive(Debug, Default)]
pub(super) struct Redirects {
    known: BTreeMap<Addr, Redirect>,
}

#[derive(Clone, Copy, Debug)]
struct Redirect {
    target: Addr,
    until: Instant,
}

impl Redirects {
    /// Returns the neighbour that takes packets to `dst`, if there is a redirect.
    pub(super) fn get(&self, dst: Addr) -> Option<Addr> {
        if self.known.is_empty() {
            return None;
        }
        self.known.get(&dst).map(|redirect| redirect.target)
    }

    /// Returns whether packets are sent to `addr` only because of a redirect.
    pub(super) fn leads_to(&self, addr: Addr) -> bool {
        self.known.values().any(|redirect| redirect.target == addr)
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    pub(super) fn next_due(&self) -> Instant {
        self.known.values().map(|redirect| redirect.until).min().unwrap_or(Instant::FAR_FUTURE)
    }

    /// Removes the redirects that are no longer believed at `now`.
    pub(super) fn expire(&mut self, now: Instant) {
        self.known.retain(|_, redirect| redirect.until > now);
    }

    /// Removes the redirects to a neighbour that is gone, so that its destinations are routed anew (RFC 4861
    /// §6.3.5, §7.3.3).
    pub(super) fn forget(&mut self, target: Addr) {
        self.known.retain(|_, redirect| redirect.target != target);
    }

    /// Removes the redirects to `router`, which is not a router any more (RFC 4861 §7.2.5), except one for
    /// packets to itself.
    pub(super) fn forget_router(&mut self, router: Addr) {
        self.known.retain(|dst, redirect| redirect.target != router || *dst == router);
    }

    pub(super) fn insert(&mut self, now: Instant, dst: Addr, target: Addr) {
        if self.known.len() >= REDIRECTS_MAX
            && !self.known.contains_key(&dst)
            && let Some(oldest) =
                self.known.iter().min_by_key(|(_, redirect)| redirect.until).map(|(dst, _)| *dst)
        {
            self.known.remove(&oldest);
        }
        self.known.insert(dst, Redirect { target, until: now + LIFETIME });
    }
}

/// How long a redirect is believed: as long as a path. A router that still gets the packets repeats it.
const LIFETIME: Duration = Duration::from_secs(600);
/// The most destinations.
const REDIRECTS_MAX: usize = 256;

#[cfg(test)]
mod tests;
