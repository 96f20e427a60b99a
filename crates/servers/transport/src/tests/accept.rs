//! Tests of P4: offers, claims, time-outs, and the queues before them.

use std::vec;
use std::vec::Vec;

use atoll_base::{Duration, Endpoint};
use atoll_ipc::balance::{Balance, Scheme};
use atoll_ipc::command::Protocol;
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{REPLICA_CLOSED, SlotState};
use atoll_ipc::{Cause, Command, Event, Ready, SocketOption};

use super::kit::{App, Net, Socket, Stack, addr};

const ANY_80: Endpoint = Endpoint::new(0, 80);
const LEASE: u64 = 77;

/// Creates one stack with a listener that several applications share as forked children do, and a client on
/// another stack.
fn shared_listener(acceptors: u32) -> (Net, Vec<App>, App) {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut servers: Vec<App> = (0..acceptors).map(|n| App::attach(net.stack(0), n)).collect();
    for server in &mut servers {
        server.listen(&mut net, LEASE, ANY_80, 16);
    }
    net.settle();
    let client = App::attach(net.stack(1), 100);
    (net, servers, client)
}

fn connect(net: &mut Net, client: &mut App) -> Socket {
    let c = client.connect(Endpoint::new(addr(1), 80));
    net.settle();
    c
}

#[test]
fn connections_go_round_the_acceptors() {
    let (mut net, mut servers, mut client) = shared_listener(3);
    net.stack(0).transport.set_balance(Balance { scheme: Scheme::Naive, ..Balance::new() });
    for _ in 0..9 {
        connect(&mut net, &mut client);
    }
    for server in &mut servers {
        assert_eq!((0..).map_while(|_| server.accept()).count(), 3);
    }
    assert_eq!((net.stack(0).stat(Stat::Offers), net.stack(0).stat(Stat::Claims)), (9, 0));
    net.settle();
    assert_eq!(net.stack(0).stat(Stat::Claims), 9);
}

#[test]
fn the_service_time_is_from_offer_to_close() {
    let (mut net, mut servers, mut client) = shared_listener(2);
    connect(&mut net, &mut client);
    let began = net.now;
    let (at, socket) = (0..2).find_map(|at| Some((at, servers[at].accept()?))).expect("offered to one");
    net.settle();
    net.wait(Duration::from_millis(30));
    let view = |net: &mut Net, at: usize| {
        let now = net.now;
        let all = net.stack(0).transport.acceptors(now);
        all[at].1
    };
    assert_eq!((view(&mut net, at).open, view(&mut net, at).service_us), (1, None));
    servers[at].close(socket);
    net.settle();
    let known = view(&mut net, at);
    // The connection was offered a little before it was claimed.
    let least = 30_000;
    let most = net.now.since(began).as_micros() as u64 + 1000;
    assert!(known.service_us.is_some_and(|micros| (least..most).contains(&micros)), "{known:?}");
    assert_eq!((known.open, known.unclaimed, known.given, known.samples), (0, 0, 1, 1));
    assert_eq!(view(&mut net, 1 - at).given, 0);
}

#[test]
fn who_closes_its_listener_gives_offers_back_at_once() {
    let (mut net, mut servers, mut client) = shared_listener(2);
    let c = connect(&mut net, &mut client);
    client.write(c, b"who takes me?");
    net.settle();
    let first = (0..2).find(|at| servers[*at].offers(LEASE) == 1).expect("it is on offer");
    servers[first].release(LEASE);
    net.settle();
    let s = servers[1 - first].accept().expect("it is on offer to the other now");
    assert_eq!(servers[1 - first].read(s), b"who takes me?");
    // The last one that listens resets what waits.
    let c = connect(&mut net, &mut client);
    assert_eq!(servers[1 - first].offers(LEASE), 1);
    servers[1 - first].release(LEASE);
    net.settle();
    assert_ne!(client.state(c).2 & REPLICA_CLOSED, 0);
    assert_eq!(net.stack(0).stat(Stat::ClaimTimeouts), 0);
}

