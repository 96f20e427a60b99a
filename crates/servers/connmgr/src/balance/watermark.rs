//! Decides when an offer is good enough to be considered, without a change of decision at every sample (P5).

use atoll_ipc::balance::Balance;

/// The filter for the offers of one CM for one listener, with hysteresis.
///
/// ```text
///   own service time / (offered service time x tariff)
///       more than `high` percent:  passes from now on
///       less than `low` percent:   filtered from now on
///       between:                   as before
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Watermark {
    passes: bool,
}

impl Watermark {
    /// Returns whether an offer passes now. `own` is the service time of the best own acceptor; both are in
    /// microseconds.
    pub(crate) fn passes(&mut self, own: u64, offered: u64, rules: &Balance) -> bool {
        self.passes = self.would_pass(own, offered, rules);
        self.passes
    }

    /// Returns whether every offer of `least` microseconds or more is filtered now. If not, the state does
    /// not change.
    pub(crate) fn filters(&mut self, own: u64, least: u64, rules: &Balance) -> bool {
        let filters = !self.would_pass(own, least, rules);
        self.passes &= !filters;
        filters
    }

    const fn would_pass(self, own: u64, offered: u64, rules: &Balance) -> bool {
        let (own, taxed) = (own.saturating_mul(100), offered.saturating_mul(rules.tariff as u64));
        if self.passes {
            own >= taxed.saturating_mul(rules.low as u64)
        } else {
            own > taxed.saturating_mul(rules.high as u64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_passes_above_the_high_mark_and_until_it_falls_below_the_low_one() {
        let rules = Balance { tariff: 2, high: 100, low: 75, ..Balance::new() };
        let mut mark = Watermark::default();
        // Each case is an offer in microseconds against an own acceptor of 1000, and whether the offer
        // passes.
        for (offered, passes) in
            [(600, false), (500, false), (499, true), (600, true), (666, true), (667, false), (550, false)]
        {
            assert_eq!(mark.passes(1000, offered, &rules), passes, "{offered}");
        }
    }

    #[test]
    fn what_is_filtered_at_its_best_is_filtered_and_the_rest_is_left_open() {
        let rules = Balance { tariff: 2, high: 100, low: 75, ..Balance::new() };
        for seed in 0..1000 {
            let mut rng = atoll_base::Rng::new(seed);
            let (mut plain, mut quick) = (Watermark::default(), Watermark::default());
            for _ in 0..20 {
                let (own, least) = (u64::from(rng.below(2000)), u64::from(rng.below(1000)));
                let offered = least + u64::from(rng.below(300));
                let passes = !quick.filters(own, least, &rules) && quick.passes(own, offered, &rules);
                assert_eq!(
                    passes,
                    plain.passes(own, offered, &rules),
                    "{own} {least} {offered}, seed {seed}"
                );
                assert_eq!(quick, plain);
            }
        }
    }

    #[test]
    fn one_mark_is_a_plain_filter() {
        let rules = Balance { tariff: 2, high: 100, low: 100, ..Balance::new() };
        let mut mark = Watermark::default();
        for (offered, passes) in [(499, true), (500, true), (501, false), (500, false), (499, true)] {
            assert_eq!(mark.passes(1000, offered, &rules), passes, "{offered}");
        }
    }

    #[test]
    fn huge_times_do_not_overflow() {
        let rules = Balance { tariff: Balance::TARIFF_MAX, ..Balance::new() };
        assert!(!Watermark::default().passes(u64::MAX, u64::MAX, &rules));
    }
}
