//! Gives a connection that a peer has opened to an application, by offer, claim and time-out (P4).

use alloc::boxed::Box;

use atoll_base::Instant;
use atoll_connmgr::{ConnectionId, Directive, ListenerId, Offer};
use atoll_ipc::ledger::Work;
use atoll_ipc::page::Stat;
use atoll_ipc::slot::Beginning;
use atoll_ipc::{Event, Memory};

use crate::entry::{Flags, Service, Stage, Stamp};
use crate::rings::Rings;
use crate::session::{Occupant, Place};
use crate::transport::Transport;

impl<M: Memory> Transport<M> {
    /// Puts a connection into the accept queue: the handshake is complete, and awaited text has arrived.
    pub(crate) fn establish(&mut self, now: Instant, index: u32) {
        let Some(entry) = self.connections.get_mut(index) else { return };
        let Some(listener) = entry.stage.listener() else { return };
        if let Stage::Deferred { .. } = entry.stage {
            self.handshakes.end_deferral(&entry.name, index);
        }
        entry.stage = Stage::Waiting { listener };
        entry.deadline = Instant::FAR_FUTURE;
        self.handshakes.phases().established(index, &entry.name);
        if self.cm.is_manager_apart() {
            self.handshakes.phases().asked(index, &entry.name);
        }
        let began = self.handshakes.phases().cm_begins();
        self.cm.handle_established(now, ConnectionId(index), listener);
        self.handshakes.phases().cm_ends(began);
        self.run_directives(now);
        if let Some(entry) = self.connections.get_mut(index)
            && let Stage::Waiting { .. } = entry.stage
        {
            // A session that asks for connections (P4's naive accept) may have been notified, and not come.
            entry.deadline = now + self.config.claim_timeout;
            self.connections.touch(index);
        }
    }

    /// Carries out the directives of the CM.
    pub(crate) fn run_directives(&mut self, now: Instant) {
        while let Some(directive) = self.cm.poll_directive() {
            match directive {
                Directive::Offer(offer) => {
                    // A death here is not charged to the session to which the connection is offered.
                    let before = self.durability.work();
                    self.durability.mark(Work::Offer(offer.connection.0));
                    self.offer(now, &offer);
                    self.durability.mark(before);
                }
                Directive::Reset { connection } => {
                    if let Some(entry) = self.connections.get(connection.0) {
                        self.handshakes.reset_later(connection.0, entry.name);
                    }
                }
                Directive::AcceptorRemoved { session, lease } => {
                    if let Some(session) = self.applications.find_mut(session) {
                        session.push(&mut self.stats, &Event::AcceptorRemoved { listener: lease }, None);
                    }
                }
                Directive::ConnectionsWait { session, lease, waiting, answers } => {
                    if let Some(session) = self.applications.find_mut(session) {
                        let event = Event::ConnectionsWait { listener: lease, waiting, answers };
                        session.push(&mut self.stats, &event, None);
                    }
                }
                Directive::PortTaken { port, taken } => {
                    self.page.set_port(false, port, taken);
                    if !taken {
                        self.handshakes.reset_deferred_later(port);
                    }
                }
            }
        }
        if self.handshakes.has_resets() {
            self.handshakes.reset_some(now, &mut self.connections, &self.cm);
        }
    }

