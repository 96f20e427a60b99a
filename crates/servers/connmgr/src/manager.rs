//! The part of the connection manager that is in the process of a transport server.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use atoll_base::{Duration, Endpoint, Epoch, Instant, ReplicaId, SessionId};
use atoll_ipc::balance::{Balance, PeerMessage};
use atoll_ipc::command::Protocol;
use atoll_ipc::lease::Grant;
use atoll_ipc::manager::ManagerMessage;
use atoll_ipc::{Cause, Device};

use crate::balance::{AcceptorView, BalanceCounts, PeerOutput, Reach};
use crate::clients::{Manager, ManagerConfig};
use crate::listeners::{ListenerView, Listeners};
use crate::messages::{Bind, ConnectionId, Directive, Listen, ListenerId, Stage, Syn, SynVerdict};
use crate::place::Place;
use crate::ports::Ports;
use crate::remote::{Remote, Told};

/// The configuration of a connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The number of this replica.
    pub replica: ReplicaId,
    /// The number of replicas, at least 1.
    pub replicas: u8,
    /// The incarnation of this replica, which goes with every message to other CMs.
    pub epoch: Epoch,
    /// The ports given to sockets that name none: first and last.
    pub ephemeral: (u16, u16),
    /// The upper bound of every backlog.
    pub backlog_max: u32,
    /// The greatest number of leases of all sessions together.
    pub leases_max: usize,
    /// The greatest number of leases of one session.
    pub session_leases_max: usize,
    /// The greatest number of listening sockets of one session.
    pub session_listeners_max: usize,
    /// The number of CMs that choose, 1 to `replicas`. CM n chooses for the replicas whose number modulo this
    /// is n.
    pub managers: u8,
    /// Whether these CMs are processes of their own; otherwise they are in the replicas of the same numbers.
    pub managers_apart: bool,
    /// The time after which a question to a CM in another process is repeated.
    pub patience: Duration,
}

impl Config {
    /// Returns the number of the CM that chooses for this replica.
    pub fn manager(&self) -> u8 {
        self.replica.0 % self.managers.max(1)
    }

    /// Returns whether the CM that chooses for this replica is in another process.
    pub fn is_manager_apart(&self) -> bool {
        self.managers_apart || self.manager() != self.replica.0
    }
}

/// The ports and listeners of one replica, and its connection to the CM that chooses, which is in the same
/// process or in another.
#[derive(Debug)]
pub struct ConnMgr {
    config: Config,
    ports: Ports,
    pub(crate) listeners: Listeners,
    directives: VecDeque<Directive>,
}

impl ConnMgr {
    /// Creates a connection manager without ports and listeners. `seed` decides which acceptor gets which
    /// connection.
    pub fn new(config: Config, seed: u64) -> ConnMgr {
        let place = if config.is_manager_apart() {
            Place::Apart(Box::new(Remote::new(config.epoch, config.patience)))
        } else {
            let (number, managers, epoch) = (config.manager(), config.managers.max(1), config.epoch);
            let manager =
                Manager::new(ManagerConfig { number, managers, epoch, own: Some(config.replica) }, seed);
            Place::Here { ts: config.replica.0, manager: Box::new(manager) }
        };
        ConnMgr {
            ports: Ports::new(config),
            listeners: Listeners::new(config.backlog_max.max(1), config.session_listeners_max, place),
            directives: VecDeque::new(),
            config,
        }
    }

    /// Returns the next directive, if any. Call this after every other call.
    #[inline]
    pub fn poll_directive(&mut self) -> Option<Directive> {
        if let Place::Here { manager, .. } = &mut self.listeners.place
            && let Some(directive) = manager.poll_own()
        {
            return Some(directive);
        }
        self.directives.pop_front()
    }

    /// Leases a port, or adds the session as a holder if the lease exists already. Returns the port. The
    /// caller has checked that the address is one of the stack's.
    pub fn handle_bind(&mut self, bind: &Bind) -> Result<u16, Cause> {
        self.ports.bind(bind, false)
    }

    /// Leases a port once more that a predecessor of this replica has leased: what would refuse it now, such
    /// as another socket that shared the port and has forbidden that since, did not then.
    pub fn repeat_bind(&mut self, bind: &Bind) -> Result<u16, Cause> {
        self.ports.bind(bind, true)
    }

