//! Tests that a batch is written wholly or not at all, wherever its writer dies.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::cell::Cell;

use atoll_base::{Addr, Endpoint, FourTuple, SessionId, SlotId};

use super::*;
use crate::buffer::{Extent, Extents};
use crate::command::Protocol;
use crate::memory::mortal::Mortal;
use crate::{Command, HeapMemory};

mod documented;
mod named;
mod reordered;

fn record(n: u32) -> ConnectionRecord {
    let v6 = Addr::from_octets([n as u8; 16]);
    let ring = |base: u64| Some(Extent { base, unit: n, log2: 12 });
    ConnectionRecord {
        progress: Progress { acked: i64::from(n), received: 7 + i64::from(n), edge: 70_000 },
        tuple: FourTuple { local: Endpoint::new(0xc612_0001, 80), remote: Endpoint::at(v6, n as u16) },
        state: 1,
        phase: Phase::Open,
        place: Some((SessionId(n), SlotId(n + 1), n + 2)),
        send_start: n,
        receive_start: u32::MAX,
        send_tail: 1 << 40,
        send_fin: true,
        receive_fin: Some(99),
        receive: Extents { current: ring(4096), old: ring(0) },
        ts_offset: 1,
        ts_recent: 2,
        window_max: 3,
        receive_capacity: 4,
        send_limit: 5,
        unsent_low: 6,
        mss_path: 7,
        mss_peer: 8,
        mss_receive: 9,
        flags: u32::MAX,
        snd_scale: 14,
        rcv_scale: 1,
        congestion: 2,
        ecn: 3,
        ttl: 4,
        hops_min: 255,
        tos: 5,
        syn_retries: 6,
        cause: 7,
        keep_probes: 8,
        keep_idle: 9,
        keep_interval: 10,
        mss_max: 11,
        user_timeout_ms: 12,
        linger2_ms: 13,
        pacing_rate: u64::MAX,
        srtt_us: 14,
        text: 15,
        text_len: 16,
        crashes: 17,
        beyond: [(8 + i64::from(n), 9 + i64::from(n)), (1 << 30, (1 << 30) + 1460), (0, 0), (0, 0)],
    }
}

/// Returns the record as it is read if it was written in version 1.
fn record1(n: u32) -> ConnectionRecord {
    ConnectionRecord { beyond: [(0, 0); BEYOND_MAX], ..record(n) }
}

fn request(n: u32) -> RequestRecord {
    let local = Endpoint::new(n, 80);
    let (token, lease, protocol) = (0, n.into(), Protocol::Tcp);
    let (reuse_addr, reuse_port, v6_only) = (true, false, false);
    let command = Command::Bind {
        token,
        lease,
        protocol,
        local,
        reuse_addr,
        reuse_port,
        v6_only,
        device: crate::Device::None,
    };
    RequestRecord { order: 5, session: SessionId(n), command }
}

const SMALL: LedgerConfig = LedgerConfig { connections: 16, requests: 16, text_units: 64 };

/// All records and requests, with their places.
type Contents = (Vec<(u32, ConnectionRecord)>, Vec<(u32, RequestRecord)>);

fn contents<M: Memory>(ledger: &Ledger<M>) -> Contents {
    let connections =
        ledger.connections().map(|(place, record)| (place, record.expect("it is whole"))).collect();
    (connections, ledger.requests().map(|(place, record)| (place, record.expect("it is whole"))).collect())
}

