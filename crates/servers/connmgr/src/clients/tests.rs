//! Tests of transport servers and their connection manager in different processes: messages are late, cross,
//! and are repeated.

use std::collections::VecDeque;
use std::vec::Vec;

use atoll_base::Duration;
use atoll_ipc::lease::Grant;

use super::*;
use crate::{Config, ConnMgr, Listen, Offer, Syn, SynVerdict};

/// An address whose port has another TS than those here as its authority.
const LOCAL: Endpoint = Endpoint::new(0, 87);
const LEASE: u64 = 7;
const PATIENCE: Duration = Duration::from_millis(100);

fn ts(index: u8, epoch: u32) -> ConnMgr {
    let config = Config {
        replica: ReplicaId(index),
        replicas: 8,
        epoch: Epoch(epoch),
        ephemeral: (32768, 60999),
        backlog_max: 4096,
        leases_max: 100,
        session_leases_max: 100,
        session_listeners_max: 100,
        managers: 1,
        managers_apart: true,
        patience: PATIENCE,
    };
    ConnMgr::new(config, 1)
}

fn manager(epoch: u32) -> Manager {
    Manager::new(ManagerConfig { number: 0, managers: 1, epoch: Epoch(epoch), own: None }, 1)
}

/// A CM in a process of its own, some TSs, and rings between them.
struct Rig {
    now: Instant,
    manager: Manager,
    tss: Vec<ConnMgr>,
    to_manager: Vec<VecDeque<ManagerMessage>>,
    to_tss: Vec<VecDeque<ManagerMessage>>,
    /// The number of messages that a ring takes.
    room: usize,
}

impl Rig {
    fn new(tss: u8) -> Rig {
        let rings = || (0..tss).map(|_| VecDeque::new()).collect();
        Rig {
            now: Instant::from_millis(1000),
            manager: manager(1),
            tss: (0..tss).map(|index| ts(index, 1)).collect(),
            to_manager: rings(),
            to_tss: rings(),
            room: usize::MAX,
        }
    }

    fn listen(&mut self, ts: usize, session: u32) -> ListenerId {
        let (session, lease, local) = (SessionId(session), LEASE, LOCAL);
        let (reuse_port, defer_accept, v6_only) = (false, 0, false);
        let shown = Some(Grant::to_listen(lease, local));
        let listen =
            Listen { session, lease, local, backlog: 4000, reuse_port, defer_accept, v6_only, uid: 0, shown };
        self.tss[ts].handle_listen(&listen).expect("the port is free")
    }

    fn establish(&mut self, ts: usize, number: u32) -> bool {
        let SynVerdict::Accept { listener, .. } =
            self.tss[ts].handle_syn(&Syn { local: LOCAL, by_cookie: false, device: atoll_ipc::Device::None })
        else {
            return false;
        };
        self.tss[ts].handle_established(self.now, ConnectionId(number), listener);
        true
    }

    /// Lets one TS put its messages into its ring.
    fn ask(&mut self, ts: usize) {
        let (ring, room) = (&mut self.to_manager[ts], self.room);
        self.tss[ts].send_messages(self.now, |to, message| {
            assert_eq!(to, None);
            ring.len() < room && {
                ring.push_back(*message);
                true
            }
        });
    }

    /// Lets the CM take up to `count` messages of a TS, and send its answers.
    fn choose(&mut self, ts: usize, count: usize) {
        for _ in 0..count {
            let Some(message) = self.to_manager[ts].pop_front() else { break };
            // The message is decoded from its form in the ring.
            let message = ManagerMessage::decode(&message.encode()).expect("it is one");
            self.manager.handle(self.now, ReplicaId(ts as u8), &message);
        }
        let (rings, room) = (&mut self.to_tss, self.room);
        self.manager.send(self.now, |to, message| {
            let ring = &mut rings[usize::from(to.0)];
            ring.len() < room && {
                ring.push_back(*message);
                true
            }
        });
    }

