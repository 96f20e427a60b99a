//! The parts that all server processes have in common: how they start, wait, and get requests of the
//! supervisor.
//!
//! ```text
//!   start  descriptors and setup; requests of the supervisor until it says "adopt": then the server is ready
//!   loop   one round of the work of each server in the process
//!          now and then: requests of the supervisor, counters
//!          nothing to do for any of them: spin for a while,
//!            then sleep on {bells, control sockets, timer, devices}
//! ```
//!
//! A process has one server, except that a process for replicas (`host.rs`) may have several, which interact
//! as if they were in processes of their own. The three kinds of server with a process of their own start in
//! one way ([`OwnProcess`]); all four kinds count, end and hand over in one way ([`Role`]).

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;

use atoll_base::{Duration, Epoch, Instant, ReplicaId, SpinPolicy};
use atoll_ipc::control::Request;
use atoll_ipc::page::{REPLICA_PAGE_BYTES, ReplicaPage, STACK_PAGE_BYTES, StackFacts, StackPage, Stat};
use atoll_ipc::{Memory, Tally};
use atoll_shm::{Access, ShmMemory};
use atoll_sys::epoll::{self, Epoll, EventFlags};
use atoll_sys::timer::LazyTimer;
use atoll_sys::{Calibration, Clock, eventfd, process, sched, unix};

use crate::failure;
use crate::log;
use crate::mesh::{Mesh, SECRETS_BYTES};
use crate::privileges::{self, Becomes, EndsWith, Kind};
use crate::scheduling::Scheduling;
use crate::setup::{LEFT, OwnSetup, ProcessSetup, READY, Setup, UP};

/// The time between two checks of the control socket while there is work, and the delay before a ring or a
/// socket that was full is offered its data again.
pub const CONTROL_EVERY: Duration = Duration::from_millis(1);
/// The time between two publications of the counters, and between two checks of the steering table.
const PUBLISH_EVERY: Duration = Duration::from_millis(50);
/// The most requests of the supervisor that a serving server carries out before its next round.
const REQUESTS_AT_ONCE: u32 = 16;
/// The most batches of others' last messages that are taken before the end.
const DRAIN_ROUNDS: usize = 4096;
/// Longest request of the supervisor in bytes.
const REQUEST_MAX: usize = 4096;

/// Kinds of epoll tokens: a token is the server's number in its process times `TOKEN_KINDS`, plus the kind.
/// `TOKEN_TIMER` and `TOKEN_INTAKE` are whole tokens.
const TOKEN_DEVICE: u64 = 0;
const TOKEN_BELL: u64 = 1;
const TOKEN_CONTROL: u64 = 2;
const TOKEN_KINDS: u64 = 4;
const TOKEN_TIMER: u64 = u64::MAX;
const TOKEN_INTAKE: u64 = u64::MAX - 1;

/// Whether a server continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Go,
    /// The server stops.
    Stop,
    /// Another process continues with this server, and gets a ledger of this version.
    Leave(u32),
}

/// The descriptors and memories that a server inherits, in the order of `setup.rs`.
pub struct Inherited {
    control: unix::Channel,
    /// The stack page, mapped read-only.
    pub stack: StackPage<ShmMemory>,
    /// The facts on the stack page.
    pub facts: StackFacts,
    /// The server's own page.
    pub page: ReplicaPage<ShmMemory>,
    bell: OwnedFd,
    /// The keys that servers share, mapped read-only.
    pub secrets: ShmMemory,
    /// The rings to and from other servers.
    pub mesh: Mesh,
    rest: std::vec::IntoIter<OwnedFd>,
}

impl Inherited {
    /// Takes the `descriptors` that the supervisor passed when it started the process of server `me`; `pairs`
    /// is the list in its setup. Fails if they are too few, or not what they should be.
    pub fn take(descriptors: usize, me: u8, pairs: &[u8]) -> io::Result<Inherited> {
        Inherited::of(process::take_inherited(descriptors)?, me, pairs)
    }

