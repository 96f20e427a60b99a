//! Servers that call each other over channels, in every order, with deaths: does every call end with the
//! right result, and does no server sleep through a message?
//!
//! Each server goes through the steps of a replica's loop, and others run between any two of them: a turn,
//! publishing, the sleep word, the last look, sleep. Time passes only when all sleep. `ATOLL_SEED=n` replays
//! one seed; `ATOLL_SEEDS=n` changes how many are tried.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use atoll_base::{Addr, Duration, Epoch, Instant, ReplicaId, Rng};
use atoll_ipc::channel::{Channel, Place, ring_bytes};
use atoll_ipc::message::{Kind, NewsBasis};
use atoll_ipc::{HeapMemory, Memory, Message};
use atoll_rpc::{CallError, CallRouter, Dispatcher, Handler, Incoming, Limits, PeerId};
use atoll_sim::seeds;

const SERVERS: usize = 3;
const CAPACITY: usize = 4;
const PATIENCE: Duration = Duration::from_millis(500);

type Thread = Pin<Box<dyn Future<Output = ()>>>;

/// The identity of the server, for its handlers.
struct Identity(usize);

/// The present step of a server in its loop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Turn,
    Publish { was_busy: bool },
    SleepWord,
    LastLook,
    Sleep { until: Option<Instant> },
}

struct Server {
    dispatcher: Dispatcher<HeapMemory, Identity, Thread>,
    epoch: u32,
    stage: Stage,
    /// Calls begun in this life, and those that have ended.
    begun: u64,
    ended: Rc<RefCell<Ended>>,
}

#[derive(Default)]
struct Ended {
    answered: u64,
    failed: u64,
    wrong: Option<String>,
}

struct World {
    memory: HeapMemory,
    servers: Vec<Server>,
    /// Rung, and not yet noticed.
    bells: Vec<bool>,
    /// The servers that have still to learn of a successor, each with that successor.
    deaths: Vec<(usize, usize)>,
    now: Instant,
    rng: Rng,
    next: u32,
}

#[test]
fn without_deaths_every_call_is_answered_and_nobody_sleeps_through_a_message() {
    for seed in seeds(400) {
        let mut world = World::new(seed);
        world.run(3000, 0);
        world.settle(seed);
        for (n, server) in world.servers.iter().enumerate() {
            let counts = server.dispatcher.counts();
            assert_eq!(server.ended.borrow().failed, 0, "ATOLL_SEED={seed}: server {n}: {counts:?}");
            assert!(server.begun > 0, "ATOLL_SEED={seed}");
            assert_eq!(
                (counts.timed_out, counts.unmatched, counts.stale, counts.dropped),
                (0, 0, 0, 0),
                "ATOLL_SEED={seed}"
            );
        }
    }
}

#[test]
fn with_deaths_every_call_ends_and_no_answer_is_taken_for_another() {
    let (mut failed, mut stale) = (0, 0);
    for seed in seeds(400) {
        let mut world = World::new(seed);
        world.run(3000, 3000);
        world.settle(seed);
        failed += world.servers.iter().map(|server| server.ended.borrow().failed).sum::<u64>();
        stale += world.servers.iter().map(|server| server.dispatcher.counts().stale).sum::<u64>();
    }
    assert!(
        failed > 0 && stale > 0,
        "deaths are noticed: {failed} calls failed, {stale} messages were stale"
    );
}

impl World {
    fn new(seed: u64) -> World {
        let mut world = World {
            memory: HeapMemory::new(SERVERS * SERVERS * ring_bytes(CAPACITY)),
            servers: Vec::new(),
            bells: vec![false; SERVERS],
            deaths: Vec::new(),
            now: Instant::from_millis(1000),
            rng: Rng::new(seed),
            next: 0,
        };
        for me in 0..SERVERS {
            let server = world.born(me, 1, &[1; SERVERS]);
            world.servers.push(server);
        }
        world
    }