#[test]
fn an_offer_that_is_not_claimed_goes_to_another_with_its_text() {
    let (mut net, mut servers, mut client) = shared_listener(2);
    let c = connect(&mut net, &mut client);
    client.write(c, b"who takes me?");
    net.settle();
    net.wait(Duration::from_millis(300));
    assert_eq!(net.stack(0).stat(Stat::ClaimTimeouts), 1);
    assert!(!servers[0].is_accepting(LEASE));

    let s = servers[1].accept().expect("offered to the other");
    assert_eq!(servers[1].read(s), b"who takes me?");
    // The first claim comes too late.
    let stale = servers[0].raw().offer();
    assert_eq!(servers[0].accept(), None);
    servers[0].raw().claim(stale);
    net.settle();
    let Socket { slot, generation } = stale;
    assert_eq!(servers[0].raw().events(), [Event::ClaimVerdict { slot, generation, confirmed: false }]);
    // The connection works.
    client.write(c, b"!");
    net.settle();
    assert_eq!(servers[1].read(s), b"!");
    // The acceptor stays removed: the next connections go to the other one until the first registers again.
    connect(&mut net, &mut client);
    connect(&mut net, &mut client);
    assert!(servers[0].accept().is_none());
    servers[0].accept_again(LEASE);
    net.settle();
    connect(&mut net, &mut client);
    assert!(servers[0].accept().is_some());
}

#[test]
fn a_claim_just_before_the_time_out_is_honoured() {
    let (mut net, mut servers, mut client) = shared_listener(2);
    let c = connect(&mut net, &mut client);
    // The application has claimed in the slot, but its command is still to come.
    let socket = servers[0].raw().begin_to_accept();
    net.wait(Duration::from_millis(300));
    assert_eq!(net.stack(0).stat(Stat::ClaimTimeouts), 0);
    assert_eq!((servers[0].raw().take_verdict(), servers[0].is_accepting(LEASE)), (Some(true), true));
    servers[0].raw().tell_of_claim(socket);
    servers[0].write(socket, b"welcome");
    net.settle();
    assert_eq!(client.read(c), b"welcome");
    assert_eq!((net.stack(0).stat(Stat::Claims), net.stack(0).stat(Stat::BadCommands)), (1, 0));
}

#[test]
fn whoever_has_lost_the_verdict_claims_again_and_is_told_again() {
    let (mut net, mut servers, mut client) = shared_listener(2);
    connect(&mut net, &mut client);
    let socket = servers[0].raw().begin_to_accept();
    net.wait(Duration::from_millis(300));
    assert_eq!(servers[0].raw().take_verdict(), Some(true));
    for _ in 0..2 {
        servers[0].raw().tell_of_claim(socket);
        net.settle();
        assert_eq!(servers[0].raw().take_verdict(), Some(true));
    }
    assert_eq!((net.stack(0).stat(Stat::Claims), net.stack(0).stat(Stat::BadCommands)), (1, 0));
}

#[test]
fn text_that_arrives_between_a_claim_and_its_message_is_announced() {
    let (mut net, mut servers, mut client) = shared_listener(1);
    let c = connect(&mut net, &mut client);
    // It is claimed, but the replica does not know yet.
    let socket = servers[0].raw().begin_to_accept();
    client.write(c, b"hello");
    net.settle();
    assert!(servers[0].take_ready(socket).contains(Ready::IN));
}

#[test]
fn a_replica_that_takes_no_frames_holds_up_nobody_else() {
    // The stack believes that half of its flows belong to another replica, whose ring is full.
    let mut net = Net::new(vec![Stack::with(1, |config| config.replicas = 2)]);
    let stack = net.stack(0);
    stack.transport.set_owners(|group| atoll_base::ReplicaId((group.0 % 2) as u8));
    stack.out.internal_full_for = Some(atoll_base::FlowKey { k0: 1, k1: 2 });
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(0), 2);
    server.listen(&mut net, LEASE, ANY_80, 64);
    for _ in 0..40 {
        connect(&mut net, &mut client);
    }
    let reached = (0..).map_while(|_| server.accept()).count();
    assert!((5..35).contains(&reached), "{reached}");
    assert!(!net.stack(0).transport.has_work(), "waiting is not spinning");
    net.stack(0).out.internal_full_for = None;
    net.wait(Duration::from_millis(5));
    assert_eq!((0..).map_while(|_| server.accept()).count(), 40 - reached);
}

