//! Tests of the least TTL and hop limit of segments (RFC 5082; `IP_MINTTL`, `IPV6_MINHOPCOUNT`).

use std::vec::Vec;

use atoll_base::{Addr, Duration, Endpoint, FourTuple, SeqNum};
use atoll_ip::{ErrorKind, NetworkError};
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{REPLICA_RESET, SlotState};
use atoll_ipc::{Cause, Command, SocketOption};
use atoll_sockets::options::Name;
use atoll_wire::icmp::{self, code};
use atoll_wire::icmpv6;
use atoll_wire::ipv4::Protocol;

use super::kit::{App, Net, Stack, addr, addr_v6};
use crate::Recovery;

const HTTP: Endpoint = Endpoint::at(Addr::ANY, 80);

/// What the two options and the two TTLs are called in one of the families.
struct Family {
    to: Endpoint,
    least: Name,
    least_told: SocketOption,
    hops: Name,
    hops_told: SocketOption,
    other: Name,
}

fn families() -> [Family; 2] {
    [
        Family {
            to: Endpoint::new(addr(1), 80),
            least: Name::MinTtl,
            least_told: SocketOption::MinTtl,
            hops: Name::TimeToLive,
            hops_told: SocketOption::TimeToLive,
            other: Name::MinHopCount,
        },
        Family {
            to: Endpoint::at(addr_v6(1), 80),
            least: Name::MinHopCount,
            least_told: SocketOption::MinHopCount,
            hops: Name::Hops,
            hops_told: SocketOption::UnicastHops,
            other: Name::MinTtl,
        },
    ]
}

fn two() -> (Net, App, App) {
    let mut net = Net::new(Vec::from([Stack::v6(1).mortal(), Stack::v6(2)]));
    let server = App::attach(net.stack(0), 1);
    let client = App::attach(net.stack(1), 2);
    (net, server, client)
}

fn listen(net: &mut Net, server: &mut App, options: &[(Name, u64)]) {
    let opening = server.begin_to_listen_with(options, 77, HTTP, 16);
    server.complete(net, opening);
    server.accept_again(77);
    net.settle();
}

/// Returns how many segments have come from too far away.
fn dropped(net: &mut Net) -> u64 {
    net.stack(0).transport.publish_stats();
    net.stack(0).stat(Stat::DroppedTtl)
}

#[test]
fn a_syn_from_too_far_away_is_not_answered_and_connections_inherit_the_limit() {
    for family in families() {
        let (mut net, mut server, mut client) = two();
        listen(&mut net, &mut server, &[(family.least, 100), (family.other, 255)]);
        let far = client.connect_with(&[(family.hops, 99)], family.to);
        net.settle();
        assert_eq!((client.state(far).0, server.accept()), (SlotState::Connecting, None));
        assert_eq!(dropped(&mut net), 1);
        let near = client.connect_with(&[(family.hops, 100)], family.to);
        net.settle();
        let s = server.accept().expect("offered");
        assert_eq!(client.state(near).0, SlotState::Open);
        for (hops, text) in [(100, &b"near"[..]), (99, b""), (100, b"again")] {
            client.set_option(near, family.hops_told, hops);
            client.write(near, if text.is_empty() { b"again" } else { text });
            net.settle();
            assert_eq!(server.read(s), text, "{hops}");
            if text == b"near" {
                // Its acknowledgement is late.
                net.wait(Duration::from_millis(300));
            }
            if text.is_empty() {
                assert_eq!(dropped(&mut net), 2);
                client.set_option(near, family.hops_told, 100);
                net.wait(Duration::from_secs(2));
                assert_eq!(server.read(s), b"again");
                break;
            }
        }
        // The program may change its mind.
        server.set_option(s, family.least_told, 0);
        client.set_option(near, family.hops_told, 1);
        net.settle();
        client.write(near, b"far");
        net.settle();
        assert_eq!(server.read(s), b"far");
    }
}

