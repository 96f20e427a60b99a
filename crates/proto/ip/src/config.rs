//! The configuration of one replica's network.

use atoll_base::{Addr, Instant};
use atoll_wire::{Mac, ipv6};

use crate::addresses::Addresses;
use crate::link::Cast;
use crate::reassembly::Limits;

/// The network of a stack, as every replica of it sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The hardware address of the stack, which its replicas share.
    pub mac: Mac,
    /// The IPv4 address of the stack, which its replicas share. If `dhcp` is set, `addr`, `prefix_len` and
    /// `gateway` have no meaning.
    pub addr: u32,
    /// The length of the on-link prefix in bits, 0 to 32. With 31 and 32 there is no directed broadcast (RFC
    /// 3021).
    pub prefix_len: u8,
    /// The next hop of everything that is not on the link; if `None`, nothing else can be reached.
    pub gateway: Option<u32>,
    /// Whether the address comes by DHCP; there is none at first then. The first replica asks a server and
    /// informs the others.
    pub dhcp: bool,
    /// The largest IPv4 packet that the link carries, in octets; at least [`Config::MTU_MIN`].
    pub mtu: u16,
    /// The most neighbours that are kept, 1 to [`Config::NEIGHBOURS_LIMIT`]. Beyond it, roughly the least
    /// recently used one is evicted.
    pub neighbours_max: usize,
    /// Whether the stack has an internal link, over which it reaches its own address and 127.0.0.0/8.
    pub loopback: bool,
    /// The limits on packets that arrive in fragments.
    pub reassembly: Limits,
    /// The index of this sender and the number of all that send from the stack's addresses. They divide
    /// identifications among them, and the first one speaks for all (IGMP, DHCP), unless `apart` is set.
    pub sibling: (u8, u8),
    /// The configuration of IPv6 on the link; if `None`, IPv6 is spoken inside the stack only, as `::1`.
    pub v6: Option<V6Config>,
    /// Whether this is the part of IP that stays with a transport server, while the other part runs in an IP
    /// server ([`Told`](crate::Told)).
    pub apart: bool,
    /// The most frames that wait for [`Ip::poll_frame`](crate::Ip::poll_frame); further ones are dropped and
    /// counted.
    pub frames_max: usize,
}

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

/// The configuration of IPv6 on the link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct V6Config {
    /// The own address and the length of its on-link prefix in bits; there is a link-local address in
    /// addition.
    pub address: Option<(Addr, u8)>,
    /// The next hop of everything that is not on the link; it is tried before the routers that advertise
    /// themselves.
    pub gateway: Option<Addr>,
    /// Whether router advertisements are accepted (RFC 4862).
    pub autoconf: bool,
}

/// Why a [`Config`] is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum BadConfig {
    /// The hardware address is a group, or zero.
    #[error("the hardware address is not that of one station")]
    Mac,
    /// The address is not one that a host can have on this prefix.
    #[error("the address cannot belong to a host on this prefix")]
    Addr,
    /// The prefix has more than 32 bits.
    #[error("the prefix is longer than an address")]
    PrefixLen,
    /// The gateway is our own address, or not one that a host can have.
    #[error("the gateway is not another host")]
    Gateway,
    /// The MTU is below [`Config::MTU_MIN`].
    #[error("the MTU is below 576, or with IPv6 below 1280")]
    Mtu,
    /// `neighbours_max` or `frames_max` is out of range.
    #[error("a limit is out of range")]
    Limit,
}

impl Config {
    /// The smallest MTU that is accepted, in octets (RFC 791 §3.1: every host accepts 576 octets; RFC 1122
    /// §3.3.3).
    pub const MTU_MIN: u16 = 576;
    /// The largest value of `neighbours_max`.
    pub const NEIGHBOURS_LIMIT: usize = 65_535;

    /// Creates a network with the usual limits: MTU 1500, 1024 neighbours, an internal link, no gateway.
    pub const fn new(mac: Mac, addr: u32, prefix_len: u8) -> Config {
        Config {
            mac,
            addr,
            prefix_len,
            gateway: None,
            dhcp: false,
            mtu: 1500,
            neighbours_max: 1024,
            loopback: true,
            reassembly: Limits::USUAL,
            sibling: (0, 1),
            v6: None,
            apart: false,
            frames_max: 256,
        }
    }

