//! How does a server go on where another one has died? Design 8.
//!
//! ```text
//!   requests in force       carried out again: leases, listeners, acceptors, datagram sockets
//!   those in TIME-WAIT       until their time is over
//!   records of connections  judged; slots, buffers and flow table are rebuilt by them
//!   what had been touched   is told to both ends once more: the peer where we stand, the application what there is
//! ```
//! Of the connections most need nothing for now, and go on a little later (`postponed.rs`).
//! Sessions were opened before. What nobody has a record of never left, and was never shown to anybody.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use atoll_base::{Duration, Endpoint, Instant, SessionId, SlotId};
use atoll_connmgr::{Bind, ConnectionId, Listen, Syn, SynVerdict};
use atoll_ipc::buffer::Extents;
use atoll_ipc::command::Protocol;
use atoll_ipc::control::User;
use atoll_ipc::lease::{Grant, NO_USER};
use atoll_ipc::ledger::{ConnectionRecord, Ledger, Phase, RequestRecord, TextPool, TimeWaitRecord, Work};
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{APP_SHUT_SEND, REPLICA_CLOSED, REPLICA_FIN, REPLICA_RESET, REPLICA_URGENT, Slot, SlotState};
use atoll_ipc::{Cause, Command, Event, Memory, Ready};
use atoll_tcp::State;

use crate::entry::{Entry, Flags, Service, Stage};
use crate::fast_open::is_connecting;
use crate::postponed::Postponed;
use crate::record::{ORPHAN, connection, furnish, is_deferred, keep, state, summary};
use crate::records::Records;
use crate::rings::Rings;
use crate::session::{Occupant, Place, Session};
use crate::transport::Transport;

/// What became of the connections of a predecessor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adoption {
    /// They go on.
    pub kept: u32,
    /// Their records could not be used, or were not to be: their applications see a reset.
    pub lost: u32,
    /// Those among them of which a predecessor has died twice.
    pub quarantined: u32,
    /// Why the first one was lost.
    pub why: Option<Loss>,
}

/// Why a connection does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Its record cannot be read.
    Unreadable,
    /// The record contradicts itself.
    Contradiction,
    /// Connections are not to be kept.
    Stateless,
    /// A predecessor has died of it twice.
    Quarantined,
    /// Predecessors have died of its session.
    CutOff,
    /// Its receive buffer is another's.
    Overlap,
    /// Another record has its slot, or its name.
    Twice,
    /// Its application has died meanwhile.
    SessionGone,
    /// Text that may have to be sent again, or that nobody has read yet, is not there any more.
    TextGone,
    /// Nobody listens there any more.
    NoListener,
}

impl Adopted {
    /// Writes down what is to be written. Returns whose connection is not quiet.
    pub(crate) fn note<M: Memory>(self, records: &mut Records<M>) -> Vec<(u32, Stage)> {
        records.chains.extend(self.parked);
        self.ended.iter().for_each(|ended| records.ledger.put_time_wait(ended));
        self.concerned
    }
}

/// Whether a connection needs nothing, as far as its record says, if nobody is owed anything about it: it has an application, and can be
/// used both ways.
fn may_wait(record: &ConnectionRecord) -> bool {
    record.phase == Phase::Open && record.text_len == 0 && state(record) == Some(State::Established)
}

impl Adoption {
    pub(crate) fn lose(&mut self, why: Loss) {
        self.lost += 1;
        self.quarantined += u32::from(why == Loss::Quarantined);
        self.why.get_or_insert(why);
    }
}

/// How a successor begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Connections go on.
    Stateful,
    /// Connections are reset; what was asked for stays in force (NEaT's way, N3).
    Stateless,
}

/// What connections that go on have to be told, and what is to be written down of them.
#[derive(Debug, Default)]
pub(crate) struct Adopted {
    /// Text that nobody has yet: the place of its connection, and where in the ledger it is.
    parked: Vec<(u32, (u32, u32))>,
    /// What is in TIME-WAIT and not written down as such.
    ended: Vec<TimeWaitRecord>,
    /// Whose connection is not quiet.
    concerned: Vec<(u32, Stage)>,
}

/// What a slot says of a connection.
#[derive(Clone, Copy, Debug)]
struct Seen {
    head: u64,
    tail: u64,
    /// End of what the application has written, if it means this connection.
    sent: Option<u64>,
    acked: u64,
    read_mark: u64,
    flags: u32,
    send: Extents,
    /// The mark of the peer's urgent text, what was passed over where the reader stands, and the end of the own one.
    mark: Option<u64>,
    passed: u64,
    urgent: u64,
}

