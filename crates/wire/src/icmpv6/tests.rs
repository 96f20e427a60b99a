use std::vec::Vec;

use proptest::prelude::*;

use super::*;

const US: Addr = Addr::from_octets([0x20; 16]);
const PEER: Addr = Addr::from_octets([0x21; 16]);

fn message(message: Message, body: &[u8]) -> Vec<u8> {
    let mut out = std::vec![0; HEADER_LEN];
    out.extend_from_slice(body);
    emit(PEER, US, &message, &mut out);
    out
}

#[test]
fn the_checksum_covers_the_addresses() {
    let bytes = message(Message::EchoRequest { id: 1, seq: 2 }, b"odd");
    assert_eq!(parse(PEER, US, &bytes), Ok((Message::EchoRequest { id: 1, seq: 2 }, 8)));
    assert_eq!(parse(US, US, &bytes), Err(ParseError::BadChecksum));
    // A message of Linux: ping6 from fe80::1 to fe80::2.
    let (a, b) = (addr("fe80::1"), addr("fe80::2"));
    let mut echo = [0x80, 0, 0, 0, 0x12, 0x34, 0, 1];
    seal(a, b, &mut echo);
    // fe80 + 1 + fe80 + 2 + 8 + 58 + 8000 + 1234 + 1, carries folded in, complemented.
    assert_eq!(echo[2..4], [0x70, 0x83]);
}

fn addr(text: &str) -> Addr {
    text.parse::<core::net::Ipv6Addr>().unwrap().into()
}

#[test]
fn an_error_quotes_the_flow_behind_extension_headers() {
    let header = ipv6::Header {
        src: US,
        dst: PEER,
        next_header: Protocol(60),
        payload_len: 100,
        ..Default::default()
    };
    let mut packet = std::vec![0; 40];
    ipv6::emit(&header, &mut packet);
    packet.extend([6, 0, 1, 4, 0, 0, 0, 0, 0, 80, 1, 0, 1, 2, 3, 4]);
    let quoted = quoted(&packet).unwrap();
    assert_eq!((quoted.source, quoted.destination), (Endpoint::at(US, 80), Endpoint::at(PEER, 256)));
    assert_eq!((quoted.protocol, quoted.seq), (Protocol::TCP, Some(SeqNum(0x0102_0304))));
    assert_eq!(super::quoted(&packet[..50]), Err(ParseError::Truncated));
}

#[test]
fn errors_are_the_types_below_128() {
    assert!(Message::PacketTooBig { mtu: 1280 }.is_error());
    assert!(Message::Other { kind: 127, code: 0, rest: [0; 4] }.is_error());
    assert!(!Message::Other { kind: 135, code: 0, rest: [0; 4] }.is_error());
    assert!(!Message::EchoReply { id: 0, seq: 0 }.is_error());
}

proptest! {
    #[test]
    fn what_is_parsed_is_emitted_again(
        kind: u8, code: u8, rest: [u8; 4], body in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let bytes = message(Message::Other { kind, code, rest }, &body);
        let (parsed, _) = parse(PEER, US, &bytes).unwrap();
        let again = message(parsed, &body);
        prop_assert_eq!(parse(PEER, US, &again), Ok((parsed, HEADER_LEN)));
    }

    #[test]
    fn junk_is_judged_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        let _ = parse(PEER, US, &bytes);
        let _ = quoted(&bytes);
    }
}
