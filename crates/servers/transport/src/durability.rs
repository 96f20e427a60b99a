//! What is written down before anything leaves? Commit before externalising (design 7).
//!
//! A flush begins with [`Durability::commit`]: the records of the connections that it concerns, and the
//! requests that applications have made or taken back. Then segments leave, slots are written and events
//! sent, and last of all the commands that led to all this are taken off their rings: who dies in between is
//! followed by somebody who does some of it again, which is harmless.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use atoll_base::{Instant, SessionId, SlotId};
use atoll_ipc::ledger::{ConnectionRecord, Ledger, Progress, RequestRecord, TextPool, TimeWaitRecord, Work};
use atoll_ipc::{Command, Memory};

use crate::applications::Applications;
use crate::config::Quota;
use crate::connections::Connections;
use crate::entry::{Entry, Flags};
use crate::names::Locals;
use crate::record::{of_entry, summary};
use crate::rings::Rings;

mod requests;

use requests::{Key, Requests};

pub(crate) use requests::Subject;

/// What a successor has to know, and what may be given back once it knows.
#[derive(Debug)]
pub(crate) struct Durability<M: Memory> {
    /// `None`: there will be no successor, or what a predecessor has left is being adopted.
    records: Option<Box<Records<M>>>,
    /// What is given back at the next commit of offers that were taken back: session, and its place, slot,
    /// rings of the receive buffer.
    released: Vec<((u32, SessionId), SlotId, Rings)>,
}

/// The ledger, and what its writer has to remember of it.
#[derive(Debug)]
pub(crate) struct Records<M: Memory> {
    ledger: Ledger<M>,
    text: TextPool,
    /// Chains of text, by the place of their connection.
    chains: BTreeMap<u32, (u32, u32)>,
    /// Chains that no record names any more, once the batch is committed.
    unchained: Vec<u32>,
    /// Places that were freed.
    freed: Vec<u32>,
    /// Those of the dirty connections that have only made progress.
    progressed: Vec<u32>,
    requests: Requests,
    /// How often a predecessor has died of a connection.
    crashes: BTreeMap<u32, u8>,
    /// Connections are not to survive, and have no records.
    is_stateless: bool,
    /// Whom a predecessor has touched may not have been told yet: until the first batch is out the ledger
    /// names them, so that the next one tells them if this one dies before.
    is_heir: bool,
    /// When deaths that were put down to sessions are forgotten.
    forgive_at: Instant,
}

impl<M: Memory> Durability<M> {
    /// Creates it without a ledger: nothing is written down.
    pub(crate) const fn new() -> Durability<M> {
        Durability { records: None, released: Vec::new() }
    }

    /// From now on what a successor has to know is written down.
    pub(crate) fn set_records(&mut self, records: Box<Records<M>>) {
        self.records = Some(records);
    }

    /// Takes the records out, while what a predecessor has left is adopted: nothing is written down
    /// meanwhile.
    pub(crate) fn take_records(&mut self) -> Option<Box<Records<M>>> {
        self.records.take()
    }

    /// Returns the sessions of which a predecessor has left something that is in force.
    pub(crate) fn sessions(&self) -> BTreeSet<SessionId> {
        self.records.as_ref().map_or_else(BTreeSet::new, |records| records.ledger.sessions())
    }

    /// Work of this kind begins. One store.
    #[inline]
    pub(crate) fn mark(&self, work: Work) {
        if let Some(records) = &self.records {
            records.ledger.mark(work);
        }
    }

    /// Returns what is being worked on.
    pub(crate) fn work(&self) -> Work {
        self.records.as_ref().map_or(Work::Nothing, |records| records.ledger.work())
    }

    /// See [`Ledger::convert`]. Returns the version; 0: there is no ledger.
    pub(crate) fn convert(&mut self, version: u32) -> u32 {
        self.records.as_deref_mut().map_or(0, |records| records.ledger.convert(version))
    }

    // ---- connections ----

    /// The slot of an offer that was taken back, and the rings of its buffer, are given back once the ledger
    /// does not name them any more.
    pub(crate) fn release_later(&mut self, session: (u32, SessionId), slot: SlotId, rings: Rings) {
        self.released.push((session, slot, rings));
    }

    /// The place of a connection is free.
    pub(crate) fn forget_connection(&mut self, index: u32) {
        if let Some(records) = self.records_of_connections() {
            records.freed.push(index);
        }
    }

    /// A connection is in TIME-WAIT from now on, and is written down as such: its own record goes with the
    /// next commit.
    ///
    /// What takes its place, or the peer's reset, ends it here and not in the ledger. A successor has a
    /// connection of that name, or else answers for the old one until its time is over, which harms nobody
    /// (RFC 6191). Nor does it know that a repeated FIN has prolonged it.
    pub(crate) fn put_time_wait(&mut self, record: impl FnOnce() -> TimeWaitRecord) {
        if let Some(records) = self.records_of_connections() {
            records.ledger.put_time_wait(&record());
        }
    }

