//! Measures the cost of a batch of frames that are all for one session. The time is measured, not judged:
//! `cargo test --release -p atoll-transport batches_of_one -- --ignored --nocapture`.

use std::println;
use std::vec;
use std::vec::Vec;

use atoll_base::{Duration, Endpoint};
use atoll_ip::ChecksumOffload;
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::page::Stat;
use atoll_ipc::{Cause, Ready};

use super::flood::spoofed_syns;
use super::kit::{ARENA, App, Net, Socket, Stack, addr};

/// The number of frames that a replica takes from its device in a round (`bin/atoll/src/replica.rs`).
const BATCH: usize = 64;
const ROUNDS: usize = 100;

/// Returns a datagram of the second stack to the first one's port 53, and the socket there.
fn datagram(len: usize) -> (Net, App, Socket, Vec<u8>) {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut app =
        App::attach_with(net.stack(0), 1, ArenaConfig { slots: 1 << 14, receive_log2: 26, ..ARENA });
    let mut client = App::attach(net.stack(1), 2);
    let s = app.open_datagrams(&mut net, Endpoint::new(0, 53), Endpoint::default());
    let c = client.open_datagrams(&mut net, Endpoint::new(0, 54), Endpoint::default());
    net.settle();
    // The neighbour is known after the first datagram.
    for _ in 0..2 {
        client.send(c, Endpoint::new(addr(1), 53), &vec![7; len]);
        let now = net.now;
        net.stack(1).round(now);
        if app.slot(s).receive_tail() > 0 {
            break;
        }
        net.settle();
        app.receive(s);
    }
    let frame = net.stack(1).out.outside.pop_front().expect("a datagram");
    (net, app, s, frame)
}

/// Opens `count` more sockets at the port.
fn open_many(net: &mut Net, app: &mut App, count: usize) -> Vec<Socket> {
    (0..count).map(|_| app.open_datagrams(net, Endpoint::new(0, 53), Endpoint::default())).collect()
}

/// Addresses the datagram to all stations on the link.
fn send_to_all(frame: &mut [u8]) {
    const IP: usize = 14;
    let (header, _) = atoll_wire::ipv4::parse(&frame[IP..]).expect("a packet");
    atoll_wire::ipv4::emit(&atoll_wire::ipv4::Header { dst: u32::MAX, ..header }, &mut frame[IP..]);
    frame[..6].fill(0xff);
}

#[test]
fn a_batch_ends_early_when_its_datagrams_are_for_many_sockets() {
    let (mut net, mut app, first, mut frame) = datagram(1);
    let now = net.now;
    let taken_of = |net: &mut Net, frame: &[u8]| {
        let transport = &mut net.stack(0).transport;
        let is_there_time = |transport: &mut crate::Transport<_>| {
            transport.handle_frame(now, frame, ChecksumOffload::Partial, false);
            !transport.is_flush_due()
        };
        (1..=BATCH).find(|_| !is_there_time(transport))
    };
    assert_eq!(taken_of(&mut net, &frame), None, "those for one socket are as cheap as others");
    let sockets = open_many(&mut net, &mut app, 199);
    // One of 200 sockets gets it, or all of them do.
    for (is_for_all, few) in [(false, 4..20), (true, 2..4)] {
        if is_for_all {
            send_to_all(&mut frame);
        }
        let now = net.now;
        net.stack(0).flush(now);
        let taken = taken_of(&mut net, &frame).expect("that takes longer than a round may");
        assert!(few.contains(&taken), "{taken}");
    }
    let now = net.now;
    net.stack(0).flush(now);
    assert!(!net.stack(0).transport.is_flush_due(), "the next round goes on");
    for socket in sockets.into_iter().chain([first]) {
        assert!(app.take_ready(socket).contains(Ready::IN), "each has it");
    }
}

