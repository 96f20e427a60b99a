//! Simulates machines whose replicas move from process to process. A replica is asked to leave, hands over,
//! and continues elsewhere a while later; its input waits meanwhile. Processes die at any moment of that,
//! with all replicas that are in them.
//!
//! ```text
//!   asked   hears      left          taken
//!     |-------|--flush--|.............|--adopt--|      a process dies: on the way, while it hands over, when it has left and that
//!       serves            nobody        serves         was not heard, while it adopts
//! ```
//! The behaviour of replicas is that of the real transport. The supervisor's own rule decides which process
//! each is to be in, and its `Scaler` how many processes there should be. What IP servers and connection
//! managers apart have for a replica that is away lies in their rings (`ip_servers.rs`, `managers.rs`).
//! `departing.rs` handles how it learns of a program that died meanwhile. The supervisor itself has its
//! random stories in `bin/atoll` (`supervise/supervisor/tests`).

use std::collections::VecDeque;

use atoll_base::{Duration, Instant, Rng};
use atoll_supervisor::{Scaler, host_of};

use super::{CRASHES_MAX, LIFE_MAX, Process, Program, World, is_discovery};
use crate::mortal::Life;

/// How replicas move from process to process while connections are active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScalingPlan {
    /// The number of processes at first; no more than replicas are created.
    pub start: u8,
    /// How the number of processes is decided.
    pub by: ScaledBy,
    /// Whether all replicas that are to move leave at once. The supervisor moves one after another.
    pub at_once: bool,
    /// How often a process dies during a move, per million.
    pub deaths: u32,
}

/// How the number of processes is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaledBy {
    /// An operator wants another number about this often.
    Person(Duration),
    /// The supervisor's `Scaler` decides; a frame or a batch of commands counts as this much work.
    Load(Duration),
}

/// The processes that the replicas of a machine are in.
pub(super) struct Hosts {
    plan: ScalingPlan,
    rng: Rng,
    /// The process that each replica is in, or was in last.
    inside: Vec<u8>,
    /// The process that each replica is to be in.
    places: Vec<u8>,
    /// When each replica reads that it is to leave.
    hears_at: Vec<Option<Instant>>,
    /// When each replica that has left or died is back.
    back_at: Vec<Option<Instant>>,
    /// The frames of the link that wait for each replica.
    queues: Vec<VecDeque<(Vec<u8>, bool)>>,
    /// When the number of processes is next decided, and how often that still happens.
    looks_at: Instant,
    looks: u32,
    /// How often each replica has had something to do since the last decision.
    work: Vec<u32>,
    scaler: Scaler,
    /// The numbers of processes that were wanted, in their order.
    numbers: Vec<u8>,
    moves: u32,
}

impl Hosts {
    pub(super) fn new(plan: ScalingPlan, host: u8, replicas: u8, seed: u64, now: Instant) -> Hosts {
        let count = usize::from(replicas);
        let start = plan.start.clamp(1, replicas);
        let looks = match plan.by {
            ScaledBy::Person(_) => CHANGES_MAX,
            ScaledBy::Load(_) => LOOKS_MAX,
        };
        Hosts {
            plan,
            rng: Rng::new(seed ^ 0x686f_7374 ^ u64::from(host) << 40),
            inside: places(count, start),
            places: places(count, start),
            hears_at: vec![None; count],
            back_at: vec![None; count],
            queues: vec![VecDeque::new(); count],
            looks_at: now,
            looks,
            work: vec![0; count],
            scaler: Scaler::new(1, replicas),
            numbers: vec![start],
            moves: 0,
        }
    }

    pub(super) fn serves(&self, index: usize) -> bool {
        self.back_at[index].is_none()
    }

    /// Returns whether a frame reaches a replica now. Otherwise it waits, or is lost if the queue is full.
    pub(super) fn lets_pass(&mut self, index: usize, frame: &[u8], inside: bool) -> bool {
        if self.serves(index) && self.queues[index].is_empty() {
            self.work[index] += 1;
            return true;
        }
        let queue = &mut self.queues[index];
        // Neighbour discovery is not dropped; see `World::put_on_wire`.
        if queue.len() < QUEUE_FRAMES || is_discovery(frame) {
            queue.push_back((frame.to_vec(), inside));
        }
        false
    }

    /// Notes that a replica had something to do, `times` times.
    pub(super) fn note_work(&mut self, index: usize, times: usize) {
        self.work[index] += times as u32;
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let looks_at = (self.looks > 0).then_some(self.looks_at);
        self.hears_at.iter().chain(&self.back_at).copied().flatten().chain(looks_at).min()
    }

