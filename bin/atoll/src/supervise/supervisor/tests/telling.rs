//! Checks that a successor learns of the sessions that its ledger names before it serves, and of all others
//! soon after, whatever happens meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use atoll_base::{Endpoint, Epoch, SessionId};
use atoll_ipc::Command;
use atoll_ipc::ledger::RequestRecord;

use super::*;
use crate::supervise::supervisor::telling::TOLD_AT_ONCE;

impl Bench {
    /// Returns the ledger of a replica, opened as a live replica does.
    fn ledger(&self, replica: usize, epoch: u32) -> Ledger<ShmMemory> {
        let memory =
            ShmMemory::map(&self.server.memory.ledgers[replica], LEDGER_BYTES, Access::ReadWrite).unwrap();
        Ledger::open(memory, LedgerConfig::STACK, Epoch(epoch)).unwrap()
    }

    /// Opens sessions with nothing in them. Each ends with its connection.
    fn attach_many(&mut self, count: usize) -> BTreeMap<u32, Channel> {
        let all = (0..count).map(|_| self.attach());
        let all: Vec<_> = all.map(|(client, joined, _)| (joined.session, client)).collect();
        (0..self.replicas.len()).for_each(|replica| drop(self.told(replica)));
        all.into_iter().collect()
    }

    /// Lets the replica die. Returns the control socket of its successor, which does not serve yet.
    fn succeeded(&mut self, replica: usize, epoch: u32) -> Channel {
        // The next start would be delayed if a death came soon after another one.
        self.server.servers.lives_anew(replica);
        self.replicas[replica] = Channel::pair(Blocking::No).unwrap().0;
        self.settle();
        let (which, incarnation, channel) =
            self.launches.borrow_mut().started.pop().expect("one was started");
        assert_eq!((which, incarnation), (replica, epoch));
        channel
    }

    /// Lets the supervisor do one turn, for which time passes. Returns the requests to the replica in it.
    fn hears(&mut self, replica: usize) -> Vec<Request> {
        self.server.turn(Some(2)).unwrap();
        self.told(replica)
    }

    /// Returns all requests to the replica until there are no more; checks that the parts are small.
    fn hears_all(&mut self, replica: usize) -> Vec<Request> {
        let (mut all, mut turns) = (Vec::new(), 0);
        while !self.server.servers.replicas()[replica].untold().is_empty() {
            let told = self.hears(replica);
            turns += 1;
            assert!(turns < 1000, "nothing more is said");
            assert!(opened(&told).len() <= TOLD_AT_ONCE, "{} at once", told.len());
            all.extend(told);
        }
        all.extend(self.hears(replica));
        all
    }
}

/// Returns the record of a request of an application that is in force.
fn in_force(session: u32) -> RequestRecord {
    let (token, lease, protocol) = (0, session.into(), Protocol::Udp);
    let (reuse_addr, reuse_port, v6_only) = (false, false, false);
    let local = Endpoint::new(0, 1000 + session as u16);
    let command = Command::Bind {
        token,
        lease,
        protocol,
        local,
        reuse_addr,
        reuse_port,
        v6_only,
        device: atoll_ipc::Device::None,
    };
    RequestRecord { order: 1, session: SessionId(session), command }
}

fn opened(told: &[Request]) -> Vec<u32> {
    let session = |request: &Request| match request {
        Request::SessionOpened { session, .. } => Some(*session),
        _ => None,
    };
    told.iter().filter_map(session).collect()
}

