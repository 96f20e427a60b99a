//! What happens to a frame?

use alloc::boxed::Box;
use alloc::vec::Vec;

use atoll_base::{Duration, Endpoint, FourTuple, Instant};
use atoll_connmgr::Refused;
use atoll_ip::{ChecksumOffload, ErrorKind, Link, NetworkError, Received};
use atoll_ipc::buffer::Extents;
use atoll_ipc::command::SocketOption;
use atoll_ipc::{Memory, Ready};
use atoll_tcp::{Connection, Events, KeepAlive, Path, Settings, State, TimeWaitAnswer, Unreachable, Verdict};
use atoll_wire::ipv4::Protocol;
use atoll_wire::tcp::{self, Flags, Segment};

use crate::connections::{Entry, Stage};
use crate::transport::Transport;

/// Most octets kept for a connection that no application has yet.
const EARLY_MAX: usize = 16384;
/// Replies without connection that wait for a flush at most.
const REPLIES_MAX: usize = 1024;
/// MSS on the internal link: nothing is cut there, and a frame is at most 64 KiB.
const INTERNAL_MSS: u16 = 65495;

impl<M: Memory> Transport<M> {
    /// Takes a frame (from the Ethernet header on) that arrived over the internal or the outside link.
    pub fn handle_frame(&mut self, now: Instant, frame: &[u8], offload: ChecksumOffload, internal: bool) {
        let link = if internal { Link::Inside } else { Link::Outside };
        match self.ip.handle_frame(now, link, frame, offload) {
            Received::Tcp { src, dst, segment, .. } => self.handle_tcp(now, src, dst, segment, internal),
            Received::Udp { src, dst, payload, .. } => {
                if !self.handle_datagram(src, dst, payload) {
                    self.stats.datagrams_dropped += 1;
                    self.ip.unreachable(now, link, frame, atoll_wire::icmp::code::PORT);
                }
            }
            Received::Error(error) => self.handle_network_error(now, &error),
            Received::Consumed | Received::Dropped(_) => {}
        }
    }

    fn handle_tcp(&mut self, now: Instant, src: u32, dst: u32, bytes: &[u8], internal: bool) {
        let Ok((segment, header_len)) = tcp::parse(bytes) else {
            self.stats.segments_dropped += 1;
            return;
        };
        self.stats.segments_in += 1;
        let text = bytes.get(header_len..).unwrap_or_default();
        let tuple =
            FourTuple { local: Endpoint::new(dst, segment.dst_port), remote: Endpoint::new(src, segment.src_port) };
        if let Some(&id) = self.flows.get(&tuple) {
            self.handle_segment(now, id, segment, text);
        } else if !self.time_waits.is_empty() && self.time_waits.contains_key(&tuple) {
            self.handle_time_wait(now, tuple, &segment, internal);
        } else {
            self.handle_stranger(now, tuple, &segment, internal);
        }
    }

    fn handle_segment(&mut self, now: Instant, id: u32, segment: Segment, text: &[u8]) {
        let Some(entry) = self.connections.get_mut(id as usize) else { return };
        let mut segment = segment;
        if segment.len > 0
            && let Some(wanted) = entry.connection.text_range(&segment)
            && !make_room(entry, &mut self.sessions, wanted.offset + u64::from(wanted.len))
        {
            segment = segment.without_text();
        }
        let input = entry.connection.handle_segment(now, &segment);
        if let Verdict::Dropped(_) = input.verdict {
            self.stats.segments_dropped += 1;
        }
        if let Some(taken) = input.text {
            let start = taken.skip as usize;
            let bytes = text.get(start..start + taken.len as usize).unwrap_or_default();
            place(entry, &self.sessions, taken.offset, bytes);
        }
        if input.events.contains(Events::ANSWER_RESET) {
            let tuple = entry.tuple;
            self.refuse(tuple, &segment);
        }
        self.note_events(now, id, input.events);
        self.touch(id);
    }

    fn handle_time_wait(&mut self, now: Instant, tuple: FourTuple, segment: &Segment, internal: bool) {
        let Some(record) = self.time_waits.get_mut(&tuple) else { return };
        match record.handle_segment(now, segment) {
            TimeWaitAnswer::Ack(reply) => self.reply(tuple, reply),
            TimeWaitAnswer::Reuse { .. } => {
                // Our initial sequence numbers grow with time (RFC 6528), faster than a connection can use them up.
                self.time_waits.remove(&tuple);
                self.handle_stranger(now, tuple, segment, internal);
            }
            TimeWaitAnswer::Drop => {}
            TimeWaitAnswer::Delete => {
                self.time_waits.remove(&tuple);
            }
        }
    }

