//! Measures how long one session can make a round. The time is measured, not judged:
//! `cargo test --release -p atoll-transport rounds_of_one -- --ignored --nocapture`. Each case runs five
//! times, and the shortest time of each round counts, because other programs use the processor, too.

use std::boxed::Box;
use std::println;
use std::vec::Vec;

use atoll_base::{Duration, Endpoint, Epoch};
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::command::{CloseMode, Protocol};
use atoll_ipc::ledger::{Ledger, LedgerConfig};
use atoll_ipc::{Command, HeapMemory};

use super::kit::{ARENA, App, Net, Socket, Stack, addr};

/// The share that a replica gives each session (`bin/atoll/src/replica.rs`).
const SHARE: u32 = 512;
const LARGE: LedgerConfig = LedgerConfig { connections: 1 << 16, requests: 1 << 16, text_units: 1 << 10 };
const MANY: u32 = 4000;

/// Creates two stacks, the first with a ledger that has room.
fn net() -> Net {
    let mut net = Net::new(std::vec![Stack::new(1), Stack::new(2)]);
    let ledger = Ledger::open(HeapMemory::new(LARGE.bytes()), LARGE, Epoch(3)).expect("a ledger");
    net.stack(0).transport.set_ledger(ledger);
    net
}

fn attach(net: &mut Net, stack: usize, id: u32) -> App {
    App::attach_with(net.stack(stack), id, ArenaConfig { slots: 1 << 17, receive_log2: 26, ..ARENA })
}

/// The time of each round.
type Rounds = Vec<std::time::Duration>;

/// Runs the first stack until it has nothing left to do at once.
fn rounds(net: &mut Net, mut each: impl FnMut(&mut Net)) -> Rounds {
    let mut rounds = Rounds::new();
    for _ in 0..500 {
        each(net);
        net.now += Duration::from_micros(50);
        let now = net.now;
        let stack = net.stack(0);
        let begin = std::time::Instant::now();
        let busy = stack.transport.handle_commands(now, SHARE);
        stack.transport.handle_timers(now);
        stack.flush(now);
        rounds.push(begin.elapsed());
        stack.out.outside.clear();
        if !busy && !stack.transport.is_behind() {
            break;
        }
    }
    rounds
}

/// Opens many connections of a session of the first stack to the second.
fn connected(net: &mut Net) -> App {
    let mut server = attach(net, 1, 9);
    let mut big = attach(net, 0, 1);
    server.listen(net, 77, Endpoint::new(0, 80), 4096);
    for n in 0..MANY {
        big.connect(Endpoint::new(addr(2), 80));
        if n % 64 == 63 {
            net.settle();
            while server.accept().is_some() {}
            net.settle();
        }
    }
    net.settle();
    big
}

/// Opens many connections, which are not accepted yet, at a listener of a session of the first stack.
fn waiting(net: &mut Net) -> App {
    let mut client = attach(net, 1, 9);
    let mut big = attach(net, 0, 1);
    big.listen_only(net, 77, Endpoint::new(0, 80), 4096);
    for n in 0..MANY {
        client.connect(Endpoint::new(addr(1), 80));
        if n % 64 == 63 {
            net.settle();
        }
    }
    net.settle();
    big
}

