//! How much may be in the network, and how fast it may leave: RFC 5681, with the growth function of RFC 9438,
//! or the model of draft-ietf-ccwg-bbr.

mod bbr;
mod cubic;
mod hystart;

use alloc::boxed::Box;

use atoll_base::{Duration, Instant};

use crate::recovery::RateSample;
use crate::settings::Algorithm;
use bbr::Bbr;
use cubic::Cubic;
use hystart::{CONSERVATIVE_DIVISOR, Growth, HyStart};

/// The congestion window, and what makes it grow.
#[derive(Debug)]
pub(crate) struct Congestion {
    /// Octets that may be in the network.
    pub(crate) cwnd: u32,
    /// The size in octets up to which the window grows exponentially.
    pub(crate) ssthresh: u32,
    cubic: Cubic,
    hystart: HyStart,
    /// The state of BBR, from the first sample on, while BBR is the algorithm.
    bbr: Option<Box<Bbr>>,
    /// Octets acknowledged since the window last grew, for NewReno's linear growth.
    acked: u32,
    pub(crate) algorithm: Algorithm,
    /// Whether the window was what held the sender back. Only then does it grow (RFC 9293 §3.8.2, RFC 7661).
    pub(crate) limited: bool,
    /// The most full segments in flight since nothing was in flight last; `u16::MAX` also means more.
    pub(crate) peak: u16,
}

/// An acknowledgement of something new, as far as the window is concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack {
    pub(crate) now: Instant,
    /// Octets newly delivered.
    pub(crate) acked: u32,
    pub(crate) mss: u16,
    pub(crate) srtt_us: u32,
    /// The round trip just measured, in microseconds.
    pub(crate) rtt_us: Option<u32>,
    pub(crate) una: i64,
    pub(crate) nxt: i64,
}

/// The latest measurements of the path, for algorithms that have a model of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) now: Instant,
    pub(crate) mss: u16,
    /// Octets delivered in the life of the connection (C.delivered).
    pub(crate) delivered: i64,
    pub(crate) newly_delivered: u32,
    pub(crate) newly_lost: u32,
    /// Octets in the network now.
    pub(crate) pipe: u32,
    pub(crate) srtt_us: u32,
    pub(crate) rtt_us: Option<u32>,
    /// The rate measured by what was delivered last.
    pub(crate) rate: Option<RateSample>,
    /// The rate measured by what was found to be lost last.
    pub(crate) lost: Option<RateSample>,
    /// Whether the window was what held the sender back.
    pub(crate) limited: bool,
    /// A random number that spreads the probing of flows over time.
    pub(crate) seed: u64,
}

/// What BBR knows of the path: the contents of Linux's `struct tcp_bbr_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BbrInfo {
    /// The bandwidth in octets per second.
    pub bandwidth: u64,
    /// The smallest round-trip time in microseconds; `u32::MAX` before the first measurement.
    pub min_rtt_us: u32,
    /// The gain of the pace, per mille.
    pub pacing_gain: u64,
    /// The gain of the window, per mille.
    pub cwnd_gain: u64,
}

impl Congestion {
    pub(crate) fn new(algorithm: Algorithm, mss: u16) -> Congestion {
        Congestion {
            cwnd: initial_window(mss),
            ssthresh: u32::MAX,
            cubic: Cubic::new(),
            hystart: HyStart::new(),
            bbr: None,
            acked: 0,
            algorithm,
            limited: false,
            peak: 0,
        }
    }

    pub(crate) fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Returns whether the window comes from a model of the path, which needs to know of the application's
    /// pauses.
    pub(crate) fn has_model(&self) -> bool {
        self.algorithm == Algorithm::Bbr
    }

    /// Returns the octets per second at which text may leave; `None` if the window is the only limit.
    pub(crate) fn pacing_rate(&self) -> Option<u64> {
        self.bbr.as_ref().map(|bbr| bbr.pacing_rate)
    }

    /// Returns what BBR knows of the path; `None` under other algorithms, and before the first sample.
    pub(crate) fn bbr_info(&self) -> Option<BbrInfo> {
        self.bbr.as_ref().map(|bbr| bbr.info())
    }

    /// Sets TCP_CONGESTION. The window does not change.
    pub(crate) fn set_algorithm(&mut self, algorithm: Algorithm) {
        if algorithm != self.algorithm {
            self.algorithm = algorithm;
            self.bbr = None;
            self.cubic.reset_epoch();
        }
    }

    /// Handles something that was delivered or lost. Only algorithms that have a model use this.
    pub(crate) fn handle_sample(&mut self, sample: &Sample) {
        debug_assert!(self.has_model());
        let bbr = self
            .bbr
            .get_or_insert_with(|| Box::new(Bbr::new(sample.now, sample.seed, sample.mss, sample.srtt_us)));
        self.cwnd = bbr.handle_sample(sample, self.cwnd);
    }

