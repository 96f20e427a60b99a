//! How do the parts of a packet find each other again? RFC 791 §3.2, RFC 1122 §3.3.2, RFC 8200 §4.5.
//!
//! Of no address family: [`Reassembly`] knows keys, offsets and octets. Anybody can send first fragments without ever sending
//! the last, so everything here is bounded: octets, packets, fragments of a packet, and what one source may hold of it all.
//! When there is no room, the oldest packet goes: the fragments of a packet that is still wanted follow each other closely.
//!
//! ```text
//!   offset   0            1480          2960        end (known from the last fragment)
//!            | piece 0     |  (missing)   | piece 2  |          whole when the pieces' octets add up to `end`,
//!            +-------------+              +----------+          because pieces never overlap
//! ```

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use atoll_base::{Duration, Instant};

/// What the fragments of one packet have in common.
pub trait FragmentKey: Copy + Ord {
    /// Who sent them.
    type Source: Copy + Ord;

    /// Who sent them.
    fn source(&self) -> Self::Source;

    /// How long the packet may take from its first fragment on.
    fn timeout(&self) -> Duration;
}

/// How much is kept at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Octets, with what it costs to keep them. A source may have half of it.
    pub bytes_max: usize,
    /// Packets. A source may have half of them.
    pub packets_max: usize,
    /// Fragments of one packet.
    pub fragments_max: usize,
}

impl Limits {
    /// Linux's `ipfrag_high_thresh`. A packet of 65535 octets in 256 fragments has 256 octets in each: less than the
    /// smallest MTU in use (RFC 1191 §7.1 lists 296 for serial lines).
    pub const USUAL: Limits = Limits { bytes_max: 4 << 20, packets_max: 512, fragments_max: 256 };
}

/// One fragment as it arrives.
#[derive(Clone, Copy, Debug)]
pub struct Fragment<'a> {
    /// Where its octets belong.
    pub offset: u32,
    /// Whether others follow behind it.
    pub more: bool,
    /// What stands before its octets in the frame; that of the fragment with offset 0 stands before the whole.
    pub head: &'a [u8],
    /// Its octets.
    pub payload: &'a [u8],
    /// The longest payload that a packet with such a head can have.
    pub payload_max: u32,
    /// Its congestion mark: 0 (Not-ECT) to 3 (CE).
    pub ecn: u8,
}

/// A packet whose fragments have all arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// The head of the first fragment and all octets.
    pub bytes: Vec<u8>,
    /// Octets of the head.
    pub head_len: usize,
    /// Whether a fragment carried "congestion experienced" (RFC 3168 §5.3).
    pub congested: bool,
}

/// What became of a fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Others are missing.
    Kept,
    /// It was the last one missing.
    Complete(Whole),
    /// It is not kept.
    Dropped(Refusal),
}

/// Why a fragment is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No packet can have such a fragment, or not one with those that came before; the packet is discarded.
    Malformed,
    /// It covers octets of another fragment in part: the packet is discarded, because only attacks do that (RFC 5722, for both families).
    Overlap,
    /// Its octets are there already: sent twice, or by another way. The first ones count.
    Duplicate,
}

/// A packet that has lost its chance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    /// Head and octets of the fragment with offset 0, if that had arrived.
    pub first: Option<Vec<u8>>,
}

/// The packets of which some fragments have arrived. Lost with its process: those who sent them send again.
///
/// Every question that a hostile fragment can raise has an index of its own, so that none is answered by a scan: which
/// packet is the oldest, which is the oldest of a source, and which is due first. A packet is in all of them or in none.
#[derive(Debug)]
pub struct Reassembly<K: FragmentKey> {
    limits: Limits,
    packets: BTreeMap<K, Partial>,
    /// All packets by their serial numbers, the oldest first.
    by_age: BTreeMap<u64, K>,
    /// The packets of each source by their serial numbers, the oldest first.
    by_source: BTreeSet<(K::Source, u64)>,
    /// All packets by their deadlines, of equal ones the oldest first.
    by_deadline: BTreeSet<(Instant, u64)>,
    usage: BTreeMap<K::Source, Usage>,
    total: Usage,
    /// Number of the next packet: they age in this order.
    next_serial: u64,
    evicted: u64,
}

