//! The connections of this replica: their table, the ways to find one, their timers, and the list of those
//! that the next flush is about.
//!
//! ```text
//!   entries      all connections, by index
//!   flows        those that segments are for, by name; a connection that has ended keeps its entry until its
//!                application closes it
//!   time_waits   names of connections that were closed a short while ago
//!   postponed    names and places of connections of a predecessor that are not continued yet
//!   searches     ports that may be free, by destination: every name that is given up is given back to them
//!   timers       one for each connection that waits for something
//!   dirty        connections where something has happened since the last flush; each is in it once, and is
//!                marked so
//! ```

use alloc::boxed::Box;
use alloc::vec::Vec;

use atoll_base::{Addr, Duration, Endpoint, FourTuple, Instant, Rng, SeqNum, Slab, TimerId};
use atoll_tcp::{TimeWait, TimeWaitAnswer};
use atoll_wire::tcp::Segment;

use crate::entry::{Entry, Flags, Stage};
use crate::flows::Flows;
use crate::names::{Locals, Name};
use crate::ports::{Found, NoPort, Searches};
use crate::postponed::Postponed;
use crate::time_wait::TimeWaits;
use crate::timers::Timers;

mod kick;
mod text;

/// The connections of a replica. They are lost in a crash, and made again from the ledger.
#[derive(Debug)]
pub(crate) struct Connections {
    entries: Slab<Entry>,
    flows: Flows,
    locals: Locals,
    time_waits: TimeWaits,
    postponed: Option<Box<Postponed>>,
    searches: Searches,
    timers: Timers,
    dirty: Vec<u32>,
    /// The number of connections that their application has closed and that are not over.
    orphans: usize,
}

/// The inputs, besides the connections, for choosing the port of a new connection.
pub(crate) struct PortChoice<'a, F: Fn(&FourTuple) -> bool> {
    /// The first and the last port that may be chosen.
    pub(crate) range: (u16, u16),
    pub(crate) rng: &'a mut Rng,
    /// Whether packets to the tuple reach this replica.
    pub(crate) is_ours: F,
    /// A counter of the ports that were examined.
    pub(crate) looks: &'a mut u32,
}

/// The time after which a port in TIME-WAIT is taken again if few others are free: timestamps distinguish the
/// connections (RFC 6191; Linux's `tcp_tw_reuse`).
const REUSE_AFTER: Duration = Duration::from_secs(1);

impl Connections {
    /// Creates an empty table for at most `time_waits_max` records of TIME-WAIT. `seeds` gives the hash seeds
    /// of the tables.
    pub(crate) fn new(time_waits_max: usize, seeds: &mut Rng, now: Instant) -> Connections {
        Connections {
            entries: Slab::new(),
            flows: Flows::new(seeds.next_u64()),
            locals: Locals::default(),
            time_waits: TimeWaits::new(time_waits_max, seeds.next_u64()),
            postponed: None,
            searches: Searches::default(),
            timers: Timers::new(now),
            dirty: Vec::new(),
            orphans: 0,
        }
    }

    // ---- entries ----

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Entry> {
        self.entries.get(index)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Entry> {
        self.entries.get_mut(index)
    }

    /// Returns the connection, and what its name refers to.
    #[inline]
    pub(crate) fn get_mut_with_locals(&mut self, index: u32) -> Option<(&mut Entry, &Locals)> {
        Some((self.entries.get_mut(index)?, &self.locals))
    }

    /// Returns every continued connection, in order of index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Entry)> {
        self.entries.iter()
    }

    /// Returns every continued connection from this index on.
    pub(crate) fn iter_from(&self, index: u32) -> impl Iterator<Item = (u32, &Entry)> {
        self.entries.iter_from(index)
    }

    /// Returns the number of continued connections.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of all connections, including those that are not continued yet.
    pub(crate) fn count(&self) -> usize {
        self.entries.len() + self.postponed.as_ref().map_or(0, |postponed| postponed.len())
    }

    /// Adds a connection that segments do not find yet: see [`Connections::enroll`].
    pub(crate) fn insert(&mut self, entry: Entry) -> u32 {
        self.entries.insert(entry)
    }

    /// Takes back a connection that was not enrolled.
    pub(crate) fn withdraw(&mut self, index: u32) {
        self.entries.remove(index);
    }

    /// Enrolls a connection, so that segments find it. No other connection may have its name.
    pub(crate) fn enroll(&mut self, index: u32) {
        self.flows.insert(&self.entries, index);
    }

