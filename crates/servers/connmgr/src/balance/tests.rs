//! Tests of several CMs, the messages between them, and workers that take their time: how many connections
//! does each worker get?

use std::collections::{BTreeMap, VecDeque};
use std::vec::Vec;

use atoll_base::{Duration, Endpoint, Epoch, Instant, ReplicaId, Rng, SessionId};
use atoll_ipc::balance::{Balance, Estimator, PeerBody, PeerMessage, PeerOffer, Scheme};
use atoll_ipc::command::Protocol;
use atoll_ipc::control::User;
use atoll_ipc::lease::Grant;

use super::Reach;
use crate::{Bind, Config, ConnMgr, ConnectionId, Directive, Listen, ListenerId, Stage, Syn, SynVerdict};

const LEASE: u64 = 77;
const ROOT: User = User::privileged(0);
const LOCAL: Endpoint = Endpoint::new(0, 80);

/// A worker, which serves one connection after another, in the order of their offers.
struct Worker {
    session: SessionId,
    /// The microseconds that a connection takes from its claim to its close.
    service: u64,
    /// Whether it claims nothing.
    stopped: bool,
    /// Whether it claims at once and closes nothing.
    keeps: bool,
    queue: VecDeque<(usize, u32, Instant)>,
    busy_until: Option<(Instant, usize, Instant)>,
    closed: u32,
    given: u32,
    kept: u32,
}

/// Replicas as far as CMs see them.
struct Cms {
    now: Instant,
    cms: Vec<ConnMgr>,
    id: ListenerId,
    workers: BTreeMap<u32, Worker>,
    /// The messages under way, by arrival.
    wire: VecDeque<(Instant, usize, PeerMessage)>,
    /// The replicas that sleep, and read nothing until they are woken, a bit each.
    asleep: u8,
    /// The replicas whose messages are lost, a bit each.
    mute: u8,
    woken: u32,
    /// The connections offered and not claimed: replica, number, session, deadline.
    offered: BTreeMap<(usize, u32), (SessionId, Instant)>,
    next: u32,
    removed: u32,
    waiting: u32,
    rng: Rng,
    claim_timeout: Duration,
}

impl Cms {
    /// Creates `replicas` CMs and workers with these sessions and service times.
    fn new(replicas: u8, workers: &[(u32, u64)], rules: Balance, seed: u64) -> Cms {
        let now = Instant::from_millis(1000);
        let cm = |index: u8| {
            let config = Config {
                replica: ReplicaId(index),
                replicas,
                epoch: Epoch(1),
                ephemeral: (32768, 60999),
                backlog_max: 60_000,
                leases_max: 100,
                session_leases_max: 100,
                session_listeners_max: 100,
                managers: replicas,
                managers_apart: false,
                patience: Duration::from_millis(100),
            };
            let mut cm = ConnMgr::new(config, seed + u64::from(index));
            cm.set_balance(rules);
            cm
        };
        let mut cms: Vec<ConnMgr> = (0..replicas).map(cm).collect();
        let mut id = None;
        for cm in &mut cms {
            for &(session, _) in workers {
                let session = SessionId(session);
                let (reuse_addr, reuse_port, v6_only) = (true, false, false);
                let (lease, protocol, local) = (LEASE, Protocol::Tcp, LOCAL);
                let _ = cm.handle_bind(&Bind {
                    session,
                    user: ROOT,
                    lease,
                    protocol,
                    local,
                    reuse_addr,
                    reuse_port,
                    v6_only,
                    device: atoll_ipc::Device::None,
                });
                let shown = Some(Grant::to_listen(lease, local));
                let (backlog, defer_accept) = (60_000, 0);
                let listen = Listen {
                    session,
                    lease,
                    local,
                    backlog,
                    reuse_port,
                    defer_accept,
                    v6_only,
                    uid: 0,
                    shown,
                };
                id = Some(cm.handle_listen(&listen).expect("free"));
                assert!(cm.handle_accept(now, session, lease));
            }
        }
        let worker = |&(session, service): &(u32, u64)| {
            let session_id = SessionId(session);
            (
                session,
                Worker {
                    session: session_id,
                    service,
                    stopped: false,
                    keeps: false,
                    queue: VecDeque::new(),
                    busy_until: None,
                    closed: 0,
                    given: 0,
                    kept: 0,
                },
            )
        };
        Cms {
            now,
            cms,
            id: id.expect("there are workers"),
            workers: workers.iter().map(worker).collect(),
            wire: VecDeque::new(),
            asleep: 0,
            mute: 0,
            woken: 0,
            offered: BTreeMap::new(),
            next: 0,
            removed: 0,
            waiting: 0,
            rng: Rng::new(seed),
            claim_timeout: Duration::from_millis(100),
        }
    }

