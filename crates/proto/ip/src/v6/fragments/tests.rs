use std::vec::Vec;

use atoll_base::Duration;
use atoll_wire::nd::{self, RouterAdvertisement};
use atoll_wire::{icmpv6, udp};

use super::super::tests::{
    Build, MAC_PEER, addr, at, local_us, machine, next_packet, packet, peer, receive, router, us,
};
use super::*;
use crate::{ChecksumOffload, Config, Frame, Ip, V6Config};
use crate::{Outgoing, Part, parts};
use atoll_wire::ipv6::FRAGMENT;

/// Returns the fragments of a packet in packets of `mtu` octets. `before` has extension headers that all of
/// them carry, of which the last names 44.
fn torn(build: &Build, before: &[u8], mtu: u16) -> Vec<Vec<u8>> {
    let (whole, first) = (build.payload.clone(), build.header.next_header);
    parts(build.header.dst, whole.len(), 0, mtu)
        .map(|part| {
            let mut head = [0; FRAGMENT_LEN];
            let fragment =
                ipv6::Fragment { offset: (part.offset / 8) as u16, more: part.more, id: 0xdead_beef };
            ipv6::emit_fragment(first, &fragment, &mut head);
            let fragment = build.clone().with(|build| {
                build.header.next_header =
                    Protocol(if before.is_empty() { FRAGMENT } else { ipv6::DESTINATION });
                build.payload = [before, &head, &whole[part.offset..][..part.len]].concat();
            });
            fragment.frame()
        })
        .collect()
}

/// Returns one fragment of any payload.
fn fragment(next: Protocol, offset: u16, more: bool, text: &[u8]) -> Build {
    let mut head = [0; FRAGMENT_LEN];
    ipv6::emit_fragment(next, &ipv6::Fragment { offset, more, id: 7 }, &mut head);
    packet(Protocol(FRAGMENT), &[&head, text].concat())
}

fn datagram(text: &[u8]) -> Build {
    let mut bytes = std::vec![0; udp::HEADER_LEN];
    let header = udp::Header { src_port: 4000, dst_port: 53, payload_len: text.len() as u16, checksum: 0 };
    udp::emit(&header, &mut bytes);
    bytes.extend_from_slice(text);
    udp::seal(peer(), us(), &mut bytes);
    packet(Protocol::UDP, &bytes)
}

fn rejoin(ip: &mut Ip, fragments: &[Vec<u8>]) -> Option<Frame> {
    for fragment in fragments {
        assert_eq!(receive(ip, at(3), fragment), Received::Consumed);
    }
    ip.poll_whole()
}

/// Returns type and code of the ICMPv6 error that was sent, where it points, and what it quotes.
fn told(ip: &mut Ip) -> Option<(u8, u8, u32, Vec<u8>)> {
    let (_, header, text) = next_packet(ip)?;
    assert_eq!((header.src, header.dst, header.next_header), (us(), peer(), Protocol::ICMPV6));
    let pointer = u32::from_be_bytes(text[4..8].try_into().unwrap());
    Some((text[0], text[1], pointer, text[8..].to_vec()))
}

#[test]
fn a_datagram_in_fragments_is_a_datagram() {
    let text: Vec<u8> = (0..5000u32).map(|n| n as u8).collect();
    // Destination options before the fragment header stay; those behind it belong to the packet.
    for before in [&[][..], &[FRAGMENT, 0, 1, 4, 0, 0, 0, 0]] {
        let mut ip = machine(true);
        let mut fragments = torn(&datagram(&text), before, 1500);
        assert!(fragments.iter().all(|fragment| fragment.len() <= 14 + 1500 + before.len()));
        fragments.reverse();
        let whole = rejoin(&mut ip, &fragments).expect("all fragments are there");
        match ip.handle_frame(at(3), whole.link, &whole.bytes, ChecksumOffload::Unknown) {
            Received::Udp { src, payload, .. } => assert_eq!((src.addr, payload), (peer(), &text[..])),
            other => panic!("{other:?}"),
        }
        assert_eq!((ip.counters().fragments_in, ip.counters().reassembled), (4, 1));
    }
}

