//! A writer that dies, for the tests of everything that is published.

use core::cell::Cell;

use super::{HeapMemory, Memory};

/// Memory whose writer dies, or is stopped, after a number of stores: later stores do not happen. A copy of
/// octets is a store for each eight of them.
#[derive(Clone, Debug)]
pub(crate) struct Mortal<'a> {
    pub(crate) memory: HeapMemory,
    /// The stores that are left.
    pub(crate) left: &'a Cell<u64>,
}

impl Mortal<'_> {
    fn lives(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left > 0
    }
}

impl Memory for Mortal<'_> {
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
        if self.lives() {
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
        if self.lives() {
            self.memory.store64(at, value);
        }
    }
    fn store64_release(&self, at: usize, value: u64) {
        self.store64(at, value);
    }
    fn fetch_and64(&self, at: usize, value: u64) -> u64 {
        if self.lives() { self.memory.fetch_and64(at, value) } else { self.memory.load64(at) }
    }
    fn fetch_or64(&self, at: usize, value: u64) -> u64 {
        if self.lives() { self.memory.fetch_or64(at, value) } else { self.memory.load64(at) }
    }
    fn read(&self, at: usize, out: &mut [u8]) {
        self.memory.read(at, out);
    }
    fn write(&self, at: usize, bytes: &[u8]) {
        for (i, part) in bytes.chunks(8).enumerate().take_while(|_| self.lives()) {
            self.memory.write(at + i * 8, part);
        }
    }
    fn fence(&self) {}
}
