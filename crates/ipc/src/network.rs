//! The addresses that the stack has now. They come and go with router advertisements and DHCP leases, so each
//! replica publishes them on its page. Programs read the first replica's page, and a replica's successor
//! starts with what its page says.
//!
//! A replica may be stopped, or die, at any instruction. So its page has two copies of the record and a
//! version, whose lowest bit says which copy is public: the replica writes the other one, and then the
//! version.

mod dhcp;

use alloc::vec::Vec;
use core::array;
use core::mem::offset_of;

use atoll_base::Addr;
use zerocopy::{BE, TryFromBytes, U16, U32, U64};

use crate::layout::{BadMessage, Field, load, numbered, part, record, values, words};
use crate::memory::Memory;

/// The maximum number of published addresses, and of prefixes: as many as a replica has.
pub const NETWORK_MAX: usize = 16;
/// The maximum number of published routers.
pub const ROUTERS_MAX: usize = 8;
/// The size of the record in bytes.
pub const NETWORK_BYTES: usize = size_of::<Octets>();
type Octets = <Record as Field>::Octets;
/// The octets that the record takes on a page: the version and the copies.
pub(crate) const PUBLISHED_BYTES: usize = size_of::<Published>();
/// The number of attempts after which a reader takes an empty record: only a replica that does nothing but
/// write can disturb so many.
const READ_ATTEMPTS: u32 = 10_000;

use dhcp::DhcpRecord;
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

values! {
    n: BigEndian<u16> as U16<BE>, n.0, BigEndian(n.get());
    n: BigEndian<u32> as U32<BE>, n.0, BigEndian(n.get());
    n: BigEndian<u64> as U64<BE>, n.0, BigEndian(n.get());
}

/// A number that is written with its highest octet first.
#[derive(Clone, Copy)]
pub(crate) struct BigEndian<T>(T);

record! {
    /// The payload of a record of [`crate::mesh::KIND_ADDRESS`].
    struct AddressRecord {
        addr: BigEndian<u32>,
        gateway: BigEndian<u32>,
        mtu: BigEndian<u16>,
        prefix_len: u8,
        /// 1 if there is an address, else 0.
        is_there: u8,
        valid_until: BigEndian<u64>,
    }
}

/// The size in octets of the payload of a record of [`crate::mesh::KIND_ADDRESS`].
pub const ADDRESS_BYTES: usize = size_of::<<AddressRecord as Field>::Octets>();

/// Encodes the payload of a record of [`crate::mesh::KIND_ADDRESS`]; `None` means that the stack has no
/// address.
pub fn encode_address(address: Option<&V4Facts>) -> [u8; ADDRESS_BYTES] {
    let own = address.copied().unwrap_or_default();
    let record = AddressRecord {
        addr: BigEndian(own.addr),
        gateway: BigEndian(own.gateway),
        mtu: BigEndian(own.mtu),
        prefix_len: own.prefix_len,
        is_there: address.is_some().into(),
        valid_until: BigEndian(own.valid_until),
    };
    zerocopy::transmute!(record.write())
}

/// Decodes the payload of a record of [`crate::mesh::KIND_ADDRESS`]. Returns `Some(None)` if it says that
/// there is no address, and `None` if it is not a valid record.
pub fn decode_address(bytes: &[u8]) -> Option<Option<V4Facts>> {
    let record: AddressRecord = part(bytes, 0).and_then(Field::read).ok()?;
    let address = V4Facts {
        addr: record.addr.0,
        prefix_len: record.prefix_len,
        gateway: record.gateway.0,
        mtu: record.mtu.0,
        valid_until: record.valid_until.0,
    };
    match record.is_there {
        _ if bytes.len() != ADDRESS_BYTES => None,
        0 => Some(None),
        1 => Some(Some(address)),
        _ => None,
    }
}

record! {
    /// One IPv6 address of the interface.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AddressFacts {
        /// The address.
        pub addr: Addr,
        /// The length of the prefix in bits.
        pub prefix_len: u8,
        /// The permitted uses of the address.
        pub state: AddressState,
        /// Whether a router advertised the prefix.
        pub dynamic: bool; 5 unused,
        /// The end of its preference, in nanoseconds of the stack's clock; `u64::MAX` for never.
        pub preferred_until: u64,
        /// The end of its validity, in nanoseconds of the stack's clock; `u64::MAX` for never.
        pub valid_until: u64,
    }
}

