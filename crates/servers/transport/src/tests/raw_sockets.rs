//! Raw sockets of ICMP: who may have one, what they hear, and what leaves.

use std::vec;
use std::vec::Vec;

use atoll_base::{Addr, Duration, Endpoint, ReplicaId};
use atoll_ip::ChecksumOffload;
use atoll_ipc::Cause;
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::command::Protocol;
use atoll_ipc::control::User;
use atoll_ipc::lease::{NO_USER, Pass};
use atoll_ipc::slot::SlotState;
use atoll_sockets::Errno;
use atoll_sockets::ancillary::Addressed;
use atoll_wire::{checksum, icmp, icmpv6, ipv4, ipv6, nd};

use super::front::is_ip_apart;
use super::kit::{App, Net, Socket, Stack, addr, addr_v6};
use crate::Recovery;

const ARENA: ArenaConfig = ArenaConfig { slots: 64, send_log2: 16, receive_log2: 16 };
const ICMP_FILTER: (i32, i32) = (255, 1);
const ICMP6_FILTER: (i32, i32) = (58, 1);

/// Two stacks, and a program with a raw socket on the second one.
fn two(v6: bool) -> (Net, App, Socket) {
    let mut net = Net::new(vec![Stack::v6(1), Stack::v6(2)]);
    let mut app = App::attach(net.stack(1), 2);
    let socket = app.open_raw(&mut net, v6).expect("the supervisor has vouched");
    assert_eq!(app.state(socket).0, SlotState::Open);
    (net, app, socket)
}

fn to(host: u8) -> Endpoint {
    Endpoint::new(addr(host), 0)
}

fn echo(message: icmp::Message, body: &[u8]) -> Vec<u8> {
    let mut octets = [&[0; icmp::HEADER_LEN], body].concat();
    icmp::emit(&message, &mut octets);
    octets
}

fn request(seq: u16, body: &[u8]) -> Vec<u8> {
    echo(icmp::Message::EchoRequest { id: 4711, seq }, body)
}

/// Returns a packet of IPv4 with a message from the first stack to the second one.
fn packet(message: &[u8]) -> Vec<u8> {
    let header = ipv4::Header {
        src: addr(1),
        dst: addr(2),
        protocol: ipv4::Protocol::ICMP,
        payload_len: message.len() as u16,
        ttl: 33,
        ..Default::default()
    };
    let mut packet = [&[0; ipv4::HEADER_LEN], message].concat();
    ipv4::emit(&header, &mut packet);
    packet
}

/// Lets a stack hear a packet from the first one.
fn hear(net: &mut Net, stack: usize, ethertype: [u8; 2], packet: &[u8]) {
    let frame = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1][..], &ethertype, packet].concat();
    let now = net.now;
    net.stack(stack).hear(now, &frame, ChecksumOffload::Unknown);
    net.settle();
}

fn hear_v4(net: &mut Net, message: &[u8]) -> Vec<u8> {
    let packet = packet(message);
    hear(net, 1, [8, 0], &packet);
    packet
}

#[test]
fn nobody_has_one_without_the_supervisors_word() {
    // All ports are free for everybody here.
    let mut net = Net::new(vec![Stack::new(1)]);
    let mut app = App::attach_as(net.stack(0), 1, User::anybody(0), ARENA);
    let good = Pass { lease: 7, uid: 33, protocol: Protocol::Raw, port: 1 };
    let refused = [
        // The supervisor has seen a process without the capability.
        Pass { port: 0, ..good },
        Pass { uid: NO_USER, ..good },
        // It has vouched for a port, and for the raw sockets of the other family.
        Pass { protocol: Protocol::Udp, ..good },
        Pass { port: 58, ..good },
    ];
    for (lease, pass) in (8..).zip(refused) {
        let opened = app.open_raw_with(&mut net, false, Pass { lease, ..pass });
        assert_eq!(opened.err(), Some(Errno::EACCES), "{pass:?}");
    }
    assert!(app.open_raw_with(&mut net, false, good).is_ok());
    // The port of a raw socket is no other one.
    app.raw().bind(20, Protocol::Raw, Endpoint::new(0, 5000), false);
    let forged = app.raw().open_slot();
    app.raw().open_datagrams_of(Protocol::Raw, forged, 20, Endpoint::new(0, 5000));
    net.settle();
    assert_eq!(app.state(forged).0, SlotState::Closing);
}