    /// Lets a TS take up to `count` answers.
    fn hear(&mut self, ts: usize, count: usize) {
        for _ in 0..count {
            let Some(message) = self.to_tss[ts].pop_front() else { break };
            self.tss[ts].handle_message(self.now, ReplicaId(9), &message);
        }
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            for ts in 0..self.tss.len() {
                self.ask(ts);
                self.choose(ts, usize::MAX);
                self.hear(ts, usize::MAX);
            }
        }
    }

    fn directives(&mut self, ts: usize) -> Vec<Directive> {
        core::iter::from_fn(|| self.tss[ts].poll_directive())
            .filter(|directive| !matches!(directive, Directive::PortTaken { .. }))
            .collect()
    }

    fn offers(&mut self, ts: usize) -> Vec<Offer> {
        let is_offer = |directive| if let Directive::Offer(offer) = directive { Some(offer) } else { None };
        self.directives(ts).into_iter().filter_map(is_offer).collect()
    }

    fn unclaimed(&mut self) -> u32 {
        self.manager.acceptors(self.now).iter().map(|(_, view)| view.unclaimed).sum()
    }

    /// Lets the CM die; messages in the rings stay there. The TSs learn of its successor.
    fn restart_manager(&mut self) {
        let epoch = Epoch(self.manager.config.epoch.0 + 1);
        self.manager = manager(epoch.0);
        for ts in &mut self.tss {
            ts.handle_manager_restarted(self.now, epoch);
        }
    }

    fn turn(&mut self, ts: usize) {
        self.ask(ts);
        self.choose(ts, usize::MAX);
        self.hear(ts, usize::MAX);
    }
}

#[test]
fn one_cm_chooses_for_two_tss_among_those_registered_there() {
    let mut rig = Rig::new(2);
    for ts in 0..2 {
        rig.listen(ts, 1);
        rig.listen(ts, 2);
    }
    assert!(rig.tss[0].handle_accept(rig.now, SessionId(1), LEASE));
    assert!(rig.tss[1].handle_accept(rig.now, SessionId(2), LEASE));
    for n in 0..10 {
        assert!(rig.establish(0, n) && rig.establish(1, n));
        rig.turn(0);
        rig.turn(1);
        let sessions =
            [0, 1].map(|ts| rig.offers(ts).iter().map(|offer| offer.session.0).collect::<Vec<_>>());
        assert_eq!(sessions, [[1], [2]]);
    }
    assert_eq!(rig.unclaimed(), 20);
    // The acceptor is slow in one TS, and is removed in both.
    assert!(rig.tss[1].handle_accept(rig.now, SessionId(1), LEASE));
    rig.turn(1);
    let listener = rig.tss[0].listener_of(SessionId(1), LEASE).expect("it listens");
    rig.tss[0].handle_claim_timeout(rig.now, ConnectionId(3), listener, SessionId(1), LEASE);
    rig.turn(0);
    rig.turn(1);
    let removed = Directive::AcceptorRemoved { session: SessionId(1), lease: LEASE };
    assert_eq!((rig.directives(0), rig.directives(1)), (alloc::vec![removed], alloc::vec![removed]));
    // The connection waits in its TS until an acceptor registers there.
    rig.tss[1].handle_accept(rig.now, SessionId(1), LEASE);
    rig.turn(1);
    assert!(rig.offers(1).is_empty() && rig.offers(0).is_empty());
    rig.tss[0].handle_accept(rig.now, SessionId(2), LEASE);
    rig.turn(0);
    assert_eq!(
        rig.offers(0).iter().map(|offer| (offer.connection.0, offer.session.0)).collect::<Vec<_>>(),
        [(3, 2)]
    );
}

#[test]
fn an_answer_that_comes_after_the_end_of_its_connection_is_not_taken_for_the_next_one() {
    let mut rig = Rig::new(1);
    let listener = rig.listen(0, 1);
    rig.tss[0].handle_accept(rig.now, SessionId(1), LEASE);
    rig.establish(0, 5);
    rig.ask(0);
    rig.choose(0, usize::MAX);
    // While the answer is under way, the connection ends, and another one gets its number.
    rig.tss[0].handle_gone(ConnectionId(5), listener, Stage::Waiting);
    rig.establish(0, 5);
    rig.ask(0);
    rig.hear(0, usize::MAX);
    assert!(rig.offers(0).is_empty(), "an offer of the dead");
    rig.choose(0, usize::MAX);
    rig.hear(0, usize::MAX);
    assert_eq!((rig.offers(0).len(), rig.unclaimed()), (1, 1));
}

