//! Tests of SYN cookies: RFC 4987 §3.6.

use std::vec;
use std::vec::Vec;

use atoll_base::Endpoint;
use atoll_ip::ChecksumOffload;
use atoll_ipc::page::Stat;

use super::kit::{App, Net, Socket, Stack, addr};

const LEASE: u64 = 77;
const SERVER: Endpoint = Endpoint::new(0x0a00_0001, 80);
const BACKLOG: u32 = 8;
/// More SYNs than any small listener remembers.
const FLOOD: u16 = 300;

/// Returns SYNs to the server as a stack sends them, but from addresses that no host has.
pub(super) fn spoofed_syns(count: u16) -> impl Iterator<Item = Vec<u8>> {
    const IP: usize = 14;
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut app = App::attach(net.stack(1), 1);
    app.connect(SERVER);
    net.settle();
    // The neighbour is known now: another SYN is sent at once.
    app.connect(SERVER);
    let now = net.now;
    net.stack(1).round(now);
    let mut syn = net.stack(1).out.outside.pop_front().expect("a SYN");
    let (header, _) = atoll_wire::ipv4::parse(&syn[IP..]).expect("a packet");
    let header = atoll_wire::ipv4::Header { src: addr(99), ..header };
    atoll_wire::ipv4::emit(&header, &mut syn[IP..]);
    (1..=count).map(move |port| {
        syn[IP + 20..IP + 22].copy_from_slice(&port.to_be_bytes());
        syn.clone()
    })
}

/// Delivers frames to the server.
fn arrive(net: &mut Net, frames: impl Iterator<Item = Vec<u8>>) {
    let now = net.now;
    for frame in frames {
        net.stack(0).transport.handle_frame(now, &frame, ChecksumOffload::Partial, false);
    }
}

/// Creates a server under a flood, and a client.
fn flooded() -> (Net, App, App) {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    server.listen(&mut net, LEASE, Endpoint::new(0, 80), BACKLOG);
    let client = App::attach(net.stack(1), 2);
    net.settle();
    arrive(&mut net, spoofed_syns(FLOOD));
    net.settle();
    let embryonic = net.stack(0).transport.cm.listeners().next().expect("one").embryonic;
    assert!((BACKLOG..FLOOD.into()).contains(&embryonic), "{embryonic} are remembered");
    assert_eq!(net.stack(0).stat(Stat::SynCookiesSent), u64::from(FLOOD) - u64::from(embryonic));
    (net, server, client)
}

#[test]
fn a_connection_through_a_flood_keeps_its_options_and_its_text() {
    let (mut net, mut server, mut client) = flooded();
    let c = client.connect(SERVER);
    net.settle();
    let s = server.accept().expect("the connection");
    assert_eq!(net.stack(0).stat(Stat::SynCookiesReceived), 1);
    let text: Vec<u8> = (0..50_000u32).map(|n| n as u8).collect();
    let mut got = Vec::new();
    let mut sent = 0;
    while got.len() < text.len() {
        sent += client.write(c, &text[sent..]);
        net.settle();
        got.extend(server.read(s));
        net.settle();
    }
    assert!(got == text);
    let (at_server, at_client) = (server.info(&mut net, s), client.info(&mut net, c));
    // The bits are timestamps, SACK, and window scaling.
    assert_eq!((at_server.options & 7, at_client.options & 7), (7, 7));
    assert_eq!((at_server.snd_wscale, at_server.rcv_wscale), (at_client.rcv_wscale, at_client.snd_wscale));
    assert!(at_server.snd_mss >= 1400, "{at_server:?}");
}

#[test]
fn every_good_client_gets_through() {
    let (mut net, mut server, mut client) = flooded();
    let more: Vec<Vec<u8>> = spoofed_syns(10).collect();
    for _ in 0..50 {
        client.connect(SERVER);
        net.settle();
        assert!(server.accept().is_some());
        arrive(&mut net, more.iter().cloned());
    }
    assert_eq!(net.stack(0).stat(Stat::SynCookiesReceived), 50);
}

