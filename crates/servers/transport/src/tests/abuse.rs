//! Tests that what an application does to its shared memory harms no other.

use std::vec;
use std::vec::Vec;

use atoll_base::{Addr, Duration, Endpoint, Rng, SlotId};
use atoll_ipc::arena::{ArenaConfig, COMMANDS};
use atoll_ipc::command::{CloseMode, DatagramKind, Protocol};
use atoll_ipc::lease::{Pass, Voucher};
use atoll_ipc::page::Stat;
use atoll_ipc::ring::ring_bytes;
use atoll_ipc::{Command, Event, Memory, SocketOption};

use crate::seal_pass;

use super::kit::{App, Net, Socket, Stack, addr, addr_v6};

fn random_command(rng: &mut Rng) -> Command {
    let slots = [0, 1, 2, 3, 512, 513, 514, 700, 1023, 1024, u32::MAX];
    let slot = SlotId(slots[rng.below(slots.len() as u32) as usize]);
    let generation = rng.below(4);
    let ends = [
        Endpoint::new(addr(1), 80),
        Endpoint::new(0, 0),
        Endpoint::new(0x7f00_0001, 80),
        Endpoint::new(0, 90 + rng.below(3) as u16),
        Endpoint::new(rng.next_u32(), rng.next_u32() as u16),
        Endpoint::new(u32::MAX, 53),
        Endpoint::at(Addr::ANY, 80),
        Endpoint::at(Addr::LOOPBACK, 80),
        Endpoint::at(addr_v6(1), 53),
        Endpoint::at(addr_v6(2), 80),
    ];
    let local = ends[rng.below(10) as usize];
    let remote = ends[rng.below(10) as usize];
    let lease = u64::from(rng.below(4));
    let token = rng.next_u32();
    // Some numbers up to the last one are no options.
    let option = SocketOption::from_u8(1 + rng.below(63) as u8).unwrap_or(SocketOption::Times);
    let value = if rng.below(2) == 0 { rng.next_u32() } else { rng.below(3) };
    let (reuse_addr, reuse_port, v6_only) = (rng.below(2) == 0, rng.below(2) == 0, rng.below(2) == 0);
    match rng.below(17) {
        0 => {
            let protocol =
                [Protocol::Tcp, Protocol::Udp, Protocol::Icmp, Protocol::Raw][rng.below(4) as usize];
            Command::Bind {
                token,
                lease,
                protocol,
                local,
                reuse_addr,
                reuse_port,
                v6_only,
                device: atoll_ipc::Device::None,
            }
        }
        1 => Command::Release { lease },
        2 => Command::Listen {
            token,
            lease,
            local,
            backlog: rng.next_u32(),
            reuse_port,
            defer_accept: 0,
            v6_only,
            hops_min: [0; 2],
        },
        3 => Command::AcceptConnection { lease },
        4 => Command::StopAccepting { lease },
        5 => Command::Claim { slot, generation },
        6 => Command::Connect { slot, generation, lease, local, remote },
        7 => {
            let kind = DatagramKind::from_u8(rng.below(3) as u8).expect("one of three");
            Command::UdpOpen { slot, generation, lease, local, remote, reuse_port, v6_only, kind }
        }
        8 | 9 => Command::Kick { slot, generation },
        10 => {
            let mode = if rng.below(2) == 0 { CloseMode::Abort } else { CloseMode::Graceful };
            Command::Close { slot, generation, mode }
        }
        11 => Command::SetOption { slot, generation, option, value },
        12 => Command::SetListenerOption { lease, option, value },
        13 => Command::AskConnection { lease, takes: reuse_addr },
        14 => {
            let protocol = if v6_only { Protocol::Tcp } else { Protocol::Udp };
            let pass = Pass { lease, uid: rng.below(3), protocol, port: local.port };
            // Every second seal is one that a supervisor could have made.
            let seal = if reuse_addr { seal_pass(&[9; 16], &pass) } else { rng.next_u64() };
            Command::Pass { pass, seal }
        }
        15 => {
            let (granted, seal) = (rng.next_u64() >> rng.below(64), rng.next_u64());
            let voucher = Voucher { uid: rng.below(3), flags: rng.next_u32() as u8, granted, seal };
            Command::Show { lease, protocol: Protocol::Udp, local, voucher }
        }
        _ => Command::Info { token, slot, generation },
    }
}

