//! Handles the frames that arrive.

use core::num::NonZeroU8;

use atoll_base::{Addr, Endpoint, FourTuple, Instant, SeqNum};
use atoll_connmgr::{Syn, SynVerdict};
use atoll_ip::{Cast, ChecksumOffload, ErrorKind, Link, NetworkError, Received};
use atoll_ipc::command::Protocol as SocketProtocol;
use atoll_ipc::ledger::Work;
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{REPLICA_FIN, REPLICA_RESET};
use atoll_ipc::{Cause, Details, Device, Memory, NetworkCause, Ready, details};
use atoll_tcp::{Events, State, TimeWaitAnswer, Verdict};
use atoll_wire::Mac;
use atoll_wire::ethernet;
use atoll_wire::fast_open;
use atoll_wire::icmp::{self, code};
use atoll_wire::ipv4::Ecn;
use atoll_wire::ipv4::Protocol;
use atoll_wire::tcp::{self, Flags, Segment};

use crate::accept::ByCookie;
use crate::challenge::is_suspicious;
use crate::datagrams::Arrived;
use crate::entry::{self, Stage};
use crate::passive::{Arrival, Opening};
use crate::transport::Transport;

/// The events that show that the peer has received something of ours (RFC 4861 §7.3.1).
const PROGRESS: Events = Events::ESTABLISHED.union(Events::ACKED);

impl<M: Memory> Transport<M> {
    /// Handles a frame of a flow of this replica: see [`Transport::handle_frame`].
    #[inline]
    pub(crate) fn frame_arrives(
        &mut self,
        now: Instant,
        frame: &[u8],
        offload: ChecksumOffload,
        internal: bool,
    ) {
        let link = if internal { Link::Inside } else { Link::Outside };
        let received = self.ip.handle_frame(now, link, frame, offload);
        if !matches!(received, Received::Tcp { .. } | Received::Udp { .. }) {
            self.pass_to_raw(now, link, frame);
        }
        match received {
            Received::Tcp { src, dst, tos, ttl: hops, segment, .. } => {
                let Ok((mut header, header_len)) = tcp::parse(segment) else {
                    self.stats.count(Stat::SegmentsDropped);
                    return;
                };
                header.ecn = Ecn::from_tos(tos);
                let tuple = FourTuple {
                    local: Endpoint::at(dst, header.dst_port),
                    remote: Endpoint::at(src, header.src_port),
                };
                if header.has(Flags::SYN) {
                    let option = fast_open::find(segment.get(..header_len).unwrap_or_default());
                    self.handshakes.note_syn_option(option);
                }
                let text = segment.get(header_len..).unwrap_or_default();
                let device = device_of(frame, internal, dst);
                self.handle_segment(now, &Arrival { tuple, segment: &header, text, hops, internal, device });
            }
            Received::Udp { src, dst, cast, tos, ttl, payload, .. } => {
                let tuple = FourTuple { local: dst, remote: src };
                let came_over = if internal { details::Link::Inside } else { details::Link::Outside };
                let details = heard(dst.addr, (tos, ttl), came_over);
                let (protocol, device) = (SocketProtocol::Udp, device_of(frame, internal, dst.addr));
                let mut arrived = Arrived { protocol, tuple, device, cast, details, payload };
                if !self.handle_datagram(now, &mut arrived) {
                    // RFC 1122 §4.1.3.1: no socket has the port.
                    self.ip.unreachable(now, link, frame, code::PORT);
                }
            }
            Received::EchoReply { src, dst, id, tos, ttl, message } => {
                let (local, remote) = (Endpoint::at(dst, id), Endpoint::at(src, 0));
                let came_over = if internal { details::Link::Inside } else { details::Link::Outside };
                let details = heard(dst, (tos, ttl), came_over);
                // Nobody is told where no socket has asked, as on Linux.
                self.handle_datagram(
                    now,
                    &mut Arrived {
                        protocol: SocketProtocol::Icmp,
                        tuple: FourTuple { local, remote },
                        device: device_of(frame, internal, dst),
                        cast: Cast::Unicast,
                        details,
                        payload: message,
                    },
                );
            }
            Received::Error(error, text) => self.handle_network_error(now, &error, text),
            Received::Consumed | Received::Dropped(_) => {}
        }
    }

