//! Tests between IPv6 addresses, and between both families if a socket has both.

use std::vec::Vec;

use atoll_base::{Addr, Duration, Endpoint};
use atoll_ipc::Cause;
use atoll_ipc::page::Stat;
use atoll_ipc::slot::SlotState;
use atoll_sockets::options::Name;
use atoll_wire::icmpv6::{self, Message};
use atoll_wire::ipv6;

use super::kit::{App, Net, Socket, Stack, addr, addr_v6};

const ANY_HTTP: Endpoint = Endpoint::at(Addr::ANY, 80);

fn http() -> Endpoint {
    Endpoint::at(addr_v6(1), 80)
}

fn two() -> (Net, App, App) {
    let mut net = Net::new(Vec::from([Stack::v6(1), Stack::v6(2)]));
    let server = App::attach(net.stack(0), 1);
    let client = App::attach(net.stack(1), 2);
    (net, server, client)
}

/// Opens a connection and checks that text goes both ways.
fn exchange(net: &mut Net, server: &mut App, client: &mut App, to: Endpoint) -> (Socket, Socket) {
    let c = client.connect(to);
    net.settle();
    let s = server.accept().expect("offered");
    net.settle();
    assert_eq!(server.slot(s).local(), to);
    assert_eq!(server.peer(s), client.slot(c).local());
    client.write(c, b"question");
    net.settle();
    assert_eq!(server.read(s), b"question");
    server.write(s, b"answer");
    net.settle();
    assert_eq!(client.read(c), b"answer");
    (s, c)
}

#[test]
fn a_listener_at_any_address_takes_both_families() {
    let (mut net, mut server, mut client) = two();
    server.listen(&mut net, 1, ANY_HTTP, 5);
    let (_, c) = exchange(&mut net, &mut server, &mut client, http());
    assert_eq!(client.slot(c).local().addr, addr_v6(2));
    let (_, c) = exchange(&mut net, &mut server, &mut client, Endpoint::new(addr(1), 80));
    assert_eq!(client.slot(c).local().addr, Addr::v4(addr(2)));
    assert_eq!(net.stack(0).stat(Stat::PassiveOpens), 2);
}

#[test]
fn a_listener_for_ipv6_alone_refuses_ipv4() {
    let (mut net, mut server, mut client) = two();
    let opening = server.begin_to_listen_with(&[(Name::ReuseAddr, 1), (Name::V6Only, 1)], 1, ANY_HTTP, 5);
    server.complete(&mut net, opening);
    server.accept_again(1);
    exchange(&mut net, &mut server, &mut client, http());
    let c = client.connect(Endpoint::new(addr(1), 80));
    net.settle();
    assert_eq!(client.state(c).1, Cause::ConnectionRefused);
    // Another socket may have the part that this one leaves free.
    server.listen(&mut net, 2, Endpoint::new(0, 80), 5);
}

#[test]
fn the_internal_link_has_ipv6_even_where_the_outside_has_none() {
    let mut net = Net::new(Vec::from([Stack::new(1)]));
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(0), 2);
    server.listen(&mut net, 1, ANY_HTTP, 5);
    let (_, c) = exchange(&mut net, &mut server, &mut client, Endpoint::at(Addr::LOOPBACK, 80));
    assert_eq!(client.slot(c).local().addr, Addr::LOOPBACK);
    let c = client.connect(http());
    net.settle();
    assert_eq!(client.state(c).1, Cause::NetworkUnreachable);
}

#[test]
fn a_closed_connection_is_remembered_and_its_name_is_free_again() {
    let (mut net, mut server, mut client) = two();
    server.listen(&mut net, 1, ANY_HTTP, 5);
    let (s, c) = exchange(&mut net, &mut server, &mut client, http());
    server.close(s);
    net.settle();
    client.close(c);
    net.settle();
    net.stack(0).transport.publish_stats();
    assert_eq!((net.stack(0).stat(Stat::Connections), net.stack(0).stat(Stat::TimeWaits)), (0, 1));
    net.wait(Duration::from_secs(61));
    net.stack(0).transport.publish_stats();
    assert_eq!(net.stack(0).stat(Stat::TimeWaits), 0);
}

