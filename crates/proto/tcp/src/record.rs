//! The part of a connection that outlives its process, and how the next process continues with it.
//!
//! A record has what this end has sent to the peer or reported to the application, and what it has received
//! from them. Congestion window, round-trip times and scoreboard may be lost: the successor counts everything
//! that may have been in flight as lost, and sends it again. Text out of order may be lost, too (RFC 2018
//! §8). But a peer that has seen it selectively acknowledged notices the loss late, so the record names as
//! much of that text as it can.

use alloc::boxed::Box;

use atoll_base::{Duration, Instant, SeqNum};

use crate::congestion::Congestion;
use crate::connection::{Connection, Reader};
use crate::ecn::EcnState;
use crate::options::Negotiated;
use crate::pending::Pending;
use crate::rcv::{NO_FIN, Rcv};
use crate::reassembly::Reassembly;
use crate::settings::Settings;
use crate::snd::Snd;
use crate::state::State;
use crate::timers::Timer;

// structure: Record: a field for each fact that a successor needs
/// The hard state of a connection. Positions are stream offsets, as in [`Connection`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Fields are named as those of the TCB.
pub struct Record {
    pub state: State,
    /// SND.UNA; -1 before our SYN is acknowledged.
    pub acked: i64,
    /// The end of the text received in order.
    pub received: i64,
    /// The right edge of the peer's window, or the end of what was sent, if that is further.
    pub edge: i64,
    /// The sequence number of offset 0 of the text that we send; `receive_start` is that of the peer's text.
    pub send_start: SeqNum,
    pub receive_start: SeqNum,
    /// The end of the text that the application has written; `send_fin` says whether a FIN follows.
    pub send_tail: i64,
    pub send_fin: bool,
    /// The offset of the peer's FIN, if it has come.
    pub receive_fin: Option<i64>,
    pub ts_offset: u32,
    pub ts_recent: u32,
    pub timestamps: bool,
    pub sack: bool,
    pub window_scaling: bool,
    pub snd_scale: u8,
    pub rcv_scale: u8,
    pub window_max: u32,
    pub mss_path: u16,
    pub mss_peer: u16,
    pub mss_receive: u16,
    pub settings: Settings,
    /// The state of congestion notification, in an encoding of this crate.
    pub ecn: u8,
    /// Whether the peer opened the connection; `orphan` says whether the application has closed it.
    pub passive: bool,
    pub orphan: bool,
    /// The smoothed round-trip time in microseconds; 0 if it was not measured.
    pub srtt_us: u32,
    /// The text received out of order, as `[from, to)`, ascending; empty ranges come last. A process that
    /// resumes the connection must have that text at its place.
    pub beyond: [(i64, i64); BEYOND_MAX],
}

/// The number of ranges of text out of order that a record names: the first ones, which the next text in
/// order is likely to reach.
pub const BEYOND_MAX: usize = 4;

impl Connection {
    /// Returns the part of the record that changes all the time: the first offset that is not acknowledged
    /// (-1 if our SYN is not), the end of the text in order, and the right edge of what may have been sent.
    #[inline]
    pub fn progress(&self) -> (i64, i64, i64) {
        (self.snd.una, self.rcv.text_end(), self.snd.edge.max(self.snd.nxt))
    }

    /// Returns what a successor has to know.
    pub fn record(&self) -> Record {
        let (acked, received, edge) = self.progress();
        let (snd, rcv, options) = (&self.snd, &self.rcv, &self.options);
        Record {
            state: self.state(),
            acked,
            received,
            edge,
            send_start: snd.start,
            receive_start: rcv.start,
            send_tail: snd.tail,
            send_fin: snd.fin,
            // A FIN beyond a hole comes again with the text that fills the hole.
            receive_fin: rcv.fin_received().then_some(rcv.fin),
            ts_offset: options.ts_offset,
            ts_recent: options.ts_recent,
            timestamps: options.timestamps,
            sack: options.sack,
            window_scaling: options.window_scaling,
            snd_scale: options.snd_scale,
            rcv_scale: options.rcv_scale,
            window_max: snd.window_max,
            mss_path: snd.mss_path,
            mss_peer: snd.mss_peer,
            mss_receive: rcv.mss,
            settings: self.settings(),
            ecn: self.ecn.to_bits(),
            passive: self.passive,
            orphan: self.is_orphan(),
            srtt_us: self.recovery.rtt.srtt_us,
            beyond: self.rcv.beyond(),
        }
    }

