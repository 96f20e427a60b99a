//! Tests that a mere reader of a ledger names all sessions that its successor needs.

use super::*;

fn ids(numbers: impl IntoIterator<Item = u32>) -> BTreeSet<SessionId> {
    numbers.into_iter().map(SessionId).collect()
}

/// Returns a copy of all octets.
fn copy_of(heap: &HeapMemory) -> Vec<u8> {
    let mut octets = alloc::vec![0; heap.len()];
    heap.read(0, &mut octets);
    octets
}

#[test]
fn the_sessions_of_connections_requests_and_deaths_are_named_by_whoever_only_reads() {
    let heap = HeapMemory::new(SMALL.bytes());
    assert_eq!(sessions_in(heap.clone(), SMALL), Err(Unreadable::NoLedger), "there is none yet");
    let mut ledger = Ledger::open(heap.clone(), SMALL, Epoch(1)).expect("an empty ledger");
    assert_eq!(sessions_in(heap.clone(), SMALL), Ok(ids([])));
    ledger.stage_connection(3, Some(&record(3)));
    ledger.stage_connection(4, Some(&ConnectionRecord { phase: Phase::Closing, place: None, ..record(4) }));
    ledger.stage_request(0, Some(&request(10)));
    ledger.commit();
    ledger.set_deaths(SessionId(20), 1);
    ledger.mark(Work::Opening(SessionId(30)));
    let before = copy_of(&heap);
    assert_eq!(sessions_in(heap.clone(), SMALL), Ok(ids([3, 10, 20, 30])));
    assert_eq!(copy_of(&heap), before, "nothing is written");
    let next = Ledger::open(heap.clone(), SMALL, Epoch(2)).expect("a ledger");
    assert_eq!(next.sessions(), ids([3, 10, 20, 30]));
    assert_eq!(sessions_in(heap.clone(), SMALL), Ok(ids([3, 10, 20])), "that one was at work on nothing");
    heap.store32(H_VERSION, LEDGER_VERSION + 1);
    assert_eq!(sessions_in(heap, SMALL), Err(Unreadable::Version(LEDGER_VERSION + 1)));
}

#[test]
fn what_was_committed_and_lies_in_the_journal_is_named_wherever_its_writer_dies() {
    let heap = HeapMemory::new(SMALL.bytes());
    let left = Cell::new(u64::MAX);
    let mortal = Mortal { memory: heap.clone(), left: &left };
    let mut in_journal_alone = 0;
    for life in 0.. {
        left.set(u64::MAX);
        let mut ledger = Ledger::open(mortal.clone(), SMALL, Epoch(1)).expect("a ledger");
        ledger.stage_connection(3, Some(&record(3)));
        ledger.stage_request(0, Some(&request(4)));
        ledger.commit();
        left.set(life);
        ledger.stage_connection(3, Some(&record(5)));
        ledger.stage_request(0, Some(&request(6)));
        ledger.commit();
        let survived = left.replace(u64::MAX) > 0;
        let named = sessions_in(heap.clone(), SMALL).expect("a ledger");
        let in_tables = Ledger::look(heap.clone(), SMALL, LEDGER_VERSION).expect("a ledger").sessions();
        let needed = Ledger::open(mortal.clone(), SMALL, Epoch(2)).expect("a ledger").sessions();
        assert!(needed.is_subset(&named), "after {life} stores: {needed:?} of {named:?}");
        in_journal_alone += u32::from(!needed.is_subset(&in_tables));
        if survived {
            assert_eq!(named, ids([5, 6]));
            break;
        }
    }
    assert!(in_journal_alone > 10, "{in_journal_alone}");
}

/// An attacker who controls a replica may have written anything into its ledger.
#[test]
fn a_ledger_in_which_anything_stands_can_be_read() {
    let mut rng = atoll_base::Rng::new(9);
    let heap = HeapMemory::new(SMALL.bytes());
    let mut named = 0;
    for _ in 0..200 {
        for at in (0..SMALL.bytes()).step_by(8) {
            heap.store64(at, rng.next_u64());
        }
        heap.store64(H_MAGIC, MAGIC);
        heap.store32(H_VERSION, LEDGER_VERSION);
        let count = [1, u32::MAX, rng.next_u32()][rng.below(3) as usize];
        heap.store64(H_COMMIT, count.into());
        heap.store32(JOURNAL, 1 + rng.below(2));
        named += sessions_in(heap.clone(), SMALL).expect("it has the right header").len();
    }
    assert!(named > 1000, "{named}");
}
