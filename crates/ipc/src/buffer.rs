//! Socket buffers: the place in the arena of octet `n` of a stream.
//!
//! A socket buffer is a ring of 2^k bytes in the arena: octet `n` lies at `start + (n mod 2^k)`. It grows by
//! a second, larger ring, which takes over from a base offset on; the old ring is freed when it is drained.
//! When both are drained, the socket owns no memory (design 6).
//!
//! ```text
//!   stream   ...|--------- old ring ---------|------ current ring ------>
//!              head                     current.base                 tail
//! ```

use core::mem::offset_of;

use crate::layout::words;
use crate::memory::Memory;
use crate::pool::{Blocks, MAX_LOG2, MIN_LOG2, UNIT_BYTES};

/// One ring of a socket buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The stream offset from which on this ring holds the stream.
    pub base: u64,
    /// The first unit of the ring in its area.
    pub unit: u32,
    /// The binary logarithm of the ring's size in bytes.
    pub log2: u8,
}

/// The one or two rings of one direction of one socket, as published in its slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extents {
    /// The ring that holds the stream from its base on.
    pub current: Option<Extent>,
    /// The ring that holds the octets before `current.base`.
    pub old: Option<Extent>,
}

/// Up to four pieces of an area, each with its offset in the area and its length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    parts: [(usize, usize); 4],
    len: usize,
}

words! {
    /// The published form. The writer may be preempted, or die, during a store: readers use the copy before.
    struct Published {
        version: u32; 4 unused,
        /// The two copies: one for even versions, one for odd versions.
        copies: [[u8; COPY_BYTES]; 2],
    }
}

words! {
    /// A copy: of the current ring, and of the old one.
    struct Copied {
        bases: [u64; 2],
        places: [u32; 2],
    }
}

/// The size in bytes of the published form.
pub const EXTENTS_BYTES: usize = size_of::<Published>();
const COPY_BYTES: usize = size_of::<Copied>();
const PLACES: usize = offset_of!(Copied, places);
/// The number of low bits of a place, `unit << 5 | log2` of a ring, that hold log2; a place is 0 for no ring.
const LOG2_BITS: u32 = 5;
/// The number of attempts to read an untorn copy after which the reader treats the writer as hostile. Each
/// failure takes a whole store of the writer.
const READ_ATTEMPTS: usize = 64;

impl Extent {
    /// Returns the size of the ring in bytes.
    pub const fn size(&self) -> usize {
        1 << self.log2
    }

    fn push_pieces(&self, offset: u64, len: usize, pieces: &mut Pieces) {
        let start = self.unit as usize * UNIT_BYTES;
        let within = (offset & (self.size() as u64 - 1)) as usize;
        let first = len.min(self.size() - within);
        pieces.push(start + within, first);
        if first < len {
            pieces.push(start, len - first);
        }
    }

    fn is_within(&self, units: u32) -> bool {
        (MIN_LOG2..=MAX_LOG2).contains(&self.log2)
            && self.unit < units
            && (1u32 << (self.log2 - MIN_LOG2)) <= units - self.unit
    }
}

impl Extents {
    /// Returns the places of `[offset, offset + len)`; `None` if no ring holds all of it. `len` may not
    /// exceed the rings' sizes.
    pub fn pieces(&self, offset: u64, len: usize) -> Option<Pieces> {
        let mut pieces = Pieces::default();
        let current = self.current?;
        let mut offset = offset;
        let mut len = len;
        if offset < current.base {
            let old = self.old?;
            let n = len.min(usize::try_from(current.base - offset).unwrap_or(usize::MAX));
            if offset < old.base || n > old.size() {
                return None;
            }
            old.push_pieces(offset, n, &mut pieces);
            offset += n as u64;
            len -= n;
        }
        if len > current.size() {
            return None;
        }
        if len > 0 {
            current.push_pieces(offset, len, &mut pieces);
        }
        Some(pieces)
    }

    /// Makes room so that `[.., end)` can be written, and returns the offset up to which there is room now
    /// (at most `end`). Only the writer of the buffer may call this.
    ///
    /// Everything before `head` is consumed. Everything written lies before `high` (`head <= high`; octets
    /// that arrived out of order count). `size_max` is the size of the largest ring wanted, in bytes.
    pub fn reserve(&mut self, blocks: &impl Blocks, head: u64, high: u64, end: u64, size_max: usize) -> u64 {
        self.release(blocks, head, high);
        if let Some(current) = self.current {
            let room = current.base.max(head) + current.size() as u64;
            if end <= room || self.old.is_some() || current.size() >= size_max {
                return room.min(end);
            }
        }
        // The new ring starts at `high`. The first ring is as large as what is asked for now. A stream that
        // outgrows it before it is drained gets the largest ring allowed, because a third ring has to wait
        // until the first is drained.
        let wanted = usize::try_from(end.saturating_sub(high)).unwrap_or(usize::MAX).max(1);
        let wanted = if self.current.is_some() { size_max } else { wanted.min(size_max) };
        let log2 = (wanted.next_power_of_two().trailing_zeros() as u8).clamp(MIN_LOG2, MAX_LOG2);
        // Free memory may lie in small blocks only; a ring no larger than the one before would be useless.
        let least = self.current.map_or(MIN_LOG2, |current| current.log2).min(log2);
        let found = (least..=log2).rev().find_map(|log2| Some((blocks.allocate(log2)?, log2)));
        let Some((unit, log2)) = found else {
            return self
                .current
                .map_or(high, |current| (current.base.max(head) + current.size() as u64).min(end));
        };
        let new = Extent { base: high, unit, log2 };
        self.old = self.current;
        self.current = Some(new);
        (high.max(head) + new.size() as u64).min(end)
    }

