//! What happens when a frame arrives?

use atoll_base::{FourTuple, Instant, SeqNum};
use atoll_connmgr::{Syn, SynVerdict};
use atoll_ip::{ChecksumOffload, ErrorKind, Link, NetworkError, Received};
use atoll_ipc::ledger::Work;
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{REPLICA_FIN, REPLICA_RESET};
use atoll_ipc::{Cause, Memory, Ready};
use atoll_tcp::{Events, State, TimeWaitAnswer, Unreachable, Verdict};
use atoll_wire::fast_open;
use atoll_wire::icmp::code;
use atoll_wire::ipv4::Ecn;
use atoll_wire::ipv4::Protocol;
use atoll_wire::tcp::{self, Flags, Segment};

use crate::entry::{self, Stage};
use crate::transport::{Answer, Transport};

/// Answers without connection that may wait for the link; what is more is forgotten, as by a busy network.
const ANSWERS_MAX: usize = 1024;

/// What shows that the peer has got something of ours (RFC 4861 §7.3.1).
const PROGRESS: Events = Events::ESTABLISHED.union(Events::ACKED);

impl<M: Memory> Transport<M> {
    /// A frame (from the Ethernet header on) of a flow of this replica. `offload`: from its vnet header. `internal`: it came
    /// over the stack's link to itself. Never panics, whatever the bytes are.
    #[inline]
    pub fn handle_frame(&mut self, now: Instant, frame: &[u8], offload: ChecksumOffload, internal: bool) {
        self.phases.frame_begins();
        self.mark(Work::Frame);
        self.frame_arrives(now, frame, offload, internal);
        self.phases.frame_ends();
    }

    #[inline]
    fn frame_arrives(&mut self, now: Instant, frame: &[u8], offload: ChecksumOffload, internal: bool) {
        let link = if internal { Link::Inside } else { Link::Outside };
        match self.ip.handle_frame(now, link, frame, offload) {
            Received::Tcp { src, dst, tos, segment, .. } => {
                let Ok((mut header, header_len)) = tcp::parse(segment) else {
                    self.stats.count(Stat::SegmentsDropped);
                    return;
                };
                header.ecn = Ecn::from_tos(tos);
                let tuple = FourTuple {
                    local: atoll_base::Endpoint::at(dst, header.dst_port),
                    remote: atoll_base::Endpoint::at(src, header.src_port),
                };
                if header.has(Flags::SYN) {
                    self.syn_option = fast_open::find(segment.get(..header_len).unwrap_or_default());
                }
                let text = segment.get(header_len..).unwrap_or_default();
                self.handle_segment(now, tuple, &header, text, internal);
            }
            Received::Udp { src, dst, cast, payload, .. } => {
                let tuple = FourTuple { local: dst, remote: src };
                if !self.handle_datagram(&tuple, cast, payload) {
                    // RFC 1122 §4.1.3.1: nobody is there.
                    self.ip.unreachable(now, link, frame, code::PORT);
                }
            }
            Received::Error(error) => self.handle_network_error(now, &error),
            Received::Consumed | Received::Dropped(_) => {}
        }
    }

    #[inline]
    fn handle_segment(&mut self, now: Instant, tuple: FourTuple, segment: &Segment, text: &[u8], internal: bool) {
        self.adopt_named(now, &tuple);
        if let Some(index) = self.find(&tuple) {
            self.stats.count(Stat::SegmentsIn);
            self.segment_arrives(now, index, segment, text);
        } else {
            self.segment_without_connection(now, tuple, segment, text, internal);
        }
    }

    /// The connection of a tuple.
    #[inline]
    pub(crate) fn find(&self, tuple: &FourTuple) -> Option<u32> {
        self.flows.find(&self.entries, &self.locals.find(tuple)?)
    }

