//! Splits packets into fragments and reassembles them. IPv4: RFC 791 §3.2, RFC 1122 §3.3.2 and §3.3.3.
//! `v6/fragments.rs` has what only IPv6 needs; both families share the limits.

use alloc::boxed::Box;

use atoll_base::{Addr, Duration, Instant, Rng};
use atoll_wire::icmp::Message;
use atoll_wire::ipv4::{self, Protocol};
use atoll_wire::{ethernet, icmpv6, ipv6, tcp};

use crate::counters::Reason;
use crate::input::Received;
use crate::ip::{Frame, Ip, Link};
use crate::output::{HEADERS_LEN, HEADERS_LEN_MAX, Outgoing};
use crate::reassembly::{Fragment, FragmentKey, Outcome, Refusal};

/// What the fragments of one packet have in common (RFC 791 §3.2, RFC 8200 §4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketKey {
    pub(crate) src: Addr,
    pub(crate) dst: Addr,
    pub(crate) id: u32,
    /// The protocol; 0 for IPv6, where the fragments of a packet may name different ones.
    pub(crate) protocol: u8,
    pub(crate) inside: bool,
}

impl FragmentKey for PacketKey {
    type Source = (u64, u32, bool);

    /// The reassembly timeouts: Linux's `ipfrag_time` for IPv4, and the 60 seconds of RFC 8200 for IPv6.
    const TIMEOUTS: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(60)];

    /// Returns the source that limits apply to. For IPv6 this is the /64 network, so that a host with many
    /// addresses there has no larger share.
    fn source(&self) -> (u64, u32, bool) {
        let octets = u128::from_be_bytes(self.src.octets());
        ((octets >> 64) as u64, self.src.to_v4().unwrap_or_default(), self.inside)
    }

    fn has_second_timeout(&self) -> bool {
        !self.src.is_v4()
    }

    fn hashes(&self, secret: [u64; 2]) -> [u64; 2] {
        let (network, v4, inside) = self.source();
        let source = hash(secret, secret[0], [network, u64::from(v4) << 1 | u64::from(inside)]);
        let [_, host] = self.src.to_u64s();
        let [dst_high, dst_low] = self.dst.to_u64s();
        let rest = u64::from(self.id) << 8 | u64::from(self.protocol);
        [hash(secret, source, [host, dst_high, dst_low, rest]), source]
    }
}

