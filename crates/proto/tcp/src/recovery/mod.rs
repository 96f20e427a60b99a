//! What is lost, and what is sent again: RFC 8985 with SACK, RFC 6582 without, and RFC 9937 for the pace.

// structure: cycle of flight, rack, rate: what was sent keeps what RACK and the rate estimate need to know of it

mod flight;
mod prr;
mod rack;
mod rate;
mod rtt;
mod undo;

use alloc::boxed::Box;

use atoll_base::{Duration, Instant};

use crate::snd::Snd;
pub(crate) use flight::{Flight, Sent};
use prr::Prr;
use rack::Reordering;
pub(crate) use rate::{Counters, RateSample};
pub(crate) use rtt::{RTO_MAX, Rtt};
pub(crate) use undo::Undo;

/// Whether the connection is repairing a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No loss is known.
    Open,
    /// Fast recovery: losses are known by duplicate or selective acknowledgements.
    Recovery,
    /// A retransmission time-out has passed: everything in flight that had time to arrive counts as lost.
    Loss,
}

/// Whether a time-out may have been spurious (F-RTO, RFC 5682).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frto {
    /// The question is not open, or has been decided.
    Off,
    /// The first segment has been sent again; its acknowledgement is awaited.
    First,
    /// New text is sent instead of lost text: the answer to it decides.
    NewText,
}

/// The knowledge about losses.
#[derive(Debug)]
pub(crate) struct Recovery {
    /// The records of what is in flight. `None` means that nothing is in flight, or that all of it left at
    /// once and no acknowledgement has come since. Nearly every answer of a server is sent and acknowledged
    /// that way.
    pub(crate) flight: Option<Box<Flight>>,
    /// The present episode. It is kept after its end while text is in flight, because it may still turn out
    /// to have been spurious.
    pub(crate) episode: Option<Box<Episode>>,
    /// The episode ends when this offset is acknowledged: `nxt` at its start.
    pub(crate) recover: i64,
    /// `nxt` after the end of what was sent has been probed (TLP.end_seq); [`i64::MAX`] if no probe is under
    /// way.
    pub(crate) probe_end: i64,
    pub(crate) rtt: Rtt,
    /// The number of segments sent again in the life of the connection.
    pub(crate) retransmits: u32,
    /// The number of duplicate acknowledgements in a row.
    pub(crate) dup_acks: u16,
    /// The number of time-outs, or unanswered probes, in a row.
    pub(crate) retries: u8,
    pub(crate) phase: Phase,
    pub(crate) frto: Frto,
    pub(crate) reordering: Reordering,
    /// Whether the peer does not know SACK, so that duplicate acknowledgements are counted instead.
    pub(crate) reno: bool,
    /// Whether the probe under way is the last segment again, not new text (TLP.is_retrans).
    pub(crate) probe_is_old: bool,
    /// Whether no round trip was measured since the last probe; no further probe is sent before that.
    pub(crate) probed: bool,
    /// Whether the SYN in flight cannot be timed, because it was sent more than once or by another process
    /// (Karn's rule).
    pub(crate) untimed: bool,
}

/// The state of one episode of recovery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Episode {
    pub(crate) prr: Prr,
    /// The windows to restore if the losses turn out to be none.
    pub(crate) undo: Option<Undo>,
}

impl Recovery {
    pub(crate) fn new() -> Recovery {
        Recovery {
            flight: None,
            episode: None,
            recover: -1,
            probe_end: i64::MAX,
            rtt: Rtt::new(),
            retransmits: 0,
            dup_acks: 0,
            retries: 0,
            phase: Phase::Open,
            frto: Frto::Off,
            reordering: Reordering::new(),
            reno: false,
            probe_is_old: false,
            probed: false,
            untimed: false,
        }
    }

    // --- what is in flight
    // ---------------------------------------------------------------------------------------------

    /// Returns the records of what is in flight, and creates them if there are none. `sent_at` is when all of
    /// it left in that case.
    pub(crate) fn flight(&mut self, snd: &Snd, sent_at: Instant) -> &mut Flight {
        self.flight.get_or_insert_with(|| Box::new(Flight::new(snd.una, snd.nxt, sent_at)))
    }

    /// Forgets the records, because nothing is in flight any more.
    pub(crate) fn forget_flight(&mut self) {
        self.flight = None;
        if self.phase == Phase::Open {
            self.episode = None;
        }
    }

