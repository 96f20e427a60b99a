//! Tests of limits, and of datagrams.

use std::vec;
use std::vec::Vec;

use atoll_base::{Duration, Endpoint};
use atoll_ipc::page::Stat;
use atoll_ipc::{Cause, Command, Ready, SocketOption};

use atoll_sockets::Failure;
use atoll_sockets::ancillary::Addressed;

use super::kit::{App, Net, Socket, Stack, addr};

#[test]
fn many_short_connections_leave_memory_flat() {
    let mut net = Net::new(vec![Stack::with(1, |config| config.time_waits_max = 100), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    server.listen(&mut net, 77, Endpoint::new(0, 80), 64);
    for n in 0..3000 {
        let c = client.connect(Endpoint::new(addr(1), 80));
        net.settle();
        let s = server.accept().expect("offered");
        assert_eq!(client.write(c, b"request"), 7, "connection {n}");
        net.settle();
        assert_eq!(server.read(s), b"request", "connection {n} {:?}", server.slot(s).receive_tail());
        server.write(s, b"response");
        server.close(s);
        net.settle();
        assert_eq!(client.read(c), b"response");
        client.close(c);
        net.settle();
        assert!(server.is_done(s) && client.is_done(c), "connection {n}");
    }
    net.stack(0).buffer_bytes();
    assert_eq!(net.stack(0).stat(Stat::TimeWaits), 100);
    assert_eq!(net.stack(0).stat(Stat::PassiveOpens), 3000);
    assert_eq!((net.stack(0).stat(Stat::Connections), net.stack(1).buffer_bytes()), (0, 0));
    assert_eq!(net.stack(0).transport.connections.len(), 0);
    assert!(net.stack(0).stat(Stat::ResetsOut) == 0);
}

#[test]
fn ports_run_out_per_destination_only_and_time_wait_gives_them_back() {
    let few = |config: &mut crate::Config| config.ephemeral = (40000, 40009);
    let mut net = Net::new(vec![Stack::new(1), Stack::with(2, few)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    server.listen(&mut net, 77, Endpoint::new(0, 80), 64);
    server.listen(&mut net, 78, Endpoint::new(0, 81), 64);
    let first: Vec<Socket> = (0..10).map(|_| client.connect(Endpoint::new(addr(1), 80))).collect();
    let eleventh = client.connect(Endpoint::new(addr(1), 80));
    let elsewhere = client.connect(Endpoint::new(addr(1), 81));
    net.settle();
    assert_eq!(client.state(eleventh).1, Cause::AddressNotAvailable);
    assert_eq!(client.state(elsewhere).1, Cause::None);
    let accepted: Vec<Socket> = (0..11).map(|_| server.accept().expect("offered")).collect();
    for c in &first {
        client.close(*c);
    }
    net.settle();
    for s in &accepted {
        server.close(*s);
    }
    net.settle();
    // All ten are in TIME-WAIT at the client.
    let too_early = client.connect(Endpoint::new(addr(1), 80));
    net.settle();
    assert_eq!(client.state(too_early).1, Cause::AddressNotAvailable);
    net.wait(Duration::from_millis(1500));
    let again = client.connect(Endpoint::new(addr(1), 80));
    net.settle();
    assert!(client.take_ready(again).contains(Ready::OUT));
    assert_eq!(client.state(again).1, Cause::None);
}

#[test]
fn a_stack_without_room_for_connections_refuses_them() {
    let mut net = Net::new(vec![Stack::with(1, |config| config.connections_max = 3), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    server.listen(&mut net, 77, Endpoint::new(0, 80), 64);
    for _ in 0..5 {
        client.connect(Endpoint::new(addr(1), 80));
    }
    net.settle();
    assert_eq!((0..).map_while(|_| server.accept()).count(), 3);
    assert_eq!(net.stack(0).stat(Stat::SynDrops), 2);
    let own = server.connect(Endpoint::new(addr(2), 80));
    net.settle();
    assert_eq!(server.state(own).1, Cause::NoBuffers);
}

#[test]
fn an_event_ring_that_overflows_says_so() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    for token in 0..10_000u64 {
        server.raw().push(Command::Info { token: token as u32, slot: atoll_base::SlotId(0), generation: 1 });
        if token % 64 == 63 {
            net.step();
        }
    }
    net.settle();
    assert_eq!(net.stack(0).stat(Stat::EventOverflows), 10_000 - 8192);
    assert_eq!(atoll_ipc::Memory::load32(&server.arena, atoll_ipc::arena::OVERFLOW), 10_000 - 8192);
}

#[test]
fn out_is_said_once_when_a_third_of_the_buffer_is_free() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    server.listen(&mut net, 77, Endpoint::new(0, 80), 64);
    let c = client.connect(Endpoint::new(addr(1), 80));
    net.settle();
    let s = server.accept().expect("offered");
    server.set_option(s, SocketOption::ReceiveBuffer, 64 << 10);
    net.settle();
    client.take_ready(c);
    client.write(c, &[1; 10_000]);
    net.wait(Duration::from_millis(100));
    server.read(s);
    assert!(client.take_ready(c).is_empty(), "there was always room");
    let n = client.write(c, &vec![1; 1 << 20]);
    assert_eq!(n, 256 << 10);
    net.wait(Duration::from_millis(100));
    assert!(!client.take_ready(c).contains(Ready::OUT), "the reader does not read");
    for _ in 0..20 {
        server.read(s);
        net.wait(Duration::from_millis(10));
    }
    assert!(client.take_ready(c).contains(Ready::OUT));
    // The peer's window was the limit: the buffer keeps its size.
    assert_eq!(client.slot(c).send_limit(), 256 << 10);
}

/// Moves `octets` over a connection whose ends keep up, after `lock` was called for them. Returns the size of
/// the receive buffer and of the send buffer.
fn sizes_after(octets: usize, lock: impl Fn(&mut App, Socket, &mut App, Socket)) -> (Net, u32, u32) {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    for stack in &mut net.stacks {
        stack.out.segment_max = 64 << 10;
    }
    let large = atoll_ipc::arena::ArenaConfig { receive_log2: 25, ..super::kit::ARENA };
    let mut server = App::attach_with(net.stack(0), 1, large);
    let mut client = App::attach(net.stack(1), 2);
    server.listen(&mut net, 77, Endpoint::new(0, 80), 64);
    let c = client.connect(Endpoint::new(addr(1), 80));
    net.settle();
    let s = server.accept().expect("offered");
    lock(&mut server, s, &mut client, c);
    net.settle();
    let mut received = 0;
    while received < octets {
        client.write(c, &vec![1; 1 << 20]);
        net.now += Duration::from_millis(1);
        net.step();
        received += server.read(s).len();
    }
    let now = net.now;
    let row = net.stack(0).transport.sockets(now).nth(1).expect("the connection");
    let receive = row.info.expect("TCP").rcv_space as u32;
    (net, receive, client.slot(c).send_limit())
}

#[test]
fn buffers_grow_while_both_ends_keep_up() {
    let (mut net, receive, send) = sizes_after(20 << 20, |_, _, _, _| ());
    assert!(send >= 512 << 10, "{send}");
    assert!(receive >= 1 << 20, "{receive}");
    assert!(net.stack(0).buffer_bytes() <= 4 << 20);
    assert_eq!(net.stack(1).stat(Stat::Retransmits), 0);
}

#[test]
fn a_buffer_grows_unless_it_is_locked() {
    let (_, receive, send) = sizes_after(8 << 20, |_, _, _, _| ());
    let (_, locked_receive, locked_send) = sizes_after(8 << 20, |server, s, client, c| {
        server.set_option(s, SocketOption::BufferLock, 2);
        client.set_option(c, SocketOption::BufferLock, 1);
    });
    assert_eq!((locked_receive, locked_send), (64 << 10, 256 << 10), "the sizes that they begin with");
    assert!(receive > locked_receive && send > locked_send, "{receive} {send}");
    // With some of these sizes the server finds what was read only when it looks for itself: where text wants
    // memory, or before it asks for a report.
    for size in [4096, 10_000, 30_000, 64 << 10, 100_000, 120_000, 300_000] {
        let (_, receive, send) = sizes_after(8 << 20, |server, s, client, c| {
            server.set_option(s, SocketOption::ReceiveBuffer, size);
            client.set_option(c, SocketOption::SendBuffer, 128 << 10);
            server.set_option(s, SocketOption::BufferLock, 0);
            client.set_option(c, SocketOption::BufferLock, 0);
        });
        assert!(receive >= 1 << 20 && send > 128 << 10, "{size}: {receive} {send}");
    }
}

#[test]
fn datagrams_go_both_ways() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    let s = server.open_datagrams(&mut net, Endpoint::new(0, 53), Endpoint::default());
    let c = client.open_datagrams(&mut net, Endpoint::new(0, 0), Endpoint::new(addr(1), 53));
    let own = Endpoint::new(addr(2), client.slot(c).local().port);
    assert!((32768..61000).contains(&own.port));
    assert!(net.stack(0).page.has_port(true, 53));
    client.send(c, Endpoint::new(addr(1), 53), b"question");
    client.send(c, Endpoint::default(), b"");
    net.settle();
    assert!(server.take_ready(s).contains(Ready::IN));
    assert_eq!(server.receive(s), Some((own, b"question".to_vec())));
    assert_eq!(server.receive(s), Some((own, Vec::new())));
    server.send(s, own, b"answer");
    net.settle();
    assert_eq!(client.receive(c).expect("a datagram").1, b"answer");
    assert_eq!(client.slot(c).acknowledged(), 32 + 24);

    // No socket has the port.
    server.close(s);
    net.settle();
    assert!(!net.stack(0).page.has_port(true, 53));
    client.take_ready(c);
    client.send(c, Endpoint::new(addr(1), 53), b"hello?");
    net.settle();
    assert!(client.take_ready(c).contains(Ready::ERR));
    assert_eq!(client.slot(c).error(), Cause::ConnectionRefused);
    client.close(c);
    net.settle();
    assert_eq!((net.stack(0).buffer_bytes(), net.stack(1).buffer_bytes()), (0, 0));
}

#[test]
fn a_datagram_leaves_although_its_socket_closes_or_its_process_ends_at_once() {
    for ends in [false, true] {
        let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
        let mut server = App::attach(net.stack(0), 1);
        let mut client = App::attach(net.stack(1), 2);
        let s = server.open_datagrams(&mut net, Endpoint::new(0, 53), Endpoint::default());
        let c = client.open_datagrams(&mut net, Endpoint::new(0, 5000), Endpoint::default());
        client.send(c, Endpoint::new(addr(1), 53), b"bye");
        if ends {
            let (now, id) = (net.now, client.id);
            net.stack(1).transport.close_session(now, id);
        } else {
            client.close(c);
        }
        net.settle();
        assert_eq!(server.receive(s).expect("a datagram").1, b"bye");
        assert_eq!(client.is_done(c), !ends);
        net.wait(Duration::from_secs(1));
        net.stack(1).buffer_bytes();
        assert_eq!(net.stack(1).stat(Stat::Sessions), u64::from(!ends));
    }
}

/// What many datagrams carry. A record is 1400 octets then, of which 76 fill half of the usual limit nearly.
const TEXT: [u8; 1376] = [7; 1376];

/// A socket that sends datagrams to another stack, where nobody reads them.
fn sender() -> (Net, App, Socket) {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut app = App::attach(net.stack(0), 1);
    let mut far = App::attach(net.stack(1), 2);
    far.open_datagrams(&mut net, Endpoint::new(0, 53), Endpoint::default());
    let socket = app.open_datagrams(&mut net, Endpoint::new(0, 54), Endpoint::new(addr(2), 53));
    app.send(socket, Endpoint::default(), b"who are you");
    net.settle();
    app.take_ready(socket);
    (net, app, socket)
}

/// Sends datagrams until there is no room for one.
fn fill(app: &mut App, socket: Socket) {
    let one = |app: &mut App| app.send_addressed(socket, Addressed::to(None), &TEXT);
    assert!((0..10_000).any(|_| one(app) == Err(Failure::WouldBlock)), "it never fills");
}

/// How many octets wait, as the application sees it.
fn waiting(app: &App, socket: Socket) -> u64 {
    app.slot(socket).send_tail() - app.slot(socket).acknowledged()
}

#[test]
fn room_is_reported_that_was_made_between_a_full_buffer_and_its_kick() {
    let (mut net, mut app, socket) = sender();
    let (now, limit) = (net.now, u64::from(app.slot(socket).send_limit()));
    app.send(socket, Endpoint::default(), &TEXT);
    let one = waiting(&app, socket);
    while (waiting(&app, socket) + one) * 2 <= limit {
        app.send(socket, Endpoint::default(), &TEXT);
    }
    net.stack(0).transport.handle_commands(now, 4096);
    // The application goes on before any of them leaves, and sees no room.
    fill(&mut app, socket);
    net.stack(0).flush(now);
    assert!(!app.take_ready(socket).contains(Ready::OUT), "it was not known yet that it waits");
    // When the kick is taken, there is room again: nothing but the past says that the application waits.
    assert!(waiting(&app, socket) * 2 <= limit);
    net.settle();
    assert!(app.take_ready(socket).contains(Ready::OUT), "it waits for ever");
}

#[test]
fn room_is_reported_where_poll_has_reported_none() {
    let (mut net, mut app, socket) = sender();
    let limit = u64::from(app.slot(socket).send_limit());
    while waiting(&app, socket) * 2 <= limit {
        app.send(socket, Endpoint::default(), &TEXT);
    }
    assert!(waiting(&app, socket) * 3 < limit * 2, "there is room for many");
    net.settle();
    assert!(app.take_ready(socket).contains(Ready::OUT), "poll(2) waits for ever");
    // The next one may have been written before room was seen.
    app.send(socket, Endpoint::default(), &TEXT);
    net.settle();
    app.take_ready(socket);
    for _ in 0..10 {
        app.send(socket, Endpoint::default(), &TEXT);
        net.settle();
    }
    assert!(!app.take_ready(socket).contains(Ready::OUT), "nothing waits for room");
}

#[test]
fn room_is_reported_at_any_limit() {
    for limit in [4096, 100_000, 1 << 20] {
        let (mut net, mut app, socket) = sender();
        app.set_option(socket, SocketOption::SendBuffer, limit);
        net.settle();
        app.send(socket, Endpoint::default(), b"the limit is published with the next datagram");
        net.settle();
        assert_eq!(app.slot(socket).send_limit(), limit);
        app.take_ready(socket);
        app.send(socket, Endpoint::default(), &[7; 40_000]);
        let longest = app.send_addressed(socket, Addressed::to(None), &[7; 65_507]);
        assert_eq!(longest == Err(Failure::WouldBlock), limit <= 100_000, "{limit}");
        net.settle();
        if longest.is_err() {
            assert!(app.take_ready(socket).contains(Ready::OUT), "{limit}: a long call waits for ever");
        }
        app.take_ready(socket);
        fill(&mut app, socket);
        net.settle();
        assert!(app.take_ready(socket).contains(Ready::OUT), "{limit}: it waits for ever");
    }
}

#[test]
fn datagrams_that_nobody_reads_are_dropped_at_the_limit() {
    let mut net = Net::new(vec![Stack::new(1)]);
    let mut app = App::attach(net.stack(0), 1);
    let s = app.open_datagrams(&mut net, Endpoint::new(0, 53), Endpoint::default());
    let c = app.open_datagrams(&mut net, Endpoint::new(0, 54), Endpoint::default());
    net.settle();
    for _ in 0..100 {
        app.send(c, Endpoint::new(0x7f00_0001, 53), &[9; 30_000]);
        net.settle();
    }
    assert_eq!(net.stack(0).stat(Stat::DatagramsOut), 100);
    assert_eq!(net.stack(0).stat(Stat::DatagramsIn), 7);
    for _ in 0..7 {
        assert_eq!(app.receive(s).expect("a datagram").1, [9; 30_000]);
    }
    assert_eq!(app.receive(s), None);
    app.send(c, Endpoint::new(0x7f00_0001, 53), &[8; 60_000]);
    net.settle();
    assert_eq!(app.receive(s).expect("a datagram").1, vec![8; 60_000]);
}
