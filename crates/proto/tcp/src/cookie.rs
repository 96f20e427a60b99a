//! How a SYN is answered without memory: SYN cookies, as in RFC 4987 §3.6, with the later refinements of D.
//! J. Bernstein and Linux.
//!
//! Everything that is needed later travels to the peer and back. It is in our initial sequence number, and,
//! if the peer uses timestamps, also in the low bits of ours.
//!
//! ```text
//!   sequence number   | period 2 | MSS 3 |             MAC 27              |
//!   timestamp value   |            clock, rounded down            | SACK 1 | scale 5 |
//! ```
//! A guess is right once in 2^27. Without timestamps the connection has neither SACK nor window scaling.

use core::hash::Hasher;

use atoll_base::{Duration, FourTuple, Instant, SeqNum};
use atoll_wire::tcp::{Flags, Options, Segment, Timestamps};

use crate::isn::keyed_hasher;

/// The segment sizes that a cookie can encode, in octets, ascending. A cookie has the largest that is not
/// above the peer's.
const SIZES: [u16; 8] = [64, 256, 536, 1200, 1300, 1440, 1460, 8960];
/// How long a period lasts, in seconds; a cookie is good in its own period and in the next.
const PERIOD_S: u64 = 64;
/// The longest time for which a cookie is good.
pub const COOKIE_LIFETIME: Duration = Duration::from_secs(2 * PERIOD_S);
/// Stands for "no window scaling".
const NO_SCALE: u32 = 31;
const SACK: u32 = 32;
const LOW_BITS: u32 = 63;

/// Reduces `syn` to what a cookie can say: perhaps a smaller segment size, and no options that it has no room
/// for.
pub fn simplify_for_cookie(syn: &Segment) -> Segment {
    let mut options = syn.options;
    let mss = options.mss.unwrap_or(crate::snd::MSS_DEFAULT);
    options.mss = SIZES.get(size_index(mss)).copied();
    if options.timestamps.is_none() {
        options.window_scale = None;
        options.sack_permitted = false;
    }
    Segment { flags: syn.flags.difference(Flags::ECE | Flags::CWR | Flags::AE), options, ..*syn }
}

/// Returns our initial sequence number in the answer to `syn`, which [`simplify_for_cookie`] has made.
///
/// `secret` is random, and stays the same for the life of the stack.
pub fn syn_cookie(secret: &[u8; 16], tuple: &FourTuple, syn: &Segment, now: Instant) -> SeqNum {
    let size = size_index(syn.options.mss.unwrap_or(0)) as u32;
    cookie(secret, tuple, syn.seq, period(now), size)
}

/// Puts what the sequence number has no room for into the timestamp of the SYN-ACK to `syn`.
pub fn stamp_cookie(syn_ack: &mut Segment, syn: &Segment) {
    let Some(timestamps) = &mut syn_ack.options.timestamps else { return };
    let sack = if syn.options.sack_permitted { SACK } else { 0 };
    let low = sack | syn.options.window_scale.map_or(NO_SCALE, u32::from);
    let clock = timestamps.value;
    let value = clock & !LOW_BITS | low;
    // The timestamp is never ahead of the clock, or what follows would count as old.
    timestamps.value =
        if SeqNum(value).after(SeqNum(clock)) { value.wrapping_sub(LOW_BITS + 1) } else { value };
}

/// Returns the SYN that the acknowledgement `ack` answers for, as [`simplify_for_cookie`] has made it; `None`
/// if `ack` acknowledges no cookie of this period or the last one.
pub fn check_syn_cookie(
    secret: &[u8; 16],
    tuple: &FourTuple,
    ack: &Segment,
    now: Instant,
) -> Option<Segment> {
    if !ack.has(Flags::ACK) || ack.flags.intersects(Flags::SYN | Flags::RST) {
        return None;
    }
    let given = SeqNum(ack.ack.0.wrapping_sub(1));
    let seq = SeqNum(ack.seq.0.wrapping_sub(1));
    let size = given.0 >> 27 & 7;
    let now = period(now);
    let is_ours = [now, now.wrapping_sub(1)]
        .into_iter()
        .any(|period| cookie(secret, tuple, seq, period, size) == given);
    if !is_ours {
        return None;
    }
    let mut options = Options { mss: SIZES.get(size as usize).copied(), ..Options::default() };
    if let Some(Timestamps { value, echo }) = ack.options.timestamps {
        options.timestamps = Some(Timestamps { value, echo: 0 });
        options.sack_permitted = echo & SACK != 0;
        // RFC 7323 §2.3: shifts above 14 do not exist; only a peer that changes its echo can ask for one.
        options.window_scale = Some(echo & NO_SCALE).filter(|scale| *scale <= 14).map(|scale| scale as u8);
    }
    Some(Segment { seq, ack: SeqNum(0), flags: Flags::SYN, options, len: 0, ..*ack })
}

fn size_index(mss: u16) -> usize {
    SIZES.iter().rposition(|size| *size <= mss).unwrap_or(0)
}

