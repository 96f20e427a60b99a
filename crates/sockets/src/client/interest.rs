//! Interest lists and what is ready in them: epoll_ctl(2) and epoll_wait(2).

use atoll_ipc::Ready;

use super::Client;
use super::notify::NESTING_MAX;
use super::object::{Body, Kind, Object};
use super::platform::Platform;
use crate::Errno;
use crate::watch::{EDGE, EXCLUSIVE, Fired, ONESHOT, WAKEUP, Watch};

/// A change of an interest list: the operations of epoll_ctl(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// `EPOLL_CTL_ADD`: events and data.
    Add(u32, u64),
    /// `EPOLL_CTL_MOD`: events and data.
    Modify(u32, u64),
    /// `EPOLL_CTL_DEL`.
    Delete,
}

impl<P: Platform> Client<P> {
    /// Implements epoll_ctl(2) for an object in an epoll instance, both of Atoll's; `fd` is the descriptor
    /// that names the target.
    pub fn control(&mut self, epoll: u32, target: u32, fd: i32, change: Change) -> Result<(), Errno> {
        let head = self.watchers(target);
        let found = self.watches.find(&head, epoll, fd);
        match (change, found) {
            (Change::Add(..), Some(_)) => Err(Errno::EEXIST),
            (Change::Add(events, data), None) => {
                check_exclusive(events, self.set(target).is_some())?;
                self.watch(epoll, (target, fd), events, data);
                Ok(())
            }
            (Change::Modify(events, data), Some(watch)) => {
                // epoll_ctl(2): EPOLLEXCLUSIVE only with EPOLL_CTL_ADD.
                if (events | self.watches.get(watch).map_or(0, |w| w.events)) & EXCLUSIVE != 0 {
                    return Err(Errno::EINVAL);
                }
                self.watches.modify(watch, events, data);
                self.poll_watch(epoll, target, watch);
                Ok(())
            }
            (Change::Delete, Some(watch)) => {
                self.unwatch(watch);
                if self.watchers(target).is_empty() && !self.is_awaited(target) {
                    self.stop_accepting(target);
                }
                Ok(())
            }
            (Change::Modify(..) | Change::Delete, None) => Err(Errno::ENOENT),
        }
    }

    fn watch(&mut self, epoll: u32, (target, fd): (u32, i32), events: u32, data: u64) {
        let mut of_target = self.watchers(target);
        let is_set = self.set(target).is_some();
        let target_bells = self.set(target).map_or(0, |set| set.bells);
        let Some(mut members) = self.set(epoll).map(|set| set.members) else { return };
        let watch = self.watches.add((epoll, &mut members), (target, &mut of_target), fd, events, data);
        let (mut bell, mut new_bells, mut wake) = (0, 0, false);
        if let Some(set) = self.set_mut(epoll) {
            new_bells = target_bells & !set.bells;
            set.bells |= target_bells;
            set.has_sets |= is_set;
            set.members = members;
            bell = set.bell;
            // A thread that sleeps in the instance already does not know the new member's doorbells.
            wake = set.sleepers > 0 && new_bells != 0;
        }
        if let Some(object) = self.objects.get_mut(target) {
            object.watchers = of_target;
        }
        if let Some(socket) = self.socket_mut(target) {
            socket.bell = bell;
            let is_listening = matches!(socket.kind, Kind::Listening(_));
            self.set_bell(target, bell);
            if is_listening {
                self.accept_connections(target);
            }
        }
        if new_bells != 0 {
            self.spread_bells(epoll, new_bells, 0);
        }
        self.poll_watch(epoll, target, watch);
        if wake && let Some(session) = self.sessions.first() {
            session.ring(bell);
        }
    }

    /// Adds doorbells to an epoll instance and the instances around it: threads in an instance sleep on the
    /// doorbells of all its members.
    fn spread_bells(&mut self, epoll: u32, bells: u16, depth: u32) {
        let mut watch = self.watches.first(&self.watchers(epoll));
        while let Some(outer) = self.watches.get(watch).map(|w| w.set) {
            watch = self.watches.next_of_target(watch);
            if let Some(set) = self.set_mut(outer)
                && bells & !set.bells != 0
                && depth < NESTING_MAX
            {
                set.bells |= bells;
                let (bell, asleep) = (set.bell, set.sleepers > 0);
                if asleep && let Some(session) = self.sessions.first() {
                    session.ring(bell);
                }
                self.spread_bells(outer, bells, depth + 1);
            }
        }
    }