    /// Gives drained rings back to the pool. Returns whether anything changed. Only the writer of the buffer
    /// may call this.
    pub fn release(&mut self, blocks: &impl Blocks, head: u64, high: u64) -> bool {
        let mut changed = false;
        let Some(current) = self.current else { return false };
        if let Some(old) = self.old
            && head >= current.base
        {
            blocks.free(old.unit, old.log2);
            self.old = None;
            changed = true;
        }
        if self.old.is_none() && head >= high {
            blocks.free(current.unit, current.log2);
            self.current = None;
            changed = true;
        }
        changed
    }

    /// Gives all rings back. Only the writer of the buffer may call this.
    pub fn release_all(&mut self, blocks: &impl Blocks) {
        for extent in [self.old.take(), self.current.take()].into_iter().flatten() {
            blocks.free(extent.unit, extent.log2);
        }
    }

    /// Publishes the rings at `at` (a slot's extents line). Only one writer may do so at a time.
    pub fn store<M: Memory>(&self, memory: &M, at: usize) {
        let version = memory.load32(at).wrapping_add(1);
        // The version before is public before the copy that it made stale is touched.
        memory.fence();
        let copy = copy_at(at, version);
        for (i, extent) in [self.current, self.old].into_iter().enumerate() {
            memory.store64(copy + i * 8, extent.map_or(0, |e| e.base));
            memory.store32(
                copy + PLACES + i * 4,
                extent.map_or(0, |e| e.unit << LOG2_BITS | u32::from(e.log2)),
            );
        }
        memory.store32_release(at, version);
    }

    /// Reads the rings that the other side published at `at`, for an area of `units` units. Returns `None`
    /// for a state that no correct writer publishes.
    // On the fast path of a program a call more, and its result once more, are felt.
    #[inline(always)]
    pub fn load<M: Memory>(memory: &M, at: usize, units: u32) -> Option<Extents> {
        for _ in 0..READ_ATTEMPTS {
            let version = memory.load32_acquire(at);
            let copy = copy_at(at, version);
            let raw = Extents { current: load_extent(memory, copy, 0), old: load_extent(memory, copy, 1) };
            memory.fence();
            if memory.load32(at) == version {
                let valid = match (raw.current, raw.old) {
                    (Some(current), Some(old)) => {
                        current.is_within(units) && old.is_within(units) && old.base <= current.base
                    }
                    (Some(current), None) => current.is_within(units),
                    (None, old) => old.is_none(),
                };
                return valid.then_some(raw);
            }
            core::hint::spin_loop();
        }
        None
    }
}

/// Returns the offset of the copy of a version.
const fn copy_at(at: usize, version: u32) -> usize {
    at + offset_of!(Published, copies) + (version & 1) as usize * COPY_BYTES
}

/// Reads the current (0) or old (1) ring of a copy.
#[inline]
fn load_extent<M: Memory>(memory: &M, copy: usize, i: usize) -> Option<Extent> {
    let place = memory.load32(copy + PLACES + i * 4);
    (place != 0).then(|| Extent {
        base: memory.load64(copy + i * 8),
        unit: place >> LOG2_BITS,
        log2: (place & ((1 << LOG2_BITS) - 1)) as u8,
    })
}

impl Pieces {
    fn push(&mut self, at: usize, len: usize) {
        self.parts[self.len] = (at, len);
        self.len += 1;
    }

