use std::vec::Vec;

use atoll_base::{FLOW_GROUPS, FlowGroup, FlowKey, ReplicaId, Rng};
use atoll_ipc::HeapMemory;
use atoll_ipc::page::{STACK_PAGE_BYTES, StackPage};
use atoll_wire::Mac;

use super::*;
use crate::{Destination, Steering};

const CLIENT_ADDR: u32 = 0xc612_0001;
const SERVER_ADDR: u32 = 0xc612_0002;
const CLIENT: Endpoint = Endpoint::new(CLIENT_ADDR, 40000);
const SERVER: Endpoint = Endpoint::new(SERVER_ADDR, 80);

fn packet(src: u32, dst: u32, protocol: Protocol, payload: &[u8]) -> Vec<u8> {
    let header = ipv4::Header {
        src,
        dst,
        protocol,
        payload_len: payload.len() as u16,
        tos: 0,
        ttl: 64,
        id: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
    };
    let mut bytes = std::vec![0; ipv4::HEADER_LEN];
    ipv4::emit(&header, &mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

fn frame(packet: &[u8]) -> Vec<u8> {
    let mut bytes = std::vec![0; ethernet::HEADER_LEN];
    let header = ethernet::Header {
        dst: Mac([2, 0, 0, 0, 0, 2]),
        src: Mac([2, 0, 0, 0, 0, 1]),
        ethertype: EtherType::IPV4,
    };
    ethernet::emit(&header, &mut bytes);
    bytes.extend_from_slice(packet);
    bytes
}

fn ports(a: u16, b: u16) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..2].copy_from_slice(&a.to_be_bytes());
    bytes[2..4].copy_from_slice(&b.to_be_bytes());
    bytes
}

#[test]
fn a_segment_belongs_to_its_four_tuple() {
    let bytes = frame(&packet(CLIENT_ADDR, SERVER_ADDR, Protocol::TCP, &ports(CLIENT.port, SERVER.port)));
    assert_eq!(classify(&bytes), Class::Flow(FourTuple { local: SERVER, remote: CLIENT }));
}

#[test]
fn all_fragments_of_a_packet_meet() {
    for (offset, more) in [(0, true), (185, true), (370, false)] {
        for protocol in [Protocol::TCP, Protocol::UDP, Protocol::ICMP] {
            let mut bytes =
                packet(CLIENT_ADDR, SERVER_ADDR, protocol, &ports(CLIENT.port, SERVER.port + offset));
            let header = ipv4::Header {
                id: 77,
                more_fragments: more,
                fragment_offset: offset,
                ..ipv4::parse(&bytes).unwrap().0
            };
            ipv4::emit(&header, &mut bytes);
            let (remote, local) =
                (Endpoint::new(CLIENT_ADDR, 77), Endpoint::new(SERVER_ADDR, protocol.0.into()));
            assert_eq!(classify(&frame(&bytes)), Class::Flow(FourTuple { local, remote }));
        }
    }
}

#[test]
fn an_icmp_error_belongs_to_the_flow_it_quotes() {
    let ours = packet(SERVER_ADDR, CLIENT_ADDR, Protocol::TCP, &ports(SERVER.port, CLIENT.port));
    let mut error = std::vec![3, 1, 0, 0, 0, 0, 0, 0];
    error.extend_from_slice(&ours);
    let sum = atoll_wire::checksum::sum(&error).finish();
    error[2..4].copy_from_slice(&sum.to_be_bytes());
    let bytes = frame(&packet(0xc612_00fe, SERVER_ADDR, Protocol::ICMP, &error));
    assert_eq!(classify(&bytes), Class::Flow(FourTuple { local: SERVER, remote: CLIENT }));
}

