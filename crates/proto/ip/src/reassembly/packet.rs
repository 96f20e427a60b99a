//! One packet of which some fragments are missing.

use alloc::vec::Vec;

use atoll_base::Instant;

use super::octets::{Chain, Octets};
use super::{Fragment, Refusal};

#[derive(Debug)]
pub(super) struct Packet<K> {
    pub(super) key: K,
    /// The hash under which the packet is found.
    pub(super) hash: u64,
    /// The serial number; a lower one is older.
    pub(super) serial: u64,
    pub(super) deadline: Instant,
    /// The place of the packet's source.
    pub(super) source: u32,
    /// The pieces by offset; none is empty, and they do not overlap.
    pub(super) pieces: Vec<Piece>,
    /// The number of octets before those of the first piece.
    pub(super) head_len: usize,
    /// The length of the whole payload in octets, once the last fragment has arrived.
    pub(super) end: Option<u32>,
    pub(super) received: u32,
    pub(super) cost: usize,
    /// A bit for each congestion mark that was seen.
    marks: u8,
}

/// The octets of one fragment; those with offset 0 have the head before them.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) offset: u32,
    pub(super) len: u32,
    pub(super) octets: Chain,
}

impl<K> Packet<K> {
    pub(super) fn new(
        key: K,
        hash: u64,
        serial: u64,
        deadline: Instant,
        source: u32,
        pieces: Vec<Piece>,
    ) -> Packet<K> {
        let (head_len, end, received, cost, marks) = (0, None, 0, 0, 0);
        Packet { key, hash, serial, deadline, source, pieces, head_len, end, received, cost, marks }
    }

    /// Returns where among the pieces a fragment up to `end` belongs, or why it is refused.
    pub(super) fn position(&self, fragment: &Fragment<'_>, end: u32) -> Result<usize, Refusal> {
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

    /// Stores a fragment up to `end`, which belongs at `at` among the pieces. Returns whether it was the last
    /// one missing.
    pub(super) fn keep(&mut self, octets: &mut Octets, at: usize, fragment: &Fragment<'_>, end: u32) -> bool {
        let head = fragment.kept_head();
        if fragment.offset == 0 {
            self.head_len = head.len();
        }
        if !fragment.more {
            self.end = Some(end);
        }
        let len = fragment.payload.len() as u32;
        self.received += len;
        self.cost += fragment.cost();
        self.marks |= 1 << (fragment.ecn & 3);
        let piece = Piece { offset: fragment.offset, len, octets: octets.keep(head, fragment.payload) };
        self.pieces.insert(at.min(self.pieces.len()), piece);
        self.end == Some(self.received)
    }

    /// Returns the head and octets of the first piece, if that has arrived.
    pub(super) fn first(&self, octets: &Octets) -> Option<Vec<u8>> {
        let piece = self.pieces.first().filter(|piece| piece.offset == 0)?;
        let mut bytes = Vec::with_capacity(self.stored(piece));
        octets.read(&piece.octets, self.stored(piece), &mut bytes);
        Some(bytes)
    }

    /// Returns the head and the octets of all pieces.
    pub(super) fn join(&self, octets: &Octets) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.head_len + self.received as usize);
        for piece in &self.pieces {
            octets.read(&piece.octets, self.stored(piece), &mut bytes);
        }
        bytes
    }

    /// Returns whether a fragment carried "congestion experienced"; `None` if the marks contradict each
    /// other.
    pub(super) fn congested(&self) -> Option<bool> {
        let congested = self.marks & 1 << CE != 0;
        // RFC 3168 §5.3: a mark on fragments of a transport that does not understand marks is an error.
        (!congested || self.marks & 1 << NOT_ECT == 0).then_some(congested)
    }

    /// Returns the number of octets that are stored for a piece.
    pub(super) fn stored(&self, piece: &Piece) -> usize {
        piece.len as usize + if piece.offset == 0 { self.head_len } else { 0 }
    }
}

impl Piece {
    pub(super) fn end(&self) -> u32 {
        // The sum is at most `payload_max`, as was checked.
        self.offset + self.len
    }
}

const NOT_ECT: u8 = 0;
const CE: u8 = 3;
