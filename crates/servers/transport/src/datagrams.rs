//! UDP sockets: records in socket buffers on one side, datagrams on the other. RFC 768, udp(7).

use alloc::vec::Vec;

use atoll_base::{Endpoint, FourTuple, Instant, SlotId};
use atoll_ip::{ErrorKind, HEADERS_LEN, NetworkError, Outgoing, Route};
use atoll_ipc::buffer::Extents;
use atoll_ipc::command::SocketOption;
use atoll_ipc::slot::SlotState;
use atoll_ipc::{Cause, Event, Memory, Ready};
use atoll_udp::{DATAGRAM_MAX, RECORD_LEN, Record, padded_len};
use atoll_wire::ipv4::Protocol;
use atoll_wire::{checksum, udp};

use crate::session::Target;
use crate::sink::{FrameSink, Offload, TextRef};
use crate::transport::Transport;

/// Bytes of a UDP header, and where its checksum is.
const UDP_HEADER: usize = 8;
const CHECKSUM_AT: usize = 6;
/// Datagrams sent per socket and flush at most.
const BURST: usize = 64;

/// One datagram socket on this replica.
#[derive(Debug)]
pub(crate) struct DatagramSocket {
    pub(crate) session: u32,
    pub(crate) slot: SlotId,
    pub(crate) generation: u32,
    pub(crate) local: Endpoint,
    /// Port 0: not connected.
    pub(crate) remote: Endpoint,
    reuse_port: bool,
    receive: Extents,
    head: u64,
    tail: u64,
    sent: u64,
    ready: Ready,
    touched: bool,
    unresolved: bool,
    closing: bool,
    ttl: u8,
    tos: u8,
    buffer: u32,
}

impl DatagramSocket {
    /// Octets of records that wait to be read.
    pub(crate) fn queued(&self) -> u64 {
        self.tail - self.head
    }
}

/// What became of one record to send.
enum Outcome {
    Sent,
    Failed(Cause),
    NotNow,
}

impl<M: Memory> Transport<M> {
    pub(crate) fn touch_datagrams(&mut self, id: u32) {
        if let Some(socket) = self.datagrams.get_mut(id as usize)
            && !socket.touched
        {
            socket.touched = true;
            self.touched_datagrams.push(id);
        }
    }

    pub(crate) fn open_datagrams(
        &mut self,
        index: u32,
        slot: SlotId,
        generation: u32,
        local: Endpoint,
        remote: Endpoint,
        reuse_port: bool,
    ) {
        if local.port == 0 || generation == 0 || !self.is_own(local.addr) {
            self.stats.bad_commands += 1;
            return self.fail_slot(index, slot, generation, Cause::Invalid);
        }
        // Opened again with another peer: connect(2) on a datagram socket.
        if let Target::Datagrams(id) = self.target(index, slot, generation)
            && let Some(socket) = self.datagrams.get_mut(id as usize)
        {
            socket.remote = remote;
            socket.local.addr = local.addr;
            return;
        }
        let Some(session) = self.sessions.get_mut(index as usize) else { return };
        if !session.may_open(slot) {
            self.stats.bad_commands += 1;
            return;
        }
        let socket = DatagramSocket {
            session: index,
            slot,
            generation,
            local,
            remote,
            reuse_port,
            receive: Extents::default(),
            head: 0,
            tail: 0,
            sent: 0,
            ready: Ready::default(),
            touched: false,
            unresolved: false,
            closing: false,
            ttl: atoll_ip::TTL,
            tos: 0,
            buffer: self.config.datagram_buffer,
        };
        let id = self.datagrams.insert(socket) as u32;
        self.datagram_ports.entry(local.port).or_default().push(id);
        session.set_target(slot, generation, Target::Datagrams(id));
        if let Some(lines) = session.slot(slot) {
            lines.replica_reset(generation, SlotState::Open, self.config.datagram_buffer);
            lines.set_addresses(local, remote);
        }
        self.page.set_port(true, local.port, true);
        self.touch_datagrams(id);
    }

