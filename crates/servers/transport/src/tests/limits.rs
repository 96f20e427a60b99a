//! Tests of limits, and of datagrams.

use std::vec;
use std::vec::Vec;

use atoll_base::{Duration, Endpoint};
use atoll_ipc::command::Protocol;
use atoll_ipc::datagram::{self, Flags, RECORD_LEN, Record};
use atoll_ipc::page::Stat;
use atoll_ipc::{Cause, Command, Event, Ready, SocketOption};

use super::kit::{App, Net, Socket, Stack, addr};

#[test]
fn many_short_connections_leave_memory_flat() {
    let mut net = Net::new(vec![Stack::with(1, |config| config.time_waits_max = 100), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    server.listen(77, Endpoint::new(0, 80), 64);
    net.settle();
    for n in 0..3000 {
        let c = client.connect_in(n % 8, Endpoint::new(addr(1), 80));
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
        server.poll();
        client.poll();
        assert_eq!((server.done.pop(), client.done.pop()), (Some(s), Some(c)), "connection {n}");
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
    server.listen(77, Endpoint::new(0, 80), 64);
    server.listen(78, Endpoint::new(0, 81), 64);
    net.settle();
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
    server.listen(77, Endpoint::new(0, 80), 64);
    net.settle();
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
        server.push(Command::Info { token: token as u32, slot: atoll_base::SlotId(0), generation: 1 });
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
    server.listen(77, Endpoint::new(0, 80), 64);
    net.settle();
    let c = client.connect(Endpoint::new(addr(1), 80));
    net.settle();
    let s = server.accept().expect("offered");
    let Socket { slot, generation } = s;
    server.push(Command::SetOption {
        slot,
        generation,
        option: SocketOption::ReceiveBuffer,
        value: 64 << 10,
    });
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

#[test]
fn buffers_grow_while_both_ends_keep_up() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    for stack in &mut net.stacks {
        stack.out.segment_max = 64 << 10;
    }
    let large = atoll_ipc::arena::ArenaConfig { receive_log2: 25, ..super::kit::ARENA };
    let mut server = App::attach_with(net.stack(0), 1, large);
    let mut client = App::attach(net.stack(1), 2);
    server.listen(77, Endpoint::new(0, 80), 64);
    net.settle();
    let c = client.connect(Endpoint::new(addr(1), 80));
    net.settle();
    let s = server.accept().expect("offered");
    let mut received = 0;
    while received < 20 << 20 {
        client.write(c, &vec![1; 1 << 20]);
        net.now += Duration::from_millis(1);
        net.step();
        received += server.read(s).len();
    }
    assert!(client.slot(c).send_limit() >= 512 << 10, "{}", client.slot(c).send_limit());
    let now = net.now;
    let row = net.stack(0).transport.sockets(now).nth(1).expect("the connection");
    assert!(row.info.expect("TCP").rcv_space >= 1 << 20);
    assert!(net.stack(0).buffer_bytes() <= 4 << 20);
    assert_eq!(net.stack(1).stat(Stat::Retransmits), 0);
}

pub(super) fn udp_open(app: &mut App, local: Endpoint, remote: Endpoint) -> Socket {
    let socket = app.open_slot();
    let (lease, protocol) = (udp_lease(app, socket), Protocol::Udp);
    let (reuse_addr, reuse_port, v6_only) = (true, false, false);
    app.push(Command::Bind { token: 9, lease, protocol, local, reuse_addr, reuse_port, v6_only });
    udp_open_with(app, socket, lease, local, remote);
    socket
}

/// Returns the lease of a socket that [`udp_open`] opens.
pub(super) fn udp_lease(app: &App, socket: Socket) -> u64 {
    u64::from(app.id.0) << 32 | u64::from(socket.slot.0)
}

/// Opens a socket without asking for a port.
pub(super) fn udp_open_with(app: &mut App, socket: Socket, lease: u64, local: Endpoint, remote: Endpoint) {
    let Socket { slot, generation } = socket;
    app.push(Command::UdpOpen { slot, generation, lease, local, remote, reuse_port: false, v6_only: false });
}

pub(super) fn record(peer: Endpoint, payload: &[u8]) -> Vec<u8> {
    let mut bytes =
        datagram::encode(&Record { len: payload.len() as u32, peer, flags: Flags::empty() }).to_vec();
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

pub(super) fn first_record(bytes: &[u8]) -> (Record, Vec<u8>) {
    let head = bytes[..RECORD_LEN].try_into().expect("a head");
    let record = datagram::decode(&head, bytes.len() as u64).expect("a record");
    (record, bytes[RECORD_LEN..RECORD_LEN + record.len as usize].to_vec())
}

#[test]
fn datagrams_go_both_ways() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    let protocol = Protocol::Udp;
    let local = Endpoint::new(0, 0);
    client.push(Command::Bind {
        token: 7,
        lease: 5,
        protocol,
        local,
        reuse_addr: false,
        reuse_port: false,
        v6_only: false,
    });
    let s = udp_open(&mut server, Endpoint::new(0, 53), Endpoint::default());
    net.settle();
    client.poll();
    let Some(Event::BindReply { cause: Cause::None, port, .. }) = client.replies.pop() else {
        panic!("no port")
    };
    assert!((32768..61000).contains(&port));
    assert!(net.stack(0).page.has_port(true, 53));
    let c = client.open_slot();
    udp_open_with(&mut client, c, 5, Endpoint::new(0, port), Endpoint::new(addr(1), 53));
    net.settle();
    client.write(c, &record(Endpoint::new(addr(1), 53), b"question"));
    client.write(c, &record(Endpoint::default(), b""));
    net.settle();
    assert!(server.take_ready(s).contains(Ready::IN));
    let bytes = server.read(s);
    let (question, text) = first_record(&bytes);
    assert_eq!((question.peer, text), (Endpoint::new(addr(2), port), b"question".to_vec()));
    assert_eq!(first_record(&bytes[32..]).1, b"");
    server.write(s, &record(question.peer, b"answer"));
    net.settle();
    assert_eq!(first_record(&client.read(c)).1, b"answer");
    assert_eq!(client.slot(c).acknowledged(), 32 + 24);

    // No socket has the port.
    server.close(s);
    net.settle();
    assert!(!net.stack(0).page.has_port(true, 53));
    client.take_ready(c);
    client.write(c, &record(Endpoint::new(addr(1), 53), b"hello?"));
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
        let s = udp_open(&mut server, Endpoint::new(0, 53), Endpoint::default());
        let c = udp_open(&mut client, Endpoint::new(0, 5000), Endpoint::default());
        // It asks for its port, and opens.
        net.stack(1).transport.handle_commands(atoll_base::Instant::ZERO, 24);
        client.write(c, &record(Endpoint::new(addr(1), 53), b"bye"));
        if ends {
            let (now, id) = (net.now, client.id);
            net.stack(1).transport.close_session(now, id);
        } else {
            client.close(c);
        }
        net.settle();
        assert_eq!(first_record(&server.read(s)).1, b"bye");
        client.poll();
        assert_eq!(client.done.len(), usize::from(!ends));
        net.wait(Duration::from_secs(1));
        net.stack(1).buffer_bytes();
        assert_eq!(net.stack(1).stat(Stat::Sessions), u64::from(!ends));
    }
}

#[test]
fn datagrams_that_nobody_reads_are_dropped_at_the_limit() {
    let mut net = Net::new(vec![Stack::new(1)]);
    let mut app = App::attach(net.stack(0), 1);
    let s = udp_open(&mut app, Endpoint::new(0, 53), Endpoint::default());
    let c = udp_open(&mut app, Endpoint::new(0, 54), Endpoint::default());
    net.settle();
    for _ in 0..100 {
        let n = app.write(c, &record(Endpoint::new(0x7f00_0001, 53), &[9; 30_000]));
        assert_eq!(n, 30_024);
        net.settle();
    }
    assert_eq!(net.stack(0).stat(Stat::DatagramsOut), 100);
    assert_eq!(net.stack(0).stat(Stat::DatagramsIn), 7);
    assert_eq!(app.read(s).len(), 7 * 30_024);
    app.write(c, &record(Endpoint::new(0x7f00_0001, 53), &[8; 60_000]));
    net.settle();
    assert_eq!(first_record(&app.read(s)).1, vec![8; 60_000]);
}
