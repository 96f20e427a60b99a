//! A table whose entries have fixed places and are found by keyed hash. Places are reused, so a table full of
//! unwanted entries neither allocates nor frees memory for the next ones.

use alloc::vec::Vec;

use hashbrown::HashTable;

#[derive(Debug)]
pub(super) struct Table<T> {
    slots: Vec<Option<T>>,
    /// The places in `slots` without an entry.
    free: Vec<u32>,
    /// The hash and place of each entry.
    index: HashTable<(u64, u32)>,
    #[cfg(test)]
    looks: core::cell::Cell<u64>,
}

impl<T> Table<T> {
    pub(super) const fn new() -> Table<T> {
        Table {
            slots: Vec::new(),
            free: Vec::new(),
            index: HashTable::new(),
            #[cfg(test)]
            looks: core::cell::Cell::new(0),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns the place of the entry with this hash for which `is` holds. The cost is O(1) if hashes cannot
    /// be predicted.
    pub(super) fn find(&self, hash: u64, is: impl Fn(&T) -> bool) -> Option<u32> {
        let found = self.index.find(hash, |&(other, at)| other == hash && self.get(at).is_some_and(&is));
        found.map(|&(_, at)| at)
    }

    /// Adds an entry that is not in the table. Returns its place.
    pub(super) fn insert(&mut self, hash: u64, entry: T) -> u32 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        if let Some(slot) = self.slots.get_mut(at as usize) {
            *slot = Some(entry);
        }
        self.index.insert_unique(hash, (hash, at), |&(hash, _)| hash);
        at
    }

    /// Removes and returns the entry at `at`, which was inserted with `hash`.
    pub(super) fn remove(&mut self, hash: u64, at: u32) -> Option<T> {
        let entry = self.slots.get_mut(at as usize)?.take()?;
        if let Ok(found) = self.index.find_entry(hash, |&(_, other)| other == at) {
            found.remove();
        }
        self.free.push(at);
        Some(entry)
    }

    #[inline]
    pub(super) fn get(&self, at: u32) -> Option<&T> {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        self.slots.get(at as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        self.slots.get_mut(at as usize)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().inspect(|_| self.looked()).flatten()
    }

    /// Returns the number of places, with and without an entry.
    pub(super) fn places(&self) -> usize {
        self.slots.len()
    }

    fn looked(&self) {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
    }

    /// Returns how often an entry was examined.
    #[cfg(test)]
    pub(super) fn looks(&self) -> u64 {
        self.looks.get()
    }
}
