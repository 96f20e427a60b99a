//! The stack's current IPv4 address, and what comes with it.
//!
//! The first replica of a stack gets the address from its configuration or by DHCP. The others have the same
//! configuration, or get the address from the first.

use super::arp::Arp;
use crate::addresses::Addresses;
use crate::config::V4Address;

/// The stack's place in its IPv4 network.
#[derive(Debug)]
pub(crate) struct Network {
    /// The meanings of addresses as seen from `address`.
    addresses: Addresses,
    address: Option<V4Address>,
    generation: u64,
    /// A number that grows whenever the address or the state of the DHCP client changes.
    news: u64,
}

impl Network {
    pub(super) fn new(address: Option<V4Address>) -> Network {
        Network { addresses: classes(address.as_ref()), address, generation: 0, news: 0 }
    }

    #[inline]
    pub(crate) const fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    pub(crate) const fn address(&self) -> Option<&V4Address> {
        self.address.as_ref()
    }

    /// Returns a number that grows whenever the address has changed.
    pub(crate) const fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns a number that grows whenever the address or the state of the DHCP client has changed.
    pub(super) const fn news(&self) -> u64 {
        self.news
    }

    /// Notes that the state of the DHCP client has changed.
    pub(super) const fn note(&mut self) {
        self.news += 1;
    }

    /// Returns the largest packet, in octets, on a link that carries packets of `link` octets.
    #[inline]
    pub(crate) fn mtu(&self, link: u16) -> u16 {
        self.address.map_or(link, |address| address.mtu.min(link))
    }

    /// Changes the address to another one, or to none, and forgets the neighbours of the old network.
    /// Connections stay; as on Linux, those of an address that is gone cannot reach their peers.
    pub(super) fn set(&mut self, address: Option<V4Address>, arp: &mut Arp) {
        let stays = match (&self.address, &address) {
            (Some(old), Some(new)) => old.is_same_network(new),
            (None, None) => return,
            _ => false,
        };
        self.address = address;
        self.generation += 1;
        self.note();
        if !stays {
            self.addresses = classes(address.as_ref());
            arp.forget(address.and_then(|address| address.gateway));
        }
    }

    pub(super) fn check_invariants(&self) {
        assert_eq!(self.addresses.own(), self.address.map(|address| address.addr));
    }
}

fn classes(address: Option<&V4Address>) -> Addresses {
    address.map_or(Addresses::none(), V4Address::classes)
}