    fn worker(&mut self, session: u32) -> &mut Worker {
        self.workers.get_mut(&session).expect("it exists")
    }

    /// Lets a connection arrive at a replica.
    fn arrive(&mut self, replica: usize) {
        let syn = Syn { local: LOCAL, by_cookie: false, device: atoll_ipc::Device::None };
        assert!(matches!(self.cms[replica].handle_syn(&syn), SynVerdict::Accept { .. }));
        self.next += 1;
        self.cms[replica].handle_established(self.now, ConnectionId(self.next), self.id);
        self.waiting += 1;
        self.direct(replica);
    }

    fn direct(&mut self, replica: usize) {
        while let Some(directive) = self.cms[replica].poll_directive() {
            match directive {
                Directive::Offer(offer) => {
                    let place = (replica, offer.connection.0);
                    let until = self.now + self.claim_timeout;
                    assert!(self.offered.insert(place, (offer.session, until)).is_none(), "offered to two");
                    self.waiting -= 1;
                    let now = self.now;
                    if let Some(worker) = self.workers.get_mut(&offer.session.0) {
                        worker.given += 1;
                        worker.queue.push_back((replica, offer.connection.0, now));
                    }
                }
                Directive::AcceptorRemoved { session, .. } => {
                    self.removed += 1;
                    // A worker that is alive registers again.
                    if self.workers.get(&session.0).is_some_and(|worker| !worker.stopped) {
                        assert!(self.cms[replica].handle_accept(self.now, session, LEASE));
                    }
                }
                Directive::Reset { .. } | Directive::PortTaken { .. } | Directive::ConnectionsWait { .. } => {
                }
            }
        }
    }

    /// Runs for `micros`, with a connection every `every` microseconds at a random one of `replicas`.
    fn run(&mut self, micros: u64, every: u64, replicas: &[usize]) {
        let until = self.now + Duration::from_micros(micros);
        let mut next = self.now;
        while self.now < until {
            if every > 0 && self.now >= next {
                next += Duration::from_micros(every);
                let at = replicas[self.rng.below(replicas.len() as u32) as usize];
                self.wake(at);
                self.arrive(at);
            }
            self.step();
            self.now += Duration::from_micros(10);
        }
    }

    fn wake(&mut self, replica: usize) {
        self.woken += u32::from(self.asleep & (1 << replica) != 0);
        self.asleep &= !(1 << replica);
    }

    fn step(&mut self) {
        self.deliver();
        self.work();
        self.time_out();
        for from in 0..self.cms.len() {
            if self.asleep & (1 << from) != 0 {
                continue;
            }
            let reach = Reach { awake: !u64::from(self.asleep), takes: u64::MAX };
            // Every round may be the last for a while.
            while let Some(output) = self.cms[from].poll_peer(self.now, reach, true) {
                if self.mute & (1 << from) != 0 {
                    continue;
                }
                for to in (0..self.cms.len()).filter(|to| output.to & (1 << to) != 0) {
                    assert_ne!(to, from);
                    if output.wakes {
                        self.wake(to);
                    }
                    self.wire.push_back((self.now + Duration::from_micros(5), to, output.message));
                }
            }
        }
    }

    fn deliver(&mut self) {
        for _ in 0..self.wire.len() {
            let Some((at, to, message)) = self.wire.pop_front() else { break };
            if at <= self.now && self.asleep & (1 << to) == 0 {
                self.cms[to].handle_peer(self.now, &message);
                self.direct(to);
            } else {
                self.wire.push_back((at, to, message));
            }
        }
    }

