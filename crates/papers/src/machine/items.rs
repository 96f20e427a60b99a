//! What do cores send each other, and what leaves them?

use atoll_base::SessionId;
use atoll_connmgr::ListenerId;
use atoll_ipc::balance::PeerMessage;

/// What clients send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Syn,
    Ack,
    Text,
    Fin,
}

/// What is sent to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    SynAck,
    Text { last: bool },
    Ack,
}

/// What a transport server tells a connection manager.
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
    /// Device to LS.
    Frame { connection: u32, frame: Frame },
    /// LS to IP, where IP is not with the TS, and not with the LS either.
    Packet { connection: u32, frame: Frame },
    /// LS or IP to TS, where they are different processes.
    Segment { connection: u32, frame: Frame },
    /// TS to IP, where IP is not with the TS.
    Route { connection: u32, reply: Reply },
    /// TS or IP to LS, where they are different processes.
    Transmit { connection: u32, reply: Reply },
    /// TS to CM, likewise.
    Ask { connection: u32, ask: Ask },
    /// CM to TS: the verdict on a SYN. `None`: a queue is full.
    Verdict { connection: u32, listener: Option<ListenerId> },
    /// CM to TS.
    Offer { connection: u32, session: SessionId },
    /// CM to CM. `wakes`: even if the other one sleeps.
    Peer { message: Box<PeerMessage>, wakes: bool },
    /// CONNECTION-AVAILABLE, TS to application. `offer`: which offer, because a connection may be offered
    /// again.
    Available { connection: u32, offer: u64 },
    /// TS to application: text of a connection that it has.
    Readable { connection: u32 },
    /// CLAIM-CONNECTION, application to TS.
    Claim { connection: u32 },
    /// Application to TS: a page, with the close if it is the last.
    Respond { connection: u32, close: bool },
    /// CM to application: it has not claimed in time.
    Removed { cm: usize },
    /// CM to application: connections wait for whoever asks, or (the answer) none does.
    Waits { cm: usize, waiting: bool },
    /// Application to CM: one, please, or whether there is one (P4's naive accept).
    AskFor { app: usize, takes: bool },
    /// ACCEPT-CONNECTION, application to CM.
    Register { app: usize },
    /// A claim may be overdue at the TS.
    Deadline,
    /// Time to look whether there is something to tell to other CMs.
    Tick,
}

/// A batch under way: where, how far in time, and what leaves at its end.
pub(crate) struct Batch {
    pub(crate) core: usize,
    /// Nanoseconds.
    pub(crate) began: u64,
    pub(crate) clock: u64,
    pub(crate) out: Vec<(Sent, u64)>,
}

/// What leaves a core.
pub(crate) enum Sent {
    Message { to: usize, item: Item },
    Frame { connection: u32, reply: Reply },
}

impl Item {
    /// Which connection it is about.
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
