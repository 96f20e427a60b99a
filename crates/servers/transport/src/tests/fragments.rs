//! Tests of datagrams that are larger than one packet.

use std::vec;
use std::vec::Vec;

use atoll_base::{Addr, Endpoint};
use atoll_ipc::datagram::{DATAGRAM_MAX, DATAGRAM_MAX_V4};
use atoll_ipc::page::Stat;
use atoll_ipc::{Cause, Ready, SocketOption};
use atoll_wire::icmp::{self, Message, code};
use atoll_wire::ipv4::{self, Protocol};
use atoll_wire::{Mac, ethernet, icmpv6, ipv6};

use super::kit::{App, Net, Socket, Stack, addr, addr_v6};

const SERVER: Endpoint = Endpoint::new(0x0a00_0001, 53);

/// Creates a server at port 53, and a client with this `IP_MTU_DISCOVER`.
fn pair(discover: u32) -> (Net, (App, Socket), (App, Socket)) {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    let s = server.open_datagrams(&mut net, Endpoint::new(0, 53), Endpoint::default());
    let c = client.open_datagrams(&mut net, Endpoint::new(0, 5000), SERVER);
    client.set_option(c, SocketOption::MtuDiscover, discover);
    net.settle();
    // Both know their neighbours.
    client.send(c, SERVER, b"first");
    net.settle();
    assert_eq!(server.receive(s).expect("a datagram").1, b"first");
    (net, (server, s), (client, c))
}

fn text(len: usize) -> Vec<u8> {
    (0..len).map(|n| ((n * 7) >> 2) as u8).collect()
}

/// Returns the error of a router that takes only 1000 octets, about a datagram of the client.
fn too_big(quoted: &[u8]) -> Vec<u8> {
    let mut message = vec![0; icmp::HEADER_LEN];
    message.extend_from_slice(&quoted[ethernet::HEADER_LEN..][..28]);
    icmp::emit(&Message::Unreachable { code: code::FRAGMENTATION_NEEDED, next_hop_mtu: 1000 }, &mut message);
    let mut frame = vec![0; ethernet::HEADER_LEN + ipv4::HEADER_LEN];
    let (dst, src) = (Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, 1]));
    ethernet::emit(&ethernet::Header { dst, src, ethertype: ethernet::EtherType::IPV4 }, &mut frame);
    let header = ipv4::Header {
        src: addr(1),
        dst: addr(2),
        protocol: Protocol::ICMP,
        payload_len: message.len() as u16,
        ttl: 64,
        ..ipv4::Header::default()
    };
    ipv4::emit(&header, &mut frame[ethernet::HEADER_LEN..]);
    frame.extend_from_slice(&message);
    frame
}

#[test]
fn a_datagram_of_every_size_arrives() {
    let (mut net, (mut server, s), (mut client, c)) = pair(1);
    for len in [1472, 1473, 2952, 2953, 30_000, DATAGRAM_MAX_V4 as usize] {
        client.send(c, SERVER, &text(len));
        net.settle();
        assert!(server.receive(s).expect("a datagram").1 == text(len), "{len}");
    }
    net.stack(1).transport.publish_stats();
    net.stack(0).transport.publish_stats();
    let fragments = net.stack(1).stat(Stat::FragmentsOut);
    assert_eq!(fragments, 2 + 2 + 3 + 21 + 45);
    assert_eq!(net.stack(0).whole_ip().counters().fragments_in, fragments);
    assert_eq!(net.stack(0).whole_ip().counters().reassembled, 5);
}

#[test]
fn a_link_that_is_full_in_the_middle_of_a_datagram_gets_the_rest_later() {
    let (mut net, (mut server, s), (mut client, c)) = pair(0);
    for len in [20_000, 500, 9_000] {
        client.send(c, SERVER, &text(len));
    }
    let mut got = Vec::new();
    for _ in 0..100 {
        net.stack(1).out.room = Some(2);
        net.wait(atoll_base::Duration::from_millis(2));
        got.extend(core::iter::from_fn(|| server.receive(s)).map(|(_, octets)| octets));
    }
    net.stack(1).transport.publish_stats();
    assert_eq!(net.stack(1).stat(Stat::FragmentsOut), 14 + 7, "none is sent twice");
    assert!(got == [20_000, 500, 9_000].map(text), "{} datagrams", got.len());
}