#[test]
fn a_session_has_no_more_sockets_at_a_port_than_a_datagram_is_copied_to_in_one_go() {
    let (mut net, mut app, _, _) = datagram(1);
    let sockets = open_many(&mut net, &mut app, 256);
    let causes: Vec<Cause> = sockets.iter().map(|socket| app.state(*socket).1).collect();
    assert!(causes[..255].iter().all(|cause| *cause == Cause::None));
    assert_eq!(causes[255], Cause::NoBuffers);
    // Another program has its own sockets, and this one others.
    let mut other = App::attach(net.stack(0), 9);
    let others = other.open_datagrams(&mut net, Endpoint::new(0, 53), Endpoint::default());
    let elsewhere = app.open_datagrams(&mut net, Endpoint::new(0, 55), Endpoint::default());
    net.settle();
    assert_eq!((other.state(others).1, app.state(elsewhere).1), (Cause::None, Cause::None));
    app.close(sockets[0]);
    let again = app.open_datagrams(&mut net, Endpoint::new(0, 53), Endpoint::default());
    net.settle();
    assert_eq!(app.state(again).1, Cause::None);
}

/// Prints the mean time of a frame in the best of some rounds, and the share of frames that `counted` counts.
fn measure(
    name: &str,
    net: &mut Net,
    mut frames: impl FnMut() -> Vec<u8>,
    mut after: impl FnMut(),
    counted: Stat,
) {
    let before = net.stack(0).stat(counted);
    let mut times: Vec<std::time::Duration> = (0..ROUNDS)
        .map(|_| {
            net.now += Duration::from_micros(50);
            let now = net.now;
            let batch: Vec<Vec<u8>> = (0..BATCH).map(|_| frames()).collect();
            let stack = net.stack(0);
            let begin = std::time::Instant::now();
            for frame in &batch {
                stack.transport.handle_frame(now, frame, ChecksumOffload::Partial, false);
            }
            stack.transport.handle_commands(now, 512);
            stack.transport.handle_timers(now);
            stack.flush(now);
            let time = begin.elapsed();
            stack.out.outside.clear();
            after();
            time
        })
        .collect();
    times.sort();
    let share = (net.stack(0).stat(counted) - before) as usize * 100 / (ROUNDS * BATCH);
    let (median, longest) = (times[ROUNDS / 2], times[ROUNDS - 1]);
    println!(
        "{name}: {} ns each, the longest batch of {BATCH} {} us ({counted:?}: {share} %)",
        median.as_nanos() as usize / BATCH,
        longest.as_micros()
    );
}

#[test]
#[ignore = "a measurement"]
fn batches_of_one_session() {
    for len in [1, 1400] {
        let (mut net, mut app, socket, frame) = datagram(len);
        let name = std::format!("datagrams of {len} octets that are read");
        measure(
            &name,
            &mut net,
            || frame.clone(),
            || while app.receive(socket).is_some() {},
            Stat::DatagramsDropped,
        );
        let (mut net, _app, _, frame) = datagram(len);
        // This continues until the batch is full.
        let now = net.now;
        (0..20_000)
            .for_each(|_| net.stack(0).transport.handle_frame(now, &frame, ChecksumOffload::Partial, false));
        let name = std::format!("datagrams of {len} octets to a full buffer");
        measure(&name, &mut net, || frame.clone(), || {}, Stat::DatagramsDropped);
        let (mut net, mut app, socket, frame) = datagram(len);
        app.close(socket);
        net.settle();
        let name = std::format!("datagrams of {len} octets to nobody");
        measure(&name, &mut net, || frame.clone(), || {}, Stat::DatagramsDropped);
    }
    for count in [64, 256] {
        let (mut net, mut app, _, mut frame) = datagram(1);
        open_many(&mut net, &mut app, count - 1);
        let name = std::format!("datagrams for one of {count} sockets at a port");
        measure(&name, &mut net, || frame.clone(), || {}, Stat::DatagramsIn);
        send_to_all(&mut frame);
        let name = std::format!("datagrams for all of {count} sockets at a port");
        measure(&name, &mut net, || frame.clone(), || {}, Stat::DatagramsIn);
    }
    for (name, backlog) in [("SYNs to a long queue", 1 << 14), ("SYNs to a full queue", 8)] {
        let mut net = Net::new(vec![Stack::with(1, |config| config.backlog_max = 1 << 14), Stack::new(2)]);
        let mut app = App::attach(net.stack(0), 1);
        app.listen(&mut net, 77, Endpoint::new(0, 80), backlog);
        let mut syns = spoofed_syns(20_000);
        let mut next = || syns.next().expect("there are enough");
        measure(name, &mut net, &mut next, || {}, Stat::SynCookiesSent);
    }
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut syns = spoofed_syns(20_000);
    measure("SYNs to nobody", &mut net, || syns.next().expect("there are enough"), || {}, Stat::ResetsOut);
}
