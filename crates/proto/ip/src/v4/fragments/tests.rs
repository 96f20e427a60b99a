use std::vec::Vec;

use atoll_base::Endpoint;
use atoll_wire::icmp::{self, Message};
use atoll_wire::ipv4::Header;

use super::*;
use crate::ip::tests::{Build, MAC_PEER, MAC_US, PEER, US, at, ip, packet, receive, tcp_packet, udp_packet};
use crate::{ChecksumOffload, Config, Frame, HEADERS_LEN, Ip, Outgoing, Part, parts};

/// Returns the fragments of a packet, with `room` octets in each.
fn torn(build: &Build, room: usize) -> Vec<Vec<u8>> {
    let whole = build.payload.clone();
    let fragment = |part: Part| {
        let fragment = build.clone().with(|b| {
            b.header.id = 77;
            b.header.more_fragments = part.more;
            b.header.fragment_offset = (part.offset / 8) as u16;
            b.payload = whole[part.offset..][..part.len].to_vec();
        });
        fragment.frame()
    };
    parts(Addr::V4_ANY, whole.len(), 0, (room + ipv4::HEADER_LEN) as u16).map(fragment).collect()
}

/// Lets fragments arrive, none of which may be refused; returns the packet that they make.
fn rejoin(ip: &mut Ip, fragments: &[Vec<u8>]) -> Option<Frame> {
    for fragment in fragments {
        assert_eq!(receive(ip, fragment), Received::Consumed);
    }
    ip.poll_whole()
}

#[test]
fn parts_fit_and_cover_everything() {
    let found: Vec<_> = parts(Addr::V4_ANY, 3000, 0, 1500).collect();
    assert_eq!(
        found,
        [
            Part { offset: 0, len: 1480, more: true },
            Part { offset: 1480, len: 1480, more: true },
            Part { offset: 2960, len: 40, more: false }
        ]
    );
    assert_eq!(parts(Addr::V4_ANY, 3000, 1480, 1500).collect::<Vec<_>>(), found[1..]);
    for (len, mtu) in [(1, 68), (65_515, 68), (65_515, 1501), (1480, 1500), (1481, 1500)] {
        let mut at = 0;
        for part in parts(Addr::V4_ANY, len, 0, mtu) {
            assert_eq!(part.offset, at);
            assert!(part.len + ipv4::HEADER_LEN <= usize::from(mtu) && part.more == (at + part.len < len));
            assert!(part.len.is_multiple_of(8) || !part.more);
            at += part.len;
        }
        assert_eq!(at, len);
    }
}

