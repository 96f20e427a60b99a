//! What is lost, and what is sent again? RFC 6675 with SACK, RFC 6582 without, RFC 9937 for the pace.

mod rtt;
mod undo;

use alloc::boxed::Box;

use atoll_base::Instant;

use crate::ranges::RangeSet;
use crate::snd::Snd;
pub(crate) use rtt::{RTO_MAX, Rtt};
pub(crate) use undo::Undo;

/// Is the connection repairing a loss?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No loss is known.
    Open,
    /// Fast recovery: losses are known by duplicate or selective acknowledgements.
    Recovery,
    /// A retransmission time-out has passed: everything in flight is taken as lost.
    Loss,
}

/// What is known about losses. `scoreboard` exists only while the peer reports text out of order.
///
/// ```text
///   una                high_rxt        lost_edge          recover   nxt
///    |--lost, sent again--|--lost, to send--|--perhaps in flight-|----|
///         (SACKed ranges lie anywhere in between and are not sent again)
/// ```
#[derive(Debug)]
pub(crate) struct Recovery {
    /// What the peer has selectively acknowledged.
    pub(crate) scoreboard: Option<Box<RangeSet>>,
    /// The episode ends when this is acknowledged: `nxt` at its start.
    pub(crate) recover: i64,
    /// Everything below it that is not SACKed is lost.
    pub(crate) lost_edge: i64,
    /// Lost text below it has been sent again in this episode.
    pub(crate) high_rxt: i64,
    /// `nxt` when the text at `una` was sent again: SACKs well beyond it mean that the retransmission is lost, too.
    rxt_mark: i64,
    /// `nxt` when the last segment was sent again as a probe; [`i64::MAX`]: no such probe is under way.
    pub(crate) probe_end: i64,
    /// End of the text whose round trip is being measured, or [`NOT_TIMED`].
    timed_end: i64,
    timed_at: Instant,
    pub(crate) rtt: Rtt,
    /// What to go back to if the losses of this episode turn out to be none.
    pub(crate) undo: Option<Undo>,
    /// Proportional rate reduction (RFC 9937): octets delivered and sent in this episode, flight size at its start.
    prr_delivered: u32,
    prr_out: u32,
    prr_flight: u32,
    /// Segments sent again in the life of the connection.
    pub(crate) retransmits: u32,
    /// Duplicate acknowledgements in a row.
    pub(crate) dup_acks: u16,
    /// Time-outs, or unanswered probes, in a row.
    pub(crate) retries: u8,
    pub(crate) phase: Phase,
    /// The peer does not know SACK: duplicate acknowledgements are counted instead.
    pub(crate) reno: bool,
    /// The end of the flight has been probed; once is enough until `una` moves.
    pub(crate) probed: bool,
}

impl Recovery {
    pub(crate) fn new() -> Recovery {
        Recovery {
            scoreboard: None,
            recover: -1,
            lost_edge: -1,
            high_rxt: -1,
            rxt_mark: i64::MAX,
            probe_end: i64::MAX,
            timed_end: NOT_TIMED,
            timed_at: Instant::ZERO,
            rtt: Rtt::new(),
            undo: None,
            prr_delivered: 0,
            prr_out: 0,
            prr_flight: 0,
            retransmits: 0,
            dup_acks: 0,
            retries: 0,
            phase: Phase::Open,
            reno: false,
            probed: false,
        }
    }

    // --- round trips
    // ---------------------------------------------------------------------------------------------------

    /// New text up to `end` leaves now: it is measured unless a measurement is under way.
    pub(crate) fn time(&mut self, now: Instant, end: i64) {
        if self.timed_end == NOT_TIMED {
            self.timed_end = end;
            self.timed_at = now;
        }
    }

    /// The measured round trip in microseconds, if `ack` ends a measurement.
    pub(crate) fn take_round_trip(&mut self, now: Instant, ack: i64) -> Option<u32> {
        if self.timed_end == NOT_TIMED || ack < self.timed_end {
            return None;
        }
        self.timed_end = NOT_TIMED;
        let us = now.since(self.timed_at).as_micros();
        Some(u32::try_from(us).unwrap_or(u32::MAX))
    }

    /// Karn's rule: text sent twice measures nothing.
    fn forget_round_trip(&mut self, from: i64) {
        if from < self.timed_end {
            self.timed_end = NOT_TIMED;
        }
    }

    // --- the scoreboard
    // ------------------------------------------------------------------------------------------------

    /// Marks `[left, right)` as selectively acknowledged. Returns the octets newly marked; parts outside `[una, nxt)`
    /// are clipped, because peers do send stale blocks.
    pub(crate) fn mark_sacked(&mut self, snd: &Snd, left: i64, right: i64) -> i64 {
        let (left, right) = (left.max(snd.una), right.min(snd.nxt));
        if left >= right {
            return 0;
        }
        self.scoreboard.get_or_insert_default().insert(left, right).unwrap_or(0)
    }

