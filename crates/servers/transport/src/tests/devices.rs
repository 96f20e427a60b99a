//! Tests of sockets that are bound to a device (`SO_BINDTODEVICE`).

use std::vec;
use std::vec::Vec;

use atoll_base::{Duration, Endpoint};
use atoll_ipc::command::Protocol;
use atoll_ipc::slot::{REPLICA_CLOSED, REPLICA_RESET};
use atoll_ipc::{Device, SocketOption};
use atoll_sockets::Errno;
use atoll_sockets::client::object::Object;
use atoll_sockets::client::simulated::Opening;
use atoll_sockets::options::Name;

use super::kit::{App, Net, Socket, Stack, addr};
use crate::Recovery;

// asm-generic/socket.h
const SOL_SOCKET: i32 = 1;
const SO_BINDTODEVICE: i32 = 25;

const INSIDE: u32 = 0x7f00_0001;

fn set(app: &mut App, socket: Socket, device: Device) {
    let object = app.object(socket);
    app.client.socket_mut(object).expect("a socket").options.set(Name::Device, device as u64);
    app.set_option(socket, SocketOption::Device, device as u32);
}

/// Returns what the sockets have received, in their order.
fn texts(app: &mut App, sockets: &[Socket]) -> Vec<bool> {
    sockets.iter().map(|socket| app.receive(*socket).is_some()).collect()
}

#[test]
fn a_datagram_reaches_the_socket_on_the_device_it_comes_over() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let [mut app, mut other] = [0, 1].map(|n| App::attach(net.stack(n), n as u32 + 1));
    let none = Endpoint::default();
    let mut sockets = [Device::Link, Device::Loopback, Device::None].map(|device| {
        let socket = app.open_datagrams(&mut net, Endpoint::new(0, 53), none);
        set(&mut app, socket, device);
        socket
    });
    sockets.reverse();
    let sender = app.open_datagrams(&mut net, Endpoint::new(0, 1), none);
    let stranger = other.open_datagrams(&mut net, Endpoint::new(0, 1), none);
    net.settle();
    // The socket on the device comes before the one that was bound last.
    app.send(sender, Endpoint::new(INSIDE, 53), b"x");
    net.settle();
    assert_eq!(texts(&mut app, &sockets), [false, true, false]);
    // As on Linux, what is for the link's address has come over the link.
    app.send(sender, Endpoint::new(addr(1), 53), b"x");
    net.settle();
    assert_eq!(texts(&mut app, &sockets), [false, false, true]);
    other.send(stranger, Endpoint::new(addr(1), 53), b"x");
    net.settle();
    assert_eq!(texts(&mut app, &sockets), [false, false, true]);
    // A socket on the loopback sends over the loopback.
    set(&mut app, sender, Device::Loopback);
    net.settle();
    app.send(sender, Endpoint::new(addr(1), 53), b"x");
    net.settle();
    assert_eq!(texts(&mut app, &sockets), [false, true, false]);
    // What is left takes a socket on no device.
    app.close(sockets[1]);
    net.settle();
    app.send(sender, Endpoint::new(addr(1), 53), b"x");
    net.settle();
    assert_eq!(texts(&mut app, &[sockets[0], sockets[2]]), [true, false]);
    app.close(sockets[0]);
    net.settle();
    app.send(sender, Endpoint::new(addr(1), 53), b"x");
    net.settle();
    assert_eq!(texts(&mut app, &[sockets[2]]), [false]);
}

#[test]
fn a_datagram_that_would_leave_over_another_device_is_lost() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let [mut app, mut other] = [0, 1].map(|n| App::attach(net.stack(n), n as u32 + 1));
    let none = Endpoint::default();
    let there = other.open_datagrams(&mut net, Endpoint::new(0, 53), none);
    let here = app.open_datagrams(&mut net, Endpoint::new(0, 53), none);
    let sender = app.open_datagrams(&mut net, Endpoint::new(0, 1), none);
    for (device, outside, inside) in
        [(Device::Loopback, false, true), (Device::Link, true, false), (Device::None, true, true)]
    {
        set(&mut app, sender, device);
        net.settle();
        app.send(sender, Endpoint::new(addr(2), 53), b"x");
        app.send(sender, Endpoint::new(INSIDE, 53), b"x");
        net.settle();
        assert_eq!(other.receive(there).is_some(), outside, "{device:?}");
        assert_eq!(app.receive(here).is_some(), inside, "{device:?}");
    }
}

