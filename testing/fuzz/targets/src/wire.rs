//! Checks that every parser accepts only what could have been emitted, and stays within its bytes.

use atoll_base::{Addr, Endpoint};
use atoll_wire::{arp, checksum, ethernet, icmp, icmpv6, igmp, ipv4, ipv6, mld, nd, udp, vnet};

use crate::ip::{PEER_V6, US_V6};

/// Parses Ethernet headers.
pub fn wire_ethernet(data: &[u8]) {
    if let Ok((header, len)) = ethernet::parse(data) {
        let mut out = [0; ethernet::HEADER_LEN];
        ethernet::emit(&header, &mut out);
        assert_eq!(out[..], data[..len]);
    }
}

/// Parses ARP packets.
pub fn wire_arp(data: &[u8]) {
    if let Ok((packet, len)) = arp::parse(data) {
        let mut out = [0; arp::PACKET_LEN];
        arp::emit(&packet, &mut out);
        assert_eq!(out[..], data[..len]);
    }
}

/// Parses IPv4 headers with their checksum repaired, whole and as quotations.
pub fn wire_ipv4(data: &[u8]) {
    let _ = ipv4::parse(data);
    let mut repaired = data.to_vec();
    repair_ipv4(&mut repaired);
    let Ok((header, len)) = ipv4::parse(&repaired) else { return };
    assert!((20..=60).contains(&len));
    assert!(repaired.get(len..len + usize::from(header.payload_len)).is_some());
    assert_eq!(ipv4::parse_quoted(&repaired), Ok((header, len)));
    // Options are not kept, so the emitted header may be shorter; its payload is as long.
    let mut out = vec![0; ipv4::HEADER_LEN + usize::from(header.payload_len)];
    ipv4::emit(&header, &mut out);
    assert_eq!(ipv4::parse(&out), Ok((header, ipv4::HEADER_LEN)));
}

/// Parses ICMP messages with their checksum repaired, and what they quote.
pub fn wire_icmp(data: &[u8]) {
    let _ = icmp::parse(data);
    let _ = icmp::quoted(data);
    let mut repaired = data.to_vec();
    repair_icmp(&mut repaired);
    let Ok((message, len)) = icmp::parse(&repaired) else { return };
    let mut out = repaired.clone();
    icmp::emit(&message, &mut out);
    assert_eq!(icmp::parse(&out), Ok((message, len)));
    if let Ok(quoted) = icmp::quoted(&repaired[len..]) {
        assert_eq!(Endpoint::new(quoted.header.src, quoted.source.port), quoted.source);
        assert_eq!(quoted.header.fragment_offset, 0);
    }
}

/// Parses IGMP messages with their checksum repaired.
pub fn wire_igmp(data: &[u8]) {
    let _ = igmp::parse(data);
    let mut repaired = data.to_vec();
    let Some(field) = repaired.get_mut(2..4) else { return };
    field.fill(0);
    let sum = checksum::sum(&repaired).finish();
    repaired[2..4].copy_from_slice(&sum.to_be_bytes());
    let Ok(message) = igmp::parse(&repaired) else { return };
    let mut out = [0; igmp::HEADER_LEN];
    if igmp::emit(&message, &mut out).is_some() {
        assert_eq!(igmp::parse(&out), Ok(message));
    }
}

/// Parses IPv6 headers, and walks over their extension headers.
pub fn wire_ipv6(data: &[u8]) {
    let Ok((header, len)) = ipv6::parse_quoted(data) else { return };
    let mut out = [0; ipv6::HEADER_LEN];
    ipv6::emit(&header, &mut out);
    assert_eq!(out[..], data[..len]);
    assert_eq!(ipv6::parse(data).is_ok(), data.len() >= len + usize::from(header.payload_len));
    let payload = &data[len..];
    match ipv6::upper(&header, payload) {
        Ok(upper) => {
            assert!(upper.at <= payload.len());
            let is_part = upper.fragment.is_some_and(|fragment| !fragment.is_atomic());
            let mut packet = data.to_vec();
            if let (Ok(hole), true) = (ipv6::make_whole(&mut packet, false), is_part) {
                assert_eq!(hole, len + upper.at - ipv6::FRAGMENT_LEN..len + upper.at);
                packet.drain(hole);
                let (whole, _) = ipv6::parse(&packet).expect("what was made whole is a packet");
                assert_eq!(packet.len(), len + usize::from(whole.payload_len));
                let found = ipv6::first_fragment(upper.protocol, &payload[upper.at..]);
                if let (Ok(first), Ok(whole)) = (found, ipv6::upper(&whole, &packet[len..])) {
                    assert_eq!((first.protocol, whole.fragment), (whole.protocol, None));
                }
            }
        }
        Err(ipv6::ExtensionError::Problem { pointer, .. }) => assert!((pointer as usize) < data.len()),
        Err(_) => {}
    }
}