    /// Makes room for `more` names.
    pub(crate) fn reserve(&mut self, more: usize) {
        self.flows.reserve(&self.entries, more);
    }

    /// Puts a continued connection at the place that it had. It is not enrolled yet.
    pub(crate) fn put(&mut self, index: u32, entry: Entry) {
        self.orphans += usize::from(entry.stage == Stage::Closing);
        self.entries.put(index, entry);
    }

    /// Frees the place that was kept for a connection which is not continued.
    pub(crate) fn free_if_vacant(&mut self, index: u32) {
        if self.entries.get(index).is_none() {
            self.entries.free(index);
        }
    }

    /// Takes a connection out of the flow table and stops its timer. Its entry stays.
    pub(crate) fn leave_flows(&mut self, index: u32) {
        let Some(entry) = self.entries.get_mut(index) else { return };
        entry.armed = Instant::FAR_FUTURE;
        self.flows.remove(&entry.name, index);
        self.searches.give_back(&entry.name);
        self.timers.cancel(TimerId(index));
    }

    /// Removes a connection. Its slot must have been given back.
    pub(crate) fn remove(&mut self, index: u32) -> Option<Entry> {
        let entry = self.entries.remove(index)?;
        debug_assert!(entry.place.is_none(), "the slot was given back");
        self.orphans -= usize::from(entry.stage == Stage::Closing);
        self.flows.remove(&entry.name, index);
        self.searches.give_back(&entry.name);
        self.timers.cancel(TimerId(index));
        Some(entry)
    }

    /// Notes that the connection belongs to no application any more.
    pub(crate) fn orphan(&mut self, index: u32) {
        if let Some(entry) = self.entries.get_mut(index) {
            self.orphans += usize::from(entry.stage != Stage::Closing);
            entry.stage = Stage::Closing;
            entry.deadline = Instant::FAR_FUTURE;
        }
    }

    /// Returns the number of connections that their applications have closed and that are not over.
    pub(crate) const fn orphans(&self) -> usize {
        self.orphans
    }

    // ---- the next flush ----

    /// Puts the connection on the list for the next flush.
    #[inline]
    pub(crate) fn touch(&mut self, index: u32) {
        if let Some(entry) = self.entries.get_mut(index)
            && !entry.flags.intersects(Flags::DIRTY)
        {
            entry.flags.insert(Flags::DIRTY);
            self.dirty.push(index);
        }
    }

    /// Continues a connection in this flush that was put off. Another one may have its place by now.
    pub(crate) fn take_up(&mut self, index: u32) {
        if self.entries.get_mut(index).is_some_and(|entry| entry.flags.take(Flags::LATER)) {
            self.touch(index);
        }
    }

    /// Returns whether the next flush is about any connection.
    pub(crate) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Takes the list of the connections that this flush is about. The caller gives it back by
    /// [`Connections::put_back_dirty`] when it is empty.
    #[inline]
    pub(crate) fn take_dirty(&mut self) -> Vec<u32> {
        core::mem::take(&mut self.dirty)
    }

    /// Keeps what became dirty meanwhile (a link is full) for the next flush. `list` is kept for its memory.
    #[inline]
    pub(crate) fn put_back_dirty(&mut self, mut list: Vec<u32>) {
        list.append(&mut self.dirty);
        self.dirty = list;
    }

    // ---- names ----

    /// Returns the connection of a tuple.
    #[inline]
    pub(crate) fn find(&self, tuple: &FourTuple) -> Option<u32> {
        self.flows.find(&self.entries, &self.locals.find(tuple)?)
    }

    /// Returns the connection of a name.
    pub(crate) fn find_name(&self, name: &Name) -> Option<u32> {
        self.flows.find(&self.entries, name)
    }

    /// Returns the tuple of a name.
    #[inline]
    pub(crate) fn tuple(&self, name: &Name) -> FourTuple {
        self.locals.tuple(name)
    }

    /// Returns the short form of a tuple, for a new connection.
    pub(crate) fn name(&mut self, tuple: &FourTuple) -> Name {
        if let Some(name) = self.locals.find(tuple) {
            return name;
        }
        if self.locals.has_many() {
            let entries = self.entries.iter().map(|(_, entry)| &entry.name);
            let postponed = self.postponed.iter().flat_map(|postponed| postponed.names());
            self.locals.retain(entries.chain(postponed).chain(self.time_waits.queued()));
            // Their names may now belong to others.
            self.searches.forget_all();
        }
        self.locals.add(tuple.local.addr);
        self.locals.find(tuple).expect("the own address was just added")
    }

