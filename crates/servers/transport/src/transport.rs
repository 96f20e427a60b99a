//! What does one replica's transport server keep, and how is it driven?

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use atoll_base::{
    Duration, Epoch, FLOW_GROUPS, FlowGroup, FourTuple, Instant, ReplicaId, Rng, SessionId, SlotId, TimerId, Wheel,
};
use atoll_connmgr::{ConnMgr, ListenerId};
use atoll_ip::{Frame, Ip};
use atoll_ip_server::{network_of, stats_of};
use atoll_ipc::arena::ArenaLayout;
use atoll_ipc::control::User;
use atoll_ipc::ledger::Work;
use atoll_ipc::page::{AppPage, REPLICAS_MAX, ReplicaPage, Stat};
use atoll_ipc::{Command, Memory};
use atoll_wire::fast_open::FastOpen;
use atoll_wire::tcp::Segment;

use crate::adopt::{Adoption, LOST_SLOTS};
use crate::blame::Charge;
use crate::challenge::Challenges;
use crate::config::{Config, Secrets};
use crate::datagram::Datagrams;
use crate::ending::Departure;
use crate::entry::{Entry, Flags};
use crate::fast_open::Cookies;
use crate::flows::{Flows, Locals};
use crate::options::Inherited;
use crate::output::{LINKS, Stalled};
use crate::phases::{Phases, Stopwatch};
use crate::ports::Searches;
use crate::postponed::Postponed;
use crate::pressure::Shortage;
use crate::records::Records;
use crate::resets::Resets;
use crate::rings::Rings;
use crate::session::Session;
use crate::slab::Slab;
use crate::stats::Stats;
use crate::time_wait::TimeWaits;
use crate::users::Users;

