//! Which ICMPv6 messages are answered, which packets get an error, and where is silence required? RFC 4443.

use atoll_base::FourTuple;
use atoll_wire::icmpv6::{self, Message};
use atoll_wire::ipv4::Protocol;
use atoll_wire::{ethernet, ipv6};

use super::input::Packet;
use super::network::Network;
use crate::counters::Reason;
use crate::icmp::{self as both, ErrorKind, HEADER_LEN, NetworkError, Reply};
use crate::input::Received;
use crate::link::Link;

/// Returns the answer to an echo request with the data `body`, in packets of at most `mtu` octets (RFC 4443
/// §4.2).
pub(super) fn echo_reply<'a>(
    packet: &Packet<'_, '_>,
    message: Message,
    body: &'a [u8],
    hop_limit: u8,
    mtu: u16,
) -> Reply<'a> {
    Reply {
        link: packet.arrival.link,
        to: packet.arrival.from,
        src: packet.header.dst,
        dst: packet.header.src,
        tos: packet.header.traffic_class & !3,
        ttl: hop_limit,
        message: both::Message::V6(message),
        body,
        mtu,
    }
}

/// Judges an error: whether it is about a packet of ours, which `body` quotes.
pub(super) fn receive_error<'a>(
    packet: &Packet<'_, '_>,
    message: Message,
    body: &'a [u8],
    network: &Network,
) -> Result<Received<'a>, Reason> {
    let kind = match message {
        // RFC 8201 §4, RFC 8021: a size below what every link carries is not believed, and leads to no atomic
        // fragments.
        Message::PacketTooBig { mtu } if mtu < u32::from(ipv6::MTU_MIN) => return Err(Reason::IcmpIgnored),
        Message::PacketTooBig { mtu } => {
            ErrorKind::FragNeeded { mtu: u16::try_from(mtu).unwrap_or(u16::MAX) }
        }
        Message::Unreachable { code } => ErrorKind::Lost { kind: icmpv6::UNREACHABLE, code, info: 0 },
        Message::TimeExceeded { code } => ErrorKind::Lost { kind: icmpv6::TIME_EXCEEDED, code, info: 0 },
        Message::ParameterProblem { code, pointer } => {
            ErrorKind::Lost { kind: icmpv6::PARAMETER_PROBLEM, code, info: pointer }
        }
        // RFC 4443 §2.4 (a): an error of an unknown type counts as an error, too.
        Message::Other { kind, code, rest } if message.is_error() => {
            ErrorKind::Lost { kind, code, info: u32::from_be_bytes(rest) }
        }
        _ => return Err(Reason::IcmpIgnored),
    };
    let quoted = icmpv6::quoted(body).map_err(|_| Reason::Malformed)?;
    let error = NetworkError {
        kind,
        protocol: quoted.protocol,
        tuple: FourTuple { local: quoted.source, remote: quoted.destination },
        quoted_seq: quoted.seq,
        quoted: quoted.head,
        reporter: packet.header.src,
        hops: packet.header.hop_limit,
    };
    let is_ours = network.is_ours(packet.arrival.link, quoted.source.addr);
    let error = error.believe(is_ours, usize::from(quoted.header.payload_len) + ipv6::HEADER_LEN)?;
    Ok(Received::Error(error, body.get(quoted.text_at..).unwrap_or_default()))
}

/// Returns the error `message` about `frame`; `None` where an error is forbidden (RFC 4443 §2.4 (e)).
pub(super) fn error_about<'a>(
    frame: &'a [u8],
    link: Link,
    message: Message,
    network: &Network,
) -> Option<Reply<'a>> {
    let (ethernet, at) = ethernet::parse(frame).ok()?;
    let packet = frame.get(at..)?;
    let (header, header_len) = ipv6::parse(packet).ok()?;
    let payload = packet.get(header_len..header_len + usize::from(header.payload_len))?;
    if !network.is_source(link, header.src) || ethernet.src.is_group() {
        return None;
    }
    // Only an unknown option that asks for an error gets one although the packet went to a group.
    let to_group = ethernet.dst.is_group() || header.dst.is_v6_multicast();
    let asks = matches!(message, Message::ParameterProblem { code: icmpv6::code::UNRECOGNIZED_OPTION, .. });
    if to_group && !asks {
        return None;
    }
    if let Ok(upper) = ipv6::upper(&header, payload) {
        let text = payload.get(upper.at..)?;
        // The type in a later fragment cannot be seen; redirects count as errors (RFC 4443 §2.4 (e.2)).
        let is_later_part = upper.fragment.is_some_and(|fragment| fragment.offset != 0);
        let kind = text.first().filter(|_| !is_later_part);
        if upper.protocol == Protocol::ICMPV6 && kind.is_none_or(|kind| *kind < 128 || *kind == 137) {
            return None;
        }
    }
    let src = if network.is_ours(link, header.dst) { header.dst } else { network.source_for(header.src)? };
    let whole = header_len + payload.len();
    Some(Reply {
        link,
        to: ethernet.src,
        src,
        dst: header.src,
        tos: 0,
        ttl: network.hop_limit(),
        message: both::Message::V6(message),
        body: packet.get(..whole.min(QUOTATION_MAX))?,
        mtu: ipv6::MTU_MIN,
    })
}

/// The most octets of a packet that an error quotes: an error is no longer than the smallest link carries
/// (RFC 4443 §2.4 (c)).
const QUOTATION_MAX: usize = ipv6::MTU_MIN as usize - ipv6::HEADER_LEN - HEADER_LEN;
