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

/// Returns a cache in which A has answered.
fn reachable(now: Instant) -> Neighbours {
    let mut cache = cache(4);
    cache.resolve(now, A);
    assert_eq!(cache.answer(now, A, MAC_A), Claim::Learned);
    cache
}

fn at(seconds: u64) -> Instant {
    Instant::from_millis(seconds * 1000)
}

/// Runs every expiry up to `until`, at the times that the cache itself asks for.
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
    assert_eq!(cache.lookup(at(0), A), Lookup::Absent, "the failure is forgotten after a while");
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
    assert_eq!(cache.lookup(at(0), A), Lookup::Failed);
}

#[test]
fn an_answer_resolves_and_moves_the_generation() {
    let mut cache = cache(4);
    cache.resolve(at(0), A);
    let generation = cache.generation();
    assert_eq!(cache.answer(at(0), A, MAC_A), Claim::Learned);
    assert_eq!(cache.lookup(at(0), A), Lookup::Known(MAC_A));
    assert!(cache.generation() > generation);
}

#[test]
fn an_answer_that_nobody_asked_for_is_ignored() {
    let mut cache = cache(4);
    assert_eq!(cache.answer(at(0), A, MAC_A), Claim::Ignored);
    assert_eq!(cache.lookup(at(0), A), Lookup::Absent);
}

#[test]
fn a_contradicting_answer_makes_us_ask_and_changes_nothing_yet() {
    let mut cache = reachable(at(0));
    assert_eq!(cache.answer(at(5), A, MAC_B), Claim::Ask { of: MAC_A });
    assert_eq!(cache.lookup(at(5), A), Lookup::Known(MAC_A));
    assert_eq!(cache.answer(at(5), A, MAC_B), Claim::Ignored, "it is not the one that was asked");
    assert_eq!(cache.lookup(at(5), A), Lookup::Known(MAC_A));
}

#[test]
fn contradictions_make_us_ask_once_a_second_at_most() {
    let mut cache = reachable(at(0));
    assert_eq!(cache.doubt(at(1), A, MAC_B), Claim::Ask { of: MAC_A });
    assert_eq!(cache.doubt(at(1), A, MAC_B), Claim::Ignored, "already asked");
    assert_eq!(cache.answer(at(1), A, MAC_A), Claim::Confirmed);
    assert_eq!(cache.doubt(Instant::from_millis(1999), A, MAC_B), Claim::Ignored);
    assert_eq!(cache.doubt(at(2), A, MAC_B), Claim::Ask { of: MAC_A });
}

#[test]
fn a_neighbour_in_use_is_asked_again_and_stays_usable_meanwhile() {
    let mut cache = reachable(at(0));
    cache.lookup(at(0), A);
    assert_eq!(run(&mut cache, at(61)), [Due::Ask { addr: A, of: MAC_A }]);
    assert_eq!(cache.lookup(at(0), A), Lookup::Known(MAC_A));
    let generation = cache.generation();
    assert_eq!(cache.answer(at(61), A, MAC_A), Claim::Confirmed);
    assert_eq!(cache.generation(), generation, "no route has changed");
}

#[test]
fn a_neighbour_in_use_that_falls_silent_fails_after_everybody_was_asked() {
    let mut cache = reachable(at(0));
    cache.lookup(at(0), A);
    let one = Due::Ask { addr: A, of: MAC_A };
    let all = Due::Ask { addr: A, of: Mac::BROADCAST };
    assert_eq!(run(&mut cache, at(64)), [one, one, all, Due::Failed { addr: A }]);
}

#[test]
fn a_neighbour_not_in_use_is_forgotten_in_silence() {
    let mut cache = cache(4);
    cache.learn(at(0), A, MAC_A);
    assert_eq!(run(&mut cache, at(100)), []);
    assert_eq!((cache.lookup(at(0), A), cache.next_due()), (Lookup::Absent, None));
}

