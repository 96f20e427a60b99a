//! Puts the text of a segment in its place. Room is made before the TCB takes the text; then it is copied.
//! The buffers are in `receive.rs`.

use atoll_base::Instant;
use atoll_ipc::Memory;
use atoll_tcp::Text;
use atoll_wire::tcp::{self, Segment};

use super::Connections;
use crate::applications::Applications;
use crate::entry::{Flags, Stage};
use crate::receive::PARKED_MAX;

impl Connections {
    /// Makes room for the text of the segment. Returns the segment without the part that found none, and
    /// whether its session is short of memory.
    #[inline]
    pub(crate) fn make_room<M: Memory>(
        &mut self,
        now: Instant,
        index: u32,
        segment: &Segment,
        applications: &Applications<M>,
    ) -> (Segment, bool) {
        let Some(entry) = self.get_mut(index) else { return (*segment, false) };
        let Some(text) = entry.connection.text_range(segment) else { return (*segment, false) };
        let end = text.offset + u64::from(text.len);
        let session = entry.place.and_then(|place| applications.get(place.session));
        let room = match session {
            Some(session) if matches!(entry.stage, Stage::Offered { .. } | Stage::Open(_)) => {
                entry.reserve(now, session, text.offset, end)
            }
            // The text has no reader any more, or has none yet.
            _ => end.min(PARKED_MAX.max(entry.parked_len()) as u64),
        };
        if room >= end {
            return (*segment, false);
        }
        (trimmed(segment, text, room), session.is_some())
    }

    /// Copies what the TCB has taken of `text` to its place.
    #[inline]
    pub(crate) fn place_text<M: Memory>(
        &mut self,
        index: u32,
        taken: Text,
        text: &[u8],
        applications: &Applications<M>,
    ) {
        let Some(entry) = self.get_mut(index) else { return };
        let (skip, len) = (taken.skip as usize, taken.len as usize);
        let Some(bytes) = text.get(skip..skip + len) else { return };
        let session = entry.place.and_then(|place| applications.get(place.session));
        match session {
            Some(session) => {
                if taken.offset > entry.connection.receive_nxt() {
                    // The record is written before the text is acknowledged to the peer.
                    entry.flags.insert(Flags::RECORD);
                }
                let pieces = entry.receive.pieces(taken.offset, len);
                debug_assert!(
                    pieces.is_some(),
                    "room was made for it: {taken:?}, {:?}, {:?}",
                    entry.receive,
                    entry.connection
                );
                if let Some(pieces) = pieces {
                    pieces.write(&session.arena, session.layout.receive_area, bytes);
                }
            }
            None => {
                let Ok(start) = usize::try_from(taken.offset) else { return };
                entry.flags.insert(Flags::RECORD);
                let parked = entry.parked.get_or_insert_default();
                if parked.len() < start + len {
                    parked.resize(start + len, 0);
                }
                parked[start..start + len].copy_from_slice(bytes);
            }
        }
    }

    /// Gives the TCB the application's read position, because a segment with an urgent pointer has come. The
    /// position decides what becomes of the mark before.
    #[cold]
    pub(crate) fn note_reader<M: Memory>(&mut self, index: u32, applications: &Applications<M>) {
        let Some(entry) = self.get_mut(index) else { return };
        let place = entry.place.filter(|_| entry.stage.is_open());
        let slot = place.and_then(|place| applications.slot(place));
        // An application with a false position gets a wrong mark in its own octets.
        entry.connection.note_reader(slot.map_or(0, |slot| slot.receive_head()));
    }

    /// Looks for a buffer that the application has drained.
    pub(crate) fn sweep<M: Memory>(&mut self, index: u32, applications: &Applications<M>) {
        let Some(entry) = self.get_mut(index) else { return };
        let Some(place) = entry.place else { return };
        let Some(session) = applications.get(place.session) else { return };
        let Some(slot) = session.slot(place.slot) else { return };
        let head = slot.receive_head();
        if entry.view.may_have_read(entry.connection.receive_head(), head) {
            entry.release_drained(session, head);
        }
    }
}

/// Returns the segment with its text cut at stream offset `room`. What is cut off counts as lost, and so does
/// the FIN.
fn trimmed(segment: &Segment, text: Text, room: u64) -> Segment {
    let fits = room.saturating_sub(text.offset).min(u64::from(text.len)) as u32;
    if fits == 0 {
        return segment.without_text();
    }
    Segment {
        len: text.skip + fits,
        flags: segment.flags.difference(tcp::Flags::FIN | tcp::Flags::PSH),
        ..*segment
    }
}
