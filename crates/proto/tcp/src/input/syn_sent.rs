//! How the answer to our SYN is handled (RFC 9293 §3.10.7.3).

use atoll_base::{Duration, Instant};
use atoll_wire::tcp::{Flags, Segment};

use crate::connection::Connection;
use crate::outcome::{Events, Input, Reason};
use crate::pending::Pending;
use crate::state::State;
use crate::timers::Timer;

/// Linux's `TCP_DELACK_MAX`.
const ACK_DELAY_SYN: Duration = Duration::from_millis(200);

impl Connection {
    pub(super) fn segment_arrives_in_syn_sent(&mut self, now: Instant, segment: &Segment) -> Input {
        let acked = segment.has(Flags::ACK);
        if acked {
            let ack = self.snd.offset_of(segment.ack);
            if ack <= self.snd.una || ack > self.snd.nxt {
                let mut input = Input::dropped(Reason::AckHandshake);
                input.events = Events::ANSWER_RESET;
                return input;
            }
        }
        if segment.has(Flags::RST) {
            if !acked {
                return Input::dropped(Reason::BlindReset);
            }
            self.become_closed();
            return Input::accepted(None, Events::REFUSED | Events::CLOSED);
        }
        if !segment.has(Flags::SYN) {
            return Input::dropped(Reason::NoAck);
        }
        self.heard_at = now;
        self.take_syn(now, segment);
        if !acked {
            // Simultaneous open: our SYN goes out again, with an ACK.
            self.transition(State::SynReceived);
            self.pending.set(Pending::SYN);
            return Input::accepted(None, Events::empty());
        }
        let ack = self.snd.offset_of(segment.ack);
        self.judge_syn_text(ack);
        // The window counts from the acknowledgement.
        self.snd.edge += ack;
        self.acknowledge_syn(now, segment, ack);
        self.recovery.retries = 0;
        self.progress_at = now;
        let acked = if ack > 0 { Events::ACKED } else { Events::empty() };
        let waits = self.rcv.expects_answers();
        let events = self.enter_established(now) | acked;
        if waits && !self.snd.fin {
            // tcp_rcv_synsent_state_process: with TCP_QUICKACK switched off the ACK waits for text. Health
            // checks reset the connection before, and the server's program hears nothing of it.
            self.timers.arm(Timer::Ack, now + ACK_DELAY_SYN);
        } else {
            self.pending.set(Pending::ACK);
        }
        // Text on a SYN-ACK is ignored, and the peer sends it again: servers answer in segments of their own.
        Input::accepted(None, events)
    }
}
