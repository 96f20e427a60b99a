use atoll_base::{Endpoint, FourTuple, SeqNum};
use atoll_wire::icmp::{self as wire_icmp, Message, code};

use super::*;
use crate::{ErrorKind, NetworkError};

fn message(message: Message, body: &[u8]) -> Build {
    let mut bytes = std::vec![0; 8];
    bytes.extend_from_slice(body);
    wire_icmp::emit(&message, &mut bytes);
    packet(Protocol::ICMP, &bytes)
}

/// Returns the first 28 octets of a segment that we sent from port 80 to port 40000 of `dst`.
fn ours(protocol: Protocol, dst: u32) -> Vec<u8> {
    let header =
        ipv4::Header { src: US, dst, protocol, payload_len: 1480, ttl: 60, ..ipv4::Header::default() };
    let mut bytes = std::vec![0; 20];
    ipv4::emit(&header, &mut bytes);
    bytes.extend_from_slice(&[0, 80, 0x9c, 0x40, 0, 0, 0x30, 0x39]);
    bytes
}

/// An ICMP packet that was sent.
struct Sent {
    link: Link,
    to: Mac,
    header: ipv4::Header,
    message: Message,
    body: Vec<u8>,
}

/// Returns the next frame, which must be ICMP.
fn next_icmp(ip: &mut Ip) -> Sent {
    let frame = ip.poll_frame().unwrap();
    let (ethernet, at) = ethernet::parse(&frame.bytes).unwrap();
    let (header, len) = ipv4::parse(&frame.bytes[at..]).unwrap();
    assert_eq!((header.protocol, ethernet.src), (Protocol::ICMP, MAC_US));
    let (message, head) = wire_icmp::parse(&frame.bytes[at + len..]).unwrap();
    Sent {
        link: frame.link,
        to: ethernet.dst,
        header,
        message,
        body: frame.bytes[at + len + head..].to_vec(),
    }
}

#[test]
fn an_echo_request_is_answered_with_its_data() {
    let mut ip = ip();
    let request =
        message(Message::EchoRequest { id: 7, seq: 9 }, b"0123456789abcdef").with(|b| b.header.tos = 0xb9);
    assert_eq!(receive(&mut ip, &request.frame()), Received::Consumed);
    let sent = next_icmp(&mut ip);
    assert_eq!((sent.link, sent.to), (Link::Outside, MAC_PEER));
    assert_eq!((sent.header.src, sent.header.dst, sent.header.tos), (US, PEER, 0xb8));
    assert_eq!(sent.message, Message::EchoReply { id: 7, seq: 9 });
    assert_eq!(sent.body, b"0123456789abcdef");
}

#[test]
fn an_echo_request_from_inside_is_answered_inside() {
    let mut ip = ip();
    let request = message(Message::EchoRequest { id: 1, seq: 1 }, b"x").with(|b| {
        b.src_mac = MAC_US;
        b.header.src = 0x7f00_0001;
        b.header.dst = 0x7f00_0001;
    });
    let frame = request.frame();
    assert_eq!(ip.handle_frame(at(0), Link::Inside, &frame, ChecksumOffload::Valid), Received::Consumed);
    let sent = next_icmp(&mut ip);
    assert_eq!((sent.link, sent.to, sent.header.dst), (Link::Inside, MAC_US, 0x7f00_0001));
}

#[test]
fn an_echo_request_to_everybody_is_not_answered() {
    let mut ip = ip();
    let request = message(Message::EchoRequest { id: 1, seq: 1 }, b"x").with(|b| {
        b.dst_mac = Mac::BROADCAST;
        b.header.dst = 0xc612_00ff;
    });
    assert_eq!(receive(&mut ip, &request.frame()), Received::Dropped(Reason::Broadcast));
    assert_eq!(ip.poll_frame(), None);
}

#[test]
fn a_flood_of_echo_requests_is_answered_in_part() {
    let mut ip = ip();
    let request = message(Message::EchoRequest { id: 1, seq: 1 }, b"x").frame();
    for _ in 0..5_000 {
        receive(&mut ip, &request);
        ip.poll_frame();
    }
    assert_eq!(ip.counters().echoes, 1_000);
    assert_eq!(ip.counters().dropped(Reason::EchoLimit), 4_000);
}