    #[inline]
    fn handle_segment(&mut self, now: Instant, arrival: &Arrival<'_>) {
        self.adopt_named(now, &arrival.tuple);
        if let Some(index) = self.connections.find(&arrival.tuple) {
            let bound = self.connections.get(index).map(|entry| (entry.device, entry.hops_min));
            let (device, hops_min) = bound.unwrap_or_default();
            if !device.takes(arrival.device) {
                // inet_ehash_match: over this device it is for no connection.
                self.stats.count(Stat::SegmentsDropped);
                self.egress.answer_by_reset(&mut self.stats, arrival.tuple, arrival.segment);
                return;
            }
            // RFC 5082, tcp_v4_rcv. DEVIATION: Linux does not look at the last ACK of a handshake.
            if arrival.hops < hops_min {
                return self.drop_distant();
            }
            self.stats.count(Stat::SegmentsIn);
            self.segment_arrives(now, index, arrival.segment, arrival.text);
        } else {
            self.segment_without_connection(now, arrival);
        }
    }

    /// Handles a segment for a connection.
    pub(crate) fn segment_arrives(&mut self, now: Instant, index: u32, segment: &Segment, text: &[u8]) {
        self.durability.mark(Work::Segment(index));
        let Some(entry) = self.connections.get(index) else { return };
        match entry.stage {
            // As on Linux, the last ACK of the handshake is dropped while the accept queue is full.
            Stage::Embryonic { listener, .. }
                if entry.connection.state() == State::SynReceived
                    && !segment.flags.intersects(Flags::RST | Flags::SYN)
                    && !self.cm.may_establish(listener) =>
            {
                self.stats.count(Stat::AcceptDrops);
                return;
            }
            // This is the awaited text: the connection is offered first, so that the text has a place.
            Stage::Deferred { .. } if entry.connection.text_range(segment).is_some() => {
                self.establish(now, index)
            }
            _ => {}
        }
        if segment.has(Flags::URG) {
            self.connections.note_reader(index, &self.applications);
        }
        let (segment, is_short) = self.connections.make_room(now, index, segment, &self.applications);
        if is_short {
            self.shortage.look_soon(now);
        }
        let segment = &segment;
        let Some(entry) = self.connections.get_mut(index) else { return };
        let input = entry.connection.handle_segment(now, segment);
        if input.events.intersects(Events::READABLE | Events::ESTABLISHED) {
            entry.text_at = entry::text_tick(now);
        }
        self.load.note_ack(entry.connection.ack_is_overdue());
        if let Some(taken) = input.text {
            self.connections.place_text(index, taken, text, &self.applications);
        }
        if let Verdict::Dropped(reason) = input.verdict {
            self.stats.count(Stat::SegmentsDropped);
            self.stats.count_reason(reason);
        }
        if is_suspicious(input.events)
            && let Some(entry) = self.connections.get_mut(index)
        {
            let limit = (self.config.challenges_per_second, &mut self.rng);
            self.challenges.note(now, input.events, &mut entry.connection, limit, &mut self.stats);
        }
        if input.events.contains(Events::ANSWER_RESET)
            && let Some(entry) = self.connections.get(index)
        {
            let tuple = self.connections.tuple(&entry.name);
            self.egress.answer_by_reset(&mut self.stats, tuple, segment);
        }
        self.react(now, index, input.events);
        self.connections.touch(index);
    }

