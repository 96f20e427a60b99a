//! Classifies IPv4 addresses as seen from the stack's network (RFC 1122 §3.2.1.3, RFC 6890).

use atoll_wire::Mac;

use crate::link::{Cast, Link};

/// The stack's own IPv4 address, prefix and gateway. The value is never changed; a new one replaces it when
/// the address changes.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    /// The own address; [`NO_ADDRESS`], which equals the address of no packet, if there is none. So `is_own`
    /// is one comparison.
    own: u64,
    /// The mask of the prefix; its 33rd bit is set, so that nothing is on the link if there is no address.
    mask: u64,
    /// The directed broadcast address; 255.255.255.255 where the prefix has none.
    broadcast: u32,
    gateway: Option<u32>,
}

impl Addresses {
    /// Creates the classification without an address: it knows only loopback addresses, 255.255.255.255 and
    /// groups.
    pub(crate) const fn none() -> Addresses {
        Addresses { own: NO_ADDRESS, mask: u64::MAX, broadcast: u32::MAX, gateway: None }
    }

    /// Creates the classification for the address `addr` in a prefix of `prefix_len` bits.
    pub(crate) fn new(addr: u32, prefix_len: u8, gateway: Option<u32>) -> Addresses {
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix_len.min(32))).unwrap_or(0);
        // RFC 3021: a prefix of 31 bits has two hosts and no broadcast.
        let broadcast = if prefix_len < 31 { addr | !mask } else { u32::MAX };
        Addresses { own: addr.into(), mask: NO_ADDRESS | u64::from(mask), broadcast, gateway }
    }

    /// Returns the own address, if there is one.
    pub(crate) const fn own(&self) -> Option<u32> {
        if self.own == NO_ADDRESS { None } else { Some(self.own as u32) }
    }

    /// Returns whether `addr` is the own address.
    #[inline]
    pub(crate) const fn is_own(&self, addr: u32) -> bool {
        addr as u64 == self.own
    }

    /// Returns what `addr` means as a destination; `None` for 0.0.0.0/8, 127.0.0.0/8 and 240.0.0.0/4 except
    /// 255.255.255.255, which mean nothing.
    pub(crate) const fn cast(&self, addr: u32) -> Option<Cast> {
        if addr == u32::MAX || addr == self.broadcast {
            return Some(Cast::Broadcast);
        }
        match addr >> 24 {
            0 | 127 | 240..=255 => None,
            224..=239 => Some(Cast::Multicast),
            _ => Some(Cast::Unicast),
        }
    }

    /// Returns whether one host on our link could have `addr`.
    pub(crate) const fn is_host(&self, addr: u32) -> bool {
        let network = addr & self.mask as u32;
        let is_network = network == addr && self.has_broadcast();
        self.is_on_link(addr) && !is_network && matches!(self.cast(addr), Some(Cast::Unicast))
    }

    /// Returns whether `addr` is reached without a router.
    pub(crate) const fn is_on_link(&self, addr: u32) -> bool {
        (addr as u64 ^ self.own) & self.mask == 0
    }

    /// Returns whether a packet that arrives over `link` may have come from `src`. Every other source is a
    /// martian (RFC 1812 §5.3.7): groups, broadcasts, 0/8 and 240/4 on both links; our own address and 127/8
    /// from outside; the addresses of others from inside.
    #[inline]
    pub(crate) const fn is_source(&self, link: Link, src: u32) -> bool {
        match link {
            Link::Outside => !self.is_own(src) && matches!(self.cast(src), Some(Cast::Unicast)),
            Link::Inside => self.is_ours(Link::Inside, src),
        }
    }

    /// Returns whether `addr` is one of the stack's addresses on `link`. Loopback addresses exist on the
    /// inside link only (RFC 1122 §3.2.1.3 (g)).
    #[inline]
    pub(crate) const fn is_ours(&self, link: Link, addr: u32) -> bool {
        self.is_own(addr) || (matches!(link, Link::Inside) && is_loopback(addr))
    }

    /// Returns whether `addr` could be a neighbour: a host on the link, or the gateway wherever it is.
    pub(crate) fn is_neighbour(&self, addr: u32) -> bool {
        !self.is_own(addr) && (self.is_host(addr) || self.gateway == Some(addr))
    }

    /// Returns the neighbour that takes packets for the unicast address `dst`; `None` if `dst` is not on the
    /// link and there is no gateway.
    pub(crate) const fn next_hop(&self, dst: u32) -> Option<u32> {
        if self.is_on_link(dst) { Some(dst) } else { self.gateway }
    }

    const fn has_broadcast(&self) -> bool {
        self.broadcast != u32::MAX
    }
}

