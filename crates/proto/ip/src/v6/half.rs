//! What the part of IP in a transport server takes from its IP server about IPv6; see [`crate::half`].

use alloc::vec::Vec;

use atoll_base::{Addr, Instant};
use atoll_wire::ipv6;

use super::addresses::cast;
use super::{Lease, ON_LINK_MAX, OWN_MAX, ROUTERS_MAX};
use crate::half::Told;
use crate::ip::Ip;
use crate::link::Cast;

impl Ip {
    /// Notes that routes may have changed.
    pub(crate) fn change_routes(&mut self) {
        self.v6.generation += 1;
    }

    /// Applies what the IP server has told about IPv6, as far as a host can have it.
    pub(crate) fn take_v6(&mut self, told: &Told) {
        if self.v6.config.is_none() {
            return;
        }
        let is_host = |addr: Addr| cast(addr) == Some(Cast::Unicast);
        let forever = |what| Lease { what, until: Instant::FAR_FUTURE };
        let own =
            told.addresses.iter().filter(|own| is_host(own.addr) && own.prefix_len <= 128).take(OWN_MAX);
        let own: Vec<_> = own.copied().collect();
        let on_link = told.on_link.iter().filter(|(_, len)| *len <= 128).take(ON_LINK_MAX);
        let on_link: Vec<_> = on_link.copied().map(forever).collect();
        let routers = told.routers.iter().copied().filter(|addr| is_host(*addr)).take(ROUTERS_MAX);
        let routers: Vec<_> = routers.map(|what| Lease { what, until: Instant::FAR_FUTURE }).collect();
        if (&own, &on_link, &routers) != (&self.v6.own, &self.v6.on_link, &self.v6.routers) {
            (self.v6.own, self.v6.on_link, self.v6.routers) = (own, on_link, routers);
            self.change_routes();
        }
        self.v6.mtu = told.mtu_v6.clamp(ipv6::MTU_MIN, self.common.config().mtu.max(ipv6::MTU_MIN));
        self.v6.hop_limit = told.hop_limit.max(1);
    }
}
