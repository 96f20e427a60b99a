//! The IPv4 header (RFC 791): source, destination, and the length of the packet in its frame.

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{ParseError, checksum};

/// Bytes of a header without options: every header that [`emit`] writes.
pub const HEADER_LEN: usize = 20;

/// The largest payload behind a header without options.
pub const PAYLOAD_MAX: usize = 65535 - HEADER_LEN;

/// The protocol of a packet's payload. Other values are legal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Protocol(pub u8);

/// Congestion as the network marks it: the low two bits of the TOS octet (RFC 3168 §5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ecn {
    /// The transport does not support ECN.
    #[default]
    NotEct = 0,
    /// ECN-capable transport, codepoint 1.
    Ect1 = 1,
    /// ECN-capable transport, codepoint 0.
    Ect0 = 2,
    /// Congestion experienced.
    Ce = 3,
}

/// An IPv4 header. Options are skipped when parsed and never written (RFC 1122 §3.2.1.8 lets a host ignore
/// them).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Source address.
    pub src: u32,
    /// Destination address.
    pub dst: u32,
    /// The protocol of the payload.
    pub protocol: Protocol,
    /// Bytes of the payload; what follows in the frame is padding.
    pub payload_len: u16,
    /// DSCP (6 bits) and ECN (2 bits).
    pub tos: u8,
    /// The number of hops that are left.
    pub ttl: u8,
    /// Identification, for reassembly.
    pub id: u16,
    /// Whether routers must not fragment.
    pub dont_fragment: bool,
    /// Whether further fragments follow.
    pub more_fragments: bool,
    /// The place of the payload in the original, in units of 8 bytes; below 2^13.
    pub fragment_offset: u16,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    version_ihl: u8,
    tos: u8,
    total_len: U16,
    id: U16,
    fragment: U16,
    ttl: u8,
    protocol: u8,
    checksum: U16,
    src: U32,
    dst: U32,
}

const _: () = assert!(size_of::<Layout>() == HEADER_LEN);

/// Reads the header of a packet; `bytes` starts after the Ethernet header and may end in padding.
///
/// Returns the header and its length with options. On success `bytes[len..len + payload_len]` exists. The
/// header checksum is verified (RFC 1122 §3.2.1.2).
#[inline]
pub fn parse(bytes: &[u8]) -> Result<(Header, usize), ParseError> {
    let (header, len) = parse_unverified(bytes)?;
    if len + usize::from(header.payload_len) > bytes.len() {
        return Err(ParseError::Truncated);
    }
    // Nearly every header has no options; a length known to the compiler halves the cost of its sum.
    let sum = match bytes.first_chunk::<HEADER_LEN>() {
        Some(plain) if len == HEADER_LEN => checksum::sum_words(plain),
        _ => checksum::sum(bytes.get(..len).ok_or(ParseError::Truncated)?),
    };
    if !sum.is_valid() {
        return Err(ParseError::BadChecksum);
    }
    Ok((header, len))
}

/// Reads a header that an ICMP error quotes, whose payload may be cut off. The checksum is not verified,
/// because the router that sent the error may have changed TTL or TOS before it quoted the header.
pub fn parse_quoted(bytes: &[u8]) -> Result<(Header, usize), ParseError> {
    parse_unverified(bytes)
}

