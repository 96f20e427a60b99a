//! What makes up one connection.

use alloc::boxed::Box;

use atoll_base::{Duration, Instant};

use crate::congestion::Congestion;
use crate::ecn::EcnState;
use crate::mtu_probe::MtuSearch;
use crate::options::Negotiated;
use crate::outcome::Events;
use crate::pending::Pending;
use crate::rare::Rare;
use crate::rcv::Rcv;
use crate::recovery::Recovery;
use crate::settings::{Algorithm, Config, KeepAlive, Settings};
use crate::snd::Snd;
use crate::state::State;
use crate::time_wait::TimeWait;
use crate::timers::{Retransmit, Timer, Timers};

// structure: Connection: the parts of a connection, nearly each a struct of its own
/// One TCP connection: a transmission control block without ports and without text.
///
/// If a transport server crashes, what is in the connection's [`Record`](crate::Record) survives: the
/// positions in `snd` and `rcv`, what the SYNs agreed upon, and the settings. Round-trip times, congestion
/// window and scoreboard are lost.
///
/// Positions in the public interface are stream offsets: the first octet of text has offset 0 in either
/// direction.
#[derive(Debug)]
pub struct Connection {
    pub(crate) snd: Snd,
    pub(crate) rcv: Rcv,
    pub(crate) recovery: Recovery,
    pub(crate) timers: Timers,
    pub(crate) congestion: Congestion,
    pub(crate) options: Negotiated,
    pub(crate) config: Config,
    /// The search for the largest segment that passes, once there is a reason for it.
    pub(crate) mtu: Option<Box<MtuSearch>>,
    /// When something was acknowledged last, or sent with nothing in flight: user time-outs count from there.
    pub(crate) progress_at: Instant,
    /// When the last segment of the peer arrived.
    pub(crate) heard_at: Instant,
    /// When text was sent last.
    pub(crate) sent_at: Instant,
    /// When the text sent so far would have left at the pace of congestion control.
    pub(crate) paced_until: Instant,
    /// The number of segments received; `segments_out` counts those sent.
    pub(crate) segments_in: u32,
    pub(crate) segments_out: u32,
    /// The number of those with text.
    pub(crate) texts_in: u32,
    pub(crate) texts_out: u32,
    pub(crate) ecn: EcnState,
    /// The parts that few connections have.
    pub(crate) rare: Option<Box<Rare>>,
    state: State,
    pub(crate) pending: Pending,
    /// The number of keep-alive probes sent since a segment of the peer arrived.
    pub(crate) keep_probes: u8,
    /// Whether the application still reads.
    pub(crate) reader: Reader,
    /// Whether the connection was opened by `accept`: the application is not notified of a reset in
    /// SYN-RECEIVED then.
    pub(crate) passive: bool,
}

/// Whether the application reads what arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// The application reads, or may read.
    There,
    /// The application has said that it will not read any more (shutdown(2)).
    Deaf,
    /// The application has closed the connection.
    Gone,
}

const _: () = assert!(size_of::<Connection>() <= 448);

impl Connection {
    pub(crate) fn new(
        now: Instant,
        state: State,
        snd: Snd,
        rcv: Rcv,
        options: Negotiated,
        settings: &Settings,
    ) -> Connection {
        Connection {
            recovery: Recovery::new(),
            timers: Timers::new(),
            congestion: Congestion::new(settings.congestion, snd.mss),
            snd,
            rcv,
            options,
            config: Config::new(settings),
            mtu: None,
            progress_at: now,
            heard_at: now,
            sent_at: now,
            paced_until: now,
            segments_in: 0,
            segments_out: 0,
            texts_in: 0,
            texts_out: 0,
            ecn: EcnState::new(),
            rare: settings
                .pacing_rate_max
                .map(|_| Box::new(Rare { pacing_rate_max: settings.pacing_rate_max, ..Rare::default() })),
            state,
            pending: Pending::SYN,
            keep_probes: 0,
            reader: Reader::There,
            passive: false,
        }
    }

    /// Returns the state, by its name in RFC 9293 §3.3.2.
    pub fn state(&self) -> State {
        self.state
    }

    /// Sets the state. Nothing else writes it.
    pub(crate) fn transition(&mut self, next: State) {
        debug_assert!(self.state.may_become(next), "{:?} to {next:?}", self.state);
        self.state = next;
    }

    /// Ends the connection: nothing more happens, except that a pending RST is still sent.
    pub(crate) fn become_closed(&mut self) {
        if self.state != State::Closed {
            self.transition(State::Closed);
        }
        self.timers.cancel_all();
        self.recovery.flight = None;
        self.recovery.episode = None;
        self.rcv.reassembly = None;
        if self.pending.has(Pending::RESET) {
            self.pending = Pending::RESET;
        } else {
            self.pending = Pending::default();
        }
    }

