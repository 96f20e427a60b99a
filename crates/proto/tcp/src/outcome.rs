//! What does the connection tell its caller?

use core::ops::{BitOr, BitOrAssign};

use atoll_wire::tcp::Segment;

/// What happened, as a set of facts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events(u16);

impl Events {
    /// Nothing happened that the caller has to know.
    pub const NONE: Events = Events(0);
    /// The handshake is complete.
    pub const ESTABLISHED: Events = Events(1 << 0);
    /// `send_una` moved: the application may reuse that part of its send buffer.
    pub const ACKED: Events = Events(1 << 1);
    /// `receive_nxt` moved: the application has more to read.
    pub const READABLE: Events = Events(1 << 2);
    /// The peer's FIN is now in order: the end of the stream.
    pub const FIN: Events = Events(1 << 3);
    /// The peer reset the connection.
    pub const RESET: Events = Events(1 << 4);
    /// The peer refused the connection: a RST in SYN-SENT, or a hard ICMP error.
    pub const REFUSED: Events = Events(1 << 5);
    /// The peer did not answer for too long.
    pub const TIMED_OUT: Events = Events(1 << 6);
    /// The network reported the peer as unreachable; beside TIMED_OUT it is the likely cause.
    pub const UNREACHABLE: Events = Events(1 << 7);
    /// The connection is gone: poll what is left to send (a RST at most) and delete it.
    pub const CLOSED: Events = Events(1 << 8);
    /// TIME-WAIT was entered: poll the last ACK, then replace the connection by [`crate::TimeWait`].
    pub const TIME_WAIT: Events = Events(1 << 9);
    /// The segment deserves `answer_for_closed(segment)`, though the connection goes on.
    pub const ANSWER_RESET: Events = Events(1 << 10);
    /// Blocks of a selective acknowledgement were passed over, because they cannot be true.
    pub const SACK_IGNORED: Events = Events(1 << 12);
    /// Text out of order was not taken, because there are too many holes before it.
    pub const TEXT_REFUSED: Events = Events(1 << 13);
    /// What the peer had selectively acknowledged is taken as lost again: it has thrown it away, or lied.
    pub const SACK_RENEGED: Events = Events(1 << 14);
    /// The segment deserves a challenge ACK (RFC 5961): call [`crate::Connection::send_challenge`], unless
    /// too many were sent of late for other connections.
    pub const CHALLENGE: Events = Events(1 << 15);

    /// The facts of both.
    #[must_use]
    pub const fn union(self, other: Events) -> Events {
        Events(self.0 | other.0)
    }
    /// `receive_mark` moved: the peer has called text urgent.
    pub const URGENT: Events = Events(1 << 11);

    /// Whether every fact of `other` holds.
    pub const fn contains(self, other: Events) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any fact of `other` holds.
    pub const fn intersects(self, other: Events) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether nothing happened.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The facts as bits, in the order of the constants.
    pub const fn bits(self) -> u16 {
        self.0
    }
}

impl BitOr for Events {
    type Output = Events;

    fn bitor(self, rhs: Events) -> Events {
        Events(self.0 | rhs.0)
    }
}

impl BitOrAssign for Events {
    fn bitor_assign(&mut self, rhs: Events) {
        self.0 |= rhs.0;
    }
}

/// The answer to one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// Whether the segment counted.
    pub verdict: Verdict,
    /// Text to copy to the receive buffer; may be out of order.
    pub text: Option<Text>,
    /// What it brought about.
    pub events: Events,
}

impl Input {
    pub(crate) const fn accepted(text: Option<Text>, events: Events) -> Input {
        Input { verdict: Verdict::Accepted, text, events }
    }

    pub(crate) const fn dropped(reason: Reason) -> Input {
        Input::answered(reason, Events::NONE)
    }

    /// Dropped, but not without consequences.
    pub(crate) const fn answered(reason: Reason, events: Events) -> Input {
        Input { verdict: Verdict::Dropped(reason), text: None, events }
    }
}

/// Whether a segment counted. A dropped segment is not an error, but it is counted by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was processed.
    Accepted,
    /// It was ignored, or only answered.
    Dropped(Reason),
}

/// Why a segment was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Reason {
    /// The connection is closed.
    Closed,
    /// Outside the receive window (RFC 9293 §3.10.7.4, first).
    OutsideWindow,
    /// Its timestamp is older than the last one (PAWS, RFC 7323 §5).
    OldTimestamp,
    /// No timestamp although timestamps were negotiated (RFC 7323 §3.2).
    NoTimestamp,
    /// A RST within the window but not at its left edge (RFC 5961 §3).
    BlindReset,
    /// A SYN on a synchronized connection (RFC 5961 §4).
    UnexpectedSyn,
    /// Neither ACK nor anything else that could count in this state.
    NoAck,
    /// An acknowledgement of something never sent.
    AckUnsent,
    /// An acknowledgement older than a window (RFC 5961 §5).
    AckOld,
    /// An acknowledgement that does not fit the handshake.
    AckHandshake,
}

/// Text of one segment that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text {
    /// Stream offset of the first octet taken.
    pub offset: u64,
    /// Octets of the segment's text before it.
    pub skip: u32,
    /// Octets taken.
    pub len: u32,
}

/// One segment to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The header, with ports 0 for the caller to fill in. `segment.len` may exceed the MSS, up to the
    /// caller's `len_max`.
    pub segment: Segment,
    /// Stream offset of the first octet of text.
    pub offset: u64,
    /// Whether the text has been sent before.
    pub retransmit: bool,
}