#[test]
fn without_another_acceptor_the_connection_waits_for_the_first_to_return() {
    let (mut net, mut servers, mut client) = shared_listener(1);
    let sockets: Vec<Socket> = (0..5).map(|_| connect(&mut net, &mut client)).collect();
    for (n, c) in sockets.iter().enumerate() {
        client.write(*c, &[n as u8; 6000]);
    }
    net.settle();
    for _ in 1..4 {
        net.wait(Duration::from_millis(400));
        assert!(!servers[0].is_accepting(LEASE));
        servers[0].lose_offers(LEASE);
        servers[0].accept_again(LEASE);
        net.settle();
    }
    let mut got: Vec<Vec<u8>> = Vec::new();
    while let Some(s) = servers[0].accept() {
        got.push(servers[0].read(s));
        net.settle();
        servers[0].poll();
        // Its first claim shows that it accepts again.
        assert_eq!(servers[0].offers(LEASE) + got.len(), 5);
    }
    got.sort();
    assert_eq!(got, (0..5).map(|n| vec![n; 6000]).collect::<Vec<_>>());
    // It gets all of them once, and then one each time that it registers without claiming.
    assert_eq!(net.stack(0).stat(Stat::ClaimTimeouts), 5 + 2);
}

/// As on Linux: what has come of it can be read, and then its error.
#[test]
fn a_connection_that_was_reset_is_accepted_with_its_text() {
    let (mut net, mut servers, mut client) = shared_listener(1);
    let server = &mut servers[0];
    let mut reset = |net: &mut Net| {
        let c = connect(net, &mut client);
        client.write(c, b"hello");
        net.settle();
        client.reset(c);
        net.settle();
    };
    let check = |net: &mut Net, server: &mut App| {
        let s = server.accept().expect("it is still there");
        net.settle();
        assert_eq!(server.read(s), b"hello");
        let (state, cause, flags) = server.state(s);
        assert_eq!((state, cause), (SlotState::Open, Cause::ConnectionReset));
        assert_ne!(flags & REPLICA_CLOSED, 0);
        server.close(s);
        net.settle();
        let now = net.now;
        assert_eq!(net.stack(0).transport.sockets(now).count(), 1, "the listener");
    };
    // It was on offer.
    reset(&mut net);
    check(&mut net, server);
    // It waited for somebody who accepts.
    server.stop_accepting(LEASE);
    net.settle();
    reset(&mut net);
    assert!(server.accept().is_none());
    server.accept_again(LEASE);
    net.settle();
    check(&mut net, server);
    // Its name is free although nobody has accepted it, and the end of the listener is its own.
    reset(&mut net);
    reset(&mut net);
    server.release(LEASE);
    net.wait(Duration::from_millis(400));
    let now = net.now;
    assert_eq!(net.stack(0).transport.sockets(now).count(), 0);
    assert_eq!(net.stack(0).buffer_bytes(), 0);
}

#[test]
fn a_connection_that_was_reset_may_be_offered_to_another() {
    let (mut net, mut servers, mut client) = shared_listener(2);
    let c = connect(&mut net, &mut client);
    client.write(c, b"hello");
    net.settle();
    client.reset(c);
    // Nobody accepts, so it goes round.
    net.wait(Duration::from_millis(400));
    servers.iter_mut().for_each(|server| server.accept_again(LEASE));
    net.settle();
    let found: Vec<_> = servers.iter_mut().filter_map(|server| Some((server.accept()?, server))).collect();
    assert_eq!(found.len(), 1);
    for (s, server) in found {
        assert_eq!(server.read(s), b"hello");
    }
}

