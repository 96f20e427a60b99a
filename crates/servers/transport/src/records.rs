//! What is written down before anything leaves? Commit before externalising (design 7).
//!
//! A flush begins with [`Transport::commit`]: the records of the connections that it concerns, and the requests that applications have made
//! or taken back. Then segments leave, slots are written and events sent, and last of all the commands that led to all this are taken off
//! their rings: who dies in between is followed by somebody who does some of it again, which is harmless.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use atoll_base::{Instant, SessionId, SlotId};
use atoll_ipc::ledger::{Ledger, Progress, RequestRecord, TextPool, Work};
use atoll_ipc::{Command, Memory};

use crate::config::Quota;
use crate::entry::Flags;
use crate::record::{of_entry, summary};
use crate::rings::Rings;
use crate::transport::Transport;

/// The ledger, and what its writer has to remember of it.
#[derive(Debug)]
pub(crate) struct Records<M: Memory> {
    pub(crate) ledger: Ledger<M>,
    pub(crate) text: TextPool,
    /// Chains of text, by the place of their connection.
    pub(crate) chains: BTreeMap<u32, (u32, u32)>,
    /// Chains that no record names any more, once the batch is committed.
    unchained: Vec<u32>,
    /// Places that were freed.
    freed: Vec<u32>,
    /// Those of `dirty` that have only made progress.
    progressed: Vec<u32>,
    pub(crate) requests: Requests,
    /// How often a predecessor has died of a connection.
    pub(crate) crashes: BTreeMap<u32, u8>,
    /// Connections are not to survive, and have no records.
    pub(crate) is_stateless: bool,
    /// Whom a predecessor has touched may not have been told yet: until the first batch is out the ledger names them, so that the next one
    /// tells them if this one dies before.
    pub(crate) is_heir: bool,
    /// When deaths that were put down to sessions are forgotten.
    pub(crate) forgive_at: Instant,
}

/// What applications have asked for that is in force.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// Where each is written, and its turn: the first one's, when a later one has taken its place. What was asked for on top of it stays behind it.
    places: BTreeMap<Key, (u32, u64)>,
    free: Vec<u32>,
    fresh: u32,
    /// The last turn.
    order: u64,
    /// How many each session has, and for which user that counts, if he is limited.
    counts: BTreeMap<SessionId, (u32, Option<u32>)>,
    /// What limited users have.
    users: BTreeMap<u32, Counts>,
    /// How many there may be, of all sessions, of one and of a user. `None`: nothing is written down, so nothing grows.
    limits: Option<Limits>,
    /// To be written, or to be forgotten, at the next commit.
    changed: VecDeque<(u32, Option<RequestRecord>)>,
}

/// How many requests are in force at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    /// Places in the ledger: what has none would be forgotten with the server.
    all: usize,
    session: u32,
    user: Quota,
}

/// What a user has, of each kind.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    requests: u32,
    leases: u32,
    listeners: u32,
    datagram_sockets: u32,
    groups: u32,
}

impl Counts {
    /// The one that is about requests with this key, and how much it may be.
    fn of_kind(&mut self, key: &Key, max: &Quota) -> Option<(&mut u32, u32)> {
        Some(match (key.subject, key.kind.0) {
            (Subject::Lease(_), BIND) => (&mut self.leases, max.leases),
            (Subject::Lease(_), LISTEN) => (&mut self.listeners, max.listeners),
            (Subject::Slot(_), UDP_OPEN) => (&mut self.datagram_sockets, max.datagram_sockets),
            (Subject::Slot(_), GROUP..) => (&mut self.groups, max.groups),
            _ => return None,
        })
    }

    /// Whether there may be `slack` more after one like this.
    fn has_room_for(mut self, key: &Key, max: &Quota, slack: usize) -> bool {
        self.requests as usize + slack < max.requests as usize
            && self.of_kind(key, max).is_none_or(|(count, max)| *count < max)
    }
}

/// Kinds of requests, about leases and about slots.
const BIND: u8 = 0;
const LISTEN: u8 = 1;
const UDP_OPEN: u8 = 4;
/// And the next one, for groups of the inside.
const GROUP: u8 = 6;

/// What a request is about. A later request about the same takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    session: SessionId,
    subject: Subject,
    /// Which kind of request, and what distinguishes those of a kind.
    kind: (u8, u128),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Lease(u64),
    Slot(SlotId),
}

impl Key {
    /// The key of a command that stays in force; `None`: it is carried out once.
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
    /// None yet; at most `all`, and `session` of one session, and `user` of one user.
    fn new(all: u32, session: u32, user: Quota) -> Requests {
        Requests { limits: Some(Limits { all: all as usize, session, user }), ..Requests::default() }
    }

