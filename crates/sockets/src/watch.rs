//! The interest lists and ready lists of epoll(7).
//!
//! A [`Watch`] ties one set (an epoll instance) to one target (a socket, or another set). It is a member of
//! two lists: the target's, so that an event finds its watchers, and the set's, so that closing finds its
//! members. While something may be ready, the watch is also in the set's ready list: a wait costs O(ready),
//! not O(watched).

use atoll_base::Slab;

/// The number that means no watch.
const NONE: u32 = u32::MAX;

/// The flag `EPOLLONESHOT`.
pub const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
/// The flag `EPOLLET`.
pub const EDGE: u32 = libc::EPOLLET as u32;
/// The flag `EPOLLEXCLUSIVE`.
pub const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// The flag `EPOLLWAKEUP`.
pub const WAKEUP: u32 = libc::EPOLLWAKEUP as u32;
/// The bits that are reported whether asked for or not.
pub const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// All bits that are no flags.
const EVENT_BITS: u32 = !(ONESHOT | EDGE | EXCLUSIVE | WAKEUP);

/// One entry of an interest list.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The number of the set.
    pub set: u32,
    /// The number of the target, as the owner of the table numbers targets.
    pub target: u32,
    /// The descriptor under which the target was added.
    pub fd: i32,
    /// Events and flags as given to epoll_ctl(2).
    pub events: u32,
    /// The caller's data.
    pub data: u64,
    /// Whether the watch is a one-shot watch that has fired.
    pub disarmed: bool,
    queued: bool,
    ready: Links,
    of_target: Links,
    of_set: Links,
}

#[derive(Clone, Copy, Debug)]
struct Links {
    next: u32,
    prev: u32,
}

const UNLINKED: Links = Links { next: NONE, prev: NONE };

/// The head of a list of watches.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    first: u32,
    last: u32,
    len: u32,
}

impl Default for Head {
    fn default() -> Head {
        Head { first: NONE, last: NONE, len: 0 }
    }
}

impl Head {
    /// Returns the number of members.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether the list is empty.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The table of all watches of a process.
#[derive(Debug, Default)]
pub struct Watches {
    slab: Slab<Watch>,
}

/// An event that epoll_wait(2) returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fired {
    /// The bits of epoll(7).
    pub events: u32,
    /// The caller's data.
    pub data: u64,
}

macro_rules! list {
    ($push:ident, $unlink:ident, $field:ident) => {
        fn $push(&mut self, head: &mut Head, index: u32) {
            let prev = head.last;
            if let Some(watch) = self.slab.get_mut(index) {
                watch.$field = Links { next: NONE, prev };
            }
            match self.slab.get_mut(prev) {
                Some(last) => last.$field.next = index,
                None => head.first = index,
            }
            head.last = index;
            head.len += 1;
        }

        fn $unlink(&mut self, head: &mut Head, index: u32) {
            let Some(watch) = self.slab.get_mut(index) else { return };
            let links = core::mem::replace(&mut watch.$field, UNLINKED);
            match self.slab.get_mut(links.prev) {
                Some(prev) => prev.$field.next = links.next,
                None => head.first = links.next,
            }
            match self.slab.get_mut(links.next) {
                Some(next) => next.$field.prev = links.prev,
                None => head.last = links.prev,
            }
            head.len -= 1;
        }
    };
}

impl Watches {
    /// Creates an empty table.
    pub const fn new() -> Watches {
        Watches { slab: Slab::new() }
    }

    list!(push_target, unlink_target, of_target);
    list!(push_set, unlink_set, of_set);
    list!(push_ready, unlink_ready, ready);

    /// Returns the watch with this number.
    pub fn get(&self, index: u32) -> Option<&Watch> {
        self.slab.get(index)
    }

    /// Returns the watch of `set` for descriptor `fd` among the target's.
    pub fn find(&self, of_target: &Head, set: u32, fd: i32) -> Option<u32> {
        let mut index = of_target.first;
        while let Some(watch) = self.slab.get(index) {
            if watch.set == set && watch.fd == fd {
                return Some(index);
            }
            index = watch.of_target.next;
        }
        None
    }

