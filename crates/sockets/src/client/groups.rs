//! The multicast settings of a datagram socket: ip(7), ipv6(7), and RFC 3678 §4.1 for groups that any source
//! may send to.
//!
//! The client knows the groups of a socket, so that a program gets its answer at once; replicas get the
//! groups together with the socket.

use alloc::vec::Vec;

use atoll_base::Addr;
use serde::{Deserialize, Serialize};

use super::written;

/// The interface number of the loopback, in every network namespace.
pub const LOOPBACK_INDEX: u32 = 1;

/// The multicast settings of a socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Multicast {
    /// The groups of both families that the socket has joined, and whether each was joined on the loopback.
    #[serde(with = "written::groups")]
    pub joined: Vec<(Addr, bool)>,
    /// The value of `IP_MULTICAST_ALL`.
    pub all: bool,
    /// The value of `IP_MULTICAST_LOOP`.
    pub is_looped: bool,
    /// The value of `IP_MULTICAST_TTL`.
    pub ttl: u8,
    /// The value of `IP_MULTICAST_IF`: an address, 0 for none.
    pub interface: u32,
    /// The multicast settings for IPv6.
    pub v6: MulticastV6,
}

impl Multicast {
    /// Returns the values of a new socket, which are those that ip(7) names. `v6` says that it is one of
    /// AF_INET6, which gets datagrams for the groups of IPv4 alone that it has joined itself (inet6_create).
    pub fn new(v6: bool) -> Multicast {
        Multicast {
            joined: Vec::new(),
            all: !v6,
            is_looped: true,
            ttl: 1,
            interface: 0,
            v6: MulticastV6::default(),
        }
    }
}

/// The multicast settings of a socket for IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MulticastV6 {
    /// The value of `IPV6_MULTICAST_ALL`.
    pub all: bool,
    /// The value of `IPV6_MULTICAST_LOOP`.
    pub is_looped: bool,
    /// The value of `IPV6_MULTICAST_HOPS`.
    pub hops: u8,
    /// The value of `IPV6_MULTICAST_IF`: the number of an interface, 0 for none.
    pub interface: u32,
}

impl MulticastV6 {
    /// Returns whether datagrams to groups leave over the loopback.
    pub const fn is_inside(&self) -> bool {
        self.interface == LOOPBACK_INDEX
    }
}

/// The values of a new socket are those that ipv6(7) names.
impl Default for MulticastV6 {
    fn default() -> MulticastV6 {
        MulticastV6 { all: true, is_looped: true, hops: 1, interface: 0 }
    }
}