    /// Returns the octets that have left the network: those SACKed, or without SACK those by the count of
    /// duplicate ACKs.
    pub(crate) fn sacked(&self, snd: &Snd) -> i64 {
        if !self.reno {
            return self.flight.as_ref().map_or(0, |flight| flight.sacked);
        }
        let estimate = i64::from(self.dup_acks) * i64::from(snd.mss);
        estimate.min(snd.flight() - i64::from(snd.mss) - self.lost()).max(0)
    }

    /// Returns the octets that are lost and have not been sent again.
    pub(crate) fn lost(&self) -> i64 {
        self.flight.as_ref().map_or(0, |flight| flight.lost)
    }

    /// Returns the octets that are believed to be in the network (RFC 6675 §4, `Pipe`).
    pub(crate) fn pipe(&self, snd: &Snd) -> i64 {
        if self.flight.is_none() && self.dup_acks == 0 {
            return snd.flight();
        }
        (snd.flight() - self.sacked(snd) - self.lost()).max(0)
    }

    /// Returns how long text out of order is waited for (RFC 8985 §6.2, step 4).
    pub(crate) fn reordering_window(&self, snd: &Snd) -> Duration {
        // Three segments beyond a hole mean a loss, as long as nothing ever came out of order.
        let many = self.sacked(snd) > i64::from(DUP_THRESHOLD - 1) * i64::from(snd.mss)
            || self.dup_acks >= DUP_THRESHOLD;
        if !self.reordering.seen && (self.phase != Phase::Open || many) || self.rtt.min_us == u32::MAX {
            return Duration::ZERO;
        }
        let us = u64::from(self.rtt.min_us) * u64::from(self.reordering.quarters) / 4;
        Duration::from_micros(us.min(self.rtt.srtt_us.into()))
    }

    /// Returns the end of the first segment in flight.
    pub(crate) fn first_segment_end(&self, snd: &Snd) -> i64 {
        (snd.una + i64::from(snd.mss)).min(snd.nxt)
    }

    // --- episodes
    // -------------------------------------------------------------------------------------------------------

    /// Begins fast recovery (RFC 6675 §5, RFC 6582 §3.2). `delivered` is the number of octets reported by the
    /// acknowledgement that shows the loss.
    pub(crate) fn enter_recovery(&mut self, snd: &Snd, delivered: i64, undo: Option<Undo>) {
        self.phase = Phase::Recovery;
        // RFC 8985 §7.4.1: from here on, what arrives belongs to this episode, not to the probe before.
        self.probe_end = i64::MAX;
        self.recover = snd.nxt;
        // RFC 9937 §6.1: what was reported before will not be delivered in this episode.
        let flight = if self.reno { snd.flight() } else { self.pipe(snd) + self.lost() + delivered };
        self.episode = Some(Box::new(Episode { prr: Prr::new(flight), undo }));
    }

    /// Handles a time-out: what had time to arrive and is not SACKed is lost, and sent again from the left.
    pub(crate) fn enter_loss(&mut self, now: Instant, snd: &Snd, sent_at: Instant, undo: Option<Undo>) {
        let first_end = self.first_segment_end(snd);
        let retries = self.retries;
        let (window, usual) = (self.reordering_window(snd), Duration::from_micros(self.rtt.srtt_us.into()));
        let flight = self.flight(snd, sent_at);
        // RFC 2018 §8: the receiver may have dropped text that it had SACKed. If it did, a SACKed record
        // begins at `una` although it is not acknowledged. After a second time-out no SACK is believed any
        // more.
        let reneged = flight.first().is_some_and(|first| first.fate == flight::Fate::Sacked);
        if retries > 1 || reneged {
            flight.forget_sacks();
        }
        flight.mark_lost(snd.una, first_end);
        // RFC 8985 §6.3: what left within the last round trip, or may only have been overtaken, is not lost
        // yet.
        let rtt = if flight.rack.rtt.is_zero() { usual } else { flight.rack.rtt };
        let wait = rtt + window;
        flight.judge_outstanding(|record| {
            if record.sent_at + wait <= now { flight::Judgement::Lost } else { flight::Judgement::Keep }
        });
        // RFC 5682 §3.1, step 1: F-RTO does not begin within another episode.
        self.frto = if self.phase == Phase::Open { Frto::First } else { Frto::Off };
        if self.phase == Phase::Open {
            self.episode = Some(Box::new(Episode { prr: Prr::new(1), undo }));
        }
        self.phase = Phase::Loss;
        self.probe_end = i64::MAX;
        self.recover = snd.nxt;
        self.dup_acks = 0;
    }

