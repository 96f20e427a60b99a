//! Converts a connection to a record of the ledger, and a record to a connection.

use core::num::NonZeroU64;

use atoll_base::{Duration, FourTuple, Instant, SeqNum, SessionId, SlotId};
use atoll_ipc::Cause;
use atoll_ipc::ledger::{ConnectionRecord, Phase, Progress};
use atoll_tcp::{Algorithm, Connection, EcnMode, Record, Settings, State};

use crate::entry::{Entry, Flags, Stage};
use crate::keep::Keep;

// These are bits of a record's flags. Those that are flags of an entry keep their bits.
const ENTRY_FLAGS: u16 =
    Flags::FIXED_SEND.bits() | Flags::FIXED_RECEIVE.bits() | Flags::INTERNAL.bits() | Flags::FAST_OPEN.bits();
const NODELAY: u32 = 1 << 16;
const CORK: u32 = 1 << 17;
const QUICK_ACK: u32 = 1 << 18;
const TIMESTAMPS: u32 = 1 << 19;
const SACK: u32 = 1 << 20;
const WINDOW_SCALING: u32 = 1 << 21;
const PASSIVE: u32 = 1 << 22;
pub(crate) const ORPHAN: u32 = 1 << 23;
const KEEP_ALIVE: u32 = 1 << 24;
/// The connection waits for text (TCP_DEFER_ACCEPT).
const DEFERRED: u32 = 1 << 25;
const ECN_SHIFT: u32 = 26;

/// Returns what decides whether a record has to be rewritten, besides the flags for that: state, stage, and
/// whether there is a slot. It is never 0.
pub(crate) fn summary(entry: &Entry) -> u8 {
    let state = entry.connection.state() as u8;
    let stage = match entry.stage {
        Stage::Embryonic { .. } => 1,
        Stage::Deferred { .. } => 2,
        Stage::Waiting { .. } => 3,
        Stage::Offered { .. } => 4,
        Stage::Open(_) => 5,
        Stage::Ended(_) => 6,
        Stage::Closing => 7,
    };
    state | stage << 4 | u8::from(entry.place.is_some()) << 7
}

// structure: of_entry: a line for each field of the record
/// Returns the record of a connection. `place` is its slot, while there is one, and `text` the chain with its
/// parked text.
pub(crate) fn of_entry(
    entry: &Entry,
    tuple: FourTuple,
    place: Option<(SessionId, SlotId, u32)>,
    (text, text_len): (u32, u32),
    crashes: u8,
) -> ConnectionRecord {
    let record = entry.connection.record();
    let settings = &record.settings;
    let (phase, more) = match entry.stage {
        Stage::Embryonic { .. } | Stage::Waiting { .. } => (Phase::Unclaimed, 0),
        Stage::Deferred { .. } => (Phase::Unclaimed, DEFERRED),
        Stage::Offered { .. } => (Phase::Offered, 0),
        Stage::Open(_) => (Phase::Open, 0),
        Stage::Ended(_) => (Phase::Ended, 0),
        Stage::Closing => (Phase::Closing, 0),
    };
    let keep = entry.keep;
    let (ttl, tos) = entry.next_hop.marks();
    let bit = |fact: bool, bit: u32| if fact { bit } else { 0 };
    let flags = u32::from(entry.flags.bits() & ENTRY_FLAGS)
        | bit(settings.nodelay, NODELAY)
        | bit(settings.cork, CORK)
        | bit(settings.quick_ack, QUICK_ACK)
        | bit(record.timestamps, TIMESTAMPS)
        | bit(record.sack, SACK)
        | bit(record.window_scaling, WINDOW_SCALING)
        | bit(record.passive, PASSIVE)
        | bit(record.orphan, ORPHAN)
        | bit(keep.on, KEEP_ALIVE)
        | more
        | (settings.ecn as u32) << ECN_SHIFT;
    ConnectionRecord {
        progress: Progress { acked: record.acked, received: record.received, edge: record.edge },
        tuple,
        state: record.state as u8,
        phase,
        place,
        send_start: record.send_start.0,
        receive_start: record.receive_start.0,
        send_tail: record.send_tail,
        send_fin: record.send_fin,
        receive_fin: record.receive_fin,
        receive: entry.receive.extents(),
        ts_offset: record.ts_offset,
        ts_recent: record.ts_recent,
        window_max: record.window_max,
        receive_capacity: settings.receive_capacity,
        send_limit: entry.send_limit,
        unsent_low: entry.unsent_low,
        mss_path: record.mss_path,
        mss_peer: record.mss_peer,
        mss_receive: record.mss_receive,
        flags,
        snd_scale: record.snd_scale,
        rcv_scale: record.rcv_scale,
        congestion: settings.congestion as u8,
        ecn: record.ecn,
        ttl,
        tos,
        syn_retries: settings.syn_retries,
        cause: entry.cause as u8,
        keep_probes: keep.probes,
        keep_idle: keep.idle,
        keep_interval: keep.interval,
        mss_max: settings.mss_max.unwrap_or(0),
        user_timeout_ms: settings.user_timeout.map_or(0, millis),
        linger2_ms: millis(settings.linger2),
        pacing_rate: settings.pacing_rate_max.map_or(0, NonZeroU64::get),
        srtt_us: record.srtt_us,
        text,
        text_len,
        crashes,
        // For a connection without an application it is stored nowhere that lasts.
        beyond: if place.is_some() { record.beyond } else { Default::default() },
    }
}

