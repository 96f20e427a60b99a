//! What follows from the peer's FIN (RFC 9293 §3.10.7.4 eighth).

use atoll_base::Instant;

use crate::connection::Connection;
use crate::outcome::Events;
use crate::pending::Pending;
use crate::rcv::NO_FIN;
use crate::state::State;

impl Connection {
    /// Notes a FIN at `fin`, which may be ahead of the text. A FIN beyond the window, or before text that has
    /// been seen, is not believed.
    pub(super) fn note_fin(&mut self, fin: i64) {
        if !self.state().may_receive() {
            // The FIN comes again because our ACK was lost.
            self.pending.set(Pending::ACK);
            return;
        }
        if self.rcv.fin != NO_FIN || fin > self.rcv.edge.max(self.rcv.nxt) || fin < self.rcv.max() {
            return;
        }
        self.rcv.fin = fin;
        if fin > self.rcv.nxt {
            self.pending.set(Pending::ACK);
        }
    }

    /// Acts on the FIN once all text before it has arrived.
    pub(super) fn process_fin(&mut self, now: Instant) -> Events {
        if self.rcv.nxt != self.rcv.fin || !self.state().may_receive() {
            return Events::empty();
        }
        self.rcv.nxt += 1;
        let events = Events::FIN;
        match self.state() {
            State::Established => {
                self.transition(State::CloseWait);
                // The application is likely to close, too: our FIN may carry the acknowledgement.
                self.acknowledge_soon(now);
                events
            }
            State::FinWait1 => {
                self.pending.set(Pending::ACK);
                self.transition(State::Closing);
                events
            }
            State::FinWait2 => {
                self.pending.set(Pending::ACK);
                events | self.enter_time_wait(now)
            }
            _ => events,
        }
    }
}
