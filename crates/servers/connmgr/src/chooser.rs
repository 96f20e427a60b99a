//! Chooses the acceptor that gets the next connection: the part of the CM that knows acceptors (P4, P5).
//!
//! It serves one transport server (TS) or several. Those have the same listeners, because every listener is
//! in all of them, and the same acceptors, because a session has an arena with each. So the state of an
//! acceptor is kept once, and has a bit for each TS where the acceptor is registered. A connection stays with
//! its TS, whichever acceptor gets it.
//!
//! A TS in the same process makes calls; others send messages (`clients`, `remote`).

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use atoll_base::{Endpoint, Instant, SessionId};
use atoll_ipc::Device;
use atoll_ipc::balance::{PeerBody, PeerMessage};

use crate::askers::{Asker, Askers};
use crate::balance::{AcceptorView, Acceptors, Balancer, PeerOutput, Reach, Reported};
use crate::listeners::{Key, key};
use crate::messages::{ConnectionId, Directive, ListenerId, Offer, Stage};

/// The acceptors, and the connections that wait for one.
#[derive(Debug)]
pub(crate) struct Chooser {
    /// The listeners, one for each address of all TSs together. Places are dense.
    table: Vec<Option<Choice>>,
    by_address: BTreeMap<Key, u32>,
    /// The place of the listener of each socket, and the TSs where the socket listens, a bit each.
    by_lease: BTreeMap<u64, (u32, u64)>,
    pub(crate) balancer: Balancer,
    /// The directives for TSs, each with the number of the TS.
    pub(crate) directives: VecDeque<(u8, Directive)>,
    /// The listeners whose waiting connections are to be offered now, and how many of each are left.
    turns: BTreeMap<u32, usize>,
    /// The listener of `turns` at which offering continues.
    turn: u32,
    /// The number of waiting connections that may still be offered in this round.
    turns_left: usize,
}

/// The most listening sockets, and the most acceptors of one listener, which is more than the supervisor lets
/// sessions have.
const LEASES_MAX: usize = 1 << 18;
const ACCEPTORS_MAX: usize = 1 << 16;

/// A listener of one or several TSs.
#[derive(Debug)]
struct Choice {
    local: Endpoint,
    v6_only: bool,
    device: Device,
    /// The TSs that have the listener, a bit each.
    tss: u64,
    acceptors: Acceptors,
    askers: Askers,
    /// The established connections that are offered to no acceptor, oldest first.
    waiting: VecDeque<Waiting>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    ts: u8,
    connection: ConnectionId,
    listener: ListenerId,
}

/// How many waiting connections are offered in one round, and how many of one listener before other listeners
/// have their turn. An offer takes about a microsecond.
const TURNS: usize = 128;
const TURNS_OF_ONE: usize = 32;

impl Chooser {
    pub(crate) fn new(balancer: Balancer) -> Chooser {
        Chooser {
            table: Vec::new(),
            by_address: BTreeMap::new(),
            by_lease: BTreeMap::new(),
            balancer,
            directives: VecDeque::new(),
            turns: BTreeMap::new(),
            turn: 0,
            turns_left: TURNS,
        }
    }

    /// Notes that a socket of TS `ts` listens. Returns the listener's place in the table.
    pub(crate) fn opened(&mut self, ts: u8, lease: u64, at: (Endpoint, bool, Device)) -> u32 {
        let known = self.by_address.get(&key(at.0, at.1, at.2)).copied();
        let index = known.unwrap_or_else(|| self.add(at));
        if let Some(choice) = self.at_mut(index) {
            choice.tss |= 1 << ts;
        }
        // A lease has one address; if a second one is reported, the first one counts.
        if self.by_lease.len() < LEASES_MAX {
            let (at, tss) = self.by_lease.entry(lease).or_insert((index, 0));
            *tss |= u64::from(*at == index) << ts;
        }
        index
    }

