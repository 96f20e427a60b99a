//! How an incoming ACK is processed (RFC 9293 §3.10.7.4 fifth).

use atoll_base::{Duration, Instant, SeqNum};
use atoll_wire::tcp::{Flags, Segment};

use crate::congestion::{Ack, Sample};
use crate::connection::Connection;
use crate::outcome::{Events, Input, Reason};
use crate::pending::Pending;
use crate::recovery::{Counters, DUP_THRESHOLD, Frto, Phase, Recovery, Sent, Undo};
use crate::snd::Snd;
use crate::state::State;
use crate::timers::{Retransmit, Timer};

impl Connection {
    pub(super) fn process_ack(&mut self, now: Instant, segment: &Segment) -> Result<Events, Input> {
        let ack = self.snd.offset_of(segment.ack);
        let mut events = Events::empty();
        if self.state() == State::SynReceived {
            events |= self.complete_handshake(now, segment, ack)?;
        }
        if ack > self.snd.nxt {
            return Err(Input::answered(Reason::AckUnsent, self.challenge(now)));
        }
        if ack < (self.snd.una - i64::from(self.snd.window_max)).max(0) {
            // RFC 5961 §5.2: blind injection of text needs a plausible acknowledgement. As on Linux since
            // 6.7, an acknowledgement of what lies before our SYN does not count either: with a large window
            // every other guess would be right otherwise.
            return Err(Input::answered(Reason::AckOld, self.challenge(now)));
        }
        self.take_echo(now, segment, ack > self.snd.una);
        let mut delivery = Delivery::new(&self.recovery, &self.snd);
        self.take_sack_blocks(segment, ack, &mut delivery);
        if ack < self.snd.una {
            // The segment was reordered: its blocks may be new, its window is not.
            self.learn(now, segment, &delivery);
            self.detect_loss(now, &delivery);
            self.sample_path(now, &delivery);
            return Ok(events);
        }
        self.judge_tail_probe(segment, ack);
        let window_moved = self.update_window(segment, ack);
        if ack > self.snd.una {
            events |= self.advance_una(now, segment, ack, &mut delivery);
        } else {
            if self.is_duplicate(segment, window_moved, &delivery) {
                self.recovery.dup_acks = self.recovery.dup_acks.saturating_add(1);
                delivery.duplicate = true;
                if self.recovery.reno {
                    delivery.delivered = i64::from(self.snd.mss);
                }
                self.learn(now, segment, &delivery);
                self.judge_timeout(&delivery);
                self.detect_loss(now, &delivery);
            }
            if self.snd.flight() == 0 {
                // The peer has answered a probe, so it lives.
                self.recovery.retries = 0;
            }
        }
        self.undo_if_all_arrived_twice(segment, ack);
        self.sample_path(now, &delivery);
        events |= self.advance_state(now);
        Ok(events)
    }

