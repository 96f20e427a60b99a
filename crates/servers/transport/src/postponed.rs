//! The connections of a predecessor that are continued later. They are open connections that the last batch
//! had not touched, so that none of their ends waits for anything; most are such. Their whole state is in the
//! ledger, and stays there until it is needed.
//!
//! ```text
//!   a segment for it, an error about it   \
//!   a command that names its slot          > it is continued at once, before anything else is done
//!   the stack ends                           all are continued at once
//!   none of these                            some are continued in each round; the clean-up after
//!                                            processes that have ended meanwhile waits for all
//! ```
//! So a successor serves when it has read all records, before it has made connections of all of them.

use alloc::vec::Vec;

use atoll_base::{Duration, Instant, SlotId};
use hashbrown::HashTable;

use crate::aftermath::Adoption;
use crate::names::{Name, NameHash};

/// The connections that wait, and what has become of all.
#[derive(Debug)]
pub(crate) struct Postponed {
    /// The connections, in the order of the ledger.
    all: Vec<Waiting>,
    /// The indices in `all`, by name.
    by_name: HashTable<u32>,
    /// The indices in `all`, counted from 1, by place in the ledger.
    by_place: Vec<u32>,
    hash: NameHash,
    /// The connections before this one were taken up already.
    next: usize,
    /// The number of connections that still wait.
    left: usize,
    /// When the next batch is continued.
    due: Instant,
    adoption: Adoption,
}

/// A connection that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) name: Name,
    /// The connection's place in the ledger, and in the table of connections.
    pub(crate) index: u32,
    /// The session, by its place in the table, and the slot that are kept for it.
    pub(crate) session: u32,
    pub(crate) slot: SlotId,
    is_waiting: bool,
}

impl Postponed {
    /// Creates an empty table with room for `count` connections.
    pub(crate) fn new(count: usize, hash: NameHash, now: Instant) -> Postponed {
        Postponed {
            all: Vec::with_capacity(count),
            by_name: HashTable::with_capacity(count),
            by_place: Vec::new(),
            hash,
            next: 0,
            left: 0,
            due: now,
            adoption: Adoption::default(),
        }
    }

    /// Returns how many connections wait.
    pub(crate) fn len(&self) -> usize {
        self.left
    }

    /// Returns the names of the connections that wait.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Name> {
        self.all.iter().filter(|waiting| waiting.is_waiting).map(|waiting| &waiting.name)
    }

    /// Returns whether the place is kept for a connection that waits.
    pub(crate) fn has_place(&self, index: u32) -> bool {
        self.at_place(index).is_some()
    }

    /// Returns the end of the range of places that are kept.
    pub(crate) fn places_end(&self) -> u32 {
        // Cannot truncate: places are 32 bits.
        self.by_place.len() as u32
    }

    /// Returns the index of the waiting connection of this name, whose hash is `hashed`.
    pub(crate) fn find(&self, name: &Name, hashed: u64) -> Option<usize> {
        let is_it = |at: &u32| self.all.get(*at as usize).is_some_and(|waiting| waiting.name == *name);
        self.by_name.find(hashed, is_it).map(|at| *at as usize).filter(|at| self.is_waiting(*at))
    }

    /// Returns the index of the waiting connection for which this place is kept.
    pub(crate) fn at_place(&self, index: u32) -> Option<usize> {
        let at = (*self.by_place.get(index as usize)?).checked_sub(1)? as usize;
        self.is_waiting(at).then_some(at)
    }

    fn is_waiting(&self, at: usize) -> bool {
        self.all.get(at).is_some_and(|waiting| waiting.is_waiting)
    }

    /// Adds a connection: the hash of its name, its name, its place `index`, and the session and slot that it
    /// has.
    pub(crate) fn push(&mut self, hashed: u64, name: Name, index: u32, (session, slot): (u32, SlotId)) {
        let waiting = Waiting { name, index, session, slot, is_waiting: true };
        // Cannot truncate: there are no more than places.
        let at = self.all.len() as u32;
        let place = waiting.index as usize;
        if place >= self.by_place.len() {
            self.by_place.resize(place + 1, 0);
        }
        self.by_place[place] = at + 1;
        let (all, hash) = (&self.all, &self.hash);
        self.by_name.insert_unique(hashed, at, |at| {
            all.get(*at as usize).map_or(0, |waiting| hash.of(&waiting.name))
        });
        self.all.push(waiting);
        self.left += 1;
    }

    /// Takes a connection to continue it. Returns `None` if it does not wait any more.
    pub(crate) fn take(&mut self, at: usize) -> Option<Waiting> {
        let waiting = self.all.get_mut(at).filter(|waiting| waiting.is_waiting)?;
        waiting.is_waiting = false;
        self.left -= 1;
        Some(*waiting)
    }

    /// Returns the indices of up to `count` connections from `first` on, whether they wait or not.
    pub(crate) fn range(&self, first: usize, count: usize) -> core::ops::Range<usize> {
        first..first.saturating_add(count).min(self.all.len())
    }

    /// Returns a connection, to prefetch its slot.
    pub(crate) fn get(&self, at: usize) -> Option<&Waiting> {
        self.all.get(at)
    }

    /// Returns the first of the next batch, if it is due; the one after it is due `every` later.
    pub(crate) fn begin_batch(&mut self, now: Instant, count: usize, every: Duration) -> Option<usize> {
        if self.due > now {
            return None;
        }
        self.due = now + every;
        let first = self.next;
        self.next = first.saturating_add(count);
        Some(first)
    }

    /// Returns when the next batch is due.
    pub(crate) const fn due(&self) -> Instant {
        self.due
    }

    /// Returns what has become of all connections so far.
    pub(crate) const fn adoption(&self) -> Adoption {
        self.adoption
    }

    /// Sets what has become of all connections so far.
    pub(crate) const fn set_adoption(&mut self, adoption: Adoption) {
        self.adoption = adoption;
    }
}