#[test]
fn the_gateway_and_neighbours_in_use_survive_a_flood_of_strangers() {
    let mut cache = Neighbours::new(8, Some(1), KEY);
    cache.learn(at(0), 1, MAC_A);
    cache.learn(at(0), 2, MAC_B);
    for stranger in 1000..100_000 {
        cache.learn(at(0), stranger, MAC_B);
        cache.check_invariants();
        assert_eq!(cache.lookup(at(0), 2), Lookup::Known(MAC_B));
    }
    assert_eq!(cache.lookup(at(0), 1), Lookup::Known(MAC_A));
}

#[test]
fn a_cache_of_one_serves_one_after_another() {
    let mut cache = Neighbours::new(1, Some(1), KEY);
    cache.learn(at(0), 1, MAC_A);
    assert_eq!(cache.learn(at(0), 2, MAC_B), (Claim::Learned, true));
    assert_eq!((cache.lookup(at(0), 1), cache.lookup(at(0), 2)), (Lookup::Absent, Lookup::Known(MAC_B)));
}

#[test]
fn an_instant_at_the_end_of_time_does_not_overflow() {
    let mut cache = cache(2);
    cache.learn(Instant::FAR_FUTURE, A, MAC_A);
    cache.resolve(Instant::FAR_FUTURE, A + 1);
    cache.expire(Instant::FAR_FUTURE, |_| {});
    cache.check_invariants();
}

/// Compares the index, the positions and the eviction with a sorted map of what was learned last.
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
                if cache.learn(now, addr, mac).0 == Claim::Learned {
                    told.insert(addr, mac);
                }
            }
            3 => {
                if cache.lookup(now, addr) == Lookup::Absent {
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
                // A rival may have taken the place of a station that is silent.
                for entry in cache.entries.iter().filter(|entry| entry.is_known()) {
                    told.insert(entry.addr, entry.mac);
                }
            }
            _ => {
                if let Lookup::Known(mac) = cache.lookup(now, addr) {
                    assert_eq!(told.get(&addr), Some(&mac));
                }
            }
        }
        cache.check_invariants();
        let found = (0..64).filter(|addr| cache.find(*addr).is_some()).count();
        assert_eq!(found, cache.entries.len(), "every entry is found, once");
    }
}

// The tests below are about lies, and what distinguishes them from true claims.

/// All signs that A is at another station, except for the answer of the station that was asked.
const CLAIMS: [&str; 3] = ["question", "answer", "announcement"];

fn claim(cache: &mut Neighbours, what: &str, now: Instant, mac: Mac) -> Claim {
    match what {
        "question" => cache.learn(now, A, mac).0,
        "answer" => cache.answer(now, A, mac),
        _ => cache.doubt(now, A, mac),
    }
}

#[test]
fn a_lie_about_a_neighbour_that_answers_changes_nothing() {
    for what in CLAIMS {
        let mut cache = reachable(at(0));
        let generation = cache.generation();
        for second in 2..40 {
            assert_eq!(claim(&mut cache, what, at(second), MAC_B), Claim::Ask { of: MAC_A }, "{what}");
            // The liar continues while the known station is asked, and answers in its place.
            for other in CLAIMS {
                assert_eq!(claim(&mut cache, other, at(second), MAC_B), Claim::Ignored, "{what}");
            }
            assert_eq!(cache.lookup(at(second), A), Lookup::Known(MAC_A), "{what}");
            assert_eq!(cache.answer(at(second), A, MAC_A), Claim::Confirmed);
            assert_eq!(run(&mut cache, at(second + 1)), []);
        }
        assert_eq!(cache.generation(), generation, "{what}: no route has changed");
    }
}