    fn work(&mut self) {
        let (now, id) = (self.now, self.id);
        for worker in self.workers.values_mut().filter(|worker| !worker.stopped) {
            if let Some((_, replica, offered_at)) = worker.busy_until.take_if(|(until, ..)| *until <= now) {
                self.cms[replica].handle_closed(now, worker.session, LEASE, offered_at);
                worker.closed += 1;
            }
            while worker.busy_until.is_none()
                && let Some((replica, number, offered_at)) = worker.queue.pop_front()
            {
                let place = (replica, number);
                if self.offered.get(&place).is_none_or(|(session, _)| *session != worker.session) {
                    continue;
                }
                self.offered.remove(&place);
                assert!(self.cms[replica].handle_claimed(
                    now,
                    ConnectionId(number),
                    id,
                    worker.session,
                    LEASE,
                    offered_at
                ));
                if worker.keeps {
                    worker.kept += 1;
                } else {
                    worker.busy_until =
                        Some((now + Duration::from_micros(worker.service), replica, offered_at));
                }
            }
        }
    }

    fn time_out(&mut self) {
        let due: Vec<_> = self
            .offered
            .iter()
            .filter(|(_, (_, until))| *until <= self.now)
            .map(|(at, of)| (*at, *of))
            .collect();
        for ((replica, number), (session, _)) in due {
            self.offered.remove(&(replica, number));
            self.waiting += 1;
            self.cms[replica].handle_claim_timeout(self.now, ConnectionId(number), self.id, session, LEASE);
            self.direct(replica);
        }
    }

    /// Returns the connections closed since the last call.
    fn take_closed(&mut self) -> Vec<u32> {
        self.workers.values_mut().map(|worker| core::mem::take(&mut worker.closed)).collect()
    }

    /// Runs until everything is served.
    fn finish(&mut self) {
        for _ in 0..10_000 {
            if self.waiting == 0
                && self.offered.is_empty()
                && self.workers.values().all(|w| w.busy_until.is_none())
            {
                return;
            }
            self.run(1000, 0, &[]);
        }
        panic!("{} wait, {} are offered", self.waiting, self.offered.len());
    }

    fn taken(&self) -> u64 {
        self.cms.iter().map(|cm| cm.balance_counts().offers_taken).sum()
    }
}

fn rules(scheme: Scheme, tariff: u16) -> Balance {
    Balance { scheme, tariff, ..Balance::new() }
}

/// Returns sessions 0..8, two for each of four CMs.
fn eight(slow: u64) -> [(u32, u64); 8] {
    core::array::from_fn(|n| (n as u32, if n == 0 { slow } else { 100 }))
}

#[test]
fn under_uniform_load_connections_stay_at_home() {
    for (scheme, most) in [(Scheme::Tournament, 0.15), (Scheme::Filtered, 0.15), (Scheme::Unfiltered, 1.0)] {
        let mut cms = Cms::new(4, &eight(100), rules(scheme, 2), 1);
        cms.run(300_000, 50, &[0, 1, 2, 3]);
        cms.finish();
        let closed = cms.take_closed();
        assert_eq!(closed.iter().sum::<u32>(), cms.next);
        let mean = cms.next / 8;
        assert!(closed.iter().all(|count| count.abs_diff(mean) < mean / 3), "{scheme:?}: {closed:?}");
        let taken = cms.taken() as f64 / f64::from(cms.next);
        assert!(taken <= most, "{scheme:?}: {taken}");
        if scheme == Scheme::Unfiltered {
            assert!(taken > 0.4, "it does not know what is its own: {taken}");
        }
    }
}

#[test]
fn a_slow_worker_gets_less_under_every_scheme_but_naive() {
    for (scheme, tariff) in
        [(Scheme::Tournament, 2), (Scheme::Filtered, 2), (Scheme::Unfiltered, 2), (Scheme::Unfiltered, 100)]
    {
        // A worker ten times as slow as its neighbour gets at most an eleventh of the quarter that arrives at
        // its CM.
        let mut cms = Cms::new(4, &eight(1000), rules(scheme, tariff), 2);
        cms.run(500_000, 50, &[0, 1, 2, 3]);
        cms.finish();
        let closed = cms.take_closed();
        let share = f64::from(closed[0]) / f64::from(cms.next);
        assert!(share < 0.025, "{scheme:?} {tariff}: {share} {closed:?}");
        assert!(closed[0] > 10, "it is tried again: {closed:?}");
    }
    let mut cms = Cms::new(4, &eight(1000), rules(Scheme::Naive, 2), 2);
    cms.run(500_000, 200, &[0, 1, 2, 3]);
    cms.finish();
    let closed = cms.take_closed();
    assert!(closed[0] > cms.next / 12, "naive does not care: {closed:?}");
    assert_eq!(cms.taken(), 0);
}

