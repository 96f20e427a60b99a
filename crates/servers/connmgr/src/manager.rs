//! What does the connection manager of one replica keep?

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use atoll_base::{Endpoint, Epoch, Instant, ReplicaId, Rng, SessionId};
use atoll_ipc::Cause;
use atoll_ipc::balance::{Balance, PeerMessage};
use atoll_ipc::command::Protocol;

use crate::balance::{AcceptorView, BalanceCounts, Balancer, PeerOutput, Reach};
use crate::listeners::{ListenerView, Listeners};
use crate::messages::{Bind, ConnectionId, Directive, Listen, ListenerId, Stage, Syn, SynVerdict};
use crate::ports::Ports;

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
}

/// Ports, listeners and acceptors of one replica.
#[derive(Debug)]
pub struct ConnMgr {
    config: Config,
    ports: Ports,
    listeners: Listeners,
    directives: VecDeque<Directive>,
}

impl ConnMgr {
    /// An empty one. `seed` decides where the search for free ports starts, and who gets which connection.
    pub fn new(config: Config, seed: u64) -> ConnMgr {
        let draws = Rng::new(seed ^ 0x6f66_6665_7273).next_u64();
        let balancer = Balancer::new(config.replica, config.replicas, config.epoch, draws);
        ConnMgr {
            ports: Ports::new(config, seed),
            listeners: Listeners::new(config.backlog_max.max(1), balancer),
            directives: VecDeque::new(),
            config,
        }
    }

    /// The next thing to do, if any. Ask after every call.
    #[inline]
    pub fn poll_directive(&mut self) -> Option<Directive> {
        self.directives.pop_front()
    }

    /// Leases a port; the same lease again adds the session as a holder. Returns the port. Whether the address is the stack's the
    /// caller knows.
    pub fn handle_bind(&mut self, bind: &Bind) -> Result<u16, Cause> {
        self.ports.bind(bind)
    }

    /// The session no longer holds the lease.
    pub fn handle_release(&mut self, session: SessionId, lease: u64) {
        self.ports.release(session, lease);
        self.listeners.release(session, lease, &mut self.directives);
    }

    /// Opens a listener, adds the session as a holder, or changes the backlog. Address: see [`ConnMgr::handle_bind`].
    pub fn handle_listen(&mut self, listen: &Listen) -> Result<ListenerId, Cause> {
        if listen.local.port == 0 {
            return Err(Cause::Invalid);
        }
        if self.is_authority(listen.local.port) && !self.ports.listen(listen.session, listen.lease, listen.local) {
            return Err(Cause::Invalid);
        }
        self.listeners.listen(listen, &mut self.directives)
    }

    /// ACCEPT-CONNECTION (P4). `false`: the session does not listen with this lease.
    pub fn handle_accept(&mut self, now: Instant, session: SessionId, lease: u64) -> bool {
        self.listeners.add_acceptor(now, session, lease, &mut self.directives)
    }

    /// The session wants no more connections of the listener for now. What was offered is still its to claim.
    pub fn handle_stop_accepting(&mut self, now: Instant, session: SessionId, lease: u64) -> bool {
        self.listeners.remove_acceptor(now, session, lease)
    }

