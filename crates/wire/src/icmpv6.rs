//! ICMPv6 (RFC 4443), by which the network answers this stack's packets. Neighbour discovery is in
//! [`crate::nd`], listener reports are in [`crate::mld`].

use atoll_base::{Addr, Endpoint, SeqNum};

use crate::icmp::{Head, quoted_ports};
pub use crate::icmpv6_code as code;
use crate::ipv4::Protocol;
use crate::ipv6;
use crate::{ParseError, checksum};

/// Bytes of every ICMPv6 header supported here; payload or quotation follows.
pub const HEADER_LEN: usize = 8;

/// The head of an ICMPv6 message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A packet of this stack, quoted behind the header, could not be delivered.
    Unreachable {
        /// The reason; see [`code`].
        code: u8,
    },
    /// A packet of this stack, quoted behind the header, was larger than the next link carries.
    PacketTooBig {
        /// The MTU of the next link.
        mtu: u32,
    },
    /// A packet of this stack ran out of hops (code 0) or of time for reassembly (code 1).
    TimeExceeded {
        /// The reason: 0 or 1.
        code: u8,
    },
    /// A packet of this stack could not be understood.
    ParameterProblem {
        /// The reason; see [`code`].
        code: u8,
        /// The offset of the problem from the start of the packet, in octets.
        pointer: u32,
    },
    /// An echo request; its payload comes back in the reply.
    EchoRequest {
        /// The identifier, chosen by the asker.
        id: u16,
        /// The sequence number, chosen by the asker.
        seq: u16,
    },
    /// An echo reply.
    EchoReply {
        /// The identifier of the request.
        id: u16,
        /// The sequence number of the request.
        seq: u16,
    },
    /// Any other message: neighbour discovery, listener discovery, unknown types.
    Other {
        /// The type octet.
        kind: u8,
        /// The code octet.
        code: u8,
        /// The four bytes whose meaning depends on the type.
        rest: [u8; 4],
    },
}

/// The packet that an ICMPv6 error is about, as far as the error quotes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// The IPv6 header of the packet.
    pub header: ipv6::Header,
    /// The protocol of the packet, behind extension headers.
    pub protocol: Protocol,
    /// The sender of the packet: a socket of this stack, if the error is honest. The port is the identifier
    /// of an echo request, and 0 unless the packet was one, or TCP or UDP.
    pub source: Endpoint,
    /// The destination of the packet.
    pub destination: Endpoint,
    /// The sequence number of the packet, if it was TCP.
    pub seq: Option<SeqNum>,
    /// The first octets of the packet behind its headers of IPv6.
    pub head: Head,
    /// Where in the quotation the octets behind those begin.
    pub text_at: usize,
}

/// Reads the head of the message that fills `bytes` and verifies its checksum, which covers the addresses.
pub fn parse(src: Addr, dst: Addr, bytes: &[u8]) -> Result<(Message, usize), ParseError> {
    let &[kind, code, _, _, a, b, c, d] = bytes.first_chunk().ok_or(ParseError::Truncated)?;
    if !checksum::pseudo_header_v6(src, dst, Protocol::ICMPV6.0, bytes.len()).bytes(bytes).is_valid() {
        return Err(ParseError::BadChecksum);
    }
    let (first, second) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let word = u32::from_be_bytes([a, b, c, d]);
    let message = match (kind, code) {
        (UNREACHABLE, code) => Message::Unreachable { code },
        (PACKET_TOO_BIG, _) => Message::PacketTooBig { mtu: word },
        (TIME_EXCEEDED, code) => Message::TimeExceeded { code },
        (PARAMETER_PROBLEM, code) => Message::ParameterProblem { code, pointer: word },
        (ECHO_REQUEST, 0) => Message::EchoRequest { id: first, seq: second },
        (ECHO_REPLY, 0) => Message::EchoReply { id: first, seq: second },
        (kind, code) => Message::Other { kind, code, rest: [a, b, c, d] },
    };
    Ok((message, HEADER_LEN))
}

