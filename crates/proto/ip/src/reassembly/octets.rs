//! The memory for the octets of fragments: blocks of equal size, which are reused from one fragment to the
//! next. So a flood of fragments neither allocates nor frees memory, and the accounted cost of a fragment is
//! its real cost.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::list::NOWHERE;

/// The size of a block, in octets: six blocks hold an Ethernet frame, one holds anything small.
pub(super) const BLOCK: usize = 256;
/// The number of blocks that are allocated at a time.
const CHUNK: usize = 256;

/// All blocks, free and used.
#[derive(Debug)]
pub(super) struct Octets {
    chunks: Vec<Box<[u8]>>,
    /// The next block of each block, in its chain or in the list of free ones.
    next: Vec<u32>,
    /// The first of the free blocks.
    free: u32,
    /// The number of blocks that are in chains.
    used: usize,
}

/// A chain of blocks: the first and the last one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    first: u32,
    last: u32,
}

impl Octets {
    pub(super) const fn new() -> Octets {
        Octets { chunks: Vec::new(), next: Vec::new(), free: NOWHERE, used: 0 }
    }

    /// Stores `head` followed by `payload`; one of them must not be empty.
    pub(super) fn keep(&mut self, head: &[u8], payload: &[u8]) -> Chain {
        let mut parts = [head, payload];
        let first = self.fill(&mut parts);
        let mut last = first;
        while parts.iter().any(|part| !part.is_empty()) {
            let block = self.fill(&mut parts);
            self.set_next(last, block);
            last = block;
        }
        Chain { first, last }
    }

    /// Fills a free block with the first octets of `parts`, and removes these from `parts`. Returns the
    /// block.
    fn fill(&mut self, parts: &mut [&[u8]; 2]) -> u32 {
        if self.free == NOWHERE {
            self.grow();
        }
        let block = self.free;
        self.free = self.next_of(block);
        self.used += 1;
        let mut room = self.block_mut(block);
        for part in parts {
            let (now, later) = part.split_at(part.len().min(room.len()));
            let (to, left) = room.split_at_mut(now.len());
            to.copy_from_slice(now);
            (*part, room) = (later, left);
        }
        block
    }

    /// Appends the `len` octets that `chain` stores to `out`.
    pub(super) fn read(&self, chain: &Chain, len: usize, out: &mut Vec<u8>) {
        let (mut block, mut left) = (chain.first, len);
        while left > 0 {
            let octets = self.block(block);
            let octets = octets.get(..left).unwrap_or(octets);
            if octets.is_empty() {
                break;
            }
            out.extend_from_slice(octets);
            left -= octets.len();
            block = self.next_of(block);
        }
    }

    /// Frees the blocks of `chain`, which stores `len` octets.
    pub(super) fn give_back(&mut self, chain: &Chain, len: usize) {
        self.set_next(chain.last, self.free);
        self.free = chain.first;
        self.used -= blocks(len);
    }

    /// Returns the memory of a flood to the heap once no block is used any more.
    pub(super) fn shrink(&mut self) {
        if self.used == 0 && self.chunks.len() > 1 {
            *self = Octets::new();
        }
    }

    /// Returns the octets that all blocks take, used or not.
    pub(super) fn capacity(&self) -> usize {
        self.chunks.len() * CHUNK * BLOCK
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.used * BLOCK
    }

    fn grow(&mut self) {
        let start = self.next.len() as u32;
        self.chunks.push(vec![0; CHUNK * BLOCK].into_boxed_slice());
        self.next.extend(start + 1..start + CHUNK as u32);
        self.next.push(self.free);
        self.free = start;
    }

    fn block(&self, block: u32) -> &[u8] {
        let (chunk, at) = (block as usize / CHUNK, block as usize % CHUNK * BLOCK);
        self.chunks.get(chunk).and_then(|chunk| chunk.get(at..at + BLOCK)).unwrap_or_default()
    }

    fn block_mut(&mut self, block: u32) -> &mut [u8] {
        let (chunk, at) = (block as usize / CHUNK, block as usize % CHUNK * BLOCK);
        self.chunks.get_mut(chunk).and_then(|chunk| chunk.get_mut(at..at + BLOCK)).unwrap_or_default()
    }

    fn next_of(&self, block: u32) -> u32 {
        self.next.get(block as usize).copied().unwrap_or(NOWHERE)
    }

    fn set_next(&mut self, block: u32, next: u32) {
        if let Some(place) = self.next.get_mut(block as usize) {
            *place = next;
        }
    }
}

/// Returns the number of blocks that hold `len` octets.
pub(super) const fn blocks(len: usize) -> usize {
    len.div_ceil(BLOCK)
}
