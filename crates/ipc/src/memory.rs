//! Memory that other processes may write at any moment, and its accesses.

#[cfg(test)]
pub(crate) mod mortal;

use alloc::rc::Rc;
use alloc::vec;
use core::cell::Cell;

/// A region of memory that is shared with a process that is not trusted.
///
/// Offsets are in bytes from the start of the region. Words are aligned to their size and in native byte
/// order. An access out of range or out of alignment is a programming error of the caller, which must have
/// validated whatever came from the peer. Implementations panic in debug builds; in release builds loads give
/// 0 and stores do nothing. `&self` suffices for writing, because exclusive access to shared memory is
/// impossible.
pub trait Memory {
    /// Returns the size of the region in bytes.
    fn len(&self) -> usize;

    /// Returns whether the region is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Discards bytes that are not needed any more: afterwards they are unchanged or zero, and may take no
    /// memory.
    fn discard(&self, at: usize, len: usize) {
        let _ = (at, len);
    }

    /// Loads the aligned word at `at` (relaxed).
    fn load32(&self, at: usize) -> u32;
    /// Loads a word (acquire); partner of [`Memory::store32_release`].
    fn load32_acquire(&self, at: usize) -> u32;
    /// Stores a word (relaxed).
    fn store32(&self, at: usize, value: u32);
    /// Stores a word (release); partner of [`Memory::load32_acquire`].
    fn store32_release(&self, at: usize, value: u32);
    /// Loads the aligned double word at `at` (relaxed).
    fn load64(&self, at: usize) -> u64;
    /// Loads a double word (acquire); partner of [`Memory::store64_release`].
    fn load64_acquire(&self, at: usize) -> u64;
    /// Stores a double word (relaxed).
    fn store64(&self, at: usize, value: u64);
    /// Stores a double word (release); partner of [`Memory::load64_acquire`].
    fn store64_release(&self, at: usize, value: u64);
    /// Replaces the double word at `at` by its AND with `value` (sequentially consistent); returns the
    /// previous value.
    fn fetch_and64(&self, at: usize, value: u64) -> u64;
    /// Replaces the double word at `at` by its OR with `value` (sequentially consistent); returns the
    /// previous value.
    fn fetch_or64(&self, at: usize, value: u64) -> u64;
    /// Makes the word at `at` the next odd number, modulo 2^32, in one step (sequentially consistent).
    ///
    /// The default is for memory that one thread uses; memory that several threads write overrides it.
    fn next_odd32(&self, at: usize) {
        self.store32(at, self.load32(at).wrapping_add(1) | 1);
    }
    /// Copies `out.len()` bytes from `at`. The bytes may be torn if the peer writes meanwhile.
    fn read(&self, at: usize, out: &mut [u8]);
    /// Copies `bytes` to `at`.
    fn write(&self, at: usize, bytes: &[u8]);
    /// Executes a full barrier: orders a store before a later load of the peer's word (Dekker's pattern).
    fn fence(&self);
    /// Prefetches the `len` bytes from `at` on, which are read soon. This is a hint, which may lie out of
    /// range and be ignored.
    #[inline]
    fn prefetch(&self, _at: usize, _len: usize) {}
}

impl<M: Memory + ?Sized> Memory for &M {
    fn len(&self) -> usize {
        (**self).len()
    }
    fn load32(&self, at: usize) -> u32 {
        (**self).load32(at)
    }
    fn load32_acquire(&self, at: usize) -> u32 {
        (**self).load32_acquire(at)
    }
    fn store32(&self, at: usize, value: u32) {
        (**self).store32(at, value);
    }
    fn store32_release(&self, at: usize, value: u32) {
        (**self).store32_release(at, value);
    }
    fn load64(&self, at: usize) -> u64 {
        (**self).load64(at)
    }
    fn load64_acquire(&self, at: usize) -> u64 {
        (**self).load64_acquire(at)
    }
    fn store64(&self, at: usize, value: u64) {
        (**self).store64(at, value);
    }
    fn store64_release(&self, at: usize, value: u64) {
        (**self).store64_release(at, value);
    }
    fn fetch_and64(&self, at: usize, value: u64) -> u64 {
        (**self).fetch_and64(at, value)
    }
    fn fetch_or64(&self, at: usize, value: u64) -> u64 {
        (**self).fetch_or64(at, value)
    }
    fn next_odd32(&self, at: usize) {
        (**self).next_odd32(at);
    }
    fn read(&self, at: usize, out: &mut [u8]) {
        (**self).read(at, out);
    }
    fn write(&self, at: usize, bytes: &[u8]) {
        (**self).write(at, bytes);
    }
    fn prefetch(&self, at: usize, len: usize) {
        (**self).prefetch(at, len);
    }
    fn discard(&self, at: usize, len: usize) {
        (**self).discard(at, len);
    }
    fn fence(&self) {
        (**self).fence();
    }
}

