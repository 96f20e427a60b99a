//! Who holds memory, and who gets some? A good client beside each attack.

use std::vec;
use std::vec::Vec;

use atoll_base::{Duration, Endpoint, SeqNum};
use atoll_ipc::Ready;
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{REPLICA_CLOSED, REPLICA_RESET};

use crate::tests::kit::{ARENA, App, Net, Socket, Stack, addr};

const SERVER: Endpoint = Endpoint::new(0x0a00_0001, 80);

/// A server with so much memory, and a client.
fn pair(send_log2: u8, receive_log2: u8) -> (Net, App, App) {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let arena = ArenaConfig { send_log2, receive_log2, ..ARENA };
    let mut server = App::attach_with(net.stack(0), 1, arena);
    let client = App::attach(net.stack(1), 2);
    server.listen(77, Endpoint::new(addr(1), 80), 64);
    net.settle();
    (net, server, client)
}

fn open(net: &mut Net, server: &mut App, client: &mut App) -> (Socket, Socket) {
    let c = client.connect(SERVER);
    net.settle();
    (server.accept().expect("the connection"), c)
}

fn is_closed(app: &mut App, socket: Socket) -> bool {
    app.state(socket).2 & REPLICA_CLOSED != 0
}

/// Octets of send memory in use; the library would give drained buffers back, and those of connections that are over.
fn give_back(server: &mut App, sockets: &mut Vec<(Socket, Socket)>) {
    let over: Vec<usize> = (0..sockets.len()).filter(|n| is_closed(server, sockets[*n].0)).collect();
    for n in over.into_iter().rev() {
        server.close(sockets.remove(n).0);
    }
}

#[test]
fn readers_that_stand_still_are_shed_when_all_memory_is_theirs_and_slow_ones_stay() {
    let (mut net, mut server, mut client) = pair(20, 22);
    let (slow, slow_client) = open(&mut net, &mut server, &mut client);
    let mut lazy: Vec<(Socket, Socket)> = (0..15).map(|_| open(&mut net, &mut server, &mut client)).collect();
    let mut full_for = Duration::ZERO;
    let mut written = 0;
    while net.stack(0).stat(Stat::ConnectionsShed) == 0 {
        assert!(full_for < Duration::from_secs(60), "nobody is ever shed");
        written += server.write(slow, &vec![2; 1 << 20]);
        for (s, _) in &lazy {
            server.write(*s, &vec![1; 1 << 20]);
        }
        net.wait(Duration::from_secs(1));
        full_for += Duration::from_secs(1);
        client.read(slow_client);
        net.stack(0).transport.publish_stats();
        assert!(full_for < Duration::from_secs(2) || net.stack(0).stat(Stat::Pressured) == 1);
    }
    assert!(full_for >= Duration::from_secs(10), "patience: {full_for:?}");
    assert!(written > 0 && !is_closed(&mut server, slow));
    net.settle();
    // Those that were shed hear of it, and some are left: it was not their turn.
    let shed = lazy.iter().filter(|(_, c)| client.state(*c).2 & REPLICA_RESET != 0).count();
    assert!((1..15).contains(&shed), "{shed}");
    assert_eq!(net.stack(0).stat(Stat::ConnectionsShed), shed as u64);
    give_back(&mut server, &mut lazy);
    net.settle();
    server.poll();
    // A good client is served at once.
    let (s, c) = open(&mut net, &mut server, &mut client);
    assert_eq!(server.write(s, b"answer"), 6);
    net.settle();
    assert_eq!(client.read(c), b"answer");
    net.wait(Duration::from_secs(2));
    net.stack(0).transport.publish_stats();
    assert_eq!(net.stack(0).stat(Stat::Pressured), 0);
}

#[test]
fn buffers_are_small_while_memory_is_short() {
    let (mut net, mut server, mut client) = pair(20, 22);
    let lazy: Vec<(Socket, Socket)> = (0..4).map(|_| open(&mut net, &mut server, &mut client)).collect();
    assert_eq!(server.slot(lazy[0].0).send_limit(), 256 << 10);
    for (s, _) in &lazy {
        server.write(*s, &vec![1; 1 << 20]);
    }
    net.wait(Duration::from_millis(2500));
    assert_eq!(server.slot(lazy[0].0).send_limit(), 16 << 10);
    let (s, _) = open(&mut net, &mut server, &mut client);
    assert_eq!(server.slot(s).send_limit(), 16 << 10);
}

