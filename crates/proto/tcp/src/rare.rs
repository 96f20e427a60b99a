//! The parts of a connection that few connections have. They are kept aside, so that the others need not
//! carry them.

use core::num::NonZeroU64;

use atoll_base::{Duration, Instant};

use crate::fast_open::Early;
use crate::urgent::Urgent;

/// The rare parts of one connection. They are allocated when first needed, and kept until the connection
/// ends.
#[derive(Debug, Default)]
pub(crate) struct Rare {
    pub(crate) urgent: Urgent,
    pub(crate) early: Early,
    /// SO_MAX_PACING_RATE in octets per second.
    pub(crate) pacing_rate_max: Option<NonZeroU64>,
    pub(crate) losses: Losses,
    /// The moment from which challenge ACKs may be sent again.
    pub(crate) challenge_after: Instant,
}

/// What TCP_INFO tells of losses: counts over the life of a connection, which most connections do not need. A
/// successor begins anew.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Losses {
    /// The number of retransmission time-outs.
    pub(crate) timeouts: u16,
    /// The number of series of such time-outs without an acknowledgement in between.
    pub(crate) series: u16,
    /// When the series under way has begun.
    pub(crate) since: Option<Instant>,
    /// The time that the series before have taken.
    pub(crate) time: Duration,
    /// Octets of text that were sent again.
    pub(crate) resent: u64,
    /// The number of segments that came out of order.
    pub(crate) out_of_order: u32,
    /// The number of segments that have arrived twice, as the peer has told (RFC 2883).
    pub(crate) twice: u32,
    /// The number of acknowledgements that have shown that segments were reordered.
    pub(crate) reordered: u32,
}

impl Losses {
    /// Counts a time-out, which is the first of a series or a further one (tcp_update_rto_stats).
    pub(crate) fn note_timeout(&mut self, now: Instant, is_first: bool) {
        self.timeouts = self.timeouts.saturating_add(1);
        if is_first {
            self.series = self.series.saturating_add(1);
            self.since = Some(now);
        }
    }

    /// Ends a series, because the peer has acknowledged something new.
    pub(crate) fn end_series(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.time += now.since(since);
        }
    }

    /// Returns the time that all series have taken until now.
    pub(crate) fn time_until(&self, now: Instant) -> Duration {
        self.time + self.since.map_or(Duration::ZERO, |since| now.since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_outs_are_counted_by_series_and_their_time_goes_on_until_something_is_acknowledged() {
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let mut losses = Losses::default();
        losses.note_timeout(at(100), true);
        losses.note_timeout(at(300), false);
        assert_eq!(
            (losses.timeouts, losses.series, losses.time_until(at(350))),
            (2, 1, Duration::from_millis(250))
        );
        losses.end_series(at(400));
        losses.end_series(at(500));
        assert_eq!(losses.time_until(at(600)), Duration::from_millis(300));
        losses.note_timeout(at(700), true);
        losses.end_series(at(710));
        assert_eq!(
            (losses.timeouts, losses.series, losses.time_until(at(999))),
            (3, 2, Duration::from_millis(310))
        );
    }
}