#[test]
fn a_datagram_in_fragments_is_a_datagram() {
    let mut ip = ip();
    let text: Vec<u8> = (0..5000u32).map(|n| n as u8).collect();
    let mut fragments = torn(&udp_packet(&text), 1480);
    fragments.reverse();
    let whole = rejoin(&mut ip, &fragments).expect("all fragments are there");
    match ip.handle_frame(at(0), whole.link, &whole.bytes, ChecksumOffload::Unknown) {
        Received::Udp { src, payload, .. } => {
            assert_eq!((src, payload), (Endpoint::new(PEER, 4000), &text[..]))
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((ip.counters().fragments_in, ip.counters().reassembled), (4, 1));
}

#[test]
fn a_segment_in_fragments_is_a_segment() {
    let mut build = tcp_packet();
    build.payload.resize(100, 5);
    build.seal_tcp();
    let mut ip = ip();
    let whole = rejoin(&mut ip, &torn(&build, 64)).expect("all fragments are there");
    let received = ip.handle_frame(at(0), whole.link, &whole.bytes, ChecksumOffload::Unknown);
    assert!(matches!(received, Received::Tcp { segment, .. } if segment == build.payload), "{received:?}");
}

#[test]
fn the_longest_packet_is_the_longest() {
    let mut ip = ip();
    let fragments = torn(&udp_packet(&std::vec![1; 65_507]), 1480);
    assert!(rejoin(&mut ip, &fragments).is_some_and(|whole| whole.bytes.len() == 14 + 65_535));
    // The last fragment has one octet more.
    let beyond = packet(Protocol::UDP, &[0; 12]).with(|b| b.header.fragment_offset = 8190).frame();
    assert_eq!(receive(&mut ip, &beyond), Received::Dropped(Reason::FragmentMalformed));
}

#[test]
fn options_of_the_first_fragment_stay_and_count() {
    // The first fragment has a header of 24 octets: the packet may be 65511 octets long behind it, and not
    // one more.
    for (last, fits) in [(65_511, true), (65_512, false)] {
        let mut ip = ip();
        let mut fragments = torn(&packet(Protocol(99), &std::vec![3; last]), 16_000);
        let first = &mut fragments[0];
        first.splice(34..34, [1, 1, 1, 1]);
        first[14] = 0x46;
        let total = (first.len() - 14) as u16;
        first[16..18].copy_from_slice(&total.to_be_bytes());
        first[24..26].fill(0);
        let sum = atoll_wire::checksum::sum(&first[14..38]).finish();
        first[24..26].copy_from_slice(&sum.to_be_bytes());
        let (last, others) = fragments.split_last().unwrap();
        assert_eq!(rejoin(&mut ip, others), None);
        let received = receive(&mut ip, last);
        assert_eq!(received == Received::Consumed, fits, "{received:?}");
        assert_eq!(ip.poll_whole().map(|whole| whole.bytes[14]), fits.then_some(0x46));
    }
}

#[test]
fn tcp_headers_are_not_torn_apart() {
    // RFC 1858 §3.1, §3.2.1; RFC 3128 §2.
    let mut long = tcp_packet();
    long.payload.resize(64, 0);
    for (offset, len, refused) in
        [(0, 8, true), (0, 16, true), (0, 24, false), (1, 24, true), (2, 24, true), (3, 24, false)]
    {
        let fragment = long.clone().with(|b| {
            b.header.more_fragments = true;
            b.header.fragment_offset = offset;
            b.payload.truncate(len);
        });
        let expected = if refused { Received::Dropped(Reason::FragmentTiny) } else { Received::Consumed };
        assert_eq!(receive(&mut ip(), &fragment.frame()), expected, "offset {offset}, {len} octets");
    }
}

#[test]
fn fragments_are_refused_for_their_reason() {
    let fragment = |offset: u16, len: usize, more: bool| {
        packet(Protocol::UDP, &std::vec![0; len])
            .with(|b| {
                b.header.fragment_offset = offset;
                b.header.more_fragments = more;
            })
            .frame()
    };
    for (frame, reason) in [
        (fragment(1, 16, true), Reason::FragmentDuplicate),
        (fragment(0, 12, true), Reason::FragmentMalformed),
        (fragment(2, 16, true), Reason::FragmentOverlap),
    ] {
        let mut ip = ip();
        assert_eq!(receive(&mut ip, &fragment(1, 16, true)), Received::Consumed);
        assert_eq!(receive(&mut ip, &frame), Received::Dropped(reason));
        assert_eq!(ip.counters().dropped(reason), 1);
    }
}

#[test]
fn inside_and_outside_do_not_mix() {
    let mut ip = ip();
    let [first, last] = torn(&udp_packet(&[9; 24]), 24).try_into().unwrap();
    assert_eq!(receive(&mut ip, &first), Received::Consumed);
    // From inside, only our own addresses are accepted.
    let inside = ip.handle_frame(at(0), Link::Inside, &last, ChecksumOffload::Unknown);
    assert_eq!(inside, Received::Dropped(Reason::Martian));
    assert_eq!(ip.poll_whole(), None);
}

#[test]
fn the_sender_is_told_that_fragments_are_missing() {
    // RFC 1122 §3.3.2: the error is sent only if the first fragment has arrived.
    for (index, told) in [(0, true), (1, false)] {
        let mut ip = ip();
        let fragments = torn(&udp_packet(&[4; 3000]), 1480);
        receive(&mut ip, &fragments[index]);
        assert_eq!(ip.next_timeout(), Some(at(30_000)));
        ip.handle_timeout(at(30_000));
        assert_eq!((ip.counters().reassembly_timeouts, ip.next_timeout()), (1, None));
        let Some(frame) = ip.poll_frame() else {
            assert!(!told);
            continue;
        };
        assert!(told);
        let (header, len) = ipv4::parse(&frame.bytes[14..]).unwrap();
        assert_eq!((header.dst, header.protocol), (PEER, Protocol::ICMP));
        let (message, len) = icmp::parse(&frame.bytes[14 + len..]).map(|(m, n)| (m, 14 + len + n)).unwrap();
        assert_eq!(message, Message::TimeExceeded { code: 1 });
        assert_eq!(frame.bytes[len..], fragments[0][14..][..548]);
    }
}

#[test]
fn a_long_echo_is_answered_in_fragments() {
    let mut text = std::vec![0; 8];
    text.extend((0..20_000u32).map(|n| n as u8));
    icmp::emit(&icmp::Message::EchoRequest { id: 1, seq: 2 }, &mut text);
    let mut ip = ip();
    let request = packet(Protocol::ICMP, &text);
    let whole = rejoin(&mut ip, &torn(&request, 1480)).expect("all fragments are there");
    assert_eq!(
        ip.handle_frame(at(0), whole.link, &whole.bytes, ChecksumOffload::Unknown),
        Received::Consumed
    );
    // The other end can reassemble what we send.
    let mut peer = Ip::new(Config::new(MAC_PEER, PEER, 24), 1, at(0)).unwrap();
    let mut count = 0;
    while let Some(frame) = ip.poll_frame() {
        assert!(frame.bytes.len() <= 14 + 1500);
        assert_eq!(receive(&mut peer, &frame.bytes), Received::Consumed);
        count += 1;
    }
    assert_eq!(count, 14);
    let reply = peer.poll_whole().expect("all fragments were sent");
    let (message, _) = icmp::parse(&reply.bytes[34..]).unwrap();
    assert_eq!((message, &reply.bytes[42..]), (icmp::Message::EchoReply { id: 1, seq: 2 }, &text[8..]));
}

#[test]
fn a_fragment_says_where_it_belongs() {
    let ip = ip();
    let outgoing = Outgoing {
        dst_mac: MAC_PEER,
        src: US.into(),
        dst: PEER.into(),
        protocol: Protocol::UDP,
        payload_len: 2000,
        tos: 4,
        ttl: 9,
        dont_fragment: false,
    };
    let mut bytes = [0; HEADERS_LEN + 520];
    let part = Part { offset: 1480, len: 520, more: false };
    assert_eq!(ip.emit_fragment(&mut bytes, &outgoing, 5, &part), HEADERS_LEN);
    let (header, _) = ipv4::parse(&bytes[14..]).unwrap();
    let expected = Header {
        src: US,
        dst: PEER,
        protocol: Protocol::UDP,
        payload_len: 520,
        tos: 4,
        ttl: 9,
        id: 5,
        dont_fragment: false,
        more_fragments: false,
        fragment_offset: 185,
    };
    assert_eq!(header, expected);
    assert_eq!(bytes[..6], MAC_PEER.0);
    assert_eq!(bytes[6..12], MAC_US.0);
}
