//! Whether a loss was real: Eifel detection by timestamps (RFC 3522), detection by D-SACK (RFC 3708), and the
//! response (RFC 4015, with the window as on Linux).
//!
//! The first acknowledgement of new text after a retransmission echoes the timestamp of the segment that it
//! answers. If that is older than the retransmission, the original had arrived after all: it was late, or out
//! of order. If everything that was sent again is reported to have arrived twice, nothing of it was lost.

use atoll_base::SeqNum;

/// The windows before an episode, and what has been sent again since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undo {
    /// The congestion window before the episode, in octets.
    pub(crate) cwnd: u32,
    /// The slow-start threshold before the episode, in octets.
    pub(crate) ssthresh: u32,
    /// Our timestamp clock when the first segment was sent again, until the first acknowledgement; `None`
    /// also without timestamps.
    stamp: Option<u32>,
    /// Octets sent again; `twice` counts those of them that were not needed.
    resent: i64,
    twice: i64,
}

impl Undo {
    pub(crate) const fn new(cwnd: u32, ssthresh: u32, stamp: Option<u32>) -> Undo {
        Undo { cwnd, ssthresh, stamp, resent: 0, twice: 0 }
    }

    /// Judges the first acknowledgement of new text since the episode began: returns whether its `echo` shows
    /// that it answers what was sent before.
    pub(crate) fn is_due_by(&mut self, echo: Option<u32>) -> bool {
        let stamp = self.stamp.take();
        stamp.zip(echo).is_some_and(|(stamp, echo)| SeqNum(echo).before(SeqNum(stamp)))
    }

    pub(super) const fn note_resent(&mut self, octets: i64) {
        self.resent += octets;
    }

    /// Notes that the peer has received `octets` twice. Returns whether that is everything that was sent
    /// again.
    pub(crate) const fn note_twice(&mut self, octets: i64) -> bool {
        self.twice += octets;
        self.resent > 0 && self.twice >= self.resent
    }
}
