//! Tests of a replica that runs the client, and of one that gets the address from it, by frames in and out.

use std::vec::Vec;

use atoll_base::{Addr, Instant};
use atoll_wire::arp::{self, Operation, Packet};
use atoll_wire::dhcp::{self, Kind};
use atoll_wire::ethernet::{self, EtherType};
use atoll_wire::ipv4::{self, Protocol};
use atoll_wire::{Mac, udp};

use super::{Answer, EVERYBODY, OURS, SERVER, STATION, Sent, US};
use crate::ip::tests::arp_frame;
use crate::{Cast, ChecksumOffload, Config, Ip, Link, Reason, Received, Route, V4Address};

fn machine(sibling: u8) -> Ip {
    let config = Config { dhcp: true, sibling: (sibling, 2), ..Config::new(US, 0, 0) };
    Ip::new(config, 42, Instant::ZERO).unwrap()
}

/// Returns the frame of an answer: to the address that is given, which the host does not have yet, or to all.
fn frame(answer: &Answer, dst: u32) -> Vec<u8> {
    let text = answer.bytes();
    let mut datagram = std::vec![0; udp::HEADER_LEN];
    let header = udp::Header { src_port: 67, dst_port: 68, payload_len: text.len() as u16, checksum: 0 };
    udp::emit(&header, &mut datagram);
    datagram.extend(text);
    udp::seal(SERVER, dst, &mut datagram);
    let mut bytes = std::vec![0; 34];
    let to = if dst == EVERYBODY { Mac::BROADCAST } else { US };
    let ethernet = ethernet::Header { dst: to, src: STATION, ethertype: EtherType::IPV4 };
    let at = ethernet::emit(&ethernet, &mut bytes);
    let payload_len = datagram.len() as u16;
    let header = ipv4::Header {
        src: SERVER,
        dst,
        protocol: Protocol::UDP,
        payload_len,
        ttl: 64,
        ..ipv4::Header::default()
    };
    ipv4::emit(&header, &mut bytes[at..]);
    bytes.extend(datagram);
    bytes
}

/// Returns the next frame, which must be a DHCP message, and the station it goes to.
fn sent(ip: &mut Ip) -> (Mac, Sent) {
    let frame = ip.poll_frame().expect("a frame").bytes;
    let (ethernet, at) = ethernet::parse(&frame).unwrap();
    let (header, len) = ipv4::parse(&frame[at..]).unwrap();
    let datagram = &frame[at + len..];
    let (ports, head) = udp::parse(datagram).unwrap();
    assert_eq!((header.protocol, ports.src_port, ports.dst_port), (Protocol::UDP, 68, 67));
    assert!(udp::verify(header.src, header.dst, datagram));
    (ethernet.dst, Sent { src: header.src, dst: header.dst, bytes: datagram[head..].to_vec() })
}

fn sent_arp(ip: &mut Ip) -> Packet {
    let frame = ip.poll_frame().expect("a frame").bytes;
    let (ethernet, at) = ethernet::parse(&frame).unwrap();
    assert_eq!((ethernet.ethertype, ethernet.dst), (EtherType::ARP, Mac::BROADCAST));
    arp::parse(&frame[at..]).unwrap().0
}

fn hear(ip: &mut Ip, now: Instant, frame: &[u8]) {
    let received = ip.handle_frame(now, Link::Outside, frame, ChecksumOffload::Unknown);
    assert_eq!(received, Received::Consumed);
}

/// Runs the client up to the first probe.
fn given() -> (Ip, Instant) {
    let mut ip = machine(0);
    let now = Instant::ZERO;
    ip.announce(now);
    let (to, discover) = sent(&mut ip);
    assert_eq!((to, discover.kind()), (Mac::BROADCAST, (Kind::Discover, 0, EVERYBODY)));
    assert_eq!(ip.poll_frame(), None, "there is nothing to announce");
    hear(&mut ip, now, &frame(&discover.answer(Kind::Offer), OURS));
    let (_, request) = sent(&mut ip);
    hear(&mut ip, now, &frame(&request.answer(Kind::Ack), EVERYBODY));
    let now = ip.next_timeout().unwrap();
    ip.handle_timeout(now);
    (ip, now)
}

fn bound() -> (Ip, Instant) {
    let (mut ip, mut now) = given();
    while ip.addr().is_none() {
        let probe = sent_arp(&mut ip);
        assert_eq!((probe.operation, probe.sender_addr, probe.target_addr), (Operation::Request, 0, OURS));
        assert_eq!((probe.sender_mac, probe.target_mac), (US, Mac::ZERO));
        assert!(!ip.is_own(Addr::v4(OURS)));
        now = ip.next_timeout().unwrap();
        ip.handle_timeout(now);
    }
    let announcement = sent_arp(&mut ip);
    assert_eq!((announcement.sender_addr, announcement.target_addr), (OURS, OURS));
    (ip, now)
}