#[test]
fn fragmentation_needed_is_given_up_with_mtu_and_sequence_number() {
    let mut ip = ip();
    let error = Message::Unreachable { code: code::FRAGMENTATION_NEEDED, next_hop_mtu: 1400 };
    let frame = message(error, &ours(Protocol::TCP, FAR)).frame();
    let expected = NetworkError {
        kind: ErrorKind::FragNeeded { mtu: 1400 },
        protocol: Protocol::TCP,
        tuple: FourTuple { local: Endpoint::new(US, 80), remote: Endpoint::new(FAR, 40000) },
        quoted_seq: Some(SeqNum(12345)),
        quoted: [0, 80, 0x9c, 0x40, 0, 0, 0x30, 0x39],
        reporter: PEER.into(),
        hops: 60,
    };
    assert!(matches!(receive(&mut ip, &frame), Received::Error(error, _) if error == expected));
}

#[test]
fn a_packet_that_fits_was_not_too_large() {
    // RFC 5927 §7.2: the message contradicts itself.
    for (told, believed) in [(1500, true), (1501, false), (9000, false)] {
        let error = Message::Unreachable { code: code::FRAGMENTATION_NEEDED, next_hop_mtu: told };
        let frame = message(error, &ours(Protocol::TCP, FAR)).frame();
        let received = ip().handle_frame(at(0), Link::Outside, &frame, ChecksumOffload::Unknown);
        assert_eq!(matches!(received, Received::Error(..)), believed, "{told}: {received:?}");
    }
}

