//! Reassembles packets from their fragments (RFC 791 §3.2, RFC 1122 §3.3.2, RFC 8200 §4.5).
//!
//! [`Reassembly`] is independent of the address family: it knows keys, offsets and octets. Any host can send
//! first fragments without ever sending the last. So everything here is bounded: octets, packets, fragments
//! of a packet, and the share of one source. If there is no room, the oldest packet goes, because the
//! fragments of a packet that is still wanted follow each other closely.
//!
//! ```text
//!   offset   0            1480          2960        end (known from the last fragment)
//!            | piece 0     |  (missing)   | piece 2  |          whole when the pieces' octets add up to `end`,
//!            +-------------+              +----------+          because pieces never overlap
//! ```

use alloc::vec::Vec;

use atoll_base::{Duration, Instant};

use list::{Links, List};
use octets::Octets;
use packet::{Packet, Piece};
use table::Table;

mod list;
mod octets;
mod packet;
mod table;

/// The key of a packet, which all its fragments have.
pub trait FragmentKey: Copy + Eq {
    /// The sender of the fragments, to which the limits of one source apply.
    type Source: Copy + Eq;

    /// The two timeouts of packets, from their first fragment on.
    const TIMEOUTS: [Duration; 2];

    /// Returns the sender of the fragments.
    fn source(&self) -> Self::Source;

    /// Returns whether the second of the two timeouts applies to this packet.
    fn has_second_timeout(&self) -> bool;

    /// Returns hashes of the key and of the source, which cannot be predicted without `secret`.
    fn hashes(&self, secret: [u64; 2]) -> [u64; 2];
}

/// The limits on what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most octets, including the overhead of keeping them. A source may have half of it.
    pub bytes_max: usize,
    /// The most packets. A source may have half of them.
    pub packets_max: usize,
    /// The most fragments of one packet.
    pub fragments_max: usize,
}

impl Limits {
    /// The usual limits; the octets are Linux's `ipfrag_high_thresh`. A packet of 65535 octets in 256
    /// fragments has 256 octets in each, which is less than the smallest MTU in use (RFC 1191 §7.1 lists 296
    /// for serial lines).
    pub const USUAL: Limits = Limits { bytes_max: 4 << 20, packets_max: 512, fragments_max: 256 };
}

/// One fragment as it arrives.
#[derive(Clone, Copy, Debug)]
pub struct Fragment<'a> {
    /// The offset of the fragment in the packet's payload, in octets.
    pub offset: u32,
    /// Whether other fragments follow.
    pub more: bool,
    /// The octets before the payload in the frame. Those of the fragment with offset 0 become the head of the
    /// whole packet.
    pub head: &'a [u8],
    /// The octets of the fragment.
    pub payload: &'a [u8],
    /// The longest payload that a packet with such a head can have, in octets.
    pub payload_max: u32,
    /// The congestion mark: 0 (Not-ECT) to 3 (CE).
    pub ecn: u8,
}

/// A packet whose fragments have all arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// The head of the first fragment, and all octets of the payload.
    pub bytes: Vec<u8>,
    /// The length of the head, in octets.
    pub head_len: usize,
    /// Whether a fragment carried "congestion experienced" (RFC 3168 §5.3).
    pub congested: bool,
}

/// The result of handling a fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The fragment is kept; others are missing.
    Kept,
    /// The fragment was the last one missing.
    Complete(Whole),
    /// The fragment is not kept.
    Dropped(Refusal),
}

/// Why a fragment is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No packet can have such a fragment, or it contradicts those that came before; the packet is discarded.
    Malformed,
    /// The fragment overlaps another in part: the packet is discarded, because only attacks do that (RFC
    /// 5722, for both families).
    Overlap,
    /// The octets of the fragment are there already: it was sent twice, or also arrived by another route. The
    /// first ones count.
    Duplicate,
}

/// A packet that was given up because its time was over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    /// The head and octets of the fragment with offset 0, if that had arrived.
    pub first: Option<Vec<u8>>,
}

