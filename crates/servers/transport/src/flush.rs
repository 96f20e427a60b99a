//! What leaves at the end of a batch? Segments, positions, events.

use atoll_base::{FourTuple, Instant, TimerId};
use atoll_ip::{HEADERS_LEN, Link, Outgoing, Route};
use atoll_ipc::slot::{REPLICA_CLOSED, REPLICA_FIN, REPLICA_RESET, SlotState};
use atoll_ipc::{Cause, Event, Memory, Ready};
use atoll_tcp::{Events, State, Transmit};
use atoll_wire::checksum;
use atoll_wire::ipv4::Protocol;
use atoll_wire::tcp::{self, Segment};

use crate::connections::Stage;
use crate::sink::{FrameSink, Offload, TextRef};
use crate::transport::Transport;

/// Offset of the checksum field in a TCP header.
const CHECKSUM_AT: usize = 16;
/// Largest text on the internal link: a 64 KiB frame with all headers.
const INTERNAL_TEXT_MAX: u32 = 65535 - 20 - 60;

impl<M: Memory> Transport<M> {
    /// Sends and publishes what the batch has brought about.
    pub fn flush(&mut self, now: Instant, sink: &mut impl FrameSink<M>) {
        while let Some(frame) = self.ip.poll_frame() {
            match frame.link {
                Link::Outside => sink.send(&frame.bytes, TextRef::None, Offload::default()),
                Link::Inside => sink.send_internal(&frame.bytes, TextRef::None, Offload::default()),
            };
        }
        self.retry_unresolved();
        for _ in 0..self.replies.len() {
            let Some((tuple, segment)) = self.replies.pop_front() else { break };
            self.send_segment(now, sink, &tuple, (atoll_ip::TTL, 0), segment, &TextRef::None);
        }
        let mut touched = core::mem::take(&mut self.touched);
        for &id in &touched {
            if let Some(entry) = self.connections.get_mut(id as usize) {
                entry.touched = false;
                self.flush_connection(now, id, sink);
            }
        }
        touched.clear();
        // What was touched meanwhile (links without room) comes next time; keep the larger allocation.
        touched.append(&mut self.touched);
        self.touched = touched;
        self.flush_datagrams(now, sink);
    }

    fn flush_connection(&mut self, now: Instant, id: u32, sink: &mut impl FrameSink<M>) {
        let sent_all = self.transmit(now, id, sink);
        self.publish(now, id);
        let Some(entry) = self.connections.get_mut(id as usize) else { return };
        match entry.connection.state() {
            State::Closed => return self.remove(id),
            State::TimeWait if sent_all => return self.enter_time_wait(id),
            _ => {}
        }
        // A closing socket keeps its slot only as long as its octets may have to be sent again.
        let connection = &entry.connection;
        if entry.stage == Stage::Closing && connection.send_una() >= connection.send_tail() {
            let session = entry.session;
            self.leave_slot(id);
            self.drop_session_if_done(session);
        }
        let Some(entry) = self.connections.get_mut(id as usize) else { return };
        match entry.connection.next_timeout() {
            Some(at) if at < entry.armed => {
                entry.armed = at;
                self.wheel.arm(TimerId(id), at);
            }
            _ => {}
        }
        if !sent_all {
            self.touch(id);
        }
    }

    /// Sends what the connection wants sent. Returns false if the link, or the next hop, was not ready for all.
    fn transmit(&mut self, now: Instant, id: u32, sink: &mut impl FrameSink<M>) -> bool {
        loop {
            let Some(entry) = self.connections.get_mut(id as usize) else { return true };
            let tuple = entry.tuple;
            let route = self.ip.route(now, tuple.remote.addr);
            let len_max = match route {
                Route::Local => INTERNAL_TEXT_MAX,
                Route::Via { .. } => sink.segment_max(),
                Route::Resolving => {
                    if !entry.unresolved {
                        entry.unresolved = true;
                        self.unresolved.push(id);
                    }
                    return true;
                }
                Route::Unreachable => {
                    // RFC 9293 §3.9.2.2: a soft error; ends an open that has not succeeded.
                    if entry.connection.state() == State::SynSent {
                        return self.fail_connection(id, Cause::HostUnreachable);
                    }
                    0
                }
            };
            let len_max = len_max.max(u32::from(entry.connection.mss()));
            let Some(transmit) = entry.connection.poll_transmit(now, len_max) else { return true };
            if route == Route::Unreachable {
                continue;
            }
            let options = (entry.ttl, entry.tos);
            let Transmit { segment, offset, retransmit } = transmit;
            self.stats.retransmits += u64::from(retransmit);
            let sent = if segment.len == 0 {
                self.send_segment(now, sink, &tuple, options, segment, &TextRef::None)
            } else {
                match self.send_with_text(now, sink, id, segment, offset) {
                    Some(sent) => sent,
                    None => {
                        // The application does not have what it published: it has scribbled over its own socket.
                        self.stats.bad_commands += 1;
                        self.abort(id);
                        continue;
                    }
                }
            };
            if !sent {
                // As lost on the wire: the connection has counted it as sent and will send it again.
                return true;
            }
        }
    }