/// A small arena, so that random words hit something.
const SMALL: ArenaConfig = ArenaConfig { slots: 1024, send_log2: 16, receive_log2: 16 };

#[test]
fn others_are_served_while_one_scribbles_over_its_arena() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    server.listen(&mut net, 77, Endpoint::new(0, 80), 64);
    let mut hostile = App::attach_with(net.stack(0), 2, SMALL);
    net.settle();
    let mut client = App::attach(net.stack(1), 3);
    let mut rng = Rng::new(2);
    let mut served = 0;
    for round in 0..2000 {
        for _ in 0..50 {
            // Most of the words are where they do harm: in the rings and the slots in use.
            let start = match rng.below(4) {
                0 => hostile.layout.commands + rng.below(ring_bytes(COMMANDS) as u32) as usize,
                1 => hostile.layout.slots + rng.below(4 * 256) as usize,
                2 => hostile.layout.slots + (512 + rng.below(4) as usize) * 256 + rng.below(256) as usize,
                _ => rng.below(hostile.layout.total as u32) as usize,
            };
            let value = if rng.below(2) == 0 { rng.next_u64() } else { u64::from(rng.below(5000)) };
            hostile.arena.store64((start & !7).min(hostile.arena.len() - 8), value);
        }
        for _ in 0..rng.below(4) {
            // The ring's state is garbage now; the application pushes with a fresh producer.
            hostile.raw().push_anyhow(random_command(&mut rng));
        }
        if round % 20 == 0 {
            let c = client.connect(Endpoint::new(addr(1), 80));
            net.settle();
            net.wait(Duration::from_millis(1));
            // The hostile application may have connected, too.
            let is_ours = |server: &App, s: Socket| server.peer(s).addr == addr(2).into();
            while let Some(s) = server.accept() {
                if !is_ours(&server, s) {
                    server.close(s);
                    continue;
                }
                client.write(c, b"hello");
                net.settle();
                assert_eq!(server.read(s), b"hello");
                server.write(s, b"world");
                server.close(s);
                net.settle();
                assert_eq!(client.read(c), b"world");
                served += 1;
            }
            client.close(c);
            client.poll();
            server.poll();
        }
        net.now += Duration::from_micros(500);
        net.step();
    }
    assert_eq!(served, 100);
    assert!(net.stack(0).stat(Stat::BadCommands) > 100);
    let (now, id) = (net.now, hostile.id);
    net.stack(0).transport.close_session(now, id);
    net.wait(Duration::from_secs(120));
    assert_eq!(net.stack(0).stat(Stat::Sessions), 1, "all of it is gone");
}

/// Commands that make sense one by one come in any order, from an application with a consistent arena.
#[test]
fn random_commands_never_panic_and_everything_comes_back() {
    for seed in 0..30 {
        let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
        let mut apps: Vec<App> = (0..3).map(|n| App::attach(net.stack(0), n)).collect();
        let mut peer = App::attach(net.stack(1), 9);
        peer.listen(&mut net, 1, Endpoint::new(0, 80), 8);
        let mut rng = Rng::new(seed);
        for _ in 0..1500 {
            let app = &mut apps[rng.below(3) as usize];
            match rng.below(8) {
                0 => {
                    let slot = app.raw().open_slot_at(rng.below(4), rng.below(3) + 1);
                    let n = rng.below(3000) as usize;
                    app.raw().store(slot, &vec![1; n]);
                }
                1 => {
                    for event in app.raw().events() {
                        if let Event::ConnectionAvailable { slot, generation, .. } = event {
                            app.raw().claim(Socket { slot, generation });
                        }
                    }
                }
                2 => {
                    let c = peer.connect(Endpoint::new(addr(1), 80 + rng.below(20) as u16));
                    peer.raw().store(c, b"abc");
                    peer.raw().kick(c);
                }
                3 => app.poll(),
                _ => app.raw().push(random_command(&mut rng)),
            }
            peer.poll();
            if rng.below(3) == 0 {
                net.now += Duration::from_millis(rng.below(100).into());
                net.step();
            }
        }
        for app in &apps {
            let now = net.now;
            net.stack(0).transport.close_session(now, app.id);
        }
        let now = net.now;
        net.stack(1).transport.close_session(now, peer.id);
        net.wait(Duration::from_secs(400));
        for stack in &mut net.stacks {
            assert_eq!(stack.buffer_bytes(), 0, "seed {seed}");
            assert_eq!((stack.stat(Stat::Connections), stack.stat(Stat::Sessions)), (0, 0), "seed {seed}");
            assert_eq!(stack.stat(Stat::TimeWaits), 0, "seed {seed}");
            assert!(
                stack.transport.connections.timers().is_empty() && !stack.transport.has_work(),
                "seed {seed}"
            );
        }
    }
}

