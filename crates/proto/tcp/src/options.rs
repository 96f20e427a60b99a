//! Which options both ends use, and what their timestamps say (RFC 7323, RFC 2018 §2).

use atoll_base::{Instant, SeqNum};
use atoll_wire::tcp::{Options, Timestamps};

use crate::record::Record;

/// The options that the SYNs agreed upon, and the state of the timestamps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Negotiated {
    /// Is added to our millisecond clock, so that timestamps do not reveal the uptime (RFC 7323 §7.1).
    pub(crate) ts_offset: u32,
    /// TS.Recent: the timestamp to echo.
    pub(crate) ts_recent: u32,
    /// When TS.Recent was set, in seconds; it is invalid after 24 days.
    ts_recent_at: u32,
    /// Whether TS.Recent comes from a predecessor and is too old to be echoed: the peer would take the time
    /// since for a round trip.
    is_inherited: bool,
    pub(crate) timestamps: bool,
    pub(crate) sack: bool,
    pub(crate) window_scaling: bool,
    /// The shift of the windows that the peer sends.
    pub(crate) snd_scale: u8,
    /// The shift of the windows that we send.
    pub(crate) rcv_scale: u8,
}

impl Negotiated {
    /// Offers every option; [`Negotiated::agree`] takes back what the peer does not know.
    pub(crate) fn offer(ts_offset: u32, capacity: u32, capacity_max: u32) -> Negotiated {
        Negotiated {
            ts_offset,
            ts_recent: 0,
            ts_recent_at: 0,
            is_inherited: false,
            timestamps: true,
            sack: true,
            window_scaling: true,
            snd_scale: 0,
            rcv_scale: scale_for(capacity, capacity_max),
        }
    }

    /// Restores the options of a predecessor. TS.Recent may be older than the last timestamp that it had
    /// received, which makes PAWS milder for a moment. Nothing is echoed until a segment other than a SYN has
    /// come: an acknowledgement of what the peer has sent twice would make it believe in round trips of
    /// seconds.
    pub(crate) fn resume(now: Instant, record: &Record) -> Negotiated {
        Negotiated {
            ts_offset: record.ts_offset,
            ts_recent: record.ts_recent,
            ts_recent_at: seconds(now),
            is_inherited: record.state.is_synchronized(),
            timestamps: record.timestamps,
            sack: record.sack,
            window_scaling: record.window_scaling,
            snd_scale: record.snd_scale,
            rcv_scale: record.rcv_scale,
        }
    }

    /// Takes the options of the peer's SYN: an option holds only if both SYNs carry it.
    pub(crate) fn agree(&mut self, now: Instant, peer: &Options) {
        self.sack &= peer.sack_permitted;
        self.window_scaling &= peer.window_scale.is_some();
        self.snd_scale = peer.window_scale.unwrap_or(0);
        if !self.window_scaling {
            self.snd_scale = 0;
            self.rcv_scale = 0;
        }
        self.timestamps &= peer.timestamps.is_some();
        if let Some(timestamps) = peer.timestamps {
            self.set_ts_recent(now, timestamps.value);
        }
    }

    /// Returns the value of our timestamp clock, in milliseconds, as the peer sees it.
    pub(crate) fn clock(&self, now: Instant) -> u32 {
        // The clock wraps by design (RFC 7323 §5.4: one tick per millisecond).
        (now.as_millis() as u32).wrapping_add(self.ts_offset)
    }

    /// Returns the timestamps option for a segment that leaves now; `None` if timestamps are not in use.
    pub(crate) fn stamp(&self, now: Instant) -> Option<Timestamps> {
        let echo = if self.is_inherited { 0 } else { self.ts_recent };
        self.timestamps.then(|| Timestamps { value: self.clock(now), echo })
    }

    /// Returns the round-trip time in microseconds by the echo of an acknowledgement, at least one
    /// millisecond; `None` if it cannot be believed.
    pub(crate) fn rtt_us(&self, now: Instant, peer: &Options) -> Option<u32> {
        let echo = peer.timestamps.filter(|_| self.timestamps)?.echo;
        let elapsed_ms = self.clock(now).wrapping_sub(echo);
        (echo != 0 && elapsed_ms < RTT_MAX_MS).then(|| elapsed_ms.max(1) * 1000)
    }

    /// Returns whether `value` is older than TS.Recent, and TS.Recent is not outdated (PAWS, RFC 7323 §5.3
    /// R1).
    pub(crate) fn is_old(&self, now: Instant, value: u32) -> bool {
        SeqNum(value).before(SeqNum(self.ts_recent))
            && seconds(now).wrapping_sub(self.ts_recent_at) < TS_RECENT_LIFETIME_S
    }

    /// Sets TS.Recent. The caller has checked that the segment covers the last ACK sent (RFC 7323 §4.3 (3)).
    pub(crate) fn set_ts_recent(&mut self, now: Instant, value: u32) {
        self.ts_recent = value;
        self.ts_recent_at = seconds(now);
        self.is_inherited = false;
    }
}

/// Returns the smallest shift with which `capacity_max` fits into a window field. A unit stays below a
/// quarter of `capacity`, because a window that is rounded to nothing could not be opened again.
const fn scale_for(capacity: u32, capacity_max: u32) -> u8 {
    let mut shift = 0;
    while shift < SCALE_MAX && (capacity_max >> shift) > 65535 && (8 << shift) <= capacity {
        shift += 1;
    }
    shift
}

fn seconds(now: Instant) -> u32 {
    (now.as_millis() / 1000) as u32
}

/// The largest shift of a window (RFC 7323 §2.3).
const SCALE_MAX: u8 = 14;
/// TS.Recent is invalid after 24 days of silence, in seconds (RFC 7323 §5.5).
const TS_RECENT_LIFETIME_S: u32 = 24 * 24 * 3600;
/// The age of an echo above which it is no measurement, in milliseconds.
const RTT_MAX_MS: u32 = 120_000;

const _: () = assert!(size_of::<Negotiated>() <= 20);