    /// Returns the pieces in stream order: offset in the area, and length.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.parts[..self.len].iter().copied()
    }

    /// Copies `bytes` to the pieces of the area that starts at `area`. `bytes` is as long as the pieces
    /// together.
    pub fn write<M: Memory>(&self, memory: &M, area: usize, mut bytes: &[u8]) {
        for (at, len) in self.iter() {
            let (now, later) = bytes.split_at(len.min(bytes.len()));
            memory.write(area + at, now);
            bytes = later;
        }
    }

    /// Copies the pieces of the area that starts at `area` to `out`, which is as long as the pieces together.
    pub fn read<M: Memory>(&self, memory: &M, area: usize, mut out: &mut [u8]) {
        for (at, len) in self.iter() {
            let (now, later) = out.split_at_mut(len.min(out.len()));
            memory.read(area + at, now);
            out = later;
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;
    use core::cell::Cell;

    use atoll_base::Rng;

    use super::*;
    use crate::memory::HeapMemory;
    use crate::memory::mortal::Mortal;
    use crate::pool::{CONTROL_BYTES, Pool};

    const UNITS: u32 = 512;
    const AREA: usize = 16384;

    fn byte_of(offset: u64) -> u8 {
        (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
    }

    /// The writer also writes out of order, and the reader sees only what is published.
    #[test]
    fn a_stream_survives_growth_release_and_writes_out_of_order() {
        for seed in 0..50 {
            let memory = HeapMemory::new(AREA + UNITS as usize * UNIT_BYTES);
            let pool = Pool { control: 64, links: 64 + CONTROL_BYTES.next_multiple_of(8), units: UNITS };
            let mut rng = Rng::new(seed);
            let (mut extents, mut head, mut tail, mut high) = (Extents::default(), 0u64, 0u64, 0u64);
            let mut ahead: Option<(u64, u64)> = None;
            for _ in 0..2000 {
                let limit = 1 << 16;
                if rng.below(2) == 0 && tail - head < limit {
                    let gap =
                        if ahead.is_none() && rng.below(4) == 0 { u64::from(rng.below(3000)) } else { 0 };
                    let from = tail + gap;
                    let mut end = from + 1 + u64::from(rng.below(9000));
                    end = end.min(head + limit);
                    if let Some((a, _)) = ahead {
                        end = end.min(a);
                    }
                    if end > from {
                        let room = extents.reserve(
                            &pool.state_in(&memory),
                            head,
                            high.max(tail),
                            end,
                            limit as usize,
                        );
                        let end = end.min(room);
                        if end > from {
                            let bytes: Vec<u8> = (from..end).map(byte_of).collect();
                            let pieces = extents.pieces(from, bytes.len()).expect("reserved");
                            pieces.write(&memory, AREA, &bytes);
                            high = high.max(end);
                            if gap == 0 {
                                tail = end;
                                if ahead.is_some_and(|(a, _)| a == tail) {
                                    tail = ahead.take().map_or(tail, |(_, b)| b);
                                }
                            } else {
                                ahead = Some((from, end));
                            }
                        }
                    }
                    extents.store(&memory, 0);
                } else if tail > head {
                    let seen = Extents::load(&memory, 0, UNITS).expect("published");
                    let n = 1 + rng.below((tail - head).min(8000) as u32) as usize;
                    let n = n.min((tail - head) as usize);
                    let mut out = alloc::vec![0; n];
                    seen.pieces(head, n).expect("published octets are covered").read(&memory, AREA, &mut out);
                    for (i, byte) in out.iter().enumerate() {
                        assert_eq!(*byte, byte_of(head + i as u64), "seed {seed} offset {}", head + i as u64);
                    }
                    head += n as u64;
                    if extents.release(&pool.state_in(&memory), head, high.max(tail)) {
                        extents.store(&memory, 0);
                    }
                }
            }
            if head == high {
                assert_eq!(pool.used_bytes(&memory), 0, "a drained socket owns no memory");
            }
        }
    }

    #[test]
    fn scribbled_extents_are_refused_or_stay_within_the_area() {
        let memory = HeapMemory::new(64);
        let mut rng = Rng::new(9);
        for _ in 0..100_000 {
            for word in 0..EXTENTS_BYTES / 8 {
                memory.store64(word * 8, rng.next_u64() & rng.next_u64() & rng.next_u64());
            }
            let copy = copy_at(0, memory.load32(0));
            for place in [copy + 16, copy + 20] {
                memory.store32(place, rng.below(2 * UNITS) << LOG2_BITS | rng.below(24));
            }
            if let Some(extents) = Extents::load(&memory, 0, UNITS)
                && let Some(pieces) =
                    extents.pieces(rng.next_u64() >> rng.below(64), rng.below(1 << 20) as usize)
            {
                for (at, len) in pieces.iter() {
                    assert!(at + len <= UNITS as usize * UNIT_BYTES);
                }
            }
        }
    }

    #[test]
    fn a_writer_that_is_interrupted_in_a_store_leaves_what_was_published_before() {
        let ring = |base, unit, log2| Some(Extent { base, unit, log2 });
        let states = [
            Extents { current: ring(0, 7, 12), old: None },
            Extents { current: ring(5000, 16, 16), old: ring(0, 7, 12) },
            Extents { current: ring(5000, 16, 16), old: None },
            Extents::default(),
            Extents { current: ring(90_000, 3, 11), old: None },
        ];
        for stores in 0.. {
            let left = Cell::new(u64::MAX);
            let memory = Mortal { memory: HeapMemory::new(64), left: &left };
            let mut before = Extents::default();
            let mut interrupted = false;
            for state in &states {
                left.set(stores);
                state.store(&memory, 0);
                let seen = Extents::load(&memory.memory, 0, UNITS).expect("something that was published");
                assert!(seen == before || seen == *state, "{seen:?} after {stores} stores of {state:?}");
                interrupted |= seen != *state;
                left.set(u64::MAX);
                state.store(&memory, 0);
                assert_eq!(Extents::load(&memory.memory, 0, UNITS), Some(*state));
                before = *state;
            }
            if !interrupted {
                return;
            }
        }
    }
}