    /// Offers a connection: CONNECTION-AVAILABLE (P4). The event is sent by the flush.
    fn offer(&mut self, now: Instant, offer: &Offer) {
        let (index, listener, lease) = (offer.connection.0, offer.listener, offer.lease);
        let Some((entry, locals)) = self.connections.get_mut_with_locals(index) else { return };
        let local = locals.tuple(&entry.name).local;
        let session_index = self.applications.place_of(offer.session);
        let session = session_index.and_then(|i| self.applications.get_mut(i));
        let offered = session.filter(|session| session.gone.is_none()).and_then(|session| {
            let (slot, generation) = session.allocate(Occupant::Connection(index))?;
            let place = Place { session: session_index?, slot, generation };
            let len = entry.parked_len() as u64;
            let high = entry.connection.receive_max().max(len);
            let size = (entry.receive_capacity as usize).max(entry.parked_len()).next_power_of_two();
            // What was acknowledged has to be stored, however little memory there is; it is not much.
            if len > 0 && entry.receive.reserve(&session.memory().unbounded(), 0, 0, high, size) < high {
                entry.receive.release_all(session.memory());
                session.vacate(slot, false);
                return None;
            }
            if let (Some(text), Some(pieces)) = (&entry.parked, entry.receive.pieces(0, entry.parked_len())) {
                pieces.write(&session.arena, session.layout.receive_area, text);
            }
            if session.pressure.send {
                entry.limit_send_buffer();
            }
            let view = session.slot(slot)?;
            // A program that examines all slots may see the offer only when it is written to the ledger: it
            // is published with the event.
            let send_limit = entry.send_limit;
            view.replica_begin(generation, &Beginning { send_limit, local, ..Beginning::default() });
            Some(place)
        });
        let Some(place) = offered else {
            // There is no slot, or no memory for its buffer: such an acceptor cannot take connections now.
            if let Some(session) = session_index.and_then(|i| self.applications.get_mut(i)) {
                // It may have asked for this one.
                let event = Event::ConnectionsWait { listener: lease, waiting: false, answers: true };
                session.push(&mut self.stats, &event, None);
            }
            self.cm.handle_claim_timeout(now, offer.connection, listener, offer.session, lease);
            return;
        };
        entry.parked = None;
        entry.place = Some(place);
        entry.stage = Stage::Offered { listener, lease, at: Stamp::new(now) };
        entry.view.begin_anew();
        entry.deadline = now + self.config.claim_timeout;
        entry.flags.insert(Flags::OFFER | Flags::EXTENTS | Flags::STATE);
        if entry.connection.receive_mark().is_some() {
            entry.flags.insert(Flags::MARK);
        }
        self.handshakes.phases().offered(now, index, &entry.name);
        self.connections.touch(index);
    }

    /// Handles a claim: CLAIM-CONNECTION (P4).
    pub(crate) fn claim(
        &mut self,
        now: Instant,
        session_index: u32,
        slot: atoll_base::SlotId,
        generation: u32,
    ) {
        let Some(session) = self.applications.get_mut(session_index) else { return };
        let occupant = session.occupant(slot, generation);
        if let Occupant::Connection(index) = occupant
            && let Some(entry) = self.connections.get_mut(index)
        {
            if let Stage::Offered { .. } = entry.stage {
                self.take_over(now, index);
                self.connections.kick(now, index, &self.config, &self.applications, &mut self.stats);
            } else {
                // It was honoured already when its time had come. Who claims again has lost the verdict.
                let event = Event::ClaimVerdict { slot, generation, confirmed: true };
                session.push(&mut self.stats, &event, None);
            }
        } else if occupant == Occupant::Lost {
            // This claim is honoured, too, and the application learns that the connection is over.
            let event = Event::ClaimVerdict { slot, generation, confirmed: true };
            session.push(&mut self.stats, &event, None);
        } else if session.was_offered(slot, generation) {
            // The claim is too late: the connection belongs to another one.
            let event = Event::ClaimVerdict { slot, generation, confirmed: false };
            session.push(&mut self.stats, &event, None);
        } else {
            self.stats.count(Stat::BadCommands);
        }
    }

    /// Gives the connection to the application.
    fn take_over(&mut self, now: Instant, index: u32) {
        let Some(entry) = self.connections.get_mut(index) else { return };
        let (Stage::Offered { listener, lease, at }, Some(place)) = (entry.stage, entry.place) else {
            return;
        };
        let session = self.applications.get(place.session);
        let session = session.map(|session| session.id).unwrap_or_default();
        let offered_at = at.instant(now);
        let (cm, name) = (&mut self.cm, entry.name);
        let tell_cm = || cm.handle_claimed(now, ConnectionId(index), listener, session, lease, offered_at);
        let is_measured = self.handshakes.phases().claimed(now, index, &name, &mut self.stats, tell_cm);
        self.stats.count(Stat::Claims);
        entry.stage =
            Stage::Open(if is_measured { Service { lease, offered_at } } else { Service::UNMEASURED });
        entry.deadline = Instant::FAR_FUTURE;
        entry.flags.insert(Flags::STATE);
        if entry.receive.current().is_some() {
            entry.deadline = now + self.config.sweep_interval;
        }
        self.connections.touch(index);
    }

