//! Writes down what a successor needs before anything is sent: commit before externalising (decision 7).
//!
//! A flush begins with [`Durability::commit`]: the records of the connections that it concerns, and the
//! requests that applications have made or taken back. Then segments are sent, slots are written and events
//! sent. The commands that led to all this are taken off their rings last: if the server dies in between, its
//! successor does some of it again, which is harmless.

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

/// The state that a successor needs, and the resources that may be freed once it is written.
#[derive(Debug)]
pub(crate) struct Durability<M: Memory> {
    /// The ledger; `None` if there will be no successor, or while a predecessor's is being adopted.
    records: Option<Box<Records<M>>>,
    /// The resources of revoked offers that are freed at the next commit: session with its place, slot, and
    /// rings of the receive buffer.
    released: Vec<((u32, SessionId), SlotId, Rings)>,
}

/// The ledger, and what its writer has to remember of it.
#[derive(Debug)]
pub(crate) struct Records<M: Memory> {
    ledger: Ledger<M>,
    text: TextPool,
    /// The chains of text, by the place of their connection.
    chains: BTreeMap<u32, (u32, u32)>,
    /// The chains that no record names any more, once the batch is committed.
    unchained: Vec<u32>,
    /// The places that were freed.
    freed: Vec<u32>,
    /// The dirty connections that have only made progress.
    progressed: Vec<u32>,
    requests: Requests,
    /// How often servers have died on a connection.
    crashes: BTreeMap<u32, u8>,
    /// Whether connections are not to survive, and have no records.
    is_stateless: bool,
    /// Whether the ends of connections that a predecessor has touched may not have been notified yet. Until
    /// the first batch is sent the ledger names those connections, so that the next server notifies the ends
    /// if this one dies before.
    is_heir: bool,
    /// When deaths that were charged to sessions are forgotten.
    forgive_at: Instant,
}

impl<M: Memory> Durability<M> {
    /// Creates it without a ledger, so that nothing is written.
    pub(crate) const fn new() -> Durability<M> {
        Durability { records: None, released: Vec::new() }
    }

    /// Sets the ledger: from now on everything that a successor has to know is written.
    pub(crate) fn set_records(&mut self, records: Box<Records<M>>) {
        self.records = Some(records);
    }

    /// Takes the ledger out while what a predecessor has left is adopted: nothing is written meanwhile.
    pub(crate) fn take_records(&mut self) -> Option<Box<Records<M>>> {
        self.records.take()
    }

    /// Returns the sessions of which a predecessor has left something that is in force.
    pub(crate) fn sessions(&self) -> BTreeSet<SessionId> {
        self.records.as_ref().map_or_else(BTreeSet::new, |records| records.ledger.sessions())
    }

    /// Notes in the ledger that work of this kind begins. This costs one store.
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

    /// Converts the ledger to a version: see [`Ledger::convert`]. Returns the version; 0 if there is no
    /// ledger.
    pub(crate) fn convert(&mut self, version: u32) -> u32 {
        self.records.as_deref_mut().map_or(0, |records| records.ledger.convert(version))
    }

    // ---- connections ----

    /// Gives back the slot of a revoked offer, and the rings of its buffer, once the ledger does not name
    /// them any more.
    pub(crate) fn release_later(&mut self, session: (u32, SessionId), slot: SlotId, rings: Rings) {
        self.released.push((session, slot, rings));
    }

    /// Notes that the place of a connection is free.
    pub(crate) fn forget_connection(&mut self, index: u32) {
        if let Some(records) = self.records_of_connections() {
            records.freed.push(index);
        }
    }

    /// Writes that a connection is in TIME-WAIT; its own record goes with the next commit.
    ///
    /// A new connection of that name, or the peer's reset, ends TIME-WAIT here and not in the ledger. A
    /// successor has a connection of that name, or else answers for the old one until its time is over, which
    /// does no harm (RFC 6191). Nor does it know that a repeated FIN has prolonged the time.
    pub(crate) fn put_time_wait(&mut self, record: impl FnOnce() -> TimeWaitRecord) {
        if let Some(records) = self.records_of_connections() {
            records.ledger.put_time_wait(&record());
        }
    }

