//! Was that loss real? Eifel detection by timestamps (RFC 3522), detection by D-SACK (RFC 3708), and what
//! follows (RFC 4015, with the window as on Linux).
//!
//! The first acknowledgement of new text after a retransmission echoes the timestamp of what it answers. If
//! that is older than the retransmission, the original had arrived after all: it was late, or out of order.
//! And if everything that was sent again is reported to have arrived twice, nothing of it was lost.

use atoll_base::SeqNum;

/// What there was before an episode, and what has been sent again since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undo {
    /// Octets of congestion window.
    pub(crate) cwnd: u32,
    /// Octets of slow-start threshold.
    pub(crate) ssthresh: u32,
    /// Our clock when the first segment was sent again, until the first acknowledgement; `None` also without
    /// timestamps.
    stamp: Option<u32>,
    /// Octets sent again, and those of them that were not needed.
    resent: i64,
    twice: i64,
}

impl Undo {
    pub(crate) const fn new(cwnd: u32, ssthresh: u32, stamp: Option<u32>) -> Undo {
        Undo { cwnd, ssthresh, stamp, resent: 0, twice: 0 }
    }

    /// The first acknowledgement of new text since the episode began: whether it answers, by its `echo`, what
    /// was sent before.
    pub(crate) fn is_due_by(&mut self, echo: Option<u32>) -> bool {
        let stamp = self.stamp.take();
        stamp.zip(echo).is_some_and(|(stamp, echo)| SeqNum(echo).before(SeqNum(stamp)))
    }

    pub(super) const fn note_resent(&mut self, octets: i64) {
        self.resent += octets;
    }

    /// The peer has `octets` twice. Whether that is everything that was sent again.
    pub(crate) const fn note_twice(&mut self, octets: i64) -> bool {
        self.twice += octets;
        self.resent > 0 && self.twice >= self.resent
    }
}
