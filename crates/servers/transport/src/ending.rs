//! Cleans up after a process that has ended, without delaying others. Its sockets may be thousands, so the
//! work is done in slices: some in each round, until nothing is left.
//!
//! ```text
//!   commands   that it sent before it ended still count
//!   members    processes that have ended are removed from the holders of sockets
//!   leases     its ports and listeners end, one after the other; connections that nobody has accepted
//!              end with a listener
//!   sockets    those without holders are closed; of others, positions that were stored and not reported
//!              are read
//!   requests   everything else that was asked for is dropped
//! ```
//! A server that dies in between has a successor that begins from the start. The supervisor repeats which
//! processes have ended until the server reports that the session is over, and doing part of the work again
//! is harmless.

use atoll_base::{Instant, SessionId, SlotId};
use atoll_connmgr::ConnectionId;
use atoll_ipc::ledger::Work;
use atoll_ipc::slot::{REPLICA_CLOSED, REPLICA_RESET};
use atoll_ipc::{Cause, Command, Event, Memory, Ready};

use crate::departures::{Departure, Ending, Extent, SLICE};
use crate::durability::Subject;
use crate::entry::Stage;
use crate::release::give_back_slot;
use crate::session::Occupant;
use crate::transport::Transport;

/// The number, in its session, of the process that has attached: it takes the events.
const OWNER: u8 = 0;

/// The costs of closing a socket with what is sent because of it, of ending a lease, of examining a socket,
/// and of dropping a request.
const CLOSE_COST: u32 = 16;
const LEASE_COST: u32 = 8;
const LOOK_COST: u32 = 2;
const REQUEST_COST: u32 = 2;
/// The number of slots without a socket that are passed over at the cost of examining one socket.
const VACANT_PER_LOOK: u32 = 64;

impl<M: Memory> Transport<M> {
    /// Handles the end of one process of the session's family: sockets that it alone held are closed, and
    /// what it has stored in others and not reported counts. If it was the session's owner, the listeners
    /// end, too: processes that inherited them have registered them for themselves.
    pub fn member_gone(&mut self, now: Instant, id: SessionId, member: u8) {
        self.depart(now, Departure::Member(id, member));
    }

    /// Handles the end of the last process of the session. Its sockets end as the kernel ends those of a
    /// process, and its arena is released when they are done, or when their time is up.
    pub fn close_session(&mut self, now: Instant, id: SessionId) {
        self.depart(now, Departure::Session(id));
    }

    /// Cuts off a session, because other servers have died of it: its commands are not read any more, and its
    /// sockets end as by a reset, in slices. Its memory is released by [`Transport::close_session`].
    pub fn cut_off(&mut self, now: Instant, id: SessionId) {
        if self.applications.cut_off(id) {
            self.depart(now, Departure::CutOff(id));
        }
    }

    /// Handles an end. A predecessor's connections of the session have to be continued first, which takes
    /// some rounds.
    pub(crate) fn depart(&mut self, now: Instant, departure: Departure) {
        self.applications.endings_mut().depart(departure);
        self.let_depart(now);
    }

    /// Begins to clean up after all ends that were reported.
    pub(crate) fn let_depart(&mut self, now: Instant) {
        while self.connections.postponed().is_none()
            && let Some(departure) = self.applications.endings_mut().next_departure()
        {
            let nothing = Extent::default();
            match departure {
                Departure::Member(id, member) => {
                    let Some(place) = self.applications.place_of(id) else { continue };
                    let extent = Extent { owner: member == OWNER, ..nothing };
                    self.begin_to_end(now, place, 1 << (member & 63), extent);
                }
                Departure::Session(id) => self.end_session(now, id),
                Departure::CutOff(id) => {
                    let Some(place) = self.applications.place_of(id) else { continue };
                    self.begin_to_end(now, place, 0, Extent { all: true, owner: true, is_cut_off: true });
                }
            }
        }
    }

    fn end_session(&mut self, now: Instant, id: SessionId) {
        let Some(place) = self.applications.end(id) else { return };
        let until = now + self.config.orphan_timeout;
        if let Some(session) = self.applications.get_mut(place) {
            session.gone = Some(until);
        }
        self.begin_to_end(now, place, 0, Extent { all: true, owner: true, is_cut_off: false });
        self.expire_sessions(now);
    }