#[test]
fn a_cm_whose_own_are_slow_gives_to_others_and_takes_back_when_they_recover() {
    for estimator in [Estimator::Median, Estimator::Average] {
        let workers: Vec<(u32, u64)> = (0..4).map(|n| (n, if n % 2 == 0 { 2000 } else { 100 })).collect();
        let (window, sample_us) = Balance::usual_window(estimator);
        let rules = Balance { estimator, window, sample_us, ..rules(Scheme::Tournament, 2) };
        let mut cms = Cms::new(2, &workers, rules, 3);
        cms.run(500_000, 200, &[0, 1]);
        let slow = cms.take_closed();
        let share = |closed: &[u32]| f64::from(closed[0] + closed[2]) / f64::from(closed.iter().sum::<u32>());
        assert!(share(&slow) < 0.12, "{estimator:?}: {slow:?}");
        for session in [0, 2] {
            cms.worker(session).service = 100;
        }
        cms.run(1_500_000, 200, &[0, 1]);
        cms.take_closed();
        cms.run(500_000, 200, &[0, 1]);
        let recovered = cms.take_closed();
        assert!((0.35..0.65).contains(&share(&recovered)), "{estimator:?}: {recovered:?}");
        cms.finish();
    }
}

#[test]
fn a_cm_without_acceptors_lives_from_offers() {
    for scheme in Scheme::ALL {
        // All workers are at home at CM 1.
        let workers: Vec<(u32, u64)> = (0..4).map(|n| (2 * n + 1, 100)).collect();
        let mut cms = Cms::new(2, &workers, rules(scheme, 2), 4);
        // CM 1 has something to do, too, so it is awake and offers.
        cms.run(200_000, 100, &[0, 1]);
        cms.finish();
        let closed = cms.take_closed();
        assert_eq!(closed.iter().sum::<u32>(), cms.next, "{scheme:?}");
        assert!(closed.iter().all(|count| *count > cms.next / 10), "{scheme:?}: {closed:?}");
        let counts = cms.cms[0].balance_counts();
        assert!(counts.offers_taken > u64::from(cms.next) / 3, "{scheme:?}: {counts:?}");
    }
}

#[test]
fn a_crowd_that_comes_to_a_cm_without_acceptors_is_spread() {
    let workers: Vec<(u32, u64)> = (0..4).map(|n| (2 * n + 1, 100)).collect();
    let mut cms = Cms::new(2, &workers, rules(Scheme::Tournament, 2), 18);
    cms.run(50_000, 100, &[1]);
    cms.finish();
    let before: Vec<u32> = cms.workers.values().map(|worker| worker.given).collect();
    // All of these arrive before any other CM learns of one.
    for _ in 0..64 {
        cms.arrive(0);
    }
    let given = cms.workers.values().zip(before).map(|(worker, before)| worker.given - before);
    let given: Vec<u32> = given.collect();
    assert!(given.iter().all(|given| (8..=24).contains(given)), "{given:?}");
    cms.finish();
}

#[test]
fn who_sleeps_is_woken_for_reports_and_never_for_offers() {
    // Everything arrives at CM 0, and CM 1 sleeps after each round in which it has nothing to do.
    let workers: Vec<(u32, u64)> = (0..4).map(|n| (n, if n % 2 == 0 { 1500 } else { 100 })).collect();
    let mut cms = Cms::new(2, &workers, rules(Scheme::Tournament, 2), 5);
    for _ in 0..1000 {
        cms.asleep = 0b10;
        cms.run(1000, 1000, &[0]);
    }
    cms.finish();
    let closed = cms.take_closed();
    assert!(closed[1] + closed[3] > cms.next / 2, "its acceptors are the faster ones: {closed:?}");
    let woken = cms.woken;
    assert!((1..=100).contains(&woken), "woken {woken} times for 1000 connections in a second");
    // Nothing arrives: no CM is woken, and none sends anything.
    cms.asleep = 0b11;
    let before: Vec<_> = cms.cms.iter().map(ConnMgr::balance_counts).collect();
    for _ in 0..100 {
        cms.run(10_000, 0, &[]);
    }
    let after: Vec<_> = cms.cms.iter().map(ConnMgr::balance_counts).collect();
    assert_eq!((cms.woken, after), (woken, before));
}

