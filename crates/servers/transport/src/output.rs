//! What leaves in a flush, and over which link?

use atoll_base::{Duration, FourTuple, Instant};
use atoll_ip::{HEADERS_LEN_MAX, Ip, Link, Outgoing, Route, TTL, headers_len};
use atoll_ipc::ledger::Work;
use atoll_ipc::page::{REPLICAS_MAX, Stat};
use atoll_ipc::{Cause, Memory};
use atoll_tcp::{State, Transmit};
use atoll_wire::fast_open::{self, FastOpen};
use atoll_wire::ipv4::{self, Protocol};
use atoll_wire::tcp::{self, Segment};
use atoll_wire::{Mac, checksum};

use crate::entry::{Entry, Flags};
use crate::flows::{Locals, Name};
use crate::session::{LATER_MAX, Occupant};
use crate::sink::{Absolute, FrameSink, Offload, TextRef};
use crate::transport::Transport;

/// A segment that a link did not take. The TCB counts it as sent, so it is kept until the link takes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stalled {
    index: u32,
    name: Name,
    transmit: Transmit,
}

/// How a packet goes out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) internal: bool,
    pub(crate) mac: Mac,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
}

/// What became of a connection's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Everything that was due has left.
    Done,
    /// The link is full: to be continued in a later flush.
    Blocked,
    /// Its session has sent as much as it may in one flush: it goes on in the next.
    Later,
    /// The neighbour is being asked for.
    Unresolved,
}

/// What frames may cost beyond what is usual before the others of their batch wait for the next round, in the units of
/// [`crate::commands::cost`].
const FRAMES_COST_MAX: u32 = 1024;
/// Where the TCP checksum lies in its header.
const CHECKSUM_AT: usize = 16;
/// Most text that one frame of the internal link carries: a packet has 65535 octets.
const INTERNAL_SEGMENT_MAX: u32 = (ipv4::PAYLOAD_MAX - tcp::HEADER_MAX) as u32;

impl<M: Memory> Transport<M> {
    /// Sends what is due, publishes what has changed to the slots, and tells the applications. Once per round; ring the bells
    /// afterwards.
    pub fn flush(&mut self, now: Instant, out: &mut impl FrameSink<M>) {
        self.flush_is_due = false;
        self.frames_cost = 0;
        self.flushes = self.flushes.wrapping_add(1);
        let retries = self.retry_at != Instant::FAR_FUTURE;
        self.retry_at = Instant::FAR_FUTURE;
        self.flush_ip(now, out);
        self.take_up();
        self.requeue_resolved();
        let mut full = Full::default();
        if retries {
            self.retry_full_links(now, out, &mut full);
        }
        self.commit();
        self.discard_if_due();
        self.flush_answers(now, out, &mut full);
        let mut dirty = core::mem::take(&mut self.dirty);
        for index in dirty.drain(..) {
            self.flush_connection(now, index, out, &mut full);
        }
        // What became dirty meanwhile (a link that is full) waits for the next flush.
        dirty.append(&mut self.dirty);
        self.dirty = dirty;
        self.mark(Work::Nothing);
        self.flush_datagrams(now, out);
        self.flush_ip(now, out);
        self.conclude();
    }

    /// Whether a peer waits to hear from us, or frames that are for many sockets have taken long: the caller should not take more frames before it
    /// flushes.
    pub fn is_flush_due(&self) -> bool {
        self.flush_is_due || self.frames_cost >= FRAMES_COST_MAX
    }

    fn flush_connection(&mut self, now: Instant, index: u32, out: &mut impl FrameSink<M>, full: &mut Full) {
        let Some(entry) = self.entries.get_mut(index) else { return };
        entry.flags.clear(Flags::DIRTY);
        self.mark(Work::Output(index));
        match self.transmit(now, index, out, full) {
            Turn::Done => {}
            Turn::Blocked => {
                self.blocked.push(index);
                self.retry_at = now + RETRY_AFTER;
            }
            Turn::Later => self.put_off(index),
            Turn::Unresolved => {
                if let Some(entry) = self.entries.get_mut(index)
                    && !entry.flags.has(Flags::UNRESOLVED)
                {
                    entry.flags.set(Flags::UNRESOLVED);
                    self.unresolved.push(index);
                }
            }
        }
        self.settle(now, index);
    }