    /// Continues the connection of a predecessor; the application has read up to `head`. Returns `None` if
    /// the record contradicts itself.
    ///
    /// What may be in flight is sent again at the next polls, beginning with the first segment, because it is
    /// not known what of it has left. Nothing else leaves by itself: see [`Connection::greet`].
    pub fn resume(now: Instant, record: &Record, head: u64) -> Option<Connection> {
        if !record.is_consistent() {
            return None;
        }
        let state = record.state;
        let fin = i64::from(record.receive_fin.is_some());
        let end = record.send_tail + i64::from(record.send_fin);
        let is_opening = matches!(state, State::SynSent | State::SynReceived);
        // Any text that was there may have gone along with the SYN (Fast Open): the SYN-ACK says how much of
        // it has arrived.
        let on_syn = if state == State::SynSent { record.send_tail } else { 0 };
        let edge = if state == State::SynSent { 0 } else { record.edge.max(record.acked) };
        let mut snd = Snd::new(record.send_start.plus(u32::MAX), record.mss_path);
        snd.una = record.acked;
        snd.nxt = if is_opening { on_syn } else { edge.min(end).max(record.acked) };
        snd.tail = record.send_tail;
        snd.fin = record.send_fin;
        snd.edge = edge;
        snd.small_end = snd.nxt.min(snd.una);
        snd.window_max = record.window_max;
        snd.mss_peer = record.mss_peer;
        let mut rcv = Rcv::new(record.settings.receive_capacity, record.mss_receive);
        rcv.start = record.receive_start;
        rcv.nxt = record.received + fin;
        rcv.fin = record.receive_fin.unwrap_or(NO_FIN);
        rcv.head = i64::try_from(head).unwrap_or(i64::MAX).clamp(0, record.received);
        rcv.edge = (rcv.head + i64::from(rcv.capacity)).max(rcv.nxt);
        rcv.acked = rcv.nxt;
        if record.receive_fin.is_none() {
            rcv.resume_beyond(&record.beyond);
        }
        // This lies before everything that the peer sends from now on, so that its next segment sets the
        // window.
        snd.wl1 = rcv.seq(rcv.nxt).plus(u32::MAX);
        snd.wl2 = snd.seq(snd.una);
        let options = Negotiated::resume(now, record);
        let mut connection = Connection::new(now, state, snd, rcv, options, &record.settings);
        connection.pending = Pending::default();
        connection.passive = record.passive;
        connection.reader = if record.orphan { Reader::Gone } else { Reader::There };
        connection.ecn = EcnState::from_bits(record.ecn);
        connection.recovery.reno = !record.sack;
        connection.recovery.rtt.resume(record.srtt_us);
        // It is not known when what is in flight left. This guess is long enough ago for it to be lost, but
        // not so long that its rate would mean anything.
        let ago = Duration::from_micros(u64::from(record.srtt_us.min(SRTT_MAX_US)) * 2).max(AGO_MIN);
        connection.sent_at = Instant::from_nanos(now.as_nanos().saturating_sub(ago.as_nanos() as u64));
        connection.update_mss();
        connection.congestion = Congestion::new(connection.congestion.algorithm, connection.snd.mss);
        connection.restart_timers(now);
        Some(connection)
    }

    /// Sends the peer the state of this end, because the predecessor may have owed it an answer. Poll
    /// afterwards.
    pub fn greet(&mut self) {
        if self.state().is_synchronized() {
            self.pending.set(Pending::ACK);
        }
    }

