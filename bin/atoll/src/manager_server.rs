//! A connection manager in a process of its own. Transport servers report acceptors and the states of
//! connections to it, and it decides which acceptor gets the next connection. It has one thread.
//!
//! ```text
//!   loop   messages of transport servers, offers and reports of other connection managers (at most a batch)
//!          answers, offers and reports -> rings
//!          bells of sleeping servers
//! ```
//!
//! It has no sessions and no frames, and learns everything from transport servers.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::ExitCode;

use atoll_base::{Epoch, Instant, ReplicaId};
use atoll_connmgr::{Manager, ManagerConfig, PeerOutput};
use atoll_ipc::balance::{PEER_BYTES_MAX, PeerMessage};
use atoll_ipc::control::Request;
use atoll_ipc::manager::ManagerMessage;
use atoll_ipc::mesh::{KIND_BALANCE, KIND_MANAGER, PAYLOAD_MAX};
use atoll_ipc::page::Stat;
use atoll_sys::process;

use crate::link::{Received, Rings};
use crate::privileges::Kind;
use crate::server::{self, CONTROL_EVERY, Inherited, OwnProcess, Role, ServerProcess, Surroundings};
use crate::setup::ManagerSetup;

/// The number of messages taken before the answers go out.
const BATCH: usize = 64;

/// Runs a connection manager until it is stopped. Returns the exit status of the process.
pub fn main(setup: &ManagerSetup) -> ExitCode {
    server::main::<ManagerServer>(setup)
}

struct ManagerServer {
    server: ServerProcess,
    manager: Manager,
    /// The rings to and from each connection manager (this one's place stays empty), then each replica.
    rings: Rings,
    managers: usize,
    /// A bit for each replica whose messages stay in their rings because it does not take its answers.
    held_up: u8,
    record: Box<[u8]>,
    counts: Counts,
}

/// Counters that the connection manager itself keeps.
#[derive(Default)]
struct Counts {
    received: u64,
    sent: u64,
    bad: u64,
}

impl ManagerServer {
    /// Takes up to a batch of messages. Returns whether any of them is a reason to stay awake.
    fn receive(&mut self, now: Instant) -> bool {
        let mut busy = false;
        for turn in 0..BATCH {
            let Some(Received { peer, kind, len }) = self.rings.receive(turn, &mut self.record) else {
                break;
            };
            // Messages of other connection managers can wait, and are no reason to stay awake.
            busy |= kind != KIND_BALANCE;
            self.counts.received += 1;
            let payload = &self.record[..len];
            let replica = peer.checked_sub(self.managers).map(|replica| ReplicaId(replica as u8));
            match (kind, replica) {
                (KIND_MANAGER, Some(replica)) => match ManagerMessage::decode(payload) {
                    Ok(message) => {
                        self.server.patience.met(replica.0.into());
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

    /// Sends answers to the transport servers, and stops reading from those that do not take them.
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

    /// Sends offers and reports to the other connection managers (P5). `last` says that this server is about
    /// to sleep.
    fn tell_peers(&mut self, now: Instant, last: bool) {
        let reach = self.rings.reach();
        while let Some(PeerOutput { to, wakes, message }) = self.manager.poll_peer(now, reach, last) {
            let mut bytes = [0; PEER_BYTES_MAX];
            self.rings.tell(to, wakes, KIND_BALANCE, message.encode(&mut bytes));
        }
    }
}

impl OwnProcess for ManagerServer {
    type Setup = ManagerSetup;
    /// The doorbells of the connection managers, then those of the replicas.
    type Given = Vec<OwnedFd>;
    const NAME: &'static str = "connection manager";
    const PROCESS: &'static str = "atoll-cm";

    fn take(setup: &ManagerSetup, inherited: &mut Inherited) -> io::Result<Vec<OwnedFd>> {
        inherited.take_next(usize::from(setup.managers) + usize::from(inherited.facts.replicas))
    }

    fn kind(_: &Vec<OwnedFd>) -> Kind {
        Kind::Manager
    }

    fn queue(_: &Vec<OwnedFd>) -> Option<BorrowedFd<'_>> {
        None
    }

    fn start(
        setup: &ManagerSetup,
        bells: Vec<OwnedFd>,
        stack: Surroundings,
        server: ServerProcess,
    ) -> io::Result<ManagerServer> {
        let (me, index) = (usize::from(setup.common.server), setup.common.process.index);
        let (managers, replicas) = (usize::from(setup.managers), usize::from(stack.facts.replicas));
        // Connection managers in processes of their own have consecutive server numbers.
        let first =
            me.checked_sub(index.into()).ok_or_else(|| io::Error::other("a server without a number"))?;
        let peers = (first..first + managers).chain(0..replicas);
        let mut seed = [0; 8];
        process::random(&mut seed)?;
        let epoch = Epoch(setup.common.epoch);
        let config = ManagerConfig { number: index, managers: setup.managers, epoch, own: None };
        Ok(ManagerServer {
            server,
            manager: Manager::new(config, u64::from_ne_bytes(seed)),
            rings: Rings::resume(stack.mesh.ways(peers), bells),
            managers,
            held_up: 0,
            record: vec![0; PAYLOAD_MAX].into_boxed_slice(),
            counts: Counts::default(),
        })
    }
}

impl Role for ManagerServer {
    fn server(&mut self) -> &mut ServerProcess {
        &mut self.server
    }

    fn own(&self) -> &ServerProcess {
        &self.server
    }

    fn round(&mut self, now: Instant) -> io::Result<bool> {
        let busy = self.receive(now);
        self.answer(now);
        if self.manager.is_peer_due(now, false) {
            self.tell_peers(now, false);
        }
        self.server.bells_rung += self.rings.publish();
        Ok(busy)
    }

    fn before_sleep(&mut self, now: Instant) -> u64 {
        if !self.manager.is_peer_due(now, true) {
            return 0;
        }
        self.tell_peers(now, true);
        self.rings.publish()
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
        self.manager.has_output().then_some(now + CONTROL_EVERY)
    }

    fn refresh(&mut self) {}

    fn count(&self, mut put: impl FnMut(Stat, u64)) {
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
        ] {
            put(stat, value);
        }
    }

    /// Takes changes of the balancing rules. A connection manager learns of sessions from transport servers.
    fn handle_request(&mut self, _: Instant, request: Request, _: &mut Vec<OwnedFd>) -> io::Result<()> {
        if let Request::Balance { rules } = request {
            self.manager.set_balance(rules);
        }
        Ok(())
    }
}
