//! Which connections of a predecessor go on later than it could be? Those about which nobody is owed anything, and most are so: an open connection that the
//! last batch had not touched. What is left of it in the ledger is all that there is, and it is there until somebody needs it.
//!
//! ```text
//!   a segment for it, an error about it      \
//!   a command that names its slot             > it goes on at once, before anything is made of that
//!   the stack ends                             all go on at once
//!   none of these                              some of them in each round; who has died meanwhile is cleaned up after when all go on
//! ```
//! So a successor serves when it has looked at all records, and not only when it has made connections of all of them.

use alloc::vec::Vec;

use atoll_base::{FourTuple, Instant, SessionId, SlotId};
use atoll_ipc::ledger::Work;
use atoll_ipc::slot::Slot;
use atoll_ipc::{Command, Memory};
use hashbrown::HashTable;

use crate::adopt::{Adopted, Adoption, Loss};
use crate::flows::{Name, NameHash};
use crate::session::Occupant;
use crate::transport::Transport;

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
    pub(crate) adoption: Adoption,
}

#[derive(Debug)]
struct Waiting {
    name: Name,
    /// Its place in the ledger, and in the table of connections.
    index: u32,
    /// The session, by its place in the table, and the slot that are kept for it.
    session: u32,
    slot: SlotId,
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

    fn find(&self, name: &Name, hashed: u64) -> Option<usize> {
        let is_it = |at: &u32| self.all.get(*at as usize).is_some_and(|waiting| waiting.name == *name);
        self.by_name.find(hashed, is_it).map(|at| *at as usize).filter(|at| self.is_waiting(*at))
    }

    fn at_place(&self, index: u32) -> Option<usize> {
        let at = (*self.by_place.get(index as usize)?).checked_sub(1)? as usize;
        self.is_waiting(at).then_some(at)
    }

    fn is_waiting(&self, at: usize) -> bool {
        self.all.get(at).is_some_and(|waiting| waiting.is_waiting)
    }

    /// `hashed`: its name.
    fn push(&mut self, hashed: u64, waiting: Waiting) {
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

    /// One of them goes on.
    fn take(&mut self, at: usize) -> Option<(u32, u32, SlotId)> {
        let waiting = self.all.get_mut(at).filter(|waiting| waiting.is_waiting)?;
        waiting.is_waiting = false;
        self.left -= 1;
        Some((waiting.index, waiting.session, waiting.slot))
    }
}

impl<M: Memory> Transport<M> {
    /// Keeps place, slot and name for a connection, which goes on later. `false`: it cannot wait, because something of that is another's.
    pub(crate) fn postpone(
        &mut self,
        index: u32,
        tuple: &FourTuple,
        (id, slot, generation): (SessionId, SlotId, u32),
    ) -> bool {
        let name = self.name(tuple);
        let (Some(&session), Some(postponed)) = (self.session_index.get(&id), &mut self.postponed) else {
            return false;
        };
        let hashed = postponed.hash.of(&name);
        if postponed.find(&name, hashed).is_some() || self.flows.find_hashed(&self.entries, &name, hashed).is_some() {
            return false;
        }
        let (occupant, session_of) = (Occupant::Connection(index), self.sessions.get_mut(session as usize));
        let is_kept = session_of.and_then(Option::as_mut).is_some_and(|it| it.occupy_again(slot, generation, occupant));
        if is_kept {
            postponed.push(hashed, Waiting { name, index, session, slot, is_waiting: true });
        }
        is_kept
    }

    /// How many connections there are, with those that do not go on yet.
    pub(crate) fn connections(&self) -> usize {
        self.entries.len() + self.postponed.as_ref().map_or(0, |postponed| postponed.len())
    }

    /// Whether connections of a predecessor do not go on yet. They do soon, if the owner goes on with its rounds.
    #[inline]
    pub fn is_adopting(&self) -> bool {
        self.postponed.is_some() || !self.lost_slots.is_empty()
    }

    /// When some more of them are to go on.
    pub(crate) fn adopts_at(&self) -> Option<Instant> {
        let looks_at = (!self.lost_slots.is_empty()).then_some(Instant::ZERO);
        self.postponed.as_ref().map(|postponed| postponed.due).into_iter().chain(looks_at).min()
    }

    /// What became of the connections of a predecessor, once none waits any more: once, after every [`Transport::adopt`].
    pub fn take_adoption(&mut self) -> Option<Adoption> {
        self.adoption.take()
    }

