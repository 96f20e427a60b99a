//! Redirects: better next hops for destinations than the default router, as told by that router (RFC 4861
//! §8).
//!
//! A host that can forge a redirect is on the link, and could as well forge advertisements. As little is
//! believed as §8.1 allows, for ten minutes, and nothing about a target that does not answer.

use alloc::collections::BTreeMap;

use atoll_base::{Addr, Duration, Instant};
use atoll_wire::{Mac, ipv6};

use super::addresses::cast;
use crate::counters::Reason;
use crate::ip::Ip;
use crate::link::Cast;
use crate::neighbours::Claim;

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

    fn insert(&mut self, now: Instant, dst: Addr, target: Addr) {
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

impl Ip {
    /// Handles a redirect: a router says that `destination` is better reached by `target`.
    pub(super) fn handle_redirect(
        &mut self,
        now: Instant,
        header: &ipv6::Header,
        target: Addr,
        destination: Addr,
        target_mac: Option<Mac>,
    ) -> Result<(), Reason> {
        // RFC 4861 §8.1: a redirect comes from the router that is used for this destination now, and names a
        // neighbour.
        let is_for_us = self.is_own_v6(header.dst);
        let is_neighbour = target.is_link_local() || target == destination;
        let is_from_router = header.src.is_link_local() && self.next_hop_v6(destination) == Some(header.src);
        let is_host = |addr: Addr| cast(addr) == Some(Cast::Unicast) && !self.is_own_v6(addr);
        if !is_for_us || !is_neighbour || !is_from_router || !is_host(destination) || !is_host(target) {
            return Err(Reason::NdIgnored);
        }
        self.v6.redirects.insert(now, destination, target);
        self.common.count().redirects += 1;
        if let Some(mac) = target_mac.filter(|mac| mac.is_station() && *mac != self.common.mac()) {
            match self.v6.neighbours.station(target) {
                None => {
                    self.learn_v6(now, target, mac);
                }
                // The router contradicts what is known: the known station is asked.
                Some(_) => {
                    if let Claim::Ask { of } = self.v6.neighbours.doubt(now, target, mac) {
                        self.ask_v6(target, of);
                    }
                }
            }
        }
        self.v6.generation += 1;
        self.v6.rearm();
        Ok(())
    }
}

/// How long a redirect is believed: as long as a path. A router that still gets the packets repeats it.
const LIFETIME: Duration = Duration::from_secs(600);
/// The most destinations.
const REDIRECTS_MAX: usize = 256;

#[cfg(test)]
mod tests;
