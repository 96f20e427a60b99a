//! What is sent next (RFC 9293 §3.10.2, SEND, and §3.8).

mod ack_policy;
mod keepalive;
mod pacing;
mod persist;
mod segmentize;
mod tail_probe;
mod timeout;

use atoll_base::{Instant, SeqNum};
use atoll_wire::tcp::{Flags, Options, SackBlocks, Segment};

use crate::connection::{Connection, pieces, text_offset};
use crate::outcome::Transmit;
use crate::pending::Pending;
use crate::recovery::Frto;
use crate::state::State;
use crate::timers::Timer;

impl Connection {
    /// Returns the next segment to send; call until it returns `None`. `len_max` is the largest super-segment
    /// that the link takes, in octets of text; a value below the MSS means the MSS.
    ///
    /// Only the last call, which returns `None`, arms the timer that probes a closed window.
    pub fn poll_transmit(&mut self, now: Instant, len_max: u32) -> Option<Transmit> {
        let urgent = self.urgent_end();
        // A device that cuts segments does not know which urgent pointer each piece needs.
        let len_max = if urgent.is_some() { 0 } else { len_max };
        let mut transmit = self.next_transmit(now, len_max)?;
        let pieces = pieces(transmit.segment.len, self.snd.mss);
        self.segments_out = self.segments_out.saturating_add(pieces);
        if transmit.segment.len > 0 {
            self.texts_out = self.texts_out.saturating_add(pieces);
        }
        if let Some(end) = urgent {
            self.point_to_urgent(&mut transmit, end);
        }
        Some(transmit)
    }

    fn next_transmit(&mut self, now: Instant, len_max: u32) -> Option<Transmit> {
        match self.state() {
            State::Closed => return self.pending.take(Pending::RESET).then(|| self.reset(now)),
            State::SynSent | State::SynReceived if self.pending.take(Pending::SYN) => {
                return Some(self.syn(now));
            }
            State::SynSent => return None,
            // News of missing or marked segments leaves first, as a bare ACK: text carries no SACK blocks, so
            // that super-segments keep their size.
            _ if self.pending.has(Pending::ACK) && (self.rcv.has_sack_news() || self.owes_syn_mark()) => {
                return Some(self.bare_ack(now));
            }
            // RFC 7413 §4.2.2: the answer need not wait for the last ACK of the handshake.
            state if state.may_send() || self.is_open_early() => {
                let text = self.paced(now, len_max).and_then(|len_max| {
                    self.retransmission(now, len_max).or_else(|| self.new_text(now, len_max))
                });
                if text.is_some() {
                    return text;
                }
                let held = self.timers.is_armed(Timer::Pace);
                if self.recovery.frto == Frto::NewText && self.snd.nxt == self.recovery.recover && !held {
                    // The new text that was to show whether anything was lost may not leave.
                    self.recovery.frto = Frto::Off;
                    return self.next_transmit(now, len_max);
                }
            }
            _ => {}
        }
        if self.pending.has(Pending::RESET) {
            // An aborted connection sends no more text.
            self.become_closed();
            return self.next_transmit(now, len_max);
        }
        if self.pending.take(Pending::PROBE) || self.pending.take(Pending::KEEP_ALIVE) {
            return Some(self.probe(now));
        }
        if self.pending.has(Pending::ACK) {
            return Some(self.bare_ack(now));
        }
        self.watch_window(now);
        None
    }

    /// Returns a SYN or SYN-ACK.
    fn syn(&mut self, now: Instant) -> Transmit {
        let acks = self.state() == State::SynReceived;
        let retransmit = self.snd.nxt > -1;
        // RFC 7413 §4.2.1: only the first SYN carries text.
        let len = if retransmit { 0 } else { self.text_on_syn() };
        if retransmit {
            // RFC 6298 §3: what was sent twice must not be measured by its first copy.
            self.recovery.untimed = true;
            self.recovery.retransmits = self.recovery.retransmits.saturating_add(1);
        } else {
            self.snd.nxt = len;
            self.progress_at = now;
            self.sent_at = now;
        }
        if !self.timers.is_armed(Timer::Retransmit) {
            self.arm_rto(now);
        }
        let mut options = self.syn_options(now);
        if !acks {
            // RFC 7323 §3.2: TSecr is zero on a segment without ACK.
            options.timestamps =
                options.timestamps.map(|timestamps| atoll_wire::tcp::Timestamps { echo: 0, ..timestamps });
        }
        let window = self.rcv.advertise(0);
        let ecn = if acks { self.ecn_of_syn_ack() } else { self.ecn_of_syn(retransmit) };
        let segment = Segment {
            seq: self.snd.seq(-1),
            ack: if acks { self.rcv.seq(self.rcv.nxt) } else { SeqNum(0) },
            flags: ecn | if acks { Flags::SYN | Flags::ACK } else { Flags::SYN },
            window,
            options,
            len: u32::try_from(len).unwrap_or(0),
            ..Segment::default()
        };
        self.pending.clear(Pending::ACK);
        Transmit { segment, offset: 0, retransmit }
    }

