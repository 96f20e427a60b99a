//! When is received text acknowledged? RFC 5681 §4.2, RFC 9293 §3.8.6.3.
//!
//! The caller handles a batch of segments and polls afterwards: one ACK answers the batch. A batch with many
//! segments of one connection is better ended early, which [`Connection::ack_is_overdue`] tells: a sender
//! that hears little sends in bursts. Only a peer without SACK, which counts duplicate ACKs, gets one for
//! every segment out of order.

use atoll_base::{Duration, Instant};
use atoll_wire::tcp::Segment;

use crate::connection::Connection;
use crate::pending::Pending;
use crate::rcv::{QUICK_ACKS, Rcv};
use crate::timers::Timer;

impl Connection {
    /// Text has been taken: `nxt` is what `rcv.nxt` was before, `left` where the text taken begins.
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
            // RFC 5681 §4.2: at once when a hole is filled, and for every second full-sized segment.
            self.rcv.quick = self.rcv.quick.saturating_sub(1);
            self.pending.set(Pending::ACK);
        } else if is_full && self.rcv.quick > 0 {
            self.rcv.quick -= 1;
            self.pending.set(Pending::ACK);
        } else {
            self.acknowledge_soon(now);
        }
    }

    /// Whether an ACK should leave before more segments are looked at: RFC 5681 §4.2 asks for one for every
    /// second segment, and for each while some are missing. What the link has gathered into one frame (GRO)
    /// comes so fast that four times as much may wait.
    pub fn ack_is_overdue(&self) -> bool {
        let limit = if self.rcv.reassembly.is_some() { UNACKED_MAX_DISORDER } else { UNACKED_MAX };
        self.rcv.unacked >= limit && self.pending.has(Pending::ACK)
    }

    /// Out of order: at once (RFC 5681 §4.2), and until the hole is filled without delay.
    fn acknowledge_disorder(&mut self) {
        if !self.options.sack && self.pending.has(Pending::ACK) {
            self.rcv.duplicates_owed = (self.rcv.duplicates_owed + 1).min(DUPLICATES_OWED_MAX);
        }
        self.rcv.quick = QUICK_ACKS;
        self.pending.set(Pending::ACK);
    }

    /// The ACK may wait for text to ride on.
    pub(crate) fn acknowledge_soon(&mut self, now: Instant) {
        if self.config.quick_ack {
            self.pending.set(Pending::ACK);
        } else if !self.timers.is_armed(Timer::Ack) {
            self.timers.arm(Timer::Ack, now + self.ack_delay());
        }
    }

    /// How long an ACK waits. At the start the peer's window is small and it may wait for us: a request gets
    /// its answer, or an ACK, at the next tick.
    pub(crate) fn ack_delay(&self) -> Duration {
        if self.rcv.quick > 0 { ACK_DELAY_QUICK } else { ACK_DELAY }
    }

    /// Text of ours leaves while an ACK waits: the connection is a conversation, and ACKs find a ride
    /// (Linux's ping-pong mode).
    pub(super) fn note_interactive(&mut self) {
        if self.timers.is_armed(Timer::Ack) {
            self.rcv.quick = 0;
        }
    }

    /// A segment with our ACK has left.
    pub(super) fn acknowledged(&mut self) {
        self.pending.clear(Pending::ACK);
        self.timers.cancel(Timer::Ack);
        self.rcv.acked = self.rcv.nxt;
        self.rcv.unacked = 0;
    }
}

impl Rcv {
    /// Whether an ACK would carry SACK blocks, or is owed more than once.
    pub(super) fn has_sack_news(&self) -> bool {
        self.reassembly.is_some() || self.duplicate.1 > 0 || self.duplicates_owed > 0
    }
}

const ACK_DELAY: Duration = Duration::from_millis(40);
const ACK_DELAY_QUICK: Duration = Duration::from_millis(1);
/// What a segment counts until it is acknowledged, and a frame of many.
const WEIGHT_SEGMENT: u8 = 4;
const WEIGHT_GATHERED: u8 = 1;
/// How much may be acknowledged together.
const UNACKED_MAX: u8 = 2 * WEIGHT_SEGMENT;
const UNACKED_MAX_DISORDER: u8 = 2 * WEIGHT_GATHERED;
/// Three duplicates are enough for any peer; a few more survive loss.
const DUPLICATES_OWED_MAX: u8 = 7;
