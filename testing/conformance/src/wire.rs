//! How does a script's segment look on the wire, and a segment from the wire in a script?

use std::fmt::Write;

use atoll_base::{Addr, Endpoint};
use atoll_wire::{Mac, arp, checksum, ethernet, ipv4};

use crate::parse::FLAGS;
use crate::script::{Icmp, Packet, TcpOption};

/// Who talks to whom: packetdrill's usual addresses.
pub const LOCAL: u32 = u32::from_be_bytes([192, 168, 0, 1]);
/// The other end.
pub const REMOTE: u32 = u32::from_be_bytes([192, 0, 2, 1]);
/// The router between them.
pub const GATEWAY: u32 = u32::from_be_bytes([192, 168, 0, 254]);
/// Bits of the network that both [`LOCAL`] and [`GATEWAY`] are on.
pub const PREFIX_LEN: u8 = 24;
/// The stack's hardware address.
pub const LOCAL_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// The router's.
pub const GATEWAY_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);

const TCP_HEADER: usize = 20;
/// The kind of the Fast Open option.
const FAST_OPEN: u8 = 34;

/// A segment with the ports of both ends, and numbers as on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Sender.
    pub from: Endpoint,
    /// Receiver.
    pub to: Endpoint,
    /// The rest.
    pub packet: Packet,
}

fn put_options(options: &[TcpOption], out: &mut Vec<u8>) {
    for option in options {
        match option {
            TcpOption::Nop => out.push(1),
            TcpOption::End => out.push(0),
            TcpOption::Mss(mss) => {
                out.extend([2, 4]);
                out.extend(mss.to_be_bytes());
            }
            TcpOption::WindowScale(shift) => out.extend([3, 3, *shift]),
            TcpOption::SackOk => out.extend([4, 2]),
            TcpOption::Sack(blocks) => {
                out.extend([5, 2 + 8 * blocks.len() as u8]);
                for (left, right) in blocks {
                    out.extend(left.to_be_bytes());
                    out.extend(right.to_be_bytes());
                }
            }
            TcpOption::Timestamps { value, echo } => {
                out.extend([8, 10]);
                out.extend(value.to_be_bytes());
                out.extend(echo.to_be_bytes());
            }
            TcpOption::FastOpen(octets) => {
                out.extend([FAST_OPEN, 2 + octets.len() as u8]);
                out.extend(octets);
            }
            TcpOption::Other(kind, octets) => {
                out.extend([*kind, 2 + octets.len() as u8]);
                out.extend(octets);
            }
        }
    }
    while !out.len().is_multiple_of(4) {
        out.push(0);
    }
}

fn word(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().copied().map(u32::from_be_bytes)
}

fn get_options(mut bytes: &[u8]) -> Vec<TcpOption> {
    let mut options = Vec::new();
    while let Some((&kind, after)) = bytes.split_first() {
        if kind < 2 {
            options.push(if kind == 0 { TcpOption::End } else { TcpOption::Nop });
            bytes = after;
            continue;
        }
        let body = after.first().and_then(|len| after.get(1..usize::from(*len).checked_sub(1)?));
        let Some(body) = body else { break };
        bytes = &after[1 + body.len()..];
        options.push(match (kind, body) {
            (2, &[a, b]) => TcpOption::Mss(u16::from_be_bytes([a, b])),
            (3, &[shift]) => TcpOption::WindowScale(shift),
            (4, []) => TcpOption::SackOk,
            (5, blocks) if blocks.len() % 8 == 0 => {
                let blocks = blocks.chunks_exact(8);
                TcpOption::Sack(blocks.filter_map(|block| Some((word(block)?, word(&block[4..])?))).collect())
            }
            (8, body) if body.len() == 8 => TcpOption::Timestamps {
                value: word(body).unwrap_or_default(),
                echo: word(&body[4..]).unwrap_or_default(),
            },
            (FAST_OPEN, cookie) => TcpOption::FastOpen(cookie.to_vec()),
            _ => TcpOption::Other(kind, body.to_vec()),
        });
    }
    options
}

fn ethernet(ethertype: ethernet::EtherType, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; ethernet::HEADER_LEN];
    ethernet::emit(&ethernet::Header { dst: LOCAL_MAC, src: GATEWAY_MAC, ethertype }, &mut frame);
    frame.extend(payload);
    frame
}

