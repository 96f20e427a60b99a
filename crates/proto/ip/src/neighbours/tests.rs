use std::collections::BTreeMap;
use std::vec::Vec;

use atoll_base::Rng;

use super::*;

const KEY: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];
const A: u32 = 0x0a00_0002;
const MAC_A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const MAC_B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);

fn cache(max: usize) -> Neighbours {
    Neighbours::new(max, None, KEY)
}

fn at(seconds: u64) -> Instant {
    Instant::from_millis(seconds * 1000)
}

/// Runs every expiry up to `until`, at the moments that the cache itself asks for.
fn run(cache: &mut Neighbours, until: Instant) -> Vec<Due> {
    let mut all = Vec::new();
    while let Some(due) = cache.next_due().filter(|due| *due <= until) {
        cache.expire(due, |what| all.push(what));
        cache.check_invariants();
    }
    all
}

#[test]
fn nobody_answers_and_the_neighbour_fails_after_three_questions() {
    let mut cache = cache(4);
    cache.resolve(at(0), A);
    let generation = cache.generation();
    let ask = Due::Ask { addr: A, of: Mac::BROADCAST };
    assert_eq!(run(&mut cache, at(10)), [ask, ask, Due::Failed { addr: A }]);
    assert!(cache.generation() > generation);
    assert_eq!(cache.lookup(A), Lookup::Absent, "the failure is forgotten after a while");
}

#[test]
fn a_failed_neighbour_is_unreachable_for_a_while() {
    let mut cache = cache(4);
    cache.resolve(at(0), A);
    let failed_at = loop {
        let due = cache.next_due().unwrap();
        let mut failed = false;
        cache.expire(due, |what| failed = matches!(what, Due::Failed { .. }));
        if failed {
            break due;
        }
    };
    assert!(failed_at >= at(3) && failed_at < at(4));
    assert_eq!(cache.lookup(A), Lookup::Failed);
}

#[test]
fn an_answer_resolves_and_moves_the_generation() {
    let mut cache = cache(4);
    cache.resolve(at(0), A);
    let generation = cache.generation();
    assert_eq!(cache.answer(at(0), A, MAC_A), Claim::Learned);
    assert_eq!(cache.lookup(A), Lookup::Known(MAC_A));
    assert!(cache.generation() > generation);
}

#[test]
fn an_answer_that_nobody_asked_for_is_ignored() {
    let mut cache = cache(4);
    assert_eq!(cache.answer(at(0), A, MAC_A), Claim::Ignored);
    assert_eq!(cache.lookup(A), Lookup::Absent);
}

#[test]
fn a_contradicting_answer_makes_us_ask_and_changes_nothing_yet() {
    let mut cache = cache(4);
    cache.learn(at(0), A, MAC_A);
    assert_eq!(cache.answer(at(5), A, MAC_B), Claim::Ask);
    assert_eq!(cache.lookup(A), Lookup::Known(MAC_A));
    assert_eq!(cache.answer(at(5), A, MAC_B), Claim::Learned, "now it answers our question");
    assert_eq!(cache.lookup(A), Lookup::Known(MAC_B));
}

#[test]
fn contradictions_make_us_ask_once_a_second_at_most() {
    let mut cache = cache(4);
    cache.learn(at(0), A, MAC_A);
    assert_eq!(cache.doubt(Instant::from_millis(999), A, MAC_B), Claim::Ignored);
    assert_eq!(cache.doubt(at(1), A, MAC_B), Claim::Ask);
    assert_eq!(cache.doubt(at(1), A, MAC_B), Claim::Ignored, "already asked");
    assert_eq!(cache.answer(at(1), A, MAC_A), Claim::Confirmed);
    assert_eq!(cache.doubt(at(1), A, MAC_B), Claim::Ignored);
}

