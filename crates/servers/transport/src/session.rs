//! What does a replica keep of one application? Its rings, its slots, and who occupies them.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use atoll_base::{Epoch, Instant, SessionId, SlotId};
use atoll_ipc::arena::{ArenaLayout, COMMANDS, CUT_OFF, EVENTS, OVERFLOW, REPLICA_EPOCH};
use atoll_ipc::control::User;
use atoll_ipc::page::{AppPage, Stat};
use atoll_ipc::pool::UNIT_BYTES;
use atoll_ipc::ring::{Consumer, Producer};
use atoll_ipc::slot::Slot;
use atoll_ipc::{Command, Event, Memory};

use crate::departures::Ending;
use crate::holding::Pressure;
use crate::lease::Rights;
use crate::pace::Pace;
use crate::stats::Stats;
use crate::users::Holdings;

mod bells;
mod memory;
mod slots;

use bells::Bells;
use memory::ReceiveMemory;
use slots::Slots;

pub(crate) use memory::Books;

/// One application process (with the children that inherited its sockets), as seen from this replica.
///
/// Nothing here survives a crash: the next incarnation opens the session again.
#[derive(Debug)]
pub(crate) struct Session<M: Memory> {
    pub(crate) id: SessionId,
    pub(crate) layout: ArenaLayout,
    pub(crate) arena: M,
    commands: Consumer,
    events: Producer,
    epoch: Epoch,
    bells: Bells<M>,
    /// Where receive buffers lie.
    memory: ReceiveMemory,
    slots: Slots,
    /// What it has shown of its rights.
    pub(crate) rights: Rights,
    /// Memberships of its datagram sockets in groups.
    pub(crate) groups: u32,
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
}

/// What one session may send in one flush, so that others get their turn: see [`Share::take`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    flush: u32,
    taken: u32,
}

/// In units of about half a microsecond: a frame is one, and one more for each 4 KiB of its text. A fast
/// connection gets as far with it as its window.
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

