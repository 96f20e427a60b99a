//! What a connection returns to its caller.

use atoll_wire::tcp::Segment;
use bitflags::bitflags;

bitflags! {
    /// A set of facts about what happened.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Events: u16 {
        /// The handshake is complete.
        const ESTABLISHED = 1 << 0;
        /// `send_una` moved: the application may reuse that part of its send buffer.
        const ACKED = 1 << 1;
        /// `receive_nxt` moved: the application has more to read.
        const READABLE = 1 << 2;
        /// The peer's FIN is now in order: the end of the stream.
        const FIN = 1 << 3;
        /// The peer reset the connection, or has sent text to an application that wants none.
        const RESET = 1 << 4;
        /// The peer refused the connection: a RST in SYN-SENT.
        const REFUSED = 1 << 5;
        /// The peer did not answer for too long.
        const TIMED_OUT = 1 << 6;
        /// The network reported an error, [`crate::Connection::network_error`]; beside TIMED_OUT it is the
        /// likely cause.
        const UNREACHABLE = 1 << 7;
        /// The connection is gone: poll what is left to send (a RST at most) and delete it.
        const CLOSED = 1 << 8;
        /// TIME-WAIT was entered: poll the last ACK, then replace the connection by [`crate::TimeWait`].
        const TIME_WAIT = 1 << 9;
        /// The caller is to answer the segment by `answer_for_closed(segment)`, though the connection
        /// stays open.
        const ANSWER_RESET = 1 << 10;
        /// `receive_mark` has moved: the peer has called text urgent.
        const URGENT = 1 << 11;
        /// Blocks of a selective acknowledgement were ignored because they cannot be true.
        const SACK_IGNORED = 1 << 12;
        /// Text out of order was not taken because there are too many holes before it.
        const TEXT_REFUSED = 1 << 13;
        /// Text that the peer had selectively acknowledged counts as lost again: the peer has thrown it away,
        /// or lied.
        const SACK_RENEGED = 1 << 14;
        /// The segment deserves a challenge ACK (RFC 5961): call [`crate::Connection::send_challenge`],
        /// unless too many have just been sent for other connections.
        const CHALLENGE = 1 << 15;
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
        Input::answered(reason, Events::empty())
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
