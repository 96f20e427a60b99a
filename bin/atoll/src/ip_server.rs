//! An IP server in a process of its own. It turns frames of the link into checked packets for transport
//! servers (TS), and their packets into frames for a station. It may have a queue of the device itself, or
//! send through a link server. It has one thread.
//!
//! ```text
//!   loop   frames of the queue (at most a batch) -> IP -> the rings of their owners
//!          frames and messages of link servers, TSs and other IP servers (at most a batch)
//!            -> IP -> queue, rings
//!          timers -> IP; then what IP has to send
//!          bells of sleeping servers
//! ```
//!
//! It knows nothing of connections, and of sessions only which groups they want. The logic of IP is in
//! `atoll_ip_server`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;

use atoll_base::{Epoch, FourTuple, Instant, ReplicaId};
use atoll_ip::{Ip, V6Config};
use atoll_ip_server::{Egress, IpServer, Party};
use atoll_ipc::control::Request;
use atoll_ipc::ip::IpMessage;
use atoll_ipc::mesh::{FRAME_PREFIX, FramePrefix, KIND_FRAME, KIND_IP, Mark, PAYLOAD_MAX};
use atoll_ipc::page::{StackFacts, StackPage, Stat};
use atoll_link::{Destination, Steering};
use atoll_shm::ShmMemory;
use atoll_sys::process;
use atoll_tap::{FRAME_LEN_MAX, Queue};
use atoll_transport::past;
use atoll_wire::{Mac, vnet};

use crate::link::{Outgoing, Received, RetryQueue, Rings, forwarded_prefix, partner_of, prefix_of};
use crate::privileges::Kind;
use crate::server::{self, CONTROL_EVERY, Inherited, OwnProcess, Role, ServerProcess, Surroundings};
use crate::setup::IpServerSetup;

/// The number of frames taken from the queue, and from the rings, before the other source gets its turn.
const BATCH: usize = 64;

/// Runs an IP server until it is stopped. Returns the exit status of the process.
pub fn main(setup: &IpServerSetup) -> ExitCode {
    server::main::<IpProcess>(setup)
}

struct IpProcess {
    server: ServerProcess,
    stack: StackPage<ShmMemory>,
    replicas: u8,
    /// This server's number among the IP servers.
    index: usize,
    ip: IpServer,
    outputs: Outputs,
    /// Whether frames of TSs stay in their rings because the link takes no more.
    holds_up: bool,
    frame: Box<[u8]>,
    counts: Counts,
}

/// The outputs of an IP server.
struct Outputs {
    /// The queue of the device, if this server has one.
    queue: Option<Queue>,
    /// The server that has the queue, if this one has none.
    link: usize,
    /// The rings to and from each server.
    rings: Rings,
    retry_queue: RetryQueue,
    steering: Box<Steering>,
    /// The server numbers of all IP servers.
    ip_servers: Vec<usize>,
    /// The prefix of the frame that is being handled, which says above all when it came.
    prefix: [u8; FRAME_PREFIX],
    /// Frames that left through the link server, and their octets from the Ethernet header on.
    frames_out: u64,
    bytes_out: u64,
    failures: u64,
}

/// Counters that the IP server itself keeps.
#[derive(Default)]
struct Counts {
    frames_in: u64,
    bytes_in: u64,
    forwarded: u64,
    bad: u64,
}

impl IpProcess {
    /// Takes up to a batch of frames from this server's queue. Returns whether there were any.
    fn receive_from_queue(&mut self, now: Instant) -> io::Result<bool> {
        for taken in 0..BATCH {
            let Some(queue) = &mut self.outputs.queue else { return Ok(taken > 0) };
            let Some(len) = queue.receive(&mut self.frame)? else { return Ok(taken > 0) };
            self.counts.frames_in += 1;
            self.counts.bytes_in += len.saturating_sub(vnet::HEADER_LEN) as u64;
            let bytes = &self.frame[..len.min(self.frame.len())];
            let Some((header, frame)) = bytes.split_first_chunk() else { continue };
            self.server.patience.met(partner_of(frame));
            self.outputs.prefix = forwarded_prefix(now, header);
            if self.outputs.share(self.index, frame) {
                self.ip.handle_frame(now, header, frame, &mut self.outputs);
            } else {
                self.counts.forwarded += 1;
            }
        }
        Ok(true)
    }