    /// Starts a server with this epoch, which knows the epochs of the others.
    fn born(&self, me: usize, epoch: u32, epochs: &[u32; SERVERS]) -> Server {
        let limits = Limits { threads_max: 64, calls_max: 64, backlog_max: 256 };
        let mut dispatcher = Dispatcher::new(Epoch(epoch), limits, self.now);
        for other in others(me) {
            let ring = |from: usize, to: usize| (from * SERVERS + to) * ring_bytes(CAPACITY);
            let place = Place { outgoing: ring(me, other), incoming: ring(other, me), capacity: CAPACITY };
            let peer = Epoch(epochs[other]);
            dispatcher.add_peer(Channel::resume(self.memory.clone(), place, Epoch(epoch), peer), peer);
        }
        dispatcher.on(Kind::Hello, Handler::Answer(answer));
        dispatcher.on(Kind::Neighbour, Handler::Thread(relay));
        let ended = Rc::default();
        Server { dispatcher, epoch, stage: Stage::Turn, begun: 0, ended }
    }

    /// Runs this many steps, each of a random server. A server dies once in `death` steps (0: never).
    fn run(&mut self, steps: u32, death: u32) {
        for _ in 0..steps {
            let me = self.rng.below(SERVERS as u32) as usize;
            if self.rng.below(12) == 0 {
                self.begin_call(me);
            }
            if death > 0 && self.rng.below(death / 10) == 0 {
                self.kill(me);
            }
            if self.rng.below(20) == 0 {
                self.tell_of_a_death();
            }
            self.step(me);
            if self.all_sleep() {
                self.time_passes();
            }
        }
    }

    /// Runs on without new calls and deaths until everything comes to an end.
    fn settle(&mut self, seed: u64) {
        while !self.deaths.is_empty() {
            self.tell_of_a_death();
        }
        for _ in 0..200_000 {
            let me = self.rng.below(SERVERS as u32) as usize;
            self.step(me);
            if self.all_sleep() && !self.time_passes() {
                for (n, server) in self.servers.iter().enumerate() {
                    let ended = server.ended.borrow();
                    assert_eq!(ended.wrong, None, "ATOLL_SEED={seed}: server {n}");
                    assert_eq!(ended.answered + ended.failed, server.begun, "ATOLL_SEED={seed}: server {n}");
                    assert_eq!(server.dispatcher.load(), (0, 0), "ATOLL_SEED={seed}: server {n}");
                }
                return;
            }
        }
        panic!("ATOLL_SEED={seed}: they never come to rest");
    }

    fn begin_call(&mut self, me: usize) {
        self.next += 1;
        let (n, relayed) = (self.next, self.rng.below(3) == 0);
        let peer = self.rng.below(SERVERS as u32 - 1);
        let callee = others(me).nth(peer as usize).expect("one of the others");
        let server = &mut self.servers[me];
        let (router, ended) = (server.dispatcher.router().clone(), server.ended.clone());
        let thread = async move {
            let question = if relayed { relayed_question(n) } else { question(n) };
            let result = router.call(PeerId(peer), question, router.now() + PATIENCE).await;
            let mut ended = ended.borrow_mut();
            match result {
                Ok(Message::Hello { replica, epoch })
                    if epoch.0 == n + 1 && (relayed || replica.0 == callee as u8) =>
                {
                    ended.answered += 1;
                }
                Ok(other) => ended.wrong = Some(format!("call {n}: {other:?}")),
                Err(CallError::Busy | CallError::PeerGone | CallError::TimedOut) => ended.failed += 1,
            }
        };
        if server.dispatcher.spawn(Box::pin(thread)).is_ok() {
            server.begun += 1;
            // Whoever gives a sleeping server work also wakes it.
            self.bells[me] = true;
        }
    }