    /// The connection goes on in a later flush: its session has had its share of this one.
    fn put_off(&mut self, index: u32) {
        let Some(entry) = self.entries.get_mut(index).filter(|entry| !entry.flags.has(Flags::LATER)) else { return };
        let Some(place) = entry.place else { return };
        if let Some(session) = self.sessions.get_mut(place.session as usize).and_then(Option::as_mut) {
            entry.flags.set(Flags::LATER);
            session.later.push_back(Occupant::Connection(index));
            self.put_off.insert(place.session);
        }
    }

    /// What was put off goes on, of each session so much as may have a share.
    fn take_up(&mut self) {
        let mut next = self.put_off.first().copied();
        while let Some(place) = next {
            next = self.put_off.range(place + 1..).next().copied();
            let count = self.session(place).map_or(0, |session| session.later.len().min(LATER_MAX));
            for _ in 0..count {
                match self.session_mut(place).and_then(|session| session.later.pop_front()) {
                    Some(Occupant::Connection(index)) => {
                        // Another one may have its place.
                        let is_it = |entry: &mut Entry| entry.flags.take(Flags::LATER);
                        if self.entries.get_mut(index).is_some_and(is_it) {
                            self.touch(index);
                        }
                    }
                    Some(Occupant::Datagram(index)) => self.datagrams.take_up(index),
                    _ => {}
                }
            }
            if self.session(place).is_none_or(|session| session.later.is_empty()) {
                self.put_off.remove(&place);
            }
        }
    }

    /// Sends everything that the TCB wants sent now.
    fn transmit(&mut self, now: Instant, index: u32, out: &mut impl FrameSink<M>, full: &mut Full) -> Turn {
        let Some(entry) = self.entries.get_mut(index) else { return Turn::Done };
        let reachable = match route(&mut self.ip, &self.locals, now, entry) {
            Route::Local | Route::Via { .. } => true,
            Route::Resolving => return Turn::Unresolved,
            Route::Unreachable => {
                if entry.connection.state() == State::SynSent {
                    entry.cause = Cause::HostUnreachable;
                    entry.connection.abort();
                }
                // Whatever is sent now is lost, as if the network had dropped it.
                false
            }
        };
        let internal = entry.flags.has(Flags::INTERNAL);
        let link = if internal {
            owner(&self.config, &self.owners, &self.locals.tuple(&entry.name).reversed()).into()
        } else {
            OUTSIDE
        };
        if full.is_full(link) {
            return Turn::Blocked;
        }
        let len_max = if internal { INTERNAL_SEGMENT_MAX } else { out.segment_max().min(INTERNAL_SEGMENT_MAX) };
        loop {
            let Some(entry) = self.entries.get_mut(index) else { return Turn::Done };
            let session = entry.place.and_then(|place| self.sessions.get_mut(place.session as usize)?.as_mut());
            if let Some(session) = &session
                && !session.share.is_left(self.flushes)
            {
                return Turn::Later;
            }
            let Some(transmit) = entry.connection.poll_transmit(now, len_max) else { return Turn::Done };
            if let Some(session) = session {
                session.share.take(self.flushes, transmit.segment.len as usize);
            }
            if reachable && !self.send(index, &transmit, out) {
                full.set(link);
                if let Some(entry) = self.entries.get(index) {
                    self.stalled[link] = Some(Stalled { index, name: entry.name, transmit });
                }
                return Turn::Blocked;
            }
        }
    }

    /// Sends one segment of a connection. `false`: the link is full.
    fn send(&mut self, index: u32, transmit: &Transmit, out: &mut impl FrameSink<M>) -> bool {
        let Some(entry) = self.entries.get_mut(index) else { return true };
        let len = transmit.segment.len as usize;
        let pieces;
        let text = if len == 0 {
            TextRef::None
        } else {
            let session = entry.place.and_then(|place| self.sessions.get(place.session as usize)?.as_ref());
            match (session, entry.send.pieces(transmit.offset, len)) {
                (Some(session), Some(found)) => {
                    pieces = Absolute::new(session.layout.send_area, &found);
                    TextRef::Pieces(&session.arena, pieces.parts())
                }
                _ => {
                    // The application has published text without a place for it.
                    self.stats.count(Stat::BadCommands);
                    entry.connection.abort();
                    return true;
                }
            }
        };
        let way = Way { internal: entry.flags.has(Flags::INTERNAL), mac: entry.mac, tos: entry.tos, ttl: entry.ttl };
        let mss = entry.connection.segment_size(transmit);
        let is_syn = transmit.segment.has(tcp::Flags::SYN);
        let option = if is_syn { entry.connection.fast_open_option(transmit.retransmit) } else { None };
        let tuple = self.locals.tuple(&entry.name);
        let sent = send_segment(&mut self.ip, &way, &tuple, &transmit.segment, option.as_ref(), mss, text, out);
        if sent {
            self.stats.count(Stat::SegmentsOut);
            self.stats.add(Stat::Retransmits, transmit.retransmit.into());
        }
        sent
    }

