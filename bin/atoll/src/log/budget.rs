//! How often a process may write to the log.

use atoll_base::{Duration, Instant};

/// Limits how often events are written to the log, and counts those left out meanwhile.
#[derive(Debug)]
pub struct Budget {
    rate: Rate,
    /// The number of events that may be written now.
    left: u32,
    /// The time up to which the growth of `left` has been counted.
    since: Instant,
    /// The number of events left out since the last one that was written.
    pub left_out: u64,
}

/// A rate of events: `burst` at once, and another one after each `every`.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    pub burst: u32,
    pub every: Duration,
}

impl Budget {
    /// Creates a budget of which nothing is used.
    pub fn new(rate: Rate, now: Instant) -> Budget {
        Budget { rate, left: rate.burst, since: now, left_out: 0 }
    }

    /// Takes an event from the budget. Returns whether one was left.
    pub fn take(&mut self, now: Instant) -> bool {
        let grown = now.since(self.since).as_nanos() / self.rate.every.as_nanos();
        let grown = u32::try_from(grown).unwrap_or(u32::MAX);
        if grown >= self.rate.burst - self.left {
            (self.left, self.since) = (self.rate.burst, now);
        } else {
            (self.left, self.since) = (self.left + grown, self.since + self.rate.every * grown);
        }
        let taken = self.left.checked_sub(1);
        self.left = taken.unwrap_or(0);
        taken.is_some()
    }

    /// Returns when an event is available again at the latest.
    pub fn due(&self) -> Instant {
        self.since + self.rate.every
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn lines_come_at_their_rate() {
        let start = clock::now();
        let rate = Rate { burst: 3, every: Duration::from_secs(1) };
        let mut budget = Budget::new(rate, start);
        let taken = |budget: &mut Budget, at: f64| {
            (0..10).filter(|_| budget.take(start + Duration::from_secs_f64(at))).count()
        };
        assert_eq!(taken(&mut budget, 0.0), 3);
        assert_eq!(taken(&mut budget, 0.9), 0);
        assert_eq!(budget.due(), start + Duration::from_secs(1));
        assert_eq!(taken(&mut budget, 1.5), 1);
        // The half second is not lost.
        assert_eq!(taken(&mut budget, 2.0), 1);
        assert_eq!(taken(&mut budget, 1000.0), 3);
    }
}
