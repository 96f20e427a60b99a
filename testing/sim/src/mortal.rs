//! Memory as seen by a process that may die between any two stores: what it would have stored afterwards is
//! not there.

use std::cell::Cell;
use std::rc::Rc;

use atoll_ipc::{HeapMemory, Memory};

/// The number of stores that a process still makes before it dies. Clones are the same life.
#[derive(Clone, Debug)]
pub struct Life(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    left: Cell<u64>,
    /// Whether the process dies by its own fault when it touches [`POISON`]; `is_poisoned` says whether it
    /// has.
    minds_poison: bool,
    is_poisoned: Cell<bool>,
}

/// The octets that trigger the fault of a faulty program: a process that copies them dies.
pub const POISON: [u8; 8] = *b"\x07poison\x07";

impl Life {
    /// Creates a life without an end.
    pub fn new() -> Life {
        Life::with(false)
    }

    /// Creates a life without an end for a program with the fault that [`POISON`] triggers.
    pub fn faulty() -> Life {
        Life::with(true)
    }

    fn with(minds_poison: bool) -> Life {
        Life(Rc::new(Inner { left: Cell::new(u64::MAX), minds_poison, is_poisoned: Cell::new(false) }))
    }

    /// Returns the life of the next process of the same program.
    #[must_use]
    pub fn next(&self) -> Life {
        Life::with(self.0.minds_poison)
    }

    /// Returns whether the process has died by its own fault.
    pub fn is_poisoned(&self) -> bool {
        self.0.is_poisoned.get()
    }

    /// Notes that octets are copied, and ends the life if they trigger the fault.
    fn taste(&self, octets: &[u8]) {
        if self.0.minds_poison && !self.is_over() && octets.windows(POISON.len()).any(|part| part == POISON) {
            self.0.is_poisoned.set(true);
            self.0.left.set(0);
        }
    }

    /// Ends the life after at most `stores` more stores.
    pub fn shorten(&self, stores: u64) {
        self.0.left.set(self.0.left.get().min(stores));
    }

    /// Returns whether the life is over.
    pub fn is_over(&self) -> bool {
        self.0.left.get() == 0
    }

    /// Counts one store; returns whether it may be made.
    pub fn spend(&self) -> bool {
        let left = self.0.left.get();
        self.0.left.set(if left == u64::MAX { left } else { left.saturating_sub(1) });
        left > 0
    }
}

impl Default for Life {
    fn default() -> Life {
        Life::new()
    }
}

/// The memory of a process that may die.
#[derive(Clone, Debug)]
pub struct Mortal {
    memory: HeapMemory,
    life: Life,
}

impl Mortal {
    /// Wraps `memory` for the process whose life it is.
    pub fn new(memory: HeapMemory, life: &Life) -> Mortal {
        Mortal { memory, life: life.clone() }
    }
}

impl Memory for Mortal {
    fn len(&self) -> usize {
        self.memory.len()
    }

    fn load32(&self, at: usize) -> u32 {
        self.memory.load32(at)
    }

    fn load32_acquire(&self, at: usize) -> u32 {
        self.memory.load32(at)
    }

    fn store32(&self, at: usize, value: u32) {
        if self.life.spend() {
            self.memory.store32(at, value);
        }
    }

    fn store32_release(&self, at: usize, value: u32) {
        self.store32(at, value);
    }

    fn load64(&self, at: usize) -> u64 {
        self.memory.load64(at)
    }

    fn load64_acquire(&self, at: usize) -> u64 {
        self.memory.load64(at)
    }

    fn store64(&self, at: usize, value: u64) {
        if self.life.spend() {
            self.memory.store64(at, value);
        }
    }

    fn store64_release(&self, at: usize, value: u64) {
        self.store64(at, value);
    }

    fn fetch_and64(&self, at: usize, value: u64) -> u64 {
        if self.life.spend() { self.memory.fetch_and64(at, value) } else { self.memory.load64(at) }
    }

    fn fetch_or64(&self, at: usize, value: u64) -> u64 {
        if self.life.spend() { self.memory.fetch_or64(at, value) } else { self.memory.load64(at) }
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        self.memory.read(at, out);
        self.life.taste(out);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.life.taste(bytes);
        for (i, part) in bytes.chunks(PART).enumerate().take_while(|_| self.life.spend()) {
            self.memory.write(at + i * PART, part);
        }
    }

    fn fence(&self) {}
}

/// The most octets that are copied as one store.
const PART: usize = 64;
