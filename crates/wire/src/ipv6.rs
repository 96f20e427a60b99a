//! The IPv6 header and its extension headers (RFC 8200).

use atoll_base::Addr;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ParseError;
use crate::ipv4::{Ecn, Protocol};

/// Bytes of the header; extension headers follow it.
pub const HEADER_LEN: usize = 40;

/// The largest payload (without jumbograms, RFC 2675, which are not supported here).
pub const PAYLOAD_MAX: usize = 65535;

/// The size in octets of packets that every link carries (RFC 8200 §5).
pub const MTU_MIN: u16 = 1280;

/// An IPv6 header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Source address.
    pub src: Addr,
    /// Destination address.
    pub dst: Addr,
    /// The kind of the header that follows: a protocol, or an extension header.
    pub next_header: Protocol,
    /// Bytes behind the header, extension headers included; what follows in the frame is padding.
    pub payload_len: u16,
    /// DSCP (6 bits) and ECN (2 bits).
    pub traffic_class: u8,
    /// The flow label, below 2^20; 0 for none.
    pub flow_label: u32,
    /// The number of hops that are left.
    pub hop_limit: u8,
}

/// The part of a packet behind the extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upper {
    /// The protocol of the rest of the payload.
    pub protocol: Protocol,
    /// The offset of the rest, counted from the end of the fixed header.
    pub at: usize,
    /// The offset of the octet that names the protocol, from the start of the packet.
    pub named_at: usize,
    /// The fragment header, if there is one. An atomic fragment (RFC 6946) is a whole packet; in all others
    /// the rest is only a part.
    pub fragment: Option<Fragment>,
    /// The offset of the octet that names the fragment header, from the start of the packet; 0 if there is
    /// none.
    pub fragment_named_at: usize,
    /// Whether a hop-by-hop option alerts routers because of MLD (RFC 2711 §2.1).
    pub alerts_mld: bool,
}

/// A fragment header (RFC 8200 §4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The offset of the part in the original, in units of 8 bytes.
    pub offset: u16,
    /// Whether further fragments follow.
    pub more: bool,
    /// Identification, for reassembly.
    pub id: u32,
}

/// The reason why a first fragment is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstError {
    /// The chain of headers, or the transport's header, ends in another fragment (RFC 7112 §5).
    Incomplete,
    /// The packet carries another fragment header, or too many headers.
    Malformed,
}

/// The reason why a packet goes no further than its extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtensionError {
    /// The headers do not fit the packet, or there are more than [`EXTENSIONS_MAX`] of them or of their
    /// options.
    Malformed,
    /// An unknown option asks for it (RFC 8200 §4.2), or there is no next header: the packet is dropped.
    Discard,
    /// The packet is dropped, and its sender should get a parameter problem with this code, at this offset
    /// from the start of the packet.
    Problem {
        /// The code; see [`crate::icmpv6::code`].
        code: u8,
        /// The offset of the problem, in octets.
        pointer: u32,
        /// Whether the sender gets the error even if the packet was to a group.
        even_to_groups: bool,
    },
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    version_class_label: U32,
    payload_len: U16,
    next_header: u8,
    hop_limit: u8,
    src: [u8; 16],
    dst: [u8; 16],
}

const _: () = assert!(size_of::<Layout>() == HEADER_LEN);

/// Reads the header of a packet; `bytes` starts after the Ethernet header and may end in padding.
///
/// On success `bytes[40..40 + payload_len]` exists. Extension headers are not read: see [`upper`].
#[inline]
pub fn parse(bytes: &[u8]) -> Result<(Header, usize), ParseError> {
    let (header, len) = parse_quoted(bytes)?;
    if len + usize::from(header.payload_len) > bytes.len() {
        return Err(ParseError::Truncated);
    }
    Ok((header, len))
}

