//! What does an application get to see of urgent text? The mark, at which its reading stops; see `atoll_tcp`'s urgent.rs.

use atoll_ipc::Memory;
use atoll_ipc::slot::{REPLICA_URGENT, Slot};

use crate::entry::{Entry, Flags};
use crate::transport::Transport;

impl<M: Memory> Transport<M> {
    /// A segment with an urgent pointer has come: where the application stands decides what becomes of the mark before.
    #[cold]
    pub(crate) fn note_reader(&mut self, index: u32) {
        let Some(entry) = self.entries.get_mut(index) else { return };
        let place = entry.place.filter(|_| entry.stage.is_open());
        let session = place.and_then(|place| self.sessions.get(place.session as usize)?.as_ref());
        let slot = session.zip(place).and_then(|(session, place)| session.slot(place.slot));
        // An application that lies is told nonsense about its own octets.
        entry.connection.note_reader(slot.map_or(0, |slot| slot.receive_head()));
    }
}

impl Entry {
    /// Before the tail is published: who sees octets beyond the mark sees the mark.
    #[cold]
    pub(crate) fn publish_urgent_mark<M: Memory>(&mut self, slot: &Slot<'_, M>) {
        let Some(mark) = self.connection.receive_mark() else { return };
        slot.set_mark(mark, self.connection.passed_marks());
        self.replica_flags |= REPLICA_URGENT;
        self.flags.set(Flags::STATE);
    }

    /// The application has read up to `head`: marks that were passed before it mean nothing any more.
    #[inline]
    pub(crate) fn forget_passed_marks(&mut self, head: u64) {
        if let Some((from, _)) = self.connection.passed_marks()
            && head > from
        {
            self.connection.forget_passed_marks();
            self.flags.set(Flags::MARK);
        }
    }
}
