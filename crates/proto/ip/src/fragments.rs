//! Splits packets into fragments and reassembles them. IPv4: RFC 791 §3.2, RFC 1122 §3.3.2 and §3.3.3.
//! `v6/fragments.rs` has what only IPv6 needs; both families share the limits.

use atoll_base::{Addr, Duration, Instant};
use atoll_wire::icmp::Message;
use atoll_wire::ipv4::{self, Protocol};
use atoll_wire::{ethernet, icmpv6, tcp};

use crate::counters::Reason;
use crate::input::Received;
use crate::ip::Ip;
use crate::link::{Frame, Link};
use crate::output::{Outgoing, Part};
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

impl Ip {
    /// Returns the next reassembled packet, from the Ethernet header on. The owner of its flow must handle it
    /// like a frame of its link without checksum offload.
    pub fn poll_whole(&mut self) -> Option<Frame> {
        self.wholes.pop_front()
    }

    /// Returns the identification for a packet to `dst` whose fragments [`Ip::emit_fragment`] will write.
    pub fn identify(&mut self, dst: impl Into<Addr>, protocol: Protocol) -> u32 {
        self.common.identify(dst.into(), protocol)
    }

    /// Writes the headers of one fragment of `packet`, as [`Ip::emit_headers`] does for a whole packet.
    /// Returns their length in octets, at most [`FRAGMENT_HEADERS_LEN_MAX`]. Call [`Ip::fragment_sent`] once
    /// the link has taken the fragment.
    pub fn emit_fragment(&self, out: &mut [u8], packet: &Outgoing, id: u32, part: &Part) -> usize {
        packet.emit_fragment(out, self.common.mac(), id, part)
    }

    /// Counts a fragment that was sent.
    pub fn fragment_sent(&mut self) {
        self.common.count().fragments_out += 1;
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
        self.common.count().fragments_in += 1;
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
                self.common.count().reassembled += 1;
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
            self.common.count().reassembly_timeouts += 1;
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

/// The code of "time exceeded" for reassembly (RFC 792, RFC 4443 §3.3).
const REASSEMBLY: u8 = 1;

#[cfg(test)]
mod tests;