#[test]
fn mtus_that_are_missing_or_absurd_are_replaced() {
    let mut ip = ip();
    for (told, taken) in [(0, 1492), (1, 68), (67, 68), (68, 68)] {
        let error = Message::Unreachable { code: code::FRAGMENTATION_NEEDED, next_hop_mtu: told };
        let frame = message(error, &ours(Protocol::TCP, FAR)).frame();
        match receive(&mut ip, &frame) {
            Received::Error(error, _) => {
                assert_eq!(error.kind, ErrorKind::FragNeeded { mtu: taken }, "{told}")
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_error_about_a_packet_of_another_host_is_dropped() {
    let mut ip = ip();
    let mut quotation = ours(Protocol::TCP, FAR);
    quotation[12..16].copy_from_slice(&PEER.to_be_bytes());
    let frame = message(Message::Unreachable { code: code::PORT, next_hop_mtu: 0 }, &quotation).frame();
    assert_eq!(receive(&mut ip, &frame), Received::Dropped(Reason::IcmpNotAboutUs));
}

#[test]
fn errors_of_every_kind_are_passed_on() {
    // covers: RFC 1122 §3.2.2.1, §3.2.2.4
    let lost = |kind, code| ErrorKind::Lost { kind, code, info: 0 };
    let unreachable = (0..=15).filter(|code| *code != code::FRAGMENTATION_NEEDED);
    let unreachable = unreachable
        .map(|code| (Message::Unreachable { code, next_hop_mtu: 0 }, lost(3, code)))
        .chain([0, 2].map(|code| (Message::TimeExceeded { code }, lost(11, code))));
    for (said, kind) in unreachable {
        for protocol in [Protocol::TCP, Protocol::UDP] {
            let frame = message(said, &ours(protocol, FAR)).frame();
            match receive(&mut ip(), &frame) {
                Received::Error(error, _) => assert_eq!((error.kind, error.protocol), (kind, protocol)),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_parameter_problem_is_passed_on() {
    // covers: RFC 1122 §3.2.2.5
    let frame =
        message(Message::Other { kind: 12, code: 0, rest: [20, 0, 0, 0] }, &ours(Protocol::TCP, FAR)).frame();
    match receive(&mut ip(), &frame) {
        Received::Error(error, _) => assert_eq!(error.kind, ErrorKind::Lost { kind: 12, code: 0, info: 20 }),
        other => panic!("{other:?}"),
    }
}

#[test]
fn source_quench_is_no_more_than_passed_on() {
    let mut ip = ip();
    let frame = message(Message::Other { kind: 4, code: 0, rest: [0; 4] }, &ours(Protocol::TCP, FAR)).frame();
    match receive(&mut ip, &frame) {
        Received::Error(error, _) => assert_eq!(error.kind, ErrorKind::Lost { kind: 4, code: 0, info: 0 }),
        other => panic!("{other:?}"),
    }
    assert_eq!(ip.poll_frame(), None);
}

#[test]
fn messages_that_nobody_knows_are_dropped() {
    for kind in [1, 13, 15, 17, 200] {
        let said = Message::Other { kind, code: 0, rest: [0; 4] };
        let mut ip = ip();
        let frame = message(said, &ours(Protocol::TCP, FAR)).frame();
        let received = receive(&mut ip, &frame);
        assert_eq!((received, ip.poll_frame()), (Received::Dropped(Reason::IcmpIgnored), None), "{kind}");
    }
}

#[test]
fn errors_that_are_nobodys_are_dropped() {
    let unknown = (16..=255).map(|code| Message::Unreachable { code, next_hop_mtu: 0 });
    for said in unknown.chain([Message::TimeExceeded { code: 1 }]) {
        let frame = message(said, &ours(Protocol::UDP, FAR)).frame();
        assert_eq!(receive(&mut ip(), &frame), Received::Dropped(Reason::IcmpIgnored), "{said:?}");
    }
}

#[test]
fn a_port_unreachable_quotes_the_datagram() {
    let mut ip = ip();
    let frame = udp_packet(&[5; 1000]).frame();
    ip.unreachable(at(0), Link::Outside, &frame, code::PORT);
    let sent = next_icmp(&mut ip);
    assert_eq!((sent.to, sent.header.src, sent.header.dst), (MAC_PEER, US, PEER));
    assert_eq!(sent.message, Message::Unreachable { code: code::PORT, next_hop_mtu: 0 });
    assert_eq!(sent.body, frame[14..14 + 548], "576 bytes in all");
    assert_eq!(ip.counters().errors_out, 1);
}

#[test]
fn padding_of_a_short_frame_is_not_quoted() {
    let mut ip = ip();
    let mut frame = udp_packet(b"a").frame();
    let whole = frame.len();
    frame.resize(60, 0xee);
    ip.unreachable(at(0), Link::Outside, &frame, code::PORT);
    assert_eq!(next_icmp(&mut ip).body, frame[14..whole]);
}

#[test]
fn silence_where_errors_are_forbidden() {
    // RFC 1122 §3.2.2: no error is sent about an ICMP error, a broadcast at either layer, a later fragment,
    // or a source that is no single host.
    let udp = || udp_packet(b"text");
    let forbidden = [
        message(Message::TimeExceeded { code: 0 }, &ours(Protocol::UDP, FAR)),
        udp().with(|b| b.dst_mac = Mac::BROADCAST),
        udp().with(|b| b.header.dst = 0xc612_00ff),
        udp().with(|b| b.header.fragment_offset = 1),
        udp().with(|b| b.header.src = 0),
        udp().with(|b| b.header.src = 0xc612_00ff),
        udp().with(|b| b.header.src = 0x7f00_0001),
        udp().with(|b| b.header.src = 0xe000_0001),
        udp().with(|b| b.src_mac = Mac::BROADCAST),
    ];
    let mut ip = ip();
    for build in &forbidden {
        ip.unreachable(at(0), Link::Outside, &build.frame(), code::PORT);
    }
    ip.unreachable(at(0), Link::Outside, b"no frame", code::PORT);
    assert_eq!(ip.poll_frame(), None);
    assert_eq!(ip.counters().errors_suppressed, forbidden.len() as u64 + 1);
}

#[test]
fn errors_are_limited() {
    let mut ip = ip();
    let frame = udp_packet(b"text").frame();
    for _ in 0..1000 {
        ip.unreachable(at(0), Link::Outside, &frame, code::PORT);
        ip.poll_frame();
    }
    assert!((33..=100).contains(&ip.counters().errors_out), "{}", ip.counters().errors_out);
}

#[test]
fn an_unknown_protocol_is_answered_with_protocol_unreachable() {
    let mut ip = ip();
    let frame = packet(Protocol(99), b"12345678").frame();
    assert_eq!(receive(&mut ip, &frame), Received::Dropped(Reason::UnknownProtocol));
    assert_eq!(next_icmp(&mut ip).message, Message::Unreachable { code: code::PROTOCOL, next_hop_mtu: 0 });
}
