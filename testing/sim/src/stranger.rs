//! The segments of an attacker that knows both addresses and ports, sees nothing, and guesses (RFC 5961, RFC
//! 6528).
//!
//! The guesses are better than those of a real attacker: every number is near the right one, but never are
//! all of them right at once. In reality that happens by luck, once in billions of tries. So no such segment
//! may change anything.

use atoll_base::{Instant, Rng, SeqNum};
use atoll_tcp::{Connection, State};
use atoll_wire::tcp::{Flags, Options, SackBlocks, Segment, Timestamps};

/// Returns a segment for `victim`; `begins` has the first sequence numbers of the victim and of its peer.
/// `None` means that any segment would be believed, because there is nothing to guess yet: an open that was
/// not answered takes the first SYN (RFC 9293 §3.5).
pub(crate) fn forged(
    now: Instant,
    rng: &mut Rng,
    victim: &Connection,
    begins: [SeqNum; 2],
) -> Option<(Segment, Vec<u8>)> {
    if matches!(victim.state(), State::SynSent | State::Closed) {
        return None;
    }
    let expected = begins[1].plus(1 + victim.receive_nxt() as u32 + u32::from(victim.fin_received()));
    let window = (victim.receive_edge() - victim.receive_nxt()) as u32;
    let seq = match rng.below(4) {
        0 => SeqNum(rng.next_u32()),
        1 => expected.plus(1 + rng.below(window.max(2))),
        2 => SeqNum(expected.0.wrapping_sub(1 + rng.below(3000))),
        _ => expected,
    };
    let flags = [0x04, 0x14, 0x02, 0x12, 0x10, 0x18, 0x11, 0x00, 0x29][rng.below(9) as usize];
    let flags = Flags::from_bits_retain(flags);
    // A reset with the number that the victim expects cannot come from a stranger.
    let seq = if flags.contains(Flags::RST) && seq == expected { expected.plus(1 << 29) } else { seq };
    // The number is beyond all that was sent, or before the beginning.
    let next = begins[0].plus(1 + victim.send_nxt() as u32);
    let ack = match rng.below(2) {
        0 => next.plus(1 << 20 | rng.below(1 << 28)),
        _ => SeqNum(begins[0].0.wrapping_sub(rng.below(1 << 28))),
    };
    let len = [0, 0, 1, 1000][rng.below(4) as usize];
    let mut sack = SackBlocks::new();
    sack.push(SeqNum(next.0.wrapping_sub(rng.below(3000))), next.plus(rng.below(3000)));
    let clock = now.as_millis() as u32;
    let timestamps = (rng.below(2) == 0)
        .then(|| Timestamps { value: clock.wrapping_add(rng.next_u32()), echo: rng.next_u32() });
    let options = Options { timestamps, sack, ..Options::default() };
    let window = rng.next_u32() as u16;
    Some((Segment { seq, ack, flags, window, options, len, ..Segment::default() }, vec![0xee; len as usize]))
}
