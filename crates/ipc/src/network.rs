//! The addresses that the stack has now. They come and go with router advertisements and DHCP leases, so each
//! replica publishes them on its page. Programs read the first replica's page, and a replica's successor
//! starts with what its page says.
//!
//! ```text
//!   version u32 | count of IPv6 addresses u8, of prefixes u8, of routers u8, 0
//!   | addresses, 40 bytes each | prefixes, 32 bytes each | routers, 24 bytes each
//!   | IPv4: addr u32, prefix u8, is there u8, mtu u16, gateway u32, 0 u32, valid until u64
//!   | DHCP: see `dhcp.rs`
//! ```
//! The version is odd while the replica writes.

mod dhcp;

use alloc::vec::Vec;

use atoll_base::Addr;

use crate::memory::Memory;

/// The maximum number of published addresses, and of prefixes: as many as a replica has.
pub const NETWORK_MAX: usize = 16;
/// The maximum number of published routers.
pub const ROUTERS_MAX: usize = 8;
/// The size of the record in bytes.
pub const NETWORK_BYTES: usize = DHCP + dhcp::BYTES;
const PREFIXES: usize = 8 + NETWORK_MAX * ADDRESS_BYTES;
const ROUTERS: usize = PREFIXES + NETWORK_MAX * PREFIX_BYTES;
const V4: usize = ROUTERS + ROUTERS_MAX * ROUTER_BYTES;
const DHCP: usize = V4 + 24;
const ADDRESS_BYTES: usize = 40;
const PREFIX_BYTES: usize = 32;
const ROUTER_BYTES: usize = 24;
/// The number of attempts after which a reader that always meets a writer takes an empty record: the writer
/// has died.
const READ_ATTEMPTS: u32 = 10_000;

pub use dhcp::{DhcpFacts, DhcpState};

/// The addresses and routers of an interface; for IPv6: RFC 4862 §5.5.4.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// The IPv4 address, if there is one.
    pub v4: Option<V4Facts>,
    /// The source of the IPv4 address, if it is DHCP and not the configuration. Only the first replica knows
    /// it.
    pub dhcp: Option<DhcpFacts>,
    /// The interface's own IPv6 addresses, the link-local one first. The loopback address is not listed.
    pub addresses: Vec<AddressFacts>,
    /// Prefixes that are reached without a router.
    pub on_link: Vec<PrefixFacts>,
    /// The routers that know the way to all other destinations.
    pub routers: Vec<RouterFacts>,
}

/// The interface's own IPv4 address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct V4Facts {
    /// The address in host order.
    pub addr: u32,
    /// The length of the prefix in bits.
    pub prefix_len: u8,
    /// The gateway to all other destinations; 0 for none.
    pub gateway: u32,
    /// The size of the largest IPv4 packet in octets.
    pub mtu: u16,
    /// The end of its validity, in nanoseconds of the stack's clock; `u64::MAX` for never.
    pub valid_until: u64,
}

/// One IPv6 address of the interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressFacts {
    /// The address.
    pub addr: Addr,
    /// The length of the prefix in bits.
    pub prefix_len: u8,
    /// What it may be used for.
    pub state: AddressState,
    /// Whether a router advertised the prefix.
    pub dynamic: bool,
    /// The end of its preference, in nanoseconds of the stack's clock; `u64::MAX` for never.
    pub preferred_until: u64,
    /// The end of its validity, in nanoseconds of the stack's clock; `u64::MAX` for never.
    pub valid_until: u64,
}

/// A prefix that is reached without a router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixFacts {
    /// The prefix.
    pub prefix: Addr,
    /// The length of the prefix in bits.
    pub len: u8,
    /// The time until which the prefix is on the link; see [`AddressFacts::valid_until`].
    pub until: u64,
}

/// An IPv6 router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterFacts {
    /// The address of the router.
    pub addr: Addr,
    /// The time until which it is a router; see [`AddressFacts::valid_until`].
    pub until: u64,
}

