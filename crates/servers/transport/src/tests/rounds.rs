//! How long does one session make a round at most? Measured, not judged, because other programs have the processor, too:
//! `cargo test --release -p atoll-transport rounds -- --ignored --nocapture`. Each case runs five times; what is printed is the longest round of the
//! quickest run, and of the median one.

use std::boxed::Box;
use std::println;
use std::vec::Vec;

use atoll_base::{Duration, Endpoint, Epoch};
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::command::{CloseMode, Protocol};
use atoll_ipc::ledger::{Ledger, LedgerConfig};
use atoll_ipc::{Command, HeapMemory};

use super::kit::{ARENA, App, Net, Socket, Stack, addr};
use super::limits::udp_open;

/// What a replica gives each session (`bin/atoll/src/replica.rs`).
const SHARE: u32 = 512;
const LARGE: LedgerConfig = LedgerConfig { connections: 1 << 16, requests: 1 << 16, text_units: 1 << 10 };
const MANY: u32 = 4000;

/// Two stacks, the first with a ledger that has room.
fn net() -> Net {
    let mut net = Net::new(std::vec![Stack::new(1), Stack::new(2)]);
    let ledger = Ledger::open(HeapMemory::new(LARGE.bytes()), LARGE, Epoch(3)).expect("a ledger");
    net.stack(0).transport.set_ledger(ledger);
    net
}

fn attach(net: &mut Net, stack: usize, id: u32) -> App {
    App::attach_with(net.stack(stack), id, ArenaConfig { slots: 1 << 17, receive_log2: 26, ..ARENA })
}

/// The first stack goes on until it has nothing left to do at once. Returns the longest round.
fn longest(net: &mut Net, mut each: impl FnMut(&mut Net)) -> std::time::Duration {
    let mut longest = std::time::Duration::ZERO;
    for _ in 0..3000 {
        each(net);
        net.now += Duration::from_micros(50);
        let now = net.now;
        let stack = net.stack(0);
        let begin = std::time::Instant::now();
        let busy = stack.transport.handle_commands(now, SHARE);
        stack.transport.handle_timers(now);
        stack.flush(now);
        longest = longest.max(begin.elapsed());
        stack.out.outside.clear();
        if !busy && !stack.transport.is_behind() {
            break;
        }
    }
    longest
}

/// Many open connections of a session of the first stack to the second.
fn connected(net: &mut Net) -> App {
    let mut server = attach(net, 1, 9);
    let mut big = attach(net, 0, 1);
    server.listen(77, Endpoint::new(0, 80), 4096);
    net.settle();
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

/// Many connections that nobody has accepted yet, at a listener of a session of the first stack.
fn waiting(net: &mut Net) -> App {
    let mut client = attach(net, 1, 9);
    let mut big = attach(net, 0, 1);
    big.listen_only(77, Endpoint::new(0, 80), 4096);
    net.settle();
    for n in 0..MANY {
        client.connect(Endpoint::new(addr(1), 80));
        if n % 64 == 63 {
            net.settle();
        }
    }
    net.settle();
    big
}

type Case = (&'static str, Box<dyn Fn() -> std::time::Duration>);

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
            longest(&mut net, |_| {})
        }
    };
    let listener = |command: Command| {
        move || {
            let mut net = net();
            let mut big = waiting(&mut net);
            big.push(command);
            longest(&mut net, |_| {})
        }
    };
    let floods = |command: fn(u32, Socket) -> Command| {
        move || {
            let mut net = net();
            let mut big = attach(&mut net, 0, 1);
            let socket = udp_open(&mut big, Endpoint::new(0, 5353), Endpoint::default());
            net.settle();
            let mut n = 0;
            longest(&mut net, |_| {
                for _ in 0..if n < 200_000 { 600 } else { 0 } {
                    n += 1;
                    big.push(command(n, socket));
                }
                big.poll();
                big.replies.clear();
                big.commands.reload(&big.arena);
            })
        }
    };
    std::vec![
        ("a session with 4000 connections ends", Box::new(ends(false))),
        ("it is cut off", Box::new(ends(true))),
        ("an acceptor comes for 4000 connections", Box::new(listener(Command::AcceptConnection { lease: 77 }))),
        ("their listener goes", Box::new(listener(Command::Release { lease: 77 }))),
        (
            "a member is gone that held 3000 sockets",
            Box::new(|| {
                let mut net = net();
                let mut big = attach(&mut net, 0, 1);
                for n in 0..3000 {
                    let socket = udp_open(&mut big, Endpoint::new(0, 5000 + n), Endpoint::default());
                    net.step();
                    big.slot(socket).add_holder(5);
                }
                net.settle();
                let now = net.now;
                net.stack(0).transport.member_gone(now, big.id, 5);
                longest(&mut net, |_| {})
            }),
        ),
        (
            "groups are joined and left",
            Box::new(floods(|n, Socket { slot, generation }| {
                let group = (0xef00_0000 | n / 2).into();
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
                    0 => Command::Bind { token, lease, protocol, local, reuse_addr, reuse_port, v6_only },
                    _ => Command::Release { lease },
                }
            })),
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
                for _ in 0..64 {
                    big.connect(Endpoint::new(addr(77), 80));
                }
                longest(&mut net, |_| {})
            }),
        ),
    ]
}

#[test]
#[ignore = "a measurement"]
fn rounds_of_one_session() {
    for (name, case) in cases() {
        let mut times: Vec<_> = (0..5).map(|_| case()).collect();
        times.sort();
        println!("{name}: {} us, {} us", times[0].as_micros(), times[2].as_micros());
    }
}