    /// Handles the arrival of our text, or FIN, up to `ack`.
    fn advance_una(&mut self, now: Instant, segment: &Segment, ack: i64, delivery: &mut Delivery) -> Events {
        let had_flight = self.snd.flight();
        delivery.acked = ack - self.snd.una;
        self.take_acknowledged(ack, delivery);
        self.snd.una = ack;
        self.note_mtu_news(now);
        self.learn(now, segment, delivery);
        self.judge_handshake();
        self.recovery.retries = 0;
        if let Some(rare) = &mut self.rare {
            rare.losses.end_series(now);
        }
        self.progress_at = now;
        self.snd.network_error = None;
        self.undo_if_spurious(segment);
        self.judge_timeout(delivery);
        let (phase_before, dup_acks) = (self.recovery.phase, self.recovery.dup_acks);
        self.recovery.advance(&self.snd, delivery.acked);
        if self.recovery.reno && phase_before == Phase::Recovery {
            // RFC 9937 §6.2: each duplicate acknowledgement has counted a segment already.
            let counted =
                i64::from(dup_acks.saturating_sub(self.recovery.dup_acks)) * i64::from(self.snd.mss);
            delivery.delivered = (delivery.acked - counted).max(0);
        }
        if phase_before != Phase::Open && self.recovery.phase == Phase::Open {
            self.congestion.end_recovery(self.snd.mss, phase_before == Phase::Recovery);
        }
        if phase_before != Phase::Recovery {
            // What was SACKed has been counted, or will not be: it left while the window stood still (as on
            // Linux).
            let fresh = if self.recovery.reno { delivery.acked } else { delivery.delivered };
            let acked = u32::try_from(fresh.min(had_flight)).unwrap_or(u32::MAX);
            self.congestion.handle_ack(&Ack {
                now,
                acked,
                mss: self.snd.mss,
                srtt_us: self.recovery.rtt.srtt_us,
                rtt_us: delivery.rtt_us(now),
                una: self.snd.una,
                nxt: self.snd.nxt,
            });
        }
        if self.snd.flight() == 0 {
            self.recovery.forget_flight();
            self.timers.cancel(Timer::Retransmit);
        } else {
            self.arm_rto(now);
            self.detect_loss(now, delivery);
        }
        if self.snd.una > 0 { Events::ACKED } else { Events::empty() }
    }

    /// Handles the peer's acknowledgement of our SYN.
    pub(super) fn acknowledge_syn(&mut self, now: Instant, segment: &Segment, ack: i64) {
        let mut delivery = Delivery::new(&self.recovery, &self.snd);
        delivery.acked = ack - self.snd.una;
        self.take_acknowledged(ack, &mut delivery);
        self.snd.una = ack;
        self.learn(now, segment, &delivery);
        self.judge_handshake();
    }

    /// Notes the delivery of what is in flight below `ack`, unless it was SACKed before.
    fn take_acknowledged(&mut self, ack: i64, delivery: &mut Delivery) {
        if let Some(flight) = &mut self.recovery.flight {
            flight.acknowledge(ack, |sent| delivery.note(sent));
            return;
        }
        let counters = Counters {
            app_limited: !self.congestion.limited,
            in_flight: u32::try_from(self.snd.flight()).unwrap_or(u32::MAX),
            ..Counters::new(self.snd.una, self.sent_at)
        };
        let sent = Sent::once(self.snd.una, ack, self.sent_at, counters);
        delivery.note(&sent);
    }

    /// Learns round-trip times, reordering and the delivery rate from the delivery.
    fn learn(&mut self, now: Instant, segment: &Segment, delivery: &Delivery) {
        if delivery.reordered && self.options.sack {
            self.recovery.reordering.seen = true;
            // tcp_check_sack_reordering
            let losses = &mut self.rare.get_or_insert_default().losses;
            losses.reordered = losses.reordered.saturating_add(1);
        }
        self.take_round_trip_sample(now, segment, delivery);
        let una = self.snd.una;
        let min_us = self.recovery.rtt.min_us;
        let Some(flight) = &mut self.recovery.flight else { return };
        let newest = delivery.newest.as_ref();
        if let Some(newest) = newest.filter(|_| self.options.sack) {
            // RFC 8985 §6.2, step 2: after a retransmission the acknowledgement may be that of the original.
            let rtt = now.since(newest.sent_at);
            let echo = segment.options.timestamps.map(|timestamps| SeqNum(timestamps.echo));
            let sent = SeqNum(self.options.clock(newest.sent_at));
            let of_original = newest.retransmitted
                && (self.options.timestamps && echo.is_some_and(|echo| echo.before(sent))
                    || rtt < Duration::from_micros(min_us.into()));
            if !of_original {
                flight.rack.update(newest, rtt);
            }
        }
        if delivery.delivered > 0 {
            flight.count_delivered(now, una, newest);
        }
    }

