//! Which segments are lost, judged by time? RACK, RFC 8985 §6.
//!
//! A segment is lost when one that left later has arrived, and a reordering window has passed since.

use atoll_base::{Duration, Instant};

use super::flight::{Flight, Judgement, Sent};

/// The segment delivered that left last (RACK.segment, RACK.rtt).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rack {
    sent_at: Instant,
    end: i64,
    /// Its round trip.
    pub(crate) rtt: Duration,
    /// The window has grown; it may again when this is acknowledged (RACK.dsack_round).
    dsack_round: i64,
}

/// What is known of reordering on the path; outlives what is in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reordering {
    /// Something has arrived out of order that was sent once (RACK.reordering_seen).
    pub(crate) seen: bool,
    /// Quarters of a round trip to wait (RACK.reo_wnd_mult).
    pub(crate) quarters: u8,
    /// Episodes until `quarters` is 1 again (RACK.reo_wnd_persist).
    persist: u8,
}

impl Rack {
    pub(super) const fn new() -> Rack {
        Rack { sent_at: Instant::ZERO, end: i64::MIN, rtt: Duration::ZERO, dsack_round: i64::MIN }
    }

    /// `delivered` has arrived after `rtt` (§6.2, step 2).
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

    /// An episode of recovery is over (§6.2, step 4).
    pub(super) fn end_episode(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.quarters = 1;
        }
    }
}

impl Flight {
    /// The peer has received something twice: what was sent again was not lost, and the window was too small.
    /// Once per round.
    pub(crate) fn widen_reordering(&mut self, reordering: &mut Reordering, una: i64, nxt: i64) {
        if una < self.rack.dsack_round {
            return;
        }
        self.rack.dsack_round = nxt;
        reordering.quarters = reordering.quarters.saturating_add(1);
        reordering.persist = PERSIST;
    }

    /// Marks what is lost now (§6.2, step 5), with `window` for reordering. Returns how long to wait until
    /// the rest of what left before the segment delivered last is lost, too; `None` if there is no such rest.
    pub(crate) fn detect_by_time(&mut self, now: Instant, window: Duration) -> Option<Duration> {
        let (rack, fack) = (self.rack, self.fack);
        let mut wait = None;
        self.judge_outstanding(|record| {
            if (record.sent_at, record.end) >= (rack.sent_at, rack.end) {
                // Beyond what was SACKed, and sent once, records are in the order of time.
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

/// §6.2, step 4: how many episodes a wider window is kept.
const PERSIST: u8 = 16;
