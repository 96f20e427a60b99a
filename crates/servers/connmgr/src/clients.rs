//! Serves transport servers (TS) in other processes. The CM turns their messages into the calls that a TS in
//! the same process makes. It keeps what they have asked, because answers may cross with the end of a
//! connection.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use atoll_base::{Endpoint, Epoch, Instant, ReplicaId, Rng, SessionId};
use atoll_ipc::balance::{Balance, PeerMessage};
use atoll_ipc::manager::{ManagerBody, ManagerMessage};
use atoll_ipc::page::REPLICAS_MAX;

use crate::balance::{AcceptorView, BalanceCounts, Balancer, PeerOutput, Reach};
use crate::chooser::Chooser;
use crate::messages::{ConnectionId, Directive, ListenerId, Stage};

/// The configuration of a CM that serves TSs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagerConfig {
    /// The number of this CM among the CMs of the stack.
    pub number: u8,
    /// The number of CMs, at least 1. CM n serves the TSs whose number modulo this is n.
    pub managers: u8,
    /// The incarnation of the CM, which goes with every message.
    pub epoch: Epoch,
    /// The TS in the same process, if there is one.
    pub own: Option<ReplicaId>,
}

/// A connection manager: the acceptors, their estimates, and the choice among them, for a TS in the same
/// process and for others.
#[derive(Debug)]
pub struct Manager {
    config: ManagerConfig,
    pub(crate) chooser: Chooser,
    /// The TSs by number; the entries of the TS in this process and of those of other CMs stay empty.
    clients: Vec<Client>,
    dropped: u64,
}

/// A TS in another process.
#[derive(Debug, Default)]
struct Client {
    epoch: Epoch,
    /// The place of each of the TS's listeners in the chooser's table.
    listeners: BTreeMap<u64, u32>,
    /// The established connections of the TS that no application has claimed.
    asked: BTreeMap<u32, Asked>,
    /// Messages that the TS's ring has not taken yet. There are no more than it has asked for, and one more
    /// for the end of each acceptor that it has registered.
    outbox: VecDeque<ManagerBody>,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    ticket: u32,
    listener: ListenerId,
    /// The session and lease of the acceptor to which the connection is offered, and whether it is measured.
    offer: Option<(SessionId, u64, bool)>,
}

/// The most unclaimed connections of a TS, which is more than any backlog allows, and the most listeners,
/// which is twice the number of ports.
const ASKED_MAX: usize = 1 << 20;
const LISTENERS_MAX: usize = 1 << 17;
/// The number of messages waiting for a TS above which its messages are not read.
const OUTBOX_MAX: usize = 4096;

impl Manager {
    /// Creates a manager without listeners. `seed` decides which acceptor gets which connection.
    pub fn new(config: ManagerConfig, seed: u64) -> Manager {
        let draws = Rng::new(seed ^ 0x6f66_6665_7273).next_u64();
        let balancer = Balancer::new(ReplicaId(config.number), config.managers, config.epoch, draws);
        Manager {
            config,
            chooser: Chooser::new(balancer),
            clients: (0..REPLICAS_MAX).map(|_| Client::default()).collect(),
            dropped: 0,
        }
    }

    /// Handles a message of TS `from`, which is in another process.
    pub fn handle(&mut self, now: Instant, from: ReplicaId, message: &ManagerMessage) {
        // The message is for an earlier incarnation; this one receives everything again that still counts.
        if message.to != Epoch(0) && message.to != self.config.epoch {
            self.dropped += 1;
            return;
        }
        let is_served =
            from.0 % self.config.managers.max(1) == self.config.number && self.config.own != Some(from);
        let client = self.clients.get_mut(usize::from(from.0)).filter(|_| is_served);
        let Some(client) = client.filter(|client| message.epoch >= client.epoch && message.epoch != Epoch(0))
        else {
            self.dropped += 1;
            return;
        };
        let is_new = client.epoch != Epoch(0) && client.epoch != message.epoch;
        client.epoch = message.epoch;
        if is_new {
            self.forget(from.0);
        }
        let at = now.min(message.at);
        let noted = self.handle_listener(at, from.0, &message.body);
        let noted = noted.or_else(|| self.handle_connection(at, from.0, &message.body));
        self.dropped += u64::from(noted.is_none());
        self.pass_on();
    }

