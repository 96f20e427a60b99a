//! What the path delivers, how long it takes, and what it loses (draft-ietf-ccwg-bbr-05 §5.5).

use atoll_base::{Duration, Instant};

use super::{Mode, gain};
use crate::congestion::Sample;
use crate::recovery::RateSample;

// structure: Model: the variables of the draft, by their names there
/// The model: bandwidth, round trip, and bounds that losses have set.
#[derive(Debug)]
pub(super) struct Model {
    /// The largest rates seen in the last cycle of probing and in this one, in octets per second.
    max_bw: [u64; 2],
    /// The bandwidth to go by, in octets per second: `max_bw`, or less while there are losses.
    pub(super) bw: u64,
    bw_shortterm: u64,
    bw_latest: u64,
    pub(super) inflight_latest: u32,
    pub(super) inflight_shortterm: u32,
    pub(super) inflight_longterm: u32,
    /// The value of `inflight_longterm` before it was lowered last.
    pub(super) inflight_longterm_before: u32,
    pub(super) min_rtt_us: u32,
    min_rtt_at: Instant,
    /// The number of rounds; a round lasts from sending something to its delivery (draft §5.5.1).
    pub(super) round_count: u32,
    pub(super) round_start: bool,
    next_round_delivered: i64,
    pub(super) loss_round_start: bool,
    loss_round_delivered: i64,
    pub(super) loss_in_round: bool,
    pub(super) loss_events: u8,
    /// Octets that arrive in excess of the bandwidth when ACKs come in bunches: maxima of this and the last
    /// five rounds.
    extra_acked: [u32; 2],
    extra_acked_rounds: u8,
    extra_acked_from: Instant,
    extra_acked_delivered: u64,
    /// Octets that leave, and are acknowledged, at once.
    offload_budget: u32,
}

impl Model {
    pub(super) fn new(now: Instant) -> Model {
        Model {
            max_bw: [0; 2],
            bw: 0,
            bw_shortterm: u64::MAX,
            bw_latest: 0,
            inflight_latest: 0,
            inflight_shortterm: u32::MAX,
            inflight_longterm: u32::MAX,
            inflight_longterm_before: u32::MAX,
            min_rtt_us: u32::MAX,
            min_rtt_at: now,
            round_count: 0,
            round_start: false,
            next_round_delivered: 0,
            loss_round_start: false,
            loss_round_delivered: 0,
            loss_in_round: false,
            loss_events: 0,
            extra_acked: [0; 2],
            extra_acked_rounds: 0,
            extra_acked_from: now,
            extra_acked_delivered: 0,
            offload_budget: 0,
        }
    }

    pub(super) fn max_bw(&self) -> u64 {
        self.max_bw[0].max(self.max_bw[1])
    }

    /// Ends a cycle of probing, and forgets the largest rate of the cycle before it (draft §5.5.6).
    pub(super) fn advance_max_bw(&mut self) {
        if self.max_bw[1] > 0 {
            self.max_bw = [self.max_bw[1], 0];
        }
    }

    /// Finds out whether a new round begins (draft §5.5.1).
    pub(super) fn update_round(&mut self, rate: &RateSample, delivered: i64) {
        self.round_start = rate.prior_delivered >= self.next_round_delivered;
        if self.round_start {
            self.start_round(delivered);
            self.round_count = self.round_count.saturating_add(1);
        }
    }

    pub(super) fn start_round(&mut self, delivered: i64) {
        self.next_round_delivered = delivered;
    }

    /// Updates the bandwidth and the bounds after a delivery (draft §5.5.5, §5.5.10.3).
    pub(super) fn update_bandwidth(&mut self, rate: &RateSample, delivered: i64, mode: Mode) {
        let bw = rate.rate();
        if bw > 0 && (bw >= self.max_bw() || !rate.app_limited) {
            self.max_bw[1] = self.max_bw[1].max(bw);
        }
        self.bw_latest = self.bw_latest.max(bw);
        self.inflight_latest = self.inflight_latest.max(saturated(rate.delivered));
        self.loss_round_start = rate.prior_delivered >= self.loss_round_delivered;
        if !self.loss_round_start {
            return;
        }
        self.loss_round_delivered = delivered;
        let probing = matches!(mode, Mode::Refill | Mode::Up | Mode::Startup);
        if self.loss_in_round && !probing {
            self.lower();
        }
    }

    /// Lowers the short-term bounds after losses outside of probing, by 30 % at most.
    fn lower(&mut self) {
        if self.bw_shortterm == u64::MAX {
            self.bw_shortterm = self.max_bw();
        }
        if self.inflight_shortterm == u32::MAX {
            self.inflight_shortterm = self.bdp(2000).max(self.inflight_latest);
        }
        self.bw_shortterm = self.bw_latest.max(gain(self.bw_shortterm, BETA));
        self.inflight_shortterm =
            self.inflight_latest.max(saturated(gain(self.inflight_shortterm.into(), BETA)));
    }

    /// Ends the handling of an acknowledgement (draft §5.2.3): the next round begins with what this one has
    /// shown.
    pub(super) fn advance_loss_round(&mut self, rate: &RateSample) {
        if self.loss_round_start {
            self.loss_in_round = false;
            self.loss_events = 0;
            self.bw_latest = rate.rate();
            self.inflight_latest = saturated(rate.delivered);
        }
    }

