//! The rules by which connections are given to acceptors (P5), in the file, on the command line and while the
//! stack is up.

use std::fmt;

use atoll_ipc::balance::{self, Balance, Estimator};
use serde::{Deserialize, Serialize};

use super::{Accept, ConfigError};

/// How an acceptor is chosen (P5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// The acceptors of the replica take turns.
    Naive,
    /// One is drawn among the replica's acceptors and those that others offer.
    Unfiltered,
    /// As `Unfiltered`, but without offers that are no better than what the replica has.
    Filtered,
    /// The best acceptor of the replica competes with the best offer.
    #[default]
    Tournament,
}

/// How service times are estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Estimate {
    /// By a moving median.
    #[default]
    Median,
    /// By a moving average.
    Average,
}

/// Changes of the rules, where an absent value means no change; in answers every value is present.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)] // Named after the keys of the file.
pub struct BalanceRules {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheme: Option<Scheme>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tariff: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_us: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offer_us: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watermarks: Option<[u16; 2]>,
}

impl Accept {
    /// Returns the rules in the form that connection managers take.
    pub fn rules(&self) -> Balance {
        let estimator = match self.estimate {
            Estimate::Median => Estimator::Median,
            Estimate::Average => Estimator::Average,
        };
        let (window, sample_us) = Balance::usual_window(estimator);
        Balance {
            scheme: match self.scheme {
                Scheme::Naive => balance::Scheme::Naive,
                Scheme::Unfiltered => balance::Scheme::Unfiltered,
                Scheme::Filtered => balance::Scheme::Filtered,
                Scheme::Tournament => balance::Scheme::Tournament,
            },
            tariff: self.tariff,
            estimator,
            window: self.window.unwrap_or(window),
            sample_us: self.sample_us.unwrap_or(sample_us),
            offer_us: self.offer_us,
            high: self.watermarks[0],
            low: self.watermarks[1],
        }
    }

    /// Checks that the rules are valid.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.rules().is_valid() { Ok(()) } else { Err(ConfigError::Balance) }
    }

    /// Returns these rules with changes, or an error if the result is not valid. Another estimate brings its
    /// usual window and period, unless they are given.
    pub fn changed(&self, changes: &BalanceRules) -> Result<Accept, ConfigError> {
        let is_other = changes.estimate.is_some_and(|estimate| estimate != self.estimate);
        let (window, sample_us) = if is_other { (None, None) } else { (self.window, self.sample_us) };
        let accept = Accept {
            handshake: self.handshake,
            claim_timeout_us: self.claim_timeout_us,
            scheme: changes.scheme.unwrap_or(self.scheme),
            tariff: changes.tariff.unwrap_or(self.tariff),
            estimate: changes.estimate.unwrap_or(self.estimate),
            window: changes.window.or(window),
            sample_us: changes.sample_us.or(sample_us),
            offer_us: changes.offer_us.unwrap_or(self.offer_us),
            watermarks: changes.watermarks.unwrap_or(self.watermarks),
        };
        accept.check().map(|()| accept)
    }

    /// Returns all rules, in the form that is sent to clients.
    pub fn told(&self) -> BalanceRules {
        let Balance { window, sample_us, .. } = self.rules();
        BalanceRules {
            scheme: Some(self.scheme),
            tariff: Some(self.tariff),
            estimate: Some(self.estimate),
            window: Some(window),
            sample_us: Some(sample_us),
            offer_us: Some(self.offer_us),
            watermarks: Some(self.watermarks),
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scheme::Naive => "naive",
            Scheme::Unfiltered => "unfiltered",
            Scheme::Filtered => "filtered",
            Scheme::Tournament => "tournament",
        })
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Estimate::Median => "median",
            Estimate::Average => "average",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_keys_the_rules_are_the_usual_ones() {
        assert_eq!(Accept::default().rules(), Balance::new());
    }

    #[test]
    fn another_estimate_brings_its_own_window() {
        let mine = Accept { window: Some(7), ..Accept::default() };
        assert_eq!(mine.rules().window, 7);
        let average = BalanceRules { estimate: Some(Estimate::Average), ..BalanceRules::default() };
        let changed = mine.changed(&average).expect("valid");
        assert_eq!((changed.rules().window, changed.rules().sample_us), (256, 1000));
        let both = BalanceRules { window: Some(9), ..average };
        assert_eq!(mine.changed(&both).expect("valid").rules().window, 9);
        assert_eq!(mine.changed(&BalanceRules::default()), Ok(mine));
    }

    #[test]
    fn senseless_changes_are_refused() {
        let usual = BalanceRules::default();
        for changes in [
            BalanceRules { tariff: Some(0), ..usual.clone() },
            BalanceRules { window: Some(0), ..usual.clone() },
            BalanceRules { watermarks: Some([50, 60]), ..usual.clone() },
            BalanceRules { offer_us: Some(0), ..usual },
        ] {
            assert_eq!(Accept::default().changed(&changes), Err(ConfigError::Balance), "{changes:?}");
        }
    }

    #[test]
    fn what_is_told_can_be_given_back() {
        let accept = Accept { scheme: Scheme::Filtered, estimate: Estimate::Average, ..Accept::default() };
        let again = Accept::default().changed(&accept.told()).expect("valid");
        assert_eq!(again.rules(), accept.rules());
    }
}