#[test]
fn an_answer_that_takes_too_long_is_asked_for_again_and_counts_once() {
    let mut rig = Rig::new(1);
    rig.listen(0, 1);
    rig.tss[0].handle_accept(rig.now, SessionId(1), LEASE);
    rig.establish(0, 5);
    rig.ask(0);
    assert_eq!(rig.tss[0].next_timeout(), Some(rig.now + PATIENCE));
    rig.now += PATIENCE;
    rig.tss[0].handle_timers(rig.now);
    rig.ask(0);
    // The first answer is lost.
    rig.choose(0, 3);
    rig.to_tss[0].clear();
    rig.choose(0, usize::MAX);
    rig.hear(0, usize::MAX);
    assert_eq!((rig.offers(0).len(), rig.unclaimed()), (1, 1));
    assert_eq!(rig.tss[0].next_timeout(), None);
    // No acceptor wants the next connection: that is an answer, too.
    rig.tss[0].handle_stop_accepting(rig.now, SessionId(1), LEASE);
    rig.establish(0, 6);
    rig.turn(0);
    assert!(rig.offers(0).is_empty() && rig.tss[0].next_timeout().is_none());
}

#[test]
fn what_waits_ends_with_its_listener_and_an_offer_under_way_too() {
    let mut rig = Rig::new(1);
    rig.listen(0, 1);
    rig.establish(0, 1);
    rig.turn(0);
    rig.tss[0].handle_accept(rig.now, SessionId(1), LEASE);
    rig.ask(0);
    rig.choose(0, usize::MAX);
    rig.tss[0].handle_stop_accepting(rig.now, SessionId(1), LEASE);
    rig.establish(0, 2);
    rig.ask(0);
    rig.choose(0, usize::MAX);
    rig.tss[0].handle_release(SessionId(1), LEASE);
    rig.ask(0);
    rig.choose(0, usize::MAX);
    rig.hear(0, usize::MAX);
    let ends = rig.directives(0);
    assert!(
        ends.iter().all(|directive| matches!(directive, Directive::Reset { .. })) && ends.len() == 2,
        "{ends:?}"
    );
    rig.turn(0);
    assert!(rig.manager.acceptors(rig.now).is_empty() && rig.manager.clients[0].asked.is_empty());
}

#[test]
fn a_cm_that_takes_nothing_stops_new_connections_and_loses_none() {
    let mut rig = Rig::new(1);
    rig.listen(0, 1);
    rig.tss[0].handle_accept(rig.now, SessionId(1), LEASE);
    rig.room = 2;
    let mut opened = 0;
    for n in 0..5000 {
        opened += usize::from(rig.establish(0, n));
        rig.ask(0);
    }
    assert!(rig.tss[0].is_crowded() && opened < 2000, "{opened}");
    rig.settle();
    let offered = rig.offers(0).len();
    assert!(offered == opened && !rig.tss[0].is_crowded() && rig.establish(0, 9999));
}

#[test]
fn a_ts_that_starts_again_begins_with_nothing() {
    let mut rig = Rig::new(2);
    for ts in 0..2 {
        rig.listen(ts, 1);
        rig.tss[ts].handle_accept(rig.now, SessionId(1), LEASE);
        rig.establish(ts, 1);
        rig.turn(ts);
    }
    assert_eq!(rig.unclaimed(), 2);
    let body = ManagerBody::Gone { connection: 1 };
    let message = |epoch| ManagerMessage { epoch: Epoch(epoch), to: Epoch(0), at: Instant::ZERO, body };
    rig.manager.handle(rig.now, ReplicaId(0), &message(2));
    assert_eq!(rig.unclaimed(), 1, "the other's counts");
    let dropped = rig.manager.dropped();
    // These are from a dead incarnation, from none, and from a TS that another CM serves.
    for (from, epoch) in [(0, 1), (0, 0), (7, 0)] {
        rig.manager.handle(rig.now, ReplicaId(from), &message(epoch));
    }
    assert_eq!(rig.manager.dropped(), dropped + 3);
}