    /// Handles a message about a listener or an acceptor. Returns `None` if the message is about something
    /// else, or about an unknown listener.
    fn handle_listener(&mut self, now: Instant, ts: u8, body: &ManagerBody) -> Option<()> {
        let client = self.clients.get_mut(usize::from(ts))?;
        let chooser = &mut self.chooser;
        let place = |listener: u64| client.listeners.get(&listener).copied();
        match *body {
            ManagerBody::Opened { listener, lease, local, v6_only, device } => {
                let at = (local, v6_only, device);
                let known = place(listener);
                if known.is_none() && client.listeners.len() >= LISTENERS_MAX {
                    return None;
                }
                // A second socket of a listener has the same address.
                if known.is_none_or(|index| chooser.is_at(index, at)) {
                    client.listeners.insert(listener, chooser.opened(ts, lease, at));
                }
            }
            ManagerBody::Left { listener, lease } => chooser.left(ts, place(listener)?, lease),
            ManagerBody::Closed { listener } => chooser.closed(ts, client.listeners.remove(&listener)?),
            ManagerBody::Registered { listener, session, lease } => {
                chooser.register(now, ts, place(listener)?, session, lease);
            }
            ManagerBody::Deregistered { listener, session, lease } => {
                chooser.deregister(now, ts, place(listener)?, session, lease);
            }
            ManagerBody::Forgotten { listener, session, lease } => {
                chooser.forget(ts, place(listener)?, session, lease);
            }
            ManagerBody::Served { session, lease, offered_at } => {
                chooser.served(now, session, lease, offered_at)
            }
            _ => return None,
        }
        Some(())
    }

    // structure: handle_connection: an arm for each message
    /// Handles a message about a connection. Returns `None` if the message is about something else, or about
    /// an unknown connection.
    fn handle_connection(&mut self, now: Instant, ts: u8, body: &ManagerBody) -> Option<()> {
        let client = self.clients.get_mut(usize::from(ts))?;
        let chooser = &mut self.chooser;
        match *body {
            ManagerBody::Established { listener, connection, ticket } => {
                if let Some(known) = client.asked.get(&connection).filter(|known| known.ticket == ticket) {
                    // The TS has repeated its question.
                    client.outbox.push_back(known.answer(connection));
                    return Some(());
                }
                let listener_id = ListenerId::from_bits(listener);
                let place = client.listeners.get(&listener).copied();
                let Some(index) = place.filter(|_| client.asked.len() < ASKED_MAX) else {
                    client.outbox.push_back(ManagerBody::Reset { connection, ticket });
                    return Some(());
                };
                let asked = Asked { ticket, listener: listener_id, offer: None };
                // A TS that keeps to the protocol has reported before that the number is free.
                match client.asked.insert(connection, asked).map(|other| other.offer) {
                    Some(Some((session, lease, _))) => chooser.settle(session, lease),
                    Some(None) => chooser.gone_everywhere(ts, ConnectionId(connection)),
                    None => {}
                }
                if !chooser.established(now, ts, index, ConnectionId(connection), listener_id) {
                    client.outbox.push_back(ManagerBody::Queued { connection, ticket });
                }
            }
            ManagerBody::Offered { listener, connection, ticket, session, lease } => {
                if !client.asked.contains_key(&connection) && client.asked.len() >= ASKED_MAX {
                    return None;
                }
                let offer = Some((session, lease, false));
                let asked = Asked { ticket, listener: ListenerId::from_bits(listener), offer };
                match client.asked.insert(connection, asked).map(|other| other.offer) {
                    Some(Some((session, lease, _))) => chooser.settle(session, lease),
                    Some(None) => chooser.gone_everywhere(ts, ConnectionId(connection)),
                    None => {}
                }
                chooser.offered(now, session, lease);
            }
            ManagerBody::Claimed { connection, offered_at } => {
                let (session, lease, measured) = client.asked.remove(&connection)?.offer?;
                chooser.claimed(now, session, lease, offered_at, Some(measured));
            }
            ManagerBody::TimedOut { connection, ticket } | ManagerBody::Returned { connection, ticket } => {
                let asked = client.asked.get_mut(&connection)?;
                let (session, lease, _) = asked.offer.take()?;
                asked.ticket = ticket;
                let listener = asked.listener;
                if matches!(body, ManagerBody::TimedOut { .. }) {
                    chooser.timed_out(now, session, lease);
                }
                let Some(&index) = client.listeners.get(&listener.to_bits()) else {
                    client.asked.remove(&connection);
                    chooser.settle(session, lease);
                    client.outbox.push_back(ManagerBody::Reset { connection, ticket });
                    return Some(());
                };
                if !chooser.returned(now, ts, index, (ConnectionId(connection), listener), session, lease) {
                    client.outbox.push_back(ManagerBody::Queued { connection, ticket });
                }
            }
            ManagerBody::Gone { connection } => {
                let asked = client.asked.remove(&connection)?;
                let stage = match asked.offer {
                    Some((session, lease, _)) => Stage::Offered { session, lease },
                    None => Stage::Waiting,
                };
                let index = client.listeners.get(&asked.listener.to_bits()).copied();
                chooser.gone(ts, index.unwrap_or(u32::MAX), ConnectionId(connection), stage);
            }
            _ => return None,
        }
        Some(())
    }

    /// Forgets everything of a TS's last incarnation.
    fn forget(&mut self, ts: u8) {
        let Some(client) = self.clients.get_mut(usize::from(ts)) else { return };
        let old = core::mem::take(client);
        client.epoch = old.epoch;
        for (session, lease, _) in old.asked.values().filter_map(|asked| asked.offer) {
            self.chooser.settle(session, lease);
        }
        for index in old.listeners.into_values() {
            self.chooser.closed(ts, index);
        }
        self.chooser.forget_sockets(ts);
        self.chooser.directives.retain(|(to, _)| *to != ts);
    }

