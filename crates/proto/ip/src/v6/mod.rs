//! IPv6 of one replica: the state behind the IPv6 part of [`Ip`], and its timers.
//!
//! All replicas of a stack hear every router and neighbour advertisement (the link server passes copies on),
//! draw the same conclusions, and so have the same addresses. One of them, the leader, speaks for the stack
//! unasked: it solicits, probes and reports.
//!
//! Deliberately absent: filters by source (RFC 3810 §4), and sending extension headers other than fragment
//! headers and the one that MLD requires.

mod addresses;
mod fragments;
mod half;
mod icmp;
mod input;
mod listeners;
mod neighbour;
mod output;
mod redirects;
mod router;

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use atoll_base::{Addr, Duration, Instant};
use atoll_wire::Mac;
use atoll_wire::nd;

use crate::config::{Config, V6Config};
use crate::counters::Reason;
use crate::ip::Ip;
use crate::membership::Groups;
use crate::neighbours::{Due, Neighbours};
use crate::past::Past;

pub use addresses::{OwnAddress, State};
use redirects::Redirects;

/// What is known about the IPv6 side of the network.
#[derive(Debug)]
pub(crate) struct V6 {
    pub(crate) config: Option<V6Config>,
    /// Whether this replica speaks for the stack.
    leader: bool,
    /// The own addresses, the link-local one first. Empty if IPv6 is not spoken on the link.
    own: Vec<OwnAddress>,
    /// The prefixes that are reached without a router.
    on_link: Vec<Lease<(Addr, u8)>>,
    /// The routers in the order in which they are tried; the configured one is first.
    routers: Vec<Lease<Addr>>,
    redirects: Redirects,
    pub(crate) neighbours: Neighbours<Addr>,
    mtu: u16,
    hop_limit: u8,
    solicitations: Solicitations,
    pub(crate) groups: Groups<Addr>,
    /// The groups that neighbour discovery needs, which are also in `groups`.
    solicited: BTreeSet<Addr>,
    /// The earliest time at which something other than a neighbour or a group is due.
    next_due: Instant,
    generation: u64,
}

/// A value that is valid until a time; [`Instant::FAR_FUTURE`] means for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease<T> {
    what: T,
    until: Instant,
}

/// The router solicitations that are still to be sent (RFC 4861 §6.3.7).
#[derive(Debug)]
struct Solicitations {
    left: u8,
    due: Instant,
}

impl V6 {
    /// Creates the state at the start: every address is tentative (RFC 4862 §5.4), and may be used meanwhile
    /// (RFC 4429).
    pub(crate) fn new(config: &Config, key: [u64; 2], now: Instant) -> V6 {
        let mut v6 = V6 {
            config: config.v6.clone(),
            leader: false,
            own: Vec::new(),
            on_link: Vec::new(),
            routers: Vec::new(),
            redirects: Redirects::default(),
            neighbours: Neighbours::new(
                config.neighbours_max,
                config.v6.as_ref().and_then(|v6| v6.gateway),
                key,
            ),
            mtu: config.mtu,
            hop_limit: crate::output::TTL,
            solicitations: Solicitations { left: 0, due: Instant::FAR_FUTURE },
            groups: Groups::new(false),
            solicited: BTreeSet::new(),
            next_due: Instant::FAR_FUTURE,
            generation: 0,
        };
        if let Some(v6_config) = &config.v6 {
            v6.own.push(OwnAddress::new(now, addresses::link_local(config.mac), 64, false));
            if let Some((addr, len)) = v6_config.address {
                v6.own.push(OwnAddress::new(now, addr, len, false));
                v6.on_link.push(Lease { what: (addr, len), until: Instant::FAR_FUTURE });
            }
            v6.routers
                .extend(v6_config.gateway.map(|gateway| Lease { what: gateway, until: Instant::FAR_FUTURE }));
        }
        // The part in a transport server is told what becomes of its addresses.
        if !config.apart {
            v6.rearm();
        }
        v6
    }

    /// Returns a number that grows whenever a route, or the result of [`Ip::v6_addresses`], may have changed.
    pub(crate) fn generation(&self) -> u64 {
        self.generation + self.neighbours.generation()
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let due = (self.next_due != Instant::FAR_FUTURE).then_some(self.next_due);
        [due, self.neighbours.next_due(), self.groups.next_timeout()].into_iter().flatten().min()
    }

