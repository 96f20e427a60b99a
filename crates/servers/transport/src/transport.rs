//! The tables of a transport server, and the calls that move it.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::hash::BuildHasher;

use atoll_base::{FLOW_GROUPS, FlowGroup, FourTuple, Instant, ReplicaId, Rng, SessionId, TimerId, Wheel};
use atoll_connmgr::{Leases, Listeners};
use atoll_ip::Ip;
use atoll_ipc::Memory;
use atoll_ipc::page::{ReplicaPage, Stat};
use atoll_tcp::TimeWait;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use slab::Slab;

use crate::config::{Config, Secrets};
use crate::connections::Entry;
use crate::datagrams::DatagramSocket;
use crate::session::Session;
use crate::stats::Stats;

/// Ticks of 2^20 ns: about a millisecond.
const TICK_SHIFT: u32 = 20;

/// The transport server of one replica.
#[derive(Debug)]
pub struct Transport<M: Memory> {
    pub(crate) config: Config,
    pub(crate) secrets: Secrets,
    pub(crate) ip: Ip,
    pub(crate) page: ReplicaPage<M>,
    pub(crate) leases: Leases,
    pub(crate) listeners: Listeners,
    pub(crate) sessions: Slab<Session<M>>,
    pub(crate) session_index: BTreeMap<SessionId, u32>,
    pub(crate) connections: Slab<Entry>,
    pub(crate) flows: HashMap<FourTuple, u32, FixedState>,
    pub(crate) time_waits: HashMap<FourTuple, TimeWait, FixedState>,
    /// In order of entering TIME-WAIT: all last equally long.
    pub(crate) time_wait_queue: VecDeque<(Instant, FourTuple)>,
    pub(crate) wheel: Wheel,
    pub(crate) expired: Vec<TimerId>,
    /// Connections to flush.
    pub(crate) touched: Vec<u32>,
    /// Connections and sockets whose next hop is being asked for, and since which neighbour generation.
    pub(crate) unresolved: Vec<u32>,
    pub(crate) unresolved_datagrams: Vec<u32>,
    pub(crate) neighbour_generation: u64,
    /// Offers in order of their deadlines: connection, session, slot generation.
    pub(crate) offers: VecDeque<(Instant, u32, u32)>,
    /// Deferred connections in order of their deadlines.
    pub(crate) deferred: VecDeque<(Instant, u32, FourTuple)>,
    pub(crate) datagrams: Slab<DatagramSocket>,
    /// Datagram sockets by local port.
    pub(crate) datagram_ports: BTreeMap<u16, Vec<u32>>,
    pub(crate) touched_datagrams: Vec<u32>,
    pub(crate) owners: [u8; FLOW_GROUPS],
    pub(crate) rng: Rng,
    pub(crate) stats: Stats,
    /// Replies without connection: RSTs and answers of TIME-WAIT records.
    pub(crate) replies: VecDeque<(FourTuple, atoll_wire::tcp::Segment)>,
}

impl<M: Memory> Transport<M> {
    /// A transport server without sessions.
    pub fn new(config: Config, secrets: Secrets, ip: Ip, page: ReplicaPage<M>, now: Instant) -> Transport<M> {
        let hasher = FixedState::with_seed(secrets.table);
        let leases = Leases::new(config.replica.0, config.replicas, config.ephemeral, secrets.ports);
        Transport {
            leases,
            listeners: Listeners::default(),
            sessions: Slab::new(),
            session_index: BTreeMap::new(),
            connections: Slab::new(),
            flows: HashMap::with_hasher(hasher.clone()),
            time_waits: HashMap::with_hasher(hasher),
            time_wait_queue: VecDeque::new(),
            wheel: Wheel::new(TICK_SHIFT, now),
            expired: Vec::new(),
            touched: Vec::new(),
            unresolved: Vec::new(),
            unresolved_datagrams: Vec::new(),
            neighbour_generation: ip.neighbour_generation(),
            offers: VecDeque::new(),
            deferred: VecDeque::new(),
            datagrams: Slab::new(),
            datagram_ports: BTreeMap::new(),
            touched_datagrams: Vec::new(),
            owners: [0; FLOW_GROUPS],
            rng: Rng::new(secrets.ports ^ 0x5bd1_e995),
            stats: Stats::default(),
            replies: VecDeque::new(),
            config,
            secrets,
            ip,
            page,
        }
    }

    /// The IP component.
    pub fn ip_mut(&mut self) -> &mut Ip {
        &mut self.ip
    }

    /// Learns which replica owns which flow group.
    pub fn set_owners(&mut self, owner: impl Fn(FlowGroup) -> ReplicaId) {
        for (group, slot) in (0u16..).zip(self.owners.iter_mut()) {
            *slot = owner(FlowGroup(group)).0;
        }
    }

    /// Whether frames of `tuple` come to this replica.
    pub(crate) fn owns(&self, tuple: &FourTuple) -> bool {
        self.config.replicas <= 1 || self.owners[usize::from(self.config.key.group(tuple).0)] == self.config.replica.0
    }

