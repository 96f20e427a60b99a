//! Checks that a whole transport server survives whatever comes over the wire, and whatever its applications
//! do to shared memory.
//!
//! There are one replica, one or two attached processes, and peers whose every segment is decided by the
//! input. Segments are near what the connections expect, because the server's own answers are read. At the
//! end all processes and peers leave, and nothing may be left behind. The server may die in between. Then
//! another one continues from its ledger, part of which was changed.

mod legacy;
mod memory;
mod process;
mod wire;

use std::collections::VecDeque;

use atoll_base::{Duration, Epoch, FlowKey, Instant, ReplicaId, SessionId};
use atoll_ip::{ChecksumOffload, Ip};
use atoll_ipc::Memory;
use atoll_ipc::page::{REPLICA_PAGE_BYTES, ReplicaPage, Stat};
use atoll_transport::{Config, FrameSink, Offload, Secrets, TextRef, Transport};
use atoll_wire::tcp::HEADER_MAX;

use crate::features::mark;
use crate::input::Input;
use crate::ip::{MAC_PEER, MAC_US, PEER, US};
use legacy::Legacy;
use memory::SparseMemory;
use process::Process;
use wire::Peers;

/// The most connections: few, so that the limit is reached.
const CONNECTIONS_MAX: usize = 12;
/// The most frames that one step may cause: more than fits into the windows of all connections in the
/// smallest segments.
const FRAMES_MAX: usize = 50_000;
/// The number of rounds that bind(2) and listen(2) take.
const ROUNDS_TO_LISTEN: usize = 3;

/// Runs frames of every kind, and an application that keeps to the rules.
pub fn stack_frames(data: &[u8]) {
    Machine::new(false).live(data);
}

/// Runs frames of every kind, and an application that writes anything anywhere in its memory.
pub fn stack_arena(data: &[u8]) {
    Machine::new(true).live(data);
}

/// Runs frames of every kind, servers that die, and ledgers that others have written to.
pub fn stack_ledger(data: &[u8]) {
    Machine::mortal().live(data);
}

/// The destination of frames of the server.
struct Out {
    outside: VecDeque<Vec<u8>>,
    inside: VecDeque<Vec<u8>>,
    room: usize,
    segment_max: u32,
}

impl FrameSink<SparseMemory> for Out {
    fn send(&mut self, headers: &[u8], text: TextRef<'_, SparseMemory>, offload: Offload) -> bool {
        assert!(offload.gso_size.is_none_or(|size| size > 0 && text.len() > usize::from(size)));
        assert!(text.len() <= self.segment_max.max(1460) as usize);
        let Some(room) = self.room.checked_sub(1) else { return false };
        self.room = room;
        self.outside.push_back(whole(headers, &text));
        true
    }

    fn send_internal(&mut self, headers: &[u8], text: TextRef<'_, SparseMemory>, _: Offload) -> bool {
        assert!(headers.len() + text.len() <= 65_535 + 14 + HEADER_MAX);
        self.inside.push_back(whole(headers, &text));
        true
    }

    fn segment_max(&self) -> u32 {
        self.segment_max
    }
}

fn whole(headers: &[u8], text: &TextRef<'_, SparseMemory>) -> Vec<u8> {
    let mut frame = headers.to_vec();
    frame.resize(headers.len() + text.len(), 0);
    text.copy_to(&mut frame[headers.len()..]);
    frame
}

struct Machine {
    now: Instant,
    transport: Transport<SparseMemory>,
    /// The memory that outlives the server, if it may die.
    legacy: Option<Legacy>,
    out: Out,
    peers: Peers,
    processes: Vec<Process>,
    /// The number of the step under way.
    opcode: u8,
    /// The watched counters as of the last round.
    counters: [u64; WATCHED.len()],
}

impl Machine {
    fn new(hostile: bool) -> Machine {
        Machine::at(SparseMemory::new(REPLICA_PAGE_BYTES), hostile)
    }