/// The packets of which some fragments have arrived. They are lost with the process; their senders send
/// again.
///
/// Every question that a hostile fragment can raise is answered by an index instead of a scan. The questions
/// are: which packet it belongs to, which packet is the oldest, which is the oldest of a source, and which is
/// due first. The memory of one packet (places and blocks) is reused for the next, so that a flood costs
/// neither memory nor allocations.
#[derive(Debug)]
pub struct Reassembly<K: FragmentKey> {
    limits: Limits,
    /// The secret of the hashes, so that no sender can choose packets that are slow to find.
    secret: [u64; 2],
    packets: Table<Packet<K>>,
    /// The sources that have packets here.
    sources: Table<Source<K::Source>>,
    /// The packets of each of the two timeouts, the oldest first, which is also due first.
    by_age: [List; 2],
    /// The links of the lists in `by_age`; `source_links` are those of the lists of sources.
    age_links: Links,
    source_links: Links,
    octets: Octets,
    /// Empty vectors that are reused for the pieces of later packets.
    spare: Vec<Vec<Piece>>,
    total: Usage,
    /// The serial number of the next packet; a lower number is older.
    next_serial: u64,
    evicted: u64,
}

/// A source that has packets here.
#[derive(Debug)]
struct Source<S> {
    name: S,
    /// The hash under which the source is found.
    hash: u64,
    usage: Usage,
    /// The packets of the source, the oldest first.
    packets: List,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    bytes: usize,
    packets: usize,
}

/// The approximate cost, in octets, of a packet and of a fragment besides the blocks of their octets.
const PACKET_COST: usize = 256;
const PIECE_COST: usize = 64;
/// The most pieces for which a discarded packet leaves room to the next one.
const SPARE_PIECES: usize = 4;

impl<K: FragmentKey> Reassembly<K> {
    /// Creates an empty reassembly. `limits` must hold one packet of any length; `secret` must be
    /// unpredictable from outside.
    pub fn new(limits: Limits, secret: [u64; 2]) -> Reassembly<K> {
        debug_assert!(limits.bytes_max >= 1 << 18 && limits.packets_max >= 2 && limits.fragments_max >= 2);
        Reassembly {
            limits,
            secret,
            packets: Table::new(),
            sources: Table::new(),
            by_age: [List::new(); 2],
            age_links: Links::new(),
            source_links: Links::new(),
            octets: Octets::new(),
            spare: Vec::new(),
            total: Usage::default(),
            next_serial: 0,
            evicted: 0,
        }
    }

    /// Takes a fragment of the packet `key`, and returns what became of it. The cost is O(log n) in the
    /// fragments of the packet, and O(1) for each packet that is evicted.
    pub fn insert(&mut self, now: Instant, key: K, fragment: &Fragment<'_>) -> Outcome {
        let hashes = key.hashes(self.secret);
        let found = self.packets.find(hashes[0], |packet| packet.key == key);
        match self.judge(found, fragment) {
            Ok((piece, end)) => {
                let at = found.unwrap_or_else(|| self.admit(now, key, hashes));
                self.keep(at, piece, fragment, end)
            }
            Err(refusal) => {
                if let (Some(at), Refusal::Malformed | Refusal::Overlap) = (found, refusal) {
                    self.discard(at);
                }
                Outcome::Dropped(refusal)
            }
        }
    }

    /// Returns where among the pieces of the packet at `found` a fragment belongs, and where it ends.
    fn judge(&self, found: Option<u32>, fragment: &Fragment<'_>) -> Result<(usize, u32), Refusal> {
        let end = end_of(fragment).ok_or(Refusal::Malformed)?;
        let Some(packet) = found.and_then(|at| self.packets.get(at)) else { return Ok((0, end)) };
        let piece = packet.position(fragment, end)?;
        if packet.pieces.len() >= self.limits.fragments_max {
            return Err(Refusal::Malformed);
        }
        Ok((piece, end))
    }

