//! What does the connection manager keep in the process of a transport server?

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use atoll_base::{Duration, Endpoint, Epoch, Instant, ReplicaId, SessionId};
use atoll_ipc::Cause;
use atoll_ipc::balance::{Balance, PeerMessage};
use atoll_ipc::command::Protocol;
use atoll_ipc::lease::Grant;
use atoll_ipc::manager::ManagerMessage;

use crate::balance::{AcceptorView, BalanceCounts, PeerOutput, Reach};
use crate::clients::{Manager, ManagerConfig};
use crate::listeners::{ListenerView, Listeners};
use crate::messages::{Bind, ConnectionId, Directive, Listen, ListenerId, Stage, Syn, SynVerdict};
use crate::place::Place;
use crate::ports::Ports;
use crate::remote::{Remote, Told};

/// What a connection manager has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which replica of the stack this is.
    pub replica: ReplicaId,
    /// Number of replicas, at least 1.
    pub replicas: u8,
    /// Incarnation; goes with every message to other CMs.
    pub epoch: Epoch,
    /// Ports given to sockets that name none: first and last.
    pub ephemeral: (u16, u16),
    /// Upper bound of every backlog.
    pub backlog_max: u32,
    /// Leases kept at most.
    pub leases_max: usize,
    /// Leases of one session at most.
    pub session_leases_max: usize,
    /// Listening sockets of one session at most.
    pub session_listeners_max: usize,
    /// Number of CMs that choose, 1 to `replicas`. CM n chooses for the replicas whose number modulo this is
    /// n.
    pub managers: u8,
    /// Whether they are in processes of their own, and not in the replicas of the same numbers.
    pub managers_apart: bool,
    /// An answer of a CM in another process that takes longer is asked for again.
    pub patience: Duration,
}

impl Config {
    /// The number of the CM that chooses for this replica.
    pub fn manager(&self) -> u8 {
        self.replica.0 % self.managers.max(1)
    }

    /// Whether that one is in another process.
    pub fn is_manager_apart(&self) -> bool {
        self.managers_apart || self.manager() != self.replica.0
    }
}

/// Ports and listeners of one replica, and its way to the CM that chooses, which is here or in another
/// process.
#[derive(Debug)]
pub struct ConnMgr {
    config: Config,
    ports: Ports,
    pub(crate) listeners: Listeners,
    directives: VecDeque<Directive>,
}

impl ConnMgr {
    /// An empty one. `seed` decides where the search for free ports starts, and who gets which connection.
    pub fn new(config: Config, seed: u64) -> ConnMgr {
        let place = if config.is_manager_apart() {
            Place::Apart(Box::new(Remote::new(config.epoch, config.patience)))
        } else {
            let (number, managers, epoch) = (config.manager(), config.managers.max(1), config.epoch);
            let manager = Manager::new(ManagerConfig { number, managers, epoch, own: Some(config.replica) }, seed);
            Place::Here { ts: config.replica.0, manager: Box::new(manager) }
        };
        ConnMgr {
            ports: Ports::new(config),
            listeners: Listeners::new(config.backlog_max.max(1), config.session_listeners_max, place),
            directives: VecDeque::new(),
            config,
        }
    }

    /// The next thing to do, if any. Ask after every call.
    #[inline]
    pub fn poll_directive(&mut self) -> Option<Directive> {
        if let Place::Here { manager, .. } = &mut self.listeners.place
            && let Some(directive) = manager.poll_own()
        {
            return Some(directive);
        }
        self.directives.pop_front()
    }

    /// Leases a port; the same lease again adds the session as a holder. Returns the port. Whether the
    /// address is the stack's the caller knows.
    pub fn handle_bind(&mut self, bind: &Bind) -> Result<u16, Cause> {
        self.ports.bind(bind)
    }

    /// The session no longer holds the lease.
    pub fn handle_release(&mut self, session: SessionId, lease: u64) {
        self.ports.release(session, lease);
        self.listeners.release(session, lease, &mut self.directives);
    }

    /// Opens a listener, adds the session as a holder, or changes the backlog. Address: see
    /// [`ConnMgr::handle_bind`].
    pub fn handle_listen(&mut self, listen: &Listen) -> Result<ListenerId, Cause> {
        let grant = self.grant_to_listen(listen).ok_or(Cause::Invalid)?;
        let is_authority = self.is_authority(listen.local.port);
        let id = self.listeners.listen(listen, &grant, is_authority, &mut self.directives)?;
        if is_authority {
            self.ports.listens(&grant);
        }
        Ok(id)
    }

