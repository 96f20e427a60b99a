//! The library's side of one session arena: commands out, events in, slots, and send buffers.
//!
//! The library region of the arena ([`atoll_ipc::arena::library`]) means nothing to replicas. It survives the
//! process that wrote it: a child that inherited the arena continues where its parent stopped.

use alloc::vec::Vec;

use atoll_base::SlotId;
use atoll_ipc::arena::library::{
    CALLS, CALLS_BY_INSTRUCTION, CALLS_BY_TRAP, CALLS_WITH_SYSTEM_CALL, INTERCEPTION, SLOTS_FREE, SLOTS_USED,
};
use atoll_ipc::arena::{ArenaLayout, COMMANDS, CUT_OFF, EVENTS, OVERFLOW};
use atoll_ipc::buffer::Extents;
use atoll_ipc::ring::{Consumer, Producer};
use atoll_ipc::slot::{REPLICA_CLOSED, Slot, SlotState};
use atoll_ipc::{Command, Event, Memory};

/// The library word of a slot that holds the generation that was closed and whose `SlotDone` is awaited, plus
/// the flag `CLOSING`. (If the holders died, only the slot's empty set of holders shows it.)
const WORD_CLOSING: usize = 0;
const WORD_LINK: usize = 1;
const CLOSING: u64 = 1 << 32;
/// The flag in `WORD_CLOSING` that says that the generation is over and everything that belonged to it was
/// given back.
const DONE: u64 = 1 << 33;
/// The epoch in messages of applications, which have no incarnations.
const EPOCH: u32 = 1;

/// The library's side of one arena.
#[derive(Debug)]
pub struct Port<M: Memory> {
    memory: M,
    layout: ArenaLayout,
    commands: Producer,
    events: Consumer,
    over: u32,
}

impl<M: Memory> Port<M> {
    /// Opens an arena, and continues where its last user stopped. Nothing is written: another process of the
    /// family, or another thread of the one that opens it for a child, may push a command at this moment. One
    /// that is opened beside others needs [`Port::reload`] before each command.
    pub fn new(memory: M, layout: ArenaLayout) -> Port<M> {
        let commands = Producer::join(&memory, layout.commands, COMMANDS);
        let events = Consumer::resume(&memory, layout.events, EVENTS);
        Port { memory, layout, commands, events, over: 0 }
    }

    /// Notes that the stack is gone: what its replica says of connections is the last word that it said.
    pub(crate) fn set_gone(&mut self) {
        self.over = REPLICA_CLOSED;
    }

    /// Returns the flags that hold for every connection, whatever the replica says: those of a connection
    /// that has ended, if the stack is gone; otherwise none.
    #[inline]
    pub(crate) fn over(&self) -> u32 {
        self.over
    }

    /// Returns the arena's memory.
    #[inline]
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the arena's layout.
    #[inline]
    pub fn layout(&self) -> &ArenaLayout {
        &self.layout
    }

