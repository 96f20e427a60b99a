//! Details of datagrams: what sockets are told of packets, and what they may ask of them.

use std::vec;
use std::vec::Vec;

use atoll_base::Endpoint;
use atoll_ipc::datagram::{self, Flags, RECORD_LEN, Record};
use atoll_ipc::details::{DETAILS_BYTES, Details, Link};
use atoll_ipc::slot::SlotState;
use atoll_ipc::{Command, SocketOption};

use super::kit::{App, Net, Socket, Stack, addr};
use super::limits::{record, udp_open};

/// Returns a record that has details.
fn detailed(peer: Endpoint, details: &[u8; DETAILS_BYTES], payload: &[u8]) -> Vec<u8> {
    let record = Record { len: payload.len() as u32, peer, flags: Flags::DETAILED };
    let mut octets = [&datagram::encode(&record)[..], details, payload].concat();
    octets.resize(octets.len().next_multiple_of(8), 0);
    octets
}

/// Two stacks with a socket each; that of the first one wants details.
fn pair() -> (Net, [App; 2], [Socket; 2]) {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    let s = udp_open(&mut server, Endpoint::new(0, 53), Endpoint::default());
    let c = udp_open(&mut client, Endpoint::new(0, 4000), Endpoint::default());
    let Socket { slot, generation } = s;
    server.push(Command::SetOption { slot, generation, option: SocketOption::Details, value: 1 });
    net.settle();
    (net, [server, client], [s, c])
}

fn details_of(octets: &[u8]) -> Details {
    let head = octets[..RECORD_LEN].try_into().expect("a head");
    let record = datagram::decode(&head, octets.len() as u64).expect("a record");
    assert!(record.flags.contains(Flags::DETAILED));
    let details = octets[RECORD_LEN..][..DETAILS_BYTES].try_into().expect("as many");
    Details::decode(&details).expect("details")
}

#[test]
fn a_socket_that_wants_details_is_told_of_the_packet() {
    let (mut net, [mut server, mut client], [s, c]) = pair();
    let wish = Details { tos: Some(0x2e), ttl: Some(9), ..Details::default() };
    client.write(c, &detailed(Endpoint::new(addr(1), 53), &wish.encode(), b"question"));
    net.settle();
    let own = Endpoint::new(addr(1), 0).addr;
    let expected = Details { own, tos: Some(0x2e), ttl: Some(9), link: Some(Link::Outside) };
    assert_eq!(details_of(&server.read(s)), expected);
    // A socket that wants none gets records as ever.
    server.write(s, &record(Endpoint::new(addr(2), 4000), b"answer"));
    net.settle();
    let octets = client.read(c);
    assert_eq!((octets.len(), &octets[RECORD_LEN..][..6]), (32, &b"answer"[..]));
}

#[test]
fn nobody_sends_from_the_address_of_another() {
    let (mut net, [mut server, mut client], [s, c]) = pair();
    let foreign = Details { own: Endpoint::new(addr(7), 0).addr, ..Details::default() };
    client.write(c, &detailed(Endpoint::new(addr(1), 53), &foreign.encode(), b"forged"));
    net.settle();
    assert!(server.read(s).is_empty());
    assert!(net.stack(1).out.outside.is_empty());
    let own = Details { own: Endpoint::new(addr(2), 0).addr, ..Details::default() };
    client.write(c, &detailed(Endpoint::new(addr(1), 53), &own.encode(), b"honest"));
    net.settle();
    assert!(!server.read(s).is_empty());
}

#[test]
fn details_that_cannot_be_cost_the_socket() {
    let (mut net, [_server, mut client], [_, c]) = pair();
    assert_eq!(client.state(c).0, SlotState::Open);
    client.write(c, &detailed(Endpoint::new(addr(1), 53), &[0xff; DETAILS_BYTES], b"broken"));
    net.settle();
    let now = net.now;
    assert_eq!(net.stack(1).transport.sockets(now).count(), 0);
}