    /// Creates a machine whose replica has the page `page`.
    fn at(page: SparseMemory, hostile: bool) -> Machine {
        let now = Instant::from_millis(1000);
        let mut transport = server(now, page.clone(), Epoch(3));
        let mut processes = vec![Process::attach(&mut transport, &page, SessionId(1), false)];
        if hostile {
            processes.push(Process::attach(&mut transport, &page, SessionId(2), true));
        }
        for process in &mut processes {
            process.listen();
        }
        let out = Out {
            outside: VecDeque::new(),
            inside: VecDeque::new(),
            room: usize::MAX,
            segment_max: 16 << 10,
        };
        let (legacy, counters) = (None, [0; WATCHED.len()]);
        Machine { now, transport, legacy, out, peers: Peers::new(), processes, opcode: 0, counters }
    }

    fn live(mut self, data: &[u8]) {
        let mut input = Input::new(data);
        self.begin();
        while !input.is_empty() {
            self.step(&mut input);
        }
        self.end();
    }

    /// Runs rounds until a process listens, before anything arrives from outside. The port is one user's, so
    /// the hostile process listens if there is one.
    fn begin(&mut self) {
        for _ in 0..ROUNDS_TO_LISTEN {
            self.round();
        }
        let listening: Vec<_> = self.processes.iter().map(Process::is_listening).collect();
        let last = self.processes.len() - 1;
        assert!(listening.iter().enumerate().all(|(at, one)| *one == Some(at == last)), "{listening:?}");
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let opcode = input.byte();
        self.opcode = opcode;
        match opcode % 16 {
            0..=6 => {
                let frame = self.peers.segment(input);
                self.receive(&frame, ChecksumOffload::Valid);
            }
            7 => {
                let frame = wire::any_frame(input);
                self.receive(&frame, ChecksumOffload::Unknown);
            }
            8 => {
                let frame = self.peers.icmp(input);
                self.receive(&frame, ChecksumOffload::Valid);
            }
            9..=12 => {
                let which = usize::from(opcode >> 4) % self.processes.len();
                self.processes[which].act(self.now, input);
            }
            13 => {
                self.now += Duration::from_millis(u64::from(input.half()) << (input.byte() % 10));
            }
            14 => {
                let due = self.transport.next_timeout().unwrap_or(self.now);
                self.now = self.now.max(due);
            }
            _ if self.legacy.is_some() => self.die(input),
            _ => self.out.room = if input.flip() { usize::MAX } else { input.byte().into() },
        }
        if !input.byte().is_multiple_of(4) {
            self.round();
        }
    }

    /// Runs one round of the server, and handles what its own link brings back.
    fn round(&mut self) {
        let mut frames = 0;
        loop {
            self.transport.handle_commands(self.now, 64);
            self.transport.handle_timers(self.now);
            self.transport.flush(self.now, &mut self.out);
            self.transport.take_bells(|_, _| {});
            frames += self.out.outside.len() + self.out.inside.len();
            assert!(frames < FRAMES_MAX, "the stack talks without end");
            for frame in self.out.outside.drain(..) {
                self.peers.learn(&frame);
            }
            if self.out.inside.is_empty() {
                break;
            }
            for frame in std::mem::take(&mut self.out.inside) {
                self.receive(&frame, ChecksumOffload::Partial);
            }
        }
        for process in &mut self.processes {
            process.poll(self.now);
        }
        self.check();
    }

    fn receive(&mut self, frame: &[u8], offload: ChecksumOffload) {
        let internal = offload == ChecksumOffload::Partial;
        self.transport.handle_frame(self.now, frame, offload, internal);
    }

