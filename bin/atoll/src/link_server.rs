//! What does a link server in a process of its own do all day? Frames from its queue go to the replicas that own them, and
//! frames of the replicas that it serves go out. One thread.
//!
//! ```text
//!   loop   frames from the queue (at most a batch) -> rings of their owners
//!          frames from the rings of replicas (at most a batch) -> queue
//!          bells of sleeping replicas
//!          nothing to do: spin for a while, then sleep on {queue, bell, control socket, timer}
//! ```
//! It knows nothing of connections, and keeps nothing that a successor would miss but frames, which are lost as on a wire.

use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use atoll_base::{Duration, Epoch, Instant, Patience, ReplicaId};
use atoll_ipc::Memory;
use atoll_ipc::control::Request;
use atoll_ipc::mesh::{KIND_FRAME, PAYLOAD_MAX};
use atoll_ipc::page::{REPLICA_PAGE_BYTES, ReplicaPage, STACK_PAGE_BYTES, StackFacts, StackPage, Stat};
use atoll_link::{Destination, Steering};
use atoll_shm::{Access, ShmMemory};
use atoll_sys::epoll::{self, Epoll, EventFlags};
use atoll_sys::timer::LazyTimer;
use atoll_sys::{Clock, process, sched, unix};
use atoll_tap::{FRAME_LEN_MAX, Queue};
use atoll_wire::vnet;

use crate::link::{Courier, FRAME_PREFIX, OUTBOUND, Rings};
use crate::replica::{calibration, partner_of};
use crate::setup::{LinkServerSetup, MESH_MEMORY_BYTES, READY, mesh_ring};

/// Frames taken from the queue, and from the rings, before the other side gets its turn.
const BATCH: usize = 64;
/// Time between two looks at the control socket while there is work.
const CONTROL_EVERY: Duration = Duration::from_millis(1);
/// Time between two publications of the counters, and two looks at the steering table.
const PUBLISH_EVERY: Duration = Duration::from_millis(50);
/// How soon what was not taken is offered again.
const RETRY_AFTER: Duration = Duration::from_millis(1);
/// Batches taken from the rings before the end, at most.
const STOP_ROUNDS: usize = 4096;

const TOKEN_QUEUE: u64 = 0;
const TOKEN_BELL: u64 = 1;
const TOKEN_CONTROL: u64 = 2;
const TOKEN_TIMER: u64 = 3;

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Go,
    Stop,
}

/// Runs a link server with the descriptors and the setup that the supervisor gave it. Returns when told to stop.
pub fn main(setup: &LinkServerSetup) -> ExitCode {
    match LinkServer::start(setup).and_then(|mut server| server.serve()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("atoll: link server {}: {error}", setup.index);
            ExitCode::FAILURE
        }
    }
}

struct LinkServer {
    clock: Clock,
    epoll: Epoll,
    timer: LazyTimer,
    control: unix::Channel,
    /// Open as long as it is waited for.
    _bell: OwnedFd,
    page: ReplicaPage<ShmMemory>,
    stack: StackPage<ShmMemory>,
    facts: StackFacts,
    /// Who gets what belongs to no flow.
    first_replica: ReplicaId,
    queue: Queue,
    /// To and from each replica.
    rings: Rings,
    steering: Box<Steering>,
    courier: Courier,
    frame: Box<[u8]>,
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
    bells_rung: u64,
    sleeps: u64,
    rounds: u64,
    busy_nanos: u64,
    frames_in: u64,
    bytes_in: u64,
    forwarded: u64,
}