    /// What found its link full last time tries again.
    fn retry_full_links(&mut self, now: Instant, out: &mut impl FrameSink<M>, full: &mut Full) {
        for link in 0..LINKS {
            if !self.retry(link, out) {
                full.set(link);
                self.retry_at = now + RETRY_AFTER;
            }
        }
        let mut blocked = core::mem::take(&mut self.blocked);
        for index in blocked.drain(..) {
            self.touch(index);
        }
        self.blocked = blocked;
        self.touch_unresolved_datagrams();
    }

    /// Offers the frame that the link did not take last time once more. `false`: it is still full.
    fn retry(&mut self, link: usize, out: &mut impl FrameSink<M>) -> bool {
        let Some(stalled) = self.stalled[link] else { return true };
        let entry = self.entries.get_mut(stalled.index).filter(|entry| entry.name == stalled.name);
        let is_due = entry.map(|entry| entry.connection.is_still_due(&stalled.transmit));
        if is_due == Some(true) && !self.send(stalled.index, &stalled.transmit, out) {
            return false;
        }
        if is_due == Some(false) {
            self.touch(stalled.index);
        }
        self.stalled[link] = None;
        true
    }

    /// ARP, ICMP: complete frames.
    /// Sends what IP itself has to say. What a full link does not take is first when there is room: an answer to who asks for our station
    /// that gets lost costs a second, and programs that send much would make it get lost.
    fn flush_ip(&mut self, now: Instant, out: &mut impl FrameSink<M>) {
        let (mut kept, mut is_full) = (core::mem::take(&mut self.unsent), false);
        while let Some(frame) = self.ip.poll_frame() {
            // What is more gets lost, as in a busy network.
            if kept.len() < UNSENT_MAX {
                kept.push_back(frame);
            }
        }
        kept.retain(|frame| {
            let sent = match frame.link {
                Link::Outside => !is_full && out.send(&frame.bytes, TextRef::None, Offload::default()),
                Link::Inside => out.send_internal(&frame.bytes, TextRef::None, Offload::default()),
            };
            is_full |= !sent && frame.link == Link::Outside;
            !sent
        });
        if !kept.is_empty() {
            self.retry_at = now + RETRY_AFTER;
        }
        self.unsent = kept;
    }

    /// Something was resolved, or has failed: those who waited for it try again.
    fn requeue_resolved(&mut self) {
        while self.ip.poll_unreachable().is_some() {
            // Whom it concerns will find out by its route.
        }
        let generation = self.ip.neighbour_generation();
        if generation == self.neighbour_generation {
            return;
        }
        self.neighbour_generation = generation;
        self.publish_network();
        let mut unresolved = core::mem::take(&mut self.unresolved);
        for index in unresolved.drain(..) {
            if let Some(entry) = self.entries.get_mut(index) {
                entry.flags.clear(Flags::UNRESOLVED);
                self.touch(index);
            }
        }
        self.unresolved = unresolved;
        self.answers.extend(self.unresolved_answers.drain(..));
        self.touch_unresolved_datagrams();
    }

    /// Resets and answers of TIME-WAIT. One that cannot leave now is forgotten: the peer will ask again.
    fn flush_answers(&mut self, now: Instant, out: &mut impl FrameSink<M>, full: &mut Full) {
        while let Some(answer) = self.answers.pop_front() {
            let tuple = answer.tuple;
            let (internal, mac) = match self.ip.route(now, tuple.remote.addr) {
                Route::Local => (true, self.ip.mac()),
                Route::Via { mac } => (false, mac),
                Route::Resolving => {
                    // RFC 1122 §2.3.2.2: the first packets to a neighbour are kept. A peer that is refused on first contact would
                    // otherwise wait for a second.
                    if self.unresolved_answers.len() < UNRESOLVED_ANSWERS_MAX {
                        self.unresolved_answers.push(answer);
                    }
                    continue;
                }
                Route::Unreachable => continue,
            };
            let link = if internal { owner(&self.config, &self.owners, &tuple.reversed()).into() } else { OUTSIDE };
            if full.is_full(link) {
                continue;
            }
            let ttl = if tuple.remote.addr.is_v4() { TTL } else { self.ip.hop_limit() };
            let way = Way { internal, mac, tos: 0, ttl };
            if send_segment(&mut self.ip, &way, &tuple, &answer.segment, None, u16::MAX, TextRef::None, out) {
                self.stats.count(Stat::SegmentsOut);
            } else {
                full.set(link);
            }
        }
    }
}