/// Reads a header that an ICMP error quotes: the payload may be cut off.
#[inline]
pub fn parse_quoted(bytes: &[u8]) -> Result<(Header, usize), ParseError> {
    let (raw, _) = Layout::ref_from_prefix(bytes).map_err(|_| ParseError::Truncated)?;
    let first = raw.version_class_label.get();
    if first >> 28 != 6 {
        return Err(ParseError::Unsupported);
    }
    let header = Header {
        src: Addr::from_octets(raw.src),
        dst: Addr::from_octets(raw.dst),
        next_header: Protocol(raw.next_header),
        payload_len: raw.payload_len.get(),
        traffic_class: (first >> 20) as u8,
        flow_label: first & LABEL_MASK,
        hop_limit: raw.hop_limit,
    };
    Ok((header, HEADER_LEN))
}

/// Writes `header` at the start of `out`. Panics if `out` is shorter than [`HEADER_LEN`].
#[inline]
pub fn emit(header: &Header, out: &mut [u8]) -> usize {
    let first = 6 << 28 | u32::from(header.traffic_class) << 20 | header.flow_label & LABEL_MASK;
    let raw = Layout {
        version_class_label: U32::new(first),
        payload_len: U16::new(header.payload_len),
        next_header: header.next_header.0,
        hop_limit: header.hop_limit,
        src: header.src.octets(),
        dst: header.dst.octets(),
    };
    out[..HEADER_LEN].copy_from_slice(raw.as_bytes());
    HEADER_LEN
}

/// Walks over the extension headers in `payload`, the bytes after the fixed header, which may be cut off in a
/// quotation.
///
/// The walk stops at the first header that is no extension header, and behind a fragment header of a part of
/// a packet. Cost: bounded by [`EXTENSIONS_MAX`] headers and as many options in each.
#[inline]
pub fn upper(header: &Header, payload: &[u8]) -> Result<Upper, ExtensionError> {
    match header.next_header {
        protocol @ (Protocol::TCP | Protocol::UDP | Protocol::ICMPV6) => {
            let named_at = NEXT_HEADER_AT;
            Ok(Upper { protocol, at: 0, named_at, fragment: None, fragment_named_at: 0, alerts_mld: false })
        }
        first => walk(first, payload),
    }
}

/// Returns the transport of a packet by its first fragment. `next` is the protocol that the fragment header
/// names; `text` is what follows that header.
///
/// RFC 7112 §5: the first fragment holds all headers, that of the transport included. Faulty options are left
/// to be found when the packet is whole.
pub fn first_fragment(next: Protocol, text: &[u8]) -> Result<Upper, FirstError> {
    let upper = match walk(next, text) {
        Ok(upper) => upper,
        Err(ExtensionError::Malformed) => return Err(FirstError::Incomplete),
        // The sender gets an error, or the packet has no transport.
        Err(ExtensionError::Discard | ExtensionError::Problem { .. }) => {
            let (protocol, at) = (Protocol(NO_NEXT_HEADER), text.len());
            return Ok(Upper {
                protocol,
                at,
                named_at: 0,
                fragment: None,
                fragment_named_at: 0,
                alerts_mld: false,
            });
        }
    };
    let needed = match upper.protocol {
        Protocol::TCP => crate::tcp::HEADER_MIN,
        Protocol::UDP | Protocol::ICMPV6 => 8,
        _ => 0,
    };
    match upper.fragment {
        Some(_) => Err(FirstError::Malformed),
        None if text.len() < upper.at + needed => Err(FirstError::Incomplete),
        None => Ok(upper),
    }
}

