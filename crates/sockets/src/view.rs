//! What a program sees of the network when it asks for interfaces, addresses and routes: those of the stack,
//! in the forms in which Linux shows its own (netdevice(7), rtnetlink(7), proc(5)).
//!
//! ```text
//!   the stack's page, replica 0's page --> View --> request::answer     ioctl(2)
//!                                               --> netlink::answer     AF_NETLINK
//!                                               --> proc_net::file      /proc/net
//! ```
//! There are two interfaces: `lo`, and the stack's link, which is always called [`LINK_NAME`], whatever the
//! device behind it is called on the host.

pub mod netlink;
pub mod proc_net;
pub mod request;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use atoll_base::{Addr, Instant};
use atoll_ipc::network::{AddressState, Network};
use atoll_ipc::page::StackFacts;
use libc::{
    IFA_F_DADFAILED, IFA_F_DEPRECATED, IFA_F_OPTIMISTIC, IFA_F_PERMANENT, IFA_F_TENTATIVE, RTPROT_KERNEL,
    RTPROT_STATIC,
};

/// The index of the loopback interface, as on Linux.
pub const LOOPBACK: u32 = 1;
/// The name of the loopback interface.
pub const LOOPBACK_NAME: &str = "lo";
/// The index of the stack's link.
pub const LINK: u32 = 2;
/// The name of the stack's link.
pub const LINK_NAME: &str = "eth0";

/// `struct rtmsg`'s `rtm_table`: the table of routes that lead somewhere (rtnetlink(7)).
const TABLE_MAIN: u8 = libc::RT_TABLE_MAIN;
/// The table of the stack's own addresses.
const TABLE_LOCAL: u8 = libc::RT_TABLE_LOCAL;
/// A lifetime that does not end, in seconds (`INFINITY_LIFE_TIME`).
const FOREVER: u32 = u32::MAX;

/// The interfaces and routes of a stack at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The loopback interface, then the link.
    pub interfaces: [Interface; 2],
    /// The routes of all tables.
    pub routes: Vec<Route>,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The number of the interface.
    pub index: u32,
    /// The name of the interface.
    pub name: &'static str,
    /// The `IFF_*` flags of netdevice(7), those beyond 16 bits included.
    pub flags: u32,
    /// The size of the largest packet in octets.
    pub mtu: u32,
    /// The hardware address; zeros for loopback.
    pub mac: [u8; 6],
    /// The addresses, IPv4 before IPv6.
    pub addresses: Vec<InterfaceAddress>,
    /// The counters of the interface.
    pub counters: Counters,
}

/// The counters of an interface since the stack came up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Octets received.
    pub bytes_in: u64,
    /// Frames received.
    pub frames_in: u64,
    /// Frames received and dropped.
    pub dropped_in: u64,
    /// Octets sent.
    pub bytes_out: u64,
    /// Frames sent.
    pub frames_out: u64,
    /// Frames that the device did not take.
    pub dropped_out: u64,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The address.
    pub addr: Addr,
    /// The length of the prefix in bits of the address's own family.
    pub prefix_len: u8,
    /// The `IFA_F_*` flags of linux/if_addr.h.
    pub flags: u32,
    /// For how many seconds the address is preferred; `u32::MAX` for ever.
    pub preferred_for: u32,
    /// For how many seconds the address is valid; `u32::MAX` for ever.
    pub valid_for: u32,
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destination of the route: the first address; those of IPv4 are mapped (RFC 4291 §2.5.5.2).
    pub destination: Addr,
    /// The length of the prefix in bits of the address's own family.
    pub prefix_len: u8,
    /// The router, if there is one on the way.
    pub gateway: Option<Addr>,
    /// The number of the interface.
    pub interface: u32,
    /// The address that packets leave from, if the route says so.
    pub source: Option<Addr>,
    /// The table: main or local.
    pub table: u8,
    /// The `RTN_*` type of rtnetlink(7).
    pub kind: u8,
    /// The `RTPROT_*` origin of rtnetlink(7).
    pub origin: u8,
    /// The metric: the lower, the better.
    pub metric: u32,
}

// Of linux/rtnetlink.h, what libc lacks.
const RTPROT_RA: u8 = 9;
const RTPROT_DHCP: u8 = 16;
/// The metric of IPv6 routes to prefixes on the link (`IP6_RT_PRIO_ADDRCONF`).
const METRIC_ON_LINK: u32 = 256;
/// The metric of other IPv6 routes (`IP6_RT_PRIO_USER`).
const METRIC_GATEWAY: u32 = 1024;