#[test]
fn sockets_on_different_devices_have_one_port_and_a_later_device_counts() {
    let mut net = Net::new(vec![Stack::new(1)]);
    let mut app = App::attach(net.stack(0), 1);
    let bind = |app: &mut App, net: &mut Net, device: Device| {
        let object = app.client.insert(Object::socket(Protocol::Udp, false, true));
        app.client.socket_mut(object).expect("a socket").options.set(Name::Device, device as u64);
        let opening = Opening::bind(&mut app.client, object, Endpoint::new(0, 53)).expect("it is fresh");
        app.finish(net, opening).map(|()| app.watched(object))
    };
    let first = bind(&mut app, &mut net, Device::Loopback).expect("free");
    assert_eq!(bind(&mut app, &mut net, Device::None), Err(Errno::EADDRINUSE));
    let second = bind(&mut app, &mut net, Device::Link).expect("on another device");
    app.close(second);
    net.settle();
    set(&mut app, first, Device::Link);
    net.settle();
    assert_eq!(bind(&mut app, &mut net, Device::Link), Err(Errno::EADDRINUSE));
    bind(&mut app, &mut net, Device::Loopback).expect("the first one has left it");
}

#[test]
fn a_segment_over_another_device_is_for_no_connection_and_a_successor_knows_it() {
    for dies in [false, true] {
        let mut net = Net::new(vec![Stack::new(1).mortal(), Stack::new(2)]);
        let [mut app, mut other] = [0, 1].map(|n| App::attach(net.stack(n), n as u32 + 1));
        app.listen(&mut net, 77, Endpoint::new(0, 80), 16);
        let client = other.connect(Endpoint::new(addr(1), 80));
        net.settle();
        let server = app.accept().expect("offered");
        net.settle();
        app.set_option(server, SocketOption::Device, Device::Link as u32);
        net.settle();
        other.write(client, b"over the link");
        net.settle();
        assert_eq!(app.read(server), b"over the link");
        // The acknowledgement is late.
        net.wait(Duration::from_millis(300));
        app.set_option(server, SocketOption::Device, Device::Loopback as u32);
        net.settle();
        if dies {
            let now = net.now;
            assert_eq!(net.stack(0).restart(now, &[&app], Recovery::Stateful).lost, 0);
            net.settle();
        }
        // Nothing leaves over the link.
        app.write(server, b"lost");
        net.settle();
        assert_eq!(other.read(client), b"");
        other.write(client, b"for nobody");
        net.settle();
        assert_eq!(app.read(server), b"");
        assert_eq!(other.state(client).2 & REPLICA_RESET, REPLICA_RESET, "dies: {dies}");
    }
}

#[test]
fn a_connection_has_the_device_of_its_listener() {
    let mut net = Net::new(vec![Stack::new(1)]);
    let mut app = App::attach(net.stack(0), 1);
    for (device, to, reaches) in [
        (Device::Loopback, INSIDE, true),
        (Device::Loopback, addr(1), false),
        (Device::Link, INSIDE, false),
        (Device::Link, addr(1), true),
    ] {
        let lease = u64::from(to) << 8 | device as u64;
        let port = 100 + device as u16 * 2 + u16::from(reaches);
        let local = Endpoint::new(0, port);
        let opening = app.begin_to_listen_on(device, lease, local, 16);
        app.complete(&mut net, opening);
        app.accept_again(lease);
        net.settle();
        let client = app.connect(Endpoint::new(to, port));
        net.settle();
        assert_eq!(app.accept().is_some(), reaches, "{device:?} {to:x}");
        let mut entries = net.stack(0).transport.connections.iter();
        let accepted =
            entries.find(|(_, entry)| entry.name.local_port() == port).map(|(_, entry)| entry.device);
        drop(entries);
        assert_eq!(accepted.unwrap_or_default(), if reaches { device } else { Device::None });
        let is_closed = app.state(client).2 & REPLICA_CLOSED != 0;
        assert_eq!(is_closed, !reaches, "refused: {device:?} {to:x}");
        app.close(client);
        app.release(lease);
        net.settle();
    }
}

#[test]
fn devices_of_ports_outlive_a_server() {
    let mut net = Net::new(vec![Stack::new(1).mortal()]);
    let mut app = App::attach(net.stack(0), 1);
    for (lease, device) in [(7, Device::Loopback), (8, Device::Link)] {
        let opening = app.begin_to_listen_on(device, lease, Endpoint::new(0, 80), 16);
        app.complete(&mut net, opening);
    }
    // One that is set later, before listen(2), counts as well.
    let later = app.client.insert(Object::socket(Protocol::Tcp, false, true));
    let opening = Opening::bind(&mut app.client, later, Endpoint::new(0, 81)).expect("it is fresh");
    app.finish(&mut net, opening).expect("free");
    app.client.set_option(later, SOL_SOCKET, SO_BINDTODEVICE, b"lo").expect("it is there");
    net.settle();
    let now = net.now;
    net.stack(0).restart(now, &[&app], Recovery::Stateful);
    net.settle();
    let cm = &net.stack(0).transport.cm;
    for (addr, device, lease) in [(INSIDE, Device::Loopback, 7), (addr(1), Device::Link, 8)] {
        let listener = cm.listener_of(app.id, lease).expect("it listens again");
        assert_eq!(cm.device_of(listener), device);
        assert!(cm.has_listener(Endpoint::new(addr, 80), device));
    }
    let lease = app.client.socket(later).expect("a socket").lease;
    assert_eq!(cm.grant(app.id, lease).map(|grant| grant.device), Some(Device::Loopback));
}
