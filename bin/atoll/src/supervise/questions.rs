//! When is a question of the command line answered? Soon, but those who ask all the time do not get all the time.
//!
//! ```text
//!   `atoll ss`      ask -> waits -> one listing at a time, for all that wait -> rows of the replicas, in slices -> end
//!   `atoll status`  ask -> waits -> one report, for all that wait
//! ```
//! Each answer costs its askers together some time in which the next one is not begun: several times what it took, so that answering takes a
//! bounded part of the time, however many ask. After a while without questions some are answered at once. Who waits for an answer is not read from,
//! and when its other end closes it is forgotten. Processes are answered in turns, so that one with a thousand
//! connections that ask does not keep others waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use atoll_ipc::control::Request;
use atoll_supervisor::{ClientId, ReportPart};
use atoll_sys::unix::Peer;

use super::supervisor::Supervisor;

/// Questions that wait, and the listing under way. Lost with the supervisor: who asks sees its connection stay silent, and asks again.
#[derive(Debug)]
pub(super) struct Questions {
    /// Who hears the listing under way; `None`: there is none.
    hearers: Option<BTreeSet<ClientId>>,
    began: Instant,
    /// Who hears the next one.
    for_listing: Queue,
    listings: Bucket,
    for_report: Queue,
    reports: Bucket,
}

/// Those who wait for the next answers of a kind. Each has a turn: the first connection of a process that waits has the current one, its second the
/// turn after that, and so on.
#[derive(Debug, Default)]
struct Queue {
    /// In this order they are answered: by turn, and by when they asked.
    waiting: BTreeMap<(u64, u64), ClientId>,
    /// Where each is in `waiting`.
    places: BTreeMap<ClientId, (u64, u64)>,
    /// The last turn that each process was given.
    given: BTreeMap<Process, u64>,
    turn: u64,
    asked: u64,
}

/// User and process; those without a number in this pid namespace are one.
type Process = (u32, u32);

impl Queue {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn contains(&self, id: ClientId) -> bool {
        self.places.contains_key(&id)
    }

    /// A connection of this peer waits from now on, unless it does already.
    fn push(&mut self, id: ClientId, peer: &Peer) {
        if self.contains(id) {
            return;
        }
        if self.waiting.is_empty() {
            self.given.clear();
        } else if self.given.len() > REMEMBERED {
            self.given.retain(|_, last| *last >= self.turn);
        }
        let given = self.given.get(&(peer.uid, peer.pid));
        let turn = given.map_or(self.turn, |last| self.turn.max(last + 1));
        self.given.insert((peer.uid, peer.pid), turn);
        self.asked += 1;
        self.waiting.insert((turn, self.asked), id);
        self.places.insert(id, (turn, self.asked));
    }

    /// It does not any more.
    fn remove(&mut self, id: ClientId) {
        if let Some(place) = self.places.remove(&id) {
            self.waiting.remove(&place);
        }
    }

    /// Takes those who share an answer. Others wait for the next one.
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

/// What questions of a kind have cost lately.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Until when what was spent counts.
    paid_until: Instant,
}

impl Bucket {
    fn new(now: Instant) -> Bucket {
        Bucket { paid_until: now }
    }

    /// When the next question may be answered.
    fn due(&self) -> Instant {
        self.paid_until.checked_sub(BURST).unwrap_or(self.paid_until)
    }

    fn is_due(&self, now: Instant) -> bool {
        self.due() <= now
    }

    /// One was, which has taken so long.
    fn spend(&mut self, now: Instant, took: Duration) {
        let charge = (took * SHARE).clamp(CHARGE_MIN, CHARGE_MAX);
        self.paid_until = self.paid_until.max(now) + charge;
    }
}

impl Questions {
    pub(super) fn new(now: Instant) -> Questions {
        Questions {
            hearers: None,
            began: now,
            for_listing: Queue::default(),
            listings: Bucket::new(now),
            for_report: Queue::default(),
            reports: Bucket::new(now),
        }
    }

    /// Whether this client waits for an answer.
    pub(super) fn has(&self, id: ClientId) -> bool {
        let hears = self.hearers.as_ref().is_some_and(|hearers| hearers.contains(&id));
        hears || self.for_listing.contains(id) || self.for_report.contains(id)
    }

    /// It is gone.
    pub(super) fn forget(&mut self, id: ClientId) {
        self.for_listing.remove(id);
        self.for_report.remove(id);
        if let Some(hearers) = &mut self.hearers {
            hearers.remove(&id);
        }
    }

    /// When [`Supervisor::answer_questions`] is due, if nothing happens.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let listing = (self.hearers.is_none() && !self.for_listing.is_empty()).then(|| self.listings.due());
        let report = (!self.for_report.is_empty()).then(|| self.reports.due());
        [listing, report].into_iter().flatten().min()
    }
}

impl Supervisor {
    /// Somebody wants to know which sockets there are.
    pub(super) fn ask_for_listing(&mut self, id: ClientId) -> io::Result<()> {
        let Some(client) = self.clients.get(&id) else { return Ok(()) };
        self.questions.for_listing.push(id, &client.peer);
        self.flush_client(id)?;
        self.answer_questions(Instant::now())
    }

