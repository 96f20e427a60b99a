//! A table of values by number, in chunks that never move.
//!
//! The crate `slab` keeps its values in a vector: growing to twice its size moves them all, which takes
//! milliseconds in a replica with 100,000 connections, and wastes up to half of the memory. Here growing
//! costs the same at any size, and wastes at most one chunk. A successor also fills a table again: it puts
//! values at the numbers that they had, and keeps numbers for values that come later, which `slab` cannot do.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// A table of values. Numbers stay, values never move, and freed numbers are used again, the last freed
/// first.
#[derive(Debug)]
pub struct Slab<T> {
    /// The chunks; one without a value so far takes no memory.
    chunks: Vec<Option<Chunk<T>>>,
    free: Vec<u32>,
    len: usize,
}

type Chunk<T> = Box<[Option<T>; CHUNK]>;

const CHUNK_BITS: u32 = 6;
const CHUNK: usize = 1 << CHUNK_BITS;

impl<T> Slab<T> {
    /// Creates an empty table, which takes no memory.
    pub const fn new() -> Slab<T> {
        Slab { chunks: Vec::new(), free: Vec::new(), len: 0 }
    }

    /// Returns the number of values.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the table holds no values.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Stores a value, and returns its number.
    pub fn insert(&mut self, value: T) -> u32 {
        if self.free.is_empty() {
            // Cannot truncate: the caller's limits are far below 2^32.
            let first = (self.chunks.len() << CHUNK_BITS) as u32;
            self.chunks.push(None);
            self.free.extend((first..first + CHUNK as u32).rev());
        }
        let index = self.free.pop().unwrap_or_default();
        *self.place_made(index).expect("a free number lies in a chunk") = Some(value);
        self.len += 1;
        index
    }

    /// Puts a value at a number of its own, while a table is filled again. Returns `false` if there is one
    /// already. Call [`Slab::restore_free`] afterwards.
    pub fn put(&mut self, index: u32, value: T) -> bool {
        self.grow(index.saturating_add(1));
        let Some(place) = self.place_made(index).filter(|place| place.is_none()) else { return false };
        *place = Some(value);
        self.len += 1;
        true
    }

    /// Frees every number without a value, except those that are kept, which end before `end`, and are for
    /// [`Slab::put`] and [`Slab::free`].
    pub fn restore_free(&mut self, end: u32, is_kept: impl Fn(u32) -> bool) {
        self.grow(end);
        // Cannot truncate: see above.
        let all = (0..(self.chunks.len() << CHUNK_BITS) as u32).rev();
        self.free = all.filter(|index| self.get(*index).is_none() && !is_kept(*index)).collect();
    }

    /// Frees a number that was kept and has no value.
    pub fn free(&mut self, index: u32) {
        self.free.push(index);
    }

    /// Takes a value out of the table; returns `None` if the number is not in use.
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.place(index)?.take()?;
        self.free.push(index);
        self.len -= 1;
        Some(value)
    }

    /// Returns the value with this number, if the number is in use.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        let chunk = self.chunks.get((index >> CHUNK_BITS) as usize)?.as_ref()?;
        chunk[index as usize % CHUNK].as_ref()
    }

    /// Returns the value with this number for writing, if the number is in use.
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.place(index)?.as_mut()
    }

    /// Returns all values with their numbers, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.iter_from(0)
    }

    /// Returns all values from this number on with their numbers, in ascending order.
    pub fn iter_from(&self, index: u32) -> impl Iterator<Item = (u32, &T)> {
        let skipped = (index >> CHUNK_BITS) as usize;
        let chunks = (0u32..).step_by(CHUNK).zip(&self.chunks).skip(skipped);
        chunks
            .filter_map(|(first, chunk)| Some((first, chunk.as_ref()?)))
            .flat_map(|(first, chunk)| {
                (first..).zip(chunk.iter()).filter_map(|(at, value)| Some((at, value.as_ref()?)))
            })
            .skip_while(move |(at, _)| *at < index)
    }

    /// Returns the numbers in use, in ascending order.
    pub fn indices(&self) -> Vec<u32> {
        self.iter().map(|(index, _)| index).collect()
    }

    /// Creates the places before `end`.
    fn grow(&mut self, end: u32) {
        while self.chunks.len() << CHUNK_BITS < end as usize {
            self.chunks.push(None);
        }
    }

    fn place_made(&mut self, index: u32) -> Option<&mut Option<T>> {
        let chunk = self.chunks.get_mut((index >> CHUNK_BITS) as usize)?;
        Some(&mut chunk.get_or_insert_with(vacant)[index as usize % CHUNK])
    }

    #[inline]
    fn place(&mut self, index: u32) -> Option<&mut Option<T>> {
        let chunk = self.chunks.get_mut((index >> CHUNK_BITS) as usize)?.as_mut()?;
        Some(&mut chunk[index as usize % CHUNK])
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab::new()
    }
}

/// Returns a chunk without values, which is made where it stays: on the stack it may be too large.
fn vacant<T>() -> Chunk<T> {
    let places: Box<[Option<T>]> = (0..CHUNK).map(|_| None).collect();
    places.try_into().ok().expect("as many places as a chunk has")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_come_back_and_values_stay_where_they_are() {
        let mut slab = Slab::new();
        assert!(slab.is_empty());
        let indices: Vec<u32> = (0..200).map(|n| slab.insert(n)).collect();
        assert_eq!(slab.remove(indices[70]), Some(70));
        assert_eq!(slab.remove(indices[70]), None);
        assert_eq!(slab.insert(1000), indices[70]);
        assert_eq!((slab.len(), slab.get(indices[199]), slab.get(9999)), (200, Some(&199), None));
        assert_eq!((slab.get(u32::MAX), slab.indices()), (None, (0..200).collect()));
        assert_eq!(slab.iter().map(|(_, value)| value).sum::<i32>(), (0..200).sum::<i32>() - 70 + 1000);
        for from in [0, 1, 63, 64, 100, 199, 200, 9999] {
            assert!(slab.iter_from(from).eq(slab.iter().filter(|(at, _)| *at >= from)), "{from}");
        }
    }

    #[test]
    fn places_are_kept_for_values_that_come_later() {
        let mut slab = Slab::new();
        assert!(slab.put(3, 30));
        slab.restore_free(131, |index| index == 1 || index == 130);
        let given: Vec<u32> = (0..192 - 3).map(|_| slab.insert(0)).collect();
        assert!(given.iter().all(|index| ![1, 3, 130].contains(index)));
        assert!(slab.put(130, 13) && !slab.put(130, 14), "it is there");
        slab.free(1);
        assert_eq!((slab.insert(1), slab.insert(0), slab.get(130)), (1, 192, Some(&13)));
    }
}
