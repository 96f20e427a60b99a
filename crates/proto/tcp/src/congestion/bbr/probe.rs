//! When more bandwidth is tried, and when the round trip is measured anew (draft-ietf-ccwg-bbr-05 §5.3.3,
//! §5.3.4).

use atoll_base::{Duration, Instant};

use super::model::{BETA, is_too_high};
use super::{Bbr, Mode, gain};
use crate::congestion::Sample;

/// The state of probing.
#[derive(Debug)]
pub(super) struct Probe {
    cycle_at: Instant,
    wait: Duration,
    pub(super) rounds_since: u32,
    /// The phase to which the acknowledgements that arrive now belong.
    acks: Acks,
    /// Whether losses now are a sample of the bandwidth that is tried.
    samples: bool,
    up_rounds: u8,
    up_acks: u32,
    /// The number of octets acknowledged for which the bound rises by one segment.
    up_count: u32,
    /// The smallest round trip of the last five seconds, in microseconds.
    rtt_us: u32,
    rtt_at: Instant,
    rtt_done_at: Instant,
    rtt_round_done: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acks {
    Starting,
    Feedback,
    Stopping,
    Refilling,
}

impl Probe {
    pub(super) fn new(now: Instant) -> Probe {
        Probe {
            cycle_at: now,
            wait: Duration::ZERO,
            rounds_since: 0,
            acks: Acks::Starting,
            samples: false,
            up_rounds: 0,
            up_acks: 0,
            up_count: u32::MAX,
            rtt_us: u32::MAX,
            rtt_at: now,
            rtt_done_at: Instant::FAR_FUTURE,
            rtt_round_done: false,
        }
    }

    pub(super) fn rtt_is_done(&self, now: Instant) -> bool {
        self.rtt_done_at != Instant::FAR_FUTURE && now >= self.rtt_done_at
    }
}

impl Bbr {
    // --- bandwidth
    // -------------------------------------------------------------------------------------------------------

    /// Advances the cycle of bandwidth probing (draft §5.3.3.6).
    pub(super) fn update_cycle(&mut self, sample: &Sample, cwnd: u32) {
        if !self.full_bw_reached {
            return;
        }
        self.adapt_long_term(sample, cwnd);
        let rate = sample.rate.as_ref().map_or(0, |rate| rate.rate());
        match self.mode {
            Mode::Down => {
                let low = sample.pipe <= self.model.inflight_with_headroom(sample.mss)
                    && sample.pipe <= self.model.max_inflight_without_aggregation(sample.mss, self.mode);
                if !self.start_refill_in_time(sample, cwnd) && low {
                    self.mode = Mode::Cruise;
                }
            }
            Mode::Cruise => {
                self.start_refill_in_time(sample, cwnd);
            }
            Mode::Refill if self.model.round_start => {
                self.probe.samples = true;
                self.probe.acks = Acks::Starting;
                self.model.start_round(sample.delivered);
                self.reset_full_pipe(rate);
                self.mode = Mode::Up;
                self.raise_slope(sample, cwnd);
            }
            Mode::Up => {
                if sample.limited && cwnd >= self.model.inflight_longterm {
                    self.reset_full_pipe(rate);
                } else if self.full_bw_now {
                    self.start_down(sample.now);
                    self.model.start_round(sample.delivered);
                }
            }
            _ => {}
        }
    }

    pub(super) fn start_down(&mut self, now: Instant) {
        self.model.forget_signals();
        self.probe.up_count = u32::MAX;
        // Draft §5.3.3.5.3: wait two to three seconds, so that flows do not probe in step.
        self.probe.rounds_since = self.rng.below(2);
        self.probe.wait = Duration::from_millis(2000 + u64::from(self.rng.below(1001)));
        self.probe.cycle_at = now;
        self.probe.acks = Acks::Stopping;
        self.mode = Mode::Down;
    }

    /// Begins to try more when it is time: by the clock, or as soon as a Reno flow would have grown as much
    /// (draft §5.3.3.5.3).
    fn start_refill_in_time(&mut self, sample: &Sample, cwnd: u32) -> bool {
        let segments = self.model.bdp(1000).min(cwnd) / u32::from(sample.mss).max(1);
        let due = sample.now > self.probe.cycle_at + self.probe.wait
            || self.probe.rounds_since >= segments.min(RENO_ROUNDS_MAX);
        if due {
            self.model.forget_short_term();
            self.probe.up_rounds = 0;
            self.probe.up_acks = 0;
            self.probe.acks = Acks::Refilling;
            self.model.start_round(sample.delivered);
            self.mode = Mode::Refill;
        }
        due
    }

    fn adapt_long_term(&mut self, sample: &Sample, cwnd: u32) {
        let Some(rate) = &sample.rate else { return };
        if self.model.round_start && self.probe.acks == Acks::Starting {
            self.probe.acks = Acks::Feedback;
        }
        if self.model.round_start && self.probe.acks == Acks::Stopping {
            self.probe.samples = false;
            if self.mode.probes_bandwidth() && !rate.app_limited {
                self.model.advance_max_bw();
                self.probe.acks = Acks::Feedback;
            }
        }
        if is_too_high(rate) || self.model.inflight_longterm == u32::MAX {
            return;
        }
        self.model.inflight_longterm = self.model.inflight_longterm.max(rate.in_flight);
        if self.mode == Mode::Up {
            self.raise_long_term(sample, cwnd);
        }
    }