#[derive(Debug)]
struct Partial {
    serial: u64,
    deadline: Instant,
    /// By offset, never empty, without overlap.
    pieces: Vec<Piece>,
    head: Vec<u8>,
    /// Length of the whole, if the last fragment is here.
    end: Option<u32>,
    received: u32,
    cost: usize,
    /// A bit for each congestion mark seen.
    marks: u8,
}

#[derive(Debug)]
struct Piece {
    offset: u32,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    bytes: usize,
    packets: usize,
}

/// What a packet and a fragment cost besides their octets, about.
const PACKET_COST: usize = 256;
const PIECE_COST: usize = 64;

impl<K: FragmentKey> Reassembly<K> {
    /// Nothing yet. `limits` hold one packet of every length.
    pub fn new(limits: Limits) -> Reassembly<K> {
        debug_assert!(limits.bytes_max >= 1 << 18 && limits.packets_max >= 2 && limits.fragments_max >= 2);
        Reassembly {
            limits,
            packets: BTreeMap::new(),
            by_age: BTreeMap::new(),
            by_source: BTreeSet::new(),
            by_deadline: BTreeSet::new(),
            usage: BTreeMap::new(),
            total: Usage::default(),
            next_serial: 0,
            evicted: 0,
        }
    }

    /// Takes a fragment of the packet `key`. Cost: O(log n) in packets and fragments, also for each packet that is evicted.
    pub fn insert(&mut self, now: Instant, key: K, fragment: &Fragment<'_>) -> Outcome {
        let outcome = self.place(now, key, fragment);
        match outcome {
            Outcome::Dropped(Refusal::Malformed | Refusal::Overlap) => {
                self.remove(&key);
            }
            Outcome::Kept | Outcome::Complete(_) | Outcome::Dropped(Refusal::Duplicate) => {}
        }
        outcome
    }

    fn place(&mut self, now: Instant, key: K, fragment: &Fragment<'_>) -> Outcome {
        let Some(end) = end_of(fragment) else { return Outcome::Dropped(Refusal::Malformed) };
        let at = match self.packets.get(&key) {
            None => 0,
            Some(packet) => match packet.position(fragment, end) {
                Ok(_) if packet.pieces.len() >= self.limits.fragments_max => {
                    return Outcome::Dropped(Refusal::Malformed);
                }
                Ok(at) => at,
                Err(refusal) => return Outcome::Dropped(refusal),
            },
        };
        self.make_room(&key, fragment.cost());
        let serial = self.next_serial;
        let deadline = now + key.timeout();
        let packet = self.packets.entry(key).or_insert_with(|| Partial::new(serial, deadline));
        if packet.pieces.is_empty() {
            self.next_serial += 1;
            self.by_age.insert(serial, key);
            self.by_source.insert((key.source(), serial));
            self.by_deadline.insert((deadline, serial));
            charge(&mut self.total, &mut self.usage, key.source(), PACKET_COST, 1);
        }
        charge(&mut self.total, &mut self.usage, key.source(), fragment.cost(), 0);
        packet.keep(at, fragment, end);
        if packet.end != Some(packet.received) {
            return Outcome::Kept;
        }
        match self.remove(&key).and_then(Partial::join) {
            Some(whole) => Outcome::Complete(whole),
            None => Outcome::Dropped(Refusal::Malformed),
        }
    }

    /// The next packet whose time is over at `now`.
    pub fn expire(&mut self, now: Instant) -> Option<(K, Expired)> {
        let &(deadline, serial) = self.by_deadline.first()?;
        if deadline > now {
            return None;
        }
        let key = *self.by_age.get(&serial)?;
        let packet = self.remove(&key)?;
        let is_first = |piece: &&Piece| piece.offset == 0;
        let first = packet.pieces.first().filter(is_first).map(|piece| [&packet.head[..], &piece.bytes[..]].concat());
        Some((key, Expired { first }))
    }

