//! Keeps the rings of a socket buffer in few octets: 28 instead of the 48 of [`Extents`], which has two
//! options, and gaps behind small fields.

use atoll_ipc::buffer::{Extent, Extents, Pieces};
use atoll_ipc::pool::Blocks;

/// The rings of one direction of one connection. They mean the same as [`Extents`], whose methods these are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rings {
    /// The halves of the bases of the ring that is filled, and of the old one.
    bases: [[u32; 2]; 2],
    units: [u32; 2],
    /// 0 if there is no such ring.
    log2s: [u8; 2],
}

impl Rings {
    pub(crate) const NONE: Rings = Rings { bases: [[0; 2]; 2], units: [0; 2], log2s: [0; 2] };

    #[inline]
    pub(crate) fn current(&self) -> Option<Extent> {
        self.extent(0)
    }

    #[inline]
    pub(crate) fn old(&self) -> Option<Extent> {
        self.extent(1)
    }

    #[inline]
    fn extent(&self, at: usize) -> Option<Extent> {
        let [low, high] = self.bases[at];
        let base = u64::from(low) | u64::from(high) << u32::BITS;
        let (unit, log2) = (self.units[at], self.log2s[at]);
        (log2 != 0).then_some(Extent { base, unit, log2 })
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
        let none = Extent { base: 0, unit: 0, log2: 0 };
        let both = [extents.current, extents.old].map(|extent| extent.unwrap_or(none));
        Rings {
            bases: both.map(|Extent { base, .. }| [base as u32, (base >> u32::BITS) as u32]),
            units: both.map(|extent| extent.unit),
            log2s: both.map(|extent| extent.log2),
        }
    }
}

const _: () = assert!(size_of::<Rings>() == 28);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_the_extents_that_they_were_made_from() {
        let extent = |n: u64| Extent { base: n << 40 | n, unit: n as u32 * 3, log2: n as u8 };
        for (current, old) in [(None, None), (Some(extent(12)), None), (Some(extent(13)), Some(extent(11)))] {
            let rings = Rings::from(Extents { current, old });
            assert_eq!((rings.current(), rings.old()), (current, old));
        }
    }
}
