//! Sessions that have ended while their connections still have data to send. The data is in the sessions'
//! memory, which is kept until no replica, nor the successor of one, has anything to send from it.

use std::collections::{BTreeSet, VecDeque};

/// Sessions that have ended, the oldest first, each with what is kept of it. They are persisted.
#[derive(Clone, Debug, Default)]
pub struct Lingering<M>(VecDeque<Ended<M>>);

#[derive(Clone, Debug)]
struct Ended<M> {
    session: u32,
    kept: M,
    /// Replicas that have not yet reported that the session is over.
    waits_for: BTreeSet<usize>,
}

impl<M> Lingering<M> {
    /// Creates an empty list.
    pub fn new() -> Lingering<M> {
        Lingering(VecDeque::new())
    }

    /// Adds a session that has ended, of which replicas 0 to `replicas - 1` may have connections. If there
    /// are too many, removes and returns the oldest: what it has not sent is lost if its replica dies.
    pub fn ended(&mut self, session: u32, kept: M, replicas: usize) -> Option<u32> {
        self.0.push_back(Ended { session, kept, waits_for: (0..replicas).collect() });
        if self.0.len() > LINGERING_MAX { self.give_up_oldest() } else { None }
    }

    /// Notes that neither a replica nor its successors need the memory of an ended session any more. Returns
    /// whether the session was removed because that was the last replica.
    pub fn over(&mut self, replica: usize, session: u32) -> bool {
        let before = self.0.len();
        self.0.retain_mut(|ended| {
            if ended.session == session {
                ended.waits_for.remove(&replica);
            }
            ended.session != session || !ended.waits_for.is_empty()
        });
        self.0.len() < before
    }

    /// Removes and returns the oldest session, because its memory is needed.
    pub fn give_up_oldest(&mut self) -> Option<u32> {
        self.0.pop_front().map(|oldest| oldest.session)
    }

    /// Returns what is kept of a session.
    pub fn get(&self, session: u32) -> Option<&M> {
        self.0.iter().find(|ended| ended.session == session).map(|ended| &ended.kept)
    }

    /// Returns the sessions that are not over for a replica.
    pub fn at(&self, replica: usize) -> impl Iterator<Item = u32> {
        self.0.iter().filter(move |ended| ended.waits_for.contains(&replica)).map(|ended| ended.session)
    }

    /// Returns all sessions and what is kept of them, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &M)> {
        self.0.iter().map(|ended| (ended.session, &ended.kept))
    }

    /// Returns the number of sessions.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is no session.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The largest number of ended sessions whose memory is kept. The data of further ones is lost if their
/// replica dies: peers decide how long a session lingers, so there must be a limit.
pub const LINGERING_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_over_when_every_replica_has_said_so() {
        let mut lingering = Lingering::new();
        assert_eq!(lingering.ended(7, "memory", 2), None);
        assert_eq!(lingering.ended(8, "other", 2), None);
        assert!(!lingering.over(1, 7) && !lingering.over(1, 7), "twice is once");
        assert_eq!(lingering.at(1).collect::<Vec<_>>(), [8]);
        assert_eq!(lingering.at(0).collect::<Vec<_>>(), [7, 8]);
        assert_eq!(lingering.get(7), Some(&"memory"));
        assert!(lingering.over(0, 7) && lingering.get(7).is_none() && !lingering.over(0, 7));
        assert_eq!(lingering.iter().collect::<Vec<_>>(), [(8, &"other")]);
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let mut lingering = Lingering::new();
        for session in 0..LINGERING_MAX as u32 {
            assert_eq!(lingering.ended(session, (), 1), None);
        }
        assert_eq!(lingering.ended(5000, (), 1), Some(0));
        assert_eq!((lingering.len(), lingering.give_up_oldest()), (LINGERING_MAX, Some(1)));
    }
}