/// What an address may be used for (RFC 4862 §2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum AddressState {
    /// The address may be used for everything, as long as no host claims it (RFC 4429: optimistic).
    #[default]
    Tentative = 0,
    /// The address may be used for everything.
    Preferred = 1,
    /// The address may be used for what began before.
    Deprecated = 2,
    /// The address may not be used: another host has it.
    Duplicate = 3,
}

impl AddressState {
    const fn from_u8(n: u8) -> AddressState {
        match n {
            1 => AddressState::Preferred,
            2 => AddressState::Deprecated,
            3 => AddressState::Duplicate,
            _ => AddressState::Tentative,
        }
    }
}

impl V4Facts {
    /// Returns whether there is a way to `addr`: on the link, or by the gateway.
    pub fn reaches(&self, addr: u32) -> bool {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix_len)).unwrap_or(0);
        self.gateway != 0 || addr & mask == self.addr & mask
    }

    /// Reads the IPv4 address; invalid content reads as no address.
    fn read<M: Memory>(m: &M, at: usize) -> Option<V4Facts> {
        let mut bytes = [0; 4];
        m.read(at + 4, &mut bytes);
        let [prefix_len, is_there, a, b] = bytes;
        let (addr, gateway) = (m.load32(at), m.load32(at + 8));
        let facts = V4Facts {
            addr,
            prefix_len,
            gateway,
            mtu: u16::from_ne_bytes([a, b]),
            valid_until: m.load64(at + 16),
        };
        (is_there == 1 && prefix_len <= 32).then_some(facts)
    }

    fn store<M: Memory>(facts: Option<&V4Facts>, m: &M, at: usize) {
        let none = V4Facts::default();
        let own = facts.unwrap_or(&none);
        let [a, b] = own.mtu.to_ne_bytes();
        m.store32(at, own.addr);
        m.write(at + 4, &[own.prefix_len, facts.is_some().into(), a, b]);
        m.store32(at + 8, own.gateway);
        m.store64(at + 16, own.valid_until);
    }
}

impl Network {
    /// Returns whether the stack has the IPv6 address.
    pub fn is_own(&self, addr: Addr) -> bool {
        self.addresses.iter().any(|own| own.addr == addr && own.state != AddressState::Duplicate)
    }

    /// Returns whether there is a way to `addr`, and an address of the same scope to send from.
    pub fn reaches(&self, addr: Addr) -> bool {
        let is_local = addr.is_link_scoped() || addr.is_v6_multicast();
        self.source_for(addr).is_some()
            && (is_local
                || !self.routers.is_empty()
                || self.on_link.iter().any(|prefix| covers(prefix, addr)))
    }

    /// Returns the address that packets to `dst` leave from: RFC 6724 §5, as far as one interface needs it.
    /// The replica chooses by the same rules.
    pub fn source_for(&self, dst: Addr) -> Option<Addr> {
        let is_local = dst.is_link_scoped();
        let usable = |own: &&AddressFacts| {
            own.state != AddressState::Duplicate && own.addr.is_link_local() == is_local
        };
        let common = |addr: Addr| {
            let bits = |addr: Addr| u128::from_be_bytes(addr.octets());
            (bits(addr) ^ bits(dst)).leading_zeros()
        };
        let merit = |own: &&AddressFacts| {
            let shared = common(own.addr).min(own.prefix_len.into());
            (own.addr == dst, own.state != AddressState::Deprecated, shared)
        };
        self.addresses.iter().filter(usable).max_by_key(merit).map(|own| own.addr)
    }