impl View {
    /// Returns what a stack of these facts shows, whose first replica has published `network`, at `now` of
    /// the stack's clock. `counters` are those of the link.
    pub fn of(facts: &StackFacts, network: &Network, counters: Counters, now: Instant) -> View {
        let (up, lower_up) = ((libc::IFF_UP | libc::IFF_RUNNING) as u32, libc::IFF_LOWER_UP as u32);
        let loopback = Interface {
            index: LOOPBACK,
            name: LOOPBACK_NAME,
            flags: up | lower_up | libc::IFF_LOOPBACK as u32,
            mtu: facts.mtu.into(),
            mac: [0; 6],
            addresses: [(Addr::V4_LOOPBACK, 8), (Addr::LOOPBACK, 128)]
                .map(|(addr, prefix_len)| InterfaceAddress::permanent(addr, prefix_len))
                .into(),
            counters: Counters::default(),
        };
        let link = Interface {
            index: LINK,
            name: LINK_NAME,
            flags: up | lower_up | (libc::IFF_BROADCAST | libc::IFF_MULTICAST) as u32,
            mtu: facts.mtu.into(),
            mac: facts.mac,
            addresses: link_addresses(network, now),
            counters,
        };
        let routes = routes(network, [&loopback, &link]);
        View { interfaces: [loopback, link], routes }
    }

    /// Returns the interface of this name.
    pub fn named(&self, name: &[u8]) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name.as_bytes() == name)
    }

    /// Returns the interface of this index.
    pub fn numbered(&self, index: u32) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.index == index)
    }

    /// Returns all addresses of a family with their interfaces.
    fn addresses(&self, v4: bool) -> impl Iterator<Item = (&Interface, &InterfaceAddress)> {
        let of = move |interface| Interface::family(interface, v4).map(move |own| (interface, own));
        self.interfaces.iter().flat_map(of)
    }

    /// Returns the route that a packet to `to` takes: that of the longest prefix, the local table first.
    pub fn route_to(&self, to: Addr) -> Option<&Route> {
        let merit = |route: &&Route| (route.table == TABLE_LOCAL, route.prefix_len, !route.metric);
        self.routes.iter().filter(|route| route.covers(to)).max_by_key(merit)
    }
}

impl Interface {
    /// Returns whether this is the loopback interface.
    pub fn is_loopback(&self) -> bool {
        self.index == LOOPBACK
    }

    /// Returns the addresses of one family.
    pub fn family(&self, v4: bool) -> impl Iterator<Item = &InterfaceAddress> {
        self.addresses.iter().filter(move |own| own.addr.is_v4() == v4)
    }
}

impl InterfaceAddress {
    fn permanent(addr: Addr, prefix_len: u8) -> InterfaceAddress {
        InterfaceAddress {
            addr,
            prefix_len,
            flags: IFA_F_PERMANENT,
            preferred_for: FOREVER,
            valid_for: FOREVER,
        }
    }

    /// Returns the mask of the prefix, in the octets of the address's own family.
    pub fn mask(&self) -> Addr {
        match self.addr.is_v4() {
            true => Addr::v4(v4_mask(self.prefix_len)),
            false => Addr::from_octets(mask(self.prefix_len).to_be_bytes()),
        }
    }

    /// Returns the broadcast address of the network, if an IPv4 network of this size has one (RFC 3021).
    pub fn broadcast(&self) -> Option<Addr> {
        let own = self.addr.to_v4().filter(|_| self.prefix_len < 31 && !self.addr.is_loopback())?;
        Some(Addr::v4(own | !v4_mask(self.prefix_len)))
    }

    /// Returns the `RT_SCOPE_*` of the address (rtnetlink(7)).
    fn scope(&self) -> u8 {
        if self.addr.is_loopback() {
            libc::RT_SCOPE_HOST
        } else if self.addr.is_link_local() {
            libc::RT_SCOPE_LINK
        } else {
            libc::RT_SCOPE_UNIVERSE
        }
    }
}

impl Route {
    fn covers(&self, addr: Addr) -> bool {
        self.destination.is_v4() == addr.is_v4() && network_of(addr, self.prefix_len) == self.destination
    }
}

fn mask(len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(len.min(128))).unwrap_or(0)
}

fn v4_mask(len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(len.min(32))).unwrap_or(0)
}

