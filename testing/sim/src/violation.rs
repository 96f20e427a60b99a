//! What can go wrong in a simulated run of connections.

use atoll_base::SeqNum;
use atoll_tcp::{Events, Record, State, Text, TimeWaitAnswer};
use thiserror::Error;

/// A rule that a connection, or the network around it, has broken.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Violation {
    /// An end sends more than its peer's window allows.
    #[error("text up to {end} is sent, {allowed:?} is allowed")]
    BeyondWindow {
        /// The end of the text.
        end: SeqNum,
        /// The rightmost edge that has reached the sender.
        allowed: Option<SeqNum>,
    },
    /// An end takes back a window that it has announced.
    #[error("the window's right edge goes back by {lost} octets, its scale is {scale}")]
    WindowShrinks {
        /// The number of octets by which the edge goes back.
        lost: i32,
        /// The shift of the window field.
        scale: u8,
    },
    /// An end has something to send and would never do it.
    #[error("stalled: something is to be sent or acknowledged in {0:?}, and no timer runs")]
    Stalled(State),
    /// More is in flight than the application has buffers for.
    #[error("{flight} octets in flight from a buffer of {buffer}")]
    InFlight {
        /// The octets in flight.
        flight: u64,
        /// The size of the send buffer, in octets.
        buffer: u64,
    },
    /// The edge of a connection's receive window moves left.
    #[error("the window's edge goes back from {from} to {to}")]
    EdgeGoesBack {
        /// The largest edge before, as a stream offset.
        from: u64,
        /// The edge now.
        to: u64,
    },
    /// A window is open for more than the receive buffer holds.
    #[error("a window up to {edge} is open, {room} octets of buffer begin at {head}")]
    BeyondBuffer {
        /// The edge of the window, as a stream offset.
        edge: u64,
        /// The size of the receive buffer, in octets.
        room: u64,
        /// The stream offset at which the buffer begins.
        head: u64,
    },
    /// A connection is not closed in the end.
    #[error("ends in {0:?}")]
    EndsIn(Option<State>),
    /// An end does not know the last urgent octet.
    #[error("the mark is at {sent:?}, and was seen at {seen:?}")]
    Mark {
        /// The stream offset of the last urgent octet.
        sent: Option<u64>,
        /// The offset that the other end knows.
        seen: Option<u64>,
    },
    /// A connection always has one more segment to send.
    #[error("polling never ends")]
    EndlessPolling,
    /// A connection sends more octets at once than it was allowed.
    #[error("{0} octets at once")]
    TooLong(usize),
    /// A connection cannot be made of its record.
    #[error("cannot go on with {0:?}")]
    Record(Box<Record>),
    /// The record of a connection in TIME-WAIT wants something that it has no reason for.
    #[error("TIME-WAIT says {0:?}")]
    TimeWait(TimeWaitAnswer),
    /// A connection takes other text than it had promised to.
    #[error("promised {promised:?}, took {taken:?}")]
    Text {
        /// The range that was promised.
        promised: Option<Text>,
        /// The range that was taken.
        taken: Option<Text>,
    },
    /// A connection was aborted.
    #[error("unexpected end: {0:?}")]
    Aborted(Events),
    /// The octet at this stream offset is not the one that was written.
    #[error("octet {0} is wrong")]
    Octet(u64),
    /// Nothing will ever happen again, and streams are incomplete.
    #[error("silence before the streams are complete")]
    EarlySilence,
    /// The streams are not delivered in any reasonable time.
    #[error("no end")]
    NoEnd,
    /// Something still happens when all connections should be closed.
    #[error("no silence")]
    NoSilence,
    /// The queue of a line is longer than its settings allow.
    #[error("{octets} octets wait at line {line}")]
    Queue {
        /// The octets that wait.
        octets: u64,
        /// The number of the line.
        line: usize,
    },
}
