//! What happens when the peer's window is closed (RFC 9293 §3.8.6.1).

use atoll_base::Instant;

use crate::connection::Connection;
use crate::outcome::Events;
use crate::pending::Pending;
use crate::recovery::RTO_MAX;
use crate::timers::{Retransmit, Timer};

impl Connection {
    /// Arms a timer if nothing can be sent now, something waits, and nothing is in flight whose
    /// acknowledgement could change that.
    ///
    /// The timer also ends the wait of text that Nagle's rule, cork (200 ms at most, as on Linux) or
    /// silly-window avoidance holds back.
    pub(super) fn watch_window(&mut self, now: Instant) {
        let waits = self.state().may_send()
            && self.snd.nxt < self.snd.end()
            && self.snd.flight() == 0
            && !self.timers.is_armed(Timer::Pace);
        if !waits {
            if self.timers.is_armed_as(Retransmit::Persist) {
                self.timers.cancel(Timer::Retransmit);
            }
            return;
        }
        if !self.timers.is_armed(Timer::Retransmit) {
            // SHLD-29: wait one RTO before the first probe. SHLD-30: wait exponentially longer before each
            // further one.
            self.timers.arm_retransmit(Retransmit::Persist, now + self.recovery.rtt.rto());
            self.progress_at = if self.recovery.retries == 0 { now } else { self.progress_at };
        }
    }

    /// Probes a window that has been closed for a while. As long as the peer answers, the connection stays
    /// open (MUST-37).
    pub(crate) fn handle_persist(&mut self, now: Instant) -> Events {
        if self.is_hopeless(now) {
            return self.give_up();
        }
        self.recovery.retries = self.recovery.retries.saturating_add(1);
        self.recovery.rtt.back_off();
        self.pending.set(Pending::PROBE);
        let wait = self.recovery.rtt.rto().min(RTO_MAX);
        self.timers.arm_retransmit(Retransmit::Persist, now + self.within_user_timeout(now, wait));
        Events::empty()
    }
}
