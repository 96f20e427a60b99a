//! Details of datagrams: what sockets are told of packets, and what they may ask of them.

use std::cell::Cell;
use std::vec;
use std::vec::Vec;

use atoll_base::Endpoint;
use atoll_ip::ChecksumOffload;
use atoll_ipc::SocketOption;
use atoll_ipc::details::{DETAILS_BYTES, Details, Link, TimeOfDay};
use atoll_ipc::slot::SlotState;
use atoll_sockets::ancillary::Addressed;

use super::kit::{App, Net, Socket, Stack, addr};
use crate::Calendar;

/// Returns control messages of IPv4 (cmsg(3)), by type and value.
fn control(messages: &[(i32, i32)]) -> Vec<u8> {
    let one = |(kind, value): &(i32, i32)| {
        let mut octets = [0; 24];
        octets[..8].copy_from_slice(&20u64.to_ne_bytes());
        octets[12..16].copy_from_slice(&kind.to_ne_bytes());
        octets[16..20].copy_from_slice(&value.to_ne_bytes());
        octets
    };
    messages.iter().flat_map(one).collect()
}

/// The types of ip(7).
const IP_TOS: i32 = 1;
const IP_TTL: i32 = 2;

/// Two stacks with a socket each; that of the first one wants details.
fn pair() -> (Net, [App; 2], [Socket; 2]) {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    let s = server.open_datagrams(&mut net, Endpoint::new(0, 53), Endpoint::default());
    let c = client.open_datagrams(&mut net, Endpoint::new(0, 4000), Endpoint::default());
    server.set_option(s, SocketOption::Details, 1);
    net.settle();
    (net, [server, client], [s, c])
}

#[test]
fn a_socket_that_wants_details_is_told_of_the_packet() {
    let (mut net, [mut server, mut client], [s, c]) = pair();
    let control = control(&[(IP_TOS, 0x2e), (IP_TTL, 9)]);
    let to = Addressed { peer: Some(Endpoint::new(addr(1), 53)), control: &control };
    assert_eq!(client.send_addressed(c, to, b"question"), Ok(()));
    net.settle();
    let own = Endpoint::new(addr(1), 0).addr;
    let expected =
        Details { own, tos: Some(0x2e), ttl: Some(9), link: Some(Link::Outside), came: None, dropped: 0 };
    assert_eq!(server.receive_told(s).expect("a datagram").0.details, Some(expected));
    // A socket that wants none gets records as ever.
    server.send(s, Endpoint::new(addr(2), 4000), b"answer");
    net.settle();
    let (received, text) = client.receive_told(c).expect("a datagram");
    assert_eq!((received.details, &text[..]), (None, &b"answer"[..]));
}

#[test]
fn nobody_sends_from_the_address_of_another() {
    let (mut net, [mut server, mut client], [s, c]) = pair();
    let foreign = Details { own: Endpoint::new(addr(7), 0).addr, ..Details::default() };
    client.raw().store_datagram(c, Endpoint::new(addr(1), 53), Some(foreign.encode()), b"forged");
    client.raw().kick(c);
    net.settle();
    assert_eq!(server.receive(s), None);
    assert!(net.stack(1).out.outside.is_empty());
    let own = Details { own: Endpoint::new(addr(2), 0).addr, ..Details::default() };
    client.raw().store_datagram(c, Endpoint::new(addr(1), 53), Some(own.encode()), b"honest");
    client.raw().kick(c);
    net.settle();
    assert!(server.receive(s).is_some());
}

#[test]
fn details_that_cannot_be_cost_the_socket() {
    let (mut net, [_server, mut client], [_, c]) = pair();
    assert_eq!(client.state(c).0, SlotState::Open);
    client.raw().store_datagram(c, Endpoint::new(addr(1), 53), Some([0xff; DETAILS_BYTES]), b"broken");
    client.raw().kick(c);
    net.settle();
    let now = net.now;
    assert_eq!(net.stack(1).transport.sockets(now).count(), 0);
}

/// Returns a calendar on which a minute passes between two looks, the first of which is at the first minute.
fn minutes() -> Calendar {
    let minute = Cell::new(0);
    Calendar::new(move || {
        minute.set(minute.get() + 1);
        minute.get()
    })
}

