//! Tests of which connections hold memory and which get some, with a good client beside each attack.

use std::vec;
use std::vec::Vec;

use atoll_base::{Duration, Endpoint, SeqNum};
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::control::MemoryLevel;
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{REPLICA_CLOSED, REPLICA_RESET};
use atoll_ipc::{Cause, Ready};

use super::BEGINNERS_MAX;
use crate::tests::kit::{ARENA, App, Net, Socket, Stack, addr};

const SERVER: Endpoint = Endpoint::new(0x0a00_0001, 80);

/// Creates a server with buffers of these sizes, and a client.
fn pair(send_log2: u8, receive_log2: u8) -> (Net, App, App) {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let arena = ArenaConfig { send_log2, receive_log2, ..ARENA };
    let mut server = App::attach_with(net.stack(0), 1, arena);
    let client = App::attach(net.stack(1), 2);
    server.listen(&mut net, 77, Endpoint::new(addr(1), 80), 64);
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

/// Frees send memory as the library would: drained buffers, and those of connections that are over.
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
    // Those that were reset are notified, and some are left: it was not their turn.
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
    // These are the starts of their text, which the server expects.
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
            // The requests for a neighbour's station are skipped.
            if frame[12..14] != [8, 0] {
                continue;
            }
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
    // The text that was dropped comes again.
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
    server.listen(&mut net, 77, Endpoint::new(0, 80), 64);
    let pairs: Vec<(Socket, Socket)> = (0..3).map(|_| open(&mut net, &mut server, &mut client)).collect();
    for (s, _) in &pairs {
        // This is more than the peer's window takes.
        server.write(*s, &vec![1; 200 << 10]);
        net.settle();
        server.close(*s);
        net.settle();
    }
    net.stack(0).transport.publish_stats();
    assert_eq!((net.stack(0).stat(Stat::Orphans), net.stack(0).stat(Stat::OrphansReset)), (2, 1));
    let reset: Vec<bool> = pairs.iter().map(|(_, c)| client.state(*c).2 & REPLICA_RESET != 0).collect();
    assert_eq!(reset, [false, false, true]);
    // Connections whose peer keeps its window closed do not last either.
    net.wait(Duration::from_secs(400));
    net.stack(0).transport.publish_stats();
    assert_eq!((net.stack(0).stat(Stat::Orphans), net.stack(0).stat(Stat::Connections)), (0, 0));
}

