use std::vec::Vec;

use proptest::prelude::*;

use super::*;

fn packet(payload: &[u8]) -> Vec<u8> {
    let header = Header {
        src: 0x0a00_0001,
        dst: 0x0a00_0002,
        protocol: Protocol::TCP,
        payload_len: payload.len() as u16,
        ttl: 64,
        dont_fragment: true,
        ..Header::default()
    };
    let mut out = std::vec![0; HEADER_LEN];
    emit(&header, &mut out);
    out.extend_from_slice(payload);
    out
}

/// Recomputes the header checksum after a test has changed a field.
fn seal(bytes: &mut [u8]) {
    let len = usize::from(bytes[0] & 0xf) * 4;
    bytes[10..12].fill(0);
    let checksum = checksum::sum(&bytes[..len]).finish();
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
}

#[test]
fn the_checksum_is_that_of_a_captured_header() {
    let captured = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01, 0xc0,
        0xa8, 0x00, 0xc7,
    ];
    let (header, len) = parse_quoted(&captured).unwrap();
    let mut out = [0; HEADER_LEN];
    emit(&header, &mut out);
    assert_eq!((out, len), (captured, HEADER_LEN));
}

#[test]
fn padding_behind_the_packet_is_not_payload() {
    let mut bytes = packet(b"abc");
    bytes.resize(46, 0);
    assert_eq!(parse(&bytes).unwrap().0.payload_len, 3);
}

#[test]
fn a_packet_longer_than_its_frame_is_refused() {
    let bytes = packet(b"abcdef");
    assert_eq!(parse(&bytes[..bytes.len() - 1]), Err(ParseError::Truncated));
}

#[test]
fn a_total_length_inside_the_header_is_refused() {
    let mut bytes = packet(b"abcdef");
    bytes[2..4].copy_from_slice(&19u16.to_be_bytes());
    seal(&mut bytes);
    assert_eq!(parse(&bytes), Err(ParseError::BadLength));
}

#[test]
fn a_header_of_four_words_is_refused() {
    let mut bytes = packet(b"abcdef");
    bytes[0] = 0x44;
    seal(&mut bytes);
    assert_eq!(parse(&bytes), Err(ParseError::BadLength));
}

#[test]
fn another_version_is_refused() {
    let mut bytes = packet(b"");
    bytes[0] = 0x65;
    assert_eq!(parse(&bytes), Err(ParseError::Unsupported));
}

#[test]
fn options_are_skipped_and_covered_by_the_checksum() {
    let mut bytes = packet(b"xyz");
    bytes.splice(20..20, [1, 1, 1, 0]);
    bytes[0] = 0x46;
    bytes[2..4].copy_from_slice(&27u16.to_be_bytes());
    seal(&mut bytes);
    let (header, len) = parse(&bytes).unwrap();
    assert_eq!((len, header.payload_len), (24, 3));
    bytes[21] ^= 1;
    assert_eq!(parse(&bytes), Err(ParseError::BadChecksum));
}

#[test]
fn every_flipped_bit_of_the_header_is_noticed() {
    let bytes = packet(b"payload");
    for bit in 0..HEADER_LEN * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(parse(&bad).is_err(), "bit {bit}");
    }
}

#[test]
fn marks_are_read_from_the_low_bits() {
    assert_eq!([0xfc, 1, 2, 0xff].map(Ecn::from_tos), [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce]);
}

prop_compose! {
    fn any_header()(
        src: u32, dst: u32, protocol: u8, payload_len in 0u16..=1000, tos: u8, ttl: u8, id: u16,
        dont_fragment: bool, more_fragments: bool, fragment_offset in 0u16..0x2000,
    ) -> Header {
        let protocol = Protocol(protocol);
        Header {
            src, dst, protocol, payload_len, tos, ttl, id, dont_fragment, more_fragments, fragment_offset,
        }
    }
}

proptest! {
    #[test]
    fn parse_undoes_emit(header in any_header()) {
        let mut out = std::vec![0; HEADER_LEN + usize::from(header.payload_len)];
        emit(&header, &mut out);
        prop_assert_eq!(parse(&out), Ok((header, HEADER_LEN)));
        prop_assert_eq!(parse_quoted(&out[..HEADER_LEN]), Ok((header, HEADER_LEN)));
    }

    #[test]
    fn what_is_accepted_fits_in_the_frame(
        mut bytes in prop::collection::vec(any::<u8>(), 20..128), len in 0u16..200,
    ) {
        bytes[0] = 0x40 | bytes[0] & 0xf;
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        if usize::from(bytes[0] & 0xf) * 4 <= bytes.len() {
            seal(&mut bytes);
        }
        if let Ok((header, header_len)) = parse(&bytes) {
            prop_assert!(bytes.get(header_len..header_len + usize::from(header.payload_len)).is_some());
        }
    }

    #[test]
    fn junk_is_judged_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = parse(&bytes);
        let _ = parse_quoted(&bytes);
    }
}
