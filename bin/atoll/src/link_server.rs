//! A link server in a process of its own. It passes frames from its queue to the replicas that own them, and
//! sends the frames of the replicas that it serves. It has one thread.
//!
//! ```text
//!   loop   frames from the queue (at most a batch) -> rings of their owners
//!          frames from the rings of replicas (at most a batch) -> queue
//!          bells of sleeping replicas
//! ```
//!
//! It knows nothing of connections. Its successor misses nothing but frames, which are lost as on a wire.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;

use atoll_base::{Instant, ReplicaId};
use atoll_ipc::control::Request;
use atoll_ipc::mesh::{FRAME_PREFIX, KIND_FRAME, Mark, PAYLOAD_MAX, mark_of};
use atoll_ipc::page::{StackPage, Stat};
use atoll_link::{Destination, Steering};
use atoll_shm::ShmMemory;
use atoll_tap::{FRAME_LEN_MAX, Queue};
use atoll_wire::vnet;

use crate::link::{RetryQueue, Rings, partner_of};
use crate::privileges::Kind;
use crate::server::{self, CONTROL_EVERY, Inherited, OwnProcess, Role, ServerProcess, Surroundings};
use crate::setup::LinkServerSetup;

/// The number of frames taken from the queue, and from the rings, before the other source gets its turn.
const BATCH: usize = 64;

/// Runs a link server until it is stopped. Returns the exit status of the process.
pub fn main(setup: &LinkServerSetup) -> ExitCode {
    server::main::<LinkServer>(setup)
}

struct LinkServer {
    server: ServerProcess,
    stack: StackPage<ShmMemory>,
    replicas: u8,
    /// The replica that gets frames of no flow.
    first_replica: ReplicaId,
    queue: Queue,
    /// The rings to and from each peer: the replicas or, where IP is apart, the IP servers, which share the
    /// replicas in turns.
    rings: Rings,
    steering: Box<Steering>,
    retry_queue: RetryQueue,
    frame: Box<[u8]>,
    counts: Counts,
}

/// Counters that the link server itself keeps.
#[derive(Default)]
struct Counts {
    frames_in: u64,
    bytes_in: u64,
    forwarded: u64,
}

impl LinkServer {
    /// Takes up to a batch of frames from the queue. Returns whether there were any.
    fn receive_from_queue(&mut self, now: Instant) -> io::Result<bool> {
        for taken in 0..BATCH {
            let Some(len) = self.queue.receive(&mut self.frame)? else { return Ok(taken > 0) };
            self.counts.frames_in += 1;
            self.counts.bytes_in += len.saturating_sub(vnet::HEADER_LEN) as u64;
            let bytes = &self.frame[..len.min(self.frame.len())];
            let Some((header, frame)) = bytes.split_first_chunk() else { continue };
            self.server.patience.met(partner_of(frame));
            let (rings, retry_queue) = (&mut self.rings, &mut self.retry_queue);
            let peers = rings.len().max(1);
            match self.steering.destination(frame, self.first_replica) {
                Destination::One(owner) => {
                    retry_queue.forward(now, rings, usize::from(owner.0) % peers, header, frame)
                }
                Destination::All => {
                    for peer in 0..peers {
                        retry_queue.forward(now, rings, peer, header, frame);
                    }
                }
            }
            self.counts.forwarded += 1;
        }
        Ok(true)
    }

    /// Takes up to a batch of frames from the rings. Returns whether there were any.
    fn receive_from_rings(&mut self) -> bool {
        for turn in 0..BATCH {
            let Some(record) = self.rings.receive(turn, &mut self.frame) else { return turn > 0 };
            let payload = &self.frame[..record.len];
            // A peer that follows the protocol sends nothing else here.
            if record.kind == KIND_FRAME && mark_of(payload) == Some(Mark::Outbound) {
                self.server.patience.met(payload.get(FRAME_PREFIX..).map_or(0, partner_of));
                self.retry_queue.send(&mut self.queue, &mut self.rings, record.peer, payload);
            }
        }
        true
    }
}

