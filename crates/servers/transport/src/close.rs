//! Ends a socket that its application closes. The consequences of a process's end are in `ending.rs`.

use atoll_base::{Instant, SlotId};
use atoll_ipc::Memory;
use atoll_ipc::command::CloseMode;
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{APP_LINGERS, APP_RESET, SlotState};

use crate::entry::{Flags, Service, Stage};
use crate::release::{give_back_slot, remove};
use crate::session::Occupant;
use crate::transport::Transport;

impl<M: Memory> Transport<M> {
    /// Closes a connection, because the application has closed it, or has ended.
    pub(crate) fn close(&mut self, now: Instant, index: u32, mode: CloseMode) {
        // What the application wrote before counts.
        self.connections.kick(now, index, &self.config, &self.applications, &mut self.stats);
        let Some(entry) = self.connections.get_mut(index) else { return };
        match entry.stage {
            Stage::Ended(service) => {
                self.tell_service(now, index, service);
                give_back_slot(index, &mut self.connections, &mut self.applications, &mut self.stats);
                remove(index, &mut self.connections, &mut self.handshakes, &mut self.durability);
                return;
            }
            Stage::Open(service) => self.tell_service(now, index, service),
            Stage::Offered { listener, lease, .. } => return self.decline(now, index, listener, lease),
            _ => return,
        }
        let is_crowded = self.connections.orphans() >= self.config.orphans_max;
        let Some(entry) = self.connections.get_mut(index) else { return };
        let session = entry.place.and_then(|place| self.applications.get(place.session));
        let view = session.zip(entry.place).and_then(|(session, place)| session.slot(place.slot));
        // RFC 1122 §4.2.2.13, as on Linux: unread text makes the close a reset.
        let read = view.as_ref().map_or(0, |slot| slot.receive_head());
        let flags = view.as_ref().map_or(0, |slot| slot.app_flags());
        if mode == CloseMode::Abort || flags & APP_RESET != 0 || read < entry.connection.receive_nxt() {
            entry.connection.abort_after_text();
        } else if is_crowded {
            self.stats.count(Stat::OrphansReset);
            entry.connection.abort();
        } else {
            entry.connection.close(now);
            entry.flags.set(Flags::LINGERS, flags & APP_LINGERS != 0);
        }
        if let Some(session) = session {
            entry.receive.release_all(session.memory());
        }
        if let Some(slot) = view {
            slot.set_state(SlotState::Closing);
        }
        self.connections.orphan(index);
        self.connections.touch(index);
    }

    /// Reports the service time (P5) of a connection that the application has closed. What the peer does
    /// afterwards does not count.
    #[inline]
    fn tell_service(&mut self, now: Instant, index: u32, service: Service) {
        if service.lease == 0 {
            return;
        }
        let place = self.connections.get(index).and_then(|entry| entry.place);
        if let Some(session) =
            place.and_then(|place| self.applications.get(place.session)).map(|session| session.id)
        {
            self.cm.handle_closed(now, session, service.lease, service.offered_at);
        }
    }

    /// Ends a socket that no process holds any more.
    pub(crate) fn abandon(&mut self, now: Instant, session: u32, slot: SlotId, occupant: Occupant) {
        match occupant {
            Occupant::Nobody => {}
            Occupant::Connection(index) => self.close(now, index, CloseMode::Graceful),
            Occupant::Datagram(index) => self.close_datagram(now, index),
            Occupant::Lost => {
                if let Some(session) = self.applications.get_mut(session) {
                    session.vacate(slot, false);
                }
            }
        }
    }
}
