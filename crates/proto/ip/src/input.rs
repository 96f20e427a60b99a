//! Judges incoming frames: what they contain, and whether it may be believed (RFC 1122 §3.2.1).

use atoll_base::{Addr, Endpoint, Instant};
use atoll_wire::ethernet::{self, EtherType};
use atoll_wire::icmp::code;
use atoll_wire::ipv4::{self, Protocol};
use atoll_wire::{ParseError, checksum, icmp, udp};

use crate::counters::Reason;
use crate::icmp::NetworkError;
use crate::ip::Ip;
use crate::link::Cast;
use crate::link::Link;

/// What the link says about the transport checksum of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChecksumOffload {
    /// The link has verified the checksum (vnet `DATA_VALID`).
    Valid,
    /// The checksum was never computed, because the frame did not leave the machine (vnet `NEEDS_CSUM`). It
    /// is trusted.
    Partial,
    /// The link says nothing about the checksum.
    Unknown,
}

/// What is known about a transport checksum that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChecksumState {
    /// The checksum is right, as verified here or by the link, or the datagram has none.
    Verified,
    /// The field holds the sum of the pseudo header only. Code that forwards the frame must forward this
    /// state.
    Partial,
}

/// What a frame turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// A segment for TCP, from one host to us.
    Tcp {
        /// Source address.
        src: Addr,
        /// Destination address: one of ours.
        dst: Addr,
        /// DSCP and ECN ([`ipv4::Ecn::from_tos`]).
        tos: u8,
        /// The TCP header and payload. They are larger than the MTU where the link has merged segments (GRO).
        segment: &'a [u8],
        /// What is known about its checksum.
        checksum: ChecksumState,
    },
    /// A datagram for UDP.
    Udp {
        /// The source of the datagram.
        src: Endpoint,
        /// The destination of the datagram: one of our addresses, a group that we are in, or a broadcast.
        dst: Endpoint,
        /// Whether the datagram goes to one host, a group or all.
        cast: Cast,
        /// DSCP and ECN.
        tos: u8,
        /// The payload, without the UDP header; several datagrams one after another where the link has merged
        /// them (USO).
        payload: &'a [u8],
        /// What is known about its checksum.
        checksum: ChecksumState,
    },
    /// An ICMP error about a packet of ours.
    Error(NetworkError),
    /// ARP, IGMP, DHCP, an echo request or a fragment, which was handled. There may be frames and updates to
    /// poll.
    Consumed,
    /// The frame was not for us or not valid, and is counted. There may be a frame to poll.
    Dropped(Reason),
}

impl Ip {
    /// Judges `frame` (from the Ethernet header on), which arrived over `link`. `offload` is taken from the
    /// link's vnet header.
    ///
    /// Never panics, whatever the bytes are. A TCP segment whose checksum need not be computed costs a few
    /// ns.
    #[inline]
    pub fn handle_frame<'a>(
        &mut self,
        now: Instant,
        link: Link,
        frame: &'a [u8],
        offload: ChecksumOffload,
    ) -> Received<'a> {
        self.common.count().frames_in += 1;
        let received = self.receive(now, link, frame, offload).unwrap_or_else(Received::Dropped);
        match received {
            Received::Tcp { .. } => self.common.count().tcp_in += 1,
            Received::Udp { .. } => self.common.count().udp_in += 1,
            Received::Error(_) => self.common.count().errors_in += 1,
            Received::Consumed => {}
            Received::Dropped(reason) => self.common.count().drop(reason),
        }
        self.check_invariants();
        received
    }

    #[inline]
    fn receive<'a>(
        &mut self,
        now: Instant,
        link: Link,
        frame: &'a [u8],
        offload: ChecksumOffload,
    ) -> Result<Received<'a>, Reason> {
        let (ethernet, at) = ethernet::parse(frame).map_err(|_| Reason::Malformed)?;
        if (ethernet.dst != self.common.mac() && !ethernet.dst.is_group()) || ethernet.src.is_group() {
            return Err(Reason::NotOurStation);
        }
        let packet = frame.get(at..).unwrap_or_default();
        match ethernet.ethertype {
            EtherType::IPV4 => {}
            EtherType::IPV6 => return self.receive_v6(now, link, &ethernet, frame, offload),
            EtherType::ARP if self.half.is_some() => return Err(Reason::NotForTransport),
            EtherType::ARP if link == Link::Outside => {
                return self.handle_arp(now, ethernet.dst, packet).map(|()| Received::Consumed);
            }
            _ => return Err(Reason::UnknownEtherType),
        }
        let (header, header_len) = ipv4::parse(packet).map_err(reason)?;
        let payload =
            packet.get(header_len..header_len + usize::from(header.payload_len)).ok_or(Reason::Malformed)?;
        let cast = match self.judge_addresses(link, &ethernet, &header) {
            Ok(cast) => cast,
            Err(_) if self.is_for_dhcp(link, &header, payload) => {
                return self.handle_dhcp(now, ethernet.src, &header, payload, offload);
            }
            Err(reason) => return Err(reason),
        };
        if self.half.is_some() && !is_for_transport(link, &header, payload) {
            return Err(Reason::NotForTransport);
        }
        if header.is_fragment() {
            return self.handle_fragment(now, link, frame, at + header_len, &header, payload);
        }
        match header.protocol {
            Protocol::TCP if cast == Cast::Unicast => tcp(&header, payload, offload),
            Protocol::UDP if self.is_for_dhcp(link, &header, payload) => {
                self.handle_dhcp(now, ethernet.src, &header, payload, offload)
            }
            Protocol::UDP => udp(&header, cast, payload, offload),
            // RFC 1122 §3.2.2.6: an echo request to a broadcast may be ignored; this keeps the stack from
            // amplifying attacks.
            Protocol::ICMP if cast == Cast::Unicast => {
                self.handle_icmp(now, link, ethernet.src, &header, payload)
            }
            Protocol::IGMP => self.handle_igmp(now, link, &header, payload).map(|()| Received::Consumed),
            // RFC 1122 §4.2.3.10, §3.2.2: no other protocol is spoken with groups.
            _ if cast != Cast::Unicast => Err(Reason::Broadcast),
            _ => {
                // RFC 1122 §3.2.2.1: a host that does not speak a protocol says so.
                self.unreachable(now, link, frame, code::PROTOCOL);
                Err(Reason::UnknownProtocol)
            }
        }
    }

    /// Returns what the destination means, after checking that the packet may have come from its source and
    /// is for us; otherwise the reason to drop it.
    #[inline]
    fn judge_addresses(
        &self,
        link: Link,
        ethernet: &ethernet::Header,
        header: &ipv4::Header,
    ) -> Result<Cast, Reason> {
        let cast = if self.addresses.is_ours(link, header.dst) {
            Cast::Unicast
        } else {
            match (link, self.addresses.cast(header.dst)) {
                (Link::Outside, Some(Cast::Broadcast)) => Cast::Broadcast,
                (_, Some(Cast::Multicast)) if self.groups.has(link, header.dst) => Cast::Multicast,
                (_, Some(Cast::Multicast)) => return Err(Reason::Multicast),
                _ => return Err(Reason::NotOurAddress),
            }
        };
        // RFC 4541 §2.1.1: switches without an address of their own query for groups.
        let is_querier = header.src == 0 && header.protocol == Protocol::IGMP;
        if !is_querier && !self.addresses.is_source(link, header.src) {
            return Err(Reason::Martian);
        }
        // RFC 1122 §3.3.6: a packet to one host in a frame to all is to be discarded.
        if cast == Cast::Unicast && ethernet.dst.is_group() {
            return Err(Reason::Broadcast);
        }
        Ok(cast)
    }
}

