//! What does one replica's transport server keep? Its parts; in which order a round uses them, `round.rs`
//! shows.
//!
//! ```text
//!   connections   who talks to whom: table, names, timers, TIME-WAIT        datagrams   datagram sockets
//!   handshakes    what connections have before an application has them     cm          who gets them
//!   applications  sessions, their slots, rings and shares
//!   egress        what waits to leave                                       ip, owners  and which way
//!   durability    what a successor has to know                              aftermath   what is left of a predecessor's death
//!   shortage      how it stands with memory                                 load        what this round has cost
//! ```
//! The fields of a part are its own. A procedure that needs several parts says so by its arguments, or it is
//! a method of [`Transport`] above this file, because it needs nearly all.

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

/// Connections, datagram sockets, sessions and timers of one replica.
///
/// A round of its owner: `handle_frame` for each frame, `handle_commands`, `handle_timers`, `flush`, then
/// ring `take_bells`. Before sleeping: [`Transport::has_commands`], and no longer than until
/// [`Transport::next_timeout`].
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
}

impl<M: Memory> Transport<M> {
    /// A transport server without sessions. `page`: this replica's, already announced by the caller. All flow
    /// groups belong to this replica until [`Transport::set_owners`].
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

    /// Learns which replica owns which flow group: which local ports outgoing connections may take, and where
    /// internal frames go.
    pub fn set_owners(&mut self, owner_of: impl Fn(FlowGroup) -> ReplicaId) {
        self.owners.set(owner_of);
        self.connections.forget_searches();
    }

    /// Returns the replica that gets packets of `tuple`, which is seen from their receiver.
    #[inline]
    pub fn owner(&self, tuple: &FourTuple) -> ReplicaId {
        self.owners.of(tuple)
    }

    /// From now on it is measured what incoming connections cost, of one in
    /// [`SAMPLE_EVERY`](crate::SAMPLE_EVERY).
    pub fn set_stopwatch(&mut self, stopwatch: Stopwatch) {
        self.handshakes.phases().set_stopwatch(stopwatch);
    }

    /// The frame that is given to [`Transport::handle_frame`] next has waited so long since a link server
    /// took it.
    #[inline]
    pub fn note_wait(&mut self, waited: Duration) {
        self.handshakes.phases().note_wait(waited);
    }

    /// Returns whose server this is, and in which of its lives.
    pub fn identity(&self) -> (ReplicaId, Epoch) {
        (self.config.replica, self.config.epoch)
    }

    /// Returns the network layer, for what it exchanges with other replicas (N8).
    pub fn ip_mut(&mut self) -> &mut Ip {
        &mut self.ip
    }

    // ---- sessions ----

    /// An application process of `user` has attached. Announces this incarnation in the arena.
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

    /// A session of the predecessor was opened after [`Transport::adopt`]: its application is to look at
    /// everything, as those of the others are.
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

    /// Returns the sessions that are cut off here, and that the supervisor has not been told of.
    pub fn take_cut_off(&mut self) -> Vec<SessionId> {
        self.applications.take_cut_off()
    }

    /// Whether the session is cut off here.
    pub fn is_cut_off(&self, id: SessionId) -> bool {
        self.applications.is_cut_off(id)
    }

    pub(crate) fn count_sessions(&mut self) {
        self.stats.set(Stat::Sessions, self.applications.count() as u64);
    }

    // ---- memory ----

    /// The supervisor says how it stands with the memory of the stack, and how much all receive buffers here
    /// may take.
    pub fn set_memory(&mut self, now: Instant, level: MemoryLevel, buffers_max: u64) {
        self.shortage.set_memory(now, level, buffers_max);
    }

    /// Returns how many octets of receive buffers the kernel has given memory for: what the bound of
    /// [`Transport::set_memory`] is for.
    pub fn receive_buffers(&self) -> u64 {
        self.shortage.receive_buffers()
    }

    // ---- predecessors and successors ----

    /// Writes down from now on what a successor has to know, in a ledger that is this server's, or was that
    /// of its predecessor: then [`Transport::adopt`] is to be called when all sessions are open.
    pub fn set_ledger(&mut self, ledger: Ledger<M>) {
        let records = Records::new(ledger, self.config.quota.requests, self.config.user_quota);
        self.durability.set_records(Box::new(records));
    }

    /// Returns the sessions that [`Transport::adopt`] needs. Of others a predecessor has left nothing that is
    /// in force, so that they can be opened later: how many there are says nothing about how soon a successor
    /// serves.
    pub fn sessions_in_ledger(&self) -> BTreeSet<SessionId> {
        self.durability.sessions()
    }

    /// Writes the ledger in `version` from now on, or the nearest one that there is: an older one wholly and
    /// at once, because a server may come that knows no other. Returns the version; 0: there is no ledger.
    /// [`Ledger::convert`].
    pub fn convert_ledger(&mut self, version: u32) -> u32 {
        self.durability.convert(version)
    }

    /// Returns how many commands of applications are in force, for a successor to carry out again.
    pub fn requests_in_force(&self) -> usize {
        self.durability.requests_in_force()
    }

    /// Work on a message of the server with this number begins.
    #[inline]
    pub fn mark_mesh(&self, server: u32) {
        self.durability.mark(Work::Mesh(server));
    }

    /// No work goes on that belongs to anybody.
    #[inline]
    pub fn mark_nothing(&self) {
        self.durability.mark(Work::Nothing);
    }

    /// Whether connections of a predecessor do not go on yet. They do soon, if the owner goes on with its
    /// rounds.
    #[inline]
    pub fn is_adopting(&self) -> bool {
        self.connections.postponed().is_some() || self.aftermath.is_looking()
    }

    /// Returns what became of the connections of a predecessor, once none waits any more: once, after every
    /// [`Transport::adopt`].
    pub fn take_adoption(&mut self) -> Option<Adoption> {
        self.aftermath.take_adoption()
    }

    /// Returns what the death of the predecessor was put down to, if it died by its own fault: once.
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

    /// Tells programs which addresses the stack has. After every change.
    pub(crate) fn publish_network(&self) {
        self.page.set_network(&network_of(&self.ip));
    }
}