    /// Translates what the TCB reports for the application and the CM.
    pub(crate) fn react(&mut self, now: Instant, index: u32, events: Events) {
        if events.is_empty() {
            return;
        }
        let Some(entry) = self.connections.get_mut(index) else { return };
        if events.intersects(PROGRESS) {
            let tick = entry::progress_tick(now);
            if entry.progress_tick != tick && !entry.flags.intersects(entry::Flags::INTERNAL) {
                entry.progress_tick = tick;
                self.ip.note_progress(now, entry.name.remote_addr());
            }
        }
        if events.contains(Events::READABLE) {
            entry.view.tell(Ready::IN);
            if entry.connection.receive_mark().is_some() {
                entry.view.tell(Ready::PRI);
            }
        }
        if events.contains(Events::URGENT) {
            entry.view.tell(Ready::PRI);
            entry.flags.insert(entry::Flags::MARK);
        }
        if events.contains(Events::FIN) {
            entry.view.tell(Ready::IN | Ready::RDHUP);
            entry.view.set_flags(REPLICA_FIN);
            entry.flags.insert(entry::Flags::STATE);
        }
        if events.contains(Events::RESET) {
            entry.cause = Cause::ConnectionReset;
            entry.view.set_flags(REPLICA_RESET);
        }
        if events.contains(Events::REFUSED) {
            entry.cause = Cause::ConnectionRefused;
        }
        if events.contains(Events::TIMED_OUT) {
            entry.cause = Cause::TimedOut;
        }
        if events.contains(Events::UNREACHABLE) {
            let reason = entry.connection.network_error().map(NonZeroU8::get);
            entry.cause = reason.map_or(Cause::HostUnreachable, Cause::from_u8);
        }
        if events.contains(Events::ESTABLISHED) {
            match entry.stage {
                Stage::Embryonic { listener, defer } => {
                    self.stats.count(Stat::PassiveOpens);
                    if defer > 0 && !events.intersects(Events::READABLE | Events::FIN) {
                        entry.stage = Stage::Deferred { listener };
                        self.handshakes.defer(&entry.name, index);
                        entry.deadline = now + atoll_base::Duration::from_secs(defer.into());
                    } else {
                        self.establish(now, index);
                    }
                }
                _ if entry.flags.intersects(entry::Flags::FAST_OPEN) => {
                    self.stats.count(Stat::PassiveOpens);
                    self.handshakes.end_early(index, entry);
                }
                _ => {
                    self.stats.count(Stat::ActiveOpens);
                    entry.view.tell(Ready::OUT);
                    entry.flags.insert(entry::Flags::STATE | entry::Flags::LIMIT);
                    self.handshakes.learn_fast_open(now, entry, &mut self.stats);
                }
            }
        } else if matches!(entry.stage, Stage::Deferred { .. })
            && events.intersects(Events::READABLE | Events::FIN)
        {
            self.establish(now, index);
        }
    }

    fn segment_without_connection(&mut self, now: Instant, arrival: &Arrival<'_>) {
        let Arrival { tuple, segment, text, .. } = *arrival;
        let mut iss_above = None;
        let remembered = self.connections.answer_of_time_wait(now, &tuple, segment);
        match remembered {
            Some(TimeWaitAnswer::Ack(mut answer)) => {
                answer.src_port = tuple.local.port;
                answer.dst_port = tuple.remote.port;
                self.egress.answer(tuple, answer);
                return;
            }
            Some(TimeWaitAnswer::Drop | TimeWaitAnswer::Delete) => {
                self.stats.count(Stat::SegmentsDropped);
                return;
            }
            Some(TimeWaitAnswer::Reuse { iss_above: last }) => iss_above = Some(last),
            None => {}
        }
        // As on Linux, nothing that a listener gets is answered, and a record of TIME-WAIT has no limit.
        if self.handshakes.limits_hops()
            && let Some(listener) = self.cm.listener_at(tuple.local, arrival.device)
            && self.handshakes.is_too_far(listener, tuple.remote.addr.is_v4(), arrival.hops)
        {
            return self.drop_distant();
        }
        if segment.has(Flags::SYN) && !segment.flags.intersects(Flags::ACK | Flags::RST) {
            self.handle_syn(now, arrival, iss_above);
            return;
        }
        match self.accept_by_cookie(now, arrival) {
            ByCookie::Opened(index) => {
                self.segment_arrives(now, index, segment, text);
                // If the accept queue is full, the segment was forgotten, and only the timer remembers to
                // repeat the SYN-ACK.
                self.connections.touch(index);
            }
            ByCookie::Forgotten => {}
            ByCookie::None => {
                self.stats.count(Stat::SegmentsDropped);
                // RFC 9293 §3.10.7.2: in LISTEN, a segment with neither SYN nor ACK is dropped.
                if segment.has(Flags::ACK) || !self.cm.has_listener(tuple.local, arrival.device) {
                    self.egress.answer_by_reset(&mut self.stats, tuple, segment);
                }
            }
        }
    }

    /// Drops a segment that has come from too far away.
    #[cold]
    fn drop_distant(&mut self) {
        self.stats.count(Stat::SegmentsDropped);
        self.stats.count(Stat::DroppedTtl);
    }

