//! Router advertisements: what routers say about the network, and for how long it is valid (RFC 4861 §6.3,
//! RFC 4862 §5.5).

use atoll_base::{Addr, Duration, Instant};
use atoll_wire::ipv6::{self, MTU_MIN, multicast_mac};
use atoll_wire::nd::{Message, PrefixInformation, RouterAdvertisement};

use super::addresses::{ALL_ROUTERS, OwnAddress, State, common_bits, with_identifier};
use super::{Lease, ON_LINK_MAX, OWN_MAX, ROUTERS_MAX, SOLICITATION_INTERVAL};
use crate::counters::Reason;
use crate::ip::Ip;

impl Ip {
    /// Applies a router advertisement, if it is valid and autoconfiguration is on.
    pub(super) fn handle_router(
        &mut self,
        now: Instant,
        header: &ipv6::Header,
        advertisement: &RouterAdvertisement,
    ) -> Result<(), Reason> {
        let obeys = self.v6.config.as_ref().is_some_and(|config| config.autoconf);
        if !obeys || !header.src.is_link_local() {
            return Err(Reason::NdIgnored);
        }
        self.common.count().router_advertisements += 1;
        self.v6.generation += 1;
        if advertisement.hop_limit != 0 {
            self.v6.hop_limit = advertisement.hop_limit;
        }
        // RFC 4861 §6.3.4: an MTU above the link's, or below what every link carries, is not believed.
        if let Some(mtu) = advertisement.mtu.and_then(|mtu| u16::try_from(mtu).ok())
            && (MTU_MIN..=self.common.config().mtu).contains(&mtu)
        {
            self.v6.mtu = mtu;
        }
        self.take_router(now, header.src, advertisement.router_lifetime);
        if let Some(mac) =
            advertisement.source_mac.filter(|mac| mac.is_station() && *mac != self.common.mac())
            && self.is_neighbour_v6(header.src)
        {
            self.learn_v6(now, header.src, mac);
        }
        for prefix in advertisement.prefixes.as_slice() {
            // RFC 4862 §5.5.3 (b), (c); RFC 4861 §6.3.4: routers do not assign the link-local prefix.
            if prefix.prefix.is_link_local() || prefix.prefix.is_v6_multicast() || prefix.prefix.is_v4() {
                continue;
            }
            if prefix.on_link {
                self.take_prefix(now, prefix);
            }
            if prefix.autonomous && prefix.preferred_lifetime <= prefix.valid_lifetime {
                self.take_address(now, prefix);
            }
        }
        // RFC 4861 §6.3.7: an answer from a router ends the questions.
        if advertisement.router_lifetime > 0 {
            self.v6.solicitations.left = 0;
            self.v6.solicitations.due = Instant::FAR_FUTURE;
        }
        Ok(())
    }

    fn take_router(&mut self, now: Instant, addr: Addr, lifetime: u16) {
        let is_configured = self.v6.config.as_ref().and_then(|config| config.gateway) == Some(addr);
        if is_configured {
            return;
        }
        let until = now + Duration::from_secs(lifetime.into());
        let routers = &mut self.v6.routers;
        let at = routers.iter().position(|router| router.what == addr);
        match at {
            Some(at) if lifetime == 0 => {
                routers.remove(at);
                self.v6.redirects.forget(addr);
            }
            Some(at) => routers[at].until = until,
            None if lifetime > 0 && routers.len() < ROUTERS_MAX => routers.push(Lease { what: addr, until }),
            None => {}
        }
    }

    /// Removes a router unless it is configured, because it has said that it is no router any more (RFC 4861
    /// §7.2.5).
    pub(super) fn forget_router(&mut self, addr: Addr) {
        let configured = self.v6.config.as_ref().and_then(|config| config.gateway);
        let before = self.v6.count();
        self.v6.routers.retain(|router| router.what != addr || configured == Some(addr));
        if configured != Some(addr) {
            self.v6.redirects.forget_router(addr);
        }
        if self.v6.count() < before {
            self.v6.generation += 1;
            self.v6.rearm();
        }
    }

    fn take_prefix(&mut self, now: Instant, prefix: &PrefixInformation) {
        let is_same = |other: &(Addr, u8)| {
            other.1 == prefix.len && common_bits(other.0, prefix.prefix) >= other.1.into()
        };
        let until = moment(now, prefix.valid_lifetime);
        let on_link = &mut self.v6.on_link;
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
    fn take_address(&mut self, now: Instant, prefix: &PrefixInformation) {
        if prefix.len != 64 {
            return;
        }
        let addr = with_identifier(prefix.prefix, self.common.mac());
        let (preferred, valid) = (moment(now, prefix.preferred_lifetime), moment(now, prefix.valid_lifetime));
        if let Some(own) = self.v6.own.iter_mut().find(|own| own.addr == addr) {
            if !own.dynamic {
                return;
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
            return;
        }
        if prefix.valid_lifetime == 0 || self.v6.own.len() >= OWN_MAX {
            return;
        }
        let mut own = OwnAddress::new(now, addr, prefix.len, true);
        (own.preferred_until, own.valid_until) = (preferred, valid);
        self.v6.own.push(own);
        self.listen_to_own(now);
        if self.v6.leader {
            self.probe(addr);
        }
    }

    /// Sends a router solicitation, and notes when to send the next one.
    pub(super) fn solicit(&mut self, now: Instant) {
        let solicitations = &mut self.v6.solicitations;
        let Some(left) = solicitations.left.checked_sub(1) else {
            solicitations.due = Instant::FAR_FUTURE;
            return;
        };
        solicitations.left = left;
        solicitations.due = if left > 0 { now + SOLICITATION_INTERVAL } else { Instant::FAR_FUTURE };
        // RFC 4861 §4.1: without a source address, the solicitation names no station.
        let own = self.v6.own.first().filter(|own| own.state == State::Preferred).map(|own| own.addr);
        let source_mac = own.map(|_| self.common.mac());
        let (src, mac) = (own.unwrap_or_default(), multicast_mac(ALL_ROUTERS));
        self.send_nd(src, ALL_ROUTERS, mac, &Message::RouterSolicitation { source_mac });
    }
}

/// Returns when a lifetime of `seconds` ends.
fn moment(now: Instant, seconds: u32) -> Instant {
    if seconds == u32::MAX { Instant::FAR_FUTURE } else { now + Duration::from_secs(seconds.into()) }
}

const TWO_HOURS: Duration = Duration::from_secs(7200);
