//! The record of one connection: all that the peer and the application were told, and what they told this
//! stack.

use atoll_base::{Addr, Endpoint, FourTuple, SessionId, SlotId};

use super::{TABLE_CONNECTIONS, Unreadable, check, words};
use crate::buffer::{Extent, Extents};
use crate::memory::Memory;

/// The size of a connection's record in octets.
pub const CONNECTION_BYTES: usize = 256;

/// The first version of a record, and the version that adds text out of order.
const FIRST: u32 = 1;
const WITH_BEYOND: u32 = 2;
/// The maximum number of stretches of text out of order in a record.
pub const BEYOND_MAX: usize = 4;
const P_ACKED: usize = 8;
const P_RECEIVED: usize = 16;
const P_EDGE: usize = 24;
/// The offset of the session's number.
const SESSION: usize = 68;
/// The offset from which on octets are under the check, besides octets 4 to 7.
const CHECKED: usize = 32;

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
        memory.store64_release(at + P_ACKED, self.acked as u64);
        memory.store64_release(at + P_RECEIVED, self.received as u64);
        memory.store64_release(at + P_EDGE, self.edge as u64);
    }
}

/// The owner of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Text that has arrived out of order and lies in the receive buffer: `[from, to)`, empty ones last. The
    /// peer may have been told of it (SACK), and need not send it again. Version 2; in version 1 it is empty.
    pub beyond: [(i64, i64); BEYOND_MAX],
}

/// The size of a record in words, in which it is built in registers, and stored and checked without being
/// taken apart.
const WORDS: usize = CONNECTION_BYTES / 8;

/// Writes fields one behind the other.
struct Encoder {
    words: [u64; WORDS],
    at: usize,
}

impl Encoder {
    /// Appends a field. It is inlined, so that every place is known when it is compiled: as a call, a record
    /// took 850 ns instead of 50.
    #[inline(always)]
    fn put<const N: usize>(&mut self, value: [u8; N]) -> &mut Encoder {
        const { assert!(N <= 8) };
        let mut octets = [0; 8];
        octets[..N].copy_from_slice(&value);
        let value = u64::from_le_bytes(octets);
        let (word, inside) = (self.at / 8, self.at % 8);
        self.words[word] |= value << (inside * 8);
        if inside + N > 8 {
            self.words[word + 1] |= value >> (64 - inside * 8);
        }
        self.at += N;
        self
    }

    #[inline(always)]
    fn put_address(&mut self, address: Addr) -> &mut Encoder {
        let octets = u128::from_le_bytes(address.octets());
        self.put((octets as u64).to_le_bytes()).put(((octets >> 64) as u64).to_le_bytes())
    }
}

/// Reads fields one behind the other.
struct Decoder<'a> {
    bytes: &'a [u8; CONNECTION_BYTES],
    at: usize,
}