    /// Takes up to a batch of frames and messages from the other servers. Returns whether there were any.
    fn receive_from_rings(&mut self, now: Instant) -> bool {
        for turn in 0..BATCH {
            let Some(Received { peer, kind, len }) = self.outputs.rings.receive(turn, &mut self.frame) else {
                return turn > 0;
            };
            let is_replica = peer < usize::from(self.replicas);
            match kind {
                KIND_FRAME => self.handle_record(now, peer, len, is_replica),
                KIND_IP => {
                    let sibling = self.outputs.ip_servers.iter().position(|server| *server == peer);
                    // This cannot truncate: there are fewer servers.
                    let party = if is_replica {
                        Some(Party::Transport(peer as u8))
                    } else {
                        sibling.map(|number| Party::Sibling(number as u8))
                    };
                    match (party, IpMessage::decode(&self.frame[..len])) {
                        (Some(party), Ok(message)) => self.ip.handle_message(now, party, &message),
                        _ => self.counts.bad += 1,
                    }
                }
                _ => self.counts.bad += 1,
            }
        }
        true
    }

    /// Handles a frame of server `peer`, which lies in the first `len` octets of the frame buffer, prefix
    /// first.
    fn handle_record(&mut self, now: Instant, peer: usize, len: usize, is_replica: bool) {
        let record = &mut self.frame[..len];
        let prefix = FramePrefix::decode(record);
        let (Some(FramePrefix { vnet, mark, .. }), Some((octets, frame))) =
            (prefix, record.split_first_chunk_mut::<FRAME_PREFIX>())
        else {
            self.counts.bad += 1;
            return;
        };
        self.server.patience.met(partner_of(frame));
        match mark {
            Mark::Outbound if is_replica => {
                self.ip.transmit(now, peer as u8, &vnet, frame, &mut self.outputs);
                if self.ip.is_crowded() && !self.holds_up {
                    self.hold_up(true);
                }
            }
            // This comes from an IP server without a queue.
            Mark::Outbound => {
                let Outputs { queue, rings, retry_queue, .. } = &mut self.outputs;
                match queue {
                    Some(queue) => retry_queue.send(queue, rings, peer, record),
                    None => self.counts.bad += 1,
                }
            }
            Mark::Forwarded if !is_replica => {
                self.counts.frames_in += 1;
                self.counts.bytes_in += frame.len() as u64;
                self.outputs.prefix = *octets;
                self.ip.handle_frame(now, &vnet, frame, &mut self.outputs);
            }
            Mark::Internal | Mark::Forwarded => self.counts.bad += 1,
        }
    }

    /// Sets whether frames of TSs stay in their rings for now.
    fn hold_up(&mut self, holds_up: bool) {
        self.holds_up = holds_up;
        (0..self.replicas).for_each(|ts| self.outputs.rings.hold_up(ts.into(), holds_up));
    }

    /// Lets IP handle its timers, and sends what it has to send.
    fn flush(&mut self, now: Instant) {
        self.ip.handle_timeout(now);
        self.ip.flush(now, &mut self.outputs);
        if self.holds_up && !self.ip.is_crowded() {
            self.hold_up(false);
        }
    }
}

impl Outputs {
    /// Gives a frame of the queue to the IP server that owns it, as a link server does. Returns whether
    /// server `index`, which is this one, is to handle the frame too.
    fn share(&mut self, index: usize, frame: &[u8]) -> bool {
        let count = self.ip_servers.len();
        if count == 1 {
            return true;
        }
        // A frame of no flow is handled here: `index` is also the number of a replica that this server
        // serves.
        match self.steering.destination(frame, ReplicaId(index as u8)) {
            Destination::One(owner) => {
                let owner = usize::from(owner.0) % count;
                if owner != index {
                    self.retry_queue.pass_on(&mut self.rings, self.ip_servers[owner], self.prefix, frame);
                }
                owner == index
            }
            Destination::All => {
                for other in (0..count).filter(|other| *other != index) {
                    self.retry_queue.pass_on(&mut self.rings, self.ip_servers[other], self.prefix, frame);
                }
                true
            }
        }
    }
}

