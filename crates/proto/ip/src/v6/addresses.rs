//! The stack's own IPv6 addresses, their lifetimes, and the choice of a source address (RFC 4862 §5.5.4, RFC
//! 6724).

use atoll_base::{Addr, Instant};
use atoll_wire::Mac;

use super::RETRANS_TIMER;
use crate::ip::Ip;
use crate::link::Cast;
use crate::link::Link;

/// One own IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnAddress {
    /// The address.
    pub addr: Addr,
    /// The length of the prefix, in bits.
    pub prefix_len: u8,
    /// What the address may be used for.
    pub state: State,
    /// Whether the address was made from an advertised prefix.
    pub dynamic: bool,
    /// Until when the address is preferred; [`Instant::FAR_FUTURE`] means for ever.
    pub preferred_until: Instant,
    /// Until when the address is valid; [`Instant::FAR_FUTURE`] means for ever.
    pub valid_until: Instant,
}

/// What an address may be used for (RFC 4862 §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The address may be used for everything, as long as no other host claims it (RFC 4429). Duplicate
    /// address detection is under way.
    Tentative {
        /// When duplicate address detection ends.
        until: Instant,
    },
    /// The address may be used for everything.
    Preferred,
    /// The address may only be used for existing communication.
    Deprecated,
    /// The address may not be used: another host has it.
    Duplicate,
}

impl OwnAddress {
    /// Creates a tentative address that is valid for ever.
    pub(super) fn new(now: Instant, addr: Addr, prefix_len: u8, dynamic: bool) -> OwnAddress {
        OwnAddress {
            addr,
            prefix_len,
            state: State::Tentative { until: now + RETRANS_TIMER },
            dynamic,
            preferred_until: Instant::FAR_FUTURE,
            valid_until: Instant::FAR_FUTURE,
        }
    }

    /// Returns when the next change of state is due.
    pub(super) fn due(&self) -> Instant {
        match self.state {
            State::Tentative { until } => until.min(self.valid_until),
            State::Preferred => self.preferred_until.min(self.valid_until),
            State::Deprecated | State::Duplicate => self.valid_until,
        }
    }

    /// Applies the changes of state that are due at `now`. Returns whether the state has changed.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let before = self.state;
        if matches!(self.state, State::Tentative { until } if until <= now) {
            self.state = State::Preferred;
        }
        if self.state == State::Preferred && self.preferred_until <= now {
            self.state = State::Deprecated;
        }
        self.state != before
    }

    pub(super) fn is_tentative(&self) -> bool {
        matches!(self.state, State::Tentative { .. })
    }

    fn is_usable(&self) -> bool {
        self.state != State::Duplicate
    }
}

impl Ip {
    /// Returns whether `addr` is one of the stack's own, of either family: on its link, or a loopback
    /// address.
    pub fn is_own(&self, addr: Addr) -> bool {
        match addr.to_v4() {
            Some(v4) => self.addresses.is_ours(Link::Inside, v4),
            None => addr == Addr::LOOPBACK || self.is_own_v6(addr),
        }
    }

    /// Returns the source address for packets to `dst`; `None` if we have none from which `dst` can be
    /// reached.
    pub fn source_for(&self, dst: Addr) -> Option<Addr> {
        if dst.is_loopback() {
            return Some(dst.loopback_of_family());
        }
        match dst.to_v4() {
            Some(_) => self.addresses.own().map(Addr::v4),
            None => self.source_for_v6(dst),
        }
    }

    #[inline]
    pub(super) fn is_own_v6(&self, addr: Addr) -> bool {
        self.v6.own.iter().any(|own| own.addr == addr && own.is_usable())
    }

    pub(super) fn is_ours_v6(&self, link: Link, addr: Addr) -> bool {
        self.is_own_v6(addr) || (link == Link::Inside && addr == Addr::LOOPBACK)
    }

    /// Returns whether a packet that arrives over `link` may have come from `src`, as `Addresses::is_source`
    /// does for IPv4. The unspecified address is not accepted here.
    pub(super) fn is_source_v6(&self, link: Link, src: Addr) -> bool {
        match link {
            Link::Outside => cast(src) == Some(Cast::Unicast) && !self.is_own_v6(src),
            Link::Inside => self.is_ours_v6(Link::Inside, src),
        }
    }

    /// Selects a source address by RFC 6724 §5, as far as one interface needs it: rule 1 the address itself,
    /// rule 2 its scope, rule 3 no deprecated one, rule 8 the longest common prefix.
    fn source_for_v6(&self, dst: Addr) -> Option<Addr> {
        let is_local = dst.is_link_scoped();
        let candidates =
            self.v6.own.iter().filter(|own| own.is_usable() && own.addr.is_link_local() == is_local);
        let merit = |own: &&OwnAddress| {
            (
                own.addr == dst,
                own.state != State::Deprecated,
                common_bits(own.addr, dst).min(own.prefix_len.into()),
            )
        };
        candidates.max_by_key(merit).map(|own| own.addr)
    }

    /// Returns whether `addr` is reached without a router.
    pub(super) fn is_on_link_v6(&self, addr: Addr) -> bool {
        addr.is_link_local()
            || self.v6.on_link.iter().any(|lease| common_bits(lease.what.0, addr) >= lease.what.1.into())
    }

    /// Returns whether `addr` could be a neighbour.
    pub(super) fn is_neighbour_v6(&self, addr: Addr) -> bool {
        let is_router = || self.v6.routers.iter().any(|router| router.what == addr);
        let is_near = self.is_on_link_v6(addr) || is_router() || self.v6.redirects.leads_to(addr);
        cast(addr) == Some(Cast::Unicast) && !self.is_own_v6(addr) && is_near
    }
}

/// Returns what an IPv6 address means as a destination; `None` if it means nothing on a link.
pub(crate) fn cast(addr: Addr) -> Option<Cast> {
    match addr {
        // RFC 4038 §4.2: mapped addresses do not appear on the wire.
        _ if addr == Addr::LOOPBACK || addr == Addr::ANY || addr.is_v4() => None,
        _ if addr.is_v6_multicast() => Some(Cast::Multicast),
        _ => Some(Cast::Unicast),
    }
}

/// Returns how many leading bits two addresses have in common.
pub(super) fn common_bits(a: Addr, b: Addr) -> u32 {
    (u128::from_be_bytes(a.octets()) ^ u128::from_be_bytes(b.octets())).leading_zeros()
}

/// Returns the address of the station in the network `prefix`, whose length is 64 (RFC 4291, appendix A).
///
/// DEVIATION: RFC 8064 wants identifiers that reveal nothing about the hardware (RFC 7217). Here the hardware
/// address itself is random unless an operator has chosen it, and all replicas know it.
pub(super) fn with_identifier(prefix: Addr, mac: Mac) -> Addr {
    let Mac([a, b, c, d, e, f]) = mac;
    let mut octets = prefix.octets();
    octets[8..].copy_from_slice(&[a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    Addr::from_octets(octets)
}

/// Returns the link-local address of the station (RFC 4862 §5.3).
pub(super) fn link_local(mac: Mac) -> Addr {
    with_identifier(Addr::from_octets([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), mac)
}

/// The group of all hosts on the link (RFC 4291 §2.7.1).
pub(super) const ALL_NODES: Addr = Addr::from_octets([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
/// The group of all routers on the link.
pub(super) const ALL_ROUTERS: Addr = Addr::from_octets([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
