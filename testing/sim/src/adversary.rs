//! A third machine that speaks TCP only to do harm; its actions are drawn by seed, connection by connection
//! and segment by segment.
//!
//! The adversary opens connections to the server as any client does, follows what the server says, and then
//! misbehaves near what the server expects. It lies about what it has received, leaves holes, closes its
//! window, resets and repeats itself.

use atoll_base::{Duration, Instant, Rng, SeqNum};
use atoll_wire::ethernet::{self, EtherType};
use atoll_wire::ipv4::{self, Protocol};
use atoll_wire::tcp::{self, Flags, HEADER_MAX, Options, SackBlocks, Segment, Timestamps};
use atoll_wire::{Mac, arp, checksum};

const FLOWS: u16 = 4;
/// The most segments that the adversary sends; after that it falls silent.
const SEGMENTS_MAX: u32 = 4000;

/// One connection, as the adversary sees it.
#[derive(Clone, Copy, Default)]
struct Flow {
    /// The next sequence number that the adversary sends.
    seq: SeqNum,
    /// The next sequence number that the server sends; `acked` is what the server has acknowledged.
    next: SeqNum,
    acked: SeqNum,
    timestamp: u32,
    timestamps: bool,
    is_open: bool,
}

/// The third machine, which attacks the server.
pub(crate) struct Adversary {
    addr: u32,
    mac: Mac,
    server: (u32, Mac, u16),
    flows: Vec<Flow>,
    /// When the adversary acts next.
    pub(crate) acts_at: Option<Instant>,
    sent: u32,
}

impl Adversary {
    pub(crate) fn new(addr: u32, mac: Mac, server: (u32, Mac, u16), now: Instant) -> Adversary {
        let flows = vec![Flow::default(); FLOWS.into()];
        Adversary { addr, mac, server, flows, acts_at: Some(now), sent: 0 }
    }

    /// Returns whether a frame is for this machine alone.
    pub(crate) fn is_for_us(&self, frame: &[u8]) -> bool {
        ethernet::parse(frame).is_ok_and(|(header, _)| header.dst == self.mac)
    }

    /// Reads a frame of the server; returns the answer, which is to be sent at once.
    pub(crate) fn hear(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let (header, at) = ethernet::parse(frame).ok()?;
        if header.ethertype == EtherType::ARP {
            return self.answer_arp(frame.get(at..)?);
        }
        let (packet, len) = ipv4::parse(frame.get(at..)?).ok()?;
        if packet.dst != self.addr || packet.protocol != Protocol::TCP {
            return None;
        }
        let (segment, _) = tcp::parse(frame.get(at + len..)?).ok()?;
        let flow = self.flows.get_mut(usize::from(segment.dst_port.checked_sub(FIRST_PORT)?))?;
        if segment.has(Flags::RST) {
            // The connection begins again.
            *flow = Flow::default();
            return None;
        }
        let end = segment.seq.plus(segment.sequence_len());
        if segment.has(Flags::SYN) {
            *flow = Flow { seq: segment.ack, next: end, acked: segment.ack, is_open: true, ..*flow };
        } else if end.after(flow.next) {
            flow.next = end;
        }
        if segment.has(Flags::ACK) {
            flow.acked = segment.ack;
        }
        if let Some(timestamps) = segment.options.timestamps {
            (flow.timestamp, flow.timestamps) = (timestamps.value, true);
        }
        None
    }

