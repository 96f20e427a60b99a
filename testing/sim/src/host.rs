//! An endpoint: besides its connection, the buffers and an application with a plan.

use std::collections::VecDeque;

use atoll_base::{Instant, Rng};
use atoll_tcp::{Connection, Events, Record, State, TimeWait, TimeWaitAnswer, Verdict};
use atoll_wire::tcp::Segment;

use crate::violation::Violation;

/// The behaviour of an application.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The octets to write before closing.
    pub write: u64,
    /// The size of the send buffer, in octets.
    pub send_buffer: u64,
    /// The most octets read at a time.
    pub read_max: u64,
    /// The probability per million, at each step, that the application does not read although it could.
    pub stall: u32,
    /// The largest super-segment of the link, in octets.
    pub len_max: u32,
    /// Whether the server sometimes finds no room for text out of order.
    pub no_room: u32,
    /// Whether what was read is reported only when asked for (`receive_read_mark`).
    pub lazy_reports: bool,
    /// Whether a connection in TIME-WAIT is replaced by its record.
    pub compact: bool,
    /// The probability per million that the end of what is written at a time is urgent.
    pub urgent: u32,
}

/// One endpoint of a connection.
#[derive(Debug)]
pub struct Host {
    /// The connection; `None` before the first SYN of a passive one.
    pub connection: Option<Connection>,
    /// The record that replaces the connection in TIME-WAIT, if the plan says so.
    pub time_wait: Option<TimeWait>,
    /// The answers of the record of TIME-WAIT that wait to be sent.
    pub answers: VecDeque<Segment>,
    /// All events that have happened.
    pub events: Events,
    plan: Plan,
    /// The salt of the stream that is written, which determines its octets; `salt_in` is that of the stream
    /// read.
    salt_out: u64,
    salt_in: u64,
    written: u64,
    read: u64,
    reported: u64,
    closed: bool,
    /// The end of the urgent text that was written last, as a stream offset.
    pub urgent_end: Option<u64>,
    buffer: Vec<Option<u8>>,
    /// When the application acts again although nothing has happened.
    pub wakes_at: Option<Instant>,
    /// The record that outlives the process that has the connection.
    record: Option<Record>,
}

/// Returns octet `offset` of stream `salt`.
pub fn octet(salt: u64, offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(salt) >> 40) as u8
}

impl Host {
    /// Creates an endpoint that writes stream `salt_out` and expects stream `salt_in`.
    pub fn new(plan: Plan, salt_out: u64, salt_in: u64) -> Host {
        Host {
            connection: None,
            time_wait: None,
            answers: VecDeque::new(),
            events: Events::empty(),
            plan,
            salt_out,
            salt_in,
            written: 0,
            read: 0,
            reported: 0,
            closed: false,
            urgent_end: None,
            buffer: Vec::new(),
            wakes_at: None,
            record: None,
        }
    }

    /// Records the connection. Call before any of its output leaves or is shown to the application.
    pub fn commit(&mut self) {
        self.record = self.connection.as_ref().map(Connection::record);
    }

    /// Simulates that the process with the connection dies, and another one continues with the record. The
    /// buffers and the application live on.
    pub fn crash(&mut self, now: Instant) -> Result<(), Violation> {
        if self.time_wait.is_some() || self.connection.is_none() {
            return Ok(());
        }
        self.connection = None;
        let Some(record) = &self.record else { return Ok(()) };
        let mut connection =
            Connection::resume(now, record, self.read).ok_or_else(|| Violation::Record(Box::new(*record)))?;
        connection.check_invariants();
        connection.handle_send_tail(now, self.written);
        if self.closed {
            connection.shutdown_send(now);
        }
        connection.greet();
        self.connection = Some(connection);
        Ok(())
    }

    /// Returns the largest super-segment of the link, in octets.
    pub fn len_max(&self) -> u32 {
        self.plan.len_max
    }

    /// Returns the size of the send buffer, in octets.
    pub fn send_buffer(&self) -> u64 {
        self.plan.send_buffer
    }

    /// Returns whether the application has closed its side.
    pub fn has_closed(&self) -> bool {
        self.closed
    }

    /// Returns the number of octets read so far.
    pub fn read(&self) -> u64 {
        self.read
    }

    /// Returns whether everything was written, sent and acknowledged, and the peer's stream was read to its
    /// end.
    pub fn is_done(&self, expected: u64) -> bool {
        let acked = self
            .connection
            .as_ref()
            .is_some_and(|c| c.fin_acked() || matches!(c.state(), State::TimeWait | State::Closed));
        self.closed && acked && self.read == expected
    }

    /// Returns the octets of a segment to send.
    pub fn text(&self, offset: u64, len: u32) -> Vec<u8> {
        assert!(offset + u64::from(len) <= self.written, "text that was never written is sent");
        (offset..offset + u64::from(len)).map(|at| octet(self.salt_out, at)).collect()
    }

