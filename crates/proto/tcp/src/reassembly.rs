//! Which text has arrived out of order, and which of it do acknowledgements report (RFC 2018 §4)?

use crate::ranges::RangeSet;

/// The text beyond `rcv.nxt`. It exists, boxed, only while there is such text.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    pub(crate) ranges: RangeSet,
    /// An offset within each of the ranges that changed last, latest first.
    recent: [i64; RECENT],
}

impl Reassembly {
    /// Adds `[left, right)`; returns false if there is no room for another range.
    pub(crate) fn insert(&mut self, left: i64, right: i64) -> bool {
        let inserted = self.ranges.insert(left, right).is_some();
        if inserted {
            self.touch(left);
        }
        inserted
    }

    /// Notes that text at `offset` has come now, perhaps again: the range that holds it is reported first,
    /// and the others keep their order.
    pub(crate) fn touch(&mut self, offset: i64) {
        let Some((from, to)) = self.ranges.range_at(offset) else { return };
        // A range has one place only: a range that grows must not push the others out.
        let place = self.recent.iter().position(|recent| (from..to).contains(recent)).unwrap_or(RECENT - 1);
        self.recent.copy_within(0..place, 1);
        self.recent[0] = offset;
    }

    /// Returns the new `nxt` after text up to `nxt` has arrived in order: ranges that it reaches are in order
    /// now, and are removed.
    pub(crate) fn advance(&mut self, nxt: i64) -> i64 {
        let joined = self.ranges.range_at(nxt).map_or(nxt, |range| range.1);
        self.ranges.remove_below(joined);
        joined
    }

    /// Returns the blocks to report: the one that changed last comes first, each only once (RFC 2018 §4).
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        let found = |at: usize| self.recent.get(at).and_then(|offset| self.ranges.range_at(*offset));
        (0..RECENT).filter_map(move |at| {
            let range = found(at)?;
            (0..at).all(|earlier| found(earlier) != Some(range)).then_some(range)
        })
    }
}

/// The number of blocks that fit into the option space.
const RECENT: usize = 4;