#[test]
fn a_narrow_path_is_learned_of_and_kept_to() {
    let (mut net, (mut server, s), (mut client, c)) = pair(1);
    client.send(c, SERVER, &text(1400));
    let now = net.now;
    let Stack { transport, out, .. } = net.stack(1);
    transport.handle_commands(now, 64);
    transport.flush(now, out);
    let frame = out.outside.pop_front().expect("it was sent");
    assert_eq!(frame[20] & 0x40, 0x40, "not to be fragmented");
    let error = too_big(&frame);
    transport.handle_frame(now, &error, atoll_ip::ChecksumOffload::Unknown, false);
    let update = transport.ip_mut().poll_path().expect("news for the other replicas");
    assert_eq!((update.dst, update.mtu), (addr(1).into(), 1000));
    net.settle();
    // As on Linux, a connected socket gets an error for the lost datagram.
    assert!(client.take_ready(c).contains(Ready::ERR));
    assert_eq!(client.slot(c).error(), Cause::MessageTooLong);
    client.send(c, SERVER, &text(1400));
    net.settle();
    assert!(server.receive(s).expect("a datagram").1 == text(1400));
    net.stack(1).transport.publish_stats();
    assert_eq!(net.stack(1).stat(Stat::FragmentsOut), 2);
}

#[test]
fn sockets_that_forbid_fragments_are_refused() {
    for (discover, refused) in [(0, false), (1, false), (2, true), (3, true), (4, true), (5, false)] {
        let (mut net, (mut server, s), (mut client, c)) = pair(discover);
        client.send(c, SERVER, &text(2000));
        net.settle();
        let arrived = server.receive(s).is_some();
        let expected = if refused { Cause::MessageTooLong } else { Cause::None };
        assert_eq!((arrived, client.slot(c).error()), (!refused, expected), "{discover}");
    }
}

#[test]
fn connections_learn_from_each_other_what_a_path_takes() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    server.listen(&mut net, 77, Endpoint::new(0, 80), 16);
    let c = client.connect(Endpoint::new(addr(1), 80));
    net.settle();
    client.write(c, &[1; 1400]);
    let now = net.now;
    let Stack { transport, out, .. } = net.stack(1);
    transport.handle_commands(now, 64);
    transport.flush(now, out);
    let frame = out.outside.pop_front().expect("it was sent");
    transport.handle_frame(now, &too_big(&frame), atoll_ip::ChecksumOffload::Unknown, false);
    assert_eq!(net.stack(1).stat(Stat::PathMtuLowered), 1);
    // The next connection begins with a size that fits.
    client.connect(Endpoint::new(addr(1), 80));
    net.settle();
    let now = net.now;
    let rows: Vec<_> = net.stack(1).transport.sockets(now).filter_map(|row| row.info).collect();
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|info| info.pmtu == 1000 && info.advmss == 1460), "{rows:?}");
}

// The tests from here on are of IPv6.