/// The frame of a segment to the stack. Its text is zeros.
pub fn frame(segment: &Segment) -> Vec<u8> {
    let packet = &segment.packet;
    let mut options = Vec::new();
    put_options(packet.options.as_deref().unwrap_or_default(), &mut options);
    let offset = ((TCP_HEADER + options.len()) / 4) as u8;
    let mut tcp = Vec::new();
    tcp.extend(segment.from.port.to_be_bytes());
    tcp.extend(segment.to.port.to_be_bytes());
    tcp.extend(packet.seq.to_be_bytes());
    tcp.extend(packet.ack.unwrap_or_default().to_be_bytes());
    tcp.extend([offset << 4, packet.flags]);
    tcp.extend(packet.window.unwrap_or_default().to_be_bytes());
    tcp.extend([0, 0]);
    tcp.extend(packet.urgent.unwrap_or_default().to_be_bytes());
    tcp.extend(options);
    tcp.resize(tcp.len() + packet.len as usize, 0);
    let protocol = ipv4::Protocol::TCP;
    let (src, dst) = (segment.from.addr, segment.to.addr);
    let sum = checksum::pseudo_header_of(src, dst, protocol.0, tcp.len()).bytes(&tcp).finish();
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    let header = ipv4::Header {
        // Scripts speak IPv4.
        src: src.to_v4().unwrap_or_default(),
        dst: dst.to_v4().unwrap_or_default(),
        protocol,
        payload_len: tcp.len() as u16,
        tos: packet.ecn.unwrap_or_default(),
        ttl: 255,
        id: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
    };
    let mut ip = vec![0; ipv4::HEADER_LEN];
    ipv4::emit(&header, &mut ip);
    ip.extend(tcp);
    ethernet(ethernet::EtherType::IPV4, &ip)
}

/// The frame of an ICMP message about a segment of the stack's that begins at `seq`.
pub fn icmp_frame(message: &Icmp, local: Endpoint, remote: Endpoint, seq: u32) -> Vec<u8> {
    let header = |src: Addr, dst: Addr, protocol, payload_len| {
        let header = ipv4::Header {
            src: src.to_v4().unwrap_or_default(),
            dst: dst.to_v4().unwrap_or_default(),
            protocol,
            payload_len,
            tos: 0,
            ttl: 64,
            id: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
        };
        let mut bytes = vec![0; ipv4::HEADER_LEN];
        ipv4::emit(&header, &mut bytes);
        bytes
    };
    let mut quoted = header(local.addr, remote.addr, ipv4::Protocol::TCP, message.len.saturating_add(20));
    quoted.extend(local.port.to_be_bytes());
    quoted.extend(remote.port.to_be_bytes());
    quoted.extend(seq.to_be_bytes());
    let mut icmp = vec![message.kind, message.code, 0, 0, 0, 0];
    icmp.extend(message.mtu.to_be_bytes());
    icmp.extend(quoted);
    let sum = checksum::sum(&icmp).finish();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut ip = header(remote.addr, local.addr, ipv4::Protocol::ICMP, icmp.len() as u16);
    ip.extend(icmp);
    ethernet(ethernet::EtherType::IPV4, &ip)
}

/// What the stack has sent.
pub enum Sent {
    /// A segment.
    Segment(Segment),
    /// A question for a hardware address, and the answer.
    Question(Vec<u8>),
    /// Something else.
    Other,
}

/// Reads a frame from the stack.
pub fn read(frame: &[u8]) -> Sent {
    let Ok((header, at)) = ethernet::parse(frame) else { return Sent::Other };
    let payload = &frame[at..];
    if header.ethertype == ethernet::EtherType::ARP {
        return answer(payload).map_or(Sent::Other, Sent::Question);
    }
    segment(payload).map_or(Sent::Other, Sent::Segment)
}

fn answer(question: &[u8]) -> Option<Vec<u8>> {
    let (question, _) = arp::parse(question).ok()?;
    let answer = arp::Packet {
        operation: arp::Operation::Reply,
        sender_mac: GATEWAY_MAC,
        sender_addr: question.target_addr,
        target_mac: question.sender_mac,
        target_addr: question.sender_addr,
    };
    // Nobody answers for the stack's own address (RFC 5227 asks for it).
    let asks = question.operation == arp::Operation::Request && question.target_addr == GATEWAY;
    let mut bytes = vec![0; arp::PACKET_LEN];
    arp::emit(&answer, &mut bytes);
    asks.then(|| ethernet(ethernet::EtherType::ARP, &bytes))
}

