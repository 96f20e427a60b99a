//! What does the stack know of its IPv6 network? Its own addresses, the prefixes on the link, the routers and
//! redirects, and for how long each is valid (RFC 4861 §5.1, RFC 4862 §5.5).

use alloc::vec::Vec;

use atoll_base::{Addr, Duration, Instant};
use atoll_wire::Mac;
use atoll_wire::ipv6::MTU_MIN;
use atoll_wire::nd::{PrefixInformation, RouterAdvertisement};

use super::addresses::{OwnAddress, State, cast, common_bits, link_local, with_identifier};
use super::redirects::Redirects;
use crate::config::{Config, V6Config};
use crate::link::{Cast, Link};
use crate::neighbours::Neighbours;

/// The state of the IPv6 network.
#[derive(Debug)]
pub(crate) struct Network {
    config: Option<V6Config>,
    /// The own addresses, the link-local one first. Empty if IPv6 is not spoken on the link.
    own: Vec<OwnAddress>,
    /// The prefixes that are reached without a router.
    on_link: Vec<Lease<(Addr, u8)>>,
    /// The routers in the order in which they are tried; the configured one is first.
    routers: Vec<Lease<Addr>>,
    redirects: Redirects,
    mtu: u16,
    hop_limit: u8,
    /// The earliest time at which something of this ends.
    next_due: Instant,
    generation: u64,
}

/// A value that is valid until a time; [`Instant::FAR_FUTURE`] means for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease<T> {
    what: T,
    until: Instant,
}

impl<T> Lease<T> {
    const fn forever(what: T) -> Lease<T> {
        Lease { what, until: Instant::FAR_FUTURE }
    }
}

impl Network {
    /// Creates the state at the start: every address is tentative (RFC 4862 §5.4), and may be used meanwhile
    /// (RFC 4429).
    pub(super) fn new(config: &Config, now: Instant) -> Network {
        let mut network = Network {
            config: config.v6.clone(),
            own: Vec::new(),
            on_link: Vec::new(),
            routers: Vec::new(),
            redirects: Redirects::default(),
            mtu: config.mtu,
            hop_limit: crate::output::TTL,
            next_due: Instant::FAR_FUTURE,
            generation: 0,
        };
        if let Some(v6) = &config.v6 {
            network.own.push(OwnAddress::new(now, link_local(config.mac), 64, false));
            if let Some((addr, len)) = v6.address {
                network.own.push(OwnAddress::new(now, addr, len, false));
                network.on_link.push(Lease::forever((addr, len)));
            }
            network.routers.extend(v6.gateway.map(Lease::forever));
        }
        // The part in a transport server gets the states of its addresses from the IP server.
        if !config.apart {
            network.rearm();
        }
        network
    }

    /// Returns whether IPv6 is spoken on the link.
    #[inline]
    pub(super) const fn is_spoken(&self) -> bool {
        !self.own.is_empty()
    }

    /// Returns whether router advertisements are accepted.
    pub(super) fn obeys_routers(&self) -> bool {
        self.config.as_ref().is_some_and(|config| config.autoconf)
    }

    /// Returns the own addresses, the link-local one first.
    pub(crate) fn own(&self) -> &[OwnAddress] {
        &self.own
    }

    /// Returns what is known of an own address, which need not be usable.
    pub(super) fn own_address(&self, addr: Addr) -> Option<&OwnAddress> {
        self.own.iter().find(|own| own.addr == addr)
    }

    /// Returns whether `addr` is an own address that another station may still have.
    pub(super) fn is_tentative(&self, addr: Addr) -> bool {
        self.own_address(addr).is_some_and(OwnAddress::is_tentative)
    }

