use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use oracle::Scanning;

mod oracle;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    source: u8,
    id: u16,
}

impl FragmentKey for Key {
    type Source = u8;

    const TIMEOUTS: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(60)];

    fn source(&self) -> u8 {
        self.source
    }

    /// Returns whether the packet has more time; some have.
    fn has_second_timeout(&self) -> bool {
        self.id == LONG
    }

    /// Returns hashes that are good enough, and of which some collide.
    fn hashes(&self, _: [u64; 2]) -> [u64; 2] {
        [u64::from(self.id / 2) << 54 | u64::from(self.id / 2), u64::from(self.source)]
    }
}

/// A packet that has more time than others.
const LONG: u16 = 60;
const KEY: Key = Key { source: 1, id: 7 };
const SECRET: [u64; 2] = [3, 5];
const SMALL: Limits = Limits { bytes_max: 1 << 18, packets_max: 4, fragments_max: 8 };

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn octets(range: core::ops::Range<u32>) -> Vec<u8> {
    range.map(|n| (n.wrapping_mul(31) >> 3) as u8).collect()
}

fn fragment(payload: &[u8], offset: u32, more: bool) -> Fragment<'_> {
    Fragment { offset, more, head: b"head", payload, payload_max: 65_515, ecn: 0 }
}

fn insert(all: &mut Reassembly<Key>, key: Key, range: core::ops::Range<u32>, more: bool) -> Outcome {
    let payload = octets(range.clone());
    let outcome = all.insert(at(0), key, &fragment(&payload, range.start, more));
    all.check_invariants();
    outcome
}

/// Inserts a fragment without checking everything after it.
fn insert_quietly(all: &mut Reassembly<Key>, key: Key, range: core::ops::Range<u32>) -> Outcome {
    all.insert(at(0), key, &fragment(&octets(range.clone()), range.start, true))
}

fn whole(outcome: Outcome) -> Vec<u8> {
    match outcome {
        Outcome::Complete(whole) => {
            assert_eq!(&whole.bytes[..whole.head_len], b"head");
            whole.bytes[whole.head_len..].to_vec()
        }
        other => panic!("{other:?}"),
    }
}

// The tests below are about putting packets together.

#[test]
fn fragments_in_order_make_a_packet() {
    let mut all = Reassembly::new(SMALL, SECRET);
    assert_eq!(insert(&mut all, KEY, 0..16, true), Outcome::Kept);
    assert_eq!(insert(&mut all, KEY, 16..32, true), Outcome::Kept);
    assert_eq!(whole(insert(&mut all, KEY, 32..37, false)), octets(0..37));
    assert!(all.is_empty() && all.bytes() == 0 && all.next_timeout().is_none());
}

#[test]
fn the_head_is_that_of_the_first_fragment_whenever_it_comes() {
    let mut all = Reassembly::new(SMALL, SECRET);
    let (first, last) = (octets(0..8), octets(8..10));
    assert_eq!(
        all.insert(at(0), KEY, &Fragment { head: b"other", ..fragment(&last, 8, false) }),
        Outcome::Kept
    );
    assert_eq!(whole(all.insert(at(0), KEY, &fragment(&first, 0, true))), octets(0..10));
}

#[test]
fn packets_are_kept_apart_by_their_keys() {
    let mut all = Reassembly::new(SMALL, SECRET);
    let other = Key { id: 8, ..KEY };
    assert_eq!(insert(&mut all, KEY, 0..8, true), Outcome::Kept);
    assert_eq!(insert(&mut all, other, 8..16, false), Outcome::Kept);
    assert_eq!(all.len(), 2);
}