    /// Implements `EPOLL_CTL_ADD`.
    pub fn add(
        &mut self,
        (set, members): (u32, &mut Head),
        (target, of_target): (u32, &mut Head),
        fd: i32,
        events: u32,
        data: u64,
    ) -> u32 {
        let index = self.slab.insert(Watch {
            set,
            target,
            fd,
            events,
            data,
            disarmed: false,
            queued: false,
            ready: UNLINKED,
            of_target: UNLINKED,
            of_set: UNLINKED,
        });
        self.push_set(members, index);
        self.push_target(of_target, index);
        index
    }

    /// Implements `EPOLL_CTL_MOD`, which also arms a one-shot watch again.
    pub fn modify(&mut self, index: u32, events: u32, data: u64) {
        if let Some(watch) = self.slab.get_mut(index) {
            watch.events = events;
            watch.data = data;
            watch.disarmed = false;
        }
    }

    /// Removes a watch from all its lists.
    pub fn remove(&mut self, index: u32, members: &mut Head, ready: &mut Head, of_target: &mut Head) {
        if self.slab.get(index).is_some_and(|watch| watch.queued) {
            self.unlink_ready(ready, index);
        }
        self.unlink_set(members, index);
        self.unlink_target(of_target, index);
        self.slab.remove(index);
    }

    /// Returns the first watch of a target's list.
    pub fn first(&self, of_target: &Head) -> u32 {
        of_target.first
    }

    /// Returns the watch after `index` in its target's list.
    pub fn next_of_target(&self, index: u32) -> u32 {
        self.slab.get(index).map_or(NONE, |watch| watch.of_target.next)
    }

    /// Returns the first member of a set.
    pub fn first_member(&self, members: &Head) -> u32 {
        members.first
    }

    /// Returns the member after `index` in its set.
    pub fn next_member(&self, index: u32) -> u32 {
        self.slab.get(index).map_or(NONE, |watch| watch.of_set.next)
    }

    /// Notes that something of `ready_bits` may hold for the watch's target now. Returns whether it concerns
    /// the watch, which is then in the ready list of its set.
    pub fn queue(&mut self, index: u32, ready_bits: u32, ready: &mut Head) -> bool {
        let Some(watch) = self.slab.get_mut(index) else { return false };
        if watch.disarmed || (watch.events & EVENT_BITS | ALWAYS) & ready_bits == 0 {
            return false;
        }
        if !watch.queued {
            watch.queued = true;
            self.push_ready(ready, index);
        }
        true
    }

    /// Takes up to `max` events out of a ready list, as epoll_wait(2) does. `readiness` returns the current
    /// bits of a target.
    ///
    /// Level-triggered watches stay in the list, at its end, so that every entry of a long list gets its
    /// turn. Edge-triggered ones leave the list until the next event, one-shot ones until they are armed
    /// again.
    pub fn collect(
        &mut self,
        ready: &mut Head,
        max: usize,
        mut readiness: impl FnMut(u32) -> u32,
        mut out: impl FnMut(Fired),
    ) -> usize {
        let mut count = 0;
        for _ in 0..ready.len {
            if count == max {
                break;
            }
            let index = ready.first;
            let Some(watch) = self.slab.get(index) else { break };
            let (target, events, data) = (watch.target, watch.events, watch.data);
            self.unlink_ready(ready, index);
            let now = readiness(target) & (events & EVENT_BITS | ALWAYS);
            let level = now != 0 && events & (EDGE | ONESHOT) == 0;
            if level {
                self.push_ready(ready, index);
            }
            if let Some(watch) = self.slab.get_mut(index) {
                watch.queued = level;
                watch.disarmed |= now != 0 && events & ONESHOT != 0;
            }
            if now != 0 {
                out(Fired { events: now, data });
                count += 1;
            }
        }
        count
    }