#[test]
fn the_longest_packet_is_the_longest() {
    let mut ip = machine(true);
    let fragments = torn(&datagram(&std::vec![1; 65_527]), &[], 1280);
    let whole = rejoin(&mut ip, &fragments).expect("all fragments are there");
    assert_eq!(whole.bytes.len(), 14 + 40 + 65_535);
    assert!(matches!(
        ip.handle_frame(at(3), whole.link, &whole.bytes, ChecksumOffload::Unknown),
        Received::Udp { payload, .. } if payload.len() == 65_527
    ));
    // covers: RFC 8200 §4.5: the offset is at fault, and its sender is told.
    let beyond = fragment(Protocol::UDP, 8190, false, &[0; 16]).frame();
    assert_eq!(receive(&mut ip, at(3), &beyond), Received::Dropped(Reason::FragmentMalformed));
    assert_eq!(told(&mut ip), Some((4, 0, 42, beyond[14..].to_vec())));
    // With options in the head of the first fragment the packet is too long after all.
    let mut fragments = torn(&datagram(&std::vec![1; 65_527]), &[], 1280);
    let options = [&[FRAGMENT, 0, 1, 4, 0, 0, 0, 0][..], &fragments[0][54..]].concat();
    let first = datagram(&[]).with(|build| {
        build.header.next_header = Protocol(ipv6::DESTINATION);
        build.payload = options;
    });
    fragments[0] = first.frame();
    let (last, others) = fragments.split_last().unwrap();
    assert_eq!(rejoin(&mut ip, others), None);
    assert_eq!(receive(&mut ip, at(3), last), Received::Dropped(Reason::FragmentMalformed));
}

#[test]
fn fragments_are_refused_for_their_reason() {
    for (second, reason) in [
        (fragment(Protocol::UDP, 1, true, &[0; 16]), Reason::FragmentDuplicate),
        (fragment(Protocol::UDP, 2, true, &[0; 16]), Reason::FragmentOverlap),
        (fragment(Protocol::UDP, 0, true, &[0; 16]), Reason::FragmentOverlap),
        (fragment(Protocol::UDP, 1, true, &[]), Reason::FragmentMalformed),
    ] {
        let mut ip = machine(true);
        assert_eq!(rejoin(&mut ip, &[fragment(Protocol::UDP, 1, true, &[0; 16]).frame()]), None);
        assert_eq!(receive(&mut ip, at(3), &second.frame()), Received::Dropped(reason));
        // covers: RFC 8200 §4.5, RFC 5722 §4: in silence.
        assert_eq!((told(&mut ip), ip.counters().dropped(reason)), (None, 1));
    }
}

#[test]
fn a_length_that_is_no_multiple_of_8_is_told() {
    // covers: RFC 8200 §4.5
    let mut ip = machine(true);
    for (offset, protocol, is_told) in
        [(0, Protocol::UDP, true), (4, Protocol::UDP, true), (4, Protocol::ICMPV6, false)]
    {
        let odd = fragment(protocol, offset, true, &[0; 13]).frame();
        assert_eq!(receive(&mut ip, at(3), &odd), Received::Dropped(Reason::FragmentMalformed));
        // A packet that may be a part of an error is never answered by one.
        assert_eq!(told(&mut ip), is_told.then(|| (4, 0, 4, odd[14..].to_vec())));
    }
    let last = fragment(Protocol::UDP, 4, false, &[0; 13]).frame();
    assert_eq!(receive(&mut ip, at(3), &last), Received::Consumed);
}

#[test]
fn the_first_fragment_holds_all_headers() {
    // covers: RFC 7112 §5, RFC 8200 §4.5
    let mut ip = machine(true);
    for (next, text) in [
        (Protocol::TCP, &[0; 16][..]),
        (Protocol::UDP, &[][..]),
        (Protocol(ipv6::DESTINATION), &[6, 2, 1, 4, 0, 0, 0, 0]),
        (Protocol(ipv6::DESTINATION), &[6, 0, 1, 4, 0, 0, 0, 0]),
    ] {
        let first = fragment(next, 0, true, text).frame();
        assert_eq!(receive(&mut ip, at(3), &first), Received::Dropped(Reason::FragmentTiny), "{next:?}");
        assert_eq!(told(&mut ip), Some((4, 3, 0, first[14..].to_vec())));
    }
    // covers: RFC 8200 §4.3: options for every hop stand right behind the header of the packet.
    let options = [&[17, 0, 1, 4, 0, 0, 0, 0][..], &[0; 8]].concat();
    let misplaced = fragment(Protocol(ipv6::HOP_BY_HOP), 0, true, &options).frame();
    assert_eq!(receive(&mut ip, at(3), &misplaced), Received::Dropped(Reason::Extension));
    assert_eq!(told(&mut ip), Some((4, 1, 40, misplaced[14..].to_vec())));
    // Fragments must not contain fragments.
    let nested = fragment(Protocol(FRAGMENT), 0, true, &[[17, 0, 0, 1, 0, 0, 0, 9], [0; 8]].concat()).frame();
    assert_eq!(receive(&mut ip, at(3), &nested), Received::Dropped(Reason::FragmentMalformed));
}

