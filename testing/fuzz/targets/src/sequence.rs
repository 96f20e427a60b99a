//! Checks that sessions stay apart whatever their clients ask in whatever order. Sequences of requests arrive
//! at the supervisor: packets of several clients that come and go, while the supervisor may die and be
//! succeeded.

use std::collections::{BTreeMap, BTreeSet};

use atoll_ipc::LAYOUT_VERSION;
use atoll_ipc::control::{Refusal, Request};
use atoll_supervisor::{
    ClientId, Departure, Door, Incoming, Joined, MEMBERS_MAX, MEMBERSHIPS_MAX, Sessions, classify,
};

use crate::features::mark;
use crate::input::Input;

const CLIENTS: u8 = 12;
const SESSIONS_MAX: u32 = 6;

/// The expected state, kept as simply as possible: which client is in which session by which number.
#[derive(Default)]
struct Oracle {
    /// The key and the members of each open session.
    open: BTreeMap<u32, (u64, BTreeMap<u8, ClientId>)>,
    keys: BTreeSet<u64>,
    last: u32,
}

impl Oracle {
    fn memberships(&self, client: ClientId) -> usize {
        self.open.values().filter(|(_, members)| members.values().any(|member| *member == client)).count()
    }

    fn depart(&mut self, client: ClientId, session: u32, departure: Departure) {
        let (_, members) = self.open.get_mut(&session).expect("only of an open session anything departs");
        let number = members.iter().find(|(_, member)| **member == client).map(|(number, _)| *number);
        let number = number.expect("only a member departs");
        members.remove(&number);
        if members.is_empty() {
            self.open.remove(&session);
            assert_eq!(departure, Departure::Session { session });
        } else {
            assert_eq!(departure, Departure::Member { session, member: number });
        }
    }

    fn agrees(&self, sessions: &Sessions) {
        assert!(sessions.ids().eq(self.open.keys().copied()), "the same sessions");
        assert_eq!((sessions.len(), sessions.is_empty()), (self.open.len(), self.open.is_empty()));
        assert!(self.open.len() <= SESSIONS_MAX as usize);
        for (session, (_, members)) in &self.open {
            assert!(!members.is_empty() && members.len() <= usize::from(MEMBERS_MAX));
            assert!(sessions.members(*session).eq(members.iter().map(|(number, client)| (*number, *client))));
            assert!(sessions.departed(*session).all(|number| !members.contains_key(&number)));
        }
        for client in self.open.values().flat_map(|(_, members)| members.values()) {
            assert!(self.memberships(*client) <= MEMBERSHIPS_MAX);
        }
        assert!(sessions.last() >= self.last, "no number is used again");
    }
}

/// Runs a sequence of steps, each of which is a client and what it does.
pub fn supervisor_sequence(data: &[u8]) {
    let mut input = Input::new(data);
    let mut sessions = Sessions::new(SESSIONS_MAX);
    let mut oracle = Oracle::default();
    let mut next_key = 1;
    while !input.is_empty() {
        let client = ClientId(u64::from(input.byte() % CLIENTS));
        let request = match input.byte() % 8 {
            0 | 1 => Request::Attach { layout_version: LAYOUT_VERSION, room_mib: input.byte().into() },
            2 | 3 => {
                // The key is that of some session, or nearly so.
                let session = u32::from(input.byte());
                let key = oracle.open.get(&session).map_or(0, |(key, _)| *key);
                Request::Join { session, key: key ^ u64::from(input.byte() == 0) }
            }
            4 => Request::Leave { session: u32::from(input.byte()) },
            5 => {
                let before = sessions_of(&sessions, client);
                let departures = sessions.closed(client);
                assert_eq!(departures.len(), before.len(), "each membership ends");
                for departure in departures {
                    let (Departure::Member { session, .. } | Departure::Session { session }) = departure;
                    assert!(before.contains(&session));
                    oracle.depart(client, session, departure);
                }
                oracle.agrees(&sessions);
                continue;
            }
            6 => {
                sessions = succeed(&sessions, &oracle);
                oracle.agrees(&sessions);
                continue;
            }
            // The packet is arbitrary.
            _ => match classify(Door::Applications, input.bytes(56), usize::from(input.byte() % 2)) {
                Ok(Incoming::Application(request)) => request,
                Ok(Incoming::Cli(_)) | Err(_) => continue,
            },
        };
        // The packet takes the form that it has on the socket.
        assert_eq!(classify(Door::Applications, &request.encode(), 0), Ok(Incoming::Application(request)));
        assert!(
            classify(Door::Applications, &request.encode(), 1).is_err(),
            "no request of an application has descriptors"
        );
        match request {
            Request::Attach { layout_version, .. } => {
                let key = next_key;
                next_key += 2;
                let outcome = sessions.attach(client, layout_version, key);
                attached(&mut oracle, client, layout_version, key, outcome);
            }
            Request::Join { session, key } => {
                let outcome = sessions.join(client, session, key);
                joined(&mut oracle, client, session, key, outcome);
            }
            Request::Leave { session } => {
                let is_member = oracle
                    .open
                    .get(&session)
                    .is_some_and(|(_, members)| members.values().any(|m| *m == client));
                let departure = sessions.leave(client, session);
                assert_eq!(departure.is_some(), is_member, "who is no member leaves nothing");
                if let Some(departure) = departure {
                    oracle.depart(client, session, departure);
                }
            }
            // Another connection has no sessions yet. Neither a user nor a list of sockets says anything
            // about sessions, so the books do not change.
            Request::Connect | Request::Vouch { .. } | Request::ListSockets { .. } => {}
            other => panic!("no request of applications: {other:?}"),
        }
        oracle.agrees(&sessions);
        mark(70, oracle.open.len() as u64);
        mark(71, oracle.open.values().map(|(_, members)| members.len() as u64).max().unwrap_or(0));
    }
    // All clients go, and nothing is left.
    for client in 0..CLIENTS {
        for departure in sessions.closed(ClientId(client.into())) {
            let (Departure::Member { session, .. } | Departure::Session { session }) = departure;
            oracle.depart(ClientId(client.into()), session, departure);
        }
    }
    assert!(sessions.is_empty() && oracle.open.is_empty(), "a session is left that nobody is in");
}

