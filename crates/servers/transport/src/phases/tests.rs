use std::cell::Cell;
use std::rc::Rc;

use atoll_base::{Endpoint, FourTuple};
use atoll_ipc::HeapMemory;
use atoll_ipc::page::{REPLICA_PAGE_BYTES, ReplicaPage};

use super::*;
use crate::names::Locals;

/// Creates measurements whose clock advances by 10 nanoseconds at each reading.
fn bench() -> (Phases, Stats, Name) {
    let mut phases = Phases::default();
    let clock = Rc::new(Cell::new(0));
    phases.set_stopwatch(Stopwatch::new(move || clock.replace(clock.get() + 10)));
    let tuple = FourTuple { local: Endpoint::new(1, 80), remote: Endpoint::new(2, 5000) };
    let mut locals = Locals::default();
    locals.add(tuple.local.addr);
    (phases, Stats::new(&ReplicaPage(HeapMemory::new(REPLICA_PAGE_BYTES))), locals.find(&tuple).unwrap())
}

fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1000)
}

/// Handles a SYN that waited for `waited` microseconds, for which the CM is asked once.
fn syn(phases: &mut Phases, now: Instant, index: u32, name: Name, waited: u64) {
    phases.note_wait(Duration::from_micros(waited));
    phases.frame_begins();
    let began = phases.cm_begins();
    phases.cm_ends(began);
    phases.opened(now, index, name);
    phases.frame_ends();
}

fn sums(stats: &Stats) -> [u64; 6] {
    [Stat::HandshakesTimed, Stat::TimeCm, Stat::TimeTcp, Stat::TimeMsg, Stat::TimeAccept, Stat::TimeTotal]
        .map(|stat| stats.get(stat))
}

#[test]
fn each_part_of_a_handshake_is_counted_once() {
    let (mut phases, mut stats, name) = bench();
    syn(&mut phases, at(1000), 3, name, 7);
    // This is a frame of another connection, which waited, too, and for which the CM worked.
    phases.note_wait(Duration::from_micros(500));
    phases.frame_begins();
    let began = phases.cm_begins();
    phases.cm_ends(began);
    phases.frame_ends();
    // This is the ACK. Its part of the CM is 10 ns, and three readings lie between beginning and end.
    phases.note_wait(Duration::from_micros(2));
    phases.frame_begins();
    phases.established(3, &name);
    let began = phases.cm_begins();
    phases.cm_ends(began);
    phases.offered(at(1100), 3, &name);
    phases.frame_ends();
    assert_eq!(sums(&stats), [0; 6]);
    let mut told = 0;
    phases.claimed(at(1150), 3, &name, &mut stats, || told += 1);
    assert_eq!(sums(&stats), [1, 30, 40, 9_000, 50_000, 157_000]);
    // A claimed connection is no longer measured; the CM is notified nevertheless.
    phases.claimed(at(1200), 3, &name, &mut stats, || told += 1);
    assert_eq!((sums(&stats)[0], told), (1, 2));
}

#[test]
fn one_connection_in_so_many_is_measured_and_the_others_cost_no_reading() {
    let (mut phases, mut stats, name) = bench();
    let count = 3 * SAMPLE_EVERY;
    for index in 0..count {
        syn(&mut phases, at(0), index, name, 0);
        assert_eq!(phases.handshakes, usize::from(index % SAMPLE_EVERY == 0));
        phases.frame_begins();
        phases.established(index, &name);
        phases.offered(at(0), index, &name);
        phases.frame_ends();
        phases.claimed(at(0), index, &name, &mut stats, || ());
        phases.frame_begins();
        assert_eq!(phases.frame.is_some(), (index + 1) % SAMPLE_EVERY == 0);
        phases.frame_ends();
    }
    assert_eq!(sums(&stats)[0], 3);
}

#[test]
fn what_is_never_claimed_is_forgotten() {
    let (mut phases, mut stats, name) = bench();
    let open = |phases: &mut Phases, now: Instant, first: u32| {
        (0..SAMPLE_EVERY * 20).for_each(|n| syn(phases, now, first + n, name, 0));
    };
    open(&mut phases, at(0), 0);
    assert_eq!(phases.samples.len(), SAMPLES_MAX);
    open(&mut phases, at(20_000_000), 1000);
    assert_eq!(phases.samples.len(), SAMPLES_MAX);
    assert!(phases.samples.iter().all(|sample| sample.index >= 1000));
    phases.claimed(at(20_000_001), 0, &name, &mut stats, || ());
    assert_eq!(sums(&stats)[0], 0);
}

#[test]
fn without_a_stopwatch_nothing_is_measured() {
    let (_, mut stats, name) = bench();
    let mut phases = Phases::default();
    syn(&mut phases, at(5), 0, name, 1);
    assert!(phases.samples.is_empty());
    phases.claimed(at(5), 0, &name, &mut stats, || ());
    assert_eq!(sums(&stats), [0; 6]);
}
