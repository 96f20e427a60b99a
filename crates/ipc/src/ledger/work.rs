//! The work of a server when it died, and the sessions of which servers have died.
//!
//! One word of the header names the writer's current work: its own epoch, the kind of work, and for which
//! connection or session it is. The word is stored when work begins, so that it is there after the death. A
//! table of words counts, for each session, the servers that have died while working for it.

use atoll_base::SessionId;
use zerocopy::TryFromBytes;

use super::{H_SUSPECTS, Ledger};
use crate::layout::{self, numbered, record};
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

/// What the number of a work word is: see [`Work`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
pub(super) enum Kind {
    Nothing = 0,
    Segment = 1,
    Timer = 2,
    Output = 3,
    Adoption = 4,
    Commands = 5,
    Datagrams = 6,
    Opening = 7,
    Cleanup = 8,
    Frame = 9,
    Mesh = 10,
    Offer = 11,
}

numbered!(Kind else Nothing);

record! {
    /// The work word.
    pub(super) struct Word {
        number: u32,
        kind: Kind,
        /// The low octets of the epoch of the incarnation that works.
        epoch: [u8; 3],
    }
}

record! {
    /// A session that servers have died of, and how many; 0 in a place that is free.
    pub(super) struct Suspect {
        session: SessionId,
        deaths: u8; 3 unused,
    }
}

/// Returns the octets of an epoch that a work word has.
const fn low_octets(epoch: u32) -> [u8; 3] {
    let [a, b, c, _] = epoch.to_le_bytes();
    [a, b, c]
}

/// Returns a work word of no kind, to which [`Work::encode`] adds the work of the incarnation.
pub(super) fn owner(epoch: u32) -> u64 {
    layout::word(&Word { number: 0, kind: Kind::Nothing, epoch: low_octets(epoch) })
}

impl Work {
    /// Returns the part of the work word that says what the work is.
    #[inline]
    pub(super) fn encode(self) -> u64 {
        let (kind, number) = match self {
            Work::Nothing => (Kind::Nothing, 0),
            Work::Segment(place) => (Kind::Segment, place),
            Work::Timer(place) => (Kind::Timer, place),
            Work::Output(place) => (Kind::Output, place),
            Work::Adoption(place) => (Kind::Adoption, place),
            Work::Commands(session) => (Kind::Commands, session.0),
            Work::Datagrams(session) => (Kind::Datagrams, session.0),
            Work::Opening(session) => (Kind::Opening, session.0),
            Work::Cleanup(session) => (Kind::Cleanup, session.0),
            Work::Frame => (Kind::Frame, 0),
            Work::Mesh(server) => (Kind::Mesh, server),
            Work::Offer(place) => (Kind::Offer, place),
        };
        layout::word(&Word { number, kind, epoch: [0; 3] })
    }

    /// Returns the work that a word of the incarnation `epoch` names; the word of another incarnation, or an
    /// unknown kind, is nothing.
    pub(super) fn decode(word: u64, epoch: u32) -> Work {
        let word = layout::of_word::<Word>(word).ok().filter(|word| word.epoch == low_octets(epoch));
        let Some(Word { number, kind, .. }) = word else { return Work::Nothing };
        match kind {
            Kind::Nothing => Work::Nothing,
            Kind::Segment => Work::Segment(number),
            Kind::Timer => Work::Timer(number),
            Kind::Output => Work::Output(number),
            Kind::Adoption => Work::Adoption(number),
            Kind::Commands => Work::Commands(SessionId(number)),
            Kind::Datagrams => Work::Datagrams(SessionId(number)),
            Kind::Opening => Work::Opening(SessionId(number)),
            Kind::Cleanup => Work::Cleanup(SessionId(number)),
            Kind::Frame => Work::Frame,
            Kind::Mesh => Work::Mesh(number),
            Kind::Offer => Work::Offer(number),
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
        let word = if deaths == 0 { 0 } else { layout::word(&Suspect { session, deaths }) };
        place.into_iter().for_each(|at| self.memory.store64_release(H_SUSPECTS + at * 8, word));
    }

    fn suspect(&self, at: usize) -> Option<(SessionId, u8)> {
        let word = self.memory.load64(H_SUSPECTS + at * 8);
        let Suspect { session, deaths } = layout::of_word(word).ok()?;
        (deaths > 0).then_some((session, deaths))
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
        assert_eq!(Work::decode(owner(5) | 99 << 32, 5), Work::Nothing);
    }
}
