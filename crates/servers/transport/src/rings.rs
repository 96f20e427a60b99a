//! Keeps the rings of a socket buffer in few octets: [`Extents`] with two marks instead of two options takes
//! 32 octets, not 48.

use atoll_ipc::buffer::{Extent, Extents, Pieces};
use atoll_ipc::pool::Blocks;

/// The rings of one direction of one connection. They mean the same as [`Extents`], whose methods these are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rings {
    /// The ring that is filled; there is none if `log2` is 0.
    current: Extent,
    old: Extent,
}

const NONE: Extent = Extent { base: 0, unit: 0, log2: 0 };

impl Rings {
    pub(crate) const NONE: Rings = Rings { current: NONE, old: NONE };

    #[inline]
    pub(crate) fn current(&self) -> Option<Extent> {
        (self.current.log2 != 0).then_some(self.current)
    }

    #[inline]
    pub(crate) fn old(&self) -> Option<Extent> {
        (self.old.log2 != 0).then_some(self.old)
    }

    #[inline]
    pub(crate) fn extents(&self) -> Extents {
        Extents { current: self.current(), old: self.old() }
    }

    #[inline]
    pub(crate) fn pieces(&self, offset: u64, len: usize) -> Option<Pieces> {
        self.extents().pieces(offset, len)
    }

    pub(crate) fn reserve(
        &mut self,
        blocks: &impl Blocks,
        head: u64,
        high: u64,
        end: u64,
        size_max: usize,
    ) -> u64 {
        self.with(|extents| extents.reserve(blocks, head, high, end, size_max))
    }

    pub(crate) fn release(&mut self, blocks: &impl Blocks, head: u64, high: u64) -> bool {
        self.with(|extents| extents.release(blocks, head, high))
    }

    pub(crate) fn release_all(&mut self, blocks: &impl Blocks) {
        self.with(|extents| extents.release_all(blocks));
    }

    fn with<R>(&mut self, change: impl FnOnce(&mut Extents) -> R) -> R {
        let mut extents = self.extents();
        let result = change(&mut extents);
        *self = Rings::from(extents);
        result
    }
}

impl From<Extents> for Rings {
    fn from(extents: Extents) -> Rings {
        Rings { current: extents.current.unwrap_or(NONE), old: extents.old.unwrap_or(NONE) }
    }
}

const _: () = assert!(size_of::<Rings>() == 32);