    /// Maps and sorts the descriptors of server `me`; `pairs` is the list in its setup.
    pub fn of(descriptors: Vec<OwnedFd>, me: u8, pairs: &[u8]) -> io::Result<Inherited> {
        let mut rest = descriptors.into_iter();
        let control = unix::Channel::from(next(&mut rest)?);
        let stack = StackPage(ShmMemory::map(next(&mut rest)?, STACK_PAGE_BYTES, Access::ReadOnly)?);
        let page = ReplicaPage(ShmMemory::map_page(next(&mut rest)?, REPLICA_PAGE_BYTES, Access::ReadWrite)?);
        let bell = next(&mut rest)?;
        let secrets = ShmMemory::map(next(&mut rest)?, SECRETS_BYTES, Access::ReadOnly)?;
        let shared = pairs.iter().map(|_| next(&mut rest)).collect::<io::Result<_>>()?;
        let mesh = Mesh::map(me.into(), pairs, shared)?;
        let facts = stack.facts().ok_or_else(|| io::Error::other("the stack page is of another version"))?;
        Ok(Inherited { control, stack, facts, page, bell, secrets, mesh, rest })
    }

    /// Takes the next of the descriptors that only some kinds of servers get. Fails if there is none.
    pub fn next(&mut self) -> io::Result<OwnedFd> {
        next(&mut self.rest)
    }

    /// Takes the next `count` of the descriptors that only some kinds of servers get. Fails if they are
    /// fewer.
    pub fn take_next(&mut self, count: usize) -> io::Result<Vec<OwnedFd>> {
        (0..count).map(|_| self.next()).collect()
    }

    /// Returns a clock that agrees with those of the other processes of the stack.
    pub fn clock(&self) -> Clock {
        clock_of(&self.facts)
    }
}

/// Returns a clock that agrees with those of the other processes of the stack.
pub fn clock_of(facts: &StackFacts) -> Clock {
    let [tsc0, ns0, mult, _] = facts.calibration;
    Clock::new(Calibration { tsc0, ns0, mult })
}

fn next(fds: &mut std::vec::IntoIter<OwnedFd>) -> io::Result<OwnedFd> {
    fds.next().ok_or_else(|| io::Error::other("the supervisor passed too few descriptors"))
}

/// How a process is to run.
pub struct ProcessConfig<'a> {
    /// The name that `ps` shows.
    pub name: &'a str,
    /// The kind of server, which decides about privileges.
    pub kind: Kind,
    /// The processor to run on.
    pub cpu: Option<usize>,
    /// Whether the process chooses its scheduling policy (`scheduling.rs`), rather than keep the one that it
    /// is started with.
    pub batch: bool,
    /// How late the timer of the process may fire.
    pub slack: Duration,
    /// Whether a guardian starts another supervisor when this one has died, so that the process outlives it.
    pub guarded: bool,
    /// The user that the process becomes; `None` keeps the supervisor's user.
    pub becomes: Option<Becomes>,
}

impl<'a> ProcessConfig<'a> {
    /// Makes the configuration of a process with this setup. `name` is what `ps` shows; `kind` decides about
    /// privileges; `slack` is how late its timer may fire.
    pub fn of(name: &'a str, kind: Kind, slack: Duration, setup: &ProcessSetup) -> ProcessConfig<'a> {
        ProcessConfig {
            name,
            kind,
            cpu: setup.cpu,
            batch: setup.batch_scheduling,
            slack,
            guarded: setup.guarded,
            becomes: setup.user.map(|user| Becomes { user, supervisor: setup.supervisor }),
        }
    }
}

impl ProcessConfig<'_> {
    fn ends_with(&self) -> EndsWith {
        if self.guarded { EndsWith::Stack } else { EndsWith::Supervisor }
    }
}

/// The clock, epoll instances and timer with which a process sleeps.
struct Waiting {
    clock: Clock,
    epoll: Epoll,
    timer: LazyTimer,
    scheduling: Scheduling,
    /// Watches the control socket alone, until the supervisor has said everything. If this is `None`, a
    /// server's doorbell and device are watched once it serves.
    briefing: Option<Epoll>,
    /// Whether the process outlives its supervisor.
    guarded: bool,
}

impl Waiting {
    /// Sets name, processor and scheduling policy of the process, and creates a timer, and an epoll instance
    /// that watches only that.
    fn new(clock: Clock, config: &ProcessConfig<'_>) -> io::Result<Waiting> {
        sched::set_name(config.name)?;
        if let Some(cpu) = config.cpu {
            sched::set_affinity(&[cpu])?;
        }
        let scheduling = Scheduling::new(config.batch, clock.now())?;
        let timer = LazyTimer::new(config.slack)?;
        let epoll = Epoll::new()?;
        epoll.add(&timer, TOKEN_TIMER, EventFlags::IN | EventFlags::ET)?;
        Ok(Waiting { clock, epoll, timer, scheduling, briefing: None, guarded: config.guarded })
    }
}

