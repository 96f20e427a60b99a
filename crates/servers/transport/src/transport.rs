//! The parts of one replica's transport server. The order in which a round uses them is in `round.rs`.
//!
//! ```text
//!   connections   their table, names, timers, TIME-WAIT      datagrams   datagram sockets
//!   handshakes    state before an application has them       cm          which application gets them
//!   applications  sessions, their slots, rings and shares
//!   egress        what waits to be sent                      ip, owners  the ways out
//!   durability    what a successor has to know               aftermath   what a death has left
//!   shortage      the state of memory                        load        what this round has cost
//! ```
//! The fields of a part are its own. A procedure that needs several parts has them as arguments, or it is a
//! method of [`Transport`] in a file above this one, because it needs nearly all.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use atoll_base::{Duration, Epoch, FlowGroup, FourTuple, Instant, ReplicaId, Rng, SessionId};
use atoll_connmgr::ConnMgr;
use atoll_ip::Ip;
use atoll_ip_server::{network_of, stats_of};
use atoll_ipc::Memory;
use atoll_ipc::arena::ArenaLayout;
use atoll_ipc::control::{MemoryLevel, User};
use atoll_ipc::ledger::{Ledger, Work};
use atoll_ipc::page::{AppPage, ReplicaPage, Stat};

use crate::aftermath::{Adoption, Aftermath, Charge};
use crate::applications::Applications;
use crate::calendar::Calendar;
use crate::challenge::Challenges;
use crate::config::{Config, Secrets};
use crate::connections::Connections;
use crate::datagrams::Datagrams;
use crate::durability::{Durability, Records};
use crate::egress::Egress;
use crate::handshakes::Handshakes;
use crate::load::Load;
use crate::owners::Owners;
use crate::phases::Stopwatch;
use crate::pressure::Shortage;
use crate::session::Session;
use crate::stats::Stats;

/// The connections, datagram sockets, sessions and timers of one replica.
///
/// In each round its owner calls `handle_frame` for each frame, `handle_commands`, `handle_timers`, `flush`,
/// and then rings the doorbells of `take_bells`. Before sleeping it asks [`Transport::has_commands`], and it
/// sleeps no longer than until [`Transport::next_timeout`].
#[derive(Debug)]
pub struct Transport<M: Memory> {
    pub(crate) config: Config,
    pub(crate) secrets: Secrets,
    pub(crate) rng: Rng,
    pub(crate) ip: Ip,
    pub(crate) owners: Owners,
    pub(crate) cm: ConnMgr,
    pub(crate) page: ReplicaPage<M>,
    pub(crate) stats: Stats,
    pub(crate) load: Load,
    pub(crate) connections: Connections,
    pub(crate) handshakes: Handshakes,
    pub(crate) applications: Applications<M>,
    pub(crate) datagrams: Datagrams,
    pub(crate) egress: Egress,
    pub(crate) challenges: Challenges,
    pub(crate) durability: Durability<M>,
    pub(crate) aftermath: Aftermath,
    pub(crate) shortage: Shortage,
    pub(crate) calendar: Calendar,
}

impl<M: Memory> Transport<M> {
    /// Creates a transport server without sessions. `page` is that of this replica, which the caller has
    /// announced. All flow groups belong to this replica until [`Transport::set_owners`].
    pub fn new(config: Config, secrets: Secrets, ip: Ip, page: ReplicaPage<M>, now: Instant) -> Transport<M> {
        let mut rng = Rng::new(secrets.ports);
        let mut seeds = Rng::new(secrets.table);
        let cm_config = atoll_connmgr::Config {
            replica: config.replica,
            replicas: config.replicas,
            epoch: config.epoch,
            ephemeral: config.ephemeral,
            backlog_max: config.backlog_max,
            leases_max: 1 << 17,
            session_leases_max: config.quota.leases as usize,
            session_listeners_max: config.quota.listeners as usize,
            managers: config.managers,
            managers_apart: config.managers_apart,
            patience: config.claim_timeout,
        };
        let transport = Transport {
            cm: ConnMgr::new(cm_config, rng.next_u64()),
            connections: Connections::new(config.time_waits_max, &mut seeds, now),
            datagrams: Datagrams::new(seeds.next_u64()),
            handshakes: Handshakes::new(config.cookies_max, seeds.next_u64()),
            applications: Applications::new(),
            owners: Owners::new(&config),
            egress: Egress::new(&ip),
            challenges: Challenges::new(),
            durability: Durability::new(),
            aftermath: Aftermath::default(),
            shortage: Shortage::new(),
            calendar: Calendar::default(),
            stats: Stats::new(&page),
            load: Load::default(),
            rng,
            config,
            secrets,
            ip,
            page,
        };
        transport.publish_network();
        transport
    }

