//! The acceptors of one listener, and the choice of the one that gets the next connection.

use alloc::vec::Vec;

use atoll_base::{Duration, Instant, ReplicaId, SessionId};
use atoll_ipc::balance::{PeerBody, PeerOffer, Scheme, ServiceReport};

use super::acceptor::Acceptor;
use super::offers::Offers;
use super::scheme::{Candidate, Winner, choose};
use super::{Balancer, Reach};

/// The acceptors of one listener, by lease and session, and the offers of other CMs.
#[derive(Debug, Default)]
pub(crate) struct Acceptors {
    all: Vec<Acceptor>,
    offers: Offers,
    /// The index of the acceptor whose turn it is, for the scheme in which they take turns.
    next: usize,
}

/// The consequence of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reported {
    /// The acceptor is unknown, or not at home here.
    Unknown,
    /// Only the estimate has changed.
    Noted,
    /// The acceptor did not claim in time elsewhere, and is removed here, too. The value has a bit for each
    /// transport server where it was registered.
    Removed(u64),
}

/// One acceptor as one CM sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptorView {
    /// The lease number of its socket.
    pub lease: u64,
    /// The acceptor's session.
    pub session: SessionId,
    /// The CM that estimates and offers it.
    pub home: ReplicaId,
    /// Whether it wants connections.
    pub registered: bool,
    /// The acceptor's service time in microseconds, as far as this CM knows it. Its home knows the time of
    /// all its connections.
    pub service_us: Option<u64>,
    /// The number of connections that the estimate is made of.
    pub samples: usize,
    /// The number of connections offered by this CM since the start.
    pub given: u64,
    /// The number of these that it has not claimed yet.
    pub unclaimed: u32,
    /// The number of connections claimed and open; its home also counts those that other CMs gave.
    pub open: u32,
}

/// No CM's acceptors are treated as own ones.
const NONE: u64 = 0;
/// All transport servers: it does not matter where an acceptor is registered.
const ALL: u64 = u64::MAX;

/// The service time of an unknown acceptor if none is known, in microseconds: the order of magnitude of a
/// short request.
const UNKNOWN_MICROS: u64 = 1000;

impl Acceptors {
    /// Returns whether there is a choice. With a single acceptor nothing needs to be measured.
    #[inline]
    pub(crate) const fn has_choice(&self) -> bool {
        self.all.len() > 1
    }

    /// Returns how many acceptors are known.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Registers an acceptor at transport server `ts`: ACCEPT-CONNECTION.
    pub(crate) fn register(
        &mut self,
        now: Instant,
        ts: u8,
        session: SessionId,
        lease: u64,
        index: u32,
        balancer: &mut Balancer,
    ) {
        let at = self.position(session, lease).unwrap_or_else(|at| {
            self.all.insert(at, Acceptor::new(lease, session, balancer.away_from(session)));
            self.next += usize::from(at < self.next);
            at
        });
        self.all[at].registered |= 1 << ts;
        self.all[at].known |= 1 << ts;
        self.stir(now, index, balancer);
    }

    /// Deregisters an acceptor at the transport servers of `tss`, a bit each. Returns in which of them it was
    /// registered.
    pub(crate) fn deregister(
        &mut self,
        now: Instant,
        tss: u64,
        session: SessionId,
        lease: u64,
        index: u32,
        balancer: &mut Balancer,
    ) -> u64 {
        let Some(acceptor) = self.get_mut(session, lease) else { return 0 };
        let was = acceptor.registered & tss;
        acceptor.registered &= !tss;
        self.stir(now, index, balancer);
        was
    }

    /// Notes that an acceptor did not claim in time, which is to be reported to its home.
    pub(crate) fn timed_out(&mut self, session: SessionId, lease: u64) {
        let Some(acceptor) = self.get_mut(session, lease) else { return };
        acceptor.is_doubtful = true;
        if let Some(away) = acceptor.away_mut() {
            (away.timed_out, away.changed) = (true, true);
        }
    }

