use std::vec::Vec;

use super::*;
use crate::recovery::Reordering;
use atoll_base::{Duration, Rng};

fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

/// Returns ten segments of ten octets, one sent each millisecond.
fn flight() -> Flight {
    let mut flight = Flight::new(0, 10, at(0));
    (1..10).for_each(|n| flight.send(n * 10, n * 10 + 10, at(n as u64), n * 10));
    flight
}

fn lost(flight: &mut Flight, now: Instant, window: Duration) -> Vec<(i64, i64)> {
    flight.detect_by_time(now, window);
    flight
        .records
        .iter()
        .filter(|record| record.fate == Fate::Lost)
        .map(|record| (record.start, record.end))
        .collect()
}

fn deliver(flight: &mut Flight, left: i64, right: i64, now: Instant) {
    let mut newest = None;
    flight.sack(left, right, |sent| newest = Some(*sent));
    let newest = newest.expect("something is new");
    flight.rack.update(&newest, now.since(newest.sent_at));
}

#[test]
fn what_leaves_at_one_moment_is_one_record() {
    let mut flight = Flight::new(0, 10, at(0));
    flight.send(10, 20, at(0), 10);
    flight.send(20, 30, at(1), 20);
    assert_eq!(flight.records.len(), 2);
    flight.check_invariants(0, 30);
}

#[test]
fn neighbours_that_are_sacked_are_joined() {
    let mut flight = flight();
    assert_eq!(flight.sack(20, 30, |_| {}), 10);
    assert_eq!(flight.sack(40, 50, |_| {}), 10);
    assert_eq!(flight.sack(20, 50, |_| {}), 10);
    assert_eq!((flight.sacked, flight.fack, flight.records.len()), (30, 50, 8));
    flight.check_invariants(0, 100);
}

#[test]
fn an_acknowledgement_within_a_record_leaves_its_rest() {
    let mut flight = flight();
    let mut seen = Vec::new();
    flight.acknowledge(25, |sent| seen.push((sent.start, sent.end)));
    assert_eq!(seen, [(0, 10), (10, 20), (20, 25)]);
    flight.check_invariants(25, 100);
}

#[test]
fn what_left_before_something_that_has_arrived_is_lost_after_the_window() {
    // covers: RFC 8985 §6.2 step 5
    let mut flight = flight();
    deliver(&mut flight, 30, 40, at(103));
    assert_eq!(lost(&mut flight, at(103), Duration::from_millis(25)), []);
    assert_eq!(flight.detect_by_time(at(103), Duration::from_millis(25)), Some(Duration::from_millis(24)));
    assert_eq!(lost(&mut flight, at(126), Duration::from_millis(25)), [(0, 10), (10, 20)]);
    assert_eq!(lost(&mut flight, at(127), Duration::from_millis(25)), [(0, 10), (10, 20), (20, 30)]);
    flight.check_invariants(0, 100);
}

#[test]
fn what_came_twice_widens_the_window_for_sixteen_episodes() {
    // covers: RFC 8985 §6.2 step 4
    let mut flight = Flight::new(0, 5000, at(0));
    let mut reordering = Reordering::new();
    flight.widen_reordering(&mut reordering, 0, 5000);
    flight.widen_reordering(&mut reordering, 4000, 6000);
    assert_eq!(reordering.quarters, 2, "once in a round");
    flight.widen_reordering(&mut reordering, 5000, 9000);
    assert_eq!(reordering.quarters, 3);
    for episode in 1..=16 {
        reordering.end_episode();
        assert_eq!(reordering.quarters, if episode < 16 { 3 } else { 1 });
    }
}

#[test]
fn a_retransmission_is_lost_when_something_sent_after_it_has_arrived() {
    // covers: RFC 8985 §3.2
    let mut flight = flight();
    deliver(&mut flight, 10, 20, at(101));
    assert_eq!(lost(&mut flight, at(101), Duration::ZERO), [(0, 10)]);
    flight.resend(0, 10, at(101), 80);
    flight.send(100, 110, at(102), 90);
    deliver(&mut flight, 20, 100, at(109));
    assert_eq!(lost(&mut flight, at(109), Duration::ZERO), []);
    deliver(&mut flight, 100, 110, at(202));
    assert_eq!(lost(&mut flight, at(202), Duration::ZERO), [(0, 10)]);
}

#[test]
fn sacks_are_forgotten_when_the_peer_has_reneged() {
    let mut flight = flight();
    flight.sack(20, 60, |_| {});
    flight.forget_sacks();
    assert_eq!((flight.sacked, flight.fack), (0, 0));
    flight.mark_lost(0, 100);
    assert_eq!(flight.lost, 100);
    flight.check_invariants(0, 100);
}

#[test]
fn a_peer_that_cuts_everything_into_pieces_gets_no_more_than_so_many() {
    let mut flight = Flight::new(0, 1_000_000, at(0));
    for left in (0..1_000_000).step_by(4) {
        flight.sack(left, left + 1, |_| {});
    }
    assert!(flight.records.len() <= RECORDS_MAX);
    flight.check_invariants(0, 1_000_000);
    // The peer's block may still cover all of it.
    flight.sack(0, 1_000_000, |_| {});
    assert_eq!((flight.sacked, flight.records.len()), (1_000_000, 1));
}

#[test]
fn the_sums_hold_whatever_happens() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let (mut una, mut nxt) = (0, 10);
        let mut flight = Flight::new(una, nxt, at(0));
        for step in 1..300 {
            let point = |rng: &mut Rng| una + i64::from(rng.below((nxt - una) as u32 + 1));
            let (a, b) = (point(&mut rng), point(&mut rng));
            let (left, right) = (a.min(b), a.max(b));
            match rng.below(8) {
                0..3 => {
                    let len = 1 + i64::from(rng.below(50));
                    flight.send(nxt, nxt + len, at(step), nxt - una);
                    nxt += len;
                }
                3 if right < nxt => {
                    flight.acknowledge(right, |_| {});
                    una = right;
                }
                4 => assert!(
                    flight.sack(left, right, |sent| assert_ne!(sent.fate, Fate::Sacked)) <= right - left
                ),
                5 => flight.mark_lost(left, right),
                6 => {
                    if let Some((from, to)) = flight.first_lost() {
                        flight.resend(from, from + 1 + (to - from) / 2, at(step), 0);
                    }
                }
                7 if rng.below(10) == 0 => flight.forget_sacks(),
                _ => {
                    flight.detect_by_time(at(step), Duration::from_millis(3));
                }
            }
            flight.check_invariants(una, nxt);
        }
    }
}
