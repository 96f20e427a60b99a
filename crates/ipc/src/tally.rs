//! The counters of a server across its incarnations: they continue where its predecessor's ended.

use crate::memory::Memory;
use crate::page::{ReplicaPage, Stat};

/// The counters on a page as a server found them when it started.
#[derive(Clone, Debug)]
pub struct Tally([u64; Stat::ALL.len()]);

impl Tally {
    /// Reads what the predecessors have published, which is all but their last moments. Call before anything
    /// is published anew.
    pub fn read<M: Memory>(page: &ReplicaPage<M>) -> Tally {
        let mut past = [0; Stat::ALL.len()];
        for &stat in Stat::ALL {
            past[stat as usize] = page.stat(stat);
        }
        Tally(past)
    }

    /// Returns the value to publish if this incarnation has counted `own`. Gauges, which describe the
    /// present, have no past.
    #[inline]
    pub fn with(&self, stat: Stat, own: u64) -> u64 {
        if stat.is_gauge() { own } else { self.0[stat as usize].saturating_add(own) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HeapMemory;
    use crate::page::REPLICA_PAGE_BYTES;

    #[test]
    fn counters_go_on_and_gauges_do_not() {
        let page = ReplicaPage(HeapMemory::new(REPLICA_PAGE_BYTES));
        for (life, expected) in [(1, [10, 10]), (2, [20, 10]), (3, [30, 10])] {
            let tally = Tally::read(&page);
            // The counters are published more than once in an incarnation.
            for own in [4, 10] {
                page.set_stat(Stat::SegmentsIn, tally.with(Stat::SegmentsIn, own));
                page.set_stat(Stat::Connections, tally.with(Stat::Connections, own));
            }
            assert_eq!([page.stat(Stat::SegmentsIn), page.stat(Stat::Connections)], expected, "life {life}");
        }
    }
}
