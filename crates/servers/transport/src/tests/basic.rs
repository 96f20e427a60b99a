//! Tests that open connections, exchange text, and close them.

use std::vec;
use std::vec::Vec;

use atoll_base::{Addr, Duration, Endpoint};
use atoll_ip::ChecksumOffload;
use atoll_ipc::command::Protocol;
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{APP_OPTIONS_FOLLOW, REPLICA_CLOSED, REPLICA_FIN, SlotState};
use atoll_ipc::{Cause, Command, Ready, SocketOption};

use atoll_sockets::client::Connecting;
use atoll_sockets::client::simulated::Opening;
use atoll_sockets::{Errno, Failure};

use super::kit::{App, Net, Socket, Stack, addr, meet};

const HTTP: Endpoint = Endpoint::new(addr_of(1), 80);

const fn addr_of(host: u8) -> u32 {
    0x0a00_0000 | host as u32
}

/// Creates a server on the first stack, a client on the second, and one connection between them.
fn connected() -> (Net, App, App, Socket, Socket) {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    let (s, c) = meet(&mut net, &mut server, &mut client);
    (net, server, client, s, c)
}

#[test]
fn a_request_is_answered_and_both_sides_close() {
    let (mut net, mut server, mut client, s, c) = connected();
    assert!(client.take_ready(c).contains(Ready::OUT));
    assert_eq!(server.state(s).0, SlotState::Open);
    assert_eq!((server.slot(s).local(), server.peer(s).addr), (HTTP, addr(2).into()));

    client.write(c, b"GET / HTTP/1.0\r\n\r\n");
    net.settle();
    assert!(server.take_ready(s).contains(Ready::IN));
    assert_eq!(server.read(s), b"GET / HTTP/1.0\r\n\r\n");
    server.write(s, b"HTTP/1.0 200 OK\r\n\r\nhi");
    server.close(s);
    net.settle();
    assert!(client.take_ready(c).contains(Ready::IN | Ready::RDHUP));
    assert_eq!(client.read(c), b"HTTP/1.0 200 OK\r\n\r\nhi");
    assert_eq!(client.state(c).2, REPLICA_FIN);
    client.close(c);
    net.settle();
    assert!(server.is_done(s) && client.is_done(c));
    assert_eq!(server.state(s).0, SlotState::Free);

    // The end that closed first remembers the connection, for a minute.
    assert_eq!((net.stack(0).buffer_bytes(), net.stack(1).buffer_bytes()), (0, 0));
    assert_eq!((net.stack(0).stat(Stat::Connections), net.stack(0).stat(Stat::TimeWaits)), (0, 1));
    assert_eq!((net.stack(1).stat(Stat::Connections), net.stack(1).stat(Stat::TimeWaits)), (0, 0));
    net.wait(Duration::from_secs(62));
    net.stack(0).buffer_bytes();
    assert_eq!(net.stack(0).stat(Stat::TimeWaits), 0);
    let quiet = net.stack(0).transport.ip_mut().next_timeout();
    assert_eq!(net.stack(0).transport.next_timeout(), quiet);
}

#[test]
fn a_syn_waits_for_options_that_follow_the_command_to_connect() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    server.listen(&mut net, 77, Endpoint::new(0, 80), 16);
    let c = client.raw().open_slot();
    let Socket { slot, generation } = c;
    client.slot(c).set_app_flags(APP_OPTIONS_FOLLOW);
    let (lease, local) = (0, Endpoint::new(0, 0));
    client.raw().push(Command::Connect { slot, generation, lease, local, remote: HTTP });
    net.settle();
    assert!(server.accept().is_none());
    let (option, value) = (SocketOption::MaxSegment, 600);
    client.raw().push(Command::SetOption { slot, generation, option, value });
    net.settle();
    assert!(server.accept().is_none());
    client.slot(c).set_app_flags(0);
    client.raw().kick(c);
    net.settle();
    let s = server.accept().expect("offered");
    // The timestamps of each segment take twelve octets.
    assert_eq!(server.info(&mut net, s).snd_mss, 588);
}

#[test]
fn two_sockets_of_one_stack_reach_each_other_over_the_internal_link() {
    for target in [Endpoint::new(addr(1), 80), Endpoint::new(0x7f00_0001, 80)] {
        let mut net = Net::new(vec![Stack::new(1)]);
        let mut server = App::attach(net.stack(0), 1);
        let mut client = App::attach(net.stack(0), 2);
        server.listen(&mut net, 77, Endpoint::new(0, 80), 16);
        let c = client.connect(target);
        net.settle();
        let s = server.accept().expect("offered");
        client.write(c, b"ping");
        net.settle();
        assert_eq!(server.read(s), b"ping");
        server.write(s, &[7; 100_000]);
        let mut got = Vec::new();
        for _ in 0..10 {
            net.settle();
            got.extend(client.read(c));
        }
        assert_eq!(got, vec![7; 100_000]);
        server.close(s);
        net.settle();
        client.close(c);
        net.settle();
        net.stack(0).buffer_bytes();
        assert_eq!((net.stack(0).stat(Stat::Connections), net.stack(0).stat(Stat::TimeWaits)), (0, 1));
    }
}