#[test]
fn a_replica_asks_probes_and_announces() {
    let (ip, _) = bound();
    assert!(ip.is_own(Addr::v4(OURS)) && ip.v4_generation() == 1);
    assert_eq!(ip.source_for(Addr::v4(OURS + 1)), Some(Addr::v4(OURS)));
    assert_eq!(ip.cast(Addr::v4(OURS | 0xff)), Some(Cast::Broadcast));
}

#[test]
fn without_an_address_nothing_can_be_reached() {
    let mut ip = machine(0);
    let now = Instant::ZERO;
    assert_eq!((ip.addr(), ip.source_for(Addr::v4(OURS))), (None, None));
    assert_eq!(ip.route(now, Addr::v4(OURS)), Route::Unreachable);
    assert_eq!(ip.route(now, Addr::v4(0x7f00_0001)), Route::Local);
    let question = Packet {
        operation: Operation::Request,
        sender_mac: STATION,
        sender_addr: SERVER,
        target_mac: Mac::ZERO,
        target_addr: OURS,
    };
    let question = arp_frame(Mac::BROADCAST, &question);
    let received = ip.handle_frame(now, Link::Outside, &question, ChecksumOffload::Unknown);
    assert_eq!(received, Received::Dropped(Reason::ArpIgnored));
}

#[test]
fn an_address_that_somebody_defends_is_declined() {
    let (mut ip, now) = given();
    sent_arp(&mut ip);
    let reply = Packet {
        operation: Operation::Reply,
        sender_mac: STATION,
        sender_addr: OURS,
        target_mac: US,
        target_addr: 0,
    };
    hear(&mut ip, now, &arp_frame(US, &reply));
    let (_, decline) = sent(&mut ip);
    assert_eq!(decline.kind().0, Kind::Decline);
    assert_eq!((ip.addr(), ip.counters().arp_conflicts), (None, 1));
}

#[test]
fn two_who_probe_the_same_address_let_go_of_it() {
    let (mut ip, now) = given();
    sent_arp(&mut ip);
    let probe = |addr| Packet {
        operation: Operation::Request,
        sender_mac: STATION,
        sender_addr: 0,
        target_mac: Mac::ZERO,
        target_addr: addr,
    };
    let other = arp_frame(Mac::BROADCAST, &probe(OURS + 1));
    let received = ip.handle_frame(now, Link::Outside, &other, ChecksumOffload::Unknown);
    assert_eq!(received, Received::Dropped(Reason::ArpIgnored));
    hear(&mut ip, now, &arp_frame(Mac::BROADCAST, &probe(OURS)));
    assert_eq!(sent(&mut ip).1.kind().0, Kind::Decline);
}

#[test]
fn a_lease_is_renewed_by_way_of_the_servers_station() {
    let (mut ip, _) = bound();
    while ip.dhcp().is_some_and(|client| client.state() == super::State::Bound) {
        while ip.poll_frame().is_some() {}
        let now = ip.next_timeout().unwrap();
        ip.handle_timeout(now);
    }
    assert_eq!(sent_arp(&mut ip).target_addr, SERVER, "whoever has its address now is asked for");
    let (to, request) = sent(&mut ip);
    assert_eq!((to, request.kind()), (STATION, (Kind::Request, OURS, SERVER)));
    let now = ip.next_timeout().unwrap();
    let generation = ip.v4_generation();
    hear(&mut ip, now, &frame(&request.answer(Kind::Ack), OURS));
    assert_eq!((ip.addr(), ip.v4_generation()), (Some(OURS), generation + 1));
    assert_eq!(ip.poll_frame(), None, "it is announced once");
}

#[test]
fn the_address_is_lost_when_nobody_renews_it() {
    let (mut ip, mut now) = bound();
    let until = ip.v4_address().unwrap().valid_until;
    while ip.addr().is_some() {
        now = ip.next_timeout().unwrap();
        ip.handle_timeout(now);
        while ip.poll_frame().is_some() {}
    }
    assert_eq!(now, until);
    assert_eq!(ip.route(now, Addr::v4(SERVER)), Route::Unreachable);
    // Packets to the address belong to another host now.
    let mut late = frame(&Sent { src: 0, dst: 0, bytes: discover() }.answer(Kind::Ack), OURS);
    late[34..36].copy_from_slice(&53u16.to_be_bytes());
    let received = ip.handle_frame(now, Link::Outside, &late, ChecksumOffload::Valid);
    assert_eq!(received, Received::Dropped(Reason::NotOurAddress));
}

fn discover() -> Vec<u8> {
    let mut ip = machine(0);
    ip.announce(Instant::ZERO);
    sent(&mut ip).1.bytes
}

