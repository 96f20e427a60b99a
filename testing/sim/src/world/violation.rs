//! What can go wrong in a simulated world.

use atoll_base::{Duration, Endpoint, Instant};
use atoll_ipc::Cause;
use atoll_sockets::Errno;
use thiserror::Error;

use super::departing::Told;

/// A rule that the stacks of a world, or its programs, have broken. `report` is what [`World::report`] said
/// then.
///
/// [`World::report`]: super::World::report
#[derive(Clone, Debug, PartialEq, Error)]
pub enum WorldViolation {
    /// Replicas die again and again of the same.
    #[error("{count} deaths of the same: {report}")]
    Deaths {
        /// The number of their deaths.
        count: u32,
        /// The state of the world.
        report: String,
    },
    /// Nothing will ever happen again, and there is something left to do.
    #[error("{0}")]
    Silence(String),
    /// A process waits for ever for what another one hands over.
    #[error("something is never handed over: {0}")]
    NeverHandedOver(String),
    /// A connection is left when everything should be closed.
    #[error("{socket} is left: {report}")]
    ConnectionLeft {
        /// The connection as text.
        socket: String,
        /// The state of the world.
        report: String,
    },
    /// Buffers are left when no connection is.
    #[error("{0} octets of buffers are left where no connection is")]
    BuffersLeft(u64),
    /// Slots are in use when no socket is.
    #[error("session {session} has {free} of {slots} slots with replica {replica}")]
    SlotsLeft {
        /// The number of the session.
        session: u32,
        /// The number of free slots.
        free: usize,
        /// The number of all slots.
        slots: usize,
        /// The number of the replica.
        replica: usize,
    },
    /// A replica keeps the arena of a session that is over.
    #[error("replica {replica} keeps the arena of session {session}: {told:?}")]
    ArenaKept {
        /// The number of the replica.
        replica: usize,
        /// The number of the session.
        session: u32,
        /// The knowledge of each replica.
        told: Vec<Told>,
    },
    /// A replica holds more for an attacker than its connections take.
    #[error("{held} octets are held for {connections} connections")]
    Held {
        /// The octets on the heap.
        held: usize,
        /// The number of connections.
        connections: usize,
    },
    /// Replicas carry out more commands in a round than all sessions may spend.
    #[error("{0} commands in one round")]
    Commands(u64),
    /// A replica has more requests in force than its ledger holds.
    #[error("{0} requests are in force")]
    Requests(usize),
    /// Programs other than the greedy one make no progress.
    #[error("nobody else has got on for {time:?}: {report}")]
    Starved {
        /// The time without progress.
        time: Duration,
        /// The state of the world.
        report: String,
    },
    /// Receive buffers take more than the memory that is there.
    #[error("{held} octets of buffers where there are {memory}")]
    Buffers {
        /// The octets that buffers take.
        held: u64,
        /// The octets that they may take.
        memory: u64,
    },
    /// An honest program is refused a port.
    #[error("port {port} is not granted: {cause:?}")]
    PortRefused {
        /// The port.
        port: u16,
        /// The reason.
        cause: Cause,
    },
    /// An honest program cannot open a socket at a port that it was granted.
    #[error("port {port} was granted and is not opened: {errno:?}")]
    PortNotOpened {
        /// The port.
        port: u16,
        /// The reason.
        errno: Errno,
    },
    /// The forger is offered a connection of another program's listener.
    #[error("a connection of another's listener at {0:?}")]
    ConnectionStolen(Endpoint),
    /// The forger is granted the port of another program's listener.
    #[error("the port of another's listener")]
    PortStolen,
    /// The forger listens at another program's port.
    #[error("it listens at another's port")]
    ListenerStolen,
    /// The programs that exchange datagrams are missing.
    #[error("nobody has written")]
    NoMail,
    /// A datagram did not reach the program whose port it was sent to, or reached another one.
    #[error("datagram {number}, sent at {at:?}: {thief} got it; {periods:?}")]
    Mail {
        /// The number of the datagram.
        number: u64,
        /// When it was sent.
        at: Instant,
        /// The program that got it.
        thief: &'static str,
        /// From when to when the socket was open.
        periods: Vec<(Instant, Instant)>,
    },
}
