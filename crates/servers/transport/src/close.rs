//! How does a socket end when its application closes it? What follows when a process ends, `ending.rs` says.

use atoll_base::{Instant, SlotId};
use atoll_ipc::Memory;
use atoll_ipc::command::CloseMode;
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{APP_RESET, SlotState};

use crate::entry::{Service, Stage};
use crate::session::Occupant;
use crate::transport::Transport;

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
    pub(crate) fn abandon(&mut self, now: Instant, session: u32, slot: SlotId, occupant: Occupant) {
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
}