    /// Returns a free port from the first to the last of `range`, of which this replica is the authority, for
    /// [`ConnMgr::handle_bind`]; 0 if the lease has a port already. Returns `None` if all are in use.
    pub fn port_within(&mut self, protocol: Protocol, lease: u64, range: (u16, u16)) -> Option<u16> {
        self.ports.port_within(protocol, lease, range)
    }

    /// Binds the socket of a lease, of a port whose authority this replica is, to another device. Returns
    /// `false` if there is no such lease.
    pub fn set_device(&mut self, lease: u64, device: Device) -> bool {
        self.ports.set_device(lease, device)
    }

    /// Notes whether the socket of a lease, of a port whose authority this replica is, has `SO_REUSEADDR`.
    /// Returns `false` if there is no such lease.
    pub fn set_reuse_addr(&mut self, lease: u64, reuse_addr: bool) -> bool {
        self.ports.set_reuse_addr(lease, reuse_addr)
    }

    /// Returns the device that a listener's sockets are bound to.
    pub fn device_of(&self, listener: ListenerId) -> Device {
        self.listeners.device_of(listener)
    }

    /// Ends the session's hold on the lease.
    pub fn handle_release(&mut self, session: SessionId, lease: u64) {
        self.ports.release(session, lease);
        self.listeners.release(session, lease, &mut self.directives);
    }

    /// Opens a listener, adds the session as a holder, or changes the backlog. The caller has checked the
    /// address, as for [`ConnMgr::handle_bind`].
    pub fn handle_listen(&mut self, listen: &Listen) -> Result<ListenerId, Cause> {
        let grant = self.grant_to_listen(listen).ok_or(Cause::Invalid)?;
        let is_authority = self.is_authority(listen.local.port);
        let id = self.listeners.listen(listen, &grant, is_authority, &mut self.directives)?;
        if is_authority {
            self.ports.listens(&grant);
        }
        Ok(id)
    }

    /// Returns the grant by which a session may listen. It is that of its lease if this replica is the port's
    /// authority, otherwise the one that it has shown, or the one by which it listens already.
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

    /// Returns what the session holds by this lease, of a port whose authority this replica is.
    pub fn grant(&self, session: SessionId, lease: u64) -> Option<Grant> {
        self.ports.grant(session, lease)
    }

    /// Returns whether a socket listens here by a later grant that rules this one out.
    pub fn is_overtaken(&self, grant: &Grant) -> bool {
        self.listeners.is_overtaken(grant)
    }

    /// Registers an acceptor: ACCEPT-CONNECTION (P4). Returns `false` if the session does not listen with
    /// this lease.
    pub fn handle_accept(&mut self, now: Instant, session: SessionId, lease: u64) -> bool {
        self.listeners.add_acceptor(now, session, lease)
    }

    /// Deregisters an acceptor, which may still claim what it was offered. Returns whether the session did
    /// accept.
    pub fn handle_stop_accepting(&mut self, now: Instant, session: SessionId, lease: u64) -> bool {
        self.listeners.remove_acceptor(now, session, lease)
    }

    /// Handles the naive accept (P4): the session asks for a waiting connection (`takes`), or whether there
    /// is one. A directive answers. Returns `false`, without an answer, if the session does not listen with
    /// this lease or if the CM that chooses is in another process.
    pub fn handle_ask(&mut self, now: Instant, session: SessionId, lease: u64, takes: bool) -> bool {
        self.listeners.ask(now, session, lease, takes)
    }

    /// Notifies all sessions that have asked that a connection waits. It has waited for a while, and the
    /// session that was notified has not come.
    pub fn handle_waits_long(&mut self, listener: ListenerId) {
        self.listeners.waits_long(listener);
    }

    /// Ends everything that the session holds and accepts. Afterwards the TS hands back the offers to it by
    /// [`ConnMgr::handle_returned`].
    pub fn handle_session_gone(&mut self, session: SessionId) {
        while self.release_one(session).is_some() {}
    }

    /// Ends the session's hold on one of its leases. Returns which; `None` if it had none.
    pub fn release_one(&mut self, session: SessionId) -> Option<u64> {
        let lease = self.listeners.held(session).or_else(|| self.ports.held(session))?;
        self.handle_release(session, lease);
        Some(lease)
    }

    /// Decides what to do with a SYN that belongs to no connection.
    #[inline]
    pub fn handle_syn(&mut self, syn: &Syn) -> SynVerdict {
        self.listeners.handle_syn(syn)
    }

