//! When slow start has filled the pipe: HyStart++, RFC 9406.
//!
//! DEVIATION: RFC 9406 §4.3 bounds the growth for one acknowledgement by L = 8 segments if nothing is paced.
//! As on Linux there is no bound: if the receiver gathers segments, one acknowledgement covers many more.

/// The state of slow start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HyStart {
    /// The round ends when this offset is acknowledged.
    window_end: i64,
    last_min_us: u32,
    current_min_us: u32,
    /// The smallest round trip at the entry into conservative slow start, in microseconds; 0 outside of it.
    baseline_us: u32,
    samples: u8,
    rounds: u8,
}

/// The meaning of an acknowledgement for slow start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// The window grows by what is acknowledged.
    Slow,
    /// The window grows by a quarter of what is acknowledged, because the round trip has grown.
    Conservative,
    /// Slow start is over: the threshold is where the window is.
    Over,
}

impl HyStart {
    pub(crate) const fn new() -> HyStart {
        HyStart {
            window_end: 0,
            last_min_us: u32::MAX,
            current_min_us: u32::MAX,
            baseline_us: 0,
            samples: 0,
            rounds: 0,
        }
    }

    /// Handles an acknowledgement of text up to `una` (RFC 9406 §4.2). `rtt_us` is the round trip, if it was
    /// measured, and `nxt` the end of what has been sent.
    pub(crate) fn handle_ack(&mut self, una: i64, nxt: i64, rtt_us: Option<u32>) -> Growth {
        if let Some(us) = rtt_us {
            self.current_min_us = self.current_min_us.min(us);
            self.samples = self.samples.saturating_add(1);
        }
        // The acknowledgement that ends a round has measured a segment of that round, not of the next one.
        if una >= self.window_end {
            self.window_end = nxt;
            self.last_min_us = self.current_min_us;
            self.current_min_us = u32::MAX;
            self.samples = 0;
            if self.baseline_us != 0 {
                // Conservative slow start counts its rounds, and ends after `CSS_ROUNDS`.
                self.rounds = self.rounds.saturating_add(1);
                if self.rounds >= CSS_ROUNDS {
                    return Growth::Over;
                }
            }
        }
        if self.samples >= SAMPLES && self.current_min_us != u32::MAX {
            if self.baseline_us == 0 && self.last_min_us != u32::MAX {
                let threshold = (self.last_min_us / 8).clamp(THRESHOLD_MIN_US, THRESHOLD_MAX_US);
                if self.current_min_us >= self.last_min_us.saturating_add(threshold) {
                    self.baseline_us = self.current_min_us;
                    self.rounds = 0;
                }
            } else if self.current_min_us < self.baseline_us {
                // The longer round trip was jitter.
                self.baseline_us = 0;
            }
        }
        if self.baseline_us == 0 { Growth::Slow } else { Growth::Conservative }
    }
}

/// The smallest and the largest growth of the round trip that counts, in microseconds, and the samples per
/// round that are needed (RFC 9406 §4.3).
const THRESHOLD_MIN_US: u32 = 4_000;
const THRESHOLD_MAX_US: u32 = 16_000;
const SAMPLES: u8 = 8;
const CSS_ROUNDS: u8 = 5;
/// RFC 9406's `CSS_GROWTH_DIVISOR`.
pub(crate) const CONSERVATIVE_DIVISOR: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands in ten acknowledgements, with round trips of `us` microseconds, as round `n`.
    fn round(hystart: &mut HyStart, n: i64, us: u32) -> Growth {
        (0..10).map(|ack| hystart.handle_ack(n * 10 + ack, n * 10 + 10, Some(us))).last().expect("ten")
    }

    #[test]
    fn a_longer_round_trip_slows_down_and_after_five_rounds_it_is_over() {
        // covers: RFC 9406 §4.2
        let mut hystart = HyStart::new();
        assert_eq!(round(&mut hystart, 1, 20_000), Growth::Slow);
        assert_eq!(round(&mut hystart, 2, 23_900), Growth::Slow);
        assert_eq!(round(&mut hystart, 3, 28_000), Growth::Conservative);
        for n in 4..8 {
            assert_eq!(round(&mut hystart, n, 28_000), Growth::Conservative);
        }
        assert_eq!(hystart.handle_ack(80, 90, None), Growth::Over);
    }

    #[test]
    fn a_round_trip_that_shrinks_again_was_jitter() {
        let mut hystart = HyStart::new();
        round(&mut hystart, 1, 20_000);
        assert_eq!(round(&mut hystart, 2, 30_000), Growth::Conservative);
        assert_eq!(round(&mut hystart, 3, 20_000), Growth::Slow);
    }

    #[test]
    fn few_samples_say_nothing() {
        let mut hystart = HyStart::new();
        round(&mut hystart, 1, 20_000);
        for ack in 0..7 {
            assert_eq!(hystart.handle_ack(20 + ack, 30, Some(90_000)), Growth::Slow);
        }
    }
}