    /// Handles the end of the time that a stage may last.
    pub(crate) fn handle_deadline(&mut self, now: Instant, index: u32) {
        let Some(entry) = self.connections.get_mut(index) else { return };
        match entry.stage {
            Stage::Deferred { .. } => self.establish(now, index),
            Stage::Offered { listener, lease, .. } => self.claim_timeout(now, index, listener, lease),
            Stage::Waiting { listener } => {
                entry.deadline = Instant::FAR_FUTURE;
                self.cm.handle_waits_long(listener);
                self.run_directives(now);
            }
            Stage::Open(_) => self.connections.sweep(index, &self.applications),
            _ => {}
        }
    }

    fn claim_timeout(&mut self, now: Instant, index: u32, listener: ListenerId, lease: u64) {
        if self.give_back_offer(now, index, listener, lease, true) {
            self.stats.count(Stat::ClaimTimeouts);
        }
    }

    /// Handles the answer of a session that does not listen any more: another one gets the connection at
    /// once, or it is reset with its listener.
    pub(crate) fn decline(&mut self, now: Instant, index: u32, listener: ListenerId, lease: u64) {
        self.give_back_offer(now, index, listener, lease, false);
    }

    /// Takes an offer back, and tells the CM. Returns `false` if the claim came first and is honoured.
    fn give_back_offer(
        &mut self,
        now: Instant,
        index: u32,
        listener: ListenerId,
        lease: u64,
        timed_out: bool,
    ) -> bool {
        let Some(place) = self.connections.get(index).and_then(|entry| entry.place) else { return false };
        let Some(session) = self.applications.get(place.session).map(|session| session.id) else {
            return false;
        };
        let is_back = self.take_back(now, index);
        if is_back {
            match timed_out {
                true => self.cm.handle_claim_timeout(now, ConnectionId(index), listener, session, lease),
                false => self.cm.handle_returned(now, ConnectionId(index), listener, session, lease),
            }
            self.run_directives(now);
        }
        is_back
    }

    /// Takes an offer back, with the text that was received for it. Returns `false` if the claim came first
    /// and is honoured.
    pub(crate) fn take_back(&mut self, now: Instant, index: u32) -> bool {
        let Some(entry) = self.connections.get_mut(index) else { return false };
        let (Stage::Offered { listener, .. }, Some(place)) = (entry.stage, entry.place) else { return false };
        let Some(session) = self.applications.get_mut(place.session) else {
            return false;
        };
        let revoked = session.slot(place.slot).is_none_or(|slot| slot.revoke(place.generation));
        if !revoked {
            let event =
                Event::ClaimVerdict { slot: place.slot, generation: place.generation, confirmed: true };
            session.push(&mut self.stats, &event, None);
            self.take_over(now, index);
            return false;
        }
        let len = entry.connection.receive_max().max(entry.connection.receive_nxt());
        let mut text = alloc::vec![0; usize::try_from(len).unwrap_or(0)];
        if let Some(pieces) = entry.receive.pieces(0, text.len()) {
            pieces.read(&session.arena, session.layout.receive_area, &mut text);
        }
        let rings = core::mem::replace(&mut entry.receive, Rings::NONE);
        entry.parked = (!text.is_empty()).then(|| Box::new(text));
        session.vacate(place.slot, true);
        entry.place = None;
        entry.deadline = Instant::FAR_FUTURE;
        entry.flags.remove(Flags::OFFER);
        entry.flags.insert(Flags::RECORD);
        entry.stage = Stage::Waiting { listener };
        // The text is in the record from the next commit on; until then it must stay where it is.
        self.durability.release_later((place.session, session.id), place.slot, rings);
        self.connections.touch(index);
        true
    }
}