impl Seen {
    fn new<M: Memory>(session: &Session<M>, place: Place) -> Option<Seen> {
        let slot = session.slot(place.slot)?;
        // Before it claims an offer, the application's lines are about the socket before.
        let is_meant = slot.app_generation() == place.generation;
        Some(Seen {
            head: if is_meant { slot.receive_head() } else { 0 },
            tail: slot.receive_tail(),
            sent: is_meant.then(|| slot.send_tail()),
            acked: slot.acknowledged(),
            read_mark: slot.read_mark(),
            flags: slot.replica_flags(),
            send: slot.send_extents(&session.layout).filter(|_| is_meant).unwrap_or_default(),
            mark: slot.mark().filter(|_| is_meant && slot.replica_flags() & REPLICA_URGENT != 0),
            passed: if is_meant { slot.passed_marks(slot.receive_head()) } else { 0 },
            urgent: if is_meant { slot.send_urgent() } else { 0 },
        })
    }
}

/// Whether text at `[from, to)` lies in these rings, of which the application has read up to `head`.
fn holds(rings: &Rings, head: u64, (from, to): (i64, i64)) -> bool {
    let (Ok(from), Ok(to), Some(current)) = (u64::try_from(from), u64::try_from(to), rings.current()) else {
        return false;
    };
    let len = usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX);
    to <= current.base.max(head).saturating_add(current.size() as u64) && rings.pieces(from, len).is_some()
}

/// Whether the text that comes next, up to where the current ring begins, has a place in the old one.
fn has_room_behind(rings: &Rings, received: i64) -> bool {
    let (Ok(received), Some(current)) = (u64::try_from(received), rings.current()) else { return true };
    let before = usize::try_from(current.base.saturating_sub(received)).unwrap_or(usize::MAX);
    before == 0 || rings.pieces(received, before).is_some()
}

/// Blocks of receive buffers - first unit, size as a power of two - and the connections that have them; `None`: a datagram socket.
type Blocks = BTreeMap<SessionId, Vec<((u32, u8), Option<u32>)>>;

/// So many records before it is needed, memory of a connection is asked for: what takes longest is waiting for that, one after the other.
const AHEAD: usize = 8;
/// So many deaths on one connection end it.
const CRASHES_MAX: u8 = 2;
/// Slots that are looked at for lost connections before a successor serves, and in each of its rounds.
const LOST_SLOTS_FIRST: usize = 4096;
pub(crate) const LOST_SLOTS: usize = 256;
/// More text than any receive buffer holds.
const AREA_MAX: usize = 16 << 20;
/// More than this is never in a send buffer.
const SEND_MAX: i64 = 16 << 20;

impl<M: Memory> Transport<M> {
    /// Writes down from now on what a successor has to know, in a ledger that is this server's, or was that of its predecessor: then
    /// [`Transport::adopt`] is to be called when all sessions are open.
    pub fn set_ledger(&mut self, ledger: Ledger<M>) {
        self.records = Some(Box::new(Records::new(ledger, self.config.quota.requests, self.config.user_quota)));
    }

    /// The sessions that [`Transport::adopt`] needs. Of others a predecessor has left nothing that is in force, so that they can be opened later:
    /// how many there are says nothing about how soon a successor serves.
    pub fn sessions_in_ledger(&self) -> BTreeSet<SessionId> {
        self.records.as_ref().map_or_else(BTreeSet::new, |records| records.ledger.sessions())
    }