#[test]
fn a_cm_that_starts_again_is_told_what_the_last_one_knew() {
    let mut rig = Rig::new(2);
    for ts in 0..2 {
        rig.tss[ts].handle_manager_restarted(rig.now, Epoch(1));
        rig.listen(ts, 1);
        rig.listen(ts, 2);
    }
    rig.tss[1].handle_accept(rig.now, SessionId(1), LEASE);
    // Of the connections of TS 0 some wait, some have been asked about, some have not; one of TS 1 is
    // offered.
    for n in 0..5 {
        rig.establish(0, n);
    }
    rig.establish(1, 1);
    rig.turn(0);
    rig.turn(1);
    assert_eq!((rig.offers(0).len(), rig.offers(1).len()), (0, 1));
    rig.establish(0, 5);
    rig.ask(0);
    rig.establish(0, 6);
    rig.restart_manager();
    // The new CM gets a question that was meant for the dead one, and does not know the listener yet.
    rig.choose(0, 1);
    rig.hear(0, usize::MAX);
    assert_eq!(rig.directives(0), [], "no connection is lost");
    rig.turn(0);
    rig.turn(1);
    assert_eq!(
        (rig.offers(1).len(), rig.unclaimed()),
        (0, 1),
        "what is offered is not offered again, and counts"
    );
    rig.tss[0].handle_accept(rig.now, SessionId(2), LEASE);
    rig.turn(0);
    let offers = rig.offers(0);
    assert_eq!(
        offers.iter().map(|offer| offer.connection.0).collect::<Vec<_>>(),
        [0, 1, 2, 3, 4, 5, 6],
        "in order"
    );
    let listener = rig.tss[1].listener_of(SessionId(1), LEASE).expect("it is there");
    // What the dead CM has offered is claimed; its end is not reported, because the new CM does not know its
    // beginning.
    let is_told = rig.tss[1].handle_claimed(rig.now, ConnectionId(1), listener, SessionId(1), LEASE, rig.now);
    rig.turn(1);
    assert!(!is_told && rig.manager.clients[1].asked.is_empty());
    assert_eq!(rig.unclaimed(), 7);
    // The acceptors of TS 1 are known as well.
    rig.establish(1, 9);
    rig.turn(1);
    assert_eq!(rig.offers(1).len(), 1);
}

#[test]
fn an_offer_of_a_dead_cm_that_is_not_claimed_is_made_to_another() {
    let mut rig = Rig::new(1);
    let listener = rig.listen(0, 1);
    rig.listen(0, 2);
    rig.tss[0].handle_accept(rig.now, SessionId(1), LEASE);
    rig.establish(0, 1);
    rig.turn(0);
    assert_eq!(rig.offers(0).len(), 1);
    rig.restart_manager();
    rig.tss[0].handle_accept(rig.now, SessionId(2), LEASE);
    rig.turn(0);
    rig.tss[0].handle_claim_timeout(rig.now, ConnectionId(1), listener, SessionId(1), LEASE);
    rig.turn(0);
    let offered: Vec<_> = rig.directives(0);
    assert!(
        matches!(
            offered[..],
            [Directive::AcceptorRemoved { session: SessionId(1), .. }, Directive::Offer(offer)]
                if offer.session == SessionId(2)
        ),
        "{offered:?}"
    );
}

#[test]
fn an_answer_to_a_dead_ts_is_not_taken_by_its_successor() {
    let mut rig = Rig::new(1);
    rig.listen(0, 1);
    rig.tss[0].handle_accept(rig.now, SessionId(1), LEASE);
    rig.establish(0, 1);
    rig.ask(0);
    rig.choose(0, usize::MAX);
    assert!(!rig.to_tss[0].is_empty(), "the offer is under way");
    // The next incarnation of the TS asks about a connection with the same number, under the same ticket.
    rig.tss[0] = ts(0, 2);
    rig.listen(0, 1);
    rig.establish(0, 1);
    rig.hear(0, usize::MAX);
    assert_eq!(rig.offers(0), []);
    rig.tss[0].handle_accept(rig.now, SessionId(1), LEASE);
    rig.turn(0);
    assert_eq!(rig.offers(0).len(), 1);
}