    /// Turns the chooser's directives for TSs in other processes into messages.
    fn pass_on(&mut self) {
        let own = self.config.own.map(|own| own.0);
        let mut kept = VecDeque::new();
        while let Some((ts, directive)) = self.chooser.directives.pop_front() {
            if Some(ts) == own {
                kept.push_back((ts, directive));
            } else {
                self.tell(ts, directive);
            }
        }
        self.chooser.directives = kept;
    }

    /// Returns the next directive for the TS in the same process.
    #[inline]
    pub(crate) fn poll_own(&mut self) -> Option<Directive> {
        while let Some((ts, directive)) = self.chooser.directives.pop_front() {
            if self.config.own == Some(ReplicaId(ts)) {
                return Some(directive);
            }
            self.tell(ts, directive);
        }
        None
    }

    fn tell(&mut self, ts: u8, directive: Directive) {
        let Some(client) = self.clients.get_mut(usize::from(ts)) else { return };
        let body = match directive {
            Directive::Offer(offer) => {
                let index = client.listeners.get(&offer.listener.to_bits()).copied();
                let measured = index.is_some_and(|index| self.chooser.has_choice(index));
                let Some(asked) = client.asked.get_mut(&offer.connection.0) else {
                    self.chooser.settle(offer.session, offer.lease);
                    return;
                };
                asked.offer = Some((offer.session, offer.lease, measured));
                asked.answer(offer.connection.0)
            }
            Directive::Reset { connection } => {
                let Some(asked) = client.asked.remove(&connection.0) else { return };
                ManagerBody::Reset { connection: connection.0, ticket: asked.ticket }
            }
            Directive::AcceptorRemoved { session, lease } => ManagerBody::AcceptorRemoved { session, lease },
            // The TS publishes ports itself, and applications ask only TSs that contain their CM.
            Directive::PortTaken { .. } | Directive::ConnectionsWait { .. } => return,
        };
        client.outbox.push_back(body);
    }

    /// Passes every message for another TS to `send`, which returns whether the ring has taken it. A message
    /// that a ring does not take is offered to it again by the next call.
    pub fn send(&mut self, now: Instant, mut send: impl FnMut(ReplicaId, &ManagerMessage) -> bool) {
        if self.config.own.is_none() {
            self.chooser.end_round(now);
        }
        self.pass_on();
        for (ts, client) in (0..).zip(&mut self.clients) {
            while let Some(&body) = client.outbox.front() {
                if !send(
                    ReplicaId(ts),
                    &ManagerMessage { epoch: self.config.epoch, to: client.epoch, at: now, body },
                ) {
                    break;
                }
                client.outbox.pop_front();
            }
        }
    }

    /// Returns whether something waits for [`Manager::send`].
    pub fn has_output(&self) -> bool {
        let waits = !self.chooser.directives.is_empty() || self.chooser.has_turns();
        waits || self.clients.iter().any(|client| !client.outbox.is_empty())
    }

    /// Returns whether so many messages wait for a TS that its own messages should not be read.
    pub fn is_crowded(&self, ts: ReplicaId) -> bool {
        self.clients.get(usize::from(ts.0)).is_some_and(|client| client.outbox.len() > OUTBOX_MAX)
    }

    /// Returns the number of messages of TSs that were ignored: from a dead epoch, from a stranger, or about
    /// something that is gone.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Handles another CM's offer or report (P5).
    pub fn handle_peer(&mut self, now: Instant, message: &PeerMessage) {
        self.chooser.handle_peer(now, message);
    }

    /// Returns the next message to other CMs, which are named by a bit each: see
    /// [`crate::ConnMgr::poll_peer`].
    pub fn poll_peer(&mut self, now: Instant, reach: Reach, last: bool) -> Option<PeerOutput> {
        self.chooser.poll_peer(now, reach, last)
    }

    /// Returns whether [`Manager::poll_peer`] has something now.
    #[inline]
    pub fn is_peer_due(&self, now: Instant, last: bool) -> bool {
        self.chooser.balancer.is_due(now, last)
    }

    /// Changes the rules of balancing; invalid ones change nothing.
    pub fn set_balance(&mut self, rules: Balance) {
        self.chooser.balancer.set_rules(rules);
    }

    /// Returns the acceptors of all listeners as this CM sees them, each with its listener's address.
    pub fn acceptors(&mut self, now: Instant) -> Vec<(Endpoint, AcceptorView)> {
        self.chooser.acceptors(now)
    }

    /// Returns counters of what balancing has done so far.
    pub fn balance_counts(&self) -> BalanceCounts {
        self.chooser.balancer.counts()
    }
}

impl Asked {
    /// Returns the message to the TS about the connection.
    fn answer(self, connection: u32) -> ManagerBody {
        let ticket = self.ticket;
        match self.offer {
            Some((session, lease, measured)) => {
                ManagerBody::Offer { connection, ticket, session, lease, measured }
            }
            None => ManagerBody::Queued { connection, ticket },
        }
    }
}

#[cfg(test)]
mod tests;