/// The state of one server that does not depend on its kind. A process may have several.
pub struct ServerProcess {
    control: unix::Channel,
    bell: OwnedFd,
    /// The server's own page.
    pub page: ReplicaPage<ShmMemory>,
    /// The counters that predecessors left.
    tally: Tally,
    /// Decides how long to spin.
    pub patience: SpinPolicy,
    /// Packets for the supervisor that its socket has not taken yet.
    pub answers: VecDeque<Vec<u8>>,
    /// The number of doorbells of others that this server has rung.
    pub bells_rung: u64,
    sleeps: u64,
    rounds: u64,
    busy_nanos: u64,
    sleep_word: u32,
    publish_at: Instant,
    /// Whether something has happened that the counters on the page do not show yet.
    unpublished: bool,
    /// Whether the server outlives its supervisor.
    guarded: bool,
    /// Whether the server serves: the supervisor has said everything that there was to say.
    pub is_ready: bool,
    /// The ledger version to write when leaving; `Some` once the server was asked to leave, which it does as
    /// soon as its answers are sent.
    leaving: Option<u32>,
    /// `Some` while the server is idle; the flag says whether to spin before sleeping.
    waits: Option<bool>,
    /// The means to sleep, held here until a [`Process`] of this one server takes them.
    waiting: Option<Waiting>,
    doorbells: Doorbells,
}

/// The doorbells by which sessions ring a replica, one per session, so that whatever a program attaches to
/// its doorbell slows down only its own ring.
///
/// New doorbells are watched only before the next sleep: a replica that succeeds another one is busy, and
/// gets many doorbells at once.
#[derive(Default)]
struct Doorbells {
    all: BTreeMap<u32, OwnedFd>,
    /// Sessions whose doorbells are not watched yet. They may have ended.
    new: Vec<u32>,
    /// Doorbells of sessions that have ended. They are still watched, because other processes have the same
    /// files open.
    old: Vec<OwnedFd>,
}

impl Doorbells {
    /// Watches new doorbells, and stops watching those of ended sessions. Tries again later what the kernel
    /// refuses, and returns whether anything is left to try.
    fn settle(&mut self, epoll: &Epoll, token: u64) -> bool {
        for bell in self.old.drain(..) {
            // It may not have been watched yet.
            let _ = epoll.delete(&bell);
        }
        let all = &self.all;
        self.new.retain(|session| {
            all.get(session).is_some_and(|bell| match epoll.add(bell, token, eventfd::WATCHED) {
                Err(error) => error.raw_os_error() != Some(libc::EEXIST),
                Ok(()) => false,
            })
        });
        !self.new.is_empty()
    }
}

impl ServerProcess {
    /// Watches `doorbell`, which the session rings from now on.
    pub fn watch(&mut self, session: u32, doorbell: OwnedFd) {
        let bells = &mut self.doorbells;
        bells.old.extend(bells.all.insert(session, doorbell));
        bells.new.push(session);
    }

    /// Stops watching the doorbell of a session that has ended.
    pub fn unwatch(&mut self, session: u32) {
        let bells = &mut self.doorbells;
        bells.old.extend(bells.all.remove(&session));
    }

    /// Prepares the one server of a process, and gives up all privileges. `device` wakes the server when a
    /// frame has come.
    ///
    /// Call after receiving all descriptors and before reading shared memory.
    pub fn settle(
        inherited: Inherited,
        config: &ProcessConfig<'_>,
        device: Option<&impl AsFd>,
    ) -> io::Result<ServerProcess> {
        let mut waiting = Waiting::new(inherited.clock(), config)?;
        if let Some(device) = device {
            waiting.epoll.add(device, TOKEN_DEVICE, EventFlags::IN)?;
        }
        waiting.epoll.add(&inherited.bell, TOKEN_BELL, eventfd::WATCHED)?;
        waiting.epoll.add(&inherited.control, TOKEN_CONTROL, EventFlags::IN)?;
        let briefing = Epoll::new()?;
        briefing.add(&inherited.control, TOKEN_CONTROL, EventFlags::IN)?;
        waiting.briefing = Some(briefing);
        privileges::confine(config.kind, config.ends_with(), config.becomes, &inherited.page)?;
        Ok(ServerProcess { waiting: Some(waiting), ..ServerProcess::new(inherited) })
    }

