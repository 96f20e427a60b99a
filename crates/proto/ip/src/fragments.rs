//! How do both families reassemble packets? What they share: which fragments belong together, the limits, and
//! the packets that are complete (RFC 1122 §3.3.2, RFC 8200 §4.5).
//!
//! `v4/fragments.rs` and `v6/fragments.rs` read the headers of fragments.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use atoll_base::{Addr, Duration, Instant};

use crate::common::Common;
use crate::counters::Reason;
use crate::input::Received;
use crate::link::{Frame, Link};
use crate::reassembly::{Fragment, FragmentKey, Limits, Outcome, Reassembly, Refusal};

/// The incomplete packets of both families, and the complete ones that wait for
/// [`Ip::poll_whole`](crate::Ip::poll_whole).
#[derive(Debug)]
pub(crate) struct Fragments {
    incomplete: Reassembly<PacketKey>,
    wholes: VecDeque<Frame>,
}

/// A packet that was given up because its fragments have not all arrived in time.
#[derive(Debug)]
pub(crate) struct GivenUp {
    pub(crate) link: Link,
    /// The frame of the first fragment, if that had arrived.
    pub(crate) first: Option<Vec<u8>>,
}

/// The key of a packet, which all its fragments have (RFC 791 §3.2, RFC 8200 §4.5).
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

impl PacketKey {
    const fn link(&self) -> Link {
        if self.inside { Link::Inside } else { Link::Outside }
    }
}

impl Fragments {
    /// Creates the part without any packet. `secret` must be unpredictable from outside.
    pub(crate) fn new(limits: Limits, secret: [u64; 2]) -> Fragments {
        Fragments { incomplete: Reassembly::new(limits, secret), wholes: VecDeque::new() }
    }

    /// Keeps a fragment until its packet is complete. `make_whole` then makes the frame of the whole packet
    /// from the head of the first fragment and the payload, in place; the flag is whether a fragment carried
    /// "congestion experienced".
    pub(crate) fn insert<'a>(
        &mut self,
        now: Instant,
        common: &mut Common,
        key: PacketKey,
        fragment: &Fragment<'_>,
        make_whole: impl FnOnce(&mut Vec<u8>, bool) -> Option<()>,
    ) -> Result<Received<'a>, Reason> {
        match self.incomplete.insert(now, key, fragment) {
            Outcome::Kept => {}
            Outcome::Complete(mut whole) => {
                make_whole(&mut whole.bytes, whole.congested).ok_or(Reason::FragmentMalformed)?;
                common.count().reassembled += 1;
                common.push(&mut self.wholes, Frame { link: key.link(), bytes: whole.bytes });
            }
            Outcome::Dropped(Refusal::Malformed) => return Err(Reason::FragmentMalformed),
            Outcome::Dropped(Refusal::Overlap) => return Err(Reason::FragmentOverlap),
            Outcome::Dropped(Refusal::Duplicate) => return Err(Reason::FragmentDuplicate),
        }
        Ok(Received::Consumed)
    }

    /// Gives up the next packet whose fragments have not all arrived in time; the caller sends an ICMP error
    /// if the first one had (RFC 1122 §3.3.2, RFC 8200 §4.5).
    pub(crate) fn expire(&mut self, now: Instant, common: &mut Common) -> Option<GivenUp> {
        let (key, expired) = self.incomplete.expire(now)?;
        common.count().reassembly_timeouts += 1;
        Some(GivenUp { link: key.link(), first: expired.first })
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.incomplete.next_timeout()
    }

    pub(crate) fn poll_whole(&mut self) -> Option<Frame> {
        self.wholes.pop_front()
    }

    /// Returns the number of incomplete packets.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.incomplete.len()
    }

    /// Returns the number of incomplete packets that were evicted to make room for others.
    pub(crate) fn evictions(&self) -> u64 {
        self.incomplete.evicted()
    }

    pub(crate) fn check_invariants(&self, frames_max: usize) {
        self.incomplete.check_invariants();
        assert!(self.wholes.len() <= frames_max);
    }
}
