//! BBRv3: a model of how fast the path delivers and how much it holds (draft-ietf-ccwg-bbr-05, whose sections
//! the comments here cite).
//!
//! The model of the path (bandwidth and round trip, `model.rs`) sets the pace and the window; bandwidth and
//! round trip are probed in turns (`probe.rs`). Rates are octets per second, gains per mille.
//!
//! ```text
//!   STARTUP -> DRAIN -> DOWN -> CRUISE -> REFILL -> UP -> DOWN ...      PROBE-RTT every 5 s, from anywhere
//! ```

mod model;
mod probe;

use atoll_base::{Instant, Rng};

use super::{BbrInfo, Sample, initial_window};
use model::Model;
use probe::Probe;

/// The phase of the flow (draft §3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The flow doubles its rate until the pipe is full.
    Startup,
    /// The flow empties the queue that STARTUP has built.
    Drain,
    /// The flow sends a little less than the path delivers, so that others find room.
    Down,
    /// The flow sends what the path delivers.
    Cruise,
    /// The flow fills the pipe, without a queue, before it tries more.
    Refill,
    /// The flow tries more than the path has delivered so far.
    Up,
    /// The flow sends very little, to see the round trip without a queue.
    ProbeRtt,
}

impl Mode {
    /// Returns the pacing gain of the mode, per mille (draft §5.6.1, table 3).
    const fn pacing_gain(self) -> u64 {
        match self {
            Mode::Startup => 2773,
            Mode::Drain => 500,
            Mode::Down => 900,
            Mode::Up => 1250,
            Mode::Cruise | Mode::Refill | Mode::ProbeRtt => 1000,
        }
    }

    const fn cwnd_gain(self) -> u64 {
        match self {
            Mode::Up => 2250,
            Mode::ProbeRtt => 500,
            _ => 2000,
        }
    }

    const fn probes_bandwidth(self) -> bool {
        matches!(self, Mode::Down | Mode::Cruise | Mode::Refill | Mode::Up)
    }
}

/// The state of one connection; it is boxed, because few connections use it.
#[derive(Debug)]
pub(crate) struct Bbr {
    mode: Mode,
    model: Model,
    probe: Probe,
    rng: Rng,
    /// The pace in octets per second (C.pacing_rate).
    pub(crate) pacing_rate: u64,
    /// The window before recovery, or before PROBE-RTT, in octets.
    prior_cwnd: u32,
    /// The bandwidth by which the pipe is found to be full (draft §5.3.1.2).
    full_bw: u64,
    full_bw_count: u8,
    full_bw_now: bool,
    full_bw_reached: bool,
    drain_round: u32,
    /// Whether nothing has been delivered since a pause: then there is no queue to be emptied for PROBE-RTT.
    idle_restart: bool,
}

impl Bbr {
    /// Creates the state in STARTUP. `seed` spreads the probing of flows over time.
    pub(crate) fn new(now: Instant, seed: u64, mss: u16, srtt_us: u32) -> Bbr {
        let rtt_us = if srtt_us == 0 { 1000 } else { srtt_us };
        let nominal = u64::from(initial_window(mss)) * 1_000_000 / u64::from(rtt_us);
        Bbr {
            mode: Mode::Startup,
            model: Model::new(now),
            probe: Probe::new(now),
            rng: Rng::new(seed),
            pacing_rate: gain(nominal, Mode::Startup.pacing_gain()),
            prior_cwnd: 0,
            full_bw: 0,
            full_bw_count: 0,
            full_bw_now: false,
            full_bw_reached: false,
            drain_round: 0,
            idle_restart: false,
        }
    }

    /// Returns what the model says of the path.
    pub(crate) fn info(&self) -> BbrInfo {
        BbrInfo {
            bandwidth: self.model.bw,
            min_rtt_us: self.model.min_rtt_us,
            pacing_gain: self.mode.pacing_gain(),
            cwnd_gain: self.mode.cwnd_gain(),
        }
    }

    /// Handles something that was delivered or lost (draft §5.2.3). Returns the new window.
    pub(crate) fn handle_sample(&mut self, sample: &Sample, mut cwnd: u32) -> u32 {
        self.handle_lost(sample, cwnd);
        if let Some(rate) = &sample.rate {
            self.model.update_round(rate, sample.delivered);
            if self.model.round_start {
                self.probe.rounds_since = self.probe.rounds_since.saturating_add(1);
            }
            self.model.update_bandwidth(rate, sample.delivered, self.mode);
            self.model.update_aggregation(sample, cwnd, self.full_bw_reached);
            self.check_full_pipe(sample);
            self.check_startup_done(sample);
            self.check_drain_done(sample);
            self.update_cycle(sample, cwnd);
        }
        self.model.update_round_trip(sample);
        cwnd = self.check_probe_rtt(sample, cwnd);
        if let Some(rate) = &sample.rate {
            self.model.advance_loss_round(rate);
            self.model.bound();
            self.idle_restart = false;
        }
        self.set_pace(self.mode.pacing_gain());
        self.window(sample, cwnd)
    }

