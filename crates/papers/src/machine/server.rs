//! A simulated server (P1, P4, N6): link, IP, transport and connection manager, in one process or several.

use std::collections::VecDeque;

use atoll_base::{Addr, Endpoint, Epoch, ReplicaId, SessionId};
use atoll_connmgr::{
    Bind, Config, ConnMgr, ConnectionId, Directive, Listen, ListenerId, Reach, Syn, SynVerdict,
};
use atoll_ipc::balance::PeerMessage;
use atoll_ipc::command::Protocol;
use atoll_ipc::control::User;
use atoll_ipc::lease::Grant;

use super::cores::Origin;
use super::items::{Ask, Batch, Frame, Item, Reply, Sent};
use super::settings::{Handshake, Settings};
use super::{Machine, Purpose, Service, What};
use crate::configuration::Roles;

/// A server process.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) roles: Roles,
    pub(crate) cm: Option<Manager>,
    /// The deadlines of claims: moment, connection, offer.
    deadlines: VecDeque<(u64, u32, u64)>,
    has_deadline: bool,
}

/// The real connection manager, and its one listener.
#[derive(Debug)]
pub(crate) struct Manager {
    pub(crate) cm: ConnMgr,
    listener: Option<ListenerId>,
    has_tick: bool,
}

/// The one socket of all applications, inherited from the process that bound it.
const LEASE: u64 = 77;
const PORT: u16 = 80;
const BACKLOG: u32 = 4096;
/// The transport server's time-out of claims (`atoll_transport::Config::claim_timeout`), in nanoseconds.
const CLAIM_TIMEOUT: u64 = 200_000_000;
/// The number of cache lines of another core that the transport server fetches for a page: the slot's
/// positions, and a ring entry of text and header.
const LINES_RESPOND: u32 = 5;

impl Server {
    pub(crate) fn new(roles: Roles, settings: &Settings, managers: usize) -> Server {
        let manager = |number: usize| {
            let config = Config {
                replica: ReplicaId(number as u8),
                replicas: managers as u8,
                epoch: Epoch(1),
                ephemeral: (32768, 60999),
                backlog_max: BACKLOG,
                leases_max: 1000,
                session_leases_max: 1000,
                session_listeners_max: 1000,
                managers: managers as u8,
                managers_apart: false,
                patience: atoll_base::Duration::from_nanos(CLAIM_TIMEOUT),
            };
            let mut cm = ConnMgr::new(config, settings.seed.wrapping_mul(1 << 20) + number as u64);
            cm.set_balance(settings.balance);
            Manager { cm, listener: None, has_tick: false }
        };
        Server { roles, cm: roles.cm.map(manager), deadlines: VecDeque::new(), has_deadline: false }
    }
}

impl Machine {
    /// Lets every application listen and accept before anything else happens.
    pub(crate) fn listen(&mut self) {
        let now = Machine::instant(self.now);
        for core in self.cm.clone() {
            for app in 0..self.apps.len() {
                let session = self.session(app);
                let Some(manager) = &mut self.servers[core].cm else { continue };
                let local = Endpoint::at(Addr::V4_ANY, PORT);
                let bind = Bind {
                    session,
                    user: User::privileged(0),
                    lease: LEASE,
                    protocol: Protocol::Tcp,
                    local,
                    reuse_addr: true,
                    reuse_port: false,
                    v6_only: false,
                    device: atoll_ipc::Device::None,
                };
                // Only the port's authority leases it; the others do not ask.
                let _ = manager.cm.handle_bind(&bind);
                let listen = Listen {
                    session,
                    lease: LEASE,
                    local,
                    backlog: BACKLOG,
                    reuse_port: false,
                    defer_accept: 0,
                    v6_only: false,
                    uid: 0,
                    shown: Some(Grant::to_listen(LEASE, local)),
                };
                manager.listener = manager.cm.handle_listen(&listen).ok();
                if self.settings.handshake == Handshake::Speculative {
                    assert!(manager.cm.handle_accept(now, session, LEASE), "{app}");
                }
                while manager.cm.poll_directive().is_some() {}
            }
        }
        if self.settings.handshake != Handshake::Speculative {
            for app in 0..self.apps.len() {
                let (core, cm) = (self.servers.len() + app, self.cm[app % self.cm.len()]);
                let item = Item::Waits { cm, waiting: true };
                self.at(self.now, What::Arrive { core, from: Origin::Timer, item });
            }
        }
    }

