//! Tests of what one replica does with IPv6, seen from the wire.

use std::vec::Vec;

use atoll_base::{Duration, Endpoint};
use atoll_wire::ethernet::{self, EtherType};
use atoll_wire::icmpv6;
use atoll_wire::ipv4::Protocol;
use atoll_wire::ipv6::{self, multicast_mac};
use atoll_wire::nd::{Message, PrefixInformation, RouterAdvertisement, solicited_node};
use atoll_wire::{Mac, checksum, mld, udp};

use super::addresses::{ALL_NODES, ALL_ROUTERS};
use super::network::{ON_LINK_MAX, OWN_MAX};
use super::*;
use crate::{ChecksumOffload, ErrorKind, Frame, Ip, NetworkError, Outgoing, V6Config};

pub(super) const MAC_US: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub(super) const MAC_PEER: Mac = Mac([2, 0, 0, 0, 0, 2]);
pub(super) const MAC_OTHER: Mac = Mac([2, 0, 0, 0, 0, 3]);

pub(super) fn addr(text: &str) -> Addr {
    text.parse::<core::net::Ipv6Addr>().unwrap().into()
}

pub(super) fn us() -> Addr {
    addr("2001:db8::1")
}

pub(super) fn peer() -> Addr {
    addr("2001:db8::2")
}

pub(super) fn local_us() -> Addr {
    addr("fe80::ff:fe00:1")
}

pub(super) fn router() -> Addr {
    addr("fe80::aa")
}

pub(super) fn at(seconds: u64) -> Instant {
    Instant::from_millis(seconds * 1000)
}

/// Returns a machine with a static address that accepts router advertisements; with `settled`, no address is
/// tentative.
pub(super) fn machine(settled: bool) -> Ip {
    let mut ip = fresh(at(0), true);
    if settled {
        ip.handle_timeout(at(2));
    }
    ip
}

/// Returns a machine with a static address that starts at `now`, and accepts router advertisements if
/// `autoconf` is set.
fn fresh(now: Instant, autoconf: bool) -> Ip {
    let v6 = V6Config { address: Some((us(), 64)), gateway: None, autoconf };
    Ip::new(Config { v6: Some(v6), ..Config::new(MAC_US, 0xc612_0001, 24) }, 42, now).unwrap()
}

#[derive(Clone)]
pub(super) struct Build {
    pub(super) dst_mac: Mac,
    pub(super) src_mac: Mac,
    pub(super) header: ipv6::Header,
    pub(super) payload: Vec<u8>,
}

impl Build {
    pub(super) fn with(mut self, change: impl FnOnce(&mut Build)) -> Build {
        change(&mut self);
        self
    }

    pub(super) fn frame(&self) -> Vec<u8> {
        let mut bytes = std::vec![0; 54];
        let ethernet = ethernet::Header { dst: self.dst_mac, src: self.src_mac, ethertype: EtherType::IPV6 };
        let at = ethernet::emit(&ethernet, &mut bytes);
        let header = ipv6::Header { payload_len: self.payload.len() as u16, ..self.header };
        ipv6::emit(&header, &mut bytes[at..]);
        bytes.extend_from_slice(&self.payload);
        bytes
    }
}

pub(super) fn packet(next_header: Protocol, payload: &[u8]) -> Build {
    let header = ipv6::Header { src: peer(), dst: us(), next_header, hop_limit: 64, ..Default::default() };
    Build { dst_mac: MAC_US, src_mac: MAC_PEER, header, payload: payload.to_vec() }
}

pub(super) fn nd_frame(src: Addr, dst: Addr, message: &Message) -> Vec<u8> {
    let mut text = [0; nd::MESSAGE_LEN_MAX];
    let len = nd::emit(src, dst, message, &mut text);
    let header =
        ipv6::Header { src, dst, next_header: Protocol::ICMPV6, hop_limit: 255, ..Default::default() };
    let dst_mac = if dst.is_v6_multicast() { multicast_mac(dst) } else { MAC_US };
    Build { dst_mac, src_mac: MAC_PEER, header, payload: text[..len].to_vec() }.frame()
}

fn answer(mac: Mac) -> Vec<u8> {
    let message = Message::NeighbourAdvertisement {
        target: peer(),
        router: false,
        solicited: true,
        overriding: true,
        target_mac: Some(mac),
    };
    nd_frame(peer(), us(), &message)
}

pub(super) fn receive<'a>(ip: &mut Ip, now: Instant, frame: &'a [u8]) -> Received<'a> {
    ip.handle_frame(now, Link::Outside, frame, ChecksumOffload::Unknown)
}