    fn add(&mut self, (local, v6_only, device): (Endpoint, bool, Device)) -> u32 {
        let index = self.table.iter().position(Option::is_none).unwrap_or_else(|| {
            self.table.push(None);
            self.table.len() - 1
        });
        let (acceptors, askers, waiting) = (Acceptors::default(), Askers::default(), VecDeque::new());
        self.table[index] = Some(Choice { local, v6_only, device, tss: 0, acceptors, askers, waiting });
        // Cannot truncate: there is one for each address, port and device.
        let index = index as u32;
        self.by_address.insert(key(local, v6_only, device), index);
        index
    }

    /// Returns whether the listener at this place has this address and device.
    pub(crate) fn is_at(&self, index: u32, (local, v6_only, device): (Endpoint, bool, Device)) -> bool {
        self.by_address.get(&key(local, v6_only, device)) == Some(&index)
    }

    /// Notes that the socket stopped listening at this TS.
    pub(crate) fn left(&mut self, ts: u8, index: u32, lease: u64) {
        if let Some((at, tss)) = self.by_lease.get_mut(&lease)
            && *at == index
        {
            *tss &= !(1 << ts);
            if *tss == 0 {
                self.by_lease.remove(&lease);
            }
        }
        if let Some(choice) = self.at_mut(index) {
            choice.acceptors.forget(ts, |_, of| of == lease);
            choice.askers.forget(|asker| asker.ts == ts && asker.lease == lease);
        }
    }

    /// Notes that the last socket of a listener stopped listening at TS `ts`. As on Linux, connections that
    /// no application has accepted end with the listener.
    pub(crate) fn closed(&mut self, ts: u8, index: u32) {
        let Some(choice) = self.table.get_mut(index as usize).and_then(Option::as_mut) else { return };
        let directives = &mut self.directives;
        choice.waiting.retain(|waiting| {
            if waiting.ts == ts {
                directives.push_back((ts, Directive::Reset { connection: waiting.connection }));
            }
            waiting.ts != ts
        });
        choice.acceptors.forget(ts, |_, _| true);
        choice.askers.forget(|asker| asker.ts == ts);
        choice.tss &= !(1 << ts);
        if choice.tss == 0 {
            self.by_address.remove(&key(choice.local, choice.v6_only, choice.device));
            self.table[index as usize] = None;
        }
    }

    /// Notes that no socket of this TS listens any more.
    pub(crate) fn forget_sockets(&mut self, ts: u8) {
        self.by_lease.retain(|_, (_, tss)| {
            *tss &= !(1 << ts);
            *tss != 0
        });
    }

    /// Registers an acceptor at TS `ts`: ACCEPT-CONNECTION (P4).
    pub(crate) fn register(&mut self, now: Instant, ts: u8, index: u32, session: SessionId, lease: u64) {
        let Some((choice, balancer)) = self.with_balancer(index) else { return };
        if choice.acceptors.len() >= ACCEPTORS_MAX {
            return;
        }
        choice.acceptors.register(now, ts, session, lease, index, balancer);
        // All waiting connections have one turn, in their order: the acceptor may be registered at one of
        // several TSs. An acceptor that has let offers time out gets one connection, and the others when it
        // has claimed that one. Otherwise a program that registers and never claims could have thousands
        // offered and taken back all the time.
        let is_doubtful =
            choice.acceptors.get_mut(session, lease).is_some_and(|acceptor| acceptor.is_doubtful);
        let count = if is_doubtful { choice.waiting.len().min(1) } else { choice.waiting.len() };
        if count > 0 {
            let turns = self.turns.entry(index).or_default();
            *turns = count.max(*turns);
            self.give_turns(now);
        }
    }

    /// Offers as many waiting connections as this round allows, and begins a new round.
    pub(crate) fn end_round(&mut self, now: Instant) {
        self.give_turns(now);
        self.turns_left = TURNS;
    }