    /// By what right a session listens: here, where the port is leased, or by what it has shown, or because
    /// it does already.
    fn grant_to_listen(&mut self, listen: &Listen) -> Option<Grant> {
        let port = listen.local.port;
        let grant = if port != 0 && self.is_authority(port) {
            self.ports.grant_listening(listen.session, listen.lease, listen.reuse_port, listen.uid)
        } else {
            let is_meant = |grant: &Grant| grant.lease == listen.lease && grant.listening;
            listen.shown.filter(is_meant).or_else(|| self.listeners.grant(listen.session, listen.lease))
        };
        grant.filter(|grant| port != 0 && grant.protocol == Protocol::Tcp && grant.local == listen.local)
    }

    /// What the session holds by this lease, of a port whose authority this replica is.
    pub fn grant(&self, session: SessionId, lease: u64) -> Option<Grant> {
        self.ports.grant(session, lease)
    }

    /// Whether somebody listens here by a later grant, beside which this one is not in force any more.
    pub fn is_overtaken(&self, grant: &Grant) -> bool {
        self.listeners.is_overtaken(grant)
    }

    /// ACCEPT-CONNECTION (P4). `false`: the session does not listen with this lease.
    pub fn handle_accept(&mut self, now: Instant, session: SessionId, lease: u64) -> bool {
        self.listeners.add_acceptor(now, session, lease)
    }

    /// The session wants no more connections of the listener for now. What was offered is still its to claim.
    pub fn handle_stop_accepting(&mut self, now: Instant, session: SessionId, lease: u64) -> bool {
        self.listeners.remove_acceptor(now, session, lease)
    }

    /// The naive accept (P4): the session asks for a connection that waits (`takes`), or whether one does. A
    /// directive answers. `false`: the session does not listen with this lease, or the CM that chooses is in
    /// another process; nothing answers.
    pub fn handle_ask(&mut self, now: Instant, session: SessionId, lease: u64, takes: bool) -> bool {
        self.listeners.ask(now, session, lease, takes)
    }

    /// A connection waits for somebody who asks, for a while already: whoever was told of it does not come,
    /// so all others are.
    pub fn handle_waits_long(&mut self, listener: ListenerId) {
        self.listeners.waits_long(listener);
    }

    /// The session has ended: it holds and accepts nothing any more. The TS hands back its offers by
    /// [`ConnMgr::handle_returned`] afterwards.
    pub fn handle_session_gone(&mut self, session: SessionId) {
        while self.release_one(session).is_some() {}
    }

    /// The session holds one lease less. Returns which; `None`: it had none.
    pub fn release_one(&mut self, session: SessionId) -> Option<u64> {
        let lease = self.listeners.held(session).or_else(|| self.ports.held(session))?;
        self.handle_release(session, lease);
        Some(lease)
    }

    /// A SYN for no connection.
    #[inline]
    pub fn handle_syn(&mut self, syn: &Syn) -> SynVerdict {
        self.listeners.handle_syn(syn)
    }

    /// Whether somebody listens at an address of this stack.
    pub fn has_listener(&self, local: Endpoint) -> bool {
        self.listeners.index_at(local).is_some()
    }

    /// Whether this listener is there still.
    pub fn is_listening(&self, listener: ListenerId) -> bool {
        self.listeners.has(listener)
    }

    /// Whether the accept queue has room for one more: if not, the last ACK of the handshake is to be
    /// forgotten, as on Linux.
    #[inline]
    pub fn may_establish(&self, listener: ListenerId) -> bool {
        self.listeners.may_establish(listener)
    }

    /// An embryonic connection is established (and has text, where that is waited for). A directive may
    /// follow at once, or when an acceptor registers.
    pub fn handle_established(&mut self, now: Instant, connection: ConnectionId, listener: ListenerId) {
        self.listeners.handle_established(now, connection, listener, &mut self.directives);
    }

