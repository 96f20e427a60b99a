//! The requests of applications that are in force, for a successor to carry out again.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use atoll_base::{SessionId, SlotId};
use atoll_ipc::Command;
use atoll_ipc::ledger::RequestRecord;

use crate::config::Quota;

/// The requests of applications that are in force.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// The place of each request in the ledger, and its turn. A later request that replaces one keeps that
    /// one's turn: requests that were made on top of it stay behind it.
    places: BTreeMap<Key, (u32, u64)>,
    free: Vec<u32>,
    fresh: u32,
    /// The last turn.
    order: u64,
    /// The number of requests of each session, and the limited user that they count for, if any.
    counts: BTreeMap<SessionId, (u32, Option<u32>)>,
    /// The totals of limited users.
    users: BTreeMap<u32, Counts>,
    /// The limits of requests: of all sessions, of one and of a user. `None` means that nothing is written,
    /// so that nothing grows.
    limits: Option<Limits>,
    /// The changes to write at the next commit; `None` erases a request.
    changed: VecDeque<(u32, Option<RequestRecord>)>,
}

/// The most requests that may be in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    /// The places in the ledger: a request without one would be forgotten with the server.
    all: usize,
    session: u32,
    user: Quota,
}

/// The requests of a user, of each kind.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    requests: u32,
    leases: u32,
    listeners: u32,
    datagram_sockets: u32,
    groups: u32,
}

impl Counts {
    /// Returns the counter of requests with this key, and its limit.
    fn of_kind(&mut self, key: &Key, max: &Quota) -> Option<(&mut u32, u32)> {
        Some(match (key.subject, key.kind.0) {
            (Subject::Lease(_), BIND) => (&mut self.leases, max.leases),
            (Subject::Lease(_), LISTEN) => (&mut self.listeners, max.listeners),
            (Subject::Slot(_), UDP_OPEN) => (&mut self.datagram_sockets, max.datagram_sockets),
            (Subject::Slot(_), GROUP..) => (&mut self.groups, max.groups),
            _ => return None,
        })
    }

    /// Returns whether there may be `slack` more after one with this key.
    fn has_room_for(mut self, key: &Key, max: &Quota, slack: usize) -> bool {
        self.requests as usize + slack < max.requests as usize
            && self.of_kind(key, max).is_none_or(|(count, max)| *count < max)
    }
}

/// The kinds of requests, about leases and about slots.
const BIND: u8 = 0;
const LISTEN: u8 = 1;
const UDP_OPEN: u8 = 4;
/// The kind of groups; the next number is that of groups of the inside link.
const GROUP: u8 = 6;

/// The key of a request. A later request with the same key replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    session: SessionId,
    subject: Subject,
    /// The kind of the request, and what distinguishes requests of a kind.
    kind: (u8, u128),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Lease(u64),
    Slot(SlotId),
}

impl Key {
    /// Returns the key of a command that stays in force; `None` if it is carried out once.
    pub(crate) fn of(session: SessionId, command: &Command) -> Option<Key> {
        let (subject, kind) = match *command {
            Command::Bind { lease, .. } => (Subject::Lease(lease), (BIND, 0)),
            Command::Listen { lease, .. } => (Subject::Lease(lease), (LISTEN, 0)),
            Command::SetListenerOption { lease, option, .. } => (Subject::Lease(lease), (2, option as u128)),
            Command::Show { lease, .. } => (Subject::Lease(lease), (4, 0)),
            Command::Pass { pass, .. } => (Subject::Lease(pass.lease), (5, 0)),
            Command::AcceptConnection { lease } => (Subject::Lease(lease), (3, 0)),
            Command::UdpOpen { slot, .. } => (Subject::Slot(slot), (UDP_OPEN, 0)),
            Command::SetOption { slot, option, .. } => (Subject::Slot(slot), (5, option as u128)),
            Command::Group { slot, group, inside, .. } => {
                (Subject::Slot(slot), (GROUP + u8::from(inside), u128::from_be_bytes(group.octets())))
            }
            _ => return None,
        };
        Some(Key { session, subject, kind })
    }
}

impl Requests {
    /// Creates it empty, for at most `all` requests, `session` of one session, and `user` of one user.
    pub(super) fn new(all: u32, session: u32, user: Quota) -> Requests {
        Requests { limits: Some(Limits { all: all as usize, session, user }), ..Requests::default() }
    }

    /// Continues the requests of a predecessor. `user_of` returns the user that a session counts for.
    pub(super) fn resume(
        &self,
        found: &[(u32, RequestRecord)],
        high: u32,
        user_of: impl Fn(SessionId) -> Option<u32>,
    ) -> Requests {
        let mut requests = Requests { fresh: high, limits: self.limits, ..Requests::default() };
        let mut used = alloc::vec![false; high as usize];
        for (place, record) in found {
            if let Some(key) = Key::of(record.session, &record.command) {
                if requests.places.insert(key, (*place, record.order)).is_none() {
                    requests.count(&key, user_of(record.session));
                }
                used[*place as usize] = true;
                requests.order = requests.order.max(record.order);
            }
        }
        requests.free = (0..high).filter(|place| !used[*place as usize]).collect();
        requests
    }

