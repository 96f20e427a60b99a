//! The ledger of a replica, which survives its death: a record for each connection, and the requests of
//! applications.
//!
//! There is one region per replica, which the supervisor owns and only the replica writes. docs/ledger.md is
//! the specification.
//! ```text
//!   header    last writer's epoch, secrets, the place that is being worked on, the journal's commit word
//!   touched   places of the last batch: connections that may be owed an acknowledgement, or an event
//!   journal   records of one batch; they count from the store of the commit word on, which is cleared when
//!             all are in their tables
//!   connections, requests, text, time-waits   the tables
//! ```
//! A record is written in two ways. Progress - what the peer has acknowledged, what was received in order,
//! how far the peer's window goes - is three words of 8 octets, each true by itself and stored in place. All
//! else goes through the journal, so that a batch of records is written wholly or not at all. The writer may
//! be killed at any instruction.

mod connection;
mod named;
mod request;
mod text;
mod time_wait;
mod work;

use core::mem::offset_of;

use atoll_base::Epoch;

pub use connection::{BEYOND_MAX, CONNECTION_BYTES, ConnectionRecord, Phase, Progress};
pub use named::sessions_in;
pub use request::{REQUEST_BYTES, RequestRecord};
pub use text::{TEXT_UNIT_BYTES, TextArea, TextPool};
pub use time_wait::{TIME_WAIT_BYTES, TIME_WAITS_MAX, TimeWaitRecord};
pub use work::{SUSPECTS_MAX, Work};

use crate::layout;
use crate::memory::Memory;

/// The newest version of the format. A reader knows this version and those before; a writer writes all of
/// them.
pub const LEDGER_VERSION: u32 = 2;
/// The oldest version of the format.
pub const LEDGER_OLDEST: u32 = 1;
/// The maximum number of records in one batch; a larger batch is split. Ledgers for few connections have
/// shorter journals.
pub const JOURNAL_MAX: u32 = 1 << 14;
/// The maximum number of places of the last batch that are stored.
pub const TOUCHED_MAX: usize = 1 << 12;

/// The capacity of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerConfig {
    /// The maximum number of connections.
    pub connections: u32,
    /// The maximum number of requests in force.
    pub requests: u32,
    /// The number of units for the text of connections that no application has accepted.
    pub text_units: u32,
}

/// The offsets of the ledger's parts.
#[derive(Clone, Copy, Debug)]
struct Layout {
    connections: usize,
    requests: usize,
    text: usize,
    time_waits: usize,
    total: usize,
}

impl LedgerConfig {
    /// The capacity of the ledger of a stack's replica.
    pub const STACK: LedgerConfig =
        LedgerConfig { connections: 1 << 20, requests: 1 << 18, text_units: 1 << 16 };

    /// Returns the size of such a ledger in octets. Memory is taken as it is used.
    pub const fn bytes(&self) -> usize {
        self.layout().total
    }

    /// Returns the number of records that the journal holds.
    const fn journal(&self) -> u32 {
        if self.connections < JOURNAL_MAX { self.connections } else { JOURNAL_MAX }
    }

    /// Returns the number of entries of the ring of connections in TIME-WAIT.
    const fn time_waits(&self) -> u32 {
        if self.connections < TIME_WAITS_MAX { self.connections } else { TIME_WAITS_MAX }
    }

    const fn layout(&self) -> Layout {
        let connections = (JOURNAL + self.journal() as usize * ENTRY_BYTES).next_multiple_of(4096);
        let requests = connections + self.connections as usize * CONNECTION_BYTES;
        let text = requests + self.requests as usize * REQUEST_BYTES;
        let time_waits = (text + self.text_units as usize * TEXT_UNIT_BYTES).next_multiple_of(4096);
        let total = (time_waits + self.time_waits() as usize * TIME_WAIT_BYTES).next_multiple_of(4096);
        Layout { connections, requests, text, time_waits, total }
    }
}

/// The size of the ledger of a replica in octets.
pub const LEDGER_BYTES: usize = LedgerConfig::STACK.bytes();

const MAGIC: u64 = u64::from_le_bytes(*b"atollled");

