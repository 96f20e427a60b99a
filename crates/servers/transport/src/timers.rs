//! The timers of connections. A round handles only some of those that have fired: the others come first in
//! the next.

use alloc::collections::VecDeque;

use atoll_base::{Instant, TimerId, Wheel};

/// The timers of all connections.
#[derive(Debug)]
pub(crate) struct Timers {
    wheel: Wheel,
    /// The timers that were due at `fired_at`, and for which that round had no time.
    fired: VecDeque<TimerId>,
    fired_at: Instant,
}

/// The most timers that are handled in one round.
const TIMERS_MAX: usize = 512;
/// The precision of timers is about a millisecond: the tick is 2^20 ns.
const TICK_SHIFT: u32 = 20;

impl Timers {
    /// Creates timers of which none is armed.
    pub(crate) fn new(now: Instant) -> Timers {
        Timers { wheel: Wheel::new(TICK_SHIFT, now), fired: VecDeque::new(), fired_at: now }
    }

    /// Arms a timer, or moves it.
    #[inline]
    pub(crate) fn arm(&mut self, id: TimerId, due: Instant) {
        self.wheel.arm(id, due);
    }

    /// Disarms a timer. One that has fired stays among those to be handled.
    pub(crate) fn cancel(&mut self, id: TimerId) {
        self.wheel.cancel(id);
    }

    /// Lets the timers fire that are due. Returns how many are to be handled in this round, with
    /// [`Timers::pop`].
    #[inline]
    pub(crate) fn expire(&mut self, now: Instant) -> usize {
        self.wheel.expire(now, |id| self.fired.push_back(id));
        // Thousands of connections of one session may have their timers at one moment.
        self.fired.len().min(TIMERS_MAX)
    }

    /// Returns the next timer to be handled.
    pub(crate) fn pop(&mut self) -> Option<TimerId> {
        self.fired.pop_front()
    }

    /// Ends the round, which has handled those for which it had time.
    pub(crate) const fn conclude(&mut self, now: Instant) {
        self.fired_at = now;
    }

    /// Returns whether the round had no time for all that have fired.
    pub(crate) fn is_behind(&self) -> bool {
        !self.fired.is_empty()
    }

    /// Returns when the next timer is due; a past moment if some are left from the last round.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let late = self.is_behind().then_some(self.fired_at);
        self.wheel.next_expiry().into_iter().chain(late).min()
    }

    /// Returns whether no timer is armed.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.wheel.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_handles_some_and_the_next_goes_on() {
        let mut timers = Timers::new(Instant::ZERO);
        let due = Instant::from_millis(10);
        (0..600).for_each(|n| timers.arm(TimerId(n), due));
        assert_eq!(timers.expire(Instant::from_millis(5)), 0);
        let now = Instant::from_millis(20);
        let count = timers.expire(now);
        assert_eq!(count, TIMERS_MAX);
        assert_eq!((0..count).filter_map(|_| timers.pop()).count(), TIMERS_MAX);
        timers.conclude(now);
        assert!(timers.is_behind());
        assert_eq!(timers.next_timeout(), Some(now), "the next round is due at once");
        assert_eq!(timers.expire(now), 600 - TIMERS_MAX);
        while timers.pop().is_some() {}
        assert_eq!((timers.is_behind(), timers.next_timeout()), (false, None));
    }
}