    /// Handles a segment that arrives.
    pub fn handle(
        &mut self,
        now: Instant,
        rng: &mut Rng,
        segment: &Segment,
        text: &[u8],
    ) -> Result<(), Violation> {
        if let Some(time_wait) = &mut self.time_wait {
            match time_wait.handle_segment(now, segment) {
                TimeWaitAnswer::Ack(answer) => self.answers.push_back(answer),
                TimeWaitAnswer::Drop => {}
                answer => return Err(Violation::TimeWait(answer)),
            }
            return Ok(());
        }
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let mut segment = *segment;
        let range = connection.text_range(&segment);
        if range.is_some() && rng.chance_per_million(self.plan.no_room) {
            segment = segment.without_text();
        }
        let input = connection.handle_segment(now, &segment);
        connection.check_invariants();
        if segment.len > 0 && input.verdict == Verdict::Accepted && input.text != range {
            return Err(Violation::Text { promised: range, taken: input.text });
        }
        if input.events.contains(Events::CHALLENGE) {
            connection.send_challenge();
        }
        self.note(input.events)?;
        let Some(taken) = input.text else { return Ok(()) };
        let (from, to) = (taken.offset as usize, taken.offset as usize + taken.len as usize);
        if self.buffer.len() < to {
            self.buffer.resize(to, None);
        }
        let fresh = &text[taken.skip as usize..taken.skip as usize + taken.len as usize];
        for (slot, octet) in self.buffer[from..to].iter_mut().zip(fresh) {
            *slot = Some(*octet);
        }
        Ok(())
    }

    /// Places the text that came with the SYN into the buffer.
    pub fn place(&mut self, text: &[u8]) {
        self.buffer = text.iter().copied().map(Some).collect();
    }

    /// Notes the events that happened; fails if the connection was aborted.
    pub fn note(&mut self, events: Events) -> Result<(), Violation> {
        self.events |= events;
        if events.intersects(Events::RESET | Events::REFUSED | Events::TIMED_OUT) {
            return Err(Violation::Aborted(events));
        }
        Ok(())
    }

    /// Returns when the connection, or its record in TIME-WAIT, is to be woken.
    pub fn next_timeout(&self) -> Option<Instant> {
        match &self.time_wait {
            Some(time_wait) => Some(time_wait.deadline()),
            None => self.connection.as_ref()?.next_timeout(),
        }
    }

    /// Fires the timers that are due.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), Violation> {
        if self.time_wait.is_some_and(|time_wait| time_wait.deadline() <= now) {
            self.time_wait = None;
        }
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let events = connection.handle_timeout(now);
        connection.check_invariants();
        self.note(events)
    }

    /// Replaces a connection in TIME-WAIT by its record, if the plan says so. Call after polling.
    pub fn compact(&mut self) {
        let wanted = self.plan.compact && self.read == self.buffer.len() as u64;
        if let Some(connection) = self.connection.as_mut().filter(|_| wanted && self.time_wait.is_none()) {
            self.time_wait = connection.time_wait();
            if self.time_wait.is_some() {
                connection.abort();
            }
        }
    }

    /// Lets the application read and write.
    pub fn act(&mut self, now: Instant, rng: &mut Rng, calm: bool) -> Result<(), Violation> {
        self.wakes_at = None;
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let is_early = connection.waits_for_text() || connection.is_open_early();
        if (is_early || !matches!(connection.state(), State::SynSent | State::SynReceived)) && !self.closed {
            let room = (connection.send_una() + self.plan.send_buffer).min(self.plan.write) - self.written;
            let some = if calm { room } else { u64::from(rng.below(room as u32 + 1)) };
            self.written += some;
            connection.handle_send_tail(now, self.written);
            if self.plan.urgent > 0 && some > 0 && rng.chance_per_million(self.plan.urgent) {
                connection.handle_urgent(self.written);
                self.urgent_end = Some(self.written);
            }
            if self.written == self.plan.write {
                self.closed = true;
                connection.shutdown_send(now);
            } else if some < room {
                self.wakes_at = Some(now + core::time::Duration::from_millis(1));
            }
        }
        // The octets were read before the connection asked for them.
        if self.read > self.reported && connection.receive_read_mark().is_some_and(|mark| self.read >= mark) {
            self.reported = self.read;
            connection.handle_read_head(now, self.read);
        }
        let available = connection.receive_nxt() - self.read;
        if available > 0 && !calm && rng.chance_per_million(self.plan.stall) {
            self.wakes_at = Some(now + core::time::Duration::from_millis(u64::from(rng.below(700))));
        } else if available > 0 {
            let some = available.min(self.plan.read_max);
            for at in self.read..self.read + some {
                if self.buffer.get(at as usize).copied().flatten() != Some(octet(self.salt_in, at)) {
                    return Err(Violation::Octet(at));
                }
            }
            self.read += some;
            if some < available {
                self.wakes_at = Some(now + core::time::Duration::from_micros(300));
            }
            let asked = connection.receive_read_mark().is_some_and(|mark| self.read >= mark);
            if !self.plan.lazy_reports || asked || self.read - self.reported > 20_000 {
                self.reported = self.read;
                connection.handle_read_head(now, self.read);
            }
        }
        connection.check_invariants();
        Ok(())
    }
}
