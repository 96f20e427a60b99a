//! The offers of other CMs for a listener, and what was sent to those CMs (P5).

use alloc::vec::Vec;

use atoll_base::{Duration, Instant, ReplicaId, SessionId};
use atoll_ipc::balance::{Balance, PeerOffer, Scheme};

use super::watermark::Watermark;

/// The offers for one listener, in both directions.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    /// The last offer of each CM, by replica.
    heard: Vec<Heard>,
    /// The offer that the other CMs have of the own acceptors.
    pub(crate) told: Option<PeerOffer>,
    pub(crate) told_at: Option<Instant>,
    /// The longest service time since `told_at` that was worth sending, in microseconds.
    worst: u32,
    /// Whether another CM has reported, and expects an offer soon.
    pub(crate) is_awaited: bool,
    /// Whether the listener is in the list of those with something to send.
    pub(crate) is_active: bool,
    /// The CMs that have sent something not long ago, a bit each, and when that was last examined.
    speaking: u64,
    looked_at: Option<Instant>,
}

/// The last offer of one CM.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) from: ReplicaId,
    pub(crate) lease: u64,
    pub(crate) session: SessionId,
    /// The service time in microseconds; 0 if nothing is offered.
    pub(crate) micros: u32,
    pub(crate) mark: Watermark,
    at: Instant,
}

/// The time after which an offer that was not repeated is void, because its author sleeps or is gone.
pub(crate) const OFFER_AGE_MAX: Duration = Duration::from_secs(1);
/// The interval in which CMs that have fallen silent are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The time after which an offer is repeated, changed or not, because some CMs may have missed it.
pub(crate) const TELL_AGAIN_AFTER: Duration = Duration::from_millis(10);
/// The time after the last offer at which a CM that has reported is answered.
const ANSWER_AFTER: Duration = Duration::from_millis(2);

impl Heard {
    /// Returns whether the offer is out of the question. Connections given to its acceptor meanwhile can only
    /// make it worse. `best` is the service time of the best own acceptor, in microseconds.
    pub(crate) fn is_out(&mut self, best: u64, rules: &Balance) -> bool {
        let micros = u64::from(self.micros);
        match rules.scheme {
            Scheme::Naive => true,
            Scheme::Unfiltered => false,
            Scheme::Filtered => micros.saturating_mul(rules.tariff.into()) >= best,
            Scheme::Tournament => self.mark.filters(best, micros, rules),
        }
    }
}

impl Offers {
    /// Notes an offer that was sent at `at`. It replaces the last one of the same CM, whose watermark stays.
    pub(crate) fn handle_offer(&mut self, at: Instant, from: ReplicaId, offer: &PeerOffer) {
        let place = match self.heard.binary_search_by_key(&from, |heard| heard.from) {
            Ok(place) => place,
            Err(place) => {
                let (mark, session) = (Watermark::default(), SessionId(0));
                self.heard.insert(place, Heard { from, lease: 0, session, micros: 0, mark, at });
                place
            }
        };
        let heard = &mut self.heard[place];
        (heard.lease, heard.session, heard.at) = (offer.lease, offer.session, at);
        heard.micros = offer.service_us.unwrap_or(0);
        self.speaking |= 1 << (from.0 & 63);
    }

    /// Forgets the offers of a CM whose incarnation has ended.
    pub(crate) fn forget(&mut self, from: ReplicaId) {
        self.heard.retain(|heard| heard.from != from);
        self.speaking &= !(1 << (from.0 & 63));
    }

    /// Returns every offer that still counts.
    pub(crate) fn fresh(&mut self, now: Instant) -> impl Iterator<Item = &mut Heard> {
        self.heard.iter_mut().filter(move |heard| heard.micros > 0 && now.since(heard.at) <= OFFER_AGE_MAX)
    }

    /// Returns the CMs that have sent something within [`OFFER_AGE_MAX`] or little more, even if they offer
    /// nothing; a bit each.
    ///
    /// It is called for every connection, so it does not examine every offer each time.
    pub(crate) fn speaking(&mut self, now: Instant) -> u64 {
        if self.looked_at.is_none_or(|at| now.since(at) >= LOOK_EVERY) {
            self.looked_at = Some(now);
            let fresh = self.heard.iter().filter(|heard| now.since(heard.at) <= OFFER_AGE_MAX);
            self.speaking = fresh.fold(0, |all, heard| all | 1 << (heard.from.0 & 63));
        }
        self.speaking
    }

    /// Returns the offer of one CM, if it still counts.
    pub(crate) fn of(&self, now: Instant, home: ReplicaId) -> Option<&Heard> {
        let is_fresh = |heard: &&Heard| heard.micros > 0 && now.since(heard.at) <= OFFER_AGE_MAX;
        self.heard.iter().find(|heard| heard.from == home).filter(is_fresh)
    }

