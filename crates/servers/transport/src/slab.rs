//! A table in chunks that never move: growing costs the same with 10 and with 100,000 values, and wastes at
//! most one chunk (a vector that doubles would waste half of itself).

use alloc::boxed::Box;
use alloc::vec::Vec;

#[derive(Debug)]
pub(crate) struct Slab<T> {
    /// The chunks; an empty one is filled when it is needed.
    chunks: Vec<Box<[Option<T>]>>,
    free: Vec<u32>,
    len: usize,
}

const CHUNK_BITS: u32 = 6;
const CHUNK: usize = 1 << CHUNK_BITS;

impl<T> Slab<T> {
    pub(crate) const fn new() -> Slab<T> {
        Slab { chunks: Vec::new(), free: Vec::new(), len: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if self.free.is_empty() {
            // Cannot truncate: the caller's limits are far below 2^32.
            let first = (self.chunks.len() << CHUNK_BITS) as u32;
            self.chunks.push(Box::default());
            self.free.extend((first..first + CHUNK as u32).rev());
        }
        let index = self.free.pop().unwrap_or_default();
        *self.place_made(index).expect("a free index lies in a chunk") = Some(value);
        self.len += 1;
        index
    }

    /// Puts a value at a place of its own, while a slab is filled again. Returns `false` if there is one
    /// already. Call [`Slab::restore_free`] afterwards.
    pub(crate) fn put(&mut self, index: u32, value: T) -> bool {
        self.grow(index.saturating_add(1));
        let Some(place) = self.place_made(index).filter(|place| place.is_none()) else { return false };
        *place = Some(value);
        self.len += 1;
        true
    }

    /// Frees every place without a value, except those that are kept, which end before `end`, and are for
    /// [`Slab::put`] and [`Slab::free`].
    pub(crate) fn restore_free(&mut self, end: u32, is_kept: impl Fn(u32) -> bool) {
        self.grow(end);
        // Cannot truncate: see above.
        let all = (0..(self.chunks.len() << CHUNK_BITS) as u32).rev();
        self.free = all.filter(|index| self.get(*index).is_none() && !is_kept(*index)).collect();
    }

    /// Frees a place that was kept and has no value.
    pub(crate) fn free(&mut self, index: u32) {
        self.free.push(index);
    }

    /// Creates the places before `end`.
    fn grow(&mut self, end: u32) {
        while self.chunks.len() << CHUNK_BITS < end as usize {
            self.chunks.push(Box::default());
        }
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.place(index)?.take()?;
        self.free.push(index);
        self.len -= 1;
        Some(value)
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.chunks.get((index >> CHUNK_BITS) as usize)?.get(index as usize & (CHUNK - 1))?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.place(index)?.as_mut()
    }

    /// Returns all values with their indices, in order of index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let chunks = (0..).step_by(CHUNK).zip(&self.chunks);
        chunks.flat_map(|(first, chunk)| {
            (first..).zip(chunk.iter()).filter_map(|(at, value)| Some((at, value.as_ref()?)))
        })
    }

    /// Returns all values from this index on with their indices, in order of index.
    pub(crate) fn iter_from(&self, index: u32) -> impl Iterator<Item = (u32, &T)> {
        let skipped = (index >> CHUNK_BITS) as usize;
        let chunks = (0u32..).step_by(CHUNK).zip(&self.chunks).skip(skipped);
        chunks
            .flat_map(|(first, chunk)| {
                (first..).zip(chunk.iter()).filter_map(|(at, value)| Some((at, value.as_ref()?)))
            })
            .skip_while(move |(at, _)| *at < index)
    }

    fn place_made(&mut self, index: u32) -> Option<&mut Option<T>> {
        let chunk = self.chunks.get_mut((index >> CHUNK_BITS) as usize)?;
        if chunk.is_empty() {
            *chunk = (0..CHUNK).map(|_| None).collect();
        }
        chunk.get_mut(index as usize & (CHUNK - 1))
    }

    #[inline]
    fn place(&mut self, index: u32) -> Option<&mut Option<T>> {
        self.chunks.get_mut((index >> CHUNK_BITS) as usize)?.get_mut(index as usize & (CHUNK - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_come_back_and_values_stay_where_they_are() {
        let mut slab = Slab::new();
        let indices: Vec<u32> = (0..200).map(|n| slab.insert(n)).collect();
        assert_eq!(slab.remove(indices[70]), Some(70));
        assert_eq!(slab.remove(indices[70]), None);
        assert_eq!(slab.insert(1000), indices[70]);
        assert_eq!((slab.len(), slab.get(indices[199]), slab.get(9999)), (200, Some(&199), None));
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
