//! The language in which tests describe an exchange. Sequence numbers are relative to the SYN, which is 0;
//! text begins at 1. Fields left out are filled from the connection when a segment is sent, and ignored when
//! it is expected.

use std::format;
use std::ops::Range;
use std::string::String;
use std::vec::Vec;

use atoll_base::{Duration, Instant, SeqNum};
use atoll_wire::ipv4::Ecn;
use atoll_wire::tcp::{Flags, Options, SackBlocks, Segment, Timestamps};

use crate::connection::Connection;
use crate::outcome::{Events, Input, Reason, Transmit, Verdict};
use crate::settings::{Path, Settings};
use crate::state::State;
use crate::timers::Timer;

pub(crate) const MSS: u32 = 1000;
const ISS: SeqNum = SeqNum(u32::MAX - 1500);
const IRS: SeqNum = SeqNum(u32::MAX - 700);
const WINDOW: u16 = 60_000;

/// One segment, as a test sees it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seg {
    flags: Flags,
    seq: Option<u32>,
    ack: Option<u32>,
    len: u32,
    window: Option<u16>,
    urgent: u16,
    retransmit: bool,
    options: Options,
    ecn: Ecn,
}

pub(crate) fn ack(n: u32) -> Seg {
    Seg { flags: Flags::ACK, ack: Some(n), ..Seg::default() }
}

/// Returns an ACK whose fields are filled from the connection.
pub(crate) fn bare() -> Seg {
    Seg { flags: Flags::ACK, ..Seg::default() }
}

pub(crate) fn data(range: Range<u32>) -> Seg {
    Seg { flags: Flags::ACK, seq: Some(range.start), len: range.end - range.start, ..Seg::default() }
}

pub(crate) fn fin(seq: u32) -> Seg {
    Seg { flags: Flags::ACK | Flags::FIN, seq: Some(seq), ..Seg::default() }
}

pub(crate) fn rst(seq: u32) -> Seg {
    Seg { flags: Flags::RST, seq: Some(seq), ..Seg::default() }
}

pub(crate) fn syn() -> Seg {
    let options = Options { mss: Some(MSS as u16), sack_permitted: true, ..Options::default() };
    Seg { flags: Flags::SYN, seq: Some(0), ack: Some(0), options, ..Seg::default() }
}

pub(crate) fn syn_ack(n: u32) -> Seg {
    Seg { flags: Flags::SYN | Flags::ACK, ack: Some(n), ..syn() }
}

impl Seg {
    pub(crate) fn seq(self, seq: u32) -> Seg {
        Seg { seq: Some(seq), ..self }
    }

    pub(crate) fn ack(self, n: u32) -> Seg {
        Seg { ack: Some(n), ..self }
    }

    pub(crate) fn window(self, window: u16) -> Seg {
        Seg { window: Some(window), ..self }
    }

    pub(crate) fn urgent(self, pointer: u16) -> Seg {
        Seg { urgent: pointer, ..self }.with(Flags::URG)
    }

    pub(crate) fn only(self, flags: Flags) -> Seg {
        Seg { flags, ..self }
    }

    pub(crate) fn with(self, flags: Flags) -> Seg {
        Seg { flags: self.flags | flags, ..self }
    }

    pub(crate) fn fin(self) -> Seg {
        self.with(Flags::FIN)
    }

    pub(crate) fn retransmit(self) -> Seg {
        Seg { retransmit: true, ..self }
    }

    /// Adds a selective-acknowledgement block, in the sequence numbers of the end that receives the segment:
    /// ours for a segment that is received, the peer's for one that is expected.
    pub(crate) fn sack(mut self, range: Range<u32>) -> Seg {
        self.options.sack.push(SeqNum(range.start), SeqNum(range.end));
        self
    }

    /// Returns the segment in a packet that the network has marked.
    pub(crate) fn marked(self) -> Seg {
        Seg { ecn: Ecn::Ce, ..self }
    }

    pub(crate) fn mss(mut self, mss: u16) -> Seg {
        self.options.mss = Some(mss);
        self
    }