    pub(super) fn forget_signals(&mut self) {
        self.loss_in_round = false;
        self.loss_events = 0;
        self.bw_latest = 0;
        self.inflight_latest = 0;
    }

    pub(super) fn forget_short_term(&mut self) {
        self.bw_shortterm = u64::MAX;
        self.inflight_shortterm = u32::MAX;
    }

    pub(super) fn bound(&mut self) {
        self.bw = self.max_bw().min(self.bw_shortterm);
    }

    /// Notes a loss. The first one in a round begins the round in which losses are counted.
    pub(super) fn note_loss(&mut self, delivered: i64) {
        if !self.loss_in_round {
            self.loss_round_delivered = delivered;
        }
        self.note_mark();
    }

    /// Notes that something was marked in this round.
    pub(super) fn note_mark(&mut self) {
        self.loss_in_round = true;
        self.loss_events = self.loss_events.saturating_add(1);
    }

    /// Measures how much more than the bandwidth arrives at once (draft §5.5.9).
    pub(super) fn update_aggregation(&mut self, sample: &Sample, cwnd: u32, full: bool) {
        let expected = |from: Instant| octets(self.bw, sample.now.since(from));
        let mut expected_delivered = expected(self.extra_acked_from);
        if self.extra_acked_delivered <= expected_delivered {
            self.extra_acked_delivered = 0;
            self.extra_acked_from = sample.now;
            expected_delivered = 0;
        }
        self.extra_acked_delivered += u64::from(sample.newly_delivered);
        let extra = saturated(self.extra_acked_delivered.saturating_sub(expected_delivered)).min(cwnd);
        if self.round_start {
            self.extra_acked_rounds = self.extra_acked_rounds.saturating_add(1);
            // In STARTUP only the last round counts.
            if !full || self.extra_acked_rounds >= EXTRA_ACKED_ROUNDS {
                self.extra_acked = [self.extra_acked[1], 0];
                self.extra_acked_rounds = 0;
            }
        }
        self.extra_acked[1] = self.extra_acked[1].max(extra);
        self.offload_budget = saturated(self.bw / 1000).min(64 << 10).max(2 * u32::from(sample.mss));
    }

    /// Updates the smallest round trip of the last ten seconds (draft §5.3.4.3).
    pub(super) fn update_round_trip(&mut self, sample: &Sample) {
        let expired = sample.now > self.min_rtt_at + MIN_RTT_LIFETIME;
        if let Some(us) = sample.rtt_us
            && (us < self.min_rtt_us || expired)
        {
            self.min_rtt_us = us.max(1);
            self.min_rtt_at = sample.now;
        }
    }

    pub(super) fn set_min_rtt(&mut self, now: Instant, us: u32) {
        self.min_rtt_us = us.max(1);
        self.min_rtt_at = now;
    }

    pub(super) fn restart(&mut self, now: Instant) {
        self.extra_acked_from = now;
        self.extra_acked_delivered = 0;
    }

    /// Returns how many octets the pipe holds, times `per_mille` thousandths.
    pub(super) fn bdp(&self, per_mille: u64) -> u32 {
        if self.min_rtt_us == u32::MAX {
            return u32::MAX;
        }
        let bw = if self.bw == 0 { self.max_bw() } else { self.bw };
        saturated(gain(octets(bw, Duration::from_micros(self.min_rtt_us.into())), per_mille))
    }

    /// Returns how many octets have to be in flight to use the path wholly (draft §5.6.4.2).
    pub(super) fn max_inflight(&self, mss: u16, mode: Mode, cwnd_gain: u64) -> u32 {
        let extra = self.extra_acked[0].max(self.extra_acked[1]);
        self.quantized(self.bdp(cwnd_gain).saturating_add(extra), mss, mode)
    }

    pub(super) fn max_inflight_without_aggregation(&self, mss: u16, mode: Mode) -> u32 {
        self.quantized(self.bdp(1000), mss, mode)
    }

    fn quantized(&self, inflight: u32, mss: u16, mode: Mode) -> u32 {
        let mss = u32::from(mss);
        let inflight = inflight.max(3 * self.offload_budget).max(4 * mss);
        if mode == Mode::Up { inflight.saturating_add(2 * mss) } else { inflight }
    }

    /// Returns a little less than the most that is safe to have in flight, so that others find room (draft
    /// §5.3.3.3).
    pub(super) fn inflight_with_headroom(&self, mss: u16) -> u32 {
        if self.inflight_longterm == u32::MAX {
            return u32::MAX;
        }
        let mss = u32::from(mss);
        let headroom = (self.inflight_longterm / 100 * HEADROOM_PERCENT).max(mss);
        self.inflight_longterm.saturating_sub(headroom).max(4 * mss)
    }
}

/// Returns whether more than 2 % of what was in flight was lost (draft §5.5.10.2).
pub(super) fn is_too_high(rate: &RateSample) -> bool {
    u64::from(rate.lost) * 50 > u64::from(rate.in_flight)
}

/// Returns how many octets a rate of `rate` octets per second delivers in `time`.
fn octets(rate: u64, time: Duration) -> u64 {
    let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    u64::try_from(u128::from(rate) * u128::from(us) / 1_000_000).unwrap_or(u64::MAX)
}

fn saturated(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// BBRBeta, per mille.
pub(super) const BETA: u64 = 700;
const HEADROOM_PERCENT: u32 = 15;
const MIN_RTT_LIFETIME: Duration = Duration::from_secs(10);
const EXTRA_ACKED_ROUNDS: u8 = 5;