    fn handle_syn(&mut self, now: Instant, arrival: &Arrival<'_>, iss_above: Option<SeqNum>) {
        let Arrival { tuple, segment, .. } = *arrival;
        let began = self.handshakes.phases().cm_begins();
        let verdict =
            self.cm.handle_syn(&Syn { local: tuple.local, device: arrival.device, by_cookie: false });
        self.handshakes.phases().cm_ends(began);
        match verdict {
            SynVerdict::Refused => {
                self.stats.count(Stat::SegmentsDropped);
                self.egress.answer_by_reset(&mut self.stats, tuple, segment);
            }
            SynVerdict::Cookie { listener } if iss_above.is_none() => {
                let opening = Opening { config: &self.config, secrets: &self.secrets, ip: &self.ip };
                if let Some(syn_ack) = self.handshakes.answer_by_cookie(now, &opening, arrival, listener) {
                    self.stats.count(Stat::SynCookiesSent);
                    self.egress.answer(tuple, syn_ack);
                }
            }
            // A cookie cannot be made to lie above the sequence numbers of the connection before (RFC 6191).
            SynVerdict::Full | SynVerdict::Cookie { .. } => self.stats.count(Stat::SynDrops),
            SynVerdict::Accept { listener, defer_accept } => {
                self.stats.count(Stat::SegmentsIn);
                if !self.has_room_for(listener) {
                    return;
                }
                self.accept(now, arrival, iss_above, (listener, defer_accept));
            }
        }
    }

    /// Handles a report of the network, or of the IP server, about a packet that may be ours.
    pub fn handle_network_error(&mut self, now: Instant, error: &NetworkError, text: &[u8]) {
        match error.protocol {
            Protocol::TCP => self.network_error_of_connection(now, error),
            _ => self.network_error_of_datagram(now, error, text),
        }
    }

    fn network_error_of_connection(&mut self, now: Instant, error: &NetworkError) {
        self.adopt_named(now, &error.tuple);
        let (Some(index), Some(seq)) = (self.connections.find(&error.tuple), error.quoted_seq) else {
            return;
        };
        let Some(entry) = self.connections.get_mut(index) else { return };
        if error.hops < entry.hops_min {
            return self.stats.count(Stat::DroppedTtl);
        }
        let events = match error.kind {
            ErrorKind::FragNeeded { mtu } => {
                // The TCB counts with the headers of IPv4.
                let extra = if entry.name.is_v4() { 0 } else { crate::next_hop::V6_EXTRA };
                if entry.connection.handle_mtu(now, mtu - extra, seq) {
                    self.stats.count(Stat::PathMtuLowered);
                    self.ip.learn_path_mtu(now, error.tuple.remote.addr, mtu);
                }
                Events::empty()
            }
            ErrorKind::Lost { kind, code, .. } => {
                let is_v4 = error.tuple.remote.addr.is_v4();
                let NetworkCause { cause, is_hard } = NetworkCause::of(is_v4, kind, code);
                let is_waiting = matches!(entry.stage, Stage::Embryonic { .. });
                let ends_opening = is_waiting && ends_opening(is_v4, is_hard, (kind, code));
                match NonZeroU8::new(cause as u8).filter(|_| cause != Cause::SourceQuench) {
                    Some(reason) => entry.connection.handle_network_error(reason, seq, ends_opening),
                    None => Events::empty(),
                }
            }
        };
        self.react(now, index, events);
        self.connections.touch(index);
    }
}

/// Returns whether an error about the answer to a SYN ends the connection that the peer wants to open
/// (`tcp_v4_err`, `tcp_v6_err`, `tcp_req_err`).
const fn ends_opening(is_v4: bool, is_hard: bool, message: (u8, u8)) -> bool {
    if !is_v4 {
        return is_hard;
    }
    matches!(
        message,
        (icmp::UNREACHABLE, code::NET | code::HOST) | (icmp::TIME_EXCEEDED | icmp::PARAMETER_PROBLEM, _)
    )
}

/// Returns the device over which a packet to `dst` counts as having come. As on Linux (inet_iif, `rt_iif`),
/// it is the one that has the address, for a packet that has not left the stack, too, unless a socket has
/// sent it that is bound to the loopback.
pub(crate) fn device_of(frame: &[u8], internal: bool, dst: Addr) -> Device {
    let is_marked = || ethernet::parse(frame).is_ok_and(|(header, _)| header.dst == Mac::ZERO);
    if internal && (dst.is_loopback() || is_marked()) { Device::Loopback } else { Device::Link }
}

/// Returns what is known of the packet of a datagram to `own`, of which type of service and TTL are given.
fn heard(own: Addr, (tos, ttl): (u8, u8), link: details::Link) -> Details {
    Details { own, tos: Some(tos), ttl: Some(ttl), link: Some(link), ..Details::default() }
}