    /// Returns what is needed to undo the reduction of the windows in the episode of recovery that begins.
    pub(crate) fn remember_for_undo(&self, now: Instant) -> Undo {
        let stamp = self.options.timestamps.then(|| self.options.clock(now));
        Undo::new(self.congestion.cwnd, self.congestion.ssthresh, stamp)
    }

    /// Handles the first acknowledgement of new text in an episode: if it answers what was sent before the
    /// episode, nothing was lost.
    fn undo_if_spurious(&mut self, segment: &Segment) {
        let Some(undo) = self.recovery.episode.as_mut().and_then(|episode| episode.undo.as_mut()) else {
            return;
        };
        let echo = segment.options.timestamps.map(|timestamps| timestamps.echo);
        if undo.is_due_by(echo) && self.recovery.phase != Phase::Open {
            // The text was late, so it came out of order.
            self.recovery.reordering.seen = true;
            self.undo();
        }
    }

    /// Undoes the episode if everything that was sent again has arrived twice (RFC 3708).
    fn undo_if_all_arrived_twice(&mut self, segment: &Segment, ack: i64) {
        let Some((from, to)) = self.twice(segment, ack) else { return };
        let (una, nxt) = (self.snd.una, self.snd.nxt);
        // tcp_dsack_seen: what is larger than a segment was several. More than was sent is no report.
        if to - from <= nxt.max(0) {
            let segments = (to - from).unsigned_abs().div_ceil(u64::from(self.snd.mss.max(1)));
            let losses = &mut self.rare.get_or_insert_default().losses;
            losses.twice = losses.twice.saturating_add(u32::try_from(segments).unwrap_or(u32::MAX));
        }
        if let Some(flight) = &mut self.recovery.flight {
            flight.widen_reordering(&mut self.recovery.reordering, una, nxt);
        }
        let Some(undo) = self.recovery.episode.as_mut().and_then(|episode| episode.undo.as_mut()) else {
            return;
        };
        if undo.note_twice(to - from) {
            self.undo();
        }
    }

    /// Returns the text that the segment reports to have arrived twice (RFC 2883 §4): its first block, if
    /// that lies below the acknowledgement or within the second block.
    fn twice(&self, segment: &Segment, ack: i64) -> Option<(i64, i64)> {
        if !self.options.sack {
            return None;
        }
        let mut blocks = segment.options.sack.iter();
        let offsets = |(left, right)| (self.snd.offset_of(left), self.snd.offset_of(right));
        let first = offsets(blocks.next()?);
        let within =
            blocks.next().map(offsets).is_some_and(|second| first.0 >= second.0 && first.1 <= second.1);
        (first.0 < first.1 && (first.1 <= ack || within)).then_some(first)
    }

    /// Restores the windows that were in use before the episode.
    fn undo(&mut self) {
        let Some(undo) = self.recovery.episode.as_mut().and_then(|episode| episode.undo.take()) else {
            return;
        };
        self.congestion.undo(undo.cwnd, undo.ssthresh);
        self.recovery.end_by_undo();
        self.pending.clear(Pending::RETRANSMIT);
    }

    /// Judges whether a time-out was spurious: F-RTO, RFC 5682 §3.1, with SACK as in §3 there and on Linux.
    fn judge_timeout(&mut self, delivery: &Delivery) {
        if self.recovery.phase != Phase::Loss || self.recovery.frto == Frto::Off {
            return;
        }
        if delivery.original {
            // Step 3 (b): text that was sent once, before the time-out, has arrived after it.
            self.recovery.reordering.seen = true;
            self.undo();
        } else if self.recovery.frto == Frto::NewText {
            if delivery.duplicate {
                // Step 3 (a): the text was lost indeed.
                self.recovery.frto = Frto::Off;
            }
        } else if delivery.acked > 0 && self.snd.una < self.recovery.recover {
            // Step 2 (b): text that was never sent goes first.
            let has_text = self.snd.nxt < self.snd.end() && self.snd.nxt < self.snd.edge;
            self.recovery.frto = if has_text { Frto::NewText } else { Frto::Off };
            self.recovery.recover = self.snd.nxt;
        } else if delivery.duplicate {
            // Step 2 (a).
            self.recovery.frto = Frto::Off;
        }
    }

