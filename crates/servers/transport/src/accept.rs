//! How does a connection opened by a peer find its application? P4: offer, claim, time-out.

use alloc::boxed::Box;

use atoll_base::{Addr, FourTuple, Instant, SeqNum};
use atoll_connmgr::{ConnectionId, Directive, ListenerId, Offer};
use atoll_ipc::ledger::Work;
use atoll_ipc::page::Stat;
use atoll_ipc::slot::SlotState;
use atoll_ipc::{Event, Memory};
use atoll_tcp::{Connection, Path, Settings};
use atoll_wire::tcp::Segment;

use crate::entry::{Entry, Flags, Service, Stage, Stamp};
use crate::flows::Name;
use crate::options::Inherited;
use crate::rings::Rings;
use crate::session::{Occupant, Place};
use crate::transport::Transport;

/// By how much the header of IPv6 is longer than that of IPv4.
pub(crate) const V6_EXTRA: u16 = 20;

impl<M: Memory> Transport<M> {
    // structure: accept: a SYN has as many facts
    /// A SYN that the CM wants answered.
    #[allow(clippy::too_many_arguments)] // What is known of one SYN.
    pub(crate) fn accept(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        segment: &Segment,
        text: &[u8],
        internal: bool,
        iss_above: Option<SeqNum>,
        listener: ListenerId,
        defer: u16,
    ) {
        let inherited = self.inherited(listener);
        if iss_above.is_some() {
            self.replace_time_wait(&tuple);
        }
        let mut iss = atoll_tcp::initial_sequence(&self.secrets.sequence, &tuple, now);
        if let Some(above) = iss_above
            && !iss.after(above)
        {
            // RFC 6191 §2: above everything that the old connection has used.
            iss = above.plus(1 + self.rng.below(1 << 16));
        }
        let (connection, early) = match self.accept_fast(now, tuple, segment, iss, internal, listener) {
            Some(accepted) => accepted,
            None => (self.open_passively(now, tuple, segment, iss, internal, &inherited.settings), None),
        };
        let index = self.enter(connection, tuple, &inherited, internal, Stage::Embryonic { listener, defer });
        if let Some(entry) = self.entries.get(index) {
            self.phases.opened(now, index, entry.name);
        }
        if let Some(len) = early {
            self.establish_early(now, index, len, text);
        }
        self.touch(index);
    }

    /// Whether there is room for one more connection. If not, the CM hears that what it accepted is gone.
    pub(crate) fn has_room_for(&mut self, listener: ListenerId) -> bool {
        let has_room = self.connections() < self.config.connections_max && self.may_accept(listener);
        if !has_room {
            self.stats.count(Stat::SynDrops);
            // No connection was made, so no number was given out either.
            self.cm.handle_gone(ConnectionId(u32::MAX), listener, atoll_connmgr::Stage::Embryonic);
        }
        has_room
    }

    /// The connection that a SYN opens, in no table yet.
    pub(crate) fn open_passively(
        &self,
        now: Instant,
        tuple: FourTuple,
        syn: &Segment,
        iss: SeqNum,
        internal: bool,
        settings: &Settings,
    ) -> Connection {
        let ts_offset = atoll_tcp::timestamp_offset(&self.secrets.sequence, &tuple);
        let remote = tuple.remote.addr;
        let mut connection = Connection::accept(now, syn, iss, ts_offset, self.path(remote, internal), settings);
        self.limit_path(now, &mut connection, remote, internal);
        connection
    }

    /// What connections of a listener begin with.
    pub(crate) fn inherited(&self, listener: ListenerId) -> Inherited {
        match self.inherited.get(listener.index as usize) {
            Some(Some((id, inherited))) if *id == listener => *inherited,
            _ => Inherited::new(&self.config),
        }
    }

    /// A connection that a peer has opened, into the tables.
    pub(crate) fn enter(
        &mut self,
        connection: Connection,
        tuple: FourTuple,
        inherited: &Inherited,
        internal: bool,
        stage: Stage,
    ) -> u32 {
        let mut entry = Entry::new(connection, self.name(&tuple), stage);
        entry.inherit(&self.config, inherited, self.ip.hop_limit());
        if internal {
            entry.flags.set(Flags::INTERNAL);
        }
        let index = self.entries.insert(entry);
        self.flows.insert(&self.entries, index);
        index
    }

