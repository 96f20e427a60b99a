//! Checks that a greedy program does not keep others from their work. A program on each machine fills its
//! command rings again and again (groups, ports, listeners, sockets, connections, nonsense), and each command
//! costs time. Others must make progress in each window of time.

use atoll_base::{Addr, Duration, Endpoint, Instant, Rng, SlotId};
use atoll_ipc::command::{CloseMode, DatagramKind, Protocol};
use atoll_ipc::page::Stat;
use atoll_ipc::{Command, Event, SocketOption};

use super::{Departure, LEDGER, Process, SHARE, World, WorldViolation, address};

/// The resource that a greedy program asks for too often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appetite {
    /// The program joins and leaves multicast groups.
    Groups,
    /// The program takes ports.
    Ports,
    /// The program opens listeners, and offers to accept again and again.
    Listeners,
    /// The program opens and closes datagram sockets.
    Datagrams,
    /// The program opens connections to ports without a listener.
    Connections,
    /// The program claims that slots have changed, and sends commands that make no sense.
    Nonsense,
}

impl Appetite {
    /// All appetites.
    pub const ALL: [Appetite; 6] = [
        Appetite::Groups,
        Appetite::Ports,
        Appetite::Listeners,
        Appetite::Datagrams,
        Appetite::Connections,
        Appetite::Nonsense,
    ];
}

/// The state of a greedy program, beside that of every program.
#[derive(Debug)]
pub(super) struct Greedy {
    appetite: Appetite,
    /// The sockets of the program, by replica.
    sockets: Vec<(usize, SlotId, u32)>,
    /// The command that follows the last one.
    next: Option<Command>,
    /// The number of commands that the program has sent so far.
    said: u32,
}

/// The progress of other programs, and since when it has not changed.
#[derive(Debug)]
pub(super) struct Watch {
    done: u64,
    since: Instant,
    commands: u64,
}

/// The longest time that others may be without progress if nothing is lost and no process dies;
/// `WINDOW_OF_LOSSES` applies otherwise. (Waiting for the second question to a neighbour, or for the first
/// time-out of a segment, takes longer.)
const WINDOW: Duration = Duration::from_millis(500);
const WINDOW_OF_LOSSES: Duration = Duration::from_secs(20);
/// The cost of a command, in nanoseconds.
const COMMAND_NANOS: u64 = 200;
/// The number of commands after which a greedy program slows down, so that a story comes to its end.
const GREED: u32 = 30_000;

impl Greedy {
    pub(super) fn new(appetite: Appetite) -> Greedy {
        Greedy { appetite, sockets: Vec::new(), next: None, said: 0 }
    }

    /// Returns one more command for a replica.
    fn want(&mut self, process: &mut Process, replica: usize, rng: &mut Rng) -> Option<Command> {
        if let Some(next) = self.next.take() {
            return Some(next);
        }
        let any = Endpoint::new(0, 0);
        // The authority of the port is that replica, as for the lease.
        let count = process.ports.len() as u32;
        let own_port = 2000 + (rng.below(300) * count + replica as u32) as u16;
        let own_port = own_port - own_port % count as u16 + replica as u16;
        let own_lease = 1 << 32 | u64::from(own_port);
        let take = |protocol| Command::Bind {
            token: 0,
            lease: own_lease,
            protocol,
            local: Endpoint::new(0, own_port),
            reuse_addr: true,
            reuse_port: false,
            v6_only: false,
            device: atoll_ipc::Device::None,
        };
        let lease = 1000 + u64::from(rng.below(1 << 20));
        let (token, reuse_port, v6_only) = (0, false, false);
        let own = self.sockets.iter().rposition(|(at, ..)| *at == replica);
        let wants_socket = match self.appetite {
            Appetite::Groups => own.is_none(),
            Appetite::Datagrams | Appetite::Connections => rng.below(2) == 0,
            _ => false,
        };
        if wants_socket && let Some((slot, generation)) = process.ports[replica].allocate_slot() {
            process.ports[replica].slot(slot)?.set_holders(1);
            self.sockets.push((replica, slot, generation));
            return Some(match self.appetite {
                Appetite::Connections => {
                    let remote = Endpoint::new(address(1 + rng.below(2) as u8), 9);
                    Command::Connect { slot, generation, lease, local: any, remote }
                }
                _ => {
                    let (lease, local, remote) = (own_lease, Endpoint::new(0, own_port), any);
                    let open = Command::UdpOpen {
                        slot,
                        generation,
                        lease,
                        local,
                        remote,
                        reuse_port,
                        v6_only,
                        kind: DatagramKind::Udp,
                    };
                    self.next = Some(open);
                    take(Protocol::Udp)
                }
            });
        }
        match self.appetite {
            Appetite::Groups => {
                let (_, slot, generation) = self.sockets[own?];
                let group = Addr::v4(0xefff_0000 | rng.below(1 << 16));
                Some(Command::Group {
                    slot,
                    generation,
                    group,
                    inside: false,
                    joins: rng.below(3) > 0,
                    token,
                })
            }
            Appetite::Ports => {
                let (protocol, reuse_addr) =
                    (if rng.below(2) == 0 { Protocol::Tcp } else { Protocol::Udp }, false);
                Some(Command::Bind {
                    token,
                    lease,
                    protocol,
                    local: any,
                    reuse_addr,
                    reuse_port,
                    v6_only,
                    device: atoll_ipc::Device::None,
                })
            }
            Appetite::Listeners => {
                let (lease, local) = (own_lease, Endpoint::new(0, own_port));
                Some(match rng.below(4) {
                    0 => take(Protocol::Tcp),
                    1 => Command::AcceptConnection { lease },
                    2 if rng.below(8) == 0 => Command::Release { lease },
                    _ => Command::Listen {
                        token,
                        lease,
                        local,
                        backlog: 99,
                        reuse_port,
                        defer_accept: 0,
                        v6_only,
                        hops_min: [0; 2],
                    },
                })
            }
            Appetite::Datagrams | Appetite::Connections => {
                let (_, slot, generation) = self.sockets.swap_remove(own?);
                process.ports[replica].close_slot(slot, generation, 0);
                Some(Command::Close { slot, generation, mode: CloseMode::Abort })
            }
            Appetite::Nonsense => {
                let (slot, generation) = (SlotId(rng.below(140)), rng.below(3));
                let option = SocketOption::from_u8(rng.below(24) as u8).unwrap_or(SocketOption::NoDelay);
                Some(match rng.below(5) {
                    0 => Command::SetOption { slot, generation, option, value: rng.next_u32() },
                    1 => Command::SetListenerOption { lease, option, value: 1 },
                    2 => Command::Close { slot, generation, mode: CloseMode::Abort },
                    3 => Command::Claim { slot, generation },
                    _ => Command::Kick { slot, generation },
                })
            }
        }
    }
}