/// A value of [`Addresses::own`] that is larger than any address.
const NO_ADDRESS: u64 = 1 << 32;

/// Returns whether `addr` is in 127.0.0.0/8.
pub(crate) const fn is_loopback(addr: u32) -> bool {
    addr >> 24 == 127
}

/// Returns the hardware address of the multicast group `group` (RFC 1112 §6.4): 01:00:5e and the low 23 bits
/// of the group.
pub(crate) const fn multicast_mac(group: u32) -> Mac {
    let [_, b, c, d] = group.to_be_bytes();
    Mac([0x01, 0x00, 0x5e, b & 0x7f, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(addr: u32, prefix_len: u8) -> Addresses {
        Addresses::new(addr, prefix_len, None)
    }

    #[test]
    fn without_an_address_nothing_is_ours_or_near() {
        let net = Addresses::none();
        for addr in [0, 1, 0x0a00_0001, 0xf000_0000, u32::MAX] {
            assert!(
                !net.is_ours(Link::Outside, addr) && !net.is_on_link(addr) && !net.is_neighbour(addr),
                "{addr:08x}"
            );
        }
        assert!(net.is_ours(Link::Inside, 0x7f00_0001) && !net.is_ours(Link::Outside, 0x7f00_0001));
        assert_eq!((net.own(), net.next_hop(0x0a00_0001)), (None, None));
        assert_eq!(
            [u32::MAX, 0x0a00_00ff].map(|addr| net.cast(addr)),
            [Some(Cast::Broadcast), Some(Cast::Unicast)]
        );
    }

    #[test]
    fn destinations_are_classified() {
        let net = addresses(0x0a00_0001, 24);
        for (addr, cast) in [
            (0x0a00_0002, Some(Cast::Unicast)),
            (0x0808_0808, Some(Cast::Unicast)),
            (0x0a00_00ff, Some(Cast::Broadcast)),
            (0xffff_ffff, Some(Cast::Broadcast)),
            (0xe000_00fb, Some(Cast::Multicast)),
            (0x7f00_0001, None),
            (0x0000_0000, None),
            (0xf000_0001, None),
        ] {
            assert_eq!(net.cast(addr), cast, "{addr:08x}");
        }
    }

    #[test]
    fn a_point_to_point_prefix_has_two_hosts_and_no_broadcast() {
        let net = addresses(0x0a00_0000, 31);
        assert!(net.is_host(0x0a00_0000) && net.is_host(0x0a00_0001));
        assert_eq!(net.cast(0x0a00_0001), Some(Cast::Unicast));
        assert!(!net.is_on_link(0x0a00_0002));
    }

    #[test]
    fn a_prefix_of_no_bits_reaches_everyone() {
        let net = addresses(0x0a00_0001, 0);
        assert_eq!(net.next_hop(0x0808_0808), Some(0x0808_0808));
        assert_eq!(net.cast(0xffff_ffff), Some(Cast::Broadcast));
    }

    #[test]
    fn a_host_prefix_reaches_its_gateway_only() {
        let net = Addresses::new(0x0a00_0001, 32, Some(0x0a00_0002));
        assert_eq!(net.next_hop(0x0a00_0003), Some(0x0a00_0002));
        assert!(net.is_neighbour(0x0a00_0002) && !net.is_neighbour(0x0a00_0003));
    }

    #[test]
    fn martians_are_no_sources() {
        let net = addresses(0x0a00_0001, 24);
        for src in [0, 0x0a00_0001, 0x0a00_00ff, 0x7f00_0001, 0xe000_0001, 0xffff_ffff] {
            assert!(!net.is_source(Link::Outside, src), "{src:08x}");
        }
        assert!(net.is_source(Link::Outside, 0x0808_0808));
        assert!(net.is_source(Link::Inside, 0x7f00_0001) && net.is_source(Link::Inside, 0x0a00_0001));
        assert!(!net.is_source(Link::Inside, 0x0808_0808));
    }
}