impl Egress for Outputs {
    fn send(&mut self, vnet: &[u8; vnet::HEADER_LEN], frame: &[u8]) -> bool {
        if let Some(queue) = &mut self.queue {
            return self.retry_queue.put(queue, vnet, frame);
        }
        let prefix = prefix_of(vnet, Mark::Outbound);
        let taken =
            self.rings.send_frame(self.link, &Outgoing { prefix, headers: frame, slice: &[], pieces: None });
        if taken {
            self.frames_out += 1;
            self.bytes_out += frame.len() as u64;
        } else {
            self.failures += 1;
        }
        taken
    }

    fn deliver(&mut self, tuple: &FourTuple, vnet: &[u8; vnet::HEADER_LEN], frame: &[u8]) {
        let owner = self.steering.owner(tuple).0;
        self.prefix[..vnet::HEADER_LEN].copy_from_slice(vnet);
        self.retry_queue.pass_on(&mut self.rings, owner.into(), self.prefix, frame);
    }

    fn tell(&mut self, to: Party, message: &IpMessage) -> bool {
        let server = match to {
            Party::Transport(ts) => usize::from(ts),
            Party::Sibling(number) => match self.ip_servers.get(usize::from(number)) {
                Some(server) => *server,
                None => return true,
            },
        };
        self.rings.send(server, KIND_IP, &message.encode())
    }
}

impl OwnProcess for IpProcess {
    type Setup = IpServerSetup;
    /// The queue of the device, if the server has one, and the doorbells of all servers.
    type Given = (Option<Queue>, Vec<OwnedFd>);
    const NAME: &'static str = "IP server";
    const PROCESS: &'static str = "atoll-ip";

    fn take(setup: &IpServerSetup, inherited: &mut Inherited) -> io::Result<(Option<Queue>, Vec<OwnedFd>)> {
        let queue = if setup.has_tap { Some(Queue::from_fd(inherited.next()?)) } else { None };
        Ok((queue, inherited.take_next(setup.servers.into())?))
    }

    fn kind((queue, _): &(Option<Queue>, Vec<OwnedFd>)) -> Kind {
        Kind::IpServer { queue: queue.is_some() }
    }

    fn queue((queue, _): &(Option<Queue>, Vec<OwnedFd>)) -> Option<BorrowedFd<'_>> {
        queue.as_ref().map(AsFd::as_fd)
    }

    fn start(
        setup: &IpServerSetup,
        (queue, bells): (Option<Queue>, Vec<OwnedFd>),
        stack: Surroundings,
        server: ServerProcess,
    ) -> io::Result<IpProcess> {
        let (facts, index, now) = (stack.facts, setup.common.process.index, stack.clock.now());
        let rings = Rings::resume(stack.mesh.ways(0..setup.servers.into()), bells);
        let mut steering = Box::new(Steering::new(facts.key));
        steering.refresh(&stack.page, facts.replicas);
        let mut seed = [0; 8];
        process::random(&mut seed)?;
        let ip_servers: Vec<usize> = setup.ip_servers.iter().copied().map(usize::from).collect();
        // The TSs share the space of identifications, because they send fragments as well.
        let config = atoll_ip::Config {
            sibling: (index, setup.ip_servers.len() as u8 + facts.replicas),
            ..network_config(&facts)
        };
        let mut ip = Ip::new(config, u64::from_ne_bytes(seed), now)
            .map_err(|error| io::Error::other(error.to_string()))?;
        ip.resume(now, &past(&server.page.network(), now));
        if index == 0 {
            ip.announce(now);
        }
        let config = atoll_ip_server::Config {
            number: index,
            servers: setup.ip_servers.len() as u8,
            replicas: facts.replicas,
            epoch: Epoch(setup.common.epoch),
        };
        Ok(IpProcess {
            server,
            stack: stack.page,
            replicas: facts.replicas,
            index: index.into(),
            ip: IpServer::new(config, ip),
            outputs: Outputs {
                queue,
                link: setup.link_server.into(),
                retry_queue: RetryQueue::new(rings.len()),
                rings,
                steering,
                ip_servers,
                prefix: [0; FRAME_PREFIX],
                frames_out: 0,
                bytes_out: 0,
                failures: 0,
            },
            holds_up: false,
            frame: vec![0; FRAME_LEN_MAX.max(PAYLOAD_MAX)].into_boxed_slice(),
            counts: Counts::default(),
        })
    }
}

