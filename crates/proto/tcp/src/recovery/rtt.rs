//! How long a round trip takes, and how long it is waited for (RFC 6298).

use atoll_base::{Duration, Instant};

/// The smoothed round-trip time and the retransmission time-out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    /// SRTT in microseconds; 0 before the first sample.
    pub(crate) srtt_us: u32,
    /// RTTVAR in microseconds; before the first sample, the time-out if it is longer than the initial one.
    pub(crate) rttvar_us: u32,
    /// The smallest recent sample in microseconds; `u32::MAX` before the first.
    pub(crate) min_us: u32,
    /// When the smallest sample was taken, in seconds modulo 2^16.
    min_at_s: u16,
    /// The number of time-outs in a row; each doubles the time-out (RFC 6298 §5.5).
    pub(crate) backoff: u8,
}

impl Rtt {
    pub(crate) const fn new() -> Rtt {
        Rtt { srtt_us: 0, rttvar_us: 0, min_us: u32::MAX, min_at_s: 0, backoff: 0 }
    }

    /// Continues with the round-trip time that a predecessor has measured; `srtt_us` is 0 if it has measured
    /// none.
    pub(crate) fn resume(&mut self, srtt_us: u32) {
        self.srtt_us = srtt_us.min(SAMPLE_MAX_US);
        self.rttvar_us = self.srtt_us / 2;
    }

    /// Takes a measurement (RFC 6298 §2.2, §2.3), which ends the backing off (§5.7).
    pub(crate) fn sample(&mut self, now: Instant, us: u32) {
        let us = us.clamp(1, SAMPLE_MAX_US);
        let now_s = (now.as_millis() / 1000) as u16;
        // RFC 8985 §6.2, step 1: paths change, so the smallest sample counts for a while only.
        if us <= self.min_us || now_s.wrapping_sub(self.min_at_s) >= MIN_LIFETIME_S {
            (self.min_us, self.min_at_s) = (us, now_s);
        }
        if self.srtt_us == 0 {
            self.srtt_us = us;
            self.rttvar_us = us / 2;
        } else {
            self.rttvar_us = (self.rttvar_us / 4 * 3).saturating_add(self.srtt_us.abs_diff(us) / 4);
            self.srtt_us = ((u64::from(self.srtt_us) * 7 + u64::from(us)) / 8) as u32;
            self.srtt_us = self.srtt_us.max(1);
        }
        self.backoff = 0;
    }

    /// Makes the initial time-out longer after a handshake that took several SYNs and has measured nothing:
    /// it may have been too short (RFC 6298 §5.7).
    pub(crate) fn distrust_initial(&mut self) {
        self.rttvar_us = RTO_DISTRUSTED_US;
        self.backoff = 0;
    }

    /// Returns the time-out without backing off.
    ///
    /// DEVIATION: RFC 6298 §2.4 asks for a second at least. As on Linux the *variance* has a floor of 200 ms,
    /// so that the time-out never undercuts the peer's delayed ACK.
    pub(crate) fn base(&self) -> Duration {
        if self.srtt_us == 0 {
            return RTO_INITIAL.max(Duration::from_micros(self.rttvar_us.into()));
        }
        let variance_us = self.rttvar_us.saturating_mul(4).max(RTO_MIN_US);
        Duration::from_micros(u64::from(self.srtt_us) + u64::from(variance_us)).min(RTO_MAX)
    }

    /// Returns the time-out as it stands now.
    pub(crate) fn rto(&self) -> Duration {
        self.base().saturating_mul(1 << self.backoff.min(BACKOFF_MAX)).min(RTO_MAX)
    }

    /// Takes back one doubling, after an acknowledgement that measures nothing.
    pub(crate) fn ease_off(&mut self) {
        self.backoff = self.backoff.saturating_sub(1);
    }

    /// Doubles the time-out, because it has passed.
    pub(crate) fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }
}

/// The time-out before the first measurement (RFC 6298 §2.1).
const RTO_INITIAL: Duration = Duration::from_secs(1);
const RTO_DISTRUSTED_US: u32 = 3_000_000;
const RTO_MIN_US: u32 = 200_000;
/// The longest time-out. RFC 6298 §2.5 allows a maximum of at least 60 s; Linux takes 120 s.
pub(crate) const RTO_MAX: Duration = Duration::from_secs(120);
/// How long the smallest sample counts, in seconds (Linux's `tcp_min_rtt_wlen`).
const MIN_LIFETIME_S: u16 = 300;
/// The longest sample, in microseconds; a longer round trip counts as this.
const SAMPLE_MAX_US: u32 = 120_000_000;
/// The most doublings that count: 200 ms * 2^10 is above the maximum.
const BACKOFF_MAX: u8 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sample_sets_both_estimates() {
        // covers: RFC 6298 §2.2
        let mut rtt = Rtt::new();
        assert_eq!(rtt.rto(), Duration::from_secs(1));
        rtt.sample(Instant::ZERO, 100_000);
        assert_eq!((rtt.srtt_us, rtt.rttvar_us), (100_000, 50_000));
        assert_eq!(rtt.rto(), Duration::from_millis(300));
    }

    #[test]
    fn a_steady_round_trip_settles_at_200_ms_above_it() {
        let mut rtt = Rtt::new();
        for _ in 0..100 {
            rtt.sample(Instant::ZERO, 50);
        }
        assert_eq!(rtt.rto(), Duration::from_micros(200_050));
    }

    #[test]
    fn the_smallest_round_trip_is_forgotten_after_five_minutes() {
        // covers: RFC 8985 §6.2 step 1
        let mut rtt = Rtt::new();
        let at = |secs: u64| Instant::from_millis(secs * 1000);
        rtt.sample(at(1), 10_000);
        rtt.sample(at(300), 50_000);
        assert_eq!(rtt.min_us, 10_000);
        rtt.sample(at(301), 60_000);
        assert_eq!(rtt.min_us, 60_000);
        rtt.sample(at(302), 50_000);
        assert_eq!(rtt.min_us, 50_000);
        // The time of the sample is kept modulo 2^16 seconds.
        rtt.sample(at(70_000), 55_000);
        assert_eq!(rtt.min_us, 55_000);
    }

    #[test]
    fn backing_off_doubles_up_to_120_s_and_a_sample_ends_it() {
        // covers: RFC 6298 §5.5, §5.7
        let mut rtt = Rtt::new();
        rtt.sample(Instant::ZERO, 100_000);
        rtt.back_off();
        assert_eq!(rtt.rto(), Duration::from_millis(600));
        (0..250).for_each(|_| rtt.back_off());
        assert_eq!(rtt.rto(), Duration::from_secs(120));
        rtt.sample(Instant::ZERO, 100_000);
        assert!(rtt.rto() <= Duration::from_millis(300), "{rtt:?}");
    }
}
