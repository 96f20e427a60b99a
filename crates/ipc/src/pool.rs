//! A pool of buffer memory: a segregated free list of power-of-two blocks.
//!
//! Control block and link table live in memory of the allocating side only: the library's in the library
//! region of the arena (so that forked processes share it under the library's lock), the replica's on its
//! heap. Blocks are neither aligned to their size nor merged; a larger free block is split when nothing
//! smaller is left. When the last block comes back, the area is one piece again.

use alloc::vec::Vec;
use core::mem::offset_of;

use crate::layout::words;
use crate::memory::Memory;

/// The size of the smallest block: 2 KiB.
pub const UNIT_BYTES: usize = 1 << MIN_LOG2;
/// The binary logarithm of the smallest block's size.
pub const MIN_LOG2: u8 = 11;
/// The binary logarithm of the largest block's size: 4 MiB.
pub const MAX_LOG2: u8 = 22;
const CLASSES: usize = (MAX_LOG2 - MIN_LOG2 + 1) as usize;

words! {
    /// The control block. Heads, and links, hold the number of a unit plus 1; 0 ends a list.
    struct Control {
        /// The end, in units, of the part from which blocks were taken.
        bump: u32,
        used_units: u32; 8 unused,
        /// The list of free blocks of each size.
        heads: [u32; CLASSES],
    }
}

/// The size of the control block in bytes.
pub const CONTROL_BYTES: usize = size_of::<Control>();
/// The size of a link in bytes.
pub const LINK_BYTES: usize = size_of::<u32>();

const BUMP: usize = offset_of!(Control, bump);
const USED_UNITS: usize = offset_of!(Control, used_units);
const HEADS: usize = offset_of!(Control, heads);

/// The places of a pool's state in some memory. Zeroed memory is a pool in which everything is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Offset of the control block ([`CONTROL_BYTES`], 8-aligned).
    pub control: usize,
    /// Offset of the link table: [`LINK_BYTES`] per unit.
    pub links: usize,
    /// Number of units in the area.
    pub units: u32,
}

/// A source of the rings of buffers, to which they are given back.
pub trait Blocks {
    /// Takes a block of 2^`log2` bytes (`MIN_LOG2..=MAX_LOG2`). Returns its first unit, or `None` when
    /// nothing is to be had.
    fn allocate(&self, log2: u8) -> Option<u32>;

    /// Gives a block back. `unit` and `log2` must be those of an allocation; units out of range are ignored.
    fn free(&self, unit: u32, log2: u8);
}

/// A pool with the memory of its state.
#[derive(Clone, Copy, Debug)]
pub struct PoolIn<'a, M> {
    pool: Pool,
    memory: &'a M,
}

impl<M: Memory> Blocks for PoolIn<'_, M> {
    fn allocate(&self, log2: u8) -> Option<u32> {
        self.pool.allocate(self.memory, log2)
    }

    fn free(&self, unit: u32, log2: u8) {
        self.pool.free(self.memory, unit, log2);
    }
}

