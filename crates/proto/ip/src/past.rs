//! What a replica's successor knows of the network: addresses, prefixes and routers with their ends. These
//! are given for a time, and would not be given again at once.

use alloc::vec::Vec;

use atoll_base::{Addr, Instant};

use crate::config::V4Address;
use crate::dhcp::Lease;
use crate::v6::OwnAddress;

/// The state of the network that a predecessor knew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// The IPv4 address, if a DHCP server has given it.
    pub v4: Option<V4Address>,
    /// The lease, if the predecessor itself had asked for it.
    pub lease: Option<Lease>,
    /// The IPv6 addresses.
    pub addresses: Vec<OwnAddress>,
    /// The prefixes that are reached without a router, their lengths in bits, and until when.
    pub on_link: Vec<(Addr, u8, Instant)>,
    /// The IPv6 routers, and until when they serve as such.
    pub routers: Vec<(Addr, Instant)>,
}
