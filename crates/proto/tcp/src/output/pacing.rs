//! When the next text may leave, by the pace of congestion control (draft-ietf-ccwg-bbr §5.6.2) and by that
//! of the application (SO_MAX_PACING_RATE).
//!
//! Timers are kept to a millisecond, so text leaves in bursts of about that much. `paced_until` is when the
//! text sent so far would have left octet by octet. A burst may run ahead of it, and a timer that comes late
//! loses nothing.

use core::num::NonZeroU64;

use atoll_base::{Duration, Instant};

use crate::connection::Connection;
use crate::timers::Timer;

impl Connection {
    /// Sets SO_MAX_PACING_RATE: the octets per second at which text leaves at most. `None` leaves the pace to
    /// congestion control.
    pub fn set_pacing_rate_max(&mut self, now: Instant, rate: Option<NonZeroU64>) {
        if rate.is_none() && self.rare.is_none() {
            return;
        }
        self.rare.get_or_insert_default().pacing_rate_max = rate;
        // The pause after text sent at the old pace is forgotten: that pace may have been very slow.
        self.paced_until = now;
        self.timers.cancel(Timer::Pace);
    }

    /// Returns the limit that the application has set on the pace, in octets per second.
    pub(crate) fn pacing_rate_max(&self) -> Option<NonZeroU64> {
        self.rare.as_ref().and_then(|rare| rare.pacing_rate_max)
    }

    /// Returns the pace in octets per second; `None` if text leaves as fast as the windows allow.
    pub(crate) fn pacing_rate(&self) -> Option<u64> {
        match (self.congestion.pacing_rate(), self.pacing_rate_max()) {
            (Some(own), Some(most)) => Some(own.min(most.get())),
            (own, most) => own.or(most.map(NonZeroU64::get)),
        }
    }

    /// Returns the most octets that may leave now by the pace; `None` means not before [`Timer::Pace`], which
    /// is armed.
    pub(super) fn paced(&mut self, now: Instant, len_max: u32) -> Option<u32> {
        let Some(rate) = self.pacing_rate() else { return Some(len_max) };
        if self.paced_until >= now + QUANTUM {
            self.timers.arm(Timer::Pace, self.paced_until);
            if !self.congestion.has_model() {
                // The pace holds the sender back, not the window, which has no reason to grow.
                self.congestion.limited = false;
            }
            return None;
        }
        let burst = u32::try_from(rate / PER_SECOND).unwrap_or(u32::MAX);
        Some(len_max.min(burst.max(2 * u32::from(self.snd.mss))))
    }

    /// Notes that `len` octets leave.
    pub(super) fn note_paced(&mut self, now: Instant, len: i64) {
        let Some(rate) = self.pacing_rate() else { return };
        let len = u64::try_from(len).unwrap_or(0);
        let time = Duration::from_nanos(len.saturating_mul(1_000_000_000).checked_div(rate).unwrap_or(0));
        // What a late timer has not used is made good, up to a limit.
        let from = if now.since(self.paced_until) > LATE { now } else { self.paced_until };
        self.paced_until = from + time;
    }
}

/// The time by which text may run ahead of the pace.
const QUANTUM: Duration = Duration::from_millis(1);
/// The number of quanta in a second.
const PER_SECOND: u64 = 1000;
const LATE: Duration = Duration::from_millis(4);
