//! Peers on the wire. They send segments near what the server's connections expect, errors about them, and
//! arbitrary bytes.

use atoll_base::SeqNum;
use atoll_wire::ethernet::{self, EtherType};
use atoll_wire::icmp::{self, Message};
use atoll_wire::ipv4::{self, Protocol};
use atoll_wire::tcp::{self, Flags, HEADER_MAX, Options, SackBlocks, Segment, Timestamps};
use atoll_wire::udp;

use super::process::{DATAGRAM_PORT, PORT, REMOTE_PORT};
use crate::input::Input;
use crate::ip::{MAC_PEER, MAC_US, PEER, US, repaired};

/// The number of flows that peers remember.
const FLOWS: usize = 12;
/// The number of flows that peers open.
const OPENED_BY_PEERS: u16 = 8;

/// The peers' knowledge of one flow, from what the server has sent on it.
#[derive(Clone, Copy, Default)]
struct Flow {
    peer_port: u16,
    port: u16,
    /// The sequence numbers that the server sends next, and expects next.
    next: SeqNum,
    expected: SeqNum,
    window: u16,
    timestamp: u32,
}

/// All peers together.
pub(crate) struct Peers {
    flows: Vec<Flow>,
    /// The index of the flow that the next one of the server replaces.
    turn: usize,
    clock: u32,
}

impl Peers {
    pub(crate) fn new() -> Peers {
        let opened =
            (0..OPENED_BY_PEERS).map(|n| Flow { peer_port: 1000 + n, port: PORT, ..Flow::default() });
        let connected = (0..4).map(|n| Flow { peer_port: REMOTE_PORT, port: n, ..Flow::default() });
        Peers {
            flows: opened.chain(connected).take(FLOWS).collect(),
            turn: usize::from(OPENED_BY_PEERS),
            clock: 1000,
        }
    }

    /// Reads what the server has sent.
    pub(crate) fn learn(&mut self, frame: &[u8]) {
        let (ethernet, at) = ethernet::parse(frame).expect("an Ethernet header");
        if ethernet.ethertype != EtherType::IPV4 {
            return;
        }
        let (ip, len) = ipv4::parse(&frame[at..]).expect("an IPv4 packet");
        assert_eq!(frame.len(), at + len + usize::from(ip.payload_len));
        if ip.protocol != Protocol::TCP {
            return;
        }
        let (segment, _) = tcp::parse(&frame[at + len..]).expect("a segment");
        let is_it = |flow: &&mut Flow| (flow.peer_port, flow.port) == (segment.dst_port, segment.src_port);
        let flow = match self.flows.iter_mut().find(is_it) {
            Some(flow) => flow,
            None if segment.flags == Flags::SYN => {
                let first = usize::from(OPENED_BY_PEERS);
                self.turn = first + (self.turn + 1 - first) % (FLOWS - first);
                let flow = &mut self.flows[self.turn];
                *flow = Flow { peer_port: segment.dst_port, port: segment.src_port, ..Flow::default() };
                flow
            }
            None => return,
        };
        if segment.has(Flags::RST) {
            return;
        }
        let end = segment.seq.plus(segment.sequence_len());
        if segment.has(Flags::SYN) || end.after(flow.next) {
            flow.next = end;
        }
        if segment.has(Flags::ACK) {
            flow.expected = segment.ack;
        }
        flow.window = segment.window;
        flow.timestamp = segment.options.timestamps.map_or(0, |timestamps| timestamps.value);
    }

