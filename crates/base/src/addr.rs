//! The address of a host, in one type for both families. IPv4 addresses lie in IPv6's space as "IPv4-mapped"
//! ones (RFC 4291 §2.5.5.2), which is also how the socket API shows them to programs that speak IPv6 only
//! (RFC 3493 §3.7).

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};

/// An IPv6 address, or an IPv4 address as `::ffff:a.b.c.d`.
///
/// The unspecified address exists twice: [`Addr::ANY`] of IPv6 (which as a listener's address means all
/// addresses of both families, unless the listener says otherwise), and [`Addr::V4_ANY`].
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Addr([u8; 16]);

impl Addr {
    /// The unspecified address of IPv6, `::`.
    pub const ANY: Addr = Addr([0; 16]);
    /// The loopback address of IPv6, `::1`.
    pub const LOOPBACK: Addr = Addr([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    /// The unspecified address of IPv4, 0.0.0.0.
    pub const V4_ANY: Addr = Addr::v4(0);
    /// The loopback address of IPv4, 127.0.0.1.
    pub const V4_LOOPBACK: Addr = Addr::v4(0x7f00_0001);

    /// Creates an address from an IPv4 address in host byte order: 127.0.0.1 is `0x7f00_0001`.
    #[inline]
    pub const fn v4(addr: u32) -> Addr {
        let [a, b, c, d] = addr.to_be_bytes();
        Addr([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// Creates an address from its octets in network byte order.
    #[inline]
    pub const fn from_octets(octets: [u8; 16]) -> Addr {
        Addr(octets)
    }

    /// Returns the octets in network byte order.
    #[inline]
    pub const fn octets(self) -> [u8; 16] {
        self.0
    }

    /// Returns the IPv4 address in host byte order; `None` for an IPv6 address.
    #[inline]
    pub const fn to_v4(self) -> Option<u32> {
        match self.0 {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some(u32::from_be_bytes([a, b, c, d])),
            _ => None,
        }
    }

    /// Returns whether the address is an IPv4 address.
    #[inline]
    pub const fn is_v4(self) -> bool {
        self.to_v4().is_some()
    }

    /// Returns whether the address is the unspecified one of either family.
    #[inline]
    pub fn is_unspecified(self) -> bool {
        self == Addr::ANY || self == Addr::V4_ANY
    }

    /// Returns whether the address is `::1` or in 127.0.0.0/8.
    #[inline]
    pub fn is_loopback(self) -> bool {
        match self.to_v4() {
            Some(v4) => v4 >> 24 == 127,
            None => self == Addr::LOOPBACK,
        }
    }

    /// Returns whether the address is in `fe80::/10`, which is valid on one link only.
    #[inline]
    pub const fn is_link_local(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }

    /// Returns whether packets to the address stay on one link: a link-local address, or a group whose scope
    /// is no wider (RFC 4291 §2.7).
    #[inline]
    pub const fn is_link_scoped(self) -> bool {
        self.is_link_local() || (self.is_v6_multicast() && self.0[1] & 0xf <= 2)
    }

    /// Returns whether the address is a group that does not leave its machine (RFC 4291 §2.7; the reserved
    /// scope 0 is treated so).
    #[inline]
    pub const fn is_interface_local(self) -> bool {
        self.is_v6_multicast() && self.0[1] & 0xf <= 1
    }

    /// Returns whether the address is a group of IPv6, `ff00::/8`.
    #[inline]
    pub const fn is_v6_multicast(self) -> bool {
        self.0[0] == 0xff
    }

    /// Returns the loopback address of the same family: `127.0.0.1` or `::1`.
    pub const fn loopback_of_family(self) -> Addr {
        if self.is_v4() { Addr::V4_LOOPBACK } else { Addr::LOOPBACK }
    }

    /// Returns the words of the address in host byte order, four of IPv6 or one of IPv4, and their number:
    /// the input of the steering hash.
    #[inline]
    pub(crate) const fn words(self) -> ([u32; 4], usize) {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = self.0;
        let last = u32::from_be_bytes([m, n, o, p]);
        if self.is_v4() {
            return ([last, 0, 0, 0], 1);
        }
        let first = [u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])];
        ([first[0], first[1], u32::from_be_bytes([i, j, k, l]), last], 4)
    }

    /// Returns the octets as two double words in native byte order, for hashing.
    #[inline]
    pub const fn to_u64s(self) -> [u64; 2] {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = self.0;
        [u64::from_ne_bytes([a, b, c, d, e, f, g, h]), u64::from_ne_bytes([i, j, k, l, m, n, o, p])]
    }
}

impl From<u32> for Addr {
    /// Creates an address from an IPv4 address in host byte order.
    #[inline]
    fn from(addr: u32) -> Addr {
        Addr::v4(addr)
    }
}

impl From<Ipv4Addr> for Addr {
    fn from(addr: Ipv4Addr) -> Addr {
        Addr::v4(addr.to_bits())
    }
}

impl From<Ipv6Addr> for Addr {
    fn from(addr: Ipv6Addr) -> Addr {
        Addr(addr.octets())
    }
}

impl fmt::Display for Addr {
    /// Writes IPv4 addresses in dotted form, and IPv6 addresses as RFC 5952 recommends.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_v4() {
            Some(v4) => fmt::Display::fmt(&Ipv4Addr::from_bits(v4), f),
            None => fmt::Display::fmt(&Ipv6Addr::from(self.0), f),
        }
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn both_families_live_in_one_space() {
        assert_eq!(Addr::v4(0xc612_0001).to_v4(), Some(0xc612_0001));
        assert_eq!(Addr::LOOPBACK.to_v4(), None);
        assert!(Addr::V4_ANY.is_unspecified() && Addr::ANY.is_unspecified() && Addr::V4_ANY != Addr::ANY);
        assert!(
            Addr::v4(0x7f01_0203).is_loopback() && Addr::LOOPBACK.is_loopback() && !Addr::ANY.is_loopback()
        );
        let link_local: Addr = "fe80::1".parse::<Ipv6Addr>().unwrap().into();
        assert!(link_local.is_link_local() && !Addr::v4(0xfe80_0000).is_link_local());
        let scoped = |text: &str| Addr::from(text.parse::<Ipv6Addr>().unwrap()).is_link_scoped();
        assert!(scoped("fe80::1") && scoped("ff02::1") && !scoped("ff05::2") && !scoped("2001:db8::1"));
    }

    #[test]
    fn they_are_written_as_everybody_writes_them() {
        assert_eq!(Addr::v4(0x7f00_0001).to_string(), "127.0.0.1");
        assert_eq!(Addr::ANY.to_string(), "::");
        let addr: Addr = "2001:db8:0:0:1:0:0:1".parse::<Ipv6Addr>().unwrap().into();
        assert_eq!(addr.to_string(), "2001:db8::1:0:0:1");
    }
}
