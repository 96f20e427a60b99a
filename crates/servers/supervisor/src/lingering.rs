//! Which sessions have ended and are not over? What their connections have still to send lies in their
//! memory, so that stays until no replica, nor the successor of one, has anything to send from it.

use std::collections::{BTreeSet, VecDeque};

/// Sessions that have ended, the oldest first, and what is kept of each. Persisted.
#[derive(Clone, Debug, Default)]
pub struct Lingering<M>(VecDeque<Ended<M>>);

#[derive(Clone, Debug)]
struct Ended<M> {
    session: u32,
    kept: M,
    /// Replicas that have not said that it is over.
    waits_for: BTreeSet<usize>,
}

impl<M> Lingering<M> {
    /// No session has ended yet.
    pub fn new() -> Lingering<M> {
        Lingering(VecDeque::new())
    }

    /// A session has ended, of which so many replicas may have connections. Returns the oldest one, if there
    /// are too many: what it has not sent is lost if its replica dies.
    pub fn ended(&mut self, session: u32, kept: M, replicas: usize) -> Option<u32> {
        self.0.push_back(Ended { session, kept, waits_for: (0..replicas).collect() });
        if self.0.len() > LINGERING_MAX { self.give_up_oldest() } else { None }
    }

    /// A replica needs the memory of an ended session no more, nor will its successors. Returns whether that
    /// was the last one.
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

    /// Forgets the oldest one, because what it takes is needed.
    pub fn give_up_oldest(&mut self) -> Option<u32> {
        self.0.pop_front().map(|oldest| oldest.session)
    }

    /// What is kept of a session.
    pub fn get(&self, session: u32) -> Option<&M> {
        self.0.iter().find(|ended| ended.session == session).map(|ended| &ended.kept)
    }

    /// Those that are not over for a replica.
    pub fn at(&self, replica: usize) -> impl Iterator<Item = u32> {
        self.0.iter().filter(move |ended| ended.waits_for.contains(&replica)).map(|ended| ended.session)
    }

    /// All, and what is kept of them, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &M)> {
        self.0.iter().map(|ended| (ended.session, &ended.kept))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Sessions that have ended whose memory is kept. Of one beyond that, what has not been sent is lost if its
/// replica dies: their number is up to their peers.
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