    fn records_of_connections(&mut self) -> Option<&mut Records<M>> {
        self.records.as_deref_mut().filter(|records| !records.is_stateless)
    }

    /// Writes what has changed since the last flush, and gives back what a successor needed until then.
    /// `dirty` are the connections where something has happened.
    pub(crate) fn commit(
        &mut self,
        dirty: &[u32],
        connections: &mut Connections,
        applications: &mut Applications<M>,
    ) {
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

    /// Keeps a command in force. Returns `false` if there is no room for it, so that no successor will know
    /// of it.
    pub(crate) fn keep_request(
        &mut self,
        applications: &Applications<M>,
        session: SessionId,
        command: Command,
    ) -> bool {
        let Some(records) = self.records.as_deref_mut() else { return true };
        records.requests.put(session, applications.limited_user(session), command)
    }

    /// Returns whether a command could stay in force. Call before carrying out a command whose refusal its
    /// sender learns.
    pub(crate) fn may_keep(
        &self,
        applications: &Applications<M>,
        session: SessionId,
        command: &Command,
    ) -> bool {
        // A grant that was shown for the command is kept as well.
        let slack = usize::from(matches!(command, Command::Listen { .. } | Command::UdpOpen { .. }));
        let Some(records) = self.records.as_deref() else { return true };
        records.requests.has_room_for(session, applications.limited_user(session), command, slack)
    }

    /// Drops a command like `command`, because it was undone.
    pub(crate) fn drop_request(&mut self, session: SessionId, command: &Command) {
        if let (Some(records), Some(key)) = (self.records.as_deref_mut(), Key::of(session, command)) {
            records.requests.remove(&key);
        }
    }

    /// Drops what was asked for about a lease or a slot.
    pub(crate) fn drop_requests(&mut self, session: SessionId, subject: Subject) {
        if let Some(records) = self.records.as_deref_mut() {
            records.requests.remove_all(session, subject);
        }
    }

    /// Drops up to `max` requests of a session: of `all`, or of those about leases. Returns how many were
    /// dropped.
    pub(crate) fn drop_some_requests(&mut self, session: SessionId, max: usize, all: bool) -> usize {
        self.records.as_deref_mut().map_or(0, |records| records.requests.remove_some(session, max, all))
    }

    // ---- blame ----

    /// Forgets deaths that were charged to sessions and that are `forgivable`, when no server has died for so
    /// long that they were chance.
    #[inline]
    pub(crate) fn forgive(&mut self, now: Instant, forgivable: impl Fn(u8) -> bool) {
        if let Some(records) = self.records.as_deref_mut().filter(|records| records.forgive_at <= now) {
            records.forgive_at = Instant::FAR_FUTURE;
            let forgiven: Vec<_> =
                records.ledger.suspects().filter(|(_, deaths)| forgivable(*deaths)).collect();
            forgiven.into_iter().for_each(|(session, _)| records.ledger.set_deaths(session, 0));
        }
    }
}

impl<M: Memory> Records<M> {
    /// Creates the records with a ledger and the limits of requests in force: `requests_max` for one session,
    /// and those of one user.
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

    /// Continues the requests of a predecessor, and returns them. `user_of` returns the user that a session
    /// counts for. `is_stateless` says that connections are not to survive from now on.
    pub(crate) fn resume_requests(
        &mut self,
        user_of: impl Fn(SessionId) -> Option<u32>,
        is_stateless: bool,
    ) -> Vec<(u32, RequestRecord)> {
        let found: Vec<_> =
            self.ledger.requests().filter_map(|(place, found)| Some((place, found.ok()?))).collect();
        let high = found.iter().map(|(place, _)| place + 1).max().unwrap_or(0);
        self.requests = self.requests.resume(&found, high, user_of);
        self.is_stateless = is_stateless;
        found
    }

    /// Drops all requests of a session.
    pub(crate) fn remove_session(&mut self, session: SessionId) {
        self.requests.remove_session(session);
    }

    /// Returns the connections that the predecessor's last batch has touched; `None` if that is unknown. The
    /// ledger names them until the first batch is sent.
    pub(crate) fn inherit_touched(&mut self) -> Option<Vec<u32>> {
        self.is_heir = true;
        self.ledger.touched()
    }