/// Answers that wait for a neighbour at most.
const UNRESOLVED_ANSWERS_MAX: usize = 64;

/// Which links have refused a frame in this flush: a bit for each. The internal link is one queue for each replica, so that one
/// that does not take its frames holds up nobody else's.
#[derive(Debug, Default)]
struct Full(u16);

/// Number of links: one to each replica, and the one outside.
pub(crate) const LINKS: usize = REPLICAS_MAX + 1;
/// The link outside, behind those to the replicas.
const OUTSIDE: usize = REPLICAS_MAX;
/// Frames of IP itself that are kept for a full link.
const UNSENT_MAX: usize = 256;
/// A link that was full is tried again after this time at the latest.
pub(crate) const RETRY_AFTER: Duration = Duration::from_millis(1);

impl Full {
    const fn is_full(&self, link: usize) -> bool {
        self.0 & (1 << link) != 0
    }

    const fn set(&mut self, link: usize) {
        self.0 |= 1 << link;
    }
}

/// Which replica gets packets of `tuple`, seen from their receiver.
#[inline]
fn owner(config: &crate::config::Config, owners: &[u8; atoll_base::FLOW_GROUPS], tuple: &FourTuple) -> u8 {
    owners[usize::from(config.key.group(tuple).0)]
}

/// The way to the peer: asked for again only when the neighbours, or the own addresses, have changed.
#[inline]
fn route(ip: &mut Ip, locals: &Locals, now: Instant, entry: &mut Entry) -> Route {
    let generation = ip.neighbour_generation();
    if entry.route_generation == generation {
        return Route::Via { mac: entry.mac };
    }
    // As on Linux, nothing leaves from an IPv4 address that is gone. The connection waits for its return, or for its time-out.
    if entry.name.is_v4() && !ip.is_own(locals.tuple(&entry.name).local.addr) {
        return Route::Unreachable;
    }
    let route = ip.route(now, entry.name.remote_addr());
    match route {
        Route::Local => {
            entry.mac = ip.mac();
            entry.flags.set(Flags::INTERNAL);
            entry.route_generation = generation;
        }
        Route::Via { mac } => {
            entry.mac = mac;
            entry.route_generation = generation;
        }
        Route::Resolving | Route::Unreachable => {}
    }
    route
}

// structure: send_segment: a segment has as many facts
/// Writes the headers of one segment, ports from `tuple`, and gives the frame to the link.
#[allow(clippy::too_many_arguments)] // Parts of one frame; a struct for them would be built and taken apart once.
#[inline]
fn send_segment<M: Memory>(
    ip: &mut Ip,
    way: &Way,
    tuple: &FourTuple,
    segment: &Segment,
    option: Option<&FastOpen>,
    mss: u16,
    text: TextRef<'_, M>,
    out: &mut impl FrameSink<M>,
) -> bool {
    let mut headers = [0u8; HEADERS_LEN_MAX + tcp::HEADER_MAX];
    let segment = Segment { src_port: tuple.local.port, dst_port: tuple.remote.port, ..*segment };
    let start = headers_len(tuple.remote.addr);
    let Some(place) = headers.get_mut(start..).and_then(<[u8]>::first_chunk_mut) else { return true };
    let mut tcp_len = tcp::emit(&segment, place);
    if let Some(option) = option {
        tcp_len = fast_open::append(option, place, tcp_len);
    }
    let len = tcp_len + segment.len as usize;
    let packet = Outgoing {
        dst_mac: way.mac,
        src: tuple.local.addr,
        dst: tuple.remote.addr,
        protocol: Protocol::TCP,
        payload_len: len,
        tos: way.tos & !3 | segment.ecn as u8,
        ttl: way.ttl,
        // RFC 1191: the path MTU is only found where fragmentation is forbidden.
        dont_fragment: true,
    };
    ip.emit_headers(&mut headers, &packet);
    let sum = checksum::pseudo_header_of(packet.src, packet.dst, Protocol::TCP.0, len).fold();
    let at = start + CHECKSUM_AT;
    headers[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    let header_len = start + tcp_len;
    let offload = Offload {
        needs_checksum: true,
        csum_start: start as u16,
        csum_offset: CHECKSUM_AT as u16,
        gso_size: (segment.len > u32::from(mss)).then_some(mss),
    };
    let headers = &headers[..header_len];
    if way.internal { out.send_internal(headers, text, offload) } else { out.send(headers, text, offload) }
}