proptest! {
    /// Fragments of any size, in any order, some of them twice, make the packet; and only when all are there.
    #[test]
    fn any_order_makes_the_packet(
        cuts in prop::collection::btree_set(1u32..40, 0..7),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        last in 1u32..9,
    ) {
        let total = 40 * 8 + last;
        let mut edges = vec![0];
        edges.extend(cuts.iter().map(|cut| cut * 8));
        edges.push(total);
        let pieces: Vec<_> = edges.windows(2).map(|pair| pair[0]..pair[1]).collect();
        let mut all = Reassembly::new(SMALL, SECRET);
        let mut missing: Vec<_> = (0..pieces.len()).collect();
        // A random part of them arrives, repeated or not, and then those that are missing.
        let random = order.iter().map(|index| index.index(pieces.len())).collect::<Vec<_>>();
        for n in random.into_iter().chain(0..pieces.len()) {
            let was_missing = missing.contains(&n);
            missing.retain(|other| *other != n);
            let piece = pieces[n].clone();
            let outcome = insert(&mut all, KEY, piece.clone(), piece.end < total);
            match (was_missing, missing.is_empty()) {
                (true, true) => {
                    prop_assert_eq!(whole(outcome), octets(0..total));
                    return Ok(());
                }
                (true, false) => prop_assert_eq!(outcome, Outcome::Kept),
                (false, _) => prop_assert_eq!(outcome, Outcome::Dropped(Refusal::Duplicate)),
            }
        }
    }

    /// Whatever arrives, the bounds hold, and a complete packet has no octet twice and none missing.
    #[test]
    fn any_fragments_are_survived(
        script in prop::collection::vec(
            (0u8..3, 0u16..6, 0u32..64, 0usize..90, any::<bool>(), 0u64..40_000),
            0..200,
        ),
    ) {
        let mut all = Reassembly::new(SMALL, SECRET);
        let mut now = at(0);
        for (source, id, offset, len, more, millis) in script {
            now += Duration::from_millis(millis / 10);
            while all.expire(now).is_some() {}
            let payload = vec![id as u8; len];
            let outcome = all.insert(now, Key { source, id }, &fragment(&payload, offset * 8, more));
            all.check_invariants();
            if let Outcome::Complete(whole) = outcome {
                prop_assert!(whole.bytes[whole.head_len..].iter().all(|octet| *octet == id as u8));
            }
        }
        while let Some(due) = all.next_timeout() {
            while all.expire(due).is_some() {}
            all.check_invariants();
            prop_assert!(all.next_timeout() != Some(due), "what is due is dealt with");
        }
        prop_assert_eq!(all.bytes(), 0);
    }
}

proptest! {
    /// Whatever arrives, the version with indexes decides like the one that scans every packet.
    #[test]
    fn indexes_decide_as_scans_do(
        packets_max in 2usize..12,
        script in prop::collection::vec(
            (0u8..4, 55u16..61, 0u32..6, 0usize..12, any::<bool>(), 0u64..90_000),
            0..300,
        ),
    ) {
        let limits = Limits { packets_max, ..SMALL };
        let (mut all, mut oracle) = (Reassembly::new(limits, SECRET), Scanning::new(limits));
        let mut now = at(0);
        for (source, id, offset, len, more, millis) in script {
            // Sometimes time passes in long steps; octets are few or nearly too many.
            now += Duration::from_millis(if millis < 80_000 { millis / 80 } else { millis });
            loop {
                let expired = all.expire(now);
                prop_assert_eq!(&expired, &oracle.expire(now));
                if expired.is_none() {
                    break;
                }
            }
            let payload = vec![id as u8; len * if id == 58 { 2728 } else { 8 }];
            let (key, fragment) = (Key { source, id }, fragment(&payload, offset * 8, more));
            prop_assert_eq!(all.insert(now, key, &fragment), oracle.insert(now, key, &fragment));
            prop_assert_eq!((all.evicted(), all.bytes()), (oracle.evicted(), oracle.bytes()));
            all.check_invariants();
        }
    }
}

/// Returns the number of packets examined for each of 2,000 fragments beyond what is kept.
fn looks(source_of: impl Fn(u16) -> u8) -> u64 {
    let mut all = Reassembly::new(Limits::USUAL, SECRET);
    let payload = octets(0..8);
    let send = |all: &mut Reassembly<Key>, ids: core::ops::Range<u16>| {
        for id in ids {
            all.insert(at(0), Key { source: source_of(id), id }, &fragment(&payload, 0, true));
        }
        all.packets.looks()
    };
    let before = send(&mut all, 0..1000);
    let looks = (send(&mut all, 1000..3000) - before) / 2000;
    assert!(all.evicted() >= 2000);
    looks
}

#[test]
fn a_hostile_fragment_costs_the_same_however_many_packets_are_kept() {
    // A scan examines each of 512 packets, or the 256 of one source.
    for source_of in [(|_| 1) as fn(u16) -> u8, |id| id as u8] {
        let cost = looks(source_of);
        assert!(cost < 64, "{cost} looks at packets");
    }
    let mut all = Reassembly::new(Limits::USUAL, SECRET);
    (0..512).for_each(|id| drop(insert_quietly(&mut all, Key { source: id as u8, id }, 0..8)));
    let before = all.packets.looks();
    assert!(
        all.packets.iter().count() == 512 && all.packets.looks() >= before + 512,
        "else this test sees no scan"
    );
}

