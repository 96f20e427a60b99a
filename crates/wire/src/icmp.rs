//! ICMP (RFC 792), by which the network answers this stack's packets; next-hop MTU, RFC 1191.

use atoll_base::{Endpoint, SeqNum};
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ipv4::{self, Protocol};
use crate::{ParseError, checksum};

/// Bytes of every ICMP header supported here; payload or quotation follows.
pub const HEADER_LEN: usize = 8;

/// The head of an ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// An echo request; its payload comes back in the reply.
    EchoRequest {
        /// The identifier, chosen by the asker, usually one per process.
        id: u16,
        /// The sequence number, chosen by the asker, usually counting.
        seq: u16,
    },
    /// An echo reply.
    EchoReply {
        /// The identifier of the request.
        id: u16,
        /// The sequence number of the request.
        seq: u16,
    },
    /// A packet of this stack, quoted behind the header, could not be delivered.
    Unreachable {
        /// The reason; see [`code`].
        code: u8,
        /// With [`code::FRAGMENTATION_NEEDED`], the MTU of the next link; 0 from routers older than RFC 1191.
        next_hop_mtu: u16,
    },
    /// A packet of this stack, quoted behind the header, ran out of hops (code 0) or of time for reassembly
    /// (code 1).
    TimeExceeded {
        /// The reason: 0 or 1.
        code: u8,
    },
    /// A message of a type on which this stack does not act.
    Other {
        /// The type octet.
        kind: u8,
        /// The code octet.
        code: u8,
        /// The four bytes whose meaning depends on the type.
        rest: [u8; 4],
    },
}

/// Codes of [`Message::Unreachable`] (RFC 792, RFC 1122 §3.2.2.1, RFC 1812 §5.2.7.1).
pub mod code {
    /// There is no route to the network.
    pub const NET: u8 = 0;
    /// The host does not answer.
    pub const HOST: u8 = 1;
    /// The host does not speak the protocol.
    pub const PROTOCOL: u8 = 2;
    /// No socket listens on the port.
    pub const PORT: u8 = 3;
    /// The packet is larger than the next link can carry, and may not be fragmented.
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// An administrator has forbidden the packet.
    pub const ADMINISTRATIVELY_PROHIBITED: u8 = 13;
    /// The packet's precedence is below what the router takes: the last code (RFC 1812 §5.2.7.1).
    pub const PRECEDENCE_CUTOFF: u8 = 15;
}

/// The packet that an ICMP error is about, as far as the error quotes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// The IPv4 header of the packet.
    pub header: ipv4::Header,
    /// The sender of the packet: a socket of this stack, if the error is honest. The port is the identifier
    /// of an echo request, and 0 unless the packet was one, or TCP or UDP.
    pub source: Endpoint,
    /// The destination of the packet.
    pub destination: Endpoint,
    /// The sequence number of the packet, if it was TCP. An error about data that is not in flight is forged
    /// or late (RFC 5927).
    pub seq: Option<SeqNum>,
    /// The first octets behind the IPv4 header of the packet.
    pub head: Head,
    /// Where in the quotation the octets behind those begin.
    pub text_at: usize,
}

/// The first eight octets of the transport header of a packet, which every error quotes (RFC 792).
pub type Head = [u8; 8];

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    kind: u8,
    code: u8,
    checksum: U16,
    rest: [u8; 4],
}

const _: () = assert!(size_of::<Layout>() == HEADER_LEN);

/// Reads the head of the ICMP message that fills `bytes` (an IPv4 payload without padding) and verifies its
/// checksum.
pub fn parse(bytes: &[u8]) -> Result<(Message, usize), ParseError> {
    let (raw, _) = Layout::ref_from_prefix(bytes).map_err(|_| ParseError::Truncated)?;
    if !checksum::sum(bytes).is_valid() {
        return Err(ParseError::BadChecksum);
    }
    let [a, b, c, d] = raw.rest;
    let (first, second) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let message = match (raw.kind, raw.code) {
        (ECHO_REQUEST, 0) => Message::EchoRequest { id: first, seq: second },
        (ECHO_REPLY, 0) => Message::EchoReply { id: first, seq: second },
        (UNREACHABLE, code) => Message::Unreachable { code, next_hop_mtu: second },
        (TIME_EXCEEDED, code) => Message::TimeExceeded { code },
        (kind, code) => Message::Other { kind, code, rest: raw.rest },
    };
    Ok((message, HEADER_LEN))
}

