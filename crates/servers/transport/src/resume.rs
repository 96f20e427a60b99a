//! Continues connections that were postponed, by the table in `postponed.rs`.

use alloc::vec::Vec;

use atoll_base::{FourTuple, Instant, SlotId};
use atoll_ipc::ledger::Work;
use atoll_ipc::slot::Slot;
use atoll_ipc::{Cause, Command, Memory};

use crate::adopt::Adopted;
use crate::aftermath::Loss;
use crate::session::Occupant;
use crate::transport::Transport;

/// How many connections ahead the slot of one is prefetched.
const AHEAD: usize = 8;

impl<M: Memory> Transport<M> {
    /// Returns when more of them are to be continued.
    pub(crate) fn adopts_at(&self) -> Option<Instant> {
        let looks_at = self.aftermath.is_looking().then_some(Instant::ZERO);
        self.connections.postponed().map(|postponed| postponed.due()).into_iter().chain(looks_at).min()
    }

    /// Continues the connection of this name, because something has arrived for it.
    #[inline]
    pub(crate) fn adopt_named(&mut self, now: Instant, tuple: &FourTuple) {
        if let Some(at) = self.connections.find_postponed_tuple(tuple) {
            self.adopt_waiting(now, at, 1);
        }
    }

    /// Continues the connection that occupies the slot, because something has arrived for it.
    fn adopt_at(&mut self, now: Instant, session: u32, slot: SlotId, generation: u32) {
        if let Some(postponed) = self.connections.postponed()
            && let Occupant::Connection(index) = self.applications.occupant(session, slot, generation)
            && let Some(at) = postponed.at_place(index)
        {
            self.adopt_waiting(now, at, 1);
        }
    }

    /// Continues the connection that a command is about, before the command is carried out.
    pub(crate) fn adopt_for(&mut self, now: Instant, session: u32, command: &Command) {
        match *command {
            Command::Kick { slot, generation }
            | Command::Claim { slot, generation }
            | Command::Close { slot, generation, .. }
            | Command::SetOption { slot, generation, .. }
            | Command::Info { slot, generation, .. } => self.adopt_at(now, session, slot, generation),
            _ => {}
        }
    }

    /// Continues some of them, because there is time.
    pub(crate) fn adopt_some(&mut self, now: Instant) {
        let (count, every) = (self.config.adopt_batch.max(1), self.config.adopt_every);
        let Some(postponed) = self.connections.postponed_mut() else { return };
        if let Some(first) = postponed.begin_batch(now, count, every) {
            self.adopt_waiting(now, first, count);
        }
    }

    /// Continues all of them, because they are needed.
    pub fn adopt_rest(&mut self, now: Instant) {
        if self.connections.postponed().is_some() {
            self.adopt_waiting(now, 0, usize::MAX);
        }
    }

    /// Resets every connection, because the stack is going down: for its peer, and for its application, which
    /// otherwise would take the end of the text for that of the peer. The caller flushes afterwards.
    pub fn abort_all(&mut self, now: Instant) {
        self.adopt_rest(now);
        let all: Vec<u32> = self.connections.iter().map(|(index, _)| index).collect();
        for index in all {
            if let Some(entry) = self.connections.get_mut(index) {
                entry.connection.abort();
                if !entry.stage.is_ended() && entry.cause == Cause::None {
                    entry.cause = Cause::ConnectionReset;
                }
            }
            self.connections.touch(index);
        }
    }

    /// Continues those among `count` connections, from `first` on, that still wait.
    fn adopt_waiting(&mut self, now: Instant, first: usize, count: usize) {
        let Some(mut records) = self.durability.take_records() else { return };
        let Some(mut postponed) = self.connections.take_postponed() else {
            self.durability.set_records(records);
            return;
        };
        let mut adopted = Adopted::default();
        let mut adoption = postponed.adoption();
        let before = records.ledger().work();
        let range = postponed.range(first, count);
        let end = range.end;
        for at in range {
            if let Some(ahead) = postponed.get(at + AHEAD).filter(|_| at + AHEAD < end) {
                let session = self.applications.get(ahead.session);
                session.and_then(|session| session.slot(ahead.slot)).iter().for_each(Slot::prefetch);
            }
            let Some(waiting) = postponed.take(at) else { continue };
            let (index, slot) = (waiting.index, waiting.slot);
            // A server that dies of it must not die of it for ever.
            records.ledger().mark(Work::Adoption(index));
            if let Some(session) = self.applications.get_mut(waiting.session) {
                session.leave(slot);
            }
            let result = match records.ledger().connection_again(index) {
                Some(record) => {
                    self.judge(now).adopt_record(&mut records, index, &record, None, &mut adopted)
                }
                None => Err(Loss::Unreadable),
            };
            if let Err(why) = result {
                self.connections.give_back_name(&waiting.name);
                adoption.kept -= 1;
                adoption.lose(why);
            }
            self.connections.free_if_vacant(index);
            if let Some(session) = self.applications.get_mut(waiting.session) {
                session.settle(slot);
            }
        }
        postponed.set_adoption(adoption);
        let concerned = adopted.note(&mut records);
        self.durability.set_records(records);
        self.connections.put_back_postponed(postponed);
        self.tell_adoption(adoption);
        self.go_on(now, concerned);
        // The work that needed them continues.
        self.durability.mark(before);
    }
}
