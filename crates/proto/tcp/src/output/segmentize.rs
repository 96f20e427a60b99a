//! How text is cut into segments, and when it leaves: RFC 9293 §3.7.4 (Nagle), §3.8.6.2.1 (silly windows),
//! and RFC 6675 §5.

use atoll_base::Instant;

use crate::connection::{Connection, text_offset};
use crate::outcome::Transmit;
use crate::pending::Pending;
use crate::recovery::{Frto, Phase};

impl Connection {
    /// Returns a retransmission of the next hole, as far as the congestion window allows.
    pub(super) fn retransmission(&mut self, now: Instant, len_max: u32) -> Option<Transmit> {
        if self.recovery.phase == Phase::Open {
            self.pending.clear(Pending::RETRANSMIT);
            return self.tail_retransmission(now);
        }
        // RFC 5682 §3.1, step 2 (b): new text leaves first.
        let Some((from, hole_end)) = self.recovery.hole().filter(|_| self.recovery.frto != Frto::NewText)
        else {
            self.pending.clear(Pending::RETRANSMIT);
            return None;
        };
        let mss = i64::from(self.snd.mss);
        let mut text_end = hole_end.min(self.snd.tail);
        // RFC 9293 §3.8.6, SHLD-16: if the peer has taken its window back, only text within the window is
        // sent again, and the first segment, which asks for the window.
        if from < self.snd.edge {
            text_end = text_end.min(self.snd.edge);
        } else if from > self.snd.una {
            self.pending.clear(Pending::RETRANSMIT);
            return None;
        }
        let room = i64::from(self.congestion.cwnd) - self.recovery.pipe(&self.snd);
        let len = if self.pending.has(Pending::RETRANSMIT) {
            // The first segment of an episode leaves at once.
            (text_end - from).min(mss)
        } else if room >= (text_end - from).clamp(1, mss) {
            whole_segments((text_end - from).min(room), mss, len_max)
        } else {
            self.congestion.limited = true;
            return None;
        };
        Some(self.retransmit(now, from, len, hole_end))
    }

    /// Sends `[from, from + len)` again, with the FIN if that follows and is lost, too.
    pub(super) fn retransmit(&mut self, now: Instant, from: i64, len: i64, hole_end: i64) -> Transmit {
        let end = from + len;
        let fin = self.snd.fin && end == self.snd.tail && hole_end > self.snd.tail;
        self.note_probe_resent(now, from, end);
        let losses = &mut self.rare.get_or_insert_default().losses;
        losses.resent = losses.resent.saturating_add(text_offset(len));
        self.recovery.note_retransmitted(now, &self.snd, self.sent_at, from, end + i64::from(fin));
        if self.pending.take(Pending::RETRANSMIT) || !self.is_time_out_armed() {
            self.arm_rto(now);
        }
        self.sent_at = now;
        self.note_paced(now, len);
        self.text(now, from, len, fin, true)
    }

    /// Returns text or FIN that was never sent, as far as the windows and the rules against small segments
    /// allow.
    pub(super) fn new_text(&mut self, now: Instant, len_max: u32) -> Option<Transmit> {
        let (nxt, tail, mss) = (self.snd.nxt, self.snd.tail, i64::from(self.snd.mss));
        if nxt >= self.snd.end() {
            self.pending.clear(Pending::PROBE);
            self.pending.clear(Pending::PUSH);
            self.note_limited(false);
            self.note_idle_application();
            return None;
        }
        if self.snd.flight() == 0 {
            let rto = self.recovery.rtt.base();
            self.congestion.handle_idle(now, now.since(self.sent_at), rto, self.snd.mss);
            self.congestion.peak = 0;
        }
        if let Some((size, len)) = self.probe_due(now) {
            self.note_probe_sent(size, nxt, nxt + len);
            return Some(self.send_new(now, len, false));
        }
        let available = tail - nxt;
        let by_window = self.snd.edge - nxt;
        // An unacknowledged SYN (RFC 7413) is in flight, but is not text.
        let syn = i64::from(self.snd.una < 0);
        let by_congestion = i64::from(self.congestion.cwnd) - self.recovery.pipe(&self.snd) + syn;
        // A FIN alone is no load: as on Linux it leaves even when the congestion window is used up.
        if available > 0 && by_congestion < available.min(mss) {
            self.note_limited(by_window > 0);
            return None;
        }
        if by_window <= 0 {
            self.note_limited(false);
            return None;
        }
        let forced = self.pending.has(Pending::PROBE);
        // When a link cuts a larger segment, every piece would carry the flags.
        let len_max = if self.ecn.needs_single_segments() { self.snd.mss.into() } else { len_max };
        let mut len = whole_segments(available.min(by_window).min(by_congestion.max(0)), mss, len_max);
        let fin = self.snd.fin && len == available && by_window > len;
        let remainder = len % mss;
        if remainder > 0 && !fin && !forced && !self.small_may_leave(len == available, remainder) {
            // The full segments leave; the small rest waits.
            len -= remainder;
        }
        if len == 0 && !fin {
            self.note_limited(false);
            return None;
        }
        self.pending.clear(Pending::PROBE);
        Some(self.send_new(now, len, fin))
    }

