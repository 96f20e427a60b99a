//! The messages between connection manager and transport server.

use atoll_base::{Endpoint, SessionId};
use atoll_ipc::Device;
use atoll_ipc::command::Protocol;
use atoll_ipc::control::User;
use atoll_ipc::lease::Grant;

/// The number that the transport server gives to a connection. It is used again only after the end of the
/// connection was reported to the CM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

/// The number of a listener. It is never used again: messages about a listener that is gone are recognised
/// and ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId {
    /// The listener's place in the CM's table. Places are dense, so that the TS can keep a table beside it.
    pub index: u32,
    pub(crate) serial: u32,
}

impl ListenerId {
    pub(crate) const fn to_bits(self) -> u64 {
        (self.serial as u64) << 32 | self.index as u64
    }

    pub(crate) const fn from_bits(bits: u64) -> ListenerId {
        ListenerId { index: bits as u32, serial: (bits >> 32) as u32 }
    }
}

/// A session asks for a port (see [`atoll_ipc::Command::Bind`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The session that asks.
    pub session: SessionId,
    /// The user that the session acts for.
    pub user: User,
    /// The lease number of the socket.
    pub lease: u64,
    /// The protocol; TCP and UDP ports are separate.
    pub protocol: Protocol,
    /// The address, which may be the unspecified one, and the port; port 0 asks for any free one.
    pub local: Endpoint,
    /// Whether `SO_REUSEADDR` is set.
    pub reuse_addr: bool,
    /// Whether `SO_REUSEPORT` is set.
    pub reuse_port: bool,
    /// Whether `IPV6_V6ONLY` is set: a socket at `::` takes only IPv6 then.
    pub v6_only: bool,
    /// The device that the socket is bound to.
    pub device: Device,
}

/// A session listens (see [`atoll_ipc::Command::Listen`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The session that asks.
    pub session: SessionId,
    /// The lease number of the socket.
    pub lease: u64,
    /// The address, which may be the unspecified one, and the port.
    pub local: Endpoint,
    /// The backlog that the application gave to listen(2).
    pub backlog: u32,
    /// Whether `SO_REUSEPORT` is set.
    pub reuse_port: bool,
    /// The value of `TCP_DEFER_ACCEPT` in seconds; 0 means off.
    pub defer_accept: u16,
    /// Whether `IPV6_V6ONLY` is set: a socket at `::` takes only IPv6 then.
    pub v6_only: bool,
    /// The user that the session acts for.
    pub uid: u32,
    /// The grant that the session has shown, if this replica is not the authority of the port.
    pub shown: Option<Grant>,
}

/// A SYN for no connection has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syn {
    /// The destination of the SYN.
    pub local: Endpoint,
    /// The device over which the SYN has come; [`Device::None`] if it is not known.
    pub device: Device,
    /// Whether this is the return of a SYN cookie: the handshake is complete, and needs a place in the SYN
    /// queue only while the accept queue is full.
    pub by_cookie: bool,
}

/// The answer to a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynVerdict {
    /// Open the connection, which counts as [`Stage::Embryonic`] from now on.
    Accept {
        /// The listener that gets the connection.
        listener: ListenerId,
        /// The time in seconds to wait for text before [`crate::ConnMgr::handle_established`] is called; 0
        /// means not to wait.
        defer_accept: u16,
    },
    /// The SYN queue is full: answer with a SYN cookie and keep no state. A SYN that comes by a cookie never
    /// gets this answer.
    Cookie {
        /// The listener that the SYN is for.
        listener: ListenerId,
    },
    /// A queue is full: drop the SYN; the peer sends it again.
    Full,
    /// No socket listens: answer with RST.
    Refused,
}

/// How far a connection has come on its way to an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The connection is in the SYN queue: the handshake is not complete.
    Embryonic,
    /// The connection is in the accept queue, and is offered to no acceptor.
    Waiting,
    /// The connection is in the accept queue, and is offered to an acceptor of this session and lease.
    Offered {
        /// The session of the acceptor.
        session: SessionId,
        /// The lease number of the acceptor's socket.
        lease: u64,
    },
}

/// A connection is given to an acceptor (P4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The connection that is offered.
    pub connection: ConnectionId,
    /// The listener that the connection arrived at.
    pub listener: ListenerId,
    /// The session of the acceptor.
    pub session: SessionId,
    /// The lease number of the acceptor's socket.
    pub lease: u64,
}

/// An order of the CM to the TS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directive {
    /// Send CONNECTION-AVAILABLE, and report later what became of the offer: claimed, timed out, returned or
    /// gone.
    Offer(Offer),
    /// The listener is gone: reset the connection, which the CM has already forgotten.
    Reset {
        /// The connection to reset.
        connection: ConnectionId,
    },
    /// Tell the session that its acceptor was removed (P4).
    AcceptorRemoved {
        /// The session to tell.
        session: SessionId,
        /// The lease number of the acceptor's socket.
        lease: u64,
    },
    /// Tell the session whether connections wait (P4's naive accept).
    ConnectionsWait {
        /// The session to tell.
        session: SessionId,
        /// The lease number of the session's socket.
        lease: u64,
        /// Whether a connection waits.
        waiting: bool,
        /// Whether this answers a question of the session.
        answers: bool,
    },
    /// Publish that the port has its first listener, or has lost its last one.
    PortTaken {
        /// The TCP port.
        port: u16,
        /// Whether a socket listens at the port now.
        taken: bool,
    },
}