    /// Leaves the states that end when our FIN is acknowledged (RFC 9293 §3.10.7.4 fifth, from FIN-WAIT-1
    /// on).
    fn advance_state(&mut self, now: Instant) -> Events {
        if !self.snd.fin_acked() {
            return Events::empty();
        }
        match self.state() {
            State::FinWait1 => {
                self.transition(State::FinWait2);
                if self.is_orphan() {
                    self.timers.arm(Timer::Lifetime, now + self.config.linger2());
                }
                Events::empty()
            }
            State::Closing => self.enter_time_wait(now),
            State::LastAck => {
                self.become_closed();
                Events::CLOSED
            }
            _ => Events::empty(),
        }
    }

    /// Takes the peer's window unless the segment is older than the one that set it (RFC 9293 §3.10.7.4,
    /// SND.WL1 and SND.WL2). Returns whether the right edge moved.
    fn update_window(&mut self, segment: &Segment, ack: i64) -> bool {
        // RFC 7323 §2.2: the window of a SYN is never scaled.
        let scale = if segment.has(Flags::SYN) { 0 } else { self.options.snd_scale };
        let window = u32::from(segment.window) << scale;
        let edge = ack + i64::from(window);
        let snd = &mut self.snd;
        let same = snd.wl1 == segment.seq;
        let newer = snd.wl1.before(segment.seq)
            || (same && snd.wl2.before(segment.ack))
            || (same && snd.wl2 == segment.ack && edge > snd.edge);
        if !newer {
            return false;
        }
        let moved = edge != snd.edge;
        snd.edge = edge;
        snd.wl1 = segment.seq;
        snd.wl2 = segment.ack;
        snd.window_max = snd.window_max.max(window);
        if moved && edge > snd.nxt && snd.flight() == 0 {
            // The window is open: probing is over.
            self.recovery.rtt.backoff = 0;
        }
        moved
    }

    /// Marks the text that the SACK blocks report (RFC 2018 §3).
    fn take_sack_blocks(&mut self, segment: &Segment, ack: i64, delivery: &mut Delivery) {
        if !self.options.sack || self.snd.flight() == 0 {
            return;
        }
        for (left, right) in segment.options.sack.iter() {
            // A block below the acknowledgement is a D-SACK (RFC 2883 §4): text arrived twice. A block beyond
            // what was sent is nonsense.
            let left = self.snd.offset_of(left).max(ack).max(self.snd.una);
            let right = self.snd.offset_of(right);
            if left >= right || right > self.snd.nxt {
                continue;
            }
            let flight = self.recovery.flight(&self.snd, self.sent_at);
            delivery.sacked += flight.sack(left, right, |sent| delivery.note(sent));
        }
    }

    /// Returns whether the segment is a duplicate acknowledgement (RFC 5681 §2). With SACK, that is one that
    /// reports something new (RFC 6675 §2).
    fn is_duplicate(&self, segment: &Segment, window_moved: bool, delivery: &Delivery) -> bool {
        if self.options.sack {
            return delivery.sacked > 0;
        }
        self.snd.flight() > 0 && segment.len == 0 && !segment.has(Flags::FIN) && !window_moved
    }

