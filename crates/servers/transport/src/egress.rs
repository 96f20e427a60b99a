//! What waits to be sent: segments of no connection, frames that a link did not take, and connections that
//! wait for a link or for a neighbour.
//!
//! ```text
//!   a link is full              the frame is kept (stalled), its connections wait (blocked),
//!                               and all is tried again a millisecond later
//!   a neighbour is being asked  connections and answers wait (unresolved) until the neighbours change
//!   frames of IP itself         are kept (unsent) as long as the link is full
//! ```

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use atoll_base::{Addr, Duration, FourTuple, Instant};
use atoll_ip::{Frame, HEADERS_LEN_MAX, Ip, Link, Outgoing, Route, TTL, headers_len};
use atoll_ipc::page::{REPLICAS_MAX, Stat};
use atoll_ipc::{Device, Memory};
use atoll_tcp::Transmit;
use atoll_wire::fast_open::{self, FastOpen};
use atoll_wire::ipv4::Protocol;
use atoll_wire::tcp::{self, Segment};
use atoll_wire::{Mac, checksum};

use crate::connections::Connections;
use crate::entry::{Entry, Flags};
use crate::names::{Locals, Name};
use crate::next_hop::Way;
use crate::owners::Owners;
use crate::sink::{FrameSink, Offload, TextRef};
use crate::stats::Stats;

/// Segments, frames and connections that wait to be sent. They are lost in a crash: peers and neighbours ask
/// again.
#[derive(Debug)]
pub(crate) struct Egress {
    /// The segments that belong to no connection: resets, and the answers of TIME-WAIT.
    answers: VecDeque<Answer>,
    /// The answers whose neighbour is being resolved.
    unresolved_answers: Vec<Answer>,
    /// The connections whose neighbour is being resolved.
    unresolved: Vec<u32>,
    neighbour_generation: u64,
    /// The frame that each link did not take.
    stalled: [Option<Stalled>; LINKS],
    /// The connections whose link was full.
    blocked: Vec<u32>,
    /// The frames of IP itself that the link did not take yet.
    unsent: VecDeque<Frame>,
    /// When to try full links again.
    retry_at: Instant,
}

/// A segment that no connection sends.
#[derive(Clone, Copy, Debug)]
struct Answer {
    tuple: FourTuple,
    segment: Segment,
}

/// A segment that a link did not take. The TCB counts it as sent, so it is kept until the link takes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stalled {
    pub(crate) index: u32,
    pub(crate) name: Name,
    pub(crate) transmit: Transmit,
}

/// The links that have refused a frame in this flush, a bit each. The internal link is one queue for each
/// replica, so that a replica that does not take its frames delays only those.
#[derive(Debug, Default)]
pub(crate) struct Full(u16);

/// The number of links: one to each replica, and the one outside.
pub(crate) const LINKS: usize = REPLICAS_MAX + 1;
/// The number of the link outside, behind those to the replicas.
const OUTSIDE: usize = REPLICAS_MAX;
/// The time after which a link that was full is tried again at the latest.
const RETRY_AFTER: Duration = Duration::from_millis(1);
/// The most answers without connection that wait for the link; beyond that they are dropped, as by a busy
/// network.
const ANSWERS_MAX: usize = 1024;
/// The most answers that wait for a neighbour.
const UNRESOLVED_ANSWERS_MAX: usize = 64;
/// The most frames of IP itself that are kept for a full link.
const UNSENT_MAX: usize = 256;
/// The offset of the TCP checksum in its header.
const CHECKSUM_AT: usize = 16;

impl Full {
    pub(crate) const fn is_full(&self, link: usize) -> bool {
        self.0 & (1 << link) != 0
    }

    pub(crate) const fn set(&mut self, link: usize) {
        self.0 |= 1 << link;
    }
}

impl Egress {
    /// Creates the queues, all empty.
    pub(crate) fn new(ip: &Ip) -> Egress {
        Egress {
            answers: VecDeque::new(),
            unresolved_answers: Vec::new(),
            unresolved: Vec::new(),
            neighbour_generation: ip.neighbour_generation(),
            stalled: [None; LINKS],
            blocked: Vec::new(),
            unsent: VecDeque::new(),
            retry_at: Instant::FAR_FUTURE,
        }
    }

    // ---- segments of no connection ----

    /// Queues a segment that no connection sends for the next flush. Beyond the limit it is dropped.
    pub(crate) fn answer(&mut self, tuple: FourTuple, segment: Segment) {
        if self.answers.len() < ANSWERS_MAX {
            self.answers.push_back(Answer { tuple, segment });
        }
    }