    /// Returns the session of an application, chosen so that application `n` is at home at connection manager
    /// `n` modulo their number.
    fn session(&self, app: usize) -> SessionId {
        SessionId((app + self.cm.len()) as u32)
    }

    fn app_of(&self, session: SessionId) -> usize {
        session.0 as usize - self.cm.len()
    }

    pub(crate) fn serve(&mut self, batch: &mut Batch, item: Item) {
        match item {
            Item::Frame { connection, frame } => {
                self.spend(batch, Purpose::Link, self.costs.frame_in);
                let (ts, ip) = self.transport_and_ip(connection);
                if ip == batch.core && ip != ts {
                    self.packet(batch, connection, frame);
                } else if ip != ts {
                    self.send(batch, ip, Item::Packet { connection, frame });
                } else if ts == batch.core {
                    self.segment(batch, connection, frame);
                } else {
                    self.send(batch, ts, Item::Segment { connection, frame });
                }
            }
            Item::Packet { connection, frame } => self.packet(batch, connection, frame),
            Item::Route { connection, reply } => {
                self.spend(batch, Purpose::Ip, self.costs.ip_out);
                self.give_to_link(batch, connection, reply);
            }
            Item::Segment { connection, frame } => self.segment(batch, connection, frame),
            Item::Transmit { connection, reply } => self.put_on_wire(batch, connection, reply),
            Item::Ask { connection, ask } => self.asked(batch, connection, ask),
            Item::Verdict { connection, listener } => self.verdict(batch, connection, listener),
            Item::Offer { connection, session } => self.offer(batch, connection, session),
            Item::Peer { message, .. } => self.heard(batch, &message),
            Item::Claim { connection } => {
                let (app, offered_at) = self.offered(connection);
                self.ask(batch, connection, Ask::Claimed { app, offered_at });
            }
            Item::Respond { connection, close } => self.respond(batch, connection, close),
            Item::AskFor { app, takes } => self.asked_for(batch, app, takes),
            Item::Register { app } => self.register(batch, app),
            Item::Deadline => self.take_back_overdue(batch),
            // What is due is done at the batch's end.
            Item::Tick => {
                if let Some(manager) = &mut self.servers[batch.core].cm {
                    manager.has_tick = false;
                }
            }
            Item::Available { .. } | Item::Readable { .. } | Item::Removed { .. } | Item::Waits { .. } => {
                unreachable!("these go to applications")
            }
        }
    }

    /// Returns the places of a connection's transport server and its IP.
    fn transport_and_ip(&mut self, connection: u32) -> (usize, usize) {
        let ts = self.connections.get(connection).ts;
        (self.ts[ts], self.ip[ts % self.ip.len()])
    }

    /// Returns the place where a connection's frames come and go: the link server of its IP server, or of its
    /// transport server if IP is there.
    pub(crate) fn link_of(&mut self, connection: u32) -> usize {
        let ts = self.connections.get(connection).ts;
        self.ls[ts % self.ip.len() % self.ls.len()]
    }

    /// Handles a packet at an IP server, which gives it to its transport server.
    fn packet(&mut self, batch: &mut Batch, connection: u32, frame: Frame) {
        self.spend(batch, Purpose::Ip, self.costs.ip_in);
        let (ts, _) = self.transport_and_ip(connection);
        self.send(batch, ts, Item::Segment { connection, frame });
    }

    /// Handles a segment at its transport server.
    fn segment(&mut self, batch: &mut Batch, connection: u32, frame: Frame) {
        match frame {
            Frame::Syn => {
                self.spend(batch, Purpose::Tcp, self.costs.tcp_syn);
                self.ask(batch, connection, Ask::Syn);
            }
            Frame::Ack => {
                self.spend(batch, Purpose::Tcp, self.costs.tcp_ack);
                self.ask(batch, connection, Ask::Established);
            }
            Frame::Text => {
                self.spend(batch, Purpose::Tcp, self.costs.tcp_text);
                let known = self.connections.get(connection);
                known.has_text = true;
                // An application that was offered the connection in this batch finds the text when it looks.
                if known.offered_at != 0 && known.offered_at < batch.began {
                    let app = self.servers.len() + known.app;
                    self.send(batch, app, Item::Readable { connection });
                }
            }
            Frame::Fin => {
                self.spend(batch, Purpose::Tcp, self.costs.tcp_fin);
                self.transmit(batch, connection, Reply::Ack);
                self.connections.close(connection);
            }
        }
    }