    /// Sends a segment with text from the application's send buffer. `None`: the text is not there.
    fn send_with_text(
        &mut self,
        now: Instant,
        sink: &mut impl FrameSink<M>,
        id: u32,
        segment: Segment,
        offset: u64,
    ) -> Option<bool> {
        let entry = self.connections.get(id as usize)?;
        if !entry.stage.has_slot() {
            return None;
        }
        let session = self.sessions.get(entry.session as usize)?;
        let slot = session.slot(entry.slot)?;
        let extents = slot.send_extents(&session.layout)?;
        let pieces = extents.pieces(offset, segment.len as usize)?;
        let mut parts = [(0, 0); 4];
        let mut count = 0;
        for (part, (at, len)) in parts.iter_mut().zip(pieces.iter()) {
            *part = (session.layout.send_area + at, len);
            count += 1;
        }
        let text = TextRef::Pieces(&session.arena, &parts[..count]);
        let mss = entry.connection.mss();
        let (tuple, options) = (entry.tuple, (entry.ttl, entry.tos));
        Some(send(&mut self.ip, &mut self.stats, now, sink, &tuple, options, segment, &text, mss))
    }

    fn send_segment(
        &mut self,
        now: Instant,
        sink: &mut impl FrameSink<M>,
        tuple: &FourTuple,
        options: (u8, u8),
        segment: Segment,
        text: &TextRef<'_, M>,
    ) -> bool {
        send(&mut self.ip, &mut self.stats, now, sink, tuple, options, segment, text, u16::MAX)
    }

    /// Publishes positions and flags, and pushes one event, if anything changed for the application.
    fn publish(&mut self, now: Instant, id: u32) {
        let Some(entry) = self.connections.get_mut(id as usize) else { return };
        if !entry.stage.has_slot() {
            return;
        }
        let Some(session) = self.sessions.get_mut(entry.session as usize) else { return };
        let Some(slot) = session.slot(entry.slot) else { return };
        let connection = &mut entry.connection;
        let mut ready = core::mem::take(&mut entry.ready);

        let una = connection.send_una();
        if una != slot.acknowledged() {
            slot.set_acknowledged(una);
            let unsent = connection.send_tail() - una;
            // Tell of room once per write of the application: when everything has gone, or at least a third is free again.
            if !entry.room_told && (unsent == 0 || unsent * 3 <= u64::from(slot.send_limit()) * 2) {
                entry.room_told = true;
                ready |= Ready::OUT;
            }
        }
        if slot.state() == SlotState::Connecting && connection.state().is_synchronized() {
            slot.set_state(SlotState::Open);
            ready |= Ready::OUT;
        }
        let mut flags = u32::from(entry.flags);
        let tail = connection.receive_nxt();
        if tail != slot.receive_tail() {
            slot.set_receive_tail(tail);
            // What the application has read meanwhile counts for the window.
            connection.handle_read_head(now, slot.receive_head());
        }
        slot.set_read_mark(connection.receive_read_mark().unwrap_or(u64::MAX));
        if connection.fin_received() {
            flags |= REPLICA_FIN;
        }
        if connection.state() == State::Closed || connection.state() == State::TimeWait {
            flags |= REPLICA_CLOSED;
        }
        if flags != u32::from(entry.flags) {
            entry.flags = flags as u8;
            slot.set_replica_flags(flags);
            ready |= Ready::IN | Ready::RDHUP;
            if flags & REPLICA_CLOSED != 0 {
                ready |= Ready::HUP | Ready::OUT;
                if flags & REPLICA_RESET != 0 || slot.error() != Cause::None {
                    ready |= Ready::ERR;
                }
            }
        }
        // An offer may have been claimed already, although the command that says so has not been taken yet.
        if !ready.is_empty() && matches!(entry.stage, Stage::Open | Stage::Offered) {
            let bell = slot.bell();
            let event = Event::Ready { slot: entry.slot, generation: entry.generation, ready };
            self.stats.events += 1;
            if !session.tell(&event, Some(bell)) {
                self.stats.event_overflows += 1;
            }
        }
    }

    /// Notes why a connection ended, for the application to find.
    pub(crate) fn note_end(&mut self, id: u32, events: Events) {
        let cause = if events.contains(Events::REFUSED) {
            Cause::ConnectionRefused
        } else if events.contains(Events::RESET) {
            Cause::ConnectionReset
        } else if events.contains(Events::TIMED_OUT) {
            Cause::TimedOut
        } else if events.contains(Events::UNREACHABLE) {
            Cause::HostUnreachable
        } else {
            return;
        };
        let Some(entry) = self.connections.get_mut(id as usize) else { return };
        if !entry.stage.has_slot() {
            return;
        }
        if let Some(slot) = self.sessions.get(entry.session as usize).and_then(|session| session.slot(entry.slot)) {
            slot.set_error(cause);
            slot.set_replica_flags(u32::from(entry.flags) | REPLICA_RESET);
        }
        entry.flags |= REPLICA_RESET as u8;
    }

