//! Which connections were closed a short while ago? Compact records, bounded in number, oldest first out.

use alloc::collections::VecDeque;

use atoll_base::{Duration, Instant, SeqNum};
use atoll_tcp::{TimeWait, TimeWaitAnswer};
use atoll_wire::tcp::Segment;
use foldhash::quality::FixedState;
use hashbrown::HashMap;

use crate::flows::Name;

/// Lost in a crash, which costs no data (RFC 9293 §3.6.1 only protects later connections from late segments).
#[derive(Debug)]
pub(crate) struct TimeWaits {
    records: HashMap<Name, Record, FixedState>,
    /// In order of entry, which nearly is the order of deadlines: one whose deadline has moved is queued again when it comes up.
    queue: VecDeque<(Instant, Name)>,
    max: usize,
    /// Records given up early.
    pub(crate) dropped: u64,
}

#[derive(Debug)]
struct Record {
    since: Instant,
    time_wait: TimeWait,
}

impl TimeWaits {
    pub(crate) fn new(max: usize, seed: u64) -> TimeWaits {
        TimeWaits {
            records: HashMap::with_hasher(FixedState::with_seed(seed)),
            queue: VecDeque::new(),
            max,
            dropped: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn insert(&mut self, now: Instant, name: Name, time_wait: TimeWait) {
        // The queue also holds records that were reused or deleted since.
        while self.records.len() >= self.max || self.queue.len() >= 2 * self.max {
            let Some((due, oldest)) = self.queue.pop_front() else { return };
            if self.records.get(&oldest).is_some_and(|record| record.time_wait.deadline() <= due) {
                self.records.remove(&oldest);
                self.dropped += 1;
            }
        }
        self.queue.push_back((time_wait.deadline(), name));
        self.records.insert(name, Record { since: now, time_wait });
    }

    /// The record's answer; `None` if there is no record. A deleted record is gone afterwards; one that may be reused waits for who takes its
    /// place.
    pub(crate) fn handle_segment(&mut self, now: Instant, name: &Name, segment: &Segment) -> Option<TimeWaitAnswer> {
        let answer = self.records.get_mut(name)?.time_wait.handle_segment(now, segment);
        if answer == TimeWaitAnswer::Delete {
            self.records.remove(name);
        }
        Some(answer)
    }

    /// Whether a connection may be opened under this name: there is no record, or one that is `min_age` old and whose successor cannot
    /// be confused with it. `None`: it may not; the bool: there is a record.
    pub(crate) fn may_open(&self, now: Instant, name: &Name, min_age: Duration) -> Option<bool> {
        let Some(record) = self.records.get(name) else { return Some(false) };
        (now.since(record.since) >= min_age && record.time_wait.reusable().is_some()).then_some(true)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &Name> {
        self.queue.iter().map(|(_, name)| name).filter(|name| self.records.contains_key(*name))
    }

    /// As [`TimeWaits::names`], with some that are gone already.
    pub(crate) fn queued(&self) -> impl Iterator<Item = &Name> {
        self.queue.iter().map(|(_, name)| name)
    }

    /// A connection takes the name. Returns the last sequence number of the one before.
    pub(crate) fn replace(&mut self, name: &Name) -> Option<SeqNum> {
        self.records.remove(name)?.time_wait.reusable()
    }

    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some(&(due, name)) = self.queue.front() {
            if due > now {
                break;
            }
            self.queue.pop_front();
            // The queue may name a record that is gone, or a younger one of the same tuple: that one is queued itself.
            match self.records.get(&name).map(|record| record.time_wait.deadline()) {
                Some(deadline) if deadline > now && deadline != due => self.queue.push_back((deadline, name)),
                Some(_) => {
                    self.records.remove(&name);
                }
                None => {}
            }
        }
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.queue.front().map(|(due, _)| *due)
    }
}