    /// Returns a segment for one of the flows.
    pub(crate) fn segment(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        self.clock = self.clock.wrapping_add(u32::from(input.byte()));
        let flow = self.flows[usize::from(input.byte()) % FLOWS];
        let flags = input.pick(&[0x10, 0x10, 0x10, 0x18, 0x02, 0x02, 0x12, 0x11, 0x14, 0x04, 0x30, 0xff]);
        let is_exact = input.byte() < 200;
        let far = input.distance();
        let edge = if input.byte() < 24 { u32::from(flow.window) } else { 0 };
        let seq =
            SeqNum(flow.expected.0.wrapping_add(edge).wrapping_add_signed(if is_exact { 0 } else { far }));
        let ack =
            SeqNum(flow.next.0.wrapping_add_signed(if input.byte() < 200 { 0 } else { input.distance() }));
        let len = match input.byte() {
            0..=99 => 0,
            100..=149 => 1,
            150..=229 => 1400,
            _ => usize::from(input.half()) % 1460,
        };
        let bits = input.byte();
        let mut options = Options::default();
        if flags & 2 != 0 {
            options.mss = (bits & 16 == 0).then(|| input.pick(&[1460, 0, 48, 536, u16::MAX]));
            options.window_scale = (bits & 32 != 0).then(|| input.byte() % 15);
            options.sack_permitted = bits & 64 != 0;
        }
        if bits & 1 == 0 {
            options.timestamps = Some(Timestamps { value: self.clock, echo: flow.timestamp });
        }
        let mut sack = SackBlocks::new();
        for _ in 0..(bits >> 1) & 3 {
            let left = flow.next.0.wrapping_sub(u32::from(input.half()));
            sack.push(SeqNum(left), SeqNum(left.wrapping_add(u32::from(input.half()))));
        }
        options.sack = sack;
        let segment = Segment {
            src_port: flow.peer_port,
            dst_port: flow.port,
            seq,
            ack,
            flags: Flags::from_bits_retain(flags),
            window: input.half(),
            urgent: input.half(),
            options,
            len: 0,
            ..Segment::default()
        };
        let mut header = [0; HEADER_MAX];
        let header_len = tcp::emit(&segment, &mut header);
        let mut text = header[..header_len].to_vec();
        text.resize(header_len + len, 0x5a);
        packet(Protocol::TCP, &text)
    }

    /// Returns an error about a packet of one of the flows.
    pub(crate) fn icmp(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let flow = self.flows[usize::from(input.byte()) % FLOWS];
        let seq = flow.next.0.wrapping_add_signed(-i32::from(input.half()));
        let segment =
            Segment { src_port: flow.port, dst_port: flow.peer_port, seq: SeqNum(seq), ..Segment::default() };
        let mut header = [0; HEADER_MAX];
        tcp::emit(&segment, &mut header);
        let quoted = ipv4::Header {
            src: US,
            dst: PEER,
            protocol: Protocol::TCP,
            payload_len: 20,
            ttl: 60,
            ..Default::default()
        };
        let mut text = vec![0; icmp::HEADER_LEN + ipv4::HEADER_LEN];
        ipv4::emit(&quoted, &mut text[icmp::HEADER_LEN..]);
        text.extend_from_slice(&header[..8]);
        let message = match input.byte() % 3 {
            0 => Message::TimeExceeded { code: input.byte() },
            _ => Message::Unreachable { code: input.byte() % 16, next_hop_mtu: input.half() },
        };
        icmp::emit(&message, &mut text);
        packet(Protocol::ICMP, &text)
    }
}

/// Returns bytes of the input with correct checksums, half of them behind headers that make them a datagram
/// or a segment.
pub(crate) fn any_frame(input: &mut Input<'_>) -> Vec<u8> {
    let (what, len) = (input.byte(), usize::from(input.byte()));
    let bytes = input.bytes(len);
    match what % 4 {
        0 => repaired(bytes),
        1 => packet(Protocol::TCP, bytes),
        2 if what < 64 => packet(Protocol::UDP, bytes),
        2 => {
            let payload_len = u16::from(bytes.len() as u8);
            let header = udp::Header { src_port: 53, dst_port: DATAGRAM_PORT, payload_len, checksum: 0 };
            let mut text = vec![0; udp::HEADER_LEN];
            udp::emit(&header, &mut text);
            text.extend_from_slice(bytes);
            packet(Protocol::UDP, &text)
        }
        _ => frame(EtherType::ARP, bytes),
    }
}

fn packet(protocol: Protocol, text: &[u8]) -> Vec<u8> {
    let payload_len = u16::try_from(text.len()).unwrap_or(u16::MAX);
    let header = ipv4::Header { src: PEER, dst: US, protocol, payload_len, ttl: 64, ..Default::default() };
    let mut out = vec![0; ipv4::HEADER_LEN];
    out.extend_from_slice(text);
    ipv4::emit(&header, &mut out);
    frame(EtherType::IPV4, &out)
}

fn frame(ethertype: EtherType, text: &[u8]) -> Vec<u8> {
    let mut out = vec![0; ethernet::HEADER_LEN];
    ethernet::emit(&ethernet::Header { dst: MAC_US, src: MAC_PEER, ethertype }, &mut out);
    out.extend_from_slice(text);
    out
}