fn period(now: Instant) -> u64 {
    now.as_millis() / 1000 / PERIOD_S
}

fn cookie(secret: &[u8; 16], tuple: &FourTuple, seq: SeqNum, period: u64, size: u32) -> SeqNum {
    let mut hasher = keyed_hasher(secret, tuple);
    hasher.write_u32(seq.0);
    hasher.write_u64(period);
    hasher.write_u8(b'c');
    hasher.write_u32(size);
    let mac = hasher.finish() as u32 & ((1 << 27) - 1);
    SeqNum((period as u32 & 3) << 30 | size << 27 | mac)
}

#[cfg(test)]
mod tests {
    use atoll_base::{Endpoint, Rng};

    use super::*;

    const SECRET: [u8; 16] = [3; 16];
    const TUPLE: FourTuple = FourTuple { local: Endpoint::new(1, 80), remote: Endpoint::new(2, 4000) };

    fn syn(mss: Option<u16>, scale: Option<u8>, sack: bool, timestamps: bool) -> Segment {
        let timestamps = timestamps.then_some(Timestamps { value: 77, echo: 0 });
        let options =
            Options { mss, window_scale: scale, sack_permitted: sack, timestamps, ..Options::default() };
        Segment { seq: SeqNum(5000), flags: Flags::SYN, window: 1000, options, ..Segment::default() }
    }

    /// Returns the peer's acknowledgement of our answer to `syn`.
    fn answered(syn: &Segment, now: Instant) -> Segment {
        let iss = syn_cookie(&SECRET, &TUPLE, syn, now);
        let clock = Timestamps { value: 1_000_003, echo: 77 };
        let timestamps = syn.options.timestamps.map(|_| clock);
        let options = Options { timestamps, ..Options::default() };
        let mut syn_ack = Segment { seq: iss, flags: Flags::SYN | Flags::ACK, options, ..Segment::default() };
        stamp_cookie(&mut syn_ack, syn);
        let echo = syn_ack.options.timestamps.map(|timestamps| timestamps.value);
        assert!(echo.is_none_or(|echo| echo <= clock.value && echo + 64 > clock.value), "{echo:?}");
        let options =
            Options { timestamps: echo.map(|echo| Timestamps { value: 78, echo }), ..Options::default() };
        Segment {
            seq: syn.seq.plus(1),
            ack: iss.plus(1),
            flags: Flags::ACK,
            window: 9,
            options,
            ..Segment::default()
        }
    }

    #[test]
    fn what_a_syn_says_comes_back() {
        let now = Instant::from_millis(5_000_000);
        for mss in [None, Some(10), Some(536), Some(1000), Some(1460), Some(65535)] {
            for (scale, sack) in [(None, false), (Some(0), true), (Some(7), false), (Some(14), true)] {
                for timestamps in [false, true] {
                    let syn = simplify_for_cookie(&syn(mss, scale, sack, timestamps));
                    let known =
                        check_syn_cookie(&SECRET, &TUPLE, &answered(&syn, now), now).expect("it is ours");
                    assert_eq!((known.seq, known.flags), (syn.seq, Flags::SYN));
                    assert_eq!(known.options.mss, syn.options.mss);
                    assert!(known.options.mss <= Some(mss.unwrap_or(536).max(64)));
                    assert_eq!(known.options.window_scale, scale.filter(|_| timestamps));
                    assert_eq!(known.options.sack_permitted, sack && timestamps);
                    assert_eq!(known.options.timestamps.is_some(), timestamps);
                }
            }
        }
    }

    #[test]
    fn a_cookie_is_good_for_a_while_for_one_peer_and_not_to_be_guessed() {
        let now = Instant::from_millis(5_000_000);
        let ack = answered(&simplify_for_cookie(&syn(Some(1460), None, false, false)), now);
        let good = |tuple: &FourTuple, ack: &Segment, secs: u64| {
            check_syn_cookie(&SECRET, tuple, ack, now + Duration::from_secs(secs)).is_some()
        };
        assert!(good(&TUPLE, &ack, 0) && good(&TUPLE, &ack, 60) && !good(&TUPLE, &ack, 129));
        // The cookie stays bad after the two bits of the period have come round.
        assert!((2..200).all(|n| !good(&TUPLE, &ack, n * PERIOD_S)));
        let other = FourTuple { remote: Endpoint::new(2, 4001), ..TUPLE };
        assert!(!good(&other, &ack, 0));
        assert!(check_syn_cookie(&[4; 16], &TUPLE, &ack, now).is_none());
        for flags in [Flags::SYN | Flags::ACK, Flags::RST | Flags::ACK, Flags::RST, Flags::FIN] {
            assert!(!good(&TUPLE, &Segment { flags, ..ack }, 0), "{flags:?}");
        }
        let mut rng = Rng::new(1);
        let guessed =
            (0..100_000).filter(|_| good(&TUPLE, &Segment { ack: SeqNum(rng.next_u32()), ..ack }, 0)).count();
        assert!(guessed <= 1, "{guessed}");
    }
}