    /// Everything below `una` is acknowledged. Returns how much of it had been SACKed.
    pub(crate) fn forget_below(&mut self, una: i64) -> i64 {
        let Some(scoreboard) = &mut self.scoreboard else { return 0 };
        let removed = scoreboard.remove_below(una);
        if scoreboard.is_empty() {
            self.scoreboard = None;
        }
        removed
    }

    /// Octets that have left the network: SACKed, or by the count of duplicate ACKs where there is no SACK.
    pub(crate) fn sacked(&self, snd: &Snd) -> i64 {
        match &self.scoreboard {
            Some(scoreboard) => scoreboard.total(),
            None if !self.reno => 0,
            None => {
                let estimate = i64::from(self.dup_acks) * i64::from(snd.mss);
                estimate.min(snd.flight() - i64::from(snd.mss)).max(0)
            }
        }
    }

    /// RFC 6675 §4, `Pipe`: octets that are believed to be in the network.
    pub(crate) fn pipe(&self, snd: &Snd) -> i64 {
        if self.phase == Phase::Open && self.scoreboard.is_none() && self.dup_acks == 0 {
            return snd.flight();
        }
        (snd.flight() - self.sacked(snd) - self.lost(snd)).max(0)
    }

    /// Octets that are lost and have not been sent again.
    pub(crate) fn lost(&self, snd: &Snd) -> i64 {
        let from = self.high_rxt.max(snd.una);
        let to = self.lost_edge.min(snd.nxt);
        if from >= to {
            return 0;
        }
        to - from - self.scoreboard.as_ref().map_or(0, |scoreboard| scoreboard.covered_in(from, to))
    }

    /// Moves `lost_edge` by RFC 6675 §4, `IsLost`: below three SACKed ranges, or more than two segments of SACKed text.
    pub(crate) fn detect_by_sack(&mut self, snd: &Snd) {
        let Some(scoreboard) = &self.scoreboard else { return };
        let enough = i64::from(DUP_THRESHOLD - 1) * i64::from(snd.mss);
        let mut above = 0;
        for (count, (left, right)) in (1..).zip(scoreboard.iter().rev()) {
            above += right - left;
            if above > enough || count >= DUP_THRESHOLD {
                self.lost_edge = self.lost_edge.max(left);
                return;
            }
        }
    }

    /// Whether something between `una` and `lost_edge` is not SACKed.
    pub(crate) fn has_loss(&self, snd: &Snd) -> bool {
        self.lost_edge > snd.una
    }

    /// Whether the retransmission of the text at `una` is lost itself: text sent after it has been SACKed, three
    /// segments' worth.
    pub(crate) fn retransmission_is_lost(&self, snd: &Snd) -> bool {
        let Some(scoreboard) = &self.scoreboard else { return false };
        self.phase != Phase::Open
            && self.high_rxt > snd.una
            && self.rxt_mark < snd.nxt
            && scoreboard.covered_in(self.rxt_mark, snd.nxt) >= i64::from(DUP_THRESHOLD) * i64::from(snd.mss)
    }

    // --- episodes
    // --------------------------------------------------------------------------------------------------------

    /// Fast recovery begins (RFC 6675 §5, RFC 6582 §3.2).
    pub(crate) fn enter_recovery(&mut self, snd: &Snd) {
        self.phase = Phase::Recovery;
        // RFC 8985 §7.4.1: from here on what arrives tells of this episode, not of the probe before.
        self.probe_end = i64::MAX;
        self.recover = snd.nxt;
        self.high_rxt = snd.una;
        self.lost_edge = self.lost_edge.max(self.first_segment_end(snd));
        self.rxt_mark = i64::MAX;
        self.prr_delivered = 0;
        self.prr_out = 0;
        self.prr_flight = u32::try_from(self.pipe(snd).max(1)).unwrap_or(u32::MAX);
    }

    /// A time-out has passed: all that is not SACKed is lost and sent again from the left.
    pub(crate) fn enter_loss(&mut self, snd: &Snd) {
        // RFC 2018 §8: the receiver may have dropped what it had SACKed. One that does SACKs at `una` what it does not
        // acknowledge; and after a second time-out nothing is believed any more.
        let reneged = self.scoreboard.as_ref().and_then(|scoreboard| scoreboard.first());
        if self.retries > 1 || reneged.is_some_and(|first| first.0 <= snd.una) {
            self.scoreboard = None;
        }
        self.phase = Phase::Loss;
        self.probe_end = i64::MAX;
        self.recover = snd.nxt;
        self.lost_edge = snd.nxt;
        self.high_rxt = snd.una;
        self.rxt_mark = i64::MAX;
        self.dup_acks = 0;
        self.timed_end = NOT_TIMED;
    }

    /// The episode ends: nothing was lost.
    pub(crate) fn end_by_undo(&mut self, snd: &Snd) {
        self.phase = Phase::Open;
        self.dup_acks = 0;
        self.lost_edge = snd.una;
        self.high_rxt = snd.una;
        self.rxt_mark = i64::MAX;
    }