    /// Returns the prefixes that are reached without a router, their lengths in bits, and until when.
    pub(crate) fn on_link(&self) -> impl Iterator<Item = (Addr, u8, Instant)> + '_ {
        self.on_link.iter().map(|lease| (lease.what.0, lease.what.1, lease.until))
    }

    /// Returns the routers in the order in which they are tried, and until when they serve as such.
    pub(crate) fn routers(&self) -> impl Iterator<Item = (Addr, Instant)> + '_ {
        self.routers.iter().map(|lease| (lease.what, lease.until))
    }

    #[inline]
    pub(super) fn is_own(&self, addr: Addr) -> bool {
        self.own.iter().any(|own| own.addr == addr && own.is_usable())
    }

    pub(crate) fn is_ours(&self, link: Link, addr: Addr) -> bool {
        self.is_own(addr) || (link == Link::Inside && addr == Addr::LOOPBACK)
    }

    /// Returns whether a packet that arrives over `link` may have come from `src`, as `Addresses::is_source`
    /// does for IPv4. The unspecified address is not accepted here.
    pub(super) fn is_source(&self, link: Link, src: Addr) -> bool {
        match link {
            Link::Outside => cast(src) == Some(Cast::Unicast) && !self.is_own(src),
            Link::Inside => self.is_ours(Link::Inside, src),
        }
    }

    /// Selects a source address by RFC 6724 §5, as far as one interface needs it: rule 1 the address itself,
    /// rule 2 its scope, rule 3 no deprecated one, rule 8 the longest common prefix.
    pub(crate) fn source_for(&self, dst: Addr) -> Option<Addr> {
        if dst == Addr::LOOPBACK {
            return Some(dst);
        }
        let is_local = dst.is_link_scoped();
        let candidates =
            self.own.iter().filter(|own| own.is_usable() && own.addr.is_link_local() == is_local);
        let merit = |own: &&OwnAddress| {
            (
                own.addr == dst,
                own.state != State::Deprecated,
                common_bits(own.addr, dst).min(own.prefix_len.into()),
            )
        };
        candidates.max_by_key(merit).map(|own| own.addr)
    }

    /// Returns what `addr` means as a destination. Groups also exist on the inside link.
    pub(crate) fn cast(&self, addr: Addr) -> Option<Cast> {
        cast(addr).filter(|cast| *cast == Cast::Multicast || self.is_spoken())
    }

    /// Returns whether `addr` is reached without a router.
    fn is_on_link(&self, addr: Addr) -> bool {
        addr.is_link_local()
            || self.on_link.iter().any(|lease| common_bits(lease.what.0, addr) >= lease.what.1.into())
    }

    /// Returns whether `addr` could be a neighbour.
    pub(super) fn is_neighbour(&self, addr: Addr) -> bool {
        let is_router = || self.routers.iter().any(|router| router.what == addr);
        let is_near = self.is_on_link(addr) || is_router() || self.redirects.leads_to(addr);
        cast(addr) == Some(Cast::Unicast) && !self.is_own(addr) && is_near
    }

    /// Returns the neighbour that takes packets for the unicast address `dst`. RFC 4861 §6.3.6: of the
    /// routers, it is the first that is not known to be unreachable.
    pub(super) fn next_hop(&self, neighbours: &Neighbours<Addr>, dst: Addr) -> Option<Addr> {
        if !self.is_spoken() {
            return None;
        }
        if self.is_on_link(dst) {
            return Some(dst);
        }
        if let Some(target) = self.redirects.get(dst) {
            return Some(target);
        }
        let mut routers = self.routers.iter().map(|router| router.what);
        let first = routers.clone().next();
        routers.find(|router| !neighbours.has_failed(*router)).or(first)
    }

    /// Returns the size in octets of the largest packet on the outside link.
    pub(crate) const fn mtu(&self) -> u16 {
        self.mtu
    }

    pub(crate) const fn hop_limit(&self) -> u8 {
        self.hop_limit
    }

    /// Returns a number that grows whenever a route or an own address may have changed.
    pub(super) const fn generation(&self) -> u64 {
        self.generation
    }

    /// Notes that routes may have changed.
    pub(super) const fn change(&mut self) {
        self.generation += 1;
    }

    /// Returns when to call [`Network::expire`]; [`Instant::FAR_FUTURE`] if nothing ends.
    pub(super) const fn next_due(&self) -> Instant {
        self.next_due
    }

    /// Ends what is valid no longer at `now`. Returns whether something has changed.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let before = self.count();
        self.on_link.retain(|lease| lease.until > now);
        let redirects = &mut self.redirects;
        self.routers.retain(|lease| {
            if lease.until <= now {
                redirects.forget(lease.what);
            }
            lease.until > now
        });
        redirects.expire(now);
        let mut changed = false;
        self.own.retain_mut(|own| {
            changed |= own.expire(now);
            own.valid_until > now
        });
        self.rearm();
        changed |= before != self.count();
        self.generation += u64::from(changed);
        changed
    }

    /// Gives up a tentative address because another station has it or wants it (RFC 4862 §5.4.5).
    pub(super) fn give_up(&mut self, addr: Addr) {
        if let Some(own) = self.own.iter_mut().find(|own| own.addr == addr) {
            own.state = State::Duplicate;
        }
        self.change();
        self.rearm();
    }

    /// Sends packets for `destination` to `target` from now on, as its router has said.
    pub(super) fn redirect(&mut self, now: Instant, destination: Addr, target: Addr) {
        self.redirects.insert(now, destination, target);
        self.change();
        self.rearm();
    }

    /// Forgets the redirects to a neighbour that does not answer.
    pub(super) fn forget_redirects(&mut self, target: Addr) {
        self.redirects.forget(target);
    }

    /// Returns the number of redirects.
    #[cfg(test)]
    pub(super) fn redirects(&self) -> usize {
        self.redirects.len()
    }

    /// Removes a router unless it is configured, because it has said that it is no router any more (RFC 4861
    /// §7.2.5).
    pub(super) fn forget_router(&mut self, addr: Addr) {
        let configured = self.gateway();
        let before = self.count();
        self.routers.retain(|router| router.what != addr || configured == Some(addr));
        if configured != Some(addr) {
            self.redirects.forget_router(addr);
        }
        if self.count() < before {
            self.change();
            self.rearm();
        }
    }

    /// Applies an advertisement of the router `from` to the station `mac`, on a link that carries packets of
    /// `mtu` octets (RFC 4861 §6.3.4). Returns the addresses that are new.
    pub(super) fn advertise(
        &mut self,
        now: Instant,
        from: Addr,
        advertisement: &RouterAdvertisement,
        mac: Mac,
        mtu: u16,
    ) -> Vec<Addr> {
        self.change();
        if advertisement.hop_limit != 0 {
            self.hop_limit = advertisement.hop_limit;
        }
        // RFC 4861 §6.3.4: an MTU above the link's, or below what every link carries, is not believed.
        if let Some(advertised) = advertisement.mtu.and_then(|mtu| u16::try_from(mtu).ok())
            && (MTU_MIN..=mtu).contains(&advertised)
        {
            self.mtu = advertised;
        }
        self.take_router(now, from, advertisement.router_lifetime);
        let mut new = Vec::new();
        for prefix in advertisement.prefixes.as_slice() {
            // RFC 4862 §5.5.3 (b), (c); RFC 4861 §6.3.4: routers do not assign the link-local prefix.
            if prefix.prefix.is_link_local() || prefix.prefix.is_v6_multicast() || prefix.prefix.is_v4() {
                continue;
            }
            if prefix.on_link {
                self.take_prefix(now, prefix);
            }
            if prefix.autonomous && prefix.preferred_lifetime <= prefix.valid_lifetime {
                new.extend(self.take_address(now, prefix, mac));
            }
        }
        self.rearm();
        new
    }

    fn take_router(&mut self, now: Instant, addr: Addr, lifetime: u16) {
        if self.gateway() == Some(addr) {
            return;
        }
        let until = now + Duration::from_secs(lifetime.into());
        let at = self.routers.iter().position(|router| router.what == addr);
        match at {
            Some(at) if lifetime == 0 => {
                self.routers.remove(at);
                self.redirects.forget(addr);
            }
            Some(at) => self.routers[at].until = until,
            None if lifetime > 0 && self.routers.len() < ROUTERS_MAX => {
                self.routers.push(Lease { what: addr, until });
            }
            None => {}
        }
    }

    fn take_prefix(&mut self, now: Instant, prefix: &PrefixInformation) {
        let is_same = |other: &(Addr, u8)| {
            other.1 == prefix.len && common_bits(other.0, prefix.prefix) >= other.1.into()
        };
        let until = moment(now, prefix.valid_lifetime);
        let on_link = &mut self.on_link;
        match on_link.iter().position(|lease| is_same(&lease.what)) {
            // A router cannot withdraw the configured prefix.
            Some(at) if on_link[at].until == Instant::FAR_FUTURE && at == 0 => {}
            Some(at) if prefix.valid_lifetime == 0 => {
                on_link.remove(at);
            }
            Some(at) => on_link[at].until = until,
            None if prefix.valid_lifetime > 0 && on_link.len() < ON_LINK_MAX => {
                on_link.push(Lease { what: (prefix.prefix, prefix.len), until });
            }
            None => {}
        }
    }

    /// Forms an address from an advertised prefix, or changes its lifetimes (RFC 4862 §5.5.3 (d), (e)).
    /// Returns the address if it is new.
    fn take_address(&mut self, now: Instant, prefix: &PrefixInformation, mac: Mac) -> Option<Addr> {
        if prefix.len != 64 {
            return None;
        }
        let addr = with_identifier(prefix.prefix, mac);
        let (preferred, valid) = (moment(now, prefix.preferred_lifetime), moment(now, prefix.valid_lifetime));
        if let Some(own) = self.own.iter_mut().find(|own| own.addr == addr) {
            if !own.dynamic {
                return None;
            }
            own.preferred_until = preferred;
            // A forged advertisement must not end an address at once: two hours remain.
            let left = own.valid_until.since(now);
            if valid.since(now) > TWO_HOURS || valid > own.valid_until {
                own.valid_until = valid;
            } else if left > TWO_HOURS {
                own.valid_until = now + TWO_HOURS;
            }
            if own.state == State::Deprecated && preferred > now {
                own.state = State::Preferred;
            }
            own.expire(now);
            return None;
        }
        if prefix.valid_lifetime == 0 || self.own.len() >= OWN_MAX {
            return None;
        }
        let mut own = OwnAddress::new(now, addr, prefix.len, true);
        (own.preferred_until, own.valid_until) = (preferred, valid);
        self.own.push(own);
        Some(addr)
    }

    /// Continues with the addresses, prefixes and routers that a predecessor with the hardware address `mac`
    /// knew, as far as they are valid at `now`.
    pub(super) fn resume(
        &mut self,
        now: Instant,
        mac: Mac,
        own: &[OwnAddress],
        on_link: &[(Addr, u8, Instant)],
        routers: &[(Addr, Instant)],
    ) {
        let obeys = self.obeys_routers();
        for own in own.iter().filter(|own| own.valid_until > now) {
            let is_mine = own.addr == with_identifier(own.addr, mac) && own.prefix_len == 64;
            match self.own.iter().position(|known| known.addr == own.addr) {
                Some(at) if !own.is_tentative() => self.own[at].state = own.state,
                None if obeys && own.dynamic && is_mine && self.own.len() < OWN_MAX => self.own.push(*own),
                _ => {}
            }
        }
        if obeys {
            for &(prefix, len, until) in on_link.iter().filter(|(_, _, until)| *until > now) {
                let is_known = self.on_link.iter().any(|lease| lease.what == (prefix, len));
                if !is_known && len <= 128 && self.on_link.len() < ON_LINK_MAX {
                    self.on_link.push(Lease { what: (prefix, len), until });
                }
            }
            for &(addr, until) in routers.iter().filter(|(_, until)| *until > now) {
                let is_known = self.routers.iter().any(|router| router.what == addr);
                if !is_known && addr.is_link_local() && self.routers.len() < ROUTERS_MAX {
                    self.routers.push(Lease { what: addr, until });
                }
            }
        }
        self.change();
        self.rearm();
    }

    /// Takes over the addresses, prefixes and routers that an IP server has sent, as far as a host can have
    /// them.
    pub(super) fn replace(&mut self, own: &[OwnAddress], on_link: &[(Addr, u8)], routers: &[Addr]) {
        let is_host = |addr: Addr| cast(addr) == Some(Cast::Unicast);
        let own = own.iter().filter(|own| is_host(own.addr) && own.prefix_len <= 128).take(OWN_MAX);
        let own: Vec<_> = own.copied().collect();
        let on_link = on_link.iter().filter(|(_, len)| *len <= 128).take(ON_LINK_MAX);
        let on_link: Vec<_> = on_link.copied().map(Lease::forever).collect();
        let routers = routers.iter().copied().filter(|addr| is_host(*addr)).take(ROUTERS_MAX);
        let routers: Vec<_> = routers.map(Lease::forever).collect();
        if (&own, &on_link, &routers) != (&self.own, &self.on_link, &self.routers) {
            (self.own, self.on_link, self.routers) = (own, on_link, routers);
            self.change();
        }
    }

    /// Sets the size of packets and the hop limit that an IP server has sent; the link carries packets of
    /// `link` octets.
    pub(super) fn set_limits(&mut self, mtu: u16, link: u16, hop_limit: u8) {
        self.mtu = mtu.clamp(MTU_MIN, link.max(MTU_MIN));
        self.hop_limit = hop_limit.max(1);
    }

    /// Returns whether IPv6 is configured on the link.
    pub(super) const fn is_configured(&self) -> bool {
        self.config.is_some()
    }

    fn gateway(&self) -> Option<Addr> {
        self.config.as_ref().and_then(|config| config.gateway)
    }

    /// Returns the number of items that decide about routes; it falls if some of them go.
    fn count(&self) -> usize {
        self.own.len() + self.on_link.len() + self.routers.len() + self.redirects.len()
    }

    /// Computes when something ends next. Call after every change of what is timed.
    fn rearm(&mut self) {
        let own = self.own.iter().map(OwnAddress::due);
        let on_link = self.on_link.iter().map(|lease| lease.until);
        let routers = self.routers.iter().map(|lease| lease.until);
        let others = [self.redirects.next_due()];
        self.next_due = own.chain(on_link).chain(routers).chain(others).min().unwrap_or(Instant::FAR_FUTURE);
    }
}

/// Returns when a lifetime of `seconds` ends.
fn moment(now: Instant, seconds: u32) -> Instant {
    if seconds == u32::MAX { Instant::FAR_FUTURE } else { now + Duration::from_secs(seconds.into()) }
}

const TWO_HOURS: Duration = Duration::from_secs(7200);

/// The most own addresses, on-link prefixes and routers; further ones that routers advertise are ignored.
pub(super) const OWN_MAX: usize = 16;
pub(super) const ON_LINK_MAX: usize = 16;
const ROUTERS_MAX: usize = 8;
