//! The configuration of one replica's network.

use atoll_wire::Mac;

use crate::reassembly::Limits;
use crate::v4::V4Address;
use crate::v6::V6Config;

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