    /// Notes that transport server `ts` no longer knows the acceptors for which `is_meant` returns true. An
    /// acceptor that no transport server knows is removed.
    pub(crate) fn forget(&mut self, ts: u8, is_meant: impl Fn(SessionId, u64) -> bool) {
        for acceptor in self.all.iter_mut().filter(|acceptor| is_meant(acceptor.session, acceptor.lease)) {
            acceptor.registered &= !(1 << ts);
            acceptor.known &= !(1 << ts);
        }
        self.all.retain(|acceptor| acceptor.known != 0);
        self.next = 0;
    }

    pub(crate) fn get_mut(&mut self, session: SessionId, lease: u64) -> Option<&mut Acceptor> {
        let at = self.position(session, lease).ok()?;
        self.all.get_mut(at)
    }

    /// Returns the acceptor that gets a connection of transport server `ts`, which counts as offered to it
    /// from now on. Returns `None` if none wants one.
    pub(crate) fn assign(
        &mut self,
        now: Instant,
        ts: u8,
        index: u32,
        balancer: &mut Balancer,
    ) -> Option<(SessionId, u64)> {
        let at = if self.has_choice() {
            let at = match self.choose(now, 1 << ts, balancer)? {
                Winner::Own(at) => at,
                Winner::Offered(at) => {
                    balancer.counts.offers_taken += 1;
                    at
                }
            };
            self.stir(now, index, balancer);
            at
        } else {
            0
        };
        let acceptor = self.all.get_mut(at).filter(|acceptor| acceptor.registered & 1 << ts != 0)?;
        acceptor.offered(now);
        if let Some(away) = acceptor.away() {
            balancer.count_given(away.home);
        }
        Some((acceptor.session, acceptor.lease))
    }

    /// Chooses an acceptor; `at` is the transport server that has the connection, as a bit.
    fn choose(&mut self, now: Instant, at: u64, balancer: &mut Balancer) -> Option<Winner> {
        let mut own = core::mem::take(&mut balancer.own);
        let mut offered = core::mem::take(&mut balancer.offered);
        let silent = !self.offers.speaking(now);
        self.own_candidates(now, at, balancer, silent, &mut own);
        if own.is_empty() {
            self.all_candidates(now, at, balancer, &mut offered);
        } else {
            self.offered_candidates(now, at, balancer, &own, &mut offered);
        }
        let rules = balancer.rules;
        let chosen = choose(rules.scheme, rules.tariff, &own, &offered, &mut balancer.rng);
        let chosen = chosen.or_else(|| self.next_in_turn(&own).map(Winner::Own));
        (balancer.own, balancer.offered) = (own, offered);
        chosen
    }

    /// Collects the acceptors registered at one of `tss` that are at home here, or at one of the CMs
    /// `adopted`.
    fn own_candidates(
        &mut self,
        now: Instant,
        tss: u64,
        balancer: &Balancer,
        adopted: u64,
        own: &mut Vec<Candidate>,
    ) {
        own.clear();
        let mut best_known = UNKNOWN_MICROS;
        for (index, acceptor) in self.all.iter_mut().enumerate() {
            if acceptor.registered & tss == 0
                || acceptor.away().is_some_and(|away| adopted & (1 << away.home.0) == 0)
            {
                continue;
            }
            let micros = acceptor.estimate(now, &balancer.rules);
            best_known = best_known.min(micros.unwrap_or(UNKNOWN_MICROS));
            own.push(Candidate { index, micros: micros.unwrap_or(0) });
        }
        for candidate in own {
            // A new acceptor counts as much as the best, so that it gets connections by which it can be
            // judged.
            let micros = if candidate.micros == 0 { best_known } else { candidate.micros };
            candidate.micros = self.all[candidate.index].expected(now, micros);
        }
    }

