//! How does every server process start, wait, and hear from its supervisor? What replicas, link servers and
//! connection managers have in common.
//!
//! ```text
//!   start  descriptors and setup; requests of the supervisor until it says "adopt": then the server is ready
//!   loop   one round of the work of each server in the process
//!          now and then: requests of the supervisor, counters
//!          nothing to do for any of them: spin for a while, then sleep on {bells, control sockets, timer, devices}
//! ```
//! A process has one server; that of replicas (`host.rs`) may have several, which know each other as if they
//! were apart. What the four kinds of server have in common is here: how they start ([`OwnProcess`]), and how
//! they count, end and hand over ([`Role`]).

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
use crate::mesh::{Mesh, SECRETS_BYTES};
use crate::privileges::{self, Becomes, EndsWith, Kind};
use crate::setup::{LEFT, OwnSetup, ProcessSetup, READY, Setup, UP};

/// Time between two looks at the control socket while there is work; how soon what a ring or a socket did not
/// take is offered again.
pub const CONTROL_EVERY: Duration = Duration::from_millis(1);
/// Time between two publications of the counters, and two looks at the steering table.
const PUBLISH_EVERY: Duration = Duration::from_millis(50);
/// Requests of the supervisor that a server which serves carries out before its next round.
const REQUESTS_AT_ONCE: u32 = 16;
/// Batches taken of what others have said last, before the end, at most.
const DRAIN_ROUNDS: usize = 4096;
/// Longest request of the supervisor.
const REQUEST_MAX: usize = 4096;

/// Kinds of tokens; the rest of a token is the server's number in its process.
const TOKEN_DEVICE: u64 = 0;
const TOKEN_BELL: u64 = 1;
const TOKEN_CONTROL: u64 = 2;
const TOKEN_KINDS: u64 = 4;
const TOKEN_TIMER: u64 = u64::MAX;
const TOKEN_INTAKE: u64 = u64::MAX - 1;

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Go,
    /// It is over.
    Stop,
    /// Somebody else goes on with it, and finds a ledger of this version.
    Leave(u32),
}

/// What every server is given, in the order of `setup.rs`, and what more there is.
pub struct Inherited {
    control: unix::Channel,
    /// The stack page, for reading.
    pub stack: StackPage<ShmMemory>,
    /// What it says.
    pub facts: StackFacts,
    /// The server's own page.
    pub page: ReplicaPage<ShmMemory>,
    bell: OwnedFd,
    /// The keys that servers share, for reading.
    pub secrets: ShmMemory,
    /// The rings to and from other servers.
    pub mesh: Mesh,
    rest: std::vec::IntoIter<OwnedFd>,
}

impl Inherited {
    /// Takes the `descriptors` that the supervisor passed when the process of server `me` was started;
    /// `pairs`: as in its setup.
    pub fn take(descriptors: usize, me: u8, pairs: &[u8]) -> io::Result<Inherited> {
        Inherited::of(process::take_inherited(descriptors)?, me, pairs)
    }

    /// What these descriptors of server `me` are.
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

    /// The next of what only some servers are given.
    pub fn next(&mut self) -> io::Result<OwnedFd> {
        next(&mut self.rest)
    }

    /// The next `count` of them.
    pub fn take_next(&mut self, count: usize) -> io::Result<Vec<OwnedFd>> {
        (0..count).map(|_| self.next()).collect()
    }

    /// A clock that agrees with those of the other processes of the stack.
    pub fn clock(&self) -> Clock {
        clock_of(&self.facts)
    }
}

/// A clock that agrees with those of the other processes of the stack.
pub fn clock_of(facts: &StackFacts) -> Clock {
    let [tsc0, ns0, mult, _] = facts.calibration;
    Clock::new(Calibration { tsc0, ns0, mult })
}

fn next(fds: &mut std::vec::IntoIter<OwnedFd>) -> io::Result<OwnedFd> {
    fds.next().ok_or_else(|| io::Error::other("the supervisor passed too few descriptors"))
}

/// How a process is to run.
pub struct ProcessConfig<'a> {
    /// What `ps` shows.
    pub name: &'a str,
    /// What it may do.
    pub kind: Kind,
    /// The processor to run on.
    pub cpu: Option<usize>,
    /// Whether to run as SCHED_BATCH.
    pub batch: bool,
    /// How late its timer may be.
    pub slack: Duration,
    /// Whether somebody takes over when the supervisor has died, so that it waits for that.
    pub guarded: bool,
    /// The user that it becomes; `None`: it stays the supervisor's.
    pub becomes: Option<Becomes>,
}