    /// Our SYN was not answered in time: it measures nothing any more.
    pub(crate) fn enter_handshake_loss(&mut self) {
        self.timed_end = NOT_TIMED;
    }

    /// `una` has moved within an episode: either it ends, or the next hole is known.
    pub(crate) fn advance(&mut self, snd: &Snd, acked: i64) {
        self.high_rxt = self.high_rxt.max(snd.una);
        self.lost_edge = self.lost_edge.max(snd.una);
        if self.phase == Phase::Open {
            self.dup_acks = 0;
            return;
        }
        if snd.una >= self.recover {
            self.phase = Phase::Open;
            self.dup_acks = 0;
            return;
        }
        // The text now at `una`, if it was sent again at all, was sent again before now.
        self.rxt_mark = snd.nxt;
        if self.phase == Phase::Recovery {
            // RFC 6582 §3.2, step 3, partial acknowledgement: the text now at `una` was sent before the episode and
            // would have been acknowledged had it arrived. With SACK the same holds unless it has been SACKed.
            self.lost_edge = self.lost_edge.max(self.first_segment_end(snd));
            let segments = acked / i64::from(snd.mss).max(1);
            let beyond_retransmission = u16::try_from((segments - 1).max(0)).unwrap_or(u16::MAX);
            self.dup_acks = self.dup_acks.saturating_sub(beyond_retransmission);
        }
    }

    /// Proportional rate reduction (RFC 9937 §6): the congestion window after `delivered` octets have left the network.
    pub(crate) fn prr_window(&mut self, snd: &Snd, delivered: i64, ssthresh: u32) -> u32 {
        let delivered = u32::try_from(delivered).unwrap_or(u32::MAX);
        let mss = u32::from(snd.mss);
        self.prr_delivered = self.prr_delivered.saturating_add(delivered);
        let pipe = u32::try_from(self.pipe(snd)).unwrap_or(u32::MAX);
        let allowance = if pipe > ssthresh {
            let share = u64::from(self.prr_delivered) * u64::from(ssthresh);
            let target = share.div_ceil(u64::from(self.prr_flight.max(1)));
            u32::try_from(target).unwrap_or(u32::MAX).saturating_sub(self.prr_out)
        } else {
            let bound = self.prr_delivered.saturating_sub(self.prr_out).max(delivered).saturating_add(mss);
            (ssthresh - pipe).min(bound)
        };
        pipe.saturating_add(allowance).max(mss)
    }

    /// Segments up to `end` have left during an episode.
    pub(crate) fn note_sent(&mut self, len: i64) {
        if self.phase == Phase::Recovery {
            self.prr_out = self.prr_out.saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
        }
    }

    // --- what to send again
    // ----------------------------------------------------------------------------------------------

    /// The next stretch to send again, `[from, to)`.
    pub(crate) fn hole(&self, snd: &Snd) -> Option<(i64, i64)> {
        let mut from = self.high_rxt.max(snd.una);
        let limit = self.lost_edge.min(snd.nxt);
        let mut to = limit;
        if let Some(scoreboard) = &self.scoreboard {
            if let Some(range) = scoreboard.range_at(from) {
                from = range.1;
            }
            if let Some(range) = scoreboard.first_from(from) {
                to = to.min(range.0);
            }
        }
        (from < to).then_some((from, to))
    }

    /// `[from, to)` has been sent again.
    pub(crate) fn note_retransmitted(&mut self, snd: &Snd, from: i64, to: i64) {
        self.forget_round_trip(from);
        if from == snd.una {
            self.rxt_mark = snd.nxt;
        }
        self.high_rxt = self.high_rxt.max(to);
        let octets = u32::try_from(to - from).unwrap_or(0);
        self.retransmits = self.retransmits.saturating_add(octets.div_ceil(u32::from(snd.mss)).max(1));
        self.note_sent(to - from);
    }

    /// End of the first segment in flight.
    pub(crate) fn first_segment_end(&self, snd: &Snd) -> i64 {
        (snd.una + i64::from(snd.mss)).min(snd.nxt)
    }

    pub(crate) fn check_invariants(&self, snd: &Snd) {
        if let Some(scoreboard) = &self.scoreboard {
            scoreboard.check_invariants();
            assert!(scoreboard.first().is_some_and(|first| first.0 >= snd.una), "{self:?} {snd:?}");
            assert!(scoreboard.end().is_some_and(|end| end <= snd.nxt), "{self:?} {snd:?}");
        }
        assert!(self.lost_edge <= snd.nxt, "{self:?} {snd:?}");
        assert!(self.phase == Phase::Open || self.recover > snd.una, "{self:?} {snd:?}");
        assert!(self.timed_end == NOT_TIMED || self.timed_end > snd.una, "{self:?} {snd:?}");
    }
}

/// RFC 6675 §2: duplicate acknowledgements that mean a loss.
pub(crate) const DUP_THRESHOLD: u16 = 3;
const NOT_TIMED: i64 = i64::MIN;
