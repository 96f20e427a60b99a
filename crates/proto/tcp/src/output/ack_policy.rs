//! When received text is acknowledged (RFC 5681 §4.2, RFC 9293 §3.8.6.3).
//!
//! The caller handles a batch of segments and polls afterwards: one ACK answers the batch. A batch with many
//! segments of one connection is better ended early, because a sender that gets few ACKs sends in bursts;
//! [`Connection::ack_is_overdue`] says when. A peer without SACK counts duplicate ACKs; only such a peer gets
//! one for every segment out of order.
//!
//! A small segment's ACK waits for text of ours to ride on. Where none came in time, the text goes one way: a
//! peer with Nagle's algorithm would wait out that delay for each small segment, so those that follow are
//! acknowledged at once, until text of ours answers one. Linux does so when the program has read them
//! (`tcp_cleanup_rbuf`, outside ping-pong mode).

use atoll_base::{Duration, Instant};
use atoll_wire::tcp::Segment;

use crate::connection::Connection;
use crate::pending::Pending;
use crate::rcv::{Answers, QUICK_ACKS, Rcv};
use crate::timers::Timer;

impl Connection {
    /// Decides how to acknowledge text that was taken. `nxt` is what `rcv.nxt` was before, and `left` is
    /// where the text begins.
    pub(crate) fn acknowledge_text(&mut self, now: Instant, segment: &Segment, nxt: i64, left: i64) {
        let is_gathered = segment.len > u32::from(self.rcv.mss);
        let weight = if is_gathered { WEIGHT_GATHERED } else { WEIGHT_SEGMENT };
        self.rcv.unacked = self.rcv.unacked.saturating_add(weight);
        let size = u16::try_from(segment.len).unwrap_or(u16::MAX);
        self.rcv.segment_max = self.rcv.segment_max.max(size.min(self.rcv.mss));
        if left > nxt {
            self.acknowledge_disorder();
            return;
        }
        let filled = self.rcv.nxt > left + i64::from(segment.len) || self.rcv.reassembly.is_some();
        let full = i64::from(self.rcv.segment_max);
        let is_full = i64::from(segment.len) >= full;
        if filled || self.config.quick_ack || self.rcv.nxt - self.rcv.acked >= 2 * full {
            // RFC 5681 §4.2: an ACK leaves at once when a hole is filled, and for every second full-sized
            // segment.
            self.rcv.quick = self.rcv.quick.saturating_sub(1);
            self.pending.set(Pending::ACK);
        } else if is_full && self.rcv.quick > 0 {
            self.rcv.quick -= 1;
            self.pending.set(Pending::ACK);
        } else if !is_full && self.rcv.answers != Answers::Ride {
            self.rcv.answers = Answers::AfterAck;
            self.pending.set(Pending::ACK);
        } else {
            self.acknowledge_soon(now);
        }
    }

    /// Returns whether an ACK should leave before more segments are handled. RFC 5681 §4.2 asks for one for
    /// every second segment, and for each segment while some are missing. Segments that the link has gathered
    /// into one frame (GRO) come so fast that four times as many may wait.
    pub fn ack_is_overdue(&self) -> bool {
        let limit = if self.rcv.reassembly.is_some() { UNACKED_MAX_DISORDER } else { UNACKED_MAX };
        self.rcv.unacked >= limit && self.pending.has(Pending::ACK)
    }

    /// Acknowledges text out of order at once (RFC 5681 §4.2), and lets no ACK wait until the hole is filled.
    fn acknowledge_disorder(&mut self) {
        if !self.options.sack && self.pending.has(Pending::ACK) {
            self.rcv.duplicates_owed = (self.rcv.duplicates_owed + 1).min(DUPLICATES_OWED_MAX);
        }
        self.rcv.quick = QUICK_ACKS;
        self.pending.set(Pending::ACK);
    }

    /// Lets an ACK wait for text to ride on.
    pub(crate) fn acknowledge_soon(&mut self, now: Instant) {
        if self.config.quick_ack {
            self.pending.set(Pending::ACK);
        } else if !self.timers.is_armed(Timer::Ack) {
            self.timers.arm(Timer::Ack, now + self.ack_delay());
        }
    }

    /// Returns how long an ACK waits. At the start the peer's window is small and it may wait for us: a
    /// request gets its answer, or an ACK, at the next tick.
    pub(crate) fn ack_delay(&self) -> Duration {
        if self.rcv.quick > 0 { ACK_DELAY_QUICK } else { ACK_DELAY }
    }

    /// Notes that an ACK has waited for text of ours in vain.
    pub(crate) fn note_one_way(&mut self) {
        // A program that takes longer than the short delay may still answer; then the next ACK waits longer.
        self.rcv.answers = if self.rcv.quick > 0 { Answers::AfterAck } else { Answers::Never };
    }

    /// Notes that text of ours leaves. If an ACK waits, or had no need to leave alone, the connection is a
    /// conversation, and later ACKs can ride on text (Linux's ping-pong mode).
    pub(super) fn note_interactive(&mut self) {
        if self.timers.is_armed(Timer::Ack) || self.rcv.answers == Answers::AfterAck {
            self.rcv.quick = 0;
            self.rcv.answers = Answers::Ride;
        }
    }

    /// Notes that a segment with our ACK has left.
    pub(super) fn acknowledged(&mut self) {
        self.pending.clear(Pending::ACK);
        self.timers.cancel(Timer::Ack);
        self.rcv.acked = self.rcv.nxt;
        self.rcv.unacked = 0;
    }
}

impl Rcv {
    /// Expects that text of ours answers each of the peer's: Linux's ping-pong mode.
    pub(crate) const fn expect_answers(&mut self) {
        self.quick = 0;
        self.answers = Answers::Ride;
    }

    /// Returns whether text of ours is expected to answer, as [`Rcv::expect_answers`] has said.
    pub(crate) const fn expects_answers(&self) -> bool {
        self.quick == 0
    }

    /// Returns whether an ACK would carry SACK blocks, or is owed more than once.
    pub(super) fn has_sack_news(&self) -> bool {
        self.reassembly.is_some() || self.duplicate.1 > 0 || self.duplicates_owed > 0
    }
}

const ACK_DELAY: Duration = Duration::from_millis(40);
const ACK_DELAY_QUICK: Duration = Duration::from_millis(1);
/// The weight of a segment until it is acknowledged; `WEIGHT_GATHERED` is that of a frame of many segments.
const WEIGHT_SEGMENT: u8 = 4;
const WEIGHT_GATHERED: u8 = 1;
/// The weight that may be acknowledged together; `UNACKED_MAX_DISORDER` applies while segments are missing.
const UNACKED_MAX: u8 = 2 * WEIGHT_SEGMENT;
const UNACKED_MAX_DISORDER: u8 = 2 * WEIGHT_GATHERED;
/// The most duplicate ACKs that are owed: three are enough for any peer, and a few more survive loss.
const DUPLICATES_OWED_MAX: u8 = 7;
