//! Which identification does a packet get that may be fragmented? RFC 6864 §4.3, RFC 7739 §5.4.

use alloc::boxed::Box;

use atoll_base::{Addr, Rng};
use atoll_wire::ipv4::Protocol;

/// Generates the identifications of packets that may be fragmented. They must not repeat for a source,
/// destination and protocol (RFC 6864 §4.3), and must not reveal how much is sent to others (RFC 7739 §5.4).
/// So each destination counts from an offset of its own, in one of some counters. IPv4 uses the lower 16
/// bits.
#[derive(Debug)]
pub(crate) struct Identifications {
    counters: Box<[u32; COUNTERS]>,
    key: u64,
    index: u32,
    step: u32,
}

const COUNTERS: usize = 256;

impl Identifications {
    /// Creates the generator of replica `index` of `count`; these share an address, and so divide its
    /// identifications.
    pub(crate) fn new(rng: &mut Rng, (index, count): (u8, u8)) -> Identifications {
        let mut counters = Box::new([0; COUNTERS]);
        counters.fill_with(|| rng.next_u32());
        let step = u32::from(count.clamp(1, 128)).next_power_of_two();
        Identifications { counters, key: rng.next_u64(), index: u32::from(index) % step, step }
    }

    pub(crate) fn next(&mut self, dst: Addr, protocol: Protocol) -> u32 {
        // With IPv6 the identification alone distinguishes the packets between two addresses.
        let mut word = dst.to_v4().map_or(0, |v4| u64::from(v4) << 8 | u64::from(protocol.0));
        if !dst.is_v4() {
            let [high, low] = dst.to_u64s();
            word = Rng::new(self.key ^ high).next_u64() ^ low;
        }
        let place = Rng::new(self.key ^ word).next_u64();
        let counter = &mut self.counters[place as usize % COUNTERS];
        *counter = counter.wrapping_add(1);
        counter.wrapping_add((place >> 32) as u32).wrapping_mul(self.step).wrapping_add(self.index)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PEER: u32 = 0xc612_0002;

    #[test]
    fn identifications_do_not_repeat_soon() {
        // RFC 6864 §4.3 also holds for two replicas with one address.
        let mut rng = Rng::new(3);
        let mut siblings = [0, 1].map(|index| Identifications::new(&mut rng, (index, 2)));
        let mut seen = BTreeSet::new();
        for _ in 0..32_768 {
            for sibling in &mut siblings {
                assert!(seen.insert(sibling.next(PEER.into(), Protocol::UDP) as u16));
            }
        }
        // RFC 7739 §4.1: with IPv6 this holds for all protocols together, because only the identification
        // distinguishes packets.
        let dst = Addr::from_octets([0x20; 16]);
        let mut seen = BTreeSet::new();
        for n in 0..100_000 {
            let protocol = [Protocol::UDP, Protocol::ICMPV6][n % 2];
            assert!(siblings.iter_mut().all(|sibling| seen.insert(sibling.next(dst, protocol))));
        }
        let [here, there] =
            [[0x20; 16], [0x21; 16]].map(|octets| siblings[0].next(Addr::from_octets(octets), Protocol::UDP));
        assert!(here.abs_diff(there) > 1000, "what is sent to others does not show");
    }
}