/// Returns the next packet to send: hardware destination, header and payload.
pub(super) fn next_packet(ip: &mut Ip) -> Option<(Mac, ipv6::Header, Vec<u8>)> {
    let Frame { bytes, .. } = ip.poll_frame()?;
    let (ethernet, at) = ethernet::parse(&bytes).unwrap();
    assert_eq!(ethernet.src, MAC_US);
    if ethernet.ethertype == EtherType::ARP {
        return next_packet(ip);
    }
    let (header, len) = ipv6::parse(&bytes[at..]).unwrap();
    let payload = bytes[at + len..].to_vec();
    let upper = ipv6::upper(&header, &payload).unwrap();
    assert!(icmpv6::parse(header.src, header.dst, &payload[upper.at..]).is_ok());
    Some((ethernet.dst, header, payload))
}

/// Returns the next message of neighbour discovery.
fn next_nd(ip: &mut Ip) -> Option<(Mac, ipv6::Header, Message)> {
    while let Some((mac, header, payload)) = next_packet(ip) {
        if header.next_header == Protocol::ICMPV6 {
            assert_eq!(header.hop_limit, 255);
            return Some((mac, header, nd::parse(&payload).unwrap()));
        }
    }
    None
}

fn advertisement(prefix: &str, valid: u32, preferred: u32) -> RouterAdvertisement {
    let mut advertisement = RouterAdvertisement {
        router_lifetime: 1800,
        source_mac: Some(MAC_PEER),
        ..RouterAdvertisement::default()
    };
    advertisement.prefixes.push(PrefixInformation {
        prefix: addr(prefix),
        len: 64,
        on_link: true,
        autonomous: true,
        valid_lifetime: valid,
        preferred_lifetime: preferred,
    });
    advertisement
}

fn advertise(ip: &mut Ip, now: Instant, advertisement: RouterAdvertisement) {
    let frame = nd_frame(router(), ALL_NODES, &Message::RouterAdvertisement(advertisement));
    assert_eq!(receive(ip, now, &frame), Received::Consumed);
}

#[test]
fn segments_and_datagrams_are_given_up_once_their_checksum_is_right() {
    let mut ip = machine(true);
    let mut segment = [0x9c, 0x40, 0, 80, 1, 2, 3, 4, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0];
    let sum = checksum::pseudo_header_v6(peer(), us(), 6, segment.len()).bytes(&segment).finish();
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    let frame = packet(Protocol::TCP, &segment).frame();
    let Received::Tcp { src, dst, segment: got, .. } = receive(&mut ip, at(3), &frame) else { panic!() };
    assert_eq!((src, dst, got), (peer(), us(), &segment[..]));
    // Behind an atomic fragment header the segment is unchanged.
    let atomic = packet(Protocol(44), &[&[6, 0, 0, 0, 0, 0, 0, 1][..], &segment].concat());
    assert!(matches!(receive(&mut ip, at(3), &atomic.frame()), Received::Tcp { .. }));
    assert_eq!(ip.counters().atomic_fragments, 1);
    segment[0] ^= 1;
    let broken = packet(Protocol::TCP, &segment).frame();
    assert_eq!(receive(&mut ip, at(3), &broken), Received::Dropped(Reason::BadChecksum));
    // covers: RFC 8200 §8.1: a datagram without checksum.
    let mut datagram = [0; 8];
    udp::emit(&udp::Header { src_port: 1, dst_port: 2, ..Default::default() }, &mut datagram);
    let frame = packet(Protocol::UDP, &datagram).frame();
    assert_eq!(receive(&mut ip, at(3), &frame), Received::Dropped(Reason::BadChecksum));
}

#[test]
fn addresses_that_cannot_be_are_refused() {
    let mut ip = machine(true);
    let from = |src: Addr| packet(Protocol::TCP, &[0; 20]).with(|build| build.header.src = src).frame();
    for src in [us(), Addr::LOOPBACK, Addr::ANY, ALL_NODES, Addr::v4(0x0a00_0001)] {
        assert_eq!(receive(&mut ip, at(3), &from(src)), Received::Dropped(Reason::Martian), "{src}");
    }
    let to = |dst: Addr| packet(Protocol::TCP, &[0; 20]).with(|build| build.header.dst = dst).frame();
    for (dst, reason) in [
        (addr("2001:db8::3"), Reason::NotOurAddress),
        (Addr::LOOPBACK, Reason::NotOurAddress),
        (ALL_NODES, Reason::Broadcast),
        (addr("ff02::fb"), Reason::Multicast),
    ] {
        assert_eq!(receive(&mut ip, at(3), &to(dst)), Received::Dropped(reason), "{dst}");
    }
    assert_eq!(ip.poll_frame(), None, "hosts redirect nobody (RFC 4861 §8.3)");
    let bare = Config::new(MAC_US, 0xc612_0001, 24);
    let mut bare = Ip::new(bare, 1, at(0)).unwrap();
    assert_eq!(receive(&mut bare, at(0), &to(us())), Received::Dropped(Reason::UnknownEtherType));
    let inside = packet(Protocol::TCP, &[0; 20])
        .with(|b| (b.header.src, b.header.dst) = (Addr::LOOPBACK, Addr::LOOPBACK));
    let inside = inside.frame();
    let received = bare.handle_frame(at(0), Link::Inside, &inside, ChecksumOffload::Partial);
    assert!(matches!(received, Received::Tcp { .. }));
}