#[test]
fn what_is_about_an_address_to_be_is_for_the_stack() {
    let datagram =
        |src, dst| classify(&frame(&packet(SERVER_ADDR, u32::MAX, Protocol::UDP, &ports(src, dst))));
    assert_eq!(datagram(67, 68), Class::Stack);
    assert!(matches!(datagram(68, 67), Class::Flow(_)) && matches!(datagram(67, 69), Class::Flow(_)));
    let about = |sender_addr, target_addr| {
        let (operation, mac) = (arp::Operation::Reply, Mac([2, 0, 0, 0, 0, 1]));
        let packet = arp::Packet { operation, sender_mac: mac, sender_addr, target_mac: mac, target_addr };
        let mut bytes = frame(&[0; arp::PACKET_LEN]);
        bytes[12..14].copy_from_slice(&EtherType::ARP.0.to_be_bytes());
        arp::emit(&packet, &mut bytes[ethernet::HEADER_LEN..]);
        classify(&bytes)
    };
    assert_eq!([about(0, CLIENT_ADDR), about(CLIENT_ADDR, 0)], [Class::Stack; 2]);
    assert_eq!(about(CLIENT_ADDR, SERVER_ADDR), Class::Any);
}

const CLIENT_V6: Endpoint = Endpoint::at(Addr::from_octets([0x20; 16]), 40000);
const SERVER_V6: Endpoint = Endpoint::at(Addr::from_octets([0x21; 16]), 80);

fn packet_v6(src: Addr, dst: Addr, next_header: Protocol, payload: &[u8]) -> Vec<u8> {
    let payload_len = payload.len() as u16;
    let header =
        ipv6::Header { src, dst, next_header, payload_len, hop_limit: 64, ..ipv6::Header::default() };
    let mut bytes = std::vec![0; ipv6::HEADER_LEN];
    ipv6::emit(&header, &mut bytes);
    bytes.extend_from_slice(payload);
    let mut frame = frame(&bytes);
    frame[12..14].copy_from_slice(&EtherType::IPV6.0.to_be_bytes());
    frame
}

#[test]
fn ipv6_flows_are_found_behind_extension_headers_and_in_errors() {
    let (client, server) = (CLIENT_V6.addr, SERVER_V6.addr);
    let flow = Class::Flow(FourTuple { local: SERVER_V6, remote: CLIENT_V6 });
    let segment = ports(CLIENT_V6.port, SERVER_V6.port);
    assert_eq!(classify(&packet_v6(client, server, Protocol::TCP, &segment)), flow);
    let behind = [&[6, 0, 1, 4, 0, 0, 0, 0][..], &segment].concat();
    assert_eq!(classify(&packet_v6(client, server, Protocol(60), &behind)), flow);
    let ours = packet_v6(server, client, Protocol::TCP, &ports(SERVER_V6.port, CLIENT_V6.port));
    let mut error = [&[0; 8][..], &ours[14..]].concat();
    icmpv6::emit(client, server, &icmpv6::Message::PacketTooBig { mtu: 1280 }, &mut error);
    assert_eq!(classify(&packet_v6(client, server, Protocol::ICMPV6, &error)), flow);
}

#[test]
fn all_fragments_of_an_ipv6_packet_meet_and_atomic_ones_go_to_their_flow() {
    let (client, server) = (CLIENT_V6.addr, SERVER_V6.addr);
    let fragment = |next: u8, field: u16, text: &[u8]| {
        let [a, b] = field.to_be_bytes();
        let payload = [&[next, 0, a, b, 0xde, 0xad, 0xbe, 0xef], text].concat();
        classify(&packet_v6(client, server, Protocol(44), &payload))
    };
    let met =
        Class::Flow(FourTuple { local: Endpoint::at(server, 0xbeef), remote: Endpoint::at(client, 0xdead) });
    let segment = ports(CLIENT_V6.port, SERVER_V6.port);
    for (next, field) in [(17, 1), (17, 185 << 3 | 1), (6, 370 << 3), (58, 1), (60, 8), (44, 1)] {
        assert_eq!(fragment(next, field, &segment), met, "{next} {field:x}");
        // This holds wherever the fragment header is.
        let [a, b] = field.to_be_bytes();
        let behind =
            [&[44, 0, 1, 4, 0, 0, 0, 0, next, 0, a, b, 0xde, 0xad, 0xbe, 0xef][..], &segment].concat();
        assert_eq!(classify(&packet_v6(client, server, Protocol(60), &behind)), met);
    }
    assert_eq!(fragment(6, 0, &segment), Class::Flow(FourTuple { local: SERVER_V6, remote: CLIENT_V6 }));
}