#[test]
fn a_flood_takes_memory_once() {
    let mut all = Reassembly::new(Limits::USUAL, SECRET);
    let flood = |all: &mut Reassembly<Key>, ids: core::ops::Range<u16>| {
        ids.for_each(|id| drop(insert_quietly(all, Key { source: id as u8, id }, 0..1480)));
        (all.octets.capacity(), all.packets.places(), all.spare.len() + all.len())
    };
    let taken = flood(&mut all, 0..600);
    assert!(taken.0 < 1 << 20 && taken.1 == 513 && taken.2 == 513, "{taken:?}");
    assert_eq!(flood(&mut all, 600..10_000), taken);
    // The memory is returned to the heap once everything has expired.
    while all.expire(at(100_000)).is_some() {}
    assert_eq!((all.octets.capacity(), all.octets.used()), (0, 0));
    all.check_invariants();
}

#[test]
fn small_fragments_cost_the_blocks_that_they_take() {
    let mut all = Reassembly::new(Limits { packets_max: 4000, fragments_max: 256, ..SMALL }, SECRET);
    // Each packet has eight pieces.
    for n in 0..3000u32 {
        let key = Key { source: (n / 8) as u8, id: (n / 8) as u16 };
        insert(&mut all, key, n * 16..n * 16 + 8, true);
        assert!(all.octets.used() <= all.bytes() && all.octets.capacity() <= SMALL.bytes_max);
    }
    assert!(all.evicted() > 0);
}

// The tests below are about fragments that no packet can have.

#[test]
fn impossible_fragments_are_refused() {
    for (offset, len, more) in
        [(0, 0, true), (8, 0, false), (0, 12, true), (65_512, 8, false), (u32::MAX, 8, false)]
    {
        let payload = vec![0; len];
        let outcome = Reassembly::new(SMALL, SECRET).insert(at(0), KEY, &fragment(&payload, offset, more));
        assert_eq!(outcome, Outcome::Dropped(Refusal::Malformed), "{offset} {len} {more}");
    }
}

#[test]
fn a_packet_has_one_end() {
    // The end is known; then a fragment contradicts it.
    let known = [(8..16, false)];
    for bad in [(16..24, true), (8..17, false), (8..15, false)] {
        let mut all = Reassembly::new(SMALL, SECRET);
        for (range, more) in known.clone() {
            assert_eq!(insert(&mut all, KEY, range, more), Outcome::Kept);
        }
        assert_eq!(insert(&mut all, KEY, bad.0, bad.1), Outcome::Dropped(Refusal::Malformed));
        assert!(all.is_empty(), "the packet is discarded");
    }
    let mut all = Reassembly::new(SMALL, SECRET);
    insert(&mut all, KEY, 16..24, true);
    assert_eq!(
        insert(&mut all, KEY, 0..8, false),
        Outcome::Dropped(Refusal::Malformed),
        "an end before what is there"
    );
}

#[test]
fn overlapping_fragments_discard_the_packet() {
    // RFC 5722 §4; Linux, RFC 8200 §4.5.
    for bad in [0..16, 8..24, 16..40, 0..48, 40..48] {
        let mut all = Reassembly::new(SMALL, SECRET);
        insert(&mut all, KEY, 8..16, true);
        insert(&mut all, KEY, 32..48, true);
        let expected = if bad == (40..48) { Refusal::Duplicate } else { Refusal::Overlap };
        assert_eq!(insert(&mut all, KEY, bad.clone(), true), Outcome::Dropped(expected), "{bad:?}");
        assert_eq!(all.is_empty(), expected == Refusal::Overlap);
    }
}

#[test]
fn what_is_covered_by_neighbours_is_a_duplicate() {
    let mut all = Reassembly::new(SMALL, SECRET);
    insert(&mut all, KEY, 0..16, true);
    insert(&mut all, KEY, 16..32, true);
    assert_eq!(insert(&mut all, KEY, 8..24, true), Outcome::Dropped(Refusal::Duplicate));
    assert_eq!(whole(insert(&mut all, KEY, 32..33, false)), octets(0..33));
}

