//! What is written down before anything leaves? Commit before externalising (design 7).
//!
//! A flush begins with [`Transport::commit`]: the records of the connections that it concerns, and the requests that applications have made
//! or taken back. Then segments leave, slots are written and events sent, and last of all the commands that led to all this are taken off
//! their rings: who dies in between is followed by somebody who does some of it again, which is harmless.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use atoll_base::{SessionId, SlotId};
use atoll_ipc::ledger::{Ledger, Progress, RequestRecord, TextPool};
use atoll_ipc::{Command, Memory};

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
    /// To be written, or to be forgotten, at the next commit.
    changed: VecDeque<(u32, Option<RequestRecord>)>,
}

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
            Command::Bind { lease, .. } => (Subject::Lease(lease), (0, 0)),
            Command::Listen { lease, .. } => (Subject::Lease(lease), (1, 0)),
            Command::SetListenerOption { lease, option, .. } => (Subject::Lease(lease), (2, option as u128)),
            Command::AcceptConnection { lease } => (Subject::Lease(lease), (3, 0)),
            Command::UdpOpen { slot, .. } => (Subject::Slot(slot), (4, 0)),
            Command::SetOption { slot, option, .. } => (Subject::Slot(slot), (5, option as u128)),
            Command::Group { slot, group, inside, .. } => {
                (Subject::Slot(slot), (6 + u8::from(inside), u128::from_be_bytes(group.octets())))
            }
            _ => return None,
        };
        Some(Key { session, subject, kind })
    }
}

impl Requests {
    /// Goes on with those of a predecessor.
    pub(crate) fn resume(found: &[(u32, RequestRecord)], high: u32) -> Requests {
        let mut requests = Requests { fresh: high, ..Requests::default() };
        let mut used = alloc::vec![false; high as usize];
        for (place, record) in found {
            if let Some(key) = Key::of(record.session, &record.command) {
                requests.places.insert(key, (*place, record.order));
                used[*place as usize] = true;
                requests.order = requests.order.max(record.order);
            }
        }
        requests.free = (0..high).filter(|place| !used[*place as usize]).collect();
        requests
    }

    /// `command` is in force from now on.
    fn put(&mut self, session: SessionId, command: Command) {
        let Some(key) = Key::of(session, &command) else { return };
        let (place, order) = match self.places.get(&key) {
            Some(found) => *found,
            None => {
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
    }

    fn remove(&mut self, key: &Key) {
        if let Some((place, _)) = self.places.remove(key) {
            self.free.push(place);
            self.changed.push_back((place, None));
        }
    }

    /// Everything about `subject` (`None`: everything at all) that the session has asked for is over.
    fn remove_all(&mut self, session: SessionId, subject: Option<Subject>) {
        let first = Key { session, subject: subject.unwrap_or(Subject::Lease(0)), kind: (0, 0) };
        let is_meant = |key: &&Key| key.session == session && subject.is_none_or(|subject| key.subject == subject);
        let keys: Vec<Key> = self.places.range(first..).map(|(key, _)| key).take_while(is_meant).copied().collect();
        keys.iter().for_each(|key| self.remove(key));
    }
}

impl<M: Memory> Records<M> {
    pub(crate) fn new(ledger: Ledger<M>) -> Records<M> {
        Records {
            ledger,
            text: TextPool::default(),
            chains: BTreeMap::new(),
            unchained: Vec::new(),
            freed: Vec::new(),
            progressed: Vec::new(),
            requests: Requests::default(),
            crashes: BTreeMap::new(),
            is_stateless: false,
            is_heir: false,
        }
    }
}

impl<M: Memory> Transport<M> {
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
        self.mark(None);
    }

    /// Work on a connection begins, or none goes on.
    #[inline]
    pub(crate) fn mark(&self, index: Option<u32>) {
        if let Some(records) = &self.records {
            records.ledger.mark(index);
        }
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

    /// A command stays in force.
    pub(crate) fn keep_request(&mut self, session: SessionId, command: Command) {
        if let Some(records) = self.records.as_deref_mut() {
            records.requests.put(session, command);
        }
    }

    /// An acceptor has taken back that it is willing.
    pub(crate) fn drop_acceptor_request(&mut self, session: SessionId, lease: u64) {
        if let (Some(records), Some(key)) =
            (self.records.as_deref_mut(), Key::of(session, &Command::AcceptConnection { lease }))
        {
            records.requests.remove(&key);
        }
    }

    /// What was asked for about a lease, a slot, or by a session (`None`), is over.
    pub(crate) fn drop_requests(&mut self, session: SessionId, subject: Option<Subject>) {
        if let Some(records) = self.records.as_deref_mut() {
            records.requests.remove_all(session, subject);
        }
    }

    /// Ports, listeners and acceptors of the session are gone; its open sockets are not.
    pub(crate) fn drop_lease_requests(&mut self, session: SessionId) {
        if let Some(records) = self.records.as_deref_mut() {
            let first = Key { session, subject: Subject::Lease(0), kind: (0, 0) };
            let is_meant = |key: &&Key| key.session == session && matches!(key.subject, Subject::Lease(_));
            let places = &records.requests.places;
            let keys: Vec<Key> = places.range(first..).map(|(key, _)| *key).take_while(|key| is_meant(&key)).collect();
            keys.iter().for_each(|key| records.requests.remove(key));
        }
    }
}
