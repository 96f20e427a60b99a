//! The Internet checksum (RFC 1071).
//!
//! One's complement addition is commutative, associative and independent of byte order. So the sum is taken
//! over machine words as they lie in memory and only the result is turned round (RFC 1071 §2).

use atoll_base::Addr;

/// A partial one's complement sum: words of 16 bits in memory order, carries not yet folded in.
///
/// Parts are summed independently and added. Every part but the last must have an even length; where that
/// cannot be promised (a payload that wraps in a ring), use [`Sum::join`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of no bytes.
    pub const ZERO: Sum = Sum(0);

    /// Adds `bytes`; an odd last byte counts as if a zero followed it.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Sum {
        self.plus(sum(bytes))
    }

    /// Adds one word, given in host byte order.
    #[must_use]
    pub const fn u16(self, word: u16) -> Sum {
        Sum(self.0 + word.to_be() as u64)
    }

    /// Adds two words, given as one value in host byte order.
    #[must_use]
    pub const fn u32(self, words: u32) -> Sum {
        Sum(self.0 + words.to_be() as u64)
    }

    /// Adds the eight words of an IPv6 address.
    #[must_use]
    pub const fn addr(self, addr: Addr) -> Sum {
        let [a, b] = addr.to_u64s();
        // Words of 32 bits in memory order, so that no carry is lost.
        Sum(self.0 + (a >> 32) + (a & 0xffff_ffff) + (b >> 32) + (b & 0xffff_ffff))
    }

    /// Adds a part that starts at an even offset.
    #[must_use]
    pub const fn plus(self, part: Sum) -> Sum {
        // Both are below 2^48 for any packet that fits in memory, see `sum`; the addition cannot overflow.
        Sum(self.0.wrapping_add(part.0))
    }

    /// Adds a part that starts `offset` bytes into the data: at odd offsets its bytes change places.
    #[must_use]
    pub const fn join(self, offset: usize, part: Sum) -> Sum {
        if offset.is_multiple_of(2) {
            self.plus(part)
        } else {
            self.plus(Sum(part.folded().swap_bytes() as u64))
        }
    }

    /// Returns the sum in 16 bits, in host byte order: the content of a *partial* checksum field (vnet
    /// `NEEDS_CSUM`). Data with a right checksum in it folds to `0xffff`.
    pub const fn fold(self) -> u16 {
        u16::from_be(self.folded())
    }

    /// Returns the checksum: the complement of the sum, in host byte order.
    pub const fn finish(self) -> u16 {
        !self.fold()
    }

    /// Returns whether data that includes its checksum field is intact.
    pub const fn is_valid(self) -> bool {
        self.folded() == 0xffff
    }

    const fn folded(self) -> u16 {
        // Each step leaves at most one carry more: below 2^33, 2^32, 2^17, 2^16.
        let x = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        let x = (x >> 32) + (x & 0xffff_ffff);
        let x = (x >> 16) + (x & 0xffff);
        ((x >> 16) + (x & 0xffff)) as u16
    }
}

/// Returns the sum of `bytes`. Cost: about 1 ns per 50 bytes; the loop is written so that the compiler
/// vectorises it.
pub fn sum(bytes: &[u8]) -> Sum {
    // Eight lanes of 32-bit words in 64-bit accumulators: no carry is lost below 2^32 words per lane.
    let mut lanes = [0u64; LANES];
    let (blocks, rest) = bytes.as_chunks::<{ LANES * 4 }>();
    for block in blocks {
        let (words, _) = block.as_chunks::<4>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    let mut total: u64 = lanes.iter().sum();
    let (words, tail) = rest.as_chunks::<4>();
    for word in words {
        total += u64::from(u32::from_ne_bytes(*word));
    }
    let mut last = [0u8; 4];
    for (to, from) in last.iter_mut().zip(tail) {
        *to = *from;
    }
    Sum(total + u64::from(u32::from_ne_bytes(last)))
}

/// Returns the sum of a few bytes whose number the compiler knows, unrolled. `N` must be a multiple of 4.
#[inline]
pub(crate) fn sum_words<const N: usize>(bytes: &[u8; N]) -> Sum {
    const { assert!(N.is_multiple_of(4)) };
    let (words, _) = bytes.as_chunks::<4>();
    Sum(words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum())
}

/// Returns the sum of the pseudo header of TCP and UDP over IPv4 (RFC 9293 §3.1). `len` is the number of
/// bytes of transport header and payload; only its low 16 bits exist on the wire.
pub const fn pseudo_header(src: u32, dst: u32, protocol: u8, len: usize) -> Sum {
    Sum::ZERO.u32(src).u32(dst).u16(protocol as u16).u16(len as u16)
}

/// Returns the sum of the pseudo header of TCP, UDP and ICMPv6 over IPv6 (RFC 8200 §8.1).
pub const fn pseudo_header_v6(src: Addr, dst: Addr, protocol: u8, len: usize) -> Sum {
    Sum::ZERO.addr(src).addr(dst).u16(protocol as u16).u32(len as u32)
}

/// Returns the sum of the pseudo header for the family of the addresses.
#[inline]
pub const fn pseudo_header_of(src: Addr, dst: Addr, protocol: u8, len: usize) -> Sum {
    match (src.to_v4(), dst.to_v4()) {
        (Some(src), Some(dst)) => pseudo_header(src, dst, protocol, len),
        _ => pseudo_header_v6(src, dst, protocol, len),
    }
}

const LANES: usize = 8;

#[cfg(test)]
mod tests;
