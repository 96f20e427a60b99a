//! How a closed connection is remembered, and how late segments are answered (RFC 9293 §3.6.1, RFC 6191).
//!
//! RFC 1337 names what late segments can do to a connection that takes the place of an old one too early.
//! Here only a SYN or a RST ends the wait early, and only one that can hardly be a late segment. It must be a
//! SYN that is newer than everything, or a RST at the very sequence number that is expected.

use atoll_base::{Duration, Instant, SeqNum};
use atoll_wire::tcp::{Flags, Options, Segment, Timestamps};

use crate::connection::{Connection, TIME_WAIT};
use crate::timers::Timer;

/// The remainder of a connection in TIME-WAIT. The record needs no other memory, and survives a crash by its
/// [`TimeWaitFacts`].
#[derive(Clone, Copy, Debug)]
pub struct TimeWait {
    deadline: Instant,
    /// The moment from which out-of-window segments are answered again.
    answer_after: Instant,
    snd_nxt: SeqNum,
    rcv_nxt: SeqNum,
    rcv_window: u32,
    ts_recent: u32,
    ts_offset: u32,
    window: u16,
    timestamps: bool,
}

const _: () = assert!(size_of::<TimeWait>() <= 64);

/// The facts that a successor needs of a connection in TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeWaitFacts {
    /// When the wait ends.
    pub deadline: Instant,
    /// The next sequence number of this end.
    pub snd_nxt: SeqNum,
    /// The next sequence number of the peer.
    pub rcv_nxt: SeqNum,
    /// How many octets the peer may have sent beyond `rcv_nxt`.
    pub rcv_window: u32,
    /// The value of the window field as it was advertised.
    pub window: u16,
    /// The peer's last timestamp, and the offset of our timestamps; `None` if timestamps were not in use.
    pub timestamps: Option<(u32, u32)>,
}

/// The answer to a segment for a connection in TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeWaitAnswer {
    /// Send this segment, with the ports filled in; the deadline may have moved.
    Ack(Segment),
    /// The segment is a new SYN that cannot be confused with the old connection. Treat it as a SYN to the
    /// listener; if the listener takes it, delete the record, and use an initial sequence number above this
    /// one.
    Reuse {
        /// The last sequence number in use.
        iss_above: SeqNum,
    },
    /// Ignore the segment.
    Drop,
    /// The peer reset the connection: delete the record.
    Delete,
}

impl TimeWait {
    pub(crate) fn new(connection: &Connection) -> TimeWait {
        let (snd, rcv, options) = (&connection.snd, &connection.rcv, &connection.options);
        let window = u32::try_from((rcv.edge - rcv.nxt).max(0)).unwrap_or(u32::MAX);
        TimeWait {
            deadline: connection.timers.deadline(Timer::Lifetime),
            answer_after: Instant::ZERO,
            snd_nxt: snd.seq(snd.nxt),
            rcv_nxt: rcv.seq(rcv.nxt),
            rcv_window: window,
            ts_recent: options.ts_recent,
            ts_offset: options.ts_offset,
            window: u16::try_from(window >> options.rcv_scale).unwrap_or(u16::MAX),
            timestamps: options.timestamps,
        }
    }

    /// Returns what a successor has to know.
    pub fn facts(&self) -> TimeWaitFacts {
        TimeWaitFacts {
            deadline: self.deadline,
            snd_nxt: self.snd_nxt,
            rcv_nxt: self.rcv_nxt,
            rcv_window: self.rcv_window,
            window: self.window,
            timestamps: self.timestamps.then_some((self.ts_recent, self.ts_offset)),
        }
    }

    /// Restores the record of a predecessor; returns `None` if the wait is over, or ends later than one that
    /// begins now.
    pub fn resume(now: Instant, facts: &TimeWaitFacts) -> Option<TimeWait> {
        let (ts_recent, ts_offset) = facts.timestamps.unwrap_or_default();
        (facts.deadline > now && facts.deadline <= now + TIME_WAIT).then_some(TimeWait {
            deadline: facts.deadline,
            answer_after: Instant::ZERO,
            snd_nxt: facts.snd_nxt,
            rcv_nxt: facts.rcv_nxt,
            rcv_window: facts.rcv_window,
            ts_recent,
            ts_offset,
            window: facts.window,
            timestamps: facts.timestamps.is_some(),
        })
    }

