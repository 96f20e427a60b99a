//! Where is the part of the CM that chooses? In the same process it is called; in another it is sent
//! messages.

use atoll_base::{Endpoint, Instant, SessionId};
use atoll_ipc::manager::ManagerBody;

use crate::clients::Manager;
use crate::messages::{ConnectionId, ListenerId, Stage};
use crate::remote::Remote;

/// The part of the CM that chooses for transport server `ts`. `choice` is a listener's place in its table.
#[derive(Debug)]
pub(crate) enum Place {
    /// In this process, perhaps with clients in others.
    Here { ts: u8, manager: alloc::boxed::Box<Manager> },
    /// In another.
    Apart(alloc::boxed::Box<Remote>),
}

impl Place {
    /// A socket listens. Returns the listener's place.
    pub(crate) fn opened(&mut self, id: ListenerId, lease: u64, local: Endpoint, v6_only: bool) -> u32 {
        match self {
            Place::Here { ts, manager } => manager.chooser.opened(*ts, lease, local, v6_only),
            Place::Apart(remote) => {
                remote.tell(ManagerBody::Opened { listener: id.to_bits(), lease, local, v6_only });
                0
            }
        }
    }

    /// It does not any more.
    pub(crate) fn left(&mut self, id: ListenerId, choice: u32, lease: u64) {
        match self {
            Place::Here { ts, manager } => manager.chooser.left(*ts, choice, lease),
            Place::Apart(remote) => remote.tell(ManagerBody::Left { listener: id.to_bits(), lease }),
        }
    }

    /// No socket of the listener does.
    pub(crate) fn closed(&mut self, id: ListenerId, choice: u32) {
        match self {
            Place::Here { ts, manager } => manager.chooser.closed(*ts, choice),
            Place::Apart(remote) => remote.tell(ManagerBody::Closed { listener: id.to_bits() }),
        }
    }

    /// ACCEPT-CONNECTION (P4).
    pub(crate) fn register(&mut self, now: Instant, id: ListenerId, choice: u32, session: SessionId, lease: u64) {
        match self {
            Place::Here { ts, manager } => manager.chooser.register(now, *ts, choice, session, lease),
            Place::Apart(remote) => remote.register(id, session, lease),
        }
    }

    /// The session wants no more for now. Returns whether it did, as far as that is known here.
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

    /// The session asks for a connection, or whether there is one (P4's naive accept). `false`: who chooses
    /// is apart.
    pub(crate) fn asked(&mut self, now: Instant, choice: u32, session: SessionId, lease: u64, takes: bool) -> bool {
        match self {
            Place::Here { ts, manager } => {
                manager.chooser.asked(now, *ts, choice, session, lease, takes);
                true
            }
            Place::Apart(_) => false,
        }
    }

    /// A connection waits although somebody who asks was told.
    pub(crate) fn waits_long(&mut self, choice: u32) {
        if let Place::Here { ts, manager } = self {
            manager.chooser.waits_long(*ts, choice);
        }
    }

    /// The session does not hold the socket any more.
    pub(crate) fn forget(&mut self, id: ListenerId, choice: u32, session: SessionId, lease: u64) {
        match self {
            Place::Here { ts, manager } => manager.chooser.forget(*ts, choice, session, lease),
            Place::Apart(remote) => remote.forget(id, session, lease),
        }
    }

    /// Who is to have the connection?
    #[inline]
    pub(crate) fn established(&mut self, now: Instant, id: ListenerId, choice: u32, connection: ConnectionId) {
        match self {
            Place::Here { ts, manager } => {
                manager.chooser.established(now, *ts, choice, connection, id);
            }
            Place::Apart(remote) => remote.established(now, connection, id),
        }
    }

    /// It is claimed. Returns whether its end is to be told by [`Place::served`].
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

    /// The application has closed it.
    pub(crate) fn served(&mut self, now: Instant, session: SessionId, lease: u64, offered_at: Instant) {
        match self {
            Place::Here { manager, .. } => manager.chooser.served(now, session, lease, offered_at),
            Place::Apart(remote) => remote.served(session, lease, offered_at),
        }
    }

    /// An offer has come to an end without a claim: who else is to have the connection?
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

    /// A connection is gone before it was claimed.
    pub(crate) fn gone(&mut self, choice: u32, connection: ConnectionId, stage: Stage) {
        match self {
            Place::Here { ts, manager } => manager.chooser.gone(*ts, choice, connection, stage),
            Place::Apart(_) if stage == Stage::Embryonic => {}
            Place::Apart(remote) => remote.gone(connection),
        }
    }

    /// Whether so much waits to be told that nothing new should be begun.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        match self {
            Place::Here { .. } => false,
            Place::Apart(remote) => remote.is_crowded(),
        }
    }
}
