//! How large segments may be if the network does not say: packetization-layer path MTU discovery, RFC 4821
//! (RFC 8899 describes the same for datagrams), with the numbers of Linux's `tcp_mtu_probing=1`.
//!
//! A path that loses large packets in silence shows as time-outs. Then segments become small, and a search
//! for the largest size that passes begins. A probe is one segment that is larger than the others, with text
//! that is to be sent anyway. If it arrives, all segments become as large. If it alone is lost, it was too
//! large, and the loss is no sign of congestion.
//!
//! ```text
//!     low: passes, and is what is sent       high: may pass      link
//!   ----|---------------- probe: the middle -----|-----------------|
//! ```

use alloc::boxed::Box;

use atoll_base::{Duration, Instant};

use atoll_wire::tcp::Flags;

use crate::connection::{Connection, text_offset};
use crate::outcome::Transmit;
use crate::pending::Pending;
use crate::recovery::Phase;
use crate::settings::MSS_MIN;

/// The search of one connection; it exists once something may have been lost by its size. Sizes are of
/// segments without options, like `snd.mss_path`: the MTU less 40.
#[derive(Debug)]
pub(crate) struct MtuSearch {
    low: u16,
    high: u16,
    /// The size that the link, or the path when the connection was opened, takes.
    link: u16,
    probe: Option<Probe>,
    /// No probe is sent before this moment.
    next_at: Instant,
    /// A smaller size that ICMP has claimed, and the offset of the segment that the message quoted. The claim
    /// is believed when that segment times out.
    claim: Option<(u16, i64)>,
}

/// A probe in flight.
#[derive(Clone, Copy, Debug)]
struct Probe {
    size: u16,
    from: i64,
    end: i64,
}

impl MtuSearch {
    fn new(size: u16) -> MtuSearch {
        MtuSearch {
            low: size,
            high: size,
            link: size,
            probe: None,
            next_at: Instant::FAR_FUTURE,
            claim: None,
        }
    }

    /// Ends the search if there is little left to win. It begins again after ten minutes, because paths
    /// change (RFC 1191 §6.3).
    fn settle(&mut self, now: Instant) {
        if self.high.saturating_sub(self.low) < THRESHOLD {
            self.high = self.link;
            self.next_at = now + AGAIN_AFTER;
        }
    }
}

impl Connection {
    /// Returns the octets of text of the segments into which a transmit is cut (gso_size). This is
    /// [`Connection::mss`], except for a probe, which is one segment, and for a SYN, whose text is no more
    /// than fits before a size is agreed upon.
    pub fn segment_size(&self, transmit: &Transmit) -> u16 {
        let is_probe = |probe: Probe| {
            !transmit.retransmit
                && transmit.offset == text_offset(probe.from)
                && i64::from(transmit.segment.len) == probe.end - probe.from
        };
        match self.mtu.as_ref().and_then(|search| search.probe) {
            Some(probe) if is_probe(probe) => u16::MAX,
            _ if transmit.segment.has(Flags::SYN) => u16::MAX,
            _ => self.snd.mss,
        }
    }

    /// Handles an ICMP message which says that segments of `size` pass, and quotes the segment at `offset`.
    /// Returns whether the message was believed at once.
    ///
    /// RFC 5927 §7.2: if larger segments were acknowledged, the message is more likely forged than true, and
    /// is not believed until the segment in question has timed out.
    pub(crate) fn hear_claim(&mut self, now: Instant, size: u16, offset: i64) -> bool {
        // All segments behind the end of the last small one were full.
        if self.state().is_synchronized() && self.snd.una > self.snd.small_end.max(0) {
            self.mtu_search().claim = Some((size, offset));
            return false;
        }
        self.narrow(now, size);
        true
    }

    /// Limits the search: ICMP says about the probe that segments of up to `size` pass, and `size` is larger
    /// than what is sent now.
    pub(crate) fn limit_search(&mut self, size: u16, offset: i64) {
        let Some(search) = &mut self.mtu else { return };
        if search.probe.is_some_and(|probe| probe.from == offset && probe.size > size) {
            search.high = size.max(search.low);
        }
    }