impl Decoder<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let value = *self.bytes[self.at..].first_chunk().expect("the fields fit the record");
        self.at += N;
        value
    }
    fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }
    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
    fn i64(&mut self) -> i64 {
        i64::from_le_bytes(self.take())
    }
    /// Reads text out of order. Text that has become in order since the record, and invalid stretches, are
    /// left out.
    fn beyond(&mut self, received: i64) -> [(i64, i64); BEYOND_MAX] {
        let base = self.i64();
        let mut beyond = [(0, 0); BEYOND_MAX];
        let mut count = 0;
        let mut end = received;
        for _ in 0..BEYOND_MAX {
            let from = base.saturating_add(i64::from(self.u32()));
            let to = from.saturating_add(i64::from(self.u32()));
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

const NO_FIN: i64 = i64::MAX;
/// Flags in the octet of the phase: the connection has a slot, and a FIN follows its text.
const HAS_PLACE: u8 = 1 << 6;
const HAS_FIN: u8 = 1 << 7;
const PHASE_BITS: u8 = 0x0f;

/// Returns the session that the record at `at` names, which may be any number if the record is damaged;
/// `None` if it names none.
pub(super) fn session_named(memory: &impl Memory, at: usize) -> Option<SessionId> {
    // The word of version, state, phase and crashes.
    let [version, _, phase, _] = memory.load32(at + 4).to_le_bytes();
    (version != 0 && phase & HAS_PLACE != 0).then(|| SessionId(memory.load32(at + SESSION)))
}

impl ConnectionRecord {
    /// Encodes the record in `version`, for all readers that may need it.
    pub(super) fn encode(&self, place: u32, version: u32) -> [u8; CONNECTION_BYTES] {
        let phase = self.phase as u8
            | if self.place.is_some() { HAS_PLACE } else { 0 }
            | if self.send_fin { HAS_FIN } else { 0 };
        let (session, slot, generation) = self.place.unwrap_or_default();
        let ring = |ring: Option<Extent>| ring.map_or((0, 0, 0), |ring| (ring.base, ring.unit, ring.log2));
        let (current, old) = (ring(self.receive.current), ring(self.receive.old));
        let mut encoder = Encoder { words: [0; WORDS], at: 4 };
        encoder
            .put([version as u8, self.state, phase, self.crashes])
            .put(self.progress.acked.to_le_bytes())
            .put(self.progress.received.to_le_bytes())
            .put(self.progress.edge.to_le_bytes())
            .put_address(self.tuple.remote.addr)
            .put_address(self.tuple.local.addr)
            .put(self.tuple.remote.port.to_le_bytes())
            .put(self.tuple.local.port.to_le_bytes())
            .put(session.0.to_le_bytes())
            .put(slot.0.to_le_bytes())
            .put(generation.to_le_bytes())
            .put(self.send_start.to_le_bytes())
            .put(self.receive_start.to_le_bytes())
            .put(self.send_tail.to_le_bytes())
            .put(self.receive_fin.unwrap_or(NO_FIN).to_le_bytes())
            .put(current.0.to_le_bytes())
            .put(old.0.to_le_bytes())
            .put(current.1.to_le_bytes())
            .put(old.1.to_le_bytes())
            .put([current.2, old.2])
            .put(self.mss_path.to_le_bytes())
            .put(self.mss_peer.to_le_bytes())
            .put(self.mss_receive.to_le_bytes())
            .put(self.ts_offset.to_le_bytes())
            .put(self.ts_recent.to_le_bytes())
            .put(self.window_max.to_le_bytes())
            .put(self.receive_capacity.to_le_bytes())
            .put(self.send_limit.to_le_bytes())
            .put(self.unsent_low.to_le_bytes())
            .put(self.flags.to_le_bytes())
            .put([self.snd_scale, self.rcv_scale, self.congestion, self.ecn])
            .put([self.ttl, self.tos, self.syn_retries, self.cause])
            .put([self.keep_probes, 0])
            .put(self.keep_idle.to_le_bytes())
            .put(self.keep_interval.to_le_bytes())
            .put(self.mss_max.to_le_bytes())
            .put(self.user_timeout_ms.to_le_bytes())
            .put(self.linger2_ms.to_le_bytes())
            .put(self.pacing_rate.to_le_bytes())
            .put(self.srtt_us.to_le_bytes())
            .put(self.text.to_le_bytes())
            .put(self.text_len.to_le_bytes());
        if version >= WITH_BEYOND {
            self.put_beyond(&mut encoder);
        }
        let mut words = encoder.words;
        words[0] |= u64::from(sum(place, (words[0] >> 32) as u32, words[CHECKED / 8..].iter().copied()));
        let mut bytes = [0; CONNECTION_BYTES];
        bytes.copy_from_slice(words.map(u64::to_le_bytes).as_flattened());
        bytes
    }

    /// Appends text out of order as distances from the end of the text in order, which other stores do not
    /// move with the record.
    #[inline(always)]
    fn put_beyond(&self, encoder: &mut Encoder) {
        let base = self.progress.received;
        let distance = |from: i64, to: i64| u32::try_from(to.saturating_sub(from)).unwrap_or(0);
        encoder.put(base.to_le_bytes());
        for (from, to) in self.beyond {
            encoder.put(distance(base, from).to_le_bytes()).put(distance(from, to).to_le_bytes());
        }
    }

    /// Decodes a record; returns `None` if the place is free. `newest` is the newest version that is read.
    pub(super) fn decode(
        place: u32,
        bytes: &[u8; CONNECTION_BYTES],
        newest: u32,
    ) -> Option<Result<ConnectionRecord, Unreadable>> {
        match u32::from(bytes[4]) {
            0 => return None,
            version if (FIRST..=newest).contains(&version) => {}
            other => return Some(Err(Unreadable::Version(other))),
        }
        let half = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("within the record"));
        if half(0) != sum(place, half(4), words(&bytes[CHECKED..])) {
            return Some(Err(Unreadable::Check));
        }
        Some(Self::fields(bytes).ok_or(Unreadable::Field))
    }

    /// Decodes a record whose check fits; returns `None` if the place is free or a field is invalid.
    pub(super) fn checked(bytes: &[u8; CONNECTION_BYTES]) -> Option<ConnectionRecord> {
        (bytes[4] != 0).then(|| Self::fields(bytes)).flatten()
    }

    // structure: fields: a line for each field, in the order of docs/ledger.md
    fn fields(bytes: &[u8; CONNECTION_BYTES]) -> Option<ConnectionRecord> {
        let has_beyond = u32::from(bytes[4]) >= WITH_BEYOND;
        let mut decoder = Decoder { bytes, at: 5 };
        let (state, marks, crashes) = (decoder.u8(), decoder.u8(), decoder.u8());
        let phase = match marks & PHASE_BITS {
            1 => Phase::Unclaimed,
            2 => Phase::Offered,
            3 => Phase::Open,
            4 => Phase::Ended,
            5 => Phase::Closing,
            _ => return None,
        };
        let progress = Progress { acked: decoder.i64(), received: decoder.i64(), edge: decoder.i64() };
        let (remote, local) = (Addr::from_octets(decoder.take()), Addr::from_octets(decoder.take()));
        let (remote, local) = (Endpoint::at(remote, decoder.u16()), Endpoint::at(local, decoder.u16()));
        let slot = (SessionId(decoder.u32()), SlotId(decoder.u32()), decoder.u32());
        let (send_start, receive_start) = (decoder.u32(), decoder.u32());
        let (send_tail, fin) = (decoder.i64(), decoder.i64());
        let (bases, units, sizes) =
            ([decoder.u64(), decoder.u64()], [decoder.u32(), decoder.u32()], [decoder.u8(), decoder.u8()]);
        let ring =
            |i: usize| (sizes[i] != 0).then_some(Extent { base: bases[i], unit: units[i], log2: sizes[i] });
        let (mss_path, mss_peer, mss_receive) = (decoder.u16(), decoder.u16(), decoder.u16());
        let (ts_offset, ts_recent, window_max) = (decoder.u32(), decoder.u32(), decoder.u32());
        let (receive_capacity, send_limit, unsent_low) = (decoder.u32(), decoder.u32(), decoder.u32());
        let flags = decoder.u32();
        let [snd_scale, rcv_scale, congestion, ecn] = decoder.take();
        let [ttl, tos, syn_retries, cause] = decoder.take();
        let [keep_probes, _] = decoder.take();
        let is_plausible = progress.acked >= -1
            && progress.received >= 0
            && send_tail >= 0
            && fin >= 0
            && snd_scale <= SCALE_MAX
            && rcv_scale <= SCALE_MAX;
        if !is_plausible {
            return None;
        }
        let record = ConnectionRecord {
            progress,
            tuple: FourTuple { local, remote },
            state,
            phase,
            place: (marks & HAS_PLACE != 0).then_some(slot),
            send_start,
            receive_start,
            send_tail,
            send_fin: marks & HAS_FIN != 0,
            receive_fin: (fin != NO_FIN).then_some(fin),
            receive: Extents { current: ring(0), old: ring(1) },
            ts_offset,
            ts_recent,
            window_max,
            receive_capacity,
            send_limit,
            unsent_low,
            mss_path,
            mss_peer,
            mss_receive,
            flags,
            snd_scale,
            rcv_scale,
            congestion,
            ecn,
            ttl,
            tos,
            syn_retries,
            cause,
            keep_probes,
            keep_idle: decoder.u16(),
            keep_interval: decoder.u16(),
            mss_max: decoder.u16(),
            user_timeout_ms: decoder.u32(),
            linger2_ms: decoder.u32(),
            pacing_rate: decoder.u64(),
            srtt_us: decoder.u32(),
            text: decoder.u32(),
            text_len: decoder.u32(),
            crashes,
            beyond: [(0, 0); BEYOND_MAX],
        };
        Some(if has_beyond {
            ConnectionRecord { beyond: decoder.beyond(progress.received), ..record }
        } else {
            record
        })
    }
}

/// The largest window scale (RFC 7323 §2.3).
const SCALE_MAX: u8 = 14;

/// Returns the check of a record: over octets 4 to 7, `head`, and all behind its progress.
fn sum(place: u32, head: u32, rest: impl Iterator<Item = u64>) -> u32 {
    check(TABLE_CONNECTIONS, place ^ head.rotate_left(16), rest)
}
