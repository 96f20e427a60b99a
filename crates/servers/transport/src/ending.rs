//! What follows when a process ends, and how is it kept from holding up others? Its sockets may be thousands, so they are cleaned up in
//! slices: some in each round, until nothing is left.
//!
//! ```text
//!   commands   that it sent before it ended still count
//!   members    whoever has ended holds no socket any more
//!   leases     its ports and listeners, one after the other; connections that nobody has accepted end with a listener
//!   sockets    those that nobody holds are closed; of others it is looked at what was stored and not told
//!   requests   whatever else was asked for
//! ```
//! A server that dies in between is succeeded by one that begins from the start: the supervisor says who is gone until it hears that the
//! session is over, and doing part of it again is harmless.

use atoll_base::{Instant, SessionId};
use atoll_connmgr::ConnectionId;
use atoll_ipc::arena::COMMANDS;
use atoll_ipc::ledger::Work;
use atoll_ipc::{Command, Memory};

use crate::entry::Stage;
use crate::records::Subject;
use crate::session::Occupant;
use crate::transport::Transport;

/// The number, in its session, of the process that has attached: it takes the events.
const OWNER: u8 = 0;

/// What is left to do for a session of which processes have ended.
#[derive(Debug)]
pub(crate) struct Ending {
    /// Commands that may have been in the ring at that time.
    pub(crate) commands: usize,
    /// Processes that have ended, a bit each, and are still among the holders of sockets: of those from `held` on.
    members: u64,
    held: u32,
    /// The owner has ended: its leases end with it, and its offers.
    owner: bool,
    /// There is none left.
    all: bool,
    /// Servers have died of it: what it has is not closed, but reset at both ends.
    is_cut_off: bool,
    /// Sockets before this one, in the order of [`crate::session::Session::occupied_from`], are done.
    cursor: u32,
    /// When the last slice was.
    at: Instant,
}

/// Somebody has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Departure {
    /// One process of a session.
    Member(SessionId, u8),
    /// The last one.
    Session(SessionId),
    /// None, but nobody listens to it any more.
    CutOff(SessionId),
}

/// What cleaning up may cost in one round, in the units of `Transport::handle_commands`.
pub(crate) const SLICE: u32 = 2048;
/// What closing a socket costs with what leaves because of it, what a lease does, what looking at a socket does, and what forgetting a
/// request does.
const CLOSE_COST: u32 = 16;
const LEASE_COST: u32 = 8;
const LOOK_COST: u32 = 2;
const REQUEST_COST: u32 = 2;
/// Slots without a socket that are passed over at the price of one look.
const VACANT_PER_LOOK: u32 = 64;

impl<M: Memory> Transport<M> {
    /// One process of the session's family is gone: sockets that it alone held are closed, and what it has stored in others and not told
    /// of counts. The session's owner has the listeners, too: those who inherited them have registered them for themselves.
    pub fn member_gone(&mut self, now: Instant, id: SessionId, member: u8) {
        self.depart(now, Departure::Member(id, member));
    }

    /// The last process of the session is gone: its sockets end as the kernel ends those of a process, and its arena goes when
    /// they are done, or when their time is up.
    pub fn close_session(&mut self, now: Instant, id: SessionId) {
        self.depart(now, Departure::Session(id));
    }

    /// Somebody has ended. What a predecessor had of him has to go on first, which takes some rounds.
    pub(crate) fn depart(&mut self, now: Instant, departure: Departure) {
        self.departures.push_back(departure);
        self.let_depart(now);
    }

    /// Cleaning up after those who have ended begins.
    pub(crate) fn let_depart(&mut self, now: Instant) {
        while self.postponed.is_none()
            && let Some(departure) = self.departures.pop_front()
        {
            match departure {
                Departure::Member(id, member) => {
                    let Some(&index) = self.session_index.get(&id) else { continue };
                    self.begin_to_end(now, index, |ending| {
                        ending.members |= 1 << (member & 63);
                        ending.owner |= member == OWNER;
                    });
                }
                Departure::Session(id) => self.end_session(now, id),
                Departure::CutOff(id) => {
                    let Some(&index) = self.session_index.get(&id) else { continue };
                    self.begin_to_end(now, index, |ending| {
                        (ending.all, ending.owner, ending.is_cut_off) = (true, true, true);
                    });
                }
            }
        }
    }