#[test]
fn neighbour_discovery_comes_whole() {
    // covers: RFC 6980 §5
    let mut ip = machine(true);
    let mut text = [0; nd::MESSAGE_LEN_MAX];
    let message =
        nd::Message::RouterAdvertisement(RouterAdvertisement { router_lifetime: 1800, ..Default::default() });
    let len = nd::emit(router(), us(), &message, &mut text);
    for (more, len) in [(false, len), (true, 8)] {
        let build = fragment(Protocol::ICMPV6, 0, more, &text[..len]).with(|build| {
            build.header.src = router();
            build.header.hop_limit = 255;
        });
        assert_eq!(receive(&mut ip, at(3), &build.frame()), Received::Dropped(Reason::NdIgnored));
    }
    assert!(!ip.has_v6_router());
}

#[test]
fn atomic_fragments_do_not_meet_others() {
    // covers: RFC 6946 §4
    let mut ip = machine(true);
    let plain = datagram(b"hello");
    assert_eq!(rejoin(&mut ip, &[fragment(Protocol::UDP, 0, true, &[0; 16]).frame()]), None);
    let atomic = fragment(Protocol::UDP, 0, false, &plain.payload).frame();
    assert!(matches!(receive(&mut ip, at(3), &atomic), Received::Udp { payload: b"hello", .. }));
    assert_eq!(rejoin(&mut ip, &[fragment(Protocol::UDP, 2, false, &[0; 16]).frame()]).map(|_| ()), Some(()));
}

#[test]
fn fragments_may_name_different_protocols_and_the_first_one_counts() {
    // covers: RFC 8200 §4.5
    let mut ip = machine(true);
    let text = datagram(&[9; 100]).payload;
    let first = fragment(Protocol::UDP, 0, true, &text[..96]).frame();
    let last = fragment(Protocol(99), 12, false, &text[96..]).frame();
    let whole = rejoin(&mut ip, &[last, first]).expect("all fragments are there");
    assert!(matches!(receive(&mut ip, at(3), &whole.bytes), Received::Udp { .. }));
}

#[test]
fn the_sender_is_told_that_fragments_are_missing() {
    // covers: RFC 8200 §4.5, RFC 4443 §3.3
    for (index, is_told) in [(0, true), (1, false)] {
        let mut ip = machine(true);
        let fragments = torn(&datagram(&[4; 3000]), &[], 1500);
        receive(&mut ip, at(3), &fragments[index]);
        ip.handle_timeout(at(62));
        assert_eq!(ip.counters().reassembly_timeouts, 0);
        ip.handle_timeout(at(63));
        assert_eq!(ip.counters().reassembly_timeouts, 1);
        let quoted = fragments[0][14..][..1280 - 48].to_vec();
        assert_eq!(told(&mut ip), is_told.then_some((3, 1, 0, quoted)));
    }
}

#[test]
fn a_network_has_half_of_all_at_most() {
    let mut ip = machine(true);
    let first = |src: &str, id: u8| {
        let build = fragment(Protocol::UDP, 0, true, &[0; 16]).with(|build| {
            build.header.src = addr(src);
            build.payload[7] = id;
        });
        build.frame()
    };
    assert_eq!(receive(&mut ip, at(3), &first("2001:db8:9::1", 0)), Received::Consumed);
    for n in 0..1000 {
        let src = std::format!("2001:db8:7::{:x}", n + 1);
        assert_eq!(receive(&mut ip, at(3), &first(&src, n as u8)), Received::Consumed);
    }
    assert_eq!((ip.incomplete(), ip.reassembly_evictions()), (257, 744));
}

