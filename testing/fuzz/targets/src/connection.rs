//! Checks that a connection keeps its promises in any state, whatever peer, application and clock do.

use core::num::NonZeroU8;

use atoll_base::{Duration, Instant, SeqNum};
use atoll_tcp::{
    Algorithm, Connection, EcnMode, Events, KeepAlive, Path, Settings, State, TimeWait, Verdict,
};
use atoll_wire::ipv4::Ecn;
use atoll_wire::tcp::{Flags, Options, SackBlocks, Segment, Timestamps};

use crate::features::mark;
use crate::input::Input;

const ISS: SeqNum = SeqNum(u32::MAX - 100);
const IRS: SeqNum = SeqNum(u32::MAX - 5000);
const TS_OFFSET: u32 = 7;
/// The most octets that one script writes, enough for every window.
const WRITTEN_MAX: u64 = 300_000;

/// Runs the life of one connection: how it opens, then steps of an opcode and its arguments, near the edges
/// that matter.
///
/// After each step the invariants hold, edges have not moved back, and polling has ended after as many
/// segments as were due. At the end the peer falls silent, and the connection comes to rest.
pub fn tcp_connection(data: &[u8]) {
    let mut input = Input::new(data);
    let mut life = Life::open(&mut input);
    life.settle();
    while !input.is_empty() && life.connection.state() != State::Closed {
        life.step(&mut input);
        life.settle();
    }
    life.end();
}

struct Life {
    now: Instant,
    connection: Connection,
    record: Option<TimeWait>,
    written: u64,
    /// The end of the largest window that the peer can have meant.
    offered: u64,
    /// The shift of the peer's windows, from its SYN.
    scale: u8,
    len_max: u32,
    /// The positions that never move back: acknowledged, sent, received, advertised.
    edges: [u64; 4],
}

impl Life {
    fn open(input: &mut Input<'_>) -> Life {
        let now = Instant::from_millis(1000);
        let path = Path { mss: input.pick(&[1460, 0, 48, 100, 536, 8960, 65_000]) };
        let settings = settings(input);
        let syn = Segment {
            src_port: 1,
            dst_port: 2,
            seq: IRS,
            flags: Flags::SYN,
            window: input.half(),
            options: syn_options(input),
            ..Segment::default()
        };
        let how = input.byte() % 6;
        let connection = match how {
            0 | 1 => Connection::connect(now, ISS, TS_OFFSET, path, &settings),
            _ => Connection::accept(now, &syn, ISS, TS_OFFSET, path, &settings),
        };
        let mut life = Life {
            now,
            connection,
            record: None,
            written: 0,
            offered: u64::from(syn.window),
            scale: syn.options.window_scale.unwrap_or(0),
            len_max: input.pick(&[1, 1460, 65_000]),
            edges: [0; 4],
        };
        let timestamps =
            syn.options.timestamps.map(|own| Timestamps { value: own.value, echo: 1000 + TS_OFFSET });
        let last = Segment { seq: IRS.plus(1), ack: ISS.plus(1), flags: Flags::ACK, ..syn };
        match how {
            // The connection is established in the usual way, as client or as server.
            1 => {
                life.settle();
                let options = Options { timestamps, ..syn.options };
                life.receive(&Segment { ack: ISS.plus(1), flags: Flags::SYN | Flags::ACK, options, ..syn });
            }
            2 | 3 => {
                life.settle();
                life.receive(&Segment { options: Options { timestamps, ..Options::default() }, ..last });
            }
            // The connection is opened by a cookie.
            4 => {
                life.connection.skip_syn_ack(now);
                life.receive(&Segment { options: Options { timestamps, ..Options::default() }, ..last });
            }
            _ => {}
        }
        life
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let opcode = input.byte();
        match opcode % 32 {
            0 | 1 => {
                self.written = (self.written + u64::from(input.half())).min(WRITTEN_MAX);
                self.connection.handle_send_tail(self.now, self.written);
            }
            2 => self.connection.handle_send_tail(self.now, input.long() % (self.written + 1)),
            3 => self.connection.handle_read_head(self.now, self.connection.receive_nxt()),
            4 => self.connection.handle_read_head(self.now, input.long()),
            5 => {
                let asked = self.connection.receive_read_mark();
                self.connection.handle_read_head(self.now, asked.unwrap_or(0));
            }
            6 => self.connection.shutdown_send(self.now),
            7 if input.byte() < 64 => self.connection.close(self.now),
            7 if input.byte() < 16 => self.connection.abort(),
            8..=10 => {
                // Time advances to the next timer, or a little less.
                let due = self.connection.next_timeout().unwrap_or(self.now);
                let early = if input.byte() < 32 { Duration::from_millis(1) } else { Duration::ZERO };
                self.now = self.now.max(due) + early;
                self.fire();
            }
            11 => {
                self.now += Duration::from_millis(u64::from(input.half()) << (input.byte() % 20));
                self.fire();
            }
            12 => {
                self.now += Duration::from_micros(input.half().into());
                self.fire();
            }
            13 => {
                self.connection.handle_mtu(self.now, input.half(), self.quoted(input));
            }
            14 => {
                let (ends_opening, quoted) = (input.flip(), self.quoted(input));
                let events = self.connection.handle_network_error(NonZeroU8::MIN, quoted, ends_opening);
                self.note(events);
            }
            15 => self.connection.set_receive_capacity(u32::from(input.half()) << (input.byte() % 16)),
            16 => self.choose(input),
            17 => {
                self.connection.drop_out_of_order();
            }
            18 => self.record = self.connection.time_wait().or(self.record),
            _ => {
                let segment = self.segment(input);
                self.receive(&segment);
            }
        }
    }