/// The size of the writer's secrets in octets.
pub const SECRET_BYTES: usize = 64;

layout::words! {
    /// The header.
    struct Header {
        magic: u64,
        version: u32,
        epoch: u32; 48 unused,
        commit: u64,
        /// The number of places in use; places from there on were never used.
        connections: u32,
        requests: u32,
        touched: u32; 44 unused,
        mark: u32,
        /// The place of the next entry in the ring of TIME-WAIT.
        time_wait: u32,
        /// The work word, which is in the cache line of the two before.
        work: u64; 112 unused,
        secrets: [u8; SECRET_BYTES]; 192 unused,
        suspects: [u64; SUSPECTS_MAX]; 3072 unused,
    }
}

layout::words! {
    /// An entry of the journal.
    struct Entry {
        table: u32,
        place: u32; 8 unused,
        record: [u8; CONNECTION_BYTES],
    }
}

const H_MAGIC: usize = offset_of!(Header, magic);
const H_VERSION: usize = offset_of!(Header, version);
const H_EPOCH: usize = offset_of!(Header, epoch);
const H_COMMIT: usize = offset_of!(Header, commit);
const H_CONNECTIONS: usize = offset_of!(Header, connections);
const H_REQUESTS: usize = offset_of!(Header, requests);
const H_TOUCHED: usize = offset_of!(Header, touched);
const H_MARK: usize = offset_of!(Header, mark);
const H_TIME_WAIT: usize = offset_of!(Header, time_wait);
const H_WORK: usize = offset_of!(Header, work);
const H_SECRETS: usize = offset_of!(Header, secrets);
const H_SUSPECTS: usize = offset_of!(Header, suspects);

const TOUCHED: usize = size_of::<Header>();
const JOURNAL: usize = TOUCHED + TOUCHED_MAX * 4;
const ENTRY_BYTES: usize = size_of::<Entry>();
const ENTRY_PLACE: usize = offset_of!(Entry, place);
const ENTRY_HEAD: usize = offset_of!(Entry, record);

const TABLE_CONNECTIONS: u32 = 1;
const TABLE_REQUESTS: u32 = 2;

/// The reason why a ledger, or a record, cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The region is too small, or holds no ledger.
    NoLedger,
    /// The ledger or the record was written in a version that this build does not know.
    Version(u32),
    /// The check does not fit: a stray store has changed the record.
    Check,
    /// The check fits, but a field has a value that it cannot have.
    Field,
}

/// A view of a ledger for its writer and, after the writer's death, for its successor.
#[derive(Debug)]
pub struct Ledger<M: Memory> {
    memory: M,
    config: LedgerConfig,
    layout: Layout,
    staged: u32,
    connections: u32,
    requests: u32,
    touched: u32,
    /// The newest version that is read, and the version that is written.
    newest: u32,
    version: u32,
    /// The predecessor's work when it ended.
    past_work: Work,
    /// The bits of the work word that name the incarnation.
    own_work: u64,
}

/// Returns the version that is written to the ledger in `memory`, of which the first 64 octets suffice: no
/// record in it is of a newer one. Returns `None` if there is no ledger yet.
pub fn written_version(memory: &impl Memory) -> Option<u32> {
    (memory.len() >= H_COMMIT && memory.load64_acquire(H_MAGIC) == MAGIC).then(|| memory.load32(H_VERSION))
}

impl<M: Memory> Ledger<M> {
    /// Opens the ledger in `memory`, and creates it if there is none (all zero). A batch whose commit was
    /// interrupted is completed.
    ///
    /// # Errors
    /// [`Unreadable::NoLedger`], [`Unreadable::Version`].
    pub fn open(memory: M, config: LedgerConfig, epoch: Epoch) -> Result<Ledger<M>, Unreadable> {
        Ledger::open_as(memory, config, epoch, LEDGER_VERSION)
    }