    /// CLAIM-CONNECTION (P4): a connection offered at `offered_at` is the application's. Returns whether its
    /// end is to be told, too, by [`ConnMgr::handle_closed`].
    pub fn handle_claimed(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        listener: ListenerId,
        session: SessionId,
        lease: u64,
        offered_at: Instant,
    ) -> bool {
        self.listeners.count_claimed(listener);
        self.listeners.place.claimed(now, connection, session, lease, offered_at)
    }

    /// The application has closed a connection that it had been offered at `offered_at`: its service time
    /// (P5). Session and lease are those that have claimed it.
    pub fn handle_closed(&mut self, now: Instant, session: SessionId, lease: u64, offered_at: Instant) {
        self.listeners.place.served(now, session, lease, offered_at);
    }

    /// An offered connection was not claimed in time: the acceptor is removed, the connection goes to another
    /// or waits.
    pub fn handle_claim_timeout(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        listener: ListenerId,
        session: SessionId,
        lease: u64,
    ) {
        self.listeners.handle_returned(now, connection, listener, (session, lease), true, &mut self.directives);
    }

    /// An offer could not be made, or its session has ended: the connection goes to another acceptor or
    /// waits.
    pub fn handle_returned(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        listener: ListenerId,
        session: SessionId,
        lease: u64,
    ) {
        self.listeners.handle_returned(now, connection, listener, (session, lease), false, &mut self.directives);
    }

    /// A connection that no application has claimed is gone.
    pub fn handle_gone(&mut self, connection: ConnectionId, listener: ListenerId, stage: Stage) {
        self.listeners.handle_gone(connection, listener, stage);
    }

    /// The listener that `session` has with this lease.
    pub fn listener_of(&self, session: SessionId, lease: u64) -> Option<ListenerId> {
        self.listeners.find(session, lease)
    }