/// The connection that was offered on trial has ended: it can be accepted, and the others do not wait for it.
#[test]
fn a_trial_whose_connection_ends_is_followed_by_another() {
    let (mut net, mut servers, mut client) = shared_listener(1);
    let sockets: Vec<Socket> = (0..3).map(|_| connect(&mut net, &mut client)).collect();
    net.wait(Duration::from_millis(400));
    servers[0].poll();
    servers[0].lose_offers(LEASE);
    servers[0].accept_again(LEASE);
    net.settle();
    servers[0].poll();
    assert_eq!(servers[0].offers(LEASE), 1);
    client.reset(sockets[0]);
    net.settle();
    servers[0].poll();
    let mut accepted = 0;
    while servers[0].accept().is_some() {
        accepted += 1;
        net.settle();
        servers[0].poll();
    }
    assert_eq!(accepted, 3);
}

#[test]
fn text_for_nobody_is_kept_up_to_a_limit_and_comes_again() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    server.listen_only(&mut net, LEASE, ANY_80, 16);
    let mut client = App::attach(net.stack(1), 2);
    let c = connect(&mut net, &mut client);
    let text: Vec<u8> = (0..20_000u32).map(|n| n as u8).collect();
    assert_eq!(client.write(c, &text), text.len());
    net.wait(Duration::from_millis(300));
    assert_eq!(net.stack(0).buffer_bytes(), 0);
    server.accept_again(LEASE);
    net.settle();
    let s = server.accept().expect("offered now");
    let mut got = server.read(s);
    assert!(got.len() >= 2000, "{}", got.len());
    for _ in 0..20 {
        net.wait(Duration::from_secs(1));
        got.extend(server.read(s));
    }
    assert!(got == text);
}

#[test]
fn the_backlog_bounds_the_accept_queue_and_nobody_is_lost() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    server.listen_only(&mut net, LEASE, ANY_80, 4);
    let mut client = App::attach(net.stack(1), 2);
    let sockets: Vec<Socket> = (0..20).map(|_| client.connect(Endpoint::new(addr(1), 80))).collect();
    net.settle();
    net.wait(Duration::from_secs(5));
    let waiting = net.stack(0).transport.cm.listeners().next().expect("one").unclaimed;
    assert_eq!(waiting, 5, "as on Linux: backlog + 1");
    assert!(net.stack(0).stat(Stat::AcceptDrops) > 0);
    server.accept_again(LEASE);
    let accepted = server.accept_for(&mut net, 700);
    assert_eq!(accepted, 20);
    let open = sockets.iter().filter(|c| client.state(**c).0 == SlotState::Open);
    assert_eq!(open.filter(|c| client.state(**c).1 == Cause::None).count(), 20);
}

#[test]
fn deferred_connections_are_offered_with_their_text_or_after_the_time() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    server.listen(&mut net, LEASE, ANY_80, 16);
    server.set_listener_option(LEASE, SocketOption::DeferAccept, 2);
    net.settle();
    let mut client = App::attach(net.stack(1), 2);
    let (talks, silent) = (connect(&mut net, &mut client), connect(&mut net, &mut client));
    assert!(server.accept().is_none());
    client.write(talks, b"hello");
    net.settle();
    let s = server.accept().expect("it has spoken");
    assert_eq!(server.read(s), b"hello");
    assert!(server.accept().is_none());
    net.wait(Duration::from_millis(2100));
    assert!(server.accept().is_some());
    assert_eq!(client.state(silent).0, SlotState::Open);
}

#[test]
fn connections_inherit_the_options_of_their_listener() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    server.listen(&mut net, LEASE, ANY_80, 16);
    for (option, value) in
        [(SocketOption::NoDelay, 1), (SocketOption::SendBuffer, 5000), (SocketOption::MaxSegment, 700)]
    {
        server.set_listener_option(LEASE, option, value);
    }
    net.settle();
    let mut client = App::attach(net.stack(1), 2);
    let c = connect(&mut net, &mut client);
    let s = server.accept().expect("offered");
    assert_eq!(server.slot(s).send_limit(), 5000);
    let now = net.now;
    let rows: Vec<_> = net.stack(0).transport.sockets(now).collect();
    assert_eq!(rows[1].info.expect("a connection").snd_mss, 688);
    let _ = c;
}