#[test]
fn a_crowd_at_a_small_backlog_is_answered_at_once() {
    for (crowd, backlog) in [(40, 5), (250, 1), (250, 128)] {
        let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
        let mut server = App::attach(net.stack(0), 1);
        server.listen(&mut net, LEASE, Endpoint::new(0, 80), backlog);
        arrive(&mut net, spoofed_syns(crowd));
        let now = net.now;
        net.stack(0).round(now);
        let stack = net.stack(0);
        let embryonic = stack.transport.cm.listeners().next().expect("one").embryonic;
        let answers = u64::from(embryonic) + stack.stat(Stat::SynCookiesSent);
        assert_eq!((answers, stack.stat(Stat::SynDrops)), (crowd.into(), 0), "backlog {backlog}");
    }
}

#[test]
fn whoever_waits_for_the_server_to_speak_is_not_forgotten_though_a_cookie_answered() {
    // Cookies answer the SYNs of a burst, whose last ACKs then find the accept queue full. The clients send
    // nothing more: only a repeated SYN-ACK makes them show the server again that they are there.
    let (mut net, mut server, mut client) = flooded();
    client.connect(SERVER);
    net.settle();
    assert!(server.accept().is_some(), "the stations know each other");
    server.stop_accepting(LEASE);
    net.settle();
    let crowd: Vec<Socket> = (0..4 * BACKLOG).map(|_| client.connect(SERVER)).collect();
    let now = net.now;
    net.stack(1).round(now);
    let syns = core::mem::take(&mut net.stack(1).out.outside);
    let before = net.stack(0).stat(Stat::SynCookiesSent);
    arrive(&mut net, syns.into_iter());
    net.stack(0).round(now);
    assert_eq!(net.stack(0).stat(Stat::SynCookiesSent) - before, u64::from(4 * BACKLOG));
    let cookies = core::mem::take(&mut net.stack(0).out.outside);
    // The flood ends: every remembered client resets.
    let resets = spoofed_syns(FLOOD).map(|mut syn| {
        let seq = u32::from_be_bytes(syn[38..42].try_into().expect("four"));
        syn[38..42].copy_from_slice(&(seq + 1).to_be_bytes());
        syn[14 + 20 + 13] = 0x04;
        syn
    });
    arrive(&mut net, resets);
    net.settle();
    assert_eq!(net.stack(0).transport.cm.listeners().next().expect("one").embryonic, 0);
    let now = net.now;
    for frame in cookies {
        net.stack(1).hear(now, &frame, ChecksumOffload::Partial);
    }
    net.settle();
    assert_eq!(net.stack(0).stat(Stat::SynCookiesReceived), 1 + u64::from(4 * BACKLOG));
    server.accept_again(LEASE);
    assert_eq!(server.accept_for(&mut net, 700), crowd.len());
}

#[test]
fn without_a_flood_an_acknowledgement_of_nothing_is_reset() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    server.listen(&mut net, LEASE, Endpoint::new(0, 80), BACKLOG);
    // These have ACK in place of SYN.
    let acks = spoofed_syns(20).map(|mut syn| {
        syn[14 + 20 + 13] = 0x10;
        syn
    });
    arrive(&mut net, acks);
    net.settle();
    assert_eq!(net.stack(0).stat(Stat::ResetsOut), 20);
    assert_eq!(net.stack(0).stat(Stat::SynCookiesReceived), 0);
}

#[test]
fn a_full_accept_queue_lets_no_cookie_in_until_there_is_room() {
    let (mut net, mut server, mut client) = flooded();
    // The server accepts nothing more.
    server.stop_accepting(LEASE);
    net.settle();
    let sockets: Vec<Socket> = (0..BACKLOG + 1).map(|_| client.connect(SERVER)).collect();
    net.settle();
    assert_eq!(
        net.stack(0).stat(Stat::SynCookiesReceived),
        u64::from(BACKLOG) + 1,
        "as on Linux: backlog + 1"
    );
    // The queue is full: the SYN is not answered, not even by a cookie.
    let before = net.stack(0).stat(Stat::SynCookiesSent);
    let late = client.connect(SERVER);
    net.settle();
    assert_eq!(net.stack(0).stat(Stat::SynCookiesSent), before);
    server.accept_again(LEASE);
    let accepted = server.accept_for(&mut net, 50);
    assert_eq!(accepted, sockets.len() + 1, "{late:?}");
}
