//! Which IPv4 address has the stack now, and what comes with it?
//!
//! The first replica of a stack gets it from its configuration or by DHCP; the others have the same
//! configuration, or are told.

use atoll_base::Instant;

use crate::addresses::{Addresses, Cast};
use crate::config::{BadConfig, Config};
use crate::ip::Ip;

/// The stack's address on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct V4Address {
    /// The address.
    pub addr: u32,
    /// Bits of the on-link prefix, 0 to 32.
    pub prefix_len: u8,
    /// Next hop of everything that is not on the link; `None`: nothing else can be reached.
    pub gateway: Option<u32>,
    /// Largest IPv4 packet in this network; the link may carry less.
    pub mtu: u16,
    /// When it is lost unless it is renewed; [`Instant::FAR_FUTURE`]: never.
    pub valid_until: Instant,
}

/// The IPv4 side of the network.
#[derive(Debug)]
pub(crate) struct V4 {
    address: Option<V4Address>,
    generation: u64,
    /// The same for everything that others may want to know.
    news: u64,
}

impl V4Address {
    /// An address for ever, without a gateway.
    pub const fn new(addr: u32, prefix_len: u8) -> V4Address {
        V4Address { addr, prefix_len, gateway: None, mtu: u16::MAX, valid_until: Instant::FAR_FUTURE }
    }

    /// Whether a host can have it.
    pub fn check(&self) -> Result<(), BadConfig> {
        if self.prefix_len > 32 {
            return Err(BadConfig::PrefixLen);
        }
        let addresses = Addresses::new(Some(self));
        if !addresses.is_host(self.addr) {
            return Err(BadConfig::Addr);
        }
        if self.gateway.is_some_and(|gateway| gateway == self.addr || addresses.cast(gateway) != Some(Cast::Unicast)) {
            return Err(BadConfig::Gateway);
        }
        if self.mtu < Config::MTU_MIN {
            return Err(BadConfig::Mtu);
        }
        Ok(())
    }

    /// Whether routes are the same with both.
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

    /// Grows whenever the address, or what the client is about, has changed.
    pub(crate) const fn news(&self) -> u64 {
        self.news
    }

    /// The client is about something else.
    pub(crate) fn note(&mut self) {
        self.news += 1;
    }

    /// What packets may have on a link that carries `link`.
    #[inline]
    pub(crate) fn mtu(&self, link: u16) -> u16 {
        self.address.map_or(link, |address| address.mtu.min(link))
    }
}

impl Ip {
    /// The stack's IPv4 address, if it has one.
    pub fn v4_address(&self) -> Option<&V4Address> {
        self.v4.address()
    }

    /// Grows whenever [`Ip::v4_address`] has changed. The replica that asks for the address lets the others
    /// know then.
    pub fn v4_generation(&self) -> u64 {
        self.v4.generation
    }

    /// Takes what the replica that asks for the address has told. It is hostile until proven plausible;
    /// ignored where nobody asks.
    pub fn handle_v4_address(&mut self, address: Option<V4Address>) {
        let is_told = self.config.dhcp && self.dhcp.is_none();
        if is_told && address.is_none_or(|address| address.check().is_ok()) {
            self.set_v4_address(address);
            self.check_invariants();
        }
    }

    /// Has another address from now on, or none. Who knows the old one's neighbours forgets them. Connections
    /// stay; as on Linux, those of an address that is gone have no way to their peers.
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
