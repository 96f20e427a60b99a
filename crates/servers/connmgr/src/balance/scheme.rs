//! Chooses the acceptor of a connection, given how long each candidate would take (P5, Figure 2).
//!
//! ```text
//!   own acceptors -----draw-----> best of own ----.
//!                                                  draw --> the connection's acceptor       (Tournament)
//!   offers --filter--> --draw--> best offer x tariff
//! ```
//! Every draw is weighted by 1 / service time, so that a faster candidate is preferred, and a slower one is
//! tried again now and then.

use atoll_base::Rng;
use atoll_ipc::balance::Scheme;

/// An acceptor that could get the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// The acceptor's place in the listener's table.
    pub(crate) index: usize,
    /// The time that the connection is expected to take there, in microseconds, at least 1.
    pub(crate) micros: u64,
}

/// The candidate that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Winner {
    /// An acceptor of this CM.
    Own(usize),
    /// An acceptor that another CM offers.
    Offered(usize),
}

/// Chooses among own acceptors and offers. `offers` have passed the filter of the scheme, if it has one.
/// Returns `None` if there is no candidate, and for [`Scheme::Naive`] with own acceptors, which take turns.
pub(crate) fn choose(
    scheme: Scheme,
    tariff: u16,
    own: &[Candidate],
    offers: &[Candidate],
    rng: &mut Rng,
) -> Option<Winner> {
    if own.is_empty() {
        return draw(offers.iter().map(|offer| weight(offer.micros)), rng)
            .map(|at| Winner::Offered(offers[at].index));
    }
    let tariff = u64::from(tariff);
    let taxed = |offer: &Candidate| weight(offer.micros.saturating_mul(tariff));
    match scheme {
        Scheme::Naive => None,
        Scheme::Unfiltered | Scheme::Filtered => {
            let all = own.iter().map(|own| weight(own.micros)).chain(offers.iter().map(taxed));
            draw(all, rng).map(|at| match at.checked_sub(own.len()) {
                None => Winner::Own(own[at].index),
                Some(at) => Winner::Offered(offers[at].index),
            })
        }
        Scheme::Tournament => {
            let best = own[draw(own.iter().map(|own| weight(own.micros)), rng)?];
            let Some(at) = draw(offers.iter().map(|offer| weight(offer.micros)), rng) else {
                return Some(Winner::Own(best.index));
            };
            match draw([weight(best.micros), taxed(&offers[at])].into_iter(), rng)? {
                0 => Some(Winner::Own(best.index)),
                _ => Some(Winner::Offered(offers[at].index)),
            }
        }
    }
}

/// Returns 1 / service time as a whole number: 2^40 for one microsecond, so that thousands of weights add up
/// without overflow.
const fn weight(micros: u64) -> u64 {
    let weight = (1 << 40) / if micros == 0 { 1 } else { micros };
    if weight == 0 { 1 } else { weight }
}

