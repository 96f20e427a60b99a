//! The Ethernet II header of a frame; 802.3 lengths and 802.1Q tags are not supported.

use core::fmt;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ParseError;

/// Bytes of an Ethernet header.
pub const HEADER_LEN: usize = 14;

/// A hardware address.
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(transparent)]
pub struct Mac(pub [u8; 6]);

/// The protocol of a frame's payload. Other values are legal, and frames with them are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

/// An Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The station (or group) that shall take the frame.
    pub dst: Mac,
    /// The station that sent it.
    pub src: Mac,
    /// The protocol of the payload behind the header.
    pub ethertype: EtherType,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    dst: Mac,
    src: Mac,
    ethertype: U16,
}

const _: () = assert!(size_of::<Layout>() == HEADER_LEN);

/// Reads the header of `frame`.
#[inline]
pub fn parse(frame: &[u8]) -> Result<(Header, usize), ParseError> {
    let (raw, _) = Layout::ref_from_prefix(frame).map_err(|_| ParseError::Truncated)?;
    let header = Header { dst: raw.dst, src: raw.src, ethertype: EtherType(raw.ethertype.get()) };
    Ok((header, HEADER_LEN))
}

/// Writes `header` at the start of `out`. Panics if `out` is shorter than [`HEADER_LEN`].
#[inline]
pub fn emit(header: &Header, out: &mut [u8]) -> usize {
    let raw = Layout { dst: header.dst, src: header.src, ethertype: U16::new(header.ethertype.0) };
    out[..HEADER_LEN].copy_from_slice(raw.as_bytes());
    HEADER_LEN
}

impl EtherType {
    /// The type of IPv4.
    pub const IPV4: EtherType = EtherType(0x0800);
    /// The type of ARP.
    pub const ARP: EtherType = EtherType(0x0806);
    /// The type of IPv6.
    pub const IPV6: EtherType = EtherType(0x86dd);
}

impl Mac {
    /// Every station on the link.
    pub const BROADCAST: Mac = Mac([0xff; 6]);
    /// No station: "not known" in ARP requests, and the address of loopback frames.
    pub const ZERO: Mac = Mac([0; 6]);

    /// Returns whether the address is a group, broadcast included.
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// Returns whether the address is the broadcast address.
    pub fn is_broadcast(self) -> bool {
        self == Mac::BROADCAST
    }

    /// Returns whether one station can have the address: neither a group nor all zeros.
    pub fn is_station(self) -> bool {
        !self.is_group() && self != Mac::ZERO
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn thirteen_bytes_are_too_few() {
        assert_eq!(parse(&[0; 13]), Err(ParseError::Truncated));
    }

    #[test]
    fn groups_are_told_from_stations() {
        assert!(Mac::BROADCAST.is_broadcast() && Mac::BROADCAST.is_group());
        assert!(Mac([1, 0, 0x5e, 0, 0, 1]).is_group() && !Mac([1, 0, 0x5e, 0, 0, 1]).is_broadcast());
        assert!(Mac([2, 0, 0, 0, 0, 1]).is_station() && !Mac::ZERO.is_station());
    }

    proptest! {
        #[test]
        fn parse_undoes_emit(dst: [u8; 6], src: [u8; 6], ethertype: u16) {
            let header = Header { dst: Mac(dst), src: Mac(src), ethertype: EtherType(ethertype) };
            let mut out = [0; HEADER_LEN];
            emit(&header, &mut out);
            prop_assert_eq!(parse(&out), Ok((header, HEADER_LEN)));
        }
    }
}