    /// Queues a watch if its target is ready already.
    fn poll_watch(&mut self, epoll: u32, target: u32, watch: u32) {
        // Anything published after the doorbell was set comes as an event, or is seen here.
        if let Some(session) = self.sessions.first() {
            session.fence();
        }
        self.prune(target);
        let ready = self.readiness(target);
        let Some(Object { body: Body::Epoll(set), watchers, .. }) = self.objects.get_mut(epoll) else {
            return;
        };
        if !self.watches.queue(watch, ready, &mut set.ready) {
            return;
        }
        let (is_nested, asleep) = (!watchers.is_empty(), set.sleepers > 0);
        if is_nested {
            self.announce(epoll, Ready::IN);
        }
        if asleep {
            self.wake_set(epoll);
        }
    }

    /// Calls `found` for up to `max` events that are ready in an epoll instance.
    #[inline]
    pub fn collect(&mut self, epoll: u32, max: usize, found: impl FnMut(Fired)) {
        if max > 0 && self.set(epoll).is_some_and(|set| !set.ready.is_empty()) {
            self.collect_ready(epoll, max, found);
        }
    }

    // Calls that find nothing are not to prepare for it.
    #[inline(never)]
    fn collect_ready(&mut self, epoll: u32, max: usize, found: impl FnMut(Fired)) {
        let Some((mut ready, has_sets)) = self.set(epoll).map(|set| (set.ready, set.has_sets)) else {
            return;
        };
        if has_sets {
            self.prune(epoll);
            ready = self.set(epoll).map_or(ready, |set| set.ready);
        }
        let mut watches = core::mem::take(&mut self.watches);
        watches.collect(&mut ready, max, |target| self.readiness(target), found);
        self.watches = watches;
        if let Some(set) = self.set_mut(epoll) {
            set.ready = ready;
        }
    }

    /// Returns the watches on an object; they move to the kernel's instances when the object becomes the
    /// kernel's.
    pub fn watches_on(&self, object: u32) -> impl Iterator<Item = &Watch> + '_ {
        let first = self.watches.first(&self.watchers(object));
        let all = core::iter::successors(Some(first), |watch| Some(self.watches.next_of_target(*watch)));
        all.map_while(|watch| self.watches.get(watch))
    }

    /// Takes an object out of all interest lists, and an epoll instance's members out of it.
    pub fn unwatch_all(&mut self, object: u32) {
        while let Some(head) = self.objects.get(object).map(|o| o.watchers) {
            let watch = self.watches.first(&head);
            if self.watches.get(watch).is_none() {
                break;
            }
            self.unwatch(watch);
        }
        while let Some(set) = self.set(object) {
            let watch = self.watches.first_member(&set.members);
            if self.watches.get(watch).is_none() {
                break;
            }
            self.unwatch(watch);
        }
    }

    /// Removes one watch.
    fn unwatch(&mut self, watch: u32) {
        let Some((set, target)) = self.watches.get(watch).map(|w| (w.set, w.target)) else { return };
        let Some(mut of_target) = self.objects.get(target).map(|o| o.watchers) else { return };
        if let Some(Object { body: Body::Epoll(in_set), .. }) = self.objects.get_mut(set) {
            self.watches.remove(watch, &mut in_set.members, &mut in_set.ready, &mut of_target);
        }
        if let Some(entry) = self.objects.get_mut(target) {
            entry.watchers = of_target;
        }
    }
}

/// Checks which flags go with EPOLLEXCLUSIVE, as epoll_ctl(2) does.
fn check_exclusive(events: u32, is_epoll: bool) -> Result<(), Errno> {
    const ALLOWED: u32 = 0x1f | EDGE | WAKEUP | EXCLUSIVE;
    if events & EXCLUSIVE != 0 && (is_epoll || events & ONESHOT != 0 || events & !ALLOWED != 0) {
        return Err(Errno::EINVAL);
    }
    Ok(())
}