#[test]
fn who_has_room_no_longer_because_buffers_have_become_small_is_told_of_room() {
    // The simulation has found this: ATOLL_SEED=412 of `others_are_served_beside_an_attacker`.
    let (mut net, mut server, mut client) = pair(20, 22);
    let (s, c) = open(&mut net, &mut server, &mut client);
    // This is a quarter of its buffer; its peer does not read yet.
    assert_eq!(server.write(s, &[7; 64 << 10]), 64 << 10);
    server.forget_ready();
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

#[test]
fn a_session_that_holds_nothing_is_served_while_another_has_taken_all_memory() {
    let (mut net, mut server, mut client) = pair(22, 22);
    let mut other = App::attach(net.stack(0), 3);
    other.listen(&mut net, 78, Endpoint::new(addr(1), 81), 64);
    let mut peer = App::attach(net.stack(1), 4);
    let c = peer.connect(Endpoint::new(addr(1), 81));
    net.settle();
    let s = other.accept().expect("the connection");
    let lazy: Vec<(Socket, Socket)> = (0..4).map(|_| open(&mut net, &mut server, &mut client)).collect();
    pour(&mut net, &mut client, &lazy);
    let (now, all) = (net.now, held(&mut net));
    net.stack(0).transport.set_memory(now, MemoryLevel::Plenty, all / 2);
    let mut got = 0;
    for round in 0..20u8 {
        assert_eq!(peer.write(c, &[round; 1000]), 1000);
        net.wait(Duration::from_millis(20));
        got += other.read(s).len();
        other.raw().kick(s);
        // The window is small: some of it may wait for the next round.
        assert!(got >= usize::from(round) * 1000, "round {round}: {got}");
    }
}

/// Returns how much the receive buffers of the first stack have touched.
fn held(net: &mut Net) -> u64 {
    net.stack(0).transport.shortage.books.held.load(core::sync::atomic::Ordering::Relaxed)
}

/// Lets clients send as much as is taken, while the server handles its commands.
fn pour(net: &mut Net, client: &mut App, sockets: &[(Socket, Socket)]) {
    for (_, c) in sockets {
        client.write(*c, &vec![3; 1 << 20]);
    }
    net.wait(Duration::from_secs(1));
}

#[test]
fn unread_text_of_all_sessions_stays_within_what_the_stack_may_hold() {
    const MAX: u64 = 1 << 20;
    let (mut net, mut server, mut client) = pair(22, 22);
    let now = net.now;
    net.stack(0).transport.set_memory(now, MemoryLevel::Plenty, MAX);
    let sockets: Vec<(Socket, Socket)> = (0..20).map(|_| open(&mut net, &mut server, &mut client)).collect();
    let mut most = 0;
    for _ in 0..10 {
        pour(&mut net, &mut client, &sockets);
        most = most.max(held(&mut net));
    }
    assert!(most > MAX / 2 && most <= MAX, "{most} of {MAX}");
    assert!(net.stack(0).stat(Stat::ConnectionsShed) > 0, "somebody had to go");
    let left = sockets.iter().filter(|(s, _)| !is_closed(&mut server, *s)).count();
    assert!(left > 5, "not all: {left} are left");
    // With room again everything is as before.
    for (s, _) in &sockets {
        server.close(*s);
    }
    net.wait(Duration::from_secs(5));
    assert!(held(&mut net) < MAX / 4 * 3, "enough was given back: {}", held(&mut net));
    // The first client's send area is still full of what it wrote.
    let mut other = App::attach(net.stack(1), 3);
    let (s, c) = open(&mut net, &mut server, &mut other);
    assert_eq!(other.write(c, b"request"), 7);
    net.settle();
    assert_eq!(server.read(s), b"request");
}

#[test]
fn nothing_new_begins_while_the_stack_has_no_memory_and_who_gets_on_stays() {
    let (mut net, mut server, mut client) = pair(22, 22);
    let (s, c) = open(&mut net, &mut server, &mut client);
    let lazy: Vec<(Socket, Socket)> = (0..4).map(|_| open(&mut net, &mut server, &mut client)).collect();
    pour(&mut net, &mut client, &lazy);
    let now = net.now;
    net.stack(0).transport.set_memory(now, MemoryLevel::High, u64::MAX);
    net.wait(Duration::from_millis(100));
    // A SYN is dropped, and connect reports why it does not work.
    let refused = client.connect(SERVER);
    let own = server.connect(Endpoint::new(addr(2), 80));
    net.wait(Duration::from_millis(500));
    assert!(server.accept().is_none() && client.state(refused).2 & REPLICA_CLOSED == 0);
    assert_eq!(server.state(own).1, Cause::NoBuffers);
    for round in 0..4u8 {
        client.write(c, &vec![round; 1000]);
        net.wait(Duration::from_secs(1));
        assert_eq!(server.read(s), vec![round; 1000], "who is read is served");
    }
    assert!(net.stack(0).stat(Stat::ConnectionsShed) > 0);
    let shed = lazy.iter().filter(|(s, _)| is_closed(&mut server, *s)).count();
    assert!(shed > 0 && !is_closed(&mut server, s), "{shed}");
    let now = net.now;
    net.stack(0).transport.set_memory(now, MemoryLevel::Plenty, u64::MAX);
    let is_accepted = (0..200).any(|_| {
        net.wait(Duration::from_millis(50));
        // An earlier offer, made because its session holds little by now, was not claimed in time.
        server.accept().is_some()
    });
    assert!(is_accepted, "the SYN was sent again");
}

#[test]
fn who_holds_little_begins_and_stays_while_another_has_taken_all_memory() {
    let (mut net, mut server, mut client) = pair(22, 22);
    let mut modest = App::attach(net.stack(0), 3);
    modest.listen(&mut net, 78, Endpoint::new(addr(1), 81), 64);
    let mut peer = App::attach(net.stack(1), 4);
    let at = Endpoint::new(addr(1), 81);
    let c = peer.connect(at);
    net.settle();
    let s = modest.accept().expect("the connection");
    let lazy: Vec<(Socket, Socket)> = (0..8).map(|_| open(&mut net, &mut server, &mut client)).collect();
    pour(&mut net, &mut client, &lazy);
    let now = net.now;
    net.stack(0).transport.set_memory(now, MemoryLevel::High, u64::MAX);
    // The program gets no processor: what it was sent is not read.
    peer.write(c, b"unread");
    net.wait(Duration::from_millis(100));
    let many: Vec<Socket> = (0..BEGINNERS_MAX + 8).map(|_| peer.connect(at)).collect();
    let refused = client.connect(SERVER);
    net.wait(Duration::from_millis(20));
    assert_eq!((0..).map_while(|_| modest.accept()).count(), BEGINNERS_MAX as usize, "and no more at once");
    assert!(server.accept().is_none() && client.state(refused).2 & REPLICA_CLOSED == 0);
    // A second later some more begin.
    let mut more = 0;
    for _ in 0..50 {
        net.wait(Duration::from_millis(50));
        more += (0..).map_while(|_| modest.accept()).count();
    }
    assert_eq!(more, many.len() - BEGINNERS_MAX as usize);
    let shed = lazy.iter().filter(|(s, _)| is_closed(&mut server, *s)).count();
    assert!(shed > 0, "those that hold much go");
    assert!(!is_closed(&mut modest, s) && modest.read(s) == b"unread");
    let own = modest.connect(Endpoint::new(addr(2), 80));
    let others = server.connect(Endpoint::new(addr(2), 80));
    net.wait(Duration::from_millis(300));
    assert_eq!((modest.state(own).1, server.state(others).1), (Cause::ConnectionRefused, Cause::NoBuffers));
}

#[test]
fn where_nobody_holds_much_the_largest_go_unless_that_would_be_no_help() {
    for sessions in [1, 32] {
        let (mut net, _server, mut client) = pair(22, 22);
        let mut small: Vec<(App, Socket)> = Vec::new();
        for n in 0..sessions {
            let mut server = App::attach(net.stack(0), 10 + n);
            let at = Endpoint::new(addr(1), 1000 + n as u16);
            server.listen(&mut net, 100 + u64::from(n), at, 4);
            let c = client.connect(at);
            net.settle();
            let s = server.accept().expect("the connection");
            client.write(c, &[1; 5000]);
            net.settle();
            small.push((server, s));
        }
        let now = net.now;
        net.stack(0).transport.set_memory(now, MemoryLevel::High, 4 << 20);
        net.wait(Duration::from_secs(4));
        let closed = small.iter_mut().map(|(server, s)| is_closed(server, *s)).filter(|is| *is).count();
        assert!(
            if sessions == 1 { closed == 0 } else { (1..32).contains(&closed) },
            "{closed} of {sessions}"
        );
    }
}

/// All memory is used up, but not by these two connections. The application of one has read everything and
/// waits for more. That of the other reads little at a time, which its library does not report.
#[test]
fn who_waits_for_text_or_reads_slowly_stays_though_its_buffer_is_large() {
    let (mut net, mut server, mut client) = pair(22, 22);
    let [waits, reads] = [(); 2].map(|()| open(&mut net, &mut server, &mut client));
    for (s, c) in [waits, reads] {
        for _ in 0..12 {
            client.write(c, &[1; 100_000]);
            net.settle();
            server.read(s);
            net.settle();
        }
    }
    client.write(waits.1, &[2; 3000]);
    client.write(reads.1, &[2; 900_000]);
    net.settle();
    let now = net.now;
    net.stack(0).transport.set_memory(now, MemoryLevel::High, u64::MAX);
    net.wait(Duration::from_millis(700));
    server.read(waits.0);
    for _ in 0..30 {
        net.wait(Duration::from_millis(100));
        let slot = server.slot(reads.0);
        slot.set_receive_head((slot.receive_head() + 25_000).min(slot.receive_tail()));
    }
    assert!(!is_closed(&mut server, waits.0), "who waits");
    assert!(!is_closed(&mut server, reads.0), "who reads");
}

/// Every session is modest. One session has a single connection, whose buffer is the largest of all; the
/// others have many connections that hold more together.
#[test]
fn of_those_who_hold_little_the_session_that_holds_most_goes_first() {
    let (mut net, mut one, mut client) = pair(22, 22);
    let large = open(&mut net, &mut one, &mut client);
    for _ in 0..12 {
        client.write(large.1, &[1; 100_000]);
        net.settle();
        one.read(large.0);
        net.settle();
    }
    let mut many: Vec<(App, Vec<Socket>)> = Vec::new();
    for n in 0..2 {
        let mut app = App::attach(net.stack(0), 3 + n);
        let at = Endpoint::new(addr(1), 81 + n as u16);
        app.listen(&mut net, 78 + u64::from(n), at, 64);
        let mut accepted = Vec::new();
        for _ in 0..24 {
            let c = client.connect(at);
            net.settle();
            accepted.push(app.accept().expect("the connection"));
            client.write(c, &[2; 5000]);
        }
        many.push((app, accepted));
    }
    client.write(large.1, &[2; 5000]);
    net.settle();
    let now = net.now;
    net.stack(0).transport.set_memory(now, MemoryLevel::High, 32 << 20);
    net.wait(Duration::from_millis(1500));
    let closed =
        |(app, sockets): &mut (App, Vec<Socket>)| sockets.iter().filter(|s| is_closed(app, **s)).count();
    let closed: usize = many.iter_mut().map(closed).sum();
    assert!((1..48).contains(&closed) && !is_closed(&mut one, large.0), "{closed} of 48");
}

/// Memory is returned although the program does not close its connections.
#[test]
fn what_was_shed_gives_its_memory_back_at_once() {
    let (mut net, mut server, mut client) = pair(22, 22);
    let lazy: Vec<(Socket, Socket)> = (0..8).map(|_| open(&mut net, &mut server, &mut client)).collect();
    pour(&mut net, &mut client, &lazy);
    let before = held(&mut net);
    let now = net.now;
    net.stack(0).transport.set_memory(now, MemoryLevel::High, u64::MAX);
    net.wait(Duration::from_secs(10));
    assert!(lazy.iter().filter(|(s, _)| is_closed(&mut server, *s)).count() > 4);
    assert!(held(&mut net) < before / 2, "{} of {before}", held(&mut net));
}

/// The replica believes an application that has advanced its read position without a command: the application
/// has no use for that memory any more.
#[test]
fn what_was_read_and_not_told_of_is_given_back() {
    let (mut net, mut server, mut client) = pair(22, 22);
    let all: Vec<(Socket, Socket)> = (0..8).map(|_| open(&mut net, &mut server, &mut client)).collect();
    pour(&mut net, &mut client, &all);
    let before = held(&mut net);
    for (s, _) in &all {
        let slot = server.slot(*s);
        slot.set_receive_head(slot.receive_tail());
    }
    let now = net.now;
    net.stack(0).transport.set_memory(now, MemoryLevel::High, u64::MAX);
    net.wait(Duration::from_millis(2100));
    assert!(held(&mut net) < before / 2, "{} of {before}", held(&mut net));
}

/// The fuzz target `stack_frames` found this fault: the program learned of the reset, but not that the text
/// was void.
#[test]
fn what_a_peer_sent_before_it_reset_the_connection_can_be_read() {
    let (mut net, mut server, mut client) = pair(22, 22);
    let all: Vec<(Socket, Socket)> = (0..8).map(|_| open(&mut net, &mut server, &mut client)).collect();
    for (_, c) in &all {
        client.write(*c, &[7; 40_000]);
    }
    net.settle();
    let now = net.now;
    net.stack(0).transport.set_memory(now, MemoryLevel::High, u64::MAX);
    net.wait(Duration::from_millis(500));
    for (_, c) in &all {
        client.reset(*c);
    }
    net.wait(Duration::from_secs(4));
    for (s, _) in all {
        assert_eq!(server.state(s).1, Cause::ConnectionReset);
        assert_eq!(server.read(s), [7; 40_000]);
    }
}

/// The segments of a closed connection are lost for this long. After a short silence its reader is not the
/// cause of the standstill.
#[test]
fn who_sends_again_after_losses_is_not_taken_for_one_that_stands_still() {
    for (silence, stays) in [(Duration::from_millis(1300), true), (Duration::from_millis(3500), false)] {
        let (mut net, mut server, mut client) = pair(20, 22);
        let lazy: Vec<(Socket, Socket)> = (0..2).map(|_| open(&mut net, &mut server, &mut client)).collect();
        for (s, _) in &lazy {
            server.write(*s, &vec![1; 1 << 20]);
        }
        net.wait(Duration::from_secs(5));
        let (s, c) = open(&mut net, &mut server, &mut client);
        assert_eq!(server.write(s, &[2; 10_000]), 10_000);
        server.close(s);
        net.loss = 1_000_000;
        let now = net.now;
        net.stack(0).transport.set_memory(now, MemoryLevel::High, u64::MAX);
        net.wait(silence);
        assert!(net.stack(0).stat(Stat::ConnectionsShed) > 0, "somebody had to go");
        let now = net.now;
        net.stack(0).transport.set_memory(now, MemoryLevel::Plenty, u64::MAX);
        net.loss = 0;
        let mut got = 0;
        for _ in 0..60 {
            net.wait(Duration::from_secs(1));
            got += client.read(c).len();
        }
        assert_eq!(got, if stays { 10_000 } else { 0 }, "after {silence:?}");
    }
}

#[test]
fn who_holds_little_and_stands_still_stays_though_those_who_hold_much_get_on() {
    let (mut net, mut server, mut client) = pair(22, 22);
    let mut modest = App::attach(net.stack(0), 3);
    modest.listen(&mut net, 78, Endpoint::new(addr(1), 81), 64);
    let mut peer = App::attach(net.stack(1), 4);
    let c = peer.connect(Endpoint::new(addr(1), 81));
    net.settle();
    let s = modest.accept().expect("the connection");
    let busy: Vec<(Socket, Socket)> = (0..8).map(|_| open(&mut net, &mut server, &mut client)).collect();
    pour(&mut net, &mut client, &busy);
    peer.write(c, b"unread");
    let now = net.now;
    net.stack(0).transport.set_memory(now, MemoryLevel::High, u64::MAX);
    for _ in 0..20 {
        net.wait(Duration::from_millis(200));
        for (s, c) in &busy {
            server.read(*s);
            client.write(*c, &[4; 100_000]);
        }
    }
    assert!(!is_closed(&mut modest, s) && modest.read(s) == b"unread");
}