#[test]
fn names_are_chosen_and_refused_as_on_linux() {
    let (mut net, _server, mut client) = two();
    let mut connect = |net: &mut Net, local, remote| {
        let socket = client.raw().connect(0, local, remote);
        net.settle();
        client.state(socket).1
    };
    let any = Endpoint::default();
    let far = Endpoint::at(Addr::from_octets([0x30; 16]), 80);
    assert_eq!(connect(&mut net, Endpoint::at(addr_v6(9), 0), http()), Cause::AddressNotAvailable);
    assert_eq!(connect(&mut net, Endpoint::new(0, 0), http()), Cause::Invalid);
    assert_eq!(connect(&mut net, Endpoint::at(Addr::LOOPBACK, 0), http()), Cause::NetworkUnreachable);
    assert_eq!(
        connect(&mut net, any, Endpoint::at(Addr::from_octets([0xff; 16]), 80)),
        Cause::NetworkUnreachable
    );
    assert_eq!(connect(&mut net, any, http()), Cause::ConnectionRefused);
    assert_eq!(connect(&mut net, any, far), Cause::None, "the gateway is asked for");
}

#[test]
fn a_smaller_path_shrinks_segments_by_the_longer_headers() {
    let (mut net, mut server, mut client) = two();
    server.listen(&mut net, 1, ANY_HTTP, 5);
    let (s, c) = exchange(&mut net, &mut server, &mut client, http());
    client.write(c, &[7; 4000]);
    let now = net.now;
    net.stack(1).round(now);
    let sent: Vec<_> = net.stack(1).out.outside.drain(..).collect();
    let packet = &sent[0][14..];
    let (header, at) = ipv6::parse(packet).expect("IPv6");
    assert_eq!((header.src, header.dst, packet.len()), (addr_v6(2), addr_v6(1), 1500));
    // A router reports that 1300 octets pass.
    let router = addr_v6(0xfe);
    let mut error = [&[0; 8][..], &packet[..at + 20]].concat();
    icmpv6::emit(router, addr_v6(2), &Message::PacketTooBig { mtu: 1300 }, &mut error);
    let mut frame = sent[0][..14].to_vec();
    frame.rotate_left(0);
    frame.copy_within(6..12, 0);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 0xfe]);
    let outer = ipv6::Header {
        src: router,
        dst: addr_v6(2),
        next_header: atoll_wire::ipv4::Protocol::ICMPV6,
        payload_len: error.len() as u16,
        hop_limit: 60,
        ..Default::default()
    };
    frame.resize(54, 0);
    ipv6::emit(&outer, &mut frame[14..]);
    frame.extend_from_slice(&error);
    net.stack(1).transport.handle_frame(now, &frame, atoll_ip::ChecksumOffload::Unknown, false);
    net.stack(1).round(now);
    let longest = net.stack(1).out.outside.iter().map(|frame| frame.len() - 14).max();
    assert_eq!(longest, Some(1300));
    net.wait(Duration::from_secs(3));
    assert_eq!(server.read(s), [7; 4000]);
}

#[test]
fn datagrams_of_both_families_reach_a_socket_that_speaks_both() {
    let (mut net, mut server, mut client) = two();
    let s = server.open_datagrams(&mut net, Endpoint::at(Addr::ANY, 53), Endpoint::default());
    let c = client.open_datagrams(&mut net, Endpoint::at(addr_v6(2), 4000), Endpoint::at(addr_v6(1), 53));
    net.settle();
    assert_eq!(
        (client.state(c).0, client.slot(c).local()),
        (SlotState::Open, Endpoint::at(addr_v6(2), 4000))
    );
    client.send(c, Endpoint::default(), b"six");
    net.settle();
    let (peer, text) = server.receive(s).expect("a datagram");
    assert_eq!((peer, text), (Endpoint::at(addr_v6(2), 4000), b"six".to_vec()));
    server.send(s, peer, b"back");
    net.settle();
    assert_eq!(client.receive(c), Some((Endpoint::at(addr_v6(1), 53), b"back".to_vec())));
    let other = client.open_datagrams(&mut net, Endpoint::at(Addr::ANY, 4001), Endpoint::default());
    net.settle();
    client.send(other, Endpoint::new(addr(1), 53), b"four");
    net.settle();
    assert_eq!(server.receive(s), Some((Endpoint::new(addr(2), 4001), b"four".to_vec())));
    // No socket has the port, which the connected socket gets as an error.
    let lonely = client.open_datagrams(&mut net, Endpoint::at(Addr::ANY, 4002), Endpoint::at(addr_v6(1), 99));
    net.settle();
    client.send(lonely, Endpoint::default(), b"?");
    net.settle();
    assert_eq!(client.state(lonely).1, Cause::ConnectionRefused);
}
