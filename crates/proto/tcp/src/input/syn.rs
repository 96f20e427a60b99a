//! What does a SYN mean on a connection that has one already? RFC 9293 §3.10.7.4 fourth, RFC 5961 §4.

use atoll_base::Instant;
use atoll_wire::tcp::{Flags, Segment};

use crate::connection::Connection;
use crate::outcome::{Events, Input, Reason};
use crate::state::State;

impl Connection {
    /// A SYN within the window: whatever its sequence number, the answer is a challenge ACK. A peer that has really restarted answers that
    /// with a RST.
    pub(super) fn process_syn(&mut self, now: Instant, _seq: i64) -> Input {
        self.challenge(now);
        Input::dropped(Reason::UnexpectedSyn)
    }

    /// In SYN-RECEIVED the acknowledgement has to be that of our SYN; a simultaneous open brings it on a SYN-ACK.
    pub(super) fn complete_handshake(&mut self, now: Instant, segment: &Segment, ack: i64) -> Result<Events, Input> {
        if ack <= self.snd.una || ack > self.snd.nxt {
            let mut input = Input::dropped(Reason::AckHandshake);
            input.events = Events::ANSWER_RESET;
            return Err(input);
        }
        debug_assert!(self.state() == State::SynReceived && segment.has(Flags::ACK));
        self.snd.window_max = u32::from(segment.window) << self.options.snd_scale;
        Ok(self.enter_established(now))
    }
}