    /// Returns a segment whose fields lie near something that counts.
    fn segment(&mut self, input: &mut Input<'_>) -> Segment {
        let c = &self.connection;
        let flags = input.pick(&[0x10, 0x10, 0x10, 0x18, 0x11, 0x04, 0x14, 0x02, 0x12, 0x30, 0x00, 0xff]);
        let from = [c.receive_nxt(), c.receive_nxt(), c.receive_edge(), c.receive_max(), c.receive_head(), 0];
        let to = [c.send_nxt(), c.send_nxt(), c.send_una(), c.send_tail(), 0];
        let seq = near(IRS, input.pick(&from), input.distance());
        let ack = near(ISS, input.pick(&to), input.distance());
        let len = match input.byte() {
            0..=100 => 0,
            101..=140 => 1,
            141..=200 => 1460,
            201..=210 => 65_535,
            _ => u32::from(input.half()),
        };
        let mut options = if flags & 2 != 0 { syn_options(input) } else { Options::default() };
        let what = input.byte();
        if what & 1 == 0 {
            let clock = self.now.as_millis() as u32;
            let value = clock.wrapping_add_signed(input.distance());
            options.timestamps = Some(Timestamps {
                value,
                echo: (clock.wrapping_add(TS_OFFSET)).wrapping_add_signed(input.distance()),
            });
        }
        let mut sack = SackBlocks::new();
        for _ in 0..(what >> 1) % 5 {
            let left = near(ISS, c.send_una(), 0).plus(u32::from(input.half()));
            sack.push(left, left.plus(u32::from(input.half()) << (input.byte() % 8)));
        }
        options.sack = sack;
        let (window, urgent) = (input.half(), input.half());
        let ecn = Ecn::from_tos(seq.0 as u8);
        let flags = Flags::from_bits_retain(flags);
        Segment { src_port: 1, dst_port: 2, seq, ack, flags, window, urgent, options, len, ecn }
    }