#[test]
fn before_it_serves_a_successor_hears_of_sessions_that_its_ledger_names_and_then_of_the_others() {
    let mut bench = Bench::new(2);
    let mut clients = bench.attach_many(60);
    let mut ledger = bench.ledger(1, 1);
    ledger.stage_request(0, Some(&in_force(5)));
    ledger.commit();
    // The ledger also names a session of which servers have died, and one that was being opened.
    ledger.set_deaths(SessionId(7), 1);
    ledger.mark(atoll_ipc::ledger::Work::Opening(SessionId(9)));
    let next = bench.succeeded(1, 2);
    bench.replicas[1] = next;
    let told = bench.told(1);
    assert_eq!(opened(&told), [5, 7, 9], "{} of 60 sessions", opened(&told).len());
    assert_eq!(told.last(), Some(&Request::Adopt { blamed: false }));
    for _ in 0..5 {
        assert_eq!(bench.hears(1), [], "before it serves nothing more is said");
    }
    // Meanwhile one session ends that the successor knows, and one that it does not.
    clients.remove(&5);
    clients.remove(&20);
    bench.settle();
    assert_eq!(bench.told(1), [Request::SessionGone { session: 5 }]);
    bench.replicas[1].send(setup::READY, &[]).unwrap();
    let told = bench.hears_all(1);
    let newest_first: Vec<u32> = (1..=60).rev().filter(|session| ![5, 7, 9].contains(session)).collect();
    assert_eq!(opened(&told), newest_first, "each once");
    let at =
        told.iter().position(|request| *request == Request::SessionGone { session: 20 }).expect("it is told");
    assert!(matches!(told[at - 1], Request::SessionOpened { session: 20, .. }), "{:?}", told[at - 1]);
    assert_eq!(told.len(), newest_first.len() + 1);
    // From now on the successor learns everything at once.
    clients.remove(&30);
    bench.settle();
    assert_eq!(bench.told(1), [Request::SessionGone { session: 30 }]);
    let (_client, joined, _) = bench.attach();
    assert_eq!(opened(&bench.told(1)), [joined.session]);
}

#[test]
fn of_few_sessions_and_of_those_of_a_ledger_that_cannot_be_read_it_hears_before_it_serves() {
    let mut bench = Bench::new(1);
    let mut clients = bench.attach_many(TOLD_AT_ONCE);
    drop(bench.ledger(0, 1));
    bench.replicas[0] = bench.succeeded(0, 2);
    assert_eq!(opened(&bench.told(0)).len(), TOLD_AT_ONCE);
    bench.replicas[0].send(setup::READY, &[]).unwrap();
    bench.settle();
    clients.extend(bench.attach_many(10));
    let header = ShmMemory::map(&bench.server.memory.ledgers[0], LEDGER_BYTES, Access::ReadWrite).unwrap();
    // This is the version of a later build.
    atoll_ipc::Memory::store32(&header, 8, 99);
    bench.replicas[0] = bench.succeeded(0, 3);
    assert_eq!(opened(&bench.told(0)).len(), clients.len());
}

/// A session that replicas have died of must not be opened as other sessions are.
#[test]
fn that_a_session_is_cut_off_does_not_wait() {
    let mut bench = Bench::new(2);
    let _clients = bench.attach_many(40);
    drop(bench.ledger(1, 1));
    bench.replicas[1] = bench.succeeded(1, 2);
    bench.told(1);
    bench.replicas[0].send(&setup::cut_off(3), &[]).unwrap();
    bench.settle();
    let told = bench.told(1);
    assert_eq!(opened(&told), [3]);
    assert_eq!(told[1..], [Request::CutOff { session: 3 }, Request::SessionGone { session: 3 }]);
    bench.replicas[1].send(setup::READY, &[]).unwrap();
    assert!(!opened(&bench.hears_all(1)).contains(&3), "it was told");
}