impl<'a> ProcessConfig<'a> {
    /// How a process is to run that is told this. `name`: what `ps` shows; `kind`: what it may do; `slack`:
    /// how late its timer may be.
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

/// What a process sleeps with.
struct Waiting {
    clock: Clock,
    epoll: Epoll,
    timer: LazyTimer,
    /// Watches the control socket alone, until the supervisor has said everything. Without it, what wakes a
    /// server is watched when that is so.
    briefing: Option<Epoll>,
    /// It outlives its supervisor.
    guarded: bool,
}

impl Waiting {
    /// With a timer, and nothing else yet.
    fn new(clock: Clock, config: &ProcessConfig<'_>) -> io::Result<Waiting> {
        sched::set_name(config.name)?;
        if let Some(cpu) = config.cpu {
            sched::set_affinity(&[cpu])?;
        }
        if config.batch {
            sched::set_batch()?;
        }
        let timer = LazyTimer::new(config.slack)?;
        let epoll = Epoll::new()?;
        epoll.add(&timer, TOKEN_TIMER, EventFlags::IN | EventFlags::ET)?;
        Ok(Waiting { clock, epoll, timer, briefing: None, guarded: config.guarded })
    }
}

/// What each server has for itself, also where there are several in a process.
pub struct ServerProcess {
    control: unix::Channel,
    bell: OwnedFd,
    /// The own page.
    pub page: ReplicaPage<ShmMemory>,
    /// What predecessors have counted.
    tally: Tally,
    /// Decides how long to spin.
    pub patience: SpinPolicy,
    /// Packets for the supervisor that its socket did not take yet.
    pub answers: VecDeque<Vec<u8>>,
    /// Bells of others rung.
    pub bells_rung: u64,
    sleeps: u64,
    rounds: u64,
    busy_nanos: u64,
    sleep_word: u32,
    publish_at: Instant,
    /// Something has happened that the counters on the page do not tell.
    unpublished: bool,
    /// It outlives its supervisor.
    guarded: bool,
    /// It serves: the supervisor has said everything that there was to say.
    pub is_ready: bool,
    /// It is to leave as soon as its answers are out, and to write its ledger in this version.
    leaving: Option<u32>,
    /// It has nothing to do, and whether that is a reason to spin.
    waits: Option<bool>,
    /// Of the one server of a process: what that sleeps with.
    waiting: Option<Waiting>,
    doorbells: Doorbells,
}

/// The bells by which sessions ring a replica, one of each. What other programs hang on the bell of one slows
/// nobody down but that one.
///
/// They are watched only before the next sleep: a replica that succeeds another one is busy, and has many at
/// once.
#[derive(Default)]
struct Doorbells {
    all: BTreeMap<u32, OwnedFd>,
    /// Sessions whose bells are not watched yet. They may have ended.
    new: Vec<u32>,
    /// Bells of sessions that have ended, which are still watched: others have the same files open.
    old: Vec<OwnedFd>,
}

impl Doorbells {
    /// Watches those that have come, and those that have gone no more. Whatever the kernel refuses is tried
    /// again. Returns whether that is so.
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
    /// The session rings this bell from now on.
    pub fn watch(&mut self, session: u32, doorbell: OwnedFd) {
        let bells = &mut self.doorbells;
        bells.old.extend(bells.all.insert(session, doorbell));
        bells.new.push(session);
    }

    /// The session has ended.
    pub fn unwatch(&mut self, session: u32) {
        let bells = &mut self.doorbells;
        bells.old.extend(bells.all.remove(&session));
    }

    /// The one server of a process settles down, and gives up all privileges. `device`: what wakes it when a
    /// frame has come.
    ///
    /// To be called when all descriptors are taken, and before anything that others have written is looked
    /// at.
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

    /// One of several, in a process that has settled.
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

    /// Says on the page who this is.
    pub fn announce(&self, server: u8, epoch: u32) {
        self.page.announce(ReplicaId(server), Epoch(epoch));
    }