    /// Answers a segment for no connection by a reset, if it may be answered.
    pub(crate) fn answer_by_reset(&mut self, stats: &mut Stats, tuple: FourTuple, segment: &Segment) {
        if let Some(reset) = atoll_tcp::answer_for_closed(segment) {
            stats.count(Stat::ResetsOut);
            self.answer(tuple, reset);
        }
    }

    /// Returns whether any such segment waits for the next flush.
    pub(crate) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Sends resets and answers of TIME-WAIT. One that cannot be sent now is dropped: the peer will ask
    /// again.
    pub(crate) fn flush_answers<M: Memory>(
        &mut self,
        now: Instant,
        (ip, owners): (&mut Ip, &Owners),
        stats: &mut Stats,
        out: &mut impl FrameSink<M>,
        full: &mut Full,
    ) {
        while let Some(answer) = self.answers.pop_front() {
            let tuple = answer.tuple;
            let (internal, mac) = match ip.route(now, tuple.remote.addr) {
                Route::Local => (true, ip.mac()),
                Route::Via { mac } => (false, mac),
                Route::Resolving => {
                    // RFC 1122 §2.3.2.2: the first packets to a neighbour are kept. Otherwise a peer that is
                    // refused on first contact would wait for a second.
                    if self.unresolved_answers.len() < UNRESOLVED_ANSWERS_MAX {
                        self.unresolved_answers.push(answer);
                    }
                    continue;
                }
                Route::Unreachable => continue,
            };
            let link = link_of(owners, internal, &tuple);
            if full.is_full(link) {
                continue;
            }
            let ttl = if tuple.remote.addr.is_v4() { TTL } else { ip.hop_limit() };
            let way = Way { internal, mac, tos: 0, ttl };
            if send_segment(ip, &way, &tuple, &answer.segment, None, u16::MAX, TextRef::None, out) {
                stats.count(Stat::SegmentsOut);
            } else {
                full.set(link);
            }
        }
    }

    // ---- frames of IP itself ----

    /// Sends the frames of IP itself (ARP, ICMP), which are complete. Frames that a full link does not take
    /// are first when there is room. A lost answer to a neighbour that asks for our station costs it a
    /// second, and programs that send much would make it get lost.
    pub(crate) fn flush_ip<M: Memory>(&mut self, now: Instant, ip: &mut Ip, out: &mut impl FrameSink<M>) {
        let (mut kept, mut is_full) = (core::mem::take(&mut self.unsent), false);
        while let Some(frame) = ip.poll_frame() {
            // The frames beyond the limit are lost, as in a busy network.
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
            self.retry_later(now);
        }
        self.unsent = kept;
    }

    // ---- links that are full ----

    /// Schedules another try of full links.
    #[inline]
    pub(crate) fn retry_later(&mut self, now: Instant) {
        self.retry_at = now + RETRY_AFTER;
    }

    /// Returns when full links are tried again, if there are any.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        (self.retry_at != Instant::FAR_FUTURE).then_some(self.retry_at)
    }

    /// Begins a flush. Returns whether links were full in the last one, and are tried again in this.
    #[inline]
    pub(crate) fn take_retry(&mut self) -> bool {
        core::mem::replace(&mut self.retry_at, Instant::FAR_FUTURE) != Instant::FAR_FUTURE
    }

    /// Keeps a segment that the link did not take, which is counted as sent.
    pub(crate) fn stall(&mut self, link: usize, stalled: Stalled) {
        if let Some(place) = self.stalled.get_mut(link) {
            *place = Some(stalled);
        }
    }

    /// Returns the segment that the link did not take.
    pub(crate) fn stalled(&self, link: usize) -> Option<Stalled> {
        self.stalled.get(link).copied().flatten()
    }

    /// Drops the stalled segment: the link has taken it, or it need not be sent any more.
    pub(crate) fn end_stall(&mut self, link: usize) {
        if let Some(place) = self.stalled.get_mut(link) {
            *place = None;
        }
    }

    /// Keeps a connection whose link is full until the next try.
    pub(crate) fn block(&mut self, now: Instant, index: u32) {
        self.blocked.push(index);
        self.retry_later(now);
    }

    /// Puts the connections whose link was full on the list for this flush.
    pub(crate) fn unblock(&mut self, connections: &mut Connections) {
        self.blocked.drain(..).for_each(|index| connections.touch(index));
    }

    // ---- neighbours that are asked for ----

    /// Keeps a connection whose neighbour is being asked for.
    pub(crate) fn wait_for_neighbour(&mut self, index: u32, entry: &mut Entry) {
        if !entry.flags.intersects(Flags::UNRESOLVED) {
            entry.flags.insert(Flags::UNRESOLVED);
            self.unresolved.push(index);
        }
    }

    /// Returns whether a neighbour was resolved, or resolving has failed, since the last call. Then
    /// everything that waited for one tries again.
    pub(crate) fn requeue_resolved(&mut self, ip: &mut Ip, connections: &mut Connections) -> bool {
        while ip.poll_unreachable().is_some() {
            // The connection concerned will learn it from its route.
        }
        let generation = ip.neighbour_generation();
        if generation == self.neighbour_generation {
            return false;
        }
        self.neighbour_generation = generation;
        for index in self.unresolved.drain(..) {
            if let Some(entry) = connections.get_mut(index) {
                entry.flags.remove(Flags::UNRESOLVED);
                connections.touch(index);
            }
        }
        self.answers.extend(self.unresolved_answers.drain(..));
        true
    }
}

