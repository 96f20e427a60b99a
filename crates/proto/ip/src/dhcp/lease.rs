//! Reads and checks the lease that a DHCP server has given (RFC 2131 §3.3, §4.4.5; options: RFC 2132, RFC
//! 3442).

use alloc::string::String;
use alloc::vec::Vec;

use atoll_base::{Duration, Instant, Rng};
use atoll_wire::dhcp::{Message, option};

use crate::addresses::Addresses;
use crate::config::Config;
use crate::config::V4Address;
use crate::link::Cast;

/// A lease: an address for a time, and what the server says about the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The address, and until when we may use it.
    pub address: V4Address,
    /// The address of the server.
    pub server: u32,
    /// T1: when to ask the server for more time; [`Instant::FAR_FUTURE`] means never.
    pub renew_at: Instant,
    /// T2: when to ask all servers for more time.
    pub rebind_at: Instant,
    /// The addresses of DNS resolvers, at most [`Lease::DNS_MAX`].
    pub dns: Vec<u32>,
    /// The domain in which names are looked up; empty if none was given.
    pub domain: String,
}

impl Lease {
    /// The most resolvers that are kept.
    pub const DNS_MAX: usize = 4;
    /// The most octets of a domain name (RFC 1035 §2.3.4).
    pub const DOMAIN_MAX: usize = 253;

    /// Rebuilds a lease of which only the address, its end, the server and the names are known. It is renewed
    /// when half of the time that is left has passed.
    pub fn resumed(now: Instant, address: V4Address, server: u32, dns: Vec<u32>, domain: String) -> Lease {
        let left = address.valid_until.since(now).as_nanos() as u64;
        let after = |part: u64| match address.valid_until {
            Instant::FAR_FUTURE => Instant::FAR_FUTURE,
            _ => now + Duration::from_nanos(left / 8 * part),
        };
        Lease { address, server, renew_at: after(4), rebind_at: after(7), dns, domain }
    }

    /// Reads an offer or acknowledgement; `None` if no host could use the lease. `since` is when it was asked
    /// for, `mtu` that of the link in octets.
    pub(super) fn read(message: &Message<'_>, since: Instant, mtu: u16, rng: &mut Rng) -> Option<Lease> {
        let server = message.word(option::SERVER_IDENTIFIER)?;
        let addr = message.header.your_addr;
        let prefix_len =
            prefix_len(message.word(option::SUBNET_MASK).unwrap_or_else(|| classful_mask(addr)))?;
        let seconds = message.word(option::LEASE_TIME).filter(|seconds| *seconds > 0)?;
        let [renew_at, rebind_at, valid_until] = times(message, since, seconds, rng);
        let offered =
            message.octets(option::MTU).map(u16::from_be_bytes).filter(|mtu| *mtu >= Config::MTU_MIN);
        let address = V4Address {
            addr,
            prefix_len,
            gateway: None,
            mtu: offered.map_or(mtu, |offered| offered.min(mtu)),
            valid_until,
        };
        address.check().ok()?;
        // An unusable gateway is left out; the rest of the lease is valid.
        let gateway = Some(V4Address { gateway: gateway(message), ..address })
            .filter(|address| address.check().is_ok());
        let mut dns = [0; 4 * Lease::DNS_MAX];
        let dns = message.option(option::DNS_SERVERS, &mut dns).unwrap_or_default();
        Some(Lease {
            address: gateway.unwrap_or(address),
            server,
            renew_at,
            rebind_at,
            dns: dns
                .chunks_exact(4)
                .filter_map(|word| word.first_chunk().copied())
                .map(u32::from_be_bytes)
                .collect(),
            domain: domain(message),
        })
    }
}

/// Returns T1, T2 and the end of the lease (RFC 2131 §4.4.5). T1 is made earlier at random, by up to a
/// sixteenth or an hour, so that not all hosts of a network ask at once.
fn times(message: &Message<'_>, since: Instant, seconds: u32, rng: &mut Rng) -> [Instant; 3] {
    if seconds == u32::MAX {
        return [Instant::FAR_FUTURE; 3];
    }
    let millis = u64::from(seconds) * 1000;
    let given = |code| message.word(code).map(|seconds| u64::from(seconds) * 1000);
    let (renew, rebind) = match (given(option::RENEWAL_TIME), given(option::REBINDING_TIME)) {
        (Some(renew), Some(rebind)) if 0 < renew && renew < rebind && rebind < millis => (renew, rebind),
        (Some(renew), None) if 0 < renew && renew < millis * 7 / 8 => (renew, millis * 7 / 8),
        _ => (millis / 2, millis * 7 / 8),
    };
    // T1 is at most an hour earlier, which fits in 32 bits.
    let early = rng.below((renew / 16).min(3_600_000) as u32 + 1);
    [renew - u64::from(early), rebind, millis].map(|millis| since + Duration::from_millis(millis))
}

/// Returns the default router. RFC 3442: where there are classless routes, the router option does not count.
/// Of the classless routes, only the default route is used.
fn gateway(message: &Message<'_>) -> Option<u32> {
    let mut routes = [0; ROUTES_BYTES];
    let Some(mut routes) = message.option(option::CLASSLESS_ROUTES, &mut routes) else {
        return message.word(option::ROUTERS);
    };
    // Each route is the length of a prefix, as many octets of it as that takes, and a router.
    while let Some((&len, rest)) = routes.split_first() {
        let rest = rest.get(usize::from(len.min(32)).div_ceil(8)..)?;
        let (router, rest) = rest.split_first_chunk()?;
        if len == 0 {
            return Some(u32::from_be_bytes(*router));
        }
        routes = rest;
    }
    None
}

/// Returns the domain name if it can be printed and written to a file; otherwise an empty string.
fn domain(message: &Message<'_>) -> String {
    let mut name = [0; Lease::DOMAIN_MAX + 1];
    let name = message.option(option::DOMAIN_NAME, &mut name).unwrap_or_default();
    // The length is that of RFC 2132 §3.14; some servers add a zero octet.
    let name = name.strip_suffix(&[0]).unwrap_or(name);
    let is_fine = |octet: &u8| octet.is_ascii_alphanumeric() || matches!(octet, b'.' | b'-' | b'_');
    let is_name = name.len() <= Lease::DOMAIN_MAX && name.iter().all(is_fine);
    if is_name { String::from_utf8_lossy(name).into_owned() } else { String::new() }
}

/// Returns the prefix length of a mask; `None` if its ones are not all at the front, or there are none.
fn prefix_len(mask: u32) -> Option<u8> {
    let len = mask.leading_ones();
    // The cast cannot truncate: the value is at most 32.
    (len > 0 && mask.checked_shl(len).unwrap_or(0) == 0).then_some(len as u8)
}

/// Returns the mask of the address's class, for servers that send none (RFC 950 §2.1).
const fn classful_mask(addr: u32) -> u32 {
    match addr >> 30 {
        0 | 1 => 0xff00_0000,
        2 => 0xffff_0000,
        _ => 0xffff_ff00,
    }
}

/// Returns whether a server can have this address.
pub(super) fn is_server(addr: u32) -> bool {
    Addresses::none().cast(addr) == Some(Cast::Unicast)
}

/// The most octets of classless routes that are read.
const ROUTES_BYTES: usize = 512;
