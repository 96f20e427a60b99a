//! Routes of outgoing IPv6 packets, and the headers before them (RFC 4861 §5.2).

use atoll_base::{Addr, Instant};
use atoll_wire::Mac;
use atoll_wire::ipv6::multicast_mac;

use super::addresses::cast;
use crate::ip::Ip;
use crate::link::Cast;
use crate::neighbours::Lookup;
use crate::output::Route;

impl Ip {
    #[inline]
    pub(crate) fn route_v6(&mut self, now: Instant, dst: Addr) -> Route {
        if dst == Addr::LOOPBACK || self.is_own_v6(dst) {
            return if self.common.config().loopback { Route::Local } else { Route::Unreachable };
        }
        match cast(dst) {
            Some(Cast::Unicast) => {}
            Some(_) if self.v6.own.is_empty() => return Route::Unreachable,
            Some(_) => return Route::Via { mac: multicast_mac(dst) },
            None => return Route::Unreachable,
        }
        let Some(next_hop) = self.next_hop_v6(dst) else { return Route::Unreachable };
        match self.v6.neighbours.lookup(now, next_hop) {
            Lookup::Known(mac) => Route::Via { mac },
            Lookup::Resolving => Route::Resolving,
            Lookup::Failed => Route::Unreachable,
            Lookup::Absent => self.resolve_v6(now, next_hop),
        }
    }

    /// Returns the neighbour that takes packets for the unicast address `dst`. RFC 4861 §6.3.6: of the
    /// routers, it is the first that is not known to be unreachable.
    pub(crate) fn next_hop_v6(&self, dst: Addr) -> Option<Addr> {
        if self.v6.own.is_empty() {
            return None;
        }
        if self.is_on_link_v6(dst) {
            return Some(dst);
        }
        if let Some(target) = self.v6.redirects.get(dst) {
            return Some(target);
        }
        let mut routers = self.v6.routers.iter().map(|router| router.what);
        let first = routers.clone().next();
        routers.find(|router| !self.v6.neighbours.has_failed(*router)).or(first)
    }

    /// Returns what `addr` means as a destination. Groups also exist on the inside link.
    pub(crate) fn cast_v6(&self, addr: Addr) -> Option<Cast> {
        cast(addr).filter(|cast| *cast == Cast::Multicast || !self.v6.own.is_empty())
    }

    /// Returns the size in octets of the largest IPv6 packet on the outside link.
    pub(crate) fn mtu_v6(&self) -> u16 {
        self.v6.mtu
    }

    /// Returns the hop limit of packets whose socket asks for no other: that of the router, or the default.
    pub fn hop_limit(&self) -> u8 {
        self.v6.hop_limit
    }

    #[cold]
    fn resolve_v6(&mut self, now: Instant, next_hop: Addr) -> Route {
        if !self.is_neighbour_v6(next_hop) {
            return Route::Unreachable;
        }
        let evicted = self.v6.neighbours.resolve(now, next_hop);
        self.common.count().neighbours_evicted += u64::from(evicted);
        self.ask_v6(next_hop, Mac::BROADCAST);
        self.check_invariants();
        Route::Resolving
    }
}
