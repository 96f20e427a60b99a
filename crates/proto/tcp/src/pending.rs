//! What has been decided but not yet sent.

/// A set of things that the next `poll_transmit` has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending(u8);

impl Pending {
    /// A RST is due, which ends the connection.
    pub(crate) const RESET: Pending = Pending(1 << 0);
    /// A SYN or SYN-ACK is due.
    pub(crate) const SYN: Pending = Pending(1 << 1);
    /// An ACK is due, on text or alone.
    pub(crate) const ACK: Pending = Pending(1 << 2);
    /// A window probe is due: as much text as the window takes, or else a segment before the window.
    pub(crate) const PROBE: Pending = Pending(1 << 3);
    /// A keep-alive probe is due.
    pub(crate) const KEEP_ALIVE: Pending = Pending(1 << 4);
    /// The first hole is sent again whatever the congestion window says (RFC 6675 §5, step 4.3).
    pub(crate) const RETRANSMIT: Pending = Pending(1 << 5);
    /// A tail loss probe is due (RFC 8985 §7).
    pub(crate) const TAIL_PROBE: Pending = Pending(1 << 6);
    /// Text that is written leaves in spite of TCP_CORK.
    pub(crate) const PUSH: Pending = Pending(1 << 7);

    pub(crate) const fn has(self, other: Pending) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn set(&mut self, other: Pending) {
        self.0 |= other.0;
    }

    pub(crate) fn clear(&mut self, other: Pending) {
        self.0 &= !other.0;
    }

    /// Removes `other` from the set, and returns whether it was pending.
    pub(crate) fn take(&mut self, other: Pending) -> bool {
        let was = self.has(other);
        self.clear(other);
        was
    }
}