/// Rewrites the headers in front of `packet` from those of a first fragment, its fragment header included, to
/// those of the whole, of which `packet` has all other octets: next header, payload length, `congested` as
/// mark. Returns the range of the fragment header, whose octets the caller removes. Fails with
/// [`ParseError::BadLength`] if the whole is longer than a packet can be.
pub fn make_whole(packet: &mut [u8], congested: bool) -> Result<core::ops::Range<usize>, ParseError> {
    let (header, at) = parse_quoted(packet)?;
    let upper = upper(&header, packet.get(at..).ok_or(ParseError::Truncated)?)
        .map_err(|_| ParseError::Unsupported)?;
    let end = HEADER_LEN + upper.at;
    let (Some(_), Some(start)) = (upper.fragment, end.checked_sub(FRAGMENT_LEN)) else {
        return Err(ParseError::Unsupported);
    };
    let len = packet.len().checked_sub(HEADER_LEN + FRAGMENT_LEN).ok_or(ParseError::Truncated)?;
    let len = u16::try_from(len).map_err(|_| ParseError::BadLength)?;
    *packet.get_mut(upper.fragment_named_at).ok_or(ParseError::Truncated)? = upper.protocol.0;
    let (raw, _) = Layout::mut_from_prefix(packet).map_err(|_| ParseError::Truncated)?;
    raw.payload_len = U16::new(len);
    if congested {
        raw.version_class_label = U32::new(raw.version_class_label.get() | (Ecn::Ce as u32) << 20);
    }
    Ok(start..end)
}

/// Writes the fragment header of a part of a packet of `protocol` at the start of `out`; returns
/// [`FRAGMENT_LEN`]. Panics if `out` is shorter than that.
pub fn emit_fragment(protocol: Protocol, fragment: &Fragment, out: &mut [u8]) -> usize {
    let [a, b] = (fragment.offset << 3 | u16::from(fragment.more)).to_be_bytes();
    out[..4].copy_from_slice(&[protocol.0, 0, a, b]);
    out[4..FRAGMENT_LEN].copy_from_slice(&fragment.id.to_be_bytes());
    FRAGMENT_LEN
}

#[inline(never)]
fn walk(first: Protocol, payload: &[u8]) -> Result<Upper, ExtensionError> {
    let mut protocol = first;
    // The offset of the octet that names `protocol`, from the start of the packet.
    let mut named_at = NEXT_HEADER_AT;
    let (mut at, mut fragment, mut fragment_named_at) = (0, None, 0);
    let mut alerts_mld = false;
    for n in 0..=EXTENSIONS_MAX {
        let known = matches!(protocol.0, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION);
        if !known {
            return match protocol.0 {
                NO_NEXT_HEADER => Err(ExtensionError::Discard),
                _ => Ok(Upper { protocol, at, named_at, fragment, fragment_named_at, alerts_mld }),
            };
        }
        let rest = payload.get(at..).ok_or(ExtensionError::Malformed)?;
        let &[next, len, c, d, e, f, g, h] = rest.first_chunk().ok_or(ExtensionError::Malformed)?;
        let size = if protocol.0 == FRAGMENT { 8 } else { (usize::from(len) + 1) * 8 };
        let body = rest.get(2..size).ok_or(ExtensionError::Malformed)?;
        match protocol.0 {
            // RFC 8200 §4.1: hop-by-hop options stand first, or not at all.
            HOP_BY_HOP if n > 0 => {
                let code = crate::icmpv6_code::UNRECOGNIZED_NEXT_HEADER;
                return Err(ExtensionError::Problem {
                    code,
                    pointer: named_at as u32,
                    even_to_groups: false,
                });
            }
            HOP_BY_HOP => alerts_mld = options(body, HEADER_LEN + at + 2)?,
            DESTINATION => _ = options(body, HEADER_LEN + at + 2)?,
            // RFC 8200 §4.4: an unknown routing header is ignored if no segments are left. RFC 5095: type 0
            // no longer exists.
            ROUTING if d != 0 => {
                let (code, pointer) = (crate::icmpv6_code::ERRONEOUS_HEADER, HEADER_LEN + at + 2);
                return Err(ExtensionError::Problem { code, pointer: pointer as u32, even_to_groups: false });
            }
            FRAGMENT => {
                let word = u16::from_be_bytes([c, d]);
                let id = u32::from_be_bytes([e, f, g, h]);
                if fragment.is_some() {
                    return Err(ExtensionError::Malformed);
                }
                let header = Fragment { offset: word >> 3, more: word & 1 == 1, id };
                fragment = Some(header);
                fragment_named_at = named_at;
                if !header.is_atomic() {
                    let (protocol, named_at) = (Protocol(next), HEADER_LEN + at);
                    let at = at + size;
                    return Ok(Upper { protocol, at, named_at, fragment, fragment_named_at, alerts_mld });
                }
            }
            _ => {}
        }
        named_at = HEADER_LEN + at;
        protocol = Protocol(next);
        at += size;
    }
    Err(ExtensionError::Malformed)
}

