//! ICMP sockets: what leaves for what a program writes, and who hears the reply.

use std::vec;
use std::vec::Vec;

use atoll_base::{Addr, Duration, Endpoint};
use atoll_ip::ChecksumOffload;
use atoll_ipc::command::Protocol;
use atoll_ipc::details::TimeOfDay;
use atoll_ipc::slot::SlotState;
use atoll_ipc::{Cause, SocketOption};
use atoll_sockets::Errno;
use atoll_sockets::ancillary::Addressed;
use atoll_wire::{icmp, ipv4};

use super::kit::{App, Net, Socket, Stack, addr, addr_v6};
use crate::Recovery;

/// Two stacks, and a program with an ICMP socket at `local` on the second one.
fn two(local: Endpoint) -> (Net, App, Socket) {
    let mut net = Net::new(vec![Stack::v6(1), Stack::v6(2)]);
    let mut app = App::attach(net.stack(1), 2);
    let socket = app.open_icmp(&mut net, local).expect("nobody has the identifier");
    assert_eq!(app.state(socket).0, SlotState::Open);
    (net, app, socket)
}

/// Returns what a program writes to send an echo request.
fn request(kind: u8, id: u16, seq: u16, text: &[u8]) -> Vec<u8> {
    let ([a, b], [c, d]) = (id.to_be_bytes(), seq.to_be_bytes());
    [&[kind, 0, 0xbe, 0xef, a, b, c, d], text].concat()
}

fn to(host: u8) -> Endpoint {
    Endpoint::new(addr(host), 1)
}

/// Lets the second stack hear an ICMP message from the first one.
fn hear(net: &mut Net, ttl: u8, message: &[u8]) {
    let ethernet = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    let mut frame = [&ethernet[..], &[0; ipv4::HEADER_LEN], message].concat();
    let header = ipv4::Header {
        src: addr(1),
        dst: addr(2),
        protocol: ipv4::Protocol::ICMP,
        payload_len: message.len() as u16,
        ttl,
        ..Default::default()
    };
    ipv4::emit(&header, &mut frame[14..]);
    let now = net.now;
    net.stack(1).hear(now, &frame, ChecksumOffload::Unknown);
    net.settle();
}

fn message(message: icmp::Message, body: &[u8]) -> Vec<u8> {
    let mut octets = [&[0; icmp::HEADER_LEN], body].concat();
    icmp::emit(&message, &mut octets);
    octets
}

#[test]
fn a_request_leaves_with_the_own_identifier_and_its_reply_comes_back() {
    // An identifier below 1024 is nobody's privilege.
    let (mut net, mut app, socket) = two(Endpoint::new(0, 77));
    app.send(socket, to(1), &request(8, 4711, 3, b"some text"));
    net.settle();
    let (from, reply) = app.receive(socket).expect("a reply");
    assert_eq!(from, Endpoint::new(addr(1), 0));
    assert_eq!(icmp::parse(&reply).map(|it| it.0), Ok(icmp::Message::EchoReply { id: 77, seq: 3 }));
    assert_eq!(&reply[8..], b"some text");
}

#[test]
fn requests_over_ipv6_and_to_the_own_address_are_answered() {
    let (mut net, mut app, socket) = two(Endpoint::at(Addr::ANY, 5000));
    for host in [1, 2] {
        app.send(socket, Endpoint::at(addr_v6(host), 1), &request(128, 0, 9, b"six"));
        net.settle();
        net.wait(Duration::from_millis(10));
        let (from, reply) = app.receive(socket).expect("a reply");
        assert_eq!((from, &reply[4..]), (Endpoint::at(addr_v6(host), 0), &b"\x13\x88\0\x09six"[..]));
    }
    // The loopback of a stack is its own.
    let (mut net, mut app, socket) = two(Endpoint::new(0, 5000));
    app.send(socket, Endpoint::new(0x7f00_0001, 1), &request(8, 0, 9, b"four"));
    net.settle();
    let (from, reply) = app.receive(socket).expect("a reply");
    assert_eq!((from, &reply[8..]), (Endpoint::new(0x7f00_0001, 0), &b"four"[..]));
}

