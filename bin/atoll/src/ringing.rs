//! Bounds what ringing the sessions' doorbells may cost a replica. The kernel visits everything that waits on
//! a doorbell when it is rung, and a program may attach any number of entries to its own. Twenty thousand
//! entries of epoll take a millisecond, during which all other sessions wait.
//!
//! ```text
//!   rings of a round take longer than they should -> in the next rounds each is measured, in processor time
//!   a measured ring takes more than it should     -> the excess is a debt of its session, which faster
//!                                                    rings repay
//!   much debt                                     -> the session is slow until nothing is owed
//!   slow sessions                                 -> are rung in turns, after each of which the replica does
//!                                                    other work for twenty times as long
//! ```
//!
//! So all slow sessions together take a twentieth of the replica's time. Only they are woken late. One slow
//! ring proves nothing: an interrupt, or the host of a virtual machine, now and then takes some hundred
//! microseconds, which are accounted to this thread.

use std::collections::{BTreeMap, VecDeque};

use atoll_base::{Duration, Instant, SessionId};
use atoll_sys::Clock;

/// Rings the doorbells of sessions.
pub struct Ringer {
    clock: Clock,
    /// The number of further rounds in which each ring is measured.
    measured_rounds: u32,
    /// Sessions that owe time.
    debtors: BTreeMap<SessionId, Debtor>,
    /// Slow sessions that are to be rung, in their order.
    turns: VecDeque<SessionId>,
    /// When the next slow session has its turn.
    due: Instant,
    /// When the rings of this round began, and how many there were.
    round: Option<(Instant, u32)>,
}

#[derive(Default)]
struct Debtor {
    debt: Duration,
    /// Whether the session has owed so much that it waits for its turn.
    is_slow: bool,
    /// A bit for each doorbell that is to be rung in the session's turn.
    bells: u32,
}

impl Ringer {
    /// Creates a ringer without debtors.
    pub fn new(clock: Clock) -> Ringer {
        let (debtors, turns, due) = (BTreeMap::new(), VecDeque::new(), Instant::ZERO);
        Ringer { clock, measured_rounds: 0, debtors, turns, due, round: None }
    }

    /// Rings a doorbell by calling `act`, unless the session is slow and has to wait for its turn.
    pub fn ring(&mut self, session: SessionId, bell: u32, act: impl FnOnce()) {
        if let Some(slow) = self.debtors.get_mut(&session).filter(|debtor| debtor.is_slow) {
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
        self.charge(session, cost);
    }

    /// Ends a round: rings slow sessions whose turn it is by calling `act`. Returns how many doorbells were
    /// rung in the round.
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
            if self.clock.now() < self.due {
                break;
            }
            let Some(session) = self.turns.pop_front() else { break };
            let Some(slow) = self.debtors.get_mut(&session) else { continue };
            let bell = slow.bells.trailing_zeros();
            slow.bells &= slow.bells.saturating_sub(1);
            if slow.bells != 0 {
                self.turns.push_back(session);
            }
            let cost = measured(|| act(session, bell));
            rung += 1;
            self.charge(session, cost);
            self.rest(cost);
        }
        rung
    }

    /// Forgets a session that has ended.
    pub fn forget(&mut self, session: SessionId) {
        self.debtors.remove(&session);
        self.turns.retain(|waiting| *waiting != session);
    }

    /// Returns when the next slow session has its turn; `None` if none waits.
    pub fn next_timeout(&self) -> Option<Instant> {
        (!self.turns.is_empty()).then_some(self.due)
    }

    /// Accounts for a ring of the session that took `cost`.
    fn charge(&mut self, session: SessionId, cost: Duration) {
        if cost > SLOW {
            let debtor = self.debtors.entry(session).or_default();
            debtor.debt = (debtor.debt + cost.min(COUNTED_MAX).saturating_sub(SLOW)).min(DEBT_MAX);
            if debtor.debt >= DEBT_SLOW && !debtor.is_slow {
                debtor.is_slow = true;
                self.rest(cost);
            }
        } else if let Some(debtor) = self.debtors.get_mut(&session) {
            debtor.debt = debtor.debt.saturating_sub(SLOW.saturating_sub(cost));
            // A session that still waits for a turn gets it first.
            if debtor.debt == Duration::ZERO && debtor.bells == 0 {
                self.debtors.remove(&session);
            }
        }
    }

    fn rest(&mut self, cost: Duration) {
        self.due = self.due.max(self.clock.now()) + cost.saturating_mul(SHARE);
    }
}

