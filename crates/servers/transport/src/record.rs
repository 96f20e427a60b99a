//! Converts a connection to a record of the ledger, and a record to a connection.

use core::num::NonZeroU64;

use atoll_base::{Duration, FourTuple, Instant, SeqNum, SessionId, SlotId};
use atoll_ipc::ledger::{ConnectionRecord, Phase, Progress};
use atoll_ipc::{Cause, Device};
use atoll_tcp::{Algorithm, Connection, EcnMode, Record, Settings, State};
use bitflags::bitflags;

use crate::entry::{Entry, Flags, Stage};
use crate::keep::Keep;

/// The flags of an entry that are flags of its record, too, with the bits that they have in an entry.
const ENTRY_FLAGS: Flags =
    Flags::FIXED_SEND.union(Flags::FIXED_RECEIVE).union(Flags::INTERNAL).union(Flags::FAST_OPEN);

bitflags! {
    /// The flags of a record, above those of its entry.
    #[derive(Clone, Copy)]
    struct Marks: u32 {
        const NODELAY = 1 << 16;
        const CORK = 1 << 17;
        const QUICK_ACK = 1 << 18;
        const TIMESTAMPS = 1 << 19;
        const SACK = 1 << 20;
        const WINDOW_SCALING = 1 << 21;
        const PASSIVE = 1 << 22;
        const ORPHAN = 1 << 23;
        const KEEP_ALIVE = 1 << 24;
        /// The connection waits for text (TCP_DEFER_ACCEPT).
        const DEFERRED = 1 << 25;
        /// The number of the [`EcnMode`].
        const ECN = 3 << Marks::ECN_SHIFT;
        /// The socket is bound to the loopback.
        const ON_LOOPBACK = 1 << 28;
        /// The socket is bound to the link.
        const ON_LINK = 1 << 29;
    }
}

impl Marks {
    const ECN_SHIFT: u32 = 26;

    const fn of(record: &ConnectionRecord) -> Marks {
        Marks::from_bits_truncate(record.flags)
    }
}

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
    let (phase, is_deferred) = match entry.stage {
        Stage::Embryonic { .. } | Stage::Waiting { .. } => (Phase::Unclaimed, false),
        Stage::Deferred { .. } => (Phase::Unclaimed, true),
        Stage::Offered { .. } => (Phase::Offered, false),
        Stage::Open(_) => (Phase::Open, false),
        Stage::Ended(_) => (Phase::Ended, false),
        Stage::Closing => (Phase::Closing, false),
    };
    let keep = entry.keep;
    let (ttl, tos) = entry.next_hop.marks();
    let mut marks = Marks::from_bits_retain((settings.ecn as u32) << Marks::ECN_SHIFT);
    for (mark, holds) in [
        (Marks::NODELAY, settings.nodelay),
        (Marks::CORK, settings.cork),
        (Marks::QUICK_ACK, settings.quick_ack),
        (Marks::TIMESTAMPS, record.timestamps),
        (Marks::SACK, record.sack),
        (Marks::WINDOW_SCALING, record.window_scaling),
        (Marks::PASSIVE, record.passive),
        (Marks::ORPHAN, record.orphan),
        (Marks::KEEP_ALIVE, keep.is_on()),
        (Marks::DEFERRED, is_deferred),
        (Marks::ON_LOOPBACK, entry.device == Device::Loopback),
        (Marks::ON_LINK, entry.device == Device::Link),
    ] {
        marks.set(mark, holds);
    }
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
        flags: u32::from((entry.flags & ENTRY_FLAGS).bits()) | marks.bits(),
        snd_scale: record.snd_scale,
        rcv_scale: record.rcv_scale,
        congestion: settings.congestion as u8,
        ecn: record.ecn,
        ttl,
        tos,
        hops_min: entry.hops_min,
        syn_retries: settings.syn_retries,
        cause: entry.cause as u8,
        keep_probes: keep.probes(),
        keep_idle: keep.idle(),
        keep_interval: keep.interval(),
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
    let marks = Marks::of(record);
    let has = |mark: Marks| marks.contains(mark);
    let settings = Settings {
        nodelay: has(Marks::NODELAY),
        cork: has(Marks::CORK),
        keep_alive: keep.settings(),
        congestion: *Algorithm::ALL.iter().find(|algorithm| **algorithm as u8 == record.congestion)?,
        user_timeout: (record.user_timeout_ms != 0)
            .then(|| Duration::from_millis(record.user_timeout_ms.into())),
        quick_ack: has(Marks::QUICK_ACK),
        mss_max: (record.mss_max != 0).then_some(record.mss_max),
        receive_capacity: record.receive_capacity,
        receive_capacity_max: record.receive_capacity,
        linger2: Duration::from_millis(record.linger2_ms.into()),
        ecn: match (marks & Marks::ECN).bits() >> Marks::ECN_SHIFT {
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
        timestamps: has(Marks::TIMESTAMPS),
        sack: has(Marks::SACK),
        window_scaling: has(Marks::WINDOW_SCALING),
        snd_scale: record.snd_scale,
        rcv_scale: record.rcv_scale,
        window_max: record.window_max,
        mss_path: record.mss_path,
        mss_peer: record.mss_peer,
        mss_receive: record.mss_receive,
        settings,
        ecn: record.ecn,
        passive: has(Marks::PASSIVE),
        orphan: has(Marks::ORPHAN),
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
    let on = Marks::of(record).contains(Marks::KEEP_ALIVE);
    Keep::new(on, record.keep_probes, record.keep_idle, record.keep_interval)
}

/// Returns the device that the socket is bound to.
pub(crate) fn device(record: &ConnectionRecord) -> Device {
    match Marks::of(record) {
        marks if marks.contains(Marks::ON_LOOPBACK) => Device::Loopback,
        marks if marks.contains(Marks::ON_LINK) => Device::Link,
        _ => Device::None,
    }
}

/// Gives an entry what the record contains besides its TCB.
pub(crate) fn furnish(entry: &mut Entry, record: &ConnectionRecord) {
    entry.keep = keep(record);
    // The upper half are marks.
    entry.flags.insert(Flags::from_bits_truncate(record.flags as u16) & ENTRY_FLAGS);
    entry.device = device(record);
    entry.hops_min = record.hops_min;
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
    Marks::of(record).contains(Marks::DEFERRED)
}

/// Notes that no process has the connection.
pub(crate) const fn orphan(record: &mut ConnectionRecord) {
    record.flags |= Marks::ORPHAN.bits();
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}
