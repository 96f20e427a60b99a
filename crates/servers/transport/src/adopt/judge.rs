//! Judges whether a connection of a predecessor may continue: its record, its slot and its text have to
//! agree. If they do not, both its ends are notified.

use alloc::boxed::Box;
use alloc::vec::Vec;

use atoll_base::{Duration, Instant};
use atoll_connmgr::{ConnMgr, Syn, SynVerdict};
use atoll_ipc::Memory;
use atoll_ipc::buffer::Extents;
use atoll_ipc::ledger::{ConnectionRecord, Phase, TimeWaitRecord};
use atoll_ipc::slot::{APP_LINGERS, APP_SHUT_SEND, REPLICA_FIN, REPLICA_URGENT, SlotState};
use atoll_tcp::State;

use crate::aftermath::{Loss, give_up};
use crate::applications::Applications;
use crate::blame::reset_peer;
use crate::connections::Connections;
use crate::durability::Records;
use crate::egress::Egress;
use crate::entry::{Entry, Flags, Service, Stage, text_tick};
use crate::handshakes::Handshakes;
use crate::passive::Opening;
use crate::record::{connection, device, furnish, is_deferred, keep, orphan, state, summary};
use crate::rings::Rings;
use crate::session::{Occupant, Place, Session};
use crate::stats::Stats;
use crate::time_wait;

/// The state of connections that continue, to be reported and written.
#[derive(Debug, Default)]
pub(crate) struct Adopted {
    /// The text that no application has yet: the place of its connection, and where in the ledger it is.
    parked: Vec<(u32, (u32, u32))>,
    /// The connections that went to TIME-WAIT and are not written as such.
    ended: Vec<TimeWaitRecord>,
    /// The connections that are not quiet.
    concerned: Vec<(u32, Stage)>,
}

impl Adopted {
    /// Writes what is to be written. Returns the connections that are not quiet.
    pub(crate) fn note<M: Memory>(self, records: &mut Records<M>) -> Vec<(u32, Stage)> {
        records.note_adopted(self.parked, &self.ended);
        self.concerned
    }
}

/// The contents of a slot of a connection.
#[derive(Clone, Copy, Debug)]
struct Seen {
    head: u64,
    tail: u64,
    /// The end of what the application has written, if the slot is about this connection.
    sent: Option<u64>,
    acked: u64,
    read_mark: u64,
    flags: u32,
    /// Whether a process waits in close(2).
    lingers: bool,
    send: Extents,
    /// The mark of the peer's urgent text, what was passed over where the reader stands, and the end of the
    /// own urgent text.
    mark: Option<u64>,
    passed: u64,
    urgent: u64,
}

impl Seen {
    fn new<M: Memory>(session: &Session<M>, place: Place) -> Option<Seen> {
        let slot = session.slot(place.slot)?;
        // Before an application claims an offer, its lines of the slot are about the socket before.
        let is_meant = slot.app_generation() == place.generation;
        Some(Seen {
            head: if is_meant { slot.receive_head() } else { 0 },
            tail: slot.receive_tail(),
            sent: is_meant.then(|| slot.send_tail()),
            acked: slot.acknowledged(),
            read_mark: slot.read_mark(),
            flags: slot.replica_flags(),
            lingers: is_meant && slot.app_flags() & APP_LINGERS != 0,
            send: slot.send_extents(&session.layout).filter(|_| is_meant).unwrap_or_default(),
            mark: slot.mark().filter(|_| is_meant && slot.replica_flags() & REPLICA_URGENT != 0),
            passed: if is_meant { slot.passed_marks(slot.receive_head()) } else { 0 },
            urgent: if is_meant { slot.send_urgent() } else { 0 },
        })
    }
}

/// Returns whether text at `[from, to)` is in these rings, of which the application has read up to `head`.
fn holds(rings: &Rings, head: u64, (from, to): (i64, i64)) -> bool {
    let (Ok(from), Ok(to), Some(current)) = (u64::try_from(from), u64::try_from(to), rings.current()) else {
        return false;
    };
    let len = usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX);
    to <= current.base.max(head).saturating_add(current.size() as u64) && rings.pieces(from, len).is_some()
}

/// Returns whether the text that comes next, up to the start of the current ring, has room in the old one.
fn has_room_behind(rings: &Rings, received: i64) -> bool {
    let (Ok(received), Some(current)) = (u64::try_from(received), rings.current()) else { return true };
    let before = usize::try_from(current.base.saturating_sub(received)).unwrap_or(usize::MAX);
    before == 0 || rings.pieces(received, before).is_some()
}

