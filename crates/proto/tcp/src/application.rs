//! What the application may ask for: SEND, RECEIVE, CLOSE and ABORT (RFC 9293 §3.9.1), as positions instead
//! of bytes.

use atoll_base::Instant;

use crate::connection::{Connection, Reader, text_offset};
use crate::pending::Pending;
use crate::state::State;
use crate::timers::Timer;

impl Connection {
    /// Notes that the application's send buffer holds the text `[..tail)`. Repeating a call or going
    /// backwards is harmless; after [`Connection::shutdown_send`] it has no effect. At most 1 GiB can wait:
    /// beyond that `tail` is clipped.
    pub fn handle_send_tail(&mut self, _now: Instant, tail: u64) {
        if self.snd.fin {
            return;
        }
        let limit = self.snd.una.max(0) + WAITING_MAX;
        let tail = i64::try_from(tail).unwrap_or(i64::MAX).min(limit);
        self.snd.tail = self.snd.tail.max(tail);
        if self.rare.is_some() {
            self.release_syn();
        }
    }

    /// Notes that the application has read the text `[..head)`; a window update may become due. Repeating a
    /// call or going backwards is harmless; `head` is clipped to the text received.
    pub fn handle_read_head(&mut self, _now: Instant, head: u64) {
        let head = i64::try_from(head).unwrap_or(i64::MAX).min(self.rcv.text_end());
        self.rcv.head = self.rcv.head.max(head);
        if self.may_update_window() && self.rcv.update_is_due(self.rcv.head, self.options.rcv_scale) {
            self.pending.set(Pending::ACK);
        }
    }

    /// Returns the offset up to which the application has to read before the peer needs a window update;
    /// `None` while the window is open enough. The caller asks the application to report as soon as it has
    /// read so far.
    pub fn receive_read_mark(&self) -> Option<u64> {
        if !self.may_update_window() {
            return None;
        }
        self.rcv.read_mark(self.options.rcv_scale).map(text_offset)
    }

    /// Sets the size of the receive buffer. The advertised right edge never shrinks: a smaller buffer counts
    /// once the window has been used up. Less than four units of the window scale count as four.
    pub fn set_receive_capacity(&mut self, bytes: u32) {
        self.rcv.capacity = bytes.max(4 << self.options.rcv_scale);
        if self.may_update_window() && self.rcv.update_is_due(self.rcv.head, self.options.rcv_scale) {
            self.pending.set(Pending::ACK);
        }
    }

    /// Notes that no more text will be written: a FIN follows what there is (RFC 9293 §3.10.4). Repeating a
    /// call is harmless.
    pub fn shutdown_send(&mut self, _now: Instant) {
        if self.snd.fin {
            return;
        }
        match self.state() {
            // The FIN waits for the handshake; `enter_established` continues from there.
            State::SynSent | State::SynReceived => {
                self.snd.fin = true;
                if self.rare.is_some() {
                    self.release_syn();
                }
            }
            State::Established => {
                self.snd.fin = true;
                self.transition(State::FinWait1);
            }
            State::CloseWait => {
                self.snd.fin = true;
                self.transition(State::LastAck);
            }
            _ => {}
        }
    }

    /// Notes that the application reads no more. As on Linux, text is still taken until the application has
    /// also shut down sending. From then on text is answered by a RST, because the peer has to know that the
    /// text is lost.
    pub fn shutdown_receive(&mut self) {
        if self.reader == Reader::There {
            self.reader = Reader::Deaf;
        }
    }

    /// Returns whether text that arrives would be lost.
    pub(crate) fn wants_no_text(&self) -> bool {
        let sends_no_more = matches!(self.state(), State::FinWait1 | State::FinWait2);
        self.is_orphan() || (self.reader == Reader::Deaf && sends_no_more)
    }

    /// Returns whether the application has closed the connection.
    pub(crate) fn is_orphan(&self) -> bool {
        self.reader == Reader::Gone
    }

    /// Notes that the application is gone: no more text is written or read. Text that still arrives is
    /// answered by a RST (RFC 9293 §3.6.1, SHLD-3), and FIN-WAIT-2 ends after `linger2`. If there is unread
    /// text, call [`Connection::abort`] instead. In SYN-SENT the connection is just forgotten.
    pub fn close(&mut self, now: Instant) {
        self.reader = Reader::Gone;
        match self.state() {
            State::SynSent => self.become_closed(),
            State::FinWait2 => self.timers.arm(Timer::Lifetime, now + self.config.linger2()),
            _ => self.shutdown_send(now),
        }
    }

    /// Ends the connection at once (RFC 9293 §3.10.5): the state is CLOSED afterwards, and the next poll
    /// gives a RST if the state wants one.
    pub fn abort(&mut self) {
        if matches!(
            self.state(),
            State::SynReceived | State::Established | State::FinWait1 | State::FinWait2 | State::CloseWait
        ) {
            self.pending.set(Pending::RESET);
        }
        self.become_closed();
    }

    /// Ends the connection like [`Connection::abort`], but only after the text has left that may leave by
    /// now. A program that closes with unread text, or without lingering, may have written before. On Linux
    /// that text left with the write; here a write and a close may come in one round.
    pub fn abort_after_text(&mut self) {
        if self.state().may_send() && self.snd.nxt < self.snd.tail {
            // There is no buffer for text that still arrives.
            self.reader = Reader::Gone;
            self.pending.set(Pending::RESET);
        } else {
            self.abort();
        }
    }

    /// Returns whether the peer may still send text, and so needs window updates.
    fn may_update_window(&self) -> bool {
        self.state().may_receive() && !self.rcv.fin_received()
    }
}

/// The most octets that may wait to be sent or acknowledged: half of what sequence numbers can distinguish at
/// the largest window.
const WAITING_MAX: i64 = 1 << 30;
