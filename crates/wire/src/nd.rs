//! The messages of neighbour discovery (RFC 4861), which find stations and routers on the link.

use atoll_base::Addr;

use crate::icmpv6;
use crate::{Mac, ParseError};

/// The hop limit of every message of neighbour discovery: it proves that no router has forwarded the message
/// (RFC 4861 §11.2).
pub const HOP_LIMIT: u8 = 255;

/// The maximum number of prefixes of one advertisement that are read.
pub const PREFIXES_MAX: usize = 8;

/// A message of neighbour discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // A message is read, acted upon and dropped.
pub enum Message {
    /// A host asks for routers.
    RouterSolicitation {
        /// The hardware address of the asker.
        source_mac: Option<Mac>,
    },
    /// A router announces itself and the network.
    RouterAdvertisement(RouterAdvertisement),
    /// A host asks for the station of `target`; from the unspecified address, whether any host has `target`
    /// (RFC 4862 §5.4).
    NeighbourSolicitation {
        /// The address that is asked for.
        target: Addr,
        /// The hardware address of the asker.
        source_mac: Option<Mac>,
    },
    /// A host announces that it has `target`.
    NeighbourAdvertisement {
        /// The address of the host.
        target: Addr,
        /// Whether the sender is a router.
        router: bool,
        /// Whether the sender was asked.
        solicited: bool,
        /// Whether the message overrides what was known before.
        overriding: bool,
        /// The hardware address of the host.
        target_mac: Option<Mac>,
    },
    /// A router announces that `target` is the better way to `destination`.
    Redirect {
        /// The address of another router, or of the destination itself, which then is on this link.
        target: Addr,
        /// The destination of the packet that was sent to the wrong router.
        destination: Addr,
        /// The hardware address of the target.
        target_mac: Option<Mac>,
    },
}

/// The content of a router advertisement (RFC 4861 §4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterAdvertisement {
    /// The hop limit that hosts should use; 0 if it is not specified.
    pub hop_limit: u8,
    /// The seconds for which the sender may be used as a default router; 0 if it may not.
    pub router_lifetime: u16,
    /// The hardware address of the router.
    pub source_mac: Option<Mac>,
    /// The MTU of the link, if it is specified.
    pub mtu: Option<u32>,
    /// Prefixes of the link.
    pub prefixes: Prefixes,
}

/// Up to [`PREFIXES_MAX`] prefixes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefixes {
    list: [PrefixInformation; PREFIXES_MAX],
    count: usize,
}

/// A prefix of the link (RFC 4861 §4.6.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixInformation {
    /// The prefix; bits beyond its length mean nothing.
    pub prefix: Addr,
    /// The length of the prefix in bits, at most 128.
    pub len: u8,
    /// Whether the prefix's addresses are on this link.
    pub on_link: bool,
    /// Whether hosts may make addresses of the prefix.
    pub autonomous: bool,
    /// Seconds for which the prefix is valid; [`u32::MAX`] for ever.
    pub valid_lifetime: u32,
    /// Seconds for which addresses made of the prefix are preferred.
    pub preferred_lifetime: u32,
}

/// Types of the ICMPv6 messages of neighbour discovery.
pub const KINDS: core::ops::RangeInclusive<u8> = ROUTER_SOLICITATION..=REDIRECT;

