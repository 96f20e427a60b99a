//! What does a replica keep of one application? Its rings, its slots, and who occupies them.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use atoll_base::{Epoch, Instant, SessionId, SlotId};
use atoll_ipc::arena::{ArenaLayout, COMMANDS, EVENTS, OVERFLOW, REPLICA_EPOCH};
use atoll_ipc::page::{AppPage, BELLS, Stat};
use atoll_ipc::pool::{CONTROL_BYTES, Pool, UNIT_BYTES};
use atoll_ipc::ring::{Consumer, Producer};
use atoll_ipc::slot::{Slot, SlotState};
use atoll_ipc::{Command, Event, Memory};

use crate::lazy::LazyMemory;
use crate::pressure::Pressure;
use crate::stats::Stats;

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
    /// Free slots among the replica's; taken from the back. Revoked ones go to the front, because their late claim is still
    /// to come.
    free: VecDeque<u32>,
    /// Sockets that use the arena.
    pub(crate) sockets: u32,
    /// Bells to be considered at the end of the flush.
    bells: u32,
    /// The sleep word for which each bell was rung last.
    rung: [u32; BELLS],
    /// The application has ended; what is left is given up at this moment.
    pub(crate) gone: Option<Instant>,
    pub(crate) pressure: Pressure,
}

/// A slot's user, and the generation it has.
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
    pub(crate) fn new(id: SessionId, layout: ArenaLayout, arena: M, page: AppPage<M>, epoch: Epoch) -> Session<M> {
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
            free: VecDeque::new(),
            sockets: 0,
            bells: 0,
            rung: [0; BELLS],
            gone: None,
            pressure: Pressure::default(),
        }
    }

    /// Slots of offers that a predecessor has used: they keep their generations, and nobody occupies them yet.
    pub(crate) fn resume(&mut self) {
        for slot in self.layout.replica_slots() {
            let generation = self.slot(SlotId(slot)).map_or(0, |view| view.replica_generation());
            if generation == 0 {
                break;
            }
            self.replica.push(Occupied { occupant: Occupant::Nobody, generation });
        }
    }

    /// The occupant of a slot, in whichever half, goes on with it. `false`: it has another one.
    pub(crate) fn occupy_again(&mut self, slot: SlotId, generation: u32, occupant: Occupant) -> bool {
        let Some(index) = slot.0.checked_sub(self.layout.replica_slots().start) else {
            return self.occupy(slot, generation, occupant);
        };
        let Some(place) = self.replica.get_mut(index as usize) else { return false };
        if place.occupant != Occupant::Nobody || place.generation != generation {
            return false;
        }
        place.occupant = occupant;
        self.sockets += 1;
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
        place.occupant = Occupant::Nobody;
        self.sockets -= 1;
        true
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

    /// Slots, and their generations, in which the application may have a socket although nobody occupies them.
    pub(crate) fn unoccupied(&self) -> Vec<(SlotId, u32)> {
        let generation = |slot: u32| self.slot(SlotId(slot)).map_or(0, |view| view.replica_generation());
        // The library takes its slots in order, and so does the replica.
        let used = self.layout.application_slots().take_while(|slot| {
            self.slot(SlotId(*slot)).is_some_and(|view| view.app_generation() != 0 || view.replica_generation() != 0)
        });
        let offered = self.layout.replica_slots().take(self.replica.len());
        used.chain(offered)
            .map(|slot| (SlotId(slot), generation(slot)))
            .filter(|(slot, generation)| *generation != 0 && self.is_vacant(*slot))
            .collect()
    }

    /// All occupants are known: what is free is free, and the application looks at everything.
    pub(crate) fn rebuild(&mut self) {
        let half = self.layout.replica_slots().start;
        for index in 0..self.replica.len() as u32 {
            self.settle(SlotId(half + index));
        }
        let word = self.arena.load32(OVERFLOW).wrapping_add(1);
        self.arena.store32_release(OVERFLOW, word);
        self.bells = u32::MAX;
    }

    /// The slot, `None` out of range.
    #[inline]
    pub(crate) fn slot(&self, slot: SlotId) -> Option<Slot<'_, M>> {
        Slot::new(&self.arena, &self.layout, slot)
    }

    /// The next command; `Err` if what the application wrote is none.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Result<Command, atoll_ipc::event::BadMessage>> {
        // An application has one life, so its epoch says nothing.
        self.commands.pop(&self.arena).map(|(_, payload)| Command::decode(&payload))
    }

    #[inline]
    pub(crate) fn has_command(&self) -> bool {
        self.gone.is_none() && self.commands.is_ready(&self.arena)
    }

    #[inline]
    pub(crate) fn publish_commands(&mut self) {
        self.commands.publish(&self.arena);
    }

    /// Sends an event, and remembers to ring `bell` (`None`: every bell that somebody sleeps on).
    #[inline]
    pub(crate) fn push(&mut self, stats: &mut Stats, event: &Event, bell: Option<u32>) {
        if self.gone.is_some() {
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
        let is_past = |place: &Occupied| generation.wrapping_sub(place.generation) as i32 <= 0;
        self.layout.replica_slots().contains(&slot.0) && self.occupied(slot).is_some_and(is_past)
    }

    /// Every occupied slot, in order.
    pub(crate) fn occupants(&self) -> Vec<(SlotId, u32, Occupant)> {
        let half = self.layout.replica_slots().start;
        let all = (0..).zip(&self.application).chain((half..).zip(&self.replica));
        all.filter(|(_, place)| place.occupant != Occupant::Nobody)
            .map(|(slot, place)| (SlotId(slot), place.generation, place.occupant))
            .collect()
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
        self.sockets += 1;
        true
    }

    /// Takes a slot for a connection to offer, under a new generation. `None`: all are in use.
    pub(crate) fn allocate(&mut self, occupant: Occupant) -> Option<(SlotId, u32)> {
        let range = self.layout.replica_slots();
        let slot = match self.free.pop_back() {
            Some(slot) => slot,
            None => {
                let slot = range.start + self.replica.len() as u32;
                if slot >= range.end {
                    return None;
                }
                // What an earlier incarnation has used is not used again.
                let last = self.slot(SlotId(slot)).map_or(0, |slot| slot.replica_generation());
                self.replica.push(Occupied { occupant: Occupant::Nobody, generation: last });
                slot
            }
        };
        let place = self.replica.get_mut((slot - range.start) as usize)?;
        *place = Occupied { occupant, generation: place.generation.wrapping_add(1).max(1) };
        self.sockets += 1;
        Some((SlotId(slot), place.generation))
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
