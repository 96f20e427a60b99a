//! What happens when a segment arrives (RFC 9293 §3.10.7); there is one file per step.

mod ack;
mod blocks;
mod fin;
mod reset;
mod sequence;
mod syn;
mod syn_sent;
mod text;

use atoll_base::{Duration, Instant};
use atoll_wire::tcp::{Flags, Segment};

use crate::connection::{Connection, TIME_WAIT, pieces};
use crate::outcome::{Events, Input, Reason};
use crate::pending::Pending;
use crate::state::State;
use crate::timers::Timer;

impl Connection {
    /// Handles a segment whose checksum is good and whose ports belong to this connection.
    pub fn handle_segment(&mut self, now: Instant, segment: &Segment) -> Input {
        let pieces = pieces(segment.len, self.rcv.mss);
        self.segments_in = self.segments_in.saturating_add(pieces);
        if segment.len > 0 {
            self.texts_in = self.texts_in.saturating_add(pieces);
        }
        match self.state() {
            State::Closed => Input::dropped(Reason::Closed),
            State::SynSent => self.segment_arrives_in_syn_sent(now, segment),
            State::TimeWait => self.segment_arrives_in_time_wait(now, segment),
            _ => self.segment_arrives(now, segment),
        }
    }

    /// Handles a segment in the states of RFC 9293 §3.10.7.4. The third step, security, does not exist here.
    fn segment_arrives(&mut self, now: Instant, segment: &Segment) -> Input {
        let seq = self.rcv.offset_of(segment.seq);
        if let Err(input) = self.check_sequence(now, segment, seq) {
            return input;
        }
        if segment.has(Flags::RST) {
            return self.process_reset(now, seq);
        }
        let mut segment = *segment;
        if segment.has(Flags::SYN) {
            if !self.is_simultaneous_syn_ack(&segment, seq) {
                return self.process_syn(now);
            }
            segment = segment.without_text();
        }
        if !segment.has(Flags::ACK) {
            return Input::dropped(Reason::NoAck);
        }
        let mut events = self.pass_over_impossible_blocks(&mut segment);
        let segment = &segment;
        events |= match self.process_ack(now, segment) {
            Ok(events) => events,
            Err(input) => return input,
        };
        self.heard(now, segment, seq);
        let marked = self.take_mark(segment);
        if self.state() == State::Closed {
            return Input::accepted(None, events);
        }
        events |= self.process_urgent(segment, seq);
        let text = self.process_text(now, segment, seq, &mut events);
        if marked {
            self.pending.set(Pending::ACK);
        }
        if self.state() != State::Closed && segment.has(Flags::FIN) {
            self.note_fin(seq + i64::from(segment.len));
        }
        events |= self.process_fin(now);
        Input::accepted(text, events)
    }

    /// Notes an acceptable segment: the peer lives, and the segment's timestamp is the one to echo. The
    /// acknowledgement must have been judged before. Otherwise an off-path attacker who has guessed a
    /// sequence number could make all segments of the peer look old, by a timestamp from the future (RFC 5961
    /// §5.2 asks for both numbers).
    fn heard(&mut self, now: Instant, segment: &Segment, seq: i64) {
        self.heard_at = now;
        self.keep_probes = 0;
        // RFC 7323 §4.3 (2): only a segment that covers the last ACK sent counts, so that a delayed ACK
        // echoes the earliest timestamp.
        if let Some(timestamps) = segment.options.timestamps
            && self.options.timestamps
            && seq <= self.rcv.acked
        {
            self.options.set_ts_recent(now, timestamps.value);
        }
    }

    /// Answers a segment as far as needed until the caller replaces the connection by its record.
    fn segment_arrives_in_time_wait(&mut self, now: Instant, segment: &Segment) -> Input {
        let seq = self.rcv.offset_of(segment.seq);
        if segment.has(Flags::RST) && seq == self.rcv.nxt {
            self.become_closed();
            return Input::accepted(None, Events::CLOSED);
        }
        // Only the peer's own FIN counts, or strangers could keep the connection here for ever.
        if segment.has(Flags::FIN) && seq + i64::from(segment.sequence_len()) == self.rcv.nxt {
            self.timers.arm(Timer::Lifetime, now + TIME_WAIT);
        }
        if segment.sequence_len() > 0 {
            self.pending.set(Pending::ACK);
        }
        Input::accepted(None, Events::empty())
    }

    /// Returns [`Events::CHALLENGE`] if an ACK should show this end's sequence numbers to a confused or
    /// attacking peer. That is rare, so that two confused peers do not answer each other forever (RFC 5961
    /// §7). The caller decides whether the ACK leaves, because it knows of other connections.
    pub(crate) fn challenge(&mut self, now: Instant) -> Events {
        if self.may_answer_stray(now) { Events::CHALLENGE } else { Events::empty() }
    }

    /// Sends the challenge ACK that [`Events::CHALLENGE`] asked for.
    pub fn send_challenge(&mut self) {
        self.pending.set(Pending::ACK);
    }

    /// Returns whether the last answer to a segment that makes no sense lies back far enough.
    fn may_answer_stray(&mut self, now: Instant) -> bool {
        let may = self.rare.as_ref().is_none_or(|rare| now >= rare.challenge_after);
        if may {
            self.rare.get_or_insert_default().challenge_after = now + CHALLENGE_INTERVAL;
        }
        may
    }
}

/// The time between two answers to segments that make no sense: Linux's `tcp_invalid_ratelimit`.
const CHALLENGE_INTERVAL: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