    /// Enters TIME-WAIT: both directions are closed and acknowledged, and late segments are awaited (RFC 9293
    /// §3.6.1).
    pub(crate) fn enter_time_wait(&mut self, now: Instant) -> Events {
        self.transition(State::TimeWait);
        self.timers.cancel_all();
        self.timers.arm(Timer::Lifetime, now + TIME_WAIT);
        self.recovery.flight = None;
        self.recovery.episode = None;
        Events::TIME_WAIT
    }

    /// Returns when [`Connection::handle_timeout`] is due; `None` if no timer is armed.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Acts on every timer that is due, and returns what happened. Calling early is harmless.
    pub fn handle_timeout(&mut self, now: Instant) -> Events {
        let mut events = Events::empty();
        if self.timers.take_due(Timer::Ack, now) {
            self.note_one_way();
            self.pending.set(Pending::ACK);
        }
        // The pace allows the next text; polling does the rest.
        self.timers.take_due(Timer::Pace, now);
        if self.timers.take_due(Timer::Retransmit, now) {
            events |= match self.timers.retransmit {
                Retransmit::Rto => self.handle_rto(now),
                Retransmit::Persist => self.handle_persist(now),
                Retransmit::TailProbe => self.handle_tail_probe(now),
                Retransmit::Reordering => self.handle_reordering_timeout(now),
            };
        }
        if self.timers.take_due(Timer::KeepAlive, now) {
            events |= self.handle_keep_alive(now);
        }
        if self.timers.take_due(Timer::Lifetime, now) {
            self.become_closed();
            events |= Events::CLOSED;
        }
        events
    }

    /// Ends the connection because the peer has been silent for too long.
    pub(crate) fn give_up(&mut self) -> Events {
        let mut events = Events::TIMED_OUT | Events::CLOSED;
        if self.snd.network_error.is_some() {
            events |= Events::UNREACHABLE;
        }
        self.become_closed();
        events
    }

    /// Returns the first text offset that the peer has not acknowledged; the send buffer is free below it.
    pub fn send_una(&self) -> u64 {
        text_offset(self.snd.una.min(self.snd.tail))
    }

    /// Returns whether text has been retransmitted for a short time only. The retransmission timer has then
    /// expired once or twice in a row (RFC 6298 §5), so that the next attempt may still succeed.
    pub fn is_trying_again(&self) -> bool {
        self.snd.una < self.snd.nxt && (1..=2).contains(&self.recovery.rtt.backoff)
    }

    /// Returns the first text offset that was never sent.
    pub fn send_nxt(&self) -> u64 {
        text_offset(self.snd.nxt.min(self.snd.tail))
    }

    /// Returns the end of the text that the application has written.
    pub fn send_tail(&self) -> u64 {
        text_offset(self.snd.tail)
    }

    /// Returns the offset up to which text is received in order.
    pub fn receive_nxt(&self) -> u64 {
        text_offset(self.rcv.text_end())
    }

    /// Returns the end of the text received in any order; that is `receive_nxt` if none is out of order.
    pub fn receive_max(&self) -> u64 {
        text_offset(self.rcv.max())
    }

    /// Returns the right edge of the advertised window.
    pub fn receive_edge(&self) -> u64 {
        text_offset(self.rcv.edge)
    }

    /// Returns the offset up to which the application has read, as far as it was reported.
    pub fn receive_head(&self) -> u64 {
        text_offset(self.rcv.head)
    }

    /// Returns whether the peer's FIN is in order.
    pub fn fin_received(&self) -> bool {
        self.rcv.fin_received()
    }

    /// Returns whether our FIN is acknowledged.
    pub fn fin_acked(&self) -> bool {
        self.snd.fin_acked()
    }

    /// Returns the octets of text in a full segment; a super-segment is cut into such pieces (gso_size).
    pub fn mss(&self) -> u16 {
        self.snd.mss
    }

    /// Returns the compact record that replaces a connection in TIME-WAIT; `None` in other states.
    pub fn time_wait(&self) -> Option<TimeWait> {
        (self.state == State::TimeWait).then(|| TimeWait::new(self))
    }

    /// Returns the present settings.
    pub fn settings(&self) -> Settings {
        Settings {
            nodelay: self.config.nodelay,
            cork: self.config.cork,
            keep_alive: self.config.keep_alive(),
            congestion: self.congestion.algorithm,
            user_timeout: self.config.user_timeout(),
            quick_ack: self.config.quick_ack,
            ecn: self.config.ecn,
            mss_max: self.config.mss_max(),
            receive_capacity: self.rcv.capacity,
            receive_capacity_max: self.rcv.capacity,
            linger2: self.config.linger2(),
            syn_retries: self.config.syn_retries,
            pacing_rate_max: self.pacing_rate_max(),
        }
    }