/// The peer does not answer: without an event of its own, who wants to know the port would sleep on.
#[test]
fn who_awaits_the_port_of_a_connection_is_woken_when_it_is_chosen() {
    for asks in [false, true] {
        let mut net = Net::new(vec![Stack::new(1)]);
        let mut app = App::attach(net.stack(0), 1);
        let c = app.connect(Endpoint::new(addr(9), 80));
        let object = app.object(c);
        let bell = app.client.new_bell();
        if asks {
            app.client.await_answer(object).expect("a turn");
        }
        app.client.sleep_on(object, bell);
        app.client.before_sleep(1 << bell);
        net.settle();
        assert!(app.client.local_of(object).port != 0);
        assert_eq!(net.stack(0).bells.iter().any(|(_, rung)| *rung == bell), asks);
    }
}

#[test]
fn a_socket_is_its_own_peer_if_it_has_the_port() {
    let mut net = Net::new(vec![Stack::new(1)]);
    let mut app = App::attach(net.stack(0), 1);
    let own = Endpoint::new(addr(1), 4000);
    let c = app.connect_from(&mut net, own, own);
    net.settle();
    assert_eq!((app.state(c), app.peer(c)), ((SlotState::Open, Cause::None, 0), own));
    let text = vec![3; 30_000];
    assert_eq!(app.write(c, &text), 30_000);
    net.settle();
    assert!(app.read(c) == text);
    app.write(c, b"last");
    app.shutdown(c);
    net.settle();
    assert_eq!(app.read(c), b"last");
    assert_eq!(app.state(c).2, REPLICA_FIN | REPLICA_CLOSED);
    app.close(c);
    net.settle();
    assert!(app.is_done(c));
    net.stack(0).buffer_bytes();
    assert_eq!((net.stack(0).stat(Stat::Connections), net.stack(0).stat(Stat::TimeWaits)), (0, 1));
}

#[test]
fn a_socket_that_was_shut_before_it_connects_to_itself_is_over_at_once() {
    for (shut_send, unspecified) in [(true, false), (true, true), (false, false)] {
        let mut net = Net::new(vec![Stack::new(1)]);
        let mut app = App::attach(net.stack(0), 1);
        let loopback = Endpoint::at(Addr::V4_ANY.loopback_of_family(), 4000);
        let object = app.socket(Protocol::Tcp, loopback);
        let opening = Opening::bind(&mut app.client, object, loopback).expect("it is fresh");
        app.complete(&mut net, opening);
        assert_eq!(app.client.shutdown(object, true, shut_send), Err(Errno::ENOTCONN.into()));
        let remote = if unspecified { Endpoint::at(Addr::V4_ANY, 4000) } else { loopback };
        assert_eq!(app.client.connect(object, remote), Ok(Connecting::Begun));
        assert_eq!(app.client.poll_connected(object), Err(Failure::WouldBlock));
        net.settle();
        if !shut_send {
            assert_eq!(app.client.poll_connected(object), Ok(()));
            continue;
        }
        assert_eq!(app.client.poll_connected(object), Err(Errno::ECONNABORTED.into()));
        assert_eq!(app.client.peer_of(object), Err(Errno::ENOTCONN));
        assert_eq!(app.client.take_error(object), None);
    }
}

#[test]
fn nobody_listening_refuses_and_nobody_there_is_unreachable() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut client = App::attach(net.stack(1), 2);
    let c = client.connect(Endpoint::new(addr(1), 81));
    let nobody = client.connect(Endpoint::new(addr(9), 80));
    let no_way = client.connect(Endpoint::new(0x0808_0808, 80));
    net.settle();
    assert_eq!(client.state(c).1, Cause::ConnectionRefused);
    assert!(client.take_ready(c).contains(Ready::ERR | Ready::HUP | Ready::OUT));
    assert_eq!(client.state(no_way).1, Cause::NetworkUnreachable);
    net.wait(Duration::from_secs(5));
    assert_eq!((client.state(nobody).1, client.state(nobody).2), (Cause::HostUnreachable, REPLICA_CLOSED));
    for socket in [c, nobody, no_way] {
        client.close(socket);
    }
    net.settle();
    assert!([c, nobody, no_way].into_iter().all(|socket| client.is_done(socket)));
    net.stack(1).buffer_bytes();
    assert_eq!(net.stack(1).stat(Stat::Connections), 0);
}

