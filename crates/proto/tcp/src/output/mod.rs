//! What is sent next? RFC 9293 §3.10.2 (SEND), §3.8.

mod ack_policy;
mod keepalive;
mod pacing;
mod persist;
mod segmentize;
mod tail_probe;
mod timeout;

use atoll_base::{Instant, SeqNum};
use atoll_wire::tcp::{Flags, Options, SackBlocks, Segment};

use crate::connection::{Connection, text_offset};
use crate::outcome::Transmit;
use crate::pending::Pending;
use crate::recovery::Frto;
use crate::state::State;
use crate::timers::Timer;

impl Connection {
    /// The next segment to send; call until `None`. `len_max`: the largest super-segment that the link takes,
    /// in octets of text; below the MSS it is taken as the MSS.
    ///
    /// Only the last call, which gives `None`, arms the timer that probes a closed window.
    pub fn poll_transmit(&mut self, now: Instant, len_max: u32) -> Option<Transmit> {
        let urgent = self.urgent_end();
        // A device that cuts segments does not know which pointer each of them needs.
        let len_max = if urgent.is_some() { 0 } else { len_max };
        let mut transmit = self.next_transmit(now, len_max)?;
        self.segments_out = self.segments_out.saturating_add(1);
        if let Some(end) = urgent {
            self.point_to_urgent(&mut transmit, end);
        }
        Some(transmit)
    }

    fn next_transmit(&mut self, now: Instant, len_max: u32) -> Option<Transmit> {
        match self.state() {
            State::Closed => return self.pending.take(Pending::RESET).then(|| self.reset(now)),
            State::SynSent | State::SynReceived if self.pending.take(Pending::SYN) => return Some(self.syn(now)),
            State::SynSent => return None,
            // What the peer has not got leaves first as a bare ACK: text carries no SACK blocks, so that
            // super-segments keep their size.
            _ if self.pending.has(Pending::ACK) && (self.rcv.has_sack_news() || self.owes_syn_mark()) => {
                return Some(self.bare_ack(now));
            }
            // RFC 7413 §4.2.2: the answer need not wait for the last ACK of the handshake.
            state if state.may_send() || self.is_open_early() => {
                let text = self
                    .paced(now, len_max)
                    .and_then(|len_max| self.retransmission(now, len_max).or_else(|| self.new_text(now, len_max)));
                if text.is_some() {
                    return text;
                }
                let held = self.timers.is_armed(Timer::Pace);
                if self.recovery.frto == Frto::NewText && self.snd.nxt == self.recovery.recover && !held {
                    // The new text that was to tell whether anything was lost may not leave.
                    self.recovery.frto = Frto::Off;
                    return self.next_transmit(now, len_max);
                }
            }
            _ => {}
        }
        if self.pending.has(Pending::RESET) {
            // Of an aborted connection that had text to send no more may leave.
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

    /// SYN or SYN-ACK.
    fn syn(&mut self, now: Instant) -> Transmit {
        let acks = self.state() == State::SynReceived;
        let retransmit = self.snd.nxt > -1;
        // RFC 7413 §4.2.1: the first SYN alone brings text.
        let len = if retransmit { 0 } else { self.text_on_syn() };
        if retransmit {
            // RFC 6298 §3: nothing sent twice is measured by its first copy.
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
            // RFC 7323 §3.2: TSecr is zero without ACK.
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

    /// `[from, from + len)` with our ACK; it also says everything that a bare ACK would say.
    fn text(&mut self, now: Instant, from: i64, len: i64, fin: bool, retransmit: bool) -> Transmit {
        let end = from + len;
        let mut flags = Flags::ACK;
        // RFC 9293 §3.9.1.2 (MUST-60): push at the end of what there is.
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

    /// An ACK and nothing else.
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

    /// A segment just before what the peer expects: it has to answer.
    ///
    /// DEVIATION: RFC 9293 §3.8.6.1 has window probes carry new text. As on Linux they carry none, so that
    /// nothing is in flight that the peer has no room for.
    fn probe(&mut self, now: Instant) -> Transmit {
        let mut segment = self.acknowledging(now);
        segment.seq = self.snd.seq(self.snd.una - 1);
        self.acknowledged();
        if self.urgent_end().is_some() {
            // The pointer of a segment before the window is not looked at. RFC 9293 §3.8.5: urgency is told
            // in spite of it.
            self.pending.set(Pending::ACK);
        }
        Transmit { segment, offset: self.send_una(), retransmit: false }
    }

    /// Whether a segment that was polled, but has not left since, is to be sent yet. Not if its text was
    /// acknowledged meanwhile, because an earlier copy had arrived: the application may have taken the place
    /// of that text for another. What else it said an ACK says.
    pub fn is_still_due(&mut self, transmit: &Transmit) -> bool {
        let is_due = transmit.segment.len == 0 || transmit.offset >= self.send_una();
        if !is_due {
            self.pending.set(Pending::ACK);
        }
        is_due
    }

    /// RFC 9293 §3.10.5: `<SEQ=SND.NXT><CTL=RST>`, with an ACK, which does no harm and which middleboxes
    /// like; RFC 7323 §3.2 wants timestamps on it, too.
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

    /// A segment at `snd.nxt` with acknowledgement, window and timestamps as of now.
    ///
    /// Where more was sent than the peer's window takes (it was taken back, or a SYN carried text), the
    /// segment is within the window all the same, as on Linux: two ends that both stand beyond each other's
    /// window would drop each other's ACKs for ever.
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

    /// What is missing, told by what is there (RFC 2018 §4); a duplicate comes first (RFC 2883 §4).
    fn sack_blocks(&mut self) -> SackBlocks {
        let mut blocks = SackBlocks::new();
        if !self.options.sack {
            return blocks;
        }
        let (start, len) = core::mem::take(&mut self.rcv.duplicate);
        if len > 0 {
            blocks.push(start, start.plus(len));
        }
        // With timestamps only three fit.
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