    /// Returns the next hostile frame.
    pub(crate) fn act(&mut self, now: Instant, rng: &mut Rng) -> Vec<u8> {
        self.sent += 1;
        let wait = Duration::from_micros(u64::from(20 + rng.below(2000)));
        self.acts_at = (self.sent < SEGMENTS_MAX).then(|| now + wait);
        let number = rng.below(FLOWS.into()) as usize;
        let flow = &mut self.flows[number];
        let clock = now.as_millis() as u32;
        let mut segment = Segment {
            src_port: FIRST_PORT + number as u16,
            dst_port: self.server.2,
            seq: flow.seq,
            ack: flow.next,
            flags: Flags::ACK,
            window: [0, 1, 500, 60_000][rng.below(4) as usize],
            ..Segment::default()
        };
        if flow.timestamps {
            segment.options.timestamps = Some(Timestamps { value: clock, echo: flow.timestamp });
        }
        let mut len = 0;
        match rng.below(if flow.is_open { 12 } else { 2 }) {
            0 | 1 if !flow.is_open => {
                segment.flags = Flags::SYN;
                segment.seq = SeqNum(rng.next_u32());
                segment.ack = SeqNum(0);
                segment.options = Options {
                    mss: Some([1, 536, 1460][rng.below(3) as usize]),
                    window_scale: (rng.below(2) == 0).then(|| rng.below(15) as u8),
                    sack_permitted: true,
                    timestamps: (rng.below(2) == 0).then_some(Timestamps { value: clock, echo: 0 }),
                    ..Options::default()
                };
                *flow = Flow::default();
            }
            // This is text in order, which the server sends back.
            0..=2 => {
                len = 1000;
                flow.seq = flow.seq.plus(len);
            }
            3 | 4 => {
                segment.seq = flow.acked.plus(1 + rng.below(60_000));
                len = 1 + rng.below(3);
            }
            5 => segment.ack = flow.next.plus(1 + rng.below(1 << 20)),
            6 => segment.ack = SeqNum(flow.next.0.wrapping_sub(rng.below(60_000))),
            7 | 8 => {
                let mut sack = SackBlocks::new();
                for _ in 0..3 {
                    let left = SeqNum(flow.next.0.wrapping_sub(rng.below(20_000)));
                    let len = [1, 2, 1000, 100_000][rng.below(4) as usize];
                    sack.push(left, left.plus(len));
                }
                segment.options.sack = sack;
                segment.ack = SeqNum(flow.next.0.wrapping_sub(20_000));
            }
            9 => {
                segment.flags = Flags::RST;
                segment.seq = flow.acked.plus(rng.below(1000));
            }
            10 => segment.flags = Flags::SYN,
            _ => {
                segment.flags = Flags::FIN | Flags::ACK;
                segment.seq = flow.acked.plus(rng.below(2));
            }
        }
        self.frame(&segment, len as usize)
    }

    fn answer_arp(&self, packet: &[u8]) -> Option<Vec<u8>> {
        let (asked, _) = arp::parse(packet).ok()?;
        if asked.operation != arp::Operation::Request || asked.target_addr != self.addr {
            return None;
        }
        let answer = arp::Packet {
            operation: arp::Operation::Reply,
            sender_mac: self.mac,
            sender_addr: self.addr,
            target_mac: asked.sender_mac,
            target_addr: asked.sender_addr,
        };
        let mut frame = vec![0; ethernet::HEADER_LEN + arp::PACKET_LEN];
        let header = ethernet::Header { dst: asked.sender_mac, src: self.mac, ethertype: EtherType::ARP };
        ethernet::emit(&header, &mut frame);
        arp::emit(&answer, &mut frame[ethernet::HEADER_LEN..]);
        Some(frame)
    }

    fn frame(&self, segment: &Segment, len: usize) -> Vec<u8> {
        let mut header = [0; HEADER_MAX];
        let header_len = tcp::emit(segment, &mut header);
        let mut text = header[..header_len].to_vec();
        text.resize(header_len + len, 0xbb);
        let sum = checksum::pseudo_header(self.addr, self.server.0, Protocol::TCP.0, text.len())
            .bytes(&text)
            .finish();
        text[16..18].copy_from_slice(&sum.to_be_bytes());
        let mut frame = vec![0; ethernet::HEADER_LEN + ipv4::HEADER_LEN];
        let addresses = ethernet::Header { dst: self.server.1, src: self.mac, ethertype: EtherType::IPV4 };
        ethernet::emit(&addresses, &mut frame);
        frame.extend_from_slice(&text);
        let packet = ipv4::Header {
            src: self.addr,
            dst: self.server.0,
            protocol: Protocol::TCP,
            payload_len: text.len() as u16,
            ttl: 64,
            ..Default::default()
        };
        ipv4::emit(&packet, &mut frame[ethernet::HEADER_LEN..]);
        frame
    }
}

const FIRST_PORT: u16 = 7000;