    fn step(&mut self, me: usize) {
        let now = self.now;
        let server = &mut self.servers[me];
        server.stage = match server.stage {
            Stage::Turn => Stage::Publish {
                was_busy: server.dispatcher.turn(now, &mut Identity(me), 1 + self.rng.below(3) as usize),
            },
            Stage::Publish { was_busy } => {
                let bells = &mut self.bells;
                server.dispatcher.publish(|peer| {
                    bells[others(me).nth(peer.0 as usize).expect("one of the others")] = true;
                });
                if was_busy { Stage::Turn } else { Stage::SleepWord }
            }
            Stage::SleepWord => {
                server.dispatcher.fall_asleep();
                self.memory.fence();
                Stage::LastLook
            }
            Stage::LastLook if server.dispatcher.is_ready() => wake(server),
            Stage::LastLook => Stage::Sleep { until: server.dispatcher.next_timeout() },
            Stage::Sleep { until } => {
                let rung = std::mem::take(&mut self.bells[me]);
                if rung || until.is_some_and(|until| until <= now) { wake(server) } else { server.stage }
            }
        };
    }

    fn all_sleep(&self) -> bool {
        let sleeps = |(server, rung): (&Server, &bool)| match server.stage {
            Stage::Sleep { until } => !rung && until.is_none_or(|until| until > self.now),
            _ => false,
        };
        self.servers.iter().zip(&self.bells).all(sleeps)
    }

    /// Advances the time when all servers sleep and no doorbell has rung. Checks that none of them has work.
    /// Returns false if nothing will ever happen again.
    fn time_passes(&mut self) -> bool {
        for (n, server) in self.servers.iter().enumerate() {
            assert!(!server.dispatcher.is_ready(), "server {n} sleeps, and something waits for it");
        }
        let timeouts = self.servers.iter().filter_map(|server| match server.stage {
            Stage::Sleep { until } => until,
            _ => None,
        });
        match timeouts.min() {
            Some(until) => self.now = self.now.max(until),
            None => return false,
        }
        true
    }

    /// Kills a server at its present step. Its successor knows the epochs of the others; the others learn of
    /// the death one by one.
    fn kill(&mut self, me: usize) {
        let epochs = std::array::from_fn(|n| self.servers[n].epoch);
        self.servers[me] = self.born(me, self.servers[me].epoch + 1, &epochs);
        self.deaths.retain(|(told, dead)| *told != me && *dead != me);
        self.deaths.extend(others(me).map(|other| (other, me)));
    }

    fn tell_of_a_death(&mut self) {
        if self.deaths.is_empty() {
            return;
        }
        let at = self.rng.below(self.deaths.len() as u32) as usize;
        let (told, dead) = self.deaths.swap_remove(at);
        let peer = others(told).position(|other| other == dead).expect("one of the others");
        let epoch = Epoch(self.servers[dead].epoch);
        let dispatcher = &mut self.servers[told].dispatcher;
        if self.rng.below(2) == 0 {
            dispatcher.peer_gone(PeerId(peer as u32));
        }
        dispatcher.peer_back(PeerId(peer as u32), epoch);
        self.bells[told] = true;
    }
}

fn wake(server: &mut Server) -> Stage {
    server.dispatcher.wake_up();
    Stage::Turn
}

fn others(me: usize) -> impl Iterator<Item = usize> {
    (0..SERVERS).filter(move |other| *other != me)
}

fn question(n: u32) -> Message {
    Message::Hello { replica: ReplicaId(99), epoch: Epoch(n) }
}

/// Returns a question whose callee asks another server before it answers.
fn relayed_question(n: u32) -> Message {
    Message::Neighbour { addr: Addr::v4(n), mac: [0; 6], basis: NewsBasis::Learned }
}

fn answer(me: &mut Identity, _: Instant, incoming: Incoming) -> Message {
    let Message::Hello { epoch, .. } = incoming.message else { unreachable!("registered for it") };
    Message::Hello { replica: ReplicaId(me.0 as u8), epoch: Epoch(epoch.0 + 1) }
}

fn relay(_: &mut Identity, router: &CallRouter<HeapMemory>, incoming: Incoming) -> Thread {
    let router = router.clone();
    Box::pin(async move {
        let Message::Neighbour { addr, .. } = incoming.message else { unreachable!("registered for it") };
        let n = addr.to_v4().unwrap_or_default();
        // To the one that did not ask, with less patience than the caller's.
        let next = PeerId(1 - incoming.peer.0);
        if let Ok(message) = router.call(next, question(n), router.now() + PATIENCE / 2).await {
            let _ = router.reply(&incoming, message);
        }
    })
}