    /// When to call [`Reassembly::expire`].
    pub fn next_timeout(&self) -> Option<Instant> {
        self.by_deadline.first().map(|&(deadline, _)| deadline)
    }

    /// Packets that had to make room for others so far.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Packets whose fragments are waited for.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether nothing is waited for.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Octets that all of it costs.
    pub fn bytes(&self) -> usize {
        self.total.bytes
    }

    /// Evicts what is oldest, of the source first if that has more than its share, until a fragment of `key` fits.
    fn make_room(&mut self, key: &K, cost: usize) {
        let source = key.source();
        let is_new = !self.packets.contains_key(key);
        let (bytes, packets) = (cost + if is_new { PACKET_COST } else { 0 }, usize::from(is_new));
        let fits = |used: Usage, share: usize, limits: &Limits| {
            used.bytes + bytes <= limits.bytes_max / share && used.packets + packets <= limits.packets_max / share
        };
        while !fits(self.usage.get(&source).copied().unwrap_or_default(), 2, &self.limits)
            && self.evict(self.oldest_of(source, key))
        {}
        while !fits(self.total, 1, &self.limits) && self.evict(self.oldest(key)) {}
    }

    /// The oldest packet but `key`. Cost: a look at two packets at most.
    fn oldest(&self, key: &K) -> Option<K> {
        self.by_age.values().find(|other| *other != key).copied()
    }

    /// The oldest packet of `source` but `key`. Cost: as [`Reassembly::oldest`].
    fn oldest_of(&self, source: K::Source, key: &K) -> Option<K> {
        let serials = self.by_source.range((source, 0)..=(source, u64::MAX));
        serials.filter_map(|(_, serial)| self.by_age.get(serial)).find(|other| *other != key).copied()
    }

    /// Discards a packet, to make room for another. Returns whether there was one.
    fn evict(&mut self, key: Option<K>) -> bool {
        let evicted = key.is_some_and(|key| self.remove(&key).is_some());
        self.evicted += u64::from(evicted);
        evicted
    }

    fn remove(&mut self, key: &K) -> Option<Partial> {
        let packet = self.packets.remove(key)?;
        self.by_age.remove(&packet.serial);
        self.by_source.remove(&(key.source(), packet.serial));
        self.by_deadline.remove(&(packet.deadline, packet.serial));
        let cost = packet.cost + PACKET_COST;
        self.total.bytes -= cost;
        self.total.packets -= 1;
        if let Some(usage) = self.usage.get_mut(&key.source()) {
            usage.bytes -= cost;
            usage.packets -= 1;
            if usage.packets == 0 {
                self.usage.remove(&key.source());
            }
        }
        Some(packet)
    }

    /// The relations between the parts; panics if one is broken, which is a bug of ours.
    pub fn check_invariants(&self) {
        assert!(self.total.packets == self.packets.len() && self.packets.len() <= self.limits.packets_max);
        assert!(self.total.bytes <= self.limits.bytes_max);
        let indexed = [self.by_age.len(), self.by_source.len(), self.by_deadline.len()];
        assert_eq!(indexed, [self.packets.len(); 3]);
        if cfg!(test) {
            for (key, packet) in &self.packets {
                assert!(self.by_age.get(&packet.serial) == Some(key));
                assert!(self.by_source.contains(&(key.source(), packet.serial)));
                assert!(self.by_deadline.contains(&(packet.deadline, packet.serial)));
            }
            let bytes: usize = self.packets.values().map(|packet| packet.cost + PACKET_COST).sum();
            assert_eq!(bytes, self.total.bytes);
            assert_eq!(self.usage.values().map(|usage| usage.bytes).sum::<usize>(), bytes);
            for packet in self.packets.values() {
                assert!(packet.pieces.windows(2).all(|pair| pair[0].end() <= pair[1].offset));
                assert!(!packet.pieces.is_empty() && packet.end != Some(packet.received));
            }
        }
    }
}

