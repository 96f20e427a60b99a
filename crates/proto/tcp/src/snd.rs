//! What has been sent, and how much more may be: the send sequence variables (RFC 9293 §3.3.1).

use core::num::NonZeroU8;

use atoll_base::SeqNum;

/// The send side. Positions are stream offsets: the SYN is at -1, text begins at 0, the FIN follows the last
/// text.
///
/// ```text
///            una            nxt            tail  (+1 with FIN = end)
///   ---acked--|---in flight--|----to send---|
///             '-------- window ---------| edge
/// ```
#[derive(Debug)]
pub(crate) struct Snd {
    /// The first offset not acknowledged.
    pub(crate) una: i64,
    /// The first offset never sent. Retransmissions do not pull it back.
    pub(crate) nxt: i64,
    /// The end of the text that the application has written.
    pub(crate) tail: i64,
    /// The right edge of the peer's window.
    pub(crate) edge: i64,
    /// The end of the last segment sent that was not full: Minshall's variant of Nagle's rule waits for its
    /// acknowledgement.
    pub(crate) small_end: i64,
    /// The sequence number of offset 0: ISS + 1.
    pub(crate) start: SeqNum,
    /// The sequence number of the segment that set `edge` last (SND.WL1).
    pub(crate) wl1: SeqNum,
    /// The acknowledgement number that set `edge` last (SND.WL2).
    pub(crate) wl2: SeqNum,
    /// The largest window that the peer has offered, in octets.
    pub(crate) window_max: u32,
    /// The largest segment by the path, in octets: the link's MTU less 40, or what ICMP said.
    pub(crate) mss_path: u16,
    /// The largest segment by the peer's MSS option, in octets.
    pub(crate) mss_peer: u16,
    /// Octets of text in a full segment: the smaller of `mss_path` and `mss_peer`, less the options on every
    /// segment.
    pub(crate) mss: u16,
    /// Whether a FIN follows the text.
    pub(crate) fin: bool,
    /// Why the network has lost a segment, as its caller numbers the reasons; `None` if it has reported no
    /// loss since the peer was heard last (Linux's `sk_err_soft`).
    pub(crate) network_error: Option<NonZeroU8>,
}

impl Snd {
    pub(crate) fn new(iss: SeqNum, mss_path: u16) -> Snd {
        Snd {
            una: -1,
            nxt: -1,
            tail: 0,
            edge: 0,
            small_end: -1,
            start: iss.plus(1),
            // Until the peer's SYN has come, nothing is compared with this.
            wl1: SeqNum(0),
            wl2: iss,
            window_max: 0,
            mss_path,
            mss_peer: MSS_DEFAULT,
            mss: MSS_DEFAULT,
            fin: false,
            network_error: None,
        }
    }

    /// Returns the sequence number of `offset`.
    pub(crate) fn seq(&self, offset: i64) -> SeqNum {
        // Sequence numbers are offsets modulo 2^32.
        self.start.plus(offset as u32)
    }

    /// Returns the offset that an acknowledgement number means: the one nearest to `nxt`.
    pub(crate) fn offset_of(&self, seq: SeqNum) -> i64 {
        self.nxt + i64::from(seq.distance_from(self.seq(self.nxt)))
    }

    /// Returns the first offset after everything that is to be sent, FIN included.
    pub(crate) fn end(&self) -> i64 {
        self.tail + i64::from(self.fin)
    }

    /// Returns whether our FIN is acknowledged.
    pub(crate) fn fin_acked(&self) -> bool {
        self.fin && self.una > self.tail
    }

    /// Returns whether the peer has taken back some of the window that was used (RFC 9293 §3.8.6).
    pub(crate) fn window_was_taken_back(&self) -> bool {
        self.nxt > self.edge
    }

    /// Returns how much sequence space is sent and not acknowledged, in octets.
    pub(crate) fn flight(&self) -> i64 {
        self.nxt - self.una
    }

    pub(crate) fn check_invariants(&self) {
        assert!(self.una <= self.nxt, "{self:?}");
        assert!(self.nxt <= self.end().max(0), "{self:?}");
        assert!(self.small_end <= self.nxt, "{self:?}");
        assert!(self.mss > 0);
    }
}

/// The segment size of a peer without an MSS option, in octets (RFC 9293 §3.7.1, MUST-15).
pub(crate) const MSS_DEFAULT: u16 = 536;
