//! What does a replica keep of one application? Its rings, its slots, and who occupies them.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};

use atoll_base::{Epoch, Instant, SessionId, SlotId};
use atoll_ipc::arena::{ArenaLayout, COMMANDS, CUT_OFF, EVENTS, OVERFLOW, REPLICA_EPOCH};
use atoll_ipc::control::User;
use atoll_ipc::lease::{Grant, Pass};
use atoll_ipc::page::{AppPage, BELLS, Stat};
use atoll_ipc::pool::{CONTROL_BYTES, MIN_LOG2, Pool, UNIT_BYTES};
use atoll_ipc::ring::{Consumer, Producer};
use atoll_ipc::slot::{Slot, SlotState};
use atoll_ipc::{Command, Event, Memory};

use crate::ending::Ending;
use crate::lazy::LazyMemory;
use crate::pace::Pace;
use crate::pressure::Pressure;
use crate::stats::Stats;
use crate::users::Holdings;

/// Free pieces of at least this size (as a power of two) are given back when memory is short.
const DISCARD_LOG2: u8 = 13;
/// What the receive buffers of a session may take however short memory is, in units: 128 KiB. Linux lets each socket have the least of `tcp_rmem`.
const FLOOR_UNITS: u32 = 64;
/// Of a session so many at a time, because each is a system call.
const DISCARDS_MAX: usize = 512;

// structure: Session: what a server keeps of an application; its quotas and its pace are not apart yet
/// One application process (with the children that inherited its sockets), as seen from this replica.
///
/// Nothing here survives a crash: the next incarnation opens the session again.
#[derive(Debug)]
pub(crate) struct Session<M: Memory> {
    pub(crate) id: SessionId,
    pub(crate) layout: ArenaLayout,
    pub(crate) arena: M,
    page: AppPage<M>,
    commands: Consumer,
    events: Producer,
    epoch: Epoch,
    /// Pool of the receive area, and the memory of its state.
    pub(crate) pool: Pool,
    pub(crate) links: LazyMemory,
    application: Vec<Occupied>,
    replica: Vec<Occupied>,
    /// Those of them before this one have all been looked at.
    seen: u32,
    /// Free slots among the replica's; taken from the back. Revoked ones go to the front, because their late claim is still
    /// to come.
    free: VecDeque<u32>,
    /// Sockets that use the arena.
    pub(crate) sockets: u32,
    /// The datagram sockets among them.
    pub(crate) datagram_sockets: u32,
    /// Their memberships in groups.
    pub(crate) groups: u32,
    /// Bells to be considered at the end of the flush.
    bells: u32,
    /// The sleep word for which each bell was rung last.
    rung: [u32; BELLS],
    /// Whose it is.
    pub(crate) user: User,
    /// What it has shown last of what the supervisor has said of it.
    pub(crate) pass: Option<Pass>,
    /// What it has shown last of what the authority of a port has granted.
    pub(crate) shown: Option<Grant>,
    /// The application has ended; what is left is given up at this moment.
    pub(crate) gone: Option<Instant>,
    pub(crate) pressure: Pressure,
    /// Processes of it have ended, and this is left to do.
    pub(crate) ending: Option<Ending>,
    /// Sockets before this one were given up when its time was up.
    pub(crate) expired: u32,
    /// How fast it says what is paced.
    pub(crate) pace: Pace,
    /// What it may still send in this flush.
    pub(crate) share: Share,
    /// Those of its sockets that wait for the next share.
    pub(crate) later: VecDeque<Occupant>,
    /// Servers have died of it: its commands are not taken.
    is_cut_off: bool,
    /// What of the receive area was ever touched.
    touched: Touched,
}