impl Partial {
    fn new(serial: u64, deadline: Instant) -> Partial {
        let (pieces, head) = (Vec::new(), Vec::new());
        Partial { serial, deadline, pieces, head, end: None, received: 0, cost: 0, marks: 0 }
    }

    /// Where among the pieces a fragment up to `end` belongs.
    fn position(&self, fragment: &Fragment<'_>, end: u32) -> Result<usize, Refusal> {
        let last = self.pieces.last().map_or(0, Piece::end);
        // There is one end, and nothing lies behind it.
        let fits = match self.end {
            Some(known) if fragment.more => end <= known,
            Some(known) => end == known,
            None => fragment.more || end >= last,
        };
        if !fits {
            return Err(Refusal::Malformed);
        }
        let at = self.pieces.partition_point(|piece| piece.end() <= fragment.offset);
        match self.pieces.get(at) {
            None => Ok(at),
            Some(next) if end <= next.offset => Ok(at),
            // As on Linux: what adds nothing was sent twice, and what adds something to a part of another does harm.
            Some(next) if next.offset <= fragment.offset && self.reaches(at, end) => Err(Refusal::Duplicate),
            Some(_) => Err(Refusal::Overlap),
        }
    }

    /// Whether the gapless run that begins with piece `at` reaches `wanted`. It is followed no further than that, so a
    /// repeated fragment costs no more pieces than it has octets.
    fn reaches(&self, at: usize, wanted: u32) -> bool {
        let (mut end, rest) = (0, self.pieces.get(at..).unwrap_or_default());
        for (n, piece) in rest.iter().enumerate() {
            if n > 0 && (piece.offset != end || end >= wanted) {
                break;
            }
            end = piece.end();
        }
        end >= wanted
    }

    fn keep(&mut self, at: usize, fragment: &Fragment<'_>, end: u32) {
        if fragment.offset == 0 {
            self.head = fragment.head.to_vec();
        }
        if !fragment.more {
            self.end = Some(end);
        }
        self.received += fragment.payload.len() as u32;
        self.cost += fragment.cost();
        self.marks |= 1 << (fragment.ecn & 3);
        self.pieces
            .insert(at.min(self.pieces.len()), Piece { offset: fragment.offset, bytes: fragment.payload.to_vec() });
    }

    /// All pieces behind the first one's head; `None` if their marks contradict each other.
    fn join(self) -> Option<Whole> {
        let congested = self.marks & 1 << CE != 0;
        // RFC 3168 §5.3: a mark on fragments of a transport that does not understand marks is an error.
        if congested && self.marks & 1 << NOT_ECT != 0 {
            return None;
        }
        let head_len = self.head.len();
        let mut bytes = self.head;
        bytes.reserve_exact(self.received as usize);
        for piece in &self.pieces {
            bytes.extend_from_slice(&piece.bytes);
        }
        Some(Whole { bytes, head_len, congested })
    }
}

impl Piece {
    fn end(&self) -> u32 {
        // At most `payload_max`, and that is checked.
        self.offset + self.bytes.len() as u32
    }
}

impl Fragment<'_> {
    fn cost(&self) -> usize {
        PIECE_COST + self.payload.len() + if self.offset == 0 { self.head.len() } else { 0 }
    }
}

/// Where a fragment ends; `None` if no packet can have it: without octets, not a multiple of 8 octets although others follow, or beyond
/// the longest packet.
fn end_of(fragment: &Fragment<'_>) -> Option<u32> {
    let len = u32::try_from(fragment.payload.len()).ok()?;
    let end = fragment.offset.checked_add(len)?;
    (len > 0 && (!fragment.more || len.is_multiple_of(8)) && end <= fragment.payload_max).then_some(end)
}

fn charge<S: Copy + Ord>(total: &mut Usage, usage: &mut BTreeMap<S, Usage>, source: S, bytes: usize, packets: usize) {
    for usage in [total, usage.entry(source).or_default()] {
        usage.bytes += bytes;
        usage.packets += packets;
    }
}

const NOT_ECT: u8 = 0;
const CE: u8 = 3;

#[cfg(test)]
mod tests;
