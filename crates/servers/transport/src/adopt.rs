//! Lets a server continue the work of one that has died (decision 28).
//!
//! ```text
//!   requests in force       carried out again: leases, listeners, acceptors, datagram sockets
//!   those in TIME-WAIT      kept until their time is over
//!   records of connections  judged; slots, buffers and flow table are rebuilt by them
//!   what had been touched   reported to both ends once more: to the peer what is acknowledged,
//!                           to the application what there is
//! ```
//!
//! Most of the connections need nothing for now, and are continued a little later (`postponed.rs`). Sessions
//! were opened before. What has no record was never sent, and was never shown to any application.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use atoll_base::{Endpoint, FourTuple, Instant, SessionId, SlotId};
use atoll_connmgr::{Bind, ConnectionId, Listen};
use atoll_ipc::command::Protocol;
use atoll_ipc::control::User;
use atoll_ipc::lease::{Grant, NO_USER};
use atoll_ipc::ledger::{ConnectionRecord, Phase, RequestRecord, Work};
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{REPLICA_CLOSED, REPLICA_FIN, Slot};
use atoll_ipc::{Command, Device, Event, Memory, Ready};
use atoll_tcp::State;

use crate::aftermath::{Adoption, Loss, Recovery, give_up};
use crate::blame::charge;
use crate::durability::Records;
use crate::entry::{Flags, Service, Stage};
use crate::fast_open::is_connecting;
use crate::passive::Opening;
use crate::record::state;
use crate::rings::Rings;
use crate::session::{Occupant, Place, Session};
use crate::time_wait;
use crate::transport::Transport;

mod judge;

use judge::Judge;

pub(crate) use judge::Adopted;

/// Returns whether a connection needs nothing now, according to its record: it has an application, and can be
/// used both ways. The caller checks whether one of its ends expects a notification.
fn may_wait(record: &ConnectionRecord) -> bool {
    record.phase == Phase::Open && record.text_len == 0 && state(record) == Some(State::Established)
}

/// The blocks of receive buffers of each session, as first unit and size as a power of two, and the
/// connections that have them; `None` means a datagram socket.
type Blocks = BTreeMap<SessionId, Vec<((u32, u8), Option<u32>)>>;

