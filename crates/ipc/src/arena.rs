//! The layout of a session arena.
//!
//! One arena (a memfd) joins one application process (with the children that inherited its sockets) and one
//! replica.
//!
//! ```text
//!   0       header lines (below)
//!   4096    command ring        application -> replica
//!           event ring          replica -> application
//!           slots               one per socket; the first half is handed out by the application,
//!                              the second by the replica
//!           library region      application only: lock, pool of the send area
//!           send area           rings of send buffers; allocated by the application
//!           receive area        rings of receive buffers; allocated by the replica
//! ```
//! The arena is sparse: only what was touched takes memory.

use core::mem::offset_of;

use crate::info::INFO_BYTES;
use crate::layout::{record, words};
use crate::pool::{self, LINK_BYTES, UNIT_BYTES};
use crate::ring::ring_bytes;

/// The number of entries of the command ring.
pub const COMMANDS: usize = 4096;
/// The number of entries of the event ring.
pub const EVENTS: usize = 8192;
/// The size of one socket slot in bytes: four cache lines.
pub const SLOT_BYTES: usize = 256;

words! {
    /// What lies before the command ring.
    struct Header {
        reserved: [u8; 64],
        replica_epoch: u32,
        overflow: u32,
        cut_off: u32; 180 unused,
        info: [u8; INFO_BYTES],
    }
}

/// The offset of the replica's epoch (u32), which the replica writes.
pub const REPLICA_EPOCH: usize = offset_of!(Header, replica_epoch);
/// The offset of the number of times (u32) that an event did not fit the ring, which the replica writes. When
/// it changes, the library reads all its slots.
pub const OVERFLOW: usize = offset_of!(Header, overflow);
/// The offset of a word (u32) that the replica sets to 1 when it stops listening to the session, because
/// servers have died of it.
pub const CUT_OFF: usize = offset_of!(Header, cut_off);
/// The offset of the replica's answer to [`crate::Command::Info`], which is [`INFO_BYTES`] long.
pub const INFO: usize = offset_of!(Header, info);

const COMMAND_RING: usize = 4096;
const _: () = assert!(size_of::<Header>() <= COMMAND_RING);

words! {
    /// The library region before the link table of its pool. It survives the process that wrote it: a child
    /// that inherited the arena continues where its parent stopped. It means nothing to replicas.
    struct Library {
        lock: u32; 60 unused,
        slots_used: u32,
        slots_free: u32; 952 unused,
        calls: u64,
        calls_with_system_call: u64,
        interception: u64,
        calls_by_instruction: u64,
        calls_by_trap: u64; 3032 unused,
        pool: [u8; pool::CONTROL_BYTES]; 4032 unused,
    }
}

/// Offsets in the library region ([`ArenaLayout::library`]).
pub mod library {
    use core::mem::offset_of;

    use super::Library;

    /// The offset of the lock word (u32) of the family of processes that share the arena.
    pub const LOCK: usize = offset_of!(Library, lock);
    /// The offset of the number of application slots handed out so far (u32).
    pub const SLOTS_USED: usize = offset_of!(Library, slots_used);
    /// The offset of the first free slot plus 1 (u32); 0 if none is. Free slots are linked by a library word.
    pub const SLOTS_FREE: usize = offset_of!(Library, slots_free);
    /// The offset of the number of calls that were resolved (u64), which the supervisor reads.
    pub const CALLS: usize = offset_of!(Library, calls);
    /// The offset of the number of calls that made a system call (u64), which the supervisor reads.
    pub const CALLS_WITH_SYSTEM_CALL: usize = offset_of!(Library, calls_with_system_call);
    /// The offset of the way by which calls of the process reach the library (u64), which the supervisor
    /// reads.
    pub const INTERCEPTION: usize = offset_of!(Library, interception);
    /// The offset of the number of calls that came past the C library's functions (u64), which the supervisor
    /// reads.
    pub const CALLS_BY_INSTRUCTION: usize = offset_of!(Library, calls_by_instruction);
    /// The offset of the number of those calls that cost a trap (u64), which the supervisor reads.
    pub const CALLS_BY_TRAP: usize = offset_of!(Library, calls_by_trap);
    /// The end of these five words.
    pub const CALLS_END: usize = CALLS_BY_TRAP + size_of::<u64>();
}

