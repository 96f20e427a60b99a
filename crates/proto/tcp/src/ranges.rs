//! Which ranges of a stream are present: a sorted list of disjoint, non-touching ranges, bounded in number.

use alloc::vec::Vec;

/// Disjoint half-open ranges of stream offsets, in ascending order. They never touch each other, and there
/// are at most [`RangeSet::MAX`].
///
/// ```text
///      [ 10..20 )      [ 35..40 )   [ 41..99 )
/// ```
#[derive(Clone, Debug, Default)]
pub(crate) struct RangeSet {
    ranges: Vec<(i64, i64)>,
}

impl RangeSet {
    /// The most ranges kept. A peer that makes more holes is served more slowly, but does not use more
    /// memory.
    pub(crate) const MAX: usize = 128;

    /// Adds `[left, right)`. Returns how many octets were not covered before, or `None` if the set is full
    /// and the range touches no other: then nothing changes. An empty range adds nothing. Cost: O(log n) plus
    /// moves.
    pub(crate) fn insert(&mut self, left: i64, right: i64) -> Option<i64> {
        if left >= right {
            return Some(0);
        }
        let from = self.ranges.partition_point(|range| range.1 < left);
        let to = self.ranges.partition_point(|range| range.0 <= right);
        let Some(touched) = self.ranges.get(from..to).filter(|touched| !touched.is_empty()) else {
            if self.ranges.len() >= RangeSet::MAX {
                return None;
            }
            self.ranges.insert(from, (left, right));
            return Some(right - left);
        };
        let covered: i64 = touched.iter().map(|range| range.1 - range.0).sum();
        let merged =
            touched.iter().fold((left, right), |all, range| (all.0.min(range.0), all.1.max(range.1)));
        self.ranges.drain(from + 1..to);
        if let Some(slot) = self.ranges.get_mut(from) {
            *slot = merged;
        }
        let fresh = merged.1 - merged.0 - covered;
        Some(fresh)
    }

    /// Returns whether [`RangeSet::insert`] would take `[left, right)`.
    pub(crate) fn has_room_for(&self, left: i64, right: i64) -> bool {
        self.ranges.len() < RangeSet::MAX || {
            let from = self.ranges.partition_point(|range| range.1 < left);
            self.ranges.get(from).is_some_and(|range| range.0 <= right)
        }
    }

    /// Removes everything below `edge`. Returns how many octets that were.
    pub(crate) fn remove_below(&mut self, edge: i64) -> i64 {
        let gone = self.ranges.partition_point(|range| range.1 <= edge);
        let mut removed: i64 = self.ranges.drain(..gone).map(|range| range.1 - range.0).sum();
        if let Some(first) = self.ranges.first_mut()
            && first.0 < edge
        {
            removed += edge - first.0;
            first.0 = edge;
        }
        removed
    }

    /// Returns whether all of `[left, right)` is covered.
    pub(crate) fn covers(&self, left: i64, right: i64) -> bool {
        self.range_at(left).is_some_and(|range| range.1 >= right)
    }

    /// Returns the range that holds `offset`.
    pub(crate) fn range_at(&self, offset: i64) -> Option<(i64, i64)> {
        let at = self.ranges.partition_point(|range| range.1 <= offset);
        self.ranges.get(at).copied().filter(|range| range.0 <= offset)
    }

    /// Returns the first covered part of `[left, right)`.
    pub(crate) fn first_within(&self, left: i64, right: i64) -> Option<(i64, i64)> {
        let at = self.ranges.partition_point(|range| range.1 <= left);
        let range = self.ranges.get(at).filter(|range| left < right && range.0 < right)?;
        Some((range.0.max(left), range.1.min(right)))
    }

    /// Returns how many octets are covered in all. Cost: O(n).
    pub(crate) fn total(&self) -> i64 {
        self.ranges.iter().map(|range| range.1 - range.0).sum()
    }

    /// Returns how many octets of heap are in use.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.ranges.capacity() * size_of::<(i64, i64)>()
    }

    /// Returns the number of ranges.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Iterates over all ranges, in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.ranges.iter().copied()
    }

    /// Returns the lowest range.
    pub(crate) fn first(&self) -> Option<(i64, i64)> {
        self.ranges.first().copied()
    }

    /// Returns the end of the highest range: the first offset above everything covered.
    pub(crate) fn end(&self) -> Option<i64> {
        self.ranges.last().map(|range| range.1)
    }

    /// Returns whether nothing is covered.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(crate) fn check_invariants(&self) {
        assert!(self.ranges.len() <= RangeSet::MAX);
        assert!(self.ranges.iter().all(|range| range.0 < range.1));
        assert!(self.ranges.is_sorted_by(|a, b| a.1 < b.0));
    }
}

#[cfg(test)]
mod tests;
