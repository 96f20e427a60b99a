//! What has been decided but not yet sent?

/// A set of things that the next `poll_transmit` has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending(u8);

impl Pending {
    /// A RST ends the connection.
    pub(crate) const RESET: Pending = Pending(1 << 0);
    /// A SYN or SYN-ACK.
    pub(crate) const SYN: Pending = Pending(1 << 1);
    /// An ACK, on text or alone.
    pub(crate) const ACK: Pending = Pending(1 << 2);
    /// A window probe: whatever the window takes, or a segment before it.
    pub(crate) const PROBE: Pending = Pending(1 << 3);
    /// A keep-alive probe.
    pub(crate) const KEEP_ALIVE: Pending = Pending(1 << 4);
    /// The first hole is sent again whatever the congestion window says (RFC 6675 §5, step 4.3).
    pub(crate) const RETRANSMIT: Pending = Pending(1 << 5);
    /// A tail loss probe (RFC 8985 §7).
    pub(crate) const TAIL_PROBE: Pending = Pending(1 << 6);
    /// What is written leaves in spite of TCP_CORK.
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

    /// Whether `other` was pending; it is not any more.
    pub(crate) fn take(&mut self, other: Pending) -> bool {
        let was = self.has(other);
        self.clear(other);
        was
    }
}