#[test]
fn the_acceptors_of_a_silent_cm_are_served_by_what_is_seen_of_them() {
    // CM 1 never sends anything.
    let mut cms = Cms::new(2, &[(0, 1000), (1, 1000), (2, 1000), (3, 100)], rules(Scheme::Tournament, 2), 6);
    cms.mute = 0b10;
    cms.run(600_000, 300, &[0]);
    let closed = cms.take_closed();
    assert!(closed[3] > closed[0] + closed[1] + closed[2], "{closed:?}");
    assert!(closed.iter().all(|count| *count > 20), "{closed:?}");
}

#[test]
fn a_worker_that_stops_holds_up_few_and_is_nobody_new_when_it_goes_on() {
    let mut cms = Cms::new(2, &[(0, 100), (1, 100), (2, 100), (3, 100)], rules(Scheme::Tournament, 2), 7);
    cms.run(200_000, 50, &[0, 1]);
    cms.worker(2).stopped = true;
    let given = cms.worker(2).given;
    cms.run(300_000, 50, &[0, 1]);
    let held_up = cms.worker(2).given - given;
    assert!((1..40).contains(&held_up), "{held_up} connections had to wait");
    assert!(cms.removed >= 1);
    cms.run(200_000, 50, &[0, 1]);
    assert_eq!(cms.worker(2).given - given, held_up, "nothing more");
    // The worker continues, and registers again.
    cms.worker(2).stopped = false;
    for replica in 0..2 {
        assert!(cms.cms[replica].handle_accept(cms.now, SessionId(2), LEASE));
    }
    cms.take_closed();
    cms.run(300_000, 50, &[0, 1]);
    let closed = cms.take_closed();
    assert!(closed[2] > closed.iter().sum::<u32>() / 8, "{closed:?}");
    cms.finish();
}

#[test]
fn a_worker_that_dies_or_forks_loses_nothing() {
    let mut cms = Cms::new(2, &[(0, 100), (1, 100), (2, 100)], rules(Scheme::Tournament, 2), 8);
    cms.run(100_000, 50, &[0, 1]);
    // Worker 1 dies: both replicas notice, at different times, and hand back what it had not claimed.
    cms.worker(1).stopped = true;
    for replica in 0..2 {
        cms.cms[replica].handle_session_gone(SessionId(1));
        let offered = core::mem::take(&mut cms.offered);
        let (lost, kept) = offered
            .into_iter()
            .partition(|((at, _), (session, _))| *at == replica && *session == SessionId(1));
        cms.offered = kept;
        let lost: BTreeMap<(usize, u32), (SessionId, Instant)> = lost;
        for (_, number) in lost.into_keys() {
            cms.waiting += 1;
            cms.cms[replica].handle_returned(cms.now, ConnectionId(number), cms.id, SessionId(1), LEASE);
            cms.direct(replica);
        }
        cms.run(5_000, 50, &[0, 1]);
    }
    cms.worker(1).busy_until = None;
    // A child replaces the worker.
    let given = cms.worker(1).given;
    for cm in &mut cms.cms {
        let bind = Bind {
            session: SessionId(9),
            user: ROOT,
            lease: LEASE,
            protocol: Protocol::Tcp,
            local: LOCAL,
            reuse_addr: true,
            reuse_port: false,
            v6_only: false,
            device: atoll_ipc::Device::None,
        };
        let _ = cm.handle_bind(&bind);
        let listen = Listen {
            session: SessionId(9),
            lease: LEASE,
            local: LOCAL,
            backlog: 60_000,
            reuse_port: false,
            defer_accept: 0,
            v6_only: false,
            uid: 0,
            shown: Some(Grant::to_listen(LEASE, LOCAL)),
        };
        cm.handle_listen(&listen).expect("a holder's child");
        assert!(cm.handle_accept(cms.now, SessionId(9), LEASE));
    }
    cms.workers.insert(
        9,
        Worker {
            session: SessionId(9),
            service: 100,
            stopped: false,
            keeps: false,
            queue: VecDeque::new(),
            busy_until: None,
            closed: 0,
            given: 0,
            kept: 0,
        },
    );
    cms.run(200_000, 50, &[0, 1]);
    cms.finish();
    assert_eq!(cms.worker(1).given, given, "the dead get nothing");
    assert!(cms.worker(9).closed > 500, "the child serves: {}", cms.worker(9).closed);
}

