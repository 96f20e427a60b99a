//! Judges incoming IPv6 packets: what they contain, and whether it may be believed (RFC 8200 §3, §4).

use atoll_base::{Addr, Endpoint, Instant};
use atoll_wire::ethernet;
use atoll_wire::icmpv6::{Message, code};
use atoll_wire::ipv4::Protocol;
use atoll_wire::ipv6::{self, ExtensionError, Upper};
use atoll_wire::{checksum, udp};

use super::addresses::cast;
use super::is_discovery;
use crate::counters::Reason;
use crate::input::{ChecksumOffload, ChecksumState, Received};
use crate::ip::Ip;
use crate::link::Cast;
use crate::link::Link;

impl Ip {
    /// Judges the packet behind an Ethernet header of IPv6. `frame` is the whole frame.
    #[inline]
    pub(crate) fn receive_v6<'a>(
        &mut self,
        now: Instant,
        link: Link,
        ethernet: &ethernet::Header,
        frame: &'a [u8],
        offload: ChecksumOffload,
    ) -> Result<Received<'a>, Reason> {
        if link == Link::Outside && self.v6.own.is_empty() {
            return Err(Reason::UnknownEtherType);
        }
        let packet = frame.get(ethernet::HEADER_LEN..).unwrap_or_default();
        let (header, at) = ipv6::parse(packet).map_err(|_| Reason::Malformed)?;
        let payload = packet.get(at..at + usize::from(header.payload_len)).ok_or(Reason::Malformed)?;
        let cast = self.judge_addresses_v6(link, ethernet, &header)?;
        let to_one = cast == Cast::Unicast;
        let upper = match ipv6::upper(&header, payload) {
            Ok(upper) => upper,
            Err(ExtensionError::Malformed) => return Err(Reason::Malformed),
            Err(ExtensionError::Discard) => return Err(Reason::Extension),
            Err(ExtensionError::Problem { code, pointer, even_to_groups }) => {
                if to_one || even_to_groups {
                    self.error_v6(now, link, frame, Message::ParameterProblem { code, pointer });
                }
                return Err(Reason::Extension);
            }
        };
        if self.half.is_some() && !is_for_transport(link, &upper, payload) {
            return Err(Reason::NotForTransport);
        }
        match upper.fragment {
            // RFC 6946: such a fragment is the whole packet, whatever else has the same identification.
            Some(fragment) if fragment.is_atomic() => self.common.count().atomic_fragments += 1,
            Some(_) => return self.handle_fragment_v6(now, link, frame, &header, payload, &upper),
            None => {}
        }
        let text = payload.get(upper.at..).ok_or(Reason::Malformed)?;
        if upper.protocol == Protocol::ICMPV6 {
            // RFC 6980 §5: neighbour discovery is not fragmented.
            if upper.fragment.is_some() && is_discovery(Some(text)) {
                return Err(Reason::NdIgnored);
            }
            return self.handle_icmpv6(now, link, ethernet.src, &header, upper.alerts_mld, text);
        }
        // Only neighbour discovery uses the unspecified address.
        if header.src == Addr::ANY {
            return Err(Reason::Martian);
        }
        match upper.protocol {
            Protocol::TCP if to_one => tcp(&header, text, offload),
            Protocol::UDP => udp_v6(&header, cast, text, offload),
            // No other protocol is spoken with groups.
            _ if !to_one => Err(Reason::Broadcast),
            _ => {
                let pointer = upper.named_at as u32;
                let problem = Message::ParameterProblem { code: code::UNRECOGNIZED_NEXT_HEADER, pointer };
                self.error_v6(now, link, frame, problem);
                Err(Reason::UnknownProtocol)
            }
        }
    }

    /// Returns what the destination means, after checking that the packet may have come from its source and
    /// is for us; otherwise the reason to drop it.
    #[inline]
    fn judge_addresses_v6(
        &self,
        link: Link,
        ethernet: &ethernet::Header,
        header: &ipv6::Header,
    ) -> Result<Cast, Reason> {
        if !self.is_ours_v6(link, header.dst) {
            return Err(match (link, cast(header.dst)) {
                // An address of ours is accepted as the source: if another host has it as well, neighbour
                // discovery has to find out.
                (Link::Outside, Some(Cast::Multicast)) if self.is_member_v6(link, header.dst) => {
                    let may_be = header.src == Addr::ANY || cast(header.src) == Some(Cast::Unicast);
                    return if may_be { Ok(Cast::Multicast) } else { Err(Reason::Martian) };
                }
                (Link::Inside, Some(Cast::Multicast)) if self.is_member_v6(link, header.dst) => {
                    let may_be = self.is_source_v6(link, header.src);
                    return if may_be { Ok(Cast::Multicast) } else { Err(Reason::Martian) };
                }
                (_, Some(Cast::Multicast)) => Reason::Multicast,
                _ => Reason::NotOurAddress,
            });
        }
        if !self.is_source_v6(link, header.src) && (header.src != Addr::ANY || link == Link::Inside) {
            return Err(Reason::Martian);
        }
        if ethernet.dst.is_group() {
            return Err(Reason::Broadcast);
        }
        Ok(Cast::Unicast)
    }
}

/// Returns whether an IPv6 packet is for the part that stays with a transport server: everything on the
/// inside link and, from outside, unfragmented segments, datagrams and errors.
fn is_for_transport(link: Link, upper: &Upper, payload: &[u8]) -> bool {
    link == Link::Inside
        || upper.fragment.is_none_or(|fragment| fragment.is_atomic())
            && match upper.protocol {
                Protocol::TCP | Protocol::UDP => true,
                // RFC 4443 §2.1: errors have numbers below 128.
                Protocol::ICMPV6 => payload.get(upper.at).is_some_and(|kind| *kind < 128),
                _ => false,
            }
}

#[inline]
fn tcp<'a>(
    header: &ipv6::Header,
    segment: &'a [u8],
    offload: ChecksumOffload,
) -> Result<Received<'a>, Reason> {
    let checksum = judge_checksum(header, Protocol::TCP, segment, offload)?;
    Ok(Received::Tcp { src: header.src, dst: header.dst, tos: header.traffic_class, segment, checksum })
}

fn udp_v6<'a>(
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
    let checksum = judge_checksum(header, Protocol::UDP, datagram, offload)?;
    Ok(Received::Udp {
        src: Endpoint::at(header.src, ports.src_port),
        dst: Endpoint::at(header.dst, ports.dst_port),
        cast,
        tos: header.traffic_class,
        payload: datagram.get(head..).ok_or(Reason::Malformed)?,
        checksum,
    })
}

#[inline]
fn judge_checksum(
    header: &ipv6::Header,
    protocol: Protocol,
    bytes: &[u8],
    offload: ChecksumOffload,
) -> Result<ChecksumState, Reason> {
    match offload {
        ChecksumOffload::Valid => Ok(ChecksumState::Verified),
        ChecksumOffload::Partial => Ok(ChecksumState::Partial),
        ChecksumOffload::Unknown => {
            let pseudo = checksum::pseudo_header_v6(header.src, header.dst, protocol.0, bytes.len());
            if pseudo.bytes(bytes).is_valid() {
                Ok(ChecksumState::Verified)
            } else {
                Err(Reason::BadChecksum)
            }
        }
    }
}