impl Pool {
    /// Returns the pool with its state in this memory.
    pub const fn state_in<'a, M: Memory>(&self, memory: &'a M) -> PoolIn<'a, M> {
        PoolIn { pool: *self, memory }
    }

    /// Takes a block of 2^`log2` bytes (`MIN_LOG2..=MAX_LOG2`). Returns its first unit, or `None` when
    /// nothing is free.
    pub fn allocate<M: Memory>(&self, memory: &M, log2: u8) -> Option<u32> {
        self.allocate_if(memory, log2, |_| true)
    }

    /// Takes a block like [`Pool::allocate`], but only one for which `suits` returns true. It is called with
    /// the first unit of a block that was given back, of one beyond all that were taken so far, and of a part
    /// of a larger one.
    pub fn allocate_if<M: Memory>(&self, memory: &M, log2: u8, suits: impl Fn(u32) -> bool) -> Option<u32> {
        assert!((MIN_LOG2..=MAX_LOG2).contains(&log2), "block size is one of the classes");
        let class = usize::from(log2 - MIN_LOG2);
        let units = 1u32 << class;
        let block = self
            .pop(memory, class, &suits)
            .or_else(|| self.bump(memory, units, &suits))
            .or_else(|| self.split(memory, class, &suits))?;
        let used = memory.load32(self.control + USED_UNITS).wrapping_add(units);
        memory.store32(self.control + USED_UNITS, used);
        Some(block)
    }

    /// Gives a block back. `unit` and `log2` must be those of an allocation; units out of range are ignored.
    pub fn free<M: Memory>(&self, memory: &M, unit: u32, log2: u8) {
        if !(MIN_LOG2..=MAX_LOG2).contains(&log2) || unit >= self.units {
            return;
        }
        let class = usize::from(log2 - MIN_LOG2);
        self.push(memory, class, unit);
        let used = memory.load32(self.control + USED_UNITS).wrapping_sub(1 << class);
        memory.store32(self.control + USED_UNITS, used);
        if used == 0 {
            self.reset(memory);
        }
    }

    /// Sets the state in `memory` to one in which nothing is in use.
    pub fn reset<M: Memory>(&self, memory: &M) {
        memory.store32(self.control + BUMP, 0);
        memory.store32(self.control + USED_UNITS, 0);
        (0..CLASSES).for_each(|class| memory.store32(self.head_at(class), 0));
    }

    /// Sets the state in `memory`, whatever it was, to one in which the `blocks` (first unit, log2) are in
    /// use, and nothing else. Sorts the blocks. Invalid blocks, and those that overlap with one before, are
    /// not in use: their indices in the sorted order are returned.
    pub fn resume<M: Memory>(&self, memory: &M, blocks: &mut [(u32, u8)]) -> Vec<usize> {
        self.reset(memory);
        blocks.sort_unstable();
        let (mut end, mut used) = (0u32, 0u32);
        let mut refused = Vec::new();
        for (number, &(unit, log2)) in blocks.iter().enumerate() {
            let is_block = (MIN_LOG2..=MAX_LOG2).contains(&log2);
            let units = if is_block { 1u32 << (log2 - MIN_LOG2) } else { 0 };
            if !is_block || unit < end || unit.checked_add(units).is_none_or(|end| end > self.units) {
                refused.push(number);
                continue;
            }
            // The space between blocks is free, in pieces.
            while end < unit {
                let class = ((unit - end).ilog2() as usize).min(CLASSES - 1);
                self.push(memory, class, end);
                end += 1 << class;
            }
            end += units;
            used += units;
        }
        memory.store32(self.control + BUMP, end);
        memory.store32(self.control + USED_UNITS, used);
        refused
    }

    /// Returns the number of bytes in use.
    pub fn used_bytes<M: Memory>(&self, memory: &M) -> usize {
        memory.load32(self.control + USED_UNITS) as usize * UNIT_BYTES
    }

    /// Returns the end, in units, of the part from which blocks have been taken since the area was one piece.
    pub fn high_units<M: Memory>(&self, memory: &M) -> u32 {
        memory.load32(self.control + BUMP).min(self.units)
    }

    /// Returns the free blocks of at least 2^`log2` bytes: first unit and log2 of each.
    pub fn free_blocks<M: Memory>(&self, memory: &M, log2: u8) -> Vec<(u32, u8)> {
        let mut blocks = Vec::new();
        for log2 in log2.max(MIN_LOG2)..=MAX_LOG2 {
            let mut next = memory.load32(self.head_at(usize::from(log2 - MIN_LOG2)));
            // A cyclic list is its owner's fault, and is not followed for ever.
            while let Some(unit) = next.checked_sub(1).filter(|unit| *unit < self.units)
                && blocks.len() <= self.units as usize
            {
                blocks.push((unit, log2));
                next = memory.load32(self.link_at(unit));
            }
        }
        blocks
    }

    fn head_at(&self, class: usize) -> usize {
        self.control + HEADS + class * size_of::<u32>()
    }

    fn link_at(&self, unit: u32) -> usize {
        self.links + unit as usize * LINK_BYTES
    }

    /// Takes the first unit of a list's head, if it suits.
    fn pop<M: Memory>(&self, memory: &M, class: usize, suits: impl Fn(u32) -> bool) -> Option<u32> {
        let unit = memory.load32(self.head_at(class)).checked_sub(1)?;
        if unit >= self.units {
            // Only the owner of this memory can have done this; drop the list rather than follow it.
            memory.store32(self.head_at(class), 0);
            return None;
        }
        if !suits(unit) {
            return None;
        }
        memory.store32(self.head_at(class), memory.load32(self.link_at(unit)));
        Some(unit)
    }

    fn push<M: Memory>(&self, memory: &M, class: usize, unit: u32) {
        memory.store32(self.link_at(unit), memory.load32(self.head_at(class)));
        memory.store32(self.head_at(class), unit + 1);
    }

    fn bump<M: Memory>(&self, memory: &M, units: u32, suits: impl Fn(u32) -> bool) -> Option<u32> {
        let unit = memory.load32(self.control + BUMP);
        let end = unit.checked_add(units).filter(|end| *end <= self.units && suits(unit))?;
        memory.store32(self.control + BUMP, end);
        Some(unit)
    }

    fn split<M: Memory>(&self, memory: &M, class: usize, suits: impl Fn(u32) -> bool) -> Option<u32> {
        let (larger, unit) =
            (class + 1..CLASSES).find_map(|c| self.pop(memory, c, &suits).map(|unit| (c, unit)))?;
        // Keep the first part, free the halves behind it.
        for c in (class..larger).rev() {
            self.push(memory, c, unit + (1 << c));
        }
        Some(unit)
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use atoll_base::Rng;

    use super::*;
    use crate::memory::HeapMemory;

    #[test]
    fn an_area_in_pieces_is_whole_again_when_all_of_them_are_back() {
        let memory = HeapMemory::new(CONTROL_BYTES + 8 + 32 * LINK_BYTES);
        let pool = Pool { control: 0, links: CONTROL_BYTES.next_multiple_of(8), units: 32 };
        let pieces: alloc::vec::Vec<_> = core::iter::from_fn(|| pool.allocate(&memory, MIN_LOG2)).collect();
        assert_eq!(pieces.len(), 32);
        for unit in &pieces[1..] {
            pool.free(&memory, *unit, MIN_LOG2);
        }
        assert_eq!(pool.allocate(&memory, MIN_LOG2 + 1), None);
        pool.free(&memory, pieces[0], MIN_LOG2);
        assert!(pool.allocate(&memory, MIN_LOG2 + 5).is_some());
    }

    #[test]
    fn a_successor_goes_on_with_the_blocks_that_are_in_use() {
        let units = 64;
        let pool = Pool { control: 0, links: CONTROL_BYTES.next_multiple_of(8), units };
        let memory = HeapMemory::new(CONTROL_BYTES + 8 + units as usize * LINK_BYTES);
        // The state is replaced, whatever was given back to it before.
        pool.free(&memory, 7, 11);
        // One block overlaps, one lies beyond the end, and two are invalid.
        let mut blocks = [(40, 13), (5, 11), (42, 11), (63, 12), (9, 40), (u32::MAX, 22)];
        assert_eq!(pool.resume(&memory, &mut blocks), [1, 3, 4, 5]);
        assert_eq!(pool.used_bytes(&memory), (1 << 13) + (1 << 11));
        let mut taken: Vec<u32> = core::iter::from_fn(|| pool.allocate(&memory, MIN_LOG2)).collect();
        taken.sort_unstable();
        let free: Vec<u32> = (0..units).filter(|unit| *unit != 5 && !(40..44).contains(unit)).collect();
        assert_eq!(taken, free);
        for unit in free {
            pool.free(&memory, unit, MIN_LOG2);
        }
        pool.free(&memory, 5, 11);
        pool.free(&memory, 40, 13);
        assert!(pool.allocate(&memory, MIN_LOG2 + 6).is_some(), "it is one piece again");
    }

    #[test]
    fn what_is_free_is_known_and_only_what_suits_is_taken() {
        let memory = HeapMemory::new(CONTROL_BYTES + 8 + 64 * LINK_BYTES);
        let pool = Pool { control: 0, links: CONTROL_BYTES.next_multiple_of(8), units: 64 };
        let [a, b, c] =
            [MIN_LOG2 + 3, MIN_LOG2, MIN_LOG2 + 3].map(|log2| pool.allocate(&memory, log2).unwrap());
        assert_eq!(pool.high_units(&memory), 17);
        let below = |log2: u8, end: u32| pool.allocate_if(&memory, log2, |unit| unit < end);
        assert_eq!([below(MIN_LOG2, 18), below(MIN_LOG2, 18)], [Some(17), None]);
        pool.free(&memory, a, MIN_LOG2 + 3);
        pool.free(&memory, b, MIN_LOG2);
        pool.free(&memory, c, MIN_LOG2 + 3);
        assert_eq!(pool.free_blocks(&memory, MIN_LOG2 + 1), [(c, MIN_LOG2 + 3), (a, MIN_LOG2 + 3)]);
        assert_eq!(pool.free_blocks(&memory, MIN_LOG2).len(), 3);
        // Of the larger blocks that were given back the last suits.
        assert_eq!(below(MIN_LOG2 + 2, c), None);
        assert_eq!(below(MIN_LOG2 + 2, c + 1), Some(c));
    }

    #[test]
    fn blocks_in_use_never_overlap_and_all_come_back() {
        let units = 4096;
        let memory = HeapMemory::new(CONTROL_BYTES + 8 + units as usize * LINK_BYTES);
        let pool = Pool { control: 0, links: CONTROL_BYTES.next_multiple_of(8), units };
        let mut live: BTreeMap<u32, u8> = BTreeMap::new();
        let mut rng = Rng::new(5);
        for _ in 0..50_000 {
            if rng.below(2) == 0 {
                let log2 = MIN_LOG2 + rng.below(8) as u8;
                if let Some(unit) = pool.allocate(&memory, log2) {
                    let end = unit + (1 << (log2 - MIN_LOG2));
                    assert!(end <= units);
                    if let Some((before, l)) = live.range(..end).next_back() {
                        assert!(before + (1 << (l - MIN_LOG2)) <= unit, "overlap");
                    }
                    live.insert(unit, log2);
                }
            } else if let Some((&unit, &log2)) = live.iter().nth(rng.below(live.len() as u32) as usize) {
                live.remove(&unit);
                pool.free(&memory, unit, log2);
            }
            let used: usize = live.values().map(|l| 1usize << l).sum();
            assert_eq!(pool.used_bytes(&memory), used);
        }
    }
}