    // ---- TIME-WAIT ----

    /// Adds a record of TIME-WAIT for a connection of this name.
    pub(crate) fn enter_time_wait(&mut self, now: Instant, name: Name, time_wait: TimeWait) {
        self.time_waits.insert(now, name, time_wait, |name| self.searches.give_back(name));
    }

    /// Continues the records of TIME-WAIT of a predecessor, which come oldest first.
    pub(crate) fn resume_time_waits(&mut self, now: Instant, found: Vec<(FourTuple, TimeWait)>) {
        self.time_waits.reserve(found.len());
        for (tuple, time_wait) in found {
            let name = self.name(&tuple);
            self.time_waits.insert(now, name, time_wait, |_| {});
        }
    }

    /// Removes the record of TIME-WAIT of a name that another connection has now.
    pub(crate) fn forget_time_wait(&mut self, name: &Name) {
        self.time_waits.forget(name);
    }

    /// Replaces a record of TIME-WAIT by a connection. Returns the last sequence number of the old one.
    pub(crate) fn replace_time_wait(&mut self, tuple: &FourTuple) -> Option<SeqNum> {
        let name = self.locals.find(tuple)?;
        self.time_waits.replace(&name)
    }

    /// Returns the answer of a record of TIME-WAIT; `None` if there is no record.
    pub(crate) fn answer_of_time_wait(
        &mut self,
        now: Instant,
        tuple: &FourTuple,
        segment: &Segment,
    ) -> Option<TimeWaitAnswer> {
        let name = self.locals.find(tuple)?;
        let answer = self.time_waits.handle_segment(now, &name, segment);
        if let Some(TimeWaitAnswer::Delete) = &answer {
            self.searches.give_back(&name);
        }
        answer
    }

    /// Removes the records of TIME-WAIT whose time is over.
    pub(crate) fn expire_time_waits(&mut self, now: Instant) {
        self.time_waits.expire(now, |name| self.searches.give_back(name));
    }

    /// Returns the records of TIME-WAIT.
    pub(crate) const fn time_waits(&self) -> &TimeWaits {
        &self.time_waits
    }

    // ---- ports ----

    /// Chooses a port for a connection from `local` to `remote`.
    pub(crate) fn choose_port<F: Fn(&FourTuple) -> bool>(
        &mut self,
        now: Instant,
        (local, remote): (Addr, Endpoint),
        choice: PortChoice<'_, F>,
    ) -> Result<FourTuple, NoPort> {
        let (first, last) = choice.range;
        let PortChoice { rng, is_ours, looks, .. } = choice;
        // DEVIATION: on Linux a socket without a port may get the one that it connects to, and so be its own
        // peer.
        let is_ours = |tuple: &FourTuple| tuple.local != tuple.remote && is_ours(tuple);
        let tuple = |port: u16| FourTuple { local: Endpoint::at(local, port), remote };
        let Some(range) = last.checked_sub(first) else { return Err(NoPort::none()) };
        let count = u32::from(range) + 1;
        let start = rng.below(count);
        let known = self.locals.find(&tuple(first)).map(|name| name.destination());
        if !known.is_some_and(|name| self.searches.has(&name, (first, last))) {
            let look = |port: u16| self.look_at_port(now, &tuple(port), &is_ours, looks);
            if let Some(port) = crate::ports::choose_at_random((first, count), start, look) {
                return Ok(tuple(port));
            }
        }
        let destination = self.name(&tuple(first)).destination();
        let mut search = self.searches.take(&destination, (first, last));
        let look = |port: u16| self.look_at_port(now, &tuple(port), &is_ours, looks);
        let chosen = search.go_on(now, start, look);
        self.searches.put(destination, search);
        chosen.map(tuple)
    }

    /// Returns whether a connection may be opened under a name that its application has chosen.
    pub(crate) fn may_open(
        &self,
        now: Instant,
        tuple: &FourTuple,
        is_ours: &impl Fn(&FourTuple) -> bool,
        looks: &mut u32,
    ) -> bool {
        matches!(self.look_at_port(now, tuple, is_ours, looks), Found::Free | Found::Reusable)
    }

