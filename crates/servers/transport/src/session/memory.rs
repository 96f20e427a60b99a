//! Where do receive buffers lie, and what do they take? In the receive area of a session, whose memory the
//! kernel gives when it is touched.

use alloc::sync::Arc;
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};

use atoll_ipc::Memory;
use atoll_ipc::pool::{CONTROL_BYTES, MIN_LOG2, Pool, UNIT_BYTES};

use crate::lazy::LazyMemory;
use crate::users::Holdings;

/// Free pieces of at least this size (as a power of two) are given back when memory is short.
const DISCARD_LOG2: u8 = 13;
/// What the receive buffers of a session may take however short memory is, in units: 128 KiB. Linux lets each
/// socket have the least of `tcp_rmem`.
const FLOOR_UNITS: u32 = 64;
/// Of a session so many at a time, because each is a system call.
const DISCARDS_MAX: usize = 512;

/// The receive area of a session: its pool, and how much of it was touched. Counts with those of others until
/// it is dropped.
#[derive(Debug)]
pub(crate) struct ReceiveMemory {
    /// The pool, and the memory of its state.
    pool: Pool,
    links: LazyMemory,
    /// Up to where it was touched, in units.
    high: Cell<u32>,
    /// How much of that the kernel still has memory for, in units: what counts in the books.
    counted: Cell<u32>,
    /// Free pieces were given back. Those that are used again count again from the next look on.
    has_holes: Cell<bool>,
    /// With which of the free pieces the next look goes on.
    next: Cell<usize>,
    books: Arc<Books>,
    /// What the user's sessions have together.
    of_user: Arc<Holdings>,
}

/// What all sessions of a replica hold, and may hold.
#[derive(Debug)]
pub(crate) struct Books {
    /// Octets that were touched in receive areas: the kernel has given memory for them.
    pub(crate) held: AtomicU64,
    /// No more than this is touched.
    pub(crate) max: AtomicU64,
}

impl Default for Books {
    fn default() -> Books {
        Books { held: AtomicU64::new(0), max: AtomicU64::new(u64::MAX) }
    }
}

impl ReceiveMemory {
    /// Creates the pool of an area of so many units, of which none is in use.
    pub(crate) fn new(units: u32, books: Arc<Books>, of_user: Arc<Holdings>) -> ReceiveMemory {
        let links = CONTROL_BYTES.next_multiple_of(8);
        ReceiveMemory {
            pool: Pool { control: 0, links, units },
            links: LazyMemory::new(links + units as usize * 4),
            high: Cell::new(0),
            counted: Cell::new(0),
            has_holes: Cell::new(false),
            next: Cell::new(0),
            books,
            of_user,
        }
    }

    /// Returns the pool of all that the area has: to give back, or to take what was acknowledged already.
    #[inline]
    pub(crate) const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the memory of the pool's state.
    #[inline]
    pub(crate) const fn links(&self) -> &LazyMemory {
        &self.links
    }

    /// Returns the octets that receive buffers have.
    pub(crate) fn used_bytes(&self) -> usize {
        self.pool.used_bytes(&self.links)
    }

    /// Where receive buffers come from: beyond what was touched before only while the stack has memory for
    /// it, and its user a part of that left.
    pub(crate) fn open_pool(&self) -> Pool {
        let Books { held, max } = &*self.books;
        let max = max.load(Ordering::Relaxed);
        if held.load(Ordering::Relaxed) < max && self.of_user.has_memory(max) {
            return self.pool;
        }
        self.pool.within(&self.links, self.high.get().max(FLOOR_UNITS))
    }

    /// To be called when a buffer was taken.
    pub(crate) fn note_touched(&self) {
        let high = self.pool.high_units(&self.links);
        let growth = high.saturating_sub(self.high.get());
        if growth > 0 {
            self.high.set(high);
            self.count(self.counted.get() + growth);
        }
    }

    /// Counts again, where pieces that were given back may be in use.
    pub(crate) fn recount(&self) {
        if self.has_holes.get() {
            let free = self.pool.free_blocks(&self.links, DISCARD_LOG2);
            let holes: u32 = free.iter().map(|(_, log2)| 1u32 << (log2 - MIN_LOG2)).sum();
            self.count(self.high.get().saturating_sub(holes));
        }
    }

    /// Octets of its receive area that the kernel has memory for, as the books say.
    pub(crate) fn held(&self) -> u64 {
        u64::from(self.counted.get()) * UNIT_BYTES as u64
    }

    /// Gives memory back that lies in free pieces of the receive area. The smallest are used again soon.
    pub(crate) fn discard_free<M: Memory>(&self, arena: &M, area: usize) {
        let free = self.pool.free_blocks(&self.links, DISCARD_LOG2);
        // Where there are many, others the next time.
        let from = if self.next.get() < free.len() { self.next.get() } else { 0 };
        for (unit, log2) in free.iter().skip(from).take(DISCARDS_MAX) {
            arena.discard(area + *unit as usize * UNIT_BYTES, 1 << log2);
        }
        self.next.set(from + DISCARDS_MAX);
        let (high, touched) = (self.pool.high_units(&self.links), self.high.get());
        if high < touched {
            arena.discard(area + high as usize * UNIT_BYTES, (touched - high) as usize * UNIT_BYTES);
            self.high.set(high);
        }
        self.has_holes.set(true);
        self.recount();
    }

    fn count(&self, units: u32) {
        let before = self.counted.replace(units);
        let octets = |units: u32| u64::from(units) * UNIT_BYTES as u64;
        // A replica is one thread: nobody else counts meanwhile.
        let held = self.books.held.load(Ordering::Relaxed).wrapping_sub(octets(before)).wrapping_add(octets(units));
        self.books.held.store(held, Ordering::Relaxed);
        self.of_user.count(octets(before), octets(units));
    }
}

impl Drop for ReceiveMemory {
    fn drop(&mut self) {
        self.count(0);
    }
}
