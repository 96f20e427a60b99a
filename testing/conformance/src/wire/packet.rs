//! Converts packets to frames, and frames to packets.

use atoll_base::{Addr, Endpoint};
use atoll_wire::{checksum, ethernet, ipv4, ipv6};

use super::neighbours::{answer_arp, answer_solicitation};
use super::options::{get, put, word};
use super::{About, Frame, GATEWAY_MAC, LOCAL_MAC, Sent};
use crate::script::{Datagram, Echoed, Icmp, IpFacts, Message, Packet};

const TCP_HEADER: usize = 20;
const TTL: u8 = 255;
const FRAGMENTATION_NEEDED: (u8, u8) = (3, 4);
const PACKET_TOO_BIG: u8 = 2;
const NEIGHBOUR_SOLICITATION: u8 = 135;

/// Returns the frame of a packet to the stack, with a payload of zeros. `about` is the packet that an ICMP
/// message is about.
pub fn frame(sent: &Sent, about: Option<&About>) -> Vec<u8> {
    let (src, dst) = (sent.from.addr, sent.to.addr);
    match &sent.message {
        Message::Tcp(packet) => {
            let mut tcp = segment(packet, sent.from.port, sent.to.port);
            seal(src, dst, ipv4::Protocol::TCP.0, &mut tcp, 16);
            ip(src, dst, ipv4::Protocol::TCP.0, &packet.ip, &tcp)
        }
        Message::Udp(datagram) => {
            let mut udp = udp_header(sent.from.port, sent.to.port, datagram.len);
            udp.resize(udp.len() + usize::from(datagram.len), 0);
            seal(src, dst, ipv4::Protocol::UDP.0, &mut udp, 6);
            ip(src, dst, ipv4::Protocol::UDP.0, &datagram.ip, &udp)
        }
        Message::Icmp(message) => icmp(message, src, dst, about),
    }
}