    fn end_session(&mut self, now: Instant, id: SessionId) {
        let Some(&index) = self.session_index.get(&id) else {
            if self.sessions.iter().flatten().all(|session| session.id != id) {
                self.ended.push(id);
            }
            return;
        };
        self.session_index.remove(&id);
        let until = now + self.config.orphan_timeout;
        if let Some(session) = self.session_mut(index) {
            session.gone = Some(until);
        }
        self.begin_to_end(now, index, |ending| (ending.all, ending.owner) = (true, true));
        self.expire_sessions(now);
    }

    fn begin_to_end(&mut self, now: Instant, index: u32, note: impl FnOnce(&mut Ending)) {
        let Some(session) = self.session_mut(index) else { return };
        if session.ending.is_none() {
            let fresh = Ending {
                commands: 0,
                members: 0,
                held: 0,
                owner: false,
                all: false,
                is_cut_off: false,
                cursor: 0,
                at: now,
            };
            session.ending = Some(fresh);
            self.endings.push_back(index);
        }
        if let Some(ending) = self.session_mut(index).and_then(|session| session.ending.as_mut()) {
            (ending.commands, ending.cursor, ending.held) = (COMMANDS, 0, 0);
            note(ending);
        }
        // Most have little to clean up.
        self.slice_left = self.slice_left.saturating_sub(self.handle_commands_of(now, index, self.slice_left));
        self.clean_up(now);
    }

    /// One slice of cleaning up after processes that have ended. Sessions take turns.
    pub(crate) fn clean_up(&mut self, now: Instant) {
        let mut left = self.slice_left;
        for _ in 0..self.endings.len() {
            let Some(index) = self.endings.pop_front() else { break };
            let is_done = self.end_some(now, index, &mut left);
            if !is_done {
                self.endings.push_back(index);
            }
            if left == 0 {
                break;
            }
        }
        self.slice_left = left;
    }

    /// Does some of what is left to do for a session, and takes what that costs from `left`. Returns whether that was all.
    fn end_some(&mut self, now: Instant, index: u32, left: &mut u32) -> bool {
        let Some(session) = self.session_mut(index) else { return true };
        let id = session.id;
        let Some(ending) = &mut session.ending else { return true };
        ending.at = now;
        if ending.commands > 0 {
            // They are taken with those of others.
            return false;
        }
        let (owner, all, is_cut_off) = (ending.owner, ending.all, ending.is_cut_off);
        self.mark(Work::Cleanup(id));
        let is_done = self.end_parts(now, index, id, (owner, all, is_cut_off), left);
        self.mark(Work::Nothing);
        is_done
    }

    fn end_parts(
        &mut self,
        now: Instant,
        index: u32,
        id: SessionId,
        (owner, all, is_cut_off): (bool, bool, bool),
        left: &mut u32,
    ) -> bool {
        if !all && !self.end_holders(index, left) {
            return false;
        }
        if owner && !self.end_leases(now, id, left) {
            return false;
        }
        if !self.end_sockets(now, index, (owner, all, is_cut_off), left) {
            return false;
        }
        if owner {
            let max = (*left / REQUEST_COST) as usize;
            let dropped = self.drop_some_requests(id, max, all);
            *left = left.saturating_sub(dropped as u32 * REQUEST_COST);
            if dropped >= max {
                return false;
            }
        }
        if let Some(session) = self.session_mut(index) {
            session.ending = None;
        }
        true
    }

