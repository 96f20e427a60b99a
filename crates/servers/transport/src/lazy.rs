//! The memory for the state of a receive pool: zeroed memory of this process alone, allocated page by page
//! when first written. The link table of a 1 GiB area would take 2 MiB, of which a session touches as much as
//! it uses.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::{Cell, OnceCell};

use atoll_ipc::Memory;

/// Private memory that is zero until written. Offsets out of range read as zero, and writes there are lost.
#[derive(Debug)]
pub(crate) struct LazyMemory {
    count: usize,
    /// The pages; an area that was never written does not even have this table.
    pages: OnceCell<Vec<Page>>,
}

/// The words of a page; empty until one of them is written.
type Page = OnceCell<Box<[Cell<u64>]>>;

const PAGE_WORDS: usize = 512;

impl LazyMemory {
    pub(crate) fn new(bytes: usize) -> LazyMemory {
        LazyMemory { count: bytes.div_ceil(PAGE_WORDS * 8), pages: OnceCell::new() }
    }

    #[inline]
    fn word(&self, at: usize) -> u64 {
        let page = self.pages.get().and_then(|pages| pages.get(at / 8 / PAGE_WORDS)).and_then(OnceCell::get);
        page.and_then(|page| page.get(at / 8 % PAGE_WORDS)).map_or(0, Cell::get)
    }

    #[inline]
    fn set_word(&self, at: usize, value: u64) {
        let pages = self.pages.get_or_init(|| (0..self.count).map(|_| OnceCell::new()).collect());
        let Some(page) = pages.get(at / 8 / PAGE_WORDS) else { return };
        let page = page.get_or_init(|| (0..PAGE_WORDS).map(|_| Cell::new(0)).collect());
        if let Some(word) = page.get(at / 8 % PAGE_WORDS) {
            word.set(value);
        }
    }
}

impl Memory for LazyMemory {
    fn len(&self) -> usize {
        self.count * PAGE_WORDS * 8
    }

    #[inline]
    fn load32(&self, at: usize) -> u32 {
        (self.word(at) >> ((at & 4) * 8)) as u32
    }

    fn load32_acquire(&self, at: usize) -> u32 {
        self.load32(at)
    }

    #[inline]
    fn store32(&self, at: usize, value: u32) {
        let shift = (at & 4) * 8;
        let rest = self.word(at) & !(0xffff_ffff << shift);
        self.set_word(at, rest | u64::from(value) << shift);
    }

    fn store32_release(&self, at: usize, value: u32) {
        self.store32(at, value);
    }

    fn load64(&self, at: usize) -> u64 {
        self.word(at)
    }

    fn load64_acquire(&self, at: usize) -> u64 {
        self.word(at)
    }

    fn store64(&self, at: usize, value: u64) {
        self.set_word(at, value);
    }

    fn store64_release(&self, at: usize, value: u64) {
        self.set_word(at, value);
    }

    fn fetch_and64(&self, at: usize, value: u64) -> u64 {
        let old = self.word(at);
        self.set_word(at, old & value);
        old
    }

    fn fetch_or64(&self, at: usize, value: u64) -> u64 {
        let old = self.word(at);
        self.set_word(at, old | value);
        old
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = self.word(at + i).to_le_bytes()[(at + i) % 8];
        }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            let mut word = self.word(at + i).to_le_bytes();
            word[(at + i) % 8] = *byte;
            self.set_word(at + i, u64::from_le_bytes(word));
        }
    }

    fn fence(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_base::Rng;
    use atoll_ipc::HeapMemory;

    #[test]
    fn it_behaves_as_memory_that_is_there_from_the_start() {
        let (lazy, heap) = (LazyMemory::new(3 * 4096), HeapMemory::new(3 * 4096));
        let mut rng = Rng::new(1);
        for _ in 0..10_000 {
            let at = rng.below(3 * 1024) as usize * 4;
            if rng.below(2) == 0 {
                let value = rng.next_u32();
                lazy.store32(at, value);
                heap.store32(at, value);
            }
            assert_eq!(lazy.load32(at), heap.load32(at));
            assert_eq!(lazy.load64(at & !7), heap.load64(at & !7));
        }
        let unused = LazyMemory::new(1 << 30);
        assert_eq!((unused.load64(1 << 20), unused.pages.get().is_none()), (0, true));
    }
}