    /// Collects the acceptors that are offered, known here, and not filtered out.
    fn offered_candidates(
        &mut self,
        now: Instant,
        at: u64,
        balancer: &Balancer,
        own: &[Candidate],
        offered: &mut Vec<Candidate>,
    ) {
        offered.clear();
        let rules = &balancer.rules;
        let best = own.iter().map(|own| own.micros).min().map(|best| self.offers.as_told(now, best));
        let all = &mut self.all;
        for heard in self.offers.fresh(now) {
            // Nearly all offers are worse than the best own acceptor. That is seen without access to the
            // acceptor, whose connections can only make the offer worse.
            if best.is_some_and(|best| heard.is_out(best, rules)) {
                continue;
            }
            let Ok(index) = all.binary_search_by_key(&(heard.lease, heard.session), Acceptor::key) else {
                continue;
            };
            let acceptor = &mut all[index];
            // A home that is not silent is not adopted, so no acceptor is both own and offered.
            if acceptor.registered & at == 0 || acceptor.is_at_home() {
                continue;
            }
            // A service time seen here includes the load of this replica, which delays that acceptor, too.
            let seen = acceptor.seen_lately(now, rules).unwrap_or(0);
            let micros = acceptor.expected_behind(now, seen.max(heard.micros.into()));
            let passes = match (rules.scheme, best) {
                (Scheme::Filtered, Some(best)) => micros.saturating_mul(rules.tariff.into()) < best,
                (Scheme::Tournament, Some(best)) => heard.mark.passes(best, micros, rules),
                _ => true,
            };
            if passes {
                offered.push(Candidate { index, micros });
            }
        }
    }

    /// Collects all acceptors, for a CM without own ones, which lives from offers.
    ///
    /// An offer names one acceptor, which may be gone, or the wrong one for all connections of a burst. So
    /// the other acceptors of the same home are candidates, too: as good as what was seen of them here, but
    /// no better than what their home offers.
    fn all_candidates(&mut self, now: Instant, at: u64, balancer: &Balancer, offered: &mut Vec<Candidate>) {
        offered.clear();
        let offers = &self.offers;
        for (index, acceptor) in
            self.all.iter_mut().enumerate().filter(|(_, acceptor)| acceptor.registered & at != 0)
        {
            let heard = acceptor.away().and_then(|away| offers.of(now, away.home));
            let best = heard.map(|heard| u64::from(heard.micros));
            let is_offered = heard.is_some_and(|heard| (heard.lease, heard.session) == acceptor.key());
            let seen = if is_offered { None } else { acceptor.estimate(now, &balancer.rules) };
            // `None` is less than any known time; of two known times the greater one is used.
            let micros = seen.max(best).unwrap_or(UNKNOWN_MICROS);
            offered.push(Candidate { index, micros: acceptor.expected_behind(now, micros) });
        }
    }

    /// Returns the next acceptor in turn; one that has unclaimed offers comes after those that have fewer.
    fn next_in_turn(&mut self, own: &[Candidate]) -> Option<usize> {
        let first = own.partition_point(|own| own.index < self.next);
        let order = own[first..].iter().chain(&own[..first]);
        let chosen = order.min_by_key(|own| self.all[own.index].unclaimed)?.index;
        self.next = chosen + 1;
        Some(chosen)
    }

    /// Handles another CM's offer.
    pub(crate) fn handle_offer(&mut self, sent_at: Instant, from: ReplicaId, offer: &PeerOffer) {
        self.offers.handle_offer(sent_at, from, offer);
    }

    /// Handles another CM's report.
    pub(crate) fn handle_report(
        &mut self,
        now: Instant,
        from: ReplicaId,
        report: &ServiceReport,
        index: u32,
        balancer: &mut Balancer,
    ) -> Reported {
        let rules = balancer.rules;
        let Some(acceptor) =
            self.get_mut(report.session, report.lease).filter(|acceptor| acceptor.is_at_home())
        else {
            return Reported::Unknown;
        };
        acceptor.handle_report(now, from, report, &rules);
        let removed = if report.timed_out { core::mem::take(&mut acceptor.registered) } else { 0 };
        self.offers.is_awaited = true;
        self.stir(now, index, balancer);
        if removed != 0 { Reported::Removed(removed) } else { Reported::Noted }
    }

    /// Forgets what the last incarnation of a CM has said.
    pub(crate) fn forget_peer(&mut self, peer: ReplicaId) {
        self.offers.forget(peer);
        self.all.iter_mut().for_each(|acceptor| acceptor.forget_reports(peer));
    }

    /// Notes that something has happened that other CMs may have to learn.
    pub(crate) fn stir(&mut self, now: Instant, index: u32, balancer: &mut Balancer) {
        // Without a choice there is nothing to send, unless an earlier offer is to be withdrawn.
        if balancer.replicas > 1 && (self.has_choice() || self.offers.told.is_some()) {
            let period = Duration::from_micros(balancer.rules.offer_us.into());
            let due = self.offers.told_at.map_or(now, |at| at + period);
            balancer.stir_at(index, &mut self.offers, due);
        }
    }

