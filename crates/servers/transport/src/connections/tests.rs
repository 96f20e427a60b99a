//! Tests that the table of connections keeps its invariants, and that each of its lists names a connection
//! once.

use std::collections::BTreeSet;
use std::vec::Vec;

use atoll_base::SeqNum;
use atoll_tcp::{Connection, Path, Settings, State};

use super::*;
use crate::entry::Service;

impl Connections {
    /// Panics if the parts of the table contradict each other. Large tables, which a test examines often, are
    /// skipped.
    pub(crate) fn check_invariants(&self) {
        if self.entries.len() > CHECKED_MAX {
            return;
        }
        let dirty: BTreeSet<u32> = self.dirty.iter().copied().collect();
        assert_eq!(dirty.len(), self.dirty.len(), "each is to be flushed once");
        let orphans = self.entries.iter().filter(|(_, entry)| entry.stage == Stage::Closing).count();
        assert_eq!(self.orphans, orphans);
        for (index, entry) in self.entries.iter() {
            assert_eq!(
                entry.flags.intersects(Flags::DIRTY),
                dirty.contains(&index),
                "{index}: who is marked is on the list"
            );
            let is_found = self.find_name(&entry.name) == Some(index);
            let is_over = entry.stage.is_ended() || entry.connection.state() == State::Closed;
            assert!(is_found || is_over, "{index}: segments find it");
            assert!(entry.stage.is_ended() <= !is_found, "{index}: what has ended hears of no segment");
            let is_armed = entry.armed <= entry.next_timeout();
            assert!(is_armed || is_over || dirty.contains(&index), "{index}: its timer fires when it is due");
        }
    }
}

/// The most connections of a table that is checked.
const CHECKED_MAX: usize = 256;

fn table() -> Connections {
    Connections::new(16, &mut Rng::new(7), Instant::ZERO)
}

fn tuple(port: u16) -> FourTuple {
    FourTuple { local: Endpoint::new(0x0a00_0001, port), remote: Endpoint::new(0x0a00_0002, 80) }
}

fn open(connections: &mut Connections, port: u16) -> u32 {
    let connection =
        Connection::connect(Instant::ZERO, SeqNum(1), 0, Path { mss: 1460 }, &Settings::default());
    let name = connections.name(&tuple(port));
    let index = connections.insert(Entry::new(connection, name, Stage::Open(Service::UNMEASURED)));
    connections.enroll(index);
    if let Some(due) = connections.get_mut(index).and_then(Entry::move_timer) {
        connections.arm(index, due);
    }
    index
}

#[test]
fn a_connection_is_flushed_once_however_often_it_is_touched() {
    let mut connections = table();
    let (a, b) = (open(&mut connections, 1000), open(&mut connections, 1001));
    [a, b, a, a].into_iter().for_each(|index| connections.touch(index));
    connections.check_invariants();
    let mut dirty = connections.take_dirty();
    assert_eq!(dirty, [a, b]);
    for index in dirty.drain(..) {
        connections.get_mut(index).expect("it is there").flags.remove(Flags::DIRTY);
    }
    // This is what happens if a link is full, for example.
    connections.touch(b);
    connections.put_back_dirty(dirty);
    connections.check_invariants();
    assert_eq!(connections.take_dirty(), [b]);
}

#[test]
fn what_has_ended_is_found_by_nobody_and_what_is_closed_is_counted_until_it_is_gone() {
    let mut connections = table();
    let (a, b) = (open(&mut connections, 1000), open(&mut connections, 1001));
    assert_eq!(connections.find(&tuple(1000)), Some(a));
    connections.leave_flows(a);
    connections.get_mut(a).expect("it is there").stage = Stage::Ended(Service::UNMEASURED);
    assert_eq!((connections.find(&tuple(1000)), connections.len()), (None, 2));
    connections.orphan(b);
    connections.orphan(b);
    connections.check_invariants();
    assert_eq!(connections.orphans(), 1);
    assert!(connections.remove(b).is_some() && connections.remove(a).is_some());
    connections.check_invariants();
    assert_eq!((connections.orphans(), connections.count()), (0, 0));
    assert!(connections.timers().is_empty());
}

#[test]
fn a_name_that_is_given_up_is_free_for_the_search_that_has_taken_it_out() {
    let mut connections = table();
    let range = (1000, 1003);
    let all: Vec<u32> = (range.0..=range.1).map(|port| open(&mut connections, port)).collect();
    let (mut rng, mut looks) = (Rng::new(1), 0);
    let (local, remote) = (tuple(0).local.addr, tuple(0).remote);
    let mut choose = |connections: &mut Connections, looks: &mut u32| {
        let choice = PortChoice { range, rng: &mut rng, is_ours: |_: &FourTuple| true, looks };
        connections.choose_port(Instant::ZERO, (local, remote), choice)
    };
    assert_eq!(choose(&mut connections, &mut looks), Err(NoPort::none()));
    let before = looks;
    assert_eq!(choose(&mut connections, &mut looks), Err(NoPort::none()));
    assert_eq!(looks, before, "no port is looked at again that nobody has given back");
    connections.remove(all[2]);
    assert_eq!(choose(&mut connections, &mut looks), Ok(tuple(1002)));
}
