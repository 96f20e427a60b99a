//! When is a question of the command line answered? Soon, but those who ask all the time do not get all the time.
//!
//! ```text
//!   `atoll ss`      ask -> waits -> one listing at a time, for all that wait -> rows of the replicas, in slices -> end
//!   `atoll status`  ask -> waits -> one report, for all that wait
//! ```
//! Each answer costs its askers together some time in which the next one is not begun: several times what it took, so that answering takes a
//! bounded part of the time, however many ask. After a while without questions some are answered at once. Who waits for an answer is not read from.

use std::io;
use std::time::{Duration, Instant};

use atoll_ipc::control::Request;
use atoll_supervisor::{ClientId, ReportPart};

use super::server::Server;

/// Questions that wait, and the listing under way. Lost with the supervisor: who asks sees its connection stay silent, and asks again.
#[derive(Debug)]
pub(super) struct Questions {
    /// Who hears the listing under way; `None`: there is none.
    hearers: Option<Vec<ClientId>>,
    began: Instant,
    /// Who hears the next one.
    for_listing: Vec<ClientId>,
    listings: Bucket,
    for_report: Vec<ClientId>,
    reports: Bucket,
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
            for_listing: Vec::new(),
            listings: Bucket::new(now),
            for_report: Vec::new(),
            reports: Bucket::new(now),
        }
    }

    /// Whether this client waits for an answer.
    pub(super) fn has(&self, id: ClientId) -> bool {
        [self.hearers.as_deref().unwrap_or_default(), &self.for_listing, &self.for_report]
            .iter()
            .any(|waiting| waiting.contains(&id))
    }

    /// It is gone.
    pub(super) fn forget(&mut self, id: ClientId) {
        for waiting in [&mut self.for_listing, &mut self.for_report].into_iter().chain(&mut self.hearers) {
            waiting.retain(|waits| *waits != id);
        }
    }

    /// When [`Server::answer_questions`] is due, if nothing happens.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let listing = (self.hearers.is_none() && !self.for_listing.is_empty()).then(|| self.listings.due());
        let report = (!self.for_report.is_empty()).then(|| self.reports.due());
        [listing, report].into_iter().flatten().min()
    }
}

impl Server {
    /// Somebody wants to know which sockets there are.
    pub(super) fn ask_for_listing(&mut self, id: ClientId) -> io::Result<()> {
        self.questions.for_listing.push(id);
        self.flush_client(id)?;
        self.answer_questions(Instant::now())
    }

    /// Or how the stack is.
    pub(super) fn ask_for_report(&mut self, id: ClientId) -> io::Result<()> {
        self.questions.for_report.push(id);
        self.flush_client(id)?;
        self.answer_questions(Instant::now())
    }

    /// Answers those whose time has come.
    pub(super) fn answer_questions(&mut self, now: Instant) -> io::Result<()> {
        if !self.questions.for_report.is_empty() && self.questions.reports.is_due(now) {
            let began = Instant::now();
            let askers: Vec<ClientId> = drain(&mut self.questions.for_report);
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
            self.questions.hearers = Some(drain(&mut self.questions.for_listing));
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

/// Those who share an answer. Others wait for the next one.
fn drain(waiting: &mut Vec<ClientId>) -> Vec<ClientId> {
    waiting.drain(..waiting.len().min(SHARERS_MAX)).collect()
}

/// An answer is not begun before so many times what the last one took.
const SHARE: u32 = 5;
/// What an answer costs at least, the commands that ask included, and at most.
const CHARGE_MIN: Duration = Duration::from_millis(25);
const CHARGE_MAX: Duration = Duration::from_secs(2);
/// What may have been spent before anybody waits.
const BURST: Duration = Duration::from_millis(200);
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