    /// Returns whether there is room for one more like `command`, or it replaces an earlier one.
    pub(super) fn has_room_for(
        &self,
        session: SessionId,
        user: Option<u32>,
        command: &Command,
        slack: usize,
    ) -> bool {
        let (Some(limits), Some(key)) = (self.limits, Key::of(session, command)) else { return true };
        let count = self.counts.get(&session).map_or(0, |(count, _)| *count);
        let of_user = user.and_then(|user| self.users.get(&user)).copied().unwrap_or_default();
        let has_room = self.places.len() + slack < limits.all
            && count as usize + slack < limits.session as usize
            && (user.is_none() || of_user.has_room_for(&key, &limits.user, slack));
        has_room || self.places.contains_key(&key)
    }

    /// Counts one more request of a session.
    fn count(&mut self, key: &Key, user: Option<u32>) {
        let (count, user) = self.counts.entry(key.session).or_insert((0, user));
        *count += 1;
        if let (Some(user), Some(limits)) = (*user, self.limits) {
            let counts = self.users.entry(user).or_default();
            counts.requests += 1;
            counts.of_kind(key, &limits.user).into_iter().for_each(|(count, _)| *count += 1);
        }
    }

    /// Counts one request of a session less.
    fn discount(&mut self, key: &Key) {
        let Some((count, user)) = self.counts.get_mut(&key.session) else { return };
        *count -= 1;
        let (count, user) = (*count, *user);
        if count == 0 {
            self.counts.remove(&key.session);
        }
        let (Some(user), Some(limits)) = (user, self.limits) else { return };
        let Some(counts) = self.users.get_mut(&user) else { return };
        counts.requests = counts.requests.saturating_sub(1);
        counts.of_kind(key, &limits.user).into_iter().for_each(|(count, _)| *count = count.saturating_sub(1));
        if counts.requests == 0 {
            self.users.remove(&user);
        }
    }

    /// Puts `command` in force. Returns `false` if there is no room for it, so that no successor will know of
    /// it.
    pub(super) fn put(&mut self, session: SessionId, user: Option<u32>, command: Command) -> bool {
        let Some(key) = Key::of(session, &command) else { return true };
        if !self.has_room_for(session, user, &command, 0) {
            return false;
        }
        let (place, order) = match self.places.get(&key) {
            Some(found) => *found,
            None => {
                self.count(&key, user);
                let place = self.free.pop().unwrap_or_else(|| {
                    self.fresh += 1;
                    self.fresh - 1
                });
                self.order += 1;
                self.places.insert(key, (place, self.order));
                (place, self.order)
            }
        };
        self.changed.push_back((place, Some(RequestRecord { order, session, command })));
        true
    }

    pub(super) fn remove(&mut self, key: &Key) {
        if let Some((place, _)) = self.places.remove(key) {
            self.discount(key);
            self.free.push(place);
            self.changed.push_back((place, None));
        }
    }

    /// Removes everything about `subject` that the session has asked for.
    pub(super) fn remove_all(&mut self, session: SessionId, subject: Subject) {
        let first = Key { session, subject, kind: (0, 0) };
        self.remove_from(first, usize::MAX, |key| key.session == session && key.subject == subject);
    }

    /// Removes everything that the session has asked for.
    pub(super) fn remove_session(&mut self, session: SessionId) {
        let first = Key { session, subject: Subject::Lease(0), kind: (0, 0) };
        self.remove_from(first, usize::MAX, |key| key.session == session);
    }

    /// Removes up to `max` requests, from `first` on, while `is_meant` returns true. Returns how many were
    /// removed.
    fn remove_from(&mut self, first: Key, max: usize, is_meant: impl Fn(&Key) -> bool) -> usize {
        let keys: Vec<Key> =
            self.places.range(first..).map(|(key, _)| *key).take_while(is_meant).take(max).collect();
        keys.iter().for_each(|key| self.remove(key));
        keys.len()
    }

    /// Removes up to `max` requests of a session: `all` of them, or those about leases. Returns how many it
    /// removed.
    pub(super) fn remove_some(&mut self, session: SessionId, max: usize, all: bool) -> usize {
        let first = Key { session, subject: Subject::Lease(0), kind: (0, 0) };
        let is_meant =
            |key: &Key| key.session == session && (all || matches!(key.subject, Subject::Lease(_)));
        self.remove_from(first, max, is_meant)
    }

    /// Returns what is to be written, or to be erased (`None`), since the last call: the place in the ledger
    /// and the request.
    pub(super) fn take_changed(&mut self) -> impl Iterator<Item = (u32, Option<RequestRecord>)> + '_ {
        self.changed.drain(..)
    }

    /// Returns the number of requests of all sessions.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }
}
