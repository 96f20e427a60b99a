//! When may the next text leave? The pace of congestion control (draft-ietf-ccwg-bbr §5.6.2), and the owner's
//! (SO_MAX_PACING_RATE).
//!
//! Timers are kept to a millisecond, so text leaves in bursts of about that much. `paced_until` is when the
//! text sent so far would have left octet by octet; a burst may run ahead of it, and a timer that comes late
//! loses nothing.

use core::num::NonZeroU64;

use atoll_base::{Duration, Instant};

use crate::connection::Connection;
use crate::timers::Timer;

impl Connection {
    /// SO_MAX_PACING_RATE: octets per second at which text leaves at most, at least 1; `None`: as fast as
    /// congestion control has it.
    pub fn set_pacing_rate_max(&mut self, now: Instant, rate: Option<NonZeroU64>) {
        if rate.is_none() && self.rare.is_none() {
            return;
        }
        self.rare.get_or_insert_default().pacing_rate_max = rate;
        // What was sent at the old pace is forgotten: it may have been a very slow one.
        self.paced_until = now;
        self.timers.cancel(Timer::Pace);
    }

    /// The owner's part of the pace.
    pub(crate) fn pacing_rate_max(&self) -> Option<NonZeroU64> {
        self.rare.as_ref().and_then(|rare| rare.pacing_rate_max)
    }

    /// Octets per second; `None`: as fast as the windows allow.
    pub(crate) fn pacing_rate(&self) -> Option<u64> {
        match (self.congestion.pacing_rate(), self.pacing_rate_max()) {
            (Some(own), Some(most)) => Some(own.min(most.get())),
            (own, most) => own.or(most.map(NonZeroU64::get)),
        }
    }

    /// Most octets that may leave now by the pace; `None`: not before [`Timer::Pace`], which is armed.
    pub(super) fn paced(&mut self, now: Instant, len_max: u32) -> Option<u32> {
        let Some(rate) = self.pacing_rate() else { return Some(len_max) };
        if self.paced_until >= now + QUANTUM {
            self.timers.arm(Timer::Pace, self.paced_until);
            if !self.congestion.has_model() {
                // It is the pace that holds the sender back, not the window: that has no reason to grow.
                self.congestion.limited = false;
            }
            return None;
        }
        let burst = u32::try_from(rate / PER_SECOND).unwrap_or(u32::MAX);
        Some(len_max.min(burst.max(2 * u32::from(self.snd.mss))))
    }

    /// `len` octets leave.
    pub(super) fn note_paced(&mut self, now: Instant, len: i64) {
        let Some(rate) = self.pacing_rate() else { return };
        let len = u64::try_from(len).unwrap_or(0);
        let time = Duration::from_nanos(len.saturating_mul(1_000_000_000).checked_div(rate).unwrap_or(0));
        // What a late timer has not used is made good, up to a little.
        let from = if now.since(self.paced_until) > LATE { now } else { self.paced_until };
        self.paced_until = from + time;
    }
}

/// How far text may run ahead.
const QUANTUM: Duration = Duration::from_millis(1);
/// Quanta in a second.
const PER_SECOND: u64 = 1000;
const LATE: Duration = Duration::from_millis(4);