#[test]
fn a_neighbour_is_asked_for_by_its_group_and_its_answer_is_used() {
    // covers: RFC 4861 §7.2.2, §7.2.5
    let mut ip = machine(true);
    assert_eq!(ip.route(at(3), peer()), Route::Resolving);
    let (mac, header, message) = next_nd(&mut ip).unwrap();
    assert_eq!(
        (mac, header.src, header.dst),
        (Mac([0x33, 0x33, 0xff, 0, 0, 2]), us(), solicited_node(peer()))
    );
    assert_eq!(message, Message::NeighbourSolicitation { target: peer(), source_mac: Some(MAC_US) });
    let generation = ip.neighbour_generation();
    receive(&mut ip, at(3), &answer(MAC_PEER));
    assert_eq!(ip.route(at(3), peer()), Route::Via { mac: MAC_PEER });
    assert!(ip.neighbour_generation() > generation);
    // The word of another station is no reason to believe, but one to ask.
    let other = answer(MAC_OTHER);
    receive(&mut ip, at(10), &other);
    assert_eq!(ip.route(at(10), peer()), Route::Via { mac: MAC_PEER });
    assert_eq!(next_nd(&mut ip).map(|(mac, _, _)| mac), Some(MAC_PEER), "whoever has it is asked");
    receive(&mut ip, at(11), &other);
    assert_eq!(ip.route(at(11), peer()), Route::Via { mac: MAC_PEER });
    ip.handle_timeout(at(11));
    assert_eq!(next_nd(&mut ip).map(|(mac, _, _)| mac), Some(MAC_PEER));
    ip.handle_timeout(at(12));
    assert_eq!(ip.route(at(12), peer()), Route::Via { mac: MAC_OTHER }, "it is silent");
}

#[test]
fn a_lie_costs_a_neighbour_nothing_v6() {
    let mut ip = machine(true);
    ip.route(at(3), peer());
    receive(&mut ip, at(3), &answer(MAC_PEER));
    while next_nd(&mut ip).is_some() {}
    let question = Message::NeighbourSolicitation { target: us(), source_mac: Some(MAC_OTHER) };
    let question = nd_frame(peer(), us(), &question);
    for (second, lie) in (5..30).zip([question, answer(MAC_OTHER)].iter().cycle()) {
        receive(&mut ip, at(second), lie);
        assert_eq!(next_nd(&mut ip).map(|(mac, _, _)| mac), Some(MAC_PEER));
        while next_nd(&mut ip).is_some() {}
        receive(&mut ip, at(second), &answer(MAC_PEER));
        ip.handle_timeout(at(second) + Duration::from_millis(900));
        assert_eq!(ip.route(at(second), peer()), Route::Via { mac: MAC_PEER });
    }
}

#[test]
fn what_a_router_may_have_passed_on_is_no_neighbour_discovery() {
    // covers: RFC 4861 §11.2
    let mut ip = machine(true);
    assert_eq!(ip.route(at(3), peer()), Route::Resolving);
    let mut frame = answer(MAC_PEER);
    frame[14 + 7] = 254;
    assert_eq!(receive(&mut ip, at(3), &frame), Received::Dropped(Reason::NdIgnored));
    assert_eq!(ip.route(at(3), peer()), Route::Resolving);
}

#[test]
fn an_answer_that_may_not_replace_a_station_does_not() {
    // covers: RFC 4861 §7.2.5
    for (overriding, solicited) in [(false, true), (false, false), (true, false)] {
        let mut ip = machine(true);
        ip.route(at(3), peer());
        receive(&mut ip, at(3), &answer(MAC_PEER));
        let message = Message::NeighbourAdvertisement {
            target: peer(),
            router: false,
            solicited,
            overriding,
            target_mac: Some(MAC_OTHER),
        };
        receive(&mut ip, at(10), &nd_frame(peer(), us(), &message));
        assert_eq!(ip.route(at(10), peer()), Route::Via { mac: MAC_PEER });
    }
}

#[test]
fn who_asks_for_us_is_answered_and_known() {
    let mut ip = machine(true);
    let question = Message::NeighbourSolicitation { target: us(), source_mac: Some(MAC_PEER) };
    receive(&mut ip, at(3), &nd_frame(peer(), solicited_node(us()), &question));
    let (mac, header, message) = next_nd(&mut ip).unwrap();
    assert_eq!((mac, header.src, header.dst), (MAC_PEER, us(), peer()));
    let Message::NeighbourAdvertisement { target, solicited, overriding, target_mac, .. } = message else {
        panic!()
    };
    assert_eq!((target, solicited, overriding, target_mac), (us(), true, true, Some(MAC_US)));
    assert_eq!(ip.route(at(3), peer()), Route::Via { mac: MAC_PEER });
    let of_others =
        Message::NeighbourSolicitation { target: addr("2001:db8::9"), source_mac: Some(MAC_PEER) };
    receive(&mut ip, at(3), &nd_frame(peer(), us(), &of_others));
    assert_eq!(next_nd(&mut ip), None);
}

