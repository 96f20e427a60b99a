//! What have the other CMs offered for a listener, and what have they been told? (P5)

use alloc::vec::Vec;

use atoll_base::{Duration, Instant, ReplicaId, SessionId};
use atoll_ipc::balance::PeerOffer;

use super::watermark::Watermark;

/// The offers about one listener, in both directions.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    /// One for each CM that has offered something, by replica.
    heard: Vec<Heard>,
    /// What the others know of the own acceptors.
    pub(crate) told: Option<PeerOffer>,
    pub(crate) told_at: Option<Instant>,
    /// Somebody has reported: he is to hear at once what it means.
    pub(crate) is_awaited: bool,
    /// In the list of listeners with something to tell.
    pub(crate) is_active: bool,
}

/// The last offer of one CM.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) from: ReplicaId,
    pub(crate) lease: u64,
    pub(crate) session: SessionId,
    /// 0: nothing is offered.
    pub(crate) micros: u32,
    pub(crate) mark: Watermark,
    at: Instant,
}

/// An offer that was not told again for so long is none: its author sleeps or is gone.
pub(crate) const OFFER_AGE_MAX: Duration = Duration::from_secs(1);
/// What is unchanged is told again, for those who have missed it.
pub(crate) const TELL_AGAIN_AFTER: Duration = Duration::from_millis(10);

impl Offers {
    /// An offer has come, sent at `at`. It replaces the last one of the same CM, whose mark stays.
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
    }

    /// The CM's incarnation has ended.
    pub(crate) fn forget(&mut self, from: ReplicaId) {
        self.heard.retain(|heard| heard.from != from);
    }

    /// Every offer that still counts.
    pub(crate) fn fresh(&mut self, now: Instant) -> impl Iterator<Item = &mut Heard> {
        self.heard.iter_mut().filter(move |heard| heard.micros > 0 && now.since(heard.at) <= OFFER_AGE_MAX)
    }

    /// Whether a CM has said nothing for long, not even that it has nothing to offer.
    pub(crate) fn is_silent(&self, now: Instant, home: ReplicaId) -> bool {
        !self.heard.iter().any(|heard| heard.from == home && now.since(heard.at) <= OFFER_AGE_MAX)
    }

    /// Whether it is time to tell `best` to the others.
    pub(crate) fn is_news(&self, now: Instant, best: Option<PeerOffer>) -> bool {
        let is_again_due = self.told_at.is_none_or(|at| now.since(at) >= TELL_AGAIN_AFTER);
        best != self.told || (best.is_some() && (is_again_due || self.is_awaited))
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
        assert!(offers.is_silent(at(5), ReplicaId(1)));
        offers.handle_offer(at(5), ReplicaId(1), &offer(1, None));
        assert!(!offers.is_silent(at(1005), ReplicaId(1)));
        assert!(offers.is_silent(at(1006), ReplicaId(1)));
    }

    #[test]
    fn what_is_unchanged_is_told_again_after_a_while_or_when_somebody_waits() {
        let mut offers = Offers::default();
        let best = Some(offer(1, Some(5)));
        assert!(!offers.is_news(at(0), None));
        assert!(offers.is_news(at(0), best));
        (offers.told, offers.told_at) = (best, Some(at(0)));
        assert!(!offers.is_news(at(9), best));
        assert!(offers.is_news(at(9), Some(offer(1, Some(6)))) && offers.is_news(at(9), None));
        assert!(offers.is_news(at(10), best));
        offers.is_awaited = true;
        assert!(offers.is_news(at(9), best));
    }
}