    /// Handles the restart after a pause with nothing in flight (draft §5.4.1). Returns the new window.
    pub(crate) fn handle_restart(&mut self, now: Instant, cwnd: u32) -> u32 {
        self.model.restart(now);
        self.idle_restart = true;
        if self.mode.probes_bandwidth() {
            self.set_pace(1000);
        } else if self.mode == Mode::ProbeRtt && self.probe.rtt_is_done(now) {
            return self.end_probe_rtt(now, cwnd);
        }
        cwnd
    }

    /// Handles a mark of the network, which is a loss as far as the model is concerned.
    pub(crate) fn handle_mark(&mut self, now: Instant) {
        self.model.note_mark();
        if self.mode == Mode::Up {
            self.start_down(now);
        }
    }

    /// Saves the window when recovery begins or a time-out has passed (draft §5.6.4.4).
    pub(crate) fn save_window(&mut self, cwnd: u32) {
        let kept = self.model.loss_in_round || self.mode == Mode::ProbeRtt;
        self.prior_cwnd = if kept { self.prior_cwnd.max(cwnd) } else { cwnd };
    }

    /// Returns the window after recovery.
    pub(crate) fn restored_window(&self, cwnd: u32) -> u32 {
        cwnd.max(self.prior_cwnd)
    }

    /// Forgets the losses of an episode that were none (draft §5.5.11).
    pub(crate) fn undo(&mut self) {
        self.model.forget_short_term();
        self.model.loss_in_round = false;
        self.model.inflight_longterm = self.model.inflight_longterm_before;
    }

    /// Sets the pace from the bandwidth (draft §5.6.2).
    fn set_pace(&mut self, pacing_gain: u64) {
        // The pace is one percent below, so that no queue builds up by itself.
        let rate = gain(self.model.bw, pacing_gain) / 100 * 99;
        if rate > 0 && (self.full_bw_reached || rate > self.pacing_rate) {
            self.pacing_rate = rate;
        }
    }

    /// Returns the window for the sample (draft §5.6.4).
    fn window(&self, sample: &Sample, cwnd: u32) -> u32 {
        let mss = u32::from(sample.mss);
        let max_inflight = self.model.max_inflight(sample.mss, self.mode, self.mode.cwnd_gain());
        let mut cwnd = cwnd.saturating_sub(sample.newly_lost).max(mss);
        if self.full_bw_reached {
            cwnd = cwnd.saturating_add(sample.newly_delivered).min(max_inflight);
        } else if cwnd < max_inflight || sample.delivered < i64::from(initial_window(sample.mss)) {
            cwnd = cwnd.saturating_add(sample.newly_delivered);
        }
        let floor = 4 * mss;
        cwnd = cwnd.max(floor);
        if self.mode == Mode::ProbeRtt {
            cwnd = cwnd.min(self.probe_rtt_window(sample.mss));
        }
        let longterm = match self.mode {
            Mode::Down | Mode::Refill | Mode::Up => self.model.inflight_longterm,
            Mode::Cruise | Mode::ProbeRtt => self.model.inflight_with_headroom(sample.mss),
            Mode::Startup | Mode::Drain => u32::MAX,
        };
        cwnd.min(longterm.min(self.model.inflight_shortterm).max(floor)).min(super::CWND_MAX)
    }

    /// Finds the pipe full after three rounds in which the bandwidth does not grow by a quarter (draft
    /// §5.3.1.2).
    fn check_full_pipe(&mut self, sample: &Sample) {
        let Some(rate) = &sample.rate else { return };
        if self.full_bw_now || !self.model.round_start || rate.app_limited {
            return;
        }
        if rate.rate() >= self.full_bw / 4 * 5 && rate.rate() > 0 {
            self.reset_full_pipe(rate.rate());
            return;
        }
        self.full_bw_count += 1;
        self.full_bw_now = self.full_bw_count >= 3;
        self.full_bw_reached |= self.full_bw_now;
    }

    fn reset_full_pipe(&mut self, bw: u64) {
        self.full_bw = bw;
        self.full_bw_count = 0;
        self.full_bw_now = false;
    }

    fn check_startup_done(&mut self, sample: &Sample) {
        // Draft §5.3.1.3: this number of losses in a round means a full pipe, too.
        if !self.full_bw_reached
            && self.model.loss_round_start
            && self.model.loss_events >= STARTUP_LOSSES
            && sample.rate.as_ref().is_some_and(model::is_too_high)
        {
            self.full_bw_reached = true;
            self.model.inflight_longterm = self.model.bdp(1000).max(self.model.inflight_latest);
        }
        if self.mode == Mode::Startup && self.full_bw_reached {
            self.mode = Mode::Drain;
            self.drain_round = self.model.round_count;
        }
    }

    fn check_drain_done(&mut self, sample: &Sample) {
        if self.mode == Mode::Drain
            && (sample.pipe <= self.model.max_inflight_without_aggregation(sample.mss, self.mode)
                || self.model.round_count > self.drain_round.saturating_add(3))
        {
            self.start_down(sample.now);
        }
    }
}

/// Returns `value` times `per_mille` thousandths.
const fn gain(value: u64, per_mille: u64) -> u64 {
    value.saturating_mul(per_mille) / 1000
}

/// The number of losses in a round that end STARTUP (draft §5.3.1.3: BBRStartupFullLossCnt).
const STARTUP_LOSSES: u8 = 6;

#[cfg(test)]
mod tests;