impl LinkServer {
    fn start(setup: &LinkServerSetup) -> io::Result<LinkServer> {
        let mut fds = process::take_inherited(setup.descriptors)?.into_iter();
        let mut next = || fds.next().ok_or_else(|| io::Error::other("the supervisor passed too few descriptors"));
        let control = unix::Channel::from(next()?);
        let stack = StackPage(ShmMemory::map(next()?, STACK_PAGE_BYTES, Access::ReadOnly)?);
        let page = ReplicaPage(ShmMemory::map(next()?, REPLICA_PAGE_BYTES, Access::ReadWrite)?);
        let bell = next()?;
        let mesh = ShmMemory::map(next()?, MESH_MEMORY_BYTES, Access::ReadWrite)?;
        let queue = Queue::from_fd(next()?);
        let facts = stack.facts().ok_or_else(|| io::Error::other("the stack page is of another version"))?;
        let (me, replicas) = (usize::from(setup.server), usize::from(facts.replicas));
        let places: Vec<_> = (0..replicas).map(|peer| (mesh_ring(me, peer), mesh_ring(peer, me))).collect();
        let bells = (0..replicas).map(|_| next()).collect::<io::Result<Vec<_>>>()?;
        let rings = Rings::resume(mesh, &places, bells);
        let mut steering = Box::new(Steering::new(facts.key));
        steering.refresh(&stack, facts.replicas);
        page.announce(ReplicaId(setup.server), Epoch(setup.epoch));

        sched::set_name(&format!("atoll-link{}", setup.index))?;
        if let Some(cpu) = setup.cpu {
            sched::set_affinity(&[cpu])?;
        }
        if setup.batch_scheduling {
            sched::set_batch()?;
        }
        let timer = LazyTimer::new(RETRY_AFTER)?;
        let epoll = Epoll::new()?;
        epoll.add(&queue, TOKEN_QUEUE, EventFlags::IN)?;
        epoll.add(&bell, TOKEN_BELL, EventFlags::IN | EventFlags::ET)?;
        epoll.add(&control, TOKEN_CONTROL, EventFlags::IN)?;
        epoll.add(&timer, TOKEN_TIMER, EventFlags::IN | EventFlags::ET)?;
        control.send(READY, &[])?;
        let clock = Clock::new(calibration(facts.calibration));
        let now = clock.now();
        Ok(LinkServer {
            clock,
            epoll,
            timer,
            control,
            _bell: bell,
            page,
            stack,
            first_replica: ReplicaId(setup.first_replica),
            queue,
            rings,
            steering,
            courier: Courier::new(replicas),
            frame: vec![0; FRAME_LEN_MAX.max(PAYLOAD_MAX)].into_boxed_slice(),
            sleep_word: 0,
            patience: Patience::new(Duration::from_micros(u64::from(facts.spin_us))),
            facts,
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
            let busy = self.round(now)?;
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
    fn round(&mut self, now: Instant) -> io::Result<bool> {
        self.courier.retry(Some(&mut self.queue), &mut self.rings);
        let mut busy = self.receive_from_queue(now)?;
        busy |= self.receive_from_rings();
        self.counts.bells_rung += self.rings.publish();
        Ok(busy)
    }

    /// Takes up to a batch of frames from the queue.
    fn receive_from_queue(&mut self, now: Instant) -> io::Result<bool> {
        for taken in 0..BATCH {
            let Some(len) = self.queue.receive(&mut self.frame)? else { return Ok(taken > 0) };
            self.counts.frames_in += 1;
            self.counts.bytes_in += len.saturating_sub(vnet::HEADER_LEN) as u64;
            let bytes = &self.frame[..len.min(self.frame.len())];
            let Some((header, frame)) = bytes.split_first_chunk() else { continue };
            self.patience.met(partner_of(frame));
            let (rings, courier) = (&mut self.rings, &mut self.courier);
            match self.steering.destination(frame, self.first_replica) {
                Destination::One(owner) => courier.forward(now, rings, owner.0.into(), header, frame),
                Destination::All => {
                    for replica in 0..self.facts.replicas {
                        courier.forward(now, rings, replica.into(), header, frame);
                    }
                }
            }
            self.counts.forwarded += 1;
        }
        Ok(true)
    }

    /// Takes up to a batch of frames from the replicas.
    fn receive_from_rings(&mut self) -> bool {
        for turn in 0..BATCH {
            let Some(record) = self.rings.receive(turn, &mut self.frame) else { return turn > 0 };
            let payload = &self.frame[..record.len];
            // Nothing else is sent here by a replica that keeps to the rules.
            if record.kind == KIND_FRAME && payload.get(vnet::HEADER_LEN) == Some(&OUTBOUND) {
                self.patience.met(payload.get(FRAME_PREFIX..).map_or(0, partner_of));
                self.courier.send(&mut self.queue, &mut self.rings, record.peer, payload);
            }
        }
        true
    }

    /// Sleeps until the queue, a bell, the supervisor or the timer wakes it.
    fn sleep(&mut self, now: Instant) -> io::Result<Verdict> {
        self.sleep_word |= 1;
        self.set_sleep_word();
        // Partner: replicas fence between their ring store and their look at the sleep word.
        self.page.0.fence();
        let mut verdict = Verdict::Go;
        if !self.rings.is_ready() {
            let retry_at = self.courier.keeps().then_some(now + RETRY_AFTER);
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

    /// What is done now and then: the supervisor's requests, the counters, the steering table.
    fn housekeeping(&mut self, now: Instant) -> io::Result<Verdict> {
        self.control_at = now + CONTROL_EVERY;
        if now >= self.publish_at {
            self.publish_at = now + PUBLISH_EVERY;
            self.steering.refresh(&self.stack, self.facts.replicas);
            self.publish(now);
        }
        let (mut packet, mut fds) = ([0; 4096], Vec::new());
        loop {
            fds.clear();
            match self.control.receive(&mut packet, &mut fds) {
                Ok(0) => return Ok(Verdict::Stop),
                Ok(len) if Request::decode(&packet[..len]) == Ok(Request::Stop) => {
                    self.finish();
                    return Ok(Verdict::Stop);
                }
                // Sessions are none of its business.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Verdict::Go),
                Err(error) => return Err(error),
            }
        }
    }

    /// The replicas have ended: what they said last goes out.
    fn finish(&mut self) {
        for _ in 0..STOP_ROUNDS {
            if !self.receive_from_rings() {
                break;
            }
        }
    }

    /// Puts the counters on the page.
    fn publish(&mut self, now: Instant) {
        self.unpublished = false;
        self.page.set_heartbeat(now.as_nanos());
        let (counts, courier) = (&self.counts, &self.courier);
        for (stat, value) in [
            (Stat::FramesIn, counts.frames_in),
            (Stat::BytesIn, counts.bytes_in),
            (Stat::FramesOut, courier.frames_out),
            (Stat::BytesOut, courier.bytes_out),
            (Stat::FramesForwarded, counts.forwarded),
            (Stat::ForwardDrops, courier.dropped),
            (Stat::SendFailures, courier.failures),
            (Stat::BellsRung, counts.bells_rung),
            (Stat::Sleeps, counts.sleeps),
            (Stat::Rounds, counts.rounds),
            (Stat::BusyNanos, counts.busy_nanos),
        ] {
            self.page.set_stat(stat, value);
        }
    }
}