    /// A segment of no connection.
    fn handle_stranger(&mut self, now: Instant, tuple: FourTuple, segment: &Segment, internal: bool) {
        if !segment.has(Flags::SYN) || segment.has(Flags::ACK) || segment.has(Flags::RST) {
            return self.refuse(tuple, segment);
        }
        if self.connections.len() >= self.config.connections_max {
            self.stats.syn_drops += 1;
            return;
        }
        match self.listeners.handle_syn(tuple.local, tuple.remote) {
            Err(Refused::NoListener) => self.refuse(tuple, segment),
            Err(Refused::Full) => self.stats.syn_drops += 1,
            Ok(lease) => {
                let mut settings = self.settings();
                let (mut ttl, mut tos) = (atoll_ip::TTL, 0);
                if let Some(listener) = self.listeners.get(lease) {
                    for (option, value) in &listener.options {
                        apply_to_settings(&mut settings, *option, *value);
                        match option {
                            SocketOption::TimeToLive => ttl = u8::try_from(*value).unwrap_or(ttl),
                            SocketOption::TypeOfService => tos = u8::try_from(*value).unwrap_or(tos),
                            _ => {}
                        }
                    }
                }
                let iss = atoll_tcp::initial_sequence(&self.secrets.sequence, &tuple, now);
                let offset = atoll_tcp::timestamp_offset(&self.secrets.sequence, &tuple);
                let path = self.path(internal);
                let connection = Connection::accept(now, segment, iss, offset, path, &settings);
                let mut entry = new_entry(connection, tuple, Stage::Handshake);
                (entry.lease, entry.ttl, entry.tos) = (lease, ttl, tos);
                self.insert(entry);
            }
        }
    }

    fn refuse(&mut self, tuple: FourTuple, segment: &Segment) {
        if let Some(reply) = atoll_tcp::answer_for_closed(segment) {
            self.stats.resets_out += 1;
            self.reply(tuple, reply);
        }
    }

    /// Queues a segment that belongs to no connection.
    pub(crate) fn reply(&mut self, tuple: FourTuple, segment: Segment) {
        if self.replies.len() < REPLIES_MAX {
            self.replies.push_back((tuple, segment));
        }
    }

    /// Adds a connection to the tables, to be flushed.
    pub(crate) fn insert(&mut self, entry: Entry) -> u32 {
        let tuple = entry.tuple;
        let id = self.connections.insert(entry) as u32;
        self.flows.insert(tuple, id);
        self.touch(id);
        id
    }

    /// Acts on what the connection says has happened. Publishing is the flush's business.
    pub(crate) fn note_events(&mut self, now: Instant, id: u32, events: Events) {
        if events.is_empty() {
            return;
        }
        if events.contains(Events::ESTABLISHED) {
            self.note_established(now, id);
        }
        let Some(entry) = self.connections.get_mut(id as usize) else { return };
        if events.contains(Events::READABLE) {
            entry.ready |= Ready::IN;
            if entry.stage == Stage::Deferred {
                self.offer_deferred(now, id);
            }
        }
        let Some(entry) = self.connections.get_mut(id as usize) else { return };
        if events.contains(Events::FIN) {
            entry.ready |= Ready::IN | Ready::RDHUP;
        }
        if entry.connection.state() == State::Closed {
            self.note_end(id, events);
        }
    }

    fn handle_network_error(&mut self, now: Instant, error: &NetworkError) {
        if error.protocol == Protocol::UDP {
            return self.handle_datagram_error(error);
        }
        let (Some(&id), Some(seq)) = (self.flows.get(&error.tuple), error.quoted_seq) else { return };
        let Some(entry) = self.connections.get_mut(id as usize) else { return };
        let events = match error.kind {
            ErrorKind::FragNeeded { mtu } => {
                entry.connection.handle_mtu(now, mtu, seq);
                Events::NONE
            }
            ErrorKind::Unreachable { code } => {
                // RFC 5461: protocol and port unreachable are hard, the others soft.
                let kind = if matches!(code, 2 | 3) { Unreachable::Hard } else { Unreachable::Soft };
                entry.connection.handle_unreachable(now, kind, seq)
            }
            _ => Events::NONE,
        };
        self.note_events(now, id, events);
        self.touch(id);
    }

    /// The settings of a new connection.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            receive_capacity: self.config.receive_buffer,
            receive_capacity_max: self.config.receive_buffer_max,
            ..Settings::default()
        }
    }

    /// What is known about the way of a new connection.
    pub(crate) fn path(&self, internal: bool) -> Path {
        Path { mss: if internal { INTERNAL_MSS } else { self.ip.mtu() - 40 } }
    }
}

