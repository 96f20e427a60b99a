//! How a connection begins: active and passive open (RFC 9293 §3.5 and §3.10.1).

use atoll_base::{Instant, SeqNum};
use atoll_wire::tcp::{Options, Segment};

use crate::congestion::Congestion;
use crate::connection::Connection;
use crate::options::Negotiated;
use crate::outcome::Events;
use crate::pending::Pending;
use crate::rcv::Rcv;
use crate::settings::{Path, Settings};
use crate::snd::Snd;
use crate::state::State;
use crate::timers::Timer;

impl Connection {
    /// Opens a connection actively: returns it in SYN-SENT, and the next poll gives the SYN.
    ///
    /// `iss` comes from [`crate::initial_sequence`], and `ts_offset` from [`crate::timestamp_offset`].
    pub fn connect(now: Instant, iss: SeqNum, ts_offset: u32, path: Path, settings: &Settings) -> Connection {
        Connection::open(now, State::SynSent, iss, ts_offset, path, settings)
    }

    /// Opens a connection passively, in answer to `syn`: returns it in SYN-RECEIVED, and the next poll gives
    /// the SYN-ACK. Text and FIN on the SYN are ignored; the peer sends them again.
    pub fn accept(
        now: Instant,
        syn: &Segment,
        iss: SeqNum,
        ts_offset: u32,
        path: Path,
        settings: &Settings,
    ) -> Connection {
        let mut connection = Connection::open(now, State::SynReceived, iss, ts_offset, path, settings);
        connection.passive = true;
        connection.take_syn(now, syn);
        connection
    }

    /// Notes that the SYN-ACK has been sent already, with a SYN cookie. [`Connection::accept`] was then given
    /// the SYN that [`crate::check_syn_cookie`] returned. Call this before anything else, and hand in the
    /// peer's acknowledgement right afterwards.
    pub fn skip_syn_ack(&mut self, now: Instant) {
        self.pending.clear(Pending::SYN);
        self.snd.nxt = 0;
        self.recovery.untimed = true;
        self.arm_rto(now);
    }

    fn open(
        now: Instant,
        state: State,
        iss: SeqNum,
        ts_offset: u32,
        path: Path,
        settings: &Settings,
    ) -> Connection {
        let snd = Snd::new(iss, path.mss);
        let mss = settings.mss_max.unwrap_or(u16::MAX).min(path.mss);
        let rcv = Rcv::new(settings.receive_capacity, mss);
        let capacity_max = settings.receive_capacity_max.max(settings.receive_capacity);
        let options = Negotiated::offer(ts_offset, settings.receive_capacity, capacity_max);
        Connection::new(now, state, snd, rcv, options, settings)
    }

    /// Takes over what the peer's SYN says. The window of a SYN is never scaled (RFC 7323 §2.2).
    pub(crate) fn take_syn(&mut self, now: Instant, syn: &Segment) {
        self.rcv.start = syn.seq.plus(1);
        self.options.agree(now, &syn.options);
        self.agree_ecn(syn);
        self.recovery.reno = !self.options.sack;
        if let Some(mss) = syn.options.mss {
            self.snd.mss_peer = mss;
        }
        self.update_mss();
        let algorithm = self.congestion.algorithm;
        self.congestion = Congestion::new(algorithm, self.snd.mss);
        self.snd.window_max = u32::from(syn.window);
        self.snd.edge = i64::from(syn.window);
        self.snd.wl1 = syn.seq;
        self.snd.wl2 = self.snd.seq(-1);
    }

    /// Computes the segment size anew after a change of path, peer or options (RFC 9293 §3.7.1, MUST-16):
    /// options on every segment take room from the text.
    pub(crate) fn update_mss(&mut self) {
        let options = if self.options.timestamps { TIMESTAMPS_LEN } else { 0 };
        let smallest = self.config.clamp_mss(self.snd.mss_path.min(self.snd.mss_peer));
        self.snd.mss = smallest - options;
    }

    /// Enters ESTABLISHED: our SYN is acknowledged, and the peer's is known. Returns
    /// [`Events::ESTABLISHED`].
    pub(crate) fn enter_established(&mut self, now: Instant) -> Events {
        if self.is_open_early() && self.rcv.update_is_due(self.rcv.head, self.options.rcv_scale) {
            // The application has read the text of the SYN; no window update was possible before.
            self.pending.set(Pending::ACK);
        }
        self.transition(State::Established);
        self.recovery.forget_flight();
        self.timers.cancel(Timer::Retransmit);
        self.arm_keep_alive(now);
        if self.options.timestamps {
            self.rcv.segment_max =
                self.rcv.segment_max.min(self.rcv.mss.saturating_sub(TIMESTAMPS_LEN).max(1));
        }
        if self.snd.fin {
            self.transition(State::FinWait1);
        }
        Events::ESTABLISHED
    }

    /// Adapts the initial estimates once our SYN is acknowledged. If the SYN was sent again and no round trip
    /// could be measured, the first time-out is longer; after several retransmissions, the congestion window
    /// begins with one segment.
    pub(crate) fn judge_handshake(&mut self) {
        if !core::mem::take(&mut self.recovery.untimed) {
            return;
        }
        let retransmits = self.recovery.retransmits;
        if retransmits > 0 && self.recovery.rtt.srtt_us == 0 {
            self.recovery.rtt.distrust_initial();
        }
        if retransmits > SYN_LOSSES_FORGIVEN {
            self.congestion.cwnd = u32::from(self.snd.mss);
        }
    }

    /// Returns the options of our SYN or SYN-ACK.
    pub(crate) fn syn_options(&self, now: Instant) -> Options {
        Options {
            mss: Some(self.rcv.mss),
            window_scale: self.options.window_scaling.then_some(self.options.rcv_scale),
            sack_permitted: self.options.sack,
            timestamps: self.options.stamp(now),
            ..Options::default()
        }
    }
}

/// The number of SYN retransmissions that do not change the initial window: one may just have been too early
/// (RFC 6928 §2). After more, the window begins with one segment (RFC 5681 §3.1).
const SYN_LOSSES_FORGIVEN: u32 = 1;
/// The length of a timestamps option with two NOPs before it, in octets.
pub(crate) const TIMESTAMPS_LEN: u16 = 12;
