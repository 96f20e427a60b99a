//! The simple version of [`Reassembly`], for comparison: it has no index, examines every packet whenever it
//! needs the oldest one, and keeps octets in memory of their own.

use std::collections::BTreeMap;

use super::*;

#[derive(Debug)]
pub(super) struct Scanning<K: FragmentKey<Source: Ord> + Ord> {
    limits: Limits,
    packets: BTreeMap<K, Partial>,
    usage: BTreeMap<K::Source, Usage>,
    total: Usage,
    next_serial: u64,
    /// The earliest time at which the oldest packet may be due.
    due: Option<Instant>,
    evicted: u64,
}

#[derive(Debug)]
struct Partial {
    serial: u64,
    deadline: Instant,
    /// The pieces by offset; none is empty, and they do not overlap.
    pieces: Vec<Piece>,
    head: Vec<u8>,
    /// The length of the whole payload in octets, once the last fragment has arrived.
    end: Option<u32>,
    received: u32,
    cost: usize,
    /// A bit for each congestion mark that was seen.
    marks: u8,
}

#[derive(Debug)]
struct Piece {
    offset: u32,
    bytes: Vec<u8>,
}

impl<K: FragmentKey<Source: Ord> + Ord> Scanning<K> {
    /// Creates an empty reassembly. `limits` must hold one packet of any length.
    pub(super) fn new(limits: Limits) -> Scanning<K> {
        debug_assert!(limits.bytes_max >= 1 << 18 && limits.packets_max >= 2 && limits.fragments_max >= 2);
        Scanning {
            limits,
            packets: BTreeMap::new(),
            usage: BTreeMap::new(),
            total: Usage::default(),
            next_serial: 0,
            due: None,
            evicted: 0,
        }
    }

    /// Takes a fragment of the packet `key`, and returns what became of it. The cost is O(log n) in packets
    /// and fragments, unless something must be evicted.
    pub(super) fn insert(&mut self, now: Instant, key: K, fragment: &Fragment<'_>) -> Outcome {
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
        let deadline = now + K::TIMEOUTS[usize::from(key.has_second_timeout())];
        let packet = self.packets.entry(key).or_insert_with(|| Partial::new(serial, deadline));
        if packet.pieces.is_empty() {
            self.next_serial += 1;
            self.due = Some(self.due.map_or(deadline, |due| due.min(deadline)));
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

    /// Removes and returns the next packet that is due at `now`.
    pub(super) fn expire(&mut self, now: Instant) -> Option<(K, Expired)> {
        if self.due.is_none_or(|due| due > now) {
            return None;
        }
        let first = self.packets.iter().min_by_key(|(_, packet)| (packet.deadline, packet.serial));
        let first = first.map(|(key, packet)| (*key, packet.deadline));
        self.due = first.map(|(_, deadline)| deadline);
        let (key, _) = first.filter(|(_, deadline)| *deadline <= now)?;
        let packet = self.remove(&key)?;
        let is_first = |piece: &&Piece| piece.offset == 0;
        let first =
            packet.pieces.first().filter(is_first).map(|piece| [&packet.head[..], &piece.bytes[..]].concat());
        Some((key, Expired { first }))
    }

    /// Returns the number of packets that were evicted so far to make room for others.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Returns what all incomplete packets cost, in octets.
    pub(super) fn bytes(&self) -> usize {
        self.total.bytes
    }

    /// Evicts the oldest packets until a fragment of `key` fits; those of the source go first if it has more
    /// than its share.
    fn make_room(&mut self, key: &K, cost: usize) {
        let source = key.source();
        let is_new = !self.packets.contains_key(key);
        let (bytes, packets) = (cost + if is_new { PACKET_COST } else { 0 }, usize::from(is_new));
        let fits = |used: Usage, share: usize, limits: &Limits| {
            used.bytes + bytes <= limits.bytes_max / share
                && used.packets + packets <= limits.packets_max / share
        };
        while !fits(self.usage.get(&source).copied().unwrap_or_default(), 2, &self.limits)
            && self.evict(|other| other != key && other.source() == source)
        {}
        while !fits(self.total, 1, &self.limits) && self.evict(|other| other != key) {}
    }

    /// Discards the oldest of the packets that `may_go`. Returns whether there was one. It examines every
    /// packet.
    fn evict(&mut self, may_go: impl Fn(&K) -> bool) -> bool {
        let candidates = self.packets.iter().filter(|(key, _)| may_go(key));
        let Some(key) = candidates.min_by_key(|(_, packet)| packet.serial).map(|(key, _)| *key) else {
            return false;
        };
        self.evicted += 1;
        self.remove(&key).is_some()
    }

    fn remove(&mut self, key: &K) -> Option<Partial> {
        let packet = self.packets.remove(key)?;
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
        if self.packets.is_empty() {
            self.due = None;
        }
        Some(packet)
    }
}

impl Partial {
    fn new(serial: u64, deadline: Instant) -> Partial {
        let (pieces, head) = (Vec::new(), Vec::new());
        Partial { serial, deadline, pieces, head, end: None, received: 0, cost: 0, marks: 0 }
    }

    /// Returns where among the pieces a fragment up to `end` belongs, or why it is refused.
    fn position(&self, fragment: &Fragment<'_>, end: u32) -> Result<usize, Refusal> {
        let last = self.pieces.last().map_or(0, Piece::end);
        // There is one end, and no piece lies behind it.
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
            // As on Linux: a fragment that adds nothing was sent twice, and one that adds something while it
            // overlaps another is hostile.
            Some(next) if next.offset <= fragment.offset && self.reaches(at, end) => Err(Refusal::Duplicate),
            Some(_) => Err(Refusal::Overlap),
        }
    }

    /// Returns whether the gapless run that begins with piece `at` reaches `wanted`. The run is followed no
    /// further than that, so a repeated fragment costs no more pieces than it has octets.
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
        self.pieces.insert(
            at.min(self.pieces.len()),
            Piece { offset: fragment.offset, bytes: fragment.payload.to_vec() },
        );
    }

    /// Returns all pieces behind the first one's head; `None` if their marks contradict each other.
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
        // The sum is at most `payload_max`, as was checked.
        self.offset + self.bytes.len() as u32
    }
}

fn charge<S: Copy + Ord>(
    total: &mut Usage,
    usage: &mut BTreeMap<S, Usage>,
    source: S,
    bytes: usize,
    packets: usize,
) {
    for usage in [total, usage.entry(source).or_default()] {
        usage.bytes += bytes;
        usage.packets += packets;
    }
}

const NOT_ECT: u8 = 0;
const CE: u8 = 3;
