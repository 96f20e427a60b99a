//! Decides when requests of the command line for listings and reports are answered: soon, but in a bounded
//! part of the supervisor's time.
//!
//! ```text
//!   `atoll ss`      ask -> waits -> one listing at a time, for all that wait
//!                       -> rows of the replicas, in slices -> end
//!   `atoll status`  ask -> waits -> one report, for all that wait
//! ```
//!
//! After an answer, the next one is delayed by several times what it took, so that answering takes a bounded
//! part of the time, however many clients ask. After a while without requests some are answered at once. A
//! client that waits for an answer is not read from, and is forgotten when its connection closes. Processes
//! are answered in turns, so that one with a thousand connections that ask does not keep others waiting.

use std::collections::{BTreeMap, BTreeSet};

use atoll_base::{Duration, Instant};

use crate::{Caller, ClientId};

/// Requests that wait, and the listing under way. This state is lost with the supervisor: a client then gets
/// no answer, and asks again.
#[derive(Debug)]
pub struct Questions {
    /// The clients that receive the listing under way; `None` if there is none.
    hearers: Option<BTreeSet<ClientId>>,
    began: Instant,
    /// The clients that receive the next listing.
    for_listing: Queue,
    listings: Bucket,
    for_report: Queue,
    reports: Bucket,
}

/// An answer to be given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Send one report to all of these clients, then call [`Questions::reported`].
    Report(Vec<ClientId>),
    /// Begin a listing, and call [`Questions::listed`] when it is over.
    Listing,
}

/// Clients that wait for the next answers of a kind. Each has a turn: the first waiting connection of a
/// process has the current one, its second the turn after that, and so on.
#[derive(Debug, Default)]
struct Queue {
    /// The clients in the order in which they are answered: by turn, then by when they asked.
    waiting: BTreeMap<(u64, u64), ClientId>,
    /// The key of each client in `waiting`.
    places: BTreeMap<ClientId, (u64, u64)>,
    /// The last turn that each process was given.
    given: BTreeMap<Process, u64>,
    turn: u64,
    asked: u64,
}

/// The user and pid of a process; all of a user's processes without a number in this pid namespace are one.
type Process = (u32, u32);

impl Queue {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn contains(&self, id: ClientId) -> bool {
        self.places.contains_key(&id)
    }

    /// Adds a connection of this caller, unless it waits already.
    fn push(&mut self, id: ClientId, caller: &Caller) {
        if self.contains(id) {
            return;
        }
        if self.waiting.is_empty() {
            self.given.clear();
        } else if self.given.len() > REMEMBERED {
            self.given.retain(|_, last| *last >= self.turn);
        }
        let given = self.given.get(&(caller.uid, caller.pid));
        let turn = given.map_or(self.turn, |last| self.turn.max(last + 1));
        self.given.insert((caller.uid, caller.pid), turn);
        self.asked += 1;
        self.waiting.insert((turn, self.asked), id);
        self.places.insert(id, (turn, self.asked));
    }

    /// Removes a connection, if it waits.
    fn remove(&mut self, id: ClientId) {
        if let Some(place) = self.places.remove(&id) {
            self.waiting.remove(&place);
        }
    }

    /// Takes the clients that share the next answer, at most [`SHARERS_MAX`]; the others wait for the one
    /// after.
    fn take(&mut self) -> Vec<ClientId> {
        let mut taken = Vec::new();
        while taken.len() < SHARERS_MAX
            && let Some(((turn, _), id)) = self.waiting.pop_first()
        {
            self.turn = turn;
            self.places.remove(&id);
            taken.push(id);
        }
        taken
    }
}

/// The recent cost of requests of a kind.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// The time until which the costs so far count.
    paid_until: Instant,
}

impl Bucket {
    fn new(now: Instant) -> Bucket {
        Bucket { paid_until: now }
    }

    /// Returns when the next request may be answered.
    fn due(&self) -> Instant {
        self.paid_until - BURST
    }

    fn is_due(&self, now: Instant) -> bool {
        self.due() <= now
    }

