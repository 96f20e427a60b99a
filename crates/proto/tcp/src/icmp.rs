//! What do the network's own messages change? RFC 1191, RFC 5461, and RFC 5927 for how little they are to be believed.

use atoll_base::{Instant, SeqNum};

use crate::connection::Connection;
use crate::outcome::Events;
use crate::pending::Pending;
use crate::settings::MSS_MIN;
use crate::state::State;

/// How an ICMP destination-unreachable message is meant (RFC 1122 §4.2.3.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// Protocol or port unreachable: nobody listens there.
    Hard,
    /// Network or host unreachable, source route failed, time exceeded: it may pass.
    Soft,
}

impl Connection {
    /// "Fragmentation needed": the way takes packets of `mtu` octets. Ignored unless `quoted_seq` is in flight (RFC
    /// 5927 §4.1) and the segment size really falls; what is in flight is sent again in smaller segments, and that is
    /// not congestion (RFC 1191 §6.4).
    pub fn handle_mtu(&mut self, _now: Instant, mtu: u16, quoted_seq: SeqNum) {
        let mss = mtu.saturating_sub(HEADERS).max(MTU_MIN - HEADERS).max(MSS_MIN);
        if !self.is_in_flight(quoted_seq) || mss >= self.snd.mss_path {
            return;
        }
        self.snd.mss_path = mss;
        let before = self.snd.mss;
        self.update_mss();
        if self.state() == State::SynSent && self.snd.nxt > 0 {
            // RFC 7413 §4.2.1: the SYN was too large for the way with its text.
            self.pending.set(Pending::SYN);
        }
        if self.snd.mss < before && self.state().is_synchronized() {
            let cwnd = self.congestion.cwnd;
            let (una, nxt) = (self.snd.una, self.snd.nxt);
            self.recovery.flight(&self.snd, self.sent_at).mark_lost(una, nxt);
            self.recovery.enter_recovery(&self.snd, None);
            // The end of the episode restores the threshold as window: it is what it was.
            self.congestion.ssthresh = self.congestion.ssthresh.min(cwnd.max(u32::from(self.snd.mss)));
            self.pending.set(Pending::RETRANSMIT);
        }
    }

    /// "Destination unreachable". Ends a handshake at once; an open connection only remembers it as the likely cause of
    /// a later time-out, because anybody who guesses a sequence number could have sent it (RFC 5927 §5.2).
    ///
    /// DEVIATION: RFC 9293 §3.9.2.2 (MUST-56) does not let soft errors end a handshake. Linux does, and applications
    /// expect to hear EHOSTUNREACH quickly (RFC 5461 §4.1 describes the practice).
    pub fn handle_unreachable(&mut self, _now: Instant, kind: Unreachable, quoted_seq: SeqNum) -> Events {
        if !self.is_in_flight(quoted_seq) {
            return Events::NONE;
        }
        if self.state() != State::SynSent {
            self.unreachable = true;
            return Events::NONE;
        }
        self.become_closed();
        match kind {
            Unreachable::Hard => Events::REFUSED | Events::CLOSED,
            Unreachable::Soft => Events::UNREACHABLE | Events::CLOSED,
        }
    }

    fn is_in_flight(&self, seq: SeqNum) -> bool {
        let offset = self.snd.offset_of(seq);
        (self.snd.una..self.snd.nxt).contains(&offset)
    }
}

/// IP and TCP header without options.
const HEADERS: u16 = 40;
/// A smaller MTU is not believed (Linux's `min_pmtu`): it would only multiply packets.
const MTU_MIN: u16 = 552;
