//! Estimates how long an acceptor takes for a connection: a moving median or average of its last ones (P5).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use atoll_base::{Duration, Instant};
use atoll_ipc::balance::{Balance, Estimator};

/// The service times of one acceptor, at its home. They are lost in a crash: the acceptor is new then.
///
/// Both the order of arrival and the order of size are kept, so that median and average cost nothing to read,
/// and the rules may change at any time. An added sample costs a search and a move among at most
/// [`Balance::window`] words.
#[derive(Debug, Default)]
pub(crate) struct Estimate {
    recent: VecDeque<u32>,
    sorted: Vec<u32>,
    sum: u64,
    /// The estimate of the last sampling in microseconds; 0 if there was none.
    value: u32,
    sampled_at: Option<Instant>,
    last_at: Option<Instant>,
}

/// The time without a connection after which an acceptor's estimate is halved.
///
/// An estimate is as old as its last sample, and a slow acceptor gets few. P5 leaves it to the draw to find
/// out that it has recovered; where connections are rare that would take hours.
pub(crate) const HALF_LIFE: Duration = Duration::from_secs(10);

impl Estimate {
    /// Adds the service time of a connection, which was closed `micros` microseconds after its offer.
    pub(crate) fn add(&mut self, now: Instant, micros: u32, rules: &Balance) {
        let micros = micros.max(1);
        while self.recent.len() >= usize::from(rules.window.max(1)) {
            self.forget_oldest();
        }
        self.recent.push_back(micros);
        let at = self.sorted.partition_point(|other| *other < micros);
        self.sorted.insert(at, micros);
        self.sum += u64::from(micros);
        self.last_at = Some(now);
        self.sample(now, rules);
    }

    /// Returns the service time in microseconds, at least 1; `None` before the first connection was closed.
    pub(crate) fn micros(&mut self, now: Instant, rules: &Balance) -> Option<u32> {
        self.sample(now, rules);
        let idle = now.since(self.last_at?).as_nanos() / HALF_LIFE.as_nanos();
        Some((self.value >> idle.min(31)).max(1))
    }

    /// Returns the service time in microseconds, at least 1, if a connection was closed not longer than
    /// [`LATELY`] ago.
    pub(crate) fn micros_lately(&mut self, now: Instant, rules: &Balance) -> Option<u32> {
        let is_fresh = self.last_at.is_some_and(|at| now.since(at) <= LATELY);
        if is_fresh { self.micros(now, rules) } else { None }
    }

    /// Returns how many connections the estimate is made of.
    pub(crate) fn samples(&self) -> usize {
        self.recent.len()
    }

    fn sample(&mut self, now: Instant, rules: &Balance) {
        let period = Duration::from_micros(rules.sample_us.into());
        let is_due = self.sampled_at.is_none_or(|at| now >= at + period);
        if self.recent.is_empty() || !is_due {
            return;
        }
        self.sampled_at = Some(now);
        self.value = match rules.estimator {
            Estimator::Median => self.sorted[self.sorted.len() / 2],
            // Cannot truncate: the average is no more than the largest of them.
            Estimator::Average => (self.sum / self.recent.len() as u64) as u32,
        };
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.recent.pop_front() else { return };
        let at = self.sorted.partition_point(|other| *other < oldest);
        self.sorted.remove(at);
        self.sum -= u64::from(oldest);
    }
}

/// How long a service time that a CM has seen of another CM's acceptor counts beside that CM's offer.
const LATELY: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use atoll_base::Rng;

    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    #[test]
    fn median_and_average_agree_with_the_naive_ones() {
        let mut rng = Rng::new(3);
        for (estimator, window) in
            [(Estimator::Median, 128), (Estimator::Average, 256), (Estimator::Median, 1)]
        {
            let rules = Balance { estimator, window, sample_us: 1, ..Balance::new() };
            let mut estimate = Estimate::default();
            let mut all: Vec<u32> = Vec::new();
            for n in 0..2000u64 {
                let micros = 1 + rng.below([10, 1000, 1_000_000][(n % 3) as usize]);
                all.push(micros);
                estimate.add(at(n * 10), micros, &rules);
                let mut last: Vec<u32> = all.iter().rev().take(window.into()).copied().collect();
                let naive = match estimator {
                    Estimator::Median => {
                        last.sort_unstable();
                        last[last.len() / 2]
                    }
                    Estimator::Average => {
                        (last.iter().map(|micros| u64::from(*micros)).sum::<u64>() / last.len() as u64) as u32
                    }
                };
                assert_eq!(estimate.micros(at(n * 10), &rules), Some(naive), "after {n}");
            }
        }
    }

    #[test]
    fn the_estimate_changes_once_in_a_period() {
        let rules = Balance { sample_us: 500, ..Balance::new() };
        let mut estimate = Estimate::default();
        assert_eq!(estimate.micros(at(0), &rules), None);
        estimate.add(at(1000), 10, &rules);
        assert_eq!(estimate.micros(at(1000), &rules), Some(10), "the first counts at once");
        for n in 1..5 {
            estimate.add(at(1000 + n), 100, &rules);
        }
        assert_eq!(estimate.micros(at(1499), &rules), Some(10));
        assert_eq!(estimate.micros(at(1500), &rules), Some(100));
    }

    #[test]
    fn what_was_seen_lately_is_no_longer_known_after_a_while() {
        let rules = Balance::new();
        let mut estimate = Estimate::default();
        assert_eq!(estimate.micros_lately(at(0), &rules), None);
        estimate.add(at(1000), 70, &rules);
        assert_eq!(estimate.micros_lately(at(51_000), &rules), Some(70));
        assert_eq!(estimate.micros_lately(at(51_001), &rules), None);
    }

    #[test]
    fn rules_may_change_meanwhile() {
        let median = Balance { sample_us: 1, window: 101, ..Balance::new() };
        let mut estimate = Estimate::default();
        for n in 1..=101 {
            estimate.add(at(n), if n == 1 { 9900 } else { 100 }, &median);
        }
        assert_eq!(estimate.micros(at(200), &median), Some(100));
        let average = Balance { estimator: Estimator::Average, ..median };
        assert_eq!(estimate.micros(at(300), &average), Some((9900 + 100 * 100) / 101));
        // A smaller window forgets the oldest at the next connection.
        let few = Balance { window: 3, ..average };
        estimate.add(at(400), 400, &few);
        assert_eq!((estimate.samples(), estimate.micros(at(500), &few)), (3, Some(200)));
    }

    #[test]
    fn an_acceptor_that_gets_nothing_is_tried_again_some_time() {
        let rules = Balance::new();
        let mut estimate = Estimate::default();
        estimate.add(at(0), 80_000, &rules);
        let after = |estimate: &mut Estimate, secs: u64| estimate.micros(at(secs * 1_000_000), &rules);
        assert_eq!(after(&mut estimate, 9), Some(80_000));
        assert_eq!(after(&mut estimate, 10), Some(40_000));
        assert_eq!(after(&mut estimate, 40), Some(5_000));
        assert_eq!(after(&mut estimate, 100_000), Some(1), "in the end it is as good as any");
    }
}