/// Returns the connection of a record, of which the application has read up to `head`; `None` if the record
/// contradicts itself.
pub(crate) fn connection(
    now: Instant,
    record: &ConnectionRecord,
    keep: Keep,
    head: u64,
) -> Option<Connection> {
    let has = |bit: u32| record.flags & bit != 0;
    let settings = Settings {
        nodelay: has(NODELAY),
        cork: has(CORK),
        keep_alive: keep.settings(),
        congestion: *Algorithm::ALL.iter().find(|algorithm| **algorithm as u8 == record.congestion)?,
        user_timeout: (record.user_timeout_ms != 0)
            .then(|| Duration::from_millis(record.user_timeout_ms.into())),
        quick_ack: has(QUICK_ACK),
        mss_max: (record.mss_max != 0).then_some(record.mss_max),
        receive_capacity: record.receive_capacity,
        receive_capacity_max: record.receive_capacity,
        linger2: Duration::from_millis(record.linger2_ms.into()),
        ecn: match record.flags >> ECN_SHIFT & 3 {
            0 => EcnMode::Off,
            1 => EcnMode::Request,
            2 => EcnMode::Accept,
            _ => EcnMode::RequestAccurate,
        },
        syn_retries: record.syn_retries,
        pacing_rate_max: NonZeroU64::new(record.pacing_rate),
    };
    let facts = Record {
        state: state(record)?,
        acked: record.progress.acked,
        received: record.progress.received,
        edge: record.progress.edge,
        send_start: SeqNum(record.send_start),
        receive_start: SeqNum(record.receive_start),
        // More may have been written, and acknowledged, since the record was; behind a FIN nothing is.
        send_tail: if record.send_fin {
            record.send_tail
        } else {
            record.send_tail.max(record.progress.acked)
        },
        send_fin: record.send_fin,
        receive_fin: record.receive_fin,
        ts_offset: record.ts_offset,
        ts_recent: record.ts_recent,
        timestamps: has(TIMESTAMPS),
        sack: has(SACK),
        window_scaling: has(WINDOW_SCALING),
        snd_scale: record.snd_scale,
        rcv_scale: record.rcv_scale,
        window_max: record.window_max,
        mss_path: record.mss_path,
        mss_peer: record.mss_peer,
        mss_receive: record.mss_receive,
        settings,
        ecn: record.ecn,
        passive: has(PASSIVE),
        orphan: has(ORPHAN),
        srtt_us: record.srtt_us,
        beyond: record.beyond,
    };
    Connection::resume(now, &facts, head)
}

/// Returns the state, by its place among all; `None` if there is no such one.
pub(crate) fn state(record: &ConnectionRecord) -> Option<State> {
    State::ALL.get(usize::from(record.state)).copied()
}

/// Returns the options about keep-alive.
pub(crate) fn keep(record: &ConnectionRecord) -> Keep {
    Keep {
        on: record.flags & KEEP_ALIVE != 0,
        probes: record.keep_probes,
        idle: record.keep_idle,
        interval: record.keep_interval,
    }
}

/// Gives an entry what the record contains besides its TCB.
pub(crate) fn furnish(entry: &mut Entry, record: &ConnectionRecord) {
    entry.keep = keep(record);
    entry.flags.set(Flags::from_bits(record.flags as u16 & ENTRY_FLAGS));
    entry.receive = record.receive.into();
    entry.next_hop.set_marks((record.ttl, record.tos));
    entry.send_limit = record.send_limit;
    entry.unsent_low = record.unsent_low;
    entry.receive_capacity = record.receive_capacity;
    entry.cause = Cause::from_u8(record.cause);
    entry.tuned_at = u64::try_from(record.progress.received).unwrap_or(0);
}

/// Returns whether the connection waits for text (TCP_DEFER_ACCEPT).
pub(crate) fn is_deferred(record: &ConnectionRecord) -> bool {
    record.flags & DEFERRED != 0
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}