    fn receive(&mut self, segment: &Segment) {
        if let Some(record) = &mut self.record {
            let _ = record.handle_segment(self.now, segment);
        }
        let c = &mut self.connection;
        let was_in_handshake = matches!(c.state(), State::SynSent | State::SynReceived);
        if was_in_handshake && segment.has(Flags::SYN) {
            self.scale = self.scale.max(segment.options.window_scale.unwrap_or(0));
        }
        let acked = c.send_nxt().wrapping_add_signed(i64::from(segment.ack.distance_from(near(
            ISS,
            c.send_nxt(),
            0,
        )))) as i64;
        let edge = acked.max(0) as u64 + (u64::from(segment.window) << self.scale);
        self.offered = self.offered.max(edge);
        let range = c.text_range(segment);
        let (nxt, edge) = (c.receive_nxt(), c.receive_edge());
        let before = c.state();
        let input = c.handle_segment(self.now, segment);
        if let Some(text) = input.text {
            assert_eq!(Some(text), range, "the range that was announced is the one that is taken");
            assert!(text.len > 0 && text.skip + text.len <= segment.len);
            assert!(text.offset >= nxt && text.offset + u64::from(text.len) <= edge);
        }
        if let Verdict::Dropped(reason) = input.verdict {
            assert!(input.text.is_none());
            mark(1, u64::from(reason as u8) << 8 | before as u64);
        }
        if input.events.contains(Events::CHALLENGE) {
            c.send_challenge();
        }
        mark(2, u64::from(segment.flags.bits() & 7) << 8 | before as u64);
        mark(3, (before as u64) << 8 | c.state() as u64);
        self.note(input.events);
    }

    fn fire(&mut self) {
        let events = self.connection.handle_timeout(self.now);
        self.note(events);
    }

    fn note(&mut self, events: Events) {
        let state = self.connection.state();
        assert_eq!(events.contains(Events::CLOSED), state == State::Closed && !events.is_empty());
        mark(4, u64::from(events.bits()) << 8 | state as u64);
    }

    /// Takes all segments that are due, and checks that nothing contradicts itself.
    fn settle(&mut self) {
        self.connection.check_invariants();
        let mut bare = 0;
        let mut octets = 0;
        for count in 0.. {
            let flight = self.connection.send_nxt() - self.connection.send_una();
            let Some(transmit) = self.connection.poll_transmit(self.now, self.len_max) else { break };
            self.connection.check_invariants();
            let len = transmit.segment.len;
            let end = transmit.offset + u64::from(len);
            assert!(end <= self.written, "only what was written is sent");
            let size = self.connection.segment_size(&transmit);
            assert!(len <= self.len_max.max(size.into()));
            assert!(
                transmit.retransmit || len == 0 || end <= self.offered,
                "{end} is beyond {}",
                self.offered
            );
            bare += u32::from(len == 0);
            octets += u64::from(len);
            // Text is sent at most twice in one go: what is new, and what was in flight.
            assert!(bare <= 12, "the peer is told the same again and again");
            assert!(octets <= flight + WRITTEN_MAX && count < 10_000, "polling never ends");
        }
        let c = &self.connection;
        let info = c.info(self.now);
        mark(5, (c.state() as u64) << 16 | (info.phase as u64) << 8 | u64::from(info.retransmits.min(4)));
        mark(
            6,
            u64::from(info.snd_cwnd.min(1 << 20).ilog2_or_zero()) << 8
                | u64::from(info.sacked.ilog2_or_zero()),
        );
        mark(7, u64::from(info.lost.ilog2_or_zero()) << 8 | u64::from(info.unacked.ilog2_or_zero()));
        let edges = [c.send_una(), c.send_nxt(), c.receive_nxt(), c.receive_edge()];
        // Mark the corner of the state space that was reached.
        let corner = [
            info.sacked > 0,
            info.lost > 0,
            info.unacked > 0,
            info.notsent_bytes > 0,
            info.snd_wnd == 0,
            info.rcv_wnd == 0,
            c.receive_max() > c.receive_nxt(),
            c.fin_received(),
            c.fin_acked(),
            info.backoff > 0,
            info.sack,
            info.timestamps,
            c.next_timeout().is_some(),
        ];
        let corner = corner.iter().fold(0, |bits, bit| bits << 1 | u64::from(*bit));
        mark(8, corner << 16 | (c.state() as u64) << 8 | info.phase as u64);
        for (before, after) in self.edges.iter().zip(edges) {
            assert!(*before <= after, "{:?} has moved back to {edges:?}", self.edges);
        }
        self.edges = edges;
        assert!(c.receive_head() <= c.receive_nxt() && c.receive_nxt() <= c.receive_max());
    }