    /// Whether a command is waiting in any ring.
    pub fn has_commands(&self) -> bool {
        self.sessions.iter().any(|(_, session)| !session.gone && session.commands.is_ready(&session.arena))
    }

    /// Whether there is work that the next flush would do.
    pub fn has_work(&self) -> bool {
        !self.touched.is_empty() || !self.touched_datagrams.is_empty() || !self.replies.is_empty()
    }

    /// When [`Transport::handle_timers`] has something to do; `None`: nothing is pending.
    pub fn next_timeout(&self) -> Option<Instant> {
        [
            self.wheel.next_expiry(),
            self.ip.next_timeout(),
            self.offers.front().map(|(at, ..)| *at),
            self.deferred.front().map(|(at, ..)| *at),
            self.time_wait_queue.front().map(|(at, _)| *at),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Does what is due at `now`.
    pub fn handle_timers(&mut self, now: Instant) {
        let mut expired = core::mem::take(&mut self.expired);
        self.wheel.expire(now, |id| expired.push(id));
        for TimerId(id) in expired.drain(..) {
            let Some(entry) = self.connections.get_mut(id as usize) else { continue };
            entry.armed = Instant::FAR_FUTURE;
            if entry.connection.next_timeout().is_some_and(|at| at <= now) {
                let events = entry.connection.handle_timeout(now);
                self.note_events(now, id, events);
            }
            self.touch(id);
        }
        self.expired = expired;
        self.ip.handle_timeout(now);
        self.expire_offers(now);
        self.expire_deferred(now);
        self.expire_time_waits(now);
    }

    /// Puts a connection on the list for the next flush.
    #[inline]
    pub(crate) fn touch(&mut self, id: u32) {
        if let Some(entry) = self.connections.get_mut(id as usize)
            && !entry.touched
        {
            entry.touched = true;
            self.touched.push(id);
        }
    }

    /// Bells of applications to ring, because something was published for somebody who sleeps.
    pub fn take_bells(&mut self, mut ring: impl FnMut(SessionId, u32)) {
        let mut fenced = false;
        for (_, session) in self.sessions.iter_mut().filter(|(_, session)| session.bells != 0) {
            if !fenced {
                // Partner: the library's fence between its sleep word and its last look at the ring.
                session.arena.fence();
                fenced = true;
            }
            session.take_bells(&mut ring);
        }
    }

    /// Puts the counters on the replica's page.
    pub fn publish_stats(&self) {
        let s = &self.stats;
        let buffers: usize = self.sessions.iter().map(|(_, x)| x.pool.used_bytes(&x.pool_memory)).sum();
        let counters = self.ip.counters();
        let dropped: u64 = atoll_ip::Reason::ALL.iter().map(|reason| counters.dropped(*reason)).sum();
        for (stat, value) in [
            (Stat::FramesDropped, s.frames_dropped + dropped),
            (Stat::SegmentsIn, s.segments_in),
            (Stat::SegmentsOut, s.segments_out),
            (Stat::Retransmits, s.retransmits),
            (Stat::SegmentsDropped, s.segments_dropped),
            (Stat::ResetsOut, s.resets_out),
            (Stat::PassiveOpens, s.passive_opens),
            (Stat::ActiveOpens, s.active_opens),
            (Stat::Connections, self.connections.len() as u64),
            (Stat::TimeWaits, self.time_waits.len() as u64),
            (Stat::SynDrops, s.syn_drops),
            (Stat::AcceptDrops, s.accept_drops),
            (Stat::Offers, s.offers),
            (Stat::Claims, s.claims),
            (Stat::ClaimTimeouts, s.claim_timeouts),
            (Stat::DatagramsIn, s.datagrams_in),
            (Stat::DatagramsOut, s.datagrams_out),
            (Stat::DatagramsDropped, s.datagrams_dropped),
            (Stat::Commands, s.commands),
            (Stat::BadCommands, s.bad_commands),
            (Stat::Events, s.events),
            (Stat::EventOverflows, s.event_overflows),
            (Stat::Sessions, self.session_index.len() as u64),
            (Stat::BufferBytes, buffers as u64),
        ] {
            self.page.set_stat(stat, value);
        }
    }

    /// What was counted.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    fn expire_time_waits(&mut self, now: Instant) {
        while let Some(&(at, tuple)) = self.time_wait_queue.front() {
            if at > now && self.time_waits.len() <= self.config.time_waits_max {
                return;
            }
            self.time_wait_queue.pop_front();
            // A record whose deadline has moved, or that was replaced, has another entry further back.
            match self.time_waits.get(&tuple).map(TimeWait::deadline) {
                Some(deadline) if deadline > now && self.time_waits.len() <= self.config.time_waits_max => {
                    if deadline > at {
                        self.time_wait_queue.push_back((deadline, tuple));
                    }
                }
                Some(_) => {
                    self.time_waits.remove(&tuple);
                }
                None => {}
            }
        }
    }

    /// A number that decides something nobody should guess.
    pub(crate) fn hash(&self, tuple: &FourTuple) -> u64 {
        self.flows.hasher().hash_one(tuple)
    }
}
