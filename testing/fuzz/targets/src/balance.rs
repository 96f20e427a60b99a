//! Checks that nothing another replica says about acceptors harms connections. Messages decode without harm;
//! whatever they hold, and in whatever order things happen, each connection is offered to one acceptor, or
//! waits while none is registered.

use std::collections::BTreeMap;

use atoll_base::{Duration, Endpoint, Epoch, Instant, ReplicaId, SessionId};
use atoll_connmgr::{
    Config, ConnMgr, ConnectionId, Directive, Listen, ListenerId, Reach, Stage, Syn, SynVerdict,
};
use atoll_ipc::balance::{Balance, Estimator, PEER_BYTES_MAX, PeerBody, PeerMessage, PeerOffer, Scheme};
use atoll_ipc::balance::{ServiceReport, Services};
use atoll_ipc::lease::Grant;

use crate::input::Input;

const LEASE: u64 = 7;
const LOCAL: Endpoint = Endpoint::new(0, 81);

/// Decodes a message between connection managers.
pub fn ipc_balance(data: &[u8]) {
    if let Ok(message) = PeerMessage::decode(data) {
        let mut out = [0; PEER_BYTES_MAX];
        assert_eq!(PeerMessage::decode(message.encode(&mut out)), Ok(message));
    }
}

/// Runs a connection manager with several acceptors, and messages of other managers.
pub fn cm_balance(data: &[u8]) {
    let mut input = Input::new(data);
    let mut cm = Cm::new();
    while !input.is_empty() {
        cm.step(&mut input);
        cm.check();
    }
}

struct Cm {
    now: Instant,
    cm: ConnMgr,
    id: ListenerId,
    /// The acceptor of each connection that is not closed, and whether it has claimed the connection.
    connections: BTreeMap<u32, (Option<SessionId>, bool)>,
    /// The connections that were claimed and are measured, with the moment of the offer.
    measured: BTreeMap<u32, (SessionId, Instant)>,
    registered: [bool; 4],
    /// The acceptors that have let an offer time out, and claimed none since.
    doubtful: [bool; 4],
    /// The sessions that have asked in this step.
    asks: Option<SessionId>,
    next: u32,
}