    /// Checks that timers end the connection, or leave it at rest, when the peer has gone.
    fn end(&mut self) {
        for _ in 0..20_000 {
            let Some(due) = self.connection.next_timeout() else { return };
            self.now = self.now.max(due);
            self.fire();
            self.settle();
        }
        panic!("timers that never end: {:?}", self.connection);
    }

    fn choose(&mut self, input: &mut Input<'_>) {
        let (c, now) = (&mut self.connection, self.now);
        match input.byte() % 8 {
            0 => c.set_nodelay(input.flip()),
            1 => c.set_cork(input.flip()),
            2 => c.set_quick_ack(input.flip()),
            3 => c.set_keep_alive(now, keep_alive(input)),
            4 => c.set_user_timeout(Some(Duration::from_millis(input.half().into()))),
            5 => c.set_congestion(if input.flip() { Algorithm::Cubic } else { Algorithm::NewReno }),
            6 => c.set_linger2(Duration::from_millis(input.half().into())),
            _ => {
                let _ = c.settings();
            }
        }
    }

    fn quoted(&self, input: &mut Input<'_>) -> SeqNum {
        near(ISS, self.connection.send_una(), input.distance())
    }
}

/// Returns the sequence number of offset `offset` in a stream that begins after `start`, plus a distance.
fn near(start: SeqNum, offset: u64, distance: i32) -> SeqNum {
    // Sequence numbers are offsets modulo 2^32.
    SeqNum(start.0.wrapping_add(1).wrapping_add(offset as u32).wrapping_add_signed(distance))
}

fn settings(input: &mut Input<'_>) -> Settings {
    let bits = input.byte();
    Settings {
        nodelay: bits & 1 != 0,
        cork: bits & 2 != 0,
        quick_ack: bits & 4 != 0,
        congestion: input.pick(&Algorithm::ALL),
        ecn: if bits & 8 != 0 { EcnMode::Request } else { EcnMode::Accept },
        keep_alive: if bits & 16 != 0 { keep_alive(input) } else { None },
        user_timeout: (bits & 32 != 0).then(|| Duration::from_millis(input.half().into())),
        mss_max: (bits & 64 != 0).then(|| input.half()),
        receive_capacity: input.pick(&[65_536, 0, 1, 200, 4096, 1 << 20, u32::MAX]),
        receive_capacity_max: input.pick(&[6 << 20, 0, 65_536, 1 << 30, u32::MAX]),
        ..Settings::default()
    }
}

/// Returns keep-alive times within what setsockopt(2) takes, or none.
fn keep_alive(input: &mut Input<'_>) -> Option<KeepAlive> {
    let (idle, interval) = (1 + u64::from(input.half()) % 32_767, 1 + u64::from(input.half()) % 32_767);
    let (idle, interval) = (Duration::from_secs(idle), Duration::from_secs(interval));
    input.flip().then(|| KeepAlive { idle, interval, probes: input.byte() })
}

fn syn_options(input: &mut Input<'_>) -> Options {
    let bits = input.byte();
    let value = input.half().into();
    Options {
        mss: (bits & 1 != 0).then(|| input.pick(&[1460, 0, 1, 48, 88, 536, 8960, u16::MAX])),
        // The segment has the form that the parser gives.
        window_scale: (bits & 2 != 0).then(|| input.byte().min(14)),
        sack_permitted: bits & 4 != 0,
        timestamps: (bits & 8 != 0).then_some(Timestamps { value, echo: 0 }),
        ..Options::default()
    }
}

trait Log2 {
    /// Returns the number of binary digits.
    fn ilog2_or_zero(self) -> u32;
}

impl Log2 for u32 {
    fn ilog2_or_zero(self) -> u32 {
        32 - self.leading_zeros()
    }
}
