//! Finds the flow that a frame belongs to.

use atoll_base::{Addr, Endpoint, FourTuple};
use atoll_wire::ethernet::{self, EtherType};
use atoll_wire::ipv4::{self, Protocol};
use atoll_wire::{arp, dhcp, icmp, icmpv6, ipv6, mld, nd};

/// The class of a frame, as steering needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The frame belongs to this flow, as seen from this stack, and is handled by the flow's owner.
    Flow(FourTuple),
    /// The frame concerns the stack as a whole, for which replica 0 acts: IGMP, reports of MLD version 1,
    /// DHCP, and ARP about an address that is not yet in use.
    Stack,
    /// Any replica may handle the frame: other ARP, echo, broadcasts, frames that will be dropped anyway.
    Any,
    /// Every replica handles the frame: what routers and neighbours say to an IPv6 host, and what may contest
    /// its addresses.
    All,
}

/// Classifies `frame`, which starts at the Ethernet header. Never panics; an unreadable frame is
/// [`Class::Any`], and is judged by the IP component. The rule for packets with ports is the one in
/// `bpf/steer.c`.
pub fn classify(frame: &[u8]) -> Class {
    if frame.get(12..14) == Some(&EtherType::IPV6.0.to_be_bytes()) {
        return classify_v6(frame).unwrap_or(Class::Any);
    }
    let Some((header, payload)) = ipv4_packet(frame) else {
        return classify_arp(frame).unwrap_or(Class::Any);
    };
    let tuple = |src_port, dst_port| {
        let (local, remote) = (Endpoint::new(header.dst, dst_port), Endpoint::new(header.src, src_port));
        Class::Flow(FourTuple { local, remote })
    };
    match header.protocol {
        // Later fragments have no ports. All fragments of a packet go to the replica that this tuple leads
        // to; the reassembled packet then goes to its owner.
        _ if header.is_fragment() => tuple(header.id, header.protocol.0.into()),
        // The destination address may not be ours yet; the DHCP client is in replica 0.
        Protocol::UDP if payload.starts_with(&FROM_DHCP_SERVER) => Class::Stack,
        Protocol::TCP | Protocol::UDP => match payload {
            [a, b, c, d, ..] => tuple(u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d])),
            _ => Class::Any,
        },
        Protocol::IGMP => Class::Stack,
        Protocol::ICMP => quoted_flow(payload).map_or(Class::Any, Class::Flow),
        _ => Class::Any,
    }
}

/// Classifies an ARP frame. Probes (RFC 5227 §2.1.1) have the sender address 0.0.0.0, and so have replies to
/// them: they are about an address that a host wants to have.
fn classify_arp(frame: &[u8]) -> Option<Class> {
    let (ethernet, at) = ethernet::parse(frame).ok()?;
    let (packet, _) = arp::parse(frame.get(at..).filter(|_| ethernet.ethertype == EtherType::ARP)?).ok()?;
    (packet.sender_addr == 0 || packet.target_addr == 0).then_some(Class::Stack)
}

/// Classifies an IPv6 frame as `classify` does for IPv4. Unlike `bpf/steer.c` this looks behind extension
/// headers: what the kernel has given to the wrong replica is passed on.
fn classify_v6(frame: &[u8]) -> Option<Class> {
    let packet = frame.get(ethernet::HEADER_LEN..)?;
    let (header, at) = ipv6::parse(packet).ok()?;
    let payload = packet.get(at..at + usize::from(header.payload_len))?;
    let upper = ipv6::upper(&header, payload).ok()?;
    let tuple =
        |src, dst| FourTuple { local: Endpoint::at(header.dst, dst), remote: Endpoint::at(header.src, src) };
    let text = payload.get(upper.at..)?;
    // Fragments are treated as those of IPv4, but the identification alone takes the place of the ports: the
    // fragments of a packet may name different protocols.
    if let Some(fragment) = upper.fragment.filter(|fragment| !fragment.is_atomic()) {
        return Some(Class::Flow(tuple((fragment.id >> 16) as u16, fragment.id as u16)));
    }
    Some(match (upper.protocol, text) {
        (Protocol::TCP | Protocol::UDP, [a, b, c, d, ..]) => {
            Class::Flow(tuple(u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d])))
        }
        (
            Protocol::ICMPV6,
            [nd::ROUTER_ADVERTISEMENT | nd::NEIGHBOUR_ADVERTISEMENT | nd::REDIRECT | mld::QUERY, ..],
        ) => Class::All,
        // A report of another listener in version 1, which saves the replica that reports for us an answer.
        (Protocol::ICMPV6, [mld::REPORT_V1, ..]) => Class::Stack,
        // This is a probe (RFC 4862 §5.4): the address may be one that we are testing ourselves.
        (Protocol::ICMPV6, [nd::NEIGHBOUR_SOLICITATION, ..]) if header.src == Addr::ANY => Class::All,
        (Protocol::ICMPV6, _) => {
            let (message, len) = icmpv6::parse(header.src, header.dst, text).ok()?;
            let quoted = icmpv6::quoted(text.get(len..).filter(|_| message.is_error())?).ok()?;
            Class::Flow(FourTuple { local: quoted.source, remote: quoted.destination })
        }
        _ => Class::Any,
    })
}

/// Returns the flow that an ICMP error belongs to: that of the packet it quotes, which we sent, so that its
/// source is our end.
fn quoted_flow(payload: &[u8]) -> Option<FourTuple> {
    let (message, header_len) = icmp::parse(payload).ok()?;
    if !message.is_error() {
        return None;
    }
    let quoted = icmp::quoted(payload.get(header_len..)?).ok()?;
    Some(FourTuple { local: quoted.source, remote: quoted.destination })
}

/// The ports of a datagram from a DHCP server to a client.
const FROM_DHCP_SERVER: [u8; 4] = {
    let ([a, b], [c, d]) = (dhcp::SERVER_PORT.to_be_bytes(), dhcp::CLIENT_PORT.to_be_bytes());
    [a, b, c, d]
};

fn ipv4_packet(frame: &[u8]) -> Option<(ipv4::Header, &[u8])> {
    let (ethernet, at) = ethernet::parse(frame).ok()?;
    if ethernet.ethertype != EtherType::IPV4 {
        return None;
    }
    let packet = frame.get(at..)?;
    let (header, header_len) = ipv4::parse(packet).ok()?;
    let end = header_len + usize::from(header.payload_len);
    Some((header, packet.get(header_len..end)?))
}

#[cfg(test)]
mod tests;