    /// Segment sizes on the way to a peer, before its own SYN and path-MTU discovery say less.
    pub(crate) fn path(&self, remote: Addr, internal: bool) -> Path {
        let headers = 40 + if remote.is_v4() { 0 } else { V6_EXTRA };
        let mss = if internal { self.config.internal_mss } else { self.ip.mtu_for(remote).saturating_sub(headers) };
        Path { mss }
    }

    /// Tells a new connection what is known of its way. What we offer the peer stays what the link takes: the way back may be another.
    pub(crate) fn limit_path(&self, now: Instant, connection: &mut Connection, remote: Addr, internal: bool) {
        if let Some(path) = self.ip.path_mtu(now, remote).filter(|_| !internal) {
            // The TCB counts with the headers of IPv4.
            connection.limit_path(path.mtu - if remote.is_v4() { 0 } else { V6_EXTRA });
        }
    }

    /// The short form of a tuple, for a connection to be.
    pub(crate) fn name(&mut self, tuple: &FourTuple) -> Name {
        if let Some(name) = self.locals.find(tuple) {
            return name;
        }
        if self.locals.has_many() {
            let entries = self.entries.iter().map(|(_, entry)| &entry.name);
            let postponed = self.postponed.iter().flat_map(|postponed| postponed.names());
            self.locals.retain(entries.chain(postponed).chain(self.time_waits.queued()));
            // Their names may mean others now.
            self.searches.forget_all();
        }
        self.locals.add(tuple.local.addr);
        self.locals.find(tuple).expect("the own address was just added")
    }

    /// The handshake is complete, and text is there if it was waited for: into the accept queue.
    pub(crate) fn establish(&mut self, now: Instant, index: u32) {
        let Some(entry) = self.entries.get_mut(index) else { return };
        let Some(listener) = entry.stage.listener() else { return };
        if let Stage::Deferred { .. } = entry.stage {
            self.deferred.remove(&(entry.name.local_port(), index));
        }
        entry.stage = Stage::Waiting { listener };
        entry.deadline = Instant::FAR_FUTURE;
        self.phases.established(index, &entry.name);
        if self.cm.is_manager_apart() {
            self.phases.asked(index, &entry.name);
        }
        let began = self.phases.cm_begins();
        self.cm.handle_established(now, ConnectionId(index), listener);
        self.phases.cm_ends(began);
        self.run_directives(now);
        if let Some(entry) = self.entries.get_mut(index)
            && let Stage::Waiting { .. } = entry.stage
        {
            // One who asks for connections (P4's naive accept) may have been told of it, and not come.
            entry.deadline = now + self.config.claim_timeout;
            self.touch(index);
        }
    }

    /// Does what the CM wants done.
    pub(crate) fn run_directives(&mut self, now: Instant) {
        while let Some(directive) = self.cm.poll_directive() {
            match directive {
                Directive::Offer(offer) => {
                    // Not the doing of whoever it is offered to.
                    let before = self.work();
                    self.mark(Work::Offer(offer.connection.0));
                    self.offer(now, &offer);
                    self.mark(before);
                }
                Directive::Reset { connection } => {
                    if let Some(entry) = self.entries.get(connection.0) {
                        self.resets.add(connection.0, entry.name);
                    }
                }
                Directive::AcceptorRemoved { session, lease } => {
                    let index = self.session_index.get(&session).copied();
                    if let Some(session) = index.and_then(|i| self.sessions.get_mut(i as usize)?.as_mut()) {
                        session.push(&mut self.stats, &Event::AcceptorRemoved { listener: lease }, None);
                    }
                }
                Directive::ConnectionsWait { session, lease, waiting, answers } => {
                    let index = self.session_index.get(&session).copied();
                    if let Some(session) = index.and_then(|i| self.sessions.get_mut(i as usize)?.as_mut()) {
                        let event = Event::ConnectionsWait { listener: lease, waiting, answers };
                        session.push(&mut self.stats, &event, None);
                    }
                }
                Directive::PortTaken { port, taken } => {
                    self.page.set_port(false, port, taken);
                    if !taken {
                        self.resets.add_deferred(port);
                    }
                }
            }
        }
        if !self.resets.is_empty() {
            self.reset_some(now);
        }
    }

