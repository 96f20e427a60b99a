//! Tests of what a successor keeps of its predecessor. The simulator kills at any store; here the server dies
//! at the worst moments.

use std::vec;
use std::vec::Vec;

use atoll_base::{Duration, Endpoint};
use atoll_ip::{ChecksumOffload, V4Address};
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{REPLICA_CLOSED, REPLICA_FIN, REPLICA_RESET, REPLICA_URGENT, SlotState};
use atoll_ipc::{Cause, SocketOption};

use super::front::is_ip_apart;
use super::kit::{App, Net, Socket, Stack, addr, meet};
use crate::{Loss, Recovery};

/// The number is that of linux/tcp_states.h.
const TIME_WAIT: u8 = 6;
const HTTP: Endpoint = Endpoint::new(0x0a00_0001, 80);
const ECHO: Endpoint = Endpoint::new(0x0a00_0001, 7);

/// Creates stacks, of which the first one's server is mortal.
fn stacks() -> (Net, App, App) {
    let mut net = Net::new(vec![Stack::new(1).mortal(), Stack::new(2)]);
    let own = App::attach(net.stack(0), 1);
    let other = App::attach(net.stack(1), 2);
    (net, own, other)
}

fn die(net: &mut Net, apps: &[&App]) {
    let now = net.now;
    let adoption = net.stack(0).restart(now, apps, Recovery::Stateful);
    assert_eq!(adoption.lost, 0, "{adoption:?}");
    net.stack(0).transport.publish_stats();
    net.settle();
}

/// SO_LINGER: close(2) waits for what the successor hears, too.
#[test]
fn a_close_that_lingers_waits_for_the_acknowledgement_of_the_fin() {
    for dies in [false, true] {
        let (mut net, mut server, mut client) = stacks();
        server.listen(&mut net, 77, Endpoint::new(0, 80), 16);
        let c = client.connect(HTTP);
        net.settle();
        let s = server.accept().expect("offered");
        server.write(s, b"the last word");
        // Text is acknowledged, if late, and the FIN is lost.
        net.wait(Duration::from_millis(300));
        net.loss = 1_000_000;
        let lingering = server.linger(s);
        net.settle();
        assert!(server.client.is_lingering(&lingering) && server.state(s).0 == SlotState::Closing);
        if dies {
            die(&mut net, &[&server]);
            assert!(server.client.is_lingering(&lingering));
        }
        // A thread of the program sleeps on a doorbell that no socket names.
        let bell = server.client.new_bell();
        server.client.before_sleep(1 << bell);
        net.stack(0).bells.clear();
        net.loss = 0;
        net.wait(Duration::from_secs(3));
        assert!(!server.client.is_lingering(&lingering));
        assert!(net.stack(0).bells.iter().any(|(_, rung)| *rung == bell), "{:?}", net.stack(0).bells);
        assert_eq!(client.read(c), b"the last word");
    }
}

#[test]
fn a_connection_goes_on() {
    let (mut net, mut server, mut client) = stacks();
    server.listen(&mut net, 77, Endpoint::new(0, 80), 16);
    let c = client.connect(HTTP);
    net.settle();
    let s = server.accept().expect("offered");
    for turn in 0..5 {
        die(&mut net, &[&server]);
        let (question, answer) = (vec![turn; 5000], vec![turn + 100; 20_000]);
        assert_eq!((client.write(c, &question), server.write(s, &answer)), (5000, 20_000));
        net.wait(Duration::from_secs(2));
        assert!((server.read(s), client.read(c)) == (question, answer));
        assert_eq!(net.stack(0).transport.stat(Stat::ConnectionsKept), 1);
    }
    client.close(c);
    net.settle();
    server.close(s);
    net.wait(Duration::from_secs(2));
    net.stack(0).transport.publish_stats();
    assert_eq!(net.stack(0).page.stat(Stat::ConnectionsKept), 5, "counters go on");
    assert_eq!(net.stack(0).page.stat(Stat::Connections), 0);
}

