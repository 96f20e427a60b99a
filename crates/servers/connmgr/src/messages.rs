//! What do connection manager and transport server tell each other?

use atoll_base::{Endpoint, SessionId};
use atoll_ipc::command::Protocol;
use atoll_ipc::control::User;
use atoll_ipc::lease::Grant;

/// A connection, as the transport server numbers them. The number is used again only after the CM was told
/// that the connection is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

/// A listener. Never used again: messages about a listener that is gone are recognised and ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId {
    /// Place in the CM's table; dense, so that the TS can keep a table beside it.
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
    /// Who asks.
    pub session: SessionId,
    /// For whom.
    pub user: User,
    /// The socket.
    pub lease: u64,
    /// TCP and UDP ports are separate.
    pub protocol: Protocol,
    /// Address (perhaps any) and port (0: any free one).
    pub local: Endpoint,
    /// `SO_REUSEADDR`.
    pub reuse_addr: bool,
    /// `SO_REUSEPORT`.
    pub reuse_port: bool,
    /// `IPV6_V6ONLY`: at `::`, IPv6 alone.
    pub v6_only: bool,
}

/// A session listens (see [`atoll_ipc::Command::Listen`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Who asks.
    pub session: SessionId,
    /// The socket.
    pub lease: u64,
    /// Address (perhaps any) and port.
    pub local: Endpoint,
    /// As the application gave it.
    pub backlog: u32,
    /// `SO_REUSEPORT`.
    pub reuse_port: bool,
    /// `TCP_DEFER_ACCEPT` in seconds; 0 is off.
    pub defer_accept: u16,
    /// `IPV6_V6ONLY`: at `::`, IPv6 alone.
    pub v6_only: bool,
    /// For whom.
    pub uid: u32,
    /// What it has shown, where this is not the authority of the port.
    pub shown: Option<Grant>,
}

/// A SYN for no connection has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syn {
    /// Where to.
    pub local: Endpoint,
    /// It comes back with a cookie: the handshake is complete, and needs a place in the SYN queue only while
    /// the accept queue is full.
    pub by_cookie: bool,
}

/// What becomes of a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynVerdict {
    /// Open the connection; it counts as [`Stage::Embryonic`] from now on.
    Accept {
        /// For whom.
        listener: ListenerId,
        /// Wait this many seconds for text before [`crate::ConnMgr::handle_established`].
        defer_accept: u16,
    },
    /// The SYN queue is full: answer by a cookie, remember nothing. Never said of a SYN that comes by one.
    Cookie {
        /// For whom.
        listener: ListenerId,
    },
    /// A queue is full: forget the SYN, the peer sends it again.
    Full,
    /// Nobody listens: RST.
    Refused,
}

/// How far a connection has come on its way to an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// In the SYN queue: the handshake is not complete.
    Embryonic,
    /// In the accept queue, offered to nobody.
    Waiting,
    /// In the accept queue, offered to an acceptor of this session and lease.
    Offered {
        /// The acceptor's session.
        session: SessionId,
        /// The acceptor's socket.
        lease: u64,
    },
}

/// A connection is given to an acceptor (P4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Which connection.
    pub connection: ConnectionId,
    /// Which listener.
    pub listener: ListenerId,
    /// The acceptor's session.
    pub session: SessionId,
    /// The acceptor's socket.
    pub lease: u64,
}

/// What the CM wants the TS to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directive {
    /// Send CONNECTION-AVAILABLE, and say what became of it: claimed, timed out, returned or gone.
    Offer(Offer),
    /// The listener is gone: reset the connection, which the CM has already forgotten.
    Reset {
        /// Which.
        connection: ConnectionId,
    },
    /// Tell the session that its acceptor was removed (P4).
    AcceptorRemoved {
        /// Whom to tell.
        session: SessionId,
        /// The acceptor's socket.
        lease: u64,
    },
    /// Tell the session whether connections wait for whoever asks (P4's naive accept).
    ConnectionsWait {
        /// Whom to tell.
        session: SessionId,
        /// Its socket.
        lease: u64,
        /// Whether there is one.
        waiting: bool,
        /// Whether it has just asked.
        answers: bool,
    },
    /// The port has its first listener, or has lost its last one: publish it.
    PortTaken {
        /// TCP port.
        port: u16,
        /// Which of the two.
        taken: bool,
    },
}
