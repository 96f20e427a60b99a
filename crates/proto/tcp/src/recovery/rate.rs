//! How fast does the network deliver? draft-ietf-ccwg-bbr §4.1 (delivery rate estimation).
//!
//! Each segment remembers what had been delivered when it left. When it is delivered itself, the octets
//! delivered in between, over the time in between, are a sample of the rate; but not more than was sent in
//! the time that sending took.

use atoll_base::{Duration, Instant};

use super::flight::Sent;

/// What a segment remembers of the moment it left, and what the connection counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counters {
    /// Octets delivered: acknowledged or SACKed (C.delivered).
    pub(crate) delivered: i64,
    /// When that was last updated (C.delivered_time).
    pub(crate) delivered_at: Instant,
    /// When the segment left that was delivered last (C.first_send_time).
    pub(crate) first_sent_at: Instant,
    /// Octets marked as lost, modulo 2^32 (C.lost).
    pub(crate) lost: u32,
    /// Octets in the network after the segment left (P.tx_in_flight).
    pub(crate) in_flight: u32,
    /// The application had less to send than the network would have taken (P.is_app_limited).
    pub(crate) app_limited: bool,
}

impl Counters {
    pub(crate) fn new(delivered: i64, now: Instant) -> Counters {
        Counters { delivered, delivered_at: now, first_sent_at: now, lost: 0, in_flight: 0, app_limited: false }
    }

    /// What a segment that makes `in_flight` octets in flight remembers.
    pub(super) fn snapshot(&self, in_flight: i64) -> Counters {
        Counters { in_flight: u32::try_from(in_flight.max(0)).unwrap_or(u32::MAX), ..*self }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateSample {
    /// Octets delivered in `interval`.
    pub(crate) delivered: u64,
    pub(crate) interval: Duration,
    /// C.delivered when the segment measured left: the start of its round.
    pub(crate) prior_delivered: i64,
    /// Octets lost since then.
    pub(crate) lost: u32,
    /// Octets in flight then.
    pub(crate) in_flight: u32,
    pub(crate) app_limited: bool,
}

impl RateSample {
    /// Octets per second; 0 if nothing can be said.
    pub(crate) fn rate(&self) -> u64 {
        let us = u64::try_from(self.interval.as_micros()).unwrap_or(u64::MAX);
        self.delivered.saturating_mul(1_000_000).checked_div(us).unwrap_or(0)
    }
}

impl Counters {
    /// The sample that `sent`, delivered now, gives; `self`: what the connection has counted, `sent`
    /// included.
    pub(crate) fn sample(&self, sent: &Sent, min_rtt: Duration) -> RateSample {
        let then = &sent.counters;
        let send_elapsed = sent.sent_at.since(then.first_sent_at);
        let ack_elapsed = self.delivered_at.since(then.delivered_at);
        let interval = send_elapsed.max(ack_elapsed);
        RateSample {
            delivered: u64::try_from(self.delivered - then.delivered).unwrap_or(0),
            // Shorter than a round trip it says nothing.
            interval: if interval < min_rtt { Duration::ZERO } else { interval },
            prior_delivered: then.delivered,
            lost: self.lost.wrapping_sub(then.lost),
            in_flight: then.in_flight,
            app_limited: then.app_limited,
        }
    }
}