/// Parses ICMPv6 messages with their checksum repaired: errors and what they quote, neighbour and listener
/// discovery.
pub fn wire_icmpv6(data: &[u8]) {
    let _ = icmpv6::parse(PEER_V6, US_V6, data);
    let mut repaired = data.to_vec();
    repair_icmpv6(PEER_V6, US_V6, &mut repaired);
    let Ok((message, len)) = icmpv6::parse(PEER_V6, US_V6, &repaired) else { return };
    let mut out = repaired.clone();
    icmpv6::emit(PEER_V6, US_V6, &message, &mut out);
    assert_eq!(icmpv6::parse(PEER_V6, US_V6, &out), Ok((message, len)));
    if let Ok(quoted) = icmpv6::quoted(&repaired[len..]) {
        assert_eq!(quoted.header.src, quoted.source.addr);
    }
    if let Ok(message) = mld::parse(&repaired) {
        let mut out = [0; mld::LEN_V1];
        if mld::emit_v1(PEER_V6, &message, &mut out).is_some() {
            assert_eq!(mld::parse(&out), Ok(message));
        }
    }
    if let Ok(message) = nd::parse(&repaired) {
        let mut out = [0; nd::MESSAGE_LEN_MAX];
        let len = nd::emit(PEER_V6, US_V6, &message, &mut out);
        assert_eq!(nd::parse(&out[..len]), Ok(message));
    }
}

/// Parses UDP headers, and compares checksums.
pub fn wire_udp(data: &[u8]) {
    let Ok((header, len)) = udp::parse(data) else { return };
    let mut datagram = data[..len + usize::from(header.payload_len)].to_vec();
    let _ = udp::verify(1, 2, &datagram);
    let mut out = [0; udp::HEADER_LEN];
    udp::emit(&header, &mut out);
    assert_eq!(out[..], data[..len]);
    udp::seal(1, 2, &mut datagram);
    assert!(udp::verify(1, 2, &datagram));
    assert_ne!(datagram[6..8], [0, 0], "zero means that there is no checksum");
}

/// Parses the header before a frame of a TAP.
pub fn wire_vnet(data: &[u8]) {
    if let Ok((header, len)) = vnet::parse(data) {
        let mut out = [0; vnet::HEADER_LEN];
        vnet::emit(&header, &mut out);
        assert_eq!(out[..], data[..len]);
    }
}

/// Repairs the header checksum, so that mutations get past it.
pub(crate) fn repair_ipv4(packet: &mut [u8]) {
    let len = packet.first().map_or(0, |first| usize::from(first & 0xf) * 4);
    repair(packet.get_mut(..len), 10);
}

/// Repairs the checksum of an ICMP message.
pub(crate) fn repair_icmp(message: &mut [u8]) {
    repair(Some(message), 2);
}

/// Repairs the checksum of an ICMPv6 message.
pub(crate) fn repair_icmpv6(src: Addr, dst: Addr, message: &mut [u8]) {
    let Some(field) = message.get_mut(2..4) else { return };
    field.fill(0);
    let sum = checksum::pseudo_header_v6(src, dst, ipv4::Protocol::ICMPV6.0, message.len()).bytes(message);
    message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
}

fn repair(bytes: Option<&mut [u8]>, at: usize) {
    let Some(bytes) = bytes else { return };
    let Some(field) = bytes.get_mut(at..at + 2) else { return };
    field.fill(0);
    let checksum = checksum::sum(bytes).finish();
    bytes[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}
