//! Tests that a batch is whole wherever its writer dies, even if the compiler moves stores as far as allowed.
//!
//! When a process has died, the stores are there of all instructions that it has carried out; but which
//! instruction comes first is the compiler's business, within what the orderings say. So a dead writer may
//! leave any set of stores that has with each store those that have to come before it:
//!
//! ```text
//!   every store              before a later store with release
//!   a store                  before a later store to the same place
//!   a store that an acquire  before every store behind that load
//!   load has read
//! ```
//! Checked are all sets that are a prefix of the program, with one more store (and what it needs) moved up,
//! or with one (and what needs it) left behind. A tool that tries out all sets would not come to an end; loom
//! and shuttle move no stores at all.

use alloc::collections::BTreeSet;
use core::cell::RefCell;

use super::*;

#[derive(Clone, Copy, Debug)]
struct Store {
    at: usize,
    value: u64,
    is_double: bool,
    is_release: bool,
    /// The last store that an acquire load before this one has read.
    after: Option<usize>,
}

impl Store {
    fn end(&self) -> usize {
        self.at + if self.is_double { 8 } else { 4 }
    }

    fn make(&self, memory: &HeapMemory) {
        match self.is_double {
            true => memory.store64(self.at, self.value),
            false => memory.store32(self.at, self.value as u32),
        }
    }
}

/// Memory that records what is stored, in the order of the program.
#[derive(Clone, Debug)]
struct Recorder<'a> {
    heap: HeapMemory,
    log: &'a RefCell<Vec<Store>>,
    seen: &'a Cell<Option<usize>>,
}

impl Recorder<'_> {
    fn store(&self, at: usize, value: u64, is_double: bool, is_release: bool) {
        let store = Store { at, value, is_double, is_release, after: self.seen.get() };
        store.make(&self.heap);
        self.log.borrow_mut().push(store);
    }

    fn acquire(&self, at: usize, len: usize) {
        let read = self.log.borrow().iter().rposition(|store| store.at < at + len && at < store.end());
        self.seen.set(self.seen.get().max(read));
    }
}

impl Memory for Recorder<'_> {
    fn len(&self) -> usize {
        self.heap.len()
    }
    fn load32(&self, at: usize) -> u32 {
        self.heap.load32(at)
    }
    fn load32_acquire(&self, at: usize) -> u32 {
        self.acquire(at, 4);
        self.heap.load32(at)
    }
    fn store32(&self, at: usize, value: u32) {
        self.store(at, value.into(), false, false);
    }
    fn store32_release(&self, at: usize, value: u32) {
        self.store(at, value.into(), false, true);
    }
    fn load64(&self, at: usize) -> u64 {
        self.heap.load64(at)
    }
    fn load64_acquire(&self, at: usize) -> u64 {
        self.acquire(at, 8);
        self.heap.load64(at)
    }
    fn store64(&self, at: usize, value: u64) {
        self.store(at, value, true, false);
    }
    fn store64_release(&self, at: usize, value: u64) {
        self.store(at, value, true, true);
    }
    fn fetch_and64(&self, _: usize, _: u64) -> u64 {
        unreachable!("a ledger has no such word")
    }
    fn fetch_or64(&self, _: usize, _: u64) -> u64 {
        unreachable!("a ledger has no such word")
    }
    fn read(&self, at: usize, out: &mut [u8]) {
        self.heap.read(at, out);
    }
    fn write(&self, at: usize, bytes: &[u8]) {
        for (i, part) in bytes.chunks(8).enumerate() {
            let mut word = self.heap.load64(at + i * 8).to_ne_bytes();
            word[..part.len()].copy_from_slice(part);
            self.store(at + i * 8, u64::from_ne_bytes(word), true, false);
        }
    }
    fn fence(&self) {
        self.seen.set(self.log.borrow().len().checked_sub(1));
    }
}

/// Returns for each store those that come before it whatever the compiler does, itself included.
fn predecessors(log: &[Store]) -> Vec<BTreeSet<usize>> {
    let mut all: Vec<BTreeSet<usize>> = Vec::new();
    for (j, store) in log.iter().enumerate() {
        let direct = (0..j).filter(|&i| {
            let before: &Store = &log[i];
            store.is_release || before.at < store.end() && store.at < before.end() || Some(i) == store.after
        });
        let mut set: BTreeSet<usize> =
            direct.flat_map(|i| all[i].iter().copied().collect::<Vec<_>>()).collect();
        set.insert(j);
        all.push(set);
    }
    all
}

const TINY: LedgerConfig = LedgerConfig { connections: 4, requests: 4, text_units: 64 };

#[test]
fn a_batch_is_whole_though_stores_were_moved() {
    let heap = HeapMemory::new(TINY.bytes());
    let (log, seen) = (RefCell::new(Vec::new()), Cell::new(None));
    let recorder = Recorder { heap: heap.clone(), log: &log, seen: &seen };
    let mut ledger = Ledger::open(recorder.clone(), TINY, Epoch(1)).expect("an empty ledger");
    log.borrow_mut().clear();
    seen.set(None);
    let base: Vec<u64> = (0..heap.len() / 8).map(|word| heap.load64(word * 8)).collect();
    let mut outcomes = alloc::vec![contents(&ledger)];
    for n in [1, 3] {
        ledger.stage_connection(0, Some(&record(n)));
        ledger.stage_connection(1, Some(&record(n + 1)));
        ledger.stage_request(0, Some(&request(n)));
        ledger.commit();
        outcomes.push(contents(&ledger));
    }
    let stores = log.take();
    let before = predecessors(&stores);
    let restore = |at: usize| heap.store64(at & !7, base[at / 8]);
    stores.iter().for_each(|store| restore(store.at));
    let mut found = BTreeSet::new();
    let mut check = |set: &[usize]| {
        seen.set(None);
        set.iter().for_each(|&i| stores[i].make(&heap));
        let next = Ledger::open(recorder.clone(), TINY, Epoch(2)).expect("a ledger");
        let connections = next.connections().map(|(place, record)| record.map(|record| (place, record)));
        let connections: Result<Vec<_>, _> = connections.collect();
        let requests: Result<Vec<_>, _> =
            next.requests().map(|(place, request)| request.map(|request| (place, request))).collect();
        let outcome = connections.and_then(|connections| Ok((connections, requests?)));
        let is = outcomes.iter().position(|known| outcome.as_ref() == Ok(known));
        let missing: Vec<usize> =
            (0..set.last().map_or(0, |last| last + 1)).filter(|i| !set.contains(i)).collect();
        let is = is.unwrap_or_else(|| {
            panic!(
                "a torn batch if only these of the first {:?} stores are missing: {missing:?}: {outcome:?}",
                set.last()
            )
        });
        found.insert(is);
        log.take().iter().for_each(|store: &Store| restore(store.at));
        set.iter().for_each(|&i| restore(stores[i].at));
    };
    for prefix in 0..=stores.len() {
        check(&(0..prefix).collect::<Vec<_>>());
        for (extra, needed) in before.iter().enumerate().skip(prefix) {
            let mut set: BTreeSet<usize> = (0..prefix).collect();
            set.extend(needed);
            // Otherwise the set is a prefix.
            if set.len() <= extra {
                check(&set.into_iter().collect::<Vec<_>>());
            }
        }
        for left in 0..prefix {
            let set: Vec<usize> = (0..prefix).filter(|&i| !before[i].contains(&left)).collect();
            if set.len() + 1 < prefix || set.last() != Some(&left.wrapping_sub(1)) {
                check(&set);
            }
        }
    }
    assert_eq!(found.len(), outcomes.len(), "each outcome is possible");
}
