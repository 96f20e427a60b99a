//! Which destinations have a better way than the default router's? What that router itself has said of them:
//! RFC 4861 §8.
//!
//! Whoever can forge a redirect is on the link, and could as well forge advertisements; what is believed is
//! as little as §8.1 allows, for ten minutes, and of a target that does not answer nothing.

use alloc::collections::BTreeMap;

use atoll_base::{Addr, Duration, Instant};
use atoll_wire::{Mac, ipv6};

use super::addresses::cast;
use crate::addresses::Cast;
use crate::counters::Reason;
use crate::ip::Ip;
use crate::neighbours::Claim;

/// The better ways, by destination. Bounded; what is known longest goes first.
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
    /// The neighbour that takes packets to `dst`.
    pub(super) fn get(&self, dst: Addr) -> Option<Addr> {
        if self.known.is_empty() {
            return None;
        }
        self.known.get(&dst).map(|redirect| redirect.target)
    }

    /// Whether packets are sent to `addr` only because of a redirect.
    pub(super) fn leads_to(&self, addr: Addr) -> bool {
        self.known.values().any(|redirect| redirect.target == addr)
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    pub(super) fn next_due(&self) -> Instant {
        self.known.values().map(|redirect| redirect.until).min().unwrap_or(Instant::FAR_FUTURE)
    }

    /// Forgets what is no longer believed at `now`.
    pub(super) fn expire(&mut self, now: Instant) {
        self.known.retain(|_, redirect| redirect.until > now);
    }

    /// RFC 4861 §6.3.5, §7.3.3: what led to a neighbour that is gone is decided again.
    pub(super) fn forget(&mut self, target: Addr) {
        self.known.retain(|_, redirect| redirect.target != target);
    }

    /// RFC 4861 §7.2.5: forgets what led by way of `router`, which is none any more; what it takes for itself
    /// it still takes.
    pub(super) fn forget_router(&mut self, router: Addr) {
        self.known.retain(|dst, redirect| redirect.target != router || *dst == router);
    }

    fn insert(&mut self, now: Instant, dst: Addr, target: Addr) {
        if self.known.len() >= REDIRECTS_MAX
            && !self.known.contains_key(&dst)
            && let Some(oldest) = self.known.iter().min_by_key(|(_, redirect)| redirect.until).map(|(dst, _)| *dst)
        {
            self.known.remove(&oldest);
        }
        self.known.insert(dst, Redirect { target, until: now + LIFETIME });
    }
}

impl Ip {
    /// A router says that `destination` is better reached by `target`.
    pub(super) fn handle_redirect(
        &mut self,
        now: Instant,
        header: &ipv6::Header,
        target: Addr,
        destination: Addr,
        target_mac: Option<Mac>,
    ) -> Result<(), Reason> {
        // RFC 4861 §8.1: from the router that is used for this destination now, and about a neighbour.
        let is_for_us = self.is_own_v6(header.dst);
        let is_neighbour = target.is_link_local() || target == destination;
        let is_from_router = header.src.is_link_local() && self.next_hop_v6(destination) == Some(header.src);
        let is_host = |addr: Addr| cast(addr) == Some(Cast::Unicast) && !self.is_own_v6(addr);
        if !is_for_us || !is_neighbour || !is_from_router || !is_host(destination) || !is_host(target) {
            return Err(Reason::NdIgnored);
        }
        self.v6.redirects.insert(now, destination, target);
        self.counters.redirects += 1;
        if let Some(mac) = target_mac.filter(|mac| mac.is_station() && *mac != self.config.mac) {
            match self.v6.neighbours.station(target) {
                None => {
                    self.learn_v6(now, target, mac);
                }
                // The router says otherwise: the station that is known is asked.
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

/// As long as a path is believed; a router that is still asked the wrong way says so again.
const LIFETIME: Duration = Duration::from_secs(600);
/// Destinations at most.
const REDIRECTS_MAX: usize = 256;

#[cfg(test)]
mod tests;