    // structure: adopt: recovery in the order of its steps (the head of this file)
    /// Goes on where the predecessor has died. `is_blamed`: by its own fault, so that what it was working on may be the reason. Flush afterwards.
    pub fn adopt(&mut self, now: Instant, recovery: Recovery, is_blamed: bool) -> Adoption {
        let Some(mut records) = self.records.take() else { return Adoption::default() };
        let found: Vec<_> = records.ledger.requests().filter_map(|(place, found)| Some((place, found.ok()?))).collect();
        let high = found.iter().map(|(place, _)| place + 1).max().unwrap_or(0);
        records.requests = records.requests.resume(&found, high, |session| self.limited_user(session));
        records.is_stateless = recovery == Recovery::Stateless;
        let marked = self.charge(now, &mut records, is_blamed);
        self.repeat_requests(now, &mut records, found);

        let touched = records.ledger.touched();
        records.is_heir = true;
        let mut adoption = Adoption::default();
        // Records are read twice rather than kept in between: there may be many, and memory that is touched for the first time costs more.
        let (mut good, mut unreadable, mut heads) = (Vec::new(), Vec::new(), Vec::new());
        // Where more were touched than are remembered, nobody can wait.
        let mut in_order = touched.clone();
        in_order.iter_mut().for_each(|touched| touched.sort_unstable());
        let is_untouched = |index: u32| in_order.as_ref().is_some_and(|touched| touched.binary_search(&index).is_err());
        let mut blocks = Blocks::new();
        for (index, found) in records.ledger.connections() {
            let Ok(record) = found else {
                unreadable.push(index);
                continue;
            };
            let crashes = record.crashes.saturating_add(u8::from(marked == Some(index)));
            if crashes > 0 {
                records.crashes.insert(index, crashes);
            }
            if record.text != 0 {
                heads.push(record.text);
            }
            let mut rings = [record.receive.current, record.receive.old].into_iter().flatten().peekable();
            if let (Some((session, ..)), Some(_)) = (record.place, rings.peek()) {
                let rings = rings.map(|ring| ((ring.unit, ring.log2), Some(index)));
                blocks.entry(session).or_default().extend(rings);
            }
            let is_cut_off = record.place.is_some_and(|(session, ..)| self.is_cut_off(session));
            let waits = recovery == Recovery::Stateful
                && crashes == 0
                && !is_cut_off
                && may_wait(&record)
                && is_untouched(index);
            good.push((index, record.place, waits.then_some(record.tuple)));
        }
        let has_unreadable = !unreadable.is_empty();
        for index in unreadable {
            adoption.lose(Loss::Unreadable);
            records.ledger.stage_connection(index, None);
        }
        records.text = TextPool::resume(&records.ledger.text_area(), heads.into_iter());
        self.flows.reserve(&self.entries, good.len());
        let overlapping = self.resume_pools(blocks);
        let mut adopted = Adopted::default();
        self.postponed = Some(Box::new(Postponed::new(good.len(), self.flows.name_hash().clone(), now)));
        if recovery == Recovery::Stateful {
            self.adopt_time_waits(now, records.ledger.time_waits());
        }
        for (at, &(index, place, waits)) in good.iter().enumerate() {
            if let Some(&(_, Some((id, slot, _)), _)) = good.get(at + AHEAD) {
                let session = self.session_index.get(&id).and_then(|&session| self.session(session));
                session.and_then(|session| session.slot(slot)).iter().for_each(Slot::prefetch);
            }
            if let (Some(tuple), Some(place)) = (waits, place)
                && !overlapping.contains(&index)
                && self.postpone(index, &tuple, place)
            {
                adoption.kept += 1;
                continue;
            }
            records.ledger.mark(Work::Adoption(index));
            let Some(mut record) = records.ledger.connection_again(index) else { continue };
            record.crashes = records.crashes.get(&index).copied().unwrap_or(0);
            if marked == Some(index) {
                records.ledger.stage_connection(index, Some(&record));
            }
            let refused = match recovery {
                Recovery::Stateless => Some(Loss::Stateless),
                Recovery::Stateful if record.crashes >= CRASHES_MAX => Some(Loss::Quarantined),
                Recovery::Stateful if place.is_some_and(|(session, ..)| self.is_cut_off(session)) => Some(Loss::CutOff),
                Recovery::Stateful => overlapping.contains(&index).then_some(Loss::Overlap),
            };
            match self.adopt_record(now, &mut records, index, &record, refused, &mut adopted) {
                Ok(()) => adoption.kept += 1,
                Err(why) => adoption.lose(why),
            }
        }
        if recovery == Recovery::Stateless || has_unreadable {
            // There are no records, or nobody knows whose they were: the slots say who has a socket.
            let ids = (0..).zip(&self.sessions).filter_map(|(at, session)| Some((at, session.as_ref()?.id, 0)));
            self.lost_slots = ids.collect();
            self.looks_for_lost = true;
            let found = self.look_for_lost(LOST_SLOTS_FIRST);
            adoption.lost += if recovery == Recovery::Stateless { found } else { 0 };
        }
        let concerned = adopted.note(&mut records);
        records.ledger.commit();
        self.records = Some(records);
        let postponed = self.postponed.take().filter(|postponed| postponed.len() > 0);
        let end = postponed.as_ref().map_or(0, |postponed| postponed.places_end());
        let is_kept = |index| postponed.as_ref().is_some_and(|postponed| postponed.has_place(index));
        self.entries.restore_free(end, is_kept);
        self.postponed = postponed;
        for session in self.sessions.iter_mut().flatten() {
            session.rebuild();
        }
        self.go_on(now, concerned);
        self.mark(Work::Nothing);
        self.greet(touched);
        self.run_directives(now);
        self.forget_ports();
        self.tell_adoption(adoption);
        adoption
    }

