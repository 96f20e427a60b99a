//! The flow group of a packet: the keyed hash of its 4-tuple (N5, S4, decision 9).
//!
//! The hash is written twice, here and in `bpf/steer.c`, and both must agree bit for bit. It is always
//! computed from the point of view of an *incoming* packet: remote is the packet's source.

use core::fmt;

use crate::addr::Addr;

/// Number of flow groups: the unit of steering and of moving (S4 uses 12 bits as well).
pub const FLOW_GROUPS: usize = 4096;

/// A bucket of flow hashes, `0..FLOW_GROUPS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowGroup(pub u16);

/// An address and a port.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// Address of either family.
    pub addr: Addr,
    /// Port in host byte order.
    pub port: u16,
}

/// A connection as its owner sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FourTuple {
    /// The local address and port.
    pub local: Endpoint,
    /// The remote address and port.
    pub remote: Endpoint,
}

/// Secret of the steering hash, chosen at random for every stack, so that outsiders cannot aim at one replica
/// (N5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowKey {
    /// First half of the key.
    pub k0: u32,
    /// Second half of the key.
    pub k1: u32,
}

impl FlowKey {
    /// Returns the flow group of an incoming packet of `tuple`. For packets without ports both ports are 0.
    /// An IPv4 address counts as one word, an IPv6 address as four.
    #[inline]
    pub const fn group(self, tuple: &FourTuple) -> FlowGroup {
        let ports = ((tuple.remote.port as u32) << 16) | tuple.local.port as u32;
        let ((remote, count), (local, _)) = (tuple.remote.addr.words(), tuple.local.addr.words());
        let mut h = self.k0;
        let mut i = 0;
        while i < count {
            h = (h ^ remote[i]).wrapping_mul(0x85eb_ca6b);
            h ^= h >> 15;
            i += 1;
        }
        i = 0;
        while i < count {
            h = (h ^ local[i]).wrapping_mul(0xc2b2_ae35);
            h ^= h >> 13;
            i += 1;
        }
        h = (h ^ ports ^ self.k1).wrapping_mul(0x9e37_79b1);
        h ^= h >> 16;
        h = h.wrapping_mul(0x85eb_ca6b);
        h ^= h >> 13;
        FlowGroup((h & (FLOW_GROUPS as u32 - 1)) as u16)
    }
}

impl Endpoint {
    /// Creates an endpoint from an IPv4 address (host byte order: 127.0.0.1 is `0x7f00_0001`) and a port.
    pub const fn new(addr: u32, port: u16) -> Endpoint {
        Endpoint { addr: Addr::v4(addr), port }
    }

    /// Creates an endpoint from an address of either family and a port.
    pub const fn at(addr: Addr, port: u16) -> Endpoint {
        Endpoint { addr, port }
    }

    /// Returns whether the address is `::1` or in 127.0.0.0/8.
    pub fn is_loopback(self) -> bool {
        self.addr.is_loopback()
    }
}

impl FourTuple {
    /// Returns the same connection as its other end sees it.
    #[must_use]
    pub const fn reversed(self) -> FourTuple {
        FourTuple { local: self.remote, remote: self.local }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.addr.is_v4() {
            write!(f, "{}:{}", self.addr, self.port)
        } else {
            write!(f, "[{}]:{}", self.addr, self.port)
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_spread_evenly_over_source_ports() {
        let key = FlowKey { k0: 0x1234_5678, k1: 0x9abc_def0 };
        let local = Endpoint::new(0xc612_0001, 80);
        let mut per_quarter = [0u32; 4];
        for port in 1024..=65535 {
            let remote = Endpoint::new(0xc612_0002, port);
            let group = key.group(&FourTuple { local, remote });
            per_quarter[usize::from(group.0) % 4] += 1;
        }
        let expected = (65536 - 1024) / 4;
        for n in per_quarter {
            assert!(n.abs_diff(expected) < expected / 20, "{per_quarter:?}");
        }
    }

    #[test]
    fn the_key_decides_the_group() {
        let tuple = FourTuple { local: Endpoint::new(1, 2), remote: Endpoint::new(3, 4) };
        let a = FlowKey { k0: 1, k1: 2 }.group(&tuple);
        let b = FlowKey { k0: 3, k1: 4 }.group(&tuple);
        assert_ne!(a, b);
    }

    #[test]
    fn the_hash_is_the_one_in_steer_c() {
        // The packet fixtures of bpf/ have these vectors, too.
        let key = FlowKey { k0: 0xdead_beef, k1: 0x0bad_cafe };
        let tuple =
            FourTuple { local: Endpoint::new(0xc612_0001, 80), remote: Endpoint::new(0xc612_0002, 40000) };
        assert_eq!(key.group(&tuple), FlowGroup(1306));
    }

    #[test]
    fn every_word_of_an_ipv6_address_counts() {
        let key = FlowKey { k0: 0xdead_beef, k1: 0x0bad_cafe };
        let group = |remote: [u8; 16], local: [u8; 16]| {
            let at = |octets| Endpoint::at(Addr::from_octets(octets), 80);
            key.group(&FourTuple { local: at(local), remote: at(remote) })
        };
        let base = group([0x20; 16], [0x21; 16]);
        let differ = (0..16).filter(|at| {
            let (mut remote, mut local) = ([0x20; 16], [0x21; 16]);
            remote[*at] ^= 1;
            local[*at] ^= 1;
            group(remote, [0x21; 16]) != base && group([0x20; 16], local) != base
        });
        assert_eq!(differ.count(), 16);
    }
}
