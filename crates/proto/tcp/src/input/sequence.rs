//! Whether a segment is within the window and not an old one: RFC 9293 §3.10.7.4 first, with PAWS (RFC 7323
//! §5.3).

use atoll_base::Instant;
use atoll_wire::tcp::{Flags, Segment};

use crate::connection::Connection;
use crate::outcome::{Events, Input, Reason};
use crate::pending::Pending;
use crate::state::State;

impl Connection {
    /// Checks the segment at stream offset `seq`. Fails with the verdict if the segment is not acceptable.
    /// The peer gets an ACK then, unless the segment is a RST or lacks its timestamp, or ACKs came too often.
    pub(super) fn check_sequence(&mut self, now: Instant, segment: &Segment, seq: i64) -> Result<(), Input> {
        let is_reset = segment.has(Flags::RST);
        if self.options.timestamps && !is_reset {
            match segment.options.timestamps {
                // RFC 7323 §3.2: once timestamps are negotiated, a segment without them is dropped silently.
                // A SYN is not (RFC 5961 §4.2): a peer that has restarted may not know timestamps any more.
                None if segment.has(Flags::SYN) => {
                    return Err(Input::answered(Reason::NoTimestamp, self.challenge(now)));
                }
                None => return Err(Input::dropped(Reason::NoTimestamp)),
                Some(timestamps) if self.options.is_old(now, timestamps.value) => {
                    let events = self.answer_unacceptable(now, segment, seq);
                    return Err(Input::answered(Reason::OldTimestamp, events));
                }
                Some(_) => {}
            }
        }
        // The peer has lost our SYN-ACK and sends its SYN again: so do we.
        let is_syn = segment.has(Flags::SYN) && !segment.has(Flags::ACK);
        if self.state() == State::SynReceived && is_syn && seq == -1 {
            self.hear_syn_again(segment);
            self.pending.set(Pending::SYN);
            return Err(Input::dropped(Reason::UnexpectedSyn));
        }
        // RFC 9293 §3.4, table 6, but the left edge is the last ACK sent: what the peer sent before it could
        // know better still carries a valid acknowledgement. A segment at the right edge of the window also
        // counts, without its text (MUST-66).
        let end = seq + i64::from(segment.sequence_len());
        if end >= self.rcv.acked && seq <= self.rcv.edge.max(self.rcv.nxt) {
            return Ok(());
        }
        // A peer at the edge of the window as it was advertised may be behind what rounding the field to the
        // scale has hidden.
        let hidden = (1 << self.options.rcv_scale) - 1;
        if segment.sequence_len() == 0
            && !is_reset
            && (self.rcv.acked - hidden..self.rcv.acked).contains(&seq)
        {
            // The segment may be a probe as well, which wants an answer.
            self.answer_unacceptable(now, segment, seq);
            return Ok(());
        }
        let events = if is_reset { Events::empty() } else { self.answer_unacceptable(now, segment, seq) };
        Err(Input::answered(Reason::OutsideWindow, events))
    }

    /// Answers a segment that is not acceptable. Text that comes again means that an ACK was lost, and is
    /// answered every time; anything else might be an endless loop. Only a SYN counts as an attack: a segment
    /// that carries nothing may be a keep-alive, or a probe of the window.
    fn answer_unacceptable(&mut self, now: Instant, segment: &Segment, seq: i64) -> Events {
        if segment.has(Flags::SYN) {
            return self.challenge(now);
        }
        if segment.len > 0 {
            let end = (seq + i64::from(segment.len)).min(self.rcv.nxt);
            self.rcv.report_duplicate(seq.max(0), end);
            self.pending.set(Pending::ACK);
        } else if self.may_answer_stray(now) {
            self.pending.set(Pending::ACK);
        }
        Events::empty()
    }
}