/// Judges the options of a header, which lie at `start` in the packet. Returns whether one alerts routers
/// because of MLD.
fn options(mut rest: &[u8], start: usize) -> Result<bool, ExtensionError> {
    let whole = rest.len();
    let mut alerts_mld = false;
    for _ in 0..=EXTENSIONS_MAX {
        let Some((&kind, tail)) = rest.split_first() else { return Ok(alerts_mld) };
        if kind == PAD1 {
            // Zeros may be many; the walk over them is no more than the packet is long.
            let zeros = rest.iter().take_while(|byte| **byte == PAD1).count();
            rest = rest.get(zeros..).unwrap_or_default();
            continue;
        }
        let (&len, tail) = tail.split_first().ok_or(ExtensionError::Malformed)?;
        let after = tail.get(usize::from(len)..).ok_or(ExtensionError::Malformed)?;
        if !matches!(kind, PAD_N | ROUTER_ALERT) {
            let pointer = (start + whole - rest.len()) as u32;
            let code = crate::icmpv6_code::UNRECOGNIZED_OPTION;
            match kind >> 6 {
                0 => {}
                1 => return Err(ExtensionError::Discard),
                action => return Err(ExtensionError::Problem { code, pointer, even_to_groups: action == 2 }),
            }
        }
        alerts_mld |=
            kind == ROUTER_ALERT && tail.starts_with(&ALERT_MLD) && usize::from(len) == ALERT_MLD.len();
        rest = after;
    }
    Err(ExtensionError::Malformed)
}

impl Header {
    /// Returns the congestion mark.
    pub const fn ecn(&self) -> Ecn {
        Ecn::from_tos(self.traffic_class)
    }
}

impl Fragment {
    /// Returns whether the fragment is the whole packet (RFC 6946).
    pub const fn is_atomic(&self) -> bool {
        self.offset == 0 && !self.more
    }
}

/// Returns the hardware address of a group (RFC 2464 §7): 33:33 and the last four octets.
pub const fn multicast_mac(group: Addr) -> crate::Mac {
    let [.., a, b, c, d] = group.octets();
    crate::Mac([0x33, 0x33, a, b, c, d])
}

/// The maximum number of extension headers of a packet, and of options of a header, that are read.
pub const EXTENSIONS_MAX: usize = 8;
/// The number of the extension header with options for every hop.
pub const HOP_BY_HOP: u8 = 0;
/// The number of the extension header with options for the destination.
pub const DESTINATION: u8 = 60;
/// The number of the extension header of a fragment.
pub const FRAGMENT: u8 = 44;
/// The size of a fragment header in bytes.
pub const FRAGMENT_LEN: usize = 8;
/// The offset of the payload's length in the header.
pub const PAYLOAD_LEN_AT: usize = 4;
const ROUTING: u8 = 43;
const NO_NEXT_HEADER: u8 = 59;
const PAD1: u8 = 0;
const PAD_N: u8 = 1;
/// The router alert option (RFC 2711).
const ROUTER_ALERT: u8 = 5;
/// The value of the router alert for MLD.
const ALERT_MLD: [u8; 2] = [0, 0];
const NEXT_HEADER_AT: usize = 6;
const LABEL_MASK: u32 = 0xf_ffff;

#[cfg(test)]
mod tests;