#[test]
fn a_long_request_and_its_reply_pass_in_fragments() {
    let (mut net, mut app, socket) = two(Endpoint::new(0, 77));
    app.send(socket, to(1), &request(8, 0, 3, &[7; 4000]));
    net.settle();
    let (_, reply) = app.receive(socket).expect("a reply");
    assert_eq!((reply.len(), &reply[8..]), (4008, &[7; 4000][..]));
}

/// The library refuses them, and whoever writes past it is refused by the server.
#[test]
fn nothing_but_an_echo_request_leaves() {
    for text in [request(8, 0, 0, b"")[..7].to_vec(), request(5, 0, 0, &[1; 40]), request(128, 0, 0, b"x")] {
        let (mut net, mut app, socket) = two(Endpoint::new(0, 77));
        let refused = app.send_addressed(socket, Addressed::to(Some(to(1))), &text);
        assert_eq!(refused, Err(Errno::EINVAL.into()));
        app.raw().store_datagram(socket, to(1), None, &text);
        app.raw().kick(socket);
        net.step();
        assert!(net.stack(1).out.outside.is_empty(), "{text:?}");
        net.settle();
        assert_eq!(app.state(socket).1, Cause::Invalid);
    }
}

#[test]
fn a_reply_for_another_identifier_or_a_damaged_one_is_for_nobody() {
    let (mut net, mut app, socket) = two(Endpoint::new(0, 77));
    let good = message(icmp::Message::EchoReply { id: 77, seq: 1 }, b"text");
    let mut damaged = good.clone();
    damaged[9] ^= 1;
    hear(&mut net, 64, &damaged);
    hear(&mut net, 64, &good[..6]);
    hear(&mut net, 64, &message(icmp::Message::EchoReply { id: 78, seq: 1 }, b"text"));
    assert!(app.receive(socket).is_none());
    hear(&mut net, 64, &good);
    assert_eq!(app.receive(socket).expect("the good one").1, good);
}

#[test]
fn an_identifier_is_shared_only_with_so_reuseaddr_and_is_no_port_of_udp() {
    let (mut net, mut app, socket) = two(Endpoint::new(0, 2077));
    // The addresses and the family do not matter, and SO_REUSEADDR is on at first (ping_get_port).
    let (lease, six) = (2077, Endpoint::at(Addr::ANY, 2077));
    app.raw().bind(lease, Protocol::Icmp, six, false);
    let refused = app.raw().open_slot();
    app.raw().open_datagrams_of(Protocol::Icmp, refused, lease, six);
    net.settle();
    assert_eq!((app.state(refused).0, app.state(refused).1), (SlotState::Closing, Cause::Invalid));
    let udp = app.open_datagrams(&mut net, Endpoint::new(0, 2077), Endpoint::default());
    assert_eq!(app.state(udp).0, SlotState::Open);
    hear(&mut net, 64, &message(icmp::Message::EchoReply { id: 2077, seq: 1 }, b"text"));
    assert!(app.receive(udp).is_none());
    assert!(app.receive(socket).is_some());
}

#[test]
fn no_lease_of_udp_opens_a_socket_of_icmp() {
    let (mut net, mut app, _) = two(Endpoint::new(0, 77));
    let (lease, local) = (2077, Endpoint::new(0, 2077));
    app.raw().bind(lease, Protocol::Udp, local, false);
    let forged = app.raw().open_slot();
    app.raw().open_datagrams_of(Protocol::Icmp, forged, lease, local);
    net.settle();
    assert_eq!(app.state(forged).0, SlotState::Closing);
    let honest = app.raw().open_datagrams(lease, local);
    net.settle();
    assert_eq!(app.state(honest).0, SlotState::Open);
}

#[test]
fn a_flood_of_replies_ends_where_the_buffer_does() {
    let (mut net, mut app, socket) = two(Endpoint::new(0, 77));
    let flood = message(icmp::Message::EchoReply { id: 77, seq: 1 }, &[1; 1400]);
    for _ in 0..4000 {
        hear(&mut net, 64, &flood);
    }
    let waiting = core::iter::from_fn(|| app.receive(socket)).count();
    assert!((70..750).contains(&waiting), "{waiting}");
}

