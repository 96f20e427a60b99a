//! A set of small numbers in which the next member is found by a scan of words, not of single numbers.

use alloc::vec;
use alloc::vec::Vec;

const WORD: u32 = u64::BITS;

/// A set of numbers below a limit, one bit each.
#[derive(Clone, Debug)]
pub struct BitSet {
    words: Vec<u64>,
    limit: u32,
}

impl BitSet {
    /// Creates the set of all numbers below `limit`.
    pub fn full(limit: u32) -> BitSet {
        let mut words = vec![u64::MAX; limit.div_ceil(WORD) as usize];
        if let Some(last) = words.last_mut() {
            *last >>= (WORD - limit % WORD) % WORD;
        }
        BitSet { words, limit }
    }

    /// Returns whether `n` is in the set.
    pub fn has(&self, n: u32) -> bool {
        self.words.get((n / WORD) as usize).is_some_and(|word| word & (1 << (n % WORD)) != 0)
    }

    /// Adds `n`. A number beyond the limit is ignored.
    pub fn insert(&mut self, n: u32) {
        if let Some(word) = self.words.get_mut((n / WORD) as usize).filter(|_| n < self.limit) {
            *word |= 1 << (n % WORD);
        }
    }

    /// Removes `n`.
    pub fn remove(&mut self, n: u32) {
        if let Some(word) = self.words.get_mut((n / WORD) as usize) {
            *word &= !(1 << (n % WORD));
        }
    }

    /// Returns the first member that is not less than `from`; if there is none, the first of all.
    pub fn next(&self, from: u32) -> Option<u32> {
        let first = (from / WORD) as usize;
        let below = |word: &u64| word & ((1 << (from % WORD)) - 1);
        let rest = self.words.get(first).map(|word| (first, word & !below(word)));
        let after = (first + 1..self.words.len()).map(|at| (at, self.words[at]));
        let before = (0..self.words.len().min(first + 1)).map(|at| (at, self.words[at]));
        let (at, word) = rest.into_iter().chain(after).chain(before).find(|(_, word)| *word != 0)?;
        // Cannot truncate: the index is below the limit.
        Some(at as u32 * WORD + word.trailing_zeros())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Rng;

    #[test]
    fn the_set_agrees_with_a_tree() {
        let mut rng = Rng::new(1);
        for limit in [0, 1, 63, 64, 65, 128, 200] {
            let mut set = BitSet::full(limit);
            let mut model: BTreeSet<u32> = (0..limit).collect();
            for _ in 0..2000 {
                let n = rng.below(210);
                if rng.below(8) == 0 {
                    set.insert(n);
                    model.extend((n < limit).then_some(n));
                } else {
                    set.remove(n);
                    model.remove(&n);
                }
                assert_eq!(set.has(n), model.contains(&n));
                let from = rng.below(210);
                let next = model.range(from..).next().or(model.first()).copied();
                assert_eq!(set.next(from), next, "from {from} of {limit}");
            }
        }
    }
}
