//! How large may segments be, when the network does not say? Packetization-layer path MTU discovery, RFC 4821
//! (RFC 8899 says the same of datagrams), with the numbers of Linux's `tcp_mtu_probing=1`.
//!
//! A path that loses large packets in silence shows as time-outs: then segments become small, and the search
//! begins for what passes. A probe is one segment that is larger than the others, with text that is to be
//! sent anyway. If it arrives, segments become as large; if it alone is lost, it was too large, and that is
//! no congestion.
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

/// The search of one connection; there is none until something was lost by its size. Sizes are of segments
/// without options, as `snd.mss_path`: the MTU less 40.
#[derive(Debug)]
pub(crate) struct MtuSearch {
    low: u16,
    high: u16,
    /// What the link, or the path when the connection was opened, takes.
    link: u16,
    probe: Option<Probe>,
    /// Not before this is a probe sent.
    next_at: Instant,
    /// A smaller size that ICMP has claimed, and the offset of the segment that it quoted: believed when that
    /// times out.
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
        MtuSearch { low: size, high: size, link: size, probe: None, next_at: Instant::FAR_FUTURE, claim: None }
    }

    /// The search may have come to its end: then it begins again after ten minutes, because paths change (RFC
    /// 1191 §6.3).
    fn settle(&mut self, now: Instant) {
        if self.high.saturating_sub(self.low) < THRESHOLD {
            self.high = self.link;
            self.next_at = now + AGAIN_AFTER;
        }
    }
}

impl Connection {
    /// Octets of text into which a transmit is cut, if it has more (gso_size): [`Connection::mss`] but for a
    /// probe, which is one segment, and a SYN, whose text is no more than fits before a size is agreed upon.
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

    /// ICMP says that segments of `size` pass, and has quoted what is at `offset`. Returns whether that was
    /// believed at once.
    ///
    /// RFC 5927 §7.2: while larger segments were acknowledged it is not, because then it is more likely to be
    /// forged than true, until the segment in question has timed out.
    pub(crate) fn hear_claim(&mut self, now: Instant, size: u16, offset: i64) -> bool {
        // Behind the end of the last small segment all were full.
        if self.state().is_synchronized() && self.snd.una > self.snd.small_end.max(0) {
            self.mtu_search().claim = Some((size, offset));
            return false;
        }
        self.narrow(now, size);
        true
    }

    /// ICMP says of the probe that what is not larger than `size` passes, and that is more than what is sent
    /// now.
    pub(crate) fn limit_search(&mut self, size: u16, offset: i64) {
        let Some(search) = &mut self.mtu else { return };
        if search.probe.is_some_and(|probe| probe.from == offset && probe.size > size) {
            search.high = size.max(search.low);
        }
    }

    /// What is in flight has timed out once more. Its size may be the reason if it did so several times, and
    /// is if ICMP said so.
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
        // The segment that is lost may be smaller than others: the last one, or all that the peer has room
        // for. Beyond a closed window one whole segment asks for it (RFC 9293 §3.8.6); who answers that has
        // room for nothing, and who does not may not have got it.
        let asks = self.snd.edge <= una && self.heard_at < self.sent_at;
        let room = if asks { i64::from(self.snd.mss) } else { self.snd.edge - una };
        let lost = self.snd.flight().min(room).clamp(0, i64::from(self.snd.mss)) as u16;
        let size = if lost > SIZE_BASE { SIZE_BASE } else { (lost / 2).max(floor) };
        // What passes nearly everywhere is suspected later.
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

    /// `una` has moved: perhaps past a probe, which then has arrived, or past what a claim was about, which
    /// then was none.
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

    /// `[from, to)` is sent again: a probe in it was too large, as far as can be told.
    #[inline]
    pub(crate) fn note_probe_resent(&mut self, now: Instant, from: i64, to: i64) {
        let Some(search) = &mut self.mtu else { return };
        if let Some(probe) = search.probe.filter(|probe| from < probe.end && probe.from < to) {
            search.probe = None;
            search.high = search.high.min(probe.size - 1);
            search.settle(now);
        }
    }

    /// Whether a probe is all that is lost: no sign of congestion (RFC 4821 §7.6.2). Then what is lost is
    /// sent again, and that is all.
    pub(crate) fn only_probe_is_lost(&mut self) -> bool {
        let Some(probe) = self.mtu.as_ref().and_then(|search| search.probe) else { return false };
        let alone =
            self.recovery.hole() == Some((probe.from, probe.end)) && self.recovery.lost() == probe.end - probe.from;
        if alone {
            self.resend_for_size();
        }
        alone
    }

    /// The length of the probe that is to be sent now instead of other text, if one is.
    #[inline]
    pub(crate) fn probe_due(&self, now: Instant) -> Option<(u16, i64)> {
        let search = self.mtu.as_ref()?;
        if search.probe.is_some() || now < search.next_at || search.high <= search.low {
            return None;
        }
        self.probe_that_fits(search)
    }

    /// Probes are sent where they do no harm, and where their loss will show: nothing is lost or doubtful,
    /// and other segments follow.
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

    /// A probe of `size` leaves as `[from, end)`.
    pub(crate) fn note_probe_sent(&mut self, size: u16, from: i64, end: i64) {
        if let Some(search) = &mut self.mtu {
            search.probe = Some(Probe { size, from, end });
        }
    }

    /// Segments become as small as the network says; larger ones are tried again after ten minutes.
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

    /// What is lost was too large, and is sent again in smaller segments; that is not congestion (RFC 1191
    /// §6.4).
    fn resend_for_size(&mut self) {
        let cwnd = self.congestion.cwnd;
        self.recovery.enter_recovery(&self.snd, 0, None);
        // The end of the episode restores the threshold as window: it is what it was.
        self.congestion.ssthresh = cwnd.max(u32::from(self.snd.mss));
        self.pending.set(Pending::RETRANSMIT);
    }

    fn mtu_search(&mut self) -> &mut MtuSearch {
        let size = self.config.clamp_mss(self.snd.mss_path.min(self.snd.mss_peer));
        self.mtu.get_or_insert_with(|| Box::new(MtuSearch::new(size)))
    }
}

/// Linux's `tcp_base_mss`: passes nearly everywhere.
const SIZE_BASE: u16 = 1024;
/// Nothing is made smaller than this by time-outs: the MTU of the slowest links that there were (RFC 1191
/// §7.1) less 40.
const SIZE_MIN: u16 = 256;
/// Time-outs in a row until size is suspected: Linux's `tcp_retries1`.
const RETRIES_BEFORE: u8 = 3;
/// The search ends when there is no more than this to win: Linux's `tcp_probe_threshold`.
const THRESHOLD: u16 = 8;
/// Linux's `tcp_probe_interval`.
const AGAIN_AFTER: Duration = Duration::from_secs(600);
/// Segments that have to follow a probe, so that duplicate acknowledgements tell of its loss.
const FOLLOWERS: i64 = 4;
/// As on Linux: with a smaller window the loss of a probe would cost too much.
const WINDOW_MIN: i64 = 11;

const _: () = assert!(SIZE_MIN >= MSS_MIN);

#[cfg(test)]
mod tests;