    fn check(&mut self) {
        self.transport.publish_stats();
        let stat = |stat| self.transport.stat(stat);
        assert!(stat(Stat::Connections) <= CONNECTIONS_MAX as u64);
        assert!(stat(Stat::TimeWaits) <= 4);
        let mut changed = 0;
        for ((kind, one), before) in (0..).zip(WATCHED).zip(&mut self.counters) {
            let count = stat(*one);
            mark(20 + kind, u64::from(64 - count.leading_zeros()));
            changed |= u64::from(count != std::mem::replace(before, count)) << kind;
        }
        mark(17, changed << 4 | u64::from(self.opcode % 16));
        for row in self.transport.sockets(self.now).take(16) {
            let queues = u64::from(row.receive_queue > 0) << 1 | u64::from(row.send_queue > 0);
            mark(18, u64::from(row.state) << 2 | queues);
        }
    }

    /// Lets all processes and peers leave, and checks that nothing is left after a while.
    fn end(&mut self) {
        self.out.room = usize::MAX;
        for process in &self.processes {
            self.transport.close_session(self.now, process.id);
        }
        self.round();
        let until = self.now + Duration::from_secs(600);
        for _ in 0..20_000 {
            let Some(due) = self.transport.next_timeout().filter(|due| *due < until) else { break };
            self.now = self.now.max(due);
            self.round();
        }
        self.now = until;
        self.round();
        let left = |stat| self.transport.stat(stat);
        let left =
            [Stat::Connections, Stat::Sessions, Stat::BufferBytes, Stat::TimeWaits, Stat::Orphans].map(left);
        let rows: Vec<_> = self.transport.sockets(self.now).collect();
        assert_eq!(left, [0; 5], "left behind: {rows:#?}");
        assert!(!self.transport.has_work(), "there is still something to do");
    }
}

/// Creates a server as it starts.
fn server(now: Instant, page: SparseMemory, epoch: Epoch) -> Transport<SparseMemory> {
    let mut config = Config::new(ReplicaId(0), 1, epoch, FlowKey { k0: 1, k1: 2 });
    config.connections_max = CONNECTIONS_MAX;
    config.time_waits_max = 4;
    config.orphans_max = 3;
    config.datagram_sockets_max = 4;
    config.challenges_per_second = 2;
    let ip_config =
        atoll_ip::Config { neighbours_max: 8, frames_max: 16, ..atoll_ip::Config::new(MAC_US, US, 24) };
    let mut ip = Ip::new(ip_config, 7, now).expect("a valid network");
    ip.handle_neighbour(
        now,
        atoll_ip::NeighbourUpdate { addr: PEER, mac: MAC_PEER, basis: atoll_ip::Basis::Learned },
    );
    let secrets = Secrets { sequence: [9; 16], fast_open: [9; 16], leases: [9; 16], table: 5, ports: 6 };
    let page = ReplicaPage(page);
    page.announce(ReplicaId(0), epoch);
    Transport::new(config, secrets, ip, page, now)
}

/// The counters whose magnitude shows that something new was reached.
const WATCHED: &[Stat] = &[
    Stat::SegmentsDropped,
    Stat::ResetsOut,
    Stat::PassiveOpens,
    Stat::ActiveOpens,
    Stat::Connections,
    Stat::TimeWaits,
    Stat::SynDrops,
    Stat::SynCookiesSent,
    Stat::SynCookiesReceived,
    Stat::AcceptDrops,
    Stat::Claims,
    Stat::ClaimTimeouts,
    Stat::DatagramsIn,
    Stat::DatagramsOut,
    Stat::DatagramsDropped,
    Stat::BadCommands,
    Stat::EventOverflows,
    Stat::BufferBytes,
    Stat::Retransmits,
    Stat::ChallengesSent,
    Stat::ChallengesWithheld,
    Stat::SackIgnored,
    Stat::SackReneged,
    Stat::TextRefused,
    Stat::TextPruned,
    Stat::Orphans,
    Stat::OrphansReset,
    Stat::ConnectionsShed,
];

/// Stores a word wherever `at` falls.
fn scribble(memory: &SparseMemory, at: usize, value: u64) {
    memory.store64((at % memory.len()) & !7, value);
}