    /// Returns when the record may be forgotten.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns the last sequence number in use if this end may open a new connection in place of the old one:
    /// timestamps distinguish their segments (RFC 6191, RFC 7323 §5.8; `tcp_tw_reuse` of Linux). `None` means
    /// that it must not.
    pub fn reusable(&self) -> Option<SeqNum> {
        self.timestamps.then_some(self.snd_nxt)
    }

    /// Judges a segment of the old connection, or of a new one with the same ports.
    pub fn handle_segment(&mut self, now: Instant, segment: &Segment) -> TimeWaitAnswer {
        let timestamps = segment.options.timestamps.filter(|_| self.timestamps);
        let is_old = timestamps.is_some_and(|peer| SeqNum(peer.value).before(SeqNum(self.ts_recent)));
        if segment.has(Flags::RST) {
            // RFC 5961 §3: only an exact match counts. RFC 1337 §3 would ignore every RST. Like Linux, this
            // stack believes a RST that cannot be a late duplicate, because it shows that the peer has
            // forgotten the connection, too.
            return if segment.seq == self.rcv_nxt && !is_old {
                TimeWaitAnswer::Delete
            } else {
                TimeWaitAnswer::Drop
            };
        }
        if segment.has(Flags::SYN) && !segment.has(Flags::ACK) {
            // RFC 6191 §2: a SYN with a later timestamp, or else a later sequence number, is a new
            // connection. So is one with timestamps if the old connection had none: PAWS distinguishes their
            // segments.
            let later = timestamps.is_some_and(|peer| SeqNum(peer.value).after(SeqNum(self.ts_recent)));
            let first = !self.timestamps && segment.options.timestamps.is_some();
            if later || first || (!is_old && segment.seq.after(self.rcv_nxt)) {
                return TimeWaitAnswer::Reuse { iss_above: self.snd_nxt };
            }
            return self.answer_rarely(now);
        }
        let end = segment.seq.plus(segment.sequence_len());
        let in_window =
            end.at_or_after(self.rcv_nxt) && segment.seq.at_or_before(self.rcv_nxt.plus(self.rcv_window));
        if segment.has(Flags::FIN) && !is_old && end == self.rcv_nxt {
            // Our last ACK was lost: repeat it and wait once more (RFC 9293 §3.10.7.4, eighth). No other FIN
            // counts, or strangers could keep the record for ever.
            self.deadline = now + TIME_WAIT;
            return TimeWaitAnswer::Ack(self.ack(now));
        }
        if segment.len > 0 {
            // Text comes again because an ACK was lost. Only text is answered every time, so no endless loop
            // arises.
            return TimeWaitAnswer::Ack(self.ack(now));
        }
        if is_old || !in_window {
            return self.answer_rarely(now);
        }
        TimeWaitAnswer::Drop
    }

    /// Returns an ACK, but not too often: two confused peers must not answer each other forever.
    fn answer_rarely(&mut self, now: Instant) -> TimeWaitAnswer {
        if now < self.answer_after {
            return TimeWaitAnswer::Drop;
        }
        self.answer_after = now + ANSWER_INTERVAL;
        TimeWaitAnswer::Ack(self.ack(now))
    }

    fn ack(&self, now: Instant) -> Segment {
        let value = (now.as_millis() as u32).wrapping_add(self.ts_offset);
        let timestamps = self.timestamps.then_some(Timestamps { value, echo: self.ts_recent });
        Segment {
            seq: self.snd_nxt,
            ack: self.rcv_nxt,
            flags: Flags::ACK,
            window: self.window,
            options: Options { timestamps, ..Options::default() },
            ..Segment::default()
        }
    }
}

const ANSWER_INTERVAL: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