record! {
    /// The sizes of one arena. The supervisor decides them and sends them to both sides; neither reads them
    /// from the arena.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ArenaConfig {
        /// Number of slots, a power of two.
        pub slots: u32,
        /// Size of the send area as a power of two, 16..=32.
        pub send_log2: u8,
        /// Size of the receive area as a power of two, 16..=32.
        pub receive_log2: u8,
    } if is_valid
}

impl Default for ArenaConfig {
    fn default() -> ArenaConfig {
        ArenaConfig { slots: 1 << 18, send_log2: 30, receive_log2: 30 }
    }
}

/// Offsets in an arena of given sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaLayout {
    /// Start of the command ring of [`COMMANDS`] entries.
    pub commands: usize,
    /// Start of the event ring of [`EVENTS`] entries.
    pub events: usize,
    /// Start of the slots.
    pub slots: usize,
    /// Number of slots.
    pub slot_count: u32,
    /// Start of the region that belongs to the library alone.
    pub library: usize,
    /// Pool of the send area (control block and links in the library region).
    pub send_pool: pool::Pool,
    /// Start of the send area.
    pub send_area: usize,
    /// Bytes of the send area.
    pub send_bytes: usize,
    /// Start of the receive area.
    pub receive_area: usize,
    /// Bytes of the receive area.
    pub receive_bytes: usize,
    /// Size of the whole arena.
    pub total: usize,
}

impl ArenaConfig {
    /// The sizes of an arena for a process that has hardly any address space: 4 MiB.
    pub const SMALLEST: ArenaConfig = ArenaConfig { slots: 256, send_log2: 20, receive_log2: 20 };

    /// Returns these sizes, or as much smaller ones as it takes for an arena to be no larger than `room`
    /// bytes. None becomes smaller than that of [`ArenaConfig::SMALLEST`], unless it is already. Panics if
    /// these sizes are not valid.
    pub fn within(mut self, room: usize) -> ArenaConfig {
        let least = ArenaConfig::SMALLEST;
        while self.layout().total > room {
            // Slots come with buffers: at least a page of either area for each.
            let buffers = 1u64 << self.send_log2.min(self.receive_log2);
            if u64::from(self.slots) * 4096 > buffers && self.slots > least.slots {
                self.slots /= 2;
            } else if self.receive_log2 >= self.send_log2 && self.receive_log2 > least.receive_log2 {
                self.receive_log2 -= 1;
            } else if self.send_log2 > least.send_log2 {
                self.send_log2 -= 1;
            } else if self.receive_log2 > least.receive_log2 {
                self.receive_log2 -= 1;
            } else if self.slots > least.slots {
                self.slots /= 2;
            } else {
                break;
            }
        }
        self
    }

    /// Returns whether the sizes are within limits. A process that gets invalid sizes refuses to attach.
    pub const fn is_valid(&self) -> bool {
        self.slots.is_power_of_two()
            && self.slots >= 16
            && self.slots <= 1 << 22
            && self.send_log2 >= 16
            && self.send_log2 <= 32
            && self.receive_log2 >= 16
            && self.receive_log2 <= 32
    }

    /// Returns the layout for these sizes. Panics if they are not valid.
    pub const fn layout(&self) -> ArenaLayout {
        assert!(self.is_valid(), "arena sizes are validated before use");
        let commands = COMMAND_RING;
        let events = page_up(commands + ring_bytes(COMMANDS));
        let slots = page_up(events + ring_bytes(EVENTS));
        let library = page_up(slots + self.slots as usize * SLOT_BYTES);
        let send_bytes = 1usize << self.send_log2;
        let units = (send_bytes / UNIT_BYTES) as u32;
        let links = library + size_of::<Library>();
        let send_area = huge_up(links + units as usize * LINK_BYTES);
        let receive_area = send_area + send_bytes;
        let receive_bytes = 1usize << self.receive_log2;
        ArenaLayout {
            commands,
            events,
            slots,
            slot_count: self.slots,
            library,
            send_pool: pool::Pool { control: library + offset_of!(Library, pool), links, units },
            send_area,
            send_bytes,
            receive_area,
            receive_bytes,
            total: receive_area + receive_bytes,
        }
    }
}

