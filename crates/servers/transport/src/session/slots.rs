//! The occupants of a session's slots. The application fills its own half; the replica offers connections in
//! the other.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use atoll_base::SlotId;
use atoll_ipc::Memory;
use atoll_ipc::arena::ArenaLayout;
use atoll_ipc::slot::{Slot, SlotState};

use super::Occupant;
use crate::users::Holdings;

/// The slots of a session, and their occupants.
#[derive(Debug)]
pub(crate) struct Slots {
    layout: ArenaLayout,
    application: Vec<Occupied>,
    replica: Vec<Occupied>,
    /// All slots of the replica's half before this one have been examined.
    seen: u32,
    /// The free slots of the replica's half, taken from the back. Revoked ones go to the front, because their
    /// late claim is still to come.
    free: VecDeque<u32>,
    /// The number of sockets that use the arena.
    sockets: u32,
    /// The number of datagram sockets among them.
    datagram_sockets: u32,
    /// The totals of the user's sessions.
    of_user: Arc<Holdings>,
}

/// The occupant of a slot, and the slot's generation; 0 if the slot was not examined yet, so that a
/// predecessor may have used it.
#[derive(Clone, Copy, Debug, Default)]
struct Occupied {
    occupant: Occupant,
    generation: u32,
}

impl Slots {
    /// Creates the slots of a session, all vacant.
    pub(crate) fn new(layout: ArenaLayout, of_user: Arc<Holdings>) -> Slots {
        Slots {
            layout,
            application: Vec::new(),
            replica: Vec::new(),
            seen: 0,
            free: VecDeque::new(),
            sockets: 0,
            datagram_sockets: 0,
            of_user,
        }
    }

    /// Returns how many sockets use the arena.
    pub(crate) const fn sockets(&self) -> u32 {
        self.sockets
    }

    /// Returns how many of them are datagram sockets.
    pub(crate) const fn datagram_sockets(&self) -> u32 {
        self.datagram_sockets
    }