    fn send_new(&mut self, now: Instant, len: i64, fin: bool) -> Transmit {
        let from = self.snd.nxt;
        let end = from + len + i64::from(fin);
        if self.snd.flight() == 0 {
            self.progress_at = now;
        }
        self.recovery.note_sent(now, &self.snd, self.sent_at, end, !self.congestion.limited);
        self.snd.nxt = end;
        if len % i64::from(self.snd.mss) > 0 {
            self.snd.small_end = end;
        }
        self.sent_at = now;
        self.note_paced(now, len);
        // Our text answers the peer's: from now on ACKs wait for text to ride on.
        if len > 0 {
            self.note_interactive();
        }
        self.arm_after_new_text(now);
        self.text(now, from, len, fin, false)
    }

    /// Returns whether a segment of `len` octets, smaller than the MSS, may leave. `is_all` says that there
    /// is no more text than that.
    fn small_may_leave(&self, is_all: bool, len: i64) -> bool {
        if !is_all {
            // The peer's window cuts the text. RFC 9293 §3.8.6.2.1 (3): half of the largest window ever seen
            // is worth a segment.
            return len >= i64::from(self.snd.window_max / 2).max(1);
        }
        // As on Linux, urgent text never waits.
        if self.urgent_end().is_some() {
            return true;
        }
        if self.config.cork && !self.pending.has(Pending::PUSH) {
            return false;
        }
        // Minshall's variant of Nagle's rule, as on Linux: only another small segment in flight makes this
        // one wait.
        self.config.nodelay || self.snd.small_end <= self.snd.una
    }

    /// Notes that everything written has been sent although the network would take more: the delivery rate
    /// does not show the capacity of the path then.
    fn note_idle_application(&mut self) {
        let pipe = self.recovery.pipe(&self.snd);
        if let Some(flight) = &mut self.recovery.flight
            && flight.lost == 0
            && pipe < i64::from(self.congestion.cwnd)
        {
            flight.limit_by_application(pipe);
        }
    }

    /// Notes whether the congestion window is what holds the sender back. In slow start, the window also
    /// counts as the limit if more than half of it was used since nothing was in flight last. ACKs that come
    /// one by one find ever less in flight (RFC 7661 §4.3, Linux's `tcp_is_cwnd_limited`).
    fn note_limited(&mut self, blocked: bool) {
        let mss = i64::from(self.snd.mss);
        let segments = u16::try_from(self.snd.flight().div_euclid(mss)).unwrap_or(u16::MAX);
        self.congestion.peak = self.congestion.peak.max(segments);
        let half_used = i64::from(self.congestion.cwnd) < 2 * i64::from(self.congestion.peak) * mss;
        self.congestion.limited = blocked || (self.congestion.in_slow_start() && half_used);
    }
}

/// Returns as much of `len` as one transmit may carry: whole segments if the text has to be cut.
fn whole_segments(len: i64, mss: i64, len_max: u32) -> i64 {
    let limit = (i64::from(len_max) / mss).max(1) * mss;
    if len > limit { limit } else { len }
}