fn attached(oracle: &mut Oracle, client: ClientId, version: u32, key: u64, outcome: Result<Joined, Refusal>) {
    match outcome {
        Ok(Joined { session, key: told, member }) => {
            assert!(version == LAYOUT_VERSION && oracle.open.len() < SESSIONS_MAX as usize);
            assert!(oracle.memberships(client) < MEMBERSHIPS_MAX);
            assert!(told == key && oracle.keys.insert(key), "keys are never shared");
            assert!(session > oracle.last, "no number is used again");
            oracle.last = session;
            oracle.open.insert(session, (key, BTreeMap::from([(member, client)])));
        }
        Err(reason) => {
            let is_full =
                oracle.open.len() >= SESSIONS_MAX as usize || oracle.memberships(client) >= MEMBERSHIPS_MAX;
            let expected = if version == LAYOUT_VERSION { Refusal::Sessions } else { Refusal::Version };
            assert_eq!(reason, expected);
            assert!(version != LAYOUT_VERSION || is_full, "there was room");
        }
    }
}

fn joined(oracle: &mut Oracle, client: ClientId, session: u32, key: u64, outcome: Result<Joined, Refusal>) {
    let memberships = oracle.memberships(client);
    let found = oracle.open.get_mut(&session).filter(|(right, _)| *right == key);
    match outcome {
        Ok(joined) => {
            let (_, members) = found.expect("only the right key opens a session");
            assert_eq!((joined.session, joined.key), (session, key));
            match members.iter().find(|(_, member)| **member == client) {
                Some((number, _)) => assert_eq!(joined.member, *number, "twice is once"),
                None => {
                    assert!(memberships < MEMBERSHIPS_MAX);
                    assert_eq!(members.insert(joined.member, client), None, "the number was somebody else's");
                }
            }
        }
        Err(Refusal::NoSession) => assert!(found.is_none(), "the key was right"),
        Err(Refusal::Members) => {
            assert_eq!(found.map(|(_, members)| members.len()), Some(MEMBERS_MAX.into()))
        }
        Err(Refusal::Sessions) => assert!(memberships >= MEMBERSHIPS_MAX, "it might have been a member"),
        Err(other) => panic!("joining is not refused by {other:?}"),
    }
}

/// Returns what the next supervisor knows from the notes of the one before.
fn succeed(sessions: &Sessions, oracle: &Oracle) -> Sessions {
    let mut next = Sessions::new(SESSIONS_MAX);
    next.resume(sessions.last());
    for session in oracle.open.keys() {
        let standing = sessions.standing(*session).expect("it is open");
        let text = serde_json::to_string(&standing).expect("it can be noted");
        next.restore(*session, serde_json::from_str(&text).expect("what was noted is read"));
    }
    next
}

/// Returns the sessions that a client is in.
fn sessions_of(sessions: &Sessions, client: ClientId) -> BTreeSet<u32> {
    sessions.ids().filter(|session| sessions.members(*session).any(|(_, member)| member == client)).collect()
}