/// An entry in its first state.
pub(crate) fn new_entry(connection: Connection, tuple: FourTuple, stage: Stage) -> Entry {
    Entry {
        connection,
        tuple,
        lease: 0,
        session: 0,
        slot: atoll_base::SlotId(0),
        generation: 0,
        receive: Extents::default(),
        early: None,
        armed: Instant::FAR_FUTURE,
        ready: Ready::default(),
        stage,
        touched: false,
        room_told: true,
        ttl: atoll_ip::TTL,
        tos: 0,
        flags: 0,
        unresolved: false,
    }
}

/// Makes room for octets before `end`. Returns false if there is none.
fn make_room<M: Memory>(entry: &mut Entry, sessions: &mut slab::Slab<crate::session::Session<M>>, end: u64) -> bool {
    if !entry.stage.has_slot() {
        return matches!(entry.stage, Stage::Handshake | Stage::Deferred | Stage::Waiting) && end <= EARLY_MAX as u64;
    }
    if entry.stage == Stage::Closing {
        return false;
    }
    let Some(session) = sessions.get(entry.session as usize) else { return false };
    let connection = &entry.connection;
    let (head, high) = (connection.receive_head(), connection.receive_max());
    let size_max = connection.settings().receive_capacity.next_power_of_two() as usize;
    let before = entry.receive;
    let room = entry.receive.reserve(&session.pool, &session.pool_memory, head, high, end, size_max);
    if entry.receive != before
        && let Some(slot) = session.slot(entry.slot)
    {
        slot.set_receive_extents(&entry.receive);
    }
    room >= end
}

/// Writes text to its place in the stream.
fn place<M: Memory>(entry: &mut Entry, sessions: &slab::Slab<crate::session::Session<M>>, offset: u64, bytes: &[u8]) {
    if entry.stage.has_slot() {
        if let Some(session) = sessions.get(entry.session as usize)
            && let Some(pieces) = entry.receive.pieces(offset, bytes.len())
        {
            pieces.write(&session.arena, session.layout.receive_area, bytes);
        }
        return;
    }
    let early = entry.early.get_or_insert_with(|| Box::new(Vec::new()));
    let start = offset as usize;
    let end = start + bytes.len();
    if end <= EARLY_MAX {
        if early.len() < end {
            early.resize(end, 0);
        }
        early[start..end].copy_from_slice(bytes);
    }
}

/// Applies an inherited option to the settings of a new connection.
pub(crate) fn apply_to_settings(settings: &mut Settings, option: SocketOption, value: u32) {
    let seconds = Duration::from_secs(u64::from(value));
    match option {
        SocketOption::NoDelay => settings.nodelay = value != 0,
        SocketOption::Cork => settings.cork = value != 0,
        SocketOption::KeepAlive => {
            settings.keep_alive = (value != 0).then(|| settings.keep_alive.unwrap_or_default());
        }
        // The library tells the times again whenever it turns keep-alive on.
        SocketOption::KeepIdle => {
            settings.keep_alive = settings.keep_alive.map(|keep| KeepAlive { idle: seconds, ..keep });
        }
        SocketOption::KeepInterval => {
            settings.keep_alive = settings.keep_alive.map(|keep| KeepAlive { interval: seconds, ..keep });
        }
        SocketOption::KeepCount => {
            let probes = u8::try_from(value).unwrap_or(u8::MAX);
            settings.keep_alive = settings.keep_alive.map(|keep| KeepAlive { probes, ..keep });
        }
        SocketOption::UserTimeout => {
            settings.user_timeout = (value != 0).then(|| Duration::from_millis(u64::from(value)));
        }
        SocketOption::QuickAck => settings.quick_ack = value != 0,
        SocketOption::MaxSegment => settings.mss_max = u16::try_from(value).ok().filter(|mss| *mss >= 88),
        SocketOption::ReceiveBuffer => settings.receive_capacity = value.clamp(2304, settings.receive_capacity_max),
        SocketOption::Congestion => {
            settings.congestion = if value == 1 { atoll_tcp::Algorithm::NewReno } else { atoll_tcp::Algorithm::Cubic };
        }
        SocketOption::Linger2 => settings.linger2 = seconds,
        SocketOption::SendBuffer
        | SocketOption::DeferAccept
        | SocketOption::TimeToLive
        | SocketOption::TypeOfService
        | SocketOption::Broadcast => {}
    }
}
