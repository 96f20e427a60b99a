//! Was that loss real? Eifel detection by timestamps (RFC 3522), and what follows (RFC 4015, with the window as on Linux).
//!
//! The first acknowledgement of new text after a retransmission echoes the timestamp of what it answers. If that is older than the
//! retransmission, the original had arrived after all: it was late, or out of order.

use atoll_base::SeqNum;

/// What there was before an episode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undo {
    /// Octets of congestion window.
    pub(crate) cwnd: u32,
    /// Octets of slow-start threshold.
    pub(crate) ssthresh: u32,
    /// Our clock when the first segment was sent again.
    pub(crate) stamp: u32,
}

impl Undo {
    /// Whether an acknowledgement that echoes `echo` answers something that was sent before the episode.
    pub(crate) fn is_due(&self, echo: u32) -> bool {
        SeqNum(echo).before(SeqNum(self.stamp))
    }
}