    /// Adds a new packet without pieces as the youngest. Returns its place.
    fn admit(&mut self, now: Instant, key: K, [hash, source_hash]: [u64; 2]) -> u32 {
        let name = key.source();
        let found = self.sources.find(source_hash, |source| source.name == name);
        let source = found.unwrap_or_else(|| {
            let (usage, packets) = (Usage::default(), List::new());
            self.sources.insert(source_hash, Source { name, hash: source_hash, usage, packets })
        });
        let time = usize::from(key.has_second_timeout());
        let pieces = self.spare.pop().unwrap_or_default();
        let packet = Packet::new(key, hash, self.next_serial, now + K::TIMEOUTS[time], source, pieces);
        self.next_serial += 1;
        let at = self.packets.insert(hash, packet);
        self.age_links.push(&mut self.by_age[time], at);
        if let Some(source) = self.sources.get_mut(source) {
            self.source_links.push(&mut source.packets, at);
        }
        self.charge(source, PACKET_COST, 1);
        at
    }

    fn keep(&mut self, at: u32, piece: usize, fragment: &Fragment<'_>, end: u32) -> Outcome {
        let source = self.packets.get(at).map_or(list::NOWHERE, |packet| packet.source);
        self.make_room(at, source, fragment.cost());
        self.charge(source, fragment.cost(), 0);
        let is_whole = self
            .packets
            .get_mut(at)
            .is_some_and(|packet| packet.keep(&mut self.octets, piece, fragment, end));
        if !is_whole {
            return Outcome::Kept;
        }
        let whole = self.packets.get(at).and_then(|packet| {
            let congested = packet.congested()?;
            Some(Whole { bytes: packet.join(&self.octets), head_len: packet.head_len, congested })
        });
        self.discard(at);
        whole.map_or(Outcome::Dropped(Refusal::Malformed), Outcome::Complete)
    }

    /// Removes and returns the next packet whose time is over at `now`.
    pub fn expire(&mut self, now: Instant) -> Option<(K, Expired)> {
        let due = |at: &u32| self.packets.get(*at).map(|packet| (packet.deadline, packet.serial));
        let at = self.by_age.iter().map(List::first).filter(|at| due(at).is_some()).min_by_key(due)?;
        let packet = self.packets.get(at).filter(|packet| packet.deadline <= now)?;
        let (key, first) = (packet.key, packet.first(&self.octets));
        self.discard(at);
        Some((key, Expired { first }))
    }

    /// Returns when to call [`Reassembly::expire`]; `None` if there is no packet.
    pub fn next_timeout(&self) -> Option<Instant> {
        let deadline = |list: &List| self.packets.get(list.first()).map(|packet| packet.deadline);
        self.by_age.iter().filter_map(deadline).min()
    }

    /// Returns the number of packets that were evicted so far to make room for others.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Returns the number of incomplete packets.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns whether there is no incomplete packet.
    pub fn is_empty(&self) -> bool {
        self.packets.len() == 0
    }

    /// Returns what all incomplete packets cost, in octets.
    pub fn bytes(&self) -> usize {
        self.total.bytes
    }

    /// Evicts the oldest packets until a fragment that costs `cost` octets fits into the packet at `at`;
    /// those of the source go first if it has more than its share.
    fn make_room(&mut self, at: u32, source: u32, cost: usize) {
        let limits = self.limits;
        let fits = |used: Usage, share: usize| {
            used.bytes + cost <= limits.bytes_max / share && used.packets <= limits.packets_max / share
        };
        while self.sources.get(source).is_some_and(|source| !fits(source.usage, 2))
            && self.evict(self.oldest_of(source, at))
        {}
        while !fits(self.total, 1) && self.evict(self.oldest(at)) {}
    }

    /// Returns the oldest packet except that at `but`. It examines two packets at most.
    fn oldest(&self, but: u32) -> Option<u32> {
        let serial = |at: &u32| self.packets.get(*at).map(|packet| packet.serial);
        match self.by_age.map(|list| self.age_links.first_but(&list, but)) {
            [Some(one), Some(other)] => [one, other].into_iter().min_by_key(serial),
            [one, other] => one.or(other),
        }
    }

    /// Returns the oldest packet of `source` except that at `but`.
    fn oldest_of(&self, source: u32, but: u32) -> Option<u32> {
        self.source_links.first_but(&self.sources.get(source)?.packets, but)
    }