/// Reads the message in `bytes`, an ICMPv6 message whose checksum has been verified.
///
/// Unknown options are skipped; an option of length 0 makes the message invalid (RFC 4861 §6.1, §7.1).
pub fn parse(bytes: &[u8]) -> Result<Message, ParseError> {
    let &[kind, code, _, _, a, b, c, d] = bytes.first_chunk().ok_or(ParseError::Truncated)?;
    if code != 0 {
        return Err(ParseError::Unsupported);
    }
    let target = || bytes.get(8..).and_then(<[u8]>::first_chunk).map(|octets| Addr::from_octets(*octets));
    let fixed = match kind {
        ROUTER_SOLICITATION => 8,
        ROUTER_ADVERTISEMENT => 16,
        NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT => 24,
        REDIRECT => 40,
        _ => return Err(ParseError::Unsupported),
    };
    let options = options(bytes.get(fixed..).ok_or(ParseError::Truncated)?)?;
    let message = match kind {
        ROUTER_SOLICITATION => Message::RouterSolicitation { source_mac: options.source_mac },
        ROUTER_ADVERTISEMENT => Message::RouterAdvertisement(RouterAdvertisement {
            hop_limit: a,
            router_lifetime: u16::from_be_bytes([c, d]),
            ..options
        }),
        NEIGHBOUR_SOLICITATION => {
            let target = target().filter(|target| !target.is_v6_multicast()).ok_or(ParseError::BadLength)?;
            Message::NeighbourSolicitation { target, source_mac: options.source_mac }
        }
        REDIRECT => {
            let target = target().filter(|target| !target.is_v6_multicast()).ok_or(ParseError::BadLength)?;
            let destination = bytes.get(24..).and_then(<[u8]>::first_chunk).ok_or(ParseError::Truncated)?;
            let target_mac = target_mac(bytes.get(fixed..).unwrap_or_default());
            Message::Redirect { target, destination: Addr::from_octets(*destination), target_mac }
        }
        _ => {
            let target = target().filter(|target| !target.is_v6_multicast()).ok_or(ParseError::BadLength)?;
            Message::NeighbourAdvertisement {
                target,
                router: a & ROUTER != 0,
                solicited: a & SOLICITED != 0,
                overriding: a & OVERRIDE != 0,
                // The target's station is where the source's is in the other messages.
                target_mac: target_mac(bytes.get(fixed..).unwrap_or_default()),
            }
        }
    };
    let _ = b;
    Ok(message)
}

/// Writes `message` at the start of `out`, with its checksum; returns its length. Panics if `out` is shorter
/// than [`MESSAGE_LEN_MAX`].
pub fn emit(src: Addr, dst: Addr, message: &Message, out: &mut [u8]) -> usize {
    out[..MESSAGE_LEN_MAX].fill(0);
    let len = match message {
        Message::RouterSolicitation { source_mac } => {
            out[0] = ROUTER_SOLICITATION;
            emit_mac(SOURCE_LINK_LAYER, *source_mac, out, 8)
        }
        Message::RouterAdvertisement(advertisement) => emit_advertisement(advertisement, out),
        Message::NeighbourSolicitation { target, source_mac } => {
            out[0] = NEIGHBOUR_SOLICITATION;
            out[8..24].copy_from_slice(&target.octets());
            emit_mac(SOURCE_LINK_LAYER, *source_mac, out, 24)
        }
        Message::NeighbourAdvertisement { target, router, solicited, overriding, target_mac } => {
            out[0] = NEIGHBOUR_ADVERTISEMENT;
            let flag = |set: bool, flag: u8| if set { flag } else { 0 };
            out[4] = flag(*router, ROUTER) | flag(*solicited, SOLICITED) | flag(*overriding, OVERRIDE);
            out[8..24].copy_from_slice(&target.octets());
            emit_mac(TARGET_LINK_LAYER, *target_mac, out, 24)
        }
        Message::Redirect { target, destination, target_mac } => {
            out[0] = REDIRECT;
            out[8..24].copy_from_slice(&target.octets());
            out[24..40].copy_from_slice(&destination.octets());
            emit_mac(TARGET_LINK_LAYER, *target_mac, out, 40)
        }
    };
    icmpv6::seal(src, dst, &mut out[..len]);
    len
}

fn emit_advertisement(advertisement: &RouterAdvertisement, out: &mut [u8]) -> usize {
    out[0] = ROUTER_ADVERTISEMENT;
    out[4] = advertisement.hop_limit;
    out[6..8].copy_from_slice(&advertisement.router_lifetime.to_be_bytes());
    let mut at = emit_mac(SOURCE_LINK_LAYER, advertisement.source_mac, out, 16);
    if let Some(mtu) = advertisement.mtu {
        out[at..at + 2].copy_from_slice(&[MTU, 1]);
        out[at + 4..at + 8].copy_from_slice(&mtu.to_be_bytes());
        at += 8;
    }
    for prefix in advertisement.prefixes.as_slice() {
        let flags = (u8::from(prefix.on_link) * ON_LINK) | (u8::from(prefix.autonomous) * AUTONOMOUS);
        out[at..at + 4].copy_from_slice(&[PREFIX_INFORMATION, 4, prefix.len, flags]);
        out[at + 4..at + 8].copy_from_slice(&prefix.valid_lifetime.to_be_bytes());
        out[at + 8..at + 12].copy_from_slice(&prefix.preferred_lifetime.to_be_bytes());
        out[at + 16..at + 32].copy_from_slice(&prefix.prefix.octets());
        at += 32;
    }
    at
}

