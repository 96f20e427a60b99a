//! What has been received, and how much more may come: the receive sequence variables (RFC 9293 §3.3.1).

use alloc::boxed::Box;

use atoll_base::SeqNum;

use crate::reassembly::Reassembly;

/// The receive side. Positions are stream offsets: the SYN is at -1, text begins at 0, the FIN follows the
/// last text.
///
/// ```text
///            head           nxt                      edge
///   ---read---|---unread-----|-----window, holes------|
///             '------------- capacity ------------------'
/// ```
#[derive(Debug)]
pub(crate) struct Rcv {
    /// The next offset expected in order; past the FIN once that is in order.
    pub(crate) nxt: i64,
    /// The right edge of the window as advertised; it never goes back.
    pub(crate) edge: i64,
    /// The offset up to which the application has read.
    pub(crate) head: i64,
    /// The offset of the peer's FIN, or [`NO_FIN`].
    pub(crate) fin: i64,
    /// `nxt` at the time of the last ACK sent (Last.ACK.sent of RFC 7323).
    pub(crate) acked: i64,
    /// Text received out of order.
    pub(crate) reassembly: Option<Box<Reassembly>>,
    /// The sequence number of offset 0: IRS + 1.
    pub(crate) start: SeqNum,
    /// The size of the receive buffer in octets.
    pub(crate) capacity: u32,
    /// The duplicate text to report in the next ACK (RFC 2883): sequence number and octets; 0 octets mean
    /// none.
    pub(crate) duplicate: (SeqNum, u32),
    /// The MSS that we advertised, in octets.
    pub(crate) mss: u16,
    /// The largest segment seen, between 536 octets and `mss`: what "full-sized" means for delayed ACKs.
    pub(crate) segment_max: u16,
    /// How many full-sized segments are still to be acknowledged at once (quick-ack at the start and after
    /// loss).
    pub(crate) quick: u8,
    /// Whether text of ours is expected, on which the next ACK can ride.
    pub(crate) answers: Answers,
    /// The weight of the text received since the last ACK sent: see `ack_is_overdue`.
    pub(crate) unacked: u8,
    /// The number of duplicate ACKs owed to a peer without SACK, beyond the one that is pending.
    pub(crate) duplicates_owed: u8,
}

/// How text of ours has followed the peer's small segments: see `output/ack_policy.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// In time for an ACK to ride on it, or nothing is known yet.
    Ride,
    /// Not yet: an ACK has left alone, without a delay or after a short one.
    AfterAck,
    /// Not in the time for which an ACK may wait.
    Never,
}

impl Rcv {
    pub(crate) fn new(capacity: u32, mss: u16) -> Rcv {
        Rcv {
            nxt: 0,
            edge: i64::from(capacity),
            head: 0,
            fin: NO_FIN,
            acked: 0,
            reassembly: None,
            start: SeqNum(0),
            capacity,
            duplicate: (SeqNum(0), 0),
            mss,
            segment_max: mss.min(SEGMENT_MAX_START),
            quick: QUICK_ACKS,
            answers: Answers::Ride,
            unacked: 0,
            duplicates_owed: 0,
        }
    }

    /// Returns the sequence number of `offset`.
    pub(crate) fn seq(&self, offset: i64) -> SeqNum {
        // Sequence numbers are offsets modulo 2^32.
        self.start.plus(offset as u32)
    }

    /// Returns the offset that the peer means by `seq`: the one nearest to `nxt`.
    pub(crate) fn offset_of(&self, seq: SeqNum) -> i64 {
        self.nxt + i64::from(seq.distance_from(self.seq(self.nxt)))
    }

    /// Returns the end of the text received in order, without the FIN.
    pub(crate) fn text_end(&self) -> i64 {
        self.nxt.min(self.fin)
    }

    /// Returns whether the peer's FIN is in order.
    pub(crate) fn fin_received(&self) -> bool {
        self.nxt > self.fin
    }

