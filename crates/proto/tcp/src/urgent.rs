//! What is urgent, and how does the other end learn of it? RFC 9293 §3.8.5, as RFC 6093 found it in use.
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

/// Urgent pointers of both directions, as stream offsets.
#[derive(Debug)]
pub(crate) struct Urgent {
    /// SND.UP: the text before it is urgent. Meaningless once it is acknowledged.
    snd_up: i64,
    /// The last octet that the peer called urgent (RCV.UP less one), or [`NO_MARK`].
    mark: i64,
    /// Where the reader of the stream stands, as far as the caller has told.
    reader: i64,
    /// Marks that the reader stood at when the mark moved on: the first, and how many.
    passed: (i64, u8),
}

impl Default for Urgent {
    fn default() -> Urgent {
        Urgent { snd_up: -1, mark: NO_MARK, reader: 0, passed: (0, 0) }
    }
}

impl Connection {
    /// The application calls the text before `end` urgent (MSG_OOB). Repeating it or going backwards is
    /// harmless; what is acknowledged, or not written yet, is passed over.
    pub fn handle_urgent(&mut self, end: u64) {
        let Ok(end) = i64::try_from(end) else { return };
        if end <= self.snd.una.max(0) || end > self.snd.tail || self.snd.fin {
            return;
        }
        let urgent = &mut self.rare.get_or_insert_default().urgent;
        urgent.snd_up = urgent.snd_up.max(end);
    }

    /// Stream offset of the octet that the peer called urgent last, wherever it is: read, received, or on its
    /// way.
    pub fn receive_mark(&self) -> Option<u64> {
        let mark = self.rare.as_ref()?.urgent.mark;
        (mark != NO_MARK).then(|| text_offset(mark))
    }

    /// Where the reader of the stream stands; to be told before a segment with URG, because of
    /// [`Connection::passed_marks`].
    pub fn note_reader(&mut self, head: u64) {
        if let Some(rare) = &mut self.rare {
            rare.urgent.reader = i64::try_from(head).unwrap_or(0);
        }
    }

    /// Octets that were marked when the reader stood before them, and are no more: the first, and how many.
    /// As on Linux they are none of the stream, as if the mark were still there.
    pub fn passed_marks(&self) -> Option<(u64, u8)> {
        let (from, count) = self.rare.as_ref()?.urgent.passed;
        (count > 0).then(|| (text_offset(from), count))
    }

    /// The reader is beyond them.
    pub fn forget_passed_marks(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.urgent.passed = (0, 0);
        }
    }

    /// Goes on where a predecessor stood: the text before `end` is urgent; the peer has called the octet at
    /// `mark` urgent; the reader stands at `head`, where `passed` marks were passed over.
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

    /// Where the urgent text ends that the peer has not acknowledged.
    #[inline]
    pub(crate) fn urgent_end(&self) -> Option<i64> {
        let end = self.rare.as_ref()?.urgent.snd_up;
        (end > self.snd.una).then_some(end)
    }

    /// RFC 9293 §3.10.7.4 sixth: the peer may have moved its pointer.
    pub(crate) fn process_urgent(&mut self, segment: &Segment, seq: i64) -> Events {
        if !segment.has(Flags::URG) || !self.state().may_receive() {
            return Events::NONE;
        }
        // RFC 6093 §2.1: pointers show the octet after the urgent ones (MUST-62), by some the last of them;
        // like Linux, a pointer of 0 is taken for the latter.
        let mark = seq + i64::from(segment.urgent.max(1)) - 1;
        // What is in order already may have been read: a mark there would come too late.
        if mark < self.rcv.nxt {
            return Events::NONE;
        }
        let urgent = &mut self.rare.get_or_insert_default().urgent;
        if mark <= urgent.mark {
            return Events::NONE;
        }
        urgent.pass_mark(self.rcv.nxt);
        urgent.mark = mark;
        // MUST-32: there is urgent text, or more of it than before.
        Events::URGENT
    }

    /// Puts the pointer on a segment that leaves, if urgent text ends behind its beginning.
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
            // MUST-31: urgent text may be longer than a pointer. As on Linux, the segments at the end of what
            // has been sent tell the peer that there is more of it than they can say.
            Err(_) if from + POINTER_MAX > self.snd.nxt => u16::MAX,
            Err(_) => return,
        };
        segment.flags |= Flags::URG;
        segment.urgent = pointer;
    }
}

impl Urgent {
    /// The mark is about to move: if the reader stands at it, and its octet is there, that octet is passed
    /// over.
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

/// Marks in a row that are passed over; octets of more are part of the stream.
const PASSED_MAX: u8 = 127;
/// Stands for "no urgent pointer seen".
const NO_MARK: i64 = -1;
const POINTER_MAX: i64 = 65535;
/// Far from where sums would overflow.
const OFFSET_MAX: i64 = 1 << 60;

#[cfg(test)]
mod tests;
