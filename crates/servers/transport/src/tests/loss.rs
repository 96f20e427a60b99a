//! Tests of streams over a wire that loses frames.

use std::vec;
use std::vec::Vec;

use atoll_base::{Duration, Endpoint, Rng};
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{REPLICA_CLOSED, REPLICA_FIN};

use super::kit::{App, Net, Stack, addr, meet};

fn byte_of(offset: usize) -> u8 {
    ((offset as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Transfers `total` octets each way, written and read in pieces of random size; then both ends close.
fn transfer(seed: u64, loss: u32, segment_max: u32, total: usize) -> Net {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    net.rng = Rng::new(seed);
    for stack in &mut net.stacks {
        stack.out.segment_max = segment_max;
    }
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    server.listen(&mut net, 77, Endpoint::new(0, 80), 16);
    net.loss = loss;
    let c = client.connect(Endpoint::new(addr(1), 80));
    let s = loop {
        net.wait(Duration::from_millis(20));
        if let Some(s) = server.accept() {
            break s;
        }
    };
    let text: Vec<u8> = (0..total).map(byte_of).collect();
    let mut rng = Rng::new(seed + 1000);
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    let (mut sent, mut answered) = (0, 0);
    let mut rounds = 0;
    while to_server.len() < total || to_client.len() < total {
        rounds += 1;
        assert!(rounds < 1_000_000, "seed {seed}: {} and {} of {total}", to_server.len(), to_client.len());
        let n = rng.below(60_000) as usize;
        sent += client.write(c, &text[sent..(sent + n).min(total)]);
        answered += server.write(s, &text[answered..(answered + n).min(total)]);
        let limit = net.now + Duration::from_millis(50);
        net.advance(limit);
        if rng.below(3) == 0 {
            to_server.extend(server.read(s));
            to_client.extend(client.read(c));
        }
    }
    assert!(to_server == text && to_client == text, "seed {seed}");
    server.close(s);
    net.wait(Duration::from_secs(5));
    assert_eq!(client.state(c).2 & REPLICA_FIN, REPLICA_FIN);
    client.close(c);
    net.wait(Duration::from_secs(200));
    assert!(server.is_done(s) && client.is_done(c), "seed {seed}");
    assert_eq!((net.stack(0).buffer_bytes(), net.stack(1).buffer_bytes()), (0, 0));
    assert_eq!((net.stack(0).stat(Stat::Connections), net.stack(1).stat(Stat::Connections)), (0, 0));
    let _ = REPLICA_CLOSED;
    net
}

#[test]
fn streams_arrive_whole_over_a_good_wire() {
    let net = transfer(1, 0, 64 << 10, 3 << 20);
    assert_eq!(net.stacks[0].stat(Stat::Retransmits), 0);
    assert_eq!(net.stacks[1].stat(Stat::Retransmits), 0);
}

#[test]
fn streams_arrive_whole_with_one_frame_in_a_hundred_lost() {
    for seed in 0..6 {
        let segment_max = if seed % 2 == 0 { 1448 } else { 64 << 10 };
        transfer(seed, 10_000, segment_max, 1 << 20);
    }
}

#[test]
fn streams_arrive_whole_with_one_frame_in_ten_lost() {
    for seed in 0..4 {
        transfer(seed, 100_000, 1448, 100 << 10);
    }
}

#[test]
fn a_reader_that_pauses_closes_the_window_and_opens_it_again() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    server.listen(&mut net, 77, Endpoint::new(0, 80), 16);
    let c = client.connect(Endpoint::new(addr(1), 80));
    net.settle();
    let s = server.accept().expect("offered");
    let text: Vec<u8> = (0..600_000).map(byte_of).collect();
    let mut sent = client.write(c, &text);
    net.wait(Duration::from_secs(3));
    assert!(server.slot(s).receive_tail() <= 64 << 10, "the window is closed");
    let mut got = Vec::new();
    for _ in 0..200 {
        got.extend(server.read(s));
        net.settle();
        sent += client.write(c, &text[sent..]);
        net.wait(Duration::from_millis(10));
    }
    assert!(got == text, "{} of {}", got.len(), text.len());
}

#[test]
fn a_full_link_gets_every_frame_later() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    let (s, c) = meet(&mut net, &mut server, &mut client);
    let text: Vec<u8> = (0..200_000).map(byte_of).collect();
    let mut sent = 0;
    let mut got = Vec::new();
    for _ in 0..2000 {
        net.stack(1).out.room = Some(3);
        sent += client.write(c, &text[sent..]);
        net.now += Duration::from_micros(100);
        net.step();
        got.extend(server.read(s));
        if got.len() == text.len() {
            break;
        }
    }
    assert!(got == text, "{} of {}", got.len(), text.len());
    assert_eq!(net.stack(1).stat(Stat::Retransmits), 0);
}

/// Otherwise programs that fill the link would make a machine unreachable for a second at a time.
#[test]
fn who_asks_for_our_station_is_answered_when_a_full_link_has_room() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    server.listen(&mut net, 77, Endpoint::new(0, 80), 16);
    net.stack(0).out.room = Some(0);
    client.connect(Endpoint::new(addr(1), 80));
    net.wait(Duration::from_millis(20));
    net.stack(0).out.room = None;
    net.wait(Duration::from_millis(20));
    assert!(server.accept().is_some());
}

#[test]
fn a_repetition_that_waits_for_the_link_is_forgotten_when_its_text_is_acknowledged() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    server.listen(&mut net, 77, Endpoint::new(0, 80), 16);
    let c = client.connect(Endpoint::new(addr(1), 80));
    net.wait(Duration::from_millis(20));
    let s = server.accept().expect("a connection");
    // The text arrives, its acknowledgement is not sent, and so the text is repeated; that is not answered
    // either.
    net.stack(0).out.room = Some(0);
    assert_eq!(client.write(c, &[1; 1000]), 1000);
    net.wait(Duration::from_millis(20));
    net.stack(1).out.room = Some(0);
    net.wait(Duration::from_secs(3));
    net.stack(0).out.room = None;
    net.wait(Duration::from_millis(20));
    // All is acknowledged: the text has another ring from now on.
    let more = vec![2; 100_000];
    let mut sent = client.write(c, &more);
    assert!(sent > 0);
    net.wait(Duration::from_millis(20));
    net.stack(1).out.room = None;
    let mut got = Vec::new();
    for _ in 0..1000 {
        net.wait(Duration::from_millis(5));
        got.extend(server.read(s));
        sent += client.write(c, &more[sent..]);
    }
    assert_eq!((sent, got.len()), (more.len(), 1000 + more.len()));
    assert_eq!(net.stack(1).transport.stat(Stat::BadCommands), 0);
}