#[test]
fn the_end_of_a_listener_resets_what_nobody_accepted() {
    let (mut net, mut servers, mut client) = shared_listener(2);
    let first = connect(&mut net, &mut client);
    let s = servers[0].accept().expect("offered");
    let second = connect(&mut net, &mut client);
    net.settle();
    servers[0].release(LEASE);
    net.settle();
    assert!(net.stack(0).page.has_port(false, 80), "the other still listens");
    servers[1].release(LEASE);
    net.wait(Duration::from_millis(400));
    assert!(!net.stack(0).page.has_port(false, 80));
    assert_eq!(client.state(second).1, Cause::ConnectionReset);
    servers[0].write(s, b"still here");
    net.settle();
    assert_eq!(client.read(first), b"still here");
}

#[test]
fn a_session_that_dies_loses_its_sockets_and_nothing_else() {
    let (mut net, mut servers, mut client) = shared_listener(2);
    let sockets: Vec<Socket> = (0..4).map(|_| connect(&mut net, &mut client)).collect();
    let held = servers[0].accept().expect("offered");
    servers[0].write(held, b"last words");
    client.write(sockets[0], b"unread");
    net.settle();
    // The process is dead: one of its connections was claimed (and has unread text), one was only offered.
    let (now, id) = (net.now, servers[0].id);
    net.stack(0).transport.close_session(now, id);
    net.settle();
    assert_eq!(client.state(sockets[0]).1, Cause::ConnectionReset);
    assert_eq!((0..).map_while(|_| servers[1].accept()).count(), 3, "two of its own, one taken over");
    net.settle();
    assert_eq!(net.stack(0).stat(Stat::Sessions), 1);
    assert!(sockets[1..].iter().all(|c| client.state(*c).1 == Cause::None));
    // The last process dies: the port is free again, the peers are reset, and the memory is given back.
    let (now, id) = (net.now, servers[1].id);
    net.stack(0).transport.close_session(now, id);
    net.settle();
    for c in &sockets[1..] {
        assert!(client.take_ready(*c).contains(Ready::RDHUP));
        client.close(*c);
    }
    net.settle();
    assert_eq!((net.stack(0).buffer_bytes(), net.stack(0).stat(Stat::Sessions)), (0, 0));
    assert_eq!(net.stack(0).stat(Stat::Connections), 0);
    assert!(!net.stack(0).page.has_port(false, 80));
    assert!(!net.stack(0).transport.cm.is_leased(Protocol::Tcp, 80));
}

#[test]
fn the_buffers_of_a_session_that_dies_are_not_given_back_to_the_one_that_takes_its_place() {
    let (mut net, mut servers, mut client) = shared_listener(1);
    let c = connect(&mut net, &mut client);
    client.write(c, &[7; 3000]);
    net.settle();
    assert!(net.stack(0).buffer_bytes() > 0, "it waits for the application that it is offered to");
    // All of this happens before the next commit.
    let (now, id) = (net.now, servers[0].id);
    net.stack(0).transport.close_session(now, id);
    servers.push(App::attach(net.stack(0), 99));
    net.settle();
    assert_eq!(net.stack(0).stat(Stat::Sessions), 1);
    assert_eq!(net.stack(0).buffer_bytes(), 0);
}

#[test]
fn what_a_dead_process_wrote_is_still_delivered() {
    let (mut net, mut servers, mut client) = shared_listener(1);
    let c = connect(&mut net, &mut client);
    let s = servers[0].accept().expect("offered");
    let text: Vec<u8> = (0..200_000u32).map(|n| (n / 7) as u8).collect();
    assert_eq!(servers[0].write(s, &text), text.len());
    let (now, id) = (net.now, servers[0].id);
    net.stack(0).transport.handle_commands(now, 64);
    net.stack(0).transport.close_session(now, id);
    let mut got = Vec::new();
    for _ in 0..50 {
        net.wait(Duration::from_millis(20));
        got.extend(client.read(c));
    }
    assert!(got == text, "{}", got.len());
    assert!(client.take_ready(c).contains(Ready::RDHUP));
    client.close(c);
    net.settle();
    assert_eq!(net.stack(0).transport.applications.iter().count(), 0);
}