#[test]
fn a_silent_neighbour_fails_after_three_questions() {
    let mut ip = machine(true);
    assert_eq!(ip.route(at(3), peer()), Route::Resolving);
    for n in 1..4 {
        ip.handle_timeout(at(3) + Duration::from_millis(n * 1100));
    }
    assert_eq!(ip.route(at(6) + Duration::from_millis(400), peer()), Route::Unreachable);
    assert_eq!((ip.counters().nd_solicitations, ip.counters().neighbours_failed), (3, 1));
}

#[test]
fn an_address_is_tried_out_before_it_is_defended() {
    // covers: RFC 4862 §5.4.2
    let mut ip = machine(false);
    ip.announce(at(0));
    let mut probed = Vec::new();
    let mut listened = 0;
    while let Some(frame) = ip.poll_frame() {
        let (ethernet, at) = ethernet::parse(&frame.bytes).unwrap();
        if ethernet.ethertype != EtherType::IPV6 {
            continue;
        }
        let (header, len) = ipv6::parse(&frame.bytes[at..]).unwrap();
        assert_eq!(header.src, Addr::ANY);
        match nd::parse(&frame.bytes[at + len..]) {
            Ok(Message::NeighbourSolicitation { target, source_mac: None }) => probed.push(target),
            Ok(Message::RouterSolicitation { source_mac: None }) => assert_eq!(header.dst, ALL_ROUTERS),
            _ => {
                assert_eq!((header.dst, header.hop_limit), (mld::ROUTERS, 1));
                assert!(probed.is_empty(), "listens before it asks");
                listened += 1;
            }
        }
    }
    assert_eq!((probed, listened), (std::vec![local_us(), us()], 1));
    // Meanwhile the address may be used, but does not replace the entry of another station (RFC 4429).
    let question = Message::NeighbourSolicitation { target: us(), source_mac: Some(MAC_PEER) };
    receive(&mut ip, at(0), &nd_frame(peer(), solicited_node(us()), &question));
    let Some((.., Message::NeighbourAdvertisement { overriding, .. })) = next_nd(&mut ip) else { panic!() };
    assert!(!overriding);
    ip.handle_timeout(at(2));
    assert!(ip.v6_addresses().iter().all(|own| own.state == State::Preferred));
    // A station that probes the address now gets an advertisement that it is taken.
    let probe = Message::NeighbourSolicitation { target: us(), source_mac: None };
    receive(&mut ip, at(2), &nd_frame(Addr::ANY, solicited_node(us()), &probe));
    let (_, header, message) = next_nd(&mut ip).unwrap();
    assert_eq!(header.dst, ALL_NODES);
    assert!(matches!(message, Message::NeighbourAdvertisement { solicited: false, overriding: true, .. }));
}

#[test]
fn an_address_that_another_host_has_or_wants_is_given_up() {
    // covers: RFC 4862 §5.4.3, §5.4.4
    let taken = Message::NeighbourAdvertisement {
        target: us(),
        router: false,
        solicited: false,
        overriding: true,
        target_mac: Some(MAC_PEER),
    };
    let wanted = Message::NeighbourSolicitation { target: us(), source_mac: None };
    for frame in [nd_frame(us(), ALL_NODES, &taken), nd_frame(Addr::ANY, solicited_node(us()), &wanted)] {
        let mut ip = machine(false);
        assert!(ip.is_own(us()));
        receive(&mut ip, at(0), &frame);
        assert!(!ip.is_own(us()) && ip.is_own(local_us()));
        ip.handle_timeout(at(5));
        assert_eq!(ip.v6_addresses()[1].state, State::Duplicate);
        // Our own probe, come back, is not that of another host.
        let mut ip = machine(false);
        let mut looped = frame.clone();
        looped[6..12].copy_from_slice(&MAC_US.0);
        receive(&mut ip, at(0), &looped);
        assert!(ip.is_own(us()));
        // Addresses that were probed are kept.
        let mut ip = machine(true);
        receive(&mut ip, at(3), &frame);
        assert!(ip.is_own(us()));
    }
}