/// The peer has sent everything, and waits. Only the record shows that to the next server.
#[test]
fn a_connection_that_nobody_has_accepted_keeps_its_text_and_its_end() {
    let (mut net, mut server, mut client) = stacks();
    server.listen_only(&mut net, 77, Endpoint::new(0, 80), 16);
    let c = client.connect(HTTP);
    net.settle();
    client.write(c, b"a question");
    client.shutdown(c);
    net.settle();
    for _ in 0..3 {
        // The second and the third server touch nothing of it.
        die(&mut net, &[&server]);
    }
    server.accept_again(77);
    net.settle();
    let s = server.accept().expect("offered");
    net.settle();
    assert_eq!(server.read(s), b"a question");
    assert_eq!(server.state(s).2 & REPLICA_FIN, REPLICA_FIN);
    server.write(s, b"an answer");
    server.close(s);
    net.settle();
    assert_eq!(client.read(c), b"an answer");
    assert_eq!(client.state(c).2 & REPLICA_FIN, REPLICA_FIN);
}

/// It was reset, and accept(2) returns it nevertheless.
#[test]
fn a_connection_that_was_reset_before_it_was_accepted_keeps_its_text() {
    for is_offered in [false, true] {
        let (mut net, mut server, mut client) = stacks();
        server.listen_only(&mut net, 77, Endpoint::new(0, 80), 16);
        if is_offered {
            server.accept_again(77);
        }
        let c = client.connect(HTTP);
        net.settle();
        client.write(c, b"a question");
        net.settle();
        client.reset(c);
        net.settle();
        for _ in 0..3 {
            die(&mut net, &[&server]);
        }
        server.accept_again(77);
        net.settle();
        let s = server.accept().expect("offered");
        net.settle();
        assert_eq!(server.read(s), b"a question");
        assert_eq!(server.state(s).1, Cause::ConnectionReset);
        server.close(s);
        net.settle();
        let now = net.now;
        assert_eq!(net.stack(0).transport.sockets(now).count(), 1);
    }
}

/// A server that adopts may die before anything is sent. By then it has taken offers back, and has made
/// others, but the ledger names those of its predecessor.
#[test]
fn offers_outlive_successors_that_die_at_once() {
    let (mut net, mut server, mut client) = stacks();
    server.listen(&mut net, 77, Endpoint::new(0, 80), 16);
    let clients: Vec<Socket> = (0..8).map(|_| client.connect(HTTP)).collect();
    net.settle();
    (0..8).for_each(|n| assert_eq!(client.write(clients[n], &[n as u8; 500]), 500));
    net.settle();
    server.poll();
    server.lose_offers(77);
    let now = net.now;
    for _ in 0..3 {
        let adoption = net.stack(0).restart(now, &[&server], Recovery::Stateful);
        assert_eq!((adoption.kept, adoption.lost), (8, 0), "{adoption:?}");
    }
    net.settle();
    let mut texts: Vec<Vec<u8>> = (0..8)
        .map(|_| {
            let s = server.accept().expect("offered");
            net.settle();
            server.read(s)
        })
        .collect();
    texts.sort();
    assert!(texts == (0..8).map(|n| vec![n; 500]).collect::<Vec<_>>());
}

/// The first server has written that text was received, and dies before it has acknowledged it; the second
/// dies while it begins to write what it is about to send. The third has to acknowledge it.
#[test]
fn what_a_predecessor_owes_is_not_forgotten_by_a_successor_that_dies_at_once() {
    let (mut net, mut server, mut client) = stacks();
    let (s, c) = meet(&mut net, &mut server, &mut client);
    client.write(c, b"a question");
    let now = net.now;
    net.stack(1).round(now);
    let frame = net.stack(1).out.outside.pop_front().expect("it leaves");
    net.stack(0).hear(now, &frame, ChecksumOffload::Partial);
    net.stack(0).commit();
    net.stack(0).restart(now, &[&server], Recovery::Stateful);
    net.stack(0).transport.connections.take_dirty();
    net.stack(0).commit();
    die(&mut net, &[&server]);
    assert_eq!(server.read(s), b"a question");
}

#[test]
fn ports_that_nobody_has_any_more_are_the_kernels_again() {
    let (mut net, mut server, _client) = stacks();
    server.listen(&mut net, 77, Endpoint::new(0, 80), 16);
    // Its predecessor has died between the ledger and the page.
    net.stack(0).page.set_port(false, 8080, true);
    net.stack(0).page.set_port(true, 53, true);
    die(&mut net, &[&server]);
    let page = &net.stack(0).page;
    assert_eq!((page.ports(false).collect::<Vec<_>>(), page.ports(true).count()), (vec![80], 0));
}

