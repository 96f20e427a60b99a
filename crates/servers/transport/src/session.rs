//! What does a replica know about one application process?

use alloc::vec::Vec;

use atoll_base::{SessionId, SlotId};
use atoll_ipc::arena::{ArenaLayout, COMMANDS, EVENTS, OVERFLOW, REPLICA_EPOCH};
use atoll_ipc::event::Event;
use atoll_ipc::page::{AppPage, BELLS};
use atoll_ipc::pool::{CONTROL_BYTES, Pool, UNIT_BYTES};
use atoll_ipc::ring::{Consumer, Producer};
use atoll_ipc::slot::Slot;
use atoll_ipc::{HeapMemory, Memory};

/// One session of this replica. Rings and slots live in the arena and survive a crash; the pool of the receive area and the slot
/// table are rebuilt from the slots.
#[derive(Debug)]
pub(crate) struct Session<M: Memory> {
    pub(crate) id: SessionId,
    pub(crate) arena: M,
    pub(crate) layout: ArenaLayout,
    pub(crate) commands: Consumer,
    events: Producer,
    epoch: u32,
    pub(crate) app_page: AppPage<M>,
    /// Receive area: who owns which block. On our heap, where the application cannot reach it.
    pub(crate) pool: Pool,
    pub(crate) pool_memory: HeapMemory,
    application_slots: Vec<SlotUse>,
    replica_slots: Vec<SlotUse>,
    free_slots: Vec<u32>,
    next_generation: u32,
    /// The last member is gone: everything closes.
    pub(crate) gone: bool,
    /// Members that are gone.
    pub(crate) gone_members: u64,
    /// Bells to ring after this batch, one bit each.
    pub(crate) bells: u32,
    /// Sleep word of each bell for which it was rung.
    rung: [u32; BELLS],
}

/// Who uses a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Nobody,
    Connection(u32),
    Datagrams(u32),
}

#[derive(Clone, Copy, Debug)]
struct SlotUse {
    generation: u32,
    target: Target,
}

const UNUSED: SlotUse = SlotUse { generation: 0, target: Target::Nobody };

impl<M: Memory> Session<M> {
    pub(crate) fn new(id: SessionId, epoch: u32, layout: ArenaLayout, arena: M, app_page: AppPage<M>) -> Session<M> {
        let units = (layout.receive_bytes / UNIT_BYTES) as u32;
        let links = CONTROL_BYTES.next_multiple_of(8);
        arena.store32(REPLICA_EPOCH, epoch);
        Session {
            id,
            commands: Consumer::resume(&arena, layout.commands, COMMANDS),
            events: Producer::resume(&arena, layout.events, EVENTS),
            epoch,
            pool: Pool { control: 0, links, units },
            pool_memory: HeapMemory::new(links + units as usize * 4),
            arena,
            layout,
            app_page,
            application_slots: Vec::new(),
            replica_slots: Vec::new(),
            free_slots: Vec::new(),
            next_generation: 1,
            gone: false,
            gone_members: 0,
            bells: 0,
            rung: [0; BELLS],
        }
    }

    /// The slot's lines.
    pub(crate) fn slot(&self, slot: SlotId) -> Option<Slot<'_, M>> {
        Slot::new(&self.arena, &self.layout, slot)
    }

    /// Who uses `slot` in `generation`.
    pub(crate) fn target(&self, slot: SlotId, generation: u32) -> Target {
        match self.table(slot).and_then(|(table, index)| table.get(index)) {
            Some(entry) if entry.generation == generation => entry.target,
            _ => Target::Nobody,
        }
    }

    /// Whether the application may open something in `slot`: one of its own, not in use.
    pub(crate) fn may_open(&self, slot: SlotId) -> bool {
        self.layout.application_slots().contains(&slot.0)
            && self.application_slots.get(slot.0 as usize).is_none_or(|entry| entry.target == Target::Nobody)
    }

    /// Records the user of a slot.
    pub(crate) fn set_target(&mut self, slot: SlotId, generation: u32, target: Target) {
        let first = self.layout.replica_slots().start;
        let (table, index) = if slot.0 < first {
            (&mut self.application_slots, slot.0 as usize)
        } else {
            (&mut self.replica_slots, (slot.0 - first) as usize)
        };
        if index >= table.len() {
            table.resize(index + 1, UNUSED);
        }
        table[index] = SlotUse { generation, target };
    }

    /// A free slot of ours for an accepted connection, with its generation; `None` if all are in use.
    pub(crate) fn allocate_slot(&mut self) -> Option<(SlotId, u32)> {
        let range = self.layout.replica_slots();
        let slot = match self.free_slots.pop() {
            Some(slot) => slot,
            None => {
                let slot = range.start + self.replica_slots.len() as u32;
                if !range.contains(&slot) {
                    return None;
                }
                slot
            }
        };
        let generation = self.next_generation;
        self.next_generation = self.next_generation.wrapping_add(1).max(1);
        Some((SlotId(slot), generation))
    }

    /// The slot is not in use any more.
    pub(crate) fn free_slot(&mut self, slot: SlotId) {
        self.set_target(slot, 0, Target::Nobody);
        if self.layout.replica_slots().contains(&slot.0) {
            self.free_slots.push(slot.0);
        }
    }

    /// Everything that uses a slot, with the slot.
    pub(crate) fn users(&self) -> Vec<(SlotId, u32, Target)> {
        let first = self.layout.replica_slots().start;
        let own = (0u32..).zip(&self.application_slots);
        let ours = (first..).zip(&self.replica_slots);
        own.chain(ours)
            .filter(|(_, entry)| entry.target != Target::Nobody)
            .map(|(slot, entry)| (SlotId(slot), entry.generation, entry.target))
            .collect()
    }

    /// Tells the application something; `bell` rings afterwards, all bells if `None`. Returns false if the ring was full and the
    /// overflow counter was raised instead.
    pub(crate) fn tell(&mut self, event: &Event, bell: Option<u32>) -> bool {
        if self.gone {
            return true;
        }
        self.bells |= bell.map_or(u32::MAX >> (32 - BELLS), |bell| 1 << (bell as usize % BELLS));
        if self.events.push(&self.arena, self.epoch, &event.encode()) {
            return true;
        }
        let count = self.arena.load32(OVERFLOW);
        self.arena.store32_release(OVERFLOW, count.wrapping_add(1));
        false
    }

    /// Passes the bells that somebody sleeps on to `ring`. The caller has fenced since the last event was pushed.
    pub(crate) fn take_bells(&mut self, mut ring: impl FnMut(SessionId, u32)) {
        let bells = core::mem::take(&mut self.bells);
        for bell in (0..BELLS as u32).filter(|bell| bells & (1 << bell) != 0) {
            let word = self.app_page.sleep_word(bell);
            let rung = &mut self.rung[bell as usize];
            if word & 1 == 1 && *rung != word {
                *rung = word;
                ring(self.id, bell);
            }
        }
    }

    fn table(&self, slot: SlotId) -> Option<(&Vec<SlotUse>, usize)> {
        let first = self.layout.replica_slots().start;
        if slot.0 < first {
            Some((&self.application_slots, slot.0 as usize))
        } else if slot.0 < self.layout.slot_count {
            Some((&self.replica_slots, (slot.0 - first) as usize))
        } else {
            None
        }
    }
}