    pub(crate) fn no_sack(mut self) -> Seg {
        self.options.sack_permitted = false;
        self
    }

    pub(crate) fn timestamps(mut self, value: u32, echo: u32) -> Seg {
        self.options.timestamps = Some(Timestamps { value, echo });
        self
    }

    pub(crate) fn scale(mut self, shift: u8) -> Seg {
        self.options.window_scale = Some(shift);
        self
    }
}

/// A connection under test. Unless a test asks for more, it has an MSS of 1000 octets, SACK, and neither
/// timestamps, window scaling nor Nagle's algorithm.
#[derive(Debug)]
pub(crate) struct Tcb {
    pub(crate) conn: Connection,
    pub(crate) now: Instant,
    written: u64,
    log: Vec<String>,
}

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) fn settings() -> Settings {
    Settings { nodelay: true, receive_capacity: 50_000, ..Settings::default() }
}

impl Tcb {
    pub(crate) fn connecting(settings: &Settings) -> Tcb {
        let now = Instant::from_millis(10_000);
        Tcb::of(Connection::connect(now, ISS, 77, Path { mss: MSS as u16 }, settings), now)
    }

    pub(crate) fn accepting(seg: Seg, settings: &Settings) -> Tcb {
        let now = Instant::from_millis(10_000);
        let segment = Segment {
            seq: IRS,
            flags: seg.flags,
            window: WINDOW,
            options: seg.options,
            ..Segment::default()
        };
        Tcb::of(Connection::accept(now, &segment, ISS, 77, Path { mss: MSS as u16 }, settings), now)
    }

    pub(crate) fn of(conn: Connection, now: Instant) -> Tcb {
        Tcb { conn, now, written: 0, log: Vec::new() }
    }

    /// Returns an open connection with SACK; the round trip was 100 ms, and quick-ack is over.
    pub(crate) fn established() -> Tcb {
        Tcb::established_by(syn_ack(1), &settings())
    }

    pub(crate) fn established_by(answer: Seg, settings: &Settings) -> Tcb {
        let mut t = Tcb::connecting(settings);
        t.poll();
        t.advance(ms(100));
        t.recv(answer);
        t.poll();
        t.conn.rcv.quick = 0;
        assert_eq!(t.conn.state(), State::Established);
        t
    }

    /// Writes `octets`, sends everything that is allowed, and returns the connection as it stands then.
    pub(crate) fn sent(mut self, octets: u32) -> Tcb {
        self.write(octets);
        self.poll();
        self
    }

    pub(crate) fn in_state(state: State) -> Tcb {
        let mut t = Tcb::established();
        match state {
            State::Established => {}
            State::FinWait1 | State::FinWait2 | State::Closing | State::TimeWait => {
                t.conn.shutdown_send(t.now);
                t.poll();
                if matches!(state, State::FinWait2 | State::TimeWait) {
                    t.recv(ack(2));
                }
                if matches!(state, State::Closing | State::TimeWait) {
                    t.recv(fin(1).ack(if state == State::Closing { 1 } else { 2 }));
                    t.poll();
                }
            }
            State::CloseWait | State::LastAck => {
                t.recv(fin(1));
                t.poll();
                if state == State::LastAck {
                    t.conn.shutdown_send(t.now);
                    t.poll();
                }
            }
            _ => panic!("not a state of an open connection"),
        }
        t.conn.timers.cancel(Timer::Ack);
        assert_eq!(t.conn.state(), state);
        t
    }

    pub(crate) fn write(&mut self, octets: u32) {
        self.written += u64::from(octets);
        self.conn.handle_send_tail(self.now, self.written);
        self.conn.check_invariants();
    }

    pub(crate) fn advance(&mut self, by: Duration) -> Events {
        self.now += by;
        let events = self.conn.handle_timeout(self.now);
        self.conn.check_invariants();
        events
    }