#[test]
fn an_address_is_given_back_in_the_end() {
    let (mut ip, now) = bound();
    ip.release(now);
    sent_arp(&mut ip);
    let (to, release) = sent(&mut ip);
    assert_eq!((to, release.kind()), (STATION, (Kind::Release, OURS, SERVER)));
    assert_eq!(ip.addr(), None);
    assert!(dhcp::parse(&release.bytes).is_ok());
}

#[test]
fn other_replicas_are_told() {
    let mut ip = machine(1);
    ip.announce(Instant::ZERO);
    assert_eq!((ip.poll_frame(), ip.next_timeout()), (None, None), "one of them asks");
    let address = V4Address { gateway: Some(SERVER), ..V4Address::new(OURS, 24) };
    for nonsense in [
        V4Address { addr: 0xe000_0001, ..address },
        V4Address { prefix_len: 33, ..address },
        V4Address { gateway: Some(OURS), ..address },
        V4Address { mtu: 100, ..address },
    ] {
        ip.handle_v4_address(Some(nonsense));
        assert_eq!(ip.addr(), None);
    }
    ip.handle_v4_address(Some(address));
    assert_eq!(ip.v4_address(), Some(&address));
    let generation = ip.neighbour_generation();
    assert_eq!(ip.route(Instant::ZERO, Addr::v4(0x0808_0808)), Route::Resolving);
    ip.handle_v4_address(None);
    assert!(ip.addr().is_none() && ip.neighbour_generation() > generation);
    // A replica with a configured address, or with a client of its own, ignores the address of another one.
    let mut fixed = crate::ip::tests::ip();
    fixed.handle_v4_address(Some(address));
    let mut asks = machine(0);
    asks.handle_v4_address(Some(address));
    assert_eq!((fixed.addr(), asks.addr()), (Some(crate::ip::tests::US), None));
}

#[test]
fn answers_that_cannot_be_are_counted() {
    let mut ip = machine(0);
    ip.announce(Instant::ZERO);
    let (_, discover) = sent(&mut ip);
    let wrong = discover.answer(Kind::Offer).with(|answer| answer.header.xid ^= 1);
    hear(&mut ip, Instant::ZERO, &frame(&wrong, OURS));
    assert_eq!(ip.counters().dhcp_ignored, 1);
    let mut damaged = frame(&discover.answer(Kind::Offer), OURS);
    *damaged.last_mut().unwrap() ^= 1;
    let received = ip.handle_frame(Instant::ZERO, Link::Outside, &damaged, ChecksumOffload::Unknown);
    assert_eq!(received, Received::Dropped(Reason::BadChecksum));
    // The inside link is not used, and neither is DHCP by a stack whose address was configured.
    let good = frame(&discover.answer(Kind::Offer), EVERYBODY);
    let received = ip.handle_frame(Instant::ZERO, Link::Inside, &good, ChecksumOffload::Unknown);
    assert_eq!(received, Received::Dropped(Reason::NotOurAddress));
    let mut fixed = crate::ip::tests::ip();
    let received = fixed.handle_frame(Instant::ZERO, Link::Outside, &good, ChecksumOffload::Unknown);
    assert!(matches!(received, Received::Udp { cast: Cast::Broadcast, .. }));
}

#[test]
fn noise_changes_nothing_but_by_rule() {
    let mut rng = atoll_base::Rng::new(11);
    for seed in 0..200 {
        let (mut ip, mut now) = if seed % 2 == 0 { given() } else { bound() };
        let mut asked = Sent { src: 0, dst: 0, bytes: discover() };
        for _ in 0..100 {
            while let Some(frame) = ip.poll_frame() {
                if let Some(text) = frame.bytes.get(42..).filter(|text| dhcp::parse(text).is_ok()) {
                    asked.bytes = text.to_vec();
                }
            }
            let kinds = [Kind::Offer, Kind::Ack, Kind::Nak];
            let reply = Packet {
                operation: Operation::Reply,
                sender_mac: STATION,
                sender_addr: OURS,
                target_mac: US,
                target_addr: rng.below(2),
            };
            let mut bytes = match rng.below(4) {
                0 => arp_frame(US, &reply),
                n => frame(&asked.answer(kinds[n as usize - 1]), OURS),
            };
            for _ in 0..rng.below(4) {
                // The Ethernet header stays, so that the frame is read at all.
                let at = 14 + rng.below(bytes.len() as u32 - 14) as usize;
                bytes[at] = rng.next_u32() as u8;
            }
            ip.handle_frame(now, Link::Outside, &bytes, ChecksumOffload::Valid);
            if rng.below(4) == 0 {
                now = ip.next_timeout().unwrap_or(now).max(now);
                ip.handle_timeout(now);
            }
            assert!(ip.v4_address().is_none_or(|address| address.check().is_ok()));
        }
    }
}