    fn records_of_connections(&mut self) -> Option<&mut Records<M>> {
        self.records.as_deref_mut().filter(|records| !records.is_stateless)
    }

    /// Writes down what has changed since the last flush, and gives back what a successor had to find until
    /// then. `dirty`: connections that something has happened to.
    pub(crate) fn commit(&mut self, dirty: &[u32], connections: &mut Connections, applications: &mut Applications<M>) {
        if let Some(records) = self.records.as_deref_mut() {
            records.commit(dirty, connections, applications);
        }
        for ((place, id), slot, mut rings) in self.released.drain(..) {
            // The session may have ended since, with all its memory, and another may have taken its place.
            if let Some(session) = applications.get_mut(place).filter(|session| session.id == id) {
                session.reuse(slot);
                rings.release_all(session.memory());
            }
        }
    }

    // ---- requests ----

    /// Returns how many commands of applications are in force.
    pub(crate) fn requests_in_force(&self) -> usize {
        self.records.as_ref().map_or(0, |records| records.requests.len())
    }

    /// A command stays in force. `false`: there is no room for it, and no successor will know of it.
    pub(crate) fn keep_request(
        &mut self,
        applications: &Applications<M>,
        session: SessionId,
        command: Command,
    ) -> bool {
        let Some(records) = self.records.as_deref_mut() else { return true };
        records.requests.put(session, applications.limited_user(session), command)
    }