    /// Handles another time-out of what is in flight. Its size is suspected after several time-outs, and at
    /// once if ICMP has claimed so.
    pub(crate) fn suspect_size(&mut self, now: Instant) {
        let una = self.snd.una;
        if let Some((size, offset)) = self.mtu.as_mut().and_then(|search| search.claim.take())
            && una <= offset
            && size < self.snd.mss_path
        {
            self.narrow(now, size);
            return;
        }
        let (before, floor) = (self.snd.mss_path, SIZE_MIN.min(self.snd.mss_peer));
        // The lost segment may be smaller than others: the last one, or all that the peer has room for.
        // Beyond a closed window one whole segment asks for the window (RFC 9293 §3.8.6). A peer that answers
        // that segment has no room; if the peer does not answer, the segment may not have arrived.
        let asks = self.snd.edge <= una && self.heard_at < self.sent_at;
        let room = if asks { i64::from(self.snd.mss) } else { self.snd.edge - una };
        let lost = self.snd.flight().min(room).clamp(0, i64::from(self.snd.mss)) as u16;
        let size = if lost > SIZE_BASE { SIZE_BASE } else { (lost / 2).max(floor) };
        // A size that passes nearly everywhere is suspected later.
        let retries_before = RETRIES_BEFORE + u8::from(lost <= SIZE_BASE);
        if self.recovery.retries < retries_before || lost <= floor || size >= before {
            return;
        }
        let high = before.min(self.snd.mss_peer);
        let search = self.mtu_search();
        search.low = size;
        // A second hole is below the first.
        search.high = if search.high > search.low { search.high.min(high) } else { high };
        search.probe = None;
        search.next_at = now;
        self.snd.mss_path = size;
        self.update_mss();
    }

    /// Notes that `una` has moved. If it is past a probe, the probe has arrived; if it is past the segment of
    /// a claim, the claim was false.
    #[inline]
    pub(crate) fn note_mtu_news(&mut self, now: Instant) {
        if self.mtu.is_some() {
            self.judge_probe(now);
        }
    }

    fn judge_probe(&mut self, now: Instant) {
        let una = self.snd.una;
        let Some(search) = &mut self.mtu else { return };
        if search.claim.is_some_and(|(_, offset)| una > offset) {
            search.claim = None;
        }
        let Some(probe) = search.probe.filter(|probe| probe.end <= una) else { return };
        search.probe = None;
        search.low = probe.size;
        search.settle(now);
        let is_done = search.low >= search.link;
        if is_done {
            self.mtu = None;
        }
        self.snd.mss_path = probe.size;
        self.update_mss();
    }

    /// Notes that `[from, to)` is sent again. A probe in it was probably too large.
    #[inline]
    pub(crate) fn note_probe_resent(&mut self, now: Instant, from: i64, to: i64) {
        let Some(search) = &mut self.mtu else { return };
        if let Some(probe) = search.probe.filter(|probe| from < probe.end && probe.from < to) {
            search.probe = None;
            search.high = search.high.min(probe.size - 1);
            search.settle(now);
        }
    }

    /// Returns whether a probe is all that is lost, which is no sign of congestion (RFC 4821 §7.6.2). In that
    /// case the lost text is to be sent again, and nothing else changes.
    pub(crate) fn only_probe_is_lost(&mut self) -> bool {
        let Some(probe) = self.mtu.as_ref().and_then(|search| search.probe) else { return false };
        let alone = self.recovery.hole() == Some((probe.from, probe.end))
            && self.recovery.lost() == probe.end - probe.from;
        if alone {
            self.resend_for_size();
        }
        alone
    }

    /// Returns the size and the length in octets of the probe that is to be sent now instead of other text,
    /// if any.
    #[inline]
    pub(crate) fn probe_due(&self, now: Instant) -> Option<(u16, i64)> {
        let search = self.mtu.as_ref()?;
        if search.probe.is_some() || now < search.next_at || search.high <= search.low {
            return None;
        }
        self.probe_that_fits(search)
    }