// structure: Transport: the whole server; its parts have files, and no structs yet
/// Connections, datagram sockets, sessions and timers of one replica.
///
/// A round of its owner: `handle_frame` for each frame, `handle_commands`, `handle_timers`, `flush`, then ring `take_bells`.
/// Before sleeping: [`Transport::has_commands`], and no longer than until [`Transport::next_timeout`].
#[derive(Debug)]
pub struct Transport<M: Memory> {
    pub(crate) config: Config,
    pub(crate) secrets: Secrets,
    pub(crate) ip: Ip,
    pub(crate) page: ReplicaPage<M>,
    pub(crate) cm: ConnMgr,
    /// What each listener hands on, by the listener's index.
    pub(crate) inherited: Vec<Option<(ListenerId, Inherited)>>,
    /// Sessions; a place is used again when nothing refers to it.
    pub(crate) sessions: Vec<Option<Session<M>>>,
    /// Its places that are free.
    pub(crate) free_sessions: Vec<u32>,
    pub(crate) session_index: BTreeMap<SessionId, u32>,
    pub(crate) entries: Slab<Entry>,
    pub(crate) flows: Flows,
    pub(crate) locals: Locals,
    pub(crate) time_waits: TimeWaits,
    pub(crate) datagrams: Datagrams,
    pub(crate) wheel: Wheel,
    /// Connections that something has happened to since the last flush.
    pub(crate) dirty: Vec<u32>,
    /// One of them has received much that is not acknowledged.
    pub(crate) flush_is_due: bool,
    /// What frames since the last flush have cost besides what is usual.
    pub(crate) frames_cost: u32,
    /// Connections whose neighbour is being asked for.
    pub(crate) unresolved: Vec<u32>,
    pub(crate) neighbour_generation: u64,
    /// Segments that belong to no connection: resets, and the answers of TIME-WAIT.
    pub(crate) answers: VecDeque<Answer>,
    /// Those of them whose neighbour is being asked for.
    pub(crate) unresolved_answers: Vec<Answer>,
    /// The Fast Open option of the SYN that is being handled.
    pub(crate) syn_option: Option<FastOpen>,
    /// Cookies of servers.
    pub(crate) cookies: Cookies,
    /// Connections that applications have before their handshakes are complete, and how many there are of each listener.
    pub(crate) early_listeners: BTreeMap<u32, ListenerId>,
    pub(crate) fast_open_pending: BTreeMap<ListenerId, u32>,
    /// Until when somebody may have a SYN cookie.
    pub(crate) cookies_until: Instant,
    /// The frame that each link did not take.
    pub(crate) stalled: [Option<Stalled>; LINKS],
    /// Connections whose link was full.
    pub(crate) blocked: Vec<u32>,
    /// When to try full links again.
    pub(crate) retry_at: Instant,
    /// Flow group to replica: a copy of the stack page's table.
    pub(crate) owners: Box<[u8; FLOW_GROUPS]>,
    pub(crate) challenges: Challenges,
    /// Connections that their application has closed and that are not over.
    pub(crate) orphans: usize,
    /// When buffers are looked at next.
    pub(crate) pressure_look_at: Instant,
    /// How it stands with memory in all.
    pub(crate) shortage: Shortage,
    pub(crate) rng: Rng,
    pub(crate) stats: Stats,
    pub(crate) phases: Phases,
    /// What a successor has to know; `None`: there will be none.
    pub(crate) records: Option<Box<Records<M>>>,
    /// Connections of a predecessor that do not go on yet; `None`: all do.
    pub(crate) postponed: Option<Box<Postponed>>,
    /// What became of all of them, if nobody has asked yet.
    pub(crate) adoption: Option<Adoption>,
    /// Sessions - place, number, and which slot comes next - whose slots may hold sockets of lost connections.
    pub(crate) lost_slots: VecDeque<(u32, SessionId, u32)>,
    /// Whether sessions that are opened later may have such, too.
    pub(crate) looks_for_lost: bool,
    /// What the death of the predecessor was put down to, if nobody has asked yet.
    pub(crate) charge: Option<Charge>,
    /// Sessions that servers have died of, and of which the supervisor is to be told.
    pub(crate) cut_off: Vec<SessionId>,
    /// What is given back at the next commit of offers that were taken back: place of the session, session, slot, rings of the receive buffer.
    pub(crate) released: Vec<(u32, SessionId, SlotId, Rings)>,
    /// Sessions of which processes have ended, with something left to clean up.
    pub(crate) endings: VecDeque<u32>,
    /// Connections that are to be reset because their listener is gone.
    pub(crate) resets: Resets,
    /// Connections that wait for text before they are offered (TCP_DEFER_ACCEPT), by port.
    pub(crate) deferred: BTreeSet<(u16, u32)>,
    /// Sessions that are over: the supervisor may let go of their memory.
    pub(crate) ended: Vec<SessionId>,
    /// Timers that were due at `fired_at`, and for which that round had no time.
    fired: VecDeque<TimerId>,
    fired_at: Instant,
    /// Which session's commands are taken first.
    turn: u32,
    /// What cleaning up may still cost in this round.
    pub(crate) slice_left: u32,
    /// Frames of IP itself that the link did not take yet.
    pub(crate) unsent: VecDeque<Frame>,
    /// Who has ended while connections of a predecessor did not go on yet.
    pub(crate) departures: VecDeque<Departure>,
    /// What commands have cost besides what is usual.
    pub(crate) extra_cost: u32,
    /// The command that was handled last could not be carried out yet: it is the next one in the next round.
    pub(crate) comes_again: bool,
    /// Where most ports are in use.
    pub(crate) searches: Searches,
    /// What sessions of the same user have together.
    pub(crate) users: Users,
    /// Sessions of which sockets wait for the share of a later flush.
    pub(crate) put_off: BTreeSet<u32>,
    /// The number of the flush, by which sessions know how much of their share is left.
    pub(crate) flushes: u32,
}

/// A segment that no connection sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) tuple: FourTuple,
    pub(crate) segment: Segment,
}