/// How much of the receive area was touched, of this session and in all. Counts with the others until it is dropped.
#[derive(Debug)]
struct Touched {
    /// Up to where it was, in units.
    high: Cell<u32>,
    /// How much of that the kernel still has memory for, in units: what counts in the books.
    counted: Cell<u32>,
    /// Free pieces were given back. Those that are used again count again from the next look on.
    has_holes: Cell<bool>,
    /// With which of the free pieces the next look goes on.
    next: Cell<usize>,
    books: Arc<Books>,
    /// What the user's sessions have together.
    of_user: Arc<Holdings>,
}

/// What all sessions of a replica hold, and may hold.
#[derive(Debug)]
pub(crate) struct Books {
    /// Octets that were touched in receive areas: the kernel has given memory for them.
    pub(crate) held: AtomicU64,
    /// No more than this is touched.
    pub(crate) max: AtomicU64,
}

impl Default for Books {
    fn default() -> Books {
        Books { held: AtomicU64::new(0), max: AtomicU64::new(u64::MAX) }
    }
}

impl Touched {
    fn count(&self, units: u32) {
        let before = self.counted.replace(units);
        let octets = |units: u32| u64::from(units) * UNIT_BYTES as u64;
        // A replica is one thread: nobody else counts meanwhile.
        let held = self.books.held.load(Ordering::Relaxed).wrapping_sub(octets(before)).wrapping_add(octets(units));
        self.books.held.store(held, Ordering::Relaxed);
        self.of_user.count(octets(before), octets(units));
    }
}

impl Drop for Touched {
    fn drop(&mut self) {
        self.count(0);
    }
}

/// What one session may send in one flush, so that others get their turn: see [`Share::take`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    flush: u32,
    taken: u32,
}

/// In units of about half a microsecond: a frame is one, and one more for each 4 KiB of its text. A fast connection gets as far with it as its window.
const SHARE: u32 = 1024;
/// Sockets that go on in one flush because they had no share of the last: each takes something of it.
pub(crate) const LATER_MAX: usize = 256;

impl Share {
    /// Whether there is something left in this flush.
    #[inline]
    pub(crate) fn is_left(&self, flush: u32) -> bool {
        self.flush != flush || self.taken < SHARE
    }

    /// A frame with so many octets of text was sent.
    #[inline]
    pub(crate) fn take(&mut self, flush: u32, octets: usize) {
        let before = if self.flush == flush { self.taken } else { 0 };
        *self = Share { flush, taken: before + 1 + (octets >> 12) as u32 };
    }
}

/// A slot's user, and the generation it has; 0: nobody has looked at it yet, and a predecessor may have used it.
#[derive(Clone, Copy, Debug, Default)]
struct Occupied {
    occupant: Occupant,
    generation: u32,
}

/// Who uses a slot: an index into the table of connections or of datagram sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Occupant {
    #[default]
    Nobody,
    Connection(u32),
    Datagram(u32),
    /// A connection that has not survived a predecessor: nothing is left but the application's socket, which it has to close.
    Lost,
}

/// Where a socket has its slot: which session (by its place in the table), slot and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) session: u32,
    pub(crate) slot: SlotId,
    pub(crate) generation: u32,
}

impl<M: Memory> Session<M> {
    /// Goes on where the last incarnation stopped, and says who is there now.
    pub(crate) fn new(
        (id, user): (SessionId, User),
        layout: ArenaLayout,
        arena: M,
        page: AppPage<M>,
        epoch: Epoch,
        (books, of_user): (Arc<Books>, Arc<Holdings>),
    ) -> Session<M> {
        let commands = Consumer::resume(&arena, layout.commands, COMMANDS);
        let events = Producer::resume(&arena, layout.events, EVENTS);
        arena.store32_release(REPLICA_EPOCH, epoch.0);
        let units = (layout.receive_bytes / UNIT_BYTES) as u32;
        let links = CONTROL_BYTES.next_multiple_of(8);
        Session {
            id,
            layout,
            arena,
            page,
            commands,
            events,
            epoch,
            pool: Pool { control: 0, links, units },
            links: LazyMemory::new(links + units as usize * 4),
            application: Vec::new(),
            replica: Vec::new(),
            seen: 0,
            free: VecDeque::new(),
            sockets: 0,
            datagram_sockets: 0,
            groups: 0,
            bells: 0,
            rung: [0; BELLS],
            user,
            pass: None,
            shown: None,
            gone: None,
            pressure: Pressure::default(),
            ending: None,
            expired: 0,
            pace: Pace::default(),
            share: Share::default(),
            later: VecDeque::new(),
            touched: Touched {
                high: Cell::new(0),
                counted: Cell::new(0),
                has_holes: Cell::new(false),
                next: Cell::new(0),
                books,
                of_user,
            },
            is_cut_off: false,
        }
    }