    /// Ends the episode because nothing was lost.
    pub(crate) fn end_by_undo(&mut self) {
        self.phase = Phase::Open;
        self.frto = Frto::Off;
        self.dup_acks = 0;
        if let Some(flight) = &mut self.flight {
            flight.unmark_lost();
        }
        if let Some(episode) = &mut self.episode {
            episode.undo = None;
        }
    }

    /// Handles a move of `una` by `acked` within an episode: either the episode ends, or the next hole is
    /// known.
    pub(crate) fn advance(&mut self, snd: &Snd, acked: i64) {
        if self.phase == Phase::Open {
            self.dup_acks = 0;
            return;
        }
        if snd.una >= self.recover {
            self.phase = Phase::Open;
            self.frto = Frto::Off;
            self.dup_acks = 0;
            self.reordering.end_episode();
            return;
        }
        if self.phase == Phase::Recovery && self.reno {
            // RFC 6582 §3.2, step 3, partial acknowledgement: the text now at `una` was sent before the
            // episode and would have been acknowledged had it arrived.
            let end = self.first_segment_end(snd);
            if let Some(flight) = &mut self.flight {
                flight.mark_lost(snd.una, end);
            }
            let segments = acked / i64::from(snd.mss).max(1);
            let beyond_retransmission = u16::try_from((segments - 1).max(0)).unwrap_or(u16::MAX);
            self.dup_acks = self.dup_acks.saturating_sub(beyond_retransmission);
        }
    }

    /// Returns the congestion window after `delivered` octets have left the network (RFC 9937 §6).
    pub(crate) fn prr_window(&mut self, snd: &Snd, delivered: i64, ssthresh: u32, safe: bool) -> u32 {
        let pipe = self.pipe(snd);
        match &mut self.episode {
            Some(episode) => episode.prr.window(pipe, delivered, ssthresh, snd.mss.into(), safe),
            None => ssthresh,
        }
    }

    // --- what leaves
    // -----------------------------------------------------------------------------------------------------

    /// Notes that new text `[from, to)` leaves. `snd` still ends at `from`; `sent_at` is when text left
    /// before.
    pub(crate) fn note_sent(
        &mut self,
        now: Instant,
        snd: &Snd,
        sent_at: Instant,
        to: i64,
        app_limited: bool,
    ) {
        if let Some(episode) = &mut self.episode {
            episode.prr.note_sent(to - snd.nxt);
        }
        if self.flight.is_none() && (snd.flight() == 0 || sent_at == now) {
            return;
        }
        let pipe = self.pipe(snd);
        let is_first = self.flight.is_none();
        let flight = self.flight(snd, sent_at);
        if is_first && app_limited {
            flight.limit_by_application(pipe);
        }
        flight.send(snd.nxt, to, now, pipe);
    }

    /// Returns the next range to send again, `[from, to)`.
    pub(crate) fn hole(&self) -> Option<(i64, i64)> {
        self.flight.as_ref()?.first_lost()
    }

    /// Notes that `[from, to)` leaves again.
    pub(crate) fn note_retransmitted(
        &mut self,
        now: Instant,
        snd: &Snd,
        sent_at: Instant,
        from: i64,
        to: i64,
    ) {
        let pipe = self.pipe(snd);
        self.flight(snd, sent_at).resend(from, to, now, pipe);
        let octets = u32::try_from(to - from).unwrap_or(0);
        self.retransmits = self.retransmits.saturating_add(octets.div_ceil(u32::from(snd.mss)).max(1));
        if let Some(episode) = &mut self.episode {
            episode.prr.note_sent(to - from);
            if let Some(undo) = &mut episode.undo {
                undo.note_resent(to - from);
            }
        }
    }

    pub(crate) fn check_invariants(&self, snd: &Snd) {
        if let Some(flight) = &self.flight {
            flight.check_invariants(snd.una, snd.nxt);
        }
        assert!(self.phase == Phase::Open || self.recover > snd.una, "{self:?} {snd:?}");
        assert!(self.phase == Phase::Open || self.flight.is_some(), "{self:?} {snd:?}");
    }
}

/// The number of duplicate acknowledgements that mean a loss (RFC 6675 §2).
pub(crate) const DUP_THRESHOLD: u16 = 3;