/// Memory on the heap of one thread, for tests, for the simulator, and for private state that shares its code
/// with shared state. Clones are handles to the same memory.
#[derive(Clone, Debug)]
pub struct HeapMemory {
    /// Eight bytes per cell, native order.
    words: Rc<[Cell<u64>]>,
}

impl HeapMemory {
    /// Creates zeroed memory of `bytes`, rounded up to a multiple of 8.
    pub fn new(bytes: usize) -> HeapMemory {
        HeapMemory { words: vec![Cell::new(0); bytes.div_ceil(8)].into() }
    }

    fn half(&self, at: usize) -> (usize, u32) {
        debug_assert!(at.is_multiple_of(4), "misaligned word at {at}");
        let shift = if at.is_multiple_of(8) == cfg!(target_endian = "little") { 0 } else { 32 };
        (at / 8, shift)
    }
}

impl Memory for HeapMemory {
    fn len(&self) -> usize {
        self.words.len() * 8
    }

    fn load32(&self, at: usize) -> u32 {
        let (index, shift) = self.half(at);
        self.words.get(index).map_or(0, |word| (word.get() >> shift) as u32)
    }

    fn load32_acquire(&self, at: usize) -> u32 {
        self.load32(at)
    }

    fn store32(&self, at: usize, value: u32) {
        let (index, shift) = self.half(at);
        if let Some(word) = self.words.get(index) {
            word.set(word.get() & !(0xffff_ffff << shift) | u64::from(value) << shift);
        }
    }

    fn store32_release(&self, at: usize, value: u32) {
        self.store32(at, value);
    }

    fn load64(&self, at: usize) -> u64 {
        debug_assert!(at.is_multiple_of(8), "misaligned double word at {at}");
        self.words.get(at / 8).map_or(0, Cell::get)
    }

    fn load64_acquire(&self, at: usize) -> u64 {
        self.load64(at)
    }

    fn store64(&self, at: usize, value: u64) {
        debug_assert!(at.is_multiple_of(8), "misaligned double word at {at}");
        if let Some(word) = self.words.get(at / 8) {
            word.set(value);
        }
    }

    fn store64_release(&self, at: usize, value: u64) {
        self.store64(at, value);
    }

    fn fetch_and64(&self, at: usize, value: u64) -> u64 {
        let old = self.load64(at);
        self.store64(at, old & value);
        old
    }

    fn fetch_or64(&self, at: usize, value: u64) -> u64 {
        let old = self.load64(at);
        self.store64(at, old | value);
        old
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        for (i, byte) in out.iter_mut().enumerate() {
            let position = at + i;
            let bytes = self.words.get(position / 8).map_or([0; 8], |word| word.get().to_ne_bytes());
            *byte = bytes[position % 8];
        }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            let position = at + i;
            if let Some(word) = self.words.get(position / 8) {
                let mut old = word.get().to_ne_bytes();
                old[position % 8] = *byte;
                word.set(u64::from_ne_bytes(old));
            }
        }
    }

    fn fence(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_bytes_are_the_same_memory() {
        let memory = HeapMemory::new(32);
        memory.store32(4, 0x0403_0201);
        let mut bytes = [0; 4];
        memory.read(4, &mut bytes);
        assert_eq!(u32::from_ne_bytes(bytes), 0x0403_0201);
        memory.write(9, &[7, 8]);
        assert_eq!(memory.load64(8).to_ne_bytes()[1..3], [7, 8]);
        assert_eq!(memory.fetch_or64(16, 5), 0);
        assert_eq!(memory.fetch_and64(16, 4), 5);
        assert_eq!(memory.load64(16), 4);
    }

    #[test]
    fn the_next_odd_number_is_larger() {
        let memory = HeapMemory::new(64);
        for (before, after) in [(0, 1), (1, 3), (u32::MAX - 1, u32::MAX), (u32::MAX, 1)] {
            memory.store32(4, before);
            memory.next_odd32(4);
            assert_eq!(memory.load32(4), after);
        }
    }
}