    /// Returns the number of items that decide about routes; it falls if some of them go.
    fn count(&self) -> usize {
        self.own.len() + self.on_link.len() + self.routers.len() + self.redirects.len()
    }

    /// Computes when something is due next. Call after every change of what is timed.
    fn rearm(&mut self) {
        let own = self.own.iter().map(OwnAddress::due);
        let on_link = self.on_link.iter().map(|lease| lease.until);
        let routers = self.routers.iter().map(|lease| lease.until);
        let others = [self.solicitations.due, self.redirects.next_due()];
        self.next_due = own.chain(on_link).chain(routers).chain(others).min().unwrap_or(Instant::FAR_FUTURE);
    }
}

impl Ip {
    /// Begins the leader's work: joins the groups of the own addresses, probes the addresses, and solicits
    /// routers.
    pub(crate) fn start_v6(&mut self, now: Instant) {
        if self.v6.own.is_empty() {
            return;
        }
        self.v6.leader = true;
        // RFC 4862 §5.4.2: a host joins the group of an address before it probes the address.
        self.listen_to_own(now);
        self.v6.groups.speak(now);
        self.expire_listeners(now);
        for at in 0..self.v6.own.len() {
            // An address that a predecessor has probed is ours.
            if self.v6.own[at].is_tentative() {
                self.probe(self.v6.own[at].addr);
            }
        }
        if self.v6.config.as_ref().is_some_and(|config| config.autoconf) {
            self.v6.solicitations = Solicitations { left: SOLICITATIONS, due: now };
            self.solicit(now);
        }
        self.v6.rearm();
    }

    /// Continues with what a predecessor has learned; see [`Ip::resume`].
    pub(crate) fn resume_v6(&mut self, now: Instant, past: &Past) {
        let Some(config) = &self.v6.config else { return };
        let obeys = config.autoconf;
        for own in past.addresses.iter().filter(|own| own.valid_until > now) {
            let is_mine =
                own.addr == addresses::with_identifier(own.addr, self.common.mac()) && own.prefix_len == 64;
            match self.v6.own.iter().position(|known| known.addr == own.addr) {
                Some(at) if !own.is_tentative() => self.v6.own[at].state = own.state,
                None if obeys && own.dynamic && is_mine && self.v6.own.len() < OWN_MAX => {
                    self.v6.own.push(*own)
                }
                _ => {}
            }
        }
        if obeys {
            for &(prefix, len, until) in past.on_link.iter().filter(|(_, _, until)| *until > now) {
                let is_known = self.v6.on_link.iter().any(|lease| lease.what == (prefix, len));
                if !is_known && len <= 128 && self.v6.on_link.len() < ON_LINK_MAX {
                    self.v6.on_link.push(Lease { what: (prefix, len), until });
                }
            }
            for &(addr, until) in past.routers.iter().filter(|(_, until)| *until > now) {
                let is_known = self.v6.routers.iter().any(|router| router.what == addr);
                if !is_known && addr.is_link_local() && self.v6.routers.len() < ROUTERS_MAX {
                    self.v6.routers.push(Lease { what: addr, until });
                }
            }
        }
        self.v6.generation += 1;
        self.listen_to_own(now);
        self.v6.rearm();
    }