record! {
    /// A prefix that is reached without a router.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PrefixFacts {
        /// The prefix.
        pub prefix: Addr,
        /// The length of the prefix in bits.
        pub len: u8; 7 unused,
        /// The time until which the prefix is on the link; see [`AddressFacts::valid_until`].
        pub until: u64,
    }
}

record! {
    /// An IPv6 router.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RouterFacts {
        /// The address of the router.
        pub addr: Addr,
        /// The time until which it is a router; see [`AddressFacts::valid_until`].
        pub until: u64,
    }
}

/// The permitted uses of an address (RFC 4862 §2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes)]
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

numbered!(AddressState else Tentative);

impl V4Facts {
    /// Returns whether there is a way to `addr`: on the link, or by the gateway.
    pub fn reaches(&self, addr: u32) -> bool {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix_len)).unwrap_or(0);
        self.gateway != 0 || addr & mask == self.addr & mask
    }

    /// Returns whether `addr` is the broadcast address of the network, if a network of this size has one
    /// (RFC 3021).
    pub fn is_broadcast(&self, addr: u32) -> bool {
        let host = u32::MAX.checked_shr(self.prefix_len.into()).unwrap_or(0);
        self.prefix_len < 31 && addr == self.addr | host
    }
}

record! {
    /// The IPv4 address as it is published.
    #[derive(Default)]
    struct V4Record {
        addr: u32,
        prefix_len: u8,
        /// 1 if there is an address.
        is_there: u8,
        mtu: u16,
        gateway: u32; 4 unused,
        valid_until: u64,
    }
}

record! {
    /// The published form. Behind the used addresses, prefixes and routers the octets may be arbitrary.
    struct Record {
        addresses_len: u8,
        on_link_len: u8,
        routers_len: u8; 5 unused,
        addresses: [AddressFacts; NETWORK_MAX],
        on_link: [PrefixFacts; NETWORK_MAX],
        routers: [RouterFacts; ROUTERS_MAX],
        v4: V4Record,
        dhcp: DhcpRecord,
    }
}

words! {
    /// The record on a page.
    struct Published {
        version: u32; 4 unused,
        first: [u8; NETWORK_BYTES],
        second: [u8; NETWORK_BYTES],
    }
}