/// Draws a place by weight; a single candidate needs no random number.
fn draw(weights: impl Iterator<Item = u64> + Clone, rng: &mut Rng) -> Option<usize> {
    let (mut count, mut total) = (0usize, 0u64);
    for weight in weights.clone() {
        count += 1;
        total = total.saturating_add(weight);
    }
    if count <= 1 {
        return count.checked_sub(1);
    }
    let mut left = ((u128::from(rng.next_u64()) * u128::from(total)) >> 64) as u64;
    for (at, weight) in weights.enumerate() {
        if left < weight {
            return Some(at);
        }
        left -= weight;
    }
    Some(count - 1)
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;

    const ROUNDS: u32 = 100_000;

    fn candidates(first: usize, micros: &[u64]) -> Vec<Candidate> {
        micros.iter().enumerate().map(|(i, &micros)| Candidate { index: first + i, micros }).collect()
    }

    /// Counts how often each candidate is chosen: own acceptors first, then offers.
    fn shares(scheme: Scheme, tariff: u16, own: &[u64], offers: &[u64]) -> Vec<u32> {
        let mut rng = Rng::new(11);
        let mut counts = vec![0; own.len() + offers.len()];
        let (own, offers) = (candidates(0, own), candidates(own.len(), offers));
        for _ in 0..ROUNDS {
            match choose(scheme, tariff, &own, &offers, &mut rng).expect("somebody is there") {
                Winner::Own(index) => {
                    assert!(index < own.len());
                    counts[index] += 1;
                }
                Winner::Offered(index) => {
                    assert!(index >= own.len());
                    counts[index] += 1;
                }
            }
        }
        counts
    }

    /// Checks the counts by Pearson's test with the 0.1 % quantiles of chi-square for 1 to 5 degrees of
    /// freedom.
    fn assert_fits(counts: &[u32], probabilities: &[f64]) {
        let chi: f64 = counts
            .iter()
            .zip(probabilities)
            .map(|(&count, p)| {
                let expected = p * f64::from(ROUNDS);
                (f64::from(count) - expected) * (f64::from(count) - expected) / expected
            })
            .sum();
        let limit = [10.83, 13.82, 16.27, 18.47, 20.52][counts.len() - 2];
        assert!(chi < limit, "chi-square {chi} of {counts:?} against {probabilities:?}");
    }

    #[test]
    fn own_acceptors_are_drawn_by_one_over_their_service_time() {
        for scheme in [Scheme::Unfiltered, Scheme::Filtered, Scheme::Tournament] {
            let counts = shares(scheme, 2, &[100, 200, 400], &[]);
            assert_fits(&counts, &[4.0 / 7.0, 2.0 / 7.0, 1.0 / 7.0]);
        }
    }

    #[test]
    fn one_draw_among_all_pays_the_tariff() {
        // The weights are 1/100 and 1/200, and 1/(2*50) and 1/(2*100) for the offers.
        let total = 0.01 + 0.005 + 0.01 + 0.005;
        let expected = [0.01, 0.005, 0.01, 0.005].map(|weight: f64| weight / total);
        for scheme in [Scheme::Unfiltered, Scheme::Filtered] {
            assert_fits(&shares(scheme, 2, &[100, 200], &[50, 100]), &expected);
        }
        // With a tariff of 100 nearly all connections stay at home.
        let total = 0.01 + 0.0001 * 2.0;
        assert_fits(
            &shares(Scheme::Unfiltered, 100, &[100], &[100, 100]),
            &[0.01 / total, 0.0001 / total, 0.0001 / total],
        );
    }

    #[test]
    fn the_tournament_has_three_draws() {
        // The best of own is 100 in 2/3 of all cases, and 200 in 1/3; the best offer is 30 in 2/3, and 60 in
        // 1/3. Then the two compete, after tariff.
        let duel = |own: f64, offer: f64| (1.0 / own) / (1.0 / own + 1.0 / (2.0 * offer));
        let (own, offers) =
            ([(100.0, 2.0 / 3.0), (200.0, 1.0 / 3.0)], [(30.0, 2.0 / 3.0), (60.0, 1.0 / 3.0)]);
        let mut expected = [0.0; 4];
        for (i, (a, p)) in own.into_iter().enumerate() {
            for (j, (b, q)) in offers.into_iter().enumerate() {
                expected[i] += p * q * duel(a, b);
                expected[2 + j] += p * q * (1.0 - duel(a, b));
            }
        }
        assert_fits(&shares(Scheme::Tournament, 2, &[100, 200], &[30, 60]), &expected);
    }

    #[test]
    fn in_a_tournament_the_number_of_offers_does_not_count() {
        let of = |offers: &[u64]| shares(Scheme::Tournament, 2, &[100], offers)[0];
        let (one, five) = (of(&[40]), of(&[40; 5]));
        assert!(one.abs_diff(five) < ROUNDS / 100, "{one} {five}");
        // In a single draw among all, the number of offers matters.
        let of = |offers: &[u64]| shares(Scheme::Filtered, 2, &[100], offers)[0];
        assert!(of(&[40; 5]) * 2 < of(&[40]));
    }

    #[test]
    fn who_has_no_acceptors_lives_from_offers_without_tariff_among_them() {
        for scheme in Scheme::ALL {
            assert_fits(&shares(scheme, 100, &[], &[100, 300]), &[0.75, 0.25]);
        }
        assert_eq!(choose(Scheme::Tournament, 2, &[], &[], &mut Rng::new(1)), None);
    }

    #[test]
    fn naive_leaves_it_to_the_turn() {
        let (own, offers) = (candidates(0, &[100]), candidates(1, &[1]));
        assert_eq!(choose(Scheme::Naive, 2, &own, &offers, &mut Rng::new(1)), None);
    }

    #[test]
    fn extreme_times_are_drawn_without_overflow() {
        let counts = shares(Scheme::Tournament, 10_000, &[u64::MAX, 0], &[u64::MAX, 1]);
        assert_eq!(counts.iter().sum::<u32>(), ROUNDS);
        assert!(counts[1] > ROUNDS * 9 / 10);
    }
}