    fn begin_to_end(&mut self, now: Instant, place: u32, members: u64, extent: Extent) {
        let Some(session) = self.applications.get_mut(place) else { return };
        let is_new = session.ending.is_none();
        session.ending.get_or_insert_with(|| Ending::new(now)).extend(members, extent);
        if is_new {
            self.applications.endings_mut().push(place);
        }
        // Most have little to clean up.
        let left = self.applications.endings().left();
        let spent = self.handle_commands_of(now, place, left);
        self.applications.endings_mut().set_left(left.saturating_sub(spent));
        self.clean_up(now);
    }

    /// Does one slice of cleaning up. Sessions take turns.
    pub(crate) fn clean_up(&mut self, now: Instant) {
        let mut left = self.applications.endings().left();
        for _ in 0..self.applications.endings().len() {
            let Some(place) = self.applications.endings_mut().pop() else { break };
            if !self.end_some(now, place, &mut left) {
                self.applications.endings_mut().push(place);
            }
            if left == 0 {
                break;
            }
        }
        self.applications.endings_mut().set_left(left);
    }

    /// Does a slice of what is left to do for a session, and subtracts its cost from `left`. Returns whether
    /// nothing is left to do.
    fn end_some(&mut self, now: Instant, place: u32, left: &mut u32) -> bool {
        let Some(session) = self.applications.get_mut(place) else { return true };
        let id = session.id;
        let Some(ending) = &mut session.ending else { return true };
        let Some(extent) = ending.begin_slice(now) else { return false };
        self.durability.mark(Work::Cleanup(id));
        let is_done = self.end_parts(now, (place, id), extent, left);
        self.durability.mark(Work::Nothing);
        is_done
    }

    fn end_parts(
        &mut self,
        now: Instant,
        (place, id): (u32, SessionId),
        extent: Extent,
        left: &mut u32,
    ) -> bool {
        if !extent.all && !self.end_holders(place, left) {
            return false;
        }
        if extent.owner && !self.end_leases(now, id, left) {
            return false;
        }
        if !self.end_sockets(now, place, extent, left) {
            return false;
        }
        if extent.owner {
            let max = (*left / REQUEST_COST) as usize;
            let dropped = self.durability.drop_some_requests(id, max, extent.all);
            *left = left.saturating_sub(dropped as u32 * REQUEST_COST);
            if dropped >= max {
                return false;
            }
        }
        if let Some(session) = self.applications.get_mut(place) {
            session.ending = None;
        }
        true
    }

    /// Removes the processes that have ended from the holders of sockets. Returns whether that was all.
    fn end_holders(&mut self, index: u32, left: &mut u32) -> bool {
        loop {
            let Some(session) = self.applications.get_mut(index) else { return true };
            let Some((members, cursor)) = session.ending.as_ref().and_then(Ending::holders) else {
                return true;
            };
            if *left < LOOK_COST {
                *left = 0;
                return false;
            }
            *left -= LOOK_COST;
            let (next, found) = session.occupied_from(cursor, VACANT_PER_LOOK);
            if let Some(view) = found.and_then(|(slot, ..)| session.slot(slot)) {
                view.remove_holders(members);
            }
            let is_done = found.is_none() && next == cursor;
            if let Some(ending) = &mut session.ending {
                ending.released_before(next, is_done);
            }
        }
    }

    /// Ends ports, listeners and acceptors. Returns whether that was all.
    fn end_leases(&mut self, now: Instant, id: SessionId, left: &mut u32) -> bool {
        loop {
            if *left < LEASE_COST {
                *left = 0;
                return false;
            }
            let Some(lease) = self.cm.release_one(id) else { return true };
            self.durability.drop_requests(id, Subject::Lease(lease));
            self.run_directives(now);
            *left -= LEASE_COST;
        }
    }

    /// Ends sockets, or reads their positions. Returns whether that was all.
    fn end_sockets(&mut self, now: Instant, index: u32, extent: Extent, left: &mut u32) -> bool {
        loop {
            if *left < CLOSE_COST {
                *left = 0;
                return false;
            }
            let Some(session) = self.applications.get_mut(index) else { return true };
            let id = session.id;
            let cursor = session.ending.as_ref().map_or(0, Ending::cursor);
            let (next, found) = session.occupied_from(cursor, VACANT_PER_LOOK);
            if let Some(ending) = &mut session.ending {
                ending.done_before(next);
            }
            *left -= LOOK_COST;
            let Some((slot, generation, occupant)) = found else {
                if next == cursor {
                    return true;
                }
                continue;
            };
            if let Occupant::Connection(connection) = occupant
                && let Some(entry) = self.connections.get(connection)
                && let Stage::Offered { listener, lease, .. } = entry.stage
            {
                // An offer has no holder yet, and only the owner could claim it.
                if !extent.owner {
                    continue;
                }
                if self.take_back(now, connection) {
                    self.cm.handle_returned(now, ConnectionId(connection), listener, id, lease);
                    self.run_directives(now);
                    *left = left.saturating_sub(CLOSE_COST);
                    continue;
                }
            }
            let view = self.applications.get(index).and_then(|session| session.slot(slot));
            if extent.is_cut_off {
                self.cut_socket(now, index, (slot, generation), occupant);
                *left = left.saturating_sub(CLOSE_COST);
            } else if extent.all || view.is_some_and(|view| view.holders() == 0) {
                self.abandon(now, index, slot, occupant);
                *left = left.saturating_sub(CLOSE_COST);
            } else {
                self.handle_command(now, index, Command::Kick { slot, generation });
            }
        }
    }