    /// Writes the record at `at`; entries beyond [`NETWORK_MAX`] are left out.
    pub(crate) fn store<M: Memory>(&self, m: &M, at: usize) {
        let version = m.load32(at);
        m.store32(at, version | 1);
        m.fence();
        let (addresses, prefixes) =
            (self.addresses.len().min(NETWORK_MAX), self.on_link.len().min(NETWORK_MAX));
        let routers = self.routers.len().min(ROUTERS_MAX);
        m.write(at + 4, &[addresses as u8, prefixes as u8, routers as u8, 0]);
        for (i, own) in self.addresses.iter().take(addresses).enumerate() {
            let to = at + 8 + i * ADDRESS_BYTES;
            m.write(to, &own.addr.octets());
            m.write(to + 16, &[own.prefix_len, own.state as u8, own.dynamic.into(), 0, 0, 0, 0, 0]);
            m.store64(to + 24, own.preferred_until);
            m.store64(to + 32, own.valid_until);
        }
        for (i, facts) in self.on_link.iter().take(prefixes).enumerate() {
            let to = at + PREFIXES + i * PREFIX_BYTES;
            m.write(to, &facts.prefix.octets());
            m.write(to + 16, &[facts.len, 0, 0, 0, 0, 0, 0, 0]);
            m.store64(to + 24, facts.until);
        }
        for (i, router) in self.routers.iter().take(routers).enumerate() {
            let to = at + ROUTERS + i * ROUTER_BYTES;
            m.write(to, &router.addr.octets());
            m.store64(to + 16, router.until);
        }
        V4Facts::store(self.v4.as_ref(), m, at + V4);
        DhcpFacts::store(self.dhcp.as_ref(), m, at + DHCP);
        m.fence();
        m.store32_release(at, (version | 1).wrapping_add(1));
    }

    /// Reads the record; invalid content reads as nothing.
    pub(crate) fn load<M: Memory>(m: &M, at: usize) -> Network {
        undisturbed(m, at, || Network::read(m, at))
    }

    /// Reads the IPv4 address only.
    pub(crate) fn load_v4<M: Memory>(m: &M, at: usize) -> Option<V4Facts> {
        undisturbed(m, at, || V4Facts::read(m, at + V4))
    }

    fn read<M: Memory>(m: &M, at: usize) -> Network {
        let octets_at = |at: usize| {
            let mut octets = [0; 16];
            m.read(at, &mut octets);
            Addr::from_octets(octets)
        };
        let bytes_at = |at: usize| {
            let mut bytes = [0; 4];
            m.read(at, &mut bytes);
            bytes
        };
        let [addresses, prefixes, routers, _] = bytes_at(at + 4);
        let address = |i: usize| {
            let from = at + 8 + i * ADDRESS_BYTES;
            let [prefix_len, state, dynamic, _] = bytes_at(from + 16);
            AddressFacts {
                addr: octets_at(from),
                prefix_len: prefix_len.min(128),
                state: AddressState::from_u8(state),
                dynamic: dynamic != 0,
                preferred_until: m.load64(from + 24),
                valid_until: m.load64(from + 32),
            }
        };
        let prefix = |i: usize| {
            let from = at + PREFIXES + i * PREFIX_BYTES;
            PrefixFacts {
                prefix: octets_at(from),
                len: bytes_at(from + 16)[0].min(128),
                until: m.load64(from + 24),
            }
        };
        let router = |i: usize| {
            let from = at + ROUTERS + i * ROUTER_BYTES;
            RouterFacts { addr: octets_at(from), until: m.load64(from + 16) }
        };
        Network {
            addresses: (0..usize::from(addresses).min(NETWORK_MAX)).map(address).collect(),
            on_link: (0..usize::from(prefixes).min(NETWORK_MAX)).map(prefix).collect(),
            routers: (0..usize::from(routers).min(ROUTERS_MAX)).map(router).collect(),
            v4: V4Facts::read(m, at + V4),
            dhcp: DhcpFacts::read(m, at + DHCP),
        }
    }
}

/// Returns what `read` has found while no writer was at work.
fn undisturbed<M: Memory, T: Default>(m: &M, at: usize, read: impl Fn() -> T) -> T {
    for _ in 0..READ_ATTEMPTS {
        let version = m.load32_acquire(at);
        if version & 1 == 1 {
            continue;
        }
        let found = read();
        m.fence();
        if m.load32(at) == version {
            return found;
        }
    }
    T::default()
}