    /// Sets the replica that owns each flow group. This decides which local ports outgoing connections may
    /// take, and where internal frames go.
    pub fn set_owners(&mut self, owner_of: impl Fn(FlowGroup) -> ReplicaId) {
        self.owners.set(owner_of);
        self.connections.forget_searches();
    }

    /// Returns the replica that gets packets of `tuple`, which is seen from their receiver.
    #[inline]
    pub fn owner(&self, tuple: &FourTuple) -> ReplicaId {
        self.owners.of(tuple)
    }

    /// Starts to measure the cost of incoming connections, of one in [`SAMPLE_EVERY`](crate::SAMPLE_EVERY).
    pub fn set_stopwatch(&mut self, stopwatch: Stopwatch) {
        self.handshakes.phases().set_stopwatch(stopwatch);
    }

    /// Sets the clock by which datagrams are stamped for sockets that ask when they came.
    pub fn set_calendar(&mut self, calendar: Calendar) {
        self.calendar = calendar;
    }

    /// Notes how long the frame that is given to [`Transport::handle_frame`] next has waited since a link
    /// server took it.
    #[inline]
    pub fn note_wait(&mut self, waited: Duration) {
        self.handshakes.phases().note_wait(waited);
    }

    /// Returns the number of this server's replica, and its epoch.
    pub fn identity(&self) -> (ReplicaId, Epoch) {
        (self.config.replica, self.config.epoch)
    }

    /// Returns the network layer, for what it exchanges with other replicas (N8).
    pub fn ip_mut(&mut self) -> &mut Ip {
        &mut self.ip
    }

    // ---- sessions ----

    /// Opens the session of an application process of `user` that has attached, and announces this
    /// incarnation in its arena.
    pub fn open_session(
        &mut self,
        _now: Instant,
        (id, user): (SessionId, User),
        layout: ArenaLayout,
        arena: M,
        page: AppPage<M>,
    ) {
        if self.applications.place_of(id).is_some() || arena.len() < layout.total {
            return;
        }
        self.durability.mark(Work::Opening(id));
        let of_user = self.applications.users_mut().of(&user, self.config.user_quota.sockets);
        let books = (self.shortage.books(), of_user);
        let session = Session::new((id, user), layout, arena, page, self.config.epoch, books);
        let place = self.applications.insert(session);
        self.aftermath.session_opened(place, id);
        self.count_sessions();
        self.durability.mark(Work::Nothing);
    }

    /// Makes an application examine everything, if its session was opened after [`Transport::adopt`].
    pub fn remind(&mut self, id: SessionId) {
        if let Some(session) = self.applications.find_mut(id) {
            session.rebuild();
        }
    }

    /// Returns the sessions that nothing uses any more, since the last call, after
    /// [`Transport::close_session`]: until then a successor needs their memory.
    pub fn take_ended(&mut self) -> Vec<SessionId> {
        self.applications.take_ended()
    }

    /// Returns the sessions that are cut off here and were not yet reported to the supervisor.
    pub fn take_cut_off(&mut self) -> Vec<SessionId> {
        self.applications.take_cut_off()
    }

    /// Returns whether the session is cut off here.
    pub fn is_cut_off(&self, id: SessionId) -> bool {
        self.applications.is_cut_off(id)
    }

    pub(crate) fn count_sessions(&mut self) {
        self.stats.set(Stat::Sessions, self.applications.count() as u64);
    }

    // ---- memory ----

    /// Sets the level of the stack's memory that the supervisor reports, and how many octets all receive
    /// buffers here may take.
    pub fn set_memory(&mut self, now: Instant, level: MemoryLevel, buffers_max: u64) {
        self.shortage.set_memory(now, level, buffers_max);
    }

