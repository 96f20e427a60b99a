//! What a CM knows of one acceptor.
//!
//! Every CM knows every acceptor, because each has an arena with each replica. One CM is the acceptor's
//! *home*, which estimates its service time and offers it to the others. Those report to the home what the
//! acceptor did with the connections that they gave to it, and also remember it, for when the home is silent.

use alloc::boxed::Box;
use alloc::vec::Vec;

use atoll_base::{Instant, ReplicaId, SessionId};
use atoll_ipc::balance::{Balance, ServiceReport, Services};

use super::estimate::Estimate;

/// One acceptor of a listener. It stays known as long as its session holds the socket, registered or not, so
/// that an acceptor that was removed by a time-out keeps its history.
#[derive(Debug)]
pub(crate) struct Acceptor {
    pub(crate) lease: u64,
    pub(crate) session: SessionId,
    /// The transport servers in which it wants connections, a bit each.
    pub(crate) registered: u64,
    /// The transport servers that know it, because its session holds the socket there, a bit each.
    pub(crate) known: u64,
    /// The connections offered to it here that it has not claimed yet.
    pub(crate) unclaimed: u32,
    /// A moving average, in 256ths, of the connections that it had not claimed when it was offered another
    /// one.
    usual: u32,
    /// The connections offered to it here since the start.
    pub(crate) given: u64,
    /// Whether it has let an offer time out here, and has claimed none since.
    pub(crate) is_doubtful: bool,
    /// When it last claimed a connection, or was offered the first of those that it has not claimed.
    silent_since: Instant,
    estimate: Estimate,
    open: Open,
    side: Side,
}

/// The number of connections that [`Acceptor::usual`] averages over, approximately.
const USUAL_OF: u32 = 64;

/// The connections that an acceptor has claimed and not closed, with the sum of the moments when they were
/// offered, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    count: u32,
    since: u64,
}

#[derive(Debug)]
enum Side {
    /// At the acceptor's home: the unclaimed and open connections that the other CMs have last reported.
    Home(Vec<(ReplicaId, u32, Open)>),
    Away(Box<Away>),
}

/// The state of an acceptor at every CM other than its home: what is still to be reported to the home.
#[derive(Debug)]
pub(crate) struct Away {
    pub(crate) home: ReplicaId,
    pub(crate) changed: bool,
    pub(crate) timed_out: bool,
    pub(crate) reported_at: Option<Instant>,
    services: Services,
}

impl Acceptor {
    /// Creates an acceptor that is registered nowhere; `away_from` is its home, if that is not here.
    pub(crate) fn new(lease: u64, session: SessionId, away_from: Option<ReplicaId>) -> Acceptor {
        let away = |home| Away {
            home,
            changed: false,
            timed_out: false,
            reported_at: None,
            services: Services::default(),
        };
        Acceptor {
            lease,
            session,
            registered: 0,
            known: 0,
            unclaimed: 0,
            usual: 0,
            given: 0,
            is_doubtful: false,
            silent_since: Instant::ZERO,
            estimate: Estimate::default(),
            open: Open::default(),
            side: match away_from {
                None => Side::Home(Vec::new()),
                Some(home) => Side::Away(Box::new(away(home))),
            },
        }
    }

    /// Returns the key by which the acceptors of a listener are ordered.
    pub(crate) const fn key(&self) -> (u64, SessionId) {
        (self.lease, self.session)
    }

    pub(crate) const fn is_at_home(&self) -> bool {
        matches!(self.side, Side::Home(_))
    }

    pub(crate) fn away(&self) -> Option<&Away> {
        match &self.side {
            Side::Away(away) => Some(away),
            Side::Home(_) => None,
        }
    }

    pub(crate) fn away_mut(&mut self) -> Option<&mut Away> {
        match &mut self.side {
            Side::Away(away) => Some(away),
            Side::Home(_) => None,
        }
    }

