//! Which text is urgent, and how the other end learns of it: RFC 9293 §3.8.5, as RFC 6093 found it in use.
//!
//! Urgent text is part of the stream; what travels beside it is a pointer to where it ends. Programs on Linux
//! know only of its last octet, *the mark*: that is where reading stops, and what `recv(MSG_OOB)` takes out
//! of the stream. A newer pointer takes the older one's place.
//!
//! ```text
//!         una        nxt                             nxt
//!   --------|..........|......|----      -------------|........|X|-------
//!                           snd.up        pointer = snd.up - seq  '-- the mark: pointer - 1
//! ```

use atoll_wire::tcp::{Flags, Segment};

use crate::connection::{Connection, text_offset};
use crate::outcome::{Events, Transmit};

/// The urgent pointers of both directions, as stream offsets.
#[derive(Debug)]
pub(crate) struct Urgent {
    /// SND.UP: the text before this offset is urgent. The value has no meaning once that text is
    /// acknowledged.
    snd_up: i64,
    /// The last octet that the peer called urgent (RCV.UP less one), or [`NO_MARK`].
    mark: i64,
    /// The position of the reader of the stream, as far as the caller has reported it.
    reader: i64,
    /// The octets that were marked when the reader stood before them, and whose mark has moved on: the offset
    /// of the first, and their number.
    passed: (i64, u8),
}

impl Default for Urgent {
    fn default() -> Urgent {
        Urgent { snd_up: -1, mark: NO_MARK, reader: 0, passed: (0, 0) }
    }
}

impl Connection {
    /// Notes that the application calls the text before `end` urgent (MSG_OOB). Repeating a call or going
    /// backwards is harmless; offsets that are acknowledged, or not written yet, are ignored.
    pub fn handle_urgent(&mut self, end: u64) {
        let Ok(end) = i64::try_from(end) else { return };
        if end <= self.snd.una.max(0) || end > self.snd.tail || self.snd.fin {
            return;
        }
        let urgent = &mut self.rare.get_or_insert_default().urgent;
        urgent.snd_up = urgent.snd_up.max(end);
    }

    /// Returns the stream offset of the octet that the peer called urgent last, wherever that octet is: read,
    /// received, or on its way.
    pub fn receive_mark(&self) -> Option<u64> {
        let mark = self.rare.as_ref()?.urgent.mark;
        (mark != NO_MARK).then(|| text_offset(mark))
    }

    /// Notes where the reader of the stream stands. Call this before a segment with URG is handled, because
    /// [`Connection::passed_marks`] depends on it.
    pub fn note_reader(&mut self, head: u64) {
        if let Some(rare) = &mut self.rare {
            rare.urgent.reader = i64::try_from(head).unwrap_or(0);
        }
    }

    /// Returns the octets that were marked when the reader stood before them, and whose mark has moved on:
    /// the offset of the first, and their number. As on Linux, they do not belong to the stream, as if the
    /// mark were still there.
    pub fn passed_marks(&self) -> Option<(u64, u8)> {
        let (from, count) = self.rare.as_ref()?.urgent.passed;
        (count > 0).then(|| (text_offset(from), count))
    }

    /// Forgets the octets of [`Connection::passed_marks`], because the reader is beyond them.
    pub fn forget_passed_marks(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.urgent.passed = (0, 0);
        }
    }

    /// Restores the urgent pointers of a predecessor. The text before `end` is urgent, the peer has called
    /// the octet at `mark` urgent, and the reader stands at `head`, where `passed` marks were passed over.
    pub fn resume_urgent(&mut self, end: u64, mark: Option<u64>, head: u64, passed: u64) {
        let offset = |offset: u64| i64::try_from(offset).ok().filter(|offset| *offset < OFFSET_MAX);
        let end = offset(end).filter(|end| *end > self.snd.una.max(0) && *end <= self.snd.tail);
        let (mark, head) = (mark.and_then(offset), offset(head));
        if end.is_none() && mark.is_none() {
            return;
        }
        let urgent = &mut self.rare.get_or_insert_default().urgent;
        urgent.snd_up = end.unwrap_or(-1);
        urgent.mark = mark.unwrap_or(NO_MARK);
        urgent.reader = head.unwrap_or(0);
        if passed > 0 {
            urgent.passed = (urgent.reader, u8::try_from(passed).unwrap_or(PASSED_MAX).min(PASSED_MAX));
        }
    }

    /// Returns the end of the urgent text that the peer has not acknowledged.
    #[inline]
    pub(crate) fn urgent_end(&self) -> Option<i64> {
        let end = self.rare.as_ref()?.urgent.snd_up;
        (end > self.snd.una).then_some(end)
    }

    /// Handles the urgent pointer of a segment (RFC 9293 §3.10.7.4, sixth): the peer may have moved its
    /// pointer.
    pub(crate) fn process_urgent(&mut self, segment: &Segment, seq: i64) -> Events {
        if !segment.has(Flags::URG) || !self.state().may_receive() {
            return Events::empty();
        }
        // RFC 6093 §2.1: pointers show the octet after the urgent ones (MUST-62), but some peers show the
        // last of them. As on Linux, only a pointer of 0 is read the second way.
        let mark = seq + i64::from(segment.urgent.max(1)) - 1;
        // Text that is in order may have been read already: a mark there would come too late.
        if mark < self.rcv.nxt {
            return Events::empty();
        }
        let urgent = &mut self.rare.get_or_insert_default().urgent;
        if mark <= urgent.mark {
            return Events::empty();
        }
        urgent.pass_mark(self.rcv.nxt);
        urgent.mark = mark;
        // MUST-32: there is urgent text, or more urgent text than before.
        Events::URGENT
    }

    /// Puts the urgent pointer on a segment that leaves, if urgent text ends behind the segment's beginning.
    pub(crate) fn point_to_urgent(&self, transmit: &mut Transmit, end: i64) {
        let segment = &mut transmit.segment;
        if segment.flags.intersects(Flags::SYN | Flags::RST) {
            return;
        }
        let from = self.snd.offset_of(segment.seq);
        let pointer = match u16::try_from(end - from) {
            Ok(0) => return,
            Ok(pointer) => pointer,
            Err(_) if end < from => return,
            // MUST-31: urgent text may be longer than a pointer can say. As on Linux, the segments at the end
            // of what has been sent say that there is more of it.
            Err(_) if from + POINTER_MAX > self.snd.nxt => u16::MAX,
            Err(_) => return,
        };
        segment.flags |= Flags::URG;
        segment.urgent = pointer;
    }
}

impl Urgent {
    /// Prepares for a move of the mark: if the reader stands at the marked octet, and that octet is there, it
    /// is passed over.
    fn pass_mark(&mut self, rcv_nxt: i64) {
        let (from, count) = self.passed;
        let goes_on = count > 0 && self.reader == from;
        let reader = if goes_on { from + i64::from(count) } else { self.reader };
        if self.mark == reader && self.mark < rcv_nxt && (!goes_on || count < PASSED_MAX) {
            self.passed = if goes_on { (from, count + 1) } else { (reader, 1) };
        } else if !goes_on {
            self.passed = (0, 0);
        }
    }
}

/// The most marks in a row that are passed over; octets of further marks are part of the stream.
const PASSED_MAX: u8 = 127;
/// Stands for "no urgent pointer seen".
const NO_MARK: i64 = -1;
const POINTER_MAX: i64 = 65535;
/// Bound on offsets of a predecessor, far from where sums would overflow.
const OFFSET_MAX: i64 = 1 << 60;

#[cfg(test)]
mod tests;
