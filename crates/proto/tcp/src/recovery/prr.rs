//! How fast to send during fast recovery: proportional rate reduction, RFC 9937.

/// The state of one episode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prr {
    /// Octets delivered in this episode; `out` counts those sent.
    delivered: u32,
    out: u32,
    /// Octets in flight at the start of the episode (RecoverFS).
    flight: u32,
}

impl Prr {
    pub(super) fn new(flight: i64) -> Prr {
        Prr { delivered: 0, out: 0, flight: u32::try_from(flight.max(1)).unwrap_or(u32::MAX) }
    }

    /// Returns the congestion window after `delivered` octets have left the network (RFC 9937 §6.2). `pipe`
    /// is the number of octets still there. `safe` says that the acknowledgement has moved `una` and shown no
    /// further loss.
    pub(super) fn window(&mut self, pipe: i64, delivered: i64, ssthresh: u32, mss: u32, safe: bool) -> u32 {
        let delivered = u32::try_from(delivered).unwrap_or(u32::MAX);
        let pipe = u32::try_from(pipe).unwrap_or(u32::MAX);
        self.delivered = self.delivered.saturating_add(delivered);
        let allowance = if pipe > ssthresh {
            let share = u64::from(self.delivered) * u64::from(ssthresh);
            let target = share.div_ceil(u64::from(self.flight));
            u32::try_from(target).unwrap_or(u32::MAX).saturating_sub(self.out)
        } else {
            let bound = self.delivered.saturating_sub(self.out).max(delivered);
            (ssthresh - pipe).min(if safe { bound.saturating_add(mss) } else { bound })
        };
        // The first segment of an episode leaves in any case.
        let allowance = if self.out == 0 { allowance.max(mss) } else { allowance };
        pipe.saturating_add(allowance).max(mss)
    }

    /// Returns the octets in flight at the start of the episode.
    #[cfg(test)]
    pub(crate) fn flight(&self) -> u32 {
        self.flight
    }

    /// Returns the octets delivered in the episode.
    #[cfg(test)]
    pub(crate) fn delivered(&self) -> u32 {
        self.delivered
    }

    pub(super) fn note_sent(&mut self, octets: i64) {
        self.out = self.out.saturating_add(u32::try_from(octets).unwrap_or(u32::MAX));
    }
}