#[test]
fn marks_are_joined_or_contradict_each_other() {
    // RFC 3168 §5.3.
    for (marks, expected) in [
        ([2, 2], Some(false)),
        ([2, 3], Some(true)),
        ([3, 3], Some(true)),
        ([0, 0], Some(false)),
        ([0, 3], None),
    ] {
        let mut all = Reassembly::new(SMALL, SECRET);
        let (a, b) = (octets(0..8), octets(8..16));
        all.insert(at(0), KEY, &Fragment { ecn: marks[0], ..fragment(&a, 0, true) });
        let outcome = all.insert(at(0), KEY, &Fragment { ecn: marks[1], ..fragment(&b, 8, false) });
        let found = if let Outcome::Complete(whole) = outcome { Some(whole.congested) } else { None };
        assert_eq!(found, expected, "{marks:?}");
    }
}

// The tests below are about bounds.

#[test]
fn a_packet_has_only_so_many_fragments() {
    let mut all = Reassembly::new(SMALL, SECRET);
    for n in 0..8 {
        assert_eq!(insert(&mut all, KEY, n * 16..n * 16 + 8, true), Outcome::Kept);
    }
    assert_eq!(insert(&mut all, KEY, 8..16, true), Outcome::Dropped(Refusal::Malformed));
    assert!(all.is_empty());
}

#[test]
fn a_source_evicts_its_own_packets_first() {
    let mut all = Reassembly::new(SMALL, SECRET);
    let other = Key { source: 2, id: 1 };
    insert(&mut all, other, 0..8, true);
    for id in 0..10 {
        insert(&mut all, Key { source: 1, id }, 0..8, true);
    }
    assert_eq!((all.len(), all.evicted()), (3, 8), "half of four packets are the source's");
    assert_eq!(whole(insert(&mut all, other, 8..9, false)), octets(0..9), "nobody else has lost anything");
    assert_eq!(
        whole(insert(&mut all, Key { source: 1, id: 9 }, 8..9, false)),
        octets(0..9),
        "the newest survives"
    );
}

#[test]
fn many_sources_evict_the_oldest() {
    let mut all = Reassembly::new(SMALL, SECRET);
    for source in 0..10 {
        insert(&mut all, Key { source, id: 0 }, 0..8, true);
    }
    assert_eq!((all.len(), all.evicted()), (4, 6));
    assert_eq!(whole(insert(&mut all, Key { source: 6, id: 0 }, 8..9, false)), octets(0..9));
    assert_eq!(insert(&mut all, Key { source: 5, id: 0 }, 8..9, false), Outcome::Kept, "it was gone");
}

#[test]
fn octets_are_bounded_as_well() {
    let mut all = Reassembly::new(Limits { packets_max: 1000, ..SMALL }, SECRET);
    for id in 0..40 {
        insert(&mut all, Key { source: id as u8, id }, 0..32_768, true);
    }
    assert!(all.bytes() <= SMALL.bytes_max && all.len() == 7, "{} in {}", all.bytes(), all.len());
}

// The tests below are about time.

#[test]
fn a_packet_is_given_up_after_its_time() {
    let mut all = Reassembly::new(SMALL, SECRET);
    let (first, later) = (octets(0..8), octets(16..24));
    all.insert(at(0), KEY, &fragment(&later, 16, true));
    all.insert(at(20_000), Key { id: 8, ..KEY }, &fragment(&first, 0, true));
    assert_eq!(all.next_timeout(), Some(at(30_000)));
    assert_eq!(all.expire(at(29_999)), None);
    assert_eq!(all.expire(at(30_000)), Some((KEY, Expired { first: None })));
    assert_eq!(all.expire(at(30_000)), None);
    assert_eq!(all.next_timeout(), Some(at(50_000)));
    let (_, expired) = all.expire(at(50_000)).unwrap();
    assert_eq!(expired.first, Some([b"head", &octets(0..8)[..]].concat()), "whoever sent it can be told");
    all.check_invariants();
}

#[test]
fn who_has_more_time_is_given_up_later() {
    let mut all = Reassembly::new(SMALL, SECRET);
    let octets = octets(0..8);
    let long = Key { id: LONG, ..KEY };
    all.insert(at(0), long, &fragment(&octets, 0, true));
    all.insert(at(10_000), KEY, &fragment(&octets, 0, true));
    assert_eq!(all.next_timeout(), Some(at(40_000)));
    assert_eq!(all.expire(at(40_000)).map(|(key, _)| key), Some(KEY));
    assert_eq!(all.expire(at(59_999)), None);
    assert_eq!(all.next_timeout(), Some(at(60_000)));
    assert_eq!(all.expire(at(60_000)).map(|(key, _)| key), Some(long));
    assert_eq!(all.next_timeout(), None);
}
