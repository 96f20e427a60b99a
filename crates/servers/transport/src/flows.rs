//! Which connection is a segment for? One hash lookup; the table holds indices only, the 4-tuples are in the entries.

use atoll_base::FourTuple;
use core::hash::{BuildHasher, Hasher};
use foldhash::quality::FixedState;
use hashbrown::HashTable;

use crate::entry::Entry;
use crate::slab::Slab;

#[derive(Debug)]
pub(crate) struct Flows {
    table: HashTable<u32>,
    state: FixedState,
}

impl Flows {
    /// `seed`: secret, so that nobody can choose ports that collide.
    pub(crate) fn new(seed: u64) -> Flows {
        Flows { table: HashTable::new(), state: FixedState::with_seed(seed) }
    }

    #[inline]
    pub(crate) fn find(&self, entries: &Slab<Entry>, tuple: &FourTuple) -> Option<u32> {
        let is_it = |index: &u32| entries.get(*index).is_some_and(|entry| entry.tuple == *tuple);
        self.table.find(hash(&self.state, tuple), is_it).copied()
    }

    /// `index` must not be in the table, and its entry must exist.
    pub(crate) fn insert(&mut self, entries: &Slab<Entry>, index: u32) {
        let state = &self.state;
        let hash_of = |index: &u32| entries.get(*index).map_or(0, |entry| hash(state, &entry.tuple));
        self.table.insert_unique(hash_of(&index), index, hash_of);
    }

    pub(crate) fn remove(&mut self, tuple: &FourTuple, index: u32) {
        if let Ok(found) = self.table.find_entry(hash(&self.state, tuple), |other| *other == index) {
            found.remove();
        }
    }
}

#[inline]
fn hash(state: &FixedState, tuple: &FourTuple) -> u64 {
    let mut hasher = state.build_hasher();
    hasher.write_u64(u64::from(tuple.local.addr) << 32 | u64::from(tuple.remote.addr));
    hasher.write_u32(u32::from(tuple.local.port) << 16 | u32::from(tuple.remote.port));
    hasher.finish()
}