    /// The application is done with the socket; what it wrote before is still sent.
    pub(crate) fn close_datagrams(&mut self, id: u32) {
        if let Some(socket) = self.datagrams.get_mut(id as usize) {
            socket.closing = true;
        }
        self.touch_datagrams(id);
    }

    /// Everything is sent: the slot and the port are free.
    fn end_datagrams(&mut self, id: u32) {
        let mut socket = self.datagrams.remove(id as usize);
        let (index, slot, generation, port) = (socket.session, socket.slot, socket.generation, socket.local.port);
        if let Some(ids) = self.datagram_ports.get_mut(&port) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.datagram_ports.remove(&port);
                self.page.set_port(true, port, false);
            }
        }
        if let Some(session) = self.sessions.get_mut(index as usize) {
            socket.receive.release_all(&session.pool, &session.pool_memory);
            let bell = session.slot(slot).map(|lines| {
                lines.set_state(SlotState::Free);
                lines.bell()
            });
            session.free_slot(slot);
            session.tell(&Event::SlotDone { slot, generation }, bell);
        }
        self.drop_session_if_done(index);
    }

    pub(crate) fn set_datagram_option(&mut self, id: u32, option: SocketOption, value: u32) {
        let Some(socket) = self.datagrams.get_mut(id as usize) else { return };
        match option {
            SocketOption::TimeToLive => socket.ttl = u8::try_from(value).unwrap_or(socket.ttl).max(1),
            SocketOption::TypeOfService => socket.tos = u8::try_from(value).unwrap_or(socket.tos),
            SocketOption::ReceiveBuffer => socket.buffer = value.clamp(2304, self.config.receive_buffer_max),
            _ => {}
        }
    }

    /// Delivers a datagram. Returns false if no socket wants it.
    pub(crate) fn handle_datagram(&mut self, src: Endpoint, dst: Endpoint, payload: &[u8]) -> bool {
        let Some(id) = self.find_datagram_socket(src, dst) else { return false };
        let Some(socket) = self.datagrams.get_mut(id as usize) else { return false };
        let Some(session) = self.sessions.get_mut(socket.session as usize) else { return false };
        let Some(slot) = session.slot(socket.slot) else { return false };
        // A head outside what we have written is nonsense of the application: it only loses its own datagrams.
        socket.head = slot.receive_head().clamp(socket.head, socket.tail);
        let len = payload.len() as u32;
        let end = socket.tail + padded_len(len);
        let limit = u64::from(socket.buffer);
        let before = socket.receive;
        let size_max = socket.buffer.next_power_of_two() as usize;
        let room = socket.receive.reserve(&session.pool, &session.pool_memory, socket.head, socket.tail, end, size_max);
        if socket.receive != before {
            slot.set_receive_extents(&socket.receive);
        }
        let record = atoll_udp::encode(&Record { len, peer: src, flags: atoll_udp::Flags::NONE });
        let places = (
            socket.receive.pieces(socket.tail, RECORD_LEN),
            socket.receive.pieces(socket.tail + RECORD_LEN as u64, payload.len()),
        );
        let (true, (Some(head), Some(body))) = (room >= end && end - socket.head <= limit, places) else {
            self.stats.datagrams_dropped += 1;
            return true;
        };
        head.write(&session.arena, session.layout.receive_area, &record);
        body.write(&session.arena, session.layout.receive_area, payload);
        socket.tail = end;
        slot.set_receive_tail(end);
        socket.ready |= Ready::IN;
        self.stats.datagrams_in += 1;
        self.touch_datagrams(id);
        true
    }

    pub(crate) fn handle_datagram_error(&mut self, error: &NetworkError) {
        let FourTuple { local, remote } = error.tuple;
        let Some(id) = self.find_datagram_socket(remote, local) else { return };
        let Some(socket) = self.datagrams.get_mut(id as usize) else { return };
        // udp(7): errors are passed to connected sockets only.
        if socket.remote != remote {
            return;
        }
        let cause = match error.kind {
            ErrorKind::Unreachable { code: 3 } => Cause::ConnectionRefused,
            ErrorKind::Unreachable { .. } => Cause::HostUnreachable,
            ErrorKind::FragNeeded { .. } => Cause::MessageTooLong,
            _ => return,
        };
        let slot = self.sessions.get(socket.session as usize).and_then(|session| session.slot(socket.slot));
        if let Some(slot) = slot {
            slot.set_error(cause);
        }
        socket.ready |= Ready::ERR | Ready::IN | Ready::OUT;
        self.touch_datagrams(id);
    }

    /// The socket for a datagram: connected to its source first, then bound to its address, then to any. Sockets that share a port
    /// are chosen by the source.
    fn find_datagram_socket(&self, src: Endpoint, dst: Endpoint) -> Option<u32> {
        let ids = self.datagram_ports.get(&dst.port)?;
        let score = |socket: &DatagramSocket| {
            let connected = socket.remote.port != 0;
            if (connected && socket.remote != src) || (socket.local.addr != 0 && socket.local.addr != dst.addr) {
                return None;
            }
            Some(u8::from(connected) * 2 + u8::from(socket.local.addr != 0))
        };
        let scored = || ids.iter().filter_map(|id| Some((score(self.datagrams.get(*id as usize)?)?, *id)));
        let best = scored().map(|(score, _)| score).max()?;
        let candidates: Vec<u32> = scored().filter(|(score, _)| *score == best).map(|(_, id)| id).collect();
        let shared = candidates.iter().all(|id| self.datagrams.get(*id as usize).is_some_and(|s| s.reuse_port));
        if candidates.len() == 1 || !shared {
            return candidates.last().copied();
        }
        let hash = self.hash(&FourTuple { local: dst, remote: src });
        candidates.get((hash % candidates.len() as u64) as usize).copied()
    }

    pub(crate) fn flush_datagrams(&mut self, now: Instant, sink: &mut impl FrameSink<M>) {
        for id in core::mem::take(&mut self.touched_datagrams) {
            if let Some(socket) = self.datagrams.get_mut(id as usize) {
                socket.touched = false;
                self.flush_datagram_socket(now, id, sink);
            }
        }
    }

    fn flush_datagram_socket(&mut self, now: Instant, id: u32, sink: &mut impl FrameSink<M>) {
        for _ in 0..BURST {
            match self.send_datagram(now, id, sink) {
                Some(Outcome::Sent) => self.stats.datagrams_out += 1,
                Some(Outcome::Failed(cause)) => {
                    let Some(socket) = self.datagrams.get_mut(id as usize) else { return };
                    let slot = self.sessions.get(socket.session as usize).and_then(|s| s.slot(socket.slot));
                    if let Some(slot) = slot {
                        slot.set_error(cause);
                    }
                    socket.ready |= Ready::ERR | Ready::OUT;
                }
                Some(Outcome::NotNow) | None => break,
            }
        }
        let Some(socket) = self.datagrams.get_mut(id as usize) else { return };
        let Some(session) = self.sessions.get_mut(socket.session as usize) else { return };
        let Some(slot) = session.slot(socket.slot) else { return };
        let unsent = slot.send_tail() > socket.sent;
        let more = unsent && !socket.unresolved;
        if socket.closing && !unsent {
            return self.end_datagrams(id);
        }
        if slot.acknowledged() != socket.sent {
            slot.set_acknowledged(socket.sent);
            socket.ready |= Ready::OUT;
        }
        socket.head = slot.receive_head().clamp(socket.head, socket.tail);
        if socket.receive.release(&session.pool, &session.pool_memory, socket.head, socket.tail) {
            slot.set_receive_extents(&socket.receive);
        }
        let ready = core::mem::take(&mut socket.ready);
        if !ready.is_empty() {
            let bell = slot.bell();
            let event = Event::Ready { slot: socket.slot, generation: socket.generation, ready };
            self.stats.events += 1;
            if !session.tell(&event, Some(bell)) {
                self.stats.event_overflows += 1;
            }
        }
        if more {
            self.touch_datagrams(id);
        }
    }

    /// Sends the next record of a socket; `None`: there is none.
    fn send_datagram(&mut self, now: Instant, id: u32, sink: &mut impl FrameSink<M>) -> Option<Outcome> {
        let socket = self.datagrams.get_mut(id as usize)?;
        let session = self.sessions.get(socket.session as usize)?;
        let slot = session.slot(socket.slot)?;
        let tail = slot.send_tail();
        let available = tail.checked_sub(socket.sent).filter(|waiting| *waiting > 0)?;
        let extents = slot.send_extents(&session.layout);
        let mut header = [0; RECORD_LEN];
        let read = extents.as_ref().and_then(|extents| extents.pieces(socket.sent, RECORD_LEN)).map(|pieces| {
            pieces.read(&session.arena, session.layout.send_area, &mut header);
            atoll_udp::decode(&header, available)
        });
        let Some(Ok(record)) = read else {
            // Scribbled over: what it wrote is lost, the socket goes on.
            socket.sent = tail;
            self.stats.bad_commands += 1;
            return Some(Outcome::Failed(Cause::Invalid));
        };
        let text_at = socket.sent + RECORD_LEN as u64;
        let next = socket.sent + padded_len(record.len);
        let remote = if record.peer.port != 0 { record.peer } else { socket.remote };
        let (dst_mac, internal) = match self.ip.route(now, remote.addr) {
            Route::Local => (self.ip.mac(), true),
            Route::Via { mac } => (mac, false),
            Route::Resolving => {
                if !socket.unresolved {
                    socket.unresolved = true;
                    self.unresolved_datagrams.push(id);
                }
                return Some(Outcome::NotNow);
            }
            Route::Unreachable => {
                socket.sent = next;
                return Some(Outcome::Failed(Cause::HostUnreachable));
            }
        };
        socket.unresolved = false;
        let len_max = if internal { DATAGRAM_MAX } else { u32::from(self.ip.mtu()) - 28 };
        if record.len > len_max || remote.port == 0 {
            socket.sent = next;
            let cause = if remote.port == 0 { Cause::Invalid } else { Cause::MessageTooLong };
            return Some(Outcome::Failed(cause));
        }
        let Some(pieces) = extents.and_then(|extents| extents.pieces(text_at, record.len as usize)) else {
            socket.sent = tail;
            self.stats.bad_commands += 1;
            return Some(Outcome::Failed(Cause::Invalid));
        };
        let mut parts = [(0, 0); 4];
        let mut count = 0;
        for (part, (at, len)) in parts.iter_mut().zip(pieces.iter()) {
            *part = (session.layout.send_area + at, len);
            count += 1;
        }
        let src = match socket.local.addr {
            0 if remote.is_loopback() => remote.addr,
            0 => self.ip.addr(),
            addr => addr,
        };
        let local = Endpoint::new(src, socket.local.port);
        let payload_len = UDP_HEADER + record.len as usize;
        let mut headers = [0; HEADERS_LEN + UDP_HEADER];
        let outgoing = Outgoing {
            dst_mac,
            src,
            dst: remote.addr,
            protocol: Protocol::UDP,
            payload_len,
            tos: socket.tos,
            ttl: socket.ttl,
            dont_fragment: false,
        };
        self.ip.emit_headers(&mut headers, &outgoing);
        let pseudo = checksum::pseudo_header(src, remote.addr, Protocol::UDP.0, payload_len);
        let header = udp::Header {
            src_port: local.port,
            dst_port: remote.port,
            payload_len: record.len as u16,
            checksum: pseudo.fold(),
        };
        udp::emit(&header, &mut headers[HEADERS_LEN..]);
        let offload = Offload {
            needs_checksum: true,
            csum_start: HEADERS_LEN as u16,
            csum_offset: CHECKSUM_AT as u16,
            gso_size: None,
        };
        let text = TextRef::Pieces(&session.arena, &parts[..count]);
        let sent =
            if internal { sink.send_internal(&headers, text, offload) } else { sink.send(&headers, text, offload) };
        if sent {
            socket.sent = next;
            Some(Outcome::Sent)
        } else {
            Some(Outcome::NotNow)
        }
    }
}