impl<M: Memory> Transport<M> {
    // structure: new: a line for each field
    /// A transport server without sessions. `page`: this replica's, already announced by the caller. All flow groups belong
    /// to this replica until [`Transport::set_owners`].
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
        let mut transport = Transport {
            cm: ConnMgr::new(cm_config, rng.next_u64()),
            inherited: Vec::new(),
            sessions: Vec::new(),
            free_sessions: Vec::new(),
            session_index: BTreeMap::new(),
            entries: Slab::new(),
            flows: Flows::new(seeds.next_u64()),
            locals: Locals::default(),
            time_waits: TimeWaits::new(config.time_waits_max, seeds.next_u64()),
            datagrams: Datagrams::new(seeds.next_u64()),
            wheel: Wheel::new(TICK_SHIFT, now),
            dirty: Vec::new(),
            flush_is_due: false,
            frames_cost: 0,
            unresolved: Vec::new(),
            neighbour_generation: ip.neighbour_generation(),
            answers: VecDeque::new(),
            syn_option: None,
            cookies: Cookies::new(config.cookies_max, seeds.next_u64()),
            early_listeners: BTreeMap::new(),
            fast_open_pending: BTreeMap::new(),
            cookies_until: Instant::ZERO,
            unresolved_answers: Vec::new(),
            stalled: [None; LINKS],
            blocked: Vec::new(),
            retry_at: Instant::FAR_FUTURE,
            owners: Box::new([config.replica.0; FLOW_GROUPS]),
            challenges: Challenges::new(),
            orphans: 0,
            pressure_look_at: Instant::ZERO,
            shortage: Shortage::default(),
            stats: Stats::new(&page),
            phases: Phases::default(),
            records: None,
            postponed: None,
            adoption: None,
            lost_slots: VecDeque::new(),
            looks_for_lost: false,
            charge: None,
            cut_off: Vec::new(),
            released: Vec::new(),
            endings: VecDeque::new(),
            resets: Resets::default(),
            deferred: BTreeSet::new(),
            ended: Vec::new(),
            fired: VecDeque::new(),
            fired_at: now,
            turn: 0,
            slice_left: crate::ending::SLICE,
            unsent: VecDeque::new(),
            departures: VecDeque::new(),
            extra_cost: 0,
            comes_again: false,
            searches: Searches::default(),
            users: Users::default(),
            put_off: BTreeSet::new(),
            flushes: 0,
            rng,
            config,
            secrets,
            ip,
            page,
        };
        transport.publish_network();
        transport
    }

    /// Learns which replica owns which flow group: which local ports outgoing connections may take, and where internal frames
    /// go.
    pub fn set_owners(&mut self, owner_of: impl Fn(FlowGroup) -> ReplicaId) {
        let replicas = self.config.replicas.clamp(1, REPLICAS_MAX as u8);
        for (group, owner) in (0..).zip(self.owners.iter_mut()) {
            *owner = owner_of(FlowGroup(group)).0 % replicas;
        }
        self.searches.forget_all();
    }

    /// From now on it is measured what incoming connections cost, of one in [`SAMPLE_EVERY`](crate::SAMPLE_EVERY).
    pub fn set_stopwatch(&mut self, stopwatch: Stopwatch) {
        self.phases.set_stopwatch(stopwatch);
    }

    /// The frame that is given to [`Transport::handle_frame`] next has waited so long since a link server took it.
    #[inline]
    pub fn note_wait(&mut self, waited: Duration) {
        self.phases.note_wait(waited);
    }

    /// Which replica gets packets of `tuple`, which is seen from their receiver.
    #[inline]
    pub fn owner(&self, tuple: &FourTuple) -> ReplicaId {
        ReplicaId(self.owners[usize::from(self.config.key.group(tuple).0)])
    }

    /// An application process of `user` has attached. Announces this incarnation in the arena.
    pub fn open_session(
        &mut self,
        _now: Instant,
        (id, user): (SessionId, User),
        layout: ArenaLayout,
        arena: M,
        page: AppPage<M>,
    ) {
        if self.session_index.contains_key(&id) || arena.len() < layout.total {
            return;
        }
        self.mark(Work::Opening(id));
        let of_user = self.users.of(&user, self.config.user_quota.sockets);
        let books = (self.shortage.books.clone(), of_user);
        let session = Session::new((id, user), layout, arena, page, self.config.epoch, books);
        let index = match self.free_sessions.pop() {
            Some(index) => index as usize,
            None => {
                self.sessions.push(None);
                self.sessions.len() - 1
            }
        };
        self.sessions[index] = Some(session);
        if self.looks_for_lost {
            self.lost_slots.push_back((index as u32, id, 0));
        }
        // Cannot truncate: the supervisor limits the number of sessions.
        self.session_index.insert(id, index as u32);
        self.count_sessions();
        self.mark(Work::Nothing);
    }

    /// A session of the predecessor was opened after [`Transport::adopt`]: its application is to look at everything, as those of the others are.
    pub fn remind(&mut self, id: SessionId) {
        let index = self.session_index.get(&id).copied();
        if let Some(session) = index.and_then(|index| self.session_mut(index)) {
            session.rebuild();
        }
    }

    /// Takes commands of every session, for up to `budget` each and [`ALL_SHARES`] times that in all; what a command takes is its
    /// [`cost`](crate::commands::cost). Who is first changes with each round, and who got no turn is first in the next. Returns whether there were any.
    pub fn handle_commands(&mut self, now: Instant, budget: u32) -> bool {
        self.mark(Work::Nothing);
        let (count, first) = (self.sessions.len() as u32, self.turn);
        self.turn = first.wrapping_add(1);
        let (mut left, mut any) = (budget.saturating_mul(ALL_SHARES), false);
        for step in 0..count {
            let at = first.wrapping_add(step);
            if left == 0 {
                self.turn = at;
                break;
            }
            let spent = self.handle_commands_of(now, at % count, budget.min(left));
            any |= spent > 0;
            left = left.saturating_sub(spent);
        }
        if !self.endings.is_empty() {
            any |= self.slice_left > 0;
            self.clean_up(now);
        }
        any
    }

    /// The same for one session. Returns what the commands cost; the last one may cost more than was left.
    pub(crate) fn handle_commands_of(&mut self, now: Instant, index: u32, budget: u32) -> u32 {
        let Some(session) = self.session_mut(index) else { return 0 };
        session.pace.ask_again();
        if !session.has_command() {
            if let Some(ending) = &mut session.ending {
                ending.commands = 0;
            }
            return 0;
        }
        // Before they are read.
        let id = session.id;
        self.mark(Work::Commands(id));
        let mut spent = 0;
        while spent < budget {
            if self.cm.is_crowded() {
                break;
            }
            let Some(session) = self.session_mut(index).filter(|session| session.hears()) else { break };
            if session.is_paced(now) {
                break;
            }
            let Some(command) = session.pop() else {
                session.note_taken(false);
                break;
            };
            spent += command.as_ref().map_or(1, crate::commands::cost);
            let refused = self.stats.get(Stat::BadCommands);
            let is_membership = matches!(command, Ok(Command::Group { .. }));
            match command {
                Ok(command) => self.handle_command(now, index, command),
                Err(_) => self.stats.count(Stat::BadCommands),
            }
            spent = spent.saturating_add(core::mem::take(&mut self.extra_cost));
            let Some(session) = self.sessions.get_mut(index as usize).and_then(Option::as_mut) else { break };
            if core::mem::take(&mut self.comes_again) {
                session.put_back();
                break;
            }
            session.note_taken(true);
            if is_membership || self.stats.get(Stat::BadCommands) != refused {
                session.pace.note(now);
            }
            self.stats.count(Stat::Commands);
        }
        self.mark(Work::Nothing);
        spent
    }

    /// Does what is due.
    pub fn handle_timers(&mut self, now: Instant) {
        self.adopt_some(now);
        self.let_depart(now);
        if !self.lost_slots.is_empty() {
            let lost = self.look_for_lost(LOST_SLOTS);
            self.stats.add(Stat::ConnectionsLost, lost.into());
        }
        self.mark(Work::Nothing);
        if self.ip.next_timeout().is_some_and(|due| due <= now) {
            self.ip.handle_timeout(now);
        }
        self.time_waits.expire(now, |name| self.searches.give_back(name));
        self.cm.handle_timers(now);
        self.run_directives(now);
        self.wheel.expire(now, |id| self.fired.push_back(id));
        // Thousands of connections of one session may have their timers at one moment.
        for _ in 0..self.fired.len().min(TIMERS_MAX) {
            let Some(id) = self.fired.pop_front() else { break };
            self.handle_timer(now, id.0);
        }
        self.mark(Work::Nothing);
        self.fired_at = now;
        if !self.resets.is_empty() {
            self.reset_some(now);
        }
        self.expire_sessions(now);
        self.look_after_memory(now);
        self.forgive(now);
    }

    /// When [`Transport::handle_timers`] has to be called at the latest.
    pub fn next_timeout(&self) -> Option<Instant> {
        let orphans = self.sessions.iter().flatten().filter_map(|session| session.gone).min();
        let paced = self.sessions.iter().flatten().filter_map(|session| session.pace.due()).min();
        let retry = (self.retry_at != Instant::FAR_FUTURE).then_some(self.retry_at);
        let others =
            [self.ip.next_timeout(), self.time_waits.next_timeout(), self.next_look(), self.cm.next_timeout(), paced];
        let late = (!self.fired.is_empty()).then_some(self.fired_at);
        let own = [self.wheel.next_expiry(), orphans, retry, self.adopts_at(), late, self.cleans_up_at()];
        own.into_iter().chain(others).flatten().min()
    }

    /// Passes each bell to ring to `ring`: each names somebody who sleeps. After every flush.
    pub fn take_bells(&mut self, mut ring: impl FnMut(SessionId, u32)) {
        for session in self.sessions.iter_mut().flatten() {
            let id = session.id;
            session.take_bells(|bell| ring(id, bell));
        }
    }

    /// Whether a command is waiting that may be taken. Before sleeping the caller sets its sleep word, fences, and asks this and
    /// [`Transport::has_work`].
    pub fn has_commands(&self) -> bool {
        let may_be_taken = |session: &Session<M>| !session.pace.is_waiting() && session.has_command();
        !self.cm.is_crowded() && self.sessions.iter().flatten().any(may_be_taken)
    }

    /// Whether [`Transport::flush`] has something to do now. What waits for a full link is no such thing: it is tried at every
    /// flush, and [`Transport::next_timeout`] sees to it that there is one.
    pub fn has_work(&self) -> bool {
        let is_dirty = !self.dirty.is_empty() || !self.datagrams.dirty.is_empty() || !self.answers.is_empty();
        is_dirty || self.is_adopting() || self.is_behind()
    }

    /// Whether the round had no time for all that there was: the next one goes on with it.
    pub fn is_behind(&self) -> bool {
        let is_ending = !self.resets.is_empty() || !self.endings.is_empty() || !self.departures.is_empty();
        is_ending || !self.put_off.is_empty() || !self.fired.is_empty() || self.cm.is_behind()
    }

    /// How many commands of applications are in force, for a successor to carry out again.
    pub fn requests_in_force(&self) -> usize {
        self.records.as_ref().map_or(0, |records| records.requests.len())
    }

    /// Sessions that nothing uses any more, since the last call, after [`Transport::close_session`]: until then a successor needs their memory.
    pub fn take_ended(&mut self) -> Vec<SessionId> {
        core::mem::take(&mut self.ended)
    }

    /// What this life of the server has counted.
    pub fn stat(&self, stat: Stat) -> u64 {
        self.stats.get(stat)
    }

    /// Writes the counters of this server to the replica's page; the link's counters are not touched.
    pub fn publish_stats(&mut self) {
        self.stats.set(Stat::Connections, self.connections() as u64);
        self.stats.set(Stat::Orphans, self.orphans as u64);
        self.stats.set(Stat::TimeWaits, self.time_waits.len() as u64);
        self.stats.set(Stat::TimeWaitsDropped, self.time_waits.dropped);
        let used = self.sessions.iter().flatten().map(|session| session.pool.used_bytes(&session.links) as u64).sum();
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
    pub(crate) fn publish_network(&mut self) {
        self.page.set_network(&network_of(&self.ip));
    }

    /// Whose server this is, and in which of its lives.
    pub fn identity(&self) -> (ReplicaId, Epoch) {
        (self.config.replica, self.config.epoch)
    }

    /// The network layer, for what it exchanges with other replicas (N8).
    pub fn ip_mut(&mut self) -> &mut Ip {
        &mut self.ip
    }

    #[inline]
    pub(crate) fn session_mut(&mut self, index: u32) -> Option<&mut Session<M>> {
        self.sessions.get_mut(index as usize)?.as_mut()
    }

    #[inline]
    pub(crate) fn session(&self, index: u32) -> Option<&Session<M>> {
        self.sessions.get(index as usize)?.as_ref()
    }

    pub(crate) fn count_sessions(&mut self) {
        self.stats.set(Stat::Sessions, (self.sessions.len() - self.free_sessions.len()) as u64);
    }

    /// Puts the connection on the list for the next flush.
    #[inline]
    pub(crate) fn touch(&mut self, index: u32) {
        if let Some(entry) = self.entries.get_mut(index)
            && !entry.flags.has(Flags::DIRTY)
        {
            entry.flags.set(Flags::DIRTY);
            self.dirty.push(index);
        }
    }

    /// The wheel has called: perhaps too early, because timers are moved lazily.
    fn handle_timer(&mut self, now: Instant, index: u32) {
        self.mark(Work::Timer(index));
        let Some(entry) = self.entries.get_mut(index) else { return };
        entry.armed = Instant::FAR_FUTURE;
        if entry.connection.next_timeout().is_some_and(|due| due <= now) {
            let mss = entry.connection.mss();
            let events = entry.connection.handle_timeout(now);
            if entry.connection.mss() < mss {
                self.stats.count(Stat::MtuBlackHoles);
            }
            self.note_suspicious(now, index, events);
            self.react(now, index, events);
        }
        let Some(entry) = self.entries.get_mut(index) else { return };
        if entry.deadline <= now {
            entry.deadline = Instant::FAR_FUTURE;
            self.handle_deadline(now, index);
        }
        // The flush arms the timer again.
        self.touch(index);
    }
}

/// What all sessions together may take of one round, as a multiple of what one may.
pub const ALL_SHARES: u32 = 16;
/// Timers that are handled in one round at most.
const TIMERS_MAX: usize = 512;
/// Timers are kept to about a millisecond: the tick is 2^20 ns.
const TICK_SHIFT: u32 = 20;

impl core::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secrets")
    }
}
