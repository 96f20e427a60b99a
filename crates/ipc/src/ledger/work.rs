//! The work of a server when it died, and the sessions of which servers have died.
//!
//! One word of the header names the writer's current work: its own epoch, the kind of work, and for which
//! connection or session it is. The word is stored when work begins, so that it is there after the death. A
//! table of words counts, for each session, the servers that have died while working for it.

use atoll_base::SessionId;

use super::{H_SUSPECTS, Ledger};
use crate::memory::Memory;

/// The work of a server, and for which connection or session it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Work {
    /// The work belongs to no connection or session.
    #[default]
    Nothing,
    /// A segment that has come for the connection at this place.
    Segment(u32),
    /// A timer of the connection at this place.
    Timer(u32),
    /// The output of the connection at this place, to its peer and its application.
    Output(u32),
    /// Making the connection at this place of its record.
    Adoption(u32),
    /// Commands of a session, and what they cause at once.
    Commands(SessionId),
    /// Datagrams that a session sends, or that have come for it.
    Datagrams(SessionId),
    /// Opening the memory of a session, and reading its slots.
    Opening(SessionId),
    /// Cleaning up behind a session, or a member of one, that has ended.
    Cleanup(SessionId),
    /// A frame that no connection is known for: IP, neighbours, DHCP, datagrams, SYNs.
    Frame,
    /// A record or a message of the server with this number.
    Mesh(u32),
    /// Offering the connection at this place to an application.
    Offer(u32),
}

/// The maximum number of sessions for which deaths are counted.
pub const SUSPECTS_MAX: usize = 64;

const KIND_SHIFT: u32 = 32;
const EPOCH_SHIFT: u32 = 40;

/// Returns the bits that name the incarnation that works.
pub(super) const fn owner(epoch: u32) -> u64 {
    (epoch as u64) << EPOCH_SHIFT
}

impl Work {
    pub(super) const fn encode(self) -> u64 {
        let (kind, number) = match self {
            Work::Nothing => (0, 0),
            Work::Segment(place) => (1, place),
            Work::Timer(place) => (2, place),
            Work::Output(place) => (3, place),
            Work::Adoption(place) => (4, place),
            Work::Commands(session) => (5, session.0),
            Work::Datagrams(session) => (6, session.0),
            Work::Opening(session) => (7, session.0),
            Work::Cleanup(session) => (8, session.0),
            Work::Frame => (9, 0),
            Work::Mesh(server) => (10, server),
            Work::Offer(place) => (11, place),
        };
        (kind as u64) << KIND_SHIFT | number as u64
    }

    /// Returns the work that a word of the incarnation `epoch` names; the word of another incarnation, or an
    /// unknown kind, is nothing.
    pub(super) const fn decode(word: u64, epoch: u32) -> Work {
        if word >> EPOCH_SHIFT != owner(epoch) >> EPOCH_SHIFT {
            return Work::Nothing;
        }
        // Cannot truncate: the shifts leave 8 and 32 bits.
        let (kind, number) = ((word >> KIND_SHIFT) as u8, word as u32);
        match kind {
            1 => Work::Segment(number),
            2 => Work::Timer(number),
            3 => Work::Output(number),
            4 => Work::Adoption(number),
            5 => Work::Commands(SessionId(number)),
            6 => Work::Datagrams(SessionId(number)),
            7 => Work::Opening(SessionId(number)),
            8 => Work::Cleanup(SessionId(number)),
            9 => Work::Frame,
            10 => Work::Mesh(number),
            11 => Work::Offer(number),
            _ => Work::Nothing,
        }
    }

    /// Returns the place of the connection that the work was for, if it was for one: a segment or a timer of
    /// its own, its output, its offer, or its record.
    pub const fn connection(self) -> Option<u32> {
        match self {
            Work::Segment(place)
            | Work::Timer(place)
            | Work::Output(place)
            | Work::Adoption(place)
            | Work::Offer(place) => Some(place),
            _ => None,
        }
    }

    /// Returns the session that has caused the work, if one has. (Not that of a connection: its peer may be
    /// the cause as well.)
    pub const fn session(self) -> Option<SessionId> {
        match self {
            Work::Commands(session)
            | Work::Datagrams(session)
            | Work::Opening(session)
            | Work::Cleanup(session) => Some(session),
            _ => None,
        }
    }
}

impl<M: Memory> Ledger<M> {
    /// Returns the sessions of which servers have died, and how often.
    pub fn suspects(&self) -> impl Iterator<Item = (SessionId, u8)> + '_ {
        (0..SUSPECTS_MAX).filter_map(|at| self.suspect(at))
    }

    /// Sets the number of servers that have died of the session, with a single store; 0 removes the session.
    /// If the table is full, the least suspicious entry is replaced.
    pub fn set_deaths(&self, session: SessionId, deaths: u8) {
        let known = (0..SUSPECTS_MAX).find(|at| self.suspect(*at).is_some_and(|(other, _)| other == session));
        let place = match known {
            None if deaths == 0 => return,
            Some(at) => Some(at),
            None => (0..SUSPECTS_MAX).min_by_key(|at| self.suspect(*at).map_or(0, |(_, deaths)| deaths)),
        };
        let word = if deaths == 0 { 0 } else { u64::from(deaths) << KIND_SHIFT | u64::from(session.0) };
        place.into_iter().for_each(|at| self.memory.store64_release(H_SUSPECTS + at * 8, word));
    }

    fn suspect(&self, at: usize) -> Option<(SessionId, u8)> {
        let word = self.memory.load64(H_SUSPECTS + at * 8);
        // Cannot truncate: the shifts leave 8 and 32 bits.
        let deaths = (word >> KIND_SHIFT) as u8;
        (deaths > 0).then_some((SessionId(word as u32), deaths))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_what_the_work_was_to_the_next_incarnation_alone() {
        let id = SessionId(u32::MAX);
        let all = [
            Work::Nothing,
            Work::Segment(u32::MAX),
            Work::Timer(0),
            Work::Output(7),
            Work::Adoption(1),
            Work::Commands(id),
            Work::Datagrams(SessionId(1)),
            Work::Opening(SessionId(2)),
            Work::Cleanup(SessionId(3)),
            Work::Frame,
            Work::Mesh(63),
            Work::Offer(9),
        ];
        for work in all {
            let word = owner(5) | work.encode();
            assert_eq!(Work::decode(word, 5), work);
            assert_eq!(Work::decode(word, 6), Work::Nothing, "{work:?} of another one");
            assert!(work.connection().is_none() || work.session().is_none());
        }
        assert_eq!(Work::decode(owner(5) | 99 << KIND_SHIFT, 5), Work::Nothing);
    }
}