impl OwnProcess for LinkServer {
    type Setup = LinkServerSetup;
    /// The queue of the link server, and the doorbells of its peers.
    type Given = (Queue, Vec<OwnedFd>);
    const NAME: &'static str = "link server";
    const PROCESS: &'static str = "atoll-link";

    fn take(setup: &LinkServerSetup, inherited: &mut Inherited) -> io::Result<(Queue, Vec<OwnedFd>)> {
        Ok((Queue::from_fd(inherited.next()?), inherited.take_next(setup.peers.len())?))
    }

    fn kind(_: &(Queue, Vec<OwnedFd>)) -> Kind {
        Kind::LinkServer
    }

    fn queue((queue, _): &(Queue, Vec<OwnedFd>)) -> Option<BorrowedFd<'_>> {
        Some(queue.as_fd())
    }

    fn start(
        setup: &LinkServerSetup,
        (queue, bells): (Queue, Vec<OwnedFd>),
        stack: Surroundings,
        server: ServerProcess,
    ) -> io::Result<LinkServer> {
        let replicas = stack.facts.replicas;
        let rings = Rings::resume(stack.mesh.ways(setup.peers.iter().copied().map(usize::from)), bells);
        let mut steering = Box::new(Steering::new(stack.facts.key));
        steering.refresh(&stack.page, replicas);
        Ok(LinkServer {
            server,
            stack: stack.page,
            replicas,
            first_replica: ReplicaId(setup.first_replica),
            queue,
            rings,
            steering,
            retry_queue: RetryQueue::new(setup.peers.len()),
            frame: vec![0; FRAME_LEN_MAX.max(PAYLOAD_MAX)].into_boxed_slice(),
            counts: Counts::default(),
        })
    }
}

impl Role for LinkServer {
    fn server(&mut self) -> &mut ServerProcess {
        &mut self.server
    }

    fn own(&self) -> &ServerProcess {
        &self.server
    }

    fn round(&mut self, now: Instant) -> io::Result<bool> {
        self.retry_queue.retry(Some(&mut self.queue), &mut self.rings);
        let mut busy = self.receive_from_queue(now)?;
        busy |= self.receive_from_rings();
        self.server.bells_rung += self.rings.publish();
        Ok(busy)
    }

    fn before_sleep(&mut self, _: Instant) -> u64 {
        0
    }

    fn set_sleep_word(&mut self, word: u32) {
        self.rings.set_sleep_word(word);
    }

    fn past_sleep_word(&self) -> u32 {
        self.rings.sleep_word()
    }

    fn is_ready(&self) -> bool {
        self.rings.is_ready()
    }

    fn next_timeout(&mut self, now: Instant) -> Option<Instant> {
        self.retry_queue.keeps().then_some(now + CONTROL_EVERY)
    }

    fn refresh(&mut self) {
        self.steering.refresh(&self.stack, self.replicas);
    }

    fn count(&self, mut put: impl FnMut(Stat, u64)) {
        let (counts, retry_queue) = (&self.counts, &self.retry_queue);
        for (stat, value) in [
            (Stat::FramesIn, counts.frames_in),
            (Stat::BytesIn, counts.bytes_in),
            (Stat::FramesOut, retry_queue.frames_out),
            (Stat::BytesOut, retry_queue.bytes_out),
            (Stat::FramesForwarded, counts.forwarded),
            (Stat::ForwardDrops, retry_queue.dropped),
            (Stat::SendFailures, retry_queue.failures),
        ] {
            put(stat, value);
        }
    }

    fn pass_on(&mut self, _: Instant) -> bool {
        self.retry_queue.retry(Some(&mut self.queue), &mut self.rings);
        self.rings.publish();
        self.retry_queue.keeps()
    }

    fn drain(&mut self, _: Instant) -> bool {
        self.receive_from_rings()
    }

    /// Ignores all requests: a link server has nothing to do with sessions.
    fn handle_request(&mut self, _: Instant, _: Request, _: &mut Vec<OwnedFd>) -> io::Result<()> {
        Ok(())
    }
}