fn segment(packet: &[u8]) -> Option<Segment> {
    let (header, at) = ipv4::parse(packet).ok()?;
    if header.protocol != ipv4::Protocol::TCP {
        return None;
    }
    let tcp = packet.get(at..at + usize::from(header.payload_len))?;
    let port = |at: usize| Some(u16::from_be_bytes([*tcp.get(at)?, *tcp.get(at + 1)?]));
    let (flags, offset) = (*tcp.get(13)?, usize::from(tcp.get(12)? >> 4) * 4);
    let ack = word(&tcp[8..])?;
    Some(Segment {
        from: Endpoint::new(header.src, port(0)?),
        to: Endpoint::new(header.dst, port(2)?),
        packet: Packet {
            ecn: Some(header.tos & 3),
            flags,
            seq: word(&tcp[4..])?,
            len: u32::try_from(tcp.len().checked_sub(offset)?).ok()?,
            ack: (flags & 0x10 != 0).then_some(ack),
            window: port(14),
            urgent: port(18).filter(|_| flags & 0x20 != 0),
            options: Some(get_options(tcp.get(TCP_HEADER..offset)?)),
        },
    })
}

/// A segment as a script has it.
pub fn describe(packet: &Packet) -> String {
    let mut text = match packet.ecn {
        Some(1) => "[ect1] ".to_owned(),
        Some(2) => "[ect0] ".to_owned(),
        Some(3) => "[ce] ".to_owned(),
        _ => String::new(),
    };
    let flags: String =
        FLAGS.iter().rev().filter(|(_, bit)| packet.flags & bit != 0).map(|(letter, _)| letter).collect();
    let flags = if flags.is_empty() { "-".to_owned() } else { flags };
    // The acknowledgement's dot comes last, as tcpdump has it.
    let flags = if flags.contains('.') { flags.replace('.', "") + "." } else { flags };
    let _ = write!(text, "{flags} {}:{}({})", packet.seq, packet.seq.wrapping_add(packet.len), packet.len);
    if let Some(ack) = packet.ack {
        let _ = write!(text, " ack {ack}");
    }
    if let Some(window) = packet.window {
        let _ = write!(text, " win {window}");
    }
    if let Some(urgent) = packet.urgent {
        let _ = write!(text, " urg {urgent}");
    }
    match packet.options.as_deref() {
        None => text += " <...>",
        Some([]) => {}
        Some(options) => {
            let options: Vec<String> = options.iter().map(describe_option).collect();
            let _ = write!(text, " <{}>", options.join(","));
        }
    }
    text
}

fn describe_option(option: &TcpOption) -> String {
    match option {
        TcpOption::Nop => "nop".to_owned(),
        TcpOption::End => "eol".to_owned(),
        TcpOption::Mss(mss) => format!("mss {mss}"),
        TcpOption::WindowScale(shift) => format!("wscale {shift}"),
        TcpOption::SackOk => "sackOK".to_owned(),
        TcpOption::Sack(blocks) => {
            let blocks: Vec<String> = blocks.iter().map(|(left, right)| format!("{left}:{right}")).collect();
            format!("sack {}", blocks.join(" "))
        }
        TcpOption::Timestamps { value, echo } => format!("TS val {value} ecr {echo}"),
        TcpOption::FastOpen(octets) => {
            let digits: String = octets.iter().map(|octet| format!("{octet:02x}")).collect();
            format!("FO {digits}").trim_end().to_owned()
        }
        TcpOption::Other(kind, octets) => format!("kind {kind} {octets:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let packet = Packet {
            ecn: Some(2),
            flags: 0x18,
            seq: 1000,
            len: 7,
            ack: Some(5),
            window: Some(257),
            urgent: None,
            options: Some(vec![
                TcpOption::Mss(1460),
                TcpOption::Nop,
                TcpOption::WindowScale(7),
                TcpOption::Timestamps { value: 100, echo: 7 },
                TcpOption::Nop,
                TcpOption::Sack(vec![(1, 2)]),
                TcpOption::Other(99, vec![1, 2, 3]),
                TcpOption::Nop,
            ]),
        };
        let sent = Segment { from: Endpoint::new(REMOTE, 4), to: Endpoint::new(LOCAL, 80), packet };
        let Sent::Segment(seen) = read(&frame(&sent)) else { panic!("a segment") };
        assert_eq!(seen.to, sent.to);
        let padding = vec![TcpOption::End; 1];
        let (seen, sent) = (seen.packet.options.unwrap_or_default(), sent.packet.options.unwrap_or_default());
        assert_eq!(seen[..sent.len()], sent[..]);
        assert!(padding.ends_with(&seen[sent.len()..]), "{seen:?}");
    }
}