#[test]
fn a_router_gives_prefix_address_way_and_mtu_and_takes_them_back() {
    // covers: RFC 4862 §5.5.3, RFC 4861 §6.3.4
    let mut ip = machine(true);
    let far = addr("2001:db8:ffff::1");
    assert_eq!(ip.route(at(3), far), Route::Unreachable);
    advertise(
        &mut ip,
        at(3),
        RouterAdvertisement { mtu: Some(1400), hop_limit: 32, ..advertisement("2001:db8:1::", 100, 50) },
    );
    let made = addr("2001:db8:1::ff:fe00:1");
    assert!(ip.is_own(made) && ip.has_v6_router());
    assert_eq!((ip.mtu_for(far), ip.mtu_for(Addr::v4(1)), ip.hop_limit()), (1400, 1500, 32));
    assert_eq!(ip.route(at(3), far), Route::Via { mac: MAC_PEER }, "its station stands in the advertisement");
    assert_eq!(ip.source_for(addr("2001:db8:1::7")), Some(made));
    assert_eq!(ip.source_for(addr("2001:db8::7")), Some(us()));
    assert_eq!(ip.source_for(router()), Some(local_us()));
    // Deprecated addresses come after the others; then they are gone.
    ip.handle_timeout(at(60));
    let state = ip.v6_addresses().iter().find(|own| own.addr == made).map(|own| own.state);
    assert_eq!(state, Some(State::Deprecated));
    assert_eq!(ip.source_for(addr("2001:db8:1::7")), Some(us()));
    ip.handle_timeout(at(104));
    assert!(!ip.is_own(made));
    assert_eq!(ip.v6_on_link().count(), 1);
    // The router leaves.
    advertise(&mut ip, at(105), RouterAdvertisement { router_lifetime: 0, ..RouterAdvertisement::default() });
    assert!(!ip.has_v6_router());
}

#[test]
fn a_successor_has_the_addresses_and_ways_of_its_predecessor() {
    let mut before = machine(true);
    advertise(&mut before, at(3), advertisement("2001:db8:1::", 100, 50));
    before.handle_timeout(at(5));
    let past = crate::Past {
        addresses: before.v6_addresses().to_vec(),
        on_link: before.v6_on_link().collect(),
        routers: before.v6_routers().collect(),
        ..crate::Past::default()
    };
    let mut ip = fresh(at(10), true);
    ip.resume(at(10), &past);
    assert_eq!(ip.v6_addresses(), before.v6_addresses());
    assert!(ip.v6_on_link().eq(before.v6_on_link()) && ip.v6_routers().eq(before.v6_routers()));
    ip.announce(at(10));
    while let Some(frame) = ip.poll_frame() {
        let solicits = frame.bytes.get(14 + 40) == Some(&135);
        assert!(!solicits, "what was tried out is not tried out again");
    }
    assert_eq!(
        ip.route(at(10), addr("2001:db8:ffff::1")),
        Route::Resolving,
        "its station is asked for again"
    );
    // The ends of lifetimes are those of before.
    ip.handle_timeout(at(104));
    assert_eq!(ip.v6_addresses().len(), 2);
    // What has ended meanwhile is not resumed, nor what was not believed from a router before.
    let mut ip = fresh(at(200), true);
    ip.resume(at(200), &past);
    assert_eq!((ip.v6_addresses().len(), ip.v6_on_link().count()), (2, 1));
    let mut ip = fresh(at(10), false);
    ip.resume(at(10), &past);
    assert_eq!((ip.v6_addresses().len(), ip.has_v6_router()), (2, false));
}

#[test]
fn the_link_local_prefix_is_not_a_routers() {
    // covers: RFC 4861 §6.3.4, RFC 4862 §5.5.3 (b)
    let mut ip = machine(true);
    advertise(&mut ip, at(3), advertisement("fe80::", 100, 100));
    assert_eq!((ip.v6_addresses().len(), ip.v6_on_link().count()), (2, 1));
}

#[test]
fn only_prefixes_that_say_so_make_addresses() {
    // covers: RFC 4862 §5.5.3 (a), (c), (d)
    let made = |change: fn(&mut PrefixInformation)| {
        let mut prefix = advertisement("2001:db8:1::", 100, 50).prefixes.as_slice()[0];
        change(&mut prefix);
        let mut advertisement =
            RouterAdvertisement { router_lifetime: 1800, ..RouterAdvertisement::default() };
        advertisement.prefixes.push(prefix);
        let mut ip = machine(true);
        advertise(&mut ip, at(3), advertisement);
        ip.v6_addresses().len() > 2
    };
    assert!(made(|_| ()));
    assert!(!made(|prefix| prefix.autonomous = false));
    assert!(!made(|prefix| prefix.preferred_lifetime = 101));
    assert!(!made(|prefix| (prefix.valid_lifetime, prefix.preferred_lifetime) = (0, 0)));
    assert!(!made(|prefix| prefix.len = 63));
}

