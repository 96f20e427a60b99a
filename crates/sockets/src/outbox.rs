//! Holds commands for a replica whose ring has no room for them, in order, so that none is lost. The caller
//! decides how long the thread that sends them waits.
//!
//! A ring holds 4096 commands. It fills when a replica is stopped, or when a process sends very many commands
//! at once: for example, a successor gets a command for each of the process's listeners.

use alloc::collections::VecDeque;

use atoll_base::{Duration, Instant};
use atoll_ipc::{Command, Memory};

use crate::port::Port;

/// The time without any command taken after which no thread waits for a replica any more.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Commands for one replica for which its ring had no room, oldest first.
#[derive(Debug, Default)]
pub struct Outbox {
    waiting: VecDeque<Command>,
    /// When the replica was last seen to take a command, or when the outbox was first checked while the ring
    /// was full.
    taken_at: Option<Instant>,
    /// Whether the replica has taken nothing for [`PATIENCE`].
    stalled: bool,
}

/// The state of the commands that were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// All commands are on the ring.
    All,
    /// Some commands were put on the ring, and others wait.
    Some,
    /// The ring is full, and no command was put on it.
    Nothing,
}

impl Outbox {
    /// Creates an empty outbox.
    pub const fn new() -> Outbox {
        Outbox { waiting: VecDeque::new(), taken_at: None, stalled: false }
    }

    /// Sends a command to the replica, after those that wait.
    #[inline]
    pub fn send<M: Memory>(&mut self, port: &mut Port<M>, command: &Command) -> Sent {
        if self.waiting.is_empty() && port.push(command) {
            return Sent::All;
        }
        self.send_later(port, command)
    }

    #[cold]
    fn send_later<M: Memory>(&mut self, port: &mut Port<M>, command: &Command) -> Sent {
        self.keep(command);
        self.fill(port)
    }

    /// Keeps a command for later, after those that wait, because another process uses the ring.
    #[cold]
    pub fn keep(&mut self, command: &Command) {
        self.waiting.push_back(*command);
    }

    /// Moves waiting commands to the ring as far as there is room. If there is none, records at `now` since
    /// when the replica takes nothing.
    pub fn send_waiting<M: Memory>(&mut self, port: &mut Port<M>, now: Instant) -> Sent {
        let sent = self.fill(port);
        if sent == Sent::Nothing {
            self.wait(now);
        }
        sent
    }

    /// Records at `now` since when no command can be sent.
    pub fn wait(&mut self, now: Instant) {
        let since = *self.taken_at.get_or_insert(now);
        self.stalled |= now.since(since) >= PATIENCE;
    }

    /// Moves waiting commands to the ring. If the session is cut off, no replica reads its rings any more,
    /// and all that wait are dropped.
    fn fill<M: Memory>(&mut self, port: &mut Port<M>) -> Sent {
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
        if self.waiting.len() < before || self.waiting.is_empty() {
            // The replica takes commands, so it is worth waiting for again.
            (self.taken_at, self.stalled) = (None, false);
        }
        match self.waiting.len() {
            0 => Sent::All,
            left if left < before => Sent::Some,
            _ => Sent::Nothing,
        }
    }

    /// Returns whether the replica has taken nothing for [`PATIENCE`]. Its commands still go out in order,
    /// but waiting for it would stop a program for as long as the replica is stopped.
    pub const fn has_stalled(&self) -> bool {
        self.stalled
    }

    /// Returns whether no commands wait.
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
            // The replica takes commands more slowly than they come.
            if number % 64 == 0 {
                taken.extend(take(&memory, 16));
            }
        }
        assert!(!outbox.is_empty());
        while !outbox.is_empty() {
            taken.extend(take(&memory, 100));
            assert_ne!(outbox.send_waiting(&mut port, Instant::ZERO), Sent::Nothing);
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
        assert!(
            on_ring <= COMMANDS && sent[on_ring..].iter().all(|sent| *sent == Sent::Nothing),
            "{on_ring}"
        );
        take(&memory, 1);
        // There is room for one: the first that waits, and not this one.
        assert_eq!(outbox.send(&mut port, &kick(COMMANDS + 2)), Sent::Some);
        let taken = take(&memory, usize::MAX);
        assert_eq!(taken, (1..=on_ring).map(kick).collect::<Vec<_>>());
    }

    #[test]
    fn a_replica_has_stalled_after_five_seconds_without_taking_anything_until_it_takes_something() {
        let (memory, mut port) = port();
        let mut outbox = Outbox::new();
        for number in 0..2 * COMMANDS {
            outbox.send(&mut port, &kick(number));
        }
        let at = |seconds: u64| Instant::ZERO + Duration::from_secs(100 + seconds);
        let look = |outbox: &mut Outbox, port: &mut _, seconds| {
            (outbox.send_waiting(port, at(seconds)), outbox.has_stalled())
        };
        assert_eq!(look(&mut outbox, &mut port, 0), (Sent::Nothing, false), "nobody has looked before");
        assert_eq!(look(&mut outbox, &mut port, 4), (Sent::Nothing, false));
        take(&memory, 1);
        assert_eq!(look(&mut outbox, &mut port, 5), (Sent::Some, false), "it took something");
        assert_eq!(look(&mut outbox, &mut port, 6), (Sent::Nothing, false));
        assert_eq!(look(&mut outbox, &mut port, 11), (Sent::Nothing, true));
        assert_eq!((outbox.send(&mut port, &kick(0)), outbox.has_stalled()), (Sent::Nothing, true));
        take(&memory, 1);
        assert_eq!((outbox.send(&mut port, &kick(0)), outbox.has_stalled()), (Sent::Some, false));
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
