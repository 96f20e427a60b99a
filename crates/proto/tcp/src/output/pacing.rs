//! When may the next text leave? The pace of congestion control (draft-ietf-ccwg-bbr §5.6.2).
//!
//! Timers are kept to a millisecond, so text leaves in bursts of about that much. `paced_until` is when the text sent so far would have
//! left octet by octet; a burst may run ahead of it, and a timer that comes late loses nothing.

use atoll_base::{Duration, Instant};

use crate::connection::Connection;
use crate::timers::Timer;

impl Connection {
    /// Most octets that may leave now by the pace; `None`: not before [`Timer::Pace`], which is armed.
    pub(super) fn paced(&mut self, now: Instant, len_max: u32) -> Option<u32> {
        let Some(rate) = self.congestion.pacing_rate() else { return Some(len_max) };
        if self.paced_until >= now + QUANTUM {
            self.timers.arm(Timer::Pace, self.paced_until);
            return None;
        }
        let burst = u32::try_from(rate / PER_SECOND).unwrap_or(u32::MAX);
        Some(len_max.min(burst.max(2 * u32::from(self.snd.mss))))
    }

    /// `len` octets leave.
    pub(super) fn note_paced(&mut self, now: Instant, len: i64) {
        let Some(rate) = self.congestion.pacing_rate() else { return };
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