#[test]
fn who_stops_accepting_gets_nothing_from_any_cm() {
    let mut cms = Cms::new(2, &[(0, 100), (1, 100), (2, 100), (3, 100)], rules(Scheme::Tournament, 2), 9);
    cms.run(50_000, 50, &[0, 1]);
    for replica in 0..2 {
        assert!(cms.cms[replica].handle_stop_accepting(cms.now, SessionId(3), LEASE));
        assert!(!cms.cms[replica].handle_stop_accepting(cms.now, SessionId(3), LEASE), "it had stopped");
    }
    let given = cms.worker(3).given;
    cms.run(100_000, 50, &[0, 1]);
    cms.finish();
    assert_eq!(cms.worker(3).given, given);
}

#[test]
fn who_keeps_what_it_gets_gets_less() {
    let mut cms = Cms::new(2, &[(0, 100), (1, 100), (2, 100), (3, 100)], rules(Scheme::Tournament, 2), 10);
    cms.worker(0).keeps = true;
    cms.run(1_000_000, 100, &[0, 1]);
    let kept = cms.worker(0).kept;
    assert!((1..cms.next / 20).contains(&kept), "kept {kept} of {}", cms.next);
}

#[test]
fn connections_that_stay_open_are_shared_evenly() {
    let workers: Vec<(u32, u64)> = (0..4).map(|n| (n, 100)).collect();
    let mut cms = Cms::new(1, &workers, rules(Scheme::Tournament, 2), 16);
    for worker in cms.workers.values_mut() {
        worker.keeps = true;
    }
    cms.run(40_000, 100, &[0]);
    let kept: Vec<u32> = cms.workers.values().map(|worker| worker.kept).collect();
    assert_eq!(kept.iter().sum::<u32>(), cms.next);
    assert!(kept.iter().all(|kept| (80..120).contains(kept)), "{kept:?}");
}

#[test]
fn offers_go_out_once_in_a_period_and_only_after_something_has_happened() {
    let mut cms = Cms::new(2, &[(0, 100), (1, 100), (2, 100)], rules(Scheme::Tournament, 2), 17);
    let reach = Reach { awake: u64::MAX, takes: u64::MAX };
    let offers = |cm: &mut ConnMgr, now| {
        let all = core::iter::from_fn(|| cm.poll_peer(now, reach, false));
        all.filter(|output| matches!(output.message.body, PeerBody::Offer(_))).count()
    };
    let mut sent = Vec::new();
    for micros in 0..1000 {
        cms.now += Duration::from_micros(1);
        if micros % 20 == 0 {
            cms.arrive(0);
        }
        if offers(&mut cms.cms[0], cms.now) > 0 {
            sent.push(micros);
        }
    }
    assert!((2..=20).contains(&sent.len()), "only what gets worse is told at once: {sent:?}");
    assert!(sent.windows(2).all(|two| two[1] - two[0] >= 50), "{sent:?}");
    // Nothing happens, except that what was still to be sent is sent.
    cms.now += Duration::from_secs(1);
    assert!(offers(&mut cms.cms[0], cms.now) <= 1);
    cms.now += Duration::from_secs(1);
    assert_eq!(offers(&mut cms.cms[0], cms.now), 0);
}

#[test]
fn rules_change_while_connections_are_served() {
    let mut cms = Cms::new(2, &[(0, 1000), (1, 100), (2, 1000), (3, 100)], rules(Scheme::Naive, 2), 11);
    cms.run(300_000, 500, &[0, 1]);
    let naive = cms.take_closed();
    assert!(naive[0] + naive[2] > naive.iter().sum::<u32>() / 3, "{naive:?}");
    for cm in &mut cms.cms {
        cm.set_balance(rules(Scheme::Tournament, 2));
        // Invalid rules change nothing.
        cm.set_balance(Balance { tariff: 0, ..Balance::new() });
    }
    cms.run(300_000, 500, &[0, 1]);
    let tournament = cms.take_closed();
    assert!(tournament[0] + tournament[2] < tournament.iter().sum::<u32>() / 4, "{tournament:?}");
    cms.finish();
}