#[test]
fn text_out_of_order_is_dropped_for_those_who_send_in_order() {
    let (mut net, mut server, mut client) = pair(22, 18);
    let holders: Vec<(Socket, Socket)> = (0..4).map(|_| open(&mut net, &mut server, &mut client)).collect();
    let (good, good_client) = open(&mut net, &mut server, &mut client);
    net.wait(Duration::from_millis(300));
    // Where their text begins: what the server expects.
    let firsts: Vec<SeqNum> = holders
        .iter()
        .map(|(_, c)| {
            client.write(*c, &[5]);
            let now = net.now;
            net.stack(1).round(now);
            let frame = net.stack(1).out.outside.pop_front().expect("one octet");
            atoll_wire::tcp::parse(&frame[34..]).expect("a segment").0.seq
        })
        .collect();
    let ports: Vec<u16> = holders.iter().map(|(_, c)| client.slot(*c).local().port).collect();
    for (_, c) in &holders {
        client.write(*c, &vec![5; (64 << 10) - 1]);
    }
    client.write(good_client, &[6; 5000]);
    // The first octet of each holder is lost again and again.
    let mut most = 0;
    for _ in 0..100 {
        net.now += Duration::from_millis(10);
        let now = net.now;
        net.stack(1).round(now);
        for frame in net.stack(1).out.outside.drain(..).collect::<Vec<_>>() {
            let (segment, _) = atoll_wire::tcp::parse(&frame[34..]).expect("a segment");
            let at = ports.iter().position(|port| *port == segment.src_port);
            let start = at.map(|at| firsts[at]);
            if start != Some(segment.seq) || segment.len == 0 {
                net.stack(0).transport.handle_frame(now, &frame, atoll_ip::ChecksumOffload::Partial, false);
            }
        }
        net.stack(0).round(now);
        most = most.max(net.stack(0).buffer_bytes());
        for frame in net.stack(0).out.outside.drain(..).collect::<Vec<_>>() {
            net.stack(1).transport.handle_frame(now, &frame, atoll_ip::ChecksumOffload::Partial, false);
        }
    }
    assert!(most >= 240 << 10, "{most} octets were held");
    assert_eq!(server.read(good), [6; 5000]);
    assert!(net.stack(0).stat(Stat::TextPruned) > 0);
    // What was dropped comes again.
    let mut got = [0; 4];
    for _ in 0..300 {
        net.wait(Duration::from_millis(100));
        for ((s, _), got) in holders.iter().zip(&mut got) {
            *got += server.read(*s).len();
        }
    }
    assert_eq!(got, [64 << 10; 4]);
}

#[test]
fn connections_that_are_closed_beyond_the_limit_of_orphans_are_reset() {
    let mut net = Net::new(vec![Stack::with(1, |config| config.orphans_max = 2), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    server.listen(77, Endpoint::new(0, 80), 64);
    net.settle();
    let pairs: Vec<(Socket, Socket)> = (0..3).map(|_| open(&mut net, &mut server, &mut client)).collect();
    for (s, _) in &pairs {
        // More than the peer's window takes.
        server.write(*s, &vec![1; 200 << 10]);
        net.settle();
        server.close(*s);
        net.settle();
    }
    net.stack(0).transport.publish_stats();
    assert_eq!((net.stack(0).stat(Stat::Orphans), net.stack(0).stat(Stat::OrphansReset)), (2, 1));
    let reset: Vec<bool> = pairs.iter().map(|(_, c)| client.state(*c).2 & REPLICA_RESET != 0).collect();
    assert_eq!(reset, [false, false, true]);
    // And those whose peer holds its window closed do not last.
    net.wait(Duration::from_secs(400));
    net.stack(0).transport.publish_stats();
    assert_eq!((net.stack(0).stat(Stat::Orphans), net.stack(0).stat(Stat::Connections)), (0, 0));
}

#[test]
fn who_has_room_no_longer_because_buffers_have_become_small_is_told_of_room() {
    // Found by the simulation: ATOLL_SEED=412 of `others_are_served_beside_an_attacker`.
    let (mut net, mut server, mut client) = pair(20, 22);
    let (s, c) = open(&mut net, &mut server, &mut client);
    // A quarter of its buffer; its peer does not read yet.
    assert_eq!(server.write(s, &[7; 64 << 10]), 64 << 10);
    for _ in 0..4 {
        let (lazy, _) = open(&mut net, &mut server, &mut client);
        server.write(lazy, &vec![1; 1 << 20]);
    }
    net.wait(Duration::from_millis(2500));
    assert_eq!(server.slot(s).send_limit(), 16 << 10);
    assert!(!server.take_ready(s).contains(Ready::OUT));
    for _ in 0..10 {
        client.read(c);
        net.wait(Duration::from_millis(100));
    }
    assert!(server.take_ready(s).contains(Ready::OUT), "it waits for ever");
}
