//! What that a replica has learned about its network does its successor know? Addresses, prefixes and routers
//! with their ends: all that others have given for a time, and would not give again at once.

use alloc::vec::Vec;

use atoll_base::{Addr, Instant};

use crate::dhcp::Lease;
use crate::ip::Ip;
use crate::v4::V4Address;
use crate::v6::OwnAddress;

/// What a predecessor knew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// The IPv4 address, where a DHCP server has given it.
    pub v4: Option<V4Address>,
    /// The lease, if it was the predecessor that asked for it.
    pub lease: Option<Lease>,
    /// IPv6 addresses.
    pub addresses: Vec<OwnAddress>,
    /// Prefixes that are reached without a router, their lengths, and until when.
    pub on_link: Vec<(Addr, u8, Instant)>,
    /// IPv6 routers, and until when they are.
    pub routers: Vec<(Addr, Instant)>,
}

impl Ip {
    /// Goes on with what a predecessor knew, as far as it holds at `now` and nothing speaks against it.
    /// Before [`Ip::announce`], which then asks for no address that is there, and tries none out that was
    /// tried out.
    pub fn resume(&mut self, now: Instant, past: &Past) {
        match (&past.lease, past.v4) {
            (Some(lease), _) => self.resume_dhcp(now, lease),
            (None, Some(address)) if address.valid_until > now => self.handle_v4_address(Some(address)),
            _ => {}
        }
        self.resume_v6(now, past);
    }
}