    /// Where receive buffers come from: beyond what was touched before only while the stack has memory for it, and its user a part of that left.
    pub(crate) fn receive_pool(&self) -> Pool {
        let Books { held, max } = &*self.touched.books;
        let max = max.load(Ordering::Relaxed);
        if held.load(Ordering::Relaxed) < max && self.touched.of_user.has_memory(max) {
            return self.pool;
        }
        self.pool.within(&self.links, self.touched.high.get().max(FLOOR_UNITS))
    }

    /// To be called when a buffer was taken.
    pub(crate) fn note_touched(&self) {
        let high = self.pool.high_units(&self.links);
        let growth = high.saturating_sub(self.touched.high.get());
        if growth > 0 {
            self.touched.high.set(high);
            self.touched.count(self.touched.counted.get() + growth);
        }
    }

    /// Counts again, where pieces that were given back may be in use.
    pub(crate) fn recount(&self) {
        if self.touched.has_holes.get() {
            let free = self.pool.free_blocks(&self.links, DISCARD_LOG2);
            let holes: u32 = free.iter().map(|(_, log2)| 1u32 << (log2 - MIN_LOG2)).sum();
            self.touched.count(self.touched.high.get().saturating_sub(holes));
        }
    }

    /// Octets of its receive area that the kernel has memory for, as the books say.
    pub(crate) fn held(&self) -> u64 {
        u64::from(self.touched.counted.get()) * UNIT_BYTES as u64
    }

    /// Gives memory back that lies in free pieces of the receive area. The smallest are used again soon.
    pub(crate) fn discard_free(&self) {
        let area = self.layout.receive_area;
        let free = self.pool.free_blocks(&self.links, DISCARD_LOG2);
        // Where there are many, others the next time.
        let from = if self.touched.next.get() < free.len() { self.touched.next.get() } else { 0 };
        for (unit, log2) in free.iter().skip(from).take(DISCARDS_MAX) {
            self.arena.discard(area + *unit as usize * UNIT_BYTES, 1 << log2);
        }
        self.touched.next.set(from + DISCARDS_MAX);
        let (high, touched) = (self.pool.high_units(&self.links), self.touched.high.get());
        if high < touched {
            self.arena.discard(area + high as usize * UNIT_BYTES, (touched - high) as usize * UNIT_BYTES);
            self.touched.high.set(high);
        }
        self.touched.has_holes.set(true);
        self.recount();
    }

    /// The occupant of a slot, in whichever half, goes on with it. `false`: it has another one.
    pub(crate) fn occupy_again(&mut self, slot: SlotId, generation: u32, occupant: Occupant) -> bool {
        let Some(index) = slot.0.checked_sub(self.layout.replica_slots().start) else {
            return self.occupy(slot, generation, occupant);
        };
        let is_its = self.slot(slot).is_some_and(|view| view.replica_generation() == generation);
        if !is_its || generation == 0 || !self.layout.replica_slots().contains(&slot.0) {
            return false;
        }
        self.extend(index);
        let Some(place) = self.replica.get_mut(index as usize).filter(|place| place.occupant == Occupant::Nobody)
        else {
            return false;
        };
        *place = Occupied { occupant, generation };
        self.count(occupant);
        true
    }