    /// The sessions that hold the listener's sockets; one that holds two comes twice.
    pub fn holders(&self, listener: ListenerId) -> impl Iterator<Item = SessionId> + '_ {
        self.listeners.holders(listener)
    }

    /// `TCP_DEFER_ACCEPT` of a listener.
    pub fn set_defer_accept(&mut self, listener: ListenerId, seconds: u16) {
        self.listeners.set_defer_accept(listener, seconds);
    }

    /// Every listener, by address and port.
    pub fn listeners(&self) -> impl Iterator<Item = ListenerView> + '_ {
        self.listeners.iter()
    }

    /// Whether somebody listens at the port, at whichever address.
    pub fn has_port(&self, port: u16) -> bool {
        self.listeners.has_port(port)
    }

    /// Another CM's offer or report (P5).
    pub fn handle_peer(&mut self, now: Instant, message: &PeerMessage) {
        if let Place::Here { manager, .. } = &mut self.listeners.place {
            manager.handle_peer(now, message);
        }
    }

    /// The next message to other CMs, if there is one now. Ask once in a while and, with `last`, before the
    /// replica goes to sleep: there is no timer, because who has nothing to do has nothing to tell.
    pub fn poll_peer(&mut self, now: Instant, reach: Reach, last: bool) -> Option<PeerOutput> {
        self.manager_mut()?.poll_peer(now, reach, last)
    }

    /// Whether [`ConnMgr::poll_peer`] has something now.
    #[inline]
    pub fn is_peer_due(&self, now: Instant, last: bool) -> bool {
        self.manager().is_some_and(|manager| manager.is_peer_due(now, last))
    }

    /// Changes the rules of balancing; senseless ones change nothing.
    pub fn set_balance(&mut self, rules: Balance) {
        if let Some(manager) = self.manager_mut() {
            manager.set_balance(rules);
        }
    }

    /// The acceptors of all listeners as the CM in this process sees them, each with its listener's address.
    pub fn acceptors(&mut self, now: Instant) -> Vec<(Endpoint, AcceptorView)> {
        self.manager_mut().map(|manager| manager.acceptors(now)).unwrap_or_default()
    }

    /// What balancing has done so far. `dropped` counts messages of other processes that did not count, from
    /// CMs and from TSs.
    pub fn balance_counts(&self) -> BalanceCounts {
        match &self.listeners.place {
            Place::Here { manager, .. } => manager.balance_counts(),
            Place::Apart(remote) => BalanceCounts { dropped: remote.dropped(), ..BalanceCounts::default() },
        }
    }

    /// What replica `from`, or the CM, says in another process (P2).
    pub fn handle_message(&mut self, now: Instant, from: ReplicaId, message: &ManagerMessage) {
        let told = match &mut self.listeners.place {
            Place::Here { manager, .. } => return manager.handle(now, from, message),
            Place::Apart(remote) => remote.handle(message),
        };
        match told {
            Told::Nothing => {}
            Told::Do(Directive::Offer(offer)) if !self.listeners.is_open(offer.listener) => {
                // Closed while the answer was under way.
                let (session, lease) = (offer.session, offer.lease);
                self.listeners.place.gone(0, offer.connection, Stage::Offered { session, lease });
                self.directives.push_back(Directive::Reset { connection: offer.connection });
            }
            Told::Do(directive) => self.directives.push_back(directive),
            Told::Lost(connection, listener) => {
                self.listeners.count_claimed(listener);
                self.directives.push_back(Directive::Reset { connection });
            }
        }
    }

    /// The CM in another process lives in this epoch: it knows nothing of what an earlier one was told, and
    /// is told again. No connection is lost, because none is kept there alone.
    pub fn handle_manager_restarted(&mut self, now: Instant, epoch: Epoch) {
        if let Place::Apart(remote) = &mut self.listeners.place {
            remote.restarted(now, epoch);
            self.listeners.tell_again(now);
        }
    }

    /// Gives every message for another process to `send`, as long as it takes them: for the replica that is
    /// named or, where the CM is apart, for that one.
    pub fn send_messages(&mut self, now: Instant, mut send: impl FnMut(Option<ReplicaId>, &ManagerMessage) -> bool) {
        match &mut self.listeners.place {
            Place::Here { manager, .. } => manager.send(now, |to, message| send(Some(to), message)),
            Place::Apart(remote) => remote.send(now, |message| send(None, message)),
        }
    }

    /// Whether something waits for [`ConnMgr::send_messages`].
    #[inline]
    pub fn has_messages(&self) -> bool {
        match &self.listeners.place {
            Place::Here { manager, .. } => manager.has_output(),
            Place::Apart(remote) => remote.has_output(),
        }
    }

    /// Whether so much waits that nothing new should be begun: no SYN answered, no command taken.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.listeners.place.is_crowded()
    }

    /// Asks again for answers that are late, and offers some of the connections that have waited for an
    /// acceptor. To be called in every round, before directives are polled.
    pub fn handle_timers(&mut self, now: Instant) {
        match &mut self.listeners.place {
            Place::Here { manager, .. } => manager.chooser.end_round(now),
            Place::Apart(remote) => remote.handle_timers(now),
        }
    }

    /// Whether connections that have waited are to be offered in the next round.
    pub fn is_behind(&self) -> bool {
        matches!(&self.listeners.place, Place::Here { manager, .. } if manager.chooser.has_turns())
    }

    /// When [`ConnMgr::handle_timers`] is due.
    pub fn next_timeout(&self) -> Option<Instant> {
        match &self.listeners.place {
            Place::Here { manager, .. } => manager.chooser.has_turns().then_some(Instant::ZERO),
            Place::Apart(remote) => remote.next_timeout(),
        }
    }

    /// Whether the CM that chooses is in another process.
    pub fn is_manager_apart(&self) -> bool {
        self.config.is_manager_apart()
    }

    /// How many leases of a port there are.
    pub fn leases_at(&self, protocol: Protocol, port: u16) -> usize {
        self.ports.count_at(protocol, port)
    }

    /// Whether somebody holds `port`, as far as this replica is its authority.
    pub fn is_leased(&self, protocol: Protocol, port: u16) -> bool {
        self.ports.is_leased(protocol, port)
    }

    fn manager(&self) -> Option<&Manager> {
        match &self.listeners.place {
            Place::Here { manager, .. } => Some(manager),
            Place::Apart(_) => None,
        }
    }

    fn manager_mut(&mut self) -> Option<&mut Manager> {
        match &mut self.listeners.place {
            Place::Here { manager, .. } => Some(manager),
            Place::Apart(_) => None,
        }
    }

    /// Whether this replica says who has a port.
    pub fn is_authority(&self, port: u16) -> bool {
        port % u16::from(self.config.replicas.max(1)) == u16::from(self.config.replica.0)
    }
}

#[cfg(test)]
mod tests;
