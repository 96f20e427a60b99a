//! What may it cost a replica to ring the sessions' bells? Whoever rings walks past everything that hangs on the bell, and a program may hang on
//! its own as much as it likes: twenty thousand entries of epoll take a millisecond, which all others wait for.
//!
//! ```text
//!   rings of a round take longer than they should   -> in the next rounds each is measured, in time of the processor
//!   the ring of a session is slow                    -> that session is rung in turns with others of its kind, between which the replica does
//!                                                       twenty times as long what others want
//! ```
//! So programs of that kind, all together, have a twentieth of the replica's time. They are woken late, and nobody else is.

use std::collections::{BTreeMap, VecDeque};

use atoll_base::{Duration, Instant, SessionId};
use atoll_sys::Clock;

/// Rings the bells of sessions.
pub struct Ringer {
    clock: Clock,
    /// In so many rounds more each ring is measured.
    measured_rounds: u32,
    slow: BTreeMap<SessionId, Slow>,
    /// Slow sessions that are to be rung, in their order.
    turns: VecDeque<SessionId>,
    /// When the next one has its turn.
    due: Instant,
    /// When the rings of this round began, and how many there were.
    round: Option<(Instant, u32)>,
}

struct Slow {
    /// A session that is not slow any more is treated as others are from then on.
    until: Instant,
    /// Bells that are to be rung.
    bells: u32,
}

impl Ringer {
    /// One that knows nobody.
    pub fn new(clock: Clock) -> Ringer {
        let (slow, turns, due) = (BTreeMap::new(), VecDeque::new(), Instant::ZERO);
        Ringer { clock, measured_rounds: 0, slow, turns, due, round: None }
    }

    /// Rings a bell by `act`, unless the session has to wait for its turn.
    pub fn ring(&mut self, session: SessionId, bell: u32, act: impl FnOnce()) {
        if let Some(slow) = self.slow.get_mut(&session) {
            if slow.bells == 0 {
                self.turns.push_back(session);
            }
            slow.bells |= 1 << (bell % u32::BITS);
            return;
        }
        let clock = self.clock;
        let (_, count) = self.round.get_or_insert_with(|| (clock.now(), 0));
        *count += 1;
        if self.measured_rounds == 0 {
            return act();
        }
        let cost = measured(act);
        if cost >= SLOW {
            let now = clock.now();
            self.slow.insert(session, Slow { until: now + FORGOTTEN_AFTER, bells: 0 });
            self.rest(now, cost);
        }
    }

    /// Ends a round: slow sessions whose turn it is are rung by `act`. Returns how many bells were rung.
    pub fn end_round(&mut self, mut act: impl FnMut(SessionId, u32)) -> u64 {
        let mut rung = 0;
        if let Some((began, count)) = self.round.take() {
            rung += u64::from(count);
            let usual = ROUND_USUAL + RING_USUAL.saturating_mul(count);
            self.measured_rounds = match self.clock.now().since(began) > usual {
                true => MEASURED_ROUNDS,
                false => self.measured_rounds.saturating_sub(1),
            };
        }
        while !self.turns.is_empty() {
            let now = self.clock.now();
            if now < self.due {
                break;
            }
            let Some(session) = self.turns.pop_front() else { break };
            let Some(slow) = self.slow.get_mut(&session) else { continue };
            let bell = slow.bells.trailing_zeros();
            slow.bells &= slow.bells.saturating_sub(1);
            let cost = measured(|| act(session, bell));
            rung += 1;
            if slow.bells != 0 {
                self.turns.push_back(session);
            }
            if cost >= SLOW {
                slow.until = now + FORGOTTEN_AFTER;
            } else if slow.bells == 0 && now >= slow.until {
                self.slow.remove(&session);
            }
            self.rest(self.clock.now(), cost);
        }
        rung
    }

    /// The session has ended.
    pub fn forget(&mut self, session: SessionId) {
        self.slow.remove(&session);
        self.turns.retain(|waiting| *waiting != session);
    }

    /// When somebody has his turn.
    pub fn next_timeout(&self) -> Option<Instant> {
        (!self.turns.is_empty()).then_some(self.due)
    }

    fn rest(&mut self, now: Instant, cost: Duration) {
        self.due = self.due.max(now) + cost.saturating_mul(SHARE);
    }
}

/// What it costs this thread, without what others do on the processor meanwhile.
fn measured(act: impl FnOnce()) -> Duration {
    let before = atoll_sys::processor_time();
    act();
    atoll_sys::processor_time().saturating_sub(before)
}