    /// Returns whether waiting connections are to be offered in the next round.
    pub(crate) fn has_turns(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Offers connections that have waited. There may be thousands when an acceptor registers, so their
    /// number in one round is limited, and listeners take turns.
    fn give_turns(&mut self, now: Instant) {
        while self.turns_left > 0 && !self.turns.is_empty() {
            let index = self
                .turns
                .range(self.turn..)
                .next()
                .or(self.turns.first_key_value())
                .map(|(index, _)| *index);
            let Some(index) = index else { return };
            self.turn = index + 1;
            let count = self.turns.remove(&index).unwrap_or(0);
            let now_so_many = count.min(TURNS_OF_ONE).min(self.turns_left);
            self.turns_left -= now_so_many;
            for _ in 0..now_so_many {
                let Some(waiting) = self.at_mut(index).and_then(|choice| choice.waiting.pop_front()) else {
                    break;
                };
                self.assign(now, index, waiting);
            }
            let left = self.at_mut(index).map_or(0, |choice| choice.waiting.len()).min(count - now_so_many);
            if left > 0 {
                self.turns.insert(index, left);
            }
        }
    }

    /// Removes the acceptor from TS `ts`. Returns whether it was registered there.
    pub(crate) fn deregister(
        &mut self,
        now: Instant,
        ts: u8,
        index: u32,
        session: SessionId,
        lease: u64,
    ) -> bool {
        let Some((choice, balancer)) = self.with_balancer(index) else { return false };
        choice.askers.forget(|asker| *asker == Asker { ts, session, lease });
        choice.acceptors.deregister(now, 1 << ts, session, lease, index, balancer) != 0
    }

    /// Notes that the session no longer holds the socket at `ts`.
    pub(crate) fn forget(&mut self, ts: u8, index: u32, session: SessionId, lease: u64) {
        if let Some(choice) = self.at_mut(index) {
            choice.acceptors.forget(ts, |of, socket| of == session && socket == lease);
            choice.askers.forget(|asker| *asker == Asker { ts, session, lease });
        }
    }

    /// Handles a question of the session to `ts` for the connection that has waited longest or, if `takes` is
    /// false, whether there is one (P4's naive accept).
    pub(crate) fn asked(
        &mut self,
        now: Instant,
        ts: u8,
        index: u32,
        session: SessionId,
        lease: u64,
        takes: bool,
    ) {
        let Some(choice) = self.table.get_mut(index as usize).and_then(Option::as_mut) else { return };
        let at = choice.waiting.iter().position(|waiting| waiting.ts == ts);
        if takes
            && let Some(Waiting { connection, listener, .. }) = at.and_then(|at| choice.waiting.remove(at))
        {
            // A session that is an acceptor as well has one more connection to claim.
            if let Some(acceptor) = choice.acceptors.get_mut(session, lease) {
                acceptor.offered(now);
            }
            self.directives.push_back((ts, Directive::Offer(Offer { connection, listener, session, lease })));
            return;
        }
        if at.is_none() && choice.askers.len() < ACCEPTORS_MAX {
            choice.askers.add(Asker { ts, session, lease });
        }
        let (waiting, answers) = (at.is_some(), true);
        self.directives.push_back((ts, Directive::ConnectionsWait { session, lease, waiting, answers }));
    }

    /// Notifies all sessions that have asked that a connection of `ts` waits, because the session that was
    /// notified has not come.
    pub(crate) fn waits_long(&mut self, ts: u8, index: u32) {
        while self.tell_asker(ts, index) {}
    }

    /// Returns whether a listener has more than one acceptor, so that service times are worth measuring.
    pub(crate) fn has_choice(&self, index: u32) -> bool {
        self.table
            .get(index as usize)
            .and_then(Option::as_ref)
            .is_some_and(|choice| choice.acceptors.has_choice())
    }

    /// Offers a new connection of `ts` to an acceptor. Returns whether there is one; otherwise the connection
    /// waits.
    #[inline]
    pub(crate) fn established(
        &mut self,
        now: Instant,
        ts: u8,
        index: u32,
        connection: ConnectionId,
        listener: ListenerId,
    ) -> bool {
        self.assign(now, index, Waiting { ts, connection, listener })
    }

    /// Removes an acceptor that did not claim in time, wherever it is registered. The connection is handed
    /// back by [`Chooser::returned`].
    pub(crate) fn timed_out(&mut self, now: Instant, session: SessionId, lease: u64) {
        let Some((index, choice, balancer)) = self.of_lease(lease) else { return };
        choice.acceptors.timed_out(session, lease);
        let tss = choice.acceptors.deregister(now, u64::MAX, session, lease, index, balancer);
        self.tell_removed(tss, session, lease);
    }

    /// Offers a connection again whose offer has ended without a claim. Returns whether an acceptor wants it;
    /// otherwise it waits.
    pub(crate) fn returned(
        &mut self,
        now: Instant,
        ts: u8,
        index: u32,
        (connection, listener): (ConnectionId, ListenerId),
        session: SessionId,
        lease: u64,
    ) -> bool {
        self.settle(session, lease);
        let is_given = self.assign(now, index, Waiting { ts, connection, listener });
        if !is_given {
            self.waits_long(ts, index);
        }
        is_given
    }

    /// Notes that an earlier incarnation has offered a connection to this acceptor.
    pub(crate) fn offered(&mut self, now: Instant, session: SessionId, lease: u64) {
        if let Some((_, choice, _)) = self.of_lease(lease)
            && let Some(acceptor) = choice.acceptors.get_mut(session, lease)
        {
            acceptor.offered(now);
        }
    }

    /// Notes that an offer to this acceptor has ended without a claim.
    pub(crate) fn settle(&mut self, session: SessionId, lease: u64) {
        let Some((index, choice, _)) = self.of_lease(lease) else { return };
        let Some(acceptor) = choice.acceptors.get_mut(session, lease) else { return };
        acceptor.returned();
        // The only connection that it was offered is gone: it gets another one.
        let wants = acceptor.is_doubtful && acceptor.unclaimed == 0 && acceptor.registered != 0;
        if wants && !choice.waiting.is_empty() {
            self.turns.entry(index).or_insert(1);
        }
    }

    /// Notes that the acceptor has claimed a connection that it was offered at `offered_at`. `measured` says
    /// whether [`Chooser::served`] will follow; `None` lets the chooser decide. Returns the decision.
    pub(crate) fn claimed(
        &mut self,
        now: Instant,
        session: SessionId,
        lease: u64,
        offered_at: Instant,
        measured: Option<bool>,
    ) -> bool {
        let Some((index, choice, balancer)) = self.of_lease(lease) else { return false };
        let measured = measured.unwrap_or(choice.acceptors.has_choice());
        let Some(acceptor) = choice.acceptors.get_mut(session, lease) else { return false };
        acceptor.claimed(now, offered_at, measured);
        let was_doubtful = core::mem::take(&mut acceptor.is_doubtful);
        if measured {
            choice.acceptors.stir(now, index, balancer);
        }
        let waiting = choice.waiting.len();
        if was_doubtful && waiting > 0 {
            self.turns.insert(index, waiting);
        }
        measured
    }

    /// Notes that the application has closed a connection that it was offered at `offered_at` (P5).
    pub(crate) fn served(&mut self, now: Instant, session: SessionId, lease: u64, offered_at: Instant) {
        let Some((index, choice, balancer)) = self.of_lease(lease) else { return };
        let Some(acceptor) = choice.acceptors.get_mut(session, lease) else { return };
        acceptor.closed(now, offered_at, balancer.rules());
        choice.acceptors.stir(now, index, balancer);
    }

    /// Notes that a connection of `ts` is gone before it was claimed.
    pub(crate) fn gone(&mut self, ts: u8, index: u32, connection: ConnectionId, stage: Stage) {
        match stage {
            Stage::Embryonic => {}
            Stage::Waiting => {
                if let Some(choice) = self.at_mut(index) {
                    choice.waiting.retain(|waiting| (waiting.ts, waiting.connection) != (ts, connection));
                }
            }
            Stage::Offered { session, lease } => self.settle(session, lease),
        }
    }

    /// Removes a connection of `ts` from the waiting ones of every listener.
    pub(crate) fn gone_everywhere(&mut self, ts: u8, connection: ConnectionId) {
        for choice in self.table.iter_mut().flatten() {
            choice.waiting.retain(|waiting| (waiting.ts, waiting.connection) != (ts, connection));
        }
    }

    /// Handles a message of another CM.
    pub(crate) fn handle_peer(&mut self, now: Instant, message: &PeerMessage) {
        let Some(is_new) = self.balancer.admit(message) else { return };
        if is_new {
            self.table.iter_mut().flatten().for_each(|choice| choice.acceptors.forget_peer(message.from));
        }
        let lease = match &message.body {
            PeerBody::Offer(offer) => offer.lease,
            PeerBody::Report(report) => report.lease,
        };
        let Some((index, choice, balancer)) = self.of_lease(lease) else {
            self.balancer.count_dropped();
            return;
        };
        match &message.body {
            PeerBody::Offer(offer) => {
                choice.acceptors.handle_offer(now.min(message.sent_at), message.from, offer)
            }
            PeerBody::Report(report) => {
                match choice.acceptors.handle_report(now, message.from, report, index, balancer) {
                    Reported::Unknown => balancer.count_dropped(),
                    Reported::Noted => {}
                    Reported::Removed(tss) => self.tell_removed(tss, report.session, report.lease),
                }
            }
        }
    }

    /// Returns the next message to other CMs: see [`crate::ConnMgr::poll_peer`].
    pub(crate) fn poll_peer(&mut self, now: Instant, reach: Reach, last: bool) -> Option<PeerOutput> {
        if self.balancer.is_due(now, last) {
            for index in self.balancer.take_active() {
                if let Some(choice) = self.table.get_mut(index as usize).and_then(Option::as_mut) {
                    choice.acceptors.tell(now, index, reach, last, &mut self.balancer);
                }
            }
        }
        self.balancer.poll()
    }

    /// Returns the acceptors of all listeners, each with its listener's address.
    pub(crate) fn acceptors(&mut self, now: Instant) -> Vec<(Endpoint, AcceptorView)> {
        let balancer = &self.balancer;
        let views = |choice: &mut Choice| {
            let local = choice.local;
            choice.acceptors.views(now, balancer).into_iter().map(move |view| (local, view))
        };
        self.table.iter_mut().flatten().flat_map(views).collect()
    }

    /// Offers a connection to an acceptor, or adds it to those that wait. Returns whether it was offered.
    fn assign(&mut self, now: Instant, index: u32, waiting: Waiting) -> bool {
        let Waiting { ts, connection, listener } = waiting;
        let Some((choice, balancer)) = self.with_balancer(index) else { return false };
        let Some((session, lease)) = choice.acceptors.assign(now, ts, index, balancer) else {
            choice.waiting.push_back(waiting);
            self.tell_asker(ts, index);
            return false;
        };
        self.directives.push_back((ts, Directive::Offer(Offer { connection, listener, session, lease })));
        true
    }

    /// Notifies one session that has asked that a connection waits. Returns whether there was one.
    fn tell_asker(&mut self, ts: u8, index: u32) -> bool {
        let asker = self.at_mut(index).and_then(|choice| choice.askers.next(ts));
        let Some(Asker { session, lease, .. }) = asker else { return false };
        let (waiting, answers) = (true, false);
        self.directives.push_back((ts, Directive::ConnectionsWait { session, lease, waiting, answers }));
        true
    }

    fn tell_removed(&mut self, tss: u64, session: SessionId, lease: u64) {
        for ts in (0..64).filter(|ts| tss >> ts & 1 == 1) {
            self.directives.push_back((ts, Directive::AcceptorRemoved { session, lease }));
        }
    }

    fn at_mut(&mut self, index: u32) -> Option<&mut Choice> {
        self.table.get_mut(index as usize)?.as_mut()
    }

    fn with_balancer(&mut self, index: u32) -> Option<(&mut Choice, &mut Balancer)> {
        Some((self.table.get_mut(index as usize)?.as_mut()?, &mut self.balancer))
    }

    fn of_lease(&mut self, lease: u64) -> Option<(u32, &mut Choice, &mut Balancer)> {
        let &(index, _) = self.by_lease.get(&lease)?;
        Some((index, self.table.get_mut(index as usize)?.as_mut()?, &mut self.balancer))
    }
}