impl Cm {
    fn new() -> Cm {
        let config = Config {
            replica: ReplicaId(0),
            replicas: 2,
            epoch: Epoch(1),
            ephemeral: (32768, 60999),
            backlog_max: 64,
            leases_max: 10,
            session_leases_max: 10,
            session_listeners_max: 10,
            managers: 2,
            managers_apart: false,
            patience: Duration::from_millis(100),
        };
        let mut cm = ConnMgr::new(config, 1);
        let mut id = None;
        for session in 0..4 {
            let (session, backlog) = (SessionId(session), 64);
            let (reuse_port, defer_accept, v6_only) = (false, 0, false);
            let (lease, local, shown) = (LEASE, LOCAL, Some(Grant::to_listen(LEASE, LOCAL)));
            let listen =
                Listen { session, lease, local, backlog, reuse_port, defer_accept, v6_only, uid: 0, shown };
            id = Some(cm.handle_listen(&listen).expect("the port is free"));
        }
        let now = Instant::from_millis(1000);
        let id = id.expect("somebody listens");
        Cm {
            now,
            cm,
            id,
            connections: BTreeMap::new(),
            measured: BTreeMap::new(),
            registered: [false; 4],
            doubtful: [false; 4],
            asks: None,
            next: 0,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let session = SessionId(u32::from(input.byte() % 4));
        self.now += Duration::from_micros(u64::from(input.half()) << (input.byte() % 8));
        match input.byte() % 11 {
            0 => {
                self.registered[session.0 as usize] = self.cm.handle_accept(self.now, session, LEASE);
            }
            1 => {
                self.cm.handle_stop_accepting(self.now, session, LEASE);
                self.registered[session.0 as usize] = false;
            }
            2 | 3 => {
                if let SynVerdict::Accept { .. } = self.cm.handle_syn(&Syn {
                    local: LOCAL,
                    by_cookie: false,
                    device: atoll_ipc::Device::None,
                }) && self.cm.may_establish(self.id)
                {
                    self.next += 1;
                    self.connections.insert(self.next, (None, false));
                    self.cm.handle_established(self.now, ConnectionId(self.next), self.id);
                }
            }
            4 => self.claim(input),
            5 => {
                if let Some((number, (session, offered_at))) = self.measured.pop_first() {
                    self.connections.remove(&number);
                    self.cm.handle_closed(self.now, session, LEASE, offered_at);
                }
            }
            6 => self.time_out(),
            7 => self.hear(input, session),
            8 => {
                let reach = Reach { awake: input.byte().into(), takes: input.byte().into() };
                while let Some(output) = self.cm.poll_peer(self.now, reach, input.byte().is_multiple_of(2)) {
                    assert_eq!(output.to & !2, 0, "there is one other replica");
                    assert!(output.wakes || output.to & (reach.takes | reach.awake) == output.to);
                }
            }
            9 => {
                // What a session took before it accepted for the first time is not counted for it.
                let is_known = self.cm.acceptors(self.now).iter().any(|(_, view)| view.session == session);
                self.asks = Some(session);
                let takes = is_known && input.byte().is_multiple_of(2);
                assert!(self.cm.handle_ask(self.now, session, LEASE, takes), "it listens");
            }
            _ => self.cm.set_balance(Balance {
                scheme: Scheme::ALL[usize::from(input.byte() % 4)],
                tariff: input.half(),
                estimator: [Estimator::Median, Estimator::Average][usize::from(input.byte() % 2)],
                window: input.half(),
                sample_us: input.word(),
                offer_us: input.word(),
                high: input.half(),
                low: input.half(),
            }),
        }
        self.direct();
    }

    /// Lets the acceptor of some connection claim it, or the connection end.
    fn claim(&mut self, input: &mut Input<'_>) {
        let mut offered = self.connections.iter_mut().filter_map(|(number, (session, claimed))| {
            (!*claimed).then_some((*number, (*session)?, claimed))
        });
        let Some((number, session, claimed)) = offered.next() else { return };
        let offered_at = Instant::from_nanos(self.now.as_nanos().saturating_sub(u64::from(input.word())));
        if input.byte().is_multiple_of(8) {
            let stage = Stage::Offered { session, lease: LEASE };
            self.cm.handle_gone(ConnectionId(number), self.id, stage);
            self.connections.remove(&number);
            return;
        }
        *claimed = true;
        self.doubtful[session.0 as usize] = false;
        if self.cm.handle_claimed(self.now, ConnectionId(number), self.id, session, LEASE, offered_at) {
            self.measured.insert(number, (session, offered_at));
        } else {
            self.connections.remove(&number);
        }
    }

    fn time_out(&mut self) {
        let offered =
            self.connections.iter_mut().find(|(_, (session, claimed))| session.is_some() && !claimed);
        let Some((&number, (session, _))) = offered else { return };
        let Some(session) = session.take() else { return };
        self.cm.handle_claim_timeout(self.now, ConnectionId(number), self.id, session, LEASE);
        (self.registered[session.0 as usize], self.doubtful[session.0 as usize]) = (false, true);
    }

    /// Sends something, perhaps nonsense, from the other replica or a pretended one.
    fn hear(&mut self, input: &mut Input<'_>, session: SessionId) {
        let lease = if input.byte().is_multiple_of(8) { input.long() } else { LEASE };
        let mut services = Services::default();
        for _ in 0..input.byte() % 40 {
            services.push(input.word());
        }
        let timed_out = input.byte().is_multiple_of(4);
        let body = if input.byte().is_multiple_of(2) {
            PeerBody::Offer(PeerOffer {
                lease,
                session,
                service_us: Some(input.word()).filter(|micros| *micros > 0),
            })
        } else {
            let (open, open_since_us, unclaimed) = (input.word(), input.long(), input.word());
            PeerBody::Report(ServiceReport {
                lease,
                session,
                timed_out,
                open,
                open_since_us,
                unclaimed,
                services,
            })
        };
        let sent_at = Instant::from_nanos(self.now.as_nanos().wrapping_add(input.word().into()));
        let (from, epoch) = (ReplicaId(input.byte() % 4), Epoch(u32::from(input.byte() % 4)));
        self.cm.handle_peer(self.now, &PeerMessage { from, epoch, sent_at, body });
    }

    fn direct(&mut self) {
        self.cm.handle_timers(self.now);
        while let Some(directive) = self.cm.poll_directive() {
            match directive {
                Directive::Offer(offer) => {
                    let place = self.connections.get_mut(&offer.connection.0).expect("it exists");
                    assert_eq!(*place, (None, false), "offered to two");
                    let wants = self.registered[offer.session.0 as usize] || self.asks == Some(offer.session);
                    assert!(wants, "to somebody who wants it");
                    place.0 = Some(offer.session);
                }
                // The time-out was here, or the other replica says that there was one.
                Directive::AcceptorRemoved { session, .. } => self.registered[session.0 as usize] = false,
                Directive::ConnectionsWait { session, waiting, answers, .. } => {
                    let is_waiting = self.connections.values().any(|(session, _)| session.is_none());
                    assert_eq!(is_waiting, waiting, "the truth");
                    assert!(!answers || self.asks == Some(session), "an answer is for who has asked");
                }
                Directive::Reset { .. } | Directive::PortTaken { .. } => {}
            }
        }
        self.asks = None;
    }

    fn check(&mut self) {
        let is_waiting = self.connections.values().any(|(session, _)| session.is_none());
        let registered: Vec<usize> = (0..4).filter(|of| self.registered[*of]).collect();
        // Acceptors in doubt have one offer at a time, whichever of them has it.
        let is_on_trial = registered.iter().all(|of| self.doubtful[*of])
            && self.connections.values().any(|(session, claimed)| {
                session.is_some_and(|session| self.doubtful[session.0 as usize]) && !claimed
            });
        assert!(!is_waiting || registered.is_empty() || is_on_trial, "nobody waits while somebody wants");
        let views = self.cm.acceptors(self.now);
        for (_, view) in views {
            let unclaimed =
                self.connections.values().filter(|(of, claimed)| *of == Some(view.session) && !claimed);
            assert_eq!(view.unclaimed as usize, unclaimed.count());
            assert_eq!(view.registered, self.registered[view.session.0 as usize]);
        }
    }
}
