//! Limits the number of challenge ACKs (RFC 5961 §7), without what an attacker could learn from the limit.
//!
//! A connection has one every half second (`atoll_tcp`). All connections of a replica together have a number
//! that is drawn anew each second, as on Linux since 4.7. With a fixed number, an attacker with a connection
//! of its own sees by the challenges that it does *not* get whether its guesses have hit another connection
//! (CVE-2016-5696). The signal is one or two challenges in a second, and the noise is a thousand.

use atoll_base::{Duration, Instant, Rng};
use atoll_ipc::page::Stat;
use atoll_tcp::{Connection, Events};

use crate::stats::Stats;

/// The challenge ACKs that are left in this second.
#[derive(Debug)]
pub(crate) struct Challenges {
    renewed_at: Instant,
    left: u32,
}

impl Challenges {
    pub(crate) const fn new() -> Challenges {
        Challenges { renewed_at: Instant::ZERO, left: 0 }
    }

    /// Takes one challenge ACK, if there is one left. `per_second` is the mean of the number that is drawn.
    fn take(&mut self, now: Instant, per_second: u32, rng: &mut Rng) -> bool {
        if now.since(self.renewed_at) >= PERIOD || self.renewed_at == Instant::ZERO {
            self.renewed_at = now;
            self.left = per_second / 2 + rng.below(per_second.max(1));
        }
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        true
    }

    /// Counts what a connection found odd about a segment, or about its peer, and lets it answer. Called
    /// after [`is_suspicious`]; `per_second` is that of [`Config`](crate::Config).
    #[cold]
    pub(crate) fn note(
        &mut self,
        now: Instant,
        events: Events,
        connection: &mut Connection,
        (per_second, rng): (u32, &mut Rng),
        stats: &mut Stats,
    ) {
        stats.add(Stat::SackIgnored, events.contains(Events::SACK_IGNORED).into());
        stats.add(Stat::SackReneged, events.contains(Events::SACK_RENEGED).into());
        stats.add(Stat::TextRefused, events.contains(Events::TEXT_REFUSED).into());
        if !events.contains(Events::CHALLENGE) {
            return;
        }
        if self.take(now, per_second, rng) {
            stats.count(Stat::ChallengesSent);
            connection.send_challenge();
        } else {
            stats.count(Stat::ChallengesWithheld);
        }
    }
}

/// Returns whether a connection found anything odd.
#[inline]
pub(crate) const fn is_suspicious(events: Events) -> bool {
    events.intersects(SUSPICIOUS)
}

const SUSPICIOUS: Events =
    Events::CHALLENGE.union(Events::SACK_IGNORED).union(Events::SACK_RENEGED).union(Events::TEXT_REFUSED);
const PERIOD: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn the_number_of_challenges_in_a_second_cannot_be_told_beforehand() {
        let mut rng = Rng::new(1);
        let mut challenges = Challenges::new();
        let numbers: Vec<u32> = (1..=200u64)
            .map(|second| {
                (0..5000)
                    .filter(|_| challenges.take(Instant::from_millis(second * 1000), 1000, &mut rng))
                    .count() as u32
            })
            .collect();
        assert!(numbers.iter().all(|number| (500..1500).contains(number)), "{numbers:?}");
        let different: BTreeSet<u32> = numbers.iter().copied().collect();
        assert!(different.len() > 150, "{numbers:?}");
        assert!(numbers.iter().min() < Some(&600) && numbers.iter().max() > Some(&1400), "{numbers:?}");
    }
}