    /// Discards a packet to make room for another. Returns whether there was one.
    fn evict(&mut self, at: Option<u32>) -> bool {
        self.evicted += u64::from(at.is_some());
        at.inspect(|at| self.discard(*at)).is_some()
    }

    /// Removes the packet at `at`, and leaves its memory to the next one.
    fn discard(&mut self, at: u32) {
        let Some(packet) = self.packets.get(at) else { return };
        let (hash, source, time) = (packet.hash, packet.source, usize::from(packet.key.has_second_timeout()));
        self.age_links.remove(&mut self.by_age[time], at);
        if let Some(source) = self.sources.get_mut(source) {
            self.source_links.remove(&mut source.packets, at);
        }
        let Some(mut packet) = self.packets.remove(hash, at) else { return };
        self.refund(source, packet.cost + PACKET_COST);
        for piece in &packet.pieces {
            self.octets.give_back(&piece.octets, packet.stored(piece));
        }
        packet.pieces.clear();
        if packet.pieces.capacity() <= SPARE_PIECES {
            self.spare.push(packet.pieces);
        }
        if self.is_empty() {
            self.octets.shrink();
        }
    }

    fn charge(&mut self, source: u32, bytes: usize, packets: usize) {
        let source = self.sources.get_mut(source).map(|source| &mut source.usage);
        for usage in source.into_iter().chain([&mut self.total]) {
            usage.bytes += bytes;
            usage.packets += packets;
        }
    }

    /// Returns to the source and the total what one packet was charged.
    fn refund(&mut self, at: u32, bytes: usize) {
        let source = self.sources.get_mut(at).map(|source| &mut source.usage);
        for usage in source.into_iter().chain([&mut self.total]) {
            usage.bytes -= bytes;
            usage.packets -= 1;
        }
        if let Some(source) = self.sources.get(at).filter(|source| source.usage.packets == 0) {
            self.sources.remove(source.hash, at);
        }
    }

    /// Checks the invariants between the parts; panics if one is broken, which is a bug of the reassembly.
    pub fn check_invariants(&self) {
        let limits = &self.limits;
        assert!(self.total.packets == self.packets.len() && self.packets.len() <= limits.packets_max);
        assert!(self.total.bytes <= limits.bytes_max && self.sources.len() <= self.packets.len());
        // A packet may be admitted before the one that makes room for it is removed.
        assert!(
            self.packets.places() <= limits.packets_max + 1 && self.spare.len() <= limits.packets_max + 1
        );
        assert!(self.octets.capacity() <= limits.bytes_max.next_multiple_of(1 << 16));
        if cfg!(test) {
            let costs = self.packets.iter().map(|packet| packet.cost + PACKET_COST);
            assert_eq!(costs.sum::<usize>(), self.total.bytes);
            assert_eq!(self.sources.iter().map(|source| source.usage.bytes).sum::<usize>(), self.total.bytes);
            for packet in self.packets.iter() {
                assert!(packet.pieces.windows(2).all(|pair| pair[0].end() <= pair[1].offset));
                assert!(!packet.pieces.is_empty() && packet.end != Some(packet.received));
            }
        }
    }
}

impl<'a> Fragment<'a> {
    /// Returns the part of the head that is kept.
    fn kept_head(&self) -> &'a [u8] {
        if self.offset == 0 { self.head } else { &[] }
    }

    fn cost(&self) -> usize {
        PIECE_COST + octets::blocks(self.kept_head().len() + self.payload.len()) * octets::BLOCK
    }
}

/// Returns where a fragment ends. `None` means that no packet can have it: it has no octets, its length is
/// not a multiple of 8 although others follow, or it ends beyond the longest packet.
fn end_of(fragment: &Fragment<'_>) -> Option<u32> {
    let len = u32::try_from(fragment.payload.len()).ok()?;
    let end = fragment.offset.checked_add(len)?;
    (len > 0 && (!fragment.more || len.is_multiple_of(8)) && end <= fragment.payload_max).then_some(end)
}

#[cfg(test)]
mod tests;