/// Returns whether a packet to `peer` of a socket that is bound to `device` would leave over another device
/// than the one that leads there. Linux takes `peer` for a neighbour on the device then
/// (ip_route_output_key_hash): on the link nobody answers for a loopback address, and the loopback brings
/// back what is for others, and drops it.
pub(crate) fn is_astray(ip: &Ip, device: Device, peer: Addr) -> bool {
    match device {
        Device::None => false,
        Device::Loopback => !peer.is_loopback() && !ip.is_own(peer),
        Device::Link => peer.is_loopback(),
    }
}

/// Returns the station of a frame that stays in the stack. That of a socket which is bound to the loopback
/// has the address of Linux's `lo`, so that the receiver knows over which device it has come.
pub(crate) fn station_inside(ip: &Ip, device: Device) -> Mac {
    if device == Device::Loopback { Mac::ZERO } else { ip.mac() }
}

/// Returns the link over which a packet of `tuple` leaves.
#[inline]
pub(crate) fn link_of(owners: &Owners, internal: bool, tuple: &FourTuple) -> usize {
    if internal { owners.of(&tuple.reversed()).0.into() } else { OUTSIDE }
}

/// Returns the route to the peer. IP is asked only when the neighbours, or the own addresses, have changed.
#[inline]
pub(crate) fn route(ip: &mut Ip, locals: &Locals, now: Instant, entry: &mut Entry) -> Route {
    let generation = ip.neighbour_generation();
    if let Some(mac) = entry.next_hop.known(generation) {
        return Route::Via { mac };
    }
    // As on Linux, nothing is sent from an IPv4 address that is gone. The connection waits for its return, or
    // for its time-out.
    if entry.name.is_v4() && !ip.is_own(locals.tuple(&entry.name).local.addr) {
        return Route::Unreachable;
    }
    let device = entry.device;
    if is_astray(ip, device, entry.name.remote_addr()) {
        return Route::Unreachable;
    }
    let route = ip.route(now, entry.name.remote_addr());
    match route {
        Route::Local => {
            entry.next_hop.learn(generation, station_inside(ip, device));
            entry.flags.insert(Flags::INTERNAL);
        }
        Route::Via { mac } => entry.next_hop.learn(generation, mac),
        Route::Resolving | Route::Unreachable => {}
    }
    route
}

// structure: send_segment: a segment has as many facts
/// Writes the headers of one segment, with the ports of `tuple`, and gives the frame to the link. Returns
/// `false` if the link is full.
// Parts of one frame; a struct for them would be built and taken apart once.
#[allow(clippy::too_many_arguments)]
#[inline]
pub(crate) fn send_segment<M: Memory>(
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
        // RFC 1191: the path MTU is only found if fragmentation is forbidden.
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

#[cfg(test)]
mod tests {
    use super::*;

    use atoll_base::Endpoint;
    use atoll_ip::Config;

    fn egress() -> Egress {
        let config = Config::new(atoll_wire::Mac([2, 0, 0, 0, 0, 1]), 0xc612_0001, 24);
        Egress::new(&Ip::new(config, 1, Instant::ZERO).expect("a valid network"))
    }

    #[test]
    fn answers_that_wait_are_bounded() {
        let mut egress = egress();
        assert!(!egress.has_answers());
        let tuple = FourTuple { local: Endpoint::new(1, 2), remote: Endpoint::new(3, 4) };
        (0..2 * ANSWERS_MAX).for_each(|_| egress.answer(tuple, Segment::default()));
        assert_eq!((egress.has_answers(), egress.answers.len()), (true, ANSWERS_MAX));
    }

    #[test]
    fn a_link_that_is_full_is_tried_again_soon_and_once() {
        let mut egress = egress();
        assert!(egress.retry_at().is_none() && !egress.take_retry());
        let now = Instant::from_millis(5);
        egress.block(now, 7);
        assert_eq!(egress.retry_at(), Some(now + RETRY_AFTER));
        assert!(egress.take_retry() && !egress.take_retry());
        let mut full = Full::default();
        full.set(OUTSIDE);
        assert!(full.is_full(OUTSIDE) && (0..OUTSIDE).all(|link| !full.is_full(link)));
    }
}
