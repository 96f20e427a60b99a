//! The applications of this replica: their sessions, by place and by number, and what each of them may still
//! send.
//!
//! A session has a place in a table as long as anything refers to it. Code that keeps a place and not a
//! number has to check later whether the session there is the same.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use atoll_base::{Endpoint, SessionId, SlotId};
use atoll_connmgr::ConnMgr;
use atoll_ipc::command::Protocol;
use atoll_ipc::control::User;
use atoll_ipc::lease::Grant;
use atoll_ipc::slot::Slot;
use atoll_ipc::{Event, Memory};

use crate::departures::Endings;
use crate::session::{LATER_MAX, Occupant, Place, Session};
use crate::stats::Stats;
use crate::users::Users;

/// The sessions of a replica. They do not survive a crash: the supervisor opens them again.
#[derive(Debug)]
pub(crate) struct Applications<M: Memory> {
    /// The sessions by place. A place is used again when nothing refers to it.
    sessions: Vec<Option<Session<M>>>,
    /// The places that are free.
    free: Vec<u32>,
    /// The places of sessions that have not ended.
    places: BTreeMap<SessionId, u32>,
    /// The totals of all sessions of the same user.
    users: Users,
    /// The sessions of which sockets wait for the share of a later flush.
    put_off: BTreeSet<u32>,
    /// The number of the flush, by which sessions know how much of their share is left.
    flush: u32,
    /// The session whose commands are taken first.
    turn: u32,
    /// The sessions that are over: the supervisor may release their memory.
    ended: Vec<SessionId>,
    /// The sessions that were cut off after deaths of servers, and are still to be reported to the
    /// supervisor.
    cut_off: Vec<SessionId>,
    /// The sessions of which a process has ended.
    endings: Endings,
}

impl<M: Memory> Applications<M> {
    /// Creates a table without sessions.
    pub(crate) fn new() -> Applications<M> {
        Applications {
            sessions: Vec::new(),
            free: Vec::new(),
            places: BTreeMap::new(),
            users: Users::default(),
            put_off: BTreeSet::new(),
            flush: 0,
            turn: 0,
            ended: Vec::new(),
            cut_off: Vec::new(),
            endings: Endings::new(),
        }
    }

    // ---- sessions ----

    /// Returns the session at a place.
    #[inline]
    pub(crate) fn get(&self, place: u32) -> Option<&Session<M>> {
        self.sessions.get(place as usize)?.as_ref()
    }

    /// Returns the session at a place, mutably.
    #[inline]
    pub(crate) fn get_mut(&mut self, place: u32) -> Option<&mut Session<M>> {
        self.sessions.get_mut(place as usize)?.as_mut()
    }

    /// Returns the place of a session that has not ended.
    #[inline]
    pub(crate) fn place_of(&self, id: SessionId) -> Option<u32> {
        self.places.get(&id).copied()
    }

    /// Returns a session that has not ended.
    pub(crate) fn find(&self, id: SessionId) -> Option<&Session<M>> {
        self.get(self.place_of(id)?)
    }

    /// Returns a session that has not ended, mutably.
    pub(crate) fn find_mut(&mut self, id: SessionId) -> Option<&mut Session<M>> {
        self.get_mut(self.place_of(id)?)
    }