/// A ring that takes so long has more to wake than a program has use for. One that wakes another processor in a virtual machine takes 12 us.
const SLOW: Duration = Duration::from_micros(50);
/// The rest of the time is so many times as long as what slow rings take.
const SHARE: u32 = 20;
/// How long somebody is slow after a slow ring.
const FORGOTTEN_AFTER: Duration = Duration::from_millis(1000);
/// What the rings of a round take that nobody wonders about, and one of them.
const ROUND_USUAL: Duration = Duration::from_micros(30);
const RING_USUAL: Duration = Duration::from_micros(15);
const MEASURED_ROUNDS: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so much time of the processor.
    fn work(time: Duration) {
        let begin = atoll_sys::processor_time();
        while atoll_sys::processor_time() - begin < time {}
    }

    const HOSTILE: SessionId = SessionId(1);
    const HONEST: SessionId = SessionId(2);

    #[test]
    fn who_is_slow_to_ring_has_a_twentieth_of_the_time_and_others_do_not_wait() {
        let mut ringer = Ringer::new(Clock::kernel());
        let (begin, mut spent, mut heard, mut rounds) = (Clock::kernel().now(), 0, [0, 0], 0);
        while Clock::kernel().now().since(begin) < Duration::from_millis(400) {
            rounds += 1;
            let slowly = Duration::from_millis(1);
            // Two of the kind: they share.
            for session in [HOSTILE, SessionId(3)] {
                ringer.ring(session, 3, || {
                    work(slowly);
                    spent += 1;
                });
            }
            ringer.ring(HONEST, 5, || heard[0] += 1);
            ringer.end_round(|session, bell| {
                assert!(session != HONEST && bell == 3);
                work(slowly);
                spent += 1;
                heard[1] += 1;
            });
        }
        assert_eq!(heard[0], rounds, "the other one is rung at once, always");
        // 400 ms are 19 turns and those until it was known; there may be fewer where others use the processor.
        assert!(heard[1] >= 2 && spent <= 4 * 2 + 20, "{spent} {heard:?} {rounds}");
        ringer.forget(HOSTILE);
        ringer.forget(SessionId(3));
        assert_eq!(ringer.next_timeout(), None);
    }

    #[test]
    fn who_is_slow_is_rung_later_and_forgiven() {
        let mut ringer = Ringer::new(Clock::kernel());
        ringer.ring(HOSTILE, 0, || work(Duration::from_millis(1)));
        ringer.end_round(|_, _| unreachable!());
        ringer.ring(HOSTILE, 0, || work(Duration::from_millis(1)));
        // It waits from now on, and is told when.
        ringer.ring(HOSTILE, 1, || unreachable!());
        ringer.ring(HOSTILE, 4, || unreachable!());
        assert!(ringer.next_timeout().is_some());
        let (mut rung, clock) = (Vec::new(), Clock::kernel());
        let deadline = clock.now() + Duration::from_millis(20_000);
        while rung.len() < 2 && clock.now() < deadline {
            ringer.end_round(|session, bell| rung.push((session, bell)));
        }
        assert_eq!(rung, [(HOSTILE, 1), (HOSTILE, 4)]);
        assert_eq!(ringer.next_timeout(), None);
        // It is not slow any more, for a second.
        let mut at_once = false;
        while !at_once && clock.now() < deadline {
            ringer.ring(HOSTILE, 2, || at_once = true);
            ringer.end_round(|_, _| ());
        }
        assert!(at_once);
    }

    /// What the kernel does with so many entries, and how that is seen.
    #[test]
    fn a_bell_that_much_hangs_on_is_slow() {
        use atoll_sys::epoll::Epoll;
        use atoll_sys::eventfd;
        let bell = eventfd::create().unwrap();
        let ring = || measured(|| eventfd::ring(&bell).unwrap());
        let usual = (0..20).map(|_| ring()).min().unwrap();
        let copies: Vec<_> = (0..200).map(|_| bell.try_clone().unwrap()).collect();
        let instances: Vec<_> = (0..100).map(|_| Epoll::new().unwrap()).collect();
        for instance in &instances {
            for copy in &copies {
                instance.add(copy, 0, eventfd::WATCHED).unwrap();
            }
        }
        let slow = (0..5).map(|_| ring()).min().unwrap();
        assert!(usual < SLOW && slow >= SLOW, "{usual:?} {slow:?}");
    }
}