/// Text arrives behind a hole, which is filled later: only text in order is kept for a successor.
#[test]
fn text_of_a_connection_that_nobody_has_accepted_may_come_in_any_order() {
    let (mut net, mut server, mut client) = stacks();
    server.listen_only(&mut net, 77, Endpoint::new(0, 80), 16);
    let c = client.connect(HTTP);
    net.settle();
    let text: Vec<u8> = (0..3 * 1200u32).map(|n| (n % 251) as u8).collect();
    client.write(c, &text[..1448]);
    let now = net.now;
    net.stack(1).round(now);
    assert_eq!(net.stack(1).out.outside.len(), 1);
    net.stack(1).out.outside.clear();
    client.write(c, &text[1448..2896]);
    net.settle();
    // There is a hole, and it is filled.
    for _ in 0..2 {
        die(&mut net, &[&server]);
        net.wait(Duration::from_secs(2));
    }
    client.write(c, &text[2896..]);
    net.wait(Duration::from_secs(2));
    die(&mut net, &[&server]);
    server.accept_again(77);
    net.settle();
    let s = server.accept().expect("offered");
    net.settle();
    assert!(server.read(s) == text);
}

/// A ledger has room for a limited amount of text. Connections whose text is missing end; they do not
/// continue with a hole.
#[test]
fn what_the_ledger_has_no_room_for_costs_its_connection() {
    let (mut net, mut server, mut client) = stacks();
    server.listen_only(&mut net, 77, Endpoint::new(0, 80), 64);
    let text: Vec<u8> = (0..4000u32).map(|n| (n % 251) as u8).collect();
    let clients: Vec<Socket> = (0..40).map(|_| client.connect(HTTP)).collect();
    net.settle();
    clients.iter().for_each(|c| assert_eq!(client.write(*c, &text), text.len()));
    net.settle();
    let now = net.now;
    let adoption = net.stack(0).restart(now, &[&server], Recovery::Stateful);
    assert_eq!((adoption.why, adoption.kept + adoption.lost), (Some(Loss::TextGone), 40), "{adoption:?}");
    assert!(adoption.kept > 20 && adoption.lost > 5, "{adoption:?}");
    server.accept_again(77);
    net.settle();
    for _ in 0..adoption.kept {
        let s = server.accept().expect("offered");
        net.settle();
        assert!(server.read(s) == text);
        server.close(s);
        net.settle();
    }
    assert!(server.accept().is_none());
    // The others are reset, when they send something at the latest.
    let others: Vec<&Socket> = clients.iter().filter(|c| client.state(**c).2 & REPLICA_FIN == 0).collect();
    assert_eq!(others.len() as u32, adoption.lost);
    for c in &others {
        client.write(**c, b"more");
    }
    net.wait(Duration::from_secs(2));
    assert!(others.iter().all(|c| client.state(**c).1 == Cause::ConnectionReset));
}

fn ask(
    net: &mut Net,
    (client, c): (&mut App, Socket),
    (server, s): (&mut App, Socket),
    text: &[u8],
) -> Vec<u8> {
    client.send(c, ECHO, text);
    net.settle();
    let (peer, got) = server.receive(s).expect("a datagram");
    assert!(got == text);
    server.send(s, peer, &got);
    net.settle();
    client.receive(c).expect("a datagram").1
}

#[test]
fn datagram_sockets_go_on_however_much_they_have_sent() {
    let (mut net, mut server, mut client) = stacks();
    let s = server.open_datagrams(&mut net, Endpoint::new(0, 7), Endpoint::default());
    let c = client.open_datagrams(&mut net, Endpoint::new(0, 3000), Endpoint::default());
    net.settle();
    let text = vec![7; 60_000];
    // This is more in all than is ever in a buffer.
    for turn in 0..300 {
        assert!(ask(&mut net, (&mut client, c), (&mut server, s), &text) == text, "{turn}");
    }
    die(&mut net, &[&server]);
    assert!(ask(&mut net, (&mut client, c), (&mut server, s), &text) == text);
    // Unread text that has arrived is there, and text that was written and not sent is sent.
    client.send(c, ECHO, b"early");
    net.settle();
    server.raw().store_datagram(s, Endpoint::new(addr(2), 3000), None, b"late");
    die(&mut net, &[&server]);
    assert_eq!(server.receive(s).expect("a datagram").1, b"early");
    assert_eq!(client.receive(c).expect("a datagram").1, b"late");
    server.close(s);
    net.settle();
    assert_eq!(net.stack(0).buffer_bytes(), 0);
}

