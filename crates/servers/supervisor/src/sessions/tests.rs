use atoll_base::Rng;

use super::*;

const A: ClientId = ClientId(1);
const B: ClientId = ClientId(2);

#[test]
fn a_session_lives_until_its_last_member_leaves() {
    let mut sessions = Sessions::new(8);
    let own = sessions.attach(A, LAYOUT_VERSION, 77).unwrap();
    let joined = sessions.join(B, own.session, 77).unwrap();
    assert_ne!(joined.member, own.member);
    assert_eq!(sessions.closed(A), [Departure::Member { session: own.session, member: own.member }]);
    assert_eq!(sessions.leave(B, own.session), Some(Departure::Session { session: own.session }));
    assert!(sessions.is_empty());
    assert_eq!(sessions.closed(B), []);
}

#[test]
fn refusals_name_their_reason() {
    let mut sessions = Sessions::new(1);
    assert_eq!(sessions.attach(A, LAYOUT_VERSION + 1, 1), Err(Refusal::Version));
    let own = sessions.attach(A, LAYOUT_VERSION, 1).unwrap();
    assert_eq!(sessions.attach(B, LAYOUT_VERSION, 1), Err(Refusal::Sessions));
    assert_eq!(sessions.join(B, own.session, 2), Err(Refusal::NoSession));
    assert_eq!(sessions.join(B, own.session + 1, 1), Err(Refusal::NoSession));
    assert_eq!(sessions.leave(B, own.session), None);
    for n in 1..u64::from(MEMBERS_MAX) {
        sessions.join(ClientId(100 + n), own.session, 1).unwrap();
    }
    assert_eq!(sessions.join(B, own.session, 1), Err(Refusal::Members));
    sessions.check_invariants();
}

#[test]
fn joining_twice_is_one_membership() {
    let mut sessions = Sessions::new(8);
    let own = sessions.attach(A, LAYOUT_VERSION, 1).unwrap();
    assert_eq!(sessions.join(A, own.session, 1), Ok(own));
    assert_eq!(sessions.closed(A), [Departure::Session { session: own.session }]);
}

#[test]
fn who_has_left_is_known_until_the_number_is_used_again() {
    let mut sessions = Sessions::new(8);
    let own = sessions.attach(A, LAYOUT_VERSION, 1).unwrap();
    let departed = |sessions: &Sessions| sessions.departed(own.session).collect::<Vec<_>>();
    let first = sessions.join(B, own.session, 1).unwrap().member;
    assert!(departed(&sessions).is_empty());
    sessions.closed(B);
    assert_eq!(departed(&sessions), [first]);
    for n in 1..u64::from(MEMBERS_MAX) {
        sessions.join(ClientId(100 + n), own.session, 1).unwrap();
    }
    assert!(departed(&sessions).is_empty());
    assert_eq!(sessions.departed(own.session + 1).count(), 0);
}

#[test]
fn one_client_cannot_take_all_sessions() {
    let mut sessions = Sessions::new(1000);
    for _ in 0..MEMBERSHIPS_MAX {
        sessions.attach(A, LAYOUT_VERSION, 1).unwrap();
    }
    assert_eq!(sessions.attach(A, LAYOUT_VERSION, 1), Err(Refusal::Sessions));
    assert_eq!(sessions.closed(A).len(), MEMBERSHIPS_MAX);
}

#[test]
fn numbers_of_members_are_used_again_as_late_as_possible() {
    let mut sessions = Sessions::new(8);
    let own = sessions.attach(A, LAYOUT_VERSION, 1).unwrap();
    let mut seen = vec![own.member];
    for n in 0..u64::from(MEMBERS_MAX) - 1 {
        let client = ClientId(10 + n);
        seen.push(sessions.join(client, own.session, 1).unwrap().member);
        sessions.closed(client);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..MEMBERS_MAX).collect::<Vec<_>>());
}

#[test]
fn any_order_of_events_keeps_the_books_balanced() {
    let mut rng = Rng::new(3);
    let mut sessions = Sessions::new(6);
    let (mut opened, mut gone) = (0, 0);
    for _ in 0..20_000 {
        let client = ClientId(u64::from(rng.below(10)));
        let session = sessions.last.saturating_sub(rng.below(8));
        let departures = match rng.below(4) {
            0 => {
                opened += u32::from(sessions.attach(client, LAYOUT_VERSION, 5).is_ok());
                Vec::new()
            }
            1 => {
                let _ = sessions.join(client, session, 5);
                Vec::new()
            }
            2 => sessions.leave(client, session).into_iter().collect(),
            _ => sessions.closed(client),
        };
        gone += departures.iter().filter(|d| matches!(d, Departure::Session { .. })).count() as u32;
        sessions.check_invariants();
        assert_eq!(opened - gone, sessions.len() as u32);
    }
}
