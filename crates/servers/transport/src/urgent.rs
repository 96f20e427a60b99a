//! Publishes the mark of urgent text, at which the application's reading stops; see `atoll_tcp`'s urgent.rs.

use atoll_ipc::Memory;
use atoll_ipc::slot::{REPLICA_URGENT, Slot};

use crate::entry::{Entry, Flags};

impl Entry {
    /// Publishes the mark before the tail, so that a program that sees octets beyond the mark sees the mark.
    #[cold]
    pub(crate) fn publish_urgent_mark<M: Memory>(&mut self, slot: &Slot<'_, M>) {
        let Some(mark) = self.connection.receive_mark() else { return };
        slot.set_mark(mark, self.connection.passed_marks());
        self.view.set_flags(REPLICA_URGENT);
        self.flags.insert(Flags::STATE);
    }

    /// Forgets marks that were passed before `head`, up to which the application has read: they mean nothing
    /// any more.
    #[inline]
    pub(crate) fn forget_passed_marks(&mut self, head: u64) {
        if let Some((from, _)) = self.connection.passed_marks()
            && head > from
        {
            self.connection.forget_passed_marks();
            self.flags.insert(Flags::MARK);
        }
    }
}