/// How many records ahead the slot of a connection is prefetched: most time is spent waiting for that memory.
const AHEAD: usize = 8;
/// The number of deaths on one connection that end it.
const CRASHES_MAX: u8 = 2;
/// How many slots are searched for lost connections before a successor serves, and in each of its rounds.
const LOST_SLOTS_FIRST: usize = 4096;
pub(crate) const LOST_SLOTS: usize = 256;
/// An upper bound in octets, which is more than any receive buffer holds.
const AREA_MAX: usize = 16 << 20;
impl<M: Memory> Transport<M> {
    // structure: adopt: recovery in the order of its steps (the head of this file)
    /// Continues where the predecessor has died. `is_blamed` says that it died by its own fault, so that what
    /// it was working on may be the reason. The caller flushes afterwards.
    pub fn adopt(&mut self, now: Instant, recovery: Recovery, is_blamed: bool) -> Adoption {
        let Some(mut records) = self.durability.take_records() else { return Adoption::default() };
        let is_stateless = recovery == Recovery::Stateless;
        let found = records.resume_requests(|session| self.applications.limited_user(session), is_stateless);
        let marked = charge(now, &mut records, is_blamed, &mut self.applications, &mut self.aftermath);
        self.repeat_requests(now, &mut records, found);

        let touched = records.inherit_touched();
        let mut adoption = Adoption::default();
        // Records are read twice and not kept in between: there may be many, and memory that is touched for
        // the first time costs more.
        let (mut good, mut unreadable, mut heads) = (Vec::new(), Vec::new(), Vec::new());
        // If more were touched than are remembered, no connection can wait.
        let mut in_order = touched.clone();
        in_order.iter_mut().for_each(|touched| touched.sort_unstable());
        let is_untouched =
            |index: u32| in_order.as_ref().is_some_and(|touched| touched.binary_search(&index).is_err());
        let (mut blocks, mut crashed) = (Blocks::new(), Vec::new());
        for (index, found) in records.ledger().connections() {
            let Ok(record) = found else {
                unreadable.push(index);
                continue;
            };
            let crashes = record.crashes.saturating_add(u8::from(marked == Some(index)));
            if crashes > 0 {
                crashed.push((index, crashes));
            }
            if record.text != 0 {
                heads.push(record.text);
            }
            let mut rings = [record.receive.current, record.receive.old].into_iter().flatten().peekable();
            if let (Some((session, ..)), Some(_)) = (record.place, rings.peek()) {
                let rings = rings.map(|ring| ((ring.unit, ring.log2), Some(index)));
                blocks.entry(session).or_default().extend(rings);
            }
            let is_cut_off = record.place.is_some_and(|(session, ..)| self.applications.is_cut_off(session));
            let waits = recovery == Recovery::Stateful
                && crashes == 0
                && !is_cut_off
                && may_wait(&record)
                && is_untouched(index);
            good.push((index, record.place, waits.then_some(record.tuple)));
        }
        crashed.into_iter().for_each(|(index, crashes)| records.note_crashes(index, crashes));
        let has_unreadable = !unreadable.is_empty();
        for index in unreadable {
            adoption.lose(Loss::Unreadable);
            records.erase(index);
        }
        records.resume_text(heads);
        self.connections.reserve(good.len());
        let overlapping = self.resume_pools(blocks);
        let mut adopted = Adopted::default();
        self.connections.begin_postponing(good.len(), now);
        if recovery == Recovery::Stateful {
            let found = time_wait::resume(now, records.ledger().time_waits());
            self.connections.resume_time_waits(now, found);
        }
        for (at, &(index, place, waits)) in good.iter().enumerate() {
            if let Some(&(_, Some((id, slot, _)), _)) = good.get(at + AHEAD) {
                let session = self.applications.find(id);
                session.and_then(|session| session.slot(slot)).iter().for_each(Slot::prefetch);
            }
            if let (Some(tuple), Some(place)) = (waits, place)
                && !overlapping.contains(&index)
                && self.postpone(index, &tuple, place)
            {
                adoption.kept += 1;
                continue;
            }
            records.ledger().mark(Work::Adoption(index));
            let Some(mut record) = records.ledger().connection_again(index) else { continue };
            record.crashes = records.crashes(index);
            if marked == Some(index) {
                records.rewrite(index, &record);
            }
            let refused = match recovery {
                Recovery::Stateless => Some(Loss::Stateless),
                Recovery::Stateful if record.crashes >= CRASHES_MAX => Some(Loss::Quarantined),
                Recovery::Stateful
                    if place.is_some_and(|(session, ..)| self.applications.is_cut_off(session)) =>
                {
                    Some(Loss::CutOff)
                }
                Recovery::Stateful => overlapping.contains(&index).then_some(Loss::Overlap),
            };
            match self.judge(now).adopt_record(&mut records, index, &record, refused, &mut adopted) {
                Ok(()) => adoption.kept += 1,
                Err(why) => adoption.lose(why),
            }
        }
        if recovery == Recovery::Stateless || has_unreadable {
            // There are no records, or their owners are unknown: the slots show which applications have a
            // socket.
            let places = self.applications.places();
            let ids = places.filter_map(|place| Some((place, self.applications.get(place)?.id)));
            self.aftermath.begin_to_look(ids);
            let found =
                self.aftermath.look_for_lost(LOST_SLOTS_FIRST, &mut self.applications, &mut self.stats);
            adoption.lost += if recovery == Recovery::Stateless { found } else { 0 };
        }
        let concerned = adopted.note(&mut records);
        records.commit_adoption();
        self.durability.set_records(records);
        self.connections.end_postponing();
        self.applications.iter_mut().for_each(Session::rebuild);
        self.go_on(now, concerned);
        self.durability.mark(Work::Nothing);
        self.greet(touched);
        self.run_directives(now);
        self.forget_ports();
        self.tell_adoption(adoption);
        adoption
    }