#[test]
fn the_next_router_takes_over() {
    // covers: RFC 4861 §6.3.6
    let (mut ip, other, far) = (machine(true), addr("fe80::bb"), addr("2001:db8:ffff::1"));
    advertise(
        &mut ip,
        at(3),
        RouterAdvertisement { source_mac: None, ..advertisement("2001:db8:1::", 100, 50) },
    );
    let second =
        RouterAdvertisement { source_mac: Some(MAC_OTHER), ..advertisement("2001:db8:1::", 100, 50) };
    receive(&mut ip, at(3), &nd_frame(other, ALL_NODES, &Message::RouterAdvertisement(second)));
    assert_eq!(ip.next_hop(far), Some(router()));
    assert_eq!(ip.route(at(3), far), Route::Resolving);
    // The first router does not answer three questions.
    for n in 1..4 {
        ip.handle_timeout(at(3) + Duration::from_millis(n * 1100));
    }
    assert_eq!((ip.next_hop(far), ip.route(at(7), far)), (Some(other), Route::Via { mac: MAC_OTHER }));
}

#[test]
fn a_neighbour_that_is_no_router_any_more_is_none() {
    // covers: RFC 4861 §7.2.5
    let mut ip = machine(true);
    advertise(&mut ip, at(3), advertisement("2001:db8:1::", 100, 100));
    assert!(ip.has_v6_router());
    let says = |router_flag| {
        let target_mac = Some(MAC_PEER);
        let message = Message::NeighbourAdvertisement {
            target: router(),
            router: router_flag,
            solicited: false,
            overriding: true,
            target_mac,
        };
        nd_frame(router(), ALL_NODES, &message)
    };
    receive(&mut ip, at(4), &says(true));
    assert!(ip.has_v6_router());
    receive(&mut ip, at(5), &says(false));
    assert!(!ip.has_v6_router());
}

#[test]
fn a_forged_advertisement_cannot_end_an_address_at_once() {
    // covers: RFC 4862 §5.5.3 (e)
    let mut ip = machine(true);
    advertise(&mut ip, at(3), advertisement("2001:db8:1::", 100_000, 100_000));
    advertise(&mut ip, at(4), advertisement("2001:db8:1::", 0, 0));
    let own = ip.v6_addresses()[2];
    assert_eq!((own.valid_until, own.preferred_until), (at(4 + 7200), at(4)));
}

#[test]
fn what_routers_say_is_bounded_and_may_be_ignored() {
    let mut ip = machine(true);
    for n in 0..200 {
        advertise(&mut ip, at(3), advertisement(&std::format!("2001:db8:{:x}::", n + 1), 100, 100));
    }
    assert_eq!((ip.v6_addresses().len(), ip.v6_on_link().count()), (OWN_MAX, ON_LINK_MAX));
    let v6 = V6Config { address: Some((us(), 64)), gateway: Some(peer()), autoconf: false };
    let config = Config { v6: Some(v6), ..Config::new(MAC_US, 0xc612_0001, 24) };
    let mut ip = Ip::new(config, 42, at(0)).unwrap();
    let message = Message::RouterAdvertisement(advertisement("2001:db8:1::", 100, 100));
    let frame = nd_frame(router(), ALL_NODES, &message);
    assert_eq!(receive(&mut ip, at(3), &frame), Received::Dropped(Reason::NdIgnored));
    assert_eq!(ip.next_hop(addr("2001:db8:ffff::1")), Some(peer()));
}

#[test]
fn routers_are_asked_for_three_times_and_no_more_once_one_has_answered() {
    let mut ip = machine(false);
    ip.announce(at(0));
    let asked = |ip: &mut Ip| {
        let mut count = 0;
        while let Some(frame) = ip.poll_frame() {
            count += usize::from(frame.bytes.get(38..54) == Some(&ALL_ROUTERS.octets()));
        }
        count
    };
    assert_eq!(asked(&mut ip), 1);
    (1..20).for_each(|seconds| ip.handle_timeout(at(seconds)));
    assert_eq!(asked(&mut ip), 2);
    let mut ip = machine(false);
    ip.announce(at(0));
    advertise(&mut ip, at(1), advertisement("2001:db8:1::", 100, 100));
    asked(&mut ip);
    (2..20).for_each(|seconds| ip.handle_timeout(at(seconds)));
    assert_eq!(asked(&mut ip), 0);
}

#[test]
fn a_router_that_asks_hears_the_groups() {
    // covers: RFC 3810 §6.2
    let mut ip = machine(false);
    ip.announce(at(0));
    (1..5).for_each(|seconds| ip.handle_timeout(at(seconds)));
    while ip.poll_frame().is_some() {}
    let before = ip.counters().listener_reports;
    assert_eq!(before, 2, "a change is told twice");
    let mut query = [0; 28];
    (query[0], query[4], query[5]) = (mld::QUERY, 0x03, 0xe8);
    let sum = checksum::pseudo_header_v6(router(), ALL_NODES, 58, query.len()).bytes(&query).finish();
    query[2..4].copy_from_slice(&sum.to_be_bytes());
    let header = ipv6::Header {
        src: router(),
        dst: ALL_NODES,
        next_header: Protocol(ipv6::HOP_BY_HOP),
        hop_limit: 1,
        ..Default::default()
    };
    let payload = [&mld::ROUTER_ALERT[..], &query].concat();
    let asks = Build { dst_mac: multicast_mac(ALL_NODES), src_mac: MAC_PEER, header, payload };
    assert_eq!(receive(&mut ip, at(5), &asks.frame()), Received::Consumed);
    ip.handle_timeout(at(7));
    let (_, header, payload) = next_packet(&mut ip).unwrap();
    assert_eq!((header.src, payload[..8].to_vec()), (local_us(), mld::ROUTER_ALERT.to_vec()));
    // There are two groups, of the link-local and of the static address, whose last octets are equal here.
    assert_eq!(payload[8 + 7], 1 + u8::from(solicited_node(local_us()) != solicited_node(us())));
    let far = asks.with(|build| build.header.hop_limit = 2).frame();
    assert_eq!(receive(&mut ip, at(8), &far), Received::Dropped(Reason::NdIgnored));
}

