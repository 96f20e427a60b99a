//! How the window grows between losses: CUBIC (RFC 9438) in integers, with octets and milliseconds.

use atoll_base::{Duration, Instant};

/// The state of one CUBIC epoch.
#[derive(Debug)]
pub(crate) struct Cubic {
    /// When the epoch began; [`Instant::FAR_FUTURE`] before the first acknowledgement after a loss.
    epoch: Instant,
    /// When growth was last computed: time without being limited does not count.
    looked_at: Instant,
    /// W_max: the window before the last reduction, in octets.
    w_max: u32,
    /// W_est: the window that NewReno would have by now, in octets.
    w_est: u32,
    /// K in milliseconds: when the curve reaches its plateau again.
    k_ms: u32,
    /// The plateau of this epoch, or of the next, in octets; 0 means the window at its start.
    origin: u32,
}

impl Cubic {
    pub(crate) const fn new() -> Cubic {
        Cubic { epoch: Instant::FAR_FUTURE, looked_at: Instant::ZERO, w_max: 0, w_est: 0, k_ms: 0, origin: 0 }
    }

    pub(crate) fn reset_epoch(&mut self) {
        self.epoch = Instant::FAR_FUTURE;
        self.origin = self.w_max;
    }

    /// Forgets the plateau after a time-out: the next epoch begins at its plateau (RFC 9438 §4.8: K is 0).
    pub(crate) fn forget_plateau(&mut self) {
        self.epoch = Instant::FAR_FUTURE;
        self.origin = 0;
    }

    /// Stops the curve while the sender is not limited by the window (RFC 9438 §5.8).
    pub(crate) fn pause(&mut self, now: Instant) {
        if self.epoch != Instant::FAR_FUTURE {
            self.epoch += now.since(self.looked_at);
        }
        self.looked_at = now;
    }

    /// Returns by how many octets the window grows for `acked` octets acknowledged (RFC 9438 §4.2 to §4.5).
    pub(crate) fn growth(&mut self, now: Instant, cwnd: u32, acked: u32, mss: u16, srtt_us: u32) -> u32 {
        if self.epoch == Instant::FAR_FUTURE {
            self.begin_epoch(now, cwnd, mss);
        }
        self.looked_at = now;
        let elapsed_ms = now.since(self.epoch).as_millis();
        let target_ms = (now + Duration::from_micros(srtt_us.into())).since(self.epoch).as_millis();
        // W_est grows by alpha segments per window (RFC 9438 §4.3); alpha is 0.53 until W_est has reached
        // W_max, then 1.
        let alpha = if self.w_est >= self.w_max { 1000 } else { ALPHA_PER_MILLE };
        let share = u64::from(acked) * u64::from(mss) * alpha / (u64::from(cwnd.max(1)) * 1000);
        self.w_est = self.w_est.saturating_add(u32::try_from(share).unwrap_or(u32::MAX));
        if self.curve(elapsed_ms, mss) < self.w_est {
            return self.w_est.saturating_sub(cwnd);
        }
        // RFC 9438 §4.4, §4.5: grow towards the curve one round trip ahead, at most by half the window per
        // round trip.
        let target = self.curve(target_ms, mss).clamp(cwnd, cwnd.saturating_add(cwnd / 2));
        let step = u64::from(target - cwnd) * u64::from(acked) / u64::from(cwnd.max(1));
        u32::try_from(step).unwrap_or(u32::MAX)
    }

    /// Handles a loss at window `cwnd`: returns the new slow-start threshold (RFC 9438 §4.6) and remembers
    /// the plateau (§4.7, fast convergence).
    pub(crate) fn handle_loss(&mut self, cwnd: u32, mss: u16) -> u32 {
        self.epoch = Instant::FAR_FUTURE;
        self.w_max = if cwnd < self.w_max { per_mille(cwnd, (1000 + BETA_PER_MILLE) / 2) } else { cwnd };
        self.origin = self.w_max;
        per_mille(cwnd, BETA_PER_MILLE).max(2 * u32::from(mss))
    }

