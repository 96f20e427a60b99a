//! What does a connection manager in a process of its own do all day? Transport servers tell it who accepts and what becomes of
//! connections; it says who gets the next one. One thread.
//!
//! ```text
//!   loop   messages of transport servers, offers and reports of other connection managers (at most a batch)
//!          answers, offers and reports -> rings
//!          bells of those that sleep
//!          nothing to do: spin for a while, then sleep on {bell, control socket, timer}
//! ```
//! It has no session and no frame. What it knows, transport servers have told it.

use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use atoll_base::{Duration, Epoch, Instant, Patience, ReplicaId};
use atoll_connmgr::{Manager, ManagerConfig, PeerOutput};
use atoll_ipc::Memory;
use atoll_ipc::balance::{PEER_BYTES_MAX, PeerMessage};
use atoll_ipc::control::Request;
use atoll_ipc::manager::ManagerMessage;
use atoll_ipc::mesh::{KIND_BALANCE, KIND_MANAGER, PAYLOAD_MAX};
use atoll_ipc::page::{REPLICA_PAGE_BYTES, ReplicaPage, STACK_PAGE_BYTES, StackPage, Stat};
use atoll_shm::{Access, ShmMemory};
use atoll_sys::epoll::{self, Epoll, EventFlags};
use atoll_sys::timer::LazyTimer;
use atoll_sys::{Clock, process, sched, unix};

use crate::link::{Received, Rings};
use crate::replica::calibration;
use crate::setup::{MESH_MEMORY_BYTES, ManagerSetup, READY, mesh_ring};

/// Messages taken before the answers go out.
const BATCH: usize = 64;
/// Time between two looks at the control socket while there is work.
const CONTROL_EVERY: Duration = Duration::from_millis(1);
/// Time between two publications of the counters.
const PUBLISH_EVERY: Duration = Duration::from_millis(50);
/// How soon what was not taken is offered again.
const RETRY_AFTER: Duration = Duration::from_millis(1);

const TOKEN_BELL: u64 = 0;
const TOKEN_CONTROL: u64 = 1;
const TOKEN_TIMER: u64 = 2;

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Go,
    Stop,
}

/// Runs a connection manager with the descriptors and the setup that the supervisor gave it. Returns when told to stop.
pub fn main(setup: &ManagerSetup) -> ExitCode {
    match ManagerServer::start(setup).and_then(|mut server| server.serve()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("atoll: connection manager {}: {error}", setup.index);
            ExitCode::FAILURE
        }
    }
}

struct ManagerServer {
    clock: Clock,
    epoll: Epoll,
    timer: LazyTimer,
    control: unix::Channel,
    /// Open as long as it is waited for.
    _bell: OwnedFd,
    page: ReplicaPage<ShmMemory>,
    manager: Manager,
    /// To and from each connection manager (the own place stays empty), then each replica.
    rings: Rings,
    managers: usize,
    /// Replicas whose messages stay in their rings, because they do not take their answers.
    held_up: u8,
    record: Box<[u8]>,
    sleep_word: u32,
    patience: Patience,
    counts: Counts,
    control_at: Instant,
    publish_at: Instant,
    /// Something has happened that the counters on the page do not tell.
    unpublished: bool,
}

/// What the loop itself counts.
#[derive(Default)]
struct Counts {
    received: u64,
    sent: u64,
    bad: u64,
    bells_rung: u64,
    sleeps: u64,
    rounds: u64,
    busy_nanos: u64,
}