    /// Charges for an answer that took `took`.
    fn spend(&mut self, now: Instant, took: Duration) {
        let charge = (took * SHARE).clamp(CHARGE_MIN, CHARGE_MAX);
        self.paid_until = self.paid_until.max(now) + charge;
    }
}

impl Questions {
    /// Creates an empty queue, in which no request has a cost yet.
    pub fn new(now: Instant) -> Questions {
        Questions {
            hearers: None,
            began: now,
            for_listing: Queue::default(),
            listings: Bucket::new(now),
            for_report: Queue::default(),
            reports: Bucket::new(now),
        }
    }

    /// Adds a client that asks for a listing of the sockets.
    pub fn ask_for_listing(&mut self, id: ClientId, caller: &Caller) {
        self.for_listing.push(id, caller);
    }

    /// Adds a client that asks for a report of the stack's status.
    pub fn ask_for_report(&mut self, id: ClientId, caller: &Caller) {
        self.for_report.push(id, caller);
    }

    /// Returns the answer that is due now, if there is one; it counts as begun.
    pub fn poll(&mut self, now: Instant) -> Option<Answer> {
        if !self.for_report.is_empty() && self.reports.is_due(now) {
            return Some(Answer::Report(self.for_report.take()));
        }
        if self.hearers.is_none() && !self.for_listing.is_empty() && self.listings.is_due(now) {
            self.hearers = Some(self.for_listing.take().into_iter().collect());
            self.began = now;
            return Some(Answer::Listing);
        }
        None
    }

    /// Notes that a report was made and sent, which took `took`.
    pub fn reported(&mut self, now: Instant, took: Duration) {
        self.reports.spend(now, took);
    }

    /// Returns whether a listing is under way.
    pub fn is_listing(&self) -> bool {
        self.hearers.is_some()
    }

    /// Returns the clients that receive the listing under way.
    pub fn hearers(&self) -> Vec<ClientId> {
        self.hearers.iter().flatten().copied().collect()
    }

    /// Notes that the listing is over. Returns the clients that received it, and may ask again.
    pub fn listed(&mut self, now: Instant) -> Vec<ClientId> {
        let Some(hearers) = self.hearers.take() else { return Vec::new() };
        self.listings.spend(now, now.since(self.began));
        hearers.into_iter().collect()
    }

    /// Returns whether this client waits for an answer.
    pub fn has(&self, id: ClientId) -> bool {
        let hears = self.hearers.as_ref().is_some_and(|hearers| hearers.contains(&id));
        hears || self.for_listing.contains(id) || self.for_report.contains(id)
    }

    /// Forgets a client that is gone.
    pub fn forget(&mut self, id: ClientId) {
        self.for_listing.remove(id);
        self.for_report.remove(id);
        if let Some(hearers) = &mut self.hearers {
            hearers.remove(&id);
        }
    }

    /// Returns when [`Questions::poll`] has an answer if nothing happens.
    pub fn next_timeout(&self) -> Option<Instant> {
        let listing = (self.hearers.is_none() && !self.for_listing.is_empty()).then(|| self.listings.due());
        let report = (!self.for_report.is_empty()).then(|| self.reports.due());
        [listing, report].into_iter().flatten().min()
    }
}

