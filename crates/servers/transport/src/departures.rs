//! The processes and sessions that have ended, and what is left to clean up after them. The cleaning itself
//! is in `ending.rs`.

use alloc::collections::VecDeque;

use atoll_base::{Instant, SessionId};
use atoll_ipc::arena::COMMANDS;

/// The most that cleaning up may cost in one round, in the units of [`crate::commands::cost`].
pub(crate) const SLICE: u32 = 2048;

/// The end of a process or a session.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Departure {
    /// One process of a session has ended.
    Member(SessionId, u8),
    /// The last process of a session has ended.
    Session(SessionId),
    /// No process has ended, but the session is cut off.
    CutOff(SessionId),
}

/// The parts of a session that end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Whether the owner has ended: the session's leases and offers end with it.
    pub(crate) owner: bool,
    /// Whether there is no process left.
    pub(crate) all: bool,
    /// Whether servers have died of the session: its sockets are not closed, but reset at both ends.
    pub(crate) is_cut_off: bool,
}

/// The work that is left for a session of which processes have ended.
#[derive(Debug)]
pub(crate) struct Ending {
    /// The number of commands that may have been in the ring at that time.
    commands: usize,
    /// The processes that have ended, a bit each, and are still among the holders of the sockets from `held`
    /// on.
    members: u64,
    held: u32,
    extent: Extent,
    /// The sockets before this one, in the order of [`crate::session::Session::occupied_from`], are done.
    cursor: u32,
    /// When the last slice was.
    at: Instant,
}

impl Ending {
    /// Creates the state of a session of which nothing has ended yet.
    pub(crate) const fn new(now: Instant) -> Ending {
        let extent = Extent { owner: false, all: false, is_cut_off: false };
        Ending { commands: 0, members: 0, held: 0, extent, cursor: 0, at: now }
    }

    /// Adds processes, a bit each, and parts of the session that have ended. Everything is done again from
    /// the start.
    pub(crate) fn extend(&mut self, members: u64, extent: Extent) {
        (self.commands, self.cursor, self.held) = (COMMANDS, 0, 0);
        self.members |= members;
        self.extent.owner |= extent.owner;
        self.extent.all |= extent.all;
        self.extent.is_cut_off |= extent.is_cut_off;
    }

    /// Notes that a command was carried out or, if `any` is false, that there was none.
    pub(crate) const fn note_taken(&mut self, any: bool) {
        self.commands = if any { self.commands.saturating_sub(1) } else { 0 };
    }

    /// Returns whether commands that were sent before may be left.
    pub(crate) const fn has_commands(&self) -> bool {
        self.commands > 0
    }

    /// Begins a slice. Returns what ends; `None` if commands are to be taken first, with those of other
    /// sessions.
    pub(crate) const fn begin_slice(&mut self, now: Instant) -> Option<Extent> {
        self.at = now;
        if self.has_commands() { None } else { Some(self.extent) }
    }

    /// Returns when the last slice was.
    pub(crate) const fn last_slice(&self) -> Instant {
        self.at
    }

    /// Returns the processes that are still among the holders of sockets, and the first of those sockets;
    /// `None` if there are none.
    pub(crate) fn holders(&self) -> Option<(u64, u32)> {
        (self.members != 0).then_some((self.members, self.held))
    }

    /// Notes that these processes hold none of the sockets before this one and, if `is_done`, no others
    /// either.
    pub(crate) const fn released_before(&mut self, cursor: u32, is_done: bool) {
        self.held = cursor;
        if is_done {
            self.members = 0;
        }
    }

    /// Returns the socket at which the clean-up continues.
    pub(crate) const fn cursor(&self) -> u32 {
        self.cursor
    }

    /// Notes that the sockets before this one are done.
    pub(crate) const fn done_before(&mut self, cursor: u32) {
        self.cursor = cursor;
    }
}

/// The sessions of which a process has ended.
#[derive(Debug)]
pub(crate) struct Endings {
    /// The sessions with something left to clean up.
    sessions: VecDeque<u32>,
    /// The ends that came while connections of a predecessor were not continued yet.
    departures: VecDeque<Departure>,
    /// The cost that cleaning up may still have in this round.
    left: u32,
}

impl Endings {
    /// Creates the lists, all empty.
    pub(crate) const fn new() -> Endings {
        Endings { sessions: VecDeque::new(), departures: VecDeque::new(), left: SLICE }
    }

    /// Adds an end.
    pub(crate) fn depart(&mut self, departure: Departure) {
        self.departures.push_back(departure);
    }

    /// Returns the next end for which cleaning up is to begin, and removes it.
    pub(crate) fn next_departure(&mut self) -> Option<Departure> {
        self.departures.pop_front()
    }

    /// Adds the session at this place to those that are to be cleaned up.
    pub(crate) fn push(&mut self, session: u32) {
        self.sessions.push_back(session);
    }

    /// Removes and returns the session that is next.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        self.sessions.pop_front()
    }

    /// Returns the session that is next.
    pub(crate) fn first(&self) -> Option<u32> {
        self.sessions.front().copied()
    }

    /// Returns how many sessions are to be cleaned up.
    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Returns whether there is an end for which cleaning up has not begun.
    pub(crate) fn has_departures(&self) -> bool {
        !self.departures.is_empty()
    }

    /// Returns what cleaning up may still cost in this round.
    pub(crate) const fn left(&self) -> u32 {
        self.left
    }

    /// Sets what cleaning up may still cost in this round.
    pub(crate) const fn set_left(&mut self, left: u32) {
        self.left = left;
    }

    /// Ends the round: the next one has a slice of its own.
    pub(crate) const fn conclude(&mut self) {
        self.left = SLICE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_ends_later_is_cleaned_up_after_from_the_start() {
        let mut ending = Ending::new(Instant::ZERO);
        ending.extend(1 << 3, Extent { owner: true, ..Extent::default() });
        let now = Instant::from_millis(1);
        assert!(ending.has_commands() && ending.begin_slice(now).is_none(), "what it said before counts");
        ending.note_taken(false);
        assert_eq!(ending.begin_slice(now), Some(Extent { owner: true, ..Extent::default() }));
        ending.released_before(10, true);
        ending.done_before(20);
        assert_eq!((ending.holders(), ending.cursor()), (None, 20));
        ending.extend(1 << 4, Extent { all: true, ..Extent::default() });
        assert_eq!((ending.holders(), ending.cursor(), ending.has_commands()), (Some((1 << 4, 0)), 0, true));
        ending.note_taken(false);
        assert_eq!(ending.begin_slice(now), Some(Extent { owner: true, all: true, is_cut_off: false }));
        assert_eq!(ending.last_slice(), now);
    }

    #[test]
    fn cleaning_up_has_a_slice_of_each_round() {
        let mut endings = Endings::new();
        endings.set_left(3);
        endings.push(7);
        endings.push(8);
        assert_eq!((endings.left(), endings.first(), endings.len()), (3, Some(7), 2));
        endings.conclude();
        assert_eq!(
            (endings.left(), endings.pop(), endings.pop(), endings.pop()),
            (SLICE, Some(7), Some(8), None)
        );
        endings.depart(Departure::Session(SessionId(1)));
        assert!(endings.has_departures() && endings.next_departure().is_some() && !endings.has_departures());
    }
}
