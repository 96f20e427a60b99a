//! The connections that were closed a short while ago: a ring of entries of a cache line each, of which the
//! oldest is overwritten.
//!
//! An entry is written when the connection enters TIME-WAIT, and never again: it ends at its deadline. A
//! writer that dies in the middle leaves an entry whose check does not fit, and the record of the connection,
//! which is removed later.

use core::mem::offset_of;

use atoll_base::{Addr, Endpoint, FourTuple};

use super::{check, words};
use crate::layout::{Field, put, record};

/// The size of an entry in octets.
pub const TIME_WAIT_BYTES: usize = size_of::<Octets>();
type Octets = <Written as Field>::Octets;
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
        let (ts_recent, ts_offset) = self.timestamps.unwrap_or_default();
        let written = Written {
            check: 0,
            window: self.window,
            window_shift: self.window_shift,
            flags: IN_USE | if self.timestamps.is_some() { TIMESTAMPS } else { 0 },
            remote_port: self.tuple.remote.port,
            local_port: self.tuple.local.port,
            deadline_ms: self.deadline_ms,
            remote_addr: self.tuple.remote.addr,
            local_addr: self.tuple.local.addr,
            snd_nxt: self.snd_nxt,
            rcv_nxt: self.rcv_nxt,
            ts_recent,
            ts_offset,
        };
        let mut bytes: [u8; TIME_WAIT_BYTES] = zerocopy::transmute!(written.write());
        let sum = check(TABLE, place, words(&bytes));
        put(&mut bytes, offset_of!(Octets, check), &sum.write());
        bytes
    }

    /// Decodes an entry; returns `None` if there is none, or not a whole one.
    pub(super) fn decode(place: u32, bytes: &[u8; TIME_WAIT_BYTES]) -> Option<TimeWaitRecord> {
        let written = Written::read(zerocopy::transmute_ref!(bytes)).ok()?;
        let mut checked = *bytes;
        put(&mut checked, offset_of!(Octets, check), &0u32.write());
        if written.flags & !TIMESTAMPS != IN_USE
            || written.check != check(TABLE, place, words(&checked))
            || written.window_shift > SHIFT_MAX
        {
            return None;
        }
        let has_timestamps = written.flags & TIMESTAMPS != 0;
        Some(TimeWaitRecord {
            tuple: FourTuple {
                local: Endpoint::at(written.local_addr, written.local_port),
                remote: Endpoint::at(written.remote_addr, written.remote_port),
            },
            deadline_ms: written.deadline_ms,
            snd_nxt: written.snd_nxt,
            rcv_nxt: written.rcv_nxt,
            window: written.window,
            window_shift: written.window_shift,
            timestamps: has_timestamps.then_some((written.ts_recent, written.ts_offset)),
        })
    }
}

record! {
    /// The entry as it is written down.
    pub(super) struct Written {
        check: u32,
        window: u16,
        window_shift: u8,
        /// [`IN_USE`] and [`TIMESTAMPS`].
        flags: u8,
        remote_port: u16,
        local_port: u16,
        deadline_ms: u32,
        remote_addr: Addr,
        local_addr: Addr,
        snd_nxt: u32,
        rcv_nxt: u32,
        ts_recent: u32,
        ts_offset: u32,
    }
}

/// The largest shift: that of RFC 7323 §2.3, and one more for what is lost by rounding.
const SHIFT_MAX: u8 = 15;
