//! How fast the network delivers: delivery rate estimation, draft-ietf-ccwg-bbr §4.1.
//!
//! Each segment remembers what had been delivered when it left. When the segment itself is delivered, the
//! octets delivered in between, over the time in between, are a sample of the rate. The sample is no higher
//! than the rate at which the octets were sent.

use atoll_base::{Duration, Instant};

use super::flight::Sent;

/// The counts of a connection, which a segment keeps from the moment when it left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counters {
    /// Octets delivered, that is acknowledged or SACKed (C.delivered).
    pub(crate) delivered: i64,
    /// When `delivered` was last updated (C.delivered_time).
    pub(crate) delivered_at: Instant,
    /// When the segment left that was delivered last (C.first_send_time).
    pub(crate) first_sent_at: Instant,
    /// Octets marked as lost, modulo 2^32 (C.lost).
    pub(crate) lost: u32,
    /// Octets in the network after the segment left (P.tx_in_flight).
    pub(crate) in_flight: u32,
    /// Whether the application had less to send than the network would have taken (P.is_app_limited).
    pub(crate) app_limited: bool,
}

impl Counters {
    pub(crate) fn new(delivered: i64, now: Instant) -> Counters {
        Counters {
            delivered,
            delivered_at: now,
            first_sent_at: now,
            lost: 0,
            in_flight: 0,
            app_limited: false,
        }
    }

    /// Returns what a segment remembers that leaves and makes `in_flight` octets in flight.
    pub(super) fn snapshot(&self, in_flight: i64) -> Counters {
        Counters { in_flight: u32::try_from(in_flight.max(0)).unwrap_or(u32::MAX), ..*self }
    }
}

/// One measurement of the delivery rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateSample {
    /// Octets delivered in `interval`.
    pub(crate) delivered: u64,
    pub(crate) interval: Duration,
    /// `delivered` of the connection when the measured segment left (C.delivered): the start of its round.
    pub(crate) prior_delivered: i64,
    /// Octets lost since the segment left.
    pub(crate) lost: u32,
    /// Octets in flight when the segment left.
    pub(crate) in_flight: u32,
    pub(crate) app_limited: bool,
}

impl RateSample {
    /// Returns the rate in octets per second; 0 if it is not known.
    pub(crate) fn rate(&self) -> u64 {
        let us = u64::try_from(self.interval.as_micros()).unwrap_or(u64::MAX);
        self.delivered.saturating_mul(1_000_000).checked_div(us).unwrap_or(0)
    }
}

impl Counters {
    /// Returns the sample that the delivery of `sent` gives. `self` is what the connection has counted,
    /// `sent` included.
    pub(crate) fn sample(&self, sent: &Sent, min_rtt: Duration) -> RateSample {
        let then = &sent.counters;
        let send_elapsed = sent.sent_at.since(then.first_sent_at);
        let ack_elapsed = self.delivered_at.since(then.delivered_at);
        let interval = send_elapsed.max(ack_elapsed);
        RateSample {
            delivered: u64::try_from(self.delivered - then.delivered).unwrap_or(0),
            // A sample over less than a round trip says nothing.
            interval: if interval < min_rtt { Duration::ZERO } else { interval },
            prior_delivered: then.delivered,
            lost: self.lost.wrapping_sub(then.lost),
            in_flight: then.in_flight,
            app_limited: then.app_limited,
        }
    }
}
