//! Tests that sessions keep their places, take turns, and continue in a later flush if they had their share.

use std::vec::Vec;

use atoll_base::Epoch;
use atoll_ipc::HeapMemory;
use atoll_ipc::page::{APP_PAGE_BYTES, AppPage};

use super::*;
use crate::pressure::Shortage;

fn open(applications: &mut Applications<HeapMemory>, id: u32) -> u32 {
    let layout = crate::tests::kit::ARENA.layout();
    let page = AppPage(HeapMemory::new(APP_PAGE_BYTES));
    let user = User::privileged(0);
    let books = (Shortage::new().books(), applications.users_mut().of(&user, 1));
    let arena = HeapMemory::new(layout.total);
    applications.insert(Session::new((SessionId(id), user), layout, arena, page, Epoch(1), books))
}

#[test]
fn a_place_is_used_again_when_nothing_refers_to_it() {
    let mut applications = Applications::new();
    let (a, b) = (open(&mut applications, 1), open(&mut applications, 2));
    assert_eq!(applications.end(SessionId(1)), Some(a));
    assert!(
        applications.place_of(SessionId(1)).is_none() && applications.get(a).is_some(),
        "it has sockets, perhaps"
    );
    assert!(
        applications.end(SessionId(1)).is_none() && applications.take_ended().is_empty(),
        "something is left"
    );
    applications.remove(a);
    assert_eq!((applications.take_ended(), applications.count()), (std::vec![SessionId(1)], 1));
    assert_eq!((open(&mut applications, 3), applications.place_of(SessionId(2))), (a, Some(b)));
    assert!(applications.end(SessionId(9)).is_none());
    assert_eq!(applications.take_ended(), [SessionId(9)], "who is unknown is over");
}

#[test]
fn who_got_no_turn_is_first_in_the_next_round() {
    let mut applications = Applications::new();
    for id in 1..=4 {
        open(&mut applications, id);
    }
    let turns = |applications: &mut Applications<HeapMemory>| applications.turns().collect::<Vec<_>>();
    assert_eq!(turns(&mut applications), [0, 1, 2, 3]);
    assert_eq!(turns(&mut applications), [1, 2, 3, 0]);
    // There was no time for the third of them.
    applications.resume_turns_at(2);
    assert_eq!(turns(&mut applications), [3, 0, 1, 2]);
}

#[test]
fn of_each_session_so_many_sockets_go_on_as_may_have_a_share() {
    let mut applications = Applications::new();
    let (a, b) = (open(&mut applications, 1), open(&mut applications, 2));
    for index in 0..LATER_MAX as u32 + 1 {
        assert!(applications.put_off(a, Occupant::Connection(index)));
    }
    assert!(
        applications.put_off(b, Occupant::Datagram(7)) && !applications.put_off(9, Occupant::Datagram(7))
    );
    let mut taken = Vec::new();
    applications.take_up(|socket| taken.push(socket));
    assert_eq!(taken.len(), LATER_MAX + 1);
    assert!(taken.contains(&Occupant::Datagram(7)) && applications.has_put_off());
    taken.clear();
    applications.take_up(|socket| taken.push(socket));
    assert_eq!(taken, [Occupant::Connection(LATER_MAX as u32)]);
    assert!(!applications.has_put_off());
}