#[test]
fn unread_text_makes_the_close_a_reset() {
    let (mut net, mut server, mut client, s, c) = connected();
    client.write(c, b"never read");
    net.settle();
    server.close(s);
    net.settle();
    assert_eq!(client.state(c).1, Cause::ConnectionReset);
    assert!(client.take_ready(c).contains(Ready::ERR));
}

#[test]
fn a_half_closed_connection_still_carries_the_answer() {
    let (mut net, mut server, mut client, s, c) = connected();
    client.write(c, b"question");
    client.shutdown(c);
    net.settle();
    assert!(server.take_ready(s).contains(Ready::RDHUP));
    assert_eq!(server.read(s), b"question");
    server.write(s, b"answer");
    server.close(s);
    net.settle();
    assert_eq!(client.read(c), b"answer");
    assert_eq!(client.state(c), (SlotState::Open, Cause::None, REPLICA_FIN | REPLICA_CLOSED));
    client.close(c);
    net.settle();
    net.stack(1).buffer_bytes();
    assert_eq!((net.stack(1).stat(Stat::Connections), net.stack(1).stat(Stat::TimeWaits)), (0, 1));
}

#[test]
fn nobody_is_connected_to_everybody() {
    // RFC 9293 §3.9.2.3, MUST-46
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut client = App::attach(net.stack(0), 1);
    for everybody in [addr(255), 0xffff_ffff, 0xe000_0001] {
        let remote = Endpoint::new(everybody, 80);
        let object = client.socket(Protocol::Tcp, remote);
        assert_eq!(client.client.connect(object, remote), Err(Errno::ENETUNREACH), "{everybody:x}");
        // The replica believes no program.
        let c = client.raw().connect(0, Endpoint::new(0, 0), remote);
        net.settle();
        assert_eq!(client.state(c).1, Cause::NetworkUnreachable, "{everybody:x}");
    }
}

#[test]
fn marks_and_lifetimes_are_on_every_packet() {
    // RFC 9293 §3.9.2 (MUST-48, MUST-49) and §3.9.1 (SHLD-21)
    let (mut net, _server, mut client, _s, c) = connected();
    let headers = |net: &mut Net| -> Vec<(u8, u8)> {
        let now = net.now;
        net.stack(1).round(now);
        let frames = net.stack(1).out.outside.iter();
        frames
            .map(|frame| atoll_wire::ipv4::parse(&frame[14..]).expect("a packet").0)
            .map(|h| (h.tos, h.ttl))
            .collect()
    };
    client.write(c, b"as usual");
    assert_eq!(headers(&mut net), [(0, 64)]);
    net.wait(Duration::from_millis(500));
    for (option, value) in [(SocketOption::TypeOfService, 0x10), (SocketOption::TimeToLive, 3)] {
        client.set_option(c, option, value);
    }
    client.write(c, b"with a mark");
    assert_eq!(headers(&mut net), [(0x10, 3)]);
}

#[test]
fn tcp_info_says_when_text_came() {
    let (mut net, mut server, mut client, s, c) = connected();
    client.write(c, b"hello");
    net.settle();
    net.wait(Duration::from_millis(300));
    // Neither the end nor an acknowledgement is text.
    server.write(s, b"answer");
    net.settle();
    let [at_server, at_client] =
        [server.info(&mut net, s), client.info(&mut net, c)].map(|info| info.last_data_recv);
    assert!((295..400).contains(&at_server) && at_client < 50, "{at_server} {at_client}");
    net.wait(Duration::from_millis(200));
    let at_client = client.info(&mut net, c).last_data_recv;
    assert!((195..300).contains(&at_client), "{at_client}");
}

#[test]
fn an_idle_connection_owns_no_buffer_and_no_timer() {
    let (mut net, mut server, mut client, s, c) = connected();
    client.write(c, b"hello");
    net.settle();
    assert_eq!(server.read(s), b"hello");
    assert!(net.stack(0).buffer_bytes() > 0);
    net.wait(Duration::from_secs(5));
    assert_eq!((net.stack(0).buffer_bytes(), net.stack(1).buffer_bytes()), (0, 0));
    assert!(
        net.stack(0).transport.connections.timers().is_empty()
            && net.stack(1).transport.connections.timers().is_empty()
    );
    client.write(c, b"again");
    net.settle();
    assert_eq!(server.read(s), b"again");
}

