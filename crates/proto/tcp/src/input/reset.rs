//! Whether a RST is believed (RFC 9293 §3.10.7.4 second, RFC 5961 §3).

use atoll_base::Instant;

use crate::connection::Connection;
use crate::outcome::{Events, Input, Reason};
use crate::state::State;

impl Connection {
    /// Handles a RST within the window. It counts only exactly at the left edge; elsewhere the peer is asked
    /// by a challenge ACK.
    pub(super) fn process_reset(&mut self, now: Instant, seq: i64) -> Input {
        if seq != self.rcv.nxt {
            let events = if seq > self.rcv.nxt { self.challenge(now) } else { Events::empty() };
            return Input::answered(Reason::BlindReset, events);
        }
        let events = match self.state() {
            // An active open that met a simultaneous one was refused; a passive one returns to its listener.
            State::SynReceived if !self.passive => Events::REFUSED | Events::CLOSED,
            // Also where both ends have sent all: text may not have been acknowledged. As on Linux, an
            // application that still has the connection hears of it.
            _ => Events::RESET | Events::CLOSED,
        };
        self.become_closed();
        Input::accepted(None, events)
    }
}