#[test]
fn what_routers_and_neighbours_say_is_for_all() {
    let (client, server) = (CLIENT_V6.addr, SERVER_V6.addr);
    let of = |src, kind: u8| classify(&packet_v6(src, server, Protocol::ICMPV6, &[kind; 24]));
    assert_eq!([134, 136, 137, 130].map(|kind| of(client, kind)), [Class::All; 4]);
    assert_eq!(of(client, 131), Class::Stack);
    assert_eq!((of(client, 135), of(Addr::ANY, 135)), (Class::Any, Class::All));
    let mut echo = [0; 8];
    icmpv6::emit(client, server, &icmpv6::Message::EchoRequest { id: 1, seq: 1 }, &mut echo);
    assert_eq!(classify(&packet_v6(client, server, Protocol::ICMPV6, &echo)), Class::Any);
}

#[test]
fn a_frame_goes_to_its_owner_and_what_nobody_owns_to_whom_the_link_server_says() {
    let page = StackPage(HeapMemory::new(STACK_PAGE_BYTES));
    (0..FLOW_GROUPS as u16).for_each(|group| page.set_owner(FlowGroup(group), ReplicaId(3)));
    let mut steering = Steering::new(FlowKey { k0: 1, k1: 2 });
    steering.refresh(&page, 4);
    let to = |bytes: &[u8]| steering.destination(bytes, ReplicaId(1));
    let segment = packet(CLIENT_ADDR, SERVER_ADDR, Protocol::TCP, &ports(CLIENT.port, SERVER.port));
    assert_eq!(to(&frame(&segment)), Destination::One(ReplicaId(3)));
    assert_eq!(
        to(&frame(&packet(CLIENT_ADDR, 0xe000_0001, Protocol::IGMP, &[0; 8]))),
        Destination::One(ReplicaId(0))
    );
    assert_eq!(
        to(&frame(&packet(CLIENT_ADDR, SERVER_ADDR, Protocol::ICMP, &[8; 8]))),
        Destination::One(ReplicaId(1))
    );
    assert_eq!(to(&[]), Destination::One(ReplicaId(1)));
    let (router, all) = (Addr::from_octets([0xfe; 16]), Addr::from_octets([0xff; 16]));
    let advertisement = packet_v6(router, all, Protocol::ICMPV6, &[nd::ROUTER_ADVERTISEMENT; 16]);
    assert_eq!(to(&advertisement), Destination::All);
}

#[test]
fn noise_never_panics() {
    let mut rng = Rng::new(6);
    let good = [
        frame(&packet(CLIENT_ADDR, SERVER_ADDR, Protocol::ICMP, &ports(1, 2))),
        packet_v6(CLIENT_V6.addr, SERVER_V6.addr, Protocol(60), &[6, 0, 1, 4, 0, 0, 0, 0, 1, 2, 3, 4]),
    ];
    for n in 0..200_000 {
        let mut bytes = good[n % 2].clone();
        bytes.truncate(rng.below(bytes.len() as u32 + 1) as usize);
        for _ in 0..rng.below(6) {
            let at = rng.below(bytes.len() as u32) as usize;
            if let Some(byte) = bytes.get_mut(at) {
                *byte = rng.next_u32() as u8;
            }
        }
        let _ = classify(&bytes);
    }
}
