//! What does a datagram socket want of multicast groups? ip(7), ipv6(7), RFC 3678 §4.1 for groups that any
//! source may send to.
//!
//! The client knows what a socket is in, so that a program is told at once; replicas are told when they have
//! the socket.

use alloc::vec::Vec;

use atoll_base::Addr;

/// Interface number of the loopback, in every network namespace.
pub const LOOPBACK_INDEX: u32 = 1;

/// What a socket wants of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Multicast {
    /// The groups of both families, and whether each was joined on the loopback.
    pub joined: Vec<(Addr, bool)>,
    /// `IP_MULTICAST_ALL`.
    pub all: bool,
    /// `IP_MULTICAST_LOOP`.
    pub is_looped: bool,
    /// `IP_MULTICAST_TTL`.
    pub ttl: u8,
    /// `IP_MULTICAST_IF`: an address, 0 for none.
    pub interface: u32,
    /// What it wants of groups of IPv6.
    pub v6: MulticastV6,
}

/// As ip(7) says of a new socket.
impl Default for Multicast {
    fn default() -> Multicast {
        Multicast { joined: Vec::new(), all: true, is_looped: true, ttl: 1, interface: 0, v6: MulticastV6::default() }
    }
}

/// What a socket wants of groups of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastV6 {
    /// `IPV6_MULTICAST_ALL`.
    pub all: bool,
    /// `IPV6_MULTICAST_LOOP`.
    pub is_looped: bool,
    /// `IPV6_MULTICAST_HOPS`.
    pub hops: u8,
    /// `IPV6_MULTICAST_IF`: the number of an interface, 0 for none.
    pub interface: u32,
}

impl MulticastV6 {
    /// Whether datagrams to groups leave over the loopback.
    pub const fn is_inside(&self) -> bool {
        self.interface == LOOPBACK_INDEX
    }
}

/// As ipv6(7) says of a new socket.
impl Default for MulticastV6 {
    fn default() -> MulticastV6 {
        MulticastV6 { all: true, is_looped: true, hops: 1, interface: 0 }
    }
}
