//! How does every server process start, wait, and hear from its supervisor? What replicas, link servers and connection managers have in common.
//!
//! ```text
//!   start  descriptors and setup; requests of the supervisor until it says "adopt": then the server is ready
//!   loop   one round of the server's own work
//!          now and then: requests of the supervisor, counters
//!          nothing to do: spin for a while, then sleep on {bell, control socket, timer, device}
//! ```

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use atoll_base::{Duration, Epoch, Instant, Patience, ReplicaId};
use atoll_ipc::control::Request;
use atoll_ipc::page::{REPLICA_PAGE_BYTES, ReplicaPage, STACK_PAGE_BYTES, StackFacts, StackPage, Stat};
use atoll_ipc::{Memory, Tally};
use atoll_shm::{Access, ShmMemory};
use atoll_sys::epoll::{self, Epoll, EventFlags};
use atoll_sys::timer::LazyTimer;
use atoll_sys::{Calibration, Clock, process, sched, unix};

use crate::privileges::{self, Kind};
use crate::setup::{MESH_MEMORY_BYTES, READY};

/// Time between two looks at the control socket while there is work; how soon what a ring or a socket did not take is offered again.
pub const CONTROL_EVERY: Duration = Duration::from_millis(1);
/// Time between two publications of the counters, and two looks at the steering table.
const PUBLISH_EVERY: Duration = Duration::from_millis(50);
/// Longest request of the supervisor.
const REQUEST_MAX: usize = 4096;

const TOKEN_DEVICE: u64 = 0;
const TOKEN_BELL: u64 = 1;
const TOKEN_CONTROL: u64 = 2;
const TOKEN_TIMER: u64 = 3;

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Go,
    Stop,
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
    /// The rings between servers.
    pub mesh: ShmMemory,
    rest: std::vec::IntoIter<OwnedFd>,
}

impl Inherited {
    /// Takes the `descriptors` that the supervisor passed.
    pub fn take(descriptors: usize) -> io::Result<Inherited> {
        let mut rest = process::take_inherited(descriptors)?.into_iter();
        let control = unix::Channel::from(next(&mut rest)?);
        let stack = StackPage(ShmMemory::map(next(&mut rest)?, STACK_PAGE_BYTES, Access::ReadOnly)?);
        let page = ReplicaPage(ShmMemory::map(next(&mut rest)?, REPLICA_PAGE_BYTES, Access::ReadWrite)?);
        let bell = next(&mut rest)?;
        let mesh = ShmMemory::map(next(&mut rest)?, MESH_MEMORY_BYTES, Access::ReadWrite)?;
        let facts = stack.facts().ok_or_else(|| io::Error::other("the stack page is of another version"))?;
        Ok(Inherited { control, stack, facts, page, bell, mesh, rest })
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
        let [tsc0, ns0, mult, _] = self.facts.calibration;
        Clock::new(Calibration { tsc0, ns0, mult })
    }
}

fn next(fds: &mut std::vec::IntoIter<OwnedFd>) -> io::Result<OwnedFd> {
    fds.next().ok_or_else(|| io::Error::other("the supervisor passed too few descriptors"))
}

/// How a server is to run.
pub struct Habits<'a> {
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
}

/// The part of a server that waits.
pub struct Server {
    clock: Clock,
    epoll: Epoll,
    timer: LazyTimer,
    control: unix::Channel,
    /// Open as long as it is waited for.
    _bell: OwnedFd,
    /// The own page.
    pub page: ReplicaPage<ShmMemory>,
    /// What predecessors have counted.
    tally: Tally,
    /// Decides how long to spin.
    pub patience: Patience,
    /// Packets for the supervisor that its socket did not take yet.
    pub answers: VecDeque<Vec<u8>>,
    /// Bells of others rung.
    pub bells_rung: u64,
    sleeps: u64,
    rounds: u64,
    busy_nanos: u64,
    sleep_word: u32,
    control_at: Instant,
    publish_at: Instant,
    /// Something has happened that the counters on the page do not tell.
    unpublished: bool,
    /// It outlives its supervisor.
    guarded: bool,
    /// It serves: the supervisor has said everything that there was to say.
    is_ready: bool,
    /// Watches the control socket alone, until the supervisor has said everything.
    briefing: Option<Epoll>,
}

