//! The record of one connection: everything that the stack has promised to the peer and to the application,
//! and what it has received from them.

use core::mem::offset_of;

use atoll_base::{Addr, Endpoint, FourTuple, SessionId, SlotId};
use zerocopy::TryFromBytes;

use super::{TABLE_CONNECTIONS, Unreadable, check, words};
use crate::buffer::{Extent, Extents};
use crate::layout::{Field, numbered, put, record};
use crate::memory::Memory;

/// The size of a connection's record in octets.
pub const CONNECTION_BYTES: usize = 256;

/// The first version of a record, and the version that adds text out of order.
pub(super) const FIRST: u32 = 1;
pub(super) const WITH_BEYOND: u32 = 2;
/// The maximum number of stretches of text out of order in a record.
pub const BEYOND_MAX: usize = 4;
type Octets = <Written as Field>::Octets;
/// The offset of the version.
pub(super) const VERSION: usize = offset_of!(Octets, version);
/// The offset from which on octets are under the check, besides octets 4 to 7.
const CHECKED: usize = offset_of!(Octets, remote_addr);

/// The part of a record that changes with nearly every segment. Each word is true by itself whenever it is
/// stored, and none ever decreases except `edge`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// First offset of the sent text that the peer has not acknowledged; the SYN is at -1, a FIN behind the
    /// text.
    pub acked: i64,
    /// Offset up to which text is received in order.
    pub received: i64,
    /// Offset of the right edge of the peer's window.
    pub edge: i64,
}

impl Progress {
    #[inline]
    pub(super) fn store<M: Memory>(&self, memory: &M, at: usize) {
        memory.store64_release(at + offset_of!(Octets, acked), self.acked as u64);
        memory.store64_release(at + offset_of!(Octets, received), self.received as u64);
        memory.store64_release(at + offset_of!(Octets, edge), self.edge as u64);
    }
}

/// The owner of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
pub enum Phase {
    /// The connection belongs to no application: it is in the handshake, or established and without an
    /// acceptor.
    Unclaimed = 1,
    /// The connection is offered in a slot of an acceptor, which may have claimed it.
    Offered = 2,
    /// The connection belongs to an application.
    Open = 3,
    /// The connection is over, but the application has not closed it yet.
    Ended = 4,
    /// The application has closed the connection.
    Closing = 5,
}

numbered!(Phase);

// structure: ConnectionRecord: a field for each fact that a successor needs
/// The record of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Fields of the TCB have the names that it has for them.
pub struct ConnectionRecord {
    pub progress: Progress,
    pub tuple: FourTuple,
    /// State of the connection, by its number in [`crate::info`]: as in linux/tcp_states.h.
    pub state: u8,
    pub phase: Phase,
    /// Session, slot and generation of the connection; `None` if it has no slot.
    pub place: Option<(SessionId, SlotId, u32)>,
    /// Sequence numbers of the first octets of text.
    pub send_start: u32,
    pub receive_start: u32,
    /// End of the text that the application has written, and whether a FIN follows.
    pub send_tail: i64,
    pub send_fin: bool,
    /// Offset of the peer's FIN; `None` if it has not come.
    pub receive_fin: Option<i64>,
    /// Rings of the receive buffer.
    pub receive: Extents,
    pub ts_offset: u32,
    pub ts_recent: u32,
    pub window_max: u32,
    pub receive_capacity: u32,
    pub send_limit: u32,
    pub unsent_low: u32,
    pub mss_path: u16,
    pub mss_peer: u16,
    pub mss_receive: u16,
    /// Flags of the connection, whose bits only the writer interprets.
    pub flags: u32,
    pub snd_scale: u8,
    pub rcv_scale: u8,
    pub congestion: u8,
    pub ecn: u8,
    pub ttl: u8,
    pub tos: u8,
    /// The least TTL or hop limit of segments that are taken; 0, as in records of older builds, for any.
    pub hops_min: u8,
    pub syn_retries: u8,
    /// Why the connection ended, as in [`crate::Cause`].
    pub cause: u8,
    pub keep_probes: u8,
    /// The idle time before keep-alive probes, in seconds.
    pub keep_idle: u16,
    /// The time between keep-alive probes, in seconds.
    pub keep_interval: u16,
    pub mss_max: u16,
    pub user_timeout_ms: u32,
    pub linger2_ms: u32,
    /// The pacing rate in octets per second; 0 for no limit.
    pub pacing_rate: u64,
    /// Smoothed round-trip time in microseconds; 0 if it is not known.
    pub srtt_us: u32,
    /// Chain of [`super::TextPool`] with the text of a connection that no application has; 0 for none.
    pub text: u32,
    pub text_len: u32,
    /// Crashes of replicas while they handled this connection.
    pub crashes: u8,
    /// Text that has arrived out of order and lies in the receive buffer: `[from, to)`, empty ones last. It
    /// may have been acknowledged to the peer by SACK, which then need not send it again. Version 2; in
    /// version 1 it is empty.
    pub beyond: [(i64, i64); BEYOND_MAX],
}