    /// Returns a segment with `[from, from + len)` and our ACK. It also clears the pending ACK.
    fn text(&mut self, now: Instant, from: i64, len: i64, fin: bool, retransmit: bool) -> Transmit {
        let end = from + len;
        let mut flags = Flags::ACK;
        // RFC 9293 §3.9.1.2 (MUST-60): push at the end of the text that there is.
        if len > 0 && end == self.snd.tail {
            flags |= Flags::PSH;
        }
        if fin {
            flags |= Flags::FIN;
        }
        let len = u32::try_from(len).unwrap_or(0);
        let acknowledging = self.acknowledging(now);
        let flags = flags | acknowledging.flags;
        let mut segment = Segment { seq: self.snd.seq(from), flags, len, ..acknowledging };
        if !retransmit {
            self.mark_new_text(&mut segment);
        }
        self.acknowledged();
        Transmit { segment, offset: text_offset(from), retransmit }
    }

    /// Returns an ACK without text.
    fn bare_ack(&mut self, now: Instant) -> Transmit {
        let mut segment = self.acknowledging(now);
        segment.options.sack = self.sack_blocks();
        if segment.options.sack.is_empty() {
            self.tell_syn_mark(&mut segment);
        }
        let owed = self.rcv.duplicates_owed;
        self.acknowledged();
        if let Some(rest) = owed.checked_sub(1) {
            self.rcv.duplicates_owed = rest;
            self.pending.set(Pending::ACK);
        }
        Transmit { segment, offset: text_offset(self.snd.nxt.min(self.snd.tail)), retransmit: false }
    }

    /// Returns a segment just before what the peer expects, which the peer has to answer.
    ///
    /// DEVIATION: RFC 9293 §3.8.6.1 has window probes carry new text. As on Linux they carry none, so that
    /// nothing is in flight that the peer has no room for.
    fn probe(&mut self, now: Instant) -> Transmit {
        let mut segment = self.acknowledging(now);
        segment.seq = self.snd.seq(self.snd.una - 1);
        self.acknowledged();
        if self.urgent_end().is_some() {
            // The peer ignores the pointer of a segment before the window, so an ACK follows. RFC 9293
            // §3.8.5: urgency is reported even while the window is closed.
            self.pending.set(Pending::ACK);
        }
        Transmit { segment, offset: self.send_una(), retransmit: false }
    }

    /// Returns whether a segment that was polled, but has not left since, is still to be sent. It is not if
    /// its text was acknowledged meanwhile, because an earlier copy had arrived: the application may have
    /// reused that part of its buffer. An ACK then reports what else the segment said.
    pub fn is_still_due(&mut self, transmit: &Transmit) -> bool {
        let is_due = transmit.segment.len == 0 || transmit.offset >= self.send_una();
        if !is_due {
            self.pending.set(Pending::ACK);
        }
        is_due
    }

    /// Returns `<SEQ=SND.NXT><CTL=RST>` (RFC 9293 §3.10.5) with an ACK, which does no harm and which
    /// middleboxes like. RFC 7323 §3.2 asks for timestamps on it, too.
    fn reset(&mut self, now: Instant) -> Transmit {
        let segment = Segment {
            seq: self.snd.seq(self.snd.nxt),
            ack: self.rcv.seq(self.rcv.nxt),
            flags: Flags::RST | Flags::ACK,
            options: Options { timestamps: self.options.stamp(now), ..Options::default() },
            ..Segment::default()
        };
        Transmit { segment, offset: self.send_nxt(), retransmit: false }
    }

    /// Returns a segment at `snd.nxt` with acknowledgement, window and timestamps as of now.
    ///
    /// If more was sent than the peer's window takes (the window was taken back, or a SYN carried text), the
    /// segment still lies within the window, as on Linux. Two ends that both stand beyond each other's window
    /// would otherwise drop each other's ACKs for ever.
    fn acknowledging(&mut self, now: Instant) -> Segment {
        let within = self.snd.nxt.min(self.snd.edge.max(self.snd.una));
        Segment {
            seq: self.snd.seq(within),
            ack: self.rcv.seq(self.rcv.nxt),
            flags: Flags::ACK | self.ecn.echo(),
            window: self.rcv.advertise(self.options.rcv_scale),
            options: Options { timestamps: self.options.stamp(now), ..Options::default() },
            ..Segment::default()
        }
    }

    /// Returns the SACK blocks to report (RFC 2018 §4); a duplicate comes first (RFC 2883 §4).
    fn sack_blocks(&mut self) -> SackBlocks {
        let mut blocks = SackBlocks::new();
        if !self.options.sack {
            return blocks;
        }
        let (start, len) = core::mem::take(&mut self.rcv.duplicate);
        if len > 0 {
            blocks.push(start, start.plus(len));
        }
        // With timestamps only three blocks fit.
        let room = SackBlocks::MAX - usize::from(self.options.timestamps) - blocks.len();
        if let Some(reassembly) = &self.rcv.reassembly {
            for (left, right) in reassembly.blocks().take(room) {
                blocks.push(self.rcv.seq(left), self.rcv.seq(right));
            }
        }
        blocks
    }
}

#[cfg(test)]
mod tests;