#[test]
fn one_that_does_not_read_is_not_told_more_and_the_supervisor_does_not_spin() {
    let mut bench = Bench::new(1);
    let _clients = bench.attach_many(500);
    drop(bench.ledger(0, 1));
    bench.replicas[0] = bench.succeeded(0, 2);
    bench.told(0);
    bench.replicas[0].send(setup::READY, &[]).unwrap();
    for _ in 0..60 {
        bench.server.turn(Some(2)).unwrap();
    }
    let replica = &bench.server.servers.replicas()[0];
    assert!(!replica.untold().is_empty() && replica.has_waiting(), "{} are left", replica.untold().len());
    assert_ne!(bench.server.servers_timeout_ms(clock::now()), Some(0), "it would do nothing then");
    let before = replica.untold().len();
    for _ in 0..10 {
        bench.server.turn(Some(2)).unwrap();
    }
    assert_eq!(
        bench.server.servers.replicas()[0].untold().len(),
        before,
        "what does not fit its socket waits here"
    );
    let mut told = bench.told(0);
    while opened(&told).len() < 500 {
        told.extend(bench.hears(0));
    }
    let all: BTreeSet<u32> = opened(&told).into_iter().collect();
    assert_eq!((all.len(), opened(&told).len()), (500, 500), "each once");
}

/// A supervisor that takes over does not know what its predecessor has sent.
#[test]
fn another_supervisor_tells_of_all_sessions_in_the_same_way() {
    let mut bench = Bench::new(1);
    let (guardian, theirs) = Channel::pair(Blocking::No).unwrap();
    bench.server.leave_to(kept_by(theirs));
    let mut clients = bench.attach_many(50);
    clients.remove(&10);
    bench.settle();
    bench.told(0);
    let notes = notes_of(&guardian);
    clients.remove(&20);
    let (mut config, identity) = (bench.server.config.clone(), bench.server.identity.clone());
    let found = Found::read(notes, &mut config).unwrap();
    let launcher = Box::new(FakeLauncher(bench.launches.clone()));
    bench.server = found.resume(config, identity, launcher, None, PersistedState::default()).unwrap();
    // The supervisor has announced some sessions before its first turn.
    let mut told = bench.told(0);
    assert!(opened(&told).len() <= TOLD_AT_ONCE, "{} at once", told.len());
    told.extend(bench.hears_all(0));
    assert_eq!(opened(&told), (1..=50).rev().collect::<Vec<_>>());
    let gone = |session| told.contains(&Request::SessionGone { session });
    assert!(gone(10) && gone(20) && !gone(30), "{told:?}");
}

/// A replica as the test sees it, with the requests that it has received.
#[derive(Default)]
struct Heard {
    adopts: bool,
    serves: bool,
    sessions: BTreeMap<u32, BTreeSet<u8>>,
    gone: BTreeSet<u32>,
}

impl Heard {
    fn hear(&mut self, told: Vec<Request>, named: &BTreeSet<u32>) {
        for request in told {
            match request {
                Request::SessionOpened { session, .. } => {
                    let is_first = self.sessions.insert(session, BTreeSet::new()).is_none();
                    assert!(is_first && !self.gone.contains(&session), "it is told of {session} twice");
                }
                Request::MemberGone { session, member } => {
                    self.sessions.get_mut(&session).expect("it has heard of the session").insert(member);
                }
                Request::SessionGone { session } => {
                    assert!(self.sessions.remove(&session).is_some(), "it has not heard of {session}");
                    self.gone.insert(session);
                }
                Request::CutOff { session } => assert!(self.sessions.contains_key(&session), "{session}"),
                Request::Adopt { .. } => {
                    self.adopts = true;
                    let heard = |session: &u32| self.sessions.contains_key(session);
                    assert!(named.iter().all(heard), "it knows those that its ledger names");
                }
                _ => {}
            }
        }
    }
}