    /// Opens the ledger as [`Ledger::open`] does, for a build whose newest version is `newest`. A ledger that
    /// is created is of that version; an existing one keeps its own until [`Ledger::convert`].
    pub fn open_as(
        memory: M,
        config: LedgerConfig,
        epoch: Epoch,
        newest: u32,
    ) -> Result<Ledger<M>, Unreadable> {
        let newest = newest.clamp(LEDGER_OLDEST, LEDGER_VERSION);
        if memory.len() < config.layout().total {
            return Err(Unreadable::NoLedger);
        }
        if memory.load64(H_MAGIC) == 0 {
            memory.store32(H_VERSION, newest);
            memory.store64_release(H_MAGIC, MAGIC);
        }
        let ledger = Ledger { own_work: work::owner(epoch.0), ..Ledger::look(memory, config, newest)? };
        // Older writers do not know the work word, and newer ones not the mark: neither may describe another
        // writer's end.
        ledger.memory.store32(H_EPOCH, epoch.0);
        ledger.memory.store64(H_WORK, 0);
        ledger.memory.store32(H_MARK, 0);
        ledger.apply();
        Ok(ledger)
    }

    /// Reads the header of the ledger as its last writer has left it, and writes nothing.
    fn look(memory: M, config: LedgerConfig, newest: u32) -> Result<Ledger<M>, Unreadable> {
        let layout = config.layout();
        if memory.len() < layout.total || memory.load64(H_MAGIC) != MAGIC {
            return Err(Unreadable::NoLedger);
        }
        let version = memory.load32(H_VERSION);
        if !(LEDGER_OLDEST..=newest).contains(&version) {
            return Err(Unreadable::Version(version));
        }
        Ok(Ledger {
            past_work: Work::decode(memory.load64(H_WORK), memory.load32(H_EPOCH)),
            own_work: 0,
            connections: memory.load32(H_CONNECTIONS).min(config.connections),
            requests: memory.load32(H_REQUESTS).min(config.requests),
            touched: memory.load32(H_TOUCHED).min(TOUCHED_MAX as u32),
            staged: 0,
            memory,
            config,
            layout,
            newest,
            version,
        })
    }

    /// Returns the maximum number of requests.
    pub fn requests_max(&self) -> u32 {
        self.config.requests
    }

    /// Returns the version that is written.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Writes `version` from now on, or the nearest version that exists. For a newer one, records are
    /// converted when they change. For an older one, all records are written anew, and lose what only newer
    /// ones have; afterwards a build that knows no other version can continue. Returns the version.
    pub fn convert(&mut self, version: u32) -> u32 {
        let version = version.clamp(LEDGER_OLDEST, self.newest);
        if version >= self.version {
            // The header is written first: it is never older than a record.
            self.memory.store32_release(H_VERSION, version);
            self.version = version;
            return version;
        }
        self.commit();
        self.version = version;
        for place in 0..self.connections {
            if self.version_of(place) > version
                && let Some(Ok(record)) = self.connection(place)
            {
                self.stage_connection(place, Some(&record));
            }
        }
        self.commit();
        self.memory.store32_release(H_VERSION, version);
        version
    }

    /// Returns the secrets that the first writer has drawn for itself and all its successors; zero until
    /// then.
    pub fn secrets(&self) -> [u8; SECRET_BYTES] {
        let mut secrets = [0; SECRET_BYTES];
        self.memory.read(H_SECRETS, &mut secrets);
        secrets
    }

    /// Stores the secrets.
    pub fn set_secrets(&self, secrets: &[u8; SECRET_BYTES]) {
        self.memory.write(H_SECRETS, secrets);
    }

    /// Marks the beginning of work of this kind, with one store. A writer that dies meanwhile may have died
    /// of it.
    #[inline]
    pub fn mark(&self, work: Work) {
        self.memory.store64_release(H_WORK, self.own_work | work.encode());
    }

    /// Returns the writer's current work.
    pub fn work(&self) -> Work {
        Work::decode(self.memory.load64(H_WORK), self.memory.load32(H_EPOCH))
    }

    /// Returns the predecessor's work when it ended.
    pub fn past_work(&self) -> Work {
        self.past_work
    }

    // ---- the batch ----

    /// Begins a new batch, and forgets the places that the last one has touched.
    #[inline]
    pub fn begin(&mut self) {
        self.touched = 0;
        self.memory.store32_release(H_TOUCHED, 0);
    }