/// Returns the processor time that `act` costs this thread, without what others do on the processor
/// meanwhile.
fn measured(act: impl FnOnce()) -> Duration {
    let before = atoll_sys::processor_time();
    act();
    atoll_sys::processor_time().saturating_sub(before)
}

/// A ring that takes longer has more to wake than a program has use for. A ring that wakes another processor
/// in a virtual machine takes 12 us.
const SLOW: Duration = Duration::from_micros(50);
/// After a slow ring, other work is done for this many times as long as the ring took.
const SHARE: u32 = 20;
/// The most that counts of one ring: whatever takes longer may have been something else.
const COUNTED_MAX: Duration = Duration::from_micros(200);
/// The debt of a slow session: four successive rings that are far too slow reach it, while debt of occasional
/// slow rings is soon repaid.
const DEBT_SLOW: Duration = Duration::from_micros(600);
/// The limit of a debt, which some twenty fast rings repay.
const DEBT_MAX: Duration = Duration::from_micros(900);
/// The usual time of all rings of a round is at most this, plus `RING_USUAL` for each ring.
const ROUND_USUAL: Duration = Duration::from_micros(30);
const RING_USUAL: Duration = Duration::from_micros(15);
const MEASURED_ROUNDS: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses this much processor time.
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
            // Two slow sessions share the turns.
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
        // 400 ms are 19 turns, plus those before the session was known as slow; there may be fewer where
        // other processes use the processor.
        assert!(heard[1] >= 2 && spent <= 5 * 2 + 20, "{spent} {heard:?} {rounds}");
        ringer.forget(HOSTILE);
        ringer.forget(SessionId(3));
        assert_eq!(ringer.next_timeout(), None);
    }

    /// Rings until the session has to wait; returns how often it was rung before.
    fn until_slow(ringer: &mut Ringer) -> usize {
        for count in 0..20 {
            let mut at_once = false;
            ringer.ring(HOSTILE, 0, || {
                at_once = true;
                work(Duration::from_millis(1));
            });
            if !at_once {
                return count;
            }
            ringer.end_round(|_, _| unreachable!());
        }
        unreachable!()
    }

    #[test]
    fn who_is_slow_is_rung_later_and_forgiven() {
        let mut ringer = Ringer::new(Clock::kernel());
        // The first ring is not measured.
        assert_eq!(until_slow(&mut ringer), 5);
        // The session waits from now on, and the ringer says until when.
        ringer.ring(HOSTILE, 4, || unreachable!());
        assert!(ringer.next_timeout().is_some());
        let (mut rung, clock) = (Vec::new(), Clock::kernel());
        let deadline = clock.now() + Duration::from_millis(20_000);
        while rung.len() < 2 && clock.now() < deadline {
            ringer.end_round(|session, bell| rung.push((session, bell)));
        }
        assert_eq!(rung, [(HOSTILE, 0), (HOSTILE, 4)]);
        assert_eq!(ringer.next_timeout(), None);
        // A session that was fast for a while is not slow any more.
        let mut at_once = false;
        while !at_once && clock.now() < deadline {
            ringer.ring(HOSTILE, 2, || at_once = true);
            ringer.end_round(|_, _| ());
        }
        assert!(at_once);
    }

    /// Interrupts, or the host of a virtual machine, cause occasional slow rings; those are no reason to
    /// defer a doorbell.
    #[test]
    fn who_is_slow_now_and_then_is_rung_at_once() {
        let mut ringer = Ringer::new(Clock::kernel());
        for round in 0..400 {
            let mut at_once = false;
            ringer.ring(HONEST, 0, || {
                at_once = true;
                if round % 8 == 0 {
                    work(Duration::from_micros(300));
                }
            });
            assert!(at_once, "in round {round}");
            ringer.end_round(|_, _| unreachable!());
        }
    }

    /// Checks what the kernel does with many epoll entries on one doorbell, and that the ringer would see it.
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
        // A ring is measured by processor time, which the kernel may count to another thread now and then.
        let mut rings: Vec<_> = (0..5).map(|_| ring()).collect();
        rings.sort_unstable();
        assert!(usual < SLOW && rings[2] >= SLOW, "{usual:?} {rings:?}");
    }
}