    /// Returns the offer to send for the best acceptor now: with the longest service time since the last
    /// offer. A moment in which the acceptor is idle is no reason for the others to send it connections, and
    /// would be over before those arrive.
    pub(crate) fn worst_of_period(&mut self, best: PeerOffer) -> PeerOffer {
        self.worst = self.worst.max(best.service_us.unwrap_or(0));
        PeerOffer { service_us: best.service_us.map(|_| self.worst), ..best }
    }

    /// Notes that the other CMs know `best` from now on.
    pub(crate) fn set_told(&mut self, now: Instant, best: Option<PeerOffer>) {
        (self.told, self.told_at) = (best, Some(now));
        (self.worst, self.is_awaited) = (0, false);
    }

    /// Returns the service time of the best own acceptor as the other CMs know it, if they do. What they
    /// offer is as old, and may have nearly doubled since. Compared with the present value, every CM's offer
    /// would look good to every other one while all become slower.
    pub(crate) fn as_told(&self, now: Instant, best: u64) -> u64 {
        let is_fresh = self.told_at.is_some_and(|at| now.since(at) <= TELL_AGAIN_AFTER);
        let told = self.told.and_then(|told| told.service_us).filter(|_| is_fresh);
        told.map_or(best, |told| best.min(told.into()))
    }

    /// Returns whether it is time to send `best` to the other CMs.
    ///
    /// Each message costs every other CM as much as some choices do, so there are few. A service time that
    /// has doubled is sent at once; one that has hardly changed, or is shorter, is sent when its turn comes.
    pub(crate) fn is_news(&self, now: Instant, best: Option<PeerOffer>) -> bool {
        let is_due = |period| self.told_at.is_none_or(|at| now.since(at) >= period);
        match (best.and_then(|best| best.service_us), self.told.and_then(|told| told.service_us)) {
            (None, told) => told.is_some(),
            (Some(_), None) => true,
            (Some(best), Some(told)) => {
                best / 2 >= told || is_due(TELL_AGAIN_AFTER) || (self.is_awaited && is_due(ANSWER_AFTER))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn offer(session: u32, service_us: Option<u32>) -> PeerOffer {
        PeerOffer { lease: 7, session: SessionId(session), service_us }
    }

    fn sessions(offers: &mut Offers, now: u64) -> Vec<u32> {
        offers.fresh(at(now)).map(|heard| heard.session.0).collect()
    }

    #[test]
    fn an_offer_stands_until_it_is_replaced_withdrawn_or_old() {
        let mut offers = Offers::default();
        offers.handle_offer(at(0), ReplicaId(2), &offer(20, Some(5)));
        offers.handle_offer(at(0), ReplicaId(1), &offer(10, Some(5)));
        assert_eq!(sessions(&mut offers, 900), [10, 20]);
        offers.handle_offer(at(900), ReplicaId(2), &offer(22, Some(5)));
        assert_eq!(sessions(&mut offers, 1001), [22]);
        offers.handle_offer(at(1001), ReplicaId(2), &offer(22, None));
        assert_eq!(sessions(&mut offers, 1001), [0; 0]);
        offers.handle_offer(at(1002), ReplicaId(2), &offer(23, Some(5)));
        offers.forget(ReplicaId(2));
        assert_eq!(sessions(&mut offers, 1002), [0; 0]);
    }

    #[test]
    fn who_withdraws_an_offer_is_not_silent() {
        let mut offers = Offers::default();
        assert_eq!(offers.speaking(at(5)), 0);
        offers.handle_offer(at(5), ReplicaId(1), &offer(1, None));
        assert_eq!(offers.speaking(at(1005)), 1 << 1);
        assert_eq!(offers.speaking(at(1020)), 0);
    }

    #[test]
    fn what_is_told_is_the_worst_since_the_last_time() {
        let mut offers = Offers::default();
        let said = |offers: &mut Offers, micros| offers.worst_of_period(offer(1, Some(micros))).service_us;
        assert_eq!([5, 9, 2].map(|micros| said(&mut offers, micros)), [Some(5), Some(9), Some(9)]);
        offers.set_told(at(1), Some(offer(1, Some(9))));
        assert_eq!([2, 3].map(|micros| said(&mut offers, micros)), [Some(2), Some(3)]);
    }

    #[test]
    fn what_gets_worse_is_told_at_once_and_the_rest_when_its_turn_comes() {
        let mut offers = Offers::default();
        let best = |micros| Some(offer(1, Some(micros)));
        assert!(!offers.is_news(at(0), None));
        assert!(offers.is_news(at(0), best(5)));
        offers.set_told(at(0), best(5));
        for (micros, is_news) in [(5, false), (9, false), (1, false), (10, true), (u32::MAX, true)] {
            assert_eq!(offers.is_news(at(1), best(micros)), is_news, "{micros}");
        }
        assert!(offers.is_news(at(1), None), "there is nobody any more");
        assert!(offers.is_news(at(10), best(5)) && !offers.is_news(at(9), best(5)));
        offers.is_awaited = true;
        assert!(offers.is_news(at(2), best(5)) && !offers.is_news(at(1), best(5)));
    }
}
