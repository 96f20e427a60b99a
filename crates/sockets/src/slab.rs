//! Stores objects under numbers, in a table of chunks. Numbers stay, objects never move, and freed numbers
//! are used again, the last freed first.

use alloc::boxed::Box;
use alloc::vec::Vec;

const CHUNK: usize = 64;

/// The number that means no object.
pub const NONE: u32 = u32::MAX;

/// A table of objects by number.
#[derive(Debug)]
pub struct Slab<T> {
    chunks: Vec<Box<[Option<T>; CHUNK]>>,
    free: Vec<u32>,
    used: u32,
    len: usize,
}

impl<T> Slab<T> {
    /// Creates an empty table, which takes no memory.
    pub const fn new() -> Slab<T> {
        Slab { chunks: Vec::new(), free: Vec::new(), used: 0, len: 0 }
    }

    /// Stores an object and returns its number.
    pub fn insert(&mut self, value: T) -> u32 {
        let index = self.free.pop().unwrap_or(self.used);
        if index == self.used {
            self.used += 1;
        }
        if index as usize / CHUNK >= self.chunks.len() {
            self.chunks.push(Box::new([const { None }; CHUNK]));
        }
        self.chunks[index as usize / CHUNK][index as usize % CHUNK] = Some(value);
        self.len += 1;
        index
    }

    /// Takes an object out of the table; returns `None` if the number is not in use.
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.chunks.get_mut(index as usize / CHUNK)?[index as usize % CHUNK].take()?;
        self.free.push(index);
        self.len -= 1;
        Some(value)
    }

    /// Returns the object with this number, if the number is in use.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        self.chunks.get(index as usize / CHUNK)?[index as usize % CHUNK].as_ref()
    }

    /// Returns the object with this number for writing, if the number is in use.
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.chunks.get_mut(index as usize / CHUNK)?[index as usize % CHUNK].as_mut()
    }

    /// Returns the numbers in use, in ascending order.
    pub fn indices(&self) -> Vec<u32> {
        (0..self.used).filter(|i| self.get(*i).is_some()).collect()
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the table holds no objects.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_and_are_used_again() {
        let mut slab = Slab::new();
        let numbers: Vec<u32> = (0..200).map(|n| slab.insert(n)).collect();
        assert_eq!(numbers[199], 199);
        assert_eq!(slab.remove(70), Some(70));
        assert_eq!(slab.remove(70), None);
        assert_eq!((slab.get(70), slab.get(71), slab.len()), (None, Some(&71), 199));
        assert_eq!(slab.insert(7), 70);
        assert_eq!(slab.get(NONE), None);
    }
}
