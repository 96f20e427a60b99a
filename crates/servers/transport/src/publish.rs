//! Publishes the state of connections to their applications, and ends connections that are over.

use atoll_base::{FourTuple, Instant};
use atoll_connmgr::ConnectionId;
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{REPLICA_CLOSED, Slot, SlotState};
use atoll_ipc::{Cause, Event, Memory, Ready};
use atoll_tcp::State;

use crate::entry::{Entry, Flags, Service, Stage};
use crate::fast_open::is_connecting;
use crate::names::Locals;
use crate::release::{drop_unclaimed, give_back_slot, remove};
use crate::session::Session;
use crate::stats::Stats;
use crate::time_wait;
use crate::transport::Transport;

impl<M: Memory> Transport<M> {
    /// Updates a connection after it has sent what it had: publishes it, ends it if it is over, and arms its
    /// timer.
    pub(crate) fn settle(&mut self, now: Instant, index: u32) {
        let Some(entry) = self.connections.get_mut(index) else { return };
        match entry.connection.state() {
            State::TimeWait => {
                if let Some(time_wait) = entry.connection.time_wait()
                    && !entry.stage.is_ended()
                {
                    let name = entry.name;
                    let connections = &self.connections;
                    let record = || time_wait::record(connections.tuple(&name), &time_wait.facts());
                    self.durability.put_time_wait(record);
                    self.connections.enter_time_wait(now, name, time_wait);
                    self.finish(now, index);
                }
            }
            State::Closed if !entry.stage.is_ended() => self.finish(now, index),
            _ => {}
        }
        let Some((entry, locals)) = self.connections.get_mut_with_locals(index) else { return };
        let mut send_limit_max = self.config.send_limit.1;
        let mut again = false;
        if let Some(place) = entry.place
            && let Some(session) = self.applications.get_mut(place.session)
        {
            if session.pressure.send {
                send_limit_max = 0;
            }
            match entry.stage {
                Stage::Offered { lease, .. } => {
                    entry.publish(now, session, &mut self.stats, locals, Some(lease), send_limit_max);
                }
                Stage::Open(_) | Stage::Ended(_) => {
                    again = entry.publish(now, session, &mut self.stats, locals, None, send_limit_max);
                    if again {
                        // No report follows about what has been read already.
                        entry.follow_reader(session, self.config.receive_capacity.1);
                    }
                }
                // Nothing that was written may have to be sent again: the application gets its slot back now,
                // unless it waits for more. What a process that has ended waited for does not count.
                Stage::Closing
                    if entry.connection.send_una() == entry.connection.send_tail()
                        && !(entry.awaits_fin() && session.gone.is_none()) =>
                {
                    give_back_slot(index, &mut self.connections, &mut self.applications, &mut self.stats);
                }
                _ => {}
            }
        }
        if again {
            self.connections.touch(index);
        }
        let Some(entry) = self.connections.get_mut(index) else { return };
        if entry.receive.current().is_some() && entry.deadline == Instant::FAR_FUTURE {
            entry.deadline = now + self.config.sweep_interval;
        }
        if entry.stage.is_ended() {
            return;
        }
        if let Some(due) = entry.move_timer() {
            self.connections.arm(index, due);
        }
    }

    /// Ends a connection that is over (closed, reset, timed out, or remembered in TIME-WAIT).
    fn finish(&mut self, now: Instant, index: u32) {
        let Some(entry) = self.connections.get_mut(index) else { return };
        self.handshakes.end_early(index, entry);
        if self.keep_for_accept(index) {
            return;
        }
        let Some(entry) = self.connections.get_mut(index) else { return };
        if let (Stage::Offered { listener, lease, .. }, Some(place)) = (entry.stage, entry.place) {
            let session = self.applications.get(place.session).map(|session| session.id).unwrap_or_default();
            if self.take_back(now, index) {
                let stage = atoll_connmgr::Stage::Offered { session, lease };
                self.cm.handle_gone(ConnectionId(index), listener, stage);
                remove(index, &mut self.connections, &mut self.handshakes, &mut self.durability);
                return;
            }
            // It was claimed just before: the application sees it fail.
        }
        let Some(entry) = self.connections.get_mut(index) else { return };
        match entry.stage {
            Stage::Embryonic { .. } | Stage::Deferred { .. } | Stage::Waiting { .. } => {
                let (cm, connections) = (&mut self.cm, &mut self.connections);
                drop_unclaimed(index, cm, connections, &mut self.handshakes, &mut self.durability);
            }
            Stage::Open(_) | Stage::Offered { .. } => {
                self.connections.leave_flows(index);
                let Some(entry) = self.connections.get_mut(index) else { return };
                entry.stage = match entry.stage {
                    Stage::Open(service) => Stage::Ended(service),
                    _ => Stage::Ended(Service::UNMEASURED),
                };
                entry.deadline = Instant::FAR_FUTURE;
                entry.view.set_flags(REPLICA_CLOSED);
                entry.flags.insert(Flags::STATE);
                entry.view.tell(Ready::IN | Ready::OUT | Ready::HUP | Ready::RDHUP);
                if entry.cause != Cause::None {
                    entry.view.tell(Ready::ERR);
                }
            }
            Stage::Closing => {
                give_back_slot(index, &mut self.connections, &mut self.applications, &mut self.stats);
                remove(index, &mut self.connections, &mut self.handshakes, &mut self.durability);
            }
            Stage::Ended(_) => {}
        }
    }
}