/// The pool of the successor has given out nothing when their blocks come back to it: they must not be in it
/// twice.
#[test]
fn datagram_sockets_that_were_read_share_no_blocks_after_a_death() {
    let (mut net, mut server, mut client) = stacks();
    let ports = [7, 8];
    let all = ports.map(|port| server.open_datagrams(&mut net, Endpoint::new(0, port), Endpoint::default()));
    let c = client.open_datagrams(&mut net, Endpoint::new(0, 3000), Endpoint::default());
    net.settle();
    let octet = |turn: u8, port: u16| 100 + turn * 16 + port as u8;
    for turn in 0..6 {
        // This is more than what has come back.
        let copies = 1 + usize::from(turn % 2) * 3;
        for port in ports.repeat(copies) {
            client.send(c, Endpoint::new(addr(1), port), &[octet(turn, port); 40_000]);
            net.settle();
        }
        for (s, port) in all.iter().zip(ports) {
            let got: Vec<Vec<u8>> =
                core::iter::from_fn(|| server.receive(*s)).map(|(_, text)| text).collect();
            assert!(got == vec![vec![octet(turn, port); 40_000]; copies], "{turn} {port}: {}", got.len());
        }
        if turn % 2 == 0 {
            // This is before the server has seen that all was read.
            die(&mut net, &[&server]);
        }
    }
}

/// Our last ACK was lost, and then the server dies: the peer's FIN is answered nevertheless, and a new
/// connection under the same name is possible.
#[test]
fn time_wait_goes_on_until_its_time_is_over() {
    // The client has one port.
    let mut net =
        Net::new(vec![Stack::new(1).mortal(), Stack::with(2, |config| config.ephemeral = (4711, 4711))]);
    let (mut server, mut client) = (App::attach(net.stack(0), 1), App::attach(net.stack(1), 2));
    let (s, c) = meet(&mut net, &mut server, &mut client);
    server.close(s);
    net.settle();
    client.close(c);
    let now = net.now;
    net.stack(1).round(now);
    let fin = net.stack(1).out.outside.pop_front().expect("it leaves");
    net.stack(0).hear(now, &fin, ChecksumOffload::Partial);
    // A server that dies at once has its record, and one that dies later has not.
    for rounds in 0..3 {
        for _ in 0..rounds {
            net.stack(0).round(now);
        }
        net.stack(0).out.outside.clear();
        die(&mut net, &[&server]);
        if rounds > 0 {
            assert_eq!(net.stack(0).transport.connections.time_waits().len(), 1, "after {rounds} rounds");
        }
        net.stack(0).hear(now, &fin, ChecksumOffload::Partial);
        net.stack(0).round(now);
        assert_eq!(net.stack(0).transport.stat(Stat::ResetsOut), 0);
        if rounds < 2 {
            net.stack(0).out.outside.clear();
        }
    }
    net.settle();
    assert!(client.is_done(c) && client.state(c).1 == Cause::None);
    // The client's end is over, and it may use its port again.
    let c = client.connect(HTTP);
    net.settle();
    let s = server.accept().expect("it takes the place of the old one");
    net.settle();
    // Without a death in between it is queued under both.
    assert_eq!(net.stack(0).transport.connections.time_waits().len(), 0, "the name is another connection's");
    client.write(c, b"a question");
    net.settle();
    assert_eq!(server.read(s), b"a question");
    server.close(s);
    net.settle();
    client.close(c);
    net.settle();
    let now = net.now;
    let is_waiting = |facts: &crate::SocketFacts| facts.state == TIME_WAIT;
    assert_eq!(net.stack(0).transport.sockets(now).filter(is_waiting).count(), 1, "it is listed once");
    let c = client.connect(HTTP);
    net.settle();
    let s = server.accept().expect("it takes the place of the old one");
    net.settle();
    die(&mut net, &[&server]);
    assert_eq!(net.stack(0).transport.connections.time_waits().len(), 0, "the name is another connection's");
    client.write(c, b"a question");
    net.settle();
    assert_eq!(server.read(s), b"a question");
    server.close(s);
    net.settle();
    client.close(c);
    net.settle();
    for (seconds, left) in [(50, 1), (11, 0)] {
        net.wait(Duration::from_secs(seconds));
        die(&mut net, &[&server]);
        assert_eq!(net.stack(0).transport.connections.time_waits().len(), left);
    }
}

