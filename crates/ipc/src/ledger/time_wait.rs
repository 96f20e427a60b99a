//! The connections that were closed a short while ago: a ring of entries of a cache line each, of which the
//! oldest is overwritten.
//!
//! An entry is written when the connection enters TIME-WAIT, and never again: it ends at its deadline. A
//! writer that dies in the middle leaves an entry whose check does not fit, and the record of the connection,
//! which is removed later.

use atoll_base::{Addr, Endpoint, FourTuple};

use super::{check, words};

/// The size of an entry in octets.
pub const TIME_WAIT_BYTES: usize = 64;
/// The maximum number of entries in a ring.
pub const TIME_WAITS_MAX: u32 = 1 << 16;

const TABLE: u32 = 3;
const IN_USE: u8 = 1;
const TIMESTAMPS: u8 = 2;

/// A connection in TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeWaitRecord {
    /// The addresses and ports of the connection.
    pub tuple: FourTuple,
    /// The end of TIME-WAIT, in milliseconds of the stack's clock, modulo 2^32.
    pub deadline_ms: u32,
    /// The next sequence number that would be sent.
    pub snd_nxt: u32,
    /// The next sequence number that is expected.
    pub rcv_nxt: u32,
    /// The last window that was announced, so that the window admits no less than before.
    pub window: u16,
    /// The shift by which the announced window was scaled.
    pub window_shift: u8,
    /// The peer's last timestamp and the offset of this stack's own, if there were any.
    pub timestamps: Option<(u32, u32)>,
}

impl TimeWaitRecord {
    pub(super) fn encode(&self, place: u32) -> [u8; TIME_WAIT_BYTES] {
        let mut bytes = [0; TIME_WAIT_BYTES];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        let flags = IN_USE | if self.timestamps.is_some() { TIMESTAMPS } else { 0 };
        let (recent, offset) = self.timestamps.unwrap_or_default();
        put(4, &self.window.to_le_bytes());
        put(6, &[self.window_shift, flags]);
        put(8, &self.tuple.remote.port.to_le_bytes());
        put(10, &self.tuple.local.port.to_le_bytes());
        put(12, &self.deadline_ms.to_le_bytes());
        put(16, &self.tuple.remote.addr.octets());
        put(32, &self.tuple.local.addr.octets());
        for (at, word) in [(48, self.snd_nxt), (52, self.rcv_nxt), (56, recent), (60, offset)] {
            put(at, &word.to_le_bytes());
        }
        let sum = check(TABLE, place, words(&bytes));
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes an entry; returns `None` if there is none, or not a whole one.
    pub(super) fn decode(place: u32, bytes: &[u8; TIME_WAIT_BYTES]) -> Option<TimeWaitRecord> {
        let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("within the entry"));
        let half = |at: usize| u16::from_le_bytes(*bytes[at..].first_chunk().expect("within the entry"));
        let addr = |at: usize| Addr::from_octets(*bytes[at..].first_chunk().expect("within the entry"));
        let mut checked = *bytes;
        checked[..4].fill(0);
        let flags = bytes[7];
        if flags & !TIMESTAMPS != IN_USE
            || word(0) != check(TABLE, place, words(&checked))
            || bytes[6] > SHIFT_MAX
        {
            return None;
        }
        Some(TimeWaitRecord {
            tuple: FourTuple {
                local: Endpoint::at(addr(32), half(10)),
                remote: Endpoint::at(addr(16), half(8)),
            },
            deadline_ms: word(12),
            snd_nxt: word(48),
            rcv_nxt: word(52),
            window: half(4),
            window_shift: bytes[6],
            timestamps: (flags & TIMESTAMPS != 0).then(|| (word(56), word(60))),
        })
    }
}

/// The largest shift: that of RFC 7323 §2.3, and one more for what is lost by rounding.
const SHIFT_MAX: u8 = 15;