    /// Returns whether every replica is where it is to be.
    fn is_settled(&self) -> bool {
        self.inside == self.places && self.hears_at.iter().chain(&self.back_at).all(Option::is_none)
    }

    /// Decides how many processes there should be, if it is time to.
    fn look(&mut self, now: Instant) {
        if self.looks == 0 || now < self.looks_at {
            return;
        }
        self.looks -= 1;
        let count = self.inside.len();
        let last = *self.numbers.last().expect("there is a first");
        let wanted = match self.plan.by {
            ScaledBy::Person(every) => {
                let micros = every.as_micros() as u32;
                self.looks_at = now + Duration::from_micros(u64::from(1 + self.rng.below(2 * micros)));
                Some(1 + self.rng.below(count as u32) as u8)
            }
            ScaledBy::Load(each) => {
                self.looks_at = now + LOOK_EVERY;
                let work = std::mem::replace(&mut self.work, vec![0; count]);
                let share =
                    |work: u32| f64::from(work) * each.as_nanos() as f64 / LOOK_EVERY.as_nanos() as f64;
                let asked: Vec<f64> = work.into_iter().map(share).collect();
                // Replicas in a process that is asked for more than it has time for share that time.
                let all = |place: u8| -> f64 {
                    asked
                        .iter()
                        .zip(&self.inside)
                        .filter(|(_, inside)| **inside == place)
                        .map(|(share, _)| share)
                        .sum()
                };
                let shares: Vec<f64> =
                    asked.iter().zip(&self.inside).map(|(share, at)| share / all(*at).max(1.0)).collect();
                self.is_settled().then(|| self.scaler.look(last, &shares)).flatten()
            }
        };
        if let Some(wanted) = wanted {
            let (min, max) = self.scaler.limits();
            assert!((min..=max).contains(&wanted), "{wanted} processes");
            self.numbers.push(wanted);
            self.places = places(count, wanted);
        }
    }

    /// Asks replicas that are to be elsewhere to leave.
    fn ask(&mut self, now: Instant) {
        let is_moving = self.hears_at.iter().chain(&self.back_at).any(Option::is_some);
        if is_moving && !self.plan.at_once {
            return;
        }
        for index in 0..self.inside.len() {
            if self.inside[index] != self.places[index]
                && self.serves(index)
                && self.hears_at[index].is_none()
            {
                // A replica reads its control socket every millisecond.
                self.hears_at[index] = Some(now + Duration::from_micros(u64::from(self.rng.below(1000))));
                if !self.plan.at_once {
                    return;
                }
            }
        }
    }

    /// Notes that a replica is away for a while: until the supervisor has its message, a process was started,
    /// and that process has read its ledger.
    fn goes(&mut self, now: Instant, index: usize) {
        let most = [200, 2000, 20_000, 300_000][self.rng.below(4) as usize];
        self.back_at[index] = Some(now + Duration::from_micros(u64::from(20 + self.rng.below(most))));
        self.hears_at[index] = None;
    }

    fn dies(&mut self) -> bool {
        self.rng.chance_per_million(self.plan.deaths)
    }
}

impl World {
    /// Moves replicas between processes. Returns whether there was anything to do.
    pub(super) fn run_hosts(&mut self) -> bool {
        let (mut any, now) = (false, self.now);
        if !self.has_begun {
            let listens = |process: &Process| process.program.as_ref().is_some_and(Program::is_listening);
            let is_ready = |process: &Process| process.departure.is_some() || listens(process);
            let is_listener = |process: &&Process| process.is_server && !process.is_rogue;
            self.has_begun = self.processes.iter().filter(is_listener).all(is_ready);
            if self.has_begun {
                self.processes
                    .iter_mut()
                    .filter(|process| !process.is_server && process.greedy.is_none())
                    .for_each(|client| client.wakes_at = Some(now.max(self.begins_at)));
            }
        }
        for at in 0..2 {
            for index in 0..self.machines[at].replicas.len() {
                let Some(hosts) = &mut self.machines[at].hosts else { break };
                hosts.look(now);
                hosts.ask(now);
                if hosts.back_at[index].is_some_and(|back| back <= now) {
                    self.take(at, index);
                } else if hosts.hears_at[index].is_some_and(|hears| hears <= now) {
                    self.leave(at, index);
                } else {
                    continue;
                }
                any = true;
            }
        }
        any
    }

    /// Lets a replica read the frames that have waited for it.
    pub(super) fn read_queue(&mut self, at: usize, index: usize) -> bool {
        let mut any = false;
        for _ in 0..BATCH {
            let machine = &mut self.machines[at];
            let Some((frame, inside)) =
                machine.hosts.as_mut().and_then(|hosts| hosts.queues[index].pop_front())
            else {
                break;
            };
            any = true;
            machine.handle(self.now, index, &frame, inside);
            if machine.replicas[index].is_flush_due() {
                break;
            }
        }
        any
    }