/// Writes the head of `message` at the start of `out`, whose other bytes already hold the payload, and the
/// checksum over all of `out`. Panics if `out` is shorter than [`HEADER_LEN`].
pub fn emit(message: &Message, out: &mut [u8]) -> usize {
    let pair = |first: u16, second: u16| {
        let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
        [a, b, c, d]
    };
    let (kind, code, rest) = match *message {
        Message::EchoRequest { id, seq } => (ECHO_REQUEST, 0, pair(id, seq)),
        Message::EchoReply { id, seq } => (ECHO_REPLY, 0, pair(id, seq)),
        Message::Unreachable { code, next_hop_mtu } => (UNREACHABLE, code, pair(0, next_hop_mtu)),
        Message::TimeExceeded { code } => (TIME_EXCEEDED, code, [0; 4]),
        Message::Other { kind, code, rest } => (kind, code, rest),
    };
    let (head, payload) = out.split_at_mut(HEADER_LEN);
    let mut raw = Layout { kind, code, checksum: U16::ZERO, rest };
    raw.checksum = U16::new(checksum::sum(raw.as_bytes()).bytes(payload).finish());
    head.copy_from_slice(raw.as_bytes());
    HEADER_LEN
}

/// Reads the packet that an ICMP error quotes; `bytes` starts behind the ICMP header.
///
/// Fails with [`ParseError::Unsupported`] for a later fragment, which has no ports: such an error can be
/// attributed to no socket.
pub fn quoted(bytes: &[u8]) -> Result<Quoted, ParseError> {
    let (header, len) = ipv4::parse_quoted(bytes)?;
    if header.fragment_offset != 0 {
        return Err(ParseError::Unsupported);
    }
    let (ports, seq, head) = quoted_ports(header.protocol, bytes.get(len..))?;
    let source = Endpoint::new(header.src, ports.0);
    let destination = Endpoint::new(header.dst, ports.1);
    Ok(Quoted { header, source, destination, seq, head, text_at: len + size_of::<Head>() })
}

/// What an error quotes of a transport header: the ports, source first, the sequence number, and the first
/// octets.
pub(crate) type Transport = ((u16, u16), Option<SeqNum>, Head);

/// Returns the ports, source first, the sequence number, and the first octets of a packet of which
/// `transport` is what an error quotes behind its headers: eight octets at least. Ports are 0 unless the
/// packet was TCP or UDP, or an echo request, whose identifier stands for the source port; only TCP has a
/// sequence number.
pub(crate) fn quoted_ports(protocol: Protocol, transport: Option<&[u8]>) -> Result<Transport, ParseError> {
    let &head = transport.and_then(<[u8]>::first_chunk).ok_or(ParseError::Truncated)?;
    let [a, b, c, d, e, f, g, h] = head;
    let ports = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    Ok(match (protocol, a, b) {
        (Protocol::TCP, ..) => (ports, Some(SeqNum(u32::from_be_bytes([e, f, g, h]))), head),
        (Protocol::UDP, ..) => (ports, None, head),
        (Protocol::ICMP, ECHO_REQUEST, 0) | (Protocol::ICMPV6, ECHO_REQUEST_V6, 0) => {
            ((u16::from_be_bytes([e, f]), 0), None, head)
        }
        _ => ((0, 0), None, head),
    })
}

/// Returns whether the message that begins with `bytes` is an error; see [`Message::is_error`]. Nothing else
/// about it is judged.
pub fn is_error(bytes: &[u8]) -> bool {
    !matches!(bytes.first(), Some(&(ECHO_REPLY | ECHO_REQUEST | 13..=18)))
}

impl Message {
    /// Returns whether the message is an error, about which no further error may be sent (RFC 1122 §3.2.2).
    ///
    /// Unknown types count as errors, as RFC 1812 §4.3.2.7 wants it for a sender of errors.
    pub const fn is_error(&self) -> bool {
        match self {
            Message::EchoRequest { .. } | Message::EchoReply { .. } => false,
            Message::Unreachable { .. } | Message::TimeExceeded { .. } => true,
            // Timestamp, information and address mask, questions and answers.
            Message::Other { kind, .. } => !matches!(kind, 13..=18),
        }
    }
}

/// The type of an echo reply.
pub const ECHO_REPLY: u8 = 0;
/// The type of [`Message::Unreachable`].
pub const UNREACHABLE: u8 = 3;
/// The type of an echo request.
pub const ECHO_REQUEST: u8 = 8;
/// The type of an echo request of ICMPv6 ([`crate::icmpv6`]).
pub(crate) const ECHO_REQUEST_V6: u8 = 128;
/// The type of [`Message::TimeExceeded`].
pub const TIME_EXCEEDED: u8 = 11;
/// The type of the message that a router wants fewer packets (RFC 6633: not acted on).
pub const SOURCE_QUENCH: u8 = 4;
/// The type of the message that a packet of this stack is malformed.
pub const PARAMETER_PROBLEM: u8 = 12;

#[cfg(test)]
mod tests;
