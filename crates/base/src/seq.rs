//! TCP sequence numbers: their comparison and their translation to stream offsets (RFC 9293 §3.4).

use core::fmt;

/// A TCP sequence number: arithmetic is modulo 2^32 (RFC 9293 §3.4).
///
/// Deliberately not `Ord`: comparison is only meaningful within half of the sequence space, through
/// [`SeqNum::before`] and [`SeqNum::after`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SeqNum(pub u32);

impl SeqNum {
    /// Returns the number `n` octets further on.
    #[must_use]
    pub const fn plus(self, n: u32) -> SeqNum {
        SeqNum(self.0.wrapping_add(n))
    }

    /// Returns the number `n` octets earlier.
    #[must_use]
    pub const fn minus(self, n: u32) -> SeqNum {
        SeqNum(self.0.wrapping_sub(n))
    }

    /// Returns the signed distance from `other` to `self`, in octets; positive when `self` is later.
    pub const fn distance_from(self, other: SeqNum) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// Returns whether `self` precedes `other`.
    pub const fn before(self, other: SeqNum) -> bool {
        self.distance_from(other) < 0
    }

    /// Returns whether `self` precedes or equals `other`.
    pub const fn at_or_before(self, other: SeqNum) -> bool {
        self.distance_from(other) <= 0
    }

    /// Returns whether `self` follows `other`.
    pub const fn after(self, other: SeqNum) -> bool {
        self.distance_from(other) > 0
    }

    /// Returns whether `self` follows or equals `other`.
    pub const fn at_or_after(self, other: SeqNum) -> bool {
        self.distance_from(other) >= 0
    }

    /// Returns the later of two numbers.
    #[must_use]
    pub const fn later(self, other: SeqNum) -> SeqNum {
        if self.after(other) { self } else { other }
    }
}

impl fmt::Debug for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_the_wrap() {
        let (a, b) = (SeqNum(u32::MAX - 1), SeqNum(3));
        assert!(a.before(b) && b.after(a));
        assert_eq!(b.distance_from(a), 5);
        assert_eq!(a.plus(5), b);
        assert_eq!(b.minus(5), a);
        assert_eq!(a.later(b), b);
    }
}