/// Whatever happens in whatever order, each connection is offered to one acceptor, or waits while none is
/// registered. In the end all counts are right.
#[test]
fn random_delays_leave_the_counts_right() {
    let mut rng = Rng::new(9);
    for story in 0..300 {
        let mut rig = Rig::new(1 + rng.below(3) as u8);
        // In half of the stories the CM dies now and then.
        let (dies, mut has_died) = (story % 2 == 1, false);
        rig.room = 1 + rng.below(6) as usize;
        let count = rig.tss.len();
        // For each TS: number, listener, and the session to which it is offered.
        let mut live: Vec<Vec<(u32, ListenerId, Option<SessionId>)>> =
            (0..count).map(|_| Vec::new()).collect();
        // A session that has ended comes back under another number.
        let mut sessions = [0, 1, 2].map(SessionId);
        for step in 0..400 {
            let ts = rng.below(count as u32) as usize;
            let place = rng.below(3) as usize;
            let session = sessions[place];
            let number = rng.below(8);
            rig.now += Duration::from_micros(rng.below(20_000).into());
            match rng.below(12) {
                0 => drop(rig.listen(ts, session.0)),
                1 | 2 => drop(rig.tss[ts].handle_accept(rig.now, session, LEASE)),
                3 => drop(rig.tss[ts].handle_stop_accepting(rig.now, session, LEASE)),
                4 if step % 10 == 0 => {
                    sessions[place].0 += 3;
                    for (cm, live) in rig.tss.iter_mut().zip(&mut live) {
                        cm.handle_session_gone(session);
                        for (number, listener, offered) in
                            live.iter_mut().filter(|(.., of)| *of == Some(session))
                        {
                            *offered = None;
                            cm.handle_returned(rig.now, ConnectionId(*number), *listener, session, LEASE);
                        }
                    }
                }
                5 | 6 if live[ts].iter().all(|(known, ..)| *known != number) => {
                    let syn = rig.tss[ts].handle_syn(&Syn {
                        local: LOCAL,
                        by_cookie: false,
                        device: atoll_ipc::Device::None,
                    });
                    if let SynVerdict::Accept { listener, .. } = syn {
                        live[ts].push((number, listener, None));
                        rig.tss[ts].handle_established(rig.now, ConnectionId(number), listener);
                    }
                }
                7 if !live[ts].is_empty() => {
                    let at = rng.below(live[ts].len() as u32) as usize;
                    let (number, listener, offered) = live[ts][at];
                    let connection = ConnectionId(number);
                    match (offered, rng.below(3)) {
                        (Some(session), 0) => {
                            live[ts].remove(at);
                            rig.tss[ts]
                                .handle_claimed(rig.now, connection, listener, session, LEASE, rig.now);
                        }
                        (Some(session), 1) => {
                            live[ts][at].2 = None;
                            rig.tss[ts].handle_claim_timeout(rig.now, connection, listener, session, LEASE);
                        }
                        (offered, _) => {
                            live[ts].remove(at);
                            let stage = offered
                                .map_or(Stage::Waiting, |session| Stage::Offered { session, lease: LEASE });
                            rig.tss[ts].handle_gone(connection, listener, stage);
                        }
                    }
                }
                8 => rig.ask(ts),
                9 => rig.choose(ts, rng.below(4) as usize),
                10 => rig.hear(ts, rng.below(4) as usize),
                _ if dies && rng.below(10) == 0 => {
                    rig.restart_manager();
                    has_died = true;
                }
                _ => rig.tss[ts].handle_timers(rig.now),
            }
            note(&mut rig, &mut live);
        }
        rig.room = usize::MAX;
        for _ in 0..20 {
            for ts in 0..count {
                rig.turn(ts);
            }
            note(&mut rig, &mut live);
        }
        let offered = live.iter().flatten().filter(|(.., offered)| offered.is_some()).count();
        // The unclaimed connections of a session that was not registered when the CM died are not known.
        let unclaimed = rig.unclaimed() as usize;
        assert!(unclaimed == offered || has_died && unclaimed < offered, "{unclaimed} of {offered}");
        for (ts, live) in live.iter().enumerate() {
            assert_eq!(rig.manager.clients[ts].asked.len(), live.len());
            let unclaimed: u32 = rig.tss[ts].listeners().map(|view| view.unclaimed).sum();
            let current = rig.tss[ts].listeners.by_address(LOCAL);
            let of_current = live.iter().filter(|(_, listener, _)| Some(*listener) == current);
            assert_eq!(unclaimed as usize, of_current.count());
        }
    }
}

fn note(rig: &mut Rig, live: &mut [Vec<(u32, ListenerId, Option<SessionId>)>]) {
    for (ts, live) in live.iter_mut().enumerate() {
        for directive in rig.directives(ts) {
            match directive {
                Directive::Offer(offer) => {
                    let known = live.iter_mut().find(|(number, ..)| *number == offer.connection.0);
                    let known = known.expect("the connection is there");
                    assert_eq!((known.1, known.2), (offer.listener, None), "offered to two");
                    if rig.tss[ts].listener_of(offer.session, LEASE).is_some() {
                        known.2 = Some(offer.session);
                    } else {
                        // The session has ended meanwhile, so there is no slot for it.
                        rig.tss[ts].handle_claim_timeout(
                            rig.now,
                            offer.connection,
                            offer.listener,
                            offer.session,
                            LEASE,
                        );
                    }
                }
                Directive::Reset { connection } => live.retain(|(number, ..)| *number != connection.0),
                _ => {}
            }
        }
    }
}