/// Who uses a slot: an index into the table of connections or of datagram sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Occupant {
    #[default]
    Nobody,
    Connection(u32),
    Datagram(u32),
    /// A connection that has not survived a predecessor: nothing is left but the application's socket, which
    /// it has to close.
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
        Session {
            id,
            layout,
            arena,
            commands,
            events,
            epoch,
            bells: Bells::new(page),
            memory: ReceiveMemory::new(units, books, of_user.clone()),
            slots: Slots::new(layout, of_user),
            rights: Rights::new(user),
            groups: 0,
            gone: None,
            pressure: Pressure::default(),
            ending: None,
            expired: 0,
            pace: Pace::default(),
            share: Share::default(),
            later: VecDeque::new(),
            is_cut_off: false,
        }
    }

    /// All occupants are known: the application looks at everything.
    pub(crate) fn rebuild(&mut self) {
        let word = self.arena.load32(OVERFLOW).wrapping_add(1);
        self.arena.store32_release(OVERFLOW, word);
        self.bells.note(None);
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

    /// What [`Session::pop`] has just returned could not be carried out yet: it is next, now and for a
    /// successor.
    pub(crate) fn put_back(&mut self) {
        self.commands.put_back();
    }

    /// A command was carried out, or none was there: of a session that ends so many were to be.
    pub(crate) fn note_taken(&mut self, any: bool) {
        if let Some(ending) = &mut self.ending {
            ending.note_taken(any);
        }
    }

    #[inline]
    pub(crate) fn has_command(&self) -> bool {
        self.hears() && self.commands.is_ready(&self.arena)
    }

    /// Whether its commands wait because of what it has said before. Those of one that ends do not: it says
    /// nothing more.
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
        let is_there = self.gone.is_none() || self.ending.as_ref().is_some_and(Ending::has_commands);
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
        self.bells.note(bell);
    }

    /// Which of the bells of this flush have to be rung now. Each is rung once per sleep.
    pub(crate) fn take_bells(&mut self, ring: impl FnMut(u32)) {
        self.bells.take(&self.arena, ring);
    }

    // ---- memory ----

    /// Returns where receive buffers lie.
    #[inline]
    pub(crate) const fn memory(&self) -> &ReceiveMemory {
        &self.memory
    }

    /// Gives memory back that lies in free pieces of the receive area. The smallest are used again soon.
    pub(crate) fn discard_free(&self) {
        self.memory.discard_free(|at, len| self.arena.discard(self.layout.receive_area + at, len));
    }

    // ---- slots ----

    /// How many sockets use the arena.
    pub(crate) const fn sockets(&self) -> u32 {
        self.slots.sockets()
    }

    /// How many of them are datagram sockets.
    pub(crate) const fn datagram_sockets(&self) -> u32 {
        self.slots.datagram_sockets()
    }

    /// The occupant of a slot, in whichever half, goes on with it. `false`: it has another one.
    pub(crate) fn occupy_again(&mut self, slot: SlotId, generation: u32, occupant: Occupant) -> bool {
        self.slots.occupy_again(&self.arena, slot, generation, occupant)
    }

    /// The slot, which was kept for its occupant, is nobody's until that comes or [`Session::settle`] is
    /// called. `false`: it was nobody's.
    pub(crate) fn leave(&mut self, slot: SlotId) -> bool {
        self.slots.leave(slot)
    }

    /// If nobody has come, the slot is free.
    pub(crate) fn settle(&mut self, slot: SlotId) {
        self.slots.settle(&self.arena, slot);
    }

    /// So many of the replica's slots have been looked at.
    #[cfg(test)]
    pub(crate) fn seen_slots(&self) -> u32 {
        self.slots.seen()
    }

    /// Who occupies the slot in this generation.
    #[inline]
    pub(crate) fn occupant(&self, slot: SlotId, generation: u32) -> Occupant {
        self.slots.occupant(slot, generation)
    }

    /// Whether the slot exists and nobody occupies it, in any generation.
    pub(crate) fn is_vacant(&self, slot: SlotId) -> bool {
        self.slots.is_vacant(slot)
    }

    /// Whether an offer in this slot may have had this generation once.
    pub(crate) fn was_offered(&self, slot: SlotId, generation: u32) -> bool {
        self.slots.was_offered(&self.arena, slot, generation)
    }

    /// Every occupied slot, in order.
    pub(crate) fn occupants(&self) -> Vec<(SlotId, u32, Occupant)> {
        self.slots.occupants()
    }

    /// The next occupied slot from the `cursor`th on, which counts the application's and then the replica's,
    /// and where to go on; `None`: there is none among the next `max`. At the end the cursor stays.
    pub(crate) fn occupied_from(&self, cursor: u32, max: u32) -> (u32, Option<(SlotId, u32, Occupant)>) {
        self.slots.occupied_from(cursor, max)
    }

    /// The application has opened a socket in one of its own slots. `false`: it may not.
    pub(crate) fn occupy(&mut self, slot: SlotId, generation: u32, occupant: Occupant) -> bool {
        self.slots.occupy(slot, generation, occupant)
    }

    /// Whether its user may have one more socket.
    pub(crate) fn has_room_for_socket(&self) -> bool {
        self.slots.has_room_for_socket()
    }

    /// Takes a slot for a connection to offer, under a new generation. `None`: all are in use, or the user
    /// has as many sockets as he may have.
    pub(crate) fn allocate(&mut self, occupant: Occupant) -> Option<(SlotId, u32)> {
        self.slots.allocate(&self.arena, occupant)
    }

    /// The slot is free again. `revoked`: an offer was taken back, which a record names, and whose claim may
    /// still come: it is used again only after [`Session::reuse`].
    pub(crate) fn vacate(&mut self, slot: SlotId, revoked: bool) {
        self.slots.vacate(&self.arena, slot, revoked);
    }

    /// The slot of an offer that was taken back may be another's: no record names it any more. By its
    /// generation a successor knows whether its text is there.
    pub(crate) fn reuse(&mut self, slot: SlotId) {
        self.slots.reuse(slot);
    }
}