    /// Returns all sessions.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Session<M>> {
        self.sessions.iter().flatten()
    }

    /// Returns all sessions, mutably.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Session<M>> {
        self.sessions.iter_mut().flatten()
    }

    /// Returns the range of all places; some may be free.
    pub(crate) fn places(&self) -> core::ops::Range<u32> {
        // Cannot truncate: the supervisor limits the number of sessions.
        0..self.sessions.len() as u32
    }

    /// Returns how many sessions there are.
    pub(crate) fn count(&self) -> usize {
        self.sessions.len() - self.free.len()
    }

    /// Gives a session a place, and returns it.
    pub(crate) fn insert(&mut self, session: Session<M>) -> u32 {
        let id = session.id;
        let place = self.free.pop().unwrap_or_else(|| {
            self.sessions.push(None);
            self.places().end - 1
        });
        if let Some(free) = self.sessions.get_mut(place as usize) {
            *free = Some(session);
        }
        self.places.insert(id, place);
        place
    }

    /// Ends a session, whose last process is gone: it is not found by its number any more. Returns its place,
    /// or `None` if it has ended before. Then its end is reported to the supervisor, unless something of it
    /// is left.
    pub(crate) fn end(&mut self, id: SessionId) -> Option<u32> {
        let place = self.places.remove(&id);
        if place.is_none() && self.iter().all(|session| session.id != id) {
            self.ended.push(id);
        }
        place
    }

    /// Removes a session that has ended, when nothing refers to it any more. Its place is free, and the
    /// supervisor may release its memory.
    pub(crate) fn remove(&mut self, place: u32) {
        let Some(session) = self.sessions.get_mut(place as usize).and_then(Option::take) else { return };
        self.free.push(place);
        self.ended.push(session.id);
        drop(session);
        self.users.forget_absent();
    }

    /// Returns the sessions that are over since the last call.
    pub(crate) fn take_ended(&mut self) -> Vec<SessionId> {
        core::mem::take(&mut self.ended)
    }

    /// Cuts off a session, so that its commands are not taken any more. Returns whether there is such a
    /// session.
    pub(crate) fn cut_off(&mut self, id: SessionId) -> bool {
        self.find_mut(id).map(Session::cut_off).is_some()
    }

    /// Notes a session that is cut off, for the report to the supervisor.
    pub(crate) fn tell_cut_off(&mut self, id: SessionId) {
        self.cut_off.push(id);
    }

    /// Returns the sessions that are cut off and were not yet reported to the supervisor.
    pub(crate) fn take_cut_off(&mut self) -> Vec<SessionId> {
        core::mem::take(&mut self.cut_off)
    }

    /// Returns whether the session is cut off here.
    pub(crate) fn is_cut_off(&self, id: SessionId) -> bool {
        self.find(id).is_some_and(Session::is_cut_off)
    }

    /// Returns the totals of all users.
    pub(crate) const fn users_mut(&mut self) -> &mut Users {
        &mut self.users
    }

    /// Returns the user of a session, if the total of that user's sessions is bounded.
    pub(crate) fn limited_user(&self, id: SessionId) -> Option<u32> {
        self.find(id)?.rights.counts_for()
    }

    /// Returns the sessions of which a process has ended.
    pub(crate) const fn endings(&self) -> &Endings {
        &self.endings
    }

    /// Returns the sessions of which a process has ended, mutably.
    pub(crate) const fn endings_mut(&mut self) -> &mut Endings {
        &mut self.endings
    }

    // ---- rights ----

    /// Returns the user as which a session asks for a socket.
    pub(crate) fn user_of(
        &self,
        place: u32,
        lease: u64,
        protocol: Protocol,
        local: Endpoint,
    ) -> Option<User> {
        Some(self.get(place)?.rights.user_of(lease, protocol, local))
    }

    /// Returns the grant that a session has shown, if it is about this lease.
    pub(crate) fn shown(&self, place: u32, lease: u64) -> Option<Grant> {
        self.get(place)?.rights.shown(lease)
    }

    /// Returns the grant by which a session may give a socket the address `local`; `None` if there is none.
    pub(crate) fn grant(
        &self,
        place: u32,
        cm: &ConnMgr,
        lease: u64,
        protocol: Protocol,
        local: Endpoint,
    ) -> Option<Grant> {
        let session = self.get(place)?;
        session.rights.grant((cm, session.id), lease, protocol, local)
    }

    // ---- sockets ----

    /// Returns the occupant of a slot.
    pub(crate) fn occupant(&self, place: u32, slot: SlotId, generation: u32) -> Occupant {
        self.get(place).map_or(Occupant::Nobody, |session| session.occupant(slot, generation))
    }

    /// Returns the slot of a socket.
    #[inline]
    pub(crate) fn slot(&self, place: Place) -> Option<Slot<'_, M>> {
        self.get(place.session)?.slot(place.slot)
    }

    /// Sends an answer to a session; any thread of the application may wait for it, on any doorbell.
    pub(crate) fn reply(&mut self, stats: &mut Stats, place: u32, event: &Event) {
        if let Some(session) = self.get_mut(place) {
            session.push(stats, event, None);
        }
    }

    // ---- shares of a flush ----

    /// Begins a flush, of which every session has a share.
    pub(crate) const fn begin_flush(&mut self) {
        self.flush = self.flush.wrapping_add(1);
    }

    /// Returns the number of the flush.
    #[inline]
    pub(crate) const fn flush(&self) -> u32 {
        self.flush
    }

    /// Puts a socket off to a later flush, because its session has had its share of this one. Returns `false`
    /// if there is no such session.
    pub(crate) fn put_off(&mut self, place: u32, socket: Occupant) -> bool {
        let Some(session) = self.get_mut(place) else { return false };
        session.later.push_back(socket);
        self.put_off.insert(place);
        true
    }

    /// Returns whether any socket waits for a later flush.
    pub(crate) fn has_put_off(&self) -> bool {
        !self.put_off.is_empty()
    }

    /// Passes the sockets that were put off to `go_on`, of each session as many as may have a share.
    pub(crate) fn take_up(&mut self, mut go_on: impl FnMut(Occupant)) {
        let mut next = self.put_off.first().copied();
        while let Some(place) = next {
            next = self.put_off.range(place + 1..).next().copied();
            if let Some(session) = self.get_mut(place) {
                let count = session.later.len().min(LATER_MAX);
                session.later.drain(..count).for_each(&mut go_on);
            }
            if self.get(place).is_none_or(|session| session.later.is_empty()) {
                self.put_off.remove(&place);
            }
        }
    }

    // ---- rounds ----

    /// Returns the places in the order in which their commands are taken in this round, which changes with
    /// each round.
    pub(crate) fn turns(&mut self) -> impl Iterator<Item = u32> + use<M> {
        let (count, first) = (self.places().end, self.turn);
        self.turn = first.wrapping_add(1);
        (0..count).map(move |step| first.wrapping_add(step) % count)
    }

    /// Makes the session that is `steps` after the first of this round the first one of the next, because
    /// there was no time for its commands.
    pub(crate) const fn resume_turns_at(&mut self, steps: u32) {
        self.turn = self.turn.wrapping_sub(1).wrapping_add(steps);
    }

    /// Publishes that the commands that were taken need not be carried out again.
    pub(crate) fn publish_commands(&mut self) {
        self.iter_mut().for_each(Session::publish_commands);
    }

    /// Returns how many users have sessions.
    #[cfg(test)]
    pub(crate) fn users(&self) -> usize {
        self.users.len()
    }
}

#[cfg(test)]
mod tests;
