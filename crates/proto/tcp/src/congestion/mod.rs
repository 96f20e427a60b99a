//! How much may be in the network? RFC 5681, with the growth function of RFC 9438.

mod cubic;

use atoll_base::{Duration, Instant};

use crate::settings::Algorithm;
use cubic::Cubic;

/// Congestion window and what makes it grow.
#[derive(Debug)]
pub(crate) struct Congestion {
    /// Octets that may be in the network.
    pub(crate) cwnd: u32,
    /// Octets up to which the window grows exponentially.
    pub(crate) ssthresh: u32,
    cubic: Cubic,
    /// Octets acknowledged since the window last grew, for NewReno's linear growth.
    acked: u32,
    pub(crate) algorithm: Algorithm,
    /// Whether the window was what held the sender back. It grows only then (RFC 9293 §3.8.2, RFC 7661).
    pub(crate) limited: bool,
}

impl Congestion {
    pub(crate) fn new(algorithm: Algorithm, mss: u16) -> Congestion {
        Congestion {
            cwnd: initial_window(mss),
            ssthresh: u32::MAX,
            cubic: Cubic::new(),
            acked: 0,
            algorithm,
            limited: false,
        }
    }

    pub(crate) fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// `acked` octets have been acknowledged outside fast recovery.
    pub(crate) fn handle_ack(&mut self, now: Instant, acked: u32, mss: u16, srtt_us: u32) {
        if !self.limited {
            self.cubic.pause(now);
            return;
        }
        let mut acked = acked;
        if self.in_slow_start() {
            let growth = acked.min(self.ssthresh - self.cwnd);
            self.cwnd = self.cwnd.saturating_add(growth).min(CWND_MAX);
            acked -= growth;
            if acked == 0 {
                return;
            }
        }
        let growth = match self.algorithm {
            Algorithm::Cubic => self.cubic.growth(now, self.cwnd, acked, mss, srtt_us),
            Algorithm::NewReno => {
                // RFC 5681 §3.1: one segment per window acknowledged.
                self.acked = self.acked.saturating_add(acked);
                if self.acked < self.cwnd {
                    return;
                }
                self.acked -= self.cwnd;
                u32::from(mss)
            }
        };
        self.cwnd = self.cwnd.saturating_add(growth).min(CWND_MAX);
    }

    /// Losses are known: fast recovery begins. `flight`: octets sent and not acknowledged.
    pub(crate) fn handle_loss(&mut self, flight: u32, mss: u16) {
        self.lower_ssthresh(flight, mss);
        self.cwnd = self.cwnd.min(self.ssthresh);
    }

    /// A retransmission time-out has passed (RFC 5681 §3.1: loss window of one segment). Only the first of a row tells
    /// something new about the network.
    pub(crate) fn handle_timeout(&mut self, flight: u32, mss: u16, first: bool) {
        if first {
            self.lower_ssthresh(flight, mss);
        }
        self.cwnd = u32::from(mss);
    }

    /// The losses of the episode were none: the windows as they were before it.
    pub(crate) fn undo(&mut self, cwnd: u32, ssthresh: u32) {
        self.cwnd = self.cwnd.max(cwnd);
        self.ssthresh = ssthresh;
    }

    /// Fast recovery is over.
    pub(crate) fn end_recovery(&mut self, mss: u16) {
        self.cwnd = self.ssthresh.max(u32::from(mss));
    }

    /// Nothing was sent for `idle`: the window is halved for every time-out passed, down to the initial one (RFC 2861,
    /// as on Linux).
    pub(crate) fn handle_idle(&mut self, idle: Duration, rto: Duration, mss: u16) {
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
            Algorithm::Cubic => self.cubic.handle_loss(self.cwnd, mss).max(floor),
            // RFC 5681 §3.1 (4).
            Algorithm::NewReno => (flight / 2).max(floor),
        };
    }
}

/// RFC 6928: ten segments.
pub(crate) fn initial_window(mss: u16) -> u32 {
    10 * u32::from(mss)
}

/// More than any window can be (RFC 7323 §2.3).
const CWND_MAX: u32 = 1 << 30;

#[cfg(test)]
mod tests;
