//! Where sequence numbers (RFC 6528) and the clock of the timestamps (RFC 7323 §7.1) begin.

use core::hash::Hasher;

use atoll_base::{FourTuple, Instant, SeqNum};
use siphasher::sip::SipHasher24;

/// Returns an initial sequence number: M + F(4-tuple, secret) (RFC 6528 §3). Outsiders cannot predict it, and
/// it rises from one incarnation of a connection to the next.
///
/// `secret` is random, and stays the same for the life of the stack. M ticks every 64 ns, as on Linux, so
/// that it outruns a connection that moves 10 Gb/s.
pub fn initial_sequence(secret: &[u8; 16], tuple: &FourTuple, now: Instant) -> SeqNum {
    let hasher = keyed_hasher(secret, tuple);
    // Both summands wrap by design.
    SeqNum((hasher.finish() as u32).wrapping_add((now.as_nanos() >> 6) as u32))
}

/// Returns a hasher that has taken both addresses and both ports of a connection.
pub(crate) fn keyed_hasher(secret: &[u8; 16], tuple: &FourTuple) -> SipHasher24 {
    let mut hasher = SipHasher24::new_with_key(secret);
    hasher.write(&tuple.local.addr.octets());
    hasher.write(&tuple.remote.addr.octets());
    hasher.write_u16(tuple.local.port);
    hasher.write_u16(tuple.remote.port);
    hasher
}

/// Returns the offset to add to the clock of the timestamps. It has one value per pair of addresses, so that
/// the timestamps of one host keep rising across connections (RFC 6191 needs that) without revealing the
/// uptime.
pub fn timestamp_offset(secret: &[u8; 16], tuple: &FourTuple) -> u32 {
    let mut hasher = SipHasher24::new_with_key(secret);
    hasher.write(&tuple.local.addr.octets());
    hasher.write(&tuple.remote.addr.octets());
    hasher.write_u8(b't');
    hasher.finish() as u32
}

#[cfg(test)]
mod tests {
    use atoll_base::Endpoint;

    use super::*;

    #[test]
    fn sequence_numbers_rise_with_time_and_differ_by_tuple_and_secret() {
        // covers: RFC 6528 §3
        let (local, remote) = (Endpoint::new(1, 80), Endpoint::new(2, 4000));
        let (a, b) = (FourTuple { local, remote }, FourTuple { local, remote: Endpoint::new(2, 4001) });
        let at = |tuple, ms| initial_sequence(&[7; 16], tuple, Instant::from_millis(ms));
        assert_eq!(at(&a, 1).distance_from(at(&a, 0)), 15625);
        assert_ne!(at(&a, 0), at(&b, 0));
        assert_ne!(at(&a, 0), initial_sequence(&[8; 16], &a, Instant::ZERO));
        assert_eq!(timestamp_offset(&[7; 16], &a), timestamp_offset(&[7; 16], &b));
    }
}