    /// Notes that the batch concerns the connection at `place`.
    #[inline]
    pub fn touch(&mut self, place: u32) {
        if (self.touched as usize) < TOUCHED_MAX {
            self.memory.store32(TOUCHED + self.touched as usize * 4, place);
            self.touched += 1;
            self.memory.store32_release(H_TOUCHED, self.touched);
        }
    }

    /// Returns the places that the last batch has touched; `None` if there are more than are stored.
    pub fn touched(&self) -> Option<alloc::vec::Vec<u32>> {
        let count = self.touched as usize;
        (count < TOUCHED_MAX).then(|| (0..count).map(|i| self.memory.load32(TOUCHED + i * 4)).collect())
    }

    /// Stages `record` as the record of the connection at `place`; `None` frees the place.
    pub fn stage_connection(&mut self, place: u32, record: Option<&ConnectionRecord>) {
        if place >= self.config.connections {
            return;
        }
        if place >= self.connections {
            self.connections = place + 1;
            self.memory.store32_release(H_CONNECTIONS, self.connections);
        }
        let version = self.version;
        let bytes = record.map_or([0; CONNECTION_BYTES], |record| record.encode(place, version));
        self.stage(TABLE_CONNECTIONS, place, &bytes);
    }

    /// Stages `record` as the record of the request at `place`; `None` frees the place.
    pub fn stage_request(&mut self, place: u32, record: Option<&RequestRecord>) {
        if place >= self.config.requests {
            return;
        }
        if place >= self.requests {
            self.requests = place + 1;
            self.memory.store32_release(H_REQUESTS, self.requests);
        }
        self.stage(TABLE_REQUESTS, place, &record.map_or([0; REQUEST_BYTES], |record| record.encode(place)));
    }

    fn stage(&mut self, table: u32, place: u32, bytes: &[u8]) {
        if self.staged >= self.config.journal() {
            self.commit();
        }
        let at = JOURNAL + self.staged as usize * ENTRY_BYTES;
        self.memory.store32(at, table);
        self.memory.store32(at + ENTRY_PLACE, place);
        self.memory.write(at + ENTRY_HEAD, bytes);
        self.staged += 1;
    }

    /// Commits the staged records, which count together from now on.
    pub fn commit(&mut self) {
        if self.staged > 0 {
            self.memory.store64_release(H_COMMIT, u64::from(self.staged));
            self.apply();
            self.staged = 0;
        }
    }

    /// Copies the committed records to their tables. Doing so again is harmless.
    fn apply(&self) {
        let count = usize::try_from(self.memory.load64_acquire(H_COMMIT))
            .unwrap_or(0)
            .min(self.config.journal() as usize);
        let mut bytes = [0; CONNECTION_BYTES];
        for at in (0..count).map(|entry| JOURNAL + entry * ENTRY_BYTES) {
            let (table, place) = (self.memory.load32(at), self.memory.load32(at + ENTRY_PLACE));
            match table {
                TABLE_CONNECTIONS if place < self.config.connections => {
                    self.memory.read(at + ENTRY_HEAD, &mut bytes);
                    self.memory.write(self.connection_at(place), &bytes);
                }
                TABLE_REQUESTS if place < self.config.requests => {
                    self.memory.read(at + ENTRY_HEAD, &mut bytes[..REQUEST_BYTES]);
                    self.memory.write(self.request_at(place), &bytes[..REQUEST_BYTES]);
                }
                _ => {}
            }
        }
        self.memory.store64_release(H_COMMIT, 0);
        // Nothing that is staged from now on may be stored before that: a successor would take it for the
        // batch that has just been applied. A release keeps earlier stores from moving down; this load keeps
        // later ones from moving up, and costs no fence.
        let _ = self.memory.load64_acquire(H_COMMIT);
    }

    /// Stores the progress of the connection at `place`, which has a record. Call before anything that
    /// depends on the progress is sent, or shown to a program.
    #[inline]
    pub fn store_progress(&self, place: u32, progress: &Progress) {
        if place < self.config.connections {
            progress.store(&self.memory, self.connection_at(place));
        }
    }

