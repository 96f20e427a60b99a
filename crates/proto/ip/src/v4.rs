//! The stack's current IPv4 address, and what comes with it.
//!
//! The first replica of a stack gets the address from its configuration or by DHCP. The others have the same
//! configuration, or are told the address.

use crate::addresses::Addresses;
use crate::config::V4Address;
use crate::ip::Ip;

/// The IPv4 side of the network.
#[derive(Debug)]
pub(crate) struct V4 {
    address: Option<V4Address>,
    generation: u64,
    /// A number that grows whenever the address or the state of the DHCP client changes.
    news: u64,
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
        let is_told = self.common.config().dhcp && self.dhcp.is_none();
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
            self.addresses = address.as_ref().map_or(Addresses::none(), V4Address::classes);
            self.neighbours.clear(address.and_then(|address| address.gateway));
            self.announcements.due = None;
        }
    }
}
