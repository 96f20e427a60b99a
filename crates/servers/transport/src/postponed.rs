//! Which connections of a predecessor go on later than it could be? Those about which nobody is owed
//! anything, and most are so: an open connection that the last batch had not touched. What is left of it in
//! the ledger is all that there is, and it is there until somebody needs it.
//!
//! ```text
//!   a segment for it, an error about it      \
//!   a command that names its slot             > it goes on at once, before anything is made of that
//!   the stack ends                             all go on at once
//!   none of these                              some of them in each round; who has died meanwhile is cleaned up after when all go on
//! ```
//! So a successor serves when it has looked at all records, and not only when it has made connections of all
//! of them.

use alloc::vec::Vec;

use atoll_base::{Duration, Instant, SlotId};
use hashbrown::HashTable;

use crate::aftermath::Adoption;
use crate::names::{Name, NameHash};

/// The connections that wait, and what has become of all.
#[derive(Debug)]
pub(crate) struct Postponed {
    /// In the order of the ledger.
    all: Vec<Waiting>,
    /// By name: which of `all`.
    by_name: HashTable<u32>,
    /// By place in the ledger: which of `all`, counted from 1.
    by_place: Vec<u32>,
    hash: NameHash,
    /// Those before this one go on already.
    next: usize,
    /// So many still wait.
    left: usize,
    /// When some more go on.
    due: Instant,
    adoption: Adoption,
}

/// A connection that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) name: Name,
    /// Its place in the ledger, and in the table of connections.
    pub(crate) index: u32,
    /// The session, by its place in the table, and the slot that are kept for it.
    pub(crate) session: u32,
    pub(crate) slot: SlotId,
    is_waiting: bool,
}

impl Postponed {
    /// Room for so many.
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

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.left
    }

    /// Their names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Name> {
        self.all.iter().filter(|waiting| waiting.is_waiting).map(|waiting| &waiting.name)
    }

    /// Whether the place is kept for one that waits.
    pub(crate) fn has_place(&self, index: u32) -> bool {
        self.at_place(index).is_some()
    }

    /// Places that are kept end before this one.
    pub(crate) fn places_end(&self) -> u32 {
        // Cannot truncate: places are 32 bits.
        self.by_place.len() as u32
    }

    /// Which of them has this name. `hashed`: its hash.
    pub(crate) fn find(&self, name: &Name, hashed: u64) -> Option<usize> {
        let is_it = |at: &u32| self.all.get(*at as usize).is_some_and(|waiting| waiting.name == *name);
        self.by_name.find(hashed, is_it).map(|at| *at as usize).filter(|at| self.is_waiting(*at))
    }

    /// Which of them this place is kept for.
    pub(crate) fn at_place(&self, index: u32) -> Option<usize> {
        let at = (*self.by_place.get(index as usize)?).checked_sub(1)? as usize;
        self.is_waiting(at).then_some(at)
    }

    fn is_waiting(&self, at: usize) -> bool {
        self.all.get(at).is_some_and(|waiting| waiting.is_waiting)
    }

    /// One more waits. `hashed`: its name; `index`: its place; `session`, `slot`: where its slot is.
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
        self.by_name.insert_unique(hashed, at, |at| all.get(*at as usize).map_or(0, |waiting| hash.of(&waiting.name)));
        self.all.push(waiting);
        self.left += 1;
    }

    /// One of them goes on. `None`: it does already.
    pub(crate) fn take(&mut self, at: usize) -> Option<Waiting> {
        let waiting = self.all.get_mut(at).filter(|waiting| waiting.is_waiting)?;
        waiting.is_waiting = false;
        self.left -= 1;
        Some(*waiting)
    }

    /// Those among `count` of them from `first` on that there are, whether they wait or not.
    pub(crate) fn range(&self, first: usize, count: usize) -> core::ops::Range<usize> {
        first..first.saturating_add(count).min(self.all.len())
    }

    /// One of them, to prefetch its slot.
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

    /// Returns what has become of all so far.
    pub(crate) const fn adoption(&self) -> Adoption {
        self.adoption
    }

    /// This has become of all so far.
    pub(crate) const fn set_adoption(&mut self, adoption: Adoption) {
        self.adoption = adoption;
    }
}
