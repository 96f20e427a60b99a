//! Connects the connection manager (CM) of this replica with those of the others (P5), and with transport
//! servers and CMs in other processes (P2). The owner of the transport server carries the messages.

use alloc::vec::Vec;

use atoll_base::{Endpoint, Epoch, Instant, ReplicaId};
use atoll_connmgr::{AcceptorView, PeerOutput, Reach};
use atoll_ipc::Memory;
use atoll_ipc::balance::{Balance, PeerMessage};
use atoll_ipc::manager::ManagerMessage;

use crate::transport::Transport;

impl<M: Memory> Transport<M> {
    /// Handles another CM's offer or report. The caller flushes afterwards.
    pub fn handle_peer(&mut self, now: Instant, message: &PeerMessage) {
        self.cm.handle_peer(now, message);
        self.run_directives(now);
    }

    /// Handles a message of replica `from` to the CM in this process, or of the CM in another process to this
    /// replica. The caller flushes afterwards.
    pub fn handle_message(&mut self, now: Instant, from: ReplicaId, message: &ManagerMessage) {
        self.cm.handle_message(now, from, message);
        self.run_directives(now);
    }

    /// Notes the epoch of the CM in another process: see
    /// [`atoll_connmgr::ConnMgr::handle_manager_restarted`]. The caller flushes afterwards.
    pub fn handle_manager_restarted(&mut self, now: Instant, epoch: Epoch) {
        self.cm.handle_manager_restarted(now, epoch);
        self.run_directives(now);
    }

    /// Passes messages for other processes to `send`: see [`atoll_connmgr::ConnMgr::send_messages`].
    pub fn send_messages(
        &mut self,
        now: Instant,
        send: impl FnMut(Option<ReplicaId>, &ManagerMessage) -> bool,
    ) {
        self.cm.send_messages(now, send);
    }

    /// Returns whether something waits for [`Transport::send_messages`].
    #[inline]
    pub fn has_messages(&self) -> bool {
        self.cm.has_messages()
    }

    /// Returns whether [`Transport::poll_peer`] may have something. `last` says that the replica is going to
    /// sleep.
    #[inline]
    pub fn is_peer_due(&self, now: Instant, last: bool) -> bool {
        self.cm.is_peer_due(now, last)
    }

    /// Returns the next message to other CMs: see [`atoll_connmgr::ConnMgr::poll_peer`].
    pub fn poll_peer(&mut self, now: Instant, reach: Reach, last: bool) -> Option<PeerOutput> {
        self.cm.poll_peer(now, reach, last)
    }

    /// Changes the rules of balancing; invalid ones change nothing.
    pub fn set_balance(&mut self, rules: Balance) {
        self.cm.set_balance(rules);
    }

    /// Returns the acceptors of all listeners as this replica sees them, each with its listener's address.
    pub fn acceptors(&mut self, now: Instant) -> Vec<(Endpoint, AcceptorView)> {
        self.cm.acceptors(now)
    }
}