    /// Returns whether a ready list holds something that is still ready, and removes entries that are not.
    pub fn is_ready(&mut self, ready: &mut Head, mut readiness: impl FnMut(u32) -> u32) -> bool {
        while let Some(watch) = self.slab.get(ready.first) {
            if readiness(watch.target) & (watch.events & EVENT_BITS | ALWAYS) != 0 {
                return true;
            }
            let index = ready.first;
            self.unlink_ready(ready, index);
            if let Some(watch) = self.slab.get_mut(index) {
                watch.queued = false;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    struct World {
        watches: Watches,
        members: Head,
        ready: Head,
        targets: [Head; 3],
    }

    impl World {
        fn new() -> World {
            World {
                watches: Watches::new(),
                members: Head::default(),
                ready: Head::default(),
                targets: [Head::default(); 3],
            }
        }

        fn add(&mut self, target: u32, events: u32) -> u32 {
            let head = &mut self.targets[target as usize];
            self.watches.add((0, &mut self.members), (target, head), target as i32, events, u64::from(target))
        }

        fn wait(&mut self, bits: [u32; 3], max: usize) -> Vec<(u32, u64)> {
            let mut out = Vec::new();
            self.watches.collect(
                &mut self.ready,
                max,
                |target| bits[target as usize],
                |fired| out.push((fired.events, fired.data)),
            );
            out
        }
    }

    #[test]
    fn level_triggered_targets_are_reported_until_they_are_not_ready_and_take_turns() {
        let mut w = World::new();
        for target in 0..3 {
            let watch = w.add(target, 1);
            assert!(w.watches.queue(watch, 5, &mut w.ready));
        }
        assert_eq!(w.wait([1, 1, 1], 2), [(1, 0), (1, 1)]);
        assert_eq!(w.wait([1, 1, 1], 2), [(1, 2), (1, 0)]);
        assert_eq!(w.wait([0, 0, 0], 9), []);
        assert!(w.ready.is_empty());
    }

    #[test]
    fn edge_triggered_targets_are_reported_once_per_event() {
        let mut w = World::new();
        let watch = w.add(1, 1 | EDGE);
        assert!(w.watches.queue(watch, 1, &mut w.ready));
        assert_eq!(w.wait([0, 1, 0], 9), [(1, 1)]);
        assert_eq!(w.wait([0, 1, 0], 9), []);
        assert!(w.watches.queue(watch, 1, &mut w.ready));
        assert_eq!(w.wait([0, 1, 0], 9), [(1, 1)]);
    }

    #[test]
    fn a_one_shot_watch_fires_once_until_modified() {
        let mut w = World::new();
        let watch = w.add(0, 1 | ONESHOT);
        assert!(w.watches.queue(watch, 1, &mut w.ready));
        assert_eq!(w.wait([1, 0, 0], 9), [(1, 0)]);
        assert!(!w.watches.queue(watch, 1, &mut w.ready));
        w.watches.modify(watch, 1 | ONESHOT, 7);
        assert!(w.watches.queue(watch, 1, &mut w.ready));
        assert_eq!(w.wait([1, 0, 0], 9), [(1, 7)]);
    }

    #[test]
    fn errors_are_reported_unasked_and_other_bits_are_not() {
        let mut w = World::new();
        let watch = w.add(0, 4);
        assert!(!w.watches.queue(watch, 1, &mut w.ready));
        assert!(w.watches.queue(watch, 8, &mut w.ready));
        assert_eq!(w.wait([0x19, 0, 0], 9), [(0x18, 0)]);
    }

    #[test]
    fn removing_a_watch_in_the_middle_leaves_the_others() {
        let mut w = World::new();
        let watches: Vec<u32> = (0..3).map(|target| w.add(target, 1)).collect();
        for watch in &watches {
            w.watches.queue(*watch, 1, &mut w.ready);
        }
        assert_eq!(w.watches.find(&w.targets[1], 0, 1), Some(watches[1]));
        w.watches.remove(watches[1], &mut w.members, &mut w.ready, &mut w.targets[1]);
        assert_eq!(w.watches.find(&w.targets[1], 0, 1), None);
        assert_eq!((w.members.len(), w.ready.len()), (2, 2));
        assert_eq!(w.wait([1, 1, 1], 9), [(1, 0), (1, 2)]);
        assert!(w.watches.is_ready(&mut w.ready, |_| 1));
        assert!(!w.watches.is_ready(&mut w.ready, |_| 0));
        assert!(w.ready.is_empty());
    }
}