/// Returns the first address of the network that `addr` is in.
fn network_of(addr: Addr, prefix_len: u8) -> Addr {
    match addr.to_v4() {
        Some(v4) => Addr::v4(v4 & v4_mask(prefix_len)),
        None => Addr::from_octets((u128::from_be_bytes(addr.octets()) & mask(prefix_len)).to_be_bytes()),
    }
}

/// Returns the seconds until `until`, which is in nanoseconds of the stack's clock.
fn seconds_until(until: u64, now: Instant) -> u32 {
    match until {
        u64::MAX => FOREVER,
        _ => u32::try_from(until.saturating_sub(now.as_nanos()) / 1_000_000_000).unwrap_or(FOREVER),
    }
}

fn link_addresses(network: &Network, now: Instant) -> Vec<InterfaceAddress> {
    let v4 = network.v4.filter(|own| own.addr != 0).map(|own| {
        let valid_for = seconds_until(own.valid_until, now);
        InterfaceAddress {
            addr: Addr::v4(own.addr),
            prefix_len: own.prefix_len,
            flags: if valid_for == FOREVER { IFA_F_PERMANENT } else { 0 },
            preferred_for: valid_for,
            valid_for,
        }
    });
    let v6 = network.addresses.iter().map(|own| {
        let state = match own.state {
            AddressState::Tentative => IFA_F_TENTATIVE | IFA_F_OPTIMISTIC,
            AddressState::Preferred => 0,
            AddressState::Deprecated => IFA_F_DEPRECATED,
            AddressState::Duplicate => IFA_F_TENTATIVE | IFA_F_DADFAILED,
        };
        InterfaceAddress {
            addr: own.addr,
            prefix_len: own.prefix_len,
            flags: state | if own.dynamic { 0 } else { IFA_F_PERMANENT },
            preferred_for: seconds_until(own.preferred_until, now),
            valid_for: seconds_until(own.valid_until, now),
        }
    });
    v4.into_iter().chain(v6).collect()
}

fn routes(network: &Network, interfaces: [&Interface; 2]) -> Vec<Route> {
    let mut routes = Vec::new();
    let plain = |destination: Addr, prefix_len, origin| Route {
        destination: network_of(destination, prefix_len),
        prefix_len,
        gateway: None,
        interface: LINK,
        source: None,
        table: TABLE_MAIN,
        kind: libc::RTN_UNICAST,
        origin,
        metric: if destination.is_v4() { 0 } else { METRIC_ON_LINK },
    };
    if let Some(own) = network.v4.filter(|own| own.addr != 0) {
        if own.gateway != 0 {
            let origin = if network.dhcp.is_some() { RTPROT_DHCP } else { RTPROT_STATIC };
            routes.push(Route { gateway: Some(Addr::v4(own.gateway)), ..plain(Addr::V4_ANY, 0, origin) });
        }
        if own.prefix_len < 32 {
            let addr = Addr::v4(own.addr);
            routes.push(Route { source: Some(addr), ..plain(addr, own.prefix_len, RTPROT_KERNEL) });
        }
    }
    for prefix in &network.on_link {
        routes.push(plain(prefix.prefix, prefix.len, RTPROT_KERNEL));
    }
    if let Some(own) = network.addresses.iter().find(|own| own.addr.is_link_local()) {
        let local = plain(own.addr, 64, RTPROT_KERNEL);
        if !routes.iter().any(|route| (route.destination, route.prefix_len) == (local.destination, 64)) {
            routes.push(local);
        }
    }
    for router in &network.routers {
        let metric = METRIC_GATEWAY;
        routes.push(Route { gateway: Some(router.addr), metric, ..plain(Addr::ANY, 0, RTPROT_RA) });
    }
    for interface in interfaces {
        for own in interface.addresses.iter().filter(|own| own.flags & IFA_F_DADFAILED == 0) {
            // All of 127.0.0.0/8 is the stack's.
            let len = if own.addr.is_loopback() { own.prefix_len } else { full_length(own.addr) };
            routes.push(Route {
                interface: interface.index,
                source: own.addr.is_v4().then_some(own.addr),
                table: TABLE_LOCAL,
                kind: libc::RTN_LOCAL,
                metric: 0,
                ..plain(own.addr, len, RTPROT_KERNEL)
            });
        }
    }
    routes
}

/// Returns the length of an address in bits of its own family.
const fn full_length(addr: Addr) -> u8 {
    if addr.is_v4() { 32 } else { 128 }
}
