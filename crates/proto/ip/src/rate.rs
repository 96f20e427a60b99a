//! A token bucket, which limits how much is sent (RFC 1812 §4.3.2.8 (2)).

use atoll_base::{Duration, Instant};

/// A bucket that fills by `per_second` (not 0) tokens a second up to `burst`, and starts full.
#[derive(Clone, Debug)]
pub(crate) struct TokenBucket {
    per_second: u32,
    burst: u32,
    tokens: u32,
    filled_at: Instant,
}

impl TokenBucket {
    pub(crate) const fn new(per_second: u32, burst: u32, now: Instant) -> TokenBucket {
        TokenBucket { per_second, burst, tokens: burst, filled_at: now }
    }

    /// Takes `cost` tokens, or none if there are fewer. Returns whether it took them.
    pub(crate) fn take(&mut self, now: Instant, cost: u32) -> bool {
        self.fill(now);
        match self.tokens.checked_sub(cost) {
            Some(rest) => {
                self.tokens = rest;
                true
            }
            None => false,
        }
    }

    fn fill(&mut self, now: Instant) {
        let waited = now.since(self.filled_at).as_micros();
        let new = waited * u128::from(self.per_second) / 1_000_000;
        let Ok(new) = u32::try_from(new) else {
            // More time has passed than any burst lasts.
            self.tokens = self.burst;
            self.filled_at = now;
            return;
        };
        self.tokens = self.tokens.saturating_add(new).min(self.burst);
        // Time that has not yet made a whole token is counted later.
        self.filled_at += Duration::from_secs(1) * new / self.per_second;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate_holds() {
        let mut bucket = TokenBucket::new(100, 5, Instant::ZERO);
        assert_eq!((0..10).filter(|_| bucket.take(Instant::ZERO, 1)).count(), 5);
        let passed = (1..=1000).filter(|ms| bucket.take(Instant::from_millis(*ms), 1)).count();
        assert_eq!(passed, 100);
    }

    #[test]
    fn parts_of_a_token_are_not_lost() {
        let mut bucket = TokenBucket::new(1000, 1, Instant::ZERO);
        let passed = (1..=1000).filter(|n| bucket.take(Instant::from_nanos(n * 700_000), 1)).count();
        assert!((699..=701).contains(&passed), "{passed}");
    }

    #[test]
    fn a_long_pause_fills_to_the_burst_and_not_beyond() {
        let mut bucket = TokenBucket::new(1_000_000, 3, Instant::ZERO);
        assert_eq!((0..10).filter(|_| bucket.take(Instant::FAR_FUTURE, 1)).count(), 3);
    }

    #[test]
    fn a_clock_that_stands_or_runs_back_gives_nothing() {
        let mut bucket = TokenBucket::new(1, 1, Instant::from_millis(5000));
        assert!(bucket.take(Instant::from_millis(5000), 1));
        assert!(!bucket.take(Instant::ZERO, 1));
    }
}
