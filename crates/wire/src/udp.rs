//! The UDP header and its checksum (RFC 768; RFC 1122 §4.1).

use atoll_base::Addr;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ipv4::Protocol;
use crate::{ParseError, checksum};

/// Bytes of a UDP header.
pub const HEADER_LEN: usize = 8;

/// The largest payload of a datagram: 65535 less the header. Over IPv4 the packet's header counts, too, and
/// the limit is 65507.
pub const PAYLOAD_MAX: usize = 65527;

/// A UDP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Source port; 0 means that no answer is expected.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes of the payload, at most [`PAYLOAD_MAX`].
    pub payload_len: u16,
    /// The checksum field as it stands on the wire; 0 means that the sender computed none.
    pub checksum: u16,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    src_port: U16,
    dst_port: U16,
    len: U16,
    checksum: U16,
}

const _: () = assert!(size_of::<Layout>() == HEADER_LEN);

/// Reads the header of the datagram at the start of `bytes` (an IPv4 payload). The checksum is not verified:
/// see [`verify`].
///
/// On success `bytes[8..8 + payload_len]` exists; what follows is ignored.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<(Header, usize), ParseError> {
    let (raw, _) = Layout::ref_from_prefix(bytes).map_err(|_| ParseError::Truncated)?;
    let len = usize::from(raw.len.get());
    if len < HEADER_LEN {
        return Err(ParseError::BadLength);
    }
    if len > bytes.len() {
        return Err(ParseError::Truncated);
    }
    let header = Header {
        src_port: raw.src_port.get(),
        dst_port: raw.dst_port.get(),
        payload_len: (len - HEADER_LEN) as u16,
        checksum: raw.checksum.get(),
    };
    Ok((header, HEADER_LEN))
}

/// Writes `header` at the start of `out`, the checksum field as given. Panics if `out` is shorter than
/// [`HEADER_LEN`].
///
/// To have the checksum computed, lay the payload behind it and call [`seal`]; to leave it to the link, store
/// [`partial`].
pub fn emit(header: &Header, out: &mut [u8]) -> usize {
    debug_assert!(usize::from(header.payload_len) <= PAYLOAD_MAX);
    let raw = Layout {
        src_port: U16::new(header.src_port),
        dst_port: U16::new(header.dst_port),
        len: U16::new(header.payload_len.wrapping_add(HEADER_LEN as u16)),
        checksum: U16::new(header.checksum),
    };
    out[..HEADER_LEN].copy_from_slice(raw.as_bytes());
    HEADER_LEN
}

/// Returns whether `datagram` (header and payload, cut to the length in the header) is intact, or has no
/// checksum (field 0).
pub fn verify(src: u32, dst: u32, datagram: &[u8]) -> bool {
    match datagram {
        [_, _, _, _, _, _, 0, 0, ..] => true,
        _ => checksum::pseudo_header(src, dst, Protocol::UDP.0, datagram.len()).bytes(datagram).is_valid(),
    }
}

/// Computes the checksum of `datagram` (header and payload) and stores it in the header. Panics if `datagram`
/// is shorter than [`HEADER_LEN`]. Source and destination are of one family.
pub fn seal(src: impl Into<Addr>, dst: impl Into<Addr>, datagram: &mut [u8]) {
    datagram[CHECKSUM_AT..HEADER_LEN].fill(0);
    let sum =
        checksum::pseudo_header_of(src.into(), dst.into(), Protocol::UDP.0, datagram.len()).bytes(datagram);
    // RFC 768: a computed zero is sent as all ones, because zero says that there is no checksum.
    let checksum = match sum.finish() {
        0 => 0xffff,
        checksum => checksum,
    };
    datagram[CHECKSUM_AT..HEADER_LEN].copy_from_slice(&checksum.to_be_bytes());
}

/// Returns the content of the checksum field when the link completes it (vnet `NEEDS_CSUM`): the sum of the
/// pseudo header. `len` is the number of bytes of header and payload.
pub const fn partial(src: u32, dst: u32, len: usize) -> u16 {
    checksum::pseudo_header(src, dst, Protocol::UDP.0, len).fold()
}

/// Offset of the checksum field (vnet `csum_offset`).
pub const CHECKSUM_AT: usize = 6;

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn datagram(src: u32, dst: u32, payload: &[u8]) -> Vec<u8> {
        let header = Header { src_port: 53, dst_port: 4000, payload_len: payload.len() as u16, checksum: 0 };
        let mut out = std::vec![0; HEADER_LEN];
        emit(&header, &mut out);
        out.extend_from_slice(payload);
        seal(src, dst, &mut out);
        out
    }

    #[test]
    fn a_datagram_without_checksum_is_taken_as_it_is() {
        let mut bytes = datagram(1, 2, b"hello");
        bytes[6..8].fill(0);
        assert!(verify(1, 2, &bytes));
    }

    #[test]
    fn a_computed_zero_is_sent_as_all_ones() {
        // Find the payload word that makes the sum all ones.
        let bytes =
            (0..=u16::MAX).map(|word| datagram(0, 0, &word.to_be_bytes())).find(|d| d[6..8] == [0xff, 0xff]);
        let bytes = bytes.expect("one payload sums to all ones");
        assert!(verify(0, 0, &bytes));
    }

    #[test]
    fn lengths_outside_the_datagram_are_refused() {
        let mut bytes = datagram(1, 2, b"hello");
        bytes[4..6].copy_from_slice(&7u16.to_be_bytes());
        assert_eq!(parse(&bytes), Err(ParseError::BadLength));
        bytes[4..6].copy_from_slice(&14u16.to_be_bytes());
        assert_eq!(parse(&bytes), Err(ParseError::Truncated));
        assert_eq!(parse(&bytes[..7]), Err(ParseError::Truncated));
    }

    #[test]
    fn the_partial_checksum_completes_to_the_whole() {
        let mut bytes = datagram(7, 9, b"odd payload");
        let sealed = bytes.clone();
        let start = partial(7, 9, bytes.len());
        bytes[6..8].copy_from_slice(&start.to_be_bytes());
        let completed = checksum::sum(&bytes).finish();
        assert_eq!(completed.to_be_bytes(), sealed[6..8]);
    }

    proptest! {
        #[test]
        fn parse_undoes_emit(src_port: u16, dst_port: u16, payload_len in 0u16..600, checksum: u16) {
            let header = Header { src_port, dst_port, payload_len, checksum };
            let mut out = std::vec![0; HEADER_LEN + usize::from(payload_len)];
            emit(&header, &mut out);
            prop_assert_eq!(parse(&out), Ok((header, HEADER_LEN)));
        }

        #[test]
        fn a_flipped_bit_is_noticed(payload in prop::collection::vec(any::<u8>(), 0..80), bit: u16) {
            let mut bytes = datagram(0x0a00_0001, 0x0a00_0002, &payload);
            prop_assert!(verify(0x0a00_0001, 0x0a00_0002, &bytes));
            let bit = usize::from(bit) % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            // The one flip that cannot be noticed turns the field to zero, which means no checksum.
            prop_assert!(bytes[6..8] == [0, 0] || !verify(0x0a00_0001, 0x0a00_0002, &bytes));
        }

        #[test]
        fn junk_is_judged_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse(&bytes);
            let _ = verify(1, 2, &bytes);
        }
    }
}