    /// Returns the address that is configured statically; `None` if it comes by DHCP.
    pub(crate) fn address(&self) -> Option<V4Address> {
        let address =
            V4Address { gateway: self.gateway, mtu: self.mtu, ..V4Address::new(self.addr, self.prefix_len) };
        (!self.dhcp).then_some(address)
    }

    /// Checks that the values are valid and agree with each other; returns the first fault.
    pub fn check(&self) -> Result<(), BadConfig> {
        if !self.mac.is_station() {
            return Err(BadConfig::Mac);
        }
        if self.mtu < Config::MTU_MIN {
            return Err(BadConfig::Mtu);
        }
        self.address().map_or(Ok(()), |address| address.check())?;
        if let Some(v6) = &self.v6 {
            v6.check(self.mtu)?;
        }
        if !(1..=Config::NEIGHBOURS_LIMIT).contains(&self.neighbours_max) || self.frames_max == 0 {
            return Err(BadConfig::Limit);
        }
        Ok(())
    }
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
        let addresses = self.classes();
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

    /// Returns what addresses mean as seen from this one.
    pub(crate) fn classes(&self) -> Addresses {
        Addresses::new(self.addr, self.prefix_len, self.gateway)
    }

    /// Returns whether both addresses lead to the same routes.
    pub(crate) fn is_same_network(&self, other: &V4Address) -> bool {
        (self.addr, self.prefix_len, self.gateway) == (other.addr, other.prefix_len, other.gateway)
    }
}

impl V6Config {
    /// Checks that the values are valid and agree with each other; returns the first fault.
    fn check(&self, mtu: u16) -> Result<(), BadConfig> {
        let is_host = |addr: Addr| {
            !(addr.is_v4() || addr.is_unspecified() || addr.is_loopback() || addr.is_v6_multicast())
        };
        if self.address.is_some_and(|(addr, _)| !is_host(addr) || addr.is_link_local()) {
            return Err(BadConfig::Addr);
        }
        if self.address.is_some_and(|(_, len)| len > 128) {
            return Err(BadConfig::PrefixLen);
        }
        if self
            .gateway
            .is_some_and(|gateway| !is_host(gateway) || self.address.is_some_and(|(own, _)| own == gateway))
        {
            return Err(BadConfig::Gateway);
        }
        if mtu < ipv6::MTU_MIN {
            return Err(BadConfig::Mtu);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

    #[test]
    fn a_usual_network_is_right() {
        let config = Config { gateway: Some(0x0a00_00fe), ..Config::new(MAC, 0x0a00_0001, 24) };
        assert_eq!(config.check(), Ok(()));
        assert_eq!(Config { dhcp: true, ..Config::new(MAC, 0, 0) }.check(), Ok(()));
    }

    #[test]
    fn each_mistake_is_named() {
        let good = Config::new(MAC, 0x0a00_0001, 24);
        for (config, error) in [
            (Config { mac: Mac::BROADCAST, ..good.clone() }, BadConfig::Mac),
            (Config { addr: 0x0a00_00ff, ..good.clone() }, BadConfig::Addr),
            (Config { addr: 0x0a00_0000, ..good.clone() }, BadConfig::Addr),
            (Config { addr: 0x7f00_0001, ..good.clone() }, BadConfig::Addr),
            (Config { addr: 0xe000_0001, ..good.clone() }, BadConfig::Addr),
            (Config { prefix_len: 33, ..good.clone() }, BadConfig::PrefixLen),
            (Config { gateway: Some(0x0a00_0001), ..good.clone() }, BadConfig::Gateway),
            (Config { gateway: Some(0xffff_ffff), ..good.clone() }, BadConfig::Gateway),
            (Config { mtu: 575, ..good.clone() }, BadConfig::Mtu),
            (Config { neighbours_max: 0, ..good.clone() }, BadConfig::Limit),
            (Config { neighbours_max: 65_536, ..good.clone() }, BadConfig::Limit),
        ] {
            assert_eq!(config.check(), Err(error));
        }
    }
}