    fn view<'a, M: Memory>(&self, arena: &'a M, slot: SlotId) -> Option<Slot<'a, M>> {
        Slot::new(arena, &self.layout, slot)
    }

    /// Lets an occupant keep its slot, in either half. Returns `false` if the slot has another occupant.
    pub(crate) fn occupy_again<M: Memory>(
        &mut self,
        arena: &M,
        slot: SlotId,
        generation: u32,
        occupant: Occupant,
    ) -> bool {
        let Some(index) = slot.0.checked_sub(self.layout.replica_slots().start) else {
            return self.occupy(slot, generation, occupant);
        };
        let is_its = self.view(arena, slot).is_some_and(|view| view.replica_generation() == generation);
        if !is_its || generation == 0 || !self.layout.replica_slots().contains(&slot.0) {
            return false;
        }
        self.extend(index);
        let Some(place) =
            self.replica.get_mut(index as usize).filter(|place| place.occupant == Occupant::Nobody)
        else {
            return false;
        };
        *place = Occupied { occupant, generation };
        self.count(occupant);
        true
    }

    /// Leaves a slot that was kept for its occupant without one, until that comes or [`Slots::settle`] is
    /// called. Returns `false` if the slot had none.
    pub(crate) fn leave(&mut self, slot: SlotId) -> bool {
        let half = self.layout.replica_slots().start;
        let place = match slot.0.checked_sub(half) {
            Some(index) => self.replica.get_mut(index as usize),
            None => self.application.get_mut(slot.0 as usize),
        };
        let Some(place) = place.filter(|place| place.occupant != Occupant::Nobody) else { return false };
        let was = core::mem::take(&mut place.occupant);
        self.sockets -= 1;
        self.of_user.socket_closed();
        self.datagram_sockets -= u32::from(matches!(was, Occupant::Datagram(_)));
        true
    }

    /// Counts one more socket that uses the arena.
    fn count(&mut self, occupant: Occupant) {
        self.sockets += 1;
        self.of_user.socket_opened();
        self.datagram_sockets += u32::from(matches!(occupant, Occupant::Datagram(_)));
    }

    /// Makes places for this slot of the replica's half, and for those before it, which were not examined.
    fn extend(&mut self, index: u32) {
        if self.replica.len() <= index as usize {
            self.replica.resize(index as usize + 1, Occupied::default());
        }
    }

    /// Examines slots that predecessors may have offered, in order, until one of them is free. Returns it,
    /// and its last generation.
    ///
    /// What an application has written there decides nothing: a slot that no record names is free, and its
    /// next generation is another one than that of a late claim. So this costs one look for each slot that is
    /// used, and not one for each that an application has marked.
    fn look_for_free<M: Memory>(&mut self, arena: &M) -> Option<(u32, u32)> {
        loop {
            let slot = self.layout.replica_slots().start.checked_add(self.seen)?;
            if !self.layout.replica_slots().contains(&slot) {
                return None;
            }
            self.extend(self.seen);
            let place = self.replica.get(self.seen as usize)?;
            self.seen += 1;
            if place.generation == 0 {
                let view = self.view(arena, SlotId(slot))?;
                let last = view.replica_generation();
                view.revoke(last);
                view.set_state(SlotState::Free);
                return Some((slot, last));
            }
        }
    }

    /// Frees the slot if no occupant has come.
    pub(crate) fn settle<M: Memory>(&mut self, arena: &M, slot: SlotId) {
        let index = slot.0.checked_sub(self.layout.replica_slots().start);
        let place = index.and_then(|index| self.replica.get(index as usize));
        if place.is_some_and(|place| place.occupant == Occupant::Nobody) {
            // A claim of the last offer may still come.
            self.free.push_front(slot.0);
            if let Some(view) = self.view(arena, slot).filter(|view| view.state() != SlotState::Free) {
                view.revoke(view.replica_generation());
                view.set_state(SlotState::Free);
            }
        }
    }

    /// Returns how many of the replica's slots have been examined.
    #[cfg(test)]
    pub(crate) const fn seen(&self) -> u32 {
        self.seen
    }

    /// Returns the occupant of the slot in this generation.
    #[inline]
    pub(crate) fn occupant(&self, slot: SlotId, generation: u32) -> Occupant {
        match self.occupied(slot) {
            Some(place) if place.generation == generation => place.occupant,
            _ => Occupant::Nobody,
        }
    }

    /// Returns whether the slot exists and has no occupant, in any generation.
    pub(crate) fn is_vacant(&self, slot: SlotId) -> bool {
        slot.0 < self.layout.slot_count
            && self.occupied(slot).is_none_or(|place| place.occupant == Occupant::Nobody)
    }

    /// Returns whether an offer in this slot may have had this generation once.
    pub(crate) fn was_offered<M: Memory>(&self, arena: &M, slot: SlotId, generation: u32) -> bool {
        let last = match self.occupied(slot) {
            Some(place) if place.generation != 0 => Some(place.generation),
            // The generation is that of a predecessor, if there was one.
            _ => self.view(arena, slot).map(|view| view.replica_generation()).filter(|last| *last != 0),
        };
        let is_past = |last: u32| generation.wrapping_sub(last) as i32 <= 0;
        self.layout.replica_slots().contains(&slot.0) && last.is_some_and(is_past)
    }

    /// Returns every occupied slot, in order.
    pub(crate) fn occupants(&self) -> Vec<(SlotId, u32, Occupant)> {
        let half = self.layout.replica_slots().start;
        let all = (0..).zip(&self.application).chain((half..).zip(&self.replica));
        all.filter(|(_, place)| place.occupant != Occupant::Nobody)
            .map(|(slot, place)| (SlotId(slot), place.generation, place.occupant))
            .collect()
    }

    /// Returns the next occupied slot from the `cursor`th on, which counts the application's and then the
    /// replica's, or `None` if there is none among the next `max`. Also returns the cursor to continue with.
    /// At the end the cursor stays.
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

    /// Occupies one of the application's own slots, in which it has opened a socket. Returns `false` if it
    /// may not.
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

    /// Returns whether its user may have one more socket.
    pub(crate) fn has_room_for_socket(&self) -> bool {
        self.of_user.has_room()
    }

    /// Takes a slot for a connection to offer, under a new generation. Returns `None` if all are in use, or
    /// the user has as many sockets as allowed.
    pub(crate) fn allocate<M: Memory>(&mut self, arena: &M, occupant: Occupant) -> Option<(SlotId, u32)> {
        if !self.has_room_for_socket() {
            return None;
        }
        let range = self.layout.replica_slots();
        let (slot, last) = match self.free.pop_back() {
            Some(slot) => (slot, None),
            // A generation that an earlier incarnation has used is not used again.
            None => self.look_for_free(arena).map(|(slot, last)| (slot, Some(last)))?,
        };
        let place = self.replica.get_mut((slot - range.start) as usize)?;
        let generation = last.unwrap_or(place.generation).wrapping_add(1).max(1);
        *place = Occupied { occupant, generation };
        self.count(occupant);
        Some((SlotId(slot), generation))
    }

    /// Frees a slot. `revoked` says that an offer was taken back, which a record names, and whose claim may
    /// still come: the slot is used again only after [`Slots::reuse`].
    pub(crate) fn vacate<M: Memory>(&mut self, arena: &M, slot: SlotId, revoked: bool) {
        if let Some(view) = self.view(arena, slot) {
            view.set_state(SlotState::Free);
        }
        if self.leave(slot) && self.layout.replica_slots().contains(&slot.0) && !revoked {
            self.free.push_back(slot.0);
        }
    }

    /// Lets the slot of a revoked offer be used again, because no record names it any more. Its generation
    /// shows a successor whether its text is there.
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