    /// Notes that a connection is offered to it.
    pub(crate) fn offered(&mut self, now: Instant) {
        if self.unclaimed == 0 {
            self.silent_since = now;
        }
        self.usual = self.usual - self.usual / USUAL_OF + (self.unclaimed.min(1 << 16) << 8) / USUAL_OF;
        self.unclaimed += 1;
        self.given += 1;
        self.change();
    }

    /// Notes that it has claimed a connection that was offered at `since`. `is_measured` says whether
    /// [`Acceptor::closed`] will follow.
    pub(crate) fn claimed(&mut self, now: Instant, since: Instant, is_measured: bool) {
        self.unclaimed = self.unclaimed.saturating_sub(1);
        self.silent_since = now;
        if is_measured {
            self.open.count += 1;
            self.open.since = self.open.since.wrapping_add(since.as_micros());
        }
        self.change();
    }

    /// Notes that an offer has ended without a claim.
    pub(crate) fn returned(&mut self) {
        self.unclaimed = self.unclaimed.saturating_sub(1);
        self.change();
    }

    /// Notes that a connection is closed that was offered at `since`.
    pub(crate) fn closed(&mut self, now: Instant, since: Instant, rules: &Balance) {
        self.open.count = self.open.count.saturating_sub(1);
        self.open.since = self.open.since.wrapping_sub(since.as_micros());
        if self.open.count == 0 {
            self.open.since = 0;
        }
        let micros = u32::try_from(now.since(since).as_micros()).unwrap_or(u32::MAX);
        self.estimate.add(now, micros, rules);
        if let Side::Away(away) = &mut self.side {
            away.services.push(micros.max(1));
        }
        self.change();
    }

    /// Handles another CM's report; only the home does so.
    pub(crate) fn handle_report(
        &mut self,
        now: Instant,
        from: ReplicaId,
        report: &ServiceReport,
        rules: &Balance,
    ) {
        let Side::Home(elsewhere) = &mut self.side else { return };
        for &micros in report.services.as_slice() {
            self.estimate.add(now, micros, rules);
        }
        let open = Open { count: report.open, since: report.open_since_us.wrapping_mul(report.open.into()) };
        match elsewhere.iter_mut().find(|(replica, ..)| *replica == from) {
            Some(known) => *known = (from, report.unclaimed, open),
            None => elsewhere.push((from, report.unclaimed, open)),
        }
    }

    /// Forgets the connections of another CM whose incarnation has ended.
    pub(crate) fn forget_reports(&mut self, from: ReplicaId) {
        if let Side::Home(elsewhere) = &mut self.side {
            elsewhere.retain(|(replica, ..)| *replica != from);
        }
    }

    /// Returns the report for its home, and counts it as sent; `None` if this CM is the home.
    pub(crate) fn take_report(&mut self, now: Instant) -> Option<ServiceReport> {
        let (lease, session, open, unclaimed) = (self.lease, self.session, self.open, self.unclaimed);
        let away = self.away_mut()?;
        away.changed = false;
        away.reported_at = Some(now);
        Some(ServiceReport {
            lease,
            session,
            timed_out: core::mem::take(&mut away.timed_out),
            open: open.count,
            open_since_us: open.mean(),
            unclaimed,
            services: core::mem::take(&mut away.services),
        })
    }

    /// Returns the service time of its last connections in microseconds: at its home of all, elsewhere of
    /// those given to it there. Returns `None` if none is known.
    pub(crate) fn estimate(&mut self, now: Instant, rules: &Balance) -> Option<u64> {
        self.estimate.micros(now, rules).map(u64::from)
    }

    /// Returns the service time in microseconds of the connections that were given to it here lately. Returns
    /// `None` if none was closed lately.
    pub(crate) fn seen_lately(&mut self, now: Instant, rules: &Balance) -> Option<u64> {
        self.estimate.micros_lately(now, rules).map(u64::from)
    }

    /// Returns how many connections the estimate is made of.
    pub(crate) fn samples(&self) -> usize {
        self.estimate.samples()
    }

    /// Returns the number of connections claimed and open, as far as this CM knows.
    pub(crate) fn open(&self) -> u32 {
        self.all_open().count
    }

