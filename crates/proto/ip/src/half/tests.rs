use atoll_base::Duration;
use atoll_wire::ipv4::Protocol;
use atoll_wire::{Mac, ethernet, icmp};

use super::*;
use crate::ip::tests::{
    FAR, GATEWAY, MAC_US, PEER, US, answer, at, ip, packet, question, receive, tcp_packet, udp_packet,
};
use crate::{ChecksumOffload, Config, Ip, Reason, Received, Route, V6Config};

const OWN_V6: Addr = Addr::from_octets([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
const FAR_V6: Addr = Addr::from_octets([0x26; 16]);
const GROUP: u32 = 0xe001_0203;

fn config() -> Config {
    let v6 = V6Config { address: Some((OWN_V6, 64)), gateway: None, autoconf: true };
    Config { gateway: Some(GATEWAY), v6: Some(v6), ..Config::new(MAC_US, US, 24) }
}

fn half_of(config: Config) -> Ip {
    Ip::new(Config { apart: true, sibling: (1, 2), ..config }, 42, at(0)).unwrap()
}

fn half() -> Ip {
    half_of(config())
}

fn requests(ip: &mut Ip) -> Vec<Request> {
    let mut all = Vec::new();
    ip.send_requests(|request| {
        all.push(request);
        true
    });
    all
}

#[test]
fn every_way_leaves_without_a_station() {
    let mut half = half();
    let empty = Route::Via { mac: Mac::ZERO };
    for (dst, route) in [
        (Addr::v4(PEER), empty),
        (Addr::v4(FAR), empty),
        (Addr::v4(u32::MAX), empty),
        (Addr::v4(GROUP), empty),
        (Addr::v4(US), Route::Local),
        (Addr::v4(0x7f00_0001), Route::Local),
        (Addr::v4(0xf000_0001), Route::Unreachable),
        (OWN_V6, Route::Local),
        // There is no router.
        (FAR_V6, Route::Unreachable),
    ] {
        assert_eq!(half.route(at(0), dst), route, "{dst}");
    }
    assert!(half.poll_frame().is_none(), "it asks nobody");
    assert!(half.next_timeout().is_none(), "and has nothing to wait for");
}

#[test]
fn a_half_without_a_gateway_knows_how_far_it_gets() {
    let mut half = half_of(Config { gateway: None, ..config() });
    assert_eq!(half.route(at(0), FAR), Route::Unreachable);
    assert_eq!(half.route(at(0), PEER), Route::Via { mac: Mac::ZERO });
}

#[test]
fn what_is_told_of_the_network_counts_from_then_on() {
    let mut whole = ip();
    let mut told = whole.told();
    let (router, dynamic) =
        (Addr::from_octets([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]), FAR_V6);
    told.v4 = Some(V4Address { gateway: Some(PEER), mtu: 1400, ..V4Address::new(US + 7, 24) });
    told.addresses = Vec::from([OwnAddress { addr: dynamic, ..half().v6_addresses()[0] }]);
    told.on_link = Vec::from([(dynamic, 64)]);
    (told.routers, told.mtu_v6, told.hop_limit) = (Vec::from([router]), 1300, 20);
    told.dhcp = Some(crate::DhcpNews {
        state: crate::DhcpState::Bound,
        server: PEER,
        dns: Vec::new(),
        domain: "a".into(),
    });

    let mut half = half();
    let generation = half.neighbour_generation();
    half.handle_told(told.clone());
    assert!(half.neighbour_generation() > generation, "programs and routes are told");
    assert_eq!(half.told(), told);
    assert_eq!(
        (half.addr(), half.mtu(), half.mtu_for(dynamic), half.hop_limit()),
        (Some(US + 7), 1400, 1300, 20)
    );
    assert!(!half.is_own(Addr::v4(US)) && half.is_own(dynamic) && !half.is_own(OWN_V6));
    assert_eq!(half.next_hop(OWN_V6), Some(router));

    let generation = half.neighbour_generation();
    half.handle_told(told.clone());
    assert_eq!(half.neighbour_generation(), generation, "that was no news");
    half.handle_told(Told { v4: None, ..told.clone() });
    assert_eq!(half.route(at(0), PEER), Route::Unreachable);
    whole.handle_told(told);
    assert_eq!(whole.addr(), Some(US), "who has all of IP is told by nobody");
}

#[test]
fn nonsense_of_an_ip_server_is_not_taken() {
    let mut half = half();
    let mut told = half.told();
    told.v4 = Some(V4Address::new(0xffff_ffff, 24));
    let strange = [Addr::V4_ANY, Addr::ANY, Addr::LOOPBACK, Addr::from_octets([0xff; 16])];
    let own = half.v6_addresses()[0];
    told.addresses = strange.iter().map(|addr| OwnAddress { addr: *addr, ..own }).collect();
    told.addresses.push(OwnAddress { prefix_len: 129, ..own });
    told.addresses
        .extend((0..100).map(|n| OwnAddress { addr: Addr::from_octets([0x20 + n % 8; 16]), ..own }));
    told.on_link = (0..100).map(|n| (FAR_V6, 120 + n)).collect();
    told.routers = strange.into_iter().chain((0..100).map(|_| FAR_V6)).collect();
    (told.mtu_v6, told.hop_limit) = (7, 0);
    half.handle_told(told);
    assert_eq!((half.addr(), half.mtu_for(FAR_V6), half.hop_limit()), (None, 1280, 1));
    assert!(half.v6_addresses().len() == 16 && half.v6_addresses().iter().all(|own| own.prefix_len <= 128));
    assert!(half.v6_on_link().count() <= 16 && half.v6_routers().all(|(router, _)| router == FAR_V6));
}

#[test]
fn an_unreachable_destination_is_one_for_a_second() {
    let mut half = half();
    let generation = half.neighbour_generation();
    half.handle_unreachable(at(0), Addr::v4(PEER));
    assert!(half.neighbour_generation() > generation, "connections ask for their ways again");
    assert_eq!(half.route(at(999), PEER), Route::Unreachable);
    assert_eq!(half.route(at(999), FAR), Route::Via { mac: Mac::ZERO });
    assert_eq!(half.route(at(1000), PEER), Route::Via { mac: Mac::ZERO });
    for n in 0..1000 {
        half.handle_unreachable(at(1000), Addr::v4(FAR + n));
    }
    assert_eq!(half.half().map(|half| half.unreachable.len()), Some(UNREACHABLE_MAX));
    half.handle_unreachable(at(3000), Addr::v4(PEER));
    assert_eq!(half.half().map(|half| half.unreachable.len()), Some(1), "the old ones make room");
}

#[test]
fn groups_are_asked_for_once_and_again_of_another_server() {
    let mut half = half();
    let v6 = Addr::from_octets([0xff, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    assert!(half.join_group(at(0), Link::Outside, GROUP) && half.join_group(at(0), Link::Outside, GROUP));
    assert!(half.join_group(at(0), Link::Outside, v6) && half.join_group(at(0), Link::Inside, GROUP + 1));
    assert!(half.has_requests());
    assert_eq!(requests(&mut half), [Request::Join(Addr::v4(GROUP)), Request::Join(v6)]);
    assert!(!half.has_requests() && requests(&mut half).is_empty());
    half.leave_group(at(0), Link::Outside, GROUP);
    assert_eq!(requests(&mut half), [], "another socket is still in it");
    half.leave_group(at(0), Link::Outside, GROUP);
    half.send_requests(|_| false);
    assert_eq!(requests(&mut half), [Request::Leave(Addr::v4(GROUP))], "what was not taken is offered again");
    half.forget_requests();
    assert_eq!(requests(&mut half), [Request::Join(v6)]);
    assert!(half.poll_frame().is_none(), "routers hear of it from the IP server");
}

#[test]
fn what_is_learned_of_a_path_goes_to_siblings_and_to_the_server() {
    let mut half = half();
    half.learn_path_mtu(at(0), FAR, 1400);
    let update = PathUpdate { dst: Addr::v4(FAR), mtu: 1400 };
    assert_eq!((half.poll_path(), requests(&mut half)), (Some(update), Vec::from([Request::Path(update)])));
    half.handle_path(at(0), PathUpdate { mtu: 1300, ..update });
    assert_eq!((half.poll_path(), requests(&mut half)), (None, Vec::new()), "others have told it");
}

#[test]
fn segments_datagrams_and_errors_are_taken_and_nothing_else() {
    let mut half = half();
    assert!(matches!(receive(&mut half, &tcp_packet().frame()), Received::Tcp { .. }));
    assert!(matches!(receive(&mut half, &udp_packet(b"hello").frame()), Received::Udp { .. }));
    let quoted = {
        let mut ours = tcp_packet();
        (ours.header.src, ours.header.dst) = (US, PEER);
        ours.frame()[ethernet::HEADER_LEN..].to_vec()
    };
    let mut error = Vec::from([0; icmp::HEADER_LEN]);
    error.extend_from_slice(&quoted);
    icmp::emit(&icmp::Message::Unreachable { code: icmp::code::HOST, next_hop_mtu: 0 }, &mut error);
    assert!(matches!(receive(&mut half, &packet(Protocol::ICMP, &error).frame()), Received::Error(..)));

    let mut echo = Vec::from([0; 16]);
    icmp::emit(&icmp::Message::EchoRequest { id: 1, seq: 1 }, &mut echo);
    let fragment = udp_packet(b"hello").with(|build| build.header.more_fragments = true);
    let unknown = packet(Protocol(99), b"what?");
    for frame in [
        packet(Protocol::ICMP, &echo).frame(),
        fragment.frame(),
        unknown.frame(),
        packet(Protocol::IGMP, &[0x11, 0, 0, 0, 0, 0, 0, 0]).frame(),
        question(PEER, crate::ip::tests::MAC_PEER, US),
        answer(PEER, crate::ip::tests::MAC_PEER),
    ] {
        assert_eq!(receive(&mut half, &frame), Received::Dropped(Reason::NotForTransport));
    }
    assert!(half.poll_frame().is_none() && half.poll_whole().is_none() && half.poll_neighbour().is_none());
}

#[test]
fn of_ipv6_neighbour_discovery_echo_and_fragments_are_the_servers_business() {
    use atoll_wire::ethernet::EtherType;
    use atoll_wire::{icmpv6, ipv6};
    let mut half = half();
    let frame = |next_header: Protocol, payload: &[u8]| {
        let mut bytes = std::vec![0; ethernet::HEADER_LEN + ipv6::HEADER_LEN];
        let header =
            ethernet::Header { dst: MAC_US, src: crate::ip::tests::MAC_PEER, ethertype: EtherType::IPV6 };
        let at = ethernet::emit(&header, &mut bytes);
        let payload_len = payload.len() as u16;
        let header = ipv6::Header {
            src: FAR_V6,
            dst: OWN_V6,
            next_header,
            payload_len,
            hop_limit: 255,
            ..ipv6::Header::default()
        };
        ipv6::emit(&header, &mut bytes[at..]);
        bytes.extend_from_slice(payload);
        bytes
    };
    let mut echo = Vec::from([0; 16]);
    icmpv6::emit(FAR_V6, OWN_V6, &icmpv6::Message::EchoRequest { id: 1, seq: 1 }, &mut echo);
    let fragment = [17, 0, 0, 1, 0, 0, 0, 9, 0, 53, 0, 53, 0, 16, 0, 0];
    let solicitation = [135, 0, 0, 0, 0, 0, 0, 0];
    for frame in [
        frame(Protocol::ICMPV6, &echo),
        frame(Protocol::ICMPV6, &solicitation),
        frame(Protocol(ipv6::FRAGMENT), &fragment),
        frame(Protocol(99), &[0; 8]),
    ] {
        let received = half.handle_frame(at(0), Link::Outside, &frame, ChecksumOffload::Unknown);
        assert_eq!(received, Received::Dropped(Reason::NotForTransport));
    }
    assert!(half.poll_frame().is_none() && half.poll_whole().is_none());
}

#[test]
fn time_does_nothing_to_what_was_told() {
    let mut half = half();
    let before = half.told();
    half.handle_timeout(at(0) + Duration::from_secs(100_000));
    assert_eq!(half.told(), before);
    assert!(half.poll_frame().is_none());
}