    /// Returns a slot; `None` if the number is out of range.
    #[inline]
    pub fn slot(&self, slot: SlotId) -> Option<Slot<'_, M>> {
        Slot::new(&self.memory, &self.layout, slot)
    }

    /// Reads the position of the command ring again, because another process of the family may have pushed.
    /// The caller holds the family's lock. (Only the session's owner takes events.)
    pub fn reload(&mut self) {
        self.commands.reload(&self.memory);
    }

    /// Appends a command; returns false when the ring is full.
    #[inline]
    pub fn push(&mut self, command: &Command) -> bool {
        self.commands.push(&self.memory, EPOCH, &command.encode())
    }

    /// Returns whether an event waits.
    #[inline]
    pub fn has_event(&self) -> bool {
        self.events.is_ready(&self.memory)
    }

    /// Takes the next event; invalid ones are skipped.
    pub fn next_event(&mut self) -> Option<Event> {
        loop {
            let (_, payload) = self.events.pop(&self.memory)?;
            if let Ok(event) = Event::decode(&payload) {
                return Some(event);
            }
        }
    }

    /// Gives the space of taken events back to the replica. Call once per batch.
    pub fn publish(&mut self) {
        self.events.publish(&self.memory);
    }

    /// Returns how often an event did not fit the ring.
    #[inline]
    pub fn overflow(&self) -> u32 {
        self.memory.load32_acquire(OVERFLOW)
    }

    /// Returns whether the session is cut off: servers have died of it, and the replica reads none of its
    /// commands any more.
    #[inline]
    pub fn is_cut_off(&self) -> bool {
        self.memory.load32_acquire(CUT_OFF) != 0
    }

    /// Takes a slot of the application's half and starts a new generation in it. Returns `None` if all are in
    /// use.
    pub fn allocate_slot(&mut self) -> Option<(SlotId, u32)> {
        let m = &self.memory;
        let (used_at, free_at) = (self.layout.library + SLOTS_USED, self.layout.library + SLOTS_FREE);
        let range = self.layout.application_slots();
        let slot = match m.load32(free_at).checked_sub(1).filter(|n| range.contains(n)) {
            Some(n) => {
                let link = self.slot(SlotId(n))?.library_word(WORD_LINK);
                m.store32(free_at, u32::try_from(link).unwrap_or(0));
                SlotId(n)
            }
            None => {
                let n = m.load32(used_at);
                if !range.contains(&n) {
                    return None;
                }
                m.store32(used_at, n + 1);
                SlotId(n)
            }
        };
        let view = self.slot(slot)?;
        let generation = view.app_generation().wrapping_add(1).max(1);
        view.app_reset(generation);
        view.set_library_word(WORD_CLOSING, 0);
        Some((slot, generation))
    }

    /// Removes process `member` from the holders of a slot. Returns whether it was the last holder, which has
    /// to notify the replica. The caller holds the family's lock.
    pub fn close_slot(&self, slot: SlotId, generation: u32, member: u8) -> bool {
        let Some(view) = self.slot(slot).filter(|view| view.app_generation() == generation) else {
            return false;
        };
        if view.remove_holder(member) != 0 {
            return false;
        }
        self.mark_closing(slot, generation);
        true
    }

    /// Remembers that the slot was closed, so that [`Port::sweep`] finds it if its `SlotDone` is lost.
    pub fn mark_closing(&self, slot: SlotId, generation: u32) {
        if let Some(view) = self.slot(slot) {
            view.set_bell(0);
            view.set_library_word(WORD_CLOSING, CLOSING | u64::from(generation));
        }
    }

    /// Notes that the replica is done with a slot: its send buffer goes back to the pool, and a slot of the
    /// application's half goes to the free list. Returns whether the slot was waiting for this.
    pub fn slot_done(&mut self, slot: SlotId, generation: u32) -> bool {
        let Some(view) = self.slot(slot).filter(|view| self.is_over(view, generation)) else { return false };
        self.release_send(slot);
        // A slot marked as done is in at most one list; it is marked before it enters one.
        view.set_library_word(WORD_CLOSING, DONE | u64::from(generation));
        if self.layout.application_slots().contains(&slot.0) {
            let free_at = self.layout.library + SLOTS_FREE;
            view.set_library_word(WORD_LINK, u64::from(self.memory.load32(free_at)));
            self.memory.store32(free_at, slot.0 + 1);
        }
        true
    }

    /// Returns whether all holders of this generation of a slot have closed it or died, and
    /// [`Port::slot_done`] has not been called for it yet.
    fn is_over(&self, view: &Slot<'_, M>, generation: u32) -> bool {
        let (word, low) = (view.library_word(WORD_CLOSING), u64::from(generation));
        view.app_generation() == generation
            && (word == CLOSING | low || view.holders() == 0 && word != DONE | low)
    }

    /// Returns the send buffer of a slot to the pool, whatever the buffer holds.
    pub fn release_send(&self, slot: SlotId) {
        let Some(view) = self.slot(slot) else { return };
        if let Some(mut extents) = view.send_extents(&self.layout)
            && extents != Extents::default()
        {
            extents.release_all(&self.layout.send_pool.state_in(&self.memory));
            view.set_send_extents(&extents);
        }
    }

    /// Finishes every closed slot that its replica is done with. Call after events were lost.
    pub fn sweep(&mut self) {
        let used =
            self.memory.load32(self.layout.library + SLOTS_USED).min(self.layout.application_slots().end);
        for n in (0..used).chain(self.layout.replica_slots()) {
            let Some(view) = self.slot(SlotId(n)) else { return };
            let generation = view.app_generation();
            if generation != 0 && self.is_over(&view, generation) {
                if view.state() == SlotState::Free || view.replica_generation() != generation {
                    self.slot_done(SlotId(n), generation);
                }
            } else if view.replica_generation() == 0 && self.layout.replica_slots().contains(&n) {
                // Replicas hand out their slots in order: behind the first untouched one all are untouched.
                return;
            }
        }
    }

    /// Repairs the pool of the send area after a process died with the family's lock: the pool agrees with
    /// the slots again. The caller holds that lock. If it dies meanwhile, the next holder repairs the pool.
    ///
    /// A block that was taken and is in no slot yet becomes free. A block that was given back and is still in
    /// a slot becomes used, and the slot's next writer gives it back again. Slots that were being given back
    /// are lost together with the session's owner, the only process that gives them back.
    pub fn repair(&self) {
        let pool = &self.layout.send_pool;
        let used =
            self.memory.load32(self.layout.library + SLOTS_USED).min(self.layout.application_slots().end);
        let offered = self.layout.replica_slots().map_while(|n| {
            let view = self.slot(SlotId(n))?;
            (view.replica_generation() != 0).then_some(n)
        });
        let mut blocks = Vec::new();
        for view in (0..used).chain(offered).filter_map(|n| self.slot(SlotId(n))) {
            let extents = view.send_extents(&self.layout).unwrap_or_default();
            blocks.extend(
                [extents.current, extents.old].into_iter().flatten().map(|ring| (ring.unit, ring.log2)),
            );
        }
        pool.reset(&self.memory);
        // Two slots cannot name the same block: extents are published under the lock, after the pool has
        // handed out the blocks.
        pool.resume(&self.memory, &mut blocks);
    }

    /// Publishes the call counters.
    #[inline]
    pub fn set_counters(&self, calls: u64, with_system_call: u64) {
        self.memory.store64(self.layout.library + CALLS, calls);
        self.memory.store64(self.layout.library + CALLS_WITH_SYSTEM_CALL, with_system_call);
    }

    /// Publishes how many of the calls came past the C library's functions, and how many of these by a trap.
    pub fn set_ways(&self, by_instruction: u64, by_trap: u64) {
        self.memory.store64(self.layout.library + CALLS_BY_INSTRUCTION, by_instruction);
        self.memory.store64(self.layout.library + CALLS_BY_TRAP, by_trap);
    }

    /// Publishes by which way the calls of this process reach the library, a number that the process around
    /// the client defines.
    pub fn set_interception(&self, way: u8) {
        self.memory.store64(self.layout.library + INTERCEPTION, way.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_ipc::HeapMemory;
    use atoll_ipc::arena::ArenaConfig;

    fn port() -> Port<HeapMemory> {
        let layout = ArenaConfig { slots: 16, send_log2: 16, receive_log2: 16 }.layout();
        Port::new(HeapMemory::new(layout.total), layout)
    }

    #[test]
    fn opening_an_arena_writes_nothing_while_another_thread_pushes_a_command() {
        let layout = ArenaConfig { slots: 16, send_log2: 16, receive_log2: 16 }.layout();
        let memory = HeapMemory::new(layout.total);
        let mut port = Port::new(memory.clone(), layout);
        let kick = Command::Kick { slot: SlotId(1), generation: 1 };
        assert!(port.push(&kick));
        // The other thread is between the last two stores of its push.
        memory.store64(layout.commands, 0);
        let mut other = Port::new(memory.clone(), layout);
        assert_eq!(memory.load64(layout.commands), 0, "only the one that pushes says how far it is");
        // Only a turn with the lock finds that it died there.
        other.reload();
        assert_eq!(memory.load64(layout.commands), 1);
    }

    #[test]
    fn slots_come_back_after_slot_done_only() {
        let mut port = port();
        let slots: alloc::vec::Vec<_> =
            (0..8).map(|_| port.allocate_slot().expect("eight of sixteen")).collect();
        assert_eq!(port.allocate_slot(), None);
        let (slot, generation) = slots[3];
        port.slot(slot).expect("in range").set_holders(1);
        assert!(!port.slot_done(slot, generation), "not closed");
        assert!(!port.close_slot(slot, generation + 1, 0), "another generation");
        assert!(port.close_slot(slot, generation, 0));
        assert!(!port.slot_done(slot, generation + 1), "another generation");
        assert!(port.slot_done(slot, generation));
        assert!(!port.slot_done(slot, generation), "once");
        assert_eq!(port.allocate_slot(), Some((slot, generation + 1)));
    }

    #[test]
    fn a_lost_slot_done_is_found_by_a_sweep() {
        let mut port = port();
        let (slot, generation) = port.allocate_slot().expect("free");
        port.mark_closing(slot, generation);
        port.sweep();
        assert_eq!(port.allocate_slot(), Some((slot, generation + 1)));
    }
}