#[test]
fn a_socket_that_asks_is_told_when_a_datagram_came() {
    let (mut net, [mut server, mut client], [s, c]) = pair();
    net.stack(0).transport.set_calendar(minutes());
    let mut told = |server: &mut App, client: &mut App| {
        client.send(c, Endpoint::new(addr(1), 53), b"question");
        net.settle();
        server.receive_told(s).expect("a datagram").0.details.expect("details").came
    };
    // Nobody has asked, so nobody has looked at the calendar.
    assert_eq!(told(&mut server, &mut client), None);
    server.set_option(s, SocketOption::Times, 1);
    server.set_option(s, SocketOption::Details, 0);
    for minute in 1..3 {
        assert_eq!(told(&mut server, &mut client), TimeOfDay::from_nanos(minute));
    }
    server.set_option(s, SocketOption::Details, 1);
    server.set_option(s, SocketOption::Times, 0);
    assert_eq!(told(&mut server, &mut client), None);
}

/// Lets the second stack send a datagram to port 53 of the first one, and returns its frame.
fn sent(net: &mut Net, client: &mut App, c: Socket, text: &[u8]) -> Vec<u8> {
    client.send(c, Endpoint::new(addr(1), 53), text);
    let now = net.now;
    net.stack(1).round(now);
    net.stack(1).out.outside.pop_front().expect("the neighbour is known")
}

/// The question leaves by another replica, and this one has slept meanwhile.
#[test]
fn an_option_that_is_set_before_a_question_is_in_force_for_its_answer() {
    let (mut net, [mut server, mut client], [s, c]) = pair();
    server.set_option(s, SocketOption::Details, 0);
    client.send(c, Endpoint::new(addr(1), 53), b"first");
    net.settle();
    assert_eq!(server.receive_told(s).expect("a datagram").0.details, None);
    let answer = sent(&mut net, &mut client, c, b"answer");
    server.set_option(s, SocketOption::Details, 1);
    let now = net.now;
    net.stack(0).hear(now, &answer, ChecksumOffload::Partial);
    net.settle();
    assert!(server.receive_told(s).expect("a datagram").0.details.is_some());
}

#[test]
fn a_socket_that_was_closed_before_a_datagram_came_does_not_get_it() {
    let (mut net, [mut server, mut client], [s, c]) = pair();
    let last = server.open_datagrams(&mut net, Endpoint::new(0, 53), Endpoint::default());
    client.send(c, Endpoint::new(addr(1), 53), b"first");
    net.settle();
    // Without SO_REUSEPORT the socket that was bound last gets it.
    assert_eq!((server.receive(s).is_some(), server.receive(last).is_some()), (false, true));
    let datagram = sent(&mut net, &mut client, c, b"second");
    server.close(last);
    let now = net.now;
    net.stack(0).hear(now, &datagram, ChecksumOffload::Partial);
    net.settle();
    assert_eq!(server.receive(s).map(|(_, text)| text), Some(b"second".to_vec()));
}

/// Nobody counts twice, and what a replica has counted does not go with it.
#[test]
fn a_socket_that_asks_is_told_how_many_datagrams_were_dropped_before() {
    let mut net = Net::new(vec![Stack::new(1).mortal(), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    let s = server.open_datagrams(&mut net, Endpoint::new(0, 53), Endpoint::default());
    let c = client.open_datagrams(&mut net, Endpoint::new(0, 4000), Endpoint::default());
    server.set_option(s, SocketOption::ReceiveBuffer, 4096);
    net.settle();
    let mut fill = |net: &mut Net, count: usize| {
        for _ in 0..count {
            client.send(c, Endpoint::new(addr(1), 53), &[7; 1000]);
            net.settle();
        }
    };
    let drain = |server: &mut App| {
        core::iter::from_fn(|| server.receive_told(s)).map(|(told, _)| told.details).collect::<Vec<_>>()
    };
    fill(&mut net, 10);
    let first = drain(&mut server);
    assert!((1..10).contains(&first.len()) && first.iter().all(Option::is_none), "nobody has asked");
    let dropped = 10 - first.len() as u32;
    assert_eq!(server.slot(s).dropped(), dropped);
    server.set_option(s, SocketOption::Drops, 1);
    net.settle();
    fill(&mut net, 1);
    let told = |all: Vec<Option<Details>>| {
        all.into_iter().map(|details| details.expect("details").dropped).collect::<Vec<_>>()
    };
    assert_eq!(told(drain(&mut server)), [dropped]);
    let now = net.now;
    net.stack(0).restart(now, &[&server], crate::Recovery::Stateful);
    net.settle();
    fill(&mut net, 10);
    let second = told(drain(&mut server));
    assert!(second.iter().all(|before| *before == dropped) && second.len() < 10, "{second:?}");
    assert_eq!(server.slot(s).dropped(), dropped + 10 - second.len() as u32);
}