    /// Goes on with those of a predecessor. `user_of`: the user for whom a session counts.
    pub(crate) fn resume(
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

    /// Whether there is room for one more like `command`, or it takes the place of an earlier one.
    fn has_room_for(&self, session: SessionId, user: Option<u32>, command: &Command, slack: usize) -> bool {
        let (Some(limits), Some(key)) = (self.limits, Key::of(session, command)) else { return true };
        let count = self.counts.get(&session).map_or(0, |(count, _)| *count);
        let of_user = user.and_then(|user| self.users.get(&user)).copied().unwrap_or_default();
        let has_room = self.places.len() + slack < limits.all
            && count as usize + slack < limits.session as usize
            && (user.is_none() || of_user.has_room_for(&key, &limits.user, slack));
        has_room || self.places.contains_key(&key)
    }

    /// One more of a session.
    fn count(&mut self, key: &Key, user: Option<u32>) {
        let (count, user) = self.counts.entry(key.session).or_insert((0, user));
        *count += 1;
        if let (Some(user), Some(limits)) = (*user, self.limits) {
            let counts = self.users.entry(user).or_default();
            counts.requests += 1;
            counts.of_kind(key, &limits.user).into_iter().for_each(|(count, _)| *count += 1);
        }
    }

    /// One less.
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

    /// `command` is in force from now on. `false`: there is no room for it, so no successor will know of it.
    fn put(&mut self, session: SessionId, user: Option<u32>, command: Command) -> bool {
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

    fn remove(&mut self, key: &Key) {
        if let Some((place, _)) = self.places.remove(key) {
            self.discount(key);
            self.free.push(place);
            self.changed.push_back((place, None));
        }
    }

    /// Everything about `subject` that the session has asked for is over.
    fn remove_all(&mut self, session: SessionId, subject: Subject) {
        let first = Key { session, subject, kind: (0, 0) };
        self.remove_from(first, usize::MAX, |key| key.session == session && key.subject == subject);
    }

    /// Everything at all that the session has asked for is over.
    pub(crate) fn remove_session(&mut self, session: SessionId) {
        let first = Key { session, subject: Subject::Lease(0), kind: (0, 0) };
        self.remove_from(first, usize::MAX, |key| key.session == session);
    }

    /// Removes up to `max` requests, from `first` on, as long as they are meant. Returns how many those were.
    fn remove_from(&mut self, first: Key, max: usize, is_meant: impl Fn(&Key) -> bool) -> usize {
        let keys: Vec<Key> = self.places.range(first..).map(|(key, _)| *key).take_while(is_meant).take(max).collect();
        keys.iter().for_each(|key| self.remove(key));
        keys.len()
    }

    /// How many there are, of all sessions.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }
}

impl<M: Memory> Records<M> {
    /// With a ledger, and so many requests in force of one session at most, and so much of one user.
    pub(crate) fn new(ledger: Ledger<M>, requests_max: u32, user: Quota) -> Records<M> {
        let requests = Requests::new(ledger.requests_max(), requests_max, user);
        Records {
            ledger,
            text: TextPool::default(),
            chains: BTreeMap::new(),
            unchained: Vec::new(),
            freed: Vec::new(),
            progressed: Vec::new(),
            requests,
            crashes: BTreeMap::new(),
            is_stateless: false,
            is_heir: false,
            forgive_at: Instant::FAR_FUTURE,
        }
    }
}

impl<M: Memory> Transport<M> {
    // structure: commit: the order of a commit's stores is what it is about
    /// Writes down what has changed since the last flush.
    pub(crate) fn commit(&mut self) {
        if let Some(records) = self.records.as_deref_mut() {
            let Records {
                ledger,
                text,
                chains,
                unchained,
                freed,
                progressed,
                requests,
                crashes,
                is_stateless,
                is_heir,
                forgive_at: _,
            } = records;
            let dirty: &[u32] = if *is_stateless { &[] } else { &self.dirty };
            if !core::mem::take(is_heir) {
                ledger.begin();
            }
            for place in freed.drain(..) {
                // A new connection may have taken it: then that one is written.
                if self.entries.get(place).is_none() {
                    ledger.stage_connection(place, None);
                    crashes.remove(&place);
                }
                unchained.extend(chains.remove(&place).map(|(head, _)| head));
            }
            for (place, record) in requests.changed.drain(..) {
                ledger.stage_request(place, record.as_ref());
            }
            for &index in dirty {
                let Some(entry) = self.entries.get_mut(index) else { continue };
                ledger.touch(index);
                let summary = summary(entry);
                let changes = Flags::RECORD.with(Flags::EXTENTS).with(Flags::STATE).with(Flags::OFFER);
                if entry.recorded == summary && !entry.flags.has(changes) {
                    progressed.push(index);
                    continue;
                }
                ledger.mark(Work::Output(index));
                // Text that nobody has grows until somebody has it, and what comes late fills its gaps.
                let parked_len = entry.parked_len() as u32;
                let is_filled = parked_len > 0 && entry.flags.has(Flags::RECORD);
                if is_filled || chains.get(&index).map_or(0, |(_, len)| *len) != parked_len {
                    unchained.extend(chains.remove(&index).map(|(head, _)| head));
                    if let Some(parked) = &entry.parked {
                        chains.insert(index, (text.write(&ledger.text_area(), parked), parked_len));
                    }
                }
                entry.recorded = summary;
                entry.flags.clear(Flags::RECORD);
                let chain = chains.get(&index).copied().unwrap_or_default();
                let crashes = crashes.get(&index).copied().unwrap_or(0);
                ledger.stage_connection(index, Some(&of_entry(entry, &self.locals, &self.sessions, chain, crashes)));
            }
            ledger.mark(Work::Nothing);
            ledger.commit();
            for index in progressed.drain(..) {
                if let Some(entry) = self.entries.get(index) {
                    let (acked, received, edge) = entry.connection.progress();
                    ledger.store_progress(index, &Progress { acked, received, edge });
                }
            }
            for head in unchained.drain(..) {
                text.free(&ledger.text_area(), head);
            }
        }
        for (index, id, slot, mut rings) in self.released.drain(..) {
            // The session may have ended since, with all its memory, and another may have taken its place.
            let session = self.sessions.get_mut(index as usize).and_then(Option::as_mut);
            if let Some(session) = session.filter(|session| session.id == id) {
                session.reuse(slot);
                rings.release_all(&session.pool, &session.links);
            }
        }
    }

    /// Writes the ledger in `version` from now on, or the nearest one that there is: an older one wholly and at once, because a server may
    /// come that knows no other. Returns the version; 0: there is no ledger. [`Ledger::convert`].
    pub fn convert_ledger(&mut self, version: u32) -> u32 {
        self.records.as_deref_mut().map_or(0, |records| records.ledger.convert(version))
    }

    /// The last flush is out: the commands that led to it need not be carried out again. Who dies from now on was working on nothing.
    pub(crate) fn conclude(&mut self) {
        for session in self.sessions.iter_mut().flatten() {
            session.publish_commands();
        }
        self.slice_left = crate::ending::SLICE;
        self.resets.conclude();
        self.mark(Work::Nothing);
    }

    /// Work of this kind begins. One store.
    #[inline]
    pub(crate) fn mark(&self, work: Work) {
        if let Some(records) = &self.records {
            records.ledger.mark(work);
        }
    }

    /// What is being worked on.
    pub(crate) fn work(&self) -> Work {
        self.records.as_ref().map_or(Work::Nothing, |records| records.ledger.work())
    }

    /// The slot of an offer that was taken back, and the rings of its buffer, are given back once the ledger does not name them any more.
    pub(crate) fn release_later(&mut self, session: u32, slot: SlotId, rings: Rings) {
        let id = self.session(session).map(|session| session.id);
        self.released.extend(id.map(|id| (session, id, slot, rings)));
    }

    /// The place of a connection is free.
    pub(crate) fn forget_record(&mut self, index: u32) {
        if let Some(records) = self.records.as_deref_mut().filter(|records| !records.is_stateless) {
            records.freed.push(index);
        }
    }

    /// A command stays in force. `false`: there is no room for it, and no successor will know of it.
    pub(crate) fn keep_request(&mut self, session: SessionId, command: Command) -> bool {
        let user = self.limited_user(session);
        self.records.as_deref_mut().is_none_or(|records| records.requests.put(session, user, command))
    }

    /// Whether a command could stay in force. Ask before it is carried out, where its sender hears of a refusal.
    pub(crate) fn may_keep(&self, session: SessionId, command: &Command) -> bool {
        // What was shown for it is kept as well.
        let slack = usize::from(matches!(command, Command::Listen { .. } | Command::UdpOpen { .. }));
        let user = self.limited_user(session);
        self.records.as_deref().is_none_or(|records| records.requests.has_room_for(session, user, command, slack))
    }

    /// The user of a session, if what all of his sessions have together is bounded.
    pub(crate) fn limited_user(&self, id: SessionId) -> Option<u32> {
        let session = self.session(*self.session_index.get(&id)?)?;
        session.user.counts_for
    }

    /// A command like `command` is in force no more: it was undone.
    pub(crate) fn drop_request(&mut self, session: SessionId, command: &Command) {
        if let (Some(records), Some(key)) = (self.records.as_deref_mut(), Key::of(session, command)) {
            records.requests.remove(&key);
        }
    }

    /// What was asked for about a lease or a slot is over.
    pub(crate) fn drop_requests(&mut self, session: SessionId, subject: Subject) {
        if let Some(records) = self.records.as_deref_mut() {
            records.requests.remove_all(session, subject);
        }
    }

    /// Up to `max` requests of a session are over: of `all`, or of those about leases. Returns how many those were.
    pub(crate) fn drop_some_requests(&mut self, session: SessionId, max: usize, all: bool) -> usize {
        let first = Key { session, subject: Subject::Lease(0), kind: (0, 0) };
        let is_meant = |key: &Key| key.session == session && (all || matches!(key.subject, Subject::Lease(_)));
        self.records.as_deref_mut().map_or(0, |records| records.requests.remove_from(first, max, is_meant))
    }
}
