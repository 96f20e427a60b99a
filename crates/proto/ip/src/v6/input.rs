//! What does an IPv6 packet contain for a transport, and may it be believed? RFC 8200 §3, §4.

use atoll_base::Endpoint;
use atoll_wire::ipv4::Protocol;
use atoll_wire::ipv6::{self, Upper};
use atoll_wire::{checksum, icmpv6, nd, udp};

use crate::counters::Reason;
use crate::input::{Arrival, ChecksumOffload, Received};
use crate::link::{Cast, Link};

/// A packet as it arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'p, 'a> {
    pub(super) arrival: &'p Arrival<'a>,
    pub(super) header: &'p ipv6::Header,
    /// The octets behind the header.
    pub(super) payload: &'a [u8],
    /// The contents of the extension headers in `payload`.
    pub(super) upper: &'p Upper,
}

/// Returns whether an ICMPv6 message is one of neighbour discovery.
pub(super) fn is_discovery(message: Option<&[u8]>) -> bool {
    message.and_then(<[u8]>::first).is_some_and(|kind| nd::KINDS.contains(kind))
}

/// Returns whether an IPv6 packet is for the part that stays with a transport server: everything on the
/// inside link and, from outside, unfragmented segments, datagrams, echo replies and errors.
pub(super) fn is_for_transport(link: Link, upper: &Upper, payload: &[u8]) -> bool {
    link == Link::Inside
        || upper.fragment.is_none_or(|fragment| fragment.is_atomic())
            && match upper.protocol {
                Protocol::TCP | Protocol::UDP => true,
                // RFC 4443 §2.1: errors have numbers below 128.
                Protocol::ICMPV6 => {
                    payload.get(upper.at).is_some_and(|kind| *kind < 128 || *kind == icmpv6::ECHO_REPLY)
                }
                _ => false,
            }
}

// Every segment passes here: a call would cost more than what is done.
#[inline(always)]
pub(super) fn tcp<'a>(
    header: &ipv6::Header,
    segment: &'a [u8],
    offload: ChecksumOffload,
) -> Result<Received<'a>, Reason> {
    let checksum = offload.judge(|| is_valid(header, Protocol::TCP, segment))?;
    Ok(Received::Tcp {
        src: header.src,
        dst: header.dst,
        tos: header.traffic_class,
        ttl: header.hop_limit,
        segment,
        checksum,
    })
}

pub(super) fn udp<'a>(
    header: &ipv6::Header,
    cast: Cast,
    bytes: &'a [u8],
    offload: ChecksumOffload,
) -> Result<Received<'a>, Reason> {
    let (ports, head) = udp::parse(bytes).map_err(|_| Reason::Malformed)?;
    let datagram = bytes.get(..head + usize::from(ports.payload_len)).ok_or(Reason::Malformed)?;
    // RFC 8200 §8.1: over IPv6 a datagram without a checksum is invalid.
    if ports.checksum == 0 && offload != ChecksumOffload::Partial {
        return Err(Reason::BadChecksum);
    }
    let checksum = offload.judge(|| is_valid(header, Protocol::UDP, datagram))?;
    Ok(Received::Udp {
        src: Endpoint::at(header.src, ports.src_port),
        dst: Endpoint::at(header.dst, ports.dst_port),
        cast,
        tos: header.traffic_class,
        ttl: header.hop_limit,
        payload: datagram.get(head..).ok_or(Reason::Malformed)?,
        checksum,
    })
}

/// Returns whether the checksum in `bytes` is right. Not inlined, so that its callers are where the link has
/// verified it.
#[inline(never)]
fn is_valid(header: &ipv6::Header, protocol: Protocol, bytes: &[u8]) -> bool {
    let pseudo = checksum::pseudo_header_v6(header.src, header.dst, protocol.0, bytes.len());
    pseudo.bytes(bytes).is_valid()
}