    /// The slot, which was kept for its occupant, is nobody's until that comes or [`Session::settle`] is called.
    /// `false`: it was nobody's.
    pub(crate) fn leave(&mut self, slot: SlotId) -> bool {
        let half = self.layout.replica_slots().start;
        let place = match slot.0.checked_sub(half) {
            Some(index) => self.replica.get_mut(index as usize),
            None => self.application.get_mut(slot.0 as usize),
        };
        let Some(place) = place.filter(|place| place.occupant != Occupant::Nobody) else { return false };
        let was = core::mem::take(&mut place.occupant);
        self.sockets -= 1;
        self.touched.of_user.socket_closed();
        self.datagram_sockets -= u32::from(matches!(was, Occupant::Datagram(_)));
        true
    }

    /// One more socket uses the arena.
    fn count(&mut self, occupant: Occupant) {
        self.sockets += 1;
        self.touched.of_user.socket_opened();
        self.datagram_sockets += u32::from(matches!(occupant, Occupant::Datagram(_)));
    }

    /// There is a place for this slot of the replica's half, and for those before it, which nobody has looked at.
    fn extend(&mut self, index: u32) {
        if self.replica.len() <= index as usize {
            self.replica.resize(index as usize + 1, Occupied::default());
        }
    }

    /// Looks at slots that predecessors may have offered, in order, until one of them is free. Returns it, and its last generation.
    ///
    /// What an application has written there decides nothing: a slot that no record names is free, and its next generation is another
    /// one than that of a late claim. So this costs a look for each slot that is used, and not one for each that an application has marked.
    fn look_for_free(&mut self) -> Option<(u32, u32)> {
        loop {
            let slot = self.layout.replica_slots().start.checked_add(self.seen)?;
            if !self.layout.replica_slots().contains(&slot) {
                return None;
            }
            self.extend(self.seen);
            let place = self.replica.get(self.seen as usize)?;
            self.seen += 1;
            if place.generation == 0 {
                let view = self.slot(SlotId(slot))?;
                let last = view.replica_generation();
                view.revoke(last);
                view.set_state(SlotState::Free);
                return Some((slot, last));
            }
        }
    }

    /// If nobody has come, the slot is free.
    pub(crate) fn settle(&mut self, slot: SlotId) {
        let index = slot.0.checked_sub(self.layout.replica_slots().start);
        let place = index.and_then(|index| self.replica.get(index as usize));
        if place.is_some_and(|place| place.occupant == Occupant::Nobody) {
            // A claim of the last offer may still come.
            self.free.push_front(slot.0);
            if let Some(view) = self.slot(slot).filter(|view| view.state() != SlotState::Free) {
                view.revoke(view.replica_generation());
                view.set_state(SlotState::Free);
            }
        }
    }

    /// All occupants are known: the application looks at everything.
    pub(crate) fn rebuild(&mut self) {
        let word = self.arena.load32(OVERFLOW).wrapping_add(1);
        self.arena.store32_release(OVERFLOW, word);
        self.bells = u32::MAX;
    }

    /// So many of the replica's slots have been looked at.
    #[cfg(test)]
    pub(crate) const fn seen_slots(&self) -> u32 {
        self.seen
    }