#[test]
fn whatever_is_recorded_is_read_and_a_batch_is_whole_wherever_its_writer_dies() {
    let heap = HeapMemory::new(SMALL.bytes());
    let left = Cell::new(u64::MAX);
    let mortal = Mortal { memory: heap.clone(), left: &left };
    let before = {
        let mut ledger = Ledger::open(mortal.clone(), SMALL, Epoch(1)).expect("an empty ledger");
        ledger.set_secrets(&[7; SECRET_BYTES]);
        ledger.stage_connection(3, Some(&record(3)));
        ledger.stage_connection(5, Some(&record(5)));
        ledger.stage_request(0, Some(&request(1)));
        ledger.commit();
        contents(&ledger)
    };
    assert_eq!(before, (alloc::vec![(3, record(3)), (5, record(5))], alloc::vec![(0, request(1))]));
    let batch = |ledger: &mut Ledger<Mortal>| {
        ledger.begin();
        ledger.stage_connection(3, None);
        ledger.stage_connection(5, Some(&record(6)));
        ledger.stage_connection(0, Some(&record(9)));
        ledger.stage_request(0, None);
        ledger.stage_request(2, Some(&request(2)));
        ledger.commit();
    };
    let after = (alloc::vec![(0, record(9)), (5, record(6))], alloc::vec![(2, request(2))]);
    let mut outcomes = [0, 0];
    for life in 0.. {
        left.set(u64::MAX);
        {
            // The ledger is as it was before.
            let mut ledger = Ledger::open(mortal.clone(), SMALL, Epoch(1)).expect("a ledger");
            ledger.stage_connection(0, None);
            ledger.stage_connection(3, Some(&record(3)));
            ledger.stage_connection(5, Some(&record(5)));
            ledger.stage_request(0, Some(&request(1)));
            ledger.stage_request(2, None);
            ledger.commit();
            left.set(life);
            batch(&mut ledger);
        }
        let survived = left.replace(u64::MAX) > 0;
        let next = Ledger::open(mortal.clone(), SMALL, Epoch(2)).expect("a ledger");
        let found = contents(&next);
        assert!(found == before || found == after, "after {life} stores: {found:?}");
        outcomes[usize::from(found == after)] += 1;
        if survived {
            break;
        }
    }
    assert!(outcomes[0] > 10 && outcomes[1] > 10, "{outcomes:?}");

    // Progress is stored where it is, and a stray store elsewhere is noticed.
    let ledger = Ledger::open(heap.clone(), SMALL, Epoch(3)).expect("a ledger");
    assert_eq!(ledger.secrets(), [7; SECRET_BYTES]);
    let progress = Progress { acked: 1 << 50, received: 1 << 51, edge: 1 << 52 };
    ledger.store_progress(5, &progress);
    let found = ledger.connection(5).expect("it is there").expect("and whole");
    assert_eq!(found, ConnectionRecord { progress, ..record1(6) }, "what was out of order is in order now");
    for at in 32..CONNECTION_BYTES {
        let place = SMALL.layout().connections + 5 * CONNECTION_BYTES + at;
        let mut octet = [0];
        heap.read(place, &mut octet);
        heap.write(place, &[octet[0] ^ 0x10]);
        assert_eq!(ledger.connection(5), Some(Err(Unreadable::Check)), "octet {at}");
        heap.write(place, &octet);
    }
    // A record in another's place is invalid.
    let mut bytes = [0; CONNECTION_BYTES];
    heap.read(SMALL.layout().connections + 5 * CONNECTION_BYTES, &mut bytes);
    heap.write(SMALL.layout().connections + 4 * CONNECTION_BYTES, &bytes);
    assert_eq!(ledger.connection(4), Some(Err(Unreadable::Check)));

    let mut ledger = Ledger::open(heap.clone(), SMALL, Epoch(4)).expect("a ledger");
    ledger.begin();
    assert_eq!(ledger.touched(), Some(Vec::new()));
    ledger.touch(9);
    ledger.mark(Work::Segment(9));
    let next = Ledger::open(heap.clone(), SMALL, Epoch(5)).expect("a ledger");
    assert_eq!((next.touched(), next.past_work()), (Some(alloc::vec![9]), Work::Segment(9)));
    let next = Ledger::open(heap.clone(), SMALL, Epoch(6)).expect("a ledger");
    assert_eq!(
        next.past_work(),
        Work::Nothing,
        "who is killed before it does anything was at work on nothing"
    );
    (0..TOUCHED_MAX as u32).for_each(|place| ledger.touch(place));
    assert_eq!(ledger.touched(), None);

    heap.store32(H_VERSION, 77);
    assert_eq!(Ledger::open(heap.clone(), SMALL, Epoch(5)).err(), Some(Unreadable::Version(77)));
    heap.store64(H_MAGIC, 77);
    assert_eq!(Ledger::open(heap, SMALL, Epoch(5)).err(), Some(Unreadable::NoLedger));
}

fn time_wait(n: u32) -> TimeWaitRecord {
    TimeWaitRecord {
        tuple: record(n).tuple,
        deadline_ms: n.wrapping_mul(0x9e37_79b9),
        snd_nxt: n + 1,
        rcv_nxt: n + 2,
        window: n as u16,
        window_shift: n as u8 % 16,
        timestamps: n.is_multiple_of(2).then_some((n + 3, n + 4)),
    }
}