    /// Creates one of several servers, in a process that has given up its privileges already.
    pub fn new(inherited: Inherited) -> ServerProcess {
        let now = inherited.clock().now();
        ServerProcess {
            patience: SpinPolicy::new(Duration::from_micros(u64::from(inherited.facts.spin_us))),
            control: inherited.control,
            bell: inherited.bell,
            tally: Tally::read(&inherited.page),
            page: inherited.page,
            answers: VecDeque::new(),
            bells_rung: 0,
            sleeps: 0,
            rounds: 0,
            busy_nanos: 0,
            sleep_word: 0,
            publish_at: now,
            unpublished: true,
            guarded: false,
            is_ready: false,
            leaving: None,
            waits: None,
            waiting: None,
            doorbells: Doorbells::default(),
        }
    }

    /// Writes the server's number and epoch on its page.
    pub fn announce(&self, server: u8, epoch: u32) {
        self.page.announce(ReplicaId(server), Epoch(epoch));
    }

    /// Sends packets that wait for the supervisor, as many as its socket takes.
    fn send_answers(&mut self) -> io::Result<()> {
        while let Some(packet) = self.answers.front() {
            match tell(&self.control, packet) {
                Ok(()) => self.answers.pop_front(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }

    /// Accounts for a round that has taken from `now` to `then`.
    fn account(&mut self, now: Instant, then: Instant, busy: bool) {
        self.rounds += 1;
        if busy {
            self.busy_nanos += then.since(now).as_nanos() as u64;
            self.unpublished = true;
            if self.waits.take().is_some() {
                self.patience.end(now);
            }
        }
    }

    /// Notes that no server of the process has anything to do. Returns whether to spin for this one.
    fn spins(&mut self, now: Instant) -> bool {
        match self.waits {
            Some(_) => self.patience.goes_on(now),
            None => *self.waits.insert(self.patience.begin(now)),
        }
    }

    /// Puts a counter on the page: what this incarnation has counted, plus what earlier ones have.
    pub fn publish_stat(&self, stat: Stat, value: u64) {
        self.page.set_stat(stat, self.tally.with(stat, value));
    }

    /// Puts on the page the counters that all kinds of servers have.
    fn publish(&mut self, now: Instant) {
        self.unpublished = false;
        self.page.set_heartbeat(now.as_nanos());
        for (stat, value) in [
            (Stat::BellsRung, self.bells_rung),
            (Stat::Sleeps, self.sleeps),
            (Stat::Rounds, self.rounds),
            (Stat::BusyNanos, self.busy_nanos),
        ] {
            self.publish_stat(stat, value);
        }
    }
}

/// The part of a server that depends on its kind.
pub trait Role {
    /// The most rounds in which a server sends what it has kept when it is succeeded, so that the successor
    /// does not wait long for a receiver that takes nothing.
    const HAND_OVER_ROUNDS: usize = 4096;

    /// Returns the state that does not depend on the kind of server.
    fn server(&mut self) -> &mut ServerProcess;

    /// Returns the state that does not depend on the kind of server, for reading.
    fn own(&self) -> &ServerProcess;

    /// Runs one round of all work. Returns whether there was anything to do.
    fn round(&mut self, now: Instant) -> io::Result<bool>;

    /// Sends what others must know before this server sleeps. Returns how many doorbells were rung.
    fn before_sleep(&mut self, now: Instant) -> u64;

    /// Writes the sleep word where senders look: an odd `word` says that the server's doorbell is wanted.
    fn set_sleep_word(&mut self, word: u32);

    /// Returns whether there is work for which no sender will ring. Call after the sleep word was set.
    fn is_ready(&self) -> bool;

    /// Returns when to wake up at the latest.
    fn next_timeout(&mut self, now: Instant) -> Option<Instant>;

    /// Reads state that changes seldom. Called every 50 ms while the server works.
    fn refresh(&mut self);

    /// Calls `put` for each counter of this kind of server.
    fn count(&self, put: impl FnMut(Stat, u64));

    /// Puts the counters of this kind of server on the page.
    fn publish(&mut self) {
        let own = self.own();
        self.count(|stat, value| own.publish_stat(stat, value));
    }

    /// Returns the highest sleep word that a predecessor has left where senders look, which may differ from
    /// the one on the page.
    fn past_sleep_word(&self) -> u32;

    /// Returns the device that wakes the server when a frame has come, unless that is watched from the start.
    fn device(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Takes over what a predecessor has left; the supervisor has described everything else before. `blamed`
    /// says whether the predecessor died by its own fault.
    fn adopt(&mut self, _now: Instant, _blamed: bool) -> io::Result<()> {
        Ok(())
    }

    /// Runs one round of sending what a successor would not find. Returns whether more is left to send.
    fn pass_on(&mut self, _now: Instant) -> bool {
        false
    }

    /// Converts the ledger, if this kind has one, to this version.
    fn write_ledger(&mut self, _version: u32) {}

    /// Prepares for a successor in another process, which reads a ledger of version `ledger`.
    fn hand_over(&mut self, now: Instant, ledger: u32) {
        for _ in 0..Self::HAND_OVER_ROUNDS {
            if !self.pass_on(now) {
                break;
            }
            sched::yield_now();
        }
        self.write_ledger(ledger);
    }

    /// Takes up to a batch of the last messages of others, which have ended already. Returns whether there
    /// were any.
    fn drain(&mut self, _now: Instant) -> bool {
        false
    }

    /// Sends the server's own last frames and messages.
    fn close(&mut self, _now: Instant) {}

    /// Ends the server because the stack ends.
    fn finish(&mut self, now: Instant) {
        // The others have ended, so there is no more than their rings hold.
        for _ in 0..DRAIN_ROUNDS {
            if !self.drain(now) {
                break;
            }
        }
        self.close(now);
    }

    /// Carries out a request of the supervisor that is not common to all servers. Answers go to
    /// [`ServerProcess::answers`].
    fn handle_request(&mut self, now: Instant, request: Request, fds: &mut Vec<OwnedFd>) -> io::Result<()>;

    /// Sets the sleep word, on the page and where senders look.
    fn change_sleep_word(&mut self, word: u32) {
        let server = self.server();
        server.sleep_word = word;
        server.page.set_sleep_word(word);
        self.set_sleep_word(word);
    }

    /// Publishes counters that are due, and carries out the supervisor's requests. Returns whether to
    /// continue.
    fn housekeeping(&mut self, now: Instant) -> io::Result<Verdict> {
        let server = self.server();
        if now >= server.publish_at {
            server.publish_at = now + PUBLISH_EVERY;
            self.refresh();
            self.server().publish(now);
            self.publish();
        }
        self.server().send_answers()?;
        let (mut packet, mut fds) = ([0; REQUEST_MAX], Vec::new());
        // Requests behind the one to leave are for the successor, to which everything is repeated.
        let mut turns = 0;
        while self.server().leaving.is_none() {
            // Programs that come and go cause requests, too; others are served in between.
            if self.server().is_ready && turns >= REQUESTS_AT_ONCE {
                break;
            }
            turns += 1;
            fds.clear();
            match self.server().control.receive(&mut packet, &mut fds) {
                Ok(0) => return Ok(Verdict::Stop),
                Ok(len) => {
                    let Ok(request) = Request::decode(&packet[..len]) else { continue };
                    if let Request::Adopt { blamed } = request {
                        self.adopt(now, blamed)?;
                        // A server about to exit has already reported what became of the connections.
                        self.publish();
                        let server = self.server();
                        if server.guarded {
                            // A supervisor that takes over knows of this process, which was not so when it
                            // started.
                            process::outlive_parent()?;
                        }
                        server.is_ready = true;
                        server.answers.push_back(READY.to_vec());
                        continue;
                    }
                    if let Request::HandOver { ledger } = request {
                        self.server().leaving = Some(ledger);
                        continue;
                    }
                    if request == Request::Stop {
                        self.finish(now);
                        return Ok(Verdict::Stop);
                    }
                    self.handle_request(now, request, &mut fds)?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let server = self.server();
        server.send_answers()?;
        Ok(server.leaving.filter(|_| server.answers.is_empty()).map_or(Verdict::Go, Verdict::Leave))
    }
}

/// A kind of server that has a process of its own. [`main`] does what is common to their starts.
pub trait OwnProcess: Role + Sized {
    /// The setup on the command line.
    type Setup: OwnSetup;
    /// The descriptors that only this kind of server gets.
    type Given;
    /// The name of this kind of server, for people.
    const NAME: &'static str;
    /// The name of the process, without the number that follows it.
    const PROCESS: &'static str;

    /// Takes the descriptors that only this kind of server gets.
    fn take(setup: &Self::Setup, inherited: &mut Inherited) -> io::Result<Self::Given>;

    /// Returns the kind of server, which decides about privileges.
    fn kind(given: &Self::Given) -> Kind;

    /// Returns the queue that wakes the server when a frame has come, if it has one.
    fn queue(given: &Self::Given) -> Option<BorrowedFd<'_>>;

    /// Creates the server once all privileges are given up.
    fn start(
        setup: &Self::Setup,
        given: Self::Given,
        stack: Surroundings,
        server: ServerProcess,
    ) -> io::Result<Self>;
}

/// The part of the stack that a server sees.
pub struct Surroundings {
    /// The stack page, mapped read-only.
    pub page: StackPage<ShmMemory>,
    /// The facts that were on the stack page at the start.
    pub facts: StackFacts,
    /// The rings to and from other servers.
    pub mesh: Mesh,
    /// A clock that agrees with those of the other processes of the stack.
    pub clock: Clock,
}

/// Sends a packet to the supervisor. That the supervisor is gone is no error: who serves ends for that, as
/// soon as it looks at the connection.
fn tell(supervisor: &unix::Channel, packet: &[u8]) -> io::Result<()> {
    match supervisor.send(packet, &[]) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        sent => sent,
    }
}

/// Runs a server with the descriptors and the setup of the supervisor until it is stopped. Returns the exit
/// status of the process.
pub fn main<R: OwnProcess>(setup: &R::Setup) -> ExitCode {
    run(&format!("{} {}", R::NAME, setup.process().index), start::<R>(setup))
}

fn start<R: OwnProcess>(setup: &R::Setup) -> io::Result<R> {
    let (common, process) = (setup.server(), setup.process());
    let mut inherited = Inherited::take(process.descriptors, common.server, &common.pairs)?;
    let given = R::take(setup, &mut inherited)?;
    let stack = Surroundings {
        page: inherited.stack.clone(),
        facts: inherited.facts,
        mesh: inherited.mesh.clone(),
        clock: inherited.clock(),
    };
    let name = format!("{}{}", R::PROCESS, process.index);
    let config = ProcessConfig::of(&name, R::kind(&given), CONTROL_EVERY, process);
    let server = ServerProcess::settle(inherited, &config, R::queue(&given).as_ref())?;
    let mut role = R::start(setup, given, stack, server)?;
    role.server().announce(common.server, common.epoch);
    Ok(role)
}

/// The source of more servers for a process.
pub struct Intake<R> {
    /// The socket over which the supervisor gives servers, one per packet, with their descriptors.
    pub control: unix::Channel,
    /// Creates a server from a packet and its descriptors.
    pub take: fn(&[u8], Vec<OwnedFd>) -> io::Result<R>,
}

/// The servers of one process, and what it sleeps with.
pub struct Process<R> {
    waiting: Waiting,
    members: Vec<Member<R>>,
    /// The number of the next server.
    next: u64,
    intake: Option<Intake<R>>,
    /// When to check control sockets and counters again.
    look_at: Instant,
}

struct Member<R> {
    number: u64,
    role: R,
    /// Whether the server serves, and its doorbell and device are watched.
    serves: bool,
}

impl<R: Role> Process<R> {
    /// Prepares a process that gets servers one after another, and gives up all privileges. Its confinement,
    /// and a violation of it, are reported on `page`.
    ///
    /// Call after receiving all descriptors and before reading shared memory.
    pub fn settle(
        clock: Clock,
        config: &ProcessConfig<'_>,
        page: &ReplicaPage<ShmMemory>,
        intake: Intake<R>,
    ) -> io::Result<Process<R>> {
        let waiting = Waiting::new(clock, config)?;
        waiting.epoll.add(&intake.control, TOKEN_INTAKE, EventFlags::IN)?;
        privileges::confine(config.kind, config.ends_with(), config.becomes, page)?;
        tell(&intake.control, UP)?;
        let look_at = clock.now();
        Ok(Process { waiting, members: Vec::new(), next: 0, intake: Some(intake), look_at })
    }

    /// Creates the process of one server, for which [`ServerProcess::settle`] has been called.
    fn of(mut role: R) -> io::Result<Process<R>> {
        let waiting = role.server().waiting.take();
        let waiting = waiting.ok_or_else(|| io::Error::other("a server that has not settled"))?;
        let look_at = waiting.clock.now();
        let mut process = Process { waiting, members: Vec::new(), next: 0, intake: None, look_at };
        process.add(role);
        Ok(process)
    }

    /// Adds a server and returns its number. The server serves once the supervisor says that this is all:
    /// before that a replica would answer for connections that it does not know yet.
    fn add(&mut self, mut role: R) -> u64 {
        // A predecessor may have died asleep, and others may have rung for that sleep, so its sleep word is
        // not used again.
        let (page, rings) = (role.server().page.sleep_word(), role.past_sleep_word());
        let last = if rings.wrapping_sub(page) as i32 > 0 { rings } else { page };
        role.change_sleep_word(last.wrapping_add(1) & !1);
        role.server().guarded = self.waiting.guarded;
        let number = self.next;
        self.next += 1;
        self.members.push(Member { number, role, serves: false });
        number
    }

    /// Serves until all servers have left or were stopped, or the supervisor is gone.
    pub fn serve(mut self) -> io::Result<()> {
        let clock = self.waiting.clock;
        let mut now = clock.now();
        loop {
            let mut busy = false;
            for Member { role, .. } in self.members.iter_mut().filter(|member| member.serves) {
                let was_busy = role.round(now)?;
                let then = clock.now();
                role.server().account(now, then, was_busy);
                busy |= was_busy;
                now = then;
            }
            if now >= self.look_at && self.look(now)? == Verdict::Stop {
                return Ok(());
            }
            if busy {
                continue;
            }
            let mut spins = false;
            for Member { role, .. } in self.members.iter_mut().filter(|member| member.serves) {
                // Asks every server; asking also starts its idle period.
                spins |= role.server().spins(now);
            }
            if spins {
                let then = now;
                // The application may be waiting for this very processor.
                sched::yield_now();
                now = clock.now();
                for Member { role, .. } in &mut self.members {
                    role.server().patience.yielded(then, now);
                }
                continue;
            }
            self.sleep(now)?;
            now = clock.now();
        }
    }

    /// Handles the supervisor's requests to each server and to the process. Returns whether to continue.
    fn look(&mut self, now: Instant) -> io::Result<Verdict> {
        self.look_at = now + CONTROL_EVERY;
        let mut at = 0;
        while let Some(member) = self.members.get_mut(at) {
            let verdict = member.role.housekeeping(now)?;
            if verdict == Verdict::Go {
                if member.role.server().is_ready && !member.serves {
                    self.begin(at)?;
                }
                at += 1;
                continue;
            }
            self.end(at, now, verdict)?;
            if self.members.is_empty() {
                return Ok(Verdict::Stop);
            }
        }
        self.take_in()
    }

    /// Makes the server at `at` serve.
    fn begin(&mut self, at: usize) -> io::Result<()> {
        let Some(member) = self.members.get_mut(at) else { return Ok(()) };
        member.serves = true;
        if self.waiting.briefing.take().is_some() {
            // The doorbell and the device of the only server are watched from the start.
            return Ok(());
        }
        let (epoll, first) = (&self.waiting.epoll, member.number * TOKEN_KINDS);
        if let Some(device) = member.role.device() {
            epoll.add(device, first + TOKEN_DEVICE, EventFlags::IN)?;
        }
        epoll.add(&member.role.server().bell, first + TOKEN_BELL, eventfd::WATCHED)
    }

    /// Removes a server that was stopped, or leaves.
    fn end(&mut self, at: usize, now: Instant, verdict: Verdict) -> io::Result<()> {
        let Member { mut role, serves, .. } = self.members.remove(at);
        if let (Verdict::Leave(ledger), true) = (verdict, serves) {
            role.hand_over(now, ledger);
            role.publish();
            role.server().publish(now);
        }
        if serves && self.intake.is_some() {
            // The supervisor has the same files open, so closing ours does not remove them from the epoll
            // set.
            if let Some(device) = role.device() {
                self.waiting.epoll.delete(device)?;
            }
            self.waiting.epoll.delete(&role.server().bell)?;
            for bell in role.server().doorbells.all.values() {
                let _ = self.waiting.epoll.delete(bell);
            }
        }
        if matches!(verdict, Verdict::Leave(_)) {
            // This comes last: from here on a successor may write to the memory of this server.
            tell(&role.server().control, LEFT)?;
        }
        Ok(())
    }

    /// Takes the servers that the supervisor gives.
    fn take_in(&mut self) -> io::Result<Verdict> {
        let (mut packet, mut fds) = ([0; REQUEST_MAX], Vec::new());
        loop {
            let Some(intake) = &self.intake else { return Ok(Verdict::Go) };
            match intake.control.receive(&mut packet, &mut fds) {
                Ok(0) => return Ok(Verdict::Stop),
                Ok(len) => {
                    let role = (intake.take)(&packet[..len], std::mem::take(&mut fds))?;
                    let token = self.add(role) * TOKEN_KINDS + TOKEN_CONTROL;
                    if let Some(member) = self.members.last_mut() {
                        self.waiting.epoll.add(&member.role.server().control, token, EventFlags::IN)?;
                    }
                    // The new server's requests may have come meanwhile.
                    self.look_at = self.waiting.clock.now();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Verdict::Go),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sleeps until a doorbell, a device, the supervisor or the timer wakes the process.
    fn sleep(&mut self, now: Instant) -> io::Result<()> {
        if let Some(briefing) = &self.waiting.briefing {
            briefing.wait(&mut [epoll::EMPTY; 1], None)?;
            self.look_at = now;
            return Ok(());
        }
        let (mut unwatched, mut many) = (false, false);
        for Member { role, number, .. } in self.members.iter_mut().filter(|member| member.serves) {
            unwatched |=
                role.server().doorbells.settle(&self.waiting.epoll, *number * TOKEN_KINDS + TOKEN_BELL);
            many |= role.server().patience.has_many();
            let rung = role.before_sleep(now);
            role.server().bells_rung += rung;
            let asleep = role.server().sleep_word | 1;
            role.change_sleep_word(asleep);
        }
        self.waiting.scheduling.before_sleep(many, now);
        if let Some(member) = self.members.first_mut() {
            // Pairs with the fence of a sender between its store into the ring and its read of the sleep
            // word.
            member.role.server().page.0.fence();
        }
        let is_ready = self.members.iter().any(|member| member.serves && member.role.is_ready());
        if !is_ready {
            // Doorbells that are not watched may have been rung.
            let mut deadline = unwatched.then_some(now + CONTROL_EVERY);
            let mut answers = false;
            for Member { role, serves, .. } in &mut self.members {
                let timeout = if *serves { role.next_timeout(now) } else { None };
                let server = role.server();
                answers |= !server.answers.is_empty();
                let answers_at = (!server.answers.is_empty()).then_some(now + CONTROL_EVERY);
                // A server publishes its counters before it sleeps for long.
                let publish_at = server.unpublished.then_some(server.publish_at).filter(|_| *serves);
                server.sleeps += u64::from(*serves);
                deadline = [deadline, timeout, answers_at, publish_at].into_iter().flatten().min();
            }
            if let Some(deadline) = deadline {
                self.waiting.timer.wake_at(now, deadline)?;
            }
            let mut events = [epoll::EMPTY; 64];
            let count = self.waiting.epoll.wait(&mut events, None)?;
            let of_control = |event: &epoll::Event| match epoll::token(event) {
                TOKEN_TIMER => false,
                TOKEN_INTAKE => true,
                token => token % TOKEN_KINDS == TOKEN_CONTROL,
            };
            if answers || events[..count].iter().any(of_control) {
                self.look_at = now;
            }
        }
        for Member { role, .. } in self.members.iter_mut().filter(|member| member.serves) {
            let awake = (role.server().sleep_word | 1).wrapping_add(1);
            role.change_sleep_word(awake);
        }
        Ok(())
    }
}

/// Runs the one server of a process until it is stopped. `name` is the server's name in messages.
fn run<R: Role>(name: &str, role: io::Result<R>) -> ExitCode {
    report(name, role.and_then(Process::of).and_then(Process::serve))
}

/// Returns the exit status of a process, and logs its error. `name` names the process in messages to people.
pub fn report(name: &str, ended: io::Result<()>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let shortage = failure::is_shortage(&error);
            event!(
                server_failed,
                { process = name, error = error.to_string(), errno = log::errno(&error), shortage },
                "{name}: {error}"
            );
            failure::exit_code(shortage)
        }
    }
}

#[cfg(test)]
mod tests {
    use atoll_sys::unix::Blocking;

    use super::*;

    #[test]
    fn who_has_nobody_to_tell_goes_on_and_finds_the_end() {
        let (server, supervisor) = unix::Channel::pair(Blocking::No).unwrap();
        drop(supervisor);
        tell(&server, UP).unwrap();
        assert_eq!(server.receive(&mut [0; 16], &mut Vec::new()).unwrap(), 0);
    }
}
