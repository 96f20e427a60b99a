//! Tail loss probes, which find out whether the end of what was sent is lost (RFC 8985 §7).
//!
//! The loss of the last segments brings no SACK that could show it. After two round trips one segment is sent
//! again. The peer's answer shows the loss, and fast recovery repairs it, much earlier than a time-out would.

use atoll_base::{Duration, Instant};
use atoll_wire::tcp::Segment;

use crate::connection::Connection;
use crate::outcome::{Events, Transmit};
use crate::pending::Pending;
use crate::recovery::Phase;

impl Connection {
    /// Returns how long to wait before probing, at most `rto`; `None` if the time-out is to be waited for
    /// instead.
    pub(super) fn tail_probe_wait(&self, rto: Duration) -> Option<Duration> {
        let recovery = &self.recovery;
        let wanted = self.options.sack
            && self.state().is_synchronized()
            && recovery.phase == Phase::Open
            && recovery.sacked(&self.snd) == 0
            && recovery.rtt.srtt_us > 0
            && recovery.rtt.backoff == 0
            // RFC 8985 §7.3: one probe at a time, and none before a round trip was measured since the last.
            && recovery.probe_end == i64::MAX
            && !recovery.probed
            // Otherwise the peer would not take the end of what was sent.
            && !self.snd.window_was_taken_back();
        if !wanted {
            return None;
        }
        // RFC 8985 §7.2: wait two round trips; a lone segment may have met a delayed ACK.
        let lone = self.snd.flight() <= i64::from(self.snd.mss);
        let delayed = if lone { DELAYED_ACK_MAX } else { TICKS };
        let wait = Duration::from_micros(2 * u64::from(recovery.rtt.srtt_us)) + delayed;
        // RFC 8985 §7.2: if the time-out would come first, the probe takes its place, because it does not
        // change the window.
        Some(wait.min(rto))
    }

    /// Handles the time to probe: new text is sent if there is some, else the last segment again (RFC 8985
    /// §7.3).
    pub(crate) fn handle_tail_probe(&mut self, now: Instant) -> Events {
        if self.snd.flight() == 0 {
            return Events::empty();
        }
        self.recovery.probed = true;
        if self.recovery.phase == Phase::Open && !self.snd.window_was_taken_back() {
            self.pending.set(Pending::TAIL_PROBE);
        }
        self.arm_rto(now);
        Events::empty()
    }

    /// Returns the probe, if one is due.
    pub(super) fn tail_retransmission(&mut self, now: Instant) -> Option<Transmit> {
        if !self.pending.take(Pending::TAIL_PROBE) || self.snd.flight() == 0 {
            return None;
        }
        let (una, nxt, mss) = (self.snd.una, self.snd.nxt, i64::from(self.snd.mss));
        if nxt < self.snd.tail && self.snd.edge - nxt >= mss.min(self.snd.tail - nxt) {
            // Text that was never sent shows the same and wastes nothing; the congestion window stretches by
            // one segment.
            return self.probe_with_new_text(now);
        }
        let text_end = nxt.min(self.snd.tail);
        let from = (text_end - mss).max(una.min(text_end));
        (self.recovery.probe_end, self.recovery.probe_is_old) = (nxt, true);
        Some(self.retransmit(now, from, text_end - from, nxt))
    }

    fn probe_with_new_text(&mut self, now: Instant) -> Option<Transmit> {
        let cwnd = self.congestion.cwnd;
        let pipe = u32::try_from(self.recovery.pipe(&self.snd)).unwrap_or(u32::MAX);
        self.congestion.cwnd = pipe.saturating_add(u32::from(self.snd.mss)).max(cwnd);
        let transmit = self.new_text(now, u32::from(self.snd.mss));
        self.congestion.cwnd = cwnd;
        if transmit.is_some() {
            (self.recovery.probe_end, self.recovery.probe_is_old) = (self.snd.nxt, false);
        }
        transmit
    }

    /// Judges a probe that was a retransmission when it is acknowledged: was the original lost (RFC 8985
    /// §7.4)? If it was, the probe has silently repaired the loss, and congestion control has to react.
    pub(crate) fn judge_tail_probe(&mut self, segment: &Segment, ack: i64) {
        if ack < self.recovery.probe_end {
            return;
        }
        if !self.recovery.probe_is_old {
            self.recovery.probe_end = i64::MAX;
            return;
        }
        let first = segment.options.sack.iter().next();
        let arrived_twice = first.is_some_and(|(_, right)| self.snd.offset_of(right) <= ack);
        let repaired = ack > self.recovery.probe_end;
        if repaired || arrived_twice || ack == self.snd.una {
            self.recovery.probe_end = i64::MAX;
        }
        if repaired && !arrived_twice && self.recovery.phase == Phase::Open {
            let flight = u32::try_from(self.snd.flight()).unwrap_or(u32::MAX);
            self.congestion.handle_loss(flight, self.snd.mss);
        }
    }
}

/// The longest time that a peer may take to acknowledge a lone segment: RFC 8985's `WCDelAckT`.
const DELAYED_ACK_MAX: Duration = Duration::from_millis(200);
/// Two ticks of a coarse timer.
const TICKS: Duration = Duration::from_millis(2);
