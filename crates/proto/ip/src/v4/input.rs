//! What does an IPv4 packet contain for a transport, and may it be believed? RFC 1122 §3.2.1.

use atoll_base::{Addr, Endpoint};
use atoll_wire::ipv4::{self, Protocol};
use atoll_wire::{checksum, icmp, udp};

use crate::counters::Reason;
use crate::input::{ChecksumOffload, Received};
use crate::link::{Cast, Link};

/// Returns whether a packet is for the part that stays with a transport server: everything on the inside link
/// and, from outside, segments, datagrams, echo replies and errors that are not fragments.
pub(super) fn is_for_transport(link: Link, header: &ipv4::Header, payload: &[u8]) -> bool {
    link == Link::Inside
        || !header.is_fragment()
            && match header.protocol {
                Protocol::TCP | Protocol::UDP => true,
                Protocol::ICMP => icmp::is_error(payload) || payload.first() == Some(&icmp::ECHO_REPLY),
                _ => false,
            }
}

// Every segment passes here: a call would cost more than what is done.
#[inline(always)]
pub(super) fn tcp<'a>(
    header: &ipv4::Header,
    segment: &'a [u8],
    offload: ChecksumOffload,
) -> Result<Received<'a>, Reason> {
    let pseudo = || checksum::pseudo_header(header.src, header.dst, Protocol::TCP.0, segment.len());
    let checksum = offload.judge(|| pseudo().bytes(segment).is_valid())?;
    Ok(Received::Tcp {
        src: Addr::v4(header.src),
        dst: Addr::v4(header.dst),
        tos: header.tos,
        ttl: header.ttl,
        segment,
        checksum,
    })
}

pub(super) fn udp<'a>(
    header: &ipv4::Header,
    cast: Cast,
    bytes: &'a [u8],
    offload: ChecksumOffload,
) -> Result<Received<'a>, Reason> {
    let (ports, head) = udp::parse(bytes).map_err(|_| Reason::Malformed)?;
    // RFC 768 lets the datagram be shorter than the packet; the rest is ignored.
    let datagram = bytes.get(..head + usize::from(ports.payload_len)).ok_or(Reason::Malformed)?;
    let checksum = offload.judge(|| udp::verify(header.src, header.dst, datagram))?;
    Ok(Received::Udp {
        src: Endpoint::new(header.src, ports.src_port),
        dst: Endpoint::new(header.dst, ports.dst_port),
        cast,
        tos: header.tos,
        ttl: header.ttl,
        payload: datagram.get(head..).ok_or(Reason::Malformed)?,
        checksum,
    })
}