#[test]
fn sockets_of_a_lost_member_close_unless_another_holds_them() {
    let (mut net, mut servers, mut client) = shared_listener(1);
    let (a, b) = (connect(&mut net, &mut client), connect(&mut net, &mut client));
    let (sa, sb) = (servers[0].accept().expect("a"), servers[0].accept().expect("b"));
    net.settle();
    servers[0].slot(sa).set_holders(1 << 3);
    servers[0].slot(sb).set_holders(1 << 3 | 1);
    let (now, id) = (net.now, servers[0].id);
    net.stack(0).transport.member_gone(now, id, 3);
    net.settle();
    assert!(client.take_ready(a).contains(Ready::RDHUP));
    assert!(!client.take_ready(b).contains(Ready::RDHUP));
}

/// A process that listens has died. A child of it, which does not listen, continues with a connection of that
/// session.
#[test]
fn the_listeners_of_a_dead_process_end_while_its_child_goes_on_with_its_connections() {
    for is_claimed in [false, true] {
        let (mut net, mut servers, mut client) = shared_listener(1);
        let kept = connect(&mut net, &mut client);
        let held = servers[0].accept().expect("offered");
        net.settle();
        servers[0].slot(held).set_holders(1 << 3 | 1);
        // One more connection is on offer; it may be claimed so late that no command reports it.
        let offered = connect(&mut net, &mut client);
        assert_eq!(servers[0].offers(LEASE), 1);
        if is_claimed {
            servers[0].raw().begin_to_accept();
        }
        let (now, id) = (net.now, servers[0].id);
        net.stack(0).transport.member_gone(now, id, 0);
        net.settle();
        assert!(!net.stack(0).page.has_port(false, 80));
        assert!(!net.stack(0).transport.cm.is_leased(Protocol::Tcp, 80), "another process may have the port");
        let expected = if is_claimed { Cause::None } else { Cause::ConnectionReset };
        assert_eq!(client.state(offered).1, expected, "as the kernel ends the accept queue and the sockets");
        assert!(client.take_ready(offered).contains(Ready::RDHUP));
        let refused = connect(&mut net, &mut client);
        assert_eq!(client.state(refused).1, Cause::ConnectionRefused);
        // The child notices nothing.
        servers[0].write(held, b"still here");
        net.settle();
        assert_eq!(client.read(kept), b"still here");
        net.stack(0).transport.member_gone(now, id, 3);
        net.settle();
        assert!(client.take_ready(kept).contains(Ready::RDHUP));
    }
}

#[test]
fn what_a_listening_process_was_offered_before_it_died_goes_to_another_at_once() {
    let (mut net, mut servers, mut client) = shared_listener(2);
    let all: Vec<Socket> = (0..4).map(|_| connect(&mut net, &mut client)).collect();
    let held = servers[0].accept().expect("offered");
    net.settle();
    servers[0].slot(held).set_holders(1 << 3);
    let (now, id) = (net.now, servers[0].id);
    net.stack(0).transport.member_gone(now, id, 0);
    net.settle();
    assert_eq!((0..).map_while(|_| servers[1].accept()).count(), 3);
    assert!(all.iter().all(|c| client.state(*c).1 == Cause::None));
    assert_eq!(net.stack(0).stat(Stat::ClaimTimeouts), 0);
}

#[test]
fn a_dead_process_resets_what_it_has_said_it_would() {
    for is_member in [false, true] {
        let (mut net, mut servers, mut client) = shared_listener(1);
        let (reset, closed) = (connect(&mut net, &mut client), connect(&mut net, &mut client));
        let (a, b) = (servers[0].accept().expect("a"), servers[0].accept().expect("b"));
        net.settle();
        servers[0].slot(a).set_app_flags(atoll_ipc::slot::APP_RESET);
        let (now, id) = (net.now, servers[0].id);
        if is_member {
            servers[0].slot(a).set_holders(1 << 3);
            servers[0].slot(b).set_holders(1 << 3);
            net.stack(0).transport.member_gone(now, id, 3);
        } else {
            net.stack(0).transport.close_session(now, id);
        }
        net.settle();
        assert_eq!((client.state(reset).1, client.state(closed).1), (Cause::ConnectionReset, Cause::None));
        assert!(client.take_ready(closed).contains(Ready::RDHUP));
    }
}