    /// Sends what waits for the supervisor, as far as its socket takes it.
    fn send_answers(&mut self) -> io::Result<()> {
        while let Some(packet) = self.answers.front() {
            match self.control.send(packet, &[]) {
                Ok(()) => self.answers.pop_front(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }

    /// A round has taken from `now` to `then`.
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

    /// Nobody in the process has anything to do. Whether to spin for this one.
    fn spins(&mut self, now: Instant) -> bool {
        match self.waits {
            Some(_) => self.patience.goes_on(now),
            None => *self.waits.insert(self.patience.begin(now)),
        }
    }

    /// Puts what this life has counted on the page, on top of what those before it have.
    pub fn publish_stat(&self, stat: Stat, value: u64) {
        self.page.set_stat(stat, self.tally.with(stat, value));
    }

    /// Puts the counters on the page that all servers have.
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

/// What a kind of server does, and how it does it.
pub trait Role {
    /// In how many rounds it gets rid of what it has kept, at most, when it is succeeded: nobody waits long
    /// for one that takes nothing.
    const HAND_OVER_ROUNDS: usize = 4096;

    /// What it has for itself.
    fn server(&mut self) -> &mut ServerProcess;

    /// The same, to look at.
    fn own(&self) -> &ServerProcess;

    /// One turn of everything. Returns whether there was anything to do.
    fn round(&mut self, now: Instant) -> io::Result<bool>;

    /// What others are told before it sleeps. Returns how many bells were rung.
    fn before_sleep(&mut self, now: Instant) -> u64;

    /// Tells those who send to it whether its bell is wanted: if `word` is odd.
    fn set_sleep_word(&mut self, word: u32);

    /// Whether something waits for which nobody will ring. Asked after the sleep word was set.
    fn is_ready(&self) -> bool;

    /// When to wake up at the latest.
    fn next_timeout(&mut self, now: Instant) -> Option<Instant>;

    /// Looks at what changes seldom. Every 50 ms of work.
    fn refresh(&mut self);

    /// Says what it counts itself.
    fn count(&self, put: impl FnMut(Stat, u64));

    /// Puts its own counters on the page.
    fn publish(&mut self) {
        let own = self.own();
        self.count(|stat, value| own.publish_stat(stat, value));
    }

    /// The highest sleep word that a predecessor has left where those look who send to it, if it is not the
    /// page's.
    fn past_sleep_word(&self) -> u32;

    /// What wakes it when a frame has come from outside, where that is not watched from the start.
    fn device(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Takes over what a predecessor has left. It has been told of everything that there is now.
    /// `blamed`: who died by its own fault.
    fn adopt(&mut self, _now: Instant, _blamed: bool) -> io::Result<()> {
        Ok(())
    }

    /// A round of getting rid of what a successor would not find. Returns whether there is more of it.
    fn pass_on(&mut self, _now: Instant) -> bool {
        false
    }

    /// Writes the ledger, if it has one, in this version.
    fn write_ledger(&mut self, _version: u32) {}

    /// Another process is going to succeed this one.
    fn hand_over(&mut self, now: Instant, ledger: u32) {
        for _ in 0..Self::HAND_OVER_ROUNDS {
            if !self.pass_on(now) {
                break;
            }
            sched::yield_now();
        }
        self.write_ledger(ledger);
    }

    /// Takes up to a batch of what others have said last: those whose frames it carries have ended before.
    /// Returns whether there was any.
    fn drain(&mut self, _now: Instant) -> bool {
        false
    }

    /// Says its own last words.
    fn close(&mut self, _now: Instant) {}

    /// The stack ends.
    fn finish(&mut self, now: Instant) {
        // What others left is no more than rings hold.
        for _ in 0..DRAIN_ROUNDS {
            if !self.drain(now) {
                break;
            }
        }
        self.close(now);
    }

    /// Does what the supervisor asks, besides what all servers are asked. What it has to say goes to
    /// [`ServerProcess::answers`].
    fn handle_request(&mut self, now: Instant, request: Request, fds: &mut Vec<OwnedFd>) -> io::Result<()>;

    /// Tells everybody the new sleep word.
    fn change_sleep_word(&mut self, word: u32) {
        let server = self.server();
        server.sleep_word = word;
        server.page.set_sleep_word(word);
        self.set_sleep_word(word);
    }

    /// What is done now and then: the supervisor's requests, the counters.
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
        // What comes behind the request to leave is for the successor, who is told of everything.
        let mut turns = 0;
        while self.server().leaving.is_none() {
            // Programs that come and go make requests, too: others are served in between.
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
                        // Who dies soon has said what became of the connections.
                        self.publish();
                        let server = self.server();
                        if server.guarded {
                            // Whoever takes over knows of this process, which was not so when it started.
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

/// A kind of server that has a process of its own. What is alike in the starts of all of them is in [`main`].
pub trait OwnProcess: Role + Sized {
    /// What it is told.
    type Setup: OwnSetup;
    /// What it is given besides what all servers are.
    type Given;
    /// What it is called, for people.
    const NAME: &'static str;
    /// What its process is called, and its number.
    const PROCESS: &'static str;

    /// Takes the descriptors that only this kind is given.
    fn take(setup: &Self::Setup, inherited: &mut Inherited) -> io::Result<Self::Given>;

    /// What it may do.
    fn kind(given: &Self::Given) -> Kind;

    /// What wakes it when a frame has come.
    fn queue(given: &Self::Given) -> Option<BorrowedFd<'_>>;

    /// Begins, when all privileges are given up.
    fn start(setup: &Self::Setup, given: Self::Given, stack: Surroundings, server: ServerProcess) -> io::Result<Self>;
}

/// What a server sees of its stack.
pub struct Surroundings {
    /// The stack page, for reading.
    pub page: StackPage<ShmMemory>,
    /// What it said at the start.
    pub facts: StackFacts,
    /// The rings to and from other servers.
    pub mesh: Mesh,
    /// A clock that agrees with those of the other processes of the stack.
    pub clock: Clock,
}

/// Runs a server with the descriptors and the setup that the supervisor gave it. Returns when told to stop.
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

/// Where a process gets more servers from.
pub struct Intake<R> {
    /// The supervisor's end of it gives them, one a packet, with their descriptors.
    pub control: unix::Channel,
    /// What a packet means.
    pub take: fn(&[u8], Vec<OwnedFd>) -> io::Result<R>,
}

/// The servers of one process, and what it sleeps with.
pub struct Process<R> {
    waiting: Waiting,
    members: Vec<Member<R>>,
    /// The number of the next one.
    next: u64,
    intake: Option<Intake<R>>,
    /// When to look at control sockets and counters again.
    look_at: Instant,
}

struct Member<R> {
    number: u64,
    role: R,
    /// It serves, and what wakes it is watched.
    serves: bool,
}

impl<R: Role> Process<R> {
    /// A process that is given servers by and by settles down, and gives up all privileges. `page`: where it
    /// says so, and what it dies of if it does not keep to it.
    ///
    /// To be called when all descriptors are taken, and before anything that others have written is looked
    /// at.
    pub fn settle(
        clock: Clock,
        config: &ProcessConfig<'_>,
        page: &ReplicaPage<ShmMemory>,
        intake: Intake<R>,
    ) -> io::Result<Process<R>> {
        let waiting = Waiting::new(clock, config)?;
        waiting.epoll.add(&intake.control, TOKEN_INTAKE, EventFlags::IN)?;
        privileges::confine(config.kind, config.ends_with(), config.becomes, page)?;
        intake.control.send(UP, &[])?;
        let look_at = clock.now();
        Ok(Process { waiting, members: Vec::new(), next: 0, intake: Some(intake), look_at })
    }

    /// The process of one server, which has settled.
    fn of(mut role: R) -> io::Result<Process<R>> {
        let waiting = role.server().waiting.take();
        let waiting = waiting.ok_or_else(|| io::Error::other("a server that has not settled"))?;
        let look_at = waiting.clock.now();
        let mut process = Process { waiting, members: Vec::new(), next: 0, intake: None, look_at };
        process.add(role);
        Ok(process)
    }

    /// One server more. It serves once the supervisor says that this is all: before that a replica would
    /// answer for connections that it does not know yet. Returns its number.
    fn add(&mut self, mut role: R) -> u64 {
        // A predecessor may have died asleep, and others have rung for that sleep. Its number does not come
        // again.
        let (page, rings) = (role.server().page.sleep_word(), role.past_sleep_word());
        let last = if rings.wrapping_sub(page) as i32 > 0 { rings } else { page };
        role.change_sleep_word(last.wrapping_add(1) & !1);
        role.server().guarded = self.waiting.guarded;
        let number = self.next;
        self.next += 1;
        self.members.push(Member { number, role, serves: false });
        number
    }

    /// Serves until all have left or were told to stop, or the supervisor goes away.
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
                // Each is asked: it is told by this that it waits.
                spins |= role.server().spins(now);
            }
            if spins {
                let then = now;
                // The application may be waiting for this very core.
                sched::yield_now();
                now = clock.now();
                for Member { role, .. } in &mut self.members {
                    role.server().patience.yielded(now.since(then));
                }
                continue;
            }
            self.sleep(now)?;
            now = clock.now();
        }
    }

    /// Hears what the supervisor says to each server and to the process.
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

    /// A server begins to serve.
    fn begin(&mut self, at: usize) -> io::Result<()> {
        let Some(member) = self.members.get_mut(at) else { return Ok(()) };
        member.serves = true;
        if self.waiting.briefing.take().is_some() {
            // What wakes the only one is watched from the start.
            return Ok(());
        }
        let (epoll, first) = (&self.waiting.epoll, member.number * TOKEN_KINDS);
        if let Some(device) = member.role.device() {
            epoll.add(device, first + TOKEN_DEVICE, EventFlags::IN)?;
        }
        epoll.add(&member.role.server().bell, first + TOKEN_BELL, eventfd::WATCHED)
    }

    /// A server does not serve any more.
    fn end(&mut self, at: usize, now: Instant, verdict: Verdict) -> io::Result<()> {
        let Member { mut role, serves, .. } = self.members.remove(at);
        if let (Verdict::Leave(ledger), true) = (verdict, serves) {
            role.hand_over(now, ledger);
            role.publish();
            role.server().publish(now);
        }
        if serves && self.intake.is_some() {
            // The supervisor has the same files open, so that closing ours does not take them out of the set.
            if let Some(device) = role.device() {
                self.waiting.epoll.delete(device)?;
            }
            self.waiting.epoll.delete(&role.server().bell)?;
            for bell in role.server().doorbells.all.values() {
                let _ = self.waiting.epoll.delete(bell);
            }
        }
        if matches!(verdict, Verdict::Leave(_)) {
            // Behind everything: from here on somebody else may write where this one has written.
            role.server().control.send(LEFT, &[])?;
        }
        Ok(())
    }

    /// Takes servers that the supervisor gives.
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
                    // It may have been told everything meanwhile.
                    self.look_at = self.waiting.clock.now();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Verdict::Go),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sleeps until a bell, a device, the supervisor or the timer wakes it.
    fn sleep(&mut self, now: Instant) -> io::Result<()> {
        if let Some(briefing) = &self.waiting.briefing {
            briefing.wait(&mut [epoll::EMPTY; 1], None)?;
            self.look_at = now;
            return Ok(());
        }
        let mut unwatched = false;
        for Member { role, number, .. } in self.members.iter_mut().filter(|member| member.serves) {
            unwatched |= role.server().doorbells.settle(&self.waiting.epoll, *number * TOKEN_KINDS + TOKEN_BELL);
            let rung = role.before_sleep(now);
            role.server().bells_rung += rung;
            let asleep = role.server().sleep_word | 1;
            role.change_sleep_word(asleep);
        }
        if let Some(member) = self.members.first_mut() {
            // Partner: who sends fences between the store into the ring and the look at the sleep word.
            member.role.server().page.0.fence();
        }
        let is_ready = self.members.iter().any(|member| member.serves && member.role.is_ready());
        if !is_ready {
            // Whom nobody watches may have rung.
            let mut deadline = unwatched.then_some(now + CONTROL_EVERY);
            let mut answers = false;
            for Member { role, serves, .. } in &mut self.members {
                let timeout = if *serves { role.next_timeout(now) } else { None };
                let server = role.server();
                answers |= !server.answers.is_empty();
                let answers_at = (!server.answers.is_empty()).then_some(now + CONTROL_EVERY);
                // Who sleeps for long has told what happened before.
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

/// Serves as the one server of a process, until told to stop. `name`: who fails, for people.
fn run<R: Role>(name: &str, role: io::Result<R>) -> ExitCode {
    report(name, role.and_then(Process::of).and_then(Process::serve))
}

/// How a process ends. `name`: who it is, for people.
pub fn report(name: &str, ended: io::Result<()>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say!("{name}: {error}");
            failure::exit_code(failure::is_shortage(&error))
        }
    }
}