    /// Lets a transport server ask, or notify, its connection manager.
    fn ask(&mut self, batch: &mut Batch, connection: u32, ask: Ask) {
        let known = self.connections.get(connection);
        if matches!(ask, Ask::Syn | Ask::Established) {
            known.asked_at = batch.clock;
        }
        let cm = self.cm[known.ts % self.cm.len()];
        if cm == batch.core {
            self.asked(batch, connection, ask);
        } else {
            self.send(batch, cm, Item::Ask { connection, ask });
        }
    }

    /// Handles a question or notice at a connection manager.
    fn asked(&mut self, batch: &mut Batch, connection: u32, ask: Ask) {
        let others = (self.cm.len() - 1) as f64;
        self.spend(
            batch,
            Purpose::Cm,
            match ask {
                Ask::Syn => self.costs.cm_syn,
                Ask::Claimed { .. } => self.costs.cm_claimed,
                Ask::Closed { .. } => self.costs.cm_closed,
                // The cost of `AskFor` includes the choice.
                Ask::Established if self.settings.handshake != Handshake::Speculative => 0.0,
                Ask::Established | Ask::TimedOut { .. } => {
                    self.costs.cm_choose + self.costs.cm_choose_each * others
                }
            },
        );
        let now = Machine::instant(batch.clock);
        let of = |app: usize| SessionId((app + self.cm.len()) as u32);
        let Some(manager) = &mut self.servers[batch.core].cm else { return };
        let Some(listener) = manager.listener else { return };
        let number = ConnectionId(connection);
        match ask {
            Ask::Syn => {
                let syn = Syn {
                    local: Endpoint::at(Addr::v4(0x0a00_0001), PORT),
                    by_cookie: false,
                    device: atoll_ipc::Device::None,
                };
                let listener = match manager.cm.handle_syn(&syn) {
                    SynVerdict::Accept { listener, .. } => Some(listener),
                    SynVerdict::Cookie { .. } | SynVerdict::Full | SynVerdict::Refused => None,
                };
                let ts = self.ts[self.connections.get(connection).ts];
                if ts == batch.core {
                    self.verdict(batch, connection, listener);
                } else {
                    self.send(batch, ts, Item::Verdict { connection, listener });
                }
            }
            Ask::Established => manager.cm.handle_established(now, number, listener),
            Ask::Claimed { app, offered_at } => {
                manager.cm.handle_claimed(
                    now,
                    number,
                    listener,
                    of(app),
                    LEASE,
                    Machine::instant(offered_at),
                );
            }
            Ask::Closed { app, offered_at } => {
                manager.cm.handle_closed(now, of(app), LEASE, Machine::instant(offered_at));
            }
            Ask::TimedOut { app } => {
                self.report.timed_out += 1;
                manager.cm.handle_claim_timeout(now, number, listener, of(app), LEASE);
            }
        }
        self.run_directives(batch);
    }

    fn run_directives(&mut self, batch: &mut Batch) {
        let poll = |server: &mut Server| server.cm.as_mut()?.cm.poll_directive();
        while let Some(directive) = poll(&mut self.servers[batch.core]) {
            match directive {
                Directive::Offer(offer) => {
                    let (connection, session) = (offer.connection.0, offer.session);
                    let ts = self.ts[self.connections.get(connection).ts];
                    if ts == batch.core {
                        self.offer(batch, connection, session);
                    } else {
                        self.send(batch, ts, Item::Offer { connection, session });
                    }
                }
                Directive::AcceptorRemoved { session, .. } => {
                    let app = self.servers.len() + self.app_of(session);
                    self.send(batch, app, Item::Removed { cm: batch.core });
                }
                // Listeners stay, ports are not published here.
                Directive::Reset { .. } | Directive::PortTaken { .. } => {}
                Directive::ConnectionsWait { session, waiting, .. } => {
                    let app = self.servers.len() + self.app_of(session);
                    self.send(batch, app, Item::Waits { cm: batch.core, waiting });
                }
            }
        }
    }