    /// Returns how long the next connection is expected to take here, in microseconds, at least 1, if the
    /// last ones took `micros`.
    ///
    /// The age of an open connection is a lower bound of its service time. Ages count only if there are more
    /// open connections than those that the estimate is made of, because then the median of both is an age.
    /// Then the number of open connections counts, too, because nothing else distinguishes acceptors. So an
    /// acceptor that never closes looks slower and slower, acceptors whose connections last for hours share
    /// them, and a few such connections beside many short ones change nothing.
    pub(crate) fn expected(&self, now: Instant, micros: u64) -> u64 {
        let open = self.all_open();
        if open.count as usize <= self.samples() {
            return self.expected_behind(now, micros);
        }
        let age = now.as_micros().saturating_sub(open.mean());
        self.expected_behind(now, micros.max(age).saturating_mul(1 + u64::from(open.count)))
    }

    /// Returns what `expected` does, for an acceptor whose home has said `micros` with open connections taken
    /// into account.
    ///
    /// While offered connections are not claimed, the silence of the acceptor is a lower bound of their
    /// service time. A new one comes behind them, so each of them counts once more; but as many as usual are
    /// in the estimate already.
    pub(crate) fn expected_behind(&self, now: Instant, micros: u64) -> u64 {
        let silence = if self.unclaimed > 0 { now.since(self.silent_since).as_micros() as u64 } else { 0 };
        let micros = micros.max(silence).max(1);
        let (before, usual) = (1 + self.all_unclaimed(), 1 + u64::from(self.usual >> 8));
        micros.max(micros.saturating_mul(before) / usual)
    }

    fn all_unclaimed(&self) -> u64 {
        let own = u64::from(self.unclaimed);
        match &self.side {
            Side::Home(elsewhere) => {
                elsewhere.iter().map(|(_, unclaimed, _)| u64::from(*unclaimed)).sum::<u64>() + own
            }
            Side::Away(_) => own,
        }
    }

    fn all_open(&self) -> Open {
        match &self.side {
            Side::Home(elsewhere) => elsewhere.iter().fold(self.open, |sum, (_, _, open)| Open {
                count: sum.count.saturating_add(open.count),
                since: sum.since.wrapping_add(open.since),
            }),
            Side::Away(_) => self.open,
        }
    }

    fn change(&mut self) {
        if let Side::Away(away) = &mut self.side {
            away.changed = true;
        }
    }
}

