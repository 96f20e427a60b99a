//! How does a host take packets apart, and how does it get them whole again? IPv4: RFC 791 §3.2, RFC 1122
//! §3.3.2 and §3.3.3. What is IPv6's alone is in `v6/fragments.rs`; both families share the bounds.

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

/// RFC 791 §3.2, RFC 8200 §4.5: what the fragments of one packet have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketKey {
    pub(crate) src: Addr,
    pub(crate) dst: Addr,
    pub(crate) id: u32,
    /// 0 for IPv6, where the fragments of a packet may name different ones.
    pub(crate) protocol: u8,
    pub(crate) inside: bool,
}

impl FragmentKey for PacketKey {
    type Source = (u64, u32, bool);

    /// Linux's `ipfrag_time`, and the 60 seconds of RFC 8200.
    const TIMEOUTS: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(60)];

    /// Of an IPv6 address the network: its hosts, and whoever has taken more than one address there, share
    /// what a source may have.
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

/// Multiply-shift for each word, with a secret multiplier, from `start` on. Words that differ in one place
/// never collide in all bits.
fn hash<const N: usize>(secret: [u64; 2], start: u64, words: [u64; N]) -> u64 {
    words.into_iter().fold(start, |hash, word| {
        let product = (hash ^ word).wrapping_mul(secret[1] | 1);
        product ^ (product >> 32)
    })
}

/// One fragment of a payload that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where in the payload it starts: a multiple of 8.
    pub offset: usize,
    /// Octets of it.
    pub len: usize,
    /// Whether others follow.
    pub more: bool,
}

/// The parts of a payload of `len` octets to `dst`, from octet `from` (a multiple of 8) on, in packets of at
/// most `mtu` octets (at least 68, RFC 791; with IPv6 1280).
pub fn parts(dst: Addr, len: usize, from: usize, mtu: u16) -> impl Iterator<Item = Part> {
    let headers = if dst.is_v4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN + ipv6::FRAGMENT_LEN };
    let room = (usize::from(mtu).saturating_sub(headers) & !7).max(8);
    (from..len).step_by(room).map(move |offset| {
        let end = len.min(offset + room);
        Part { offset, len: end - offset, more: end < len }
    })
}

/// The identifications of what may be fragmented. RFC 6864 §4.3 wants them not to repeat for a source,
/// destination and protocol, RFC 7739 §5.4 not to tell how much is sent to others: each destination counts
/// from a place of its own, in one of some counters. IPv4 has room for the lower half.
#[derive(Debug)]
pub(crate) struct Identifications {
    counters: Box<[u32; COUNTERS]>,
    key: u64,
    index: u32,
    step: u32,
}

const COUNTERS: usize = 256;

impl Identifications {
    /// Those of replica `index` of `count`, which share an address and therefore the identifications as well.
    pub(crate) fn new(rng: &mut Rng, (index, count): (u8, u8)) -> Identifications {
        let mut counters = Box::new([0; COUNTERS]);
        counters.fill_with(|| rng.next_u32());
        let step = u32::from(count.clamp(1, 128)).next_power_of_two();
        Identifications { counters, key: rng.next_u64(), index: u32::from(index) % step, step }
    }

    pub(crate) fn next(&mut self, dst: Addr, protocol: Protocol) -> u32 {
        // With IPv6 the identification alone has to tell a pair's packets apart.
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
    /// The next packet that is whole again, from the Ethernet header on: to be handled, by the owner of its
    /// flow, like a frame of its link about which the link says nothing.
    pub fn poll_whole(&mut self) -> Option<Frame> {
        self.wholes.pop_front()
    }

    /// The identification of a packet to `dst` whose fragments [`Ip::emit_fragment`] will write.
    pub fn identify(&mut self, dst: impl Into<Addr>, protocol: Protocol) -> u32 {
        self.identifications.next(dst.into(), protocol)
    }

    /// Writes the headers of one part of `packet`, as [`Ip::emit_headers`] does for all of it; returns their
    /// length, at most [`FRAGMENT_HEADERS_LEN_MAX`]. When the link has taken it, call [`Ip::fragment_sent`].
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

    /// Counts a fragment that has left.
    pub fn fragment_sent(&mut self) {
        self.counters.fragments_out += 1;
    }

    /// Keeps a fragment until its packet is whole. `head_len`: octets of `frame` before `payload`.
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

    /// Gives up packets whose fragments have not all arrived in time. RFC 1122 §3.3.2, RFC 8200 §4.5: their
    /// senders are told, if the first fragment was there.
    pub(crate) fn expire_fragments(&mut self, now: Instant) {
        while let Some((key, expired)) = self.reassembly.expire(now) {
            self.counters.reassembly_timeouts += 1;
            if let Some(frame) = expired.first {
                let link = if key.inside { Link::Inside } else { Link::Outside };
                match key.src.is_v4() {
                    true => self.report(now, link, &frame, Message::TimeExceeded { code: REASSEMBLY }),
                    false => self.error_v6(now, link, &frame, icmpv6::Message::TimeExceeded { code: REASSEMBLY }),
                }
            }
        }
    }
}

/// RFC 1858 §3 and RFC 3128: nobody has a reason to tear a TCP header apart but to get it past a filter.
fn is_tiny(header: &ipv4::Header, payload: &[u8]) -> bool {
    header.protocol == Protocol::TCP
        && match header.fragment_offset {
            0 => payload.len() < tcp::HEADER_MIN,
            offset => usize::from(offset) * 8 < tcp::HEADER_MIN,
        }
}

/// Why a fragment is dropped.
pub(crate) const fn reason(refusal: Refusal) -> Reason {
    match refusal {
        Refusal::Malformed => Reason::FragmentMalformed,
        Refusal::Overlap => Reason::FragmentOverlap,
        Refusal::Duplicate => Reason::FragmentDuplicate,
    }
}

/// Most bytes that [`Ip::emit_fragment`] writes: Ethernet, IPv6 and its fragment header.
pub const FRAGMENT_HEADERS_LEN_MAX: usize = HEADERS_LEN_MAX + ipv6::FRAGMENT_LEN;

/// RFC 792, RFC 4443 §3.3: code of "time exceeded" for fragments.
const REASSEMBLY: u8 = 1;

const _: () = assert!(HEADERS_LEN == ethernet::HEADER_LEN + ipv4::HEADER_LEN);

#[cfg(test)]
mod tests;
