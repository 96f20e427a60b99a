//! Asks replicas for the next connection: the naive accept of P4, with a message for each call and an answer.
//!
//! ```text
//! accept        AskConnection{takes} -> CM takes one from its queue -> ConnectionAvailable,
//!                                                                      or ConnectionsWait{no}
//! poll, epoll   AskConnection        ->                                ConnectionsWait{yes or no}
//! asleep                                one arrives              -> ConnectionsWait{yes}, once for each "no"
//! ```

/// The known states of the replicas' queues for one listener; each mask has one bit for each replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asking {
    /// Replicas whose answer is awaited.
    asked: u32,
    /// Replicas that reported an empty queue, and will notify this process of the next connection.
    tells: u32,
    /// Replicas that reported waiting connections.
    waiting: u32,
    /// The replica to ask first.
    turn: u8,
}

/// The next step of accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask this replica for a connection, and wait for its answer.
    Ask(u8),
    /// Wait for an answer that was asked for already.
    Wait,
    /// No replica has a connection.
    Nobody,
}

impl Asking {
    /// Chooses one of `replicas` replicas that accept asks for a connection, and records the question.
    /// `tried` has the replicas that this call of accept has asked, as bits.
    ///
    /// The replicas are asked in turn, so that no process takes more than it accepts.
    pub fn take(&mut self, replicas: u8, tried: &mut u32) -> Next {
        if self.asked != 0 {
            return Next::Wait;
        }
        let in_turn = |of: u32| {
            (0..replicas).map(|n| (self.turn + n) % replicas).find(|replica| of & 1 << replica != 0)
        };
        let Some(replica) = in_turn(self.waiting).or_else(|| in_turn(!*tried)) else { return Next::Nobody };
        self.turn = (replica + 1) % replicas;
        *tried |= 1 << replica;
        self.waiting &= !(1 << replica);
        self.asked = 1 << replica;
        Next::Ask(replica)
    }

    /// Returns the replicas to ask whether connections wait, as bits; poll(2) awaits all answers.
    pub fn look(&mut self, replicas: u8) -> u32 {
        self.ask(all(replicas) & !self.asked)
    }

    /// Returns the replicas to ask before the process sleeps, as bits, so that they notify it of
    /// connections. No answer need be awaited.
    pub fn before_sleep(&mut self, replicas: u8) -> u32 {
        self.ask(all(replicas) & !(self.asked | self.tells | self.waiting))
    }

    fn ask(&mut self, whom: u32) -> u32 {
        self.asked |= whom;
        whom
    }

    /// Notes that a replica reported whether connections wait. `answers` says whether that is the answer to a
    /// question.
    pub fn told(&mut self, replica: u8, waiting: bool, answers: bool) {
        let bit = 1 << (replica & 31);
        self.asked &= !(u32::from(answers) * bit);
        if waiting {
            (self.waiting, self.tells) = (self.waiting | bit, self.tells & !bit);
        } else {
            (self.waiting, self.tells) = (self.waiting & !bit, self.tells | bit);
        }
    }

    /// Notes that a replica gave a connection.
    pub fn given(&mut self, replica: u8) {
        self.asked &= !(1 << (replica & 31));
    }

    /// Forgets the questions and promises of a replica, whose messages may be lost.
    pub fn forget(&mut self, replica: u8) {
        let bit = 1 << (replica & 31);
        (self.asked, self.tells) = (self.asked & !bit, self.tells & !bit);
    }

    /// Stops awaiting answers, though not all have come.
    pub fn give_up(&mut self) {
        (self.asked, self.tells) = (0, 0);
    }

    /// Returns whether all answers have come.
    pub const fn is_answered(&self) -> bool {
        self.asked == 0
    }

    /// Returns whether connections wait, as far as is known.
    pub const fn has_waiting(&self) -> bool {
        self.waiting != 0
    }
}

const fn all(replicas: u8) -> u32 {
    (1 << replicas) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_asks_one_after_another_and_first_those_who_have_some() {
        let (mut asking, mut tried) = (Asking::default(), 0);
        assert_eq!(asking.take(3, &mut tried), Next::Ask(0));
        assert_eq!(asking.take(3, &mut tried), Next::Wait, "one question at a time");
        asking.told(0, false, true);
        asking.told(2, true, false);
        assert!(asking.has_waiting());
        assert_eq!(asking.take(3, &mut tried), Next::Ask(2));
        asking.given(2);
        assert!(!asking.has_waiting());
        // The next call of accept begins.
        let mut tried = 0;
        for replica in [0, 1, 2] {
            assert_eq!(asking.take(3, &mut tried), Next::Ask(replica));
            asking.told(replica, false, true);
        }
        assert_eq!(asking.take(3, &mut tried), Next::Nobody);
    }

    #[test]
    fn a_hint_is_no_answer() {
        let (mut asking, mut tried) = (Asking::default(), 0);
        assert_eq!(asking.take(1, &mut tried), Next::Ask(0));
        asking.told(0, true, false);
        assert!(!asking.is_answered());
        asking.told(0, false, true);
        assert!(asking.is_answered() && !asking.has_waiting());
    }

    #[test]
    fn who_sleeps_is_told_by_all_and_asks_again_only_whom_it_must() {
        let mut asking = Asking::default();
        assert_eq!(asking.look(2), 0b11);
        assert_eq!(asking.look(2), 0, "under way");
        asking.told(0, false, true);
        asking.told(1, false, true);
        assert_eq!(asking.before_sleep(2), 0);
        assert_eq!(asking.look(2), 0b11, "poll asks each time");
        asking.told(0, false, true);
        asking.told(1, true, true);
        assert_eq!(asking.before_sleep(2), 0, "there is something to wake up for");
        // Another thread takes the connection, after which no replica would notify the process.
        assert_eq!(asking.take(2, &mut 0), Next::Ask(1));
        asking.given(1);
        assert_eq!(asking.before_sleep(2), 0b10);
        asking.forget(1);
        assert_eq!(asking.before_sleep(2), 0b10, "the answer may be lost");
    }
}