    pub(crate) fn segment_arrives(&mut self, now: Instant, index: u32, segment: &Segment, text: &[u8]) {
        self.mark(Work::Segment(index));
        let Some(entry) = self.entries.get(index) else { return };
        match entry.stage {
            // As on Linux, the last ACK of the handshake is forgotten while the accept queue is full.
            Stage::Embryonic { listener, .. }
                if entry.connection.state() == State::SynReceived
                    && !segment.flags.intersects(Flags::RST | Flags::SYN)
                    && !self.cm.may_establish(listener) =>
            {
                self.stats.count(Stat::AcceptDrops);
                return;
            }
            // The text that was waited for: offer first, so that it has a place.
            Stage::Deferred { .. } if entry.connection.text_range(segment).is_some() => self.establish(now, index),
            _ => {}
        }
        if segment.has(Flags::URG) {
            self.note_reader(index);
        }
        let segment = &self.make_room(now, index, segment);
        let Some(entry) = self.entries.get_mut(index) else { return };
        let input = entry.connection.handle_segment(now, segment);
        self.flush_is_due |= entry.connection.ack_is_overdue();
        if let Some(taken) = input.text {
            self.place_text(index, taken, text);
        }
        if let Verdict::Dropped(reason) = input.verdict {
            self.stats.count(Stat::SegmentsDropped);
            self.stats.count_reason(reason);
        }
        self.note_suspicious(now, index, input.events);
        if input.events.contains(Events::ANSWER_RESET)
            && let Some(entry) = self.entries.get(index)
        {
            let tuple = self.locals.tuple(&entry.name);
            self.answer_by_reset(tuple, segment);
        }
        self.react(now, index, input.events);
        self.touch(index);
    }

    /// What the TCB reports becomes what the application and the CM are told.
    pub(crate) fn react(&mut self, now: Instant, index: u32, events: Events) {
        if events.is_empty() {
            return;
        }
        let Some(entry) = self.entries.get_mut(index) else { return };
        if events.intersects(PROGRESS) {
            let tick = entry::progress_tick(now);
            if entry.progress_tick != tick && !entry.flags.has(entry::Flags::INTERNAL) {
                entry.progress_tick = tick;
                self.ip.note_progress(now, entry.name.remote_addr());
            }
        }
        if events.contains(Events::READABLE) {
            entry.ready |= Ready::IN;
            if entry.connection.receive_mark().is_some() {
                entry.ready |= Ready::PRI;
            }
        }
        if events.contains(Events::URGENT) {
            entry.ready |= Ready::PRI;
            entry.flags.set(entry::Flags::MARK);
        }
        if events.contains(Events::FIN) {
            entry.ready |= Ready::IN | Ready::RDHUP;
            entry.replica_flags |= REPLICA_FIN;
            entry.flags.set(entry::Flags::STATE);
        }
        if events.contains(Events::RESET) {
            entry.cause = Cause::ConnectionReset;
            entry.replica_flags |= REPLICA_RESET;
        }
        if events.contains(Events::REFUSED) {
            entry.cause = Cause::ConnectionRefused;
        }
        if events.contains(Events::TIMED_OUT) {
            entry.cause = Cause::TimedOut;
        }
        if events.contains(Events::UNREACHABLE) {
            entry.cause = Cause::HostUnreachable;
        }
        if events.contains(Events::ESTABLISHED) {
            match entry.stage {
                Stage::Embryonic { listener, defer } => {
                    self.stats.count(Stat::PassiveOpens);
                    if defer > 0 && !events.intersects(Events::READABLE | Events::FIN) {
                        entry.stage = Stage::Deferred { listener };
                        self.deferred.insert((entry.name.local_port(), index));
                        entry.deadline = now + atoll_base::Duration::from_secs(defer.into());
                    } else {
                        self.establish(now, index);
                    }
                }
                _ if entry.flags.has(entry::Flags::FAST_OPEN) => {
                    self.stats.count(Stat::PassiveOpens);
                    self.end_early(index);
                }
                _ => {
                    self.stats.count(Stat::ActiveOpens);
                    entry.ready |= Ready::OUT;
                    entry.flags.set(entry::Flags::STATE.with(entry::Flags::LIMIT));
                    self.learn_fast_open(now, index);
                }
            }
        } else if matches!(entry.stage, Stage::Deferred { .. }) && events.intersects(Events::READABLE | Events::FIN) {
            self.establish(now, index);
        }
    }