impl Role for IpProcess {
    fn server(&mut self) -> &mut ServerProcess {
        &mut self.server
    }

    fn own(&self) -> &ServerProcess {
        &self.server
    }

    fn round(&mut self, now: Instant) -> io::Result<bool> {
        let Outputs { queue, rings, retry_queue, .. } = &mut self.outputs;
        retry_queue.retry(queue.as_mut(), rings);
        let mut busy = self.receive_from_queue(now)?;
        busy |= self.receive_from_rings(now);
        self.flush(now);
        self.server.bells_rung += self.outputs.rings.publish();
        Ok(busy)
    }

    fn before_sleep(&mut self, _: Instant) -> u64 {
        0
    }

    fn set_sleep_word(&mut self, word: u32) {
        self.outputs.rings.set_sleep_word(word);
    }

    fn past_sleep_word(&self) -> u32 {
        self.outputs.rings.sleep_word()
    }

    fn is_ready(&self) -> bool {
        self.outputs.rings.is_ready()
    }

    fn next_timeout(&mut self, now: Instant) -> Option<Instant> {
        let keeps = self.outputs.retry_queue.keeps() || self.ip.has_work();
        [keeps.then_some(now + CONTROL_EVERY), self.ip.next_timeout()].into_iter().flatten().min()
    }

    fn refresh(&mut self) {
        self.outputs.steering.refresh(&self.stack, self.replicas);
    }

    fn count(&self, mut put: impl FnMut(Stat, u64)) {
        let (counts, outputs, ip) = (&self.counts, &self.outputs, self.ip.counts());
        for (stat, value) in [
            (Stat::FramesIn, counts.frames_in),
            (Stat::BytesIn, counts.bytes_in),
            (Stat::FramesOut, outputs.frames_out + outputs.retry_queue.frames_out),
            (Stat::BytesOut, outputs.bytes_out + outputs.retry_queue.bytes_out),
            (Stat::FramesForwarded, counts.forwarded),
            (Stat::ForwardDrops, outputs.retry_queue.dropped),
            (Stat::SendFailures, outputs.failures + outputs.retry_queue.failures),
            (Stat::MessagesIn, ip.received),
            (Stat::MessagesOut, ip.sent),
            (Stat::MessagesBad, ip.bad + counts.bad),
            (Stat::Unresolved, ip.unresolved),
            (Stat::Refused, ip.refused),
        ] {
            put(stat, value);
        }
        for (stat, value) in atoll_ip_server::stats_of(self.ip.ip()) {
            put(stat, value);
        }
    }

    fn pass_on(&mut self, now: Instant) -> bool {
        let Outputs { queue, rings, retry_queue, .. } = &mut self.outputs;
        retry_queue.retry(queue.as_mut(), rings);
        self.flush(now);
        self.outputs.rings.publish();
        self.outputs.retry_queue.keeps()
    }

    fn drain(&mut self, now: Instant) -> bool {
        self.receive_from_rings(now)
    }

    fn close(&mut self, now: Instant) {
        self.ip.ip_mut().release(now);
        self.flush(now);
        self.outputs.rings.publish();
    }

    /// Ignores all requests; an IP server learns of sessions from transport servers.
    fn handle_request(&mut self, _: Instant, _: Request, _: &mut Vec<OwnedFd>) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the network configuration on the stack page, for a replica without siblings.
pub(crate) fn network_config(facts: &StackFacts) -> atoll_ip::Config {
    atoll_ip::Config {
        gateway: (facts.gateway != 0).then_some(facts.gateway),
        dhcp: facts.addr == 0,
        mtu: facts.mtu,
        v6: facts.v6.map(|v6| V6Config { address: v6.address, gateway: v6.gateway, autoconf: v6.autoconf }),
        ..atoll_ip::Config::new(Mac(facts.mac), facts.addr, facts.prefix_len)
    }
}