    /// Detects losses after an acknowledgement, and begins or continues fast recovery.
    fn detect_loss(&mut self, now: Instant, delivery: &Delivery) {
        if self.snd.flight() == 0 || !self.state().is_synchronized() {
            return;
        }
        let lost_before = self.recovery.lost();
        if self.options.sack {
            self.detect_by_time(now);
        } else if self.recovery.phase == Phase::Open
            && self.recovery.dup_acks >= DUP_THRESHOLD
            // RFC 6582 §3.2, step 1: duplicates of text that the last episode sent twice mean nothing.
            && self.snd.una > self.recovery.recover
        {
            let (una, end) = (self.snd.una, self.recovery.first_segment_end(&self.snd));
            self.recovery.flight(&self.snd, self.sent_at).mark_lost(una, end);
        }
        match self.recovery.phase {
            Phase::Open if self.recovery.lost() > 0 => self.begin_recovery(now, delivery.delivered),
            Phase::Recovery => {
                let ssthresh = self.congestion.ssthresh;
                let safe = delivery.acked > 0 && self.recovery.lost() <= lost_before;
                let window = self.recovery.prr_window(&self.snd, delivery.delivered, ssthresh, safe);
                self.congestion.set_recovery_window(window);
            }
            _ => {}
        }
    }

    /// Reports to congestion control what has been delivered and lost, and how fast, if it has a model of the
    /// path.
    fn sample_path(&mut self, now: Instant, delivery: &Delivery) {
        if !self.congestion.has_model() {
            return;
        }
        let min_rtt =
            Duration::from_micros(if self.recovery.reno { 0 } else { self.recovery.rtt.min_us.into() });
        // Nothing is in flight any more, or all of it left at once; then these defaults take the place of the
        // records.
        let mut counters = Counters::new(self.snd.una, now);
        let mut lost = None;
        if let Some(flight) = &mut self.recovery.flight {
            counters = flight.counters;
            lost = flight.lost_news.take();
        } else if let Some(newest) = &delivery.newest {
            counters.lost = newest.counters.lost;
        }
        if delivery.delivered == 0 && lost.is_none() {
            return;
        }
        let saturated = |octets: i64| u32::try_from(octets.max(0)).unwrap_or(u32::MAX);
        let newest = delivery.newest.filter(|_| delivery.delivered > 0);
        let sample = Sample {
            now,
            mss: self.snd.mss,
            delivered: counters.delivered,
            newly_delivered: saturated(delivery.delivered),
            newly_lost: lost.map_or(0, |lost| saturated(lost.end - lost.start)),
            pipe: saturated(self.recovery.pipe(&self.snd)),
            srtt_us: self.recovery.rtt.srtt_us,
            rtt_us: delivery.rtt_us(now),
            rate: newest.map(|sent| counters.sample(&sent, min_rtt)),
            lost: lost.map(|sent| counters.sample(&sent, Duration::ZERO)),
            limited: self.congestion.limited,
            seed: u64::from(self.snd.start.0),
        };
        self.congestion.handle_sample(&sample);
    }

    /// Marks what is lost by RFC 8985 §6.2, and arms the timer that looks again.
    fn detect_by_time(&mut self, now: Instant) {
        let window = self.recovery.reordering_window(&self.snd);
        let Some(flight) = &mut self.recovery.flight else { return };
        match flight.detect_by_time(now, window) {
            Some(wait) => self.timers.arm_retransmit(Retransmit::Reordering, now + wait),
            None if self.timers.is_armed_as(Retransmit::Reordering) => self.arm_rto(now),
            None => {}
        }
    }

    /// Handles the end of a reordering window (RFC 8985 §6.3).
    pub(crate) fn handle_reordering_timeout(&mut self, now: Instant) -> Events {
        if self.snd.flight() > 0 {
            self.arm_rto(now);
            let delivery = Delivery::new(&self.recovery, &self.snd);
            self.detect_loss(now, &delivery);
            self.sample_path(now, &delivery);
        }
        Events::empty()
    }

    /// Begins fast recovery because losses are known. `delivered` is the number of octets that have just left
    /// the network.
    fn begin_recovery(&mut self, now: Instant, delivered: i64) {
        if self.only_probe_is_lost() {
            return;
        }
        let undo = self.remember_for_undo(now);
        let flight = u32::try_from(self.snd.flight()).unwrap_or(u32::MAX);
        self.congestion.handle_loss(flight, self.snd.mss);
        self.recovery.enter_recovery(&self.snd, delivered, Some(undo));
        let ssthresh = self.congestion.ssthresh;
        let window = self.recovery.prr_window(&self.snd, delivered, ssthresh, false);
        self.congestion.set_recovery_window(window);
        self.pending.set(Pending::RETRANSMIT);
    }