    /// Handles an application that asks for a connection.
    fn asked_for(&mut self, batch: &mut Batch, app: usize, takes: bool) {
        self.spend(batch, Purpose::Cm, self.costs.cm_asked);
        let (now, session) = (Machine::instant(batch.clock), self.session(app));
        if let Some(manager) = &mut self.servers[batch.core].cm {
            manager.cm.handle_ask(now, session, LEASE, takes);
        }
        self.run_directives(batch);
    }

    fn verdict(&mut self, batch: &mut Batch, connection: u32, listener: Option<ListenerId>) {
        let known = self.connections.get(connection);
        known.waited_for_cm += batch.clock - known.asked_at;
        if listener.is_some() {
            known.listener = listener;
            self.transmit(batch, connection, Reply::SynAck);
        } else {
            self.report.refused += 1;
            self.try_again_later(connection);
        }
    }

    /// Sends CONNECTION-AVAILABLE.
    fn offer(&mut self, batch: &mut Batch, connection: u32, session: SessionId) {
        self.serial += 1;
        let (offer, app) = (self.serial, self.app_of(session));
        let known = self.connections.get(connection);
        if known.first_offered_at == 0 {
            known.first_offered_at = batch.clock;
            known.waited_for_cm += batch.clock - known.asked_at;
            let (ts, waited) = (known.ts, known.waited_for_cm);
            self.report.waited_for_cm(waited);
            self.report.assigned(batch.clock, app, ts % self.cm.len(), app % self.cm.len());
        }
        let known = self.connections.get(connection);
        (known.offer, known.app, known.offered_at) = (offer, app, batch.clock);
        self.send(batch, self.servers.len() + app, Item::Available { connection, offer });
        let deadline = batch.clock + CLAIM_TIMEOUT;
        self.servers[batch.core].deadlines.push_back((deadline, connection, offer));
        self.set_deadline(batch.core);
    }

    fn set_deadline(&mut self, core: usize) {
        let server = &mut self.servers[core];
        if let Some(&(at, ..)) = server.deadlines.front()
            && !std::mem::replace(&mut server.has_deadline, true)
        {
            self.at(at, What::Arrive { core, from: Origin::Timer, item: Item::Deadline });
        }
    }

    fn take_back_overdue(&mut self, batch: &mut Batch) {
        self.servers[batch.core].has_deadline = false;
        while let Some(&(at, connection, offer)) = self.servers[batch.core].deadlines.front() {
            if at > batch.clock {
                break;
            }
            self.servers[batch.core].deadlines.pop_front();
            let known =
                self.connections.find(connection).filter(|known| known.offer == offer && !known.claimed);
            if let Some(known) = known {
                let app = known.app;
                (known.offer, known.offered_at) = (0, 0);
                self.ask(batch, connection, Ask::TimedOut { app });
            }
        }
        self.set_deadline(batch.core);
    }

    /// Handles a page to send.
    fn respond(&mut self, batch: &mut Batch, connection: u32, close: bool) {
        let (app, offered_at) = self.offered(connection);
        self.fetch(batch, self.servers.len() + app, LINES_RESPOND);
        self.spend(batch, Purpose::Tcp, if close { self.costs.tcp_respond } else { self.costs.tcp_reply });
        self.transmit(batch, connection, Reply::Text { last: close });
        self.report.page();
        if close {
            let known = self.connections.get(connection);
            known.closed = true;
            let first = known.first_offered_at;
            self.report.service(Service { closed_at: batch.clock, app, nanos: batch.clock - first });
            // A manager without a choice measures nothing.
            if self.apps.len() > 1 {
                self.ask(batch, connection, Ask::Closed { app, offered_at });
            }
        }
    }

    fn offered(&mut self, connection: u32) -> (usize, u64) {
        let known = self.connections.get(connection);
        (known.app, known.offered_at)
    }

    fn transmit(&mut self, batch: &mut Batch, connection: u32, reply: Reply) {
        let (ts, ip) = self.transport_and_ip(connection);
        if ip == ts {
            self.give_to_link(batch, connection, reply);
        } else {
            self.send(batch, ip, Item::Route { connection, reply });
        }
    }

    /// Sends a packet from the process that has IP. The connection may be over.
    fn give_to_link(&mut self, batch: &mut Batch, connection: u32, reply: Reply) {
        let ip = self.servers[batch.core].roles.ip.unwrap_or(0);
        let ls = self.ls[ip % self.ls.len()];
        if ls == batch.core {
            self.put_on_wire(batch, connection, reply);
        } else {
            self.send(batch, ls, Item::Transmit { connection, reply });
        }
    }