#[test]
fn every_socket_hears_what_is_for_the_stack() {
    let (mut net, mut app, socket) = two(false);
    let mut other = App::attach(net.stack(1), 3);
    let second = other.open_raw(&mut net, false).expect("they share");
    let mut damaged = request(1, b"damaged");
    damaged[8] ^= 1;
    for message in [
        request(1, b"a question"),
        echo(icmp::Message::EchoReply { id: 9, seq: 1 }, b"an answer to nobody"),
        echo(icmp::Message::Other { kind: 13, code: 0, rest: [0; 4] }, &[0; 12]),
        damaged,
    ] {
        let packet = hear_v4(&mut net, &message);
        for (app, socket) in [(&mut app, socket), (&mut other, second)] {
            assert_eq!(app.receive(socket), Some((to(1), packet.clone())));
            assert_eq!(app.receive(socket), None);
        }
    }
    // What is no message is nobody's, nor is what is for another host.
    hear_v4(&mut net, &[0; 7]);
    let mut foreign = packet(&request(2, b"text"));
    ipv4::emit(&ipv4::Header { dst: addr(9), ..ipv4::parse(&foreign).unwrap().0 }, &mut foreign);
    hear(&mut net, 1, [8, 0], &foreign);
    assert_eq!((app.receive(socket), other.receive(second)), (None, None));
}

#[test]
fn a_question_is_answered_and_long_ones_pass_in_fragments() {
    for len in [4, 5000] {
        let (mut net, mut app, socket) = two(false);
        app.send(socket, Endpoint::new(addr(1), 1), &request(3, &vec![7; len]));
        net.settle();
        net.wait(Duration::from_millis(10));
        let (from, reply) = app.receive(socket).expect("a reply");
        let (header, at) = ipv4::parse(&reply).expect("a header");
        assert_eq!((from, header.dst, usize::from(header.payload_len)), (to(1), addr(2), len + 8));
        let expected = icmp::Message::EchoReply { id: 4711, seq: 3 };
        assert_eq!(icmp::parse(&reply[at..]).map(|it| it.0), Ok(expected));
    }
}

#[test]
fn a_filter_a_peer_and_an_address_are_obeyed() {
    let (mut net, mut app, socket) = two(false);
    let reply = echo(icmp::Message::EchoReply { id: 9, seq: 1 }, b"text");
    app.filter(socket, ICMP_FILTER, &(!1u32).to_ne_bytes());
    hear_v4(&mut net, &request(1, b"text"));
    assert_eq!(app.receive(socket), None);
    hear_v4(&mut net, &reply);
    assert!(app.receive(socket).is_some());
    app.connect_datagrams(&mut net, socket, Endpoint::new(addr(3), 1));
    hear_v4(&mut net, &reply);
    assert_eq!(app.receive(socket), None);
    app.connect_datagrams(&mut net, socket, Endpoint::new(addr(1), 1));
    hear_v4(&mut net, &reply);
    assert!(app.receive(socket).is_some());
    // One at the loopback hears nothing from outside.
    let inner = app.open_raw(&mut net, false).expect("they share");
    app.connect_datagrams(&mut net, inner, Endpoint::new(0x7f00_0001, 1));
    hear_v4(&mut net, &reply);
    assert_eq!(app.receive(inner), None);
}

/// Returns a packet of IPv6 with a message of ICMPv6.
fn packet_v6(src: Addr, dst: Addr, message: &icmpv6::Message, body: &[u8]) -> Vec<u8> {
    let mut text = [&[0; icmpv6::HEADER_LEN], body].concat();
    icmpv6::emit(src, dst, message, &mut text);
    let mut packet = [&[0; ipv6::HEADER_LEN], &text[..]].concat();
    let header = ipv6::Header {
        src,
        dst,
        next_header: ipv4::Protocol::ICMPV6,
        payload_len: text.len() as u16,
        hop_limit: 255,
        ..Default::default()
    };
    ipv6::emit(&header, &mut packet);
    packet
}

#[test]
fn one_of_icmpv6_hears_messages_without_header_and_sends_with_the_right_checksum() {
    let (mut net, mut app, socket) = two(true);
    let there = Endpoint::at(addr_v6(1), 0);
    // The program leaves the checksum to the stack.
    app.send(socket, Endpoint { port: 58, ..there }, &[128, 0, 0xbe, 0xef, 0, 1, 0, 9, b'x']);
    net.settle();
    net.wait(Duration::from_millis(10));
    // The neighbour was asked first, and both sides are heard.
    let heard: Vec<_> = core::iter::from_fn(|| app.receive(socket)).collect();
    let reply = heard.iter().find(|it| it.1[0] == 129).expect("a reply");
    assert_eq!((reply.0, &reply.1[4..]), (there, &b"\0\x01\0\x09x"[..]));
    let sum = checksum::pseudo_header_v6(addr_v6(1), addr_v6(2), 58, reply.1.len());
    assert!(sum.bytes(&reply.1).is_valid());
    let mut takes = [0xff; 32];
    takes[16] = !2;
    app.filter(socket, ICMP6_FILTER, &takes);
    let body = icmpv6::Message::EchoRequest { id: 1, seq: 1 };
    hear(&mut net, 1, [0x86, 0xdd], &packet_v6(addr_v6(1), addr_v6(2), &body, b"text"));
    assert_eq!(app.receive(socket), None);
    let body = icmpv6::Message::EchoReply { id: 1, seq: 1 };
    let packet = packet_v6(addr_v6(1), addr_v6(2), &body, b"text");
    hear(&mut net, 1, [0x86, 0xdd], &packet);
    assert_eq!(app.receive(socket), Some((there, packet[ipv6::HEADER_LEN..].to_vec())));
    // A damaged one is dropped (rawv6_rcv).
    let mut damaged = packet;
    *damaged.last_mut().expect("octets") ^= 1;
    hear(&mut net, 1, [0x86, 0xdd], &damaged);
    assert_eq!(app.receive(socket), None);
}