    /// The slot, `None` out of range.
    #[inline]
    pub(crate) fn slot(&self, slot: SlotId) -> Option<Slot<'_, M>> {
        Slot::new(&self.arena, &self.layout, slot)
    }

    /// The next command; `Err` if what the application wrote is none.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Result<Command, atoll_ipc::event::BadMessage>> {
        if self.is_cut_off {
            return None;
        }
        // An application has one life, so its epoch says nothing.
        self.commands.pop(&self.arena).map(|(_, payload)| Command::decode(&payload))
    }

    /// What [`Session::pop`] has just returned could not be carried out yet: it is next, now and for a successor.
    pub(crate) fn put_back(&mut self) {
        self.commands.put_back();
    }

    /// A command was carried out, or none was there: of a session that ends so many were to be.
    pub(crate) fn note_taken(&mut self, any: bool) {
        if let Some(ending) = &mut self.ending {
            ending.commands = if any { ending.commands.saturating_sub(1) } else { 0 };
        }
    }

    #[inline]
    pub(crate) fn has_command(&self) -> bool {
        self.hears() && self.commands.is_ready(&self.arena)
    }

    /// Whether its commands wait because of what it has said before. Those of one that ends do not: it says nothing more.
    pub(crate) fn is_paced(&mut self, now: Instant) -> bool {
        self.ending.is_none() && self.pace.waits(now)
    }

    /// Nobody listens to it any more, and it can see so.
    pub(crate) fn cut_off(&mut self) {
        self.is_cut_off = true;
        self.arena.store32_release(CUT_OFF, 1);
    }

    /// Whether nobody listens to it any more.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.is_cut_off
    }

    /// Whether its commands are carried out: as long as it is there, and those that it had sent before.
    #[inline]
    pub(crate) fn hears(&self) -> bool {
        let is_there = self.gone.is_none() || self.ending.as_ref().is_some_and(|ending| ending.commands > 0);
        is_there && !self.is_cut_off
    }

    #[inline]
    pub(crate) fn publish_commands(&mut self) {
        self.commands.publish(&self.arena);
    }

    /// Sends an event, and remembers to ring `bell` (`None`: every bell that somebody sleeps on).
    #[inline]
    pub(crate) fn push(&mut self, stats: &mut Stats, event: &Event, bell: Option<u32>) {
        // The programs of one that is cut off are there, and hear that their sockets fail.
        if self.gone.is_some() && !self.is_cut_off {
            return;
        }
        stats.count(Stat::Events);
        if !self.events.push(&self.arena, self.epoch.0, &event.encode()) {
            stats.count(Stat::EventOverflows);
            let word = self.arena.load32(OVERFLOW).wrapping_add(1);
            self.arena.store32_release(OVERFLOW, word);
        }
        self.bells |= bell.map_or(u32::MAX, |bell| 1 << (bell as usize % BELLS));
    }

    /// Which of the bells of this flush have to be rung now. Each is rung once per sleep.
    pub(crate) fn take_bells(&mut self, mut ring: impl FnMut(u32)) {
        if self.bells == 0 {
            return;
        }
        let bells = core::mem::take(&mut self.bells);
        // Partner: the application stores its sleep word, fences, and looks at the event ring once more.
        self.arena.fence();
        for bell in (0..BELLS as u32).filter(|bell| bells & (1 << bell) != 0) {
            let word = self.page.sleep_word(bell);
            let rung = &mut self.rung[bell as usize];
            if word & 1 == 1 && *rung != word {
                *rung = word;
                ring(bell);
            }
        }
    }

    /// Who occupies the slot in this generation.
    #[inline]
    pub(crate) fn occupant(&self, slot: SlotId, generation: u32) -> Occupant {
        match self.occupied(slot) {
            Some(place) if place.generation == generation => place.occupant,
            _ => Occupant::Nobody,
        }
    }

    /// Whether the slot exists and nobody occupies it, in any generation.
    pub(crate) fn is_vacant(&self, slot: SlotId) -> bool {
        slot.0 < self.layout.slot_count && self.occupied(slot).is_none_or(|place| place.occupant == Occupant::Nobody)
    }

    /// Whether an offer in this slot may have had this generation once.
    pub(crate) fn was_offered(&self, slot: SlotId, generation: u32) -> bool {
        let last = match self.occupied(slot) {
            Some(place) if place.generation != 0 => Some(place.generation),
            // That of a predecessor, if there was one.
            _ => self.slot(slot).map(|view| view.replica_generation()).filter(|last| *last != 0),
        };
        let is_past = |last: u32| generation.wrapping_sub(last) as i32 <= 0;
        self.layout.replica_slots().contains(&slot.0) && last.is_some_and(is_past)
    }

    /// Every occupied slot, in order.
    pub(crate) fn occupants(&self) -> Vec<(SlotId, u32, Occupant)> {
        let half = self.layout.replica_slots().start;
        let all = (0..).zip(&self.application).chain((half..).zip(&self.replica));
        all.filter(|(_, place)| place.occupant != Occupant::Nobody)
            .map(|(slot, place)| (SlotId(slot), place.generation, place.occupant))
            .collect()
    }

    /// The next occupied slot from the `cursor`th on, which counts the application's and then the replica's, and where to go on; `None`: there is
    /// none among the next `max`. At the end the cursor stays.
    pub(crate) fn occupied_from(&self, cursor: u32, max: u32) -> (u32, Option<(SlotId, u32, Occupant)>) {
        let (half, own) = (self.layout.replica_slots().start, self.application.len());
        let end = own + self.replica.len();
        let first = cursor as usize;
        for at in first..end.min(first.saturating_add(max as usize)) {
            let (slot, place) = match at.checked_sub(own) {
                None => (at as u32, self.application.get(at)),
                Some(at) => (half + at as u32, self.replica.get(at)),
            };
            if let Some(place) = place.filter(|place| place.occupant != Occupant::Nobody) {
                return (at as u32 + 1, Some((SlotId(slot), place.generation, place.occupant)));
            }
        }
        (cursor.saturating_add(max).min(end as u32).max(cursor), None)
    }

    /// The application has opened a socket in one of its own slots. `false`: it may not.
    pub(crate) fn occupy(&mut self, slot: SlotId, generation: u32, occupant: Occupant) -> bool {
        if !self.layout.application_slots().contains(&slot.0) {
            return false;
        }
        let index = slot.0 as usize;
        if index >= self.application.len() {
            self.application.resize(index + 1, Occupied::default());
        }
        let place = &mut self.application[index];
        if place.occupant != Occupant::Nobody {
            return false;
        }
        *place = Occupied { occupant, generation };
        self.count(occupant);
        true
    }

    /// Whether its user may have one more socket.
    pub(crate) fn has_room_for_socket(&self) -> bool {
        self.touched.of_user.has_room()
    }

    /// Takes a slot for a connection to offer, under a new generation. `None`: all are in use, or the user has as many sockets as he may have.
    pub(crate) fn allocate(&mut self, occupant: Occupant) -> Option<(SlotId, u32)> {
        if !self.has_room_for_socket() {
            return None;
        }
        let range = self.layout.replica_slots();
        let (slot, last) = match self.free.pop_back() {
            Some(slot) => (slot, None),
            // What an earlier incarnation has used is not used again.
            None => self.look_for_free().map(|(slot, last)| (slot, Some(last)))?,
        };
        let place = self.replica.get_mut((slot - range.start) as usize)?;
        let generation = last.unwrap_or(place.generation).wrapping_add(1).max(1);
        *place = Occupied { occupant, generation };
        self.count(occupant);
        Some((SlotId(slot), generation))
    }

    /// The slot is free again. `revoked`: an offer was taken back, which a record names, and whose claim may still come: it is used again
    /// only after [`Session::reuse`].
    pub(crate) fn vacate(&mut self, slot: SlotId, revoked: bool) {
        if let Some(view) = self.slot(slot) {
            view.set_state(SlotState::Free);
        }
        if self.leave(slot) && self.layout.replica_slots().contains(&slot.0) && !revoked {
            self.free.push_back(slot.0);
        }
    }

    /// The slot of an offer that was taken back may be another's: no record names it any more. By its generation a successor knows whether its
    /// text is there.
    pub(crate) fn reuse(&mut self, slot: SlotId) {
        if self.layout.replica_slots().contains(&slot.0) {
            self.free.push_front(slot.0);
        }
    }

    #[inline]
    fn occupied(&self, slot: SlotId) -> Option<&Occupied> {
        let half = self.layout.replica_slots().start;
        match slot.0.checked_sub(half) {
            Some(index) => self.replica.get(index as usize),
            None => self.application.get(slot.0 as usize),
        }
    }
}