impl Open {
    /// Returns the mean of the moments when the connections were offered, in microseconds; 0 if there are
    /// none.
    const fn mean(self) -> u64 {
        match self.count {
            0 => 0,
            count => self.since / count as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Balance = Balance::new();

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    fn home() -> Acceptor {
        Acceptor::new(1, SessionId(1), None)
    }

    /// Offers a connection, which is claimed and closed.
    fn serve(acceptor: &mut Acceptor, from: u64, to: u64) {
        acceptor.offered(at(from));
        acceptor.claimed(at(from + 1), at(from), true);
        acceptor.closed(at(to), at(from), &RULES);
    }

    #[test]
    fn service_time_is_from_offer_to_close() {
        let mut acceptor = home();
        assert_eq!(acceptor.estimate(at(0), &RULES), None);
        serve(&mut acceptor, 1000, 1250);
        assert_eq!(acceptor.estimate(at(1250), &RULES), Some(250));
        assert_eq!((acceptor.open(), acceptor.unclaimed, acceptor.given), (0, 0, 1));
    }

    #[test]
    fn silence_counts_until_the_next_claim() {
        let mut acceptor = home();
        serve(&mut acceptor, 1000, 1100);
        let expected = |acceptor: &mut Acceptor, now| {
            let micros = acceptor.estimate(at(now), &RULES).expect("known");
            acceptor.expected(at(now), micros)
        };
        assert_eq!(expected(&mut acceptor, 2000), 100);
        acceptor.offered(at(2000));
        acceptor.offered(at(2010));
        assert_eq!(expected(&mut acceptor, 2020), 300, "two before it");
        assert_eq!(expected(&mut acceptor, 7000), 15_000, "and it says nothing for 5000");
        acceptor.claimed(at(7000), at(2000), true);
        assert_eq!(expected(&mut acceptor, 7010), 200);
        acceptor.returned();
        assert_eq!(expected(&mut acceptor, 7010), 100);
    }

    #[test]
    fn a_queue_that_is_usual_is_in_the_estimate_already() {
        let mut acceptor = home();
        for round in 0..100u64 {
            (0..8).for_each(|n| acceptor.offered(at(round * 100 + n)));
            (0..8).for_each(|n| acceptor.claimed(at(round * 100 + 50), at(round * 100 + n), false));
        }
        // There are 0 to 7 before each of them, 3.5 on average.
        let mut expected = Vec::new();
        for n in 0..32 {
            expected.push(acceptor.expected(at(20_000), 100));
            acceptor.offered(at(20_000 + n));
        }
        assert!(expected[..4].iter().all(|micros| *micros <= 134), "{expected:?}");
        assert!(expected[16] > 300 && expected[31] > expected[16], "{expected:?}");
    }

    #[test]
    fn who_never_closes_looks_slower_and_slower() {
        let mut acceptor = home();
        for n in 0..5 {
            acceptor.offered(at(1000 + n));
            acceptor.claimed(at(1010 + n), at(1000 + n), true);
        }
        // Only the number and the age of the connections are known.
        assert_eq!(acceptor.expected(at(1100), 400), 6 * 400);
        assert_eq!(acceptor.expected(at(9002), 400), 6 * 8000);
    }

    #[test]
    fn a_few_long_connections_beside_many_short_ones_change_nothing() {
        let mut acceptor = home();
        for n in 0..10 {
            acceptor.offered(at(n));
            acceptor.claimed(at(n), at(n), true);
        }
        for n in 0..20 {
            serve(&mut acceptor, 1000 + n * 1000, 1100 + n * 1000);
        }
        let now = at(3_600_000_000);
        assert_eq!((acceptor.open(), acceptor.samples()), (10, 20));
        assert_eq!(acceptor.expected(now, 100), 100);
    }

    #[test]
    fn the_home_hears_everything_by_reports() {
        let (mut home, mut away) = (home(), Acceptor::new(1, SessionId(1), Some(ReplicaId(0))));
        serve(&mut away, 100, 400);
        away.offered(at(500));
        away.claimed(at(510), at(500), true);
        away.offered(at(600));
        let report = away.take_report(at(700)).expect("it is away");
        assert_eq!((report.open, report.open_since_us, report.unclaimed), (1, 500, 1));
        assert!(!away.away().expect("away").changed);
        home.handle_report(at(700), ReplicaId(1), &report, &RULES);
        assert_eq!((home.estimate(at(700), &RULES), home.open(), home.samples()), (Some(300), 1, 1));
        assert_eq!(home.expected(at(700), 300), 600, "one is not claimed");
        // Counts are absolute: a repeated report counts once, and a lost one is made good by the next.
        let again = ServiceReport { services: Services::default(), ..report };
        home.handle_report(at(700), ReplicaId(1), &again, &RULES);
        assert_eq!((home.open(), home.samples()), (1, 1));
        home.forget_reports(ReplicaId(1));
        assert_eq!((home.open(), home.expected(at(700), 300)), (0, 300));
    }

    #[test]
    fn reports_of_a_broken_replica_do_no_harm() {
        let mut acceptor = home();
        let mut services = Services::default();
        services.push(0);
        let report = ServiceReport {
            lease: 1,
            session: SessionId(1),
            timed_out: false,
            open: u32::MAX,
            open_since_us: u64::MAX,
            unclaimed: u32::MAX,
            services,
        };
        for from in 0..8 {
            acceptor.handle_report(at(1), ReplicaId(from), &report, &RULES);
        }
        assert!(acceptor.expected(at(2), 1) >= 1);
        // This ends a connection that was never counted.
        acceptor.closed(at(5), at(1), &RULES);
    }
}