/// The next answer is delayed by this many times what the last one took.
const SHARE: u32 = 5;
/// The least and the largest delay after an answer; the least covers the commands that ask, too.
const CHARGE_MIN: Duration = Duration::from_millis(25);
const CHARGE_MAX: Duration = Duration::from_secs(2);
/// The delay that may accumulate before a request has to wait.
const BURST: Duration = Duration::from_millis(200);
/// The number of remembered processes at which those whose turn has passed are dropped.
const REMEMBERED: usize = 1024;
/// The largest number of clients that share an answer, because it is sent to each.
const SHARERS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_all_the_time_gets_a_bounded_part_of_it() {
        let start = Instant::from_millis(100_000);
        for (took, most) in [(1, 48), (10, 30), (100, 12), (1000, 10)] {
            let took = Duration::from_millis(took);
            let (mut bucket, mut now, mut answers, mut spent) =
                (Bucket::new(start), start, 0u32, Duration::ZERO);
            while now < start + Duration::from_secs(1) {
                if bucket.is_due(now) {
                    answers += 1;
                    spent += took;
                    bucket.spend(now, took);
                } else {
                    assert!(bucket.due() > now);
                }
                now = bucket.due().max(now + took);
            }
            assert!(answers <= most, "{answers} answers that take {took:?}");
            assert!(
                answers >= 1 && (answers < 10 || spent < Duration::from_millis(500)),
                "{spent:?} of a second"
            );
        }
    }

    fn caller(pid: u32) -> Caller {
        Caller { pid, uid: 7 }
    }

    #[test]
    fn a_process_with_many_connections_that_ask_keeps_nobody_waiting() {
        let mut queue = Queue::default();
        let of_many = |n| ClientId(n);
        (0..3000).for_each(|n| queue.push(of_many(n), &caller(1)));
        assert_eq!(queue.take(), (0..16).map(of_many).collect::<Vec<_>>(), "nobody else is there");
        // A client that comes later is among the next to be answered, though the many ask again at once.
        for (round, other) in (0..100).zip(5000..) {
            queue.push(of_many(round), &caller(1));
            queue.push(ClientId(other), &caller(2));
            let taken = queue.take();
            assert!(taken.contains(&ClientId(other)), "round {round}: {taken:?}");
            assert_eq!(taken.len(), SHARERS_MAX);
        }
        assert!(queue.contains(of_many(99)) && !queue.contains(ClientId(5000)));
    }

    #[test]
    fn each_waits_once_and_nothing_is_left_of_those_that_have_gone() {
        let mut queue = Queue::default();
        for n in 0..10_000 {
            queue.push(ClientId(n), &caller(n as u32));
            queue.push(ClientId(n), &caller(n as u32));
            queue.push(ClientId(20_000 + n), &caller(1));
            queue.remove(ClientId(20_000 + n));
            if n % 10 == 0 {
                queue.take();
            }
        }
        assert!(queue.given.len() <= queue.waiting.len() + REMEMBERED, "{}", queue.given.len());
        let mut count = 0;
        while !queue.is_empty() {
            count += queue.take().len();
        }
        assert!(count < 10_000, "{count}");
        assert!(queue.places.is_empty());
        queue.push(ClientId(1), &caller(1));
        assert_eq!(queue.given.len(), 1);
    }

    #[test]
    fn who_asks_now_and_then_does_not_wait() {
        let mut now = Instant::from_millis(100_000);
        let mut bucket = Bucket::new(now);
        for _ in 0..100 {
            assert!(bucket.is_due(now));
            bucket.spend(now, Duration::from_millis(10));
            now += Duration::from_millis(51);
        }
    }

    #[test]
    fn one_listing_is_made_at_a_time_and_reports_do_not_wait_for_it() {
        let now = Instant::from_millis(100_000);
        let mut questions = Questions::new(now);
        questions.ask_for_listing(ClientId(1), &caller(1));
        assert_eq!(questions.poll(now), Some(Answer::Listing));
        assert_eq!((questions.hearers(), questions.poll(now)), (vec![ClientId(1)], None));
        questions.ask_for_listing(ClientId(2), &caller(2));
        questions.ask_for_report(ClientId(3), &caller(3));
        assert_eq!(questions.poll(now), Some(Answer::Report(vec![ClientId(3)])));
        questions.reported(now, Duration::from_millis(1));
        assert_eq!(questions.poll(now), None, "the second listing waits for the first one");
        assert!([1, 2].into_iter().all(|id| questions.has(ClientId(id))) && !questions.has(ClientId(3)));
        assert_eq!(questions.next_timeout(), None, "it is not a matter of time");
        questions.forget(ClientId(1));
        let over = now + Duration::from_secs(1);
        assert!(questions.listed(over).is_empty(), "who has heard it is gone");
        assert_eq!(questions.poll(over), None, "it has taken long, and the next one waits for that");
        let due = questions.next_timeout().expect("the next listing");
        assert_eq!(questions.poll(due), Some(Answer::Listing));
        assert_eq!(questions.listed(due), [ClientId(2)]);
    }
}