/// A process dies between a store and the command that reports it: the others that share the socket get what
/// was stored.
#[test]
fn what_a_dead_member_stored_and_did_not_tell_counts_for_the_living() {
    let (mut net, mut servers, mut client) = shared_listener(1);
    let c = connect(&mut net, &mut client);
    let s = servers[0].accept().expect("offered");
    net.settle();
    servers[0].slot(s).set_holders(1 << 3 | 1);
    servers[0].raw().store(s, b"text");
    let (now, id) = (net.now, servers[0].id);
    net.stack(0).transport.member_gone(now, id, 3);
    net.settle();
    assert_eq!(client.read(c), b"text");
}

#[test]
fn a_refused_port_is_answered_and_a_shared_one_is_not_refused() {
    let mut net = Net::new(vec![Stack::new(1)]);
    let mut one = App::attach(net.stack(0), 1);
    let mut two = App::attach(net.stack(0), 2);
    one.listen(&mut net, 1, ANY_80, 16);
    two.raw().bind(2, Protocol::Tcp, ANY_80, true);
    two.raw().listen(2, ANY_80, 16);
    net.settle();
    let causes: Vec<Cause> = two
        .raw()
        .events()
        .iter()
        .filter_map(|event| match event {
            Event::BindReply { cause, .. } | Event::ListenReply { cause, .. } => Some(*cause),
            _ => None,
        })
        .collect();
    assert_eq!(causes, vec![Cause::AddressInUse, Cause::Invalid]);
}

#[test]
fn orphans_that_get_no_answer_are_given_up_with_their_arena() {
    let mut net = Net::new(vec![
        Stack::with(1, |config| config.orphan_timeout = Duration::from_secs(10)),
        Stack::new(2),
    ]);
    let mut server = App::attach(net.stack(0), 1);
    server.listen(&mut net, LEASE, ANY_80, 16);
    let mut client = App::attach(net.stack(1), 2);
    let c = connect(&mut net, &mut client);
    let s = server.accept().expect("offered");
    net.settle();
    net.loss = 1_000_000;
    server.write(s, b"into the void");
    net.settle();
    let (now, id) = (net.now, server.id);
    net.stack(0).transport.close_session(now, id);
    net.wait(Duration::from_secs(9));
    assert_eq!((net.stack(0).stat(Stat::Sessions), client.state(c).1), (1, Cause::None));
    net.wait(Duration::from_secs(2));
    net.stack(0).buffer_bytes();
    assert_eq!((net.stack(0).stat(Stat::Sessions), net.stack(0).stat(Stat::Connections)), (0, 0));
}

#[test]
fn who_waits_for_text_for_a_listener_that_is_gone_waits_no_longer() {
    // The fuzz target `stack_frames` has found this: TCP_DEFER_ACCEPT may ask for hours.
    for by_release in [true, false] {
        let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
        let mut server = App::attach(net.stack(0), 1);
        let mut client = App::attach(net.stack(1), 2);
        server.listen(&mut net, LEASE, Endpoint::new(0, 80), 64);
        let option = atoll_ipc::SocketOption::DeferAccept;
        server.set_listener_option(LEASE, option, 40_000);
        net.settle();
        let c = client.connect(Endpoint::new(addr(1), 80));
        net.settle();
        net.stack(0).transport.publish_stats();
        assert_eq!(net.stack(0).stat(Stat::Connections), 1);
        if by_release {
            server.release(LEASE);
        } else {
            let (now, id) = (net.now, server.id);
            net.stack(0).transport.close_session(now, id);
        }
        net.settle();
        net.stack(0).transport.publish_stats();
        assert_eq!(net.stack(0).stat(Stat::Connections), 0);
        assert_eq!(client.state(c).1, Cause::ConnectionReset);
    }
}