    /// Sends other CMs what is due now. `last` says that this replica is going to sleep.
    pub(crate) fn tell(
        &mut self,
        now: Instant,
        index: u32,
        reach: Reach,
        last: bool,
        balancer: &mut Balancer,
    ) {
        self.offers.is_active = false;
        let period = Duration::from_micros(balancer.rules.offer_us.into());
        let due = self.offers.told_at.map_or(now, |at| at + period);
        if now >= due || last {
            self.tell_best(now, reach.takes, balancer);
        } else {
            balancer.stir_at(index, &mut self.offers, due);
        }
        self.report(now, index, reach.awake, last, balancer);
    }

    /// Offers the best of the own acceptors to the other CMs.
    fn tell_best(&mut self, now: Instant, takes: u64, balancer: &mut Balancer) {
        let to = takes & balancer.others();
        if to == 0 {
            return;
        }
        let mut own = core::mem::take(&mut balancer.own);
        self.own_candidates(now, ALL, balancer, NONE, &mut own);
        // Among equal acceptors each has its turn.
        let first = balancer.rng.below(own.len() as u32) as usize;
        let best = own[first..].iter().chain(&own[..first]).min_by_key(|own| own.micros).map(|own| {
            let acceptor = &mut self.all[own.index];
            // A short queue comes and goes faster than any CM could be notified.
            let micros = acceptor.estimate(now, &balancer.rules).unwrap_or(0).max(own.micros / 2);
            PeerOffer {
                lease: acceptor.lease,
                session: acceptor.session,
                service_us: Some(u32::try_from(micros.max(1)).unwrap_or(u32::MAX)),
            }
        });
        balancer.own = own;
        let best = best.map(|best| self.offers.worst_of_period(best));
        if self.offers.is_news(now, best) {
            let withdrawn = self.offers.told.map(|told| PeerOffer { service_us: None, ..told });
            if let Some(offer) = best.or(withdrawn) {
                balancer.send(now, to, false, PeerBody::Offer(offer));
            }
            self.offers.set_told(now, best);
        }
    }

    /// Reports to the homes of acceptors.
    fn report(&mut self, now: Instant, index: u32, awake: u64, last: bool, balancer: &mut Balancer) {
        let period = Duration::from_micros(balancer.rules.sample_us.into());
        let mut next = Instant::FAR_FUTURE;
        let mut woken = 0;
        for at in 0..self.all.len() {
            let acceptor = &mut self.all[at];
            let Some(away) = acceptor.away().filter(|away| away.changed) else { continue };
            let home = away.home;
            let due = away.reported_at.map_or(now, |at| at + period);
            if now < due && !last && !away.timed_out {
                next = next.min(due);
                continue;
            }
            let wakes = awake & (1 << home.0) == 0;
            let is_worth_it = woken & (1 << home.0) != 0 || balancer.is_worth_waking(now, home);
            if wakes && !away.timed_out && !is_worth_it {
                // The report leaves with the next connections; if there are none, it does not matter.
                next = next.min(now + period);
                continue;
            }
            balancer.told(now, home);
            woken |= 1 << home.0;
            if let Some(report) = acceptor.take_report(now) {
                balancer.send(now, 1 << home.0, wakes, PeerBody::Report(report));
            }
        }
        if next != Instant::FAR_FUTURE {
            balancer.stir_at(index, &mut self.offers, next);
        }
    }

    /// Returns every acceptor as this CM sees it.
    pub(crate) fn views(&mut self, now: Instant, balancer: &Balancer) -> Vec<AcceptorView> {
        let view = |acceptor: &mut Acceptor| AcceptorView {
            lease: acceptor.lease,
            session: acceptor.session,
            home: balancer.home(acceptor.session),
            registered: acceptor.registered != 0,
            service_us: acceptor.estimate(now, &balancer.rules),
            samples: acceptor.samples(),
            given: acceptor.given,
            unclaimed: acceptor.unclaimed,
            open: acceptor.open(),
        };
        self.all.iter_mut().map(view).collect()
    }

    fn position(&self, session: SessionId, lease: u64) -> Result<usize, usize> {
        self.all.binary_search_by_key(&(lease, session), Acceptor::key)
    }
}