#[test]
fn a_long_echo_is_answered_in_fragments() {
    let mut text = std::vec![0; 8];
    text.extend((0..20_000u32).map(|n| n as u8));
    icmpv6::emit(peer(), us(), &icmpv6::Message::EchoRequest { id: 1, seq: 2 }, &mut text);
    let mut ip = machine(true);
    ip.learn_path_mtu(at(3), peer(), 1400);
    let whole = rejoin(&mut ip, &torn(&packet(Protocol::ICMPV6, &text), &[], 1500)).expect("all are there");
    assert_eq!(
        ip.handle_frame(at(3), whole.link, &whole.bytes, ChecksumOffload::Unknown),
        Received::Consumed
    );
    // The other end can reassemble what we send.
    let v6 = V6Config { address: Some((peer(), 64)), gateway: None, autoconf: false };
    let config = Config { v6: Some(v6), ..Config::new(MAC_PEER, 0xc612_0002, 24) };
    let mut other = Ip::new(config, 1, at(3)).unwrap();
    let mut count = 0;
    while let Some(frame) = ip.poll_frame() {
        assert!(frame.bytes.len() <= 14 + 1400);
        assert_eq!(receive(&mut other, at(3), &frame.bytes), Received::Consumed);
        count += 1;
    }
    assert_eq!((count, ip.counters().fragments_out), (15, 15));
    let reply = other.poll_whole().expect("all fragments were sent");
    let (message, _) = icmpv6::parse(us(), peer(), &reply.bytes[54..]).unwrap();
    assert_eq!((message, &reply.bytes[62..]), (icmpv6::Message::EchoReply { id: 1, seq: 2 }, &text[8..]));
}

#[test]
fn both_families_share_the_bounds() {
    let mut ip = machine(true);
    let v4 = |id: u8| {
        let mut frame = std::vec![0; 14 + 20 + 16];
        frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
        let header = atoll_wire::ipv4::Header {
            src: 0xc612_0000 + u32::from(id),
            dst: 0xc612_0001,
            protocol: Protocol::UDP,
            payload_len: 16,
            ttl: 9,
            more_fragments: true,
            ..Default::default()
        };
        atoll_wire::ipv4::emit(&header, &mut frame[14..]);
        frame
    };
    let v6 = |net: u16| {
        let src = addr(&std::format!("2001:db8:{net:x}::1"));
        fragment(Protocol::UDP, 0, true, &[0; 16]).with(|build| build.header.src = src).frame()
    };
    for n in 0..200u16 {
        assert_eq!(receive(&mut ip, at(3), &v4(2 + n as u8)), Received::Consumed);
        assert_eq!(receive(&mut ip, at(3), &v6(2 * n + 1)), Received::Consumed);
        assert_eq!(receive(&mut ip, at(3), &v6(2 * n + 2)), Received::Consumed);
    }
    assert_eq!((ip.incomplete(), ip.reassembly_evictions()), (512, 88));
    // IPv4 packets go first, because they have less time.
    ip.handle_timeout(at(3) + Duration::from_secs(30));
    assert!((170..200).contains(&ip.counters().reassembly_timeouts));
    assert!(ip.next_timeout().is_some_and(|due| due <= at(63)));
}

#[test]
fn a_fragment_says_where_it_belongs() {
    let ip = machine(true);
    let outgoing = Outgoing {
        dst_mac: MAC_PEER,
        src: local_us(),
        dst: peer(),
        protocol: Protocol::UDP,
        payload_len: 2000,
        tos: 4,
        ttl: 9,
        dont_fragment: true,
    };
    let mut bytes = [0; crate::FRAGMENT_HEADERS_LEN_MAX];
    let part = Part { offset: 1448, len: 552, more: false };
    assert_eq!(ip.emit_fragment(&mut bytes, &outgoing, 0x0102_0304, &part), bytes.len());
    let (header, _) = ipv6::parse_quoted(&bytes[14..]).unwrap();
    assert_eq!((header.src, header.dst, header.payload_len), (local_us(), peer(), 560));
    assert_eq!((header.traffic_class, header.hop_limit), (4, 9));
    let upper = ipv6::upper(&header, &bytes[54..]).unwrap();
    let expected = ipv6::Fragment { offset: 181, more: false, id: 0x0102_0304 };
    assert_eq!((upper.protocol, upper.fragment), (Protocol::UDP, Some(expected)));
}

#[test]
fn noise_in_fragments_never_panics() {
    let mut rng = atoll_base::Rng::new(3);
    let mut ip = machine(true);
    let seeds = torn(&datagram(&[7; 3000]), &[FRAGMENT, 0, 1, 4, 0, 0, 0, 0], 1280);
    for n in 0..50_000 {
        let mut bytes = seeds[n % seeds.len()].clone();
        for _ in 0..1 + rng.below(3) {
            let at = 18 + rng.below(70) as usize;
            bytes[at] = rng.next_u32() as u8;
        }
        let _ = receive(&mut ip, at(3), &bytes);
        while let Some(whole) = ip.poll_whole() {
            let _ = receive(&mut ip, at(3), &whole.bytes);
        }
        while ip.poll_frame().is_some() {}
    }
}