/// Options were set before connect(2), which opens the socket once more.
#[test]
fn a_datagram_socket_keeps_its_options() {
    let (mut net, mut server, _) = stacks();
    let s = server.open_datagrams(&mut net, Endpoint::new(0, 7), Endpoint::default());
    server.set_option(s, SocketOption::TimeToLive, 7);
    let remote = Endpoint::new(addr(2), 3000);
    server.connect_datagrams(&mut net, s, remote);
    die(&mut net, &[&server]);
    server.send(s, remote, b"hello");
    let now = net.now;
    // The neighbour is resolved first.
    net.settle();
    server.send(s, remote, b"hello");
    net.stack(0).round(now);
    let frame = net.stack(0).out.outside.pop_back().expect("it leaves");
    assert_eq!((frame[22], &frame[42..]), (7, &b"hello"[..]));
}

/// Connections end with their server if they are not to survive it, and nothing else does.
#[test]
fn without_state_connections_are_reset_and_listeners_stay() {
    let (mut net, mut server, mut client) = stacks();
    server.listen(&mut net, 77, Endpoint::new(0, 80), 16);
    let u = server.open_datagrams(&mut net, Endpoint::new(0, 7), Endpoint::default());
    net.settle();
    let now = net.now;
    net.stack(0).restart(now, &[&server], Recovery::Stateless);
    net.settle();
    client.listen(&mut net, 78, Endpoint::new(0, 80), 16);
    let (c, back) = (client.connect(HTTP), server.connect(Endpoint::new(addr(2), 80)));
    net.settle();
    let s = server.accept().expect("offered");
    net.settle();
    server.write(s, &[1; 3000]);
    client.write(c, b"a question");
    net.settle();
    let now = net.now;
    let adoption = net.stack(0).restart(now, &[&server], Recovery::Stateless);
    assert_eq!((adoption.kept, adoption.lost), (0, 2), "{adoption:?}");
    for socket in [s, back] {
        let (_, cause, flags) = server.state(socket);
        let ended = REPLICA_CLOSED | REPLICA_RESET;
        assert_eq!((cause, flags & ended), (Cause::ConnectionReset, ended));
    }
    // The peer finds out when it sends something.
    client.write(c, b"another");
    net.wait(Duration::from_secs(2));
    assert_eq!(client.state(c).1, Cause::ConnectionReset);
    // Other connections are served, and none gets a slot that its application still holds.
    let c = client.connect(HTTP);
    net.settle();
    let next = server.accept().expect("offered");
    assert_ne!(next.slot, s.slot);
    net.settle();
    client.write(c, b"a question");
    net.settle();
    assert_eq!(server.read(next), b"a question");
    assert!(!server.is_done(s) && !server.is_done(back));
    server.close(s);
    server.close(back);
    net.settle();
    assert!(server.is_done(s) && server.is_done(back));
    assert_eq!(net.stack(0).stat(Stat::BadCommands), 0);
    server.send(u, Endpoint::new(addr(2), 9), b"still here");
    server.close(next);
    server.close(u);
    client.close(c);
    net.wait(Duration::from_secs(1));
    assert_eq!(net.stack(0).buffer_bytes(), 0);
}