fn seal(src: Addr, dst: Addr, protocol: u8, payload: &mut [u8], at: usize) {
    let sum = checksum::pseudo_header_of(src, dst, protocol, payload.len()).bytes(payload).finish();
    payload[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

fn segment(packet: &Packet, from: u16, to: u16) -> Vec<u8> {
    let mut options = Vec::new();
    put(packet.options.as_deref().unwrap_or_default(), &mut options);
    let offset = ((TCP_HEADER + options.len()) / 4) as u8;
    let mut tcp = Vec::new();
    tcp.extend(from.to_be_bytes());
    tcp.extend(to.to_be_bytes());
    tcp.extend(packet.seq.to_be_bytes());
    tcp.extend(packet.ack.unwrap_or_default().to_be_bytes());
    tcp.extend([offset << 4 | (packet.flags >> 8) as u8 & 1, packet.flags as u8]);
    tcp.extend(packet.window.unwrap_or_default().to_be_bytes());
    tcp.extend([0, 0]);
    tcp.extend(packet.urgent.unwrap_or_default().to_be_bytes());
    tcp.extend(options);
    tcp.resize(tcp.len() + packet.len as usize, 0);
    tcp
}

fn udp_header(from: u16, to: u16, len: u16) -> Vec<u8> {
    let mut udp = Vec::new();
    udp.extend(from.to_be_bytes());
    udp.extend(to.to_be_bytes());
    udp.extend(len.saturating_add(8).to_be_bytes());
    udp.extend([0, 0]);
    udp
}

/// Returns an ICMP message about a packet of the stack, whose first octets it quotes (RFC 792).
fn icmp(message: &Icmp, src: Addr, dst: Addr, about: Option<&About>) -> Vec<u8> {
    let mut icmp = vec![message.kind, message.code, 0, 0];
    let mtu = message.mtu.unwrap_or_default();
    icmp.extend(mtu.to_be_bytes());
    if let Some(about) = about {
        let (protocol, start, len) = match message.echoed {
            Some(Echoed::Udp(len)) => {
                let header = udp_header(about.from.port, about.to.port, len);
                (ipv4::Protocol::UDP.0, header, len.saturating_add(8))
            }
            echoed => {
                let len = if let Some(Echoed::Tcp(_, len)) = echoed { len } else { 0 };
                let packet = Packet { seq: about.seq, ..Packet::default() };
                let mut header = segment(&packet, about.from.port, about.to.port);
                header.truncate(8);
                (ipv4::Protocol::TCP.0, header, len.saturating_add(TCP_HEADER as u16))
            }
        };
        icmp.extend(ip_header(about.from.addr, about.to.addr, protocol, &IpFacts::default(), len));
        icmp.extend(start);
    }
    let protocol = if src.is_v4() {
        let sum = checksum::sum(&icmp).finish();
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        ipv4::Protocol::ICMP.0
    } else {
        seal(src, dst, ipv4::Protocol::ICMPV6.0, &mut icmp, 2);
        ipv4::Protocol::ICMPV6.0
    };
    ip(src, dst, protocol, &message.ip, &icmp)
}

fn ip_header(src: Addr, dst: Addr, protocol: u8, facts: &IpFacts, payload_len: u16) -> Vec<u8> {
    let (tos, _) = facts.tos.unwrap_or_default();
    let hops = facts.ttl.unwrap_or(TTL);
    let protocol = ipv4::Protocol(protocol);
    match (src.to_v4(), dst.to_v4()) {
        (Some(src), Some(dst)) => {
            let header = ipv4::Header {
                src,
                dst,
                protocol,
                payload_len,
                tos,
                ttl: hops,
                dont_fragment: true,
                ..ipv4::Header::default()
            };
            let mut bytes = vec![0; ipv4::HEADER_LEN];
            ipv4::emit(&header, &mut bytes);
            bytes
        }
        _ => {
            let header = ipv6::Header {
                src,
                dst,
                next_header: protocol,
                payload_len,
                traffic_class: tos,
                flow_label: facts.flow_label.unwrap_or_default() & 0x000f_ffff,
                hop_limit: hops,
            };
            let mut bytes = vec![0; ipv6::HEADER_LEN];
            ipv6::emit(&header, &mut bytes);
            bytes
        }
    }
}

/// Returns the frame of an IP packet to the stack.
pub(super) fn ip(src: Addr, dst: Addr, protocol: u8, facts: &IpFacts, payload: &[u8]) -> Vec<u8> {
    let mut packet = ip_header(src, dst, protocol, facts, payload.len() as u16);
    packet.extend(payload);
    let ethertype = if src.is_v4() { ethernet::EtherType::IPV4 } else { ethernet::EtherType::IPV6 };
    ethernet_frame(ethertype, &packet)
}

/// Returns a frame from the router.
pub(super) fn ethernet_frame(ethertype: ethernet::EtherType, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; ethernet::HEADER_LEN];
    ethernet::emit(&ethernet::Header { dst: LOCAL_MAC, src: GATEWAY_MAC, ethertype }, &mut frame);
    frame.extend(payload);
    frame
}

/// Reads a frame from the stack.
pub fn read(frame: &[u8]) -> Frame {
    let Ok((header, at)) = ethernet::parse(frame) else { return Frame::Other };
    let payload = &frame[at..];
    if header.ethertype == ethernet::EtherType::ARP {
        return answer_arp(payload).map_or(Frame::Other, Frame::Question);
    }
    let Some(ip) = open(payload) else { return Frame::Other };
    if ip.protocol == ipv4::Protocol::ICMPV6.0 && ip.payload.first() == Some(&NEIGHBOUR_SOLICITATION) {
        return answer_solicitation(ip.src, ip.payload).map_or(Frame::Other, Frame::Question);
    }
    carried(&ip).map_or(Frame::Other, Frame::Sent)
}

/// An IP packet that the stack sent.
struct Opened<'a> {
    src: Addr,
    dst: Addr,
    protocol: u8,
    facts: IpFacts,
    payload: &'a [u8],
}

fn open(packet: &[u8]) -> Option<Opened<'_>> {
    if packet.first()? >> 4 == 6 {
        let (header, at) = ipv6::parse(packet).ok()?;
        let payload = packet.get(at..at + usize::from(header.payload_len))?;
        let facts = IpFacts {
            tos: Some((header.traffic_class, 0xff)),
            ttl: Some(header.hop_limit),
            flow_label: Some(header.flow_label),
            any_ect: false,
        };
        return Some(Opened {
            src: header.src,
            dst: header.dst,
            protocol: header.next_header.0,
            facts,
            payload,
        });
    }
    let (header, at) = ipv4::parse(packet).ok()?;
    let payload = packet.get(at..at + usize::from(header.payload_len))?;
    let facts =
        IpFacts { tos: Some((header.tos, 0xff)), ttl: Some(header.ttl), flow_label: None, any_ect: false };
    let (src, dst) = (Addr::v4(header.src), Addr::v4(header.dst));
    Some(Opened { src, dst, protocol: header.protocol.0, facts, payload })
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

