//! How do sockets end: by the application, by its death, and by the death of one of its processes?

use atoll_base::{Instant, SessionId, SlotId};
use atoll_connmgr::ConnectionId;
use atoll_ipc::arena::COMMANDS;
use atoll_ipc::command::CloseMode;
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{APP_RESET, SlotState};
use atoll_ipc::{Command, Memory};

use crate::entry::{Service, Stage};
use crate::session::Occupant;
use crate::transport::Transport;

/// The number, in its session, of the process that has attached: it takes the events.
const OWNER: u8 = 0;

impl<M: Memory> Transport<M> {
    /// The application has closed the connection, or has ended.
    pub(crate) fn close(&mut self, now: Instant, index: u32, mode: CloseMode) {
        // What it wrote before counts.
        self.handle_kick(now, index);
        let Some(entry) = self.entries.get_mut(index) else { return };
        match entry.stage {
            Stage::Ended(service) => {
                self.tell_service(now, index, service);
                self.give_back_slot(index);
                self.remove(index);
                return;
            }
            Stage::Open(service) => self.tell_service(now, index, service),
            _ => return,
        }
        let Some(entry) = self.entries.get_mut(index) else { return };
        let session = entry.place.and_then(|place| self.sessions.get(place.session as usize)?.as_ref());
        let view = session.zip(entry.place).and_then(|(session, place)| session.slot(place.slot));
        // RFC 1122 §4.2.2.13, as on Linux: text that nobody has read makes the close a reset.
        let read = view.as_ref().map_or(0, |slot| slot.receive_head());
        let is_reset = view.as_ref().is_some_and(|slot| slot.app_flags() & APP_RESET != 0);
        let is_crowded = self.orphans >= self.config.orphans_max;
        if mode == CloseMode::Abort || is_reset || read < entry.connection.receive_nxt() {
            entry.connection.abort();
        } else if is_crowded {
            self.stats.count(Stat::OrphansReset);
            entry.connection.abort();
        } else {
            entry.connection.close(now);
        }
        if let Some(session) = session {
            entry.receive.release_all(&session.pool, &session.links);
        }
        if let Some(slot) = view {
            slot.set_state(SlotState::Closing);
        }
        entry.stage = Stage::Closing;
        self.orphans += 1;
        entry.deadline = Instant::FAR_FUTURE;
        self.touch(index);
    }

    /// The application has done with the connection: that long it took (P5). What the peer makes of it afterwards is not its doing.
    #[inline]
    fn tell_service(&mut self, now: Instant, index: u32, service: Service) {
        if service.lease == 0 {
            return;
        }
        let place = self.entries.get(index).and_then(|entry| entry.place);
        if let Some(session) = place.and_then(|place| self.session(place.session)).map(|session| session.id) {
            self.cm.handle_closed(now, session, service.lease, service.offered_at);
        }
    }

    /// One process of the session's family is gone: sockets that it alone held are closed, and what it has stored in others and not told
    /// of counts. The session's owner has the listeners, too: those who inherited them have registered them for themselves.
    pub fn member_gone(&mut self, now: Instant, id: SessionId, member: u8) {
        self.adopt_rest(now);
        let Some(&session_index) = self.session_index.get(&id) else { return };
        // What it asked for before it died still counts.
        self.handle_commands_of(now, session_index, COMMANDS as u32);
        if member == OWNER {
            self.cm.handle_session_gone(id);
            self.drop_lease_requests(id);
            self.run_directives(now);
        }
        let Some(session) = self.session(session_index) else { return };
        for (slot, generation, occupant) in session.occupants() {
            if let Occupant::Connection(index) = occupant
                && let Some(entry) = self.entries.get(index)
                && let Stage::Offered { listener, lease, .. } = entry.stage
            {
                // An offer has no holder yet, and only the owner could claim it.
                if member != OWNER {
                    continue;
                }
                if self.take_back(now, index) {
                    self.cm.handle_returned(now, ConnectionId(index), listener, id, lease);
                    self.run_directives(now);
                    continue;
                }
            }
            let view = self.session(session_index).and_then(|session| session.slot(slot));
            if view.is_some_and(|view| view.remove_holder(member) == 0) {
                self.abandon(now, session_index, slot, occupant);
            } else {
                self.handle_command(now, session_index, Command::Kick { slot, generation });
            }
        }
    }

    /// The last process of the session is gone: its sockets end as the kernel ends those of a process, and its arena goes when
    /// they are done, or when their time is up.
    pub fn close_session(&mut self, now: Instant, id: SessionId) {
        self.adopt_rest(now);
        let Some(&session_index) = self.session_index.get(&id) else {
            if self.sessions.iter().flatten().all(|session| session.id != id) {
                self.ended.push(id);
            }
            return;
        };
        // What it asked for before it died still counts.
        self.handle_commands_of(now, session_index, COMMANDS as u32);
        self.session_index.remove(&id);
        self.cm.handle_session_gone(id);
        self.drop_requests(id, None);
        self.run_directives(now);
        let until = now + self.config.orphan_timeout;
        let Some(session) = self.session_mut(session_index) else { return };
        let occupants = session.occupants();
        session.gone = Some(until);
        for (slot, _, occupant) in occupants {
            if let Occupant::Connection(index) = occupant
                && let Some(entry) = self.entries.get(index)
                && let Stage::Offered { listener, lease, .. } = entry.stage
                && self.take_back(now, index)
            {
                self.cm.handle_returned(now, ConnectionId(index), listener, id, lease);
                self.run_directives(now);
                continue;
            }
            self.abandon(now, session_index, slot, occupant);
        }
        self.expire_sessions(now);
    }

    /// Resets every connection: the stack is going down. Flush afterwards.
    pub fn abort_all(&mut self, now: Instant) {
        self.adopt_rest(now);
        let all: alloc::vec::Vec<u32> = self.entries.iter().map(|(index, _)| index).collect();
        for index in all {
            if let Some(entry) = self.entries.get_mut(index) {
                entry.connection.abort();
            }
            self.touch(index);
        }
    }

    /// A socket that nobody holds any more.
    fn abandon(&mut self, now: Instant, session: u32, slot: SlotId, occupant: Occupant) {
        match occupant {
            Occupant::Nobody => {}
            Occupant::Connection(index) => self.close(now, index, CloseMode::Graceful),
            Occupant::Datagram(index) => self.close_datagram(now, index),
            Occupant::Lost => {
                if let Some(session) = self.session_mut(session) {
                    session.vacate(slot, false);
                }
            }
        }
    }

    /// Drops the arenas of sessions that have ended: those that nothing uses, and those that have used them for too long.
    pub(crate) fn expire_sessions(&mut self, now: Instant) {
        let mut changed = false;
        for session_index in 0..self.sessions.len() as u32 {
            let Some(session) = self.session(session_index) else { continue };
            let (Some(until), id) = (session.gone, session.id) else { continue };
            if session.sockets > 0 && now >= until {
                for (slot, _, occupant) in session.occupants() {
                    match occupant {
                        Occupant::Connection(index) => {
                            if let Some(entry) = self.entries.get_mut(index) {
                                entry.connection.abort();
                            }
                            self.touch(index);
                            self.give_back_slot(index);
                        }
                        Occupant::Datagram(index) => self.remove_datagram(now, index),
                        Occupant::Lost => self.abandon(now, session_index, slot, occupant),
                        Occupant::Nobody => {}
                    }
                }
            }
            if self.session(session_index).is_some_and(|session| session.sockets == 0) {
                self.sessions[session_index as usize] = None;
                self.ended.push(id);
                changed = true;
            }
        }
        if changed {
            self.count_sessions();
        }
    }
}
