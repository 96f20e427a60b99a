//! The memory of receive buffers: in the receive area of a session, for which the kernel gives memory when it
//! is touched.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use atoll_ipc::Memory;
use atoll_ipc::pool::{Blocks, CONTROL_BYTES, LINK_BYTES, MIN_LOG2, Pool, UNIT_BYTES};

use crate::lazy::LazyMemory;
use crate::users::Holdings;

/// The least size in octets of free pieces that are given back when memory is short.
const DISCARD_BYTES: usize = 8 << 10;
/// The octets that the receive buffers of a session may take however short memory is. Linux lets each socket
/// have the least of `tcp_rmem`.
const FLOOR: u64 = 128 << 10;
/// The most pieces of a session that are given back at a time, because each is a system call.
const DISCARDS_MAX: usize = 512;
/// The octets that the kernel gives at a time.
const PAGE: usize = 4096;

/// The receive area of a session: its pool, and which pages of it were touched. They count with those of
/// others until this is dropped.
#[derive(Debug)]
pub(crate) struct ReceiveMemory {
    /// The pool, and the memory of its state.
    pool: Pool,
    links: LazyMemory,
    touched: Pages,
    books: Arc<Books>,
    /// The totals of the user's sessions.
    of_user: Arc<Holdings>,
}

/// The memory that all sessions of a replica hold, and their bounds.
#[derive(Debug)]
pub(crate) struct Books {
    /// The octets that were touched in receive areas: the kernel has given memory for them.
    pub(crate) held: AtomicU64,
    /// The most octets that may be touched.
    pub(crate) max: AtomicU64,
}

impl Default for Books {
    fn default() -> Books {
        Books { held: AtomicU64::new(0), max: AtomicU64::new(u64::MAX) }
    }
}

impl ReceiveMemory {
    /// Creates the pool of an area of `units` units, of which none is in use.
    pub(crate) fn new(units: u32, books: Arc<Books>, of_user: Arc<Holdings>) -> ReceiveMemory {
        let links = CONTROL_BYTES.next_multiple_of(8);
        ReceiveMemory {
            pool: Pool { control: 0, links, units },
            links: LazyMemory::new(links + units as usize * LINK_BYTES),
            touched: Pages::new(pages_of(0..units as usize * UNIT_BYTES).end),
            books,
            of_user,
        }
    }

    /// Returns the pool without a bound, for text that was acknowledged already.
    pub(crate) const fn unbounded(&self) -> Unbounded<'_> {
        Unbounded(self)
    }

    /// Makes these blocks (first unit, log2) those in use, and no others, and sorts them. Returns the
    /// numbers, in the sorted order, of invalid ones. Everything before their end counts as touched: a
    /// predecessor may have given some of it back, which is not known.
    pub(crate) fn resume(&self, blocks: &mut [(u32, u8)]) -> Vec<usize> {
        let refused = self.pool.resume(&self.links, blocks);
        self.touch(pages_of(0..self.pool.high_units(&self.links) as usize * UNIT_BYTES));
        refused
    }

    /// Returns the octets that receive buffers have.
    pub(crate) fn used_bytes(&self) -> usize {
        self.pool.used_bytes(&self.links)
    }

    /// Returns the octets of its receive area that the kernel has memory for, by the accounts.
    pub(crate) fn held(&self) -> u64 {
        octets(self.touched.count.get())
    }

    /// Lets `discard` give memory back that is in free pieces of the area: the whole pages of this number of
    /// octets from a place on. The smallest pieces are kept, because they are used again soon.
    pub(crate) fn discard_free(&self, mut discard: impl FnMut(usize, usize)) {
        let held = |octets: &Range<usize>| self.touched.count_in(whole_pages_of(octets)) > 0;
        let free =
            self.free_pieces().into_iter().filter(|octets| octets.len() >= DISCARD_BYTES && held(octets));
        for octets in free.take(DISCARDS_MAX) {
            discard(octets.start, octets.len());
            let count = self.touched.remove(whole_pages_of(&octets));
            self.count(count, 0);
        }
    }

    /// Returns the pieces that are in no used block, in order. Adjacent blocks are one piece: most pages
    /// belong to two of them.
    fn free_pieces(&self) -> Vec<Range<usize>> {
        let unused = self.pool.high_units(&self.links)..self.pool.units;
        let blocks = self.pool.free_blocks(&self.links, MIN_LOG2).into_iter();
        let mut blocks: Vec<Range<u32>> =
            blocks.map(|(unit, log2)| unit..unit + (1 << (log2 - MIN_LOG2))).chain([unused]).collect();
        blocks.sort_unstable_by_key(|block| block.start);
        let mut pieces: Vec<Range<usize>> = Vec::new();
        for block in blocks {
            let octets = block.start as usize * UNIT_BYTES..block.end as usize * UNIT_BYTES;
            match pieces.last_mut() {
                Some(last) if last.end == octets.start => last.end = octets.end,
                _ => pieces.push(octets),
            }
        }
        pieces
    }

    /// Takes a block, if `may_grow` allows the octets of it that were not touched before.
    fn take(&self, log2: u8, may_grow: impl Fn(u64) -> bool) -> Option<u32> {
        let pages = |unit: u32| {
            pages_of(unit as usize * UNIT_BYTES..(unit as usize + (1 << (log2 - MIN_LOG2))) * UNIT_BYTES)
        };
        let suits = |unit: u32| {
            let pages = pages(unit);
            let fresh = pages.len() as u32 - self.touched.count_in(pages);
            fresh == 0 || may_grow(octets(fresh))
        };
        let unit = self.pool.allocate_if(&self.links, log2, suits)?;
        self.touch(pages(unit));
        Some(unit)
    }

    /// Returns whether this number of octets may be touched in addition: while the stack has memory for it,
    /// and its user a part of that left.
    fn may_grow(&self, octets: u64) -> bool {
        let Books { held, max } = &*self.books;
        let (held, max) = (held.load(Ordering::Relaxed), max.load(Ordering::Relaxed));
        let has_memory = held.saturating_add(octets) <= max && self.of_user.has_memory(octets, max);
        has_memory || self.held() + octets <= FLOOR
    }

    fn touch(&self, pages: Range<usize>) {
        let count = self.touched.insert(pages);
        self.count(0, count);
    }

    /// Counts `less` pages less, and `more` pages more.
    fn count(&self, less: u32, more: u32) {
        let (before, after) = (octets(less), octets(more));
        // A replica is one thread, so no other thread counts meanwhile.
        let held = self.books.held.load(Ordering::Relaxed).wrapping_sub(before).wrapping_add(after);
        self.books.held.store(held, Ordering::Relaxed);
        self.of_user.count(before, after);
    }
}