    /// Adds a connection that has entered TIME-WAIT. Call before its record is removed.
    #[inline]
    pub fn put_time_wait(&mut self, record: &TimeWaitRecord) {
        let (place, count) = (self.next_time_wait(), self.config.time_waits());
        self.memory.write(self.layout.time_waits + place as usize * TIME_WAIT_BYTES, &record.encode(place));
        self.memory.store32_release(H_TIME_WAIT, if place + 1 < count { place + 1 } else { 0 });
    }

    fn next_time_wait(&self) -> u32 {
        self.memory.load32(H_TIME_WAIT) % self.config.time_waits()
    }

    // ---- reading ----

    /// Returns the connections that have entered TIME-WAIT, youngest first, up to the first empty place. The
    /// place of the next entry may hold half of one.
    pub fn time_waits(&self) -> impl Iterator<Item = TimeWaitRecord> + '_ {
        let (next, count) = (self.next_time_wait(), self.config.time_waits());
        (1..count).map_while(move |age| {
            let place = (next + count - age) % count;
            let mut bytes = [0; TIME_WAIT_BYTES];
            self.memory.read(self.layout.time_waits + place as usize * TIME_WAIT_BYTES, &mut bytes);
            TimeWaitRecord::decode(place, &bytes)
        })
    }

    /// Returns the records of all connections, with their places.
    pub fn connections(&self) -> impl Iterator<Item = (u32, Result<ConnectionRecord, Unreadable>)> + '_ {
        (0..self.connections).filter_map(|place| Some((place, self.connection(place)?)))
    }

    /// Returns the record at a place; `None` if there is none.
    pub fn connection(&self, place: u32) -> Option<Result<ConnectionRecord, Unreadable>> {
        let mut bytes = [0; CONNECTION_BYTES];
        if place >= self.connections {
            return None;
        }
        self.memory.read(self.connection_at(place), &mut bytes);
        ConnectionRecord::decode(place, &bytes, self.newest)
    }

    /// Returns a record that [`Ledger::connections`] has found to be good. Only this process writes here, so
    /// the check is not computed again.
    pub fn connection_again(&self, place: u32) -> Option<ConnectionRecord> {
        let mut bytes = [0; CONNECTION_BYTES];
        if place >= self.connections {
            return None;
        }
        self.memory.read(self.connection_at(place), &mut bytes);
        ConnectionRecord::checked(&bytes)
    }

    /// Returns the version of the record at a place; 0 if there is none.
    fn version_of(&self, place: u32) -> u32 {
        let mut version = [0];
        self.memory.read(self.connection_at(place) + connection::VERSION, &mut version);
        version[0].into()
    }

    /// Returns all requests, with their places.
    pub fn requests(&self) -> impl Iterator<Item = (u32, Result<RequestRecord, Unreadable>)> + '_ {
        (0..self.requests).filter_map(|place| {
            let mut bytes = [0; REQUEST_BYTES];
            self.memory.read(self.request_at(place), &mut bytes);
            Some((place, RequestRecord::decode(place, &bytes)?))
        })
    }

    /// Returns the text of connections that no application has accepted.
    pub fn text_area(&self) -> TextArea<'_, M> {
        TextArea { memory: &self.memory, start: self.layout.text, units: self.config.text_units }
    }

    fn connection_at(&self, place: u32) -> usize {
        self.layout.connections + place as usize * CONNECTION_BYTES
    }

    fn request_at(&self, place: u32) -> usize {
        self.layout.requests + place as usize * REQUEST_BYTES
    }
}

/// Returns the check over a record: a hash whose seed is the record's table and place, so that a record in
/// the wrong place fails. It is no protection against attackers: only the replica can write here.
#[inline]
fn check(table: u32, place: u32, words: impl Iterator<Item = u64>) -> u32 {
    let mut hash = (u64::from(table) << 32 | u64::from(place)) ^ 0x9e37_79b9_7f4a_7c15;
    for word in words {
        hash = (hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29);
    }
    (hash ^ hash >> 32) as u32 | 1
}

/// Returns octets as words; fewer than eight at the end are left out.
fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(*word.first_chunk().expect("a chunk of 8")))
}

#[cfg(test)]
mod tests;
