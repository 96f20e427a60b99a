//! What ICMP messages of the network change (RFC 1191, RFC 5461), and how little they are to be believed (RFC
//! 5927).

use core::num::NonZeroU8;

use atoll_base::{Instant, SeqNum};

use crate::connection::Connection;
use crate::outcome::Events;
use crate::pending::Pending;
use crate::state::State;

impl Connection {
    /// Handles "fragmentation needed": the path takes packets of `mtu` octets. The message is ignored unless
    /// `quoted_seq` is in flight (RFC 5927 §4.1) and the segment size really falls. What is in flight is sent
    /// again in smaller segments, at once or when it has timed out. Returns whether the message was believed
    /// at once.
    pub fn handle_mtu(&mut self, now: Instant, mtu: u16, quoted_seq: SeqNum) -> bool {
        let mss = path_mss(mtu);
        if !self.is_in_flight(quoted_seq) {
            return false;
        }
        if self.state() == State::SynSent && self.snd.nxt > 0 {
            // RFC 7413 §4.2.1: the SYN with its text was too large for the path.
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

    /// Notes, before anything is sent, that the path takes only packets of `mtu` octets.
    pub fn limit_path(&mut self, mtu: u16) {
        self.snd.mss_path = self.snd.mss_path.min(path_mss(mtu));
        self.update_mss();
    }

    /// Handles an error that says that the segment with this sequence number was lost: "destination
    /// unreachable", "time exceeded" and others. `reason` is the caller's number of what the error means.
    ///
    /// The error ends a handshake that this end has begun, and with `ends_opening` one that the peer has
    /// begun. An open connection only remembers the error as the likely cause of a later time-out, because
    /// any host that guesses a sequence number could have sent it (RFC 5927 §5.2).
    ///
    /// DEVIATION: RFC 9293 §3.9.2.2 (MUST-56) does not let soft errors end a handshake. Linux does, and
    /// applications expect EHOSTUNREACH quickly (RFC 5461 §4.1 describes the practice).
    pub fn handle_network_error(
        &mut self,
        reason: NonZeroU8,
        quoted_seq: SeqNum,
        ends_opening: bool,
    ) -> Events {
        if !self.is_in_flight(quoted_seq) {
            return Events::empty();
        }
        match self.state() {
            State::SynReceived if self.passive && ends_opening => {
                self.become_closed();
                return Events::CLOSED;
            }
            State::SynReceived if self.passive => {}
            State::SynSent | State::SynReceived => {
                self.snd.network_error = Some(reason);
                self.become_closed();
                return Events::UNREACHABLE | Events::CLOSED;
            }
            _ => {}
        }
        self.note_network_error(reason);
        Events::empty()
    }

    /// Remembers the likely cause of a time-out.
    pub const fn note_network_error(&mut self, reason: NonZeroU8) {
        self.snd.network_error = Some(reason);
    }

    /// Returns the number of the network's last error, unless the peer was heard since.
    pub const fn network_error(&self) -> Option<NonZeroU8> {
        self.snd.network_error
    }

    fn is_in_flight(&self, seq: SeqNum) -> bool {
        let offset = self.snd.offset_of(seq);
        (self.snd.una..self.snd.nxt).contains(&offset)
    }
}

fn path_mss(mtu: u16) -> u16 {
    mtu.max(MTU_MIN) - HEADERS
}

/// The length of IP and TCP headers without options, in octets.
const HEADERS: u16 = 40;
/// The smallest MTU that is believed, in octets (Linux's `min_pmtu`): a smaller one would only multiply
/// packets.
const MTU_MIN: u16 = 552;