/// The peer's mark, and what was passed over, stay; the own mark is sent although its segment was lost with
/// the predecessor.
#[test]
fn urgent_octets_stay_urgent() {
    let (mut net, mut server, mut client) = stacks();
    let (s, c) = meet(&mut net, &mut server, &mut client);
    client.keep_urgent_inline(c);
    client.write_urgent(c, b"abX");
    net.settle();
    die(&mut net, &[&server]);
    assert_eq!((server.slot(s).mark(), server.state(s).2 & REPLICA_URGENT), (Some(2), REPLICA_URGENT));
    // The reader stands at the mark when it moves on, as if there had been no death.
    server.slot(s).set_receive_head(2);
    client.write_urgent(c, b"cY");
    net.settle();
    die(&mut net, &[&server]);
    assert_eq!((server.slot(s).mark(), server.slot(s).passed_marks(2)), (Some(4), 1));
    server.slot(s).set_receive_head(4);
    server.raw().kick(s);
    net.settle();
    assert_eq!(server.slot(s).passed_marks(2), 0);
    // What is sent is lost.
    server.write_urgent(s, b"deZ");
    let now = net.now;
    net.stack(0).round(now);
    assert!(!net.stack(0).out.outside.is_empty());
    die(&mut net, &[&server]);
    net.wait(Duration::from_secs(2));
    assert_eq!((client.slot(c).mark(), client.read(c)), (Some(2), b"deZ".to_vec()));
}

/// An application ends, and then the server dies, with text of the application that was not sent: the memory
/// of the session is needed until it was.
#[test]
fn a_session_that_has_ended_is_over_when_its_text_has_arrived() {
    let (mut net, mut server, mut client) = stacks();
    let (s, c) = meet(&mut net, &mut server, &mut client);
    let text = vec![7; 20_000];
    net.stack(0).out.room = Some(0);
    assert_eq!(server.write(s, &text), text.len());
    let now = net.now;
    net.stack(0).transport.close_session(now, server.id);
    net.stack(0).round(now);
    assert_eq!(net.stack(0).transport.take_ended(), []);
    for _ in 0..2 {
        net.stack(0).restart(now, &[&server], Recovery::Stateful);
        net.stack(0).transport.close_session(now, server.id);
        // The supervisor may report it twice.
        net.stack(0).transport.close_session(now, server.id);
        net.stack(0).round(now);
        assert_eq!(net.stack(0).transport.take_ended(), []);
    }
    net.stack(0).out.room = None;
    net.wait(Duration::from_secs(2));
    assert!(client.read(c) == text);
    assert_eq!(client.state(c).2 & (REPLICA_FIN | REPLICA_RESET), REPLICA_FIN);
    client.close(c);
    net.wait(Duration::from_secs(2));
    assert_eq!(net.stack(0).transport.take_ended(), [server.id]);
    net.stack(0).transport.close_session(now, server.id);
    assert_eq!(net.stack(0).transport.take_ended(), [server.id], "nobody knows it any more");
}

/// As on Linux, a listener stays where it is when its address goes.
#[test]
fn a_listener_stays_where_its_address_is_gone() {
    // An IP server apart survives the replica, and reports the address again.
    if is_ip_apart() {
        return;
    }
    let mut net = Net::new(vec![Stack::told(1).mortal(), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    let address = Some(V4Address::new(addr(1), 24));
    net.stack(0).transport.ip_mut().handle_v4_address(address);
    server.listen(&mut net, 77, HTTP, 16);
    net.stack(0).transport.ip_mut().handle_v4_address(None);
    net.settle();
    die(&mut net, &[&server]);
    net.stack(0).transport.ip_mut().handle_v4_address(address);
    net.settle();
    let c = client.connect(HTTP);
    net.settle();
    assert!(server.accept().is_some());
    assert_eq!(client.state(c).0, SlotState::Open);
}

#[test]
fn an_address_that_was_told_is_there_again_at_once() {
    // An IP server apart survives the replica, and reports the address again.
    if is_ip_apart() {
        return;
    }
    let mut net = Net::new(vec![Stack::told(1).mortal(), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    net.stack(0).transport.ip_mut().handle_v4_address(Some(V4Address::new(addr(1), 24)));
    server.listen(&mut net, 77, HTTP, 16);
    let c = client.connect(HTTP);
    net.settle();
    let s = server.accept().expect("offered");
    net.settle();
    let before = net.stack(0).page.network();
    die(&mut net, &[&server]);
    assert_eq!(net.stack(0).page.network(), before);
    client.write(c, b"still there?");
    net.settle();
    assert_eq!(server.read(s), b"still there?");
}