/// Returns whether `addr` begins with a prefix.
fn covers(PrefixFacts { prefix, len, .. }: &PrefixFacts, addr: Addr) -> bool {
    let bits = |addr: Addr| u128::from_be_bytes(addr.octets());
    let shift = 128 - u32::from((*len).min(128));
    (bits(*prefix) ^ bits(addr)).checked_shr(shift).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::HeapMemory;

    fn addr(first: u16, last: u8) -> Addr {
        let mut octets = [0; 16];
        octets[..2].copy_from_slice(&first.to_be_bytes());
        octets[15] = last;
        Addr::from_octets(octets)
    }

    #[test]
    fn the_record_survives_the_page() {
        let memory = HeapMemory::new(NETWORK_BYTES.next_multiple_of(8));
        assert_eq!(Network::load(&memory, 0), Network::default());
        let own = |n: u8| AddressFacts {
            addr: addr(0xfe80, n),
            prefix_len: 64,
            state: AddressState::Preferred,
            dynamic: n > 2,
            preferred_until: u64::from(n),
            valid_until: u64::MAX,
        };
        let mut network = Network {
            addresses: (1..=3).map(own).collect(),
            on_link: (1..=4)
                .map(|n| PrefixFacts { prefix: addr(0x2001, n), len: 64 + n, until: n.into() })
                .collect(),
            routers: (1..=2).map(|n| RouterFacts { addr: addr(0xfe80, n), until: u64::MAX - 1 }).collect(),
            v4: Some(V4Facts {
                addr: 0x0a00_0002,
                prefix_len: 24,
                gateway: 0x0a00_0001,
                mtu: 1400,
                valid_until: 9,
            }),
            dhcp: Some(DhcpFacts {
                state: DhcpState::Bound,
                server: 0x0a00_0001,
                dns: Vec::from([1, 2, 3, 4]),
                domain: "example.org".into(),
            }),
        };
        network.store(&memory, 0);
        assert_eq!(Network::load(&memory, 0), network);
        assert_eq!(Network::load_v4(&memory, 0), network.v4);
        (network.v4, network.dhcp) = (None, Some(DhcpFacts::default()));
        network.store(&memory, 0);
        assert_eq!((Network::load(&memory, 0), Network::load_v4(&memory, 0)), (network.clone(), None));
        network.addresses = (0..100).map(own).collect();
        network.store(&memory, 0);
        assert_eq!(Network::load(&memory, 0).addresses.len(), NETWORK_MAX);
    }

    #[test]
    fn a_record_of_noise_is_read_without_panic() {
        let memory = HeapMemory::new(NETWORK_BYTES.next_multiple_of(8));
        for word in 1..NETWORK_BYTES / 4 {
            memory.store32(word * 4, 0xdead_beef);
        }
        assert!(Network::load(&memory, 0).addresses.len() <= NETWORK_MAX);
        memory.store32(0, 1);
        assert_eq!(Network::load(&memory, 0), Network::default());
    }

    #[test]
    fn ipv4_ways_lead_over_the_link_or_the_gateway() {
        let facts = V4Facts { addr: 0x0a00_0002, prefix_len: 24, ..V4Facts::default() };
        assert!(facts.reaches(0x0a00_0001) && !facts.reaches(0x0a00_0101));
        assert!(V4Facts { gateway: 0x0a00_0001, ..facts }.reaches(0x0a00_0101));
        assert!(V4Facts { prefix_len: 0, ..facts }.reaches(0x0b00_0001));
    }

    #[test]
    fn ways_lead_over_the_link_or_a_router() {
        let own = |addr| AddressFacts {
            addr,
            prefix_len: 64,
            state: AddressState::Preferred,
            ..AddressFacts::default()
        };
        let mut network = Network { addresses: Vec::from([own(addr(0xfe80, 1))]), ..Network::default() };
        assert!(network.reaches(addr(0xfe80, 2)) && !network.reaches(addr(0x2001, 2)));
        network.routers.push(RouterFacts { addr: addr(0xfe80, 9), until: u64::MAX });
        assert!(!network.reaches(addr(0x2001, 2)), "no address to send from");
        network.addresses.push(own(addr(0x2001, 1)));
        assert!(network.reaches(addr(0x2001, 2)) && network.reaches(addr(0x3001, 2)));
        network.routers.clear();
        network.on_link.push(PrefixFacts { prefix: addr(0x2001, 0), len: 64, until: u64::MAX });
        assert!(network.reaches(addr(0x2001, 2)) && !network.reaches(addr(0x3001, 2)));
    }
}