#[test]
fn a_sample_of_incoming_connections_is_timed() {
    let (mut net, mut servers, mut client) = shared_listener(1);
    let ticks = std::cell::Cell::new(0);
    net.stack(0).transport.set_stopwatch(crate::Stopwatch::new(move || ticks.replace(ticks.get() + 100)));
    for _ in 0..2 * crate::SAMPLE_EVERY {
        connect(&mut net, &mut client);
        net.wait(Duration::from_millis(1));
        servers[0].accept().expect("it was offered");
        net.settle();
    }
    let stack = net.stack(0);
    stack.transport.publish_stats();
    let [timed, cm, tcp, msg, accept, total] = [
        Stat::HandshakesTimed,
        Stat::TimeCm,
        Stat::TimeTcp,
        Stat::TimeMsg,
        Stat::TimeAccept,
        Stat::TimeTotal,
    ]
    .map(|stat| stack.stat(stat));
    assert_eq!(timed, 2);
    // There is one reading for each of the three calls of the CM, and the rest of two frames.
    assert_eq!((cm, msg), (timed * 300, 0));
    assert!(tcp >= timed * 200);
    assert!(accept >= timed * 1_000_000 && total >= accept, "{accept} {total}");
}

// ---- the naive accept: applications ask ----

/// Creates what [`shared_listener`] does, but no process gets offers.
fn asked_listener(processes: u32) -> (Net, Vec<App>, App) {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut servers: Vec<App> = (0..processes).map(|n| App::attach(net.stack(0), n)).collect();
    for server in &mut servers {
        server.listen_only(&mut net, LEASE, ANY_80, 16);
    }
    net.settle();
    let client = App::attach(net.stack(1), 100);
    (net, servers, client)
}

const NONE: Event = Event::ConnectionsWait { listener: LEASE, waiting: false, answers: true };
const TOLD: Event = Event::ConnectionsWait { listener: LEASE, waiting: true, answers: false };

fn ask(net: &mut Net, app: &mut App, takes: bool) -> Vec<Event> {
    app.raw().push(Command::AskConnection { lease: LEASE, takes });
    net.settle();
    app.raw().events()
}

#[test]
fn who_asks_is_given_a_connection_with_its_text() {
    let (mut net, mut servers, mut client) = asked_listener(2);
    let c = connect(&mut net, &mut client);
    client.write(c, b"hello");
    net.wait(Duration::from_millis(10));
    assert_eq!(net.stack(0).stat(Stat::Offers), 0, "nobody has asked");
    assert_eq!(
        ask(&mut net, &mut servers[1], false),
        [Event::ConnectionsWait { listener: LEASE, waiting: true, answers: true }]
    );
    assert_eq!(ask(&mut net, &mut servers[1], true), []);
    let s = servers[1].accept().expect("given");
    assert_eq!(servers[1].read(s), b"hello");
    net.settle();
    assert_eq!(net.stack(0).stat(Stat::Claims), 1);
    assert_eq!(ask(&mut net, &mut servers[0], true), [NONE]);
    assert!(servers[0].accept().is_none());
}

#[test]
fn one_who_was_told_none_hears_of_the_next_one_and_the_other_when_it_does_not_come() {
    let (mut net, mut servers, mut client) = asked_listener(2);
    for server in &mut servers {
        assert_eq!(ask(&mut net, server, false), [NONE]);
    }
    let c = connect(&mut net, &mut client);
    assert_eq!((servers[0].raw().events(), servers[1].raw().events()), (vec![TOLD], vec![]));
    net.wait(Duration::from_millis(300));
    assert_eq!(servers[1].raw().events(), [TOLD]);
    assert_eq!(ask(&mut net, &mut servers[1], true), []);
    let s = servers[1].accept().expect("given");
    servers[1].write(s, b"late");
    net.settle();
    assert_eq!(client.read(c), b"late");
}

#[test]
fn who_asks_for_what_is_not_its_is_told_none() {
    let (mut net, mut servers, _client) = asked_listener(1);
    let mut stranger = App::attach(net.stack(0), 50);
    assert_eq!(ask(&mut net, &mut stranger, true), [NONE]);
    assert_eq!(net.stack(0).stat(Stat::BadCommands), 1);
    assert_eq!(ask(&mut net, &mut servers[0], true), [NONE]);
}
