//! The stack's own IPv6 addresses and their lifetimes (RFC 4862 §5.5.4), and what other addresses mean.

use atoll_base::{Addr, Duration, Instant};
use atoll_wire::Mac;

use crate::link::Cast;

/// One own IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnAddress {
    /// The address.
    pub addr: Addr,
    /// The length of the prefix, in bits.
    pub prefix_len: u8,
    /// The permitted uses of the address.
    pub state: State,
    /// Whether the address was made from an advertised prefix.
    pub dynamic: bool,
    /// Until when the address is preferred; [`Instant::FAR_FUTURE`] means for ever.
    pub preferred_until: Instant,
    /// Until when the address is valid; [`Instant::FAR_FUTURE`] means for ever.
    pub valid_until: Instant,
}

/// The permitted uses of an address (RFC 4862 §2).
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

    pub(super) fn is_usable(&self) -> bool {
        self.state != State::Duplicate
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

/// The time between two questions (RETRANS_TIMER, RFC 4861 §10), and how long an address is tentative (one
/// probe, RFC 4862 §5.1).
const RETRANS_TIMER: Duration = Duration::from_secs(1);