    fn raise_slope(&mut self, sample: &Sample, cwnd: u32) {
        let growth = u32::from(sample.mss) << self.probe.up_rounds;
        self.probe.up_rounds = (self.probe.up_rounds + 1).min(UP_ROUNDS_MAX);
        // The bound rises by one segment for as many octets as make `growth` in a round.
        let steps = (growth / u32::from(sample.mss).max(1)).max(1);
        self.probe.up_count = (cwnd / steps).max(u32::from(sample.mss));
    }

    fn raise_long_term(&mut self, sample: &Sample, cwnd: u32) {
        if !sample.limited || cwnd < self.model.inflight_longterm {
            return;
        }
        self.probe.up_acks = self.probe.up_acks.saturating_add(sample.newly_delivered);
        let steps = self.probe.up_acks / self.probe.up_count.max(1);
        self.probe.up_acks -= steps * self.probe.up_count;
        let by = steps.saturating_mul(sample.mss.into());
        self.model.inflight_longterm = self.model.inflight_longterm.saturating_add(by);
        if self.model.round_start {
            self.raise_slope(sample, cwnd);
        }
    }

    /// Handles a loss (draft §5.5.10.2).
    pub(super) fn handle_lost(&mut self, sample: &Sample, cwnd: u32) {
        let Some(lost) = &sample.lost else { return };
        self.model.note_loss(sample.delivered);
        if !self.probe.samples || !is_too_high(lost) {
            return;
        }
        self.probe.samples = false;
        if !lost.app_limited {
            // This is the point up to which no more than the threshold was lost.
            let allowed = lost.in_flight / 50;
            let at_loss = lost.in_flight.saturating_sub(lost.lost.saturating_sub(allowed));
            let target = gain(self.model.bdp(1000).min(cwnd).into(), BETA);
            self.model.inflight_longterm_before = self.model.inflight_longterm;
            self.model.inflight_longterm = at_loss.max(u32::try_from(target).unwrap_or(u32::MAX));
        }
        if self.mode == Mode::Up {
            self.start_down(sample.now);
        }
    }

    // --- round trip
    // ------------------------------------------------------------------------------------------------------

    /// Enters or leaves PROBE-RTT (draft §5.3.4.3). Returns the window, which may be the one before
    /// PROBE-RTT.
    pub(super) fn check_probe_rtt(&mut self, sample: &Sample, cwnd: u32) -> u32 {
        let probe = &mut self.probe;
        let expired = sample.now > probe.rtt_at + PROBE_RTT_INTERVAL;
        if let Some(us) = sample.rtt_us
            && (us < probe.rtt_us || expired)
        {
            probe.rtt_us = us;
            probe.rtt_at = sample.now;
            if us <= self.model.min_rtt_us {
                self.model.set_min_rtt(sample.now, us);
            }
        }
        if self.mode != Mode::ProbeRtt {
            if expired && !self.idle_restart {
                self.save_window(cwnd);
                self.mode = Mode::ProbeRtt;
                self.probe.rtt_done_at = Instant::FAR_FUTURE;
                self.probe.acks = Acks::Stopping;
                self.model.start_round(sample.delivered);
            }
            return cwnd;
        }
        if self.probe.rtt_done_at == Instant::FAR_FUTURE {
            if sample.pipe <= self.probe_rtt_window(sample.mss) {
                self.probe.rtt_done_at = sample.now + PROBE_RTT_DURATION;
                self.probe.rtt_round_done = false;
                self.model.start_round(sample.delivered);
            }
            return cwnd;
        }
        self.probe.rtt_round_done |= self.model.round_start;
        if self.probe.rtt_round_done && self.probe.rtt_is_done(sample.now) {
            return self.end_probe_rtt(sample.now, cwnd);
        }
        cwnd
    }

    pub(super) fn end_probe_rtt(&mut self, now: Instant, cwnd: u32) -> u32 {
        self.probe.rtt_at = now;
        self.model.forget_short_term();
        if self.full_bw_reached {
            self.start_down(now);
            self.mode = Mode::Cruise;
        } else {
            self.mode = Mode::Startup;
        }
        self.restored_window(cwnd)
    }

    /// Returns the window in PROBE-RTT, in octets: half of what the pipe holds.
    pub(super) fn probe_rtt_window(&self, mss: u16) -> u32 {
        self.model.bdp(Mode::ProbeRtt.cwnd_gain()).max(4 * u32::from(mss))
    }
}

/// The most rounds between two probes: a Reno flow needs as many to fill a pipe of this many segments.
const RENO_ROUNDS_MAX: u32 = 63;
const UP_ROUNDS_MAX: u8 = 15;
const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);
const PROBE_RTT_DURATION: Duration = Duration::from_millis(200);