#[test]
fn echoes_are_answered_to_one_host() {
    let mut ip = machine(true);
    let mut echo = std::vec![0; 8 + 5];
    echo[8..].copy_from_slice(b"hello");
    icmpv6::emit(peer(), us(), &icmpv6::Message::EchoRequest { id: 7, seq: 9 }, &mut echo);
    let frame = packet(Protocol::ICMPV6, &echo).frame();
    assert_eq!(receive(&mut ip, at(3), &frame), Received::Consumed);
    let (mac, header, payload) = next_packet(&mut ip).unwrap();
    assert_eq!((mac, header.src, header.dst), (MAC_PEER, us(), peer()));
    let (reply, _) = icmpv6::parse(us(), peer(), &payload).unwrap();
    assert_eq!((reply, &payload[8..]), (icmpv6::Message::EchoReply { id: 7, seq: 9 }, &b"hello"[..]));
}

#[test]
fn errors_are_attributed_to_our_flows_and_small_mtus_not_believed() {
    let mut ip = machine(true);
    let quoted = {
        let header = ipv6::Header {
            src: us(),
            dst: peer(),
            next_header: Protocol::TCP,
            payload_len: 1400,
            ..Default::default()
        };
        let mut bytes = std::vec![0; 48];
        ipv6::emit(&header, &mut bytes);
        bytes[40..].copy_from_slice(&[0, 80, 0x9c, 0x40, 0, 0, 0, 5]);
        bytes
    };
    let error = |message: icmpv6::Message| {
        let mut text = [&[0; 8][..], &quoted].concat();
        icmpv6::emit(router(), us(), &message, &mut text);
        let from = |build: &mut Build| (build.header.src, build.header.hop_limit) = (router(), 61);
        packet(Protocol::ICMPV6, &text).with(from).frame()
    };
    let kind_of = |ip: &mut Ip, message| match receive(ip, at(3), &error(message)) {
        Received::Error(NetworkError { kind, tuple, hops, .. }, _) => {
            assert_eq!((tuple.local, tuple.remote), (Endpoint::at(us(), 80), Endpoint::at(peer(), 40000)));
            assert_eq!(hops, 61);
            kind
        }
        other => panic!("{other:?}"),
    };
    for mtu in [1400, 1280] {
        let kind = kind_of(&mut ip, icmpv6::Message::PacketTooBig { mtu });
        assert_eq!(kind, ErrorKind::FragNeeded { mtu: mtu as u16 });
    }
    // covers: RFC 8201 §4: no link takes less; RFC 5927 §7.2: it would have fitted.
    for (mtu, reason) in [
        (1279, Reason::IcmpIgnored),
        (0, Reason::IcmpIgnored),
        (1441, Reason::IcmpNotAboutUs),
        (1 << 20, Reason::IcmpNotAboutUs),
    ] {
        let frame = error(icmpv6::Message::PacketTooBig { mtu });
        assert_eq!(receive(&mut ip, at(3), &frame), Received::Dropped(reason));
    }
    let lost = |kind, code, info| ErrorKind::Lost { kind, code, info };
    for code in 0..=8 {
        assert_eq!(kind_of(&mut ip, icmpv6::Message::Unreachable { code }), lost(1, code, 0));
    }
    // covers: RFC 4443 §3.4, §2.4 (a): errors that nobody knows are passed on, too; other messages are not (b).
    for code in [0, 2] {
        assert_eq!(
            kind_of(&mut ip, icmpv6::Message::ParameterProblem { code, pointer: 6 }),
            lost(4, code, 6)
        );
    }
    assert_eq!(
        kind_of(&mut ip, icmpv6::Message::Other { kind: 100, code: 0, rest: [0, 0, 0, 9] }),
        lost(100, 0, 9)
    );
    let unknown = error(icmpv6::Message::Other { kind: 200, code: 0, rest: [0; 4] });
    assert_eq!(receive(&mut ip, at(3), &unknown), Received::Dropped(Reason::IcmpIgnored));
}