fn emit_mac(kind: u8, mac: Option<Mac>, out: &mut [u8], at: usize) -> usize {
    let Some(mac) = mac else { return at };
    out[at..at + 2].copy_from_slice(&[kind, 1]);
    out[at + 2..at + 8].copy_from_slice(&mac.0);
    at + 8
}

impl Prefixes {
    /// Returns all prefixes, in their order.
    pub fn as_slice(&self) -> &[PrefixInformation] {
        self.list.get(..self.count).unwrap_or_default()
    }

    /// Adds a prefix; those beyond the maximum are left out.
    pub fn push(&mut self, prefix: PrefixInformation) {
        if let Some(place) = self.list.get_mut(self.count) {
            *place = prefix;
            self.count += 1;
        }
    }
}

/// Returns the group that every host with `addr` is in (RFC 4291 §2.7.1): ff02::1:ff and the last three
/// octets.
pub const fn solicited_node(addr: Addr) -> Addr {
    let [.., a, b, c] = addr.octets();
    Addr::from_octets([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// Collects the options into the shape of an advertisement, which has all of them.
fn options(bytes: &[u8]) -> Result<RouterAdvertisement, ParseError> {
    let mut found = RouterAdvertisement::default();
    for option in each_option(bytes) {
        match *option? {
            [SOURCE_LINK_LAYER, 1, ref mac @ ..] => found.source_mac = mac.first_chunk().map(|mac| Mac(*mac)),
            [MTU, 1, _, _, a, b, c, d] => found.mtu = Some(u32::from_be_bytes([a, b, c, d])),
            [
                PREFIX_INFORMATION,
                4,
                len,
                flags,
                v0,
                v1,
                v2,
                v3,
                p0,
                p1,
                p2,
                p3,
                _,
                _,
                _,
                _,
                ref prefix @ ..,
            ] => {
                let Some(prefix) = prefix.first_chunk().filter(|_| len <= 128) else { continue };
                found.prefixes.push(PrefixInformation {
                    prefix: Addr::from_octets(*prefix),
                    len,
                    on_link: flags & ON_LINK != 0,
                    autonomous: flags & AUTONOMOUS != 0,
                    valid_lifetime: u32::from_be_bytes([v0, v1, v2, v3]),
                    preferred_lifetime: u32::from_be_bytes([p0, p1, p2, p3]),
                });
            }
            _ => {}
        }
    }
    Ok(found)
}

fn target_mac(bytes: &[u8]) -> Option<Mac> {
    each_option(bytes).find_map(|option| match option {
        Ok(&[TARGET_LINK_LAYER, 1, ref mac @ ..]) => mac.first_chunk().map(|mac| Mac(*mac)),
        _ => None,
    })
}

/// Returns each option with its head. A message is at most as long as a packet, so the iterator ends.
fn each_option(bytes: &[u8]) -> impl Iterator<Item = Result<&[u8], ParseError>> {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let len = rest.get(1).map_or(0, |len| usize::from(*len) * 8);
        match rest.split_at_checked(len).filter(|_| len > 0) {
            Some((option, tail)) => {
                rest = tail;
                Some(Ok(option))
            }
            None => {
                rest = &[];
                Some(Err(ParseError::BadLength))
            }
        }
    })
}

/// Bytes of the longest message that [`emit`] writes.
pub const MESSAGE_LEN_MAX: usize = 16 + 8 + 8 + 32 * PREFIXES_MAX;

const ROUTER_SOLICITATION: u8 = 133;
/// Type of router advertisements.
pub const ROUTER_ADVERTISEMENT: u8 = 134;
/// Type of neighbour solicitations.
pub const NEIGHBOUR_SOLICITATION: u8 = 135;
/// Type of neighbour advertisements.
pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
/// Type of redirects.
pub const REDIRECT: u8 = 137;
const SOURCE_LINK_LAYER: u8 = 1;
const TARGET_LINK_LAYER: u8 = 2;
const PREFIX_INFORMATION: u8 = 3;
const MTU: u8 = 5;
const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
const ON_LINK: u8 = 0x80;
const AUTONOMOUS: u8 = 0x40;

#[cfg(test)]
mod tests;