record! {
    /// The record as it is written down.
    pub(super) struct Written {
        check: u32,
        version: u8,
        state: u8,
        /// The phase, [`HAS_PLACE`] and [`HAS_FIN`].
        marks: u8,
        crashes: u8,
        acked: i64,
        received: i64,
        edge: i64,
        remote_addr: Addr,
        local_addr: Addr,
        remote_port: u16,
        local_port: u16,
        session: SessionId,
        slot: SlotId,
        generation: u32,
        send_start: u32,
        receive_start: u32,
        send_tail: i64,
        /// Offset of the peer's FIN, or [`NO_FIN`].
        receive_fin: i64,
        /// The current ring of the receive buffer, and the old one.
        receive_base: [u64; 2],
        receive_unit: [u32; 2],
        /// 0 for no ring.
        receive_log2: [u8; 2],
        mss_path: u16,
        mss_peer: u16,
        mss_receive: u16,
        ts_offset: u32,
        ts_recent: u32,
        window_max: u32,
        receive_capacity: u32,
        send_limit: u32,
        unsent_low: u32,
        flags: u32,
        snd_scale: u8,
        rcv_scale: u8,
        congestion: u8,
        ecn: u8,
        ttl: u8,
        tos: u8,
        syn_retries: u8,
        cause: u8,
        keep_probes: u8,
        hops_min: u8,
        keep_idle: u16,
        keep_interval: u16,
        mss_max: u16,
        user_timeout_ms: u32,
        linger2_ms: u32,
        pacing_rate: u64,
        srtt_us: u32,
        text: u32,
        text_len: u32,
        /// `received` when the record was written, from which distances to text out of order count, because
        /// other stores move `received` without the record.
        beyond_base: i64,
        /// Distance and length.
        beyond: [(u32, u32); BEYOND_MAX]; 8 unused,
    }
}

const _: () = assert!(size_of::<Octets>() == CONNECTION_BYTES);

const NO_FIN: i64 = i64::MAX;
/// Flags in the octet of the phase: the connection has a slot, and a FIN follows its text.
const HAS_PLACE: u8 = 1 << 6;
const HAS_FIN: u8 = 1 << 7;
const PHASE_BITS: u8 = 0x0f;

/// Returns the session that the record at `at` names, which may be any number if the record is damaged;
/// `None` if it names none.
pub(super) fn session_named(memory: &impl Memory, at: usize) -> Option<SessionId> {
    // The word of version, state, phase and crashes.
    let [version, _, phase, _] = memory.load32(at + VERSION).to_le_bytes();
    (version != 0 && phase & HAS_PLACE != 0)
        .then(|| SessionId(memory.load32(at + offset_of!(Octets, session))))
}

