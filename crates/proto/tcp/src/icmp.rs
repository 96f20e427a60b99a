//! What do the network's own messages change? RFC 1191, RFC 5461, and RFC 5927 for how little they are to be
//! believed.

use atoll_base::{Instant, SeqNum};

use crate::connection::Connection;
use crate::outcome::Events;
use crate::pending::Pending;
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
    /// "Fragmentation needed": the way takes packets of `mtu` octets. Ignored unless `quoted_seq` is in
    /// flight (RFC 5927 §4.1) and the segment size really falls; what is in flight is sent again in smaller
    /// segments, at once or when it has timed out. Returns whether it was believed at once.
    pub fn handle_mtu(&mut self, now: Instant, mtu: u16, quoted_seq: SeqNum) -> bool {
        let mss = path_mss(mtu);
        if !self.is_in_flight(quoted_seq) {
            return false;
        }
        if self.state() == State::SynSent && self.snd.nxt > 0 {
            // RFC 7413 §4.2.1: the SYN was too large for the way with its text.
            self.limit_path(mtu);
            self.pending.set(Pending::SYN);
            return true;
        }
        let offset = self.snd.offset_of(quoted_seq);
        if mss >= self.snd.mss_path {
            self.limit_search(mss, offset);
            return false;
        }
        self.hear_claim(now, mss, offset)
    }

    /// Before anything was sent: the way is known to take packets of `mtu` octets only.
    pub fn limit_path(&mut self, mtu: u16) {
        self.snd.mss_path = self.snd.mss_path.min(path_mss(mtu));
        self.update_mss();
    }

    /// "Destination unreachable". Ends a handshake at once; an open connection only remembers it as the
    /// likely cause of a later time-out, because anybody who guesses a sequence number could have sent it
    /// (RFC 5927 §5.2).
    ///
    /// DEVIATION: RFC 9293 §3.9.2.2 (MUST-56) does not let soft errors end a handshake. Linux does, and
    /// applications expect to hear EHOSTUNREACH quickly (RFC 5461 §4.1 describes the practice).
    pub fn handle_unreachable(&mut self, _now: Instant, kind: Unreachable, quoted_seq: SeqNum) -> Events {
        if !self.is_in_flight(quoted_seq) {
            return Events::NONE;
        }
        if self.state() != State::SynSent {
            self.snd.unreachable = true;
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

fn path_mss(mtu: u16) -> u16 {
    mtu.max(MTU_MIN) - HEADERS
}

/// IP and TCP header without options.
const HEADERS: u16 = 40;
/// A smaller MTU is not believed (Linux's `min_pmtu`): it would only multiply packets.
const MTU_MIN: u16 = 552;
