//! Which text is taken (RFC 9293 §3.10.7.4 seventh).

use atoll_base::Instant;
use atoll_wire::tcp::{Flags, Segment};

use crate::connection::{Connection, text_offset};
use crate::outcome::{Events, Text};
use crate::pending::Pending;
use crate::state::State;

impl Connection {
    /// Returns the part of the segment's text that [`Connection::handle_segment`] would take now, without
    /// changing anything. The caller makes room for it; if there is none, it passes [`Segment::without_text`]
    /// on instead.
    ///
    /// The result may promise too much: a segment that is dropped for another reason (an old timestamp, say)
    /// takes nothing.
    /// nothing.
    pub fn text_range(&self, segment: &Segment) -> Option<Text> {
        let receives = self.state().may_receive() || self.state() == State::SynReceived;
        if segment.len == 0
            || self.wants_no_text()
            || !receives
            || segment.flags.intersects(Flags::SYN | Flags::RST)
        {
            return None;
        }
        let seq = self.rcv.offset_of(segment.seq);
        self.rcv.clip(seq, segment.len).and_then(|range| text_of(seq, range))
    }

    /// Takes the text that fits, and decides when to acknowledge it.
    pub(super) fn process_text(
        &mut self,
        now: Instant,
        segment: &Segment,
        seq: i64,
        events: &mut Events,
    ) -> Option<Text> {
        if segment.len == 0 || !self.state().may_receive() {
            return None;
        }
        let end = seq + i64::from(segment.len);
        if self.wants_no_text() && end > self.rcv.nxt {
            // RFC 9293 §3.6.1 (SHLD-3): no application will read this text, and the peer has to know that it
            // is lost.
            *events |= Events::CLOSED;
            if !self.is_orphan() {
                // As on Linux (tcp_reset), an application that has shut both ways hears of it, too.
                *events |= Events::RESET;
            }
            self.abort();
            return None;
        }
        let Some((left, right)) = self.rcv.clip(seq, segment.len) else {
            *events |= self.acknowledge_useless_text(seq, end);
            return None;
        };
        let nxt = self.rcv.nxt;
        // RFC 2883 §4: this is the first part of the text that was there already.
        let again =
            self.rcv.reassembly.as_ref().and_then(|reassembly| reassembly.ranges.first_within(left, right));
        self.rcv.take(left, right);
        if left > nxt {
            let losses = &mut self.rare.get_or_insert_default().losses;
            losses.out_of_order = losses.out_of_order.saturating_add(1);
        }
        if seq < nxt {
            self.rcv.report_duplicate(seq.max(0), nxt);
        } else if let Some((from, to)) = again {
            self.rcv.report_duplicate(from, to);
        }
        if self.rcv.nxt > nxt {
            *events |= Events::READABLE;
        }
        self.acknowledge_text(now, segment, nxt, left);
        text_of(seq, (left, right))
    }

    /// Handles text of which nothing could be taken: it came twice, or beyond the window. The peer should
    /// know at once.
    fn acknowledge_useless_text(&mut self, seq: i64, end: i64) -> Events {
        self.pending.set(Pending::ACK);
        if end <= self.rcv.nxt {
            self.rcv.report_duplicate(seq.max(0), end);
        } else if let Some(reassembly) = &mut self.rcv.reassembly
            && reassembly.ranges.covers(seq, end)
        {
            // RFC 2883 §4: the range that contains the duplicate is reported next.
            reassembly.touch(seq);
            self.rcv.report_duplicate(seq, end);
        } else if seq < self.rcv.edge.min(self.rcv.fin) {
            return Events::TEXT_REFUSED;
        }
        Events::empty()
    }
}

/// Returns `range` of the text that begins at `seq`, in the caller's offsets.
fn text_of(seq: i64, (left, right): (i64, i64)) -> Option<Text> {
    let skip = u32::try_from(left - seq).ok()?;
    let len = u32::try_from(right - left).ok()?;
    Some(Text { offset: text_offset(left), skip, len })
}