impl Drop for ReceiveMemory {
    fn drop(&mut self) {
        self.count(self.touched.count.get(), 0);
    }
}

/// Allocates within the bound: no more than [`Books::max`] is touched, except for the least that each session
/// may have.
impl Blocks for ReceiveMemory {
    #[inline]
    fn allocate(&self, log2: u8) -> Option<u32> {
        self.take(log2, |octets| self.may_grow(octets))
    }

    #[inline]
    fn free(&self, unit: u32, log2: u8) {
        self.pool.free(&self.links, unit, log2);
    }
}

/// The pool without a bound: see [`ReceiveMemory::unbounded`].
#[derive(Debug)]
pub(crate) struct Unbounded<'a>(&'a ReceiveMemory);

impl Blocks for Unbounded<'_> {
    fn allocate(&self, log2: u8) -> Option<u32> {
        self.0.take(log2, |_| true)
    }

    fn free(&self, unit: u32, log2: u8) {
        self.0.free(unit, log2);
    }
}

/// A set of pages of an area.
#[derive(Debug)]
struct Pages {
    /// The set, a bit for each page.
    bits: LazyMemory,
    count: Cell<u32>,
}

impl Pages {
    /// Creates an empty set for this number of pages.
    fn new(pages: usize) -> Pages {
        Pages { bits: LazyMemory::new(pages.div_ceil(64) * 8), count: Cell::new(0) }
    }

    /// Returns the words of a range: the offset of each, and the bits in it.
    fn words(pages: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
        let Range { start, end } = pages;
        let all = if start < end { start / 64..end.div_ceil(64) } else { 0..0 };
        all.map(move |word| {
            let (first, last) = (start.max(word * 64) % 64, (end - 1).min(word * 64 + 63) % 64);
            (word * 8, (u64::MAX << first) & (u64::MAX >> (63 - last)))
        })
    }

    /// Returns how many of these pages are in the set.
    fn count_in(&self, pages: Range<usize>) -> u32 {
        Pages::words(pages).map(|(at, mask)| (self.bits.load64(at) & mask).count_ones()).sum()
    }

    /// Adds these pages. Returns how many were not in the set.
    fn insert(&self, pages: Range<usize>) -> u32 {
        let fresh =
            Pages::words(pages).map(|(at, mask)| (!self.bits.fetch_or64(at, mask) & mask).count_ones()).sum();
        self.count.set(self.count.get() + fresh);
        fresh
    }

    /// Removes these pages. Returns how many were in the set.
    fn remove(&self, pages: Range<usize>) -> u32 {
        let held = Pages::words(pages)
            .map(|(at, mask)| (self.bits.fetch_and64(at, !mask) & mask).count_ones())
            .sum();
        self.count.set(self.count.get() - held);
        held
    }
}

/// Returns the pages that hold some of these octets.
const fn pages_of(octets: Range<usize>) -> Range<usize> {
    octets.start / PAGE..octets.end.div_ceil(PAGE)
}

/// Returns the pages that hold nothing but these octets.
const fn whole_pages_of(octets: &Range<usize>) -> Range<usize> {
    octets.start.div_ceil(PAGE)..octets.end / PAGE
}

const fn octets(pages: u32) -> u64 {
    pages as u64 * PAGE as u64
}

#[cfg(test)]
mod tests;