impl<M: Memory> Transport<M> {
    /// Keeps a connection that has ended by the network before an application had it: as on Linux, accept(2)
    /// returns it with the text that has come, and its error behind that. Returns false for others.
    fn keep_for_accept(&mut self, index: u32) -> bool {
        let Some(entry) = self.connections.get(index) else { return false };
        let (Stage::Waiting { listener } | Stage::Offered { listener, .. }) = entry.stage else {
            return false;
        };
        if !entry.cause.is_by_network() || !self.cm.is_listening(listener) {
            return false;
        }
        if entry.view.flags() & REPLICA_CLOSED != 0 {
            // This was done before.
            return true;
        }
        self.connections.leave_flows(index);
        if let Some(entry) = self.connections.get_mut(index) {
            entry.view.set_flags(REPLICA_CLOSED);
            entry.flags.insert(Flags::STATE | Flags::RECORD);
        }
        true
    }
}

impl Entry {
    /// Returns whether a process waits in close(2), and the peer has not acknowledged the FIN
    /// (sk_stream_closing).
    fn awaits_fin(&self) -> bool {
        self.flags.intersects(Flags::LINGERS)
            && matches!(self.connection.state(), State::FinWait1 | State::Closing | State::LastAck)
    }

    /// Updates the slot and sends the event about it. `lease` is that of the acceptor, while the connection
    /// is offered. Returns whether the connection has something to send now.
    #[inline]
    fn publish<M: Memory>(
        &mut self,
        now: Instant,
        session: &mut Session<M>,
        stats: &mut Stats,
        locals: &Locals,
        lease: Option<u64>,
        send_limit_max: u32,
    ) -> bool {
        let Some(place) = self.place else { return false };
        let Some(slot) = Slot::new(&session.arena, &session.layout, place.slot) else { return false };
        if self.flags.take(Flags::EXTENTS) {
            slot.set_receive_extents(&self.receive.extents());
        }
        if self.flags.take(Flags::MARK) {
            self.publish_urgent_mark(&slot);
        }
        let tail = self.connection.receive_nxt();
        self.view.publish_tail(&slot, tail);
        if self.unsent_low != 0 && self.send_limit_now() < slot.send_limit() {
            // This comes before the acknowledged position: a program that sees the one and not yet the other
            // must find less room, not more.
            slot.set_send_limit(self.send_limit_now());
        }
        self.publish_acked(&slot, send_limit_max);
        if self.unsent_low != 0 {
            self.limit_unsent(slot.send_limit());
        }
        if self.flags.take(Flags::LIMIT) {
            slot.set_send_limit(self.send_limit_now());
        }
        if self.flags.take(Flags::STATE) {
            let connecting = is_connecting(&self.connection);
            let state = if connecting { SlotState::Connecting } else { SlotState::Open };
            slot.set_outcome(self.view.flags(), self.cause, lease.is_none().then_some(state));
        }
        let again = self.publish_mark(now, &session.arena, &slot);
        let bell = slot.bell();
        let ready = self.view.take_ready();
        if self.flags.take(Flags::OFFER) {
            stats.count(Stat::Offers);
            slot.set_state(SlotState::Offered);
            let FourTuple { local, remote } = locals.tuple(&self.name);
            let event = Event::ConnectionAvailable {
                listener: lease.unwrap_or_default(),
                slot: place.slot,
                generation: place.generation,
                local,
                remote,
            };
            // An application that claims it sees what is published already; there is no need for a second
            // event.
            session.push(stats, &event, None);
        } else if !ready.is_empty() {
            let event = Event::Ready { slot: place.slot, generation: place.generation, ready };
            // An application that has claimed it but not yet chosen a doorbell may sleep on any.
            session.push(stats, &event, if lease.is_some() { None } else { Some(bell) });
        }
        again
    }

    /// Publishes what the peer has acknowledged, and reports OUT once if the application may be waiting for
    /// room: as on Linux, when a third of the buffer is free. It also lets the buffer grow.
    #[inline]
    fn publish_acked<M: Memory>(&mut self, slot: &Slot<'_, M>, send_limit_max: u32) {
        let acked = self.connection.send_una();
        if !self.view.note_acked(acked) {
            return;
        }
        let tail = self.connection.send_tail();
        let is_drained =
            self.send.old().is_none() || self.send.current().is_none_or(|current| acked >= current.base);
        let has_room = (tail - acked) * 3 < u64::from(self.send_limit) * 2 && is_drained;
        if self.flags.intersects(Flags::WANTS_ROOM) && (has_room || acked == tail) && !self.is_unsent_full() {
            self.flags.remove(Flags::WANTS_ROOM);
            self.view.tell(Ready::OUT);
            // Nearly all of a full buffer is in flight: the buffer limits the connection, and not its
            // windows.
            let unsent = tail - self.connection.send_nxt();
            if unsent * 8 <= u64::from(self.send_limit)
                && !self.flags.intersects(Flags::FIXED_SEND)
                && self.send_limit < send_limit_max
            {
                self.send_limit = (self.send_limit * 2).min(send_limit_max);
                self.flags.insert(Flags::LIMIT);
            }
        }
        slot.set_acknowledged(acked);
    }

    /// Asks the application to report when it has read enough for the window to open again. Returns whether
    /// it has read as much already.
    #[inline]
    fn publish_mark<M: Memory>(&mut self, now: Instant, arena: &M, slot: &Slot<'_, M>) -> bool {
        let mark = self.view.publish_mark(slot, self.connection.receive_read_mark());
        let Some(mark) = mark.filter(|_| self.stage.is_open()) else { return false };
        // The application may have read so far before it could see the mark (Dekker: it stores its head,
        // fences, and loads the mark).
        arena.fence();
        let head = slot.receive_head();
        let reached = self.view.may_have_read(mark, head);
        if reached {
            self.connection.handle_read_head(now, head);
        }
        reached
    }
}