    fn begin_epoch(&mut self, now: Instant, cwnd: u32, mss: u16) {
        self.epoch = now;
        self.w_est = cwnd;
        self.origin = self.origin.max(cwnd);
        // K = cbrt((W_max - cwnd) / C) seconds with windows in segments and C = 0.4 (RFC 9438 §4.2, figure
        // 2).
        let missing = u64::from(self.origin - cwnd);
        let cubed_ms = missing.saturating_mul(2_500_000_000) / u64::from(mss.max(1));
        self.k_ms = cube_root(cubed_ms);
    }

    /// Returns W_cubic(t) = C * (t - K)^3 + origin, in octets (RFC 9438 §4.2, figure 1).
    fn curve(&self, t_ms: u128, mss: u16) -> u32 {
        let t_ms = i64::try_from(t_ms).unwrap_or(DISTANCE_MAX_MS);
        let distance = (t_ms - i64::from(self.k_ms)).clamp(-DISTANCE_MAX_MS, DISTANCE_MAX_MS);
        // ms^3 / 10^9 * 0.4 * mss, with the divisions spread so that nothing overflows: 2^48 / 10^6 * 2^16 *
        // 4 < 2^48.
        let cubed = distance * distance * distance / 1_000_000;
        let offset = cubed * i64::from(mss) * 4 / 10_000;
        u32::try_from((i64::from(self.origin) + offset).max(0)).unwrap_or(u32::MAX)
    }
}

fn per_mille(value: u32, factor: u64) -> u32 {
    // The result cannot be truncated: factors are below 1000.
    (u64::from(value) * factor / 1000) as u32
}

/// Returns the largest r with r^3 <= `n`.
fn cube_root(n: u64) -> u32 {
    let mut root: u64 = 0;
    for bit in (0..22).rev() {
        let candidate = root | 1 << bit;
        if (candidate * candidate).checked_mul(candidate).is_some_and(|cube| cube <= n) {
            root = candidate;
        }
    }
    root as u32
}

/// beta_cubic, which is 0.7 (RFC 9438 §4.6), per mille.
const BETA_PER_MILLE: u64 = 700;
/// 3 * (1 - beta) / (1 + beta) (RFC 9438 §4.3), per mille.
const ALPHA_PER_MILLE: u64 = 529;
/// The largest distance from K that counts, in milliseconds: at more than a minute the curve is beyond any
/// window.
const DISTANCE_MAX_MS: i64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cube_roots_are_rounded_down() {
        for (n, root) in [(0, 0), (1, 1), (7, 1), (8, 2), (26, 2), (27, 3), (1_000_000_000, 1000)] {
            assert_eq!(cube_root(n), root);
        }
        assert_eq!(cube_root(u64::MAX), 2_642_245);
    }

    #[test]
    fn the_curve_returns_to_the_plateau_after_k() {
        // covers: RFC 9438 §4.2. 100 segments, reduced to 70: K = cbrt(30 / 0.4) = 4.217 s.
        let mut cubic = Cubic::new();
        let ssthresh = cubic.handle_loss(100_000, 1000);
        assert_eq!(ssthresh, 70_000);
        cubic.begin_epoch(Instant::ZERO, ssthresh, 1000);
        assert_eq!(cubic.k_ms, 4217);
        assert_eq!(cubic.curve(4217, 1000), 100_000);
        assert!(cubic.curve(0, 1000).abs_diff(70_000) < 100);
        assert!(cubic.curve(8434, 1000).abs_diff(130_000) < 100);
    }

    #[test]
    fn a_curve_stands_still_while_the_window_is_not_used() {
        // covers: RFC 9438 §4.2, §5.8
        let at = |ms: u64| Instant::from_millis(ms);
        let mut cubic = Cubic::new();
        let ssthresh = cubic.handle_loss(100_000, 1000);
        cubic.growth(at(1000), ssthresh, 1000, 1000, 1000);
        cubic.growth(at(2000), ssthresh, 1000, 1000, 1000);
        cubic.pause(at(12_000));
        assert_eq!(cubic.epoch, at(11_000));
    }

    #[test]
    fn a_second_loss_below_the_plateau_gives_room_to_others() {
        // covers: RFC 9438 §4.7
        let mut cubic = Cubic::new();
        cubic.handle_loss(100_000, 1000);
        cubic.handle_loss(80_000, 1000);
        assert_eq!(cubic.w_max, 68_000);
    }
}
