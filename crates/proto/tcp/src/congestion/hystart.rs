//! When has slow start filled the pipe? HyStart++, RFC 9406.
//!
//! DEVIATION: RFC 9406 §4.3 bounds the growth for one acknowledgement by L = 8 segments where nothing is
//! paced. As on Linux there is no bound: with receivers that gather segments one acknowledgement covers many
//! more.

/// The state of slow start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HyStart {
    /// The round ends when this is acknowledged.
    window_end: i64,
    last_min_us: u32,
    current_min_us: u32,
    /// Smallest round trip at the entry into conservative slow start; 0: not there.
    baseline_us: u32,
    samples: u8,
    rounds: u8,
}

/// What an acknowledgement means for slow start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// By what is acknowledged.
    Slow,
    /// By a quarter of it: the round trip has grown.
    Conservative,
    /// It is over: the threshold is where the window is.
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

    /// Text up to `una` is acknowledged, after `rtt_us` if that was measured; `nxt`: what has been sent
    /// (§4.2).
    pub(crate) fn handle_ack(&mut self, una: i64, nxt: i64, rtt_us: Option<u32>) -> Growth {
        if let Some(us) = rtt_us {
            self.current_min_us = self.current_min_us.min(us);
            self.samples = self.samples.saturating_add(1);
        }
        // What ends a round has measured a segment of it, not of the next one.
        if una >= self.window_end {
            self.window_end = nxt;
            self.last_min_us = self.current_min_us;
            self.current_min_us = u32::MAX;
            self.samples = 0;
            if self.baseline_us != 0 {
                // Whoever has left slow start by it asks on.
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
                // It was jitter.
                self.baseline_us = 0;
            }
        }
        if self.baseline_us == 0 { Growth::Slow } else { Growth::Conservative }
    }
}

/// §4.3.
const THRESHOLD_MIN_US: u32 = 4_000;
const THRESHOLD_MAX_US: u32 = 16_000;
const SAMPLES: u8 = 8;
const CSS_ROUNDS: u8 = 5;
/// `CSS_GROWTH_DIVISOR`.
pub(crate) const CONSERVATIVE_DIVISOR: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten acknowledgements in a round of `us`.
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