#[test]
fn a_neighbour_in_use_is_asked_again_and_stays_usable_meanwhile() {
    let mut cache = cache(4);
    cache.learn(at(0), A, MAC_A);
    cache.lookup(A);
    assert_eq!(run(&mut cache, at(61)), [Due::Ask { addr: A, of: MAC_A }]);
    assert_eq!(cache.lookup(A), Lookup::Known(MAC_A));
    let generation = cache.generation();
    assert_eq!(cache.answer(at(61), A, MAC_A), Claim::Confirmed);
    assert_eq!(cache.generation(), generation, "no route has changed");
}

#[test]
fn a_neighbour_in_use_that_falls_silent_fails_after_everybody_was_asked() {
    let mut cache = cache(4);
    cache.learn(at(0), A, MAC_A);
    cache.lookup(A);
    let one = Due::Ask { addr: A, of: MAC_A };
    let all = Due::Ask { addr: A, of: Mac::BROADCAST };
    assert_eq!(run(&mut cache, at(64)), [one, one, all, Due::Failed { addr: A }]);
}

#[test]
fn a_neighbour_not_in_use_is_forgotten_in_silence() {
    let mut cache = cache(4);
    cache.learn(at(0), A, MAC_A);
    assert_eq!(run(&mut cache, at(100)), []);
    assert_eq!((cache.lookup(A), cache.next_due()), (Lookup::Absent, None));
}

#[test]
fn the_gateway_and_neighbours_in_use_survive_a_flood_of_strangers() {
    let mut cache = Neighbours::new(8, Some(1), KEY);
    cache.learn(at(0), 1, MAC_A);
    cache.learn(at(0), 2, MAC_B);
    for stranger in 1000..100_000 {
        cache.learn(at(0), stranger, MAC_B);
        cache.check_invariants();
        assert_eq!(cache.lookup(2), Lookup::Known(MAC_B));
    }
    assert_eq!(cache.lookup(1), Lookup::Known(MAC_A));
}

#[test]
fn a_cache_of_one_serves_one_after_another() {
    let mut cache = Neighbours::new(1, Some(1), KEY);
    cache.learn(at(0), 1, MAC_A);
    assert_eq!(cache.learn(at(0), 2, MAC_B), (Claim::Learned, true));
    assert_eq!((cache.lookup(1), cache.lookup(2)), (Lookup::Absent, Lookup::Known(MAC_B)));
}

#[test]
fn an_instant_at_the_end_of_time_does_not_overflow() {
    let mut cache = cache(2);
    cache.learn(Instant::FAR_FUTURE, A, MAC_A);
    cache.resolve(Instant::FAR_FUTURE, A + 1);
    cache.expire(Instant::FAR_FUTURE, |_| {});
    cache.check_invariants();
}

/// The index, the positions and the eviction against a sorted map of what was told last.
#[test]
fn the_cache_agrees_with_a_sorted_map() {
    let mut rng = Rng::new(7);
    let mut cache = cache(32);
    let mut told: BTreeMap<u32, Mac> = BTreeMap::new();
    let mut now = Instant::ZERO;
    for _ in 0..50_000 {
        let addr = rng.below(64);
        let mac = Mac([2, 0, 0, 0, 0, rng.below(4) as u8]);
        match rng.below(8) {
            0..=2 => {
                cache.learn(now, addr, mac);
                told.insert(addr, mac);
            }
            3 => {
                if cache.lookup(addr) == Lookup::Absent {
                    cache.resolve(now, addr);
                }
            }
            4 => {
                if cache.answer(now, addr, mac) == Claim::Learned {
                    told.insert(addr, mac);
                }
            }
            5 => {
                now += Duration::from_millis(u64::from(rng.below(20_000)));
                cache.expire(now, |_| {});
            }
            _ => {
                if let Lookup::Known(mac) = cache.lookup(addr) {
                    assert_eq!(told.get(&addr), Some(&mac));
                }
            }
        }
        cache.check_invariants();
        let found = (0..64).filter(|addr| cache.find(*addr).is_some()).count();
        assert_eq!(found, cache.entries.len(), "every entry is found, once");
    }
}