    /// Publishes what has become of the connections so far.
    pub(crate) fn tell_adoption(&mut self, adoption: Adoption) {
        self.stats.set(Stat::ConnectionsKept, adoption.kept.into());
        self.stats.set(Stat::ConnectionsLost, adoption.lost.into());
        self.stats.set(Stat::ConnectionsQuarantined, adoption.quarantined.into());
        match self.connections.postponed_mut() {
            Some(postponed) => postponed.set_adoption(adoption),
            None => self.aftermath.tell_adoption(adoption),
        }
    }

    /// Returns the judge of the predecessor's connections.
    pub(crate) fn judge(&mut self, now: Instant) -> Judge<'_, M> {
        Judge {
            now,
            opening: Opening { config: &self.config, secrets: &self.secrets, ip: &self.ip },
            cm: &mut self.cm,
            connections: &mut self.connections,
            handshakes: &mut self.handshakes,
            applications: &mut self.applications,
            egress: &mut self.egress,
            stats: &mut self.stats,
        }
    }

    /// Keeps place, slot and name for a connection that is continued later. Returns `false` if it cannot
    /// wait, because another one has something of that.
    fn postpone(
        &mut self,
        index: u32,
        tuple: &FourTuple,
        (id, slot, generation): (SessionId, SlotId, u32),
    ) -> bool {
        let name = self.connections.name(tuple);
        let Some(place) = self.applications.place_of(id) else { return false };
        let Some(hashed) = self.connections.may_postpone(&name) else { return false };
        let (occupant, session) = (Occupant::Connection(index), self.applications.get_mut(place));
        let is_kept = session.is_some_and(|session| session.occupy_again(slot, generation, occupant));
        if let Some(postponed) = self.connections.postponed_mut().filter(|_| is_kept) {
            postponed.push(hashed, name, index, (place, slot));
        }
        is_kept
    }

    /// Clears ports on the page that are free: the predecessor may have died after its ledger said so, and
    /// before the page did. The page is not cleared first, since a program that reads it meanwhile would take
    /// the port for the kernel's.
    fn forget_ports(&self) {
        let is_there =
            |udp: bool, port: u16| if udp { self.datagrams.has_port(port) } else { self.cm.has_port(port) };
        for udp in [false, true] {
            let gone: Vec<u16> = self.page.ports(udp).filter(|port| !is_there(udp, *port)).collect();
            gone.into_iter().for_each(|port| self.page.set_port(udp, port, false));
        }
    }

    /// Carries out again what applications have asked for.
    fn repeat_requests(
        &mut self,
        now: Instant,
        records: &mut Records<M>,
        mut found: Vec<(u32, RequestRecord)>,
    ) {
        found.sort_by_key(|(_, record)| record.order);
        for (_, RequestRecord { session, command, .. }) in found {
            let Some(index) = self.applications.place_of(session) else { continue };
            if self.applications.is_cut_off(session) {
                records.remove_session(session);
                if let Command::UdpOpen { slot, generation, .. } = command {
                    give_up(&mut self.applications, &mut self.stats, index, slot, generation);
                }
                continue;
            }
            records.ledger().mark(Work::Commands(session));
            match command {
                Command::UdpOpen { slot, generation, lease, local, remote, reuse_port, v6_only, kind } => {
                    let protocol = kind.protocol();
                    let place = Place { session: index, slot, generation };
                    let grant = self.applications.grant(index, &self.cm, lease, protocol, local);
                    let past = || self.past_grant(index, lease, protocol, local, (reuse_port, v6_only));
                    let grant = grant.unwrap_or_else(past);
                    self.reopen_datagram(now, place, grant, local, remote);
                }
                // Whether the address is there now does not matter, as it would not to the predecessor.
                // No answer is sent: an application that still waits for one has its command in the ring.
                Command::Bind { .. } => self.repeat_bind((index, session), command),
                Command::Listen {
                    lease,
                    local,
                    backlog,
                    reuse_port,
                    defer_accept,
                    v6_only,
                    hops_min,
                    ..
                } => {
                    let past = || self.past_grant(index, lease, Protocol::Tcp, local, (reuse_port, v6_only));
                    let shown = self.applications.shown(index, lease).or_else(|| Some(past()));
                    let uid = self
                        .applications
                        .user_of(index, lease, Protocol::Tcp, local)
                        .map_or(NO_USER, |user| user.uid);
                    let listen = Listen {
                        session,
                        lease,
                        local,
                        backlog,
                        reuse_port,
                        defer_accept,
                        v6_only,
                        uid,
                        shown,
                    };
                    let _ = self.cm.handle_listen(&listen);
                    self.limit_hops(session, lease, hops_min);
                    self.run_directives(now);
                }
                command => {
                    // A command that stays in force never waits for a later round.
                    let _ = self.handle_command(now, index, command);
                }
            }
        }
        records.ledger().mark(Work::Nothing);
    }

    /// Carries out again what leases a port.
    fn repeat_bind(&mut self, (index, session): (u32, SessionId), command: Command) {
        let Command::Bind { lease, protocol, local, reuse_addr, reuse_port, v6_only, device, .. } = command
        else {
            return;
        };
        // The uid that low ports need does not change.
        let uid = self.applications.user_of(index, lease, protocol, local).map_or(NO_USER, |user| user.uid);
        let user = User::privileged(uid).vouched(uid, local.port);
        let bind = Bind { session, user, lease, protocol, local, reuse_addr, reuse_port, v6_only, device };
        let _ = self.cm.repeat_bind(&bind);
    }

    /// Returns the grant of what the predecessor has let a session have, if the session has nothing to show.
    /// It may have left the port to others of its family, or another build may have let it. Any later grant
    /// goes first.
    fn past_grant(
        &self,
        session: u32,
        lease: u64,
        protocol: Protocol,
        local: Endpoint,
        (reuse_port, v6_only): (bool, bool),
    ) -> Grant {
        let uid = self.applications.user_of(session, lease, protocol, local).map_or(NO_USER, |user| user.uid);
        let listening = protocol == Protocol::Tcp;
        let (reuse_addr, device, granted) = (false, Device::None, 0);
        Grant { lease, protocol, local, v6_only, reuse_addr, reuse_port, listening, device, uid, granted }
    }

    /// Marks the blocks of receive buffers as in use. Returns the connections whose blocks are invalid, or
    /// another's.
    fn resume_pools(&mut self, mut by_session: Blocks) -> BTreeSet<u32> {
        let mut refused = BTreeSet::new();
        for (session, block) in self.datagrams.blocks() {
            if let Some(session) = self.applications.get(session) {
                by_session.entry(session.id).or_default().push((block, None));
            }
        }
        for session in self.applications.iter() {
            let mut owners = by_session.remove(&session.id).unwrap_or_default();
            owners.sort_unstable();
            // Datagram sockets that were continued have given back what their application has read, to a
            // pool that had given out nothing yet. It must forget that, or a block is given out twice.
            if owners.is_empty() && session.sockets() == 0 {
                // The pool is in that state from the start.
                continue;
            }
            let mut blocks: Vec<_> = owners.iter().map(|(block, _)| *block).collect();
            for number in session.memory().resume(&mut blocks) {
                refused.extend(owners.get(number).and_then(|(_, owner)| *owner));
            }
        }
        refused
    }

    /// Reports the state of their connections to applications, as far as they may not know it. `concerned`
    /// are the connections that are not quiet.
    pub(crate) fn go_on(&mut self, now: Instant, concerned: Vec<(u32, Stage)>) {
        for (index, stage) in concerned {
            self.durability.mark(Work::Adoption(index));
            self.connections.touch(index);
            match stage {
                Stage::Open(_) => {
                    if let Some(entry) = self.connections.get_mut(index)
                        && !is_connecting(&entry.connection)
                    {
                        // The record may have another limit than the slot, and both sides have to use the
                        // same one.
                        entry.flags.insert(Flags::LIMIT);
                    }
                    self.connections.kick(now, index, &self.config, &self.applications, &mut self.stats);
                }
                Stage::Waiting { .. }
                    if self.connections.get(index).is_some_and(|entry| entry.place.is_some()) =>
                {
                    self.resolve_offer(now, index);
                }
                Stage::Waiting { listener } => self.cm.handle_established(now, ConnectionId(index), listener),
                Stage::Ended(_) => {
                    if let Some(entry) = self.connections.get_mut(index) {
                        entry.view.set_flags(REPLICA_CLOSED);
                        entry.flags.insert(Flags::STATE);
                        entry.view.tell(Ready::IN | Ready::OUT | Ready::HUP | Ready::RDHUP);
                    }
                }
                _ => {}
            }
        }
    }

    /// Reports the state of connections once more to both ends; `None` means of all connections.
    fn greet(&mut self, touched: Option<Vec<u32>>) {
        let touched: Vec<u32> = match touched {
            Some(touched) => touched,
            None => self.connections.iter().map(|(index, _)| index).collect(),
        };
        for index in touched {
            if let Some(entry) = self.connections.get_mut(index) {
                entry.connection.greet();
                entry.flags.insert(Flags::STATE | Flags::EXTENTS);
                if entry.connection.fin_received() {
                    entry.view.set_flags(REPLICA_FIN);
                    entry.view.tell(Ready::RDHUP);
                }
                if matches!(entry.stage, Stage::Open(_)) {
                    entry.view.tell(Ready::IN | Ready::OUT);
                }
                self.connections.touch(index);
            }
        }
    }

    /// Resolves an offer that was open when the predecessor died: the connection belongs to the claimant, if
    /// there is one, or is offered anew.
    fn resolve_offer(&mut self, now: Instant, index: u32) {
        let Some(entry) = self.connections.get_mut(index) else { return };
        let (Stage::Waiting { listener }, Some(place)) = (entry.stage, entry.place) else { return };
        let Some(session) = self.applications.get_mut(place.session) else { return };
        if session.slot(place.slot).is_some_and(|slot| !slot.revoke(place.generation)) {
            let event =
                Event::ClaimVerdict { slot: place.slot, generation: place.generation, confirmed: true };
            session.push(&mut self.stats, &event, None);
            entry.stage = Stage::Open(Service::UNMEASURED);
            entry.flags.insert(Flags::STATE);
            self.cm.handle_gone(ConnectionId(index), listener, atoll_connmgr::Stage::Embryonic);
            self.connections.kick(now, index, &self.config, &self.applications, &mut self.stats);
            return;
        }
        let mut text =
            alloc::vec![0; usize::try_from(entry.connection.receive_nxt()).unwrap_or(0).min(AREA_MAX)];
        if let Some(pieces) = entry.receive.pieces(0, text.len()) {
            pieces.read(&session.arena, session.layout.receive_area, &mut text);
        }
        // Text that was received out of order is lost with the slot.
        entry.connection.drop_out_of_order();
        let rings = core::mem::replace(&mut entry.receive, Rings::NONE);
        entry.parked = (!text.is_empty()).then(|| Box::new(text));
        entry.place = None;
        entry.flags.insert(Flags::RECORD);
        session.vacate(place.slot, true);
        self.durability.release_later((place.session, session.id), place.slot, rings);
        self.cm.handle_established(now, ConnectionId(index), listener);
    }
}
