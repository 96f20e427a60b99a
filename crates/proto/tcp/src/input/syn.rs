//! What a SYN means on a connection that has one already (RFC 9293 §3.10.7.4 fourth, RFC 5961 §4).

use atoll_base::Instant;
use atoll_wire::tcp::{Flags, Segment};

use crate::connection::Connection;
use crate::outcome::{Events, Input, Reason};
use crate::state::State;

impl Connection {
    /// Handles a SYN within the window: whatever its sequence number, the answer is a challenge ACK. A peer
    /// that has really restarted answers that with a RST.
    pub(super) fn process_syn(&mut self, now: Instant) -> Input {
        Input::answered(Reason::UnexpectedSyn, self.challenge(now))
    }

    /// Returns whether the segment is the SYN-ACK of a simultaneous open (RFC 9293 §3.5, figure 8): the
    /// peer's SYN comes once more, now with the acknowledgement of ours.
    pub(super) fn is_simultaneous_syn_ack(&self, segment: &Segment, seq: i64) -> bool {
        self.state() == State::SynReceived && !self.passive && segment.has(Flags::ACK) && seq == -1
    }

    /// Completes the handshake in SYN-RECEIVED, where the acknowledgement has to be that of our SYN; a
    /// simultaneous open brings it on a SYN-ACK. Fails with the verdict on the segment if it does not fit.
    pub(super) fn complete_handshake(
        &mut self,
        now: Instant,
        segment: &Segment,
        ack: i64,
    ) -> Result<Events, Input> {
        if ack <= self.snd.una || ack > self.snd.nxt {
            let mut input = Input::dropped(Reason::AckHandshake);
            input.events = Events::ANSWER_RESET;
            return Err(input);
        }
        debug_assert!(self.state() == State::SynReceived && segment.has(Flags::ACK));
        Ok(self.enter_established(now))
    }
}
