use atoll_base::Endpoint;

use super::*;
use crate::ChecksumState;

#[test]
fn a_segment_is_given_up_with_its_addresses() {
    let mut ip = ip();
    let build = tcp_packet().with(|b| b.header.tos = 3);
    let expected = Received::Tcp {
        src: PEER.into(),
        dst: US.into(),
        tos: 3,
        ttl: 64,
        segment: &build.payload,
        checksum: ChecksumState::Verified,
    };
    assert_eq!(receive(&mut ip, &build.frame()), expected);
    assert_eq!(ip.counters().tcp_in, 1);
}

#[test]
fn padding_is_not_part_of_the_segment() {
    let mut ip = ip();
    let mut frame = tcp_packet().frame();
    frame.resize(60, 0xee);
    assert!(matches!(receive(&mut ip, &frame), Received::Tcp { segment, .. } if segment.len() == 20));
}

#[test]
fn a_datagram_is_given_up_without_its_header() {
    let mut ip = ip();
    let expected = Received::Udp {
        src: Endpoint::new(PEER, 4000),
        dst: Endpoint::new(US, 53),
        cast: Cast::Unicast,
        tos: 0,
        ttl: 64,
        payload: b"hello",
        checksum: ChecksumState::Verified,
    };
    assert_eq!(receive(&mut ip, &udp_packet(b"hello").frame()), expected);
}

#[test]
fn a_broadcast_datagram_is_marked_as_such() {
    for dst in [0xc612_00ff, 0xffff_ffff] {
        let build = udp_packet(b"hello").with(|b| {
            b.dst_mac = Mac::BROADCAST;
            b.header.dst = dst;
            udp::seal(PEER, dst, &mut b.payload);
        });
        match receive(&mut ip(), &build.frame()) {
            Received::Udp { cast, .. } => assert_eq!(cast, Cast::Broadcast),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_link_decides_whether_the_checksum_is_compared() {
    let bad = tcp_packet().with(|b| b.payload[4] ^= 1).frame();
    for (offload, state) in [
        (ChecksumOffload::Unknown, None),
        (ChecksumOffload::Valid, Some(ChecksumState::Verified)),
        (ChecksumOffload::Partial, Some(ChecksumState::Partial)),
    ] {
        let found = match ip().handle_frame(at(0), Link::Outside, &bad, offload) {
            Received::Tcp { checksum, .. } => Some(checksum),
            Received::Dropped(Reason::BadChecksum) => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(found, state);
    }
}

#[test]
fn every_flipped_bit_of_segment_and_datagram_is_noticed() {
    for build in [tcp_packet(), udp_packet(b"some text")] {
        for bit in 0..build.payload.len() * 8 {
            let frame = build.clone().with(|b| b.payload[bit / 8] ^= 1 << (bit % 8)).frame();
            assert!(matches!(receive(&mut ip(), &frame), Received::Dropped(_)), "bit {bit}");
        }
    }
}

#[test]
fn frames_are_dropped_for_their_reason() {
    let tcp = tcp_packet;
    let table = [
        (tcp().with(|b| b.dst_mac = MAC_OTHER), Reason::NotOurStation),
        (tcp().with(|b| b.src_mac = Mac::BROADCAST), Reason::NotOurStation),
        (tcp().with(|b| b.dst_mac = Mac::BROADCAST), Reason::Broadcast),
        (tcp().with(|b| b.header.dst = 0xc612_00ff), Reason::Broadcast),
        (tcp().with(|b| b.header.dst = 0xc612_0009), Reason::NotOurAddress),
        (tcp().with(|b| b.header.dst = 0x7f00_0001), Reason::NotOurAddress),
        (tcp().with(|b| b.header.dst = 0), Reason::NotOurAddress),
        (tcp().with(|b| b.header.dst = 0xe000_0005), Reason::Multicast),
        (tcp().with(|b| b.header.src = US), Reason::Martian),
        (tcp().with(|b| b.header.src = 0x7f00_0001), Reason::Martian),
        (tcp().with(|b| b.header.src = 0), Reason::Martian),
        (tcp().with(|b| b.header.src = 0xffff_ffff), Reason::Martian),
        (udp_packet(b"").with(|b| b.payload.truncate(7)), Reason::Malformed),
        (udp_packet(b"").with(|b| b.payload[5] = 7), Reason::Malformed),
    ];
    for (n, (build, reason)) in table.iter().enumerate() {
        let mut ip = ip();
        assert_eq!(receive(&mut ip, &build.frame()), Received::Dropped(*reason), "row {n}");
        assert_eq!(ip.counters().dropped(*reason), 1);
        assert_eq!(ip.poll_frame(), None, "row {n}");
    }
}

#[test]
fn a_packet_with_its_last_hop_is_taken() {
    // covers: RFC 1122 §3.2.1.7
    for ttl in [0, 1, 255] {
        let frame = tcp_packet().with(|b| b.header.ttl = ttl).frame();
        assert!(matches!(receive(&mut ip(), &frame), Received::Tcp { .. }), "{ttl}");
    }
}

#[test]
fn inside_only_our_own_addresses_speak_to_each_other() {
    for (src, dst, accepted) in [
        (0x7f00_0001, 0x7f00_0001, true),
        (US, 0x7f00_0005, true),
        (US, US, true),
        (PEER, US, false),
        (US, PEER, false),
        (US, 0xc612_00ff, false),
    ] {
        let build = tcp_packet().with(|b| {
            b.src_mac = MAC_US;
            b.header.src = src;
            b.header.dst = dst;
            b.seal_tcp();
        });
        let frame = build.frame();
        let received = ip().handle_frame(at(0), Link::Inside, &frame, ChecksumOffload::Unknown);
        assert_eq!(matches!(received, Received::Tcp { .. }), accepted, "{src:08x} {dst:08x}");
    }
}

#[test]
fn arp_does_not_exist_inside() {
    let frame = question(PEER, MAC_PEER, US);
    let received = ip().handle_frame(at(0), Link::Inside, &frame, ChecksumOffload::Unknown);
    assert_eq!(received, Received::Dropped(Reason::UnknownEtherType));
}
