//! The state of one application in a replica: its rings, its slots, and their occupants.

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
/// Its state does not survive a crash: the next incarnation opens the session again.
#[derive(Debug)]
pub(crate) struct Session<M: Memory> {
    pub(crate) id: SessionId,
    pub(crate) layout: ArenaLayout,
    pub(crate) arena: M,
    commands: Consumer,
    events: Producer,
    epoch: Epoch,
    bells: Bells<M>,
    /// The memory of receive buffers.
    memory: ReceiveMemory,
    slots: Slots,
    /// The rights that it has shown.
    pub(crate) rights: Rights,
    /// The memberships of its datagram sockets in groups.
    pub(crate) groups: u32,
    /// When what is left is given up, if the application has ended.
    pub(crate) gone: Option<Instant>,
    pub(crate) pressure: Pressure,
    /// The clean-up that is left, if processes of the session have ended.
    pub(crate) ending: Option<Ending>,
    /// The sockets before this one were given up when its time was up.
    pub(crate) expired: u32,
    /// The rate of its paced commands.
    pub(crate) pace: Pace,
    /// The amount that the session may still send in this flush.
    pub(crate) share: Share,
    /// The session's sockets that wait for the next share.
    pub(crate) later: VecDeque<Occupant>,
    /// Whether servers have died of it, so that its commands are not taken.
    is_cut_off: bool,
}

/// The amount that one session may send in one flush, so that others get their turn: see [`Share::take`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    flush: u32,
    taken: u32,
}

/// The share of a session in units of about half a microsecond: a frame is one, and one more for each 4 KiB
/// of its text. It is as much as the window of a fast connection.
const SHARE: u32 = 1024;
/// The most sockets that continue in one flush because they had no share of the last: each takes something of
/// it.
pub(crate) const LATER_MAX: usize = 256;

impl Share {
    /// Returns whether something of the share is left in this flush.
    #[inline]
    pub(crate) fn is_left(&self, flush: u32) -> bool {
        self.flush != flush || self.taken < SHARE
    }

    /// Subtracts the cost of a frame with this number of octets of text from the share.
    #[inline]
    pub(crate) fn take(&mut self, flush: u32, octets: usize) {
        let before = if self.flush == flush { self.taken } else { 0 };
        *self = Share { flush, taken: before + 1 + (octets >> 12) as u32 };
    }
}

/// The occupant of a slot: an index into the table of connections or of datagram sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Occupant {
    #[default]
    Nobody,
    Connection(u32),
    Datagram(u32),
    /// A connection that has not survived a predecessor: only the application's socket is left, which it has
    /// to close.
    Lost,
}

/// The place of a socket's slot: the session (by its place in the table), slot and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) session: u32,
    pub(crate) slot: SlotId,
    pub(crate) generation: u32,
}

impl<M: Memory> Session<M> {
    /// Creates a session, which continues where the last incarnation stopped, and announces this one in the
    /// arena.
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

    /// Makes the application examine everything, once all occupants are known.
    pub(crate) fn rebuild(&mut self) {
        let word = self.arena.load32(OVERFLOW).wrapping_add(1);
        self.arena.store32_release(OVERFLOW, word);
        self.bells.note(None);
    }