impl Process {
    /// Runs a greedy program between two sleeps. Returns `false` if the process is none.
    pub(super) fn run_greedy(&mut self, now: Instant, rng: &mut Rng) -> bool {
        let Some(mut greedy) = self.greedy.take() else { return false };
        for replica in 0..self.ports.len() {
            while let Some(event) = self.ports[replica].next_event() {
                if let Event::SlotDone { slot, generation } = event {
                    self.ports[replica].slot_done(slot, generation);
                }
            }
            self.ports[replica].publish();
            for _ in 0..1 + rng.below(400) {
                let Some(command) = greedy.want(self, replica, rng) else { break };
                greedy.said += 1;
                if !self.ports[replica].push(&command) {
                    break;
                }
            }
        }
        let most = if greedy.said < GREED { 50 } else { 20_000 };
        self.wakes_at = Some(now + Duration::from_micros(1 + u64::from(rng.below(most))));
        self.greedy = Some(greedy);
        true
    }
}

impl World {
    /// Adds a greedy program to each machine.
    pub(super) fn invite(&mut self, appetite: Appetite) {
        for machine in 0..2 {
            self.attach_as(machine, Some(Greedy::new(appetite)));
        }
        self.watch = Some(Watch { done: 0, since: self.now, commands: 0 });
    }

    /// Ends the greedy programs.
    pub(super) fn dismiss_greedy(&mut self) {
        for process in self.processes.iter_mut().filter(|process| process.greedy.is_some() || process.hoards)
        {
            let replicas = self.machines[process.machine].replicas.len();
            let outlived = self.story.workforce.outlived;
            process
                .departure
                .get_or_insert_with(|| Departure::new(self.now, outlived, replicas, &mut self.rng));
        }
    }

    /// Charges time for commands. Checks that others have made progress since the last window, and that
    /// nothing has grown that should not.
    pub(super) fn watch(&mut self) -> Result<(), WorldViolation> {
        let Some(mut watch) = self.watch.take() else { return Ok(()) };
        let replicas = || self.machines.iter().flat_map(|machine| &machine.replicas);
        let commands: u64 = replicas().map(|replica| replica.stat(Stat::Commands)).sum();
        let carried_out = commands.saturating_sub(watch.commands);
        watch.commands = commands;
        // One round has passed since then.
        let sessions =
            |machine: usize| self.processes.iter().filter(|process| process.machine == machine).count();
        let most: usize = (0..2).map(|at| sessions(at) * self.machines[at].replicas.len()).sum();
        let is_ending = self.processes.iter().any(|process| process.departure.is_some());
        if carried_out > most as u64 * u64::from(SHARE) && !is_ending {
            return Err(WorldViolation::Commands(carried_out));
        }
        self.now += Duration::from_nanos(carried_out * COMMAND_NANOS);
        if let Some(most) = replicas().map(|replica| replica.requests_in_force()).max()
            && most > LEDGER.requests as usize
        {
            return Err(WorldViolation::Requests(most));
        }
        let others = self.processes.iter().filter(|process| process.greedy.is_none());
        let done: u64 = others
            .map(|process| {
                let sockets = process.sockets.values();
                let moved: usize = sockets.map(|socket| 1 + socket.sent + socket.got).sum();
                process.finished * (2 * process.length as u64 + 1000) + moved as u64
            })
            .sum();
        let calm = self.story.loss == 0 && self.story.crashes == 0 && self.story.late == 0;
        let window = if calm { WINDOW } else { WINDOW_OF_LOSSES };
        if done != watch.done || self.story.connections == 0 {
            (watch.done, watch.since) = (done, self.now);
        } else if self.now.since(watch.since) > window && !self.is_over() {
            return Err(WorldViolation::Starved { time: self.now.since(watch.since), report: self.report() });
        }
        self.watch = Some(watch);
        Ok(())
    }
}