    fn restart_timers(&mut self, now: Instant) {
        match self.state() {
            State::Closed => return,
            State::TimeWait => {
                self.timers.arm(Timer::Lifetime, now + crate::connection::TIME_WAIT);
                return;
            }
            State::SynSent | State::SynReceived => {
                self.recovery.untimed = true;
                self.pending.set(Pending::SYN);
                self.arm_rto(now);
                return;
            }
            State::FinWait2 if self.is_orphan() => {
                self.timers.arm(Timer::Lifetime, now + self.config.linger2())
            }
            _ => {}
        }
        self.arm_keep_alive(now);
        if self.snd.flight() > 0 {
            self.handle_rto(now);
            // The network did not lose this text.
            if let Some(flight) = &mut self.recovery.flight {
                flight.is_of_predecessor(self.snd.nxt);
            }
            self.recovery.rtt.backoff = 0;
            self.recovery.retries = 0;
            self.arm_rto(now);
        }
    }
}

impl Rcv {
    fn beyond(&self) -> [(i64, i64); BEYOND_MAX] {
        let mut beyond = [(0, 0); BEYOND_MAX];
        let found = self.reassembly.iter().flat_map(|reassembly| reassembly.ranges.iter());
        for (place, range) in beyond.iter_mut().zip(found) {
            *place = range;
        }
        beyond
    }

    /// Restores the text out of order that lies within the window, so that it is reported; the rest is
    /// dropped.
    fn resume_beyond(&mut self, beyond: &[(i64, i64)]) {
        let mut reassembly = Reassembly::default();
        // The first ranges are inserted last, and so reported first.
        for &(from, to) in beyond.iter().rev().filter(|(from, to)| from < to && *from >= self.nxt) {
            if to <= self.head + i64::from(self.capacity) {
                reassembly.insert(from, to);
            }
        }
        let Some(end) = reassembly.ranges.end() else { return };
        self.edge = self.edge.max(end);
        self.nxt = reassembly.advance(self.nxt);
        self.acked = self.nxt;
        if !reassembly.ranges.is_empty() {
            self.reassembly = Some(Box::new(reassembly));
        }
    }
}

impl Record {
    fn is_consistent(&self) -> bool {
        let end = self.send_tail + i64::from(self.send_fin);
        let has_their_fin =
            matches!(self.state, State::CloseWait | State::LastAck | State::Closing | State::TimeWait);
        let has_our_fin = matches!(
            self.state,
            State::FinWait1 | State::FinWait2 | State::LastAck | State::Closing | State::TimeWait
        );
        let is_ours_acked = matches!(self.state, State::FinWait2 | State::TimeWait);
        let is_closed = self.state == State::Closed;
        (-1..=OFFSET_MAX).contains(&self.acked)
            && (0..=OFFSET_MAX).contains(&self.received)
            && (0..=OFFSET_MAX).contains(&self.send_tail)
            && self.edge <= OFFSET_MAX
            && self.acked <= end
            && end - self.acked <= WAITING_MAX
            && (is_closed || self.state.is_synchronized() == (self.acked >= 0))
            && self.receive_fin.is_none_or(|fin| fin == self.received)
            && (is_closed || self.receive_fin.is_some() == has_their_fin)
            && (is_closed || !has_our_fin || self.send_fin)
            // An application that closes makes the connection leave these states at once, before the FIN
            // leaves.
            && !(self.send_fin && matches!(self.state, State::Established | State::CloseWait))
            && (is_closed || !is_ours_acked || self.acked == end)
            && self.snd_scale <= SCALE_MAX
            && self.rcv_scale <= SCALE_MAX
            && self.mss_path >= MSS_LEAST
            && self.mss_peer >= 1
            && self.mss_receive >= 1
            && self.settings.receive_capacity >= 1
            && self.settings.linger2 <= LINGER2_MAX
    }
}

/// The largest shift of a window (RFC 7323 §2.3).
const SCALE_MAX: u8 = 14;
/// A bound on offsets: more than any connection carries in its life, and far from where sums would overflow.
const OFFSET_MAX: i64 = 1 << 60;
/// Twice the octets that may wait to be sent ([`Connection::handle_send_tail`]).
const WAITING_MAX: i64 = 2 << 30;
const MSS_LEAST: u16 = 48;
const SRTT_MAX_US: u32 = 60_000_000;
const AGO_MIN: Duration = Duration::from_millis(10);
const LINGER2_MAX: Duration = Duration::from_secs(1 << 20);

#[cfg(test)]
mod tests;
