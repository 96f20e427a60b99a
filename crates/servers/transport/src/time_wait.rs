//! Compact records of connections that were closed a short while ago. Their number is bounded; the oldest
//! goes first.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use atoll_base::{Duration, FourTuple, Instant, SeqNum};
use atoll_ipc::ledger::TimeWaitRecord;
use atoll_tcp::{TimeWait, TimeWaitAnswer, TimeWaitFacts};
use atoll_wire::tcp::Segment;
use foldhash::quality::FixedState;
use hashbrown::HashMap;

use crate::names::Name;

/// The records in TIME-WAIT. They survive a crash: see [`crate::durability::Durability::put_time_wait`].
#[derive(Debug)]
pub(crate) struct TimeWaits {
    records: HashMap<Name, Record, FixedState>,
    /// The names in order of entry, which nearly is the order of deadlines: a record whose deadline has moved
    /// is queued again when it comes up.
    queue: VecDeque<(Instant, Name)>,
    max: usize,
    /// The number of records given up early.
    dropped: u64,
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

    /// Returns how many records were given up early.
    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Adds a record. `gone` is called for each record that is given up for it.
    pub(crate) fn insert(
        &mut self,
        now: Instant,
        name: Name,
        time_wait: TimeWait,
        mut gone: impl FnMut(&Name),
    ) {
        // The queue also holds records that were reused or deleted since.
        while self.records.len() >= self.max || self.queue.len() >= 2 * self.max {
            let Some((due, oldest)) = self.queue.pop_front() else { return };
            if self.records.get(&oldest).is_some_and(|record| record.time_wait.deadline() <= due) {
                self.records.remove(&oldest);
                gone(&oldest);
                self.dropped += 1;
            }
        }
        self.queue.push_back((time_wait.deadline(), name));
        self.records.insert(name, Record { since: now, time_wait });
    }

    /// Returns whether there is a record of this name.
    pub(crate) fn has(&self, name: &Name) -> bool {
        self.records.contains_key(name)
    }

    /// Removes a record, because another connection has the name.
    pub(crate) fn forget(&mut self, name: &Name) {
        self.records.remove(name);
    }

    /// Makes room for `count` more records.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.records.reserve(count.min(self.max));
        self.queue.reserve(count.min(self.max));
    }

    /// Returns the record's answer; `None` if there is no record. A deleted record is gone afterwards; one
    /// that may be reused waits for the connection that takes its place.
    pub(crate) fn handle_segment(
        &mut self,
        now: Instant,
        name: &Name,
        segment: &Segment,
    ) -> Option<TimeWaitAnswer> {
        let answer = self.records.get_mut(name)?.time_wait.handle_segment(now, segment);
        if answer == TimeWaitAnswer::Delete {
            self.records.remove(name);
        }
        Some(answer)
    }

    /// Returns when a connection may be opened under this name; `None` if there is no record. The record has
    /// to be `min_age` old, and must not be confused with its successor; otherwise the name is free when the
    /// record is gone ([`Instant::FAR_FUTURE`]).
    pub(crate) fn reusable_at(&self, name: &Name, min_age: Duration) -> Option<Instant> {
        let record = self.records.get(name)?;
        Some(if record.time_wait.reusable().is_some() { record.since + min_age } else { Instant::FAR_FUTURE })
    }

    /// Returns the names from this place on, in order of entry, and whether there are records of them. A name
    /// that was used again is queued twice.
    pub(crate) fn queued_from(&self, at: usize) -> impl Iterator<Item = (&Name, bool)> {
        self.queue.range(at.min(self.queue.len())..).map(|(_, name)| (name, self.records.contains_key(name)))
    }

    /// Returns the names in order of entry, with some whose records are gone already.
    pub(crate) fn queued(&self) -> impl Iterator<Item = &Name> {
        self.queue.iter().map(|(_, name)| name)
    }

    /// Removes a record whose name a connection takes. Returns the last sequence number of the old
    /// connection.
    pub(crate) fn replace(&mut self, name: &Name) -> Option<SeqNum> {
        self.records.remove(name)?.time_wait.reusable()
    }

    /// Removes the records whose time is over. `gone` is called for each.
    pub(crate) fn expire(&mut self, now: Instant, mut gone: impl FnMut(&Name)) {
        while let Some(&(due, name)) = self.queue.front() {
            if due > now {
                break;
            }
            self.queue.pop_front();
            // The queue may name a record that is gone, or a younger one of the same tuple: that one is
            // queued itself.
            match self.records.get(&name).map(|record| record.time_wait.deadline()) {
                Some(deadline) if deadline > now && deadline != due => self.queue.push_back((deadline, name)),
                Some(_) => {
                    self.records.remove(&name);
                    gone(&name);
                }
                None => {}
            }
        }
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.queue.front().map(|(due, _)| *due)
    }
}

/// Restores the records of a predecessor that are not over. `found` has the youngest first; the result has
/// the oldest first.
pub(crate) fn resume(
    now: Instant,
    found: impl Iterator<Item = TimeWaitRecord>,
) -> Vec<(FourTuple, TimeWait)> {
    let resume = |found: TimeWaitRecord| Some((found.tuple, TimeWait::resume(now, &facts(now, &found)?)?));
    let mut living: Vec<_> = found.map_while(resume).collect();
    living.reverse();
    living
}

/// Returns the record of a connection for the ledger.
pub(crate) fn record(tuple: FourTuple, facts: &TimeWaitFacts) -> TimeWaitRecord {
    let window = u32::from(facts.window);
    let is_enough = |shift: &u8| window << shift >= facts.rcv_window;
    TimeWaitRecord {
        tuple,
        deadline_ms: facts.deadline.as_millis() as u32,
        snd_nxt: facts.snd_nxt.0,
        rcv_nxt: facts.rcv_nxt.0,
        window: facts.window,
        window_shift: (0..SHIFT_MAX).find(is_enough).unwrap_or(SHIFT_MAX),
        timestamps: facts.timestamps,
    }
}

/// Returns the facts of a record; `None` if its time is over.
fn facts(now: Instant, record: &TimeWaitRecord) -> Option<TimeWaitFacts> {
    let left = i64::from(record.deadline_ms.wrapping_sub(now.as_millis() as u32) as i32);
    Some(TimeWaitFacts {
        deadline: now + Duration::from_millis(u64::try_from(left).ok()?),
        snd_nxt: SeqNum(record.snd_nxt),
        rcv_nxt: SeqNum(record.rcv_nxt),
        rcv_window: u32::from(record.window) << record.window_shift,
        window: record.window,
        timestamps: record.timestamps,
    })
}

/// The largest shift of RFC 7323 §2.3, and one more for what is lost by rounding.
const SHIFT_MAX: u8 = 15;
