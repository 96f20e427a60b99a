//! How does an established connection reach an application? Pika's speculative handshake (P4).
//!
//! ```text
//!   Handshake --ESTABLISHED--> [Deferred --text or time-out-->] Waiting | Offered --claim--> Open
//!                                                                ^             |
//!                                                                +--time-out---+   (to another acceptor, with its octets)
//! ```

use atoll_base::{Duration, Instant, SessionId};
use atoll_connmgr::Established;
use atoll_ipc::slot::SlotState;
use atoll_ipc::{Event, Memory, Ready};

use crate::connections::Stage;
use crate::session::Target;
use crate::transport::Transport;

impl<M: Memory> Transport<M> {
    /// The handshake of a passive open is complete.
    pub(crate) fn note_established(&mut self, now: Instant, id: u32) {
        let Some(entry) = self.connections.get_mut(id as usize) else { return };
        match entry.stage {
            Stage::Handshake => {
                self.stats.passive_opens += 1;
                let (lease, tuple) = (entry.lease, entry.tuple);
                let has_text = entry.connection.receive_nxt() > 0;
                let defer = self.listeners.get(lease).map_or(0, |listener| listener.defer_accept);
                if defer > 0 && !has_text {
                    entry.stage = Stage::Deferred;
                    let deadline = now + Duration::from_secs(u64::from(defer));
                    let at = self.deferred.partition_point(|(at, ..)| *at <= deadline);
                    self.deferred.insert(at, (deadline, id, tuple));
                    return;
                }
                entry.stage = Stage::Waiting;
                let verdict = self.listeners.handle_established(lease, id);
                self.settle(now, id, verdict);
            }
            Stage::Open => entry.ready |= Ready::OUT,
            _ => {}
        }
    }

    /// Text arrived for a deferred connection, or it has waited long enough.
    pub(crate) fn offer_deferred(&mut self, now: Instant, id: u32) {
        let Some(entry) = self.connections.get_mut(id as usize) else { return };
        if entry.stage != Stage::Deferred {
            return;
        }
        entry.stage = Stage::Waiting;
        let verdict = self.listeners.handle_established(entry.lease, id);
        self.settle(now, id, verdict);
    }

    /// Does what the connection manager decided about an established connection.
    pub(crate) fn settle(&mut self, now: Instant, id: u32, verdict: Established) {
        match verdict {
            Established::Wait => {
                if let Some(entry) = self.connections.get_mut(id as usize) {
                    entry.stage = Stage::Waiting;
                }
            }
            Established::Reset => self.abort(id),
            Established::Offer(session) => {
                if !self.offer(now, id, session) {
                    let Some(entry) = self.connections.get_mut(id as usize) else { return };
                    entry.stage = Stage::Waiting;
                    let lease = entry.lease;
                    self.listeners.stop_accepting(session, lease);
                    self.listeners.offer_failed(lease, id);
                }
            }
        }
    }

    /// CONNECTION-AVAILABLE: puts the connection into a slot of the session, with what was received already.
    fn offer(&mut self, now: Instant, id: u32, session_id: SessionId) -> bool {
        let Some(&index) = self.session_index.get(&session_id) else { return false };
        let (Some(session), Some(entry)) =
            (self.sessions.get_mut(index as usize), self.connections.get_mut(id as usize))
        else {
            return false;
        };
        let early_len = entry.early.as_ref().map_or(0, |early| early.len() as u64);
        let Some((slot_id, generation)) = session.allocate_slot() else { return false };
        let mut receive = atoll_ipc::buffer::Extents::default();
        if early_len > 0 {
            let size_max = self.config.receive_buffer as usize;
            let room = receive.reserve(&session.pool, &session.pool_memory, 0, 0, early_len, size_max);
            let (Some(early), Some(pieces)) = (&entry.early, receive.pieces(0, early_len as usize)) else {
                session.free_slot(slot_id);
                return false;
            };
            if room < early_len {
                receive.release_all(&session.pool, &session.pool_memory);
                session.free_slot(slot_id);
                return false;
            }
            pieces.write(&session.arena, session.layout.receive_area, early);
        }
        entry.receive = receive;
        entry.early = None;
        entry.stage = Stage::Offered;
        entry.session = index;
        entry.slot = slot_id;
        entry.generation = generation;
        entry.flags = 0;
        session.set_target(slot_id, generation, Target::Connection(id));
        if let Some(slot) = session.slot(slot_id) {
            slot.replica_reset(generation, SlotState::Offered, self.config.send_buffer);
            slot.set_addresses(entry.tuple.local, entry.tuple.remote);
            slot.set_receive_extents(&entry.receive);
            slot.set_receive_tail(entry.connection.receive_nxt());
        }
        let event = Event::ConnectionAvailable {
            listener: entry.lease,
            slot: slot_id,
            generation,
            local: entry.tuple.local,
            remote: entry.tuple.remote,
        };
        if !session.tell(&event, None) {
            // The offer may not be seen before the library looks at all its slots; if that is too late it times out.
            self.stats.event_overflows += 1;
        }
        self.stats.offers += 1;
        self.stats.events += 1;
        self.offers.push_back((now + self.config.claim_timeout, id, generation));
        self.touch(id);
        true
    }

