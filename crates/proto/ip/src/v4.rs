//! The stack's current IPv4 address, and what comes with it.
//!
//! The first replica of a stack gets the address from its configuration or by DHCP. The others have the same
//! configuration, or are told the address.

use atoll_base::Instant;

use crate::addresses::{Addresses, Cast};
use crate::config::{BadConfig, Config};
use crate::ip::Ip;

/// The stack's address on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct V4Address {
    /// The address.
    pub addr: u32,
    /// The length of the on-link prefix in bits, 0 to 32.
    pub prefix_len: u8,
    /// The next hop of everything that is not on the link; if `None`, nothing else can be reached.
    pub gateway: Option<u32>,
    /// The largest IPv4 packet in this network, in octets; the link may carry less.
    pub mtu: u16,
    /// When the address is lost unless it is renewed; [`Instant::FAR_FUTURE`] means never.
    pub valid_until: Instant,
}

/// The IPv4 side of the network.
#[derive(Debug)]
pub(crate) struct V4 {
    address: Option<V4Address>,
    generation: u64,
    /// A number that grows whenever the address or the state of the DHCP client changes.
    news: u64,
}

impl V4Address {
    /// Creates an address that is valid for ever, without a gateway.
    pub const fn new(addr: u32, prefix_len: u8) -> V4Address {
        V4Address { addr, prefix_len, gateway: None, mtu: u16::MAX, valid_until: Instant::FAR_FUTURE }
    }

    /// Checks that a host can have this address and its gateway; returns the first fault.
    pub fn check(&self) -> Result<(), BadConfig> {
        if self.prefix_len > 32 {
            return Err(BadConfig::PrefixLen);
        }
        let addresses = Addresses::new(Some(self));
        if !addresses.is_host(self.addr) {
            return Err(BadConfig::Addr);
        }
        if self
            .gateway
            .is_some_and(|gateway| gateway == self.addr || addresses.cast(gateway) != Some(Cast::Unicast))
        {
            return Err(BadConfig::Gateway);
        }
        if self.mtu < Config::MTU_MIN {
            return Err(BadConfig::Mtu);
        }
        Ok(())
    }

    /// Returns whether both addresses lead to the same routes.
    fn is_same_network(&self, other: &V4Address) -> bool {
        (self.addr, self.prefix_len, self.gateway) == (other.addr, other.prefix_len, other.gateway)
    }
}

impl V4 {
    pub(crate) const fn new(address: Option<V4Address>) -> V4 {
        V4 { address, generation: 0, news: 0 }
    }

    pub(crate) const fn address(&self) -> Option<&V4Address> {
        self.address.as_ref()
    }

    /// Returns a number that grows whenever the address or the state of the DHCP client has changed.
    pub(crate) const fn news(&self) -> u64 {
        self.news
    }

    /// Notes that the state of the DHCP client has changed.
    pub(crate) fn note(&mut self) {
        self.news += 1;
    }

    /// Returns the largest packet, in octets, on a link that carries packets of `link` octets.
    #[inline]
    pub(crate) fn mtu(&self, link: u16) -> u16 {
        self.address.map_or(link, |address| address.mtu.min(link))
    }
}

impl Ip {
    /// Returns the stack's IPv4 address, if it has one.
    pub fn v4_address(&self) -> Option<&V4Address> {
        self.v4.address()
    }

    /// Returns a number that grows whenever [`Ip::v4_address`] has changed. The replica that asks for the
    /// address then informs the others.
    pub fn v4_generation(&self) -> u64 {
        self.v4.generation
    }

    /// Applies the address that the replica with the DHCP client has sent, after checking it. Does nothing if
    /// the address does not come by DHCP, or this replica runs the client itself.
    pub fn handle_v4_address(&mut self, address: Option<V4Address>) {
        let is_told = self.config.dhcp && self.dhcp.is_none();
        if is_told && address.is_none_or(|address| address.check().is_ok()) {
            self.set_v4_address(address);
            self.check_invariants();
        }
    }

    /// Changes the address to another one, or to none, and forgets the neighbours of the old network.
    /// Connections stay; as on Linux, those of an address that is gone cannot reach their peers.
    pub(crate) fn set_v4_address(&mut self, address: Option<V4Address>) {
        let stays = match (self.v4.address(), &address) {
            (Some(old), Some(new)) => old.is_same_network(new),
            (None, None) => return,
            _ => false,
        };
        self.v4.address = address;
        self.v4.generation += 1;
        self.v4.note();
        if !stays {
            self.addresses = Addresses::new(address.as_ref());
            self.neighbours.clear(address.and_then(|address| address.gateway));
            self.announcements.due = None;
        }
    }
}
