//! What if a replica takes commands more slowly than its ring fills? The commands wait here, in their order, and
//! none is lost. How long whoever gives them waits, the caller decides.
//!
//! A ring holds 4096 commands, so this happens when a replica stands still, or when a process gives very many at
//! once: a successor is told of each of its listeners.

use alloc::collections::VecDeque;

use atoll_ipc::{Command, Memory};

use crate::port::Port;

/// Commands for one replica that its ring had no room for, oldest first.
#[derive(Debug, Default)]
pub struct Outbox {
    waiting: VecDeque<Command>,
}

/// What became of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// All are on the ring.
    All,
    /// Some were put on the ring, others wait.
    Some,
    /// The ring is full.
    Nothing,
}

impl Sent {
    /// What became of these commands and those together.
    pub fn and(self, others: Sent) -> Sent {
        match (self, others) {
            (one, Sent::All) | (Sent::All, one) => one,
            (Sent::Nothing, Sent::Nothing) => Sent::Nothing,
            _ => Sent::Some,
        }
    }
}

impl Outbox {
    /// An empty one.
    pub const fn new() -> Outbox {
        Outbox { waiting: VecDeque::new() }
    }

    /// Gives a command to the replica, behind those that wait.
    #[inline]
    pub fn send<M: Memory>(&mut self, port: &mut Port<M>, command: &Command) -> Sent {
        if self.waiting.is_empty() && port.push(command) {
            return Sent::All;
        }
        self.send_later(port, command)
    }

    #[cold]
    fn send_later<M: Memory>(&mut self, port: &mut Port<M>, command: &Command) -> Sent {
        self.waiting.push_back(*command);
        self.send_waiting(port)
    }

    /// Puts as many of those that wait on the ring as it has room for.
    ///
    /// If the session is cut off, no replica reads its rings any more, and those that wait are forgotten.
    pub fn send_waiting<M: Memory>(&mut self, port: &mut Port<M>) -> Sent {
        let before = self.waiting.len();
        while let Some(command) = self.waiting.front() {
            if !port.push(command) {
                break;
            }
            self.waiting.pop_front();
        }
        if !self.waiting.is_empty() && port.is_cut_off() {
            self.waiting.clear();
        }
        match self.waiting.len() {
            0 => Sent::All,
            left if left < before => Sent::Some,
            _ => Sent::Nothing,
        }
    }

    /// Whether none waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;
    use atoll_base::SlotId;
    use atoll_ipc::HeapMemory;
    use atoll_ipc::arena::{ArenaConfig, ArenaLayout, COMMANDS, CUT_OFF};
    use atoll_ipc::ring::Consumer;

    use super::*;

    const LAYOUT: ArenaLayout = ArenaConfig { slots: 16, send_log2: 16, receive_log2: 16 }.layout();

    fn port() -> (HeapMemory, Port<HeapMemory>) {
        let memory = HeapMemory::new(LAYOUT.total);
        (memory.clone(), Port::new(memory, LAYOUT))
    }

    fn kick(number: usize) -> Command {
        Command::Kick { slot: SlotId(0), generation: number as u32 }
    }

    /// Takes up to `count` commands, as the replica does.
    fn take(memory: &HeapMemory, count: usize) -> Vec<Command> {
        let mut consumer = Consumer::resume(memory, LAYOUT.commands, COMMANDS);
        let mut taken = Vec::new();
        while taken.len() < count
            && let Some((_, payload)) = consumer.pop(memory)
        {
            taken.push(Command::decode(&payload).expect("a command"));
        }
        consumer.publish(memory);
        taken
    }

    #[test]
    fn none_is_lost_and_they_stay_in_order_however_slowly_they_are_taken() {
        let (memory, mut port) = port();
        let mut outbox = Outbox::new();
        let (all, mut taken) = (3 * COMMANDS, Vec::new());
        for number in 0..all {
            outbox.send(&mut port, &kick(number));
            // Slower than they come.
            if number % 64 == 0 {
                taken.extend(take(&memory, 16));
            }
        }
        assert!(!outbox.is_empty());
        while !outbox.is_empty() {
            taken.extend(take(&memory, 100));
            assert_ne!(outbox.send_waiting(&mut port), Sent::Nothing);
        }
        taken.extend(take(&memory, usize::MAX));
        assert_eq!(taken, (0..all).map(kick).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_given_later_waits_behind_what_waits_although_there_is_room() {
        let (memory, mut port) = port();
        let mut outbox = Outbox::new();
        let sent: Vec<Sent> = (0..COMMANDS + 2).map(|number| outbox.send(&mut port, &kick(number))).collect();
        let on_ring = sent.iter().filter(|sent| **sent == Sent::All).count();
        assert!(on_ring <= COMMANDS && sent[on_ring..].iter().all(|sent| *sent == Sent::Nothing), "{on_ring}");
        take(&memory, 1);
        // There is room for one: the first that waits, and not this one.
        assert_eq!(outbox.send(&mut port, &kick(COMMANDS + 2)), Sent::Some);
        let taken = take(&memory, usize::MAX);
        assert_eq!(taken, (1..=on_ring).map(kick).collect::<Vec<_>>());
    }

    #[test]
    fn nothing_waits_for_a_session_that_is_cut_off() {
        let (memory, mut port) = port();
        let mut outbox = Outbox::new();
        for number in 0..2 * COMMANDS {
            outbox.send(&mut port, &kick(number));
        }
        assert!(!outbox.is_empty());
        memory.store32(CUT_OFF, 1);
        assert_eq!(outbox.send(&mut port, &kick(0)), Sent::All);
        assert!(outbox.is_empty());
    }
}