/// Hashes `words`, starting from `start`: multiply-shift for each word, with a secret multiplier. Inputs that
/// differ in one word never collide in all bits.
fn hash<const N: usize>(secret: [u64; 2], start: u64, words: [u64; N]) -> u64 {
    words.into_iter().fold(start, |hash, word| {
        let product = (hash ^ word).wrapping_mul(secret[1] | 1);
        product ^ (product >> 32)
    })
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

/// Generates the identifications of packets that may be fragmented. They must not repeat for a source,
/// destination and protocol (RFC 6864 §4.3), and must not reveal how much is sent to others (RFC 7739 §5.4).
/// So each destination counts from an offset of its own, in one of some counters. IPv4 uses the lower 16
/// bits.
#[derive(Debug)]
pub(crate) struct Identifications {
    counters: Box<[u32; COUNTERS]>,
    key: u64,
    index: u32,
    step: u32,
}

const COUNTERS: usize = 256;

impl Identifications {
    /// Creates the generator of replica `index` of `count`; these share an address, and so divide its
    /// identifications.
    pub(crate) fn new(rng: &mut Rng, (index, count): (u8, u8)) -> Identifications {
        let mut counters = Box::new([0; COUNTERS]);
        counters.fill_with(|| rng.next_u32());
        let step = u32::from(count.clamp(1, 128)).next_power_of_two();
        Identifications { counters, key: rng.next_u64(), index: u32::from(index) % step, step }
    }

    pub(crate) fn next(&mut self, dst: Addr, protocol: Protocol) -> u32 {
        // With IPv6 the identification alone tells the packets between two addresses apart.
        let mut word = dst.to_v4().map_or(0, |v4| u64::from(v4) << 8 | u64::from(protocol.0));
        if !dst.is_v4() {
            let [high, low] = dst.to_u64s();
            word = Rng::new(self.key ^ high).next_u64() ^ low;
        }
        let place = Rng::new(self.key ^ word).next_u64();
        let counter = &mut self.counters[place as usize % COUNTERS];
        *counter = counter.wrapping_add(1);
        counter.wrapping_add((place >> 32) as u32).wrapping_mul(self.step).wrapping_add(self.index)
    }
}

impl Ip {
    /// Returns the next reassembled packet, from the Ethernet header on. The owner of its flow must handle it
    /// like a frame of its link without checksum offload.
    pub fn poll_whole(&mut self) -> Option<Frame> {
        self.wholes.pop_front()
    }

    /// Returns the identification for a packet to `dst` whose fragments [`Ip::emit_fragment`] will write.
    pub fn identify(&mut self, dst: impl Into<Addr>, protocol: Protocol) -> u32 {
        self.identifications.next(dst.into(), protocol)
    }

    /// Writes the headers of one fragment of `packet`, as [`Ip::emit_headers`] does for a whole packet.
    /// Returns their length in octets, at most [`FRAGMENT_HEADERS_LEN_MAX`]. Call [`Ip::fragment_sent`] once
    /// the link has taken the fragment.
    pub fn emit_fragment(&self, out: &mut [u8], packet: &Outgoing, id: u32, part: &Part) -> usize {
        if !packet.dst.is_v4() {
            return self.emit_fragment_v6(out, packet, id, part);
        }
        let header = ipv4::Header {
            payload_len: part.len as u16,
            id: id as u16,
            dont_fragment: false,
            more_fragments: part.more,
            fragment_offset: (part.offset / 8) as u16,
            ..packet.header()
        };
        self.emit(out, packet.dst_mac, &header)
    }

    /// Counts a fragment that was sent.
    pub fn fragment_sent(&mut self) {
        self.counters.fragments_out += 1;
    }

    /// Keeps a fragment until its packet is complete. `head_len` is the number of octets of `frame` before
    /// `payload`.
    #[cold]
    pub(crate) fn handle_fragment<'a>(
        &mut self,
        now: Instant,
        link: Link,
        frame: &[u8],
        head_len: usize,
        header: &ipv4::Header,
        payload: &[u8],
    ) -> Result<Received<'a>, Reason> {
        self.counters.fragments_in += 1;
        if is_tiny(header, payload) {
            return Err(Reason::FragmentTiny);
        }
        let head = frame.get(..head_len).ok_or(Reason::Malformed)?;
        let key = PacketKey {
            src: Addr::v4(header.src),
            dst: Addr::v4(header.dst),
            id: header.id.into(),
            protocol: header.protocol.0,
            inside: link == Link::Inside,
        };
        let fragment = Fragment {
            offset: u32::from(header.fragment_offset) * 8,
            more: header.more_fragments,
            head,
            payload,
            payload_max: (usize::from(u16::MAX) + ethernet::HEADER_LEN).saturating_sub(head_len) as u32,
            ecn: header.ecn() as u8,
        };
        match self.reassembly.insert(now, key, &fragment) {
            Outcome::Kept => Ok(Received::Consumed),
            Outcome::Complete(mut whole) => {
                let packet = whole.bytes.get_mut(ethernet::HEADER_LEN..).ok_or(Reason::FragmentMalformed)?;
                ipv4::make_whole(packet, whole.congested).map_err(|_| Reason::FragmentMalformed)?;
                self.counters.reassembled += 1;
                self.queue_whole(Frame { link, bytes: whole.bytes });
                Ok(Received::Consumed)
            }
            Outcome::Dropped(refusal) => Err(reason(refusal)),
        }
    }

    /// Gives up packets whose fragments have not all arrived in time, and sends an ICMP error if the first
    /// fragment had arrived (RFC 1122 §3.3.2, RFC 8200 §4.5).
    pub(crate) fn expire_fragments(&mut self, now: Instant) {
        while let Some((key, expired)) = self.reassembly.expire(now) {
            self.counters.reassembly_timeouts += 1;
            if let Some(frame) = expired.first {
                let link = if key.inside { Link::Inside } else { Link::Outside };
                match key.src.is_v4() {
                    true => self.report(now, link, &frame, Message::TimeExceeded { code: REASSEMBLY }),
                    false => {
                        self.error_v6(now, link, &frame, icmpv6::Message::TimeExceeded { code: REASSEMBLY })
                    }
                }
            }
        }
    }
}

/// Returns whether a fragment splits a TCP header; that only serves to get past a filter (RFC 1858 §3, RFC
/// 3128).
fn is_tiny(header: &ipv4::Header, payload: &[u8]) -> bool {
    header.protocol == Protocol::TCP
        && match header.fragment_offset {
            0 => payload.len() < tcp::HEADER_MIN,
            offset => usize::from(offset) * 8 < tcp::HEADER_MIN,
        }
}

/// Returns the reason that is counted for a refused fragment.
pub(crate) const fn reason(refusal: Refusal) -> Reason {
    match refusal {
        Refusal::Malformed => Reason::FragmentMalformed,
        Refusal::Overlap => Reason::FragmentOverlap,
        Refusal::Duplicate => Reason::FragmentDuplicate,
    }
}

/// The most octets that [`Ip::emit_fragment`] writes: Ethernet, IPv6 and fragment header.
pub const FRAGMENT_HEADERS_LEN_MAX: usize = HEADERS_LEN_MAX + ipv6::FRAGMENT_LEN;

/// The code of "time exceeded" for reassembly (RFC 792, RFC 4443 §3.3).
const REASSEMBLY: u8 = 1;

const _: () = assert!(HEADERS_LEN == ethernet::HEADER_LEN + ipv4::HEADER_LEN);

#[cfg(test)]
mod tests;