/// Returns whether a packet is for the part that stays with a transport server: everything on the inside link
/// and, from outside, segments, datagrams and errors that are not fragments.
fn is_for_transport(link: Link, header: &ipv4::Header, payload: &[u8]) -> bool {
    link == Link::Inside
        || !header.is_fragment()
            && match header.protocol {
                Protocol::TCP | Protocol::UDP => true,
                Protocol::ICMP => icmp::is_error(payload),
                _ => false,
            }
}

#[inline]
fn tcp<'a>(
    header: &ipv4::Header,
    segment: &'a [u8],
    offload: ChecksumOffload,
) -> Result<Received<'a>, Reason> {
    let checksum = match offload {
        ChecksumOffload::Valid => ChecksumState::Verified,
        ChecksumOffload::Partial => ChecksumState::Partial,
        ChecksumOffload::Unknown => {
            let pseudo = checksum::pseudo_header(header.src, header.dst, Protocol::TCP.0, segment.len());
            if !pseudo.bytes(segment).is_valid() {
                return Err(Reason::BadChecksum);
            }
            ChecksumState::Verified
        }
    };
    Ok(Received::Tcp {
        src: Addr::v4(header.src),
        dst: Addr::v4(header.dst),
        tos: header.tos,
        segment,
        checksum,
    })
}

pub(crate) fn udp<'a>(
    header: &ipv4::Header,
    cast: Cast,
    bytes: &'a [u8],
    offload: ChecksumOffload,
) -> Result<Received<'a>, Reason> {
    let (ports, head) = udp::parse(bytes).map_err(|_| Reason::Malformed)?;
    // RFC 768 lets the datagram be shorter than the packet; the rest is ignored.
    let datagram = bytes.get(..head + usize::from(ports.payload_len)).ok_or(Reason::Malformed)?;
    let checksum = match offload {
        ChecksumOffload::Valid => ChecksumState::Verified,
        ChecksumOffload::Partial => ChecksumState::Partial,
        ChecksumOffload::Unknown if udp::verify(header.src, header.dst, datagram) => ChecksumState::Verified,
        ChecksumOffload::Unknown => return Err(Reason::BadChecksum),
    };
    Ok(Received::Udp {
        src: Endpoint::new(header.src, ports.src_port),
        dst: Endpoint::new(header.dst, ports.dst_port),
        cast,
        tos: header.tos,
        payload: datagram.get(head..).ok_or(Reason::Malformed)?,
        checksum,
    })
}

fn reason(error: ParseError) -> Reason {
    match error {
        ParseError::BadChecksum => Reason::BadChecksum,
        _ => Reason::Malformed,
    }
}