    /// So much is known of what becomes of the connections.
    pub(crate) fn tell_adoption(&mut self, adoption: Adoption) {
        self.stats.set(Stat::ConnectionsKept, adoption.kept.into());
        self.stats.set(Stat::ConnectionsLost, adoption.lost.into());
        self.stats.set(Stat::ConnectionsQuarantined, adoption.quarantined.into());
        match &mut self.postponed {
            Some(postponed) => postponed.adoption = adoption,
            None => self.adoption = Some(adoption),
        }
    }

    /// Goes on with one connection, or gives it up. `refused`: because of that.
    pub(crate) fn adopt_record(
        &mut self,
        now: Instant,
        records: &mut Records<M>,
        index: u32,
        record: &ConnectionRecord,
        refused: Option<Loss>,
        adopted: &mut Adopted,
    ) -> Result<(), Loss> {
        let text_len = usize::try_from(record.text_len).unwrap_or(0);
        let text = if text_len > 0 { records.ledger.text_area().read(record.text, text_len) } else { None };
        let result = match refused {
            Some(why) => Err(why),
            None => self.adopt_connection(now, index, record, text, &mut adopted.ended),
        };
        if let Err(why) = result {
            if !matches!(why, Loss::Twice | Loss::Stateless) {
                let seen = self.place_of(record).and_then(|place| Seen::new(self.session(place.session)?, place));
                let written = seen.and_then(|seen| i64::try_from(seen.sent?).ok());
                self.reset_peer(record, written);
            }
            if let Some((id, slot, generation)) = record.place
                && let Some(&session) = self.session_index.get(&id)
            {
                self.give_up(session, slot, generation);
                // Blocks that are another's were not taken for its own.
                if let Some(session) = self.session_mut(session).filter(|_| why != Loss::Overlap) {
                    Rings::from(record.receive).release_all(&session.pool, &session.links);
                }
            }
            records.ledger.stage_connection(index, None);
            // Whoever has this place next is another one.
            records.crashes.remove(&index);
            return Err(why);
        }
        if self.entries.get(index).is_none_or(|entry| entry.place.is_none()) {
            self.release_of(index, record);
        }
        let Some(stage) = self.entries.get(index).map(|entry| entry.stage) else {
            // It lives on in TIME-WAIT.
            records.ledger.stage_connection(index, None);
            records.crashes.remove(&index);
            return Ok(());
        };
        if record.text_len > 0 {
            adopted.parked.push((index, (record.text, record.text_len)));
        }
        // While entry and slot are at hand.
        if !self.is_quiet(index) {
            adopted.concerned.push((index, stage));
        }
        Ok(())
    }