/// The most octets that are ever in a send buffer.
const SEND_MAX: i64 = 16 << 20;

/// Judges connections of a predecessor, and creates those that continue.
pub(crate) struct Judge<'a, M: Memory> {
    pub(crate) now: Instant,
    pub(crate) opening: Opening<'a>,
    pub(crate) cm: &'a mut ConnMgr,
    pub(crate) connections: &'a mut Connections,
    pub(crate) handshakes: &'a mut Handshakes,
    pub(crate) applications: &'a mut Applications<M>,
    pub(crate) egress: &'a mut Egress,
    pub(crate) stats: &'a mut Stats,
}

impl<M: Memory> Judge<'_, M> {
    /// Continues one connection, or gives it up. `refused` is a reason not to continue it.
    pub(crate) fn adopt_record(
        &mut self,
        records: &mut Records<M>,
        index: u32,
        record: &ConnectionRecord,
        refused: Option<Loss>,
        adopted: &mut Adopted,
    ) -> Result<(), Loss> {
        let text = records.text_of(record);
        let result = match refused {
            Some(why) => Err(why),
            None => self.adopt_connection(index, record, text, &mut adopted.ended),
        };
        if let Err(why) = result {
            if !matches!(why, Loss::Twice | Loss::Stateless) {
                let seen = self
                    .place_of(record)
                    .and_then(|place| Seen::new(self.applications.get(place.session)?, place));
                let written = seen.and_then(|seen| i64::try_from(seen.sent?).ok());
                reset_peer(record, written, self.egress, self.stats);
            }
            if let Some((id, slot, generation)) = record.place
                && let Some(session) = self.applications.place_of(id)
            {
                give_up(self.applications, self.stats, session, slot, generation);
                // Blocks of another connection were not taken for its own.
                if let Some(session) = self.applications.get_mut(session).filter(|_| why != Loss::Overlap) {
                    Rings::from(record.receive).release_all(session.memory());
                }
            }
            records.erase(index);
            return Err(why);
        }
        if self.connections.get(index).is_none_or(|entry| entry.place.is_none()) {
            self.release_of(index, record);
        }
        let Some(stage) = self.connections.get(index).map(|entry| entry.stage) else {
            // It lives on in TIME-WAIT.
            records.erase(index);
            return Ok(());
        };
        if record.text_len > 0 {
            adopted.parked.push((index, (record.text, record.text_len)));
        }
        // This is done while entry and slot are at hand.
        if !self.is_quiet(index) {
            adopted.concerned.push((index, stage));
        }
        Ok(())
    }

    /// Releases the receive buffer of a connection whose slot was given back, of which only the record is
    /// missing: so were the blocks of its buffer.
    fn release_of(&mut self, index: u32, record: &ConnectionRecord) {
        if let Some(entry) = self.connections.get_mut(index) {
            entry.receive = Rings::NONE;
        }
        if let Some(session) = record.place.and_then(|(id, ..)| self.applications.find_mut(id)) {
            Rings::from(record.receive).release_all(session.memory());
        }
    }

    // structure: adopt_connection: each check may find that the connection cannot go on, and nothing is kept before the last
    /// Continues one connection. `ended` collects connections that go to TIME-WAIT and are not written as
    /// such.
    fn adopt_connection(
        &mut self,
        index: u32,
        record: &ConnectionRecord,
        text: Option<Vec<u8>>,
        ended: &mut Vec<TimeWaitRecord>,
    ) -> Result<(), Loss> {
        let state = state(record).ok_or(Loss::Contradiction)?;
        let place = self.place_of(record);
        let seen = place.and_then(|place| Seen::new(self.applications.get(place.session)?, place));
        let is_gone = record.place.is_some_and(|(session, ..)| self.applications.place_of(session).is_none());
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
        facts.mss_path = facts.mss_path.min(self.opening.path(record.tuple.remote.addr, is_internal).mss);
        if record.phase == Phase::Closing {
            orphan(&mut facts);
        }
        // Text may have been written, and sent, since the record was.
        if let Some(sent) = sent.filter(|sent| !record.send_fin && *sent - record.progress.acked <= SEND_MAX)
        {
            facts.send_tail = record.send_tail.max(sent);
        }
        let rings = Rings::from(record.receive);
        if !has_room_behind(&rings, record.progress.received) {
            return Err(Loss::Contradiction);
        }
        for range in facts.beyond.iter_mut().filter(|range| place.is_none() || !holds(&rings, head, **range))
        {
            *range = (0, 0);
        }
        let mut connection = connection(self.now, &facts, keep(record), head).ok_or(Loss::Contradiction)?;
        if record.phase == Phase::Closing && place.is_none() && connection.send_una() < connection.send_tail()
        {
            return Err(Loss::TextGone);
        }
        let name = self.connections.name(&record.tuple);
        if state == State::TimeWait && !matches!(record.phase, Phase::Ended) {
            if let Some(time_wait) =
                connection.time_wait().filter(|_| !self.connections.time_waits().has(&name))
            {
                self.connections.enter_time_wait(self.now, name, time_wait);
                ended.push(time_wait::record(record.tuple, &time_wait.facts()));
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
        entry.text_at = text_tick(self.now);
        if patience > 0 && matches!(stage, Stage::Deferred { .. }) {
            entry.deadline = self.now + Duration::from_secs(patience.into());
        }
        entry.place = place;
        entry.parked = text.map(Box::new);
        if let Some(seen) = seen {
            entry.connection.resume_urgent(seen.urgent, seen.mark, seen.head, seen.passed);
            let (acked, tail) =
                (seen.acked.min(entry.connection.send_una()), seen.tail.min(entry.connection.receive_nxt()));
            entry.view.resume(acked, tail, seen.read_mark, seen.flags);
            entry.send = seen.send.into();
            entry.flags.set(Flags::LINGERS, seen.lingers && entry.stage == Stage::Closing);
            if entry.view.acked() < entry.connection.send_tail() {
                // The application may be waiting for room.
                entry.flags.insert(Flags::WANTS_ROOM);
            }
        }
        if seen.is_none() && entry.connection.fin_received() {
            // The application has not been shown it yet.
            entry.view.set_flags(REPLICA_FIN);
        }
        entry.recorded = summary(&entry);
        let is_in_flows =
            !matches!(entry.stage, Stage::Ended(_)) && entry.connection.state() != State::Closed;
        if is_in_flows && self.connections.find_name(&name).is_some() {
            return Err(Loss::Twice);
        }
        if let Some(Place { session, slot, generation }) = place
            && !self
                .applications
                .get_mut(session)
                .is_some_and(|s| s.occupy_again(slot, generation, Occupant::Connection(index)))
        {
            return Err(Loss::Twice);
        }
        if let Stage::Deferred { .. } = entry.stage {
            self.handshakes.defer(&name, index);
        }
        self.connections.put(index, entry);
        if is_in_flows {
            self.connections.forget_time_wait(&name);
            self.connections.enroll(index);
        }
        Ok(())
    }

    /// Returns the place of the connection's slot, if that was not given back.
    fn place_of(&self, record: &ConnectionRecord) -> Option<Place> {
        let (session, slot, generation) = record.place?;
        let session = self.applications.place_of(session)?;
        let view = self.applications.get(session)?.slot(slot)?;
        // An offer may not have been shown yet, or was just taken back: then its text is still there.
        let is_there = view.replica_generation() == generation
            && (view.state() != SlotState::Free || record.phase == Phase::Offered);
        is_there.then_some(Place { session, slot, generation })
    }

    /// Returns the stage of the connection, and for how many seconds it may wait for text; `None` if no
    /// socket listens for it any more.
    fn stage_of(&mut self, record: &ConnectionRecord, state: State, has_slot: bool) -> Option<(Stage, u16)> {
        let stage = match record.phase {
            Phase::Unclaimed | Phase::Offered => {
                // It counts as if it had opened just now.
                let syn = Syn { local: record.tuple.local, device: device(record), by_cookie: true };
                let SynVerdict::Accept { listener, defer_accept } = self.cm.handle_syn(&syn) else {
                    return None;
                };
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
            Phase::Open if matches!(state, State::Closed | State::TimeWait) => {
                Stage::Ended(Service::UNMEASURED)
            }
            Phase::Open => Stage::Open(Service::UNMEASURED),
            Phase::Ended => Stage::Ended(Service::UNMEASURED),
            Phase::Closing => Stage::Closing,
        };
        Some((stage, 0))
    }

    /// Returns whether an open connection has nothing to report, and needs no timer. Most are such, and cost
    /// one look.
    fn is_quiet(&self, index: u32) -> bool {
        let Some(entry) = self.connections.get(index) else { return false };
        let Some(place) = entry.place else { return false };
        let Some(slot) = self.applications.get(place.session).and_then(|session| session.slot(place.slot))
        else {
            return false;
        };
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
}