    /// Returns a slot; `None` if it is out of range.
    #[inline]
    pub(crate) fn slot(&self, slot: SlotId) -> Option<Slot<'_, M>> {
        Slot::new(&self.arena, &self.layout, slot)
    }

    /// Returns the next command; `Err` if what the application wrote is none.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Result<Command, atoll_ipc::event::BadMessage>> {
        if self.is_cut_off {
            return None;
        }
        // An application has one life, so its epoch is not needed.
        self.commands.pop(&self.arena).map(|(_, payload)| Command::decode(&payload))
    }

    /// Puts back the command that [`Session::pop`] has just returned: it could not be carried out yet, and is
    /// the next one, now and for a successor.
    pub(crate) fn put_back(&mut self) {
        self.commands.put_back();
    }

    /// Notes that a command was carried out, or that there was none, for a session that ends.
    pub(crate) fn note_taken(&mut self, any: bool) {
        if let Some(ending) = &mut self.ending {
            ending.note_taken(any);
        }
    }

    #[inline]
    pub(crate) fn has_command(&self) -> bool {
        self.hears() && self.commands.is_ready(&self.arena)
    }

    /// Returns whether its commands wait because of earlier ones. Those of a session that ends do not wait:
    /// it sends nothing more.
    pub(crate) fn is_paced(&mut self, now: Instant) -> bool {
        self.ending.is_none() && self.pace.waits(now)
    }

    /// Cuts the session off: its commands are not read any more, which it can see.
    pub(crate) fn cut_off(&mut self) {
        self.is_cut_off = true;
        self.arena.store32_release(CUT_OFF, 1);
    }

    /// Returns whether the session is cut off.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.is_cut_off
    }

    /// Returns whether its commands are carried out: while the session exists, and afterwards those that it
    /// had sent before.
    #[inline]
    pub(crate) fn hears(&self) -> bool {
        let is_there = self.gone.is_none() || self.ending.as_ref().is_some_and(Ending::has_commands);
        is_there && !self.is_cut_off
    }

    #[inline]
    pub(crate) fn publish_commands(&mut self) {
        self.commands.publish(&self.arena);
    }

    /// Sends an event, and remembers to ring `bell` (`None` means every doorbell on which a thread sleeps).
    #[inline]
    pub(crate) fn push(&mut self, stats: &mut Stats, event: &Event, bell: Option<u32>) {
        // The programs of a session that is cut off still run, and learn that their sockets fail.
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

    /// Passes the doorbells of this flush that have to be rung now to `ring`. Each is rung once per sleep.
    pub(crate) fn take_bells(&mut self, ring: impl FnMut(u32)) {
        self.bells.take(&self.arena, ring);
    }

    // ---- memory ----

    /// Returns the memory of receive buffers.
    #[inline]
    pub(crate) const fn memory(&self) -> &ReceiveMemory {
        &self.memory
    }

    /// Gives the memory of free pieces of the receive area back. The smallest are kept, because they are used
    /// again soon.
    pub(crate) fn discard_free(&self) {
        self.memory.discard_free(|at, len| self.arena.discard(self.layout.receive_area + at, len));
    }

    // ---- slots ----

    /// Returns how many sockets use the arena.
    pub(crate) const fn sockets(&self) -> u32 {
        self.slots.sockets()
    }

    /// Returns how many of them are datagram sockets.
    pub(crate) const fn datagram_sockets(&self) -> u32 {
        self.slots.datagram_sockets()
    }

    /// Lets an occupant keep its slot, in either half. Returns `false` if the slot has another occupant.
    pub(crate) fn occupy_again(&mut self, slot: SlotId, generation: u32, occupant: Occupant) -> bool {
        self.slots.occupy_again(&self.arena, slot, generation, occupant)
    }

    /// Leaves a slot that was kept for its occupant without one, until that comes or [`Session::settle`] is
    /// called. Returns `false` if the slot had none.
    pub(crate) fn leave(&mut self, slot: SlotId) -> bool {
        self.slots.leave(slot)
    }

    /// Frees the slot if no occupant has come.
    pub(crate) fn settle(&mut self, slot: SlotId) {
        self.slots.settle(&self.arena, slot);
    }

    /// Returns how many of the replica's slots have been examined.
    #[cfg(test)]
    pub(crate) fn seen_slots(&self) -> u32 {
        self.slots.seen()
    }

    /// Returns the occupant of the slot in this generation.
    #[inline]
    pub(crate) fn occupant(&self, slot: SlotId, generation: u32) -> Occupant {
        self.slots.occupant(slot, generation)
    }

    /// Returns whether the slot exists and has no occupant, in any generation.
    pub(crate) fn is_vacant(&self, slot: SlotId) -> bool {
        self.slots.is_vacant(slot)
    }

    /// Returns whether an offer in this slot may have had this generation once.
    pub(crate) fn was_offered(&self, slot: SlotId, generation: u32) -> bool {
        self.slots.was_offered(&self.arena, slot, generation)
    }

    /// Returns every occupied slot, in order.
    pub(crate) fn occupants(&self) -> Vec<(SlotId, u32, Occupant)> {
        self.slots.occupants()
    }

    /// Returns the next occupied slot from the `cursor`th on, which counts the application's and then the
    /// replica's, or `None` if there is none among the next `max`. Also returns the cursor to continue with.
    /// At the end the cursor stays.
    pub(crate) fn occupied_from(&self, cursor: u32, max: u32) -> (u32, Option<(SlotId, u32, Occupant)>) {
        self.slots.occupied_from(cursor, max)
    }

    /// Occupies one of the application's own slots, in which it has opened a socket. Returns `false` if it
    /// may not.
    pub(crate) fn occupy(&mut self, slot: SlotId, generation: u32, occupant: Occupant) -> bool {
        self.slots.occupy(slot, generation, occupant)
    }

    /// Returns whether its user may have one more socket.
    pub(crate) fn has_room_for_socket(&self) -> bool {
        self.slots.has_room_for_socket()
    }

    /// Takes a slot for a connection to offer, under a new generation. Returns `None` if all are in use, or
    /// the user has as many sockets as allowed.
    pub(crate) fn allocate(&mut self, occupant: Occupant) -> Option<(SlotId, u32)> {
        self.slots.allocate(&self.arena, occupant)
    }

    /// Frees a slot. `revoked` says that an offer was taken back, which a record names, and whose claim may
    /// still come: the slot is used again only after [`Session::reuse`].
    pub(crate) fn vacate(&mut self, slot: SlotId, revoked: bool) {
        self.slots.vacate(&self.arena, slot, revoked);
    }

    /// Lets the slot of a revoked offer be used again, because no record names it any more. Its generation
    /// shows a successor whether its text is there.
    pub(crate) fn reuse(&mut self, slot: SlotId) {
        self.slots.reuse(slot);
    }
}