    /// Makes a replica leave, like `Replica::hand_over` in `bin/atoll`: the state that only its process has
    /// is sent out, and the ledger is written for the next process.
    fn leave(&mut self, at: usize, index: usize) {
        let machine = &mut self.machines[at];
        let Some(hosts) = &mut machine.hosts else { return };
        hosts.hears_at[index] = None;
        if self.crashed < CRASHES_MAX && hosts.dies() {
            self.crashed += 1;
            machine.lives[index].shorten(hosts.rng.below(LIFE_MAX).into());
        }
        // Mostly the ledger does not change; otherwise the next process is of a build that knows only an
        // older version, or of one that may write a newer one.
        let version = (hosts.rng.below(3) == 0).then(|| 1 + hosts.rng.below(2));
        for _ in 0..HAND_OVER_ROUNDS {
            self.flush(at, index);
            self.collect(at, index);
            let rung = self.take_bells(at, index);
            self.ring(&rung);
            if !self.send_out(at, index) {
                break;
            }
        }
        let machine = &mut self.machines[at];
        if let Some(version) = version {
            machine.replicas[index].convert_ledger(version);
        }
        if machine.lives[index].is_over() {
            self.process_ends(at, index);
            return;
        }
        // A replica that has left writes nothing any more.
        machine.lives[index].shorten(0);
        let Some(hosts) = &mut machine.hosts else { return };
        let from = hosts.inside[index];
        hosts.moves += 1;
        hosts.inside[index] = hosts.places[index];
        hosts.goes(self.now, index);
        let others: Vec<usize> =
            (0..hosts.inside.len()).filter(|at| hosts.inside[*at] == from && hosts.serves(*at)).collect();
        if let Some(other) = others.first()
            && self.crashed < CRASHES_MAX
            && hosts.dies()
        {
            // The process dies before its leaving replica was reported; that replica has not died.
            self.crashed += 1;
            self.process_ends(at, *other);
        }
    }

    /// Gives a replica to the next process, which continues where the last one was.
    fn take(&mut self, at: usize, index: usize) {
        let machine = &mut self.machines[at];
        machine.lives[index] = Life::new();
        machine.look_for_room(index);
        let Some(hosts) = &mut machine.hosts else { return };
        hosts.back_at[index] = None;
        // The replica may be wanted elsewhere by now.
        hosts.inside[index] = hosts.places[index];
        if self.crashed < CRASHES_MAX && hosts.dies() {
            self.crashed += 1;
            machine.lives[index].shorten(hosts.rng.below(LIFE_MAX).into());
        }
        let rung = self.succeed(at, index);
        self.send_out(at, index);
        self.ring(&rung);
        if self.machines[at].lives[index].is_over() {
            self.process_ends(at, index);
        }
    }

    /// Kills the process that a replica is in, with all its replicas.
    pub(super) fn process_ends(&mut self, at: usize, index: usize) {
        let machine = &mut self.machines[at];
        let Some(hosts) = &mut machine.hosts else { return };
        for other in 0..hosts.inside.len() {
            if hosts.inside[other] == hosts.inside[index] && hosts.serves(other) {
                machine.lives[other].shorten(0);
                hosts.goes(self.now, other);
            }
        }
    }

    /// Returns how often replicas have moved from one process to another without having died.
    pub fn moves(&self) -> u32 {
        self.machines.iter().filter_map(|machine| machine.hosts.as_ref()).map(|hosts| hosts.moves).sum()
    }

    /// Returns the numbers of processes that the server's replicas were to be in, in their order.
    pub fn processes(&self) -> &[u8] {
        self.machines[0].hosts.as_ref().map_or(&[], |hosts| &hosts.numbers)
    }
}

/// Returns the process of each replica if there are `processes` processes.
fn places(replicas: usize, processes: u8) -> Vec<u8> {
    (0..replicas).map(|replica| host_of(replica, processes.into()) as u8).collect()
}

/// The most changes of the number of processes by a person, so that a story comes to its end.
const CHANGES_MAX: u32 = 60;
/// The most decisions by load, so that a story comes to its end.
const LOOKS_MAX: u32 = 20_000;
/// The time between two checks of the load: a story is as short as an hour of a stack is long.
const LOOK_EVERY: Duration = Duration::from_micros(500);
/// The most frames that wait for a replica: fewer than many clients send while it is away.
const QUEUE_FRAMES: usize = 100;
/// The most frames that a replica reads at a time.
const BATCH: usize = 64;
/// The rounds of handing over, as in `bin/atoll`; here no process waits for others.
const HAND_OVER_ROUNDS: usize = 16;