    /// Advances to the next timer. Returns how long that took, and what it brought about.
    pub(crate) fn advance_to_timer(&mut self) -> (Duration, Events) {
        let next = self.conn.next_timeout().expect("a timer is armed");
        let wait = next.since(self.now);
        (wait, self.advance(wait))
    }

    pub(crate) fn recv(&mut self, seg: Seg) -> Input {
        let (conn, established) = (&self.conn, self.conn.state() != State::SynSent);
        let next = if established { conn.rcv.seq(conn.rcv.nxt) } else { IRS };
        let acked = conn.snd.seq(conn.snd.nxt);
        let mut sack = SackBlocks::new();
        for (left, right) in seg.options.sack.iter() {
            sack.push(ISS.plus(left.0), ISS.plus(right.0));
        }
        let segment = Segment {
            seq: seg.seq.map_or(next, |seq| IRS.plus(seq)),
            ack: seg.ack.map_or(acked, |n| ISS.plus(n)),
            flags: seg.flags,
            window: seg.window.unwrap_or(WINDOW),
            options: Options { sack, ..seg.options },
            len: seg.len,
            ecn: seg.ecn,
            urgent: seg.urgent,
            ..Segment::default()
        };
        self.log.push(format!("{:?} < {segment:?}", self.now));
        let promised = self.conn.text_range(&segment);
        let input = self.conn.handle_segment(self.now, &segment);
        if input.events.contains(Events::CHALLENGE) {
            self.conn.send_challenge();
        }
        if input.verdict == Verdict::Accepted && input.text.is_some() {
            assert_eq!(input.text, promised);
        }
        self.conn.check_invariants();
        input
    }

    /// Checks that the connection accepts the segment, and returns the events.
    pub(crate) fn takes(&mut self, seg: Seg) -> Events {
        let input = self.recv(seg);
        assert_eq!(input.verdict, Verdict::Accepted, "{:#?}", self.log);
        input.events
    }

    /// Checks that the connection drops the segment for this reason.
    pub(crate) fn drops(&mut self, seg: Seg, reason: Reason) {
        assert_eq!(self.recv(seg).verdict, Verdict::Dropped(reason), "{:#?}", self.log);
    }

    pub(crate) fn poll(&mut self) -> Vec<Transmit> {
        self.poll_up_to(0)
    }

    pub(crate) fn poll_up_to(&mut self, len_max: u32) -> Vec<Transmit> {
        let mut all = Vec::new();
        while let Some(transmit) = self.conn.poll_transmit(self.now, len_max) {
            self.log.push(format!("{:?} > {transmit:?}", self.now));
            self.conn.check_invariants();
            all.push(transmit);
            assert!(all.len() < 1000, "polling never ends");
        }
        all
    }

    /// Checks that exactly these segments are sent now.
    pub(crate) fn expect<const N: usize>(&mut self, expected: [Seg; N]) -> Vec<Transmit> {
        let sent = self.poll();
        self.compare(&sent, &expected);
        sent
    }

    pub(crate) fn compare(&self, sent: &[Transmit], expected: &[Seg]) {
        let matches = |(transmit, seg): (&Transmit, &Seg)| {
            let segment = &transmit.segment;
            let mut sack = SackBlocks::new();
            for (left, right) in seg.options.sack.iter() {
                sack.push(IRS.plus(left.0), IRS.plus(right.0));
            }
            let flags = segment.flags.difference(Flags::PSH);
            flags == seg.flags.difference(Flags::PSH)
                && seg.seq.is_none_or(|seq| segment.seq == ISS.plus(seq))
                && seg.ack.is_none_or(|n| segment.ack == IRS.plus(n))
                && seg.window.is_none_or(|window| segment.window == window)
                && segment.len == seg.len
                && transmit.retransmit == seg.retransmit
                && segment.options.sack == sack
        };
        let equal = sent.len() == expected.len() && sent.iter().zip(expected).all(matches);
        assert!(equal, "sent {sent:#?}\nexpected {expected:#?}\n{:#?}", self.log);
    }

    pub(crate) fn expect_silence(&mut self) {
        self.expect([]);
    }
}