    /// The slot of a connection was given back, and only the record of that is missing: so were the blocks of its receive buffer.
    fn release_of(&mut self, index: u32, record: &ConnectionRecord) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.receive = Rings::NONE;
        }
        let session = record.place.and_then(|(id, ..)| self.session_index.get(&id).copied());
        if let Some(session) = session.and_then(|session| self.session_mut(session)) {
            Rings::from(record.receive).release_all(&session.pool, &session.links);
        }
    }

    /// The predecessor may have died after it had written down that a port is free, and before the page said so. (Not by clearing the page first:
    /// whoever looks at it meanwhile would take the port for the kernel's.)
    fn forget_ports(&self) {
        let is_there = |udp: bool, port: u16| if udp { self.datagrams.has_port(port) } else { self.cm.has_port(port) };
        for udp in [false, true] {
            let gone: Vec<u16> = self.page.ports(udp).filter(|port| !is_there(udp, *port)).collect();
            gone.into_iter().for_each(|port| self.page.set_port(udp, port, false));
        }
    }

    /// What applications have asked for, once more.
    fn repeat_requests(&mut self, now: Instant, records: &mut Records<M>, mut found: Vec<(u32, RequestRecord)>) {
        found.sort_by_key(|(_, record)| record.order);
        for (_, RequestRecord { session, command, .. }) in found {
            let Some(&index) = self.session_index.get(&session) else { continue };
            if self.is_cut_off(session) {
                records.requests.remove_session(session);
                if let Command::UdpOpen { slot, generation, .. } = command {
                    self.give_up(index, slot, generation);
                }
                continue;
            }
            records.ledger.mark(Work::Commands(session));
            match command {
                Command::UdpOpen { slot, generation, lease, local, remote, reuse_port, v6_only } => {
                    let place = Place { session: index, slot, generation };
                    let grant = self.grant(index, lease, Protocol::Udp, local);
                    let past = || self.past_grant(index, lease, Protocol::Udp, local, (reuse_port, v6_only));
                    let grant = grant.unwrap_or_else(past);
                    self.reopen_datagram(now, place, grant, local, remote);
                }
                // Whether the address is there now does not matter, as it would not to the predecessor. Nobody waits for an answer: who still does
                // has his command in the ring.
                Command::Bind { lease, protocol, local, reuse_addr, reuse_port, v6_only, .. } => {
                    // Whose ports are low is the same.
                    let uid = self.user_of(index, lease, protocol, local).map_or(NO_USER, |user| user.uid);
                    let user = User::privileged(uid);
                    let bind = Bind { session, user, lease, protocol, local, reuse_addr, reuse_port, v6_only };
                    let _ = self.cm.handle_bind(&bind);
                }
                Command::Listen { lease, local, backlog, reuse_port, defer_accept, v6_only, .. } => {
                    let past = || self.past_grant(index, lease, Protocol::Tcp, local, (reuse_port, v6_only));
                    let shown = self.shown(index, lease).or_else(|| Some(past()));
                    let uid = self.user_of(index, lease, Protocol::Tcp, local).map_or(NO_USER, |user| user.uid);
                    let listen =
                        Listen { session, lease, local, backlog, reuse_port, defer_accept, v6_only, uid, shown };
                    let _ = self.cm.handle_listen(&listen);
                    self.run_directives(now);
                }
                command => self.handle_command(now, index, command),
            }
        }
        records.ledger.mark(Work::Nothing);
    }

    /// By what right a session has what the predecessor has let it have, if it has nothing to show: because it has left the port to others of its
    /// family, or because it was another build that let it. Any later grant goes before it.
    fn past_grant(
        &self,
        session: u32,
        lease: u64,
        protocol: Protocol,
        local: Endpoint,
        (reuse_port, v6_only): (bool, bool),
    ) -> Grant {
        let uid = self.user_of(session, lease, protocol, local).map_or(NO_USER, |user| user.uid);
        let listening = protocol == Protocol::Tcp;
        Grant { lease, protocol, local, v6_only, reuse_addr: false, reuse_port, listening, uid, granted: 0 }
    }

    /// Marks the blocks of receive buffers as in use. Returns the connections whose blocks are no blocks, or another's.
    fn resume_pools(&mut self, mut by_session: Blocks) -> BTreeSet<u32> {
        let mut refused = BTreeSet::new();
        for (session, block) in self.datagrams.blocks() {
            if let Some(session) = self.session(session) {
                by_session.entry(session.id).or_default().push((block, None));
            }
        }
        for session in self.sessions.iter().flatten() {
            let mut owners = by_session.remove(&session.id).unwrap_or_default();
            owners.sort_unstable();
            // Datagram sockets that go on have given back what their application has read, to a pool that had given
            // out nothing yet: that is to be forgotten, or the same block is given out twice.
            if owners.is_empty() && session.sockets == 0 {
                // It is so from the start.
                continue;
            }
            let mut blocks: Vec<_> = owners.iter().map(|(block, _)| *block).collect();
            for number in session.pool.resume(&session.links, &mut blocks) {
                refused.extend(owners.get(number).and_then(|(_, owner)| *owner));
            }
            session.note_touched();
        }
        refused
    }

    // structure: adopt_connection: each check may find that the connection cannot go on, and nothing is kept before the last
    /// Goes on with one connection. `ended`: what is in TIME-WAIT and not written down as such.
    fn adopt_connection(
        &mut self,
        now: Instant,
        index: u32,
        record: &ConnectionRecord,
        text: Option<Vec<u8>>,
        ended: &mut Vec<TimeWaitRecord>,
    ) -> Result<(), Loss> {
        let state = state(record).ok_or(Loss::Contradiction)?;
        let place = self.place_of(record);
        let seen = place.and_then(|place| Seen::new(self.session(place.session)?, place));
        let is_gone = record.place.is_some_and(|(session, ..)| !self.session_index.contains_key(&session));
        if is_gone && matches!(record.phase, Phase::Offered | Phase::Open | Phase::Ended) {
            // Its application has died with the server: what was in its arena is gone, too.
            return Err(Loss::SessionGone);
        }
        let kept = i64::try_from(text.as_ref().map_or(0, Vec::len)).unwrap_or(0);
        match record.phase {
            // Its slot was given back: it was over, and only the record of that is missing.
            Phase::Open | Phase::Ended if place.is_none() => return Ok(()),
            Phase::Unclaimed if place.is_some() => return Err(Loss::Contradiction),
            Phase::Closing if !record.send_fin && state != State::Closed => return Err(Loss::Contradiction),
            Phase::Unclaimed | Phase::Offered if place.is_none() && kept < record.progress.received => {
                return Err(Loss::TextGone);
            }
            _ => {}
        }
        let head = seen.map_or(0, |seen| seen.head);
        let sent = seen.and_then(|seen| seen.sent).and_then(|sent| i64::try_from(sent).ok());
        let mut facts = *record;
        let is_internal = record.flags & u32::from(Flags::INTERNAL.bits()) != 0;
        facts.mss_path = facts.mss_path.min(self.path(record.tuple.remote.addr, is_internal).mss);
        if record.phase == Phase::Closing {
            facts.flags |= ORPHAN;
        }
        // What was written, and has left, since the record was.
        if let Some(sent) = sent.filter(|sent| !record.send_fin && *sent - record.progress.acked <= SEND_MAX) {
            facts.send_tail = record.send_tail.max(sent);
        }
        let rings = Rings::from(record.receive);
        if !has_room_behind(&rings, record.progress.received) {
            return Err(Loss::Contradiction);
        }
        for range in facts.beyond.iter_mut().filter(|range| place.is_none() || !holds(&rings, head, **range)) {
            *range = (0, 0);
        }
        let mut connection = connection(now, &facts, keep(record), head).ok_or(Loss::Contradiction)?;
        if record.phase == Phase::Closing && place.is_none() && connection.send_una() < connection.send_tail() {
            return Err(Loss::TextGone);
        }
        let name = self.name(&record.tuple);
        if state == State::TimeWait && !matches!(record.phase, Phase::Ended) {
            if let Some(time_wait) = connection.time_wait().filter(|_| !self.time_waits.has(&name)) {
                self.time_waits.insert(now, name, time_wait, |name| self.searches.give_back(name));
                ended.push(crate::time_wait::record(record.tuple, &time_wait.facts()));
            }
            if record.phase == Phase::Closing {
                return Ok(());
            }
            connection.abort();
        }
        let (stage, patience) = self.stage_of(record, state, place.is_some()).ok_or(Loss::NoListener)?;
        if stage.is_open() {
            connection.resume_fast();
        }
        let mut entry = Entry::new(connection, name, stage);
        furnish(&mut entry, record);
        if patience > 0 && matches!(stage, Stage::Deferred { .. }) {
            entry.deadline = now + Duration::from_secs(patience.into());
        }
        entry.place = place;
        entry.parked = text.map(Box::new);
        if let Some(seen) = seen {
            entry.connection.resume_urgent(seen.urgent, seen.mark, seen.head, seen.passed);
            entry.published_tail = seen.tail.min(entry.connection.receive_nxt());
            entry.published_acked = seen.acked.min(entry.connection.send_una());
            entry.published_mark = seen.read_mark;
            entry.replica_flags = seen.flags;
            entry.send = seen.send.into();
            if entry.published_acked < entry.connection.send_tail() {
                // Somebody may be waiting for room.
                entry.flags.set(Flags::WANTS_ROOM);
            }
        }
        if seen.is_none() && entry.connection.fin_received() {
            // Nobody has been shown it yet.
            entry.replica_flags |= REPLICA_FIN;
        }
        entry.recorded = summary(&entry);
        let is_in_flows = !matches!(entry.stage, Stage::Ended(_)) && entry.connection.state() != State::Closed;
        if is_in_flows && self.flows.find(&self.entries, &name).is_some() {
            return Err(Loss::Twice);
        }
        if let Some(Place { session, slot, generation }) = place
            && !self.session_mut(session).is_some_and(|s| s.occupy_again(slot, generation, Occupant::Connection(index)))
        {
            return Err(Loss::Twice);
        }
        if let Stage::Deferred { .. } = entry.stage {
            self.deferred.insert((name.local_port(), index));
        }
        self.entries.put(index, entry);
        if is_in_flows {
            self.time_waits.forget(&name);
            self.flows.insert(&self.entries, index);
        }
        self.orphans += usize::from(stage == Stage::Closing);
        Ok(())
    }

    /// Where its slot is, if it was not given back.
    fn place_of(&self, record: &ConnectionRecord) -> Option<Place> {
        let (session, slot, generation) = record.place?;
        let session = *self.session_index.get(&session)?;
        let view = self.session(session)?.slot(slot)?;
        // An offer may not have been shown yet, or was just taken back: then its text is still there.
        let is_there = view.replica_generation() == generation
            && (view.state() != SlotState::Free || record.phase == Phase::Offered);
        is_there.then_some(Place { session, slot, generation })
    }

    /// Whose it is, and for how many seconds it may wait for text. `None`: nobody's any more.
    fn stage_of(&mut self, record: &ConnectionRecord, state: State, has_slot: bool) -> Option<(Stage, u16)> {
        let stage = match record.phase {
            Phase::Unclaimed | Phase::Offered => {
                // As if it had opened just now: so it is counted.
                let syn = Syn { local: record.tuple.local, by_cookie: true };
                let SynVerdict::Accept { listener, defer_accept } = self.cm.handle_syn(&syn) else { return None };
                let stage = if has_slot {
                    // It was offered, perhaps before the handshake was complete (Fast Open).
                    Stage::Waiting { listener }
                } else if is_deferred(record) {
                    Stage::Deferred { listener }
                } else if state == State::SynReceived {
                    Stage::Embryonic { listener, defer: defer_accept }
                } else {
                    Stage::Waiting { listener }
                };
                return Some((stage, defer_accept));
            }
            Phase::Open if matches!(state, State::Closed | State::TimeWait) => Stage::Ended(Service::UNMEASURED),
            Phase::Open => Stage::Open(Service::UNMEASURED),
            Phase::Ended => Stage::Ended(Service::UNMEASURED),
            Phase::Closing => Stage::Closing,
        };
        Some((stage, 0))
    }

    /// Tells applications where things stand, as far as they may not know. `concerned`: whose connection is not quiet.
    pub(crate) fn go_on(&mut self, now: Instant, concerned: Vec<(u32, Stage)>) {
        for (index, stage) in concerned {
            self.mark(Work::Adoption(index));
            self.touch(index);
            match stage {
                Stage::Open(_) => {
                    if let Some(entry) = self.entries.get_mut(index)
                        && !is_connecting(&entry.connection)
                    {
                        // The record may have another limit than the slot, and both sides have to go by one.
                        entry.flags.set(Flags::LIMIT);
                    }
                    self.handle_kick(now, index);
                }
                Stage::Waiting { .. } if self.entries.get(index).is_some_and(|entry| entry.place.is_some()) => {
                    self.resolve_offer(now, index);
                }
                Stage::Waiting { listener } => self.cm.handle_established(now, ConnectionId(index), listener),
                Stage::Ended(_) => {
                    if let Some(entry) = self.entries.get_mut(index) {
                        entry.replica_flags |= REPLICA_CLOSED;
                        entry.flags.set(Flags::STATE);
                        entry.ready |= Ready::IN | Ready::OUT | Ready::HUP | Ready::RDHUP;
                    }
                }
                _ => {}
            }
        }
    }

    /// Tells both ends of connections once more where they stand. `None`: of all.
    fn greet(&mut self, touched: Option<Vec<u32>>) {
        let touched: Vec<u32> = match touched {
            Some(touched) => touched,
            None => self.entries.iter().map(|(index, _)| index).collect(),
        };
        for index in touched {
            if let Some(entry) = self.entries.get_mut(index) {
                entry.connection.greet();
                entry.flags.set(Flags::STATE.with(Flags::EXTENTS));
                if entry.connection.fin_received() {
                    entry.replica_flags |= REPLICA_FIN;
                    entry.ready |= Ready::RDHUP;
                }
                if matches!(entry.stage, Stage::Open(_)) {
                    entry.ready |= Ready::IN | Ready::OUT;
                }
                self.touch(index);
            }
        }
    }

    /// Whether nobody has anything to be told about an open connection, and no time counts for it. Most are so, and cost a look.
    fn is_quiet(&self, index: u32) -> bool {
        let Some(entry) = self.entries.get(index) else { return false };
        let Some(place) = entry.place else { return false };
        let Some(slot) = self.session(place.session).and_then(|session| session.slot(place.slot)) else { return false };
        let connection = &entry.connection;
        matches!(entry.stage, Stage::Open(_))
            && connection.state() == State::Established
            && connection.next_timeout().is_none()
            && connection.send_una() == connection.send_tail()
            && entry.receive.current().is_none()
            && slot.app_generation() == place.generation
            && slot.send_tail() == connection.send_tail()
            && slot.receive_head() == connection.receive_nxt()
            && slot.receive_tail() == connection.receive_nxt()
            && slot.acknowledged() == connection.send_una()
            && slot.app_flags() & APP_SHUT_SEND == 0
            && slot.send_limit() == entry.send_limit_now()
            && slot.state() == SlotState::Open
    }

    /// A connection was offered when the predecessor died: it is whose claim is there, or else is offered anew.
    fn resolve_offer(&mut self, now: Instant, index: u32) {
        let Some(entry) = self.entries.get_mut(index) else { return };
        let (Stage::Waiting { listener }, Some(place)) = (entry.stage, entry.place) else { return };
        let Some(session) = self.sessions.get_mut(place.session as usize).and_then(Option::as_mut) else { return };
        if session.slot(place.slot).is_some_and(|slot| !slot.revoke(place.generation)) {
            let event = Event::ClaimVerdict { slot: place.slot, generation: place.generation, confirmed: true };
            session.push(&mut self.stats, &event, None);
            entry.stage = Stage::Open(Service::UNMEASURED);
            entry.flags.set(Flags::STATE);
            self.cm.handle_gone(ConnectionId(index), listener, atoll_connmgr::Stage::Embryonic);
            self.handle_kick(now, index);
            return;
        }
        let mut text = alloc::vec![0; usize::try_from(entry.connection.receive_nxt()).unwrap_or(0).min(AREA_MAX)];
        if let Some(pieces) = entry.receive.pieces(0, text.len()) {
            pieces.read(&session.arena, session.layout.receive_area, &mut text);
        }
        // It goes with the slot.
        entry.connection.drop_out_of_order();
        let rings = core::mem::replace(&mut entry.receive, Rings::NONE);
        entry.parked = (!text.is_empty()).then(|| Box::new(text));
        entry.place = None;
        entry.flags.set(Flags::RECORD);
        session.vacate(place.slot, true);
        self.release_later(place.session, place.slot, rings);
        self.cm.handle_established(now, ConnectionId(index), listener);
    }

    /// Looks at some of the slots in which connections may have been lost with their records, and tells their applications. Applications can
    /// mark as many as they like, so this is done in parts. Returns how many there were.
    pub(crate) fn look_for_lost(&mut self, slots: usize) -> u32 {
        let mut lost = 0;
        for _ in 0..slots {
            let Some(&mut (index, id, ref mut next)) = self.lost_slots.front_mut() else { break };
            let slot = SlotId(*next);
            *next += 1;
            let Some(session) = self.sessions.get(index as usize).and_then(Option::as_ref).filter(|it| it.id == id)
            else {
                self.lost_slots.pop_front();
                continue;
            };
            let generations = session.slot(slot).map(|view| (view.app_generation(), view.replica_generation()));
            let half = session.layout.replica_slots().start;
            match generations {
                // The library takes its slots in order, and so does the replica.
                Some((0, 0)) if slot.0 < half => *next = half,
                None | Some((0, 0)) => {
                    self.lost_slots.pop_front();
                }
                Some((_, generation)) if generation != 0 && session.is_vacant(slot) => {
                    lost += u32::from(self.give_up(index, slot, generation));
                }
                Some(_) => {}
            }
        }
        lost
    }

    /// The application of a connection that cannot go on is told. Returns whether it has a socket for it, which keeps its slot until it is closed.
    fn give_up(&mut self, session_index: u32, slot: SlotId, generation: u32) -> bool {
        let Some(session) = self.session_mut(session_index) else { return false };
        let Some(view) = session.slot(slot).filter(|view| view.replica_generation() == generation) else {
            return false;
        };
        let is_offer = view.state() == SlotState::Offered;
        let is_held = match view.state() {
            SlotState::Open | SlotState::Connecting => true,
            // If it has been claimed.
            SlotState::Offered => !view.revoke(generation),
            _ => false,
        };
        if !is_held || !session.occupy_again(slot, generation, Occupant::Lost) {
            return false;
        }
        let Some(view) = session.slot(slot) else { return false };
        if view.replica_flags() & REPLICA_CLOSED == 0 {
            // What was not read is not there any more: others may get its memory.
            view.set_receive_tail(view.receive_head());
            view.set_error(Cause::ConnectionReset);
            view.set_state(SlotState::Open);
            view.set_replica_flags(view.replica_flags() | REPLICA_CLOSED | REPLICA_RESET);
        }
        if is_offer {
            self.reply(session_index, &Event::ClaimVerdict { slot, generation, confirmed: true });
        }
        true
    }
}