#[test]
fn nothing_is_measured_and_nobody_speaks_where_there_is_no_choice() {
    let mut cms = Cms::new(2, &[(0, 100)], rules(Scheme::Tournament, 2), 12);
    let id = cms.id;
    for n in 0..100 {
        let replica = n as usize % 2;
        cms.arrive(replica);
        cms.offered.clear();
        cms.worker(0).queue.clear();
        let offered_at = cms.now;
        assert!(!cms.cms[replica].handle_claimed(
            cms.now,
            ConnectionId(n),
            id,
            SessionId(0),
            LEASE,
            offered_at
        ));
        cms.now += Duration::from_micros(100);
        let reach = Reach { awake: u64::MAX, takes: u64::MAX };
        assert!(!cms.cms[replica].is_peer_due(cms.now, true));
        assert_eq!(cms.cms[replica].poll_peer(cms.now, reach, true), None);
    }
}

#[test]
fn messages_of_the_dead_and_of_strangers_do_not_count() {
    let mut cms = Cms::new(2, &[(0, 100), (2, 100), (1, 100)], rules(Scheme::Filtered, 2), 13);
    let offer = PeerOffer { lease: LEASE, session: SessionId(1), service_us: Some(1) };
    let message = |from, epoch, offer| PeerMessage {
        from: ReplicaId(from),
        epoch: Epoch(epoch),
        sent_at: cms.now,
        body: PeerBody::Offer(offer),
    };
    let messages = [
        (message(1, 2, offer), 0),
        (message(1, 1, offer), 1),
        (message(0, 2, offer), 1),
        (message(2, 2, offer), 1),
        (message(255, 2, offer), 1),
        (message(1, 0, offer), 1),
        (message(1, 3, PeerOffer { lease: 5, ..offer }), 1),
    ];
    let mut dropped = 0;
    for (message, more) in messages {
        cms.cms[0].handle_peer(cms.now, &message);
        dropped += more;
        assert_eq!(cms.cms[0].balance_counts().dropped, dropped, "{message:?}");
    }
    // The last offer came from a new incarnation: what the one before had offered is forgotten.
    for session in [0, 2] {
        let view =
            cms.cms[0].acceptors(cms.now).into_iter().find(|(_, view)| view.session == SessionId(session));
        assert_eq!(view.map(|(_, view)| (view.registered, view.home)), Some((true, ReplicaId(0))));
    }
    cms.arrive(0);
    assert_eq!(cms.taken(), 0);
}

#[test]
fn an_offer_of_somebody_unknown_here_strands_nobody() {
    // The home offers a worker that has not registered here; another worker of the same home has.
    let mut cms = Cms::new(2, &[(1, 100), (3, 100)], rules(Scheme::Tournament, 2), 14);
    for body in [Some(10), None] {
        let offer = PeerOffer { lease: LEASE, session: SessionId(5), service_us: body };
        let (from, epoch, sent_at) = (ReplicaId(1), Epoch(1), cms.now);
        cms.cms[0].handle_peer(cms.now, &PeerMessage { from, epoch, sent_at, body: PeerBody::Offer(offer) });
        cms.arrive(0);
        assert_eq!(cms.waiting, 0);
    }
    cms.finish();
}

#[test]
fn a_connection_that_goes_before_it_is_claimed_frees_its_place() {
    let mut cms = Cms::new(1, &[(0, 100), (1, 100)], rules(Scheme::Tournament, 2), 15);
    for worker in cms.workers.values_mut() {
        worker.stopped = true;
    }
    for _ in 0..50 {
        cms.arrive(0);
    }
    for ((replica, number), (session, _)) in core::mem::take(&mut cms.offered) {
        let stage = Stage::Offered { session, lease: LEASE };
        cms.cms[replica].handle_gone(ConnectionId(number), cms.id, stage);
    }
    assert!(cms.cms[0].acceptors(cms.now).iter().all(|(_, view)| view.unclaimed == 0 && view.open == 0));
    assert_eq!(cms.cms[0].listeners().next().map(|view| view.unclaimed), Some(0));
}