    /// Sets TCP_NODELAY. Poll afterwards: the text that Nagle's rule held back is due then, and, as tcp(7)
    /// has it, so is the text that the cork held back.
    pub fn set_nodelay(&mut self, nodelay: bool) {
        if nodelay && self.snd.nxt < self.snd.tail {
            self.pending.set(Pending::PUSH);
        }
        self.config.nodelay = nodelay;
    }

    /// Sets TCP_CORK. Poll afterwards: pulling the cork makes the rest due, whatever Nagle's rule says (as on
    /// Linux).
    pub fn set_cork(&mut self, cork: bool) {
        if self.config.cork && !cork {
            self.snd.small_end = self.snd.small_end.min(self.snd.una);
        }
        self.config.cork = cork;
    }

    /// Sets SO_KEEPALIVE and its parameters.
    pub fn set_keep_alive(&mut self, now: Instant, keep_alive: Option<KeepAlive>) {
        self.config.set_keep_alive(keep_alive);
        self.keep_probes = 0;
        self.timers.cancel(Timer::KeepAlive);
        if self.state.is_synchronized() {
            self.arm_keep_alive(now);
        }
    }

    /// Sets TCP_USER_TIMEOUT.
    pub fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.config.set_user_timeout(timeout);
    }

    /// Sets TCP_SYNCNT: how often the SYN is sent again before the connection is given up.
    pub fn set_syn_retries(&mut self, retries: u8) {
        self.config.syn_retries = retries;
    }

    /// Sets TCP_MAXSEG before the connection is open; `None` means what the path allows. The SYN tells the
    /// peer if it has not left yet. Of an open connection Linux takes the value, and does nothing until the
    /// path changes.
    pub fn set_mss_max(&mut self, mss: Option<u16>) {
        if self.state != State::SynSent {
            return;
        }
        self.config.set_mss_max(mss);
        if self.snd.nxt < 0 {
            self.rcv.mss = self.rcv.mss.min(mss.unwrap_or(u16::MAX));
        }
        self.update_mss();
    }

    /// Sets TCP_QUICKACK. Switched off, ACKs wait for text of ours to ride on (Linux's ping-pong mode), and
    /// so does that which completes the handshake.
    pub fn set_quick_ack(&mut self, quick_ack: bool) {
        self.config.quick_ack = quick_ack;
        if !quick_ack {
            self.rcv.expect_answers();
        }
        if quick_ack && self.timers.is_armed(Timer::Ack) {
            self.pending.set(Pending::ACK);
        }
    }

    /// Sets TCP_CONGESTION. The congestion window does not change.
    pub fn set_congestion(&mut self, algorithm: Algorithm) {
        self.congestion.set_algorithm(algorithm);
    }

    /// Sets TCP_LINGER2, which counts for the next entry into FIN-WAIT-2.
    pub fn set_linger2(&mut self, linger2: Duration) {
        self.config.set_linger2(linger2);
    }

    /// Panics if the parts of the connection contradict each other. This is for tests and simulation.
    pub fn check_invariants(&self) {
        if self.state == State::Closed {
            assert_eq!(self.timers.next(), None, "a closed connection has no timers");
            return;
        }
        self.snd.check_invariants();
        self.rcv.check_invariants();
        self.recovery.check_invariants(&self.snd);
        let in_flight = self.snd.flight() > 0;
        // Something in flight implies that a time-out is armed for it.
        assert!(
            !in_flight || self.state == State::TimeWait || self.timers.is_armed(Timer::Retransmit),
            "{self:?}"
        );
        assert!(!in_flight || self.timers.retransmit != Retransmit::Persist, "{self:?}");
    }
}

/// Returns how many segments of `mss` octets a super-segment with `len` octets of text is: the link cuts
/// those that we send, and puts those together that it receives.
#[inline]
pub(crate) fn pieces(len: u32, mss: u16) -> u32 {
    let mss = u32::from(mss.max(1));
    if len <= mss { 1 } else { len.div_ceil(mss) }
}

/// Converts an offset to a text offset: the SYN, at -1, is no text and becomes 0.
pub(crate) fn text_offset(offset: i64) -> u64 {
    u64::try_from(offset).unwrap_or(0)
}

/// How long TIME-WAIT lasts.
///
/// DEVIATION: RFC 9293 takes MSL as 2 minutes; TIME-WAIT here lasts 60 s, as on Linux, because ports would
/// run out otherwise.
pub(crate) const TIME_WAIT: Duration = Duration::from_secs(60);
