//! When is an offer good enough to be considered, without changing one's mind at every sample? (P5)

use atoll_ipc::balance::Balance;

/// Whether the offers of one CM for one listener pass the filter.
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
    /// Whether an offer passes now. `own`: service time of the best own acceptor; both in microseconds.
    pub(crate) fn passes(&mut self, own: u64, offered: u64, rules: &Balance) -> bool {
        let (own, taxed) = (own.saturating_mul(100), offered.saturating_mul(rules.tariff.into()));
        self.passes = if self.passes {
            own >= taxed.saturating_mul(rules.low.into())
        } else {
            own > taxed.saturating_mul(rules.high.into())
        };
        self.passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_passes_above_the_high_mark_and_until_it_falls_below_the_low_one() {
        let rules = Balance { tariff: 2, high: 100, low: 75, ..Balance::new() };
        let mut mark = Watermark::default();
        // An own acceptor of 1000 us against an offer of so many, and whether it passes.
        for (offered, passes) in
            [(600, false), (500, false), (499, true), (600, true), (666, true), (667, false), (550, false)]
        {
            assert_eq!(mark.passes(1000, offered, &rules), passes, "{offered}");
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
