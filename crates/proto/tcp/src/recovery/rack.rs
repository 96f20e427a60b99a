//! Which segments are lost, judged by time: RACK, RFC 8985 §6.
//!
//! A segment is lost when one that left later has arrived, and a reordering window has passed since.

use atoll_base::{Duration, Instant};

use super::flight::{Flight, Judgement, Sent};

/// The delivered segment that left last (RACK.segment, RACK.rtt).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rack {
    sent_at: Instant,
    end: i64,
    /// The round trip of that segment.
    pub(crate) rtt: Duration,
    /// After the reordering window has grown, it may grow again when this offset is acknowledged
    /// (RACK.dsack_round).
    dsack_round: i64,
}

/// The knowledge about reordering on the path. It is kept while nothing is in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reordering {
    /// Whether something that was sent once has arrived out of order (RACK.reordering_seen).
    pub(crate) seen: bool,
    /// How many quarters of a round trip to wait (RACK.reo_wnd_mult).
    pub(crate) quarters: u8,
    /// The number of episodes until `quarters` is 1 again (RACK.reo_wnd_persist).
    persist: u8,
}

impl Rack {
    pub(super) const fn new() -> Rack {
        Rack { sent_at: Instant::ZERO, end: i64::MIN, rtt: Duration::ZERO, dsack_round: i64::MIN }
    }

    /// Notes that `delivered` has arrived after `rtt` (RFC 8985 §6.2, step 2).
    pub(crate) fn update(&mut self, delivered: &Sent, rtt: Duration) {
        self.rtt = rtt;
        if (delivered.sent_at, delivered.end) > (self.sent_at, self.end) {
            (self.sent_at, self.end) = (delivered.sent_at, delivered.end);
        }
    }
}

impl Reordering {
    pub(crate) const fn new() -> Reordering {
        Reordering { seen: false, quarters: 1, persist: 0 }
    }

    /// Notes that an episode of recovery is over (RFC 8985 §6.2, step 4).
    pub(super) fn end_episode(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.quarters = 1;
        }
    }
}

impl Flight {
    /// Widens the reordering window, at most once per round. The peer has received something twice: what was
    /// sent again was not lost, and the window was too small.
    pub(crate) fn widen_reordering(&mut self, reordering: &mut Reordering, una: i64, nxt: i64) {
        if una < self.rack.dsack_round {
            return;
        }
        self.rack.dsack_round = nxt;
        reordering.quarters = reordering.quarters.saturating_add(1);
        reordering.persist = PERSIST;
    }

    /// Marks what is lost now (RFC 8985 §6.2, step 5), with `window` for reordering. Returns how long to wait
    /// until the rest of what left before the segment delivered last is lost, too; `None` if there is no such
    /// rest.
    pub(crate) fn detect_by_time(&mut self, now: Instant, window: Duration) -> Option<Duration> {
        let (rack, fack) = (self.rack, self.fack);
        let mut wait = None;
        self.judge_outstanding(|record| {
            if (record.sent_at, record.end) >= (rack.sent_at, rack.end) {
                // Records beyond what was SACKed that were sent once are in the order of time.
                let ordered = record.start >= fack && !record.retransmitted;
                return if ordered { Judgement::Stop } else { Judgement::Keep };
            }
            let deadline = record.sent_at + rack.rtt + window;
            if deadline <= now {
                return Judgement::Lost;
            }
            wait = wait.max(Some(deadline.since(now)));
            Judgement::Keep
        });
        wait
    }
}

/// For how many episodes a wider window is kept (RFC 8985 §6.2, step 4).
const PERSIST: u8 = 16;