    fn put_on_wire(&mut self, batch: &mut Batch, connection: u32, reply: Reply) {
        self.spend(batch, Purpose::Link, self.costs.frame_out);
        batch.out.push((Sent::Frame { connection, reply }, batch.clock));
    }

    /// Handles ACCEPT-CONNECTION.
    fn register(&mut self, batch: &mut Batch, app: usize) {
        self.spend(batch, Purpose::Cm, self.costs.cm_claimed);
        let (now, session) = (Machine::instant(batch.clock), self.session(app));
        if let Some(manager) = &mut self.servers[batch.core].cm {
            manager.cm.handle_accept(now, session, LEASE);
        }
        self.run_directives(batch);
    }

    /// Handles a message of another connection manager.
    fn heard(&mut self, batch: &mut Batch, message: &PeerMessage) {
        self.spend(batch, Purpose::Peer, self.costs.peer_in);
        if let Some(manager) = &mut self.servers[batch.core].cm {
            manager.cm.handle_peer(Machine::instant(batch.clock), message);
        }
        self.run_directives(batch);
    }

    /// Sends other connection managers what is due, at the end of a batch.
    pub(crate) fn speak_with_peers(&mut self, batch: &mut Batch) {
        let mut reach = Reach { awake: u64::MAX, takes: u64::MAX };
        let managers = self.cm.clone();
        for (number, &core) in managers.iter().enumerate().filter(|(_, core)| **core != batch.core) {
            if self.sleeps(core, batch.clock) {
                reach.awake &= !(1 << number);
            }
        }
        let waits = self.settings.waiting.is_some();
        // A core that goes to sleep sends now; one that never sleeps has a later chance.
        let last = waits && self.cores[batch.core].has_nothing();
        loop {
            let now = Machine::instant(batch.clock);
            let Some(manager) = &mut self.servers[batch.core].cm else { return };
            let Some(output) = manager.cm.poll_peer(now, reach, last) else { break };
            self.spend(batch, Purpose::Peer, self.costs.peer_out);
            for (number, &to) in
                managers.iter().enumerate().filter(|(number, _)| output.to & 1 << number != 0)
            {
                debug_assert!(
                    output.wakes || reach.takes & 1 << number != 0,
                    "nobody is told who does not take it"
                );
                self.spend(batch, Purpose::Peer, self.costs.send);
                let item = Item::Peer { message: Box::new(output.message), wakes: output.wakes };
                batch.out.push((Sent::Message { to, item }, batch.clock));
            }
        }
        if waits {
            return; // No timer: who has nothing to do has nothing to tell.
        }
        let now = Machine::instant(batch.clock);
        let period = u64::from(self.settings.balance.offer_us) * 1000;
        let Some(manager) = &mut self.servers[batch.core].cm else { return };
        if manager.cm.is_peer_due(now, true) && !std::mem::replace(&mut manager.has_tick, true) {
            self.at(
                batch.clock + period,
                What::Arrive { core: batch.core, from: Origin::Timer, item: Item::Tick },
            );
        }
    }

    /// Notes the estimate of each application's home for its service time.
    pub(crate) fn sample_estimates(&mut self) {
        let now = Machine::instant(self.now);
        for (number, core) in self.cm.clone().into_iter().enumerate() {
            let Some(manager) = &mut self.servers[core].cm else { continue };
            let own =
                manager.cm.acceptors(now).into_iter().filter(|(_, view)| usize::from(view.home.0) == number);
            let estimates: Vec<(SessionId, u64)> =
                own.filter_map(|(_, view)| Some((view.session, view.service_us?))).collect();
            for (session, micros) in estimates {
                let app = self.app_of(session);
                self.report.estimated(self.now, app, micros);
            }
        }
    }

    /// Adds the numbers of messages between connection managers, counted from the start on, to the report.
    pub(crate) fn count_messages(&mut self) {
        for manager in self.servers.iter().filter_map(|server| server.cm.as_ref()) {
            let counts = manager.cm.balance_counts();
            self.report.offers_heard += counts.offers_in;
            self.report.reports_heard += counts.reports_in;
            self.report.offers_taken += counts.offers_taken;
        }
    }
}
