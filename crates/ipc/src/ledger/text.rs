//! Text that was acknowledged before an application has accepted its connection, in chained units of the
//! ledger.

use alloc::vec::Vec;
use core::mem::offset_of;

use crate::layout::words;
use crate::memory::Memory;

words! {
    /// A unit.
    pub(super) struct Unit {
        /// The number of the next unit plus 1; 0 in the last one.
        next: u32,
        text: [u8; IN_UNIT],
    }
}

/// The size of a unit in octets.
pub const TEXT_UNIT_BYTES: usize = size_of::<Unit>();
const IN_UNIT: usize = 508;
const TEXT: usize = offset_of!(Unit, text);

/// The units of a ledger.
#[derive(Debug)]
pub struct TextArea<'m, M: Memory> {
    pub(super) memory: &'m M,
    pub(super) start: usize,
    pub(super) units: u32,
}

/// The free units of a ledger. The pool lives in the writer: a successor finds the units in use by its
/// records.
#[derive(Debug, Default)]
pub struct TextPool {
    free: Vec<u32>,
    /// The first unit that was never used; those after it were not used either.
    fresh: u32,
}

impl TextPool {
    /// Creates a pool in which the chains that begin at `heads` are in use.
    pub fn resume<M: Memory>(area: &TextArea<'_, M>, heads: impl Iterator<Item = u32>) -> TextPool {
        let mut used: Vec<u32> = heads.flat_map(|head| area.chain(head)).collect();
        used.sort_unstable();
        used.dedup();
        let fresh = used.last().map_or(0, |last| last + 1);
        TextPool { free: (0..fresh).filter(|unit| used.binary_search(unit).is_err()).collect(), fresh }
    }

    /// Writes `text`, and returns the head of its chain; 0 if there is no text or not enough room.
    pub fn write<M: Memory>(&mut self, area: &TextArea<'_, M>, text: &[u8]) -> u32 {
        if text.len().div_ceil(IN_UNIT) > self.free.len() + (area.units - self.fresh) as usize {
            return 0;
        }
        let mut next = 0;
        for part in text.chunks(IN_UNIT).rev() {
            let unit = self.free.pop().unwrap_or_else(|| {
                self.fresh += 1;
                self.fresh - 1
            });
            let at = area.at(unit);
            area.memory.store32(at, next);
            area.memory.write(at + TEXT, part);
            next = unit + 1;
        }
        next
    }

    /// Frees the units of a chain. Call after the record that named it is gone.
    pub fn free<M: Memory>(&mut self, area: &TextArea<'_, M>, head: u32) {
        self.free.extend(area.chain(head));
    }
}

impl<M: Memory> TextArea<'_, M> {
    /// Reads the `len` octets of the chain that begins at `head`; returns `None` if it has fewer.
    pub fn read(&self, head: u32, len: usize) -> Option<Vec<u8>> {
        let units = self.chain(head);
        if units.len() * IN_UNIT < len {
            return None;
        }
        let mut text = alloc::vec![0; len];
        for (part, unit) in text.chunks_mut(IN_UNIT).zip(units) {
            self.memory.read(self.at(unit) + TEXT, part);
        }
        Some(text)
    }

    /// Returns the units of a chain: no more than a connection's text needs, whatever is written there.
    fn chain(&self, head: u32) -> Vec<u32> {
        let mut units = Vec::new();
        let mut next = head;
        while let Some(unit) = next.checked_sub(1).filter(|unit| *unit < self.units)
            && units.len() < CHAIN_MAX
        {
            units.push(unit);
            next = self.memory.load32(self.at(unit));
        }
        units
    }

    fn at(&self, unit: u32) -> usize {
        self.start + unit as usize * TEXT_UNIT_BYTES
    }
}

/// The maximum number of units in a chain, about 64 KiB: more than is ever kept for one connection.
const CHAIN_MAX: usize = 130;
