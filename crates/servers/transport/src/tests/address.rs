//! Tests of sockets when the stack's IPv4 address comes and goes.

use std::vec;

use atoll_base::{Duration, Endpoint};
use atoll_ip::V4Address;
use atoll_ipc::Cause;
use atoll_ipc::slot::SlotState;

use super::kit::{App, Net, Stack, addr};

const HTTP: Endpoint = Endpoint::new(0x0a00_0001, 80);

fn set(net: &mut Net, address: Option<V4Address>) {
    net.stack(0).whole_ip().handle_v4_address(address);
    net.settle();
}

fn has(host: u8) -> Option<V4Address> {
    Some(V4Address::new(addr(host), 24))
}

/// Creates the stacks; the first one is that whose address changes.
fn stacks() -> (Net, App, App) {
    let mut net = Net::new(vec![Stack::told(1), Stack::new(2)]);
    let own = App::attach(net.stack(0), 1);
    let other = App::attach(net.stack(1), 2);
    (net, own, other)
}

#[test]
fn connections_of_an_address_that_is_gone_wait_for_it() {
    let (mut net, mut server, mut client) = stacks();
    server.listen(&mut net, 77, Endpoint::new(0, 80), 16);
    set(&mut net, has(1));
    let c = client.connect(HTTP);
    net.settle();
    let s = server.accept().expect("offered");
    net.settle();
    // The address is gone: nothing is sent from it, and nothing arrives. No connection is reset.
    set(&mut net, None);
    server.write(s, b"from the server");
    client.write(c, b"from the client");
    net.wait(Duration::from_secs(10));
    assert_eq!([server.state(s).0, client.state(c).0], [SlotState::Open; 2]);
    assert_eq!((server.state(s).1, client.state(c).1), (Cause::None, Cause::None));
    assert!(server.read(s).is_empty() && client.read(c).is_empty());
    // Another address is not the same.
    set(&mut net, has(3));
    net.wait(Duration::from_secs(10));
    assert!(server.read(s).is_empty() && client.read(c).is_empty());
    set(&mut net, has(1));
    net.wait(Duration::from_secs(60));
    assert_eq!((server.read(s), client.read(c)), (b"from the client".to_vec(), b"from the server".to_vec()));
}

#[test]
fn without_an_address_there_is_no_way() {
    let (mut net, mut own, mut other) = stacks();
    assert_eq!(net.stack(0).page.v4(), None);
    let remote = Endpoint::new(addr(2), 80);
    let c = own.connect(remote);
    net.settle();
    assert_eq!(own.state(c).1, Cause::NetworkUnreachable);
    let bound = own.raw().connect(0, Endpoint::new(addr(1), 0), remote);
    net.settle();
    assert_eq!(own.state(bound).1, Cause::AddressNotAvailable);
    // The stack reaches itself nevertheless.
    own.listen(&mut net, 78, Endpoint::new(0x7f00_0001, 80), 16);
    let c = own.connect(Endpoint::new(0x7f00_0001, 80));
    net.settle();
    assert_eq!(own.state(c).1, Cause::None);
    assert!(own.accept().is_some());
    // With an address there is a route, which is reported at once.
    other.listen(&mut net, 79, Endpoint::new(0, 80), 16);
    set(&mut net, has(1));
    assert_eq!(net.stack(0).page.v4().map(|own| (own.addr, own.prefix_len)), Some((addr(1), 24)));
    let c = own.connect(remote);
    net.settle();
    assert_eq!((own.state(c).1, own.slot(c).local().addr), (Cause::None, addr(1).into()));
    assert!(other.accept().is_some());
    set(&mut net, None);
    assert_eq!(net.stack(0).page.v4(), None);
}

#[test]
fn datagrams_do_not_leave_from_an_address_that_is_gone() {
    let (mut net, mut own, mut other) = stacks();
    let peer = Endpoint::new(addr(2), 53);
    let s = other.open_datagrams(&mut net, Endpoint::new(0, 53), Endpoint::default());
    set(&mut net, has(1));
    let bound = own.open_datagrams(&mut net, Endpoint::new(addr(1), 5000), Endpoint::default());
    let any = own.open_datagrams(&mut net, Endpoint::new(0, 5001), Endpoint::default());
    net.settle();
    set(&mut net, has(3));
    for socket in [bound, any] {
        own.send(socket, peer, b"hello");
    }
    net.settle();
    assert_eq!([bound, any].map(|socket| own.state(socket).1), [Cause::NetworkUnreachable, Cause::None]);
    assert_eq!(other.receive(s), Some((Endpoint::new(addr(3), 5001), b"hello".to_vec())));
}