    /// Returns whether a connection may be opened under this name.
    fn look_at_port(
        &self,
        now: Instant,
        tuple: &FourTuple,
        is_ours: &impl Fn(&FourTuple) -> bool,
        looks: &mut u32,
    ) -> Found {
        if tuple.local.port == 0 || !is_ours(tuple) {
            return Found::Elsewhere;
        }
        *looks = looks.saturating_add(1);
        // A tuple without name has neither connection nor record.
        let Some(name) = self.locals.find(tuple) else { return Found::Free };
        if self.find_name(&name).is_some() || self.find_postponed(&name).is_some() {
            return Found::Used;
        }
        match self.time_waits.reusable_at(&name, REUSE_AFTER) {
            None => Found::Free,
            Some(at) if at <= now => Found::Reusable,
            Some(Instant::FAR_FUTURE) => Found::Used,
            Some(at) => Found::ReusableAt(at),
        }
    }

    /// Forgets the results of all searches for free ports.
    pub(crate) fn forget_searches(&mut self) {
        self.searches.forget_all();
    }

    /// Frees a name that was kept for a connection which is not continued.
    pub(crate) fn give_back_name(&mut self, name: &Name) {
        self.searches.give_back(name);
    }

    /// Returns the number of destinations for which free ports are searched.
    #[cfg(test)]
    pub(crate) fn searches(&self) -> usize {
        self.searches.len()
    }

    // ---- timers ----

    /// Arms the timer of a connection for the time that
    /// [`Entry::move_timer`](crate::entry::Entry::move_timer) has returned.
    #[inline]
    pub(crate) fn arm(&mut self, index: u32, due: Instant) {
        self.timers.arm(TimerId(index), due);
    }

    /// Returns the timers.
    pub(crate) const fn timers(&self) -> &Timers {
        &self.timers
    }

    /// Returns the timers, mutably.
    pub(crate) const fn timers_mut(&mut self) -> &mut Timers {
        &mut self.timers
    }

    // ---- connections that are not continued yet ----

    /// Prepares for up to `count` postponed connections of a predecessor.
    pub(crate) fn begin_postponing(&mut self, count: usize, now: Instant) {
        self.postponed = Some(Box::new(Postponed::new(count, self.flows.name_hash().clone(), now)));
    }

    /// Ends postponing. Places that no connection has, and that are not kept for one, are free.
    pub(crate) fn end_postponing(&mut self) {
        self.postponed = self.postponed.take().filter(|postponed| postponed.len() > 0);
        let end = self.postponed.as_ref().map_or(0, |postponed| postponed.places_end());
        let is_kept = |index| self.postponed.as_ref().is_some_and(|postponed| postponed.has_place(index));
        self.entries.restore_free(end, is_kept);
    }

    /// Returns the connections that are not continued yet; `None` if there are none.
    #[inline]
    pub(crate) fn postponed(&self) -> Option<&Postponed> {
        self.postponed.as_deref()
    }

    /// Returns the connections that are not continued yet, mutably.
    pub(crate) fn postponed_mut(&mut self) -> Option<&mut Postponed> {
        self.postponed.as_deref_mut()
    }

    /// Takes out the connections that are not continued yet, while some of them are continued.
    pub(crate) fn take_postponed(&mut self) -> Option<Box<Postponed>> {
        self.postponed.take()
    }

    /// Puts back the connections that are not continued yet, if any are left.
    pub(crate) fn put_back_postponed(&mut self, postponed: Box<Postponed>) {
        self.postponed = (postponed.len() > 0).then_some(postponed);
    }

    /// Returns the hash of a name if a connection may be postponed under it; `None` if another connection has
    /// it.
    pub(crate) fn may_postpone(&self, name: &Name) -> Option<u64> {
        let hashed = self.flows.name_hash().of(name);
        let is_taken = self.postponed.as_ref()?.find(name, hashed).is_some()
            || self.flows.find_hashed(&self.entries, name, hashed).is_some();
        (!is_taken).then_some(hashed)
    }

    /// Returns the postponed connection that has this name.
    #[inline]
    fn find_postponed(&self, name: &Name) -> Option<usize> {
        let postponed = self.postponed.as_ref()?;
        postponed.find(name, self.flows.name_hash().of(name))
    }

    /// Returns the postponed connection that has this tuple.
    #[inline]
    pub(crate) fn find_postponed_tuple(&self, tuple: &FourTuple) -> Option<usize> {
        self.postponed.as_ref()?;
        self.find_postponed(&self.locals.find(tuple)?)
    }
}

#[cfg(test)]
mod tests;