#[test]
fn bells_ring_once_for_each_sleep() {
    let (mut net, mut server, mut client, s, c) = connected();
    server.slot(s).set_bell(5);
    net.stack(0).bells.clear();
    client.write(c, b"1");
    net.settle();
    assert_eq!(net.stack(0).bells, vec![], "nobody sleeps");
    server.page.set_sleep_word(5, 1);
    for _ in 0..3 {
        client.write(c, b"2");
        net.wait(Duration::from_millis(100));
    }
    assert_eq!(net.stack(0).bells, vec![(server.id, 5)]);
    server.page.set_sleep_word(5, 3);
    client.write(c, b"3");
    net.wait(Duration::from_millis(100));
    assert_eq!(net.stack(0).bells.len(), 2);
    server.poll();
}

#[test]
fn a_listening_port_is_published_and_taken_back() {
    let mut net = Net::new(vec![Stack::new(1)]);
    let mut server = App::attach(net.stack(0), 1);
    server.listen(&mut net, 77, Endpoint::new(0, 80), 16);
    assert!(net.stack(0).page.has_port(false, 80));
    server.release(77);
    net.settle();
    assert!(!net.stack(0).page.has_port(false, 80));
}

#[test]
fn info_is_written_to_the_arena() {
    let (mut net, _server, mut client, _s, c) = connected();
    let info = client.info(&mut net, c);
    assert_eq!((info.state, info.snd_mss), (1, 1448));
    let now = net.now;
    assert_eq!(net.stack(0).transport.sockets(now).count(), 2);
}

#[test]
fn sockets_are_listed_in_slices_of_any_size() {
    let (mut net, _server, mut client, _s, _c) = connected();
    for port in 0..20u16 {
        client.listen_only(&mut net, 100 + u64::from(port), Endpoint::new(0, 5000 + port), 5);
    }
    net.settle();
    let (now, transport) = (net.now, &net.stack(1).transport);
    let all: Vec<_> = transport.sockets(now).collect();
    assert!(all.len() > 20);
    for count in [1, 3, 16, 1000] {
        let (mut listing, mut listed, mut slices) = (crate::Listing::default(), Vec::new(), 0);
        while !listing.is_over() {
            let slice = transport.list(now, &mut listing, count);
            assert!(slice.len() <= count);
            listed.extend(slice);
            slices += 1;
        }
        assert_eq!(listed, all);
        assert!(slices <= all.len().div_ceil(count) + 8, "{slices} slices of {count}");
    }
}

/// Returns an ARP request of the first stack's neighbour `claims`, with a station that is not its own.
fn forged_question(claims: u32) -> Vec<u8> {
    let station = [2, 9, 9, 9, 9, 9];
    let mut frame = vec![0xff; 6];
    frame.extend(station);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(station);
    frame.extend(claims.to_be_bytes());
    frame.extend([0; 6]);
    frame.extend(addr_of(1).to_be_bytes());
    frame
}

#[test]
fn forged_questions_about_a_peer_do_not_stop_a_connection() {
    let (mut net, mut server, mut client, s, c) = connected();
    let mut sent = 0;
    let mut got = 0;
    for _ in 0..40 {
        let now = net.now;
        net.stack(0).hear(now, &forged_question(addr_of(2)), ChecksumOffload::Unknown);
        sent += server.write(s, &[7; 1000]) + client.write(c, &[8; 1000]);
        net.wait(Duration::from_millis(250));
        got += client.read(c).len() + server.read(s).len();
        assert_eq!(got, sent, "no octet waits for a time-out");
    }
    assert_eq!(net.stack(0).stat(Stat::Retransmits), 0);
}

#[test]
fn an_idle_connection_that_was_lied_to_goes_on_within_seconds() {
    let (mut net, mut server, mut client, s, c) = connected();
    // The neighbour is forgotten meanwhile, and only the forged station is known.
    net.wait(Duration::from_secs(300));
    let now = net.now;
    net.stack(0).hear(now, &forged_question(addr_of(2)), ChecksumOffload::Unknown);
    server.write(s, b"hello");
    // This is detected in three seconds, and then the text is sent again.
    let mut got = Vec::new();
    for _ in 0..8 {
        net.wait(Duration::from_secs(1));
        got.extend(client.read(c));
    }
    assert_eq!(got, b"hello");
}

#[test]
fn a_peer_that_is_heard_is_not_asked_for_its_station() {
    let (mut net, mut server, mut client, s, c) = connected();
    for _ in 0..120 {
        server.write(s, &[7; 1000]);
        client.write(c, &[7; 1000]);
        net.wait(Duration::from_secs(1));
        assert_eq!((client.read(c).len(), server.read(s).len()), (1000, 1000));
    }
    // One side asks before the other has named its station; the side that was asked may ask back once, before
    // the connection shows it.
    let asked: u64 = (0..2).map(|n| net.stack(n).whole_ip().counters().arp_requests).sum();
    assert!(asked <= 5, "{asked} questions in two minutes");
}