    /// The session has ended: it holds and accepts nothing any more. The TS hands back its offers by
    /// [`ConnMgr::handle_returned`] afterwards.
    pub fn handle_session_gone(&mut self, session: SessionId) {
        self.ports.session_gone(session);
        self.listeners.session_gone(session, &mut self.directives);
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

    /// Whether the accept queue has room for one more: if not, the last ACK of the handshake is to be forgotten, as on Linux.
    #[inline]
    pub fn may_establish(&self, listener: ListenerId) -> bool {
        self.listeners.may_establish(listener)
    }

    /// An embryonic connection is established (and has text, where that is waited for). A directive may follow at once, or
    /// when an acceptor registers.
    pub fn handle_established(&mut self, now: Instant, connection: ConnectionId, listener: ListenerId) {
        self.listeners.handle_established(now, connection, listener, &mut self.directives);
    }

    /// CLAIM-CONNECTION (P4): a connection offered at `offered_at` is the application's. Returns whether its end is to be told, too,
    /// by [`ConnMgr::handle_closed`].
    pub fn handle_claimed(
        &mut self,
        now: Instant,
        listener: ListenerId,
        session: SessionId,
        lease: u64,
        offered_at: Instant,
    ) -> bool {
        self.listeners.handle_claimed(now, listener, session, lease, offered_at)
    }

    /// The application has closed a connection that it had been offered at `offered_at`: its service time (P5). Session and lease are
    /// those that have claimed it.
    pub fn handle_closed(&mut self, now: Instant, session: SessionId, lease: u64, offered_at: Instant) {
        self.listeners.handle_closed(now, session, lease, offered_at);
    }

    /// An offered connection was not claimed in time: the acceptor is removed, the connection goes to another or waits.
    pub fn handle_claim_timeout(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        listener: ListenerId,
        session: SessionId,
        lease: u64,
    ) {
        if self.listeners.time_out_acceptor(now, session, lease) {
            self.directives.push_back(Directive::AcceptorRemoved { session, lease });
        }
        self.listeners.handle_returned(now, connection, listener, session, lease, &mut self.directives);
    }

    /// An offer could not be made, or its session has ended: the connection goes to another acceptor or waits.
    pub fn handle_returned(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        listener: ListenerId,
        session: SessionId,
        lease: u64,
    ) {
        self.listeners.handle_returned(now, connection, listener, session, lease, &mut self.directives);
    }

    /// A connection that no application has claimed is gone.
    pub fn handle_gone(&mut self, connection: ConnectionId, listener: ListenerId, stage: Stage) {
        self.listeners.handle_gone(connection, listener, stage);
    }

    /// The listener that `session` has with this lease.
    pub fn listener_of(&self, session: SessionId, lease: u64) -> Option<ListenerId> {
        self.listeners.find(session, lease)
    }

    /// `TCP_DEFER_ACCEPT` of a listener.
    pub fn set_defer_accept(&mut self, listener: ListenerId, seconds: u16) {
        self.listeners.set_defer_accept(listener, seconds);
    }

    /// Every listener, by address and port.
    pub fn listeners(&self) -> impl Iterator<Item = ListenerView> + '_ {
        self.listeners.iter()
    }

    /// Another CM's offer or report (P5).
    pub fn handle_peer(&mut self, now: Instant, message: &PeerMessage) {
        self.listeners.handle_peer(now, message, &mut self.directives);
    }

    /// The next message to other CMs, if there is one now. Ask once in a while and, with `last`, before the replica goes to sleep: there is
    /// no timer, because who has nothing to do has nothing to tell.
    pub fn poll_peer(&mut self, now: Instant, reach: Reach, last: bool) -> Option<PeerOutput> {
        self.listeners.poll_peer(now, reach, last)
    }

    /// Whether [`ConnMgr::poll_peer`] has something now.
    #[inline]
    pub fn is_peer_due(&self, now: Instant, last: bool) -> bool {
        self.listeners.balancer.is_due(now, last)
    }

    /// Changes the rules of balancing; senseless ones change nothing.
    pub fn set_balance(&mut self, rules: Balance) {
        self.listeners.balancer.set_rules(rules);
    }

    /// The acceptors of all listeners as this CM sees them, each with its listener's address.
    pub fn acceptors(&mut self, now: Instant) -> Vec<(Endpoint, AcceptorView)> {
        self.listeners.acceptors(now)
    }

    /// What balancing has done so far.
    pub fn balance_counts(&self) -> BalanceCounts {
        self.listeners.balancer.counts()
    }

    /// Whether somebody holds `port`, as far as this replica is its authority.
    pub fn is_leased(&self, protocol: Protocol, port: u16) -> bool {
        self.ports.is_leased(protocol, port)
    }

    fn is_authority(&self, port: u16) -> bool {
        port % u16::from(self.config.replicas.max(1)) == u16::from(self.config.replica.0)
    }
}

#[cfg(test)]
mod tests;