    /// Or how the stack is.
    pub(super) fn ask_for_report(&mut self, id: ClientId) -> io::Result<()> {
        let Some(client) = self.clients.get(&id) else { return Ok(()) };
        self.questions.for_report.push(id, &client.peer);
        self.flush_client(id)?;
        self.answer_questions(Instant::now())
    }

    /// Answers those whose time has come.
    pub(super) fn answer_questions(&mut self, now: Instant) -> io::Result<()> {
        if !self.questions.for_report.is_empty() && self.questions.reports.is_due(now) {
            let began = Instant::now();
            let askers = self.questions.for_report.take();
            let mut parts = self.report();
            parts.push(ReportPart::Done(true));
            for part in &parts {
                let packet = serde_json::to_vec(part).map_err(io::Error::from)?;
                for &id in &askers {
                    self.send_to_client(id, packet.clone(), Vec::new())?;
                }
            }
            self.questions.reports.spend(now, began.elapsed());
        }
        let is_free = self.questions.hearers.is_none() && !self.questions.for_listing.is_empty();
        if is_free && self.questions.listings.is_due(now) {
            self.questions.hearers = Some(self.questions.for_listing.take().into_iter().collect());
            self.questions.began = now;
            for index in 0..self.replicas.len() {
                if self.replicas[index].hears() {
                    self.replicas[index].lists = true;
                    self.send_to_replica(index, &Request::ListSockets { token: index as u32 }, Vec::new())?;
                } else {
                    let part = ReportPart::Restarting(self.role(index).to_string());
                    self.tell_hearers(&part)?;
                }
            }
            self.listing_goes_on()?;
        }
        Ok(())
    }

    /// A replica has listed some sockets.
    pub(super) fn pass_rows(&mut self, packet: &[u8]) -> io::Result<()> {
        for id in self.questions.hearers.clone().unwrap_or_default() {
            self.send_to_client(id, packet.to_vec(), Vec::new())?;
        }
        Ok(())
    }

    pub(super) fn tell_hearers(&mut self, part: &ReportPart) -> io::Result<()> {
        self.pass_rows(&serde_json::to_vec(part).map_err(io::Error::from)?)
    }

    /// A replica has listed all, or will not: the listing ends with the last of them.
    pub(super) fn listing_goes_on(&mut self) -> io::Result<()> {
        if self.questions.hearers.is_none() || self.replicas.iter().any(|replica| replica.lists) {
            return Ok(());
        }
        // They may ask again.
        for id in self.questions.hearers.take().unwrap_or_default() {
            self.answer(id, &ReportPart::Done(true))?;
        }
        let now = Instant::now();
        let took = now.saturating_duration_since(self.questions.began);
        self.questions.listings.spend(now, took);
        Ok(())
    }
}

/// An answer is not begun before so many times what the last one took.
const SHARE: u32 = 5;
/// What an answer costs at least, the commands that ask included, and at most.
const CHARGE_MIN: Duration = Duration::from_millis(25);
const CHARGE_MAX: Duration = Duration::from_secs(2);
/// What may have been spent before anybody waits.
const BURST: Duration = Duration::from_millis(200);
/// Processes that are remembered before it is looked whose turn has passed.
const REMEMBERED: usize = 1024;
/// So many share an answer at most, because it is sent to each.
const SHARERS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_all_the_time_gets_a_bounded_part_of_it() {
        let start = Instant::now();
        for (took, most) in [(1, 48), (10, 30), (100, 12), (1000, 10)] {
            let took = Duration::from_millis(took);
            let (mut bucket, mut now, mut answers, mut spent) = (Bucket::new(start), start, 0u32, Duration::ZERO);
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
            assert!(answers >= 1 && (answers < 10 || spent < Duration::from_millis(500)), "{spent:?} of a second");
        }
    }

    fn peer(pid: u32) -> Peer {
        Peer { pid, uid: 7, gid: 7 }
    }

    #[test]
    fn a_process_with_many_connections_that_ask_keeps_nobody_waiting() {
        let mut queue = Queue::default();
        let of_many = |n| ClientId(n);
        (0..3000).for_each(|n| queue.push(of_many(n), &peer(1)));
        assert_eq!(queue.take(), (0..16).map(of_many).collect::<Vec<_>>(), "nobody else is there");
        // Each that comes later is among the next ones, though the many ask again at once.
        for (round, other) in (0..100).zip(5000..) {
            queue.push(of_many(round), &peer(1));
            queue.push(ClientId(other), &peer(2));
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
            queue.push(ClientId(n), &peer(n as u32));
            queue.push(ClientId(n), &peer(n as u32));
            queue.push(ClientId(20_000 + n), &peer(1));
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
        queue.push(ClientId(1), &peer(1));
        assert_eq!(queue.given.len(), 1);
    }

    #[test]
    fn who_asks_now_and_then_does_not_wait() {
        let mut now = Instant::now();
        let mut bucket = Bucket::new(now);
        for _ in 0..100 {
            assert!(bucket.is_due(now));
            bucket.spend(now, Duration::from_millis(10));
            now += Duration::from_millis(51);
        }
    }
}
