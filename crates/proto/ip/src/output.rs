//! What does a transport send? Routes, and the headers before packets and fragments.

use atoll_base::Addr;
use atoll_wire::Mac;
use atoll_wire::ethernet::{self, EtherType};
use atoll_wire::ipv4::{self, Protocol};
use atoll_wire::ipv6;

/// The octets of the headers of an IPv4 packet: Ethernet and IPv4.
pub const HEADERS_LEN: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;
/// The most octets that [`crate::Ip::emit_headers`] writes: Ethernet and IPv6.
pub const HEADERS_LEN_MAX: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN;

/// The most octets that [`crate::Ip::emit_fragment`] writes: Ethernet, IPv6 and fragment header.
pub const FRAGMENT_HEADERS_LEN_MAX: usize = HEADERS_LEN_MAX + ipv6::FRAGMENT_LEN;

/// Returns the number of octets that [`crate::Ip::emit_headers`] writes for a packet to `dst`.
#[inline]
pub const fn headers_len(dst: Addr) -> usize {
    if dst.is_v4() { HEADERS_LEN } else { HEADERS_LEN_MAX }
}

/// The TTL of packets whose socket asks for no other (RFC 1700).
pub const TTL: u8 = 64;

/// The route to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// The destination is an address of our own: send over the inside link, to [`crate::Ip::mac`].
    Local,
    /// Send over the outside link, to this station or group.
    Via {
        /// The hardware destination.
        mac: Mac,
    },
    /// The station is being asked for. Keep the packet (one to three per neighbour are enough) and try again
    /// when [`crate::Ip::neighbour_generation`] has grown, or drop it and rely on retransmission.
    Resolving,
    /// There is no route: no gateway, no such address, or the neighbour does not answer.
    Unreachable,
}

/// A packet whose headers [`crate::Ip::emit_headers`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The hardware destination, from [`crate::Ip::route`]; if it is zero, the IP server fills it in.
    pub dst_mac: Mac,
    /// The source address: ours, or a loopback address; of the same family as the destination.
    pub src: Addr,
    /// Destination address.
    pub dst: Addr,
    /// The protocol of the payload.
    pub protocol: Protocol,
    /// The octets behind the headers, at most [`ipv4::PAYLOAD_MAX`]. They may exceed the MTU only where the
    /// link segments the packet (TSO, USO).
    pub payload_len: usize,
    /// DSCP and ECN.
    pub tos: u8,
    /// The TTL or hop limit; [`TTL`] unless the socket asks for another.
    pub ttl: u8,
    /// Whether routers must not fragment (path-MTU discovery).
    pub dont_fragment: bool,
}

/// One fragment of a payload that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The offset of the fragment in the payload, in octets: a multiple of 8.
    pub offset: usize,
    /// The length of the fragment, in octets.
    pub len: usize,
    /// Whether other fragments follow.
    pub more: bool,
}

/// Returns the fragments of a payload of `len` octets to `dst`, from octet `from` (a multiple of 8) on.
/// Packets have at most `mtu` octets, which is at least 68 (RFC 791), or 1280 with IPv6.
pub fn parts(dst: Addr, len: usize, from: usize, mtu: u16) -> impl Iterator<Item = Part> {
    let headers = if dst.is_v4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN + ipv6::FRAGMENT_LEN };
    let room = (usize::from(mtu).saturating_sub(headers) & !7).max(8);
    (from..len).step_by(room).map(move |offset| {
        let end = len.min(offset + room);
        Part { offset, len: end - offset, more: end < len }
    })
}

impl Outgoing {
    /// Writes the Ethernet and IPv4 headers of the whole packet, which the station `mac` sends. Returns their
    /// length.
    #[inline]
    pub(crate) fn emit_v4(&self, out: &mut [u8], mac: Mac, id: u16) -> usize {
        debug_assert!(self.payload_len <= ipv4::PAYLOAD_MAX);
        let at = ethernet::emit(&self.ethernet(mac, EtherType::IPV4), out);
        at + ipv4::emit(&ipv4::Header { id, ..self.header_v4() }, &mut out[at..])
    }

    /// Writes the Ethernet and IPv6 headers of the whole packet, which the station `mac` sends. Returns their
    /// length.
    #[inline]
    pub(crate) fn emit_v6(&self, out: &mut [u8], mac: Mac) -> usize {
        debug_assert!(self.payload_len <= ipv6::PAYLOAD_MAX);
        let at = ethernet::emit(&self.ethernet(mac, EtherType::IPV6), out);
        at + ipv6::emit(&self.header_v6(), &mut out[at..])
    }

    /// Writes the headers of one fragment of the packet, which the station `mac` sends. Returns their length.
    pub(crate) fn emit_fragment(&self, out: &mut [u8], mac: Mac, id: u32, part: &Part) -> usize {
        let offset = (part.offset / 8) as u16;
        if self.dst.is_v4() {
            let header = ipv4::Header {
                payload_len: part.len as u16,
                id: id as u16,
                dont_fragment: false,
                more_fragments: part.more,
                fragment_offset: offset,
                ..self.header_v4()
            };
            let at = ethernet::emit(&self.ethernet(mac, EtherType::IPV4), out);
            return at + ipv4::emit(&header, &mut out[at..]);
        }
        let header = ipv6::Header {
            next_header: Protocol(ipv6::FRAGMENT),
            payload_len: (ipv6::FRAGMENT_LEN + part.len) as u16,
            ..self.header_v6()
        };
        let mut at = ethernet::emit(&self.ethernet(mac, EtherType::IPV6), out);
        at += ipv6::emit(&header, &mut out[at..]);
        let fragment = ipv6::Fragment { offset, more: part.more, id };
        at + ipv6::emit_fragment(self.protocol, &fragment, &mut out[at..])
    }

    #[inline]
    const fn ethernet(&self, src: Mac, ethertype: EtherType) -> ethernet::Header {
        ethernet::Header { dst: self.dst_mac, src, ethertype }
    }

    /// Returns the IPv4 header of the whole packet, with identification 0.
    #[inline]
    fn header_v4(&self) -> ipv4::Header {
        ipv4::Header {
            src: self.src.to_v4().unwrap_or_default(),
            dst: self.dst.to_v4().unwrap_or_default(),
            protocol: self.protocol,
            payload_len: self.payload_len as u16,
            tos: self.tos,
            ttl: self.ttl,
            id: 0,
            dont_fragment: self.dont_fragment,
            more_fragments: false,
            fragment_offset: 0,
        }
    }

    /// Returns the IPv6 header of the whole packet.
    #[inline]
    const fn header_v6(&self) -> ipv6::Header {
        ipv6::Header {
            src: self.src,
            dst: self.dst,
            next_header: self.protocol,
            payload_len: self.payload_len as u16,
            traffic_class: self.tos,
            flow_label: 0,
            hop_limit: self.ttl,
        }
    }
}