/// The library refuses it, and whoever writes past it is refused by the server.
#[test]
fn neighbour_discovery_is_left_to_the_stack() {
    let there = Endpoint::at(addr_v6(1), 58);
    for kind in (133..=137).chain([130, 131, 132, 143]) {
        let (mut net, mut app, socket) = two(true);
        let text = [&[kind, 0, 0, 0][..], &[0; 20]].concat();
        let refused = app.send_addressed(socket, Addressed::to(Some(there)), &text);
        assert_eq!(refused, Err(Errno::EPERM.into()));
        // The neighbour is known already.
        app.send(socket, there, &[128, 0, 0, 0, 0, 1, 0, 9]);
        net.settle();
        net.wait(Duration::from_millis(10));
        app.raw().store_datagram(socket, there, None, &text);
        app.raw().kick(socket);
        net.step();
        assert!(net.stack(1).out.outside.is_empty(), "{kind}");
        assert_eq!(app.state(socket).1, Cause::Invalid, "{kind}");
    }
    // One of ICMP sends nothing over IPv6.
    let (mut net, mut app, socket) = two(false);
    app.raw().store_datagram(socket, there, None, &[128, 0, 0, 0, 0, 1, 0, 9]);
    app.raw().kick(socket);
    net.settle();
    assert_eq!(app.state(socket).1, Cause::Invalid);
}

/// All replicas hear what neighbours say.
#[test]
fn what_every_replica_hears_is_passed_on_once() {
    // Each is the authority of port 58 in its stack.
    let replica = |n: u8, replicas: u8| {
        Stack::v6_with(2, move |config| (config.replica, config.replicas) = (ReplicaId(n), replicas))
    };
    let mut net = Net::new(vec![replica(0, 2), replica(1, 3)]);
    let advertisement = icmpv6::Message::Other { kind: nd::NEIGHBOUR_ADVERTISEMENT, code: 0, rest: [0; 4] };
    let said = packet_v6(addr_v6(1), addr_v6(2), &advertisement, &addr_v6(1).octets());
    let question = icmpv6::Message::EchoRequest { id: 1, seq: 1 };
    let asked = packet_v6(addr_v6(1), addr_v6(2), &question, b"text");
    let mut heard = Vec::new();
    for stack in [0, 1] {
        let mut app = App::attach(net.stack(stack), 2);
        let socket = app.open_raw(&mut net, true).expect("the supervisor has vouched");
        for packet in [&said, &asked] {
            hear(&mut net, stack, [0x86, 0xdd], packet);
            heard.push(app.receive(socket).is_some());
        }
    }
    // Each has an IP server of its own there, which is the first one of its stack.
    assert_eq!(heard, [true, true, is_ip_apart(), true]);
}

#[test]
fn a_flood_ends_where_the_buffer_does() {
    let (mut net, mut app, socket) = two(false);
    let flood = echo(icmp::Message::EchoReply { id: 77, seq: 1 }, &[1; 1400]);
    for _ in 0..4000 {
        hear_v4(&mut net, &flood);
    }
    let waiting = core::iter::from_fn(|| app.receive(socket)).count();
    assert!((70..750).contains(&waiting), "{waiting}");
}

#[test]
fn a_raw_socket_survives_the_death_of_its_replica() {
    let mut net = Net::new(vec![Stack::v6(1), Stack::v6(2).mortal()]);
    let mut app = App::attach(net.stack(1), 2);
    let socket = app.open_raw(&mut net, false).expect("the supervisor has vouched");
    app.filter(socket, ICMP_FILTER, &(!1u32).to_ne_bytes());
    net.settle();
    let now = net.now;
    net.stack(1).restart(now, &[&app], Recovery::Stateful);
    app.send(socket, Endpoint::new(addr(1), 1), &request(3, b"again"));
    net.settle();
    net.wait(Duration::from_secs(1));
    let reply = app.receive(socket).expect("a reply").1;
    assert_eq!(reply[ipv4::HEADER_LEN + 8..], *b"again");
    // Its filter is in force, and another process may have one beside it.
    hear_v4(&mut net, &request(1, b"text"));
    assert_eq!(app.receive(socket), None);
    assert!(app.open_raw(&mut net, false).is_ok());
}
