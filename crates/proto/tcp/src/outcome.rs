//! What a connection returns to its caller.

use core::ops::{BitOr, BitOrAssign};

use atoll_wire::tcp::Segment;

/// A set of facts about what happened.
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
    /// The caller is to answer the segment by `answer_for_closed(segment)`, though the connection stays open.
    pub const ANSWER_RESET: Events = Events(1 << 10);
    /// Blocks of a selective acknowledgement were ignored because they cannot be true.
    pub const SACK_IGNORED: Events = Events(1 << 12);
    /// Text out of order was not taken because there are too many holes before it.
    pub const TEXT_REFUSED: Events = Events(1 << 13);
    /// Text that the peer had selectively acknowledged counts as lost again: the peer has thrown it away, or
    /// lied.
    pub const SACK_RENEGED: Events = Events(1 << 14);
    /// The segment deserves a challenge ACK (RFC 5961): call [`crate::Connection::send_challenge`], unless
    /// too many have just been sent for other connections.
    pub const CHALLENGE: Events = Events(1 << 15);

    /// Returns the facts of both sets.
    #[must_use]
    pub const fn union(self, other: Events) -> Events {
        Events(self.0 | other.0)
    }
    /// `receive_mark` has moved: the peer has called text urgent.
    pub const URGENT: Events = Events(1 << 11);

    /// Returns whether every fact of `other` holds.
    pub const fn contains(self, other: Events) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether any fact of `other` holds.
    pub const fn intersects(self, other: Events) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns whether nothing happened.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the facts as bits, by the numbers of the constants.
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
    /// The text to copy to the receive buffer, perhaps out of order.
    pub text: Option<Text>,
    /// The effects of the segment.
    pub events: Events,
}

impl Input {
    pub(crate) const fn accepted(text: Option<Text>, events: Events) -> Input {
        Input { verdict: Verdict::Accepted, text, events }
    }

    pub(crate) const fn dropped(reason: Reason) -> Input {
        Input::answered(reason, Events::NONE)
    }

    /// Returns the answer to a segment that was dropped and still had consequences.
    pub(crate) const fn answered(reason: Reason, events: Events) -> Input {
        Input { verdict: Verdict::Dropped(reason), text: None, events }
    }
}

/// Whether a segment counted. A dropped segment is not an error, and is counted by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The segment was processed.
    Accepted,
    /// The segment was ignored, or only answered.
    Dropped(Reason),
}

/// Why a segment was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Reason {
    /// The connection is closed.
    Closed,
    /// The segment is outside the receive window (RFC 9293 §3.10.7.4, first).
    OutsideWindow,
    /// The segment's timestamp is older than the last one (PAWS, RFC 7323 §5).
    OldTimestamp,
    /// The segment has no timestamp, although timestamps were negotiated (RFC 7323 §3.2).
    NoTimestamp,
    /// The segment is a RST within the window but not at its left edge (RFC 5961 §3).
    BlindReset,
    /// The segment is a SYN on a synchronized connection (RFC 5961 §4).
    UnexpectedSyn,
    /// The segment has neither an ACK nor anything else that could count in this state.
    NoAck,
    /// The segment acknowledges something that was never sent.
    AckUnsent,
    /// The acknowledgement is older than a window (RFC 5961 §5).
    AckOld,
    /// The acknowledgement does not fit the handshake.
    AckHandshake,
}

/// The part of one segment's text that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text {
    /// The stream offset of the first octet taken.
    pub offset: u64,
    /// Octets of the segment's text before the first octet taken.
    pub skip: u32,
    /// The number of octets taken.
    pub len: u32,
}

/// One segment to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The header, with ports 0 for the caller to fill in. `segment.len` may exceed the MSS, up to the
    /// caller's `len_max`.
    pub segment: Segment,
    /// The stream offset of the first octet of text.
    pub offset: u64,
    /// Whether the text has been sent before.
    pub retransmit: bool,
}