    /// Continues the chains of text that begin at `heads`.
    pub(crate) fn resume_text(&mut self, heads: Vec<u32>) {
        self.text = TextPool::resume(&self.ledger.text_area(), heads.into_iter());
    }

    /// Returns the text of a record; `None` if there is none, or it cannot be read.
    pub(crate) fn text_of(&self, record: &ConnectionRecord) -> Option<Vec<u8>> {
        let len = usize::try_from(record.text_len).ok().filter(|len| *len > 0)?;
        self.ledger.text_area().read(record.text, len)
    }

    /// Notes how often servers have died on the connection.
    pub(crate) fn note_crashes(&mut self, index: u32, crashes: u8) {
        self.crashes.insert(index, crashes);
    }

    /// Returns how often servers have died on the connection.
    pub(crate) fn crashes(&self, index: u32) -> u8 {
        self.crashes.get(&index).copied().unwrap_or(0)
    }

    /// Rewrites the record of a connection of a predecessor.
    pub(crate) fn rewrite(&mut self, index: u32, record: &ConnectionRecord) {
        self.ledger.stage_connection(index, Some(record));
    }

    /// Erases the record of a predecessor's connection that cannot continue. The next connection at its place
    /// is another one.
    pub(crate) fn erase(&mut self, index: u32) {
        self.ledger.stage_connection(index, None);
        self.crashes.remove(&index);
    }

    /// Notes the text that no application has yet, by the place of its connection, and writes connections
    /// that went to TIME-WAIT during the adoption.
    pub(crate) fn note_adopted(&mut self, parked: Vec<(u32, (u32, u32))>, ended: &[TimeWaitRecord]) {
        self.chains.extend(parked);
        ended.iter().for_each(|ended| self.ledger.put_time_wait(ended));
    }

    /// Commits the changes of the adoption.
    pub(crate) fn commit_adoption(&mut self) {
        self.ledger.commit();
    }

    /// Sets when deaths that were charged to sessions are forgotten.
    pub(crate) const fn forgive_at(&mut self, due: Instant) {
        self.forgive_at = due;
    }

    // ---- a batch ----

    /// Writes what has changed since the last batch.
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
            // If a new connection has taken the place, that one is written.
            if connections.get(place).is_none() {
                self.ledger.stage_connection(place, None);
                self.crashes.remove(&place);
            }
            self.unchained.extend(self.chains.remove(&place).map(|(head, _)| head));
        }
    }

    /// Returns whether more than progress is to be written of a connection.
    #[inline]
    fn needs_record(&self, entry: &Entry) -> bool {
        let changes = Flags::RECORD | Flags::EXTENTS | Flags::STATE | Flags::OFFER;
        entry.recorded != summary(entry) || entry.flags.intersects(changes)
    }

    fn stage_entry(
        &mut self,
        index: u32,
        entry: &mut Entry,
        locals: &Locals,
        applications: &Applications<M>,
    ) {
        self.ledger.mark(Work::Output(index));
        // Text that no application has grows until one has it, and text that comes late fills its gaps.
        let parked_len = entry.parked_len() as u32;
        let is_filled = parked_len > 0 && entry.flags.intersects(Flags::RECORD);
        if is_filled || self.chains.get(&index).map_or(0, |(_, len)| *len) != parked_len {
            self.unchained.extend(self.chains.remove(&index).map(|(head, _)| head));
            if let Some(parked) = &entry.parked {
                self.chains.insert(index, (self.text.write(&self.ledger.text_area(), parked), parked_len));
            }
        }
        entry.recorded = summary(entry);
        entry.flags.remove(Flags::RECORD);
        let chain = self.chains.get(&index).copied().unwrap_or_default();
        let place = entry.place.and_then(|place| {
            let session = applications.get(place.session)?;
            Some((session.id, place.slot, place.generation))
        });
        let record = of_entry(entry, locals.tuple(&entry.name), place, chain, self.crashes(index));
        self.ledger.stage_connection(index, Some(&record));
    }
}
