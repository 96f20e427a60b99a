//! The `struct virtio_net_hdr` before every frame of a TAP with `IFF_VNET_HDR` (virtio 1.2 §5.1.6), which
//! says what the link left undone, or has done: 10 bytes, little endian.

use zerocopy::byteorder::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ParseError;

/// Bytes of the header (`TUNSETVNETHDRSZ` left at its default; no merged buffers).
pub const HEADER_LEN: usize = 10;

/// Flag: the checksum at `csum_start + csum_offset` holds only the pseudo header's sum; the receiver of the
/// frame completes it.
pub const NEEDS_CSUM: u8 = 1;
/// Flag: the checksum has been verified.
pub const DATA_VALID: u8 = 2;

/// The way in which a frame larger than the MTU is cut into packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Gso {
    /// The frame is not cut: it is one packet.
    #[default]
    None,
    /// The frame is cut into TCP segments over IPv4, with `gso_size` bytes of payload each.
    TcpV4,
    /// The frame is cut as with `TcpV4`, and the first segment alone carries CWR.
    TcpV4Ecn,
    /// The frame is cut into TCP segments over IPv6.
    TcpV6,
    /// The frame is cut as with `TcpV6`, and the first segment alone carries CWR.
    TcpV6Ecn,
    /// The frame is cut into UDP datagrams of `gso_size` bytes each (USO).
    UdpL4,
}

/// The header before a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The flags [`NEEDS_CSUM`] and [`DATA_VALID`]; unknown bits are kept and mean nothing.
    pub flags: u8,
    /// The way in which the frame is to be cut.
    pub gso: Gso,
    /// Bytes of all headers of a frame to be cut; a hint only.
    pub hdr_len: u16,
    /// Bytes of payload in each piece.
    pub gso_size: u16,
    /// The offset of the checksummed bytes, counted from the Ethernet header.
    pub csum_start: u16,
    /// The offset of the checksum, counted from `csum_start`.
    pub csum_offset: u16,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    flags: u8,
    gso: u8,
    hdr_len: U16,
    gso_size: U16,
    csum_start: U16,
    csum_offset: U16,
}

const _: () = assert!(size_of::<Layout>() == HEADER_LEN);

/// Reads the header; the frame follows it. Fails with [`ParseError::Unsupported`] for a kind of segmentation
/// that this stack never asks for.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<(Header, usize), ParseError> {
    let (raw, _) = Layout::ref_from_prefix(bytes).map_err(|_| ParseError::Truncated)?;
    let gso = match raw.gso {
        GSO_NONE => Gso::None,
        GSO_TCPV4 => Gso::TcpV4,
        GSO_TCPV4_ECN => Gso::TcpV4Ecn,
        GSO_TCPV6 => Gso::TcpV6,
        GSO_TCPV6_ECN => Gso::TcpV6Ecn,
        GSO_UDP_L4 => Gso::UdpL4,
        _ => return Err(ParseError::Unsupported),
    };
    let header = Header {
        flags: raw.flags,
        gso,
        hdr_len: raw.hdr_len.get(),
        gso_size: raw.gso_size.get(),
        csum_start: raw.csum_start.get(),
        csum_offset: raw.csum_offset.get(),
    };
    Ok((header, HEADER_LEN))
}

/// Writes `header` at the start of `out`. Panics if `out` is shorter than [`HEADER_LEN`].
#[inline]
pub fn emit(header: &Header, out: &mut [u8]) -> usize {
    let raw = Layout {
        flags: header.flags,
        gso: match header.gso {
            Gso::None => GSO_NONE,
            Gso::TcpV4 => GSO_TCPV4,
            Gso::TcpV4Ecn => GSO_TCPV4_ECN,
            Gso::TcpV6 => GSO_TCPV6,
            Gso::TcpV6Ecn => GSO_TCPV6_ECN,
            Gso::UdpL4 => GSO_UDP_L4,
        },
        hdr_len: U16::new(header.hdr_len),
        gso_size: U16::new(header.gso_size),
        csum_start: U16::new(header.csum_start),
        csum_offset: U16::new(header.csum_offset),
    };
    out[..HEADER_LEN].copy_from_slice(raw.as_bytes());
    HEADER_LEN
}

impl Header {
    /// Returns whether the receiver of the frame is to complete the checksum.
    pub const fn needs_csum(&self) -> bool {
        self.flags & NEEDS_CSUM != 0
    }

    /// Returns whether the checksum has been verified.
    pub const fn data_valid(&self) -> bool {
        self.flags & DATA_VALID != 0
    }
}

const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;
const GSO_TCPV4_ECN: u8 = GSO_TCPV4 | GSO_ECN;
const GSO_TCPV6_ECN: u8 = GSO_TCPV6 | GSO_ECN;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_tso_header_is_laid_out_as_the_kernel_reads_it() {
        let header = Header {
            flags: NEEDS_CSUM,
            gso: Gso::TcpV4,
            hdr_len: 54,
            gso_size: 1460,
            csum_start: 34,
            csum_offset: 16,
        };
        let mut out = [0; HEADER_LEN];
        emit(&header, &mut out);
        assert_eq!(out, [1, 1, 54, 0, 0xb4, 5, 34, 0, 16, 0]);
    }

    #[test]
    fn segmentation_we_did_not_ask_for_is_refused() {
        for gso in [2, 3, 6, 0x80, 0x85, 0xff] {
            assert_eq!(parse(&[0, gso, 0, 0, 0, 0, 0, 0, 0, 0]), Err(ParseError::Unsupported), "{gso}");
        }
        assert_eq!(parse(&[0; 9]), Err(ParseError::Truncated));
    }

    proptest! {
        #[test]
        fn parse_undoes_emit(
            flags: u8, gso in 0usize..6, hdr_len: u16, gso_size: u16, csum_start: u16, csum_offset: u16,
        ) {
            let gso = [Gso::None, Gso::TcpV4, Gso::TcpV4Ecn, Gso::TcpV6, Gso::TcpV6Ecn, Gso::UdpL4][gso];
            let header = Header { flags, gso, hdr_len, gso_size, csum_start, csum_offset };
            let mut out = [0; HEADER_LEN];
            emit(&header, &mut out);
            prop_assert_eq!(parse(&out), Ok((header, HEADER_LEN)));
        }

        #[test]
        fn junk_is_judged_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..16)) {
            let _ = parse(&bytes);
        }
    }
}