/// Returns an ICMP error about an echo request of the second stack.
fn exceeded(id: u16) -> Vec<u8> {
    let lost = request(8, id, 5, b"lost");
    let header = ipv4::Header {
        src: addr(2),
        dst: addr(9),
        protocol: ipv4::Protocol::ICMP,
        payload_len: lost.len() as u16,
        ttl: 1,
        ..Default::default()
    };
    let mut quoted = [&[0; ipv4::HEADER_LEN], &lost[..]].concat();
    ipv4::emit(&header, &mut quoted);
    message(icmp::Message::TimeExceeded { code: 0 }, &quoted)
}

#[test]
fn an_error_about_a_request_is_for_the_socket_that_wants_errors() {
    let (mut net, mut app, socket) = two(Endpoint::new(0, 77));
    // Without a peer, and without the option, a socket hears nothing.
    hear(&mut net, 64, &exceeded(77));
    assert_eq!((app.receive_fault(socket), app.state(socket).1), (None, Cause::None));
    // The option counts for what comes from now on, also if the server slept when it was set.
    app.keep_errors(socket);
    hear(&mut net, 64, &exceeded(77));
    assert!(app.receive_fault(socket).is_some());
    hear(&mut net, 64, &exceeded(78));
    assert_eq!(app.receive_fault(socket), None);
    hear(&mut net, 64, &exceeded(77));
    let (about, fault, quoted) = app.receive_fault(socket).expect("an error");
    assert_eq!((about, fault.reporter), (Endpoint::new(addr(9), 0), Addr::v4(addr(1))));
    assert_eq!((fault.kind, fault.code, &quoted[4..]), (11, 0, &[0, 77, 0, 5][..]));
}

#[test]
fn a_socket_that_asks_is_told_when_an_error_came() {
    let (mut net, mut app, socket) = two(Endpoint::new(0, 77));
    net.stack(1).transport.set_calendar(crate::Calendar::new(|| 4711));
    app.keep_errors(socket);
    net.settle();
    hear(&mut net, 64, &exceeded(77));
    assert_eq!(app.receive_fault(socket).expect("an error").1.came(), None);
    app.set_option(socket, SocketOption::Times, 1);
    net.settle();
    hear(&mut net, 64, &exceeded(77));
    assert_eq!(app.receive_fault(socket).expect("an error").1.came(), TimeOfDay::from_nanos(4711));
}

#[test]
fn a_call_takes_no_errors_without_end() {
    let (mut net, mut app, socket) = two(Endpoint::new(0, 77));
    app.keep_errors(socket);
    net.settle();
    (0..100).for_each(|_| hear(&mut net, 64, &exceeded(77)));
    assert!(app.receive_fault(socket).is_some());
    let slot = app.slot(socket);
    assert!(slot.receive_head() < slot.receive_tail(), "all were taken at once");
    let further = core::iter::from_fn(|| app.receive_fault(socket)).count();
    assert!((36..100).contains(&further), "{further}");
}

#[test]
fn a_host_that_does_not_answer_is_reported_by_this_one() {
    let (mut net, mut app, socket) = two(Endpoint::new(0, 77));
    app.keep_errors(socket);
    app.send(socket, to(9), &request(8, 0, 5, b"nobody"));
    net.settle();
    net.wait(Duration::from_secs(5));
    let (about, fault, quoted) = app.receive_fault(socket).expect("an error");
    assert_eq!((about, fault.reporter), (Endpoint::new(addr(9), 0), Addr::v4(addr(2))));
    assert_eq!((fault.kind, fault.code, &quoted[4..]), (3, 1, &[0, 77, 0, 5][..]));
}

#[test]
fn a_socket_survives_the_death_of_its_replica() {
    let mut net = Net::new(vec![Stack::v6(1), Stack::v6(2).mortal()]);
    let mut app = App::attach(net.stack(1), 2);
    let socket = app.open_icmp(&mut net, Endpoint::new(0, 77)).expect("nobody has the identifier");
    let now = net.now;
    net.stack(1).restart(now, &[&app], Recovery::Stateful);
    app.send(socket, to(1), &request(8, 0, 3, b"again"));
    net.settle();
    net.wait(Duration::from_secs(1));
    assert_eq!(app.receive(socket).expect("a reply").1[8..], *b"again");
}