#[test]
fn a_neighbour_that_has_moved_is_believed_after_the_station_it_had_was_asked_twice() {
    for what in CLAIMS {
        let mut cache = reachable(at(0));
        let generation = cache.generation();
        assert_eq!(claim(&mut cache, what, at(5), MAC_B), Claim::Ask { of: MAC_A });
        assert_eq!(run(&mut cache, Instant::from_millis(5500)), [Due::Ask { addr: A, of: MAC_A }], "{what}");
        assert_eq!(cache.lookup(at(5), A), Lookup::Known(MAC_A));
        assert_eq!(run(&mut cache, Instant::from_millis(5800)), [Due::Ask { addr: A, of: MAC_B }], "{what}");
        assert_eq!(cache.lookup(at(6), A), Lookup::Known(MAC_B), "{what}");
        assert!(cache.generation() > generation);
        assert_eq!(cache.answer(at(6), A, MAC_B), Claim::Confirmed);
        assert_eq!(run(&mut cache, at(60)), []);
    }
}

#[test]
fn a_lie_that_was_believed_is_found_out_in_three_seconds() {
    // No other station was known, or the known station was silent for a moment.
    let mut cache = cache(4);
    assert_eq!(cache.learn(at(0), A, MAC_B).0, Claim::Learned);
    assert_eq!(cache.lookup(at(10), A), Lookup::Known(MAC_B));
    let one = Due::Ask { addr: A, of: MAC_B };
    let all = Due::Ask { addr: A, of: Mac::BROADCAST };
    assert_eq!(run(&mut cache, Instant::from_millis(13_400)), [one, one, all]);
    assert_eq!(cache.answer(Instant::from_millis(13_400), A, MAC_A), Claim::Learned);
    assert_eq!(cache.lookup(at(14), A), Lookup::Known(MAC_A));
}

#[test]
fn whoever_has_only_spoken_for_itself_is_asked_when_it_is_used() {
    let mut cache = cache(4);
    cache.learn(at(0), A, MAC_A);
    assert_eq!(run(&mut cache, at(30)), [], "nobody wants it");
    cache.lookup(at(30), A);
    assert_eq!(run(&mut cache, Instant::from_millis(31_100)), [Due::Ask { addr: A, of: MAC_A }]);
    cache.answer(at(32), A, MAC_A);
    assert_eq!(run(&mut cache, at(90)), []);
}

#[test]
fn progress_confirms_a_neighbour_and_settles_a_contest() {
    let mut cache = cache(4);
    cache.learn(at(0), A, MAC_A);
    cache.lookup(at(0), A);
    cache.progress(at(1), A, true);
    for second in 2..200 {
        cache.progress(at(second), A, true);
        assert_eq!(run(&mut cache, at(second)), [], "nobody is asked while packets arrive");
    }
    // This holds however recently something has arrived: it may have been the last packet before the
    // neighbour moved.
    cache.progress(at(201), A, true);
    assert_eq!(cache.learn(at(201), A, MAC_B).0, Claim::Ask { of: MAC_A });
    cache.progress(at(201), A, true);
    assert_eq!(run(&mut cache, at(203)), []);
    assert_eq!(cache.lookup(at(203), A), Lookup::Known(MAC_A));
}

#[test]
fn progress_settles_no_contest_for_whoever_is_not_trusted_with_that() {
    let mut cache = reachable(at(0));
    cache.learn(at(5), A, MAC_B);
    cache.progress(at(5), A, false);
    run(&mut cache, at(6));
    assert_eq!(cache.lookup(at(6), A), Lookup::Known(MAC_B));
}

#[test]
fn progress_right_after_a_change_proves_nothing() {
    let mut cache = reachable(at(0));
    cache.learn(at(5), A, MAC_B);
    run(&mut cache, Instant::from_millis(5800));
    assert_eq!(cache.lookup(at(6), A), Lookup::Known(MAC_B));
    // The packets under way to the previous station are acknowledged.
    cache.progress(at(6), A, true);
    let one = Due::Ask { addr: A, of: MAC_B };
    let all = Due::Ask { addr: A, of: Mac::BROADCAST };
    assert_eq!(run(&mut cache, at(9)), [one, all, Due::Failed { addr: A }]);
}