    /// Handles an acknowledgement of something new outside fast recovery.
    pub(crate) fn handle_ack(&mut self, ack: &Ack) {
        if self.has_model() {
            return;
        }
        let mut acked = ack.acked;
        if self.in_slow_start() {
            acked = self.grow_exponentially(ack);
            if acked == 0 {
                return;
            }
        }
        if !self.limited {
            self.cubic.pause(ack.now);
            return;
        }
        let growth = match self.algorithm {
            Algorithm::NewReno => {
                // RFC 5681 §3.1: the window grows by one segment per window acknowledged.
                self.acked = self.acked.saturating_add(acked);
                if self.acked < self.cwnd {
                    return;
                }
                self.acked -= self.cwnd;
                u32::from(ack.mss)
            }
            _ => self.cubic.growth(ack.now, self.cwnd, acked, ack.mss, ack.srtt_us),
        };
        self.cwnd = self.cwnd.saturating_add(growth).min(CWND_MAX);
    }

    /// Grows the window by slow start (RFC 5681 §3.1). Returns the octets that slow start has not used.
    fn grow_exponentially(&mut self, ack: &Ack) -> u32 {
        // RFC 9406 §4.2: only the first slow start looks for the end of the pipe by itself.
        let growth = if self.ssthresh == u32::MAX {
            self.hystart.handle_ack(ack.una, ack.nxt, ack.rtt_us)
        } else {
            Growth::Slow
        };
        if !self.limited {
            return 0;
        }
        let share = match growth {
            Growth::Slow => ack.acked,
            Growth::Conservative => ack.acked / CONSERVATIVE_DIVISOR,
            Growth::Over => {
                self.ssthresh = self.cwnd;
                return ack.acked;
            }
        };
        let step = share.min(self.ssthresh - self.cwnd);
        self.cwnd = self.cwnd.saturating_add(step).min(CWND_MAX);
        share - step
    }

    /// Handles the begin of fast recovery. `flight` is the number of octets sent and not acknowledged.
    pub(crate) fn handle_loss(&mut self, flight: u32, mss: u16) {
        if self.has_model() {
            self.save_window();
            return;
        }
        self.lower_ssthresh(flight, mss);
        self.cwnd = self.cwnd.min(self.ssthresh);
    }

    /// Handles a mark of the network like a loss (RFC 3168 §6.1.2).
    pub(crate) fn handle_mark(&mut self, now: Instant, flight: u32, mss: u16) {
        match &mut self.bbr {
            Some(bbr) => bbr.handle_mark(now),
            None => self.handle_loss(flight, mss),
        }
    }

    fn save_window(&mut self) {
        if let Some(bbr) = &mut self.bbr {
            bbr.save_window(self.cwnd);
        }
    }

    /// Handles a retransmission time-out (RFC 5681 §3.1: the loss window is one segment). `first` says that
    /// it is the first in a row; only that one is new information about the network.
    pub(crate) fn handle_timeout(&mut self, flight: u32, mss: u16, first: bool) {
        if self.has_model() {
            self.save_window();
        } else if first {
            self.lower_ssthresh(flight, mss);
            self.cubic.forget_plateau();
        }
        self.cwnd = u32::from(mss);
    }

    /// Restores the windows as they were before an episode whose losses were none.
    pub(crate) fn undo(&mut self, cwnd: u32, ssthresh: u32) {
        self.cwnd = self.cwnd.max(cwnd);
        self.ssthresh = ssthresh;
        if let Some(bbr) = &mut self.bbr {
            bbr.undo();
        }
    }

    /// Handles the end of an episode of fast recovery (`fast`) or of time-outs.
    pub(crate) fn end_recovery(&mut self, mss: u16, fast: bool) {
        if self.has_model() {
            self.cwnd = self.bbr.as_ref().map_or(self.cwnd, |bbr| bbr.restored_window(self.cwnd));
        } else if fast {
            self.cwnd = self.ssthresh.max(u32::from(mss));
        }
    }

    /// Sets the window during fast recovery, which is that of PRR, unless a model has its own.
    pub(crate) fn set_recovery_window(&mut self, cwnd: u32) {
        if !self.has_model() {
            self.cwnd = cwnd;
        }
    }

    /// Handles a pause: after nothing was sent for `idle`, the window is halved for every time-out passed,
    /// down to the initial one (RFC 2861, as on Linux).
    pub(crate) fn handle_idle(&mut self, now: Instant, idle: Duration, rto: Duration, mss: u16) {
        if let Some(bbr) = &mut self.bbr {
            self.cwnd = bbr.handle_restart(now, self.cwnd);
            return;
        }
        let restart = initial_window(mss).min(self.cwnd);
        if idle <= rto || self.cwnd <= restart {
            return;
        }
        self.ssthresh = self.ssthresh.max(self.cwnd / 4 * 3);
        let halvings = idle.as_micros() / rto.as_micros().max(1);
        let shift = u32::try_from(halvings).unwrap_or(31).min(31);
        self.cwnd = (self.cwnd >> shift).max(restart);
        self.cubic.reset_epoch();
    }

    fn lower_ssthresh(&mut self, flight: u32, mss: u16) {
        let floor = 2 * u32::from(mss);
        self.acked = 0;
        self.ssthresh = match self.algorithm {
            // RFC 5681 §3.1 (4) asks for half of the flight.
            Algorithm::NewReno => (flight / 2).max(floor),
            _ => self.cubic.handle_loss(self.cwnd, mss).max(floor),
        };
    }
}

/// Returns the initial window in octets: ten segments (RFC 6928).
pub(crate) fn initial_window(mss: u16) -> u32 {
    10 * u32::from(mss)
}

/// A bound in octets that is larger than any window can be (RFC 7323 §2.3).
const CWND_MAX: u32 = 1 << 30;

#[cfg(test)]
mod tests;