impl ConnectionRecord {
    /// Encodes the record in `version`, for all readers that may need it.
    pub(super) fn encode(&self, place: u32, version: u32) -> [u8; CONNECTION_BYTES] {
        let marks = self.phase as u8
            | if self.place.is_some() { HAS_PLACE } else { 0 }
            | if self.send_fin { HAS_FIN } else { 0 };
        let (session, slot, generation) = self.place.unwrap_or_default();
        let none = Extent { base: 0, unit: 0, log2: 0 };
        let rings = [self.receive.current, self.receive.old].map(|ring| ring.unwrap_or(none));
        let (beyond_base, beyond) =
            if version >= WITH_BEYOND { self.distances() } else { Default::default() };
        let written = Written {
            check: 0,
            version: version as u8,
            state: self.state,
            marks,
            crashes: self.crashes,
            acked: self.progress.acked,
            received: self.progress.received,
            edge: self.progress.edge,
            remote_addr: self.tuple.remote.addr,
            local_addr: self.tuple.local.addr,
            remote_port: self.tuple.remote.port,
            local_port: self.tuple.local.port,
            session,
            slot,
            generation,
            receive_fin: self.receive_fin.unwrap_or(NO_FIN),
            receive_base: rings.map(|ring| ring.base),
            receive_unit: rings.map(|ring| ring.unit),
            receive_log2: rings.map(|ring| ring.log2),
            beyond_base,
            beyond,
            send_start: self.send_start,
            receive_start: self.receive_start,
            send_tail: self.send_tail,
            ts_offset: self.ts_offset,
            ts_recent: self.ts_recent,
            window_max: self.window_max,
            receive_capacity: self.receive_capacity,
            send_limit: self.send_limit,
            unsent_low: self.unsent_low,
            mss_path: self.mss_path,
            mss_peer: self.mss_peer,
            mss_receive: self.mss_receive,
            flags: self.flags,
            snd_scale: self.snd_scale,
            rcv_scale: self.rcv_scale,
            congestion: self.congestion,
            ecn: self.ecn,
            ttl: self.ttl,
            tos: self.tos,
            hops_min: self.hops_min,
            syn_retries: self.syn_retries,
            cause: self.cause,
            keep_probes: self.keep_probes,
            keep_idle: self.keep_idle,
            keep_interval: self.keep_interval,
            mss_max: self.mss_max,
            user_timeout_ms: self.user_timeout_ms,
            linger2_ms: self.linger2_ms,
            pacing_rate: self.pacing_rate,
            srtt_us: self.srtt_us,
            text: self.text,
            text_len: self.text_len,
        };
        let mut bytes: [u8; CONNECTION_BYTES] = zerocopy::transmute!(written.write());
        let sum = sum(place, &bytes);
        put(&mut bytes, offset_of!(Octets, check), &sum.write());
        bytes
    }

    /// Returns the end of the text in order, and text out of order by its distance from there.
    #[inline(always)]
    fn distances(&self) -> (i64, [(u32, u32); BEYOND_MAX]) {
        let base = self.progress.received;
        let distance = |from: i64, to: i64| u32::try_from(to.saturating_sub(from)).unwrap_or(0);
        (base, self.beyond.map(|(from, to)| (distance(base, from), distance(from, to))))
    }

    /// Decodes a record; returns `None` if the place is free. `newest` is the newest version that is read.
    pub(super) fn decode(
        place: u32,
        bytes: &[u8; CONNECTION_BYTES],
        newest: u32,
    ) -> Option<Result<ConnectionRecord, Unreadable>> {
        match u32::from(bytes[VERSION]) {
            0 => return None,
            version if (FIRST..=newest).contains(&version) => {}
            other => return Some(Err(Unreadable::Version(other))),
        }
        let octets: &Octets = zerocopy::transmute_ref!(bytes);
        if octets.check.0.get() != sum(place, bytes) {
            return Some(Err(Unreadable::Check));
        }
        Some(Self::fields(bytes).ok_or(Unreadable::Field))
    }

    /// Decodes a record whose check fits; returns `None` if the place is free or a field is invalid.
    pub(super) fn checked(bytes: &[u8; CONNECTION_BYTES]) -> Option<ConnectionRecord> {
        (bytes[VERSION] != 0).then(|| Self::fields(bytes)).flatten()
    }