    /// Returns a probe if it does no harm now and its loss will show: nothing is lost or doubtful, and other
    /// segments follow.
    fn probe_that_fits(&self, search: &MtuSearch) -> Option<(u16, i64)> {
        let mss = i64::from(self.snd.mss);
        let size = search.low + (search.high - search.low).div_ceil(2);
        let len = mss + i64::from(size.saturating_sub(self.snd.mss_path));
        let needed = len + FOLLOWERS * mss;
        let is_calm = self.recovery.phase == Phase::Open
            && self.recovery.sacked(&self.snd) == 0
            && !self.recovery.probed
            && !self.pending.has(Pending::PROBE);
        let room = (self.snd.tail.min(self.snd.edge) - self.snd.nxt)
            .min(i64::from(self.congestion.cwnd) - self.recovery.pipe(&self.snd));
        let fits = i64::from(self.congestion.cwnd) >= WINDOW_MIN * mss && room >= needed && len > mss;
        (is_calm && fits).then_some((size, len))
    }

    /// Notes that a probe of `size` leaves as `[from, end)`.
    pub(crate) fn note_probe_sent(&mut self, size: u16, from: i64, end: i64) {
        if let Some(search) = &mut self.mtu {
            search.probe = Some(Probe { size, from, end });
        }
    }

    /// Makes segments as small as the network says; larger ones are tried again after ten minutes.
    fn narrow(&mut self, now: Instant, size: u16) {
        let before = self.snd.mss;
        let search = self.mtu_search();
        search.low = size;
        search.high = size;
        search.probe = None;
        search.claim = None;
        search.settle(now);
        self.snd.mss_path = size;
        self.update_mss();
        if self.snd.mss < before && self.state().is_synchronized() {
            let (una, nxt) = (self.snd.una, self.snd.nxt);
            self.recovery.flight(&self.snd, self.sent_at).mark_lost(una, nxt);
            self.resend_for_size();
        }
    }

    /// Sends what is lost again in smaller segments, because it was too large; that is not congestion (RFC
    /// 1191 §6.4).
    fn resend_for_size(&mut self) {
        let cwnd = self.congestion.cwnd;
        self.recovery.enter_recovery(&self.snd, 0, None);
        // The end of the episode restores the window from the threshold: the window is unchanged then.
        self.congestion.ssthresh = cwnd.max(u32::from(self.snd.mss));
        self.pending.set(Pending::RETRANSMIT);
    }

    fn mtu_search(&mut self) -> &mut MtuSearch {
        let size = self.config.clamp_mss(self.snd.mss_path.min(self.snd.mss_peer));
        self.mtu.get_or_insert_with(|| Box::new(MtuSearch::new(size)))
    }
}

/// A size that passes nearly everywhere, in octets (Linux's `tcp_base_mss`).
const SIZE_BASE: u16 = 1024;
/// The size, in octets, below which time-outs make nothing smaller: the MTU of the slowest links that there
/// were (RFC 1191 §7.1) less 40.
const SIZE_MIN: u16 = 256;
/// The number of time-outs in a row after which size is suspected (Linux's `tcp_retries1`).
const RETRIES_BEFORE: u8 = 3;
/// The search ends when there are fewer octets than this to win (Linux's `tcp_probe_threshold`).
const THRESHOLD: u16 = 8;
/// The time after which the search begins again (Linux's `tcp_probe_interval`).
const AGAIN_AFTER: Duration = Duration::from_secs(600);
/// The number of segments that have to follow a probe, so that duplicate acknowledgements reveal its loss.
const FOLLOWERS: i64 = 4;
/// The smallest window for a probe, in segments, as on Linux: with a smaller one the loss of a probe would
/// cost too much.
const WINDOW_MIN: i64 = 11;

const _: () = assert!(SIZE_MIN >= MSS_MIN);

#[cfg(test)]
mod tests;
