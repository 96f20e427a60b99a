//! How is an incoming ACK processed? RFC 9293 §3.10.7.4 fifth.

use atoll_base::Instant;
use atoll_wire::tcp::{Flags, Segment};

use crate::connection::Connection;
use crate::outcome::{Events, Input, Reason};
use crate::pending::Pending;
use crate::recovery::{DUP_THRESHOLD, Phase, Undo};
use crate::state::State;
use crate::timers::Timer;

impl Connection {
    pub(super) fn process_ack(&mut self, now: Instant, segment: &Segment, seq: i64) -> Result<Events, Input> {
        let ack = self.snd.offset_of(segment.ack);
        let mut events = Events::NONE;
        if self.state() == State::SynReceived {
            events |= self.complete_handshake(now, segment, ack)?;
        }
        if ack > self.snd.nxt {
            self.challenge(now);
            return Err(Input::dropped(Reason::AckUnsent));
        }
        if ack < self.snd.una - i64::from(self.snd.window_max) {
            // RFC 5961 §5.2: blind injection of text needs a plausible acknowledgement.
            self.challenge(now);
            return Err(Input::dropped(Reason::AckOld));
        }
        let sacked = self.take_sack_blocks(segment, ack);
        if ack < self.snd.una {
            // Reordered: its blocks may be news, its window is not.
            self.detect_loss(now, 0, sacked);
            return Ok(events);
        }
        self.judge_tail_probe(segment, ack);
        let window_moved = self.update_window(segment, seq, ack);
        if ack > self.snd.una {
            events |= self.advance_una(now, segment, ack, sacked);
        } else {
            if self.is_duplicate(segment, window_moved, sacked) {
                self.recovery.dup_acks = self.recovery.dup_acks.saturating_add(1);
                self.detect_loss(now, self.delivered_by_duplicate(sacked), sacked);
            }
            if self.snd.flight() == 0 {
                // The answer to a probe: the peer lives.
                self.recovery.retries = 0;
            }
        }
        events |= self.advance_state(now);
        Ok(events)
    }

    /// Our text, or FIN, up to `ack` has arrived.
    fn advance_una(&mut self, now: Instant, segment: &Segment, ack: i64, sacked: i64) -> Events {
        let acked = ack - self.snd.una;
        let had_flight = self.snd.flight();
        self.snd.una = ack;
        let delivered = acked - self.recovery.forget_below(ack) + sacked;
        self.take_round_trip_sample(now, segment, ack);
        self.recovery.retries = 0;
        self.progress_at = now;
        self.unreachable = false;
        self.recovery.probed = false;
        self.undo_if_spurious(segment);
        let phase_before = self.recovery.phase;
        self.recovery.advance(&self.snd, acked);
        if phase_before == Phase::Recovery && self.recovery.phase == Phase::Open {
            self.congestion.end_recovery(self.snd.mss);
        }
        if phase_before != Phase::Recovery {
            let acked = u32::try_from(acked.min(had_flight)).unwrap_or(u32::MAX);
            self.congestion.handle_ack(now, acked, self.snd.mss, self.recovery.rtt.srtt_us);
        }
        self.detect_loss(now, delivered, sacked);
        if self.snd.flight() == 0 {
            self.timers.cancel(Timer::Retransmit);
        } else {
            self.arm_rto(now);
        }
        if self.snd.una > 0 { Events::ACKED } else { Events::NONE }
    }

    /// An episode of recovery begins: what the windows are now.
    pub(crate) fn remember_for_undo(&mut self, now: Instant) {
        self.recovery.undo = self.options.timestamps.then(|| Undo {
            cwnd: self.congestion.cwnd,
            ssthresh: self.congestion.ssthresh,
            stamp: self.options.clock(now),
        });
    }

    /// The first acknowledgement of new text in an episode: if it answers what was sent before, nothing was lost.
    fn undo_if_spurious(&mut self, segment: &Segment) {
        let Some(undo) = self.recovery.undo.take() else { return };
        let echo = segment.options.timestamps.map(|timestamps| timestamps.echo);
        if self.recovery.phase != Phase::Open && echo.is_some_and(|echo| undo.is_due(echo)) {
            self.congestion.cwnd = self.congestion.cwnd.max(undo.cwnd);
            self.congestion.ssthresh = undo.ssthresh;
            self.recovery.end_by_undo(&self.snd);
            self.pending.clear(Pending::RETRANSMIT);
        }
    }

    /// Which states our acknowledged FIN leaves (RFC 9293 §3.10.7.4 fifth, from FIN-WAIT-1 on).
    fn advance_state(&mut self, now: Instant) -> Events {
        if !self.snd.fin_acked() {
            return Events::NONE;
        }
        match self.state() {
            State::FinWait1 => {
                self.transition(State::FinWait2);
                if self.orphan {
                    self.timers.arm(Timer::Lifetime, now + self.config.linger2());
                }
                Events::NONE
            }
            State::Closing => self.enter_time_wait(now),
            State::LastAck => {
                self.become_closed();
                Events::CLOSED
            }
            _ => Events::NONE,
        }
    }