    /// Returns whether a socket listens at an address of this stack for what comes over `device`.
    pub fn has_listener(&self, local: Endpoint, device: Device) -> bool {
        self.listeners.index_at(local, device).is_some()
    }

    /// Returns the listener at an address of this stack for what comes over `device`.
    pub fn listener_at(&self, local: Endpoint, device: Device) -> Option<ListenerId> {
        self.listeners.id_at(local, device)
    }

    /// Returns whether this listener still exists.
    pub fn is_listening(&self, listener: ListenerId) -> bool {
        self.listeners.has(listener)
    }

    /// Returns whether the accept queue has room for one more. If not, the last ACK of the handshake is
    /// dropped, as on Linux.
    #[inline]
    pub fn may_establish(&self, listener: ListenerId) -> bool {
        self.listeners.may_establish(listener)
    }

    /// Notes that an embryonic connection is established, and has text if it was to wait for some. A
    /// directive follows at once, or when an acceptor registers.
    pub fn handle_established(&mut self, now: Instant, connection: ConnectionId, listener: ListenerId) {
        self.listeners.handle_established(now, connection, listener, &mut self.directives);
    }

    /// Notes that a connection offered at `offered_at` was claimed: CLAIM-CONNECTION (P4). Returns whether
    /// its end is to be reported by [`ConnMgr::handle_closed`].
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

    /// Notes that the application has closed a connection that it was offered at `offered_at`, which gives
    /// its service time (P5). Session and lease are those that have claimed it.
    pub fn handle_closed(&mut self, now: Instant, session: SessionId, lease: u64, offered_at: Instant) {
        self.listeners.place.served(now, session, lease, offered_at);
    }

    /// Notes that an offered connection was not claimed in time: the acceptor is removed, and the connection
    /// goes to another one or waits.
    pub fn handle_claim_timeout(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        listener: ListenerId,
        session: SessionId,
        lease: u64,
    ) {
        self.listeners.handle_returned(
            now,
            connection,
            listener,
            (session, lease),
            true,
            &mut self.directives,
        );
    }

    /// Notes that an offer could not be made, or that its session has ended: the connection goes to another
    /// acceptor or waits.
    pub fn handle_returned(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        listener: ListenerId,
        session: SessionId,
        lease: u64,
    ) {
        self.listeners.handle_returned(
            now,
            connection,
            listener,
            (session, lease),
            false,
            &mut self.directives,
        );
    }

    /// Notes that a connection is gone which no application has claimed.
    pub fn handle_gone(&mut self, connection: ConnectionId, listener: ListenerId, stage: Stage) {
        self.listeners.handle_gone(connection, listener, stage);
    }

    /// Returns the listener that `session` has with this lease.
    pub fn listener_of(&self, session: SessionId, lease: u64) -> Option<ListenerId> {
        self.listeners.find(session, lease)
    }