    /// Returns the part of the text at `[seq, seq + len)` that would be taken now; `None` if there is none.
    pub(crate) fn clip(&self, seq: i64, len: u32) -> Option<(i64, i64)> {
        let left = seq.max(self.nxt);
        let right = (seq + i64::from(len)).min(self.edge).min(self.fin);
        if left >= right {
            return None;
        }
        match &self.reassembly {
            Some(reassembly) if left > self.nxt => {
                let ranges = &reassembly.ranges;
                (!ranges.covers(left, right) && ranges.has_room_for(left, right)).then_some((left, right))
            }
            _ => Some((left, right)),
        }
    }

    /// Takes `[left, right)`, which [`Rcv::clip`] has returned.
    pub(crate) fn take(&mut self, left: i64, right: i64) {
        if left > self.nxt {
            self.reassembly.get_or_insert_default().insert(left, right);
            return;
        }
        self.nxt = right;
        if let Some(reassembly) = &mut self.reassembly {
            self.nxt = reassembly.advance(right);
            if reassembly.ranges.is_empty() {
                self.reassembly = None;
            }
        }
    }

    /// Moves the window, and returns the window field of a segment that advertises it.
    ///
    /// The right edge stays until it can move by a segment or half of the buffer (RFC 9293 §3.8.6.2.2,
    /// MUST-39). It never goes back; what rounding to the scale takes from the field is still accepted when
    /// it comes (RFC 7323 §2.4).
    pub(crate) fn advertise(&mut self, scale: u8) -> u16 {
        let possible = self.head + i64::from(self.capacity);
        if possible - self.edge >= self.step_min() {
            self.edge = possible;
        }
        u16::try_from((self.edge - self.nxt).max(0) >> scale).unwrap_or(u16::MAX)
    }

    /// Returns whether an ACK is due for the sake of the window alone once the application has read up to
    /// `head`. This is so if the right edge can move far enough and the window would at least double. While
    /// text flows, its ACKs carry the window.
    pub(crate) fn update_is_due(&self, head: i64, scale: u8) -> bool {
        let possible = head + i64::from(self.capacity);
        possible - self.edge >= self.step_min() && possible - self.nxt >= 2 * self.usable(scale)
    }

    /// Returns the smallest `head`, above the present one, with which [`Rcv::update_is_due`] is true.
    pub(crate) fn read_mark(&self, scale: u8) -> Option<i64> {
        let capacity = i64::from(self.capacity);
        let mark = (self.edge + self.step_min()).max(self.nxt + 2 * self.usable(scale)) - capacity;
        (self.head < mark && mark <= self.text_end()).then_some(mark)
    }

    /// Returns the window that the peer sees, in octets.
    fn usable(&self, scale: u8) -> i64 {
        (self.edge - self.nxt).max(0) >> scale << scale
    }

    /// Returns the least distance by which the right edge moves, in octets.
    fn step_min(&self) -> i64 {
        i64::from(self.mss).min(i64::from(self.capacity) / 2).max(1)
    }

    /// Returns the end of the text received, in order or not.
    pub(crate) fn max(&self) -> i64 {
        let beyond = self.reassembly.as_ref().and_then(|reassembly| reassembly.ranges.end());
        beyond.unwrap_or(self.text_end())
    }

    /// Sets the duplicate to report: `[left, right)` has been received before.
    pub(crate) fn report_duplicate(&mut self, left: i64, right: i64) {
        let len = u32::try_from(right - left).unwrap_or(0);
        if len > 0 {
            self.duplicate = (self.seq(left), len);
        }
    }

    pub(crate) fn check_invariants(&self) {
        assert!(self.head <= self.text_end(), "{self:?}");
        assert!(self.text_end() <= self.edge.max(self.nxt), "{self:?}");
        assert!(self.acked <= self.nxt, "{self:?}");
        if let Some(reassembly) = &self.reassembly {
            reassembly.ranges.check_invariants();
            assert!(reassembly.ranges.first().is_some_and(|first| first.0 > self.nxt), "{self:?}");
            assert!(self.max() <= self.edge.min(self.fin), "{self:?}");
        }
    }
}

/// Stands for "no FIN seen".
pub(crate) const NO_FIN: i64 = i64::MAX;
/// The number of segments acknowledged at once before ACKs are delayed: Linux's `TCP_MAX_QUICKACKS`.
pub(crate) const QUICK_ACKS: u8 = 16;
/// The size that counts as a full-sized segment, in octets, before a larger one was seen.
const SEGMENT_MAX_START: u16 = 536;
