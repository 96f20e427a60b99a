//! What happens when no acknowledgement comes (RFC 6298 §5, RFC 9293 §3.8.3).

use atoll_base::{Duration, Instant};

use crate::connection::Connection;
use crate::outcome::Events;
use crate::pending::Pending;
use crate::recovery::{Phase, RTO_MAX};
use crate::state::State;
use crate::timers::Retransmit;

impl Connection {
    /// Starts or restarts the time-out of what is in flight (RFC 6298 §5.1, §5.3), or the earlier probe of
    /// its end.
    pub(crate) fn arm_rto(&mut self, now: Instant) {
        let rto = self.recovery.rtt.rto();
        if let Some(wait) = self.tail_probe_wait(rto) {
            self.timers.arm_retransmit(Retransmit::TailProbe, now + wait);
            return;
        }
        self.timers.arm_retransmit(Retransmit::Rto, now + self.within_user_timeout(now, rto));
    }

    /// Arms the timers after new text has left. If anything was in flight, the time-out keeps running (RFC
    /// 6298 §5.1). The probe of the end moves with the end (RFC 8985 §7.2), but not beyond the time-out.
    pub(super) fn arm_after_new_text(&mut self, now: Instant) {
        let rto = self.recovery.rtt.rto();
        let limit = (self.progress_at + self.within_user_timeout(now, rto)).max(now);
        match self.tail_probe_wait(rto) {
            Some(wait) => self.timers.arm_retransmit(Retransmit::TailProbe, (now + wait).min(limit)),
            None if self.is_time_out_armed() => {}
            None => self.timers.arm_retransmit(Retransmit::Rto, limit),
        }
    }

    /// Returns whether what is in flight is watched already, by the time-out or by the earlier reordering
    /// timer.
    pub(super) fn is_time_out_armed(&self) -> bool {
        self.timers.is_armed_as(Retransmit::Rto) || self.timers.is_armed_as(Retransmit::Reordering)
    }

    /// Handles the expiry of the retransmission time-out: no acknowledgement came in time.
    pub(crate) fn handle_rto(&mut self, now: Instant) -> Events {
        if self.snd.flight() == 0 {
            return Events::empty();
        }
        if self.is_hopeless(now) {
            return self.give_up();
        }
        let mut events = Events::empty();
        let first = self.recovery.retries == 0;
        self.rare.get_or_insert_default().losses.note_timeout(now, first);
        self.recovery.retries = self.recovery.retries.saturating_add(1);
        self.recovery.rtt.back_off();
        if self.state().is_synchronized() {
            self.suspect_size(now);
            let flight = u32::try_from(self.snd.flight()).unwrap_or(u32::MAX);
            let undo = self.remember_for_undo(now);
            self.congestion.handle_timeout(flight, self.snd.mss, first && self.recovery.phase != Phase::Loss);
            let sacked = self.recovery.sacked(&self.snd);
            self.recovery.enter_loss(now, &self.snd, self.sent_at, Some(undo));
            if self.options.sack && sacked > 0 && self.recovery.sacked(&self.snd) == 0 {
                events |= Events::SACK_RENEGED;
            }
            self.pending.set(Pending::RETRANSMIT);
        } else {
            self.pending.set(Pending::SYN);
        }
        self.arm_rto(now);
        events
    }

    /// Returns whether waiting longer is pointless (RFC 9293 §3.8.3, R2; §3.9.1.8, user time-out).
    pub(super) fn is_hopeless(&self, now: Instant) -> bool {
        let retries_max = match self.state() {
            State::SynSent => self.config.syn_retries,
            State::SynReceived => SYN_ACK_RETRIES,
            _ if self.is_orphan() => ORPHAN_RETRIES,
            _ => RETRIES,
        };
        match self.config.user_timeout() {
            Some(timeout) if self.state().is_synchronized() => now.since(self.progress_at) >= timeout,
            // RFC 9293 §3.8.6, SHLD-17: a peer that has taken its window back and answers still lives.
            _ if self.snd.edge <= self.snd.una
                && !self.is_orphan()
                && now.since(self.heard_at) < RTO_MAX.saturating_mul(2) =>
            {
                false
            }
            _ if self.is_orphan() => self.is_hopeless_orphan(retries_max),
            _ => self.recovery.retries >= retries_max,
        }
    }

    /// Returns whether a connection without application is to be given up. A peer that keeps its window
    /// closed answers every probe, which sets `retries` back, so only a window that opens, or text that is
    /// acknowledged, counts as progress. A peer that makes every round trip last for minutes is not waited
    /// for eight times: as on Linux, an orphan ends when the time-out is at its limit.
    fn is_hopeless_orphan(&self, retries_max: u8) -> bool {
        let rtt = &self.recovery.rtt;
        self.recovery.retries.max(rtt.backoff) >= retries_max || rtt.rto() >= RTO_MAX
    }

    /// Returns `wait`, cut at the moment at which the application wants to be notified of a failure
    /// (`TCP_USER_TIMEOUT`).
    pub(super) fn within_user_timeout(&self, now: Instant, wait: Duration) -> Duration {
        let Some(timeout) = self.config.user_timeout() else { return wait };
        let left = timeout.saturating_sub(now.since(self.progress_at));
        wait.min(left.max(USER_TIMEOUT_STEP))
    }
}

/// The number of retransmissions of a SYN-ACK: Linux's `tcp_synack_retries`.
const SYN_ACK_RETRIES: u8 = 5;
/// The number of retransmissions of text: Linux's `tcp_retries2`, which is about a quarter of an hour.
const RETRIES: u8 = 15;
/// The number of retransmissions of an orphan's text: Linux's `tcp_orphan_retries`. No application waits for
/// the outcome.
const ORPHAN_RETRIES: u8 = 8;
/// The shortest time between two checks of the user time-out.
const USER_TIMEOUT_STEP: Duration = Duration::from_millis(10);
