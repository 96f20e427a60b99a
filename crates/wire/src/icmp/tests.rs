use std::vec::Vec;

use proptest::prelude::*;

use super::*;

fn quotation(protocol: Protocol, fragment_offset: u16) -> Vec<u8> {
    let header = ipv4::Header {
        src: 0x0a00_0001,
        dst: 0x0a00_0002,
        protocol,
        payload_len: 1480,
        fragment_offset,
        ..ipv4::Header::default()
    };
    let mut bytes = std::vec![0; ipv4::HEADER_LEN];
    ipv4::emit(&header, &mut bytes);
    bytes.extend_from_slice(&[0x1f, 0x90, 0x9c, 0x40, 1, 2, 3, 4]);
    bytes
}

#[test]
fn a_tcp_quotation_gives_ports_and_sequence_number() {
    let quoted = quoted(&quotation(Protocol::TCP, 0)).unwrap();
    assert_eq!(quoted.source, Endpoint::new(0x0a00_0001, 8080));
    assert_eq!(quoted.destination, Endpoint::new(0x0a00_0002, 40000));
    assert_eq!(quoted.seq, Some(SeqNum(0x0102_0304)));
}

#[test]
fn a_udp_quotation_has_no_sequence_number() {
    let quoted = quoted(&quotation(Protocol::UDP, 0)).unwrap();
    assert_eq!((quoted.source.port, quoted.seq), (8080, None));
}

#[test]
fn seven_bytes_of_transport_header_are_too_few() {
    let bytes = quotation(Protocol::TCP, 0);
    assert_eq!(quoted(&bytes[..27]), Err(ParseError::Truncated));
}

#[test]
fn a_later_fragment_has_no_ports() {
    assert_eq!(quoted(&quotation(Protocol::UDP, 1)), Err(ParseError::Unsupported));
}

#[test]
fn fragmentation_needed_carries_the_mtu_of_the_next_link() {
    let mut bytes = [0; 8];
    let message = Message::Unreachable { code: code::FRAGMENTATION_NEEDED, next_hop_mtu: 1400 };
    emit(&message, &mut bytes);
    assert_eq!(&bytes[..2], &[3, 4]);
    assert_eq!(&bytes[4..], &[0, 0, 0x05, 0x78]);
}

#[test]
fn only_errors_and_strangers_are_errors() {
    assert!(!Message::EchoRequest { id: 0, seq: 0 }.is_error());
    assert!(Message::TimeExceeded { code: 0 }.is_error());
    assert!(Message::Other { kind: 5, code: 0, rest: [0; 4] }.is_error());
    assert!(!Message::Other { kind: 13, code: 0, rest: [0; 4] }.is_error());
}

fn any_message() -> impl Strategy<Value = Message> {
    prop_oneof![
        any::<(u16, u16)>().prop_map(|(id, seq)| Message::EchoRequest { id, seq }),
        any::<(u16, u16)>().prop_map(|(id, seq)| Message::EchoReply { id, seq }),
        any::<(u8, u16)>().prop_map(|(code, next_hop_mtu)| Message::Unreachable { code, next_hop_mtu }),
        any::<u8>().prop_map(|code| Message::TimeExceeded { code }),
        (any::<u8>(), any::<[u8; 4]>()).prop_map(|(code, rest)| Message::Other { kind: 13, code, rest }),
    ]
}

proptest! {
    #[test]
    fn parse_undoes_emit(message in any_message(), payload in prop::collection::vec(any::<u8>(), 0..100)) {
        let mut bytes = std::vec![0; HEADER_LEN];
        bytes.extend_from_slice(&payload);
        emit(&message, &mut bytes);
        prop_assert_eq!(parse(&bytes), Ok((message, HEADER_LEN)));
        let bit = usize::from(payload.len() as u16 * 7) % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(parse(&bytes), Err(ParseError::BadChecksum));
    }

    #[test]
    fn junk_is_judged_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = parse(&bytes);
        let _ = quoted(&bytes);
    }
}