impl ManagerServer {
    fn start(setup: &ManagerSetup) -> io::Result<ManagerServer> {
        let mut fds = process::take_inherited(setup.descriptors)?.into_iter();
        let mut next = || fds.next().ok_or_else(|| io::Error::other("the supervisor passed too few descriptors"));
        let control = unix::Channel::from(next()?);
        let stack = StackPage(ShmMemory::map(next()?, STACK_PAGE_BYTES, Access::ReadOnly)?);
        let page = ReplicaPage(ShmMemory::map(next()?, REPLICA_PAGE_BYTES, Access::ReadWrite)?);
        let bell = next()?;
        let mesh = ShmMemory::map(next()?, MESH_MEMORY_BYTES, Access::ReadWrite)?;
        let facts = stack.facts().ok_or_else(|| io::Error::other("the stack page is of another version"))?;
        let (me, managers, replicas) =
            (usize::from(setup.server), usize::from(setup.managers), usize::from(facts.replicas));
        // Those in processes of their own are neighbours in the plan.
        let first = me.checked_sub(setup.index.into()).ok_or_else(|| io::Error::other("a server without a number"))?;
        let peers = (first..first + managers).chain(0..replicas);
        let places: Vec<_> = peers.map(|peer| (mesh_ring(me, peer), mesh_ring(peer, me))).collect();
        let bells = places.iter().map(|_| next()).collect::<io::Result<Vec<_>>>()?;
        let rings = Rings::resume(mesh, &places, bells);
        page.announce(ReplicaId(setup.server), Epoch(setup.epoch));
        let mut seed = [0; 8];
        process::random(&mut seed)?;
        let config =
            ManagerConfig { number: setup.index, managers: setup.managers, epoch: Epoch(setup.epoch), own: None };

        sched::set_name(&format!("atoll-cm{}", setup.index))?;
        if let Some(cpu) = setup.cpu {
            sched::set_affinity(&[cpu])?;
        }
        if setup.batch_scheduling {
            sched::set_batch()?;
        }
        let timer = LazyTimer::new(RETRY_AFTER)?;
        let epoll = Epoll::new()?;
        epoll.add(&bell, TOKEN_BELL, EventFlags::IN | EventFlags::ET)?;
        epoll.add(&control, TOKEN_CONTROL, EventFlags::IN)?;
        epoll.add(&timer, TOKEN_TIMER, EventFlags::IN | EventFlags::ET)?;
        control.send(READY, &[])?;
        let clock = Clock::new(calibration(facts.calibration));
        let now = clock.now();
        Ok(ManagerServer {
            clock,
            epoll,
            timer,
            control,
            _bell: bell,
            page,
            manager: Manager::new(config, u64::from_ne_bytes(seed)),
            rings,
            managers,
            held_up: 0,
            record: vec![0; PAYLOAD_MAX].into_boxed_slice(),
            sleep_word: 0,
            patience: Patience::new(Duration::from_micros(u64::from(facts.spin_us))),
            counts: Counts::default(),
            control_at: now,
            publish_at: now,
            unpublished: true,
        })
    }

    /// Serves until the supervisor says stop or goes away. Waits as replicas do.
    fn serve(&mut self) -> io::Result<()> {
        let mut now = self.clock.now();
        let mut waits = false;
        loop {
            let busy = self.round(now);
            self.counts.rounds += 1;
            let then = self.clock.now();
            if busy {
                self.counts.busy_nanos += then.since(now).as_nanos() as u64;
                self.unpublished = true;
                if std::mem::take(&mut waits) {
                    self.patience.end(now);
                }
            }
            now = then;
            if now >= self.control_at && self.housekeeping(now)? == Verdict::Stop {
                return Ok(());
            }
            if busy {
                continue;
            }
            let spins = if waits { self.patience.goes_on(now) } else { self.patience.begin(now) };
            waits = true;
            if spins {
                sched::yield_now();
                now = self.clock.now();
                self.patience.yielded(now.since(then));
                continue;
            }
            if self.sleep(now)? == Verdict::Stop {
                return Ok(());
            }
            now = self.clock.now();
        }
    }

    /// One turn of everything. Returns whether there was anything to do.
    fn round(&mut self, now: Instant) -> bool {
        let busy = self.receive(now);
        self.answer(now);
        if self.manager.is_peer_due(now, false) {
            self.tell_peers(now, false);
        }
        self.counts.bells_rung += self.rings.publish();
        busy
    }

    /// Takes up to a batch of messages.
    fn receive(&mut self, now: Instant) -> bool {
        let mut busy = false;
        for turn in 0..BATCH {
            let Some(Received { peer, kind, len }) = self.rings.receive(turn, &mut self.record) else { break };
            // What can wait is no reason to stay awake.
            busy |= kind != KIND_BALANCE;
            self.counts.received += 1;
            let payload = &self.record[..len];
            let replica = peer.checked_sub(self.managers).map(|replica| ReplicaId(replica as u8));
            match (kind, replica) {
                (KIND_MANAGER, Some(replica)) => match ManagerMessage::decode(payload) {
                    Ok(message) => {
                        self.patience.met(replica.0.into());
                        self.manager.handle(now, replica, &message);
                    }
                    Err(_) => self.counts.bad += 1,
                },
                (KIND_BALANCE, None) => match PeerMessage::decode(payload) {
                    Ok(message) => self.manager.handle_peer(now, &message),
                    Err(_) => self.counts.bad += 1,
                },
                _ => self.counts.bad += 1,
            }
        }
        busy
    }