#[test]
fn a_lie_about_positions_costs_the_liar_its_connection_only() {
    for lie in 0..4 {
        let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
        let mut server = App::attach(net.stack(0), 1);
        server.listen(&mut net, 77, Endpoint::new(0, 80), 64);
        let mut client = App::attach(net.stack(1), 3);
        let (liar, honest) =
            (client.connect(Endpoint::new(addr(1), 80)), client.connect(Endpoint::new(addr(1), 80)));
        net.settle();
        let (_, s) = (server.accept(), server.accept().expect("second"));
        let slot = client.slot(liar);
        match lie {
            0 => slot.set_send_tail(u64::MAX),
            1 => slot.set_receive_head(1),
            // The tail is within the limits, but nothing is there.
            2 => slot.set_send_tail(5000),
            _ => {
                client.write(liar, b"some text");
                net.settle();
                client.slot(liar).set_send_tail(3);
            }
        }
        client.raw().kick(liar);
        net.settle();
        assert_eq!(
            client.state(liar).2 & atoll_ipc::slot::REPLICA_CLOSED,
            atoll_ipc::slot::REPLICA_CLOSED,
            "{lie}"
        );
        client.write(honest, b"fine");
        net.settle();
        assert_eq!(server.read(s), b"fine");
    }
}

#[test]
fn noise_and_mutated_frames_never_panic() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    server.listen(&mut net, 77, Endpoint::new(0, 80), 64);
    let mut client = App::attach(net.stack(1), 3);
    let mut rng = Rng::new(5);
    let mut kept: Vec<Vec<u8>> = Vec::new();
    for n in 0..4000 {
        if n % 40 == 0 {
            let c = client.connect(Endpoint::new(addr(1), 80));
            client.raw().store(c, &[3; 5000]);
            client.raw().kick(c);
        }
        net.now += Duration::from_micros(300);
        for i in 0..2 {
            let now = net.now;
            net.stack(i).round(now);
        }
        for i in 0..2 {
            let frames: Vec<_> = net.stack(i).out.outside.drain(..).collect();
            for frame in frames {
                let now = net.now;
                kept.push(frame.clone());
                for _ in 0..rng.below(4) {
                    let source = rng.below(kept.len() as u32) as usize;
                    let mut bad = kept[source].clone();
                    for _ in 0..1 + rng.below(4) {
                        let at = rng.below(bad.len().min(80) as u32) as usize;
                        bad[at] = rng.next_u32() as u8;
                    }
                    bad.truncate(bad.len() - rng.below(2) as usize * rng.below(bad.len() as u32) as usize);
                    let to = rng.below(2) as usize;
                    let internal = rng.below(8) == 0;
                    net.stack(to).transport.handle_frame(
                        now,
                        &bad,
                        atoll_ip::ChecksumOffload::Valid,
                        internal,
                    );
                }
                net.stack(1 - i).transport.handle_frame(
                    now,
                    &frame,
                    atoll_ip::ChecksumOffload::Partial,
                    false,
                );
            }
        }
        if let Some(s) = server.accept() {
            let _ = server.read(s);
            server.close(s);
        }
        client.poll();
    }
}