    /// Takes a sample of the round trip from the earliest text that was sent once and has been delivered now.
    /// After a retransmission, the echoed timestamp says which copy was acknowledged (RFC 7323 §4).
    pub(super) fn take_round_trip_sample(&mut self, now: Instant, segment: &Segment, delivery: &Delivery) {
        let timed = delivery.rtt_us(now).filter(|_| !self.recovery.untimed);
        let sample = match timed {
            Some(us) => Some(us),
            None if delivery.acked > 0 => self.options.rtt_us(now, &segment.options),
            None => None,
        };
        match sample {
            Some(us) => {
                self.recovery.rtt.sample(now, us);
                self.recovery.probed = false;
            }
            // DEVIATION: RFC 6298 §5.7 keeps the time-out backed off until something new is measured. Without
            // timestamps nothing is measured while a long flight is repaired, and each further loss would
            // wait for minutes; so progress takes back a doubling.
            None if delivery.acked > 0 && self.recovery.phase == Phase::Loss => self.recovery.rtt.ease_off(),
            None => {}
        }
    }
}

/// The text that one segment reports as delivered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    /// Octets by which `una` moves.
    acked: i64,
    /// Octets newly SACKed.
    sacked: i64,
    /// Octets that have left the network.
    delivered: i64,
    /// The delivered record that left last.
    newest: Option<Sent>,
    /// When the earliest delivered record left that was sent once, and by this process.
    first_sent_at: Option<Instant>,
    /// Whether something that was sent once has arrived after something that was sent later.
    reordered: bool,
    /// Whether something that was sent more than once has arrived.
    retransmitted: bool,
    /// Whether something that was sent once, before `recover`, has arrived.
    original: bool,
    recover: i64,
    /// The right edge of what had been SACKed before this segment. The order of arrival of what the segment
    /// itself reports is not known.
    fack: i64,
    /// The end of what a predecessor has sent; it is not known when that left.
    guessed_until: i64,
    /// Whether the segment counts as a duplicate acknowledgement.
    duplicate: bool,
}

impl Delivery {
    fn new(recovery: &Recovery, snd: &Snd) -> Delivery {
        Delivery {
            acked: 0,
            sacked: 0,
            delivered: 0,
            newest: None,
            first_sent_at: None,
            reordered: false,
            retransmitted: false,
            original: false,
            recover: recovery.recover,
            fack: recovery.flight.as_ref().map_or(snd.una, |flight| flight.fack),
            guessed_until: recovery.flight.as_ref().map_or(i64::MIN, |flight| flight.guessed_until),
            duplicate: false,
        }
    }

    /// Returns the round trip in microseconds of the record that left first, if everything delivered was sent
    /// once: otherwise it may have waited for what was sent twice.
    fn rtt_us(&self, now: Instant) -> Option<u32> {
        let sent_at = self.first_sent_at.filter(|_| !self.retransmitted)?;
        Some(u32::try_from(now.since(sent_at).as_micros()).unwrap_or(u32::MAX))
    }

    /// Notes that `sent` has been delivered.
    fn note(&mut self, sent: &Sent) {
        self.delivered += sent.end - sent.start;
        if self.newest.is_none_or(|newest| (newest.sent_at, newest.end) < (sent.sent_at, sent.end)) {
            self.newest = Some(*sent);
        }
        self.retransmitted |= sent.retransmitted;
        if !sent.retransmitted {
            if sent.start >= self.guessed_until {
                self.first_sent_at =
                    Some(self.first_sent_at.map_or(sent.sent_at, |first| first.min(sent.sent_at)));
            }
            self.reordered |= sent.end < self.fack;
            self.original |= sent.end <= self.recover;
        }
    }
}