/// Writes the head of `message` at the start of `out`, whose other bytes already hold the payload, and the
/// checksum. Panics if `out` is shorter than [`HEADER_LEN`].
pub fn emit(src: Addr, dst: Addr, message: &Message, out: &mut [u8]) -> usize {
    let pair = |first: u16, second: u16| u32::from(first) << 16 | u32::from(second);
    let (kind, code, word) = match *message {
        Message::Unreachable { code } => (UNREACHABLE, code, 0),
        Message::PacketTooBig { mtu } => (PACKET_TOO_BIG, 0, mtu),
        Message::TimeExceeded { code } => (TIME_EXCEEDED, code, 0),
        Message::ParameterProblem { code, pointer } => (PARAMETER_PROBLEM, code, pointer),
        Message::EchoRequest { id, seq } => (ECHO_REQUEST, 0, pair(id, seq)),
        Message::EchoReply { id, seq } => (ECHO_REPLY, 0, pair(id, seq)),
        Message::Other { kind, code, rest } => (kind, code, u32::from_be_bytes(rest)),
    };
    out[..4].copy_from_slice(&[kind, code, 0, 0]);
    out[4..HEADER_LEN].copy_from_slice(&word.to_be_bytes());
    seal(src, dst, out);
    HEADER_LEN
}

/// Computes the checksum of a message and stores it. Panics if `out` is shorter than [`HEADER_LEN`].
pub(crate) fn seal(src: Addr, dst: Addr, out: &mut [u8]) {
    out[2..4].fill(0);
    let sum = checksum::pseudo_header_v6(src, dst, Protocol::ICMPV6.0, out.len()).bytes(out).finish();
    out[2..4].copy_from_slice(&sum.to_be_bytes());
}

/// Reads the packet that an error quotes; `bytes` starts behind the ICMPv6 header.
///
/// Fails with [`ParseError::Unsupported`] for a later fragment, which has no ports: such an error can be
/// attributed to no socket.
pub fn quoted(bytes: &[u8]) -> Result<Quoted, ParseError> {
    let (header, len) = ipv6::parse_quoted(bytes)?;
    let payload = bytes.get(len..).unwrap_or_default();
    let upper = ipv6::upper(&header, payload).map_err(|_| ParseError::Unsupported)?;
    if upper.fragment.is_some_and(|fragment| fragment.offset != 0) {
        return Err(ParseError::Unsupported);
    }
    let (ports, seq, head) = quoted_ports(upper.protocol, payload.get(upper.at..))?;
    let (source, destination) = (Endpoint::at(header.src, ports.0), Endpoint::at(header.dst, ports.1));
    let text_at = len + upper.at + size_of::<Head>();
    Ok(Quoted { header, protocol: upper.protocol, source, destination, seq, head, text_at })
}

impl Message {
    /// Returns whether the message is an error, about which no further error may be sent (RFC 4443 §2.1, §2.4
    /// (e.1)).
    pub const fn is_error(&self) -> bool {
        match self {
            Message::EchoRequest { .. } | Message::EchoReply { .. } => false,
            Message::Other { kind, .. } => *kind < 128,
            _ => true,
        }
    }
}

/// The type of [`Message::Unreachable`].
pub const UNREACHABLE: u8 = 1;
/// The type of [`Message::PacketTooBig`].
pub const PACKET_TOO_BIG: u8 = 2;
/// The type of [`Message::TimeExceeded`].
pub const TIME_EXCEEDED: u8 = 3;
/// The type of [`Message::ParameterProblem`].
pub const PARAMETER_PROBLEM: u8 = 4;
/// The type of an echo request.
pub const ECHO_REQUEST: u8 = crate::icmp::ECHO_REQUEST_V6;
/// The type of an echo reply.
pub const ECHO_REPLY: u8 = 129;

#[cfg(test)]
mod tests;