    /// Returns the sessions that hold the listener's sockets; a session that holds two comes twice.
    pub fn holders(&self, listener: ListenerId) -> impl Iterator<Item = SessionId> + '_ {
        self.listeners.holders(listener)
    }

    /// Sets `TCP_DEFER_ACCEPT` of a listener, in seconds.
    pub fn set_defer_accept(&mut self, listener: ListenerId, seconds: u16) {
        self.listeners.set_defer_accept(listener, seconds);
    }

    /// Returns every listener, by port and address.
    pub fn listeners(&self) -> impl Iterator<Item = ListenerView> + '_ {
        self.listeners.iter()
    }

    /// Returns whether a socket listens at the port, at whichever address.
    pub fn has_port(&self, port: u16) -> bool {
        self.listeners.has_port(port)
    }

    /// Handles another CM's offer or report (P5).
    pub fn handle_peer(&mut self, now: Instant, message: &PeerMessage) {
        if let Place::Here { manager, .. } = &mut self.listeners.place {
            manager.handle_peer(now, message);
        }
    }

    /// Returns the next message to other CMs, if there is one now. Call this in every round and, with `last`,
    /// before the replica goes to sleep. There is no timer, because an idle replica has nothing to report.
    pub fn poll_peer(&mut self, now: Instant, reach: Reach, last: bool) -> Option<PeerOutput> {
        self.manager_mut()?.poll_peer(now, reach, last)
    }

    /// Returns whether [`ConnMgr::poll_peer`] has something now.
    #[inline]
    pub fn is_peer_due(&self, now: Instant, last: bool) -> bool {
        self.manager().is_some_and(|manager| manager.is_peer_due(now, last))
    }

    /// Changes the rules of balancing; invalid ones change nothing.
    pub fn set_balance(&mut self, rules: Balance) {
        if let Some(manager) = self.manager_mut() {
            manager.set_balance(rules);
        }
    }

    /// Returns the acceptors of all listeners as the CM in this process sees them, each with its listener's
    /// address; none if the CM is in another process.
    pub fn acceptors(&mut self, now: Instant) -> Vec<(Endpoint, AcceptorView)> {
        self.manager_mut().map(|manager| manager.acceptors(now)).unwrap_or_default()
    }

    /// Returns counters of what balancing has done so far. `dropped` counts the messages of CMs and TSs in
    /// other processes that were ignored.
    pub fn balance_counts(&self) -> BalanceCounts {
        match &self.listeners.place {
            Place::Here { manager, .. } => manager.balance_counts(),
            Place::Apart(remote) => BalanceCounts { dropped: remote.dropped(), ..BalanceCounts::default() },
        }
    }

    /// Handles a message of replica `from`, or of the CM, in another process (P2).
    pub fn handle_message(&mut self, now: Instant, from: ReplicaId, message: &ManagerMessage) {
        let told = match &mut self.listeners.place {
            Place::Here { manager, .. } => return manager.handle(now, from, message),
            Place::Apart(remote) => remote.handle(message),
        };
        match told {
            Told::Nothing => {}
            Told::Do(Directive::Offer(offer)) if !self.listeners.is_open(offer.listener) => {
                // The listener was closed while the answer was under way.
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

    /// Notes the epoch of the CM in another process. A new incarnation knows nothing, and everything is
    /// reported to it again. No connection is lost, because the CM is not the only one that knows of it.
    pub fn handle_manager_restarted(&mut self, now: Instant, epoch: Epoch) {
        if let Place::Apart(remote) = &mut self.listeners.place {
            remote.restarted(now, epoch);
            self.listeners.tell_again(now);
        }
    }

    /// Passes every message for another process to `send`, as long as that returns true. The message is for
    /// the named replica, or for the CM if no replica is named.
    pub fn send_messages(
        &mut self,
        now: Instant,
        mut send: impl FnMut(Option<ReplicaId>, &ManagerMessage) -> bool,
    ) {
        match &mut self.listeners.place {
            Place::Here { manager, .. } => manager.send(now, |to, message| send(Some(to), message)),
            Place::Apart(remote) => remote.send(now, |message| send(None, message)),
        }
    }

    /// Returns whether something waits for [`ConnMgr::send_messages`].
    #[inline]
    pub fn has_messages(&self) -> bool {
        match &self.listeners.place {
            Place::Here { manager, .. } => manager.has_output(),
            Place::Apart(remote) => remote.has_output(),
        }
    }

    /// Returns whether so many messages wait that nothing new should be begun: no SYN answered, no command
    /// taken.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.listeners.place.is_crowded()
    }

    /// Repeats questions whose answers are late, and offers some of the connections that have waited for an
    /// acceptor. Call this in every round, before directives are polled.
    pub fn handle_timers(&mut self, now: Instant) {
        match &mut self.listeners.place {
            Place::Here { manager, .. } => manager.chooser.end_round(now),
            Place::Apart(remote) => remote.handle_timers(now),
        }
    }

    /// Returns whether waiting connections are to be offered in the next round.
    pub fn is_behind(&self) -> bool {
        matches!(&self.listeners.place, Place::Here { manager, .. } if manager.chooser.has_turns())
    }

    /// Returns when [`ConnMgr::handle_timers`] is due.
    pub fn next_timeout(&self) -> Option<Instant> {
        match &self.listeners.place {
            Place::Here { manager, .. } => manager.chooser.has_turns().then_some(Instant::ZERO),
            Place::Apart(remote) => remote.next_timeout(),
        }
    }

    /// Returns whether the CM that chooses is in another process.
    pub fn is_manager_apart(&self) -> bool {
        self.config.is_manager_apart()
    }

    /// Returns how many leases of a port there are.
    pub fn leases_at(&self, protocol: Protocol, port: u16) -> usize {
        self.ports.count_at(protocol, port)
    }

    /// Returns whether a socket holds `port`, if this replica is its authority.
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

    /// Returns whether this replica is the authority of a port.
    pub fn is_authority(&self, port: u16) -> bool {
        port % u16::from(self.config.replicas.max(1)) == u16::from(self.config.replica.0)
    }
}

#[cfg(test)]
mod tests;