#[test]
fn every_replica_hears_of_every_session_once_before_what_becomes_of_it() {
    let (mut deaths, mut late) = (0, 0);
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let mut bench = Bench::new(2);
        let mut clients = bench.attach_many(40);
        // The keys of sessions, with which children join them.
        let mut children: Vec<Channel> = Vec::new();
        let mut keys: BTreeMap<u32, u64> = BTreeMap::new();
        let mut heard = [(); 2].map(|()| Heard { adopts: true, serves: true, ..Heard::default() });
        let all = clients.keys().map(|session| (*session, BTreeSet::new()));
        heard.iter_mut().for_each(|replica| replica.sessions = all.clone().collect());
        let mut epochs = [1; 2];
        let mut named = [BTreeSet::new(), BTreeSet::new()];
        for step in 0..120 {
            let replica = rng.below(2) as usize;
            let any = |rng: &mut Rng, clients: &BTreeMap<u32, Channel>| {
                clients.keys().nth(rng.below(clients.len() as u32) as usize).copied().expect("there are some")
            };
            match rng.below(20) {
                0..3 => {
                    let (client, joined, _) = bench.attach();
                    keys.insert(joined.session, joined.key);
                    clients.insert(joined.session, client);
                }
                3..6 if clients.len() > 20 => {
                    let session = any(&mut rng, &clients);
                    clients.remove(&session);
                }
                6..8 if !keys.is_empty() => {
                    let nth = rng.below(keys.len() as u32) as usize;
                    let (&session, &key) = keys.iter().nth(nth).expect("in range");
                    let child = bench.client();
                    if bench.ask(&child, &Request::Join { session, key }).0.is_ok() {
                        children.push(child);
                    }
                }
                8 if !children.is_empty() => {
                    drop(children.swap_remove(rng.below(children.len() as u32) as usize))
                }
                9 | 10 if heard[replica].serves => {
                    // Some of the sessions have a request in force.
                    let session = any(&mut rng, &clients);
                    named[replica] = BTreeSet::from([session]);
                    let mut ledger = bench.ledger(replica, epochs[replica]);
                    ledger.stage_request(0, Some(&in_force(session)));
                    ledger.commit();
                    late += bench.server.servers.replicas()[replica].untold().len();
                    epochs[replica] += 1;
                    bench.replicas[replica] = bench.succeeded(replica, epochs[replica]);
                    heard[replica] = Heard::default();
                    deaths += 1;
                }
                11 => {
                    let session = any(&mut rng, &clients);
                    bench.replicas[replica].send(&setup::cut_off(session), &[]).unwrap();
                }
                12..15 if heard[replica].adopts && !heard[replica].serves => {
                    bench.replicas[replica].send(setup::READY, &[]).unwrap();
                    heard[replica].serves = true;
                }
                _ => {}
            }
            bench.server.turn(Some(u32::from(step % 3 == 0))).unwrap();
            for (replica, heard) in heard.iter_mut().enumerate() {
                heard.hear(bench.told(replica), &named[replica]);
                if heard.serves || heard.adopts {
                    named[replica].clear();
                }
            }
        }
        for (replica, heard) in heard.iter_mut().enumerate() {
            if !std::mem::replace(&mut heard.serves, true) {
                bench.replicas[replica].send(setup::READY, &[]).unwrap();
            }
        }
        for turn in 0.. {
            assert!(turn < 1000, "seed {seed}: nothing more is said");
            let is_last = bench.server.servers.replicas().iter().all(|replica| replica.untold().is_empty());
            bench.server.turn(Some(2)).unwrap();
            for (replica, heard) in heard.iter_mut().enumerate() {
                heard.hear(bench.told(replica), &BTreeSet::new());
            }
            if is_last {
                break;
            }
        }
        for (replica, heard) in heard.iter_mut().enumerate() {
            let open: Vec<u32> = bench.server.books.open_now();
            assert_eq!(
                heard.sessions.keys().copied().collect::<Vec<_>>(),
                open,
                "seed {seed}, replica {replica}"
            );
            for (session, gone) in &heard.sessions {
                let departed: BTreeSet<u8> = bench.server.books.departed(*session).collect();
                assert!(
                    departed.is_subset(gone),
                    "seed {seed}: of {session} {departed:?} are gone, {gone:?} are told"
                );
            }
        }
    }
    assert!(
        deaths > 30 && late > 100,
        "{deaths} deaths, {late} sessions that were not told of before the next one"
    );
}