fn carried(packet: &Opened<'_>) -> Option<Sent> {
    let (protocol, payload) = (ipv4::Protocol(packet.protocol), packet.payload);
    let at = |addr: Addr, port: u16| Endpoint::at(addr, port);
    if matches!(protocol, ipv4::Protocol::ICMP | ipv4::Protocol::ICMPV6) {
        let message = read_icmp(packet)?.into();
        return Some(Sent { from: at(packet.src, 0), to: at(packet.dst, 0), message });
    }
    let ports = (half(payload, 0)?, half(payload, 2)?);
    let message = match protocol {
        ipv4::Protocol::TCP => read_segment(packet, ports)?.into(),
        ipv4::Protocol::UDP => {
            Datagram { ip: packet.facts, ports: Some(ports), len: half(payload, 4)?.checked_sub(8)? }.into()
        }
        _ => return None,
    };
    Some(Sent { from: at(packet.src, ports.0), to: at(packet.dst, ports.1), message })
}

fn read_segment(packet: &Opened<'_>, ports: (u16, u16)) -> Option<Packet> {
    let tcp = packet.payload;
    let first = *tcp.get(12)?;
    let flags = u16::from(*tcp.get(13)?) | u16::from(first & 1) << 8;
    let offset = usize::from(first >> 4) * 4;
    let ack = word(&tcp[8..])?;
    Some(Packet {
        ip: packet.facts,
        ports: Some(ports),
        flags,
        seq: word(&tcp[4..])?,
        len: u32::try_from(tcp.len().checked_sub(offset)?).ok()?,
        ack: (flags & 0x10 != 0).then_some(ack),
        window: half(tcp, 14),
        urgent: half(tcp, 18).filter(|_| flags & 0x20 != 0),
        options: Some(get(tcp.get(TCP_HEADER..offset)?)),
    })
}

/// Reads an ICMP error; other ICMP messages do not occur in scripts.
fn read_icmp(packet: &Opened<'_>) -> Option<Icmp> {
    let &[kind, code, _, _, a, b, c, d] = packet.payload.first_chunk()?;
    let is_v4 = packet.src.is_v4();
    let is_error = if is_v4 { matches!(kind, 3 | 4 | 11 | 12) } else { kind < 128 };
    if !is_error {
        return None;
    }
    let quoted = packet.payload.get(8..)?;
    let (protocol, at, len) = if is_v4 {
        let (header, at) = ipv4::parse_quoted(quoted).ok()?;
        (header.protocol, at, header.payload_len)
    } else {
        let (header, at) = ipv6::parse_quoted(quoted).ok()?;
        (header.next_header, at, header.payload_len)
    };
    let start = quoted.get(at..)?;
    let echoed = match protocol {
        ipv4::Protocol::UDP => Some(Echoed::Udp(len.saturating_sub(8))),
        ipv4::Protocol::TCP => {
            let header = start.get(12).map_or(TCP_HEADER as u16, |offset| u16::from(offset >> 4) * 4);
            Some(Echoed::Tcp(word(start.get(4..)?)?, len.saturating_sub(header)))
        }
        _ => None,
    };
    let tells_mtu = if is_v4 { (kind, code) == FRAGMENTATION_NEEDED } else { kind == PACKET_TOO_BIG };
    let mtu = tells_mtu.then_some(u32::from_be_bytes([a, b, c, d]));
    Some(Icmp { ip: packet.facts, kind, code, mtu, echoed })
}

/// Returns the headers of one segment of several. Checksums of TCP are not updated.
pub fn cut(headers: &[u8], skip: usize, len: usize, is_last: bool) -> Vec<u8> {
    const IP: usize = ethernet::HEADER_LEN;
    let is_v6 = headers[IP] >> 4 == 6;
    let tcp = IP + if is_v6 { ipv6::HEADER_LEN } else { ipv4::HEADER_LEN };
    let mut headers = headers.to_vec();
    let seq = word(&headers[tcp + 4..]).unwrap_or_default();
    headers[tcp + 4..tcp + 8].copy_from_slice(&seq.wrapping_add(skip as u32).to_be_bytes());
    if !is_last {
        // FIN and PSH are set on the last segment only.
        headers[tcp + 13] &= !0x09;
    }
    if skip > 0 {
        // CWR is set on the first segment only (RFC 3168 §6.1.2).
        headers[tcp + 13] &= !0x80;
    }
    if is_v6 {
        let payload = (headers.len() - tcp + len) as u16;
        headers[IP + 4..IP + 6].copy_from_slice(&payload.to_be_bytes());
        return headers;
    }
    let total = (headers.len() - IP + len) as u16;
    headers[IP + 2..IP + 4].copy_from_slice(&total.to_be_bytes());
    headers[IP + 10..IP + 12].fill(0);
    let sum = checksum::sum(&headers[IP..tcp]).finish();
    headers[IP + 10..IP + 12].copy_from_slice(&sum.to_be_bytes());
    headers
}
