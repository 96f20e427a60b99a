//! Reaches the part of the CM that chooses: by calls if it is in the same process, and by messages if it is
//! in another.

use atoll_base::{Endpoint, Instant, SessionId};
use atoll_ipc::Device;
use atoll_ipc::manager::ManagerBody;

use crate::clients::Manager;
use crate::messages::{ConnectionId, ListenerId, Stage};
use crate::remote::Remote;

/// The part of the CM that chooses for transport server `ts`. The `choice` arguments are a listener's place
/// in its table.
#[derive(Debug)]
pub(crate) enum Place {
    /// The chooser is in this process, and may have clients in others.
    Here { ts: u8, manager: alloc::boxed::Box<Manager> },
    /// The chooser is in another process.
    Apart(alloc::boxed::Box<Remote>),
}

impl Place {
    /// Reports that a socket listens: at which address, whether `::` means IPv6 alone, and on which device.
    /// Returns the listener's place in the chooser's table; 0 if that is in
    /// another process.
    pub(crate) fn opened(&mut self, id: ListenerId, lease: u64, at: (Endpoint, bool, Device)) -> u32 {
        match self {
            Place::Here { ts, manager } => manager.chooser.opened(*ts, lease, at),
            Place::Apart(remote) => {
                let ((local, v6_only, device), listener) = (at, id.to_bits());
                remote.tell(ManagerBody::Opened { listener, lease, local, v6_only, device });
                0
            }
        }
    }

    /// Reports that the socket stopped listening.
    pub(crate) fn left(&mut self, id: ListenerId, choice: u32, lease: u64) {
        match self {
            Place::Here { ts, manager } => manager.chooser.left(*ts, choice, lease),
            Place::Apart(remote) => remote.tell(ManagerBody::Left { listener: id.to_bits(), lease }),
        }
    }

    /// Reports that the last socket of the listener stopped listening.
    pub(crate) fn closed(&mut self, id: ListenerId, choice: u32) {
        match self {
            Place::Here { ts, manager } => manager.chooser.closed(*ts, choice),
            Place::Apart(remote) => remote.tell(ManagerBody::Closed { listener: id.to_bits() }),
        }
    }

    /// Registers an acceptor: ACCEPT-CONNECTION (P4).
    pub(crate) fn register(
        &mut self,
        now: Instant,
        id: ListenerId,
        choice: u32,
        session: SessionId,
        lease: u64,
    ) {
        match self {
            Place::Here { ts, manager } => manager.chooser.register(now, *ts, choice, session, lease),
            Place::Apart(remote) => remote.register(id, session, lease),
        }
    }

    /// Reports that the session wants no more connections for now. Returns whether it wanted any, and true if
    /// the chooser is in another process.
    pub(crate) fn deregister(
        &mut self,
        now: Instant,
        id: ListenerId,
        choice: u32,
        session: SessionId,
        lease: u64,
    ) -> bool {
        match self {
            Place::Here { ts, manager } => manager.chooser.deregister(now, *ts, choice, session, lease),
            Place::Apart(remote) => {
                remote.deregister(id, session, lease);
                true
            }
        }
    }

    /// Asks for a connection for the session, or whether there is one (P4's naive accept). Returns `false` if
    /// the chooser is in another process.
    pub(crate) fn asked(
        &mut self,
        now: Instant,
        choice: u32,
        session: SessionId,
        lease: u64,
        takes: bool,
    ) -> bool {
        match self {
            Place::Here { ts, manager } => {
                manager.chooser.asked(now, *ts, choice, session, lease, takes);
                true
            }
            Place::Apart(_) => false,
        }
    }

    /// Reports that a connection still waits although a session that asks was told.
    pub(crate) fn waits_long(&mut self, choice: u32) {
        if let Place::Here { ts, manager } = self {
            manager.chooser.waits_long(*ts, choice);
        }
    }

    /// Reports that the session no longer holds the socket.
    pub(crate) fn forget(&mut self, id: ListenerId, choice: u32, session: SessionId, lease: u64) {
        match self {
            Place::Here { ts, manager } => manager.chooser.forget(*ts, choice, session, lease),
            Place::Apart(remote) => remote.forget(id, session, lease),
        }
    }

    /// Asks which acceptor gets an established connection.
    #[inline]
    pub(crate) fn established(
        &mut self,
        now: Instant,
        id: ListenerId,
        choice: u32,
        connection: ConnectionId,
    ) {
        match self {
            Place::Here { ts, manager } => {
                manager.chooser.established(now, *ts, choice, connection, id);
            }
            Place::Apart(remote) => remote.established(now, connection, id),
        }
    }

    /// Reports that a connection is claimed. Returns whether its end is to be reported by [`Place::served`].
    pub(crate) fn claimed(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        session: SessionId,
        lease: u64,
        offered_at: Instant,
    ) -> bool {
        match self {
            Place::Here { manager, .. } => manager.chooser.claimed(now, session, lease, offered_at, None),
            Place::Apart(remote) => remote.claimed(connection, offered_at),
        }
    }

    /// Reports that the application has closed a connection that it had claimed.
    pub(crate) fn served(&mut self, now: Instant, session: SessionId, lease: u64, offered_at: Instant) {
        match self {
            Place::Here { manager, .. } => manager.chooser.served(now, session, lease, offered_at),
            Place::Apart(remote) => remote.served(session, lease, offered_at),
        }
    }

    /// Reports that an offer has ended without a claim, and asks which acceptor gets the connection next.
    pub(crate) fn returned(
        &mut self,
        now: Instant,
        id: ListenerId,
        choice: u32,
        connection: ConnectionId,
        (session, lease): (SessionId, u64),
        timed_out: bool,
    ) {
        match self {
            Place::Here { ts, manager } => {
                if timed_out {
                    manager.chooser.timed_out(now, session, lease);
                }
                manager.chooser.returned(now, *ts, choice, (connection, id), session, lease);
            }
            Place::Apart(remote) => remote.returned(now, connection, id, timed_out),
        }
    }

    /// Reports that a connection is gone before it was claimed.
    pub(crate) fn gone(&mut self, choice: u32, connection: ConnectionId, stage: Stage) {
        match self {
            Place::Here { ts, manager } => manager.chooser.gone(*ts, choice, connection, stage),
            Place::Apart(_) if stage == Stage::Embryonic => {}
            Place::Apart(remote) => remote.gone(connection),
        }
    }

    /// Returns whether so many messages wait that nothing new should be begun.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        match self {
            Place::Here { .. } => false,
            Place::Apart(remote) => remote.is_crowded(),
        }
    }
}