    /// Whether the name is one of theirs.
    pub(crate) fn is_postponed(&self, tuple: &FourTuple) -> bool {
        self.postponed.as_ref().is_some_and(|postponed| {
            let name = self.locals.find(tuple);
            name.is_some_and(|name| postponed.find(&name, postponed.hash.of(&name)).is_some())
        })
    }

    /// Something is there for the connection of this name.
    #[inline]
    pub(crate) fn adopt_named(&mut self, now: Instant, tuple: &FourTuple) {
        if self.postponed.is_some()
            && let Some(name) = self.locals.find(tuple)
            && let Some(at) =
                self.postponed.as_ref().and_then(|postponed| postponed.find(&name, postponed.hash.of(&name)))
        {
            self.adopt_waiting(now, at, 1);
        }
    }

    /// Something is there for whoever occupies the slot.
    fn adopt_at(&mut self, now: Instant, session: u32, slot: SlotId, generation: u32) {
        if self.postponed.is_some()
            && let Occupant::Connection(index) = self.occupant(session, slot, generation)
            && let Some(at) = self.postponed.as_ref().and_then(|postponed| postponed.at_place(index))
        {
            self.adopt_waiting(now, at, 1);
        }
    }

    /// What a command is about goes on before it is carried out.
    pub(crate) fn adopt_for(&mut self, now: Instant, session: u32, command: &Command) {
        match *command {
            Command::Kick { slot, generation }
            | Command::Claim { slot, generation }
            | Command::Close { slot, generation, .. }
            | Command::SetOption { slot, generation, .. }
            | Command::Info { slot, generation, .. } => self.adopt_at(now, session, slot, generation),
            _ => {}
        }
    }

    /// There is time for some of them.
    pub(crate) fn adopt_some(&mut self, now: Instant) {
        let Some(postponed) = self.postponed.as_mut().filter(|postponed| postponed.due <= now) else { return };
        let (first, count) = (postponed.next, self.config.adopt_batch.max(1));
        postponed.next = first.saturating_add(count);
        postponed.due = now + self.config.adopt_every;
        self.adopt_waiting(now, first, count);
    }

    /// All of them are needed.
    pub fn adopt_rest(&mut self, now: Instant) {
        if self.postponed.is_some() {
            self.adopt_waiting(now, 0, usize::MAX);
        }
    }

    /// Those among `count` of them, from `first` on, that still wait go on.
    fn adopt_waiting(&mut self, now: Instant, first: usize, count: usize) {
        let Some(mut records) = self.records.take() else { return };
        let Some(mut postponed) = self.postponed.take() else {
            self.records = Some(records);
            return;
        };
        let mut adopted = Adopted::default();
        let before = records.ledger.work();
        let end = first.saturating_add(count).min(postponed.all.len());
        for at in first..end {
            if let Some(ahead) = postponed.all.get(at + AHEAD).filter(|_| at + AHEAD < end) {
                self.session(ahead.session)
                    .and_then(|session| session.slot(ahead.slot))
                    .iter()
                    .for_each(Slot::prefetch);
            }
            let Some((index, session, slot)) = postponed.take(at) else { continue };
            // Who dies of it is not to die of it for ever.
            records.ledger.mark(Work::Adoption(index));
            if let Some(session) = self.session_mut(session) {
                session.leave(slot);
            }
            let result = match records.ledger.connection_again(index) {
                Some(record) => self.adopt_record(now, &mut records, index, &record, None, &mut adopted),
                None => Err(Loss::Unreadable),
            };
            if let Err(why) = result {
                if let Some(waiting) = postponed.all.get(at) {
                    self.searches.give_back(&waiting.name);
                }
                postponed.adoption.kept -= 1;
                postponed.adoption.lose(why);
            }
            if self.entries.get(index).is_none() {
                self.entries.free(index);
            }
            if let Some(session) = self.session_mut(session) {
                session.settle(slot);
            }
        }
        let concerned = adopted.note(&mut records);
        self.records = Some(records);
        let adoption = postponed.adoption;
        self.postponed = (postponed.left > 0).then_some(postponed);
        self.tell_adoption(adoption);
        self.go_on(now, concerned);
        // What needed them goes on.
        self.mark(before);
    }
}

/// So many connections before it is needed, memory of one is asked for.
const AHEAD: usize = 8;