    /// Whoever has ended holds no socket any more.
    fn end_holders(&mut self, index: u32, left: &mut u32) -> bool {
        loop {
            let Some(session) = self.session_mut(index) else { return true };
            let Some(Ending { members, held, .. }) = session.ending.as_ref() else { return true };
            let (members, cursor) = (*members, *held);
            if members == 0 {
                return true;
            }
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
                (ending.held, ending.members) = (next, if is_done { 0 } else { members });
            }
        }
    }

    /// Ports, listeners and acceptors end.
    fn end_leases(&mut self, now: Instant, id: SessionId, left: &mut u32) -> bool {
        loop {
            if *left < LEASE_COST {
                *left = 0;
                return false;
            }
            let Some(lease) = self.cm.release_one(id) else { return true };
            self.drop_requests(id, Subject::Lease(lease));
            self.run_directives(now);
            *left -= LEASE_COST;
        }
    }

    /// Sockets end, or are looked at.
    fn end_sockets(
        &mut self,
        now: Instant,
        index: u32,
        (owner, all, is_cut_off): (bool, bool, bool),
        left: &mut u32,
    ) -> bool {
        loop {
            if *left < CLOSE_COST {
                *left = 0;
                return false;
            }
            let Some(session) = self.session_mut(index) else { return true };
            let id = session.id;
            let cursor = session.ending.as_ref().map_or(0, |ending| ending.cursor);
            let (next, found) = session.occupied_from(cursor, VACANT_PER_LOOK);
            if let Some(ending) = &mut session.ending {
                ending.cursor = next;
            }
            *left -= LOOK_COST;
            let Some((slot, generation, occupant)) = found else {
                if next == cursor {
                    return true;
                }
                continue;
            };
            if let Occupant::Connection(connection) = occupant
                && let Some(entry) = self.entries.get(connection)
                && let Stage::Offered { listener, lease, .. } = entry.stage
            {
                // An offer has no holder yet, and only the owner could claim it.
                if !owner {
                    continue;
                }
                if self.take_back(now, connection) {
                    self.cm.handle_returned(now, ConnectionId(connection), listener, id, lease);
                    self.run_directives(now);
                    *left = left.saturating_sub(CLOSE_COST);
                    continue;
                }
            }
            let view = self.session(index).and_then(|session| session.slot(slot));
            if is_cut_off {
                self.cut_socket(now, index, (slot, generation), occupant);
                *left = left.saturating_sub(CLOSE_COST);
            } else if all || view.is_some_and(|view| view.holders() == 0) {
                self.abandon(now, index, slot, occupant);
                *left = left.saturating_sub(CLOSE_COST);
            } else {
                self.handle_command(now, index, Command::Kick { slot, generation });
            }
        }
    }

    /// Drops the arenas of sessions that have ended: those that nothing uses, and those that have used them for too long.
    pub(crate) fn expire_sessions(&mut self, now: Instant) {
        let mut changed = false;
        for session_index in 0..self.sessions.len() as u32 {
            let Some(session) = self.session(session_index) else { continue };
            let (Some(until), id) = (session.gone, session.id) else { continue };
            if session.ending.is_some() {
                continue;
            }
            if session.sockets > 0 && now >= until {
                self.mark(Work::Cleanup(id));
                self.give_up_sockets(now, session_index);
                self.mark(Work::Nothing);
            }
            if self.session(session_index).is_some_and(|session| session.sockets == 0) {
                self.sessions[session_index as usize] = None;
                self.free_sessions.push(session_index);
                self.ended.push(id);
                changed = true;
            }
        }
        if changed {
            self.users.forget_absent();
            self.count_sessions();
        }
    }

    /// The time of a session that has ended is up: some of its sockets end at once.
    fn give_up_sockets(&mut self, now: Instant, session_index: u32) {
        let mut left = SLICE;
        let mut cursor = self.session(session_index).map_or(0, |session| session.expired);
        while left >= CLOSE_COST {
            let Some(session) = self.session(session_index) else { return };
            let (next, found) = session.occupied_from(cursor, VACANT_PER_LOOK);
            let is_end = next == cursor && found.is_none();
            cursor = if is_end { 0 } else { next };
            left -= if found.is_some() { CLOSE_COST } else { LOOK_COST };
            match found {
                Some((_, _, Occupant::Connection(index))) => {
                    if let Some(entry) = self.entries.get_mut(index) {
                        entry.connection.abort();
                    }
                    self.touch(index);
                    self.give_back_slot(index);
                }
                Some((_, _, Occupant::Datagram(index))) => self.remove_datagram(now, index),
                Some((slot, _, occupant)) => self.abandon(now, session_index, slot, occupant),
                None if is_end => break,
                None => {}
            }
        }
        if let Some(session) = self.session_mut(session_index) {
            session.expired = cursor;
        }
    }

    /// Whether cleaning up goes on in the next round, and since when it could.
    pub(crate) fn cleans_up_at(&self) -> Option<Instant> {
        let departs = (!self.departures.is_empty()).then_some(Instant::ZERO);
        let ending = self.endings.front().and_then(|index| self.session(*index)?.ending.as_ref());
        ending.map(|ending| ending.at).into_iter().chain(self.resets.since()).chain(departs).min()
    }
}