#[test]
fn time_waits_are_read_youngest_first_and_whole_wherever_their_writer_dies() {
    let heap = HeapMemory::new(SMALL.bytes());
    let left = Cell::new(u64::MAX);
    let mortal = Mortal { memory: heap.clone(), left: &left };
    let open = || Ledger::open(mortal.clone(), SMALL, Epoch(1)).expect("a ledger");
    let found = || open().time_waits().collect::<Vec<_>>();
    assert_eq!(found(), []);
    let expected = |last: u32| (0..15u32.min(last + 1)).map(|age| time_wait(last - age)).collect::<Vec<_>>();
    for last in 0..40 {
        // A torn entry stands where the next one goes.
        for life in 0..9 {
            let mut ledger = open();
            left.set(life);
            ledger.put_time_wait(&time_wait(last));
            left.set(u64::MAX);
            let before = last.checked_sub(1).map(expected).unwrap_or_default();
            assert_eq!(found(), before, "{last}, {life}");
        }
        open().put_time_wait(&time_wait(last));
        assert_eq!(found(), expected(last));
    }
    let at = SMALL.layout().time_waits + 7 * TIME_WAIT_BYTES;
    for octet in 0..TIME_WAIT_BYTES {
        let mut was = [0];
        heap.read(at + octet, &mut was);
        heap.write(at + octet, &[was[0] ^ 0x10]);
        assert_eq!(found().len(), 0, "octet {octet}");
        heap.write(at + octet, &was);
    }
    assert_eq!(found().len(), 15);
}

#[test]
fn either_version_is_read_and_a_change_of_version_is_safe_wherever_its_writer_dies() {
    let heap = HeapMemory::new(SMALL.bytes());
    let left = Cell::new(u64::MAX);
    let mortal = Mortal { memory: heap.clone(), left: &left };
    assert_eq!(written_version(&heap), None);
    let fill = |ledger: &mut Ledger<Mortal>| {
        (0..8).for_each(|place| ledger.stage_connection(place, Some(&record(place))));
        ledger.stage_request(0, Some(&request(1)));
        ledger.commit();
    };
    let of = |record: fn(u32) -> ConnectionRecord| (0..8).map(|n| (n, record(n))).collect::<Vec<_>>();

    // An older build has created it: a newer one reads it, and keeps its version.
    let mut old = Ledger::open_as(mortal.clone(), SMALL, Epoch(1), 1).expect("an empty ledger");
    fill(&mut old);
    assert_eq!((contents(&old).0, written_version(&heap)), (of(record1), Some(1)));
    let mut new = Ledger::open(mortal.clone(), SMALL, Epoch(2)).expect("an older ledger");
    fill(&mut new);
    assert_eq!((contents(&new).0, new.version()), (of(record1), 1));
    let back = Ledger::open_as(mortal.clone(), SMALL, Epoch(3), 1).expect("a ledger of its own version");
    assert_eq!(contents(&back).0, of(record1), "so the build of before can take over again");

    // The upgrade is complete: from now on the new version is written.
    assert_eq!(new.convert(9), LEDGER_VERSION);
    new.stage_connection(3, Some(&record(3)));
    new.commit();
    assert_eq!(contents(&new).0[2..4], [(2, record1(2)), (3, record(3))]);
    assert_eq!(Ledger::open_as(mortal.clone(), SMALL, Epoch(4), 1).err(), Some(Unreadable::Version(2)));

    // The ledger is converted back, with a death behind every store.
    let mut outcomes = [0, 0];
    for life in 0.. {
        left.set(u64::MAX);
        let mut new = Ledger::open(mortal.clone(), SMALL, Epoch(5)).expect("a ledger");
        new.convert(2);
        fill(&mut new);
        assert_eq!(contents(&new).0, of(record));
        left.set(life);
        new.convert(1);
        let survived = left.replace(u64::MAX) > 0;
        let next = Ledger::open(mortal.clone(), SMALL, Epoch(6)).expect("a build that knows both reads it");
        for ((place, found), n) in contents(&next).0.into_iter().zip(0..) {
            assert!(
                place == n && (found == record(n) || found == record1(n)),
                "after {life} stores: {found:?}"
            );
        }
        let old = Ledger::open_as(mortal.clone(), SMALL, Epoch(7), 1);
        outcomes[usize::from(old.is_ok())] += 1;
        if let Ok(old) = old {
            assert_eq!(contents(&old), (of(record1), alloc::vec![(0, request(1))]), "after {life} stores");
        }
        if survived {
            break;
        }
    }
    assert!(outcomes[0] > 10 && outcomes[1] >= 1, "{outcomes:?}");
}

#[test]
fn text_is_kept_in_chains_and_its_units_come_back() {
    let heap = HeapMemory::new(64 * TEXT_UNIT_BYTES);
    let area = &TextArea { memory: &heap, start: 0, units: 64 };
    let mut pool = TextPool::default();
    let text: Vec<u8> = (0..4096u32).map(|n| (n % 251) as u8).collect();
    let (first, second) = (pool.write(area, &text), pool.write(area, &text[..1]));
    assert_eq!(area.read(first, 4096), Some(text.clone()));
    assert_eq!((area.read(second, 1), area.read(second, 600)), (Some(text[..1].to_vec()), None));
    assert_eq!((pool.write(area, &[]), area.read(0, 1)), (0, None));
    pool.free(area, first);
    let mut pool = TextPool::resume(area, [second].into_iter());
    let third = pool.write(area, &text);
    assert_ne!(third, second);
    assert_eq!(area.read(second, 1), Some(text[..1].to_vec()));
    while pool.write(area, &text) != 0 {}
    pool.free(area, third);
    assert_ne!(pool.write(area, &text), 0);
    // A cyclic chain ends.
    heap.store32((second as usize - 1) * TEXT_UNIT_BYTES, second);
    assert!(area.read(second, 4096).is_some());
}