    /// Returns the IPv6 routers in the order in which they are tried, and until when they serve as such.
    pub fn v6_routers(&self) -> impl Iterator<Item = (Addr, Instant)> + '_ {
        self.v6.routers.iter().map(|lease| (lease.what, lease.until))
    }

    /// Does what is due for IPv6 at `now`.
    pub(crate) fn handle_timeout_v6(&mut self, now: Instant) {
        let mut due = Vec::new();
        self.v6.neighbours.expire(now, |what| due.push(what));
        for what in due {
            match what {
                Due::Ask { addr, of } => self.ask_v6(addr, of),
                Due::Failed { addr } => {
                    self.common.count().neighbours_failed += 1;
                    self.v6.redirects.forget(addr);
                }
            }
        }
        if self.v6.next_due <= now {
            self.renew_v6(now);
        }
        self.expire_listeners(now);
    }

    /// Applies what is due for addresses, prefixes and routers.
    fn renew_v6(&mut self, now: Instant) {
        let before = self.v6.count();
        self.v6.on_link.retain(|lease| lease.until > now);
        let redirects = &mut self.v6.redirects;
        self.v6.routers.retain(|lease| {
            if lease.until <= now {
                redirects.forget(lease.what);
            }
            lease.until > now
        });
        redirects.expire(now);
        let mut changed = false;
        self.v6.own.retain_mut(|own| {
            changed |= own.expire(now);
            own.valid_until > now
        });
        if changed || before != self.v6.count() {
            self.v6.generation += 1;
            self.listen_to_own(now);
        }
        if self.v6.solicitations.due <= now {
            self.solicit(now);
        }
        self.v6.rearm();
    }

    /// Returns the IPv6 addresses of the stack on its link, the link-local one first.
    pub fn v6_addresses(&self) -> &[OwnAddress] {
        &self.v6.own
    }

    /// Returns the prefixes that are reached without a router, their lengths in bits, and until when.
    pub fn v6_on_link(&self) -> impl Iterator<Item = (Addr, u8, Instant)> + '_ {
        self.v6.on_link.iter().map(|lease| (lease.what.0, lease.what.1, lease.until))
    }

    /// Returns whether there is a route to IPv6 addresses that are not on the link.
    pub fn has_v6_router(&self) -> bool {
        !self.v6.routers.is_empty()
    }

    /// Judges a message of neighbour discovery whose checksum was verified. `from` is the station that sent
    /// the frame.
    #[inline(never)]
    fn handle_nd(
        &mut self,
        now: Instant,
        from: Mac,
        header: &atoll_wire::ipv6::Header,
        bytes: &[u8],
    ) -> Result<(), Reason> {
        // RFC 4861 §11.2: a message that a router may have forwarded is not believed.
        if header.hop_limit != nd::HOP_LIMIT || from == self.common.mac() {
            return Err(Reason::NdIgnored);
        }
        match nd::parse(bytes).map_err(|_| Reason::Malformed)? {
            nd::Message::NeighbourSolicitation { target, source_mac } => {
                self.handle_solicitation(now, from, header, target, source_mac)
            }
            nd::Message::NeighbourAdvertisement { target, router, solicited, overriding, target_mac } => {
                let counts =
                    overriding || target_mac.is_none() || self.v6.neighbours.station(target) == target_mac;
                self.handle_advertisement(now, header, target, solicited, overriding, target_mac)?;
                if !router && counts {
                    self.forget_router(target);
                }
                Ok(())
            }
            nd::Message::RouterAdvertisement(advertisement) => {
                self.handle_router(now, header, &advertisement).map(|()| self.v6.rearm())
            }
            nd::Message::Redirect { target, destination, target_mac } => {
                self.handle_redirect(now, header, target, destination, target_mac)
            }
            // The stack is not a router.
            nd::Message::RouterSolicitation { .. } => Err(Reason::NdIgnored),
        }
    }
}

/// Returns whether an ICMPv6 message is one of neighbour discovery.
fn is_discovery(message: Option<&[u8]>) -> bool {
    message.and_then(<[u8]>::first).is_some_and(|kind| nd::KINDS.contains(kind))
}

/// The time between two questions (RETRANS_TIMER, RFC 4861 §10), and how long an address is tentative (one
/// probe, RFC 4862 §5.1).
const RETRANS_TIMER: Duration = Duration::from_secs(1);
/// The number of router solicitations (MAX_RTR_SOLICITATIONS, RFC 4861 §10).
const SOLICITATIONS: u8 = 3;
/// The time between two router solicitations (RTR_SOLICITATION_INTERVAL, RFC 4861 §10).
const SOLICITATION_INTERVAL: Duration = Duration::from_secs(4);
/// The most own addresses, on-link prefixes and routers; further ones that routers advertise are ignored.
const OWN_MAX: usize = 16;
const ON_LINK_MAX: usize = 16;
const ROUTERS_MAX: usize = 8;

#[cfg(test)]
mod tests;