impl ArenaLayout {
    /// Returns the offset of a slot, or `None` for a number out of range.
    pub fn slot(&self, slot: atoll_base::SlotId) -> Option<usize> {
        (slot.0 < self.slot_count).then(|| self.slots + slot.0 as usize * SLOT_BYTES)
    }

    /// Returns the slots that the application hands out (outgoing connections, datagram sockets).
    pub fn application_slots(&self) -> core::ops::Range<u32> {
        0..self.slot_count / 2
    }

    /// Returns the slots that the replica hands out (accepted connections).
    pub fn replica_slots(&self) -> core::ops::Range<u32> {
        self.slot_count / 2..self.slot_count
    }
}

const fn page_up(n: usize) -> usize {
    n.next_multiple_of(4096)
}

const fn huge_up(n: usize) -> usize {
    n.next_multiple_of(2 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_fits_the_room_that_there_is() {
        let full = ArenaConfig::default();
        assert_eq!(full.within(usize::MAX), full);
        assert_eq!(full.within(full.layout().total), full);
        for room in [3 << 30, 1 << 30, 100 << 20, 30 << 20, 5 << 20, 4 << 20] {
            let config = full.within(room);
            let (total, room_mib) = (config.layout().total, room >> 20);
            assert!(config.is_valid() && total <= room, "{config:?} {room_mib}");
            assert!(config == full || total > room / 4, "{config:?} leaves most of {room_mib} MiB");
            assert!(config.slots >= 256 && config.slots <= full.slots, "{config:?} {room_mib}");
        }
        // Nothing smaller would be of use.
        assert_eq!(full.within(0), ArenaConfig::SMALLEST);
        assert_eq!(ArenaConfig::SMALLEST.layout().total, 4 << 20);
        // Sizes that were configured smaller stay.
        let small = ArenaConfig { slots: 16, send_log2: 16, receive_log2: 30 };
        assert_eq!(small.within(0), ArenaConfig { receive_log2: 20, ..small });
    }

    #[test]
    fn words_are_where_they_have_always_been() {
        assert_eq!([REPLICA_EPOCH, OVERFLOW, CUT_OFF, INFO], [64, 68, 72, 256]);
        use library::{
            CALLS, CALLS_BY_INSTRUCTION, CALLS_BY_TRAP, CALLS_END, CALLS_WITH_SYSTEM_CALL, INTERCEPTION,
            LOCK, SLOTS_FREE, SLOTS_USED,
        };
        assert_eq!([LOCK, SLOTS_USED, SLOTS_FREE], [0, 64, 68]);
        assert_eq!([CALLS, CALLS_WITH_SYSTEM_CALL, INTERCEPTION], [1024, 1032, 1040]);
        assert_eq!([CALLS_BY_INSTRUCTION, CALLS_BY_TRAP, CALLS_END], [1048, 1056, 1064]);
        let layout = ArenaConfig::default().layout();
        let [control, links] = [layout.send_pool.control, layout.send_pool.links];
        assert_eq!([control, links].map(|at| at - layout.library), [4096, 8192]);
    }

    #[test]
    fn regions_follow_each_other_without_overlap() {
        let layout = ArenaConfig { slots: 1024, send_log2: 20, receive_log2: 21 }.layout();
        assert!(layout.commands + ring_bytes(COMMANDS) <= layout.events);
        assert!(layout.events + ring_bytes(EVENTS) <= layout.slots);
        assert!(layout.slots + 1024 * SLOT_BYTES <= layout.library);
        assert!(layout.send_pool.links + (1 << 20) / UNIT_BYTES * LINK_BYTES <= layout.send_area);
        assert_eq!(layout.receive_area, layout.send_area + (1 << 20));
        assert_eq!(layout.total, layout.receive_area + (1 << 21));
        assert_eq!(layout.slot(atoll_base::SlotId(1024)), None);
    }
}