    /// Returns how many octets of receive buffers the kernel has given memory for, which is what the bound of
    /// [`Transport::set_memory`] limits.
    pub fn receive_buffers(&self) -> u64 {
        self.shortage.receive_buffers()
    }

    // ---- predecessors and successors ----

    /// Sets the ledger in which everything that a successor has to know is written from now on. If it was
    /// that of a predecessor, [`Transport::adopt`] is to be called when all sessions are open.
    pub fn set_ledger(&mut self, ledger: Ledger<M>) {
        let records = Records::new(ledger, self.config.quota.requests, self.config.user_quota);
        self.durability.set_records(Box::new(records));
    }

    /// Returns the sessions that [`Transport::adopt`] needs. A predecessor has left nothing of other sessions
    /// that is in force, so that they can be opened later, and their number does not delay a successor.
    pub fn sessions_in_ledger(&self) -> BTreeSet<SessionId> {
        self.durability.sessions()
    }

    /// Writes the ledger in `version` from now on, or in the nearest one that there is. An older version is
    /// written wholly and at once, because a server may come that knows no other. Returns the version; 0 if
    /// there is no ledger. See [`Ledger::convert`].
    pub fn convert_ledger(&mut self, version: u32) -> u32 {
        self.durability.convert(version)
    }

    /// Returns how many commands of applications are in force, for a successor to carry out again.
    pub fn requests_in_force(&self) -> usize {
        self.durability.requests_in_force()
    }

    /// Notes that work on a message of the server with this number begins.
    #[inline]
    pub fn mark_mesh(&self, server: u32) {
        self.durability.mark(Work::Mesh(server));
    }

    /// Notes that the present work belongs to no session and no connection.
    #[inline]
    pub fn mark_nothing(&self) {
        self.durability.mark(Work::Nothing);
    }

    /// Returns whether connections of a predecessor are not continued yet. They will be soon, if the owner
    /// continues its rounds.
    #[inline]
    pub fn is_adopting(&self) -> bool {
        self.connections.postponed().is_some() || self.aftermath.is_looking()
    }

    /// Returns what became of the connections of a predecessor, once none waits any more. It is returned once
    /// after every [`Transport::adopt`].
    pub fn take_adoption(&mut self) -> Option<Adoption> {
        self.aftermath.take_adoption()
    }

    /// Returns what the death of the predecessor was charged to, if it died by its own fault. It is returned
    /// once.
    pub fn take_charge(&mut self) -> Option<Charge> {
        self.aftermath.take_charge()
    }

    // ---- counters ----

    /// Returns what this life of the server has counted.
    pub fn stat(&self, stat: Stat) -> u64 {
        self.stats.get(stat)
    }

    /// Writes the counters of this server to the replica's page; the link's counters are not touched.
    pub fn publish_stats(&mut self) {
        let time_waits = self.connections.time_waits();
        self.stats.set(Stat::Connections, self.connections.count() as u64);
        self.stats.set(Stat::Orphans, self.connections.orphans() as u64);
        self.stats.set(Stat::TimeWaits, time_waits.len() as u64);
        self.stats.set(Stat::TimeWaitsDropped, time_waits.dropped());
        let used = self.applications.iter().map(|session| session.memory().used_bytes() as u64).sum();
        self.stats.set(Stat::BufferBytes, used);
        let balance = self.cm.balance_counts();
        for (stat, value) in stats_of(&self.ip) {
            self.stats.set(stat, value);
        }
        for (stat, value) in [
            (Stat::PeerOffersOut, balance.offers_out),
            (Stat::PeerOffersIn, balance.offers_in),
            (Stat::PeerOffersTaken, balance.offers_taken),
            (Stat::PeerMessagesDropped, balance.dropped),
            (Stat::ServiceReportsOut, balance.reports_out),
            (Stat::ServiceReportsIn, balance.reports_in),
        ] {
            self.stats.set(stat, value);
        }
        self.stats.publish(&self.page);
    }

    /// Publishes the addresses of the stack to programs. Called after every change.
    pub(crate) fn publish_network(&self) {
        self.page.set_network(&network_of(&self.ip));
    }
}