#[test]
fn an_error_is_no_longer_than_the_smallest_link_carries() {
    // covers: RFC 4443 §2.4 (c)
    for (len, expected) in [(100, 48 + 40 + 100), (1240, 1280), (1400, 1280)] {
        let mut ip = machine(true);
        let datagram = packet(Protocol::UDP, &std::vec![0; len]).frame();
        ip.unreachable(at(3), Link::Outside, &datagram, atoll_wire::icmp::code::PORT);
        let (_, _, payload) = next_packet(&mut ip).unwrap();
        assert_eq!(40 + payload.len(), expected, "{len}");
    }
}

#[test]
fn silence_where_errors_are_forbidden_v6() {
    // covers: RFC 4443 §2.4 (e)
    let port = atoll_wire::icmp::code::PORT;
    let datagram = || packet(Protocol::UDP, &[0, 1, 0, 2, 0, 8, 0, 0]);
    let redirect = packet(Protocol::ICMPV6, &[137, 0, 0, 0, 0, 0, 0, 0]);
    let cases = [
        redirect,
        datagram().with(|b| b.header.dst = ALL_NODES),
        datagram().with(|b| b.dst_mac = Mac::BROADCAST),
        datagram().with(|b| b.header.src = Addr::ANY),
        datagram().with(|b| b.header.src = ALL_NODES),
        datagram().with(|b| b.src_mac = Mac::BROADCAST),
    ];
    for (n, case) in cases.iter().enumerate() {
        let mut ip = machine(true);
        ip.unreachable(at(3), Link::Outside, &case.frame(), port);
        assert_eq!(ip.poll_frame(), None, "{n}");
    }
    // An option that asks for an error gets one although it went to a group (§2.4 (e.3)); one that asks for
    // less does not.
    for (option, answered) in [(0x80, true), (0xc0, false)] {
        let mut ip = machine(true);
        let problem = packet(Protocol(60), &[59, 0, option, 0, 1, 2, 0, 0]).with(|b| {
            b.header.dst = ALL_NODES;
            b.dst_mac = multicast_mac(ALL_NODES);
        });
        receive(&mut ip, at(3), &problem.frame());
        assert_eq!(
            next_packet(&mut ip).map(|(_, header, _)| header.src),
            answered.then_some(us()),
            "{option:x}"
        );
    }
}

#[test]
fn nobody_at_a_port_is_told_but_not_to_groups_and_not_about_errors() {
    let mut ip = machine(true);
    let datagram = packet(Protocol::UDP, &[0, 1, 0, 2, 0, 8, 0, 0]);
    ip.unreachable(at(3), Link::Outside, &datagram.frame(), atoll_wire::icmp::code::PORT);
    let (_, header, payload) = next_packet(&mut ip).unwrap();
    assert_eq!((header.src, header.dst, payload[0], payload[1]), (us(), peer(), 1, 4));
    assert_eq!(payload[8..], datagram.frame()[14..]);
    let to_all = datagram.with(|build| build.dst_mac = multicast_mac(ALL_NODES)).frame();
    ip.unreachable(at(3), Link::Outside, &to_all, atoll_wire::icmp::code::PORT);
    let mut error = std::vec![0; 60];
    icmpv6::emit(peer(), us(), &icmpv6::Message::Unreachable { code: 0 }, &mut error);
    let about_error = packet(Protocol::ICMPV6, &error).frame();
    ip.unreachable(at(3), Link::Outside, &about_error, atoll_wire::icmp::code::PORT);
    assert_eq!((ip.poll_frame(), ip.counters().errors_suppressed), (None, 2));
    // covers: RFC 8200 §4: a next header that we do not know.
    let unknown = packet(Protocol(132), &[0; 12]).frame();
    assert_eq!(receive(&mut ip, at(3), &unknown), Received::Dropped(Reason::UnknownProtocol));
    let (_, _, payload) = next_packet(&mut ip).unwrap();
    assert_eq!(payload[..8], [4, 1, payload[2], payload[3], 0, 0, 0, 6]);
}

#[test]
fn headers_are_those_of_the_family() {
    let mut ip = machine(true);
    let mut out = [0; crate::HEADERS_LEN_MAX];
    let outgoing = Outgoing {
        dst_mac: MAC_PEER,
        src: us(),
        dst: peer(),
        protocol: Protocol::TCP,
        payload_len: 20,
        tos: 2,
        ttl: 9,
        dont_fragment: true,
    };
    assert_eq!(ip.emit_headers(&mut out, &outgoing), crate::headers_len(peer()));
    let (header, _) = ipv6::parse_quoted(&out[14..]).unwrap();
    assert_eq!((header.src, header.dst, header.traffic_class, header.hop_limit), (us(), peer(), 2, 9));
    assert_eq!(ip.emit_headers(&mut out, &Outgoing { src: Addr::v4(1), dst: Addr::v4(2), ..outgoing }), 34);
}