    /// Ends a socket of a session that is cut off, at both ends. Offers were taken back before.
    fn cut_socket(&mut self, now: Instant, session: u32, at: (SlotId, u32), occupant: Occupant) {
        let (slot, generation) = at;
        match occupant {
            Occupant::Connection(index) => {
                if let Some(entry) = self.connections.get_mut(index) {
                    if entry.cause == Cause::None {
                        entry.cause = Cause::Lost;
                    }
                    entry.view.set_flags(REPLICA_RESET);
                    entry.connection.abort();
                }
                self.connections.touch(index);
            }
            Occupant::Datagram(index) => {
                self.remove_datagram(now, index);
                if let Some(view) = self.applications.get(session).and_then(|session| session.slot(slot)) {
                    let flags = view.replica_flags() | REPLICA_CLOSED | REPLICA_RESET;
                    view.set_outcome(flags, Cause::Lost, None);
                }
                let ready = Ready::IN | Ready::OUT | Ready::ERR | Ready::HUP;
                self.applications.reply(&mut self.stats, session, &Event::Ready { slot, generation, ready });
            }
            Occupant::Lost | Occupant::Nobody => {}
        }
    }

    /// Drops the arenas of sessions that have ended: those that nothing uses, and those that have used them
    /// for too long.
    pub(crate) fn expire_sessions(&mut self, now: Instant) {
        let mut changed = false;
        for session_index in self.applications.places() {
            let Some(session) = self.applications.get(session_index) else { continue };
            let (Some(until), id) = (session.gone, session.id) else { continue };
            if session.ending.is_some() {
                continue;
            }
            if session.sockets() > 0 && now >= until {
                self.durability.mark(Work::Cleanup(id));
                self.give_up_sockets(now, session_index);
                self.durability.mark(Work::Nothing);
            }
            if self.applications.get(session_index).is_some_and(|session| session.sockets() == 0) {
                self.applications.remove(session_index);
                changed = true;
            }
        }
        if changed {
            self.count_sessions();
        }
    }

    /// Ends some sockets of a session that has ended and whose time is up.
    fn give_up_sockets(&mut self, now: Instant, session_index: u32) {
        let mut left = SLICE;
        let mut cursor = self.applications.get(session_index).map_or(0, |session| session.expired);
        while left >= CLOSE_COST {
            let Some(session) = self.applications.get(session_index) else { return };
            let (next, found) = session.occupied_from(cursor, VACANT_PER_LOOK);
            let is_end = next == cursor && found.is_none();
            cursor = if is_end { 0 } else { next };
            left -= if found.is_some() { CLOSE_COST } else { LOOK_COST };
            match found {
                Some((_, _, Occupant::Connection(index))) => {
                    if let Some(entry) = self.connections.get_mut(index) {
                        entry.connection.abort();
                    }
                    self.connections.touch(index);
                    give_back_slot(index, &mut self.connections, &mut self.applications, &mut self.stats);
                }
                Some((_, _, Occupant::Datagram(index))) => self.remove_datagram(now, index),
                Some((slot, _, occupant)) => self.abandon(now, session_index, slot, occupant),
                None if is_end => break,
                None => {}
            }
        }
        if let Some(session) = self.applications.get_mut(session_index) {
            session.expired = cursor;
        }
    }

    /// Returns since when cleaning up could continue; `None` if nothing is left to do.
    pub(crate) fn cleans_up_at(&self) -> Option<Instant> {
        let endings = self.applications.endings();
        let departs = endings.has_departures().then_some(Instant::ZERO);
        let ending = endings.first().and_then(|place| self.applications.get(place)?.ending.as_ref());
        let resets = self.handshakes.resets_since();
        ending.map(Ending::last_slice).into_iter().chain(resets).chain(departs).min()
    }
}