    fn segment_without_connection(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        segment: &Segment,
        text: &[u8],
        internal: bool,
    ) {
        let mut iss_above = None;
        let remembered = match self.locals.find(&tuple) {
            Some(name) => self.time_waits.handle_segment(now, &name, segment),
            None => None,
        };
        if let (Some(TimeWaitAnswer::Delete), Some(name)) = (&remembered, self.locals.find(&tuple)) {
            self.searches.give_back(&name);
        }
        match remembered {
            Some(TimeWaitAnswer::Ack(mut answer)) => {
                answer.src_port = tuple.local.port;
                answer.dst_port = tuple.remote.port;
                self.answer(tuple, answer);
                return;
            }
            Some(TimeWaitAnswer::Drop | TimeWaitAnswer::Delete) => {
                self.stats.count(Stat::SegmentsDropped);
                return;
            }
            Some(TimeWaitAnswer::Reuse { iss_above: last }) => iss_above = Some(last),
            None => {}
        }
        if segment.has(Flags::SYN) && !segment.flags.intersects(Flags::ACK | Flags::RST) {
            self.handle_syn(now, tuple, segment, text, internal, iss_above);
        } else if !self.accept_by_cookie(now, tuple, segment, text, internal) {
            self.stats.count(Stat::SegmentsDropped);
            // RFC 9293 §3.10.7.2: in LISTEN, what has neither SYN nor ACK is dropped.
            if segment.has(Flags::ACK) || !self.cm.has_listener(tuple.local) {
                self.answer_by_reset(tuple, segment);
            }
        }
    }

    fn handle_syn(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        segment: &Segment,
        text: &[u8],
        internal: bool,
        iss_above: Option<SeqNum>,
    ) {
        let began = self.phases.cm_begins();
        let verdict = self.cm.handle_syn(&Syn { local: tuple.local, by_cookie: false });
        self.phases.cm_ends(began);
        match verdict {
            SynVerdict::Refused => {
                self.stats.count(Stat::SegmentsDropped);
                self.answer_by_reset(tuple, segment);
            }
            SynVerdict::Cookie { listener } if iss_above.is_none() => {
                self.answer_by_cookie(now, tuple, segment, internal, listener);
            }
            // A cookie cannot be made to lie above the sequence numbers of the connection before (RFC 6191).
            SynVerdict::Full | SynVerdict::Cookie { .. } => self.stats.count(Stat::SynDrops),
            SynVerdict::Accept { listener, defer_accept } => {
                self.stats.count(Stat::SegmentsIn);
                if !self.has_room_for(listener) {
                    return;
                }
                self.accept(now, tuple, segment, text, internal, iss_above, listener, defer_accept);
            }
        }
    }

    /// The network, or the IP server, says something about a packet that may be ours.
    pub fn handle_network_error(&mut self, now: Instant, error: &NetworkError) {
        match error.protocol {
            Protocol::TCP => self.network_error_of_connection(now, error),
            _ => self.network_error_of_datagram(now, error),
        }
    }

    fn network_error_of_connection(&mut self, now: Instant, error: &NetworkError) {
        self.adopt_named(now, &error.tuple);
        let (Some(index), Some(seq)) = (self.find(&error.tuple), error.quoted_seq) else { return };
        let Some(entry) = self.entries.get_mut(index) else { return };
        let events = match error.kind {
            ErrorKind::FragNeeded { mtu } => {
                // The TCB counts with the headers of IPv4.
                let extra = if entry.name.is_v4() { 0 } else { crate::accept::V6_EXTRA };
                if entry.connection.handle_mtu(now, mtu - extra, seq) {
                    self.stats.count(Stat::PathMtuLowered);
                    self.ip.learn_path_mtu(now, error.tuple.remote.addr, mtu);
                }
                Events::NONE
            }
            ErrorKind::Unreachable { code: code::PORT | code::PROTOCOL } => {
                entry.connection.handle_unreachable(now, Unreachable::Hard, seq)
            }
            ErrorKind::Unreachable { .. } | ErrorKind::TimeExceeded { .. } | ErrorKind::Problem => {
                entry.connection.handle_unreachable(now, Unreachable::Soft, seq)
            }
        };
        self.react(now, index, events);
        self.touch(index);
    }

    fn answer_by_reset(&mut self, tuple: FourTuple, segment: &Segment) {
        if let Some(reset) = atoll_tcp::answer_for_closed(segment) {
            self.stats.count(Stat::ResetsOut);
            self.answer(tuple, reset);
        }
    }

    pub(crate) fn answer(&mut self, tuple: FourTuple, segment: Segment) {
        if self.answers.len() < ANSWERS_MAX {
            self.answers.push_back(Answer { tuple, segment });
        }
    }
}