    /// Takes the peer's window unless the segment is older than the one that set it (RFC 9293 §3.10.7.4, SND.WL1 and
    /// SND.WL2). Returns whether the right edge moved.
    fn update_window(&mut self, segment: &Segment, seq: i64, ack: i64) -> bool {
        // RFC 7323 §2.2: the window of a SYN is never scaled.
        let scale = if segment.has(Flags::SYN) { 0 } else { self.options.snd_scale };
        let window = u32::from(segment.window) << scale;
        let edge = ack + i64::from(window);
        let snd = &mut self.snd;
        let newer = (snd.wl1, snd.wl2) < (seq, ack) || ((snd.wl1, snd.wl2) == (seq, ack) && edge > snd.edge);
        if !newer {
            return false;
        }
        let moved = edge != snd.edge;
        snd.edge = edge;
        snd.wl1 = seq;
        snd.wl2 = ack;
        snd.window_max = snd.window_max.max(window);
        if moved && edge > snd.nxt && snd.flight() == 0 {
            // The window is open: probing is over.
            self.recovery.rtt.backoff = 0;
        }
        moved
    }

    /// Marks what the peer reports (RFC 2018 §3). Returns the octets newly marked.
    fn take_sack_blocks(&mut self, segment: &Segment, ack: i64) -> i64 {
        if !self.options.sack {
            return 0;
        }
        let mut sacked = 0;
        for (left, right) in segment.options.sack.iter() {
            let (left, right) = (self.snd.offset_of(left), self.snd.offset_of(right));
            // Below the acknowledgement it is a D-SACK (RFC 2883 §4): text arrived twice.
            sacked += self.recovery.mark_sacked(&self.snd, left.max(ack), right);
        }
        sacked
    }

    /// RFC 5681 §2, duplicate acknowledgement; with SACK RFC 6675 §2: one that reports something new.
    fn is_duplicate(&self, segment: &Segment, window_moved: bool, sacked: i64) -> bool {
        if self.options.sack {
            return sacked > 0;
        }
        self.snd.flight() > 0 && segment.len == 0 && !segment.has(Flags::FIN) && !window_moved
    }

    /// Octets that a duplicate acknowledgement says have left the network.
    fn delivered_by_duplicate(&self, sacked: i64) -> i64 {
        if self.options.sack { sacked } else { i64::from(self.snd.mss) }
    }

    /// Looks for losses after an acknowledgement; begins fast recovery, or goes on with it.
    fn detect_loss(&mut self, now: Instant, delivered: i64, sacked: i64) {
        if self.snd.flight() == 0 || !self.state().is_synchronized() {
            return;
        }
        if sacked > 0 {
            self.recovery.detect_by_sack(&self.snd);
        }
        match self.recovery.phase {
            Phase::Open => {
                let by_count = self.recovery.dup_acks >= DUP_THRESHOLD
                    // RFC 6582 §3.2, step 1: duplicates of text that the last episode sent twice mean nothing.
                    && (self.options.sack || self.snd.una > self.recovery.recover);
                if by_count || self.recovery.has_loss(&self.snd) {
                    let flight = u32::try_from(self.snd.flight()).unwrap_or(u32::MAX);
                    self.remember_for_undo(now);
                    self.congestion.handle_loss(flight, self.snd.mss);
                    self.recovery.enter_recovery(&self.snd);
                    self.pending.set(Pending::RETRANSMIT);
                }
            }
            Phase::Recovery => {
                let ssthresh = self.congestion.ssthresh;
                self.congestion.cwnd = self.recovery.prr_window(&self.snd, delivered, ssthresh);
            }
            Phase::Loss => {}
        }
        if sacked > 0 && self.recovery.retransmission_is_lost(&self.snd) {
            self.recovery.high_rxt = self.snd.una;
            self.pending.set(Pending::RETRANSMIT);
        }
    }

    /// One measurement per round trip; after a retransmission the echoed timestamp tells which copy was acknowledged
    /// (RFC 7323 §4).
    pub(super) fn take_round_trip_sample(&mut self, now: Instant, segment: &Segment, ack: i64) {
        let sample = self.recovery.take_round_trip(now, ack).or_else(|| {
            let untimed = self.recovery.phase != Phase::Open || self.recovery.rtt.backoff > 0;
            self.options.rtt_us(now, &segment.options).filter(|_| untimed)
        });
        match sample {
            Some(us) => self.recovery.rtt.sample(us),
            // DEVIATION: RFC 6298 §5.7 keeps the time-out backed off until something new is measured. Without
            // timestamps nothing is while a long flight is repaired, and each further loss would wait for minutes; so
            // progress takes back a doubling.
            None if self.recovery.phase == Phase::Loss => self.recovery.rtt.ease_off(),
            None => {}
        }
    }
}