/// Writes `header` with its checksum at the start of `out`. Panics if `out` is shorter than [`HEADER_LEN`].
///
/// `payload_len` must not exceed [`PAYLOAD_MAX`]; a larger one is a bug of the caller and is written modulo
/// 2^16.
pub fn emit(header: &Header, out: &mut [u8]) -> usize {
    debug_assert!(usize::from(header.payload_len) <= PAYLOAD_MAX);
    let mut fragment = header.fragment_offset & OFFSET_MASK;
    if header.dont_fragment {
        fragment |= DONT_FRAGMENT;
    }
    if header.more_fragments {
        fragment |= MORE_FRAGMENTS;
    }
    let mut raw = Layout {
        version_ihl: 0x45,
        tos: header.tos,
        total_len: U16::new(header.payload_len.wrapping_add(HEADER_LEN as u16)),
        id: U16::new(header.id),
        fragment: U16::new(fragment),
        ttl: header.ttl,
        protocol: header.protocol.0,
        checksum: U16::ZERO,
        src: U32::new(header.src),
        dst: U32::new(header.dst),
    };
    let sum = raw.as_bytes().first_chunk::<HEADER_LEN>().map_or(checksum::Sum::ZERO, checksum::sum_words);
    raw.checksum = U16::new(sum.finish());
    out[..HEADER_LEN].copy_from_slice(raw.as_bytes());
    HEADER_LEN
}

/// Rewrites the header in front of `packet`, the whole packet, from that of its first fragment: length,
/// fragment fields, `congested` as mark, checksum. Fails with [`ParseError::BadLength`] if the whole is
/// longer than a packet can be.
pub fn make_whole(packet: &mut [u8], congested: bool) -> Result<(), ParseError> {
    let total = u16::try_from(packet.len()).map_err(|_| ParseError::BadLength)?;
    let (raw, _) = Layout::mut_from_prefix(packet).map_err(|_| ParseError::Truncated)?;
    let len = usize::from(raw.version_ihl & 0xf) * 4;
    raw.total_len = U16::new(total);
    raw.fragment = U16::ZERO;
    raw.tos |= if congested { Ecn::Ce as u8 } else { 0 };
    raw.checksum = U16::ZERO;
    let sum = checksum::sum(packet.get(..len).ok_or(ParseError::Truncated)?).finish();
    let (raw, _) = Layout::mut_from_prefix(packet).map_err(|_| ParseError::Truncated)?;
    raw.checksum = U16::new(sum);
    Ok(())
}

#[inline]
fn parse_unverified(bytes: &[u8]) -> Result<(Header, usize), ParseError> {
    let (raw, _) = Layout::ref_from_prefix(bytes).map_err(|_| ParseError::Truncated)?;
    if raw.version_ihl >> 4 != 4 {
        return Err(ParseError::Unsupported);
    }
    let len = usize::from(raw.version_ihl & 0xf) * 4;
    let total = usize::from(raw.total_len.get());
    if len < HEADER_LEN || total < len {
        return Err(ParseError::BadLength);
    }
    let fragment = raw.fragment.get();
    let header = Header {
        src: raw.src.get(),
        dst: raw.dst.get(),
        protocol: Protocol(raw.protocol),
        payload_len: (total - len) as u16,
        tos: raw.tos,
        ttl: raw.ttl,
        id: raw.id.get(),
        dont_fragment: fragment & DONT_FRAGMENT != 0,
        more_fragments: fragment & MORE_FRAGMENTS != 0,
        fragment_offset: fragment & OFFSET_MASK,
    };
    Ok((header, len))
}

impl Header {
    /// Returns whether the packet is only a fragment.
    pub const fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }

    /// Returns the congestion mark.
    pub const fn ecn(&self) -> Ecn {
        Ecn::from_tos(self.tos)
    }
}

impl Protocol {
    /// The protocol number of ICMP.
    pub const ICMP: Protocol = Protocol(1);
    /// The protocol number of IGMP.
    pub const IGMP: Protocol = Protocol(2);
    /// The protocol number of TCP.
    pub const TCP: Protocol = Protocol(6);
    /// The protocol number of UDP.
    pub const UDP: Protocol = Protocol(17);
    /// The protocol number of ICMPv6.
    pub const ICMPV6: Protocol = Protocol(58);
}

impl Ecn {
    /// Returns the mark in a TOS octet.
    pub const fn from_tos(tos: u8) -> Ecn {
        match tos & 3 {
            0 => Ecn::NotEct,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }
}

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET_MASK: u16 = 0x1fff;

#[cfg(test)]
mod tests;
