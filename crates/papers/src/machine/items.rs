//! The items that cores send each other, and those that leave them.

use atoll_base::SessionId;
use atoll_connmgr::ListenerId;
use atoll_ipc::balance::PeerMessage;

/// The frames that clients send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Syn,
    Ack,
    Text,
    Fin,
}

/// The frames that are sent to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    SynAck,
    Text { last: bool },
    Ack,
}

/// The messages of a transport server to a connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Syn,
    Established,
    Claimed { app: usize, offered_at: u64 },
    Closed { app: usize, offered_at: u64 },
    TimedOut { app: usize },
}

/// A message or a frame. Connections are named by number.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    /// A frame from the device to the LS.
    Frame { connection: u32, frame: Frame },
    /// A frame from LS to IP, where IP is neither with the TS nor with the LS.
    Packet { connection: u32, frame: Frame },
    /// A frame from LS or IP to TS, where they are different processes.
    Segment { connection: u32, frame: Frame },
    /// A frame from TS to IP, where IP is not with the TS.
    Route { connection: u32, reply: Reply },
    /// A frame from TS or IP to LS, where they are different processes.
    Transmit { connection: u32, reply: Reply },
    /// A message from TS to CM, where they are different processes.
    Ask { connection: u32, ask: Ask },
    /// The verdict of a CM on a SYN, to the TS; `None` if a queue is full.
    Verdict { connection: u32, listener: Option<ListenerId> },
    /// An offer of a connection to an application, from CM to TS.
    Offer { connection: u32, session: SessionId },
    /// A message from CM to CM. `wakes` says whether to wake the other one if it sleeps.
    Peer { message: Box<PeerMessage>, wakes: bool },
    /// CONNECTION-AVAILABLE from TS to application. `offer` is the number of the offer, because a connection
    /// may be offered again.
    Available { connection: u32, offer: u64 },
    /// Text of a connection that the application has, from its TS.
    Readable { connection: u32 },
    /// CLAIM-CONNECTION from application to TS.
    Claim { connection: u32 },
    /// A page from application to TS, with the close if it is the last one.
    Respond { connection: u32, close: bool },
    /// The news from CM to application that it has not claimed in time.
    Removed { cm: usize },
    /// The news of a CM to an application that asks: connections wait, or (as an answer) none does.
    Waits { cm: usize, waiting: bool },
    /// The question of an application to its CM: for a connection, or whether there is one (P4's naive
    /// accept).
    AskFor { app: usize, takes: bool },
    /// ACCEPT-CONNECTION from application to CM.
    Register { app: usize },
    /// The timer of a TS: a claim may be overdue.
    Deadline,
    /// The timer of a CM: messages to other CMs may be due.
    Tick,
}

/// A batch that a core works on: its core, its time so far, and the messages that leave at its end.
pub(crate) struct Batch {
    pub(crate) core: usize,
    /// The moment of its beginning in nanoseconds.
    pub(crate) began: u64,
    pub(crate) clock: u64,
    pub(crate) out: Vec<(Sent, u64)>,
}

/// A frame or message that leaves a core.
pub(crate) enum Sent {
    Message { to: usize, item: Item },
    Frame { connection: u32, reply: Reply },
}

impl Item {
    /// Returns the connection that the item concerns.
    pub(crate) fn connection(&self) -> Option<u32> {
        match *self {
            Item::Frame { connection, .. }
            | Item::Packet { connection, .. }
            | Item::Segment { connection, .. }
            | Item::Route { connection, .. }
            | Item::Transmit { connection, .. }
            | Item::Ask { connection, .. }
            | Item::Verdict { connection, .. }
            | Item::Offer { connection, .. }
            | Item::Available { connection, .. }
            | Item::Readable { connection }
            | Item::Claim { connection }
            | Item::Respond { connection, .. } => Some(connection),
            Item::Peer { .. }
            | Item::Removed { .. }
            | Item::Waits { .. }
            | Item::AskFor { .. }
            | Item::Register { .. }
            | Item::Deadline
            | Item::Tick => None,
        }
    }
}
