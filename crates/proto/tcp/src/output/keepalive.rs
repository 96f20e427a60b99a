//! How a connection finds out whether an idle peer still lives (RFC 9293 §3.8.4).

use atoll_base::Instant;

use crate::connection::Connection;
use crate::outcome::Events;
use crate::pending::Pending;
use crate::state::State;
use crate::timers::Timer;

impl Connection {
    /// Starts the keep-alive timer if the application has asked for it (MUST-24, MUST-25: off by default).
    pub(crate) fn arm_keep_alive(&mut self, now: Instant) {
        if let Some(keep_alive) = self.config.keep_alive()
            && self.state() != State::TimeWait
        {
            self.timers.arm(Timer::KeepAlive, now + keep_alive.idle);
        }
    }

    /// Handles the keep-alive timer. The timer is not moved by every segment; a segment that was received
    /// since then puts the check off.
    pub(crate) fn handle_keep_alive(&mut self, now: Instant) -> Events {
        let Some(keep_alive) = self.config.keep_alive() else { return Events::empty() };
        let busy = self.snd.flight() > 0 || self.snd.nxt < self.snd.end();
        let silence = now.since(self.heard_at);
        if busy || silence < keep_alive.idle {
            // MUST-26: probe only while nothing is under way; retransmissions and window probes do better.
            let left = keep_alive.idle.saturating_sub(silence);
            let again = if left.is_zero() { keep_alive.idle } else { left };
            self.timers.arm(Timer::KeepAlive, now + again);
            return Events::empty();
        }
        let out_of_time = match self.config.user_timeout() {
            Some(timeout) => self.keep_probes > 0 && silence >= timeout,
            None => self.keep_probes >= keep_alive.probes,
        };
        if out_of_time {
            self.pending.set(Pending::RESET);
            return self.give_up();
        }
        self.keep_probes = self.keep_probes.saturating_add(1);
        self.pending.set(Pending::KEEP_ALIVE);
        self.timers.arm(Timer::KeepAlive, now + keep_alive.interval);
        Events::empty()
    }
}
