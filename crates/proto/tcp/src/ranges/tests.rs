use std::collections::BTreeSet;

use atoll_base::Rng;

use super::*;

/// Returns the ranges of a set with one entry per octet: the plain model.
fn runs(octets: &BTreeSet<i64>) -> Vec<(i64, i64)> {
    let mut runs: Vec<(i64, i64)> = Vec::new();
    for octet in octets {
        match runs.last_mut() {
            Some(last) if last.1 == *octet => last.1 += 1,
            _ => runs.push((*octet, *octet + 1)),
        }
    }
    runs
}

#[test]
fn the_set_agrees_with_a_set_of_octets() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let (mut set, mut model) = (RangeSet::default(), BTreeSet::new());
        for _ in 0..150 {
            let left = i64::from(rng.below(400));
            let right = left + i64::from(rng.below(20));
            if rng.below(8) == 0 {
                let before = model.len() as i64;
                model = model.split_off(&left);
                assert_eq!(set.remove_below(left), before - model.len() as i64);
            } else {
                let before = model.len() as i64;
                model.extend(left..right);
                assert!(set.has_room_for(left, right));
                assert_eq!(set.insert(left, right), Some(model.len() as i64 - before));
            }
            set.check_invariants();
            assert_eq!(set.ranges, runs(&model), "seed {seed}");
            let within = runs(&model.range(left..right).copied().collect());
            assert_eq!(set.first_within(left, right), within.first().copied());
            assert_eq!(
                set.covers(left, right.max(left + 1)),
                (left..right.max(left + 1)).all(|o| model.contains(&o))
            );
            assert_eq!(set.range_at(left), runs(&model).into_iter().find(|r| r.0 <= left && left < r.1));
            assert_eq!(set.end(), model.last().map(|octet| octet + 1));
        }
    }
}

#[test]
fn a_full_set_takes_only_what_touches_a_range() {
    let mut set = RangeSet::default();
    for n in 0..RangeSet::MAX as i64 {
        assert_eq!(set.insert(10 * n, 10 * n + 5), Some(5));
    }
    assert_eq!(set.insert(-9, -8), None);
    assert!(!set.has_room_for(7, 8));
    assert!(set.has_room_for(5, 8));
    assert_eq!(set.insert(5, 10), Some(5));
    assert_eq!(set.insert(7000, 7001), Some(1));
    set.check_invariants();
}
