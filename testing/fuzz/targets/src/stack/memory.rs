//! Memory for arenas that are made thousands of times a second: pages exist once they are written to.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use atoll_ipc::Memory;

const PAGE_WORDS: usize = 64;

type Page = OnceCell<Box<[Cell<u64>; PAGE_WORDS]>>;

/// Memory of this process, zero until written. Clones share the memory. Reads out of range give zero.
#[derive(Clone, Debug)]
pub(crate) struct SparseMemory {
    pages: Rc<[Page]>,
}

impl SparseMemory {
    pub(crate) fn new(bytes: usize) -> SparseMemory {
        SparseMemory { pages: (0..bytes.div_ceil(PAGE_WORDS * 8)).map(|_| OnceCell::new()).collect() }
    }

    fn word(&self, at: usize) -> u64 {
        let page = self.pages.get(at / 8 / PAGE_WORDS).and_then(OnceCell::get);
        page.map_or(0, |page| page[at / 8 % PAGE_WORDS].get())
    }

    fn set_word(&self, at: usize, value: u64) {
        let Some(page) = self.pages.get(at / 8 / PAGE_WORDS) else { return };
        if page.get().is_some() || value != 0 {
            page.get_or_init(|| Box::new([const { Cell::new(0) }; PAGE_WORDS]))[at / 8 % PAGE_WORDS]
                .set(value);
        }
    }
}

impl Memory for SparseMemory {
    fn len(&self) -> usize {
        self.pages.len() * PAGE_WORDS * 8
    }

    fn load32(&self, at: usize) -> u32 {
        assert!(at.is_multiple_of(4), "misaligned word at {at}");
        (self.word(at) >> ((at & 4) * 8)) as u32
    }

    fn load32_acquire(&self, at: usize) -> u32 {
        self.load32(at)
    }

    fn store32(&self, at: usize, value: u32) {
        assert!(at.is_multiple_of(4), "misaligned word at {at}");
        let shift = (at & 4) * 8;
        self.set_word(at, self.word(at) & !(0xffff_ffff << shift) | u64::from(value) << shift);
    }

    fn store32_release(&self, at: usize, value: u32) {
        self.store32(at, value);
    }

    fn load64(&self, at: usize) -> u64 {
        assert!(at.is_multiple_of(8), "misaligned double word at {at}");
        self.word(at)
    }

    fn load64_acquire(&self, at: usize) -> u64 {
        self.load64(at)
    }

    fn store64(&self, at: usize, value: u64) {
        assert!(at.is_multiple_of(8), "misaligned double word at {at}");
        self.set_word(at, value);
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
        let mut at = at;
        let mut rest = out;
        while !rest.is_empty() {
            let (within, n) = (at % 8, rest.len().min(8 - at % 8));
            let (now, later) = rest.split_at_mut(n);
            now.copy_from_slice(&self.word(at).to_le_bytes()[within..within + n]);
            (rest, at) = (later, at + n);
        }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let mut at = at;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (within, n) = (at % 8, rest.len().min(8 - at % 8));
            let (now, later) = rest.split_at(n);
            let mut word = self.word(at).to_le_bytes();
            word[within..within + n].copy_from_slice(now);
            self.set_word(at, u64::from_le_bytes(word));
            (rest, at) = (later, at + n);
        }
    }

    fn fence(&self) {}
}