/// Creates a server at port 53, and a client with this `IPV6_MTU_DISCOVER`.
fn pair_v6(discover: u32) -> (Net, (App, Socket), (App, Socket)) {
    let mut net = Net::new(vec![Stack::v6(1), Stack::v6(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    let s = server.open_datagrams(&mut net, Endpoint::at(Addr::ANY, 53), Endpoint::default());
    let c = client.open_datagrams(&mut net, Endpoint::at(Addr::ANY, 5000), server_v6());
    client.set_option(c, SocketOption::MtuDiscoverV6, discover);
    net.settle();
    client.send(c, server_v6(), b"first");
    net.settle();
    assert_eq!(server.receive(s).expect("a datagram").1, b"first");
    (net, (server, s), (client, c))
}

fn server_v6() -> Endpoint {
    Endpoint::at(addr_v6(1), 53)
}

/// Returns the error of a router that takes only 1300 octets, about a packet of the client.
fn too_big_v6(quoted: &[u8]) -> Vec<u8> {
    let router = addr_v6(0xfe);
    let mut message = vec![0; icmpv6::HEADER_LEN];
    message.extend_from_slice(&quoted[ethernet::HEADER_LEN..][..60]);
    icmpv6::emit(router, addr_v6(2), &icmpv6::Message::PacketTooBig { mtu: 1300 }, &mut message);
    let mut frame = vec![0; ethernet::HEADER_LEN + ipv6::HEADER_LEN];
    let (dst, src) = (Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, 1]));
    ethernet::emit(&ethernet::Header { dst, src, ethertype: ethernet::EtherType::IPV6 }, &mut frame);
    let header = ipv6::Header {
        src: router,
        dst: addr_v6(2),
        next_header: Protocol::ICMPV6,
        payload_len: message.len() as u16,
        hop_limit: 64,
        ..ipv6::Header::default()
    };
    ipv6::emit(&header, &mut frame[ethernet::HEADER_LEN..]);
    frame.extend_from_slice(&message);
    frame
}

#[test]
fn a_datagram_of_every_size_arrives_over_ipv6() {
    let (mut net, (mut server, s), (mut client, c)) = pair_v6(1);
    for len in [1452, 1453, 2888, 2889, 30_000, DATAGRAM_MAX as usize] {
        client.send(c, server_v6(), &text(len));
        net.settle();
        assert!(server.receive(s).expect("a datagram").1 == text(len), "{len}");
    }
    net.stack(1).transport.publish_stats();
    net.stack(0).transport.publish_stats();
    let fragments = net.stack(1).stat(Stat::FragmentsOut);
    // Each has 1448 octets, header of UDP included.
    assert_eq!(fragments, 2 + 2 + 3 + 21 + 46);
    assert_eq!(net.stack(0).whole_ip().counters().fragments_in, fragments);
    assert_eq!(net.stack(0).whole_ip().counters().reassembled, 5);
}

#[test]
fn sockets_that_forbid_fragments_of_ipv6_are_refused() {
    for (discover, dont, refused) in [
        (0, 0, false),
        (1, 0, false),
        (2, 0, true),
        (3, 0, true),
        (4, 0, true),
        (5, 0, false),
        (1, 1, true),
        (5, 1, true),
    ] {
        let (mut net, (mut server, s), (mut client, c)) = pair_v6(discover);
        client.set_option(c, SocketOption::DontFragmentV6, dont);
        client.send(c, server_v6(), &text(2000));
        net.settle();
        let arrived = server.receive(s).is_some();
        let expected = if refused { Cause::MessageTooLong } else { Cause::None };
        assert_eq!((arrived, client.slot(c).error()), (!refused, expected), "{discover} {dont}");
    }
}

#[test]
fn a_narrow_path_of_ipv6_is_kept_to_by_datagrams_and_connections_that_come_later() {
    let (mut net, (mut server, s), (mut client, c)) = pair_v6(1);
    client.send(c, server_v6(), &text(1400));
    let now = net.now;
    let Stack { transport, out, .. } = net.stack(1);
    transport.handle_commands(now, 64);
    transport.flush(now, out);
    let frame = out.outside.pop_front().expect("it was sent");
    transport.handle_frame(now, &too_big_v6(&frame), atoll_ip::ChecksumOffload::Unknown, false);
    let update = transport.ip_mut().poll_path().expect("news for the other replicas");
    assert_eq!((update.dst, update.mtu), (addr_v6(1), 1300));
    net.settle();
    assert!(client.take_ready(c).contains(Ready::ERR));
    assert_eq!(client.slot(c).error(), Cause::MessageTooLong);
    client.send(c, server_v6(), &text(1400));
    net.settle();
    assert!(server.receive(s).expect("a datagram").1 == text(1400));
    net.stack(1).transport.publish_stats();
    assert_eq!(net.stack(1).stat(Stat::FragmentsOut), 2);
    // A connection begins with a size that fits.
    server.listen(&mut net, 77, Endpoint::at(Addr::ANY, 80), 16);
    client.connect(Endpoint::at(addr_v6(1), 80));
    net.settle();
    let now = net.now;
    let rows: Vec<_> = net.stack(1).transport.sockets(now).filter_map(|row| row.info).collect();
    assert!(rows.len() == 1 && rows[0].pmtu == 1300, "{rows:?}");
    // After ten minutes larger sizes are tried again.
    net.wait(atoll_base::Duration::from_secs(601));
    client.send(c, server_v6(), &text(1400));
    net.settle();
    assert!(server.receive(s).expect("a datagram").1 == text(1400));
    net.stack(1).transport.publish_stats();
    assert_eq!(net.stack(1).stat(Stat::FragmentsOut), 2);
}
