//! Finds the connection of a segment by one hash lookup. The table holds indices only; the names are in the
//! entries.

use atoll_base::Slab;
use hashbrown::HashTable;

use crate::entry::Entry;
use crate::names::{Name, NameHash};

/// The indices of connections, by name.
#[derive(Debug)]
pub(crate) struct Flows {
    table: HashTable<u32>,
    hash: NameHash,
}

impl Flows {
    /// Creates an empty table. `seed` is secret, so that no peer can choose ports that collide.
    pub(crate) fn new(seed: u64) -> Flows {
        Flows { table: HashTable::new(), hash: NameHash::new(seed) }
    }

    #[inline]
    pub(crate) fn find(&self, entries: &Slab<Entry>, name: &Name) -> Option<u32> {
        self.find_hashed(entries, name, self.hash.of(name))
    }

    /// Returns the connection of a name whose hash is known.
    #[inline]
    pub(crate) fn find_hashed(&self, entries: &Slab<Entry>, name: &Name, hashed: u64) -> Option<u32> {
        let is_it = |index: &u32| entries.get(*index).is_some_and(|entry| entry.name == *name);
        self.table.find(hashed, is_it).copied()
    }

    /// Returns the hash function of names.
    pub(crate) fn name_hash(&self) -> &NameHash {
        &self.hash
    }

    /// Makes room for `more` indices.
    pub(crate) fn reserve(&mut self, entries: &Slab<Entry>, more: usize) {
        let hash = &self.hash;
        self.table.reserve(more, |index| entries.get(*index).map_or(0, |entry| hash.of(&entry.name)));
    }

    /// Inserts `index`, which must not be in the table, and whose entry must exist.
    pub(crate) fn insert(&mut self, entries: &Slab<Entry>, index: u32) {
        let hash = &self.hash;
        let hash_of = |index: &u32| entries.get(*index).map_or(0, |entry| hash.of(&entry.name));
        self.table.insert_unique(hash_of(&index), index, hash_of);
    }

    pub(crate) fn remove(&mut self, name: &Name, index: u32) {
        if let Ok(found) = self.table.find_entry(self.hash.of(name), |other| *other == index) {
            found.remove();
        }
    }
}
