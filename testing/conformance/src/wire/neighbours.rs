//! Answers the stack's questions for the router's hardware address: ARP, and neighbour discovery.

use atoll_base::Addr;
use atoll_wire::{arp, ethernet, ipv4, nd};

use super::packet::{ethernet_frame, ip};
use super::{GATEWAY, GATEWAY_MAC, GATEWAY_V6};
use crate::script::IpFacts;

/// Returns the answer to an ARP request for the router; `None` to others.
pub fn answer_arp(question: &[u8]) -> Option<Vec<u8>> {
    let (question, _) = arp::parse(question).ok()?;
    let answer = arp::Packet {
        operation: arp::Operation::Reply,
        sender_mac: GATEWAY_MAC,
        sender_addr: question.target_addr,
        target_mac: question.sender_mac,
        target_addr: question.sender_addr,
    };
    // The stack's own address, for which it also asks (RFC 5227), gets no answer.
    let asks = question.operation == arp::Operation::Request && question.target_addr == GATEWAY;
    let mut bytes = vec![0; arp::PACKET_LEN];
    arp::emit(&answer, &mut bytes);
    asks.then(|| ethernet_frame(ethernet::EtherType::ARP, &bytes))
}

/// Returns the answer to a neighbour solicitation for the router, from `src`; `None` to others.
pub fn answer_solicitation(src: Addr, message: &[u8]) -> Option<Vec<u8>> {
    // Solicitations for the stack's own addresses come from `::` (RFC 4862 §5.4).
    let Ok(nd::Message::NeighbourSolicitation { target: GATEWAY_V6, .. }) = nd::parse(message) else {
        return None;
    };
    let answer = nd::Message::NeighbourAdvertisement {
        target: GATEWAY_V6,
        router: true,
        solicited: true,
        overriding: true,
        target_mac: Some(GATEWAY_MAC),
    };
    let mut bytes = vec![0; nd::MESSAGE_LEN_MAX];
    let len = nd::emit(GATEWAY_V6, src, &answer, &mut bytes);
    let facts = IpFacts { ttl: Some(255), ..IpFacts::default() };
    Some(ip(GATEWAY_V6, src, ipv4::Protocol::ICMPV6.0, &facts, &bytes[..len]))
}