#[test]
fn any_octets_decode_without_panic() {
    let mut rng = atoll_base::Rng::new(9);
    for _ in 0..20_000 {
        let mut bytes = record(1).encode(0, 1 + rng.below(2));
        for _ in 0..rng.below(4) {
            bytes[rng.below(CONNECTION_BYTES as u32) as usize] = rng.next_u32() as u8;
        }
        let _ = ConnectionRecord::decode(0, &bytes, LEDGER_VERSION);
        let mut bytes = request(1).encode(0);
        bytes[rng.below(REQUEST_BYTES as u32) as usize] = rng.next_u32() as u8;
        let _ = RequestRecord::decode(0, &bytes);
    }
}

/// Returns the octets of a record as any writer may have written it in `version`, by the table in
/// docs/ledger.md.
fn any_record(rng: &mut atoll_base::Rng, place: u32, version: u8) -> [u8; CONNECTION_BYTES] {
    let mut bytes = [0; CONNECTION_BYTES];
    bytes[..208].fill_with(|| rng.next_u32() as u8);
    bytes[4] = version;
    bytes[6] = bytes[6] & 0xc0 | (1 + rng.below(5) as u8);
    // Positions are not negative, scales are small.
    [15, 23, 31, 95, 103].iter().for_each(|at| bytes[*at] &= 0x3f);
    (bytes[164], bytes[165], bytes[173]) = (rng.below(15) as u8, rng.below(15) as u8, 0);
    if bytes[6] & 0x40 == 0 {
        bytes[68..80].fill(0);
    }
    for (size, base, unit) in [(128, 104, 120), (129, 112, 124)] {
        if bytes[size] == 0 {
            bytes[base..base + 8].fill(0);
            bytes[unit..unit + 4].fill(0);
        }
    }
    if version >= 2 {
        bytes.copy_within(16..24, 208);
        let mut end = 0;
        for at in (216..248).step_by(8).take(rng.below(5) as usize) {
            let (from, len) = (end + rng.below(1 << 16), 1 + rng.below(1 << 16));
            bytes[at..at + 4].copy_from_slice(&from.to_le_bytes());
            bytes[at + 4..at + 8].copy_from_slice(&len.to_le_bytes());
            end = from + len;
        }
    }
    let word = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
    let head = (word(0) >> 32) as u32;
    let mut hash = (1u64 << 32 | u64::from(place ^ head.rotate_left(16))) ^ 0x9e37_79b9_7f4a_7c15;
    for at in (32..CONNECTION_BYTES).step_by(8) {
        hash = (hash ^ word(at)).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29);
    }
    bytes[..4].copy_from_slice(&((hash ^ hash >> 32) as u32 | 1).to_le_bytes());
    bytes
}

#[test]
fn what_is_read_is_written_again_octet_by_octet() {
    let mut rng = atoll_base::Rng::new(4);
    for _ in 0..5000 {
        let (place, version) = (rng.next_u32(), 1 + rng.below(2));
        let bytes = any_record(&mut rng, place, version as u8);
        let record =
            ConnectionRecord::decode(place, &bytes, LEDGER_VERSION).expect("a record").expect("a good one");
        assert_eq!(record.encode(place, version), bytes, "{record:?}");
    }
}

#[test]
fn deaths_are_counted_for_so_many_sessions_and_the_least_suspicious_is_forgotten() {
    let heap = HeapMemory::new(SMALL.bytes());
    let ledger = Ledger::open(heap.clone(), SMALL, Epoch(1)).expect("a ledger");
    let id = |n: usize| atoll_base::SessionId(n as u32);
    (0..SUSPECTS_MAX).for_each(|n| ledger.set_deaths(id(n), 2));
    ledger.set_deaths(id(7), 1);
    ledger.set_deaths(id(1000), 3);
    ledger.set_deaths(id(0), 5);
    let next = Ledger::open(heap, SMALL, Epoch(2)).expect("a ledger");
    let all: alloc::collections::BTreeMap<_, _> = next.suspects().collect();
    assert_eq!(
        (all.len(), all.get(&id(7)), all.get(&id(1000)), all.get(&id(0))),
        (SUSPECTS_MAX, None, Some(&3), Some(&5))
    );
    next.set_deaths(id(1000), 0);
    next.set_deaths(id(2000), 0);
    assert_eq!(next.suspects().count(), SUSPECTS_MAX - 1);
}