    /// Whether a command could stay in force. Ask before it is carried out, where its sender hears of a
    /// refusal.
    pub(crate) fn may_keep(&self, applications: &Applications<M>, session: SessionId, command: &Command) -> bool {
        // What was shown for it is kept as well.
        let slack = usize::from(matches!(command, Command::Listen { .. } | Command::UdpOpen { .. }));
        let Some(records) = self.records.as_deref() else { return true };
        records.requests.has_room_for(session, applications.limited_user(session), command, slack)
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

    /// Up to `max` requests of a session are over: of `all`, or of those about leases. Returns how many those
    /// were.
    pub(crate) fn drop_some_requests(&mut self, session: SessionId, max: usize, all: bool) -> usize {
        self.records.as_deref_mut().map_or(0, |records| records.requests.remove_some(session, max, all))
    }

    // ---- blame ----

    /// Deaths that were put down to sessions and that are `forgivable` are forgotten, when nobody has died
    /// for so long that they were chance.
    #[inline]
    pub(crate) fn forgive(&mut self, now: Instant, forgivable: impl Fn(u8) -> bool) {
        if let Some(records) = self.records.as_deref_mut().filter(|records| records.forgive_at <= now) {
            records.forgive_at = Instant::FAR_FUTURE;
            let forgiven: Vec<_> = records.ledger.suspects().filter(|(_, deaths)| forgivable(*deaths)).collect();
            forgiven.into_iter().for_each(|(session, _)| records.ledger.set_deaths(session, 0));
        }
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

    /// Returns the ledger.
    pub(crate) const fn ledger(&self) -> &Ledger<M> {
        &self.ledger
    }

    // ---- what a predecessor has left ----

    /// Goes on with the requests of a predecessor, and returns them. `user_of`: the user for whom a session
    /// counts. `is_stateless`: connections are not to survive from now on.
    pub(crate) fn resume_requests(
        &mut self,
        user_of: impl Fn(SessionId) -> Option<u32>,
        is_stateless: bool,
    ) -> Vec<(u32, RequestRecord)> {
        let found: Vec<_> = self.ledger.requests().filter_map(|(place, found)| Some((place, found.ok()?))).collect();
        let high = found.iter().map(|(place, _)| place + 1).max().unwrap_or(0);
        self.requests = self.requests.resume(&found, high, user_of);
        self.is_stateless = is_stateless;
        found
    }

    /// The requests of a session are in force no more.
    pub(crate) fn remove_session(&mut self, session: SessionId) {
        self.requests.remove_session(session);
    }

    /// Returns the connections that the predecessor's last batch has touched; `None`: nobody knows. Until the
    /// first batch is out the ledger goes on to name them.
    pub(crate) fn inherit_touched(&mut self) -> Option<Vec<u32>> {
        self.is_heir = true;
        self.ledger.touched()
    }

    /// Goes on with the chains of text that begin at `heads`.
    pub(crate) fn resume_text(&mut self, heads: Vec<u32>) {
        self.text = TextPool::resume(&self.ledger.text_area(), heads.into_iter());
    }

    /// Returns the text of a record; `None`: there is none, or it cannot be read.
    pub(crate) fn text_of(&self, record: &ConnectionRecord) -> Option<Vec<u8>> {
        let len = usize::try_from(record.text_len).ok().filter(|len| *len > 0)?;
        self.ledger.text_area().read(record.text, len)
    }

    /// Servers have died of the connection so often.
    pub(crate) fn note_crashes(&mut self, index: u32, crashes: u8) {
        self.crashes.insert(index, crashes);
    }

    /// Returns how often servers have died of the connection.
    pub(crate) fn crashes(&self, index: u32) -> u8 {
        self.crashes.get(&index).copied().unwrap_or(0)
    }

    /// The record of a connection of a predecessor is to be `record`.
    pub(crate) fn rewrite(&mut self, index: u32, record: &ConnectionRecord) {
        self.ledger.stage_connection(index, Some(record));
    }

    /// A connection of a predecessor does not go on: its record goes, and whoever has its place next is
    /// another one.
    pub(crate) fn erase(&mut self, index: u32) {
        self.ledger.stage_connection(index, None);
        self.crashes.remove(&index);
    }

    /// Text that nobody has yet, by the place of its connection, and what is in TIME-WAIT and not written
    /// down as such.
    pub(crate) fn note_adopted(&mut self, parked: Vec<(u32, (u32, u32))>, ended: &[TimeWaitRecord]) {
        self.chains.extend(parked);
        ended.iter().for_each(|ended| self.ledger.put_time_wait(ended));
    }

    /// What was changed above counts from now on.
    pub(crate) fn commit_adoption(&mut self) {
        self.ledger.commit();
    }

    /// Deaths that were put down to sessions are forgotten from then on.
    pub(crate) const fn forgive_at(&mut self, due: Instant) {
        self.forgive_at = due;
    }

    // ---- a batch ----

    /// Writes down what has changed since the last batch.
    fn commit(&mut self, dirty: &[u32], connections: &mut Connections, applications: &Applications<M>) {
        let dirty: &[u32] = if self.is_stateless { &[] } else { dirty };
        if !core::mem::take(&mut self.is_heir) {
            self.ledger.begin();
        }
        self.stage_freed(connections);
        for (place, record) in self.requests.take_changed() {
            self.ledger.stage_request(place, record.as_ref());
        }
        for &index in dirty {
            let Some((entry, locals)) = connections.get_mut_with_locals(index) else { continue };
            self.ledger.touch(index);
            if self.needs_record(entry) {
                self.stage_entry(index, entry, locals, applications);
            } else {
                self.progressed.push(index);
            }
        }
        self.ledger.mark(Work::Nothing);
        self.ledger.commit();
        for index in self.progressed.drain(..) {
            if let Some(entry) = connections.get(index) {
                let (acked, received, edge) = entry.connection.progress();
                self.ledger.store_progress(index, &Progress { acked, received, edge });
            }
        }
        for head in self.unchained.drain(..) {
            self.text.free(&self.ledger.text_area(), head);
        }
    }

    fn stage_freed(&mut self, connections: &Connections) {
        for place in self.freed.drain(..) {
            // A new connection may have taken it: then that one is written.
            if connections.get(place).is_none() {
                self.ledger.stage_connection(place, None);
                self.crashes.remove(&place);
            }
            self.unchained.extend(self.chains.remove(&place).map(|(head, _)| head));
        }
    }

    /// Whether more than progress is to be written down of a connection.
    #[inline]
    fn needs_record(&self, entry: &Entry) -> bool {
        let changes = Flags::RECORD.with(Flags::EXTENTS).with(Flags::STATE).with(Flags::OFFER);
        entry.recorded != summary(entry) || entry.flags.has(changes)
    }

    fn stage_entry(&mut self, index: u32, entry: &mut Entry, locals: &Locals, applications: &Applications<M>) {
        self.ledger.mark(Work::Output(index));
        // Text that nobody has grows until somebody has it, and what comes late fills its gaps.
        let parked_len = entry.parked_len() as u32;
        let is_filled = parked_len > 0 && entry.flags.has(Flags::RECORD);
        if is_filled || self.chains.get(&index).map_or(0, |(_, len)| *len) != parked_len {
            self.unchained.extend(self.chains.remove(&index).map(|(head, _)| head));
            if let Some(parked) = &entry.parked {
                self.chains.insert(index, (self.text.write(&self.ledger.text_area(), parked), parked_len));
            }
        }
        entry.recorded = summary(entry);
        entry.flags.clear(Flags::RECORD);
        let chain = self.chains.get(&index).copied().unwrap_or_default();
        let place = entry.place.and_then(|place| {
            let session = applications.get(place.session)?;
            Some((session.id, place.slot, place.generation))
        });
        let record = of_entry(entry, locals.tuple(&entry.name), place, chain, self.crashes(index));
        self.ledger.stage_connection(index, Some(&record));
    }
}