#[test]
fn the_limit_of_a_listener_is_there_with_it_and_can_be_changed() {
    let (mut net, mut server, mut client) = two();
    let to = Endpoint::new(addr(1), 80);
    listen(&mut net, &mut server, &[]);
    let s = client.connect(to);
    net.settle();
    assert_eq!(client.state(s).0, SlotState::Open);
    // It comes with the command, so that nothing is taken before options come.
    let (token, lease, backlog, reuse_port, defer_accept, v6_only) = (0, 77, 16, false, 0, false);
    let hops_min = [65, 0];
    server.raw().push(Command::Listen {
        token,
        lease,
        local: HTTP,
        backlog,
        reuse_port,
        defer_accept,
        v6_only,
        hops_min,
    });
    net.settle();
    let s = client.connect(to);
    net.settle();
    assert_eq!(client.state(s).0, SlotState::Connecting);
    let now = net.now;
    net.stack(0).restart(now, &[&server], Recovery::Stateful);
    net.wait(Duration::from_secs(2));
    assert_eq!(client.state(s).0, SlotState::Connecting);
    server.set_listener_option(77, SocketOption::MinTtl, 64);
    net.wait(Duration::from_secs(8));
    assert_eq!(client.state(s).0, SlotState::Open);
}

#[test]
fn the_answer_to_a_syn_is_judged_too() {
    for family in families() {
        let (mut net, mut server, mut client) = two();
        listen(&mut net, &mut server, &[]);
        for (least, state) in [(65, SlotState::Connecting), (64, SlotState::Open)] {
            let c = client.connect_with(&[(family.least, least)], family.to);
            net.settle();
            assert_eq!(client.state(c).0, state, "{least}");
        }
    }
}

#[test]
fn limits_outlive_a_server() {
    for family in families() {
        let (mut net, mut server, mut client) = two();
        listen(&mut net, &mut server, &[(family.least, 100)]);
        let c = client.connect_with(&[(family.hops, 255)], family.to);
        net.settle();
        let s = server.accept().expect("offered");
        net.settle();
        let now = net.now;
        assert_eq!(net.stack(0).restart(now, &[&server], Recovery::Stateful).lost, 0);
        net.settle();
        client.set_option(c, family.hops_told, 99);
        client.write(c, b"far");
        let other = client.connect(family.to);
        net.settle();
        assert_eq!((server.read(s), server.accept()), (Vec::new(), None));
        assert_eq!(client.state(other).0, SlotState::Connecting);
        assert_eq!(dropped(&mut net), 2);
    }
}

#[test]
fn what_is_for_no_connection_is_not_answered_by_a_listener_it_is_too_far_from() {
    for (hops, is_reset) in [(99, false), (100, true)] {
        let (mut net, mut server, mut client) = two();
        listen(&mut net, &mut server, &[(Name::MinTtl, 100)]);
        let c = client.connect_with(&[(Name::TimeToLive, 100)], Endpoint::new(addr(1), 80));
        net.settle();
        server.accept().expect("offered");
        net.settle();
        // The server forgets the connection, and not the listener.
        let now = net.now;
        net.stack(0).restart(now, &[&server], Recovery::Stateless);
        client.set_option(c, SocketOption::TimeToLive, hops);
        client.write(c, b"for nobody");
        net.wait(Duration::from_millis(100));
        assert_eq!(client.state(c).2 & REPLICA_RESET != 0, is_reset, "{hops}");
    }
}

#[test]
fn an_error_from_too_far_away_is_not_believed() {
    for family in families() {
        let (mut net, mut server, mut client) = two();
        listen(&mut net, &mut server, &[]);
        // The neighbour is found first.
        client.connect(family.to);
        net.settle();
        let c = client.connect_with(&[(family.least, 100)], family.to);
        let now = net.now;
        net.stack(1).round(now);
        let is_v4 = family.to.addr.is_v4();
        let at = 14 + if is_v4 { 20 } else { 40 };
        let syn = net.stack(1).out.outside.drain(..).next_back().expect("it leaves");
        let seq = SeqNum(u32::from_be_bytes(*syn[at + 4..].first_chunk().expect("a SYN")));
        let (kind, code) = match is_v4 {
            true => (icmp::UNREACHABLE, code::PORT),
            false => (icmpv6::UNREACHABLE, 4),
        };
        for (hops, cause) in [(99, Cause::None), (100, Cause::ConnectionRefused)] {
            let error = NetworkError {
                kind: ErrorKind::Lost { kind, code, info: 0 },
                protocol: Protocol::TCP,
                tuple: FourTuple { local: client.slot(c).local(), remote: family.to },
                quoted_seq: Some(seq),
                quoted: [0; 8],
                reporter: family.to.addr,
                hops,
            };
            net.stack(1).transport.handle_network_error(now, &error, &[]);
            net.stack(1).round(now);
            assert_eq!(client.state(c).1, cause, "{hops}");
        }
        net.stack(1).transport.publish_stats();
        assert_eq!(net.stack(1).stat(Stat::DroppedTtl), 1);
    }
}