    /// CONNECTION-AVAILABLE (P4); the event leaves with the flush.
    fn offer(&mut self, now: Instant, offer: &Offer) {
        let (index, listener, lease) = (offer.connection.0, offer.listener, offer.lease);
        let Some(entry) = self.entries.get_mut(index) else { return };
        let local = self.locals.tuple(&entry.name).local;
        let session_index = self.session_index.get(&offer.session).copied();
        let session = session_index.and_then(|i| self.sessions.get_mut(i as usize)?.as_mut());
        let offered = session.filter(|session| session.gone.is_none()).and_then(|session| {
            let (slot, generation) = session.allocate(Occupant::Connection(index))?;
            let place = Place { session: session_index?, slot, generation };
            let len = entry.parked_len() as u64;
            let high = entry.connection.receive_max().max(len);
            let size = (entry.receive_capacity as usize).max(entry.parked_len()).next_power_of_two();
            // What was acknowledged has to lie somewhere, however little memory there is: it is little.
            if len > 0 && entry.receive.reserve(&session.pool, &session.links, 0, 0, high, size) < high {
                entry.receive.release_all(&session.pool, &session.links);
                session.vacate(slot, false);
                return None;
            }
            if let (Some(text), Some(pieces)) = (&entry.parked, entry.receive.pieces(0, entry.parked_len())) {
                pieces.write(&session.arena, session.layout.receive_area, text);
            }
            session.note_touched();
            if session.pressure.send {
                entry.limit_send_buffer();
            }
            let view = session.slot(slot)?;
            // Who looks at all slots is to see the offer only when it is written down: it is published with the event.
            view.replica_reset(generation, SlotState::Free, entry.send_limit);
            view.set_local(local);
            Some(place)
        });
        let Some(place) = offered else {
            // No slot or no memory for its buffer: such an acceptor cannot take connections now.
            if let Some(session) = session_index.and_then(|i| self.sessions.get_mut(i as usize)?.as_mut()) {
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
        entry.published_acked = 0;
        entry.published_tail = 0;
        entry.published_mark = u64::MAX;
        entry.deadline = now + self.config.claim_timeout;
        entry.flags.set(Flags::OFFER.with(Flags::EXTENTS).with(Flags::STATE));
        if entry.connection.receive_mark().is_some() {
            entry.flags.set(Flags::MARK);
        }
        self.phases.offered(now, index, &entry.name);
        self.touch(index);
    }

    /// CLAIM-CONNECTION (P4).
    pub(crate) fn claim(&mut self, now: Instant, session_index: u32, slot: atoll_base::SlotId, generation: u32) {
        let Some(session) = self.sessions.get_mut(session_index as usize).and_then(Option::as_mut) else { return };
        let occupant = session.occupant(slot, generation);
        if let Occupant::Connection(index) = occupant
            && let Some(entry) = self.entries.get_mut(index)
        {
            if let Stage::Offered { .. } = entry.stage {
                self.take_over(now, index);
                self.handle_kick(now, index);
            } else {
                // It was honoured already when its time had come. Who claims again has lost the verdict.
                let event = Event::ClaimVerdict { slot, generation, confirmed: true };
                session.push(&mut self.stats, &event, None);
            }
        } else if occupant == Occupant::Lost {
            // Honoured, too, and told that it is over.
            let event = Event::ClaimVerdict { slot, generation, confirmed: true };
            session.push(&mut self.stats, &event, None);
        } else if session.was_offered(slot, generation) {
            // Too late: the connection is somebody else's.
            let event = Event::ClaimVerdict { slot, generation, confirmed: false };
            session.push(&mut self.stats, &event, None);
        } else {
            self.stats.count(Stat::BadCommands);
        }
    }

    /// The connection is the application's from now on.
    fn take_over(&mut self, now: Instant, index: u32) {
        let Some(entry) = self.entries.get_mut(index) else { return };
        let (Stage::Offered { listener, lease, at }, Some(place)) = (entry.stage, entry.place) else { return };
        let session = self.sessions.get(place.session as usize).and_then(Option::as_ref);
        let session = session.map(|session| session.id).unwrap_or_default();
        let offered_at = at.instant(now);
        let (cm, name) = (&mut self.cm, entry.name);
        let tell_cm = || cm.handle_claimed(now, ConnectionId(index), listener, session, lease, offered_at);
        let is_measured = self.phases.claimed(now, index, &name, &mut self.stats, tell_cm);
        self.stats.count(Stat::Claims);
        entry.stage = Stage::Open(if is_measured { Service { lease, offered_at } } else { Service::UNMEASURED });
        entry.deadline = Instant::FAR_FUTURE;
        entry.flags.set(Flags::STATE);
        if entry.receive.current().is_some() {
            entry.deadline = now + self.config.sweep_interval;
        }
        self.touch(index);
    }

    /// A stage has lasted as long as it may.
    pub(crate) fn handle_deadline(&mut self, now: Instant, index: u32) {
        let Some(entry) = self.entries.get_mut(index) else { return };
        match entry.stage {
            Stage::Deferred { .. } => self.establish(now, index),
            Stage::Offered { listener, lease, .. } => self.claim_timeout(now, index, listener, lease),
            Stage::Waiting { listener } => {
                entry.deadline = Instant::FAR_FUTURE;
                self.cm.handle_waits_long(listener);
                self.run_directives(now);
            }
            Stage::Open(_) => self.sweep(index),
            _ => {}
        }
    }

    fn claim_timeout(&mut self, now: Instant, index: u32, listener: ListenerId, lease: u64) {
        let Some(entry) = self.entries.get(index) else { return };
        let Some(place) = entry.place else { return };
        let Some(session) = self.session(place.session) else { return };
        let session = session.id;
        if self.take_back(now, index) {
            self.stats.count(Stat::ClaimTimeouts);
            self.cm.handle_claim_timeout(now, ConnectionId(index), listener, session, lease);
            self.run_directives(now);
        }
    }

    /// Takes an offer back, with the text that was received for it. `false`: the claim came first and is honoured.
    pub(crate) fn take_back(&mut self, now: Instant, index: u32) -> bool {
        let Some(entry) = self.entries.get_mut(index) else { return false };
        let (Stage::Offered { listener, .. }, Some(place)) = (entry.stage, entry.place) else { return false };
        let Some(session) = self.sessions.get_mut(place.session as usize).and_then(Option::as_mut) else {
            return false;
        };
        let revoked = session.slot(place.slot).is_none_or(|slot| slot.revoke(place.generation));
        if !revoked {
            let event = Event::ClaimVerdict { slot: place.slot, generation: place.generation, confirmed: true };
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
        entry.flags.clear(Flags::OFFER);
        entry.flags.set(Flags::RECORD);
        entry.stage = Stage::Waiting { listener };
        // The text is in the record from the next commit on; until then it must stay where it is.
        self.release_later(place.session, place.slot, rings);
        self.touch(index);
        true
    }

    /// A connection that no application has is gone: tell the CM, and forget it.
    pub(crate) fn drop_unclaimed(&mut self, index: u32) {
        let Some(entry) = self.entries.get(index) else { return };
        let stage = match entry.stage {
            Stage::Embryonic { .. } | Stage::Deferred { .. } => atoll_connmgr::Stage::Embryonic,
            _ => atoll_connmgr::Stage::Waiting,
        };
        if let Some(listener) = entry.stage.listener() {
            self.cm.handle_gone(ConnectionId(index), listener, stage);
        }
        self.remove(index);
    }

    /// Looks for a buffer that the application has drained.
    fn sweep(&mut self, index: u32) {
        let Some(entry) = self.entries.get_mut(index) else { return };
        let Some(place) = entry.place else { return };
        let Some(session) = self.sessions.get(place.session as usize).and_then(Option::as_ref) else { return };
        let Some(slot) = session.slot(place.slot) else { return };
        let head = slot.receive_head();
        if (entry.connection.receive_head()..=entry.published_tail).contains(&head) {
            entry.release_drained(session, head);
        }
    }
}