type Case = (&'static str, Box<dyn Fn() -> Rounds>);

fn cases() -> Vec<Case> {
    let ends = |is_cut_off: bool| {
        move || {
            let mut net = net();
            let big = connected(&mut net);
            let now = net.now;
            if is_cut_off {
                net.stack(0).transport.cut_off(now, big.id);
            }
            net.stack(0).transport.close_session(now, big.id);
            rounds(&mut net, |_| {})
        }
    };
    let listener = |command: Command| {
        move || {
            let mut net = net();
            let mut big = waiting(&mut net);
            big.raw().push(command);
            rounds(&mut net, |_| {})
        }
    };
    let floods = |command: fn(u32, Socket) -> Command| {
        move || {
            let mut net = net();
            let mut big = attach(&mut net, 0, 1);
            let socket = big.open_datagrams(&mut net, Endpoint::new(0, 5353), Endpoint::default());
            net.settle();
            let mut n = 0;
            rounds(&mut net, |_| {
                // The ring is never empty, and never full.
                for _ in 0..if n == 0 { 2000 } else { 32 } {
                    n += 1;
                    big.raw().push(command(n, socket));
                }
                big.raw().events();
            })
        }
    };
    std::vec![
        ("a session with 4000 connections ends", Box::new(ends(false))),
        ("it is cut off", Box::new(ends(true))),
        (
            "an acceptor comes for 4000 connections",
            Box::new(listener(Command::AcceptConnection { lease: 77 }))
        ),
        ("their listener goes", Box::new(listener(Command::Release { lease: 77 }))),
        (
            "a member is gone that held 3000 sockets",
            Box::new(|| {
                let mut net = net();
                let mut big = attach(&mut net, 0, 1);
                for n in 0..3000 {
                    let socket =
                        big.open_datagrams(&mut net, Endpoint::new(0, 5000 + n), Endpoint::default());
                    net.step();
                    big.slot(socket).add_holder(5);
                }
                net.settle();
                let now = net.now;
                net.stack(0).transport.member_gone(now, big.id, 5);
                rounds(&mut net, |_| {})
            }),
        ),
        (
            "groups are joined and left",
            Box::new(floods(|n, Socket { slot, generation }| {
                let group = (0xef00_0000 | (n / 2)).into();
                Command::Group { slot, generation, group, inside: false, joins: n % 2 == 0, token: 0 }
            })),
        ),
        (
            "ports are taken and given back",
            Box::new(floods(|n, _| {
                let (lease, protocol) = (u64::from(n / 2), Protocol::Tcp);
                let local = Endpoint::new(0, 0);
                let (token, reuse_addr, reuse_port, v6_only) = (n, false, false, false);
                match n % 2 {
                    0 => Command::Bind {
                        token,
                        lease,
                        protocol,
                        local,
                        reuse_addr,
                        reuse_port,
                        v6_only,
                        device: atoll_ipc::Device::None,
                    },
                    _ => Command::Release { lease },
                }
            })),
        ),
        (
            "ports are asked for where all 28232 are leased",
            Box::new(|| {
                let mut net = net();
                let mut big = attach(&mut net, 0, 1);
                let mut lease = 0;
                rounds(&mut net, |net| {
                    // Two rounds are not measured.
                    while lease < 28_232 + 2000 {
                        lease += 1;
                        let (token, protocol, local) = (lease as u32, Protocol::Tcp, Endpoint::new(0, 0));
                        let (reuse_addr, reuse_port, v6_only) = (false, false, false);
                        big.raw().push(Command::Bind {
                            token,
                            lease,
                            protocol,
                            local,
                            reuse_addr,
                            reuse_port,
                            v6_only,
                            device: atoll_ipc::Device::None,
                        });
                        if lease % 32 == 0 && lease < 28_232 {
                            net.step();
                            big.poll();
                        }
                    }
                    big.raw().events();
                })
            }),
        ),
        (
            "connections to nowhere",
            Box::new(floods(|n, _| {
                let (slot, generation) = (atoll_base::SlotId(1 + n / 2 % 1000), 1);
                let (remote, local) = (Endpoint::new(addr(77), 80), Endpoint::default());
                match n % 2 {
                    0 => Command::Connect { slot, generation, lease: 0, local, remote },
                    _ => Command::Close { slot, generation, mode: CloseMode::Abort },
                }
            })),
        ),
        (
            "connections where all 28232 ports are in use",
            Box::new(|| {
                let mut net = net();
                let mut big = attach(&mut net, 0, 1);
                for n in 0..28_232 {
                    big.connect(Endpoint::new(addr(77), 80));
                    if n % 32 == 31 {
                        net.step();
                        net.stack(0).out.outside.clear();
                    }
                }
                net.step();
                // What was learned on the way would make it too easy.
                net.stack(0).transport.connections.forget_searches();
                for _ in 0..64 {
                    big.connect(Endpoint::new(addr(77), 80));
                }
                rounds(&mut net, |_| {})
            }),
        ),
    ]
}

#[test]
#[ignore = "a measurement"]
fn rounds_of_one_session() {
    for (name, case) in cases() {
        // Each run does the same, so what exceeds the least time of a round is another program's.
        let runs: Vec<Rounds> = (0..5).map(|_| case()).collect();
        let least = (0..runs[0].len()).filter_map(|round| runs.iter().filter_map(|run| run.get(round)).min());
        println!(
            "{name}: {} rounds, the longest {} us",
            runs[0].len(),
            least.max().map_or(0, |time| time.as_micros())
        );
    }
}