    fn fields(bytes: &[u8; CONNECTION_BYTES]) -> Option<ConnectionRecord> {
        let written = Written::read(zerocopy::transmute_ref!(bytes)).ok()?;
        let Written { acked, received, edge, send_tail, receive_fin, marks, .. } = written;
        let is_plausible = acked >= -1
            && received >= 0
            && send_tail >= 0
            && receive_fin >= 0
            && written.snd_scale <= SCALE_MAX
            && written.rcv_scale <= SCALE_MAX;
        if !is_plausible {
            return None;
        }
        let ring = |i: usize| {
            let (base, unit) = (written.receive_base[i], written.receive_unit[i]);
            Some(Extent { base, unit, log2: written.receive_log2[i] }).filter(|ring| ring.log2 != 0)
        };
        let has_beyond = u32::from(written.version) >= WITH_BEYOND;
        Some(ConnectionRecord {
            progress: Progress { acked, received, edge },
            tuple: FourTuple {
                local: Endpoint::at(written.local_addr, written.local_port),
                remote: Endpoint::at(written.remote_addr, written.remote_port),
            },
            phase: Phase::from_u8(marks & PHASE_BITS)?,
            place: (marks & HAS_PLACE != 0).then_some((written.session, written.slot, written.generation)),
            send_fin: marks & HAS_FIN != 0,
            receive_fin: (receive_fin != NO_FIN).then_some(receive_fin),
            receive: Extents { current: ring(0), old: ring(1) },
            beyond: if has_beyond { written.beyond() } else { Default::default() },
            state: written.state,
            send_start: written.send_start,
            receive_start: written.receive_start,
            send_tail: written.send_tail,
            ts_offset: written.ts_offset,
            ts_recent: written.ts_recent,
            window_max: written.window_max,
            receive_capacity: written.receive_capacity,
            send_limit: written.send_limit,
            unsent_low: written.unsent_low,
            mss_path: written.mss_path,
            mss_peer: written.mss_peer,
            mss_receive: written.mss_receive,
            flags: written.flags,
            snd_scale: written.snd_scale,
            rcv_scale: written.rcv_scale,
            congestion: written.congestion,
            ecn: written.ecn,
            ttl: written.ttl,
            tos: written.tos,
            hops_min: written.hops_min,
            syn_retries: written.syn_retries,
            cause: written.cause,
            keep_probes: written.keep_probes,
            keep_idle: written.keep_idle,
            keep_interval: written.keep_interval,
            mss_max: written.mss_max,
            user_timeout_ms: written.user_timeout_ms,
            linger2_ms: written.linger2_ms,
            pacing_rate: written.pacing_rate,
            srtt_us: written.srtt_us,
            text: written.text,
            text_len: written.text_len,
            crashes: written.crashes,
        })
    }
}

impl Written {
    /// Returns text out of order. Text that has become in order since the record, and invalid stretches, are
    /// left out.
    fn beyond(&self) -> [(i64, i64); BEYOND_MAX] {
        let base = self.beyond_base;
        let mut beyond = [(0, 0); BEYOND_MAX];
        let mut count = 0;
        let mut end = self.received;
        for (distance, len) in self.beyond {
            let from = base.saturating_add(i64::from(distance));
            let to = from.saturating_add(i64::from(len));
            // Where text in order has reached into a stretch, all of it is in order except what was not
            // published.
            if from < to && to > end && base >= 0 {
                beyond[count] = (from.max(end), to);
                (count, end) = (count + 1, to);
            }
        }
        beyond
    }
}

/// The largest window scale (RFC 7323 §2.3).
const SCALE_MAX: u8 = 14;

/// Returns the check of a record: over octets 4 to 7, and all behind its progress.
#[inline(always)]
fn sum(place: u32, bytes: &[u8; CONNECTION_BYTES]) -> u32 {
    let head = words(bytes).next().unwrap_or_default() >> 32;
    check(TABLE_CONNECTIONS, place ^ (head as u32).rotate_left(16), words(&bytes[CHECKED..]))
}