    /// CLAIM-CONNECTION.
    pub(crate) fn claim(&mut self, id: u32) {
        let Some(entry) = self.connections.get_mut(id as usize) else { return };
        if entry.stage != Stage::Offered {
            return;
        }
        entry.stage = Stage::Open;
        let lease = entry.lease;
        if let Some(slot) = self.sessions.get(entry.session as usize).and_then(|session| session.slot(entry.slot)) {
            slot.set_state(SlotState::Open);
        }
        self.stats.claims += 1;
        self.listeners.offer_ended(lease);
    }

    /// Offers that nobody claimed in time go to another acceptor.
    pub(crate) fn expire_offers(&mut self, now: Instant) {
        while let Some(&(at, id, generation)) = self.offers.front() {
            let pending = self
                .connections
                .get(id as usize)
                .is_some_and(|entry| entry.stage == Stage::Offered && entry.generation == generation);
            if pending && at > now {
                return;
            }
            self.offers.pop_front();
            if pending {
                self.revoke(now, id);
            }
        }
    }

    /// The claim time-out of P4, for one connection.
    fn revoke(&mut self, now: Instant, id: u32) {
        let Some(entry) = self.connections.get_mut(id as usize) else { return };
        let Some(session) = self.sessions.get_mut(entry.session as usize) else { return };
        let (slot_id, generation, lease) = (entry.slot, entry.generation, entry.lease);
        let revoked = session.slot(slot_id).is_none_or(|slot| slot.revoke(generation));
        let verdict = Event::ClaimVerdict { slot: slot_id, generation, confirmed: !revoked };
        if !revoked {
            session.tell(&verdict, None);
            return self.claim(id);
        }
        self.stats.claim_timeouts += 1;
        let session_id = session.id;
        session.tell(&Event::AcceptorRemoved { listener: lease }, None);
        // Take the octets along; whatever the application wrote into its own lines does not count.
        let len = entry.connection.receive_max() as usize;
        let mut octets = alloc::vec![0; len];
        if let Some(pieces) = entry.receive.pieces(0, len) {
            pieces.read(&session.arena, session.layout.receive_area, &mut octets);
        }
        entry.early = (len > 0).then(|| octets.into());
        self.leave_slot(id);
        if let Some(entry) = self.connections.get_mut(id as usize) {
            entry.stage = Stage::Waiting;
        }
        let verdict = self.listeners.handle_claim_timeout(lease, session_id, id);
        self.settle(now, id, verdict);
    }

    /// Deferred connections that have waited long enough.
    pub(crate) fn expire_deferred(&mut self, now: Instant) {
        while let Some(&(at, id, tuple)) = self.deferred.front() {
            let pending = self
                .connections
                .get(id as usize)
                .is_some_and(|entry| entry.stage == Stage::Deferred && entry.tuple == tuple);
            if pending && at > now {
                return;
            }
            self.deferred.pop_front();
            if pending {
                self.offer_deferred(now, id);
            }
        }
    }

    /// Gives the slot of a connection back and tells the application that it is done with.
    pub(crate) fn leave_slot(&mut self, id: u32) {
        let Some(entry) = self.connections.get_mut(id as usize) else { return };
        if !entry.stage.has_slot() {
            return;
        }
        let Some(session) = self.sessions.get_mut(entry.session as usize) else { return };
        entry.receive.release_all(&session.pool, &session.pool_memory);
        let (slot_id, generation) = (entry.slot, entry.generation);
        let bell = session.slot(slot_id).map(|slot| {
            slot.set_state(SlotState::Free);
            slot.bell()
        });
        entry.stage = Stage::Detached;
        session.free_slot(slot_id);
        session.tell(&Event::SlotDone { slot: slot_id, generation }, bell);
        self.stats.events += 1;
    }

    /// Resets a connection.
    pub(crate) fn abort(&mut self, id: u32) {
        if let Some(entry) = self.connections.get_mut(id as usize) {
            entry.connection.abort();
        }
        self.touch(id);
    }
}