impl V4Record {
    fn facts(self) -> Option<V4Facts> {
        let V4Record { addr, prefix_len, is_there, mtu, gateway, valid_until } = self;
        (is_there == 1 && prefix_len <= 32).then_some(V4Facts { addr, prefix_len, gateway, mtu, valid_until })
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

    /// Returns the octets of the record; entries beyond [`NETWORK_MAX`] are left out.
    pub(crate) fn octets(&self) -> [u8; NETWORK_BYTES] {
        let v4 = self.v4.map(|own| V4Record {
            addr: own.addr,
            prefix_len: own.prefix_len,
            is_there: 1,
            mtu: own.mtu,
            gateway: own.gateway,
            valid_until: own.valid_until,
        });
        let ((addresses, addresses_len), (on_link, on_link_len), (routers, routers_len)) =
            (first(&self.addresses), first(&self.on_link), first(&self.routers));
        let (v4, dhcp) = (v4.unwrap_or_default(), DhcpRecord::of(self.dhcp.as_ref()));
        let record =
            Record { addresses_len, on_link_len, routers_len, addresses, on_link, routers, v4, dhcp };
        zerocopy::transmute!(record.write())
    }

    /// Returns what a record says; an invalid IPv4 address, or DHCP, reads as none.
    pub(crate) fn of(octets: &[u8; NETWORK_BYTES]) -> Result<Network, BadMessage> {
        let record = Record::read(part(octets, 0)?)?;
        let addresses = record.addresses.into_iter().take(record.addresses_len.into());
        let on_link = record.on_link.into_iter().take(record.on_link_len.into());
        Ok(Network {
            v4: record.v4.facts(),
            dhcp: record.dhcp.facts(),
            addresses: addresses
                .map(|own| AddressFacts { prefix_len: own.prefix_len.min(128), ..own })
                .collect(),
            on_link: on_link.map(|facts| PrefixFacts { len: facts.len.min(128), ..facts }).collect(),
            routers: record.routers.into_iter().take(record.routers_len.into()).collect(),
        })
    }

    /// Publishes the record at `at`; entries beyond [`NETWORK_MAX`] are left out. Only one writer may do so
    /// at a time.
    pub(crate) fn store<M: Memory>(&self, m: &M, at: usize) {
        let version = m.load32(at).wrapping_add(1);
        // The version before is public before the copy that it made stale is touched.
        m.fence();
        m.write(copy_at(at, version), &self.octets());
        m.store32_release(at, version);
    }

    /// Reads the record; invalid content reads as nothing.
    pub(crate) fn load<M: Memory>(m: &M, at: usize) -> Network {
        let octets = undisturbed(m, at, |copy| {
            let mut octets = [0; NETWORK_BYTES];
            m.read(copy, &mut octets);
            Some(octets)
        });
        octets.and_then(|octets| Network::of(&octets).ok()).unwrap_or_default()
    }

    /// Reads the IPv4 address only.
    pub(crate) fn load_v4<M: Memory>(m: &M, at: usize) -> Option<V4Facts> {
        undisturbed(m, at, |copy| load(m, copy + offset_of!(Octets, v4)).ok().and_then(V4Record::facts))
    }
}

/// Returns the first entries, as many as are published, and how many these are.
fn first<T: Copy + Default, const N: usize>(all: &[T]) -> ([T; N], u8) {
    // Cannot truncate: at most `NETWORK_MAX` are published.
    (array::from_fn(|i| all.get(i).copied().unwrap_or_default()), all.len().min(N) as u8)
}

/// Returns the offset of the copy of a version.
const fn copy_at(at: usize, version: u32) -> usize {
    at + if version & 1 == 0 { offset_of!(Published, first) } else { offset_of!(Published, second) }
}

/// Returns what `read` has found in a copy that nobody wrote meanwhile.
fn undisturbed<M: Memory, T: Default>(m: &M, at: usize, read: impl Fn(usize) -> T) -> T {
    for _ in 0..READ_ATTEMPTS {
        let version = m.load32_acquire(at);
        let found = read(copy_at(at, version));
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
    use core::cell::Cell;

    use super::*;
    use crate::memory::HeapMemory;
    use crate::memory::mortal::Mortal;

    fn addr(first: u16, last: u8) -> Addr {
        let mut octets = [0; 16];
        octets[..2].copy_from_slice(&first.to_be_bytes());
        octets[15] = last;
        Addr::from_octets(octets)
    }

    #[test]
    fn the_record_survives_the_page() {
        let memory = HeapMemory::new(PUBLISHED_BYTES);
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
        let memory = HeapMemory::new(PUBLISHED_BYTES);
        for word in 0..PUBLISHED_BYTES / 4 {
            memory.store32(word * 4, 0xdead_beef);
        }
        assert!(Network::load(&memory, 0).addresses.len() <= NETWORK_MAX);
    }

    /// Programs see the addresses while the replica that writes is stopped, and its successor starts with
    /// them if it dies.
    #[test]
    fn a_writer_that_is_interrupted_in_a_store_leaves_what_was_published_before() {
        let v4 = |addr| V4Facts { addr, prefix_len: 24, gateway: 0, mtu: 1500, valid_until: 0 };
        let networks = [1u8, 2, 3].map(|n| {
            let own = AddressFacts { addr: addr(0x2001, n), ..AddressFacts::default() };
            Network { v4: Some(v4(n.into())), addresses: [own].into(), ..Network::default() }
        });
        let left = Cell::new(u64::MAX);
        let writer = Mortal { memory: HeapMemory::new(PUBLISHED_BYTES), left: &left };
        networks[0].store(&writer, 0);
        let mut before = &networks[0];
        for network in [&networks[1], &networks[2], &networks[0]] {
            for stores in 0.. {
                left.set(stores);
                network.store(&writer, 0);
                let (seen, v4) = (Network::load(&writer.memory, 0), Network::load_v4(&writer.memory, 0));
                assert_eq!(v4, seen.v4, "after {stores} stores");
                if seen == *network {
                    break;
                }
                assert_eq!(seen, *before, "after {stores} stores");
            }
            before = network;
        }
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
