//! Linked lists of places in a table. The first place is found, and any place is removed, in constant time.
//! The links are stored apart from the entries, close together: a flood mostly touches the links of
//! neighbours, and these should be in the cache.

use alloc::vec::Vec;

/// The links of lists that have no place in common.
#[derive(Debug)]
pub(super) struct Links {
    /// The link of each place that is in a list, by place.
    links: Vec<Link>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

/// A list: its first and last place. [`Links`] has the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    first: u32,
    last: u32,
}

/// The value for no place.
pub(super) const NOWHERE: u32 = u32::MAX;

impl List {
    pub(super) const fn new() -> List {
        List { first: NOWHERE, last: NOWHERE }
    }

    /// Returns the first place, or [`NOWHERE`] if the list is empty.
    pub(super) fn first(&self) -> u32 {
        self.first
    }
}

impl Links {
    pub(super) const fn new() -> Links {
        Links { links: Vec::new() }
    }

    /// Appends a place that is in no list to `list`.
    pub(super) fn push(&mut self, list: &mut List, at: u32) {
        if self.links.len() <= at as usize {
            self.links.resize(at as usize + 1, Link { before: NOWHERE, after: NOWHERE });
        }
        let before = core::mem::replace(&mut list.last, at);
        if let Some(link) = self.get_mut(at) {
            *link = Link { before, after: NOWHERE };
        }
        match self.get_mut(before) {
            Some(link) => link.after = at,
            None => list.first = at,
        }
    }

    /// Removes a place that is in `list`.
    pub(super) fn remove(&mut self, list: &mut List, at: u32) {
        let Some(&mut Link { before, after }) = self.get_mut(at) else { return };
        match self.get_mut(before) {
            Some(link) => link.after = after,
            None => list.first = after,
        }
        match self.get_mut(after) {
            Some(link) => link.before = before,
            None => list.last = before,
        }
    }

    /// Returns the first place of `list` that is not `but`. It examines two places at most.
    pub(super) fn first_but(&self, list: &List, but: u32) -> Option<u32> {
        let second = || self.links.get(but as usize).map(|link| link.after);
        let found = if list.first == but { second() } else { Some(list.first) };
        found.filter(|at| *at != NOWHERE)
    }

    fn get_mut(&mut self, at: u32) -> Option<&mut Link> {
        self.links.get_mut(at as usize)
    }
}