    fn fail_connection(&mut self, id: u32, cause: Cause) -> bool {
        if let Some(entry) = self.connections.get_mut(id as usize) {
            entry.connection.abort();
            if let Some(slot) = self.sessions.get(entry.session as usize).and_then(|session| session.slot(entry.slot)) {
                slot.set_error(cause);
            }
        }
        true
    }

    /// The connection has ended: its numbers are free. An application that has not closed yet keeps the slot, which says so.
    fn remove(&mut self, id: u32) {
        let Some(entry) = self.connections.get(id as usize) else { return };
        let (stage, lease, tuple, session) = (entry.stage, entry.lease, entry.tuple, entry.session);
        if self.flows.get(&tuple) == Some(&id) {
            self.flows.remove(&tuple);
        }
        match stage {
            Stage::Handshake | Stage::Deferred => self.listeners.handshake_failed(lease),
            Stage::Waiting => self.listeners.waiting_ended(lease, id),
            // Its application has to be told first: it keeps the entry, out of the flow table, until it closes.
            Stage::Offered | Stage::Open => return,
            Stage::Closing => {
                self.leave_slot(id);
                self.drop_session_if_done(session);
            }
            Stage::Detached => {}
        }
        self.wheel.cancel(TimerId(id));
        if self.connections.contains(id as usize) {
            self.connections.remove(id as usize);
        }
    }

    /// Replaces a connection in TIME-WAIT by its record.
    fn enter_time_wait(&mut self, id: u32) {
        let Some(entry) = self.connections.get_mut(id as usize) else { return };
        let tuple = entry.tuple;
        if self.flows.get(&tuple) == Some(&id) {
            if let Some(record) = entry.connection.time_wait() {
                self.time_wait_queue.push_back((record.deadline(), tuple));
                self.time_waits.insert(tuple, record);
            }
            self.flows.remove(&tuple);
        }
        let stage = entry.stage;
        if matches!(stage, Stage::Open | Stage::Offered) {
            // Both directions are closed, but the application still has octets to read, or its close to make.
            return;
        }
        // The record stands for the connection now.
        entry.connection.abort();
        self.remove(id);
    }

    fn retry_unresolved(&mut self) {
        while let Some(next_hop) = self.ip.poll_unreachable() {
            let _ = next_hop;
            self.neighbour_generation = u64::MAX;
        }
        let generation = self.ip.neighbour_generation();
        if generation == self.neighbour_generation {
            return;
        }
        self.neighbour_generation = generation;
        for id in core::mem::take(&mut self.unresolved) {
            if let Some(entry) = self.connections.get_mut(id as usize) {
                entry.unresolved = false;
            }
            self.touch(id);
        }
        for id in core::mem::take(&mut self.unresolved_datagrams) {
            self.touch_datagrams(id);
        }
    }
}

#[allow(clippy::too_many_arguments, reason = "one segment with everything that its frame needs")]
fn send<M: Memory>(
    ip: &mut atoll_ip::Ip,
    stats: &mut crate::stats::Stats,
    now: Instant,
    sink: &mut impl FrameSink<M>,
    tuple: &FourTuple,
    (ttl, tos): (u8, u8),
    mut segment: Segment,
    text: &TextRef<'_, M>,
    mss: u16,
) -> bool {
    segment.src_port = tuple.local.port;
    segment.dst_port = tuple.remote.port;
    let (dst_mac, internal) = match ip.route(now, tuple.remote.addr) {
        Route::Local => (ip.mac(), true),
        Route::Via { mac } => (mac, false),
        Route::Resolving | Route::Unreachable => return true,
    };
    let mut header = [0; tcp::HEADER_MAX];
    let header_len = tcp::emit(&segment, &mut header);
    let text_len = text.len();
    let payload_len = header_len + text_len;
    let mut headers = [0; HEADERS_LEN + tcp::HEADER_MAX];
    let outgoing = Outgoing {
        dst_mac,
        src: tuple.local.addr,
        dst: tuple.remote.addr,
        protocol: Protocol::TCP,
        payload_len,
        tos,
        ttl,
        dont_fragment: true,
    };
    ip.emit_headers(&mut headers, &outgoing);
    let pseudo = checksum::pseudo_header(tuple.local.addr, tuple.remote.addr, Protocol::TCP.0, payload_len);
    header[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&pseudo.fold().to_be_bytes());
    headers[HEADERS_LEN..HEADERS_LEN + header_len].copy_from_slice(&header[..header_len]);
    let offload = Offload {
        needs_checksum: true,
        csum_start: HEADERS_LEN as u16,
        csum_offset: CHECKSUM_AT as u16,
        gso_size: (text_len > usize::from(mss)).then_some(mss),
    };
    stats.segments_out += 1;
    let headers = &headers[..HEADERS_LEN + header_len];
    let text = match text {
        TextRef::None => TextRef::None,
        TextRef::Slice(bytes) => TextRef::Slice(bytes),
        TextRef::Pieces(memory, parts) => TextRef::Pieces(*memory, parts),
    };
    if internal { sink.send_internal(headers, text, offload) } else { sink.send(headers, text, offload) }
}