impl Server {
    /// Settles down, and gives up all privileges. `device`: what wakes it when a frame has come.
    ///
    /// To be called when all descriptors are taken, and before anything that others have written is looked at.
    pub fn settle(inherited: Inherited, habits: &Habits<'_>, device: Option<&impl AsFd>) -> io::Result<Server> {
        sched::set_name(habits.name)?;
        if let Some(cpu) = habits.cpu {
            sched::set_affinity(&[cpu])?;
        }
        if habits.batch {
            sched::set_batch()?;
        }
        let timer = LazyTimer::new(habits.slack)?;
        let epoll = Epoll::new()?;
        if let Some(device) = device {
            epoll.add(device, TOKEN_DEVICE, EventFlags::IN)?;
        }
        epoll.add(&inherited.bell, TOKEN_BELL, EventFlags::IN | EventFlags::ET)?;
        epoll.add(&inherited.control, TOKEN_CONTROL, EventFlags::IN)?;
        epoll.add(&timer, TOKEN_TIMER, EventFlags::IN | EventFlags::ET)?;
        let briefing = Epoll::new()?;
        briefing.add(&inherited.control, TOKEN_CONTROL, EventFlags::IN)?;
        privileges::confine(habits.kind, &inherited.page)?;
        let clock = inherited.clock();
        let now = clock.now();
        Ok(Server {
            clock,
            epoll,
            timer,
            patience: Patience::new(Duration::from_micros(u64::from(inherited.facts.spin_us))),
            control: inherited.control,
            _bell: inherited.bell,
            tally: Tally::read(&inherited.page),
            page: inherited.page,
            answers: VecDeque::new(),
            bells_rung: 0,
            sleeps: 0,
            rounds: 0,
            busy_nanos: 0,
            sleep_word: 0,
            control_at: now,
            publish_at: now,
            unpublished: true,
            guarded: habits.guarded,
            is_ready: false,
            briefing: Some(briefing),
        })
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
    /// The part that waits.
    fn server(&mut self) -> &mut Server;

    /// One turn of everything. Returns whether there was anything to do.
    fn round(&mut self, now: Instant) -> io::Result<bool>;

    /// What others are told before it sleeps. Returns how many bells were rung.
    fn say_good_night(&mut self, now: Instant) -> u64;

    /// Tells those who send to it whether its bell is wanted: if `word` is odd.
    fn set_sleep_word(&mut self, word: u32);

    /// Whether something waits for which nobody will ring. Asked after the sleep word was set.
    fn is_ready(&self) -> bool;

    /// When to wake up at the latest.
    fn next_timeout(&mut self, now: Instant) -> Option<Instant>;

    /// Looks at what changes seldom. Every 50 ms of work.
    fn refresh(&mut self);

    /// Puts its own counters on the page.
    fn publish(&mut self);

    /// The highest sleep word that a predecessor has left where those look who send to it, if it is not the page's.
    fn past_sleep_word(&self) -> u32;

    /// Takes over what a predecessor has left. It has been told of everything that there is now.
    /// `blamed`: who died by its own fault.
    fn adopt(&mut self, _now: Instant, _blamed: bool) -> io::Result<()> {
        Ok(())
    }

    /// Another process is going to succeed this one: gets rid of what that one would not find, and writes the ledger, if it has one, in this
    /// version.
    fn hand_over(&mut self, _now: Instant, _ledger: u32) -> io::Result<()> {
        Ok(())
    }

    /// Does what the supervisor asks. What it has to say goes to [`Server::answers`].
    fn handle_request(&mut self, now: Instant, request: Request, fds: &mut Vec<OwnedFd>) -> io::Result<Verdict>;

    /// Serves until the supervisor says stop or goes away.
    fn serve(&mut self) -> io::Result<()> {
        if self.take_over()? == Verdict::Stop {
            return Ok(());
        }
        let clock = self.server().clock;
        let mut now = clock.now();
        let mut waits = false;
        loop {
            let busy = self.round(now)?;
            let then = clock.now();
            let server = self.server();
            server.rounds += 1;
            if busy {
                server.busy_nanos += then.since(now).as_nanos() as u64;
                server.unpublished = true;
                if std::mem::take(&mut waits) {
                    server.patience.end(now);
                }
            }
            now = then;
            if now >= server.control_at && self.housekeeping(now)? == Verdict::Stop {
                return Ok(());
            }
            if busy {
                continue;
            }
            let server = self.server();
            let spins = if waits { server.patience.goes_on(now) } else { server.patience.begin(now) };
            waits = true;
            if spins {
                // The application may be waiting for this very core.
                sched::yield_now();
                now = clock.now();
                server.patience.yielded(now.since(then));
                continue;
            }
            if self.sleep(now)? == Verdict::Stop {
                return Ok(());
            }
            now = clock.now();
        }
    }

    /// Listens to the supervisor until it says that this is all. Before that nothing is served: a replica would answer for connections that
    /// it does not know yet.
    fn take_over(&mut self) -> io::Result<Verdict> {
        // A predecessor may have died asleep, and others have rung for that sleep. Its number does not come again.
        let (page, rings) = (self.server().page.sleep_word(), self.past_sleep_word());
        let last = if rings.wrapping_sub(page) as i32 > 0 { rings } else { page };
        self.change_sleep_word(last.wrapping_add(1) & !1);
        let Some(control) = self.server().briefing.take() else { return Ok(Verdict::Go) };
        loop {
            let now = self.server().clock.now();
            if self.housekeeping(now)? == Verdict::Stop {
                return Ok(Verdict::Stop);
            }
            if self.server().is_ready {
                return Ok(Verdict::Go);
            }
            control.wait(&mut [epoll::EMPTY; 1], None)?;
        }
    }

    /// Sleeps until a bell, the device, the supervisor or the timer wakes it.
    fn sleep(&mut self, now: Instant) -> io::Result<Verdict> {
        let rung = self.say_good_night(now);
        self.server().bells_rung += rung;
        let asleep = self.server().sleep_word | 1;
        self.change_sleep_word(asleep);
        // Partner: who sends fences between the store into the ring and the look at the sleep word.
        self.server().page.0.fence();
        let mut verdict = Verdict::Go;
        if !self.is_ready() {
            let timeout = self.next_timeout(now);
            let server = self.server();
            let answers_at = (!server.answers.is_empty()).then_some(now + CONTROL_EVERY);
            // Who sleeps for long has told what happened before.
            let publish_at = server.unpublished.then_some(server.publish_at);
            if let Some(deadline) = [timeout, answers_at, publish_at].into_iter().flatten().min() {
                server.timer.wake_at(now, deadline)?;
            }
            server.sleeps += 1;
            let mut events = [epoll::EMPTY; 8];
            let count = server.epoll.wait(&mut events, None)?;
            let of_control = |event: &epoll::Event| epoll::token(event) == TOKEN_CONTROL;
            if !server.answers.is_empty() || events[..count].iter().any(of_control) {
                let now = server.clock.now();
                verdict = self.housekeeping(now)?;
            }
        }
        self.change_sleep_word(asleep.wrapping_add(1));
        Ok(verdict)
    }

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
        server.control_at = now + CONTROL_EVERY;
        if now >= server.publish_at {
            server.publish_at = now + PUBLISH_EVERY;
            self.refresh();
            self.server().publish(now);
            self.publish();
        }
        self.server().send_answers()?;
        let (mut packet, mut fds) = ([0; REQUEST_MAX], Vec::new());
        loop {
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
                        self.hand_over(now, ledger)?;
                        return Ok(Verdict::Stop);
                    }
                    if self.handle_request(now, request, &mut fds)? == Verdict::Stop {
                        return Ok(Verdict::Stop);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.server().send_answers()?;
        Ok(Verdict::Go)
    }
}

/// Serves until told to stop. `name`: who fails, for people.
pub fn run(name: &str, role: io::Result<impl Role>) -> std::process::ExitCode {
    match role.and_then(|mut role| role.serve()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("atoll: {name}: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