    /// Sends what there is to say to transport servers. Those that do not take it are not listened to.
    fn answer(&mut self, now: Instant) {
        if !self.manager.has_output() && self.held_up == 0 {
            return;
        }
        let (rings, managers, counts) = (&mut self.rings, self.managers, &mut self.counts);
        self.manager.send(now, |to, message| {
            let taken = rings.send(managers + usize::from(to.0), KIND_MANAGER, &message.encode());
            counts.sent += u64::from(taken);
            taken
        });
        for replica in 0..(self.rings.len() - self.managers) as u8 {
            let is_crowded = self.manager.is_crowded(ReplicaId(replica));
            self.rings.hold_up(self.managers + usize::from(replica), is_crowded);
            self.held_up = self.held_up & !(1 << replica) | u8::from(is_crowded) << replica;
        }
    }

    /// Offers and reports to the other connection managers (P5). `last`: this server is going to sleep.
    fn tell_peers(&mut self, now: Instant, last: bool) {
        let reach = self.rings.reach();
        while let Some(PeerOutput { to, wakes, message }) = self.manager.poll_peer(now, reach, last) {
            let mut bytes = [0; PEER_BYTES_MAX];
            self.rings.tell(to, wakes, KIND_BALANCE, message.encode(&mut bytes));
        }
    }

    /// Sleeps until a bell, the supervisor or the timer wakes it.
    fn sleep(&mut self, now: Instant) -> io::Result<Verdict> {
        if self.manager.is_peer_due(now, true) {
            self.tell_peers(now, true);
            self.counts.bells_rung += self.rings.publish();
        }
        self.sleep_word |= 1;
        self.set_sleep_word();
        // Partner: others fence between their ring store and their look at the sleep word.
        self.page.0.fence();
        let mut verdict = Verdict::Go;
        if !self.rings.is_ready() {
            let retry_at = self.manager.has_output().then_some(now + RETRY_AFTER);
            let publish_at = self.unpublished.then_some(self.publish_at);
            if let Some(deadline) = retry_at.into_iter().chain(publish_at).min() {
                self.timer.wake_at(now, deadline)?;
            }
            self.counts.sleeps += 1;
            let mut events = [epoll::EMPTY; 8];
            let count = self.epoll.wait(&mut events, None)?;
            if events[..count].iter().any(|event| epoll::token(event) == TOKEN_CONTROL) {
                verdict = self.housekeeping(self.clock.now())?;
            }
        }
        self.sleep_word = self.sleep_word.wrapping_add(1);
        self.set_sleep_word();
        Ok(verdict)
    }

    fn set_sleep_word(&self) {
        self.page.set_sleep_word(self.sleep_word);
        self.rings.set_sleep_word(self.sleep_word);
    }

    /// What is done now and then: the supervisor's requests, the counters.
    fn housekeeping(&mut self, now: Instant) -> io::Result<Verdict> {
        self.control_at = now + CONTROL_EVERY;
        if now >= self.publish_at {
            self.publish_at = now + PUBLISH_EVERY;
            self.publish(now);
        }
        let (mut packet, mut fds) = ([0; 4096], Vec::new());
        loop {
            fds.clear();
            match self.control.receive(&mut packet, &mut fds) {
                Ok(0) => return Ok(Verdict::Stop),
                Ok(len) => match Request::decode(&packet[..len]) {
                    Ok(Request::Stop) => return Ok(Verdict::Stop),
                    Ok(Request::Balance { rules }) => self.manager.set_balance(rules),
                    // Sessions it hears of from transport servers.
                    _ => {}
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Verdict::Go),
                Err(error) => return Err(error),
            }
        }
    }

    /// Puts the counters on the page.
    fn publish(&mut self, now: Instant) {
        self.unpublished = false;
        self.page.set_heartbeat(now.as_nanos());
        let (counts, balance) = (&self.counts, self.manager.balance_counts());
        for (stat, value) in [
            (Stat::PeerOffersOut, balance.offers_out),
            (Stat::PeerOffersIn, balance.offers_in),
            (Stat::PeerOffersTaken, balance.offers_taken),
            (Stat::PeerMessagesDropped, balance.dropped + self.manager.dropped()),
            (Stat::ServiceReportsOut, balance.reports_out),
            (Stat::ServiceReportsIn, balance.reports_in),
            (Stat::MessagesIn, counts.received),
            (Stat::MessagesOut, counts.sent),
            (Stat::MessagesBad, counts.bad),
            (Stat::BellsRung, counts.bells_rung),
            (Stat::Sleeps, counts.sleeps),
            (Stat::Rounds, counts.rounds),
            (Stat::BusyNanos, counts.busy_nanos),
        ] {
            self.page.set_stat(stat, value);
        }
    }
}
