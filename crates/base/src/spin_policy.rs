//! Decides between spinning and sleeping. A process that waits for the next message of a conversation back
//! and forth should spin, because waking costs more than the answer takes. A process that serves many should
//! sleep: work gathers meanwhile, and is cheaper in a batch.
//!
//! The time of spinning follows the kernel's haltpoll governor (Documentation/virt/guest-halt-polling.rst): a
//! wait that ended soon makes the next one spin, and a long one makes it sleep earlier. Two further signs
//! speak against spinning: many conversations at a time, and other processes that want the processor.

use crate::{Duration, Instant};

/// The spin policy of one waiting process, and how its last waits went.
#[derive(Clone, Debug)]
pub struct SpinPolicy {
    /// The maximum time of spinning; zero for none.
    limit: Duration,
    /// The time for which the next wait spins.
    spin: Duration,
    began: Instant,
    /// The number of yields of this wait during which other processes ran, and how long those took.
    others: u32,
    lost: Duration,
    /// When waits may spin again; until then others want the processor.
    rests_until: Instant,
    /// The last partners, and the place of the next one.
    partners: [u32; PARTNERS],
    next: usize,
    /// The moving average of how often a partner is not one of the last, in 1/256.
    novelty: u32,
}

/// The number of conversations at a time up to which spinning pays.
const PARTNERS: usize = 4;
/// The novelty, in 1/256, from which there are many conversations.
const MANY: u32 = 64;
/// The time that a yield exceeds only if another process ran.
const ALONE: Duration = Duration::from_nanos(1_500);
/// The number of yields to others after which to stop spinning: there is work, or it is not coming soon.
const OTHERS_MAX: u32 = 3;
/// A vain attempt on a busy processor is followed by this many times as long without one, so that all of them
/// take 1/64 of the time at most: a yield to who computes takes a whole slice of the scheduler, some
/// milliseconds, while one to the partner takes as long as its answer.
const REST: u32 = 64;
/// The maximum time without an attempt: by then others may be gone.
const REST_MAX: Duration = Duration::from_secs(1);

impl SpinPolicy {
    /// Creates a policy that spins for `limit` at most.
    pub const fn new(limit: Duration) -> SpinPolicy {
        SpinPolicy {
            limit,
            spin: Duration::ZERO,
            began: Instant::ZERO,
            others: 0,
            lost: Duration::ZERO,
            rests_until: Instant::ZERO,
            partners: [0; PARTNERS],
            next: 0,
            novelty: 0,
        }
    }

    /// Notes that there was something to do for `partner`, any number that distinguishes conversations.
    #[inline]
    pub fn met(&mut self, partner: u32) {
        let is_new = !self.partners.contains(&partner);
        if is_new {
            self.partners[self.next] = partner;
            self.next = (self.next + 1) % PARTNERS;
        }
        self.novelty = self.novelty - self.novelty / 16 + if is_new { 16 } else { 0 };
    }

    /// Returns whether more conversations go on than spinning pays for, so that work gathers.
    pub fn has_many(&self) -> bool {
        self.novelty >= MANY
    }

    /// Begins a wait. Returns whether to spin at all.
    pub fn begin(&mut self, now: Instant) -> bool {
        (self.began, self.others, self.lost) = (now, 0, Duration::ZERO);
        self.spin > Duration::ZERO && !self.has_many() && now >= self.rests_until
    }

    /// Notes that the processor was offered to others from `then` to `now`. One yield that took longer than
    /// any wait spins was to somebody who computes; of shorter ones there may be a few.
    pub fn yielded(&mut self, then: Instant, now: Instant) {
        let time = now.since(then);
        if time <= ALONE {
            return;
        }
        self.others += 1;
        self.lost += time;
        if self.others >= OTHERS_MAX || time > self.limit {
            self.rests_until = now + (self.lost * REST).min(REST_MAX);
        }
    }

    /// Returns whether to continue spinning, although no work has come so far.
    pub fn goes_on(&self, now: Instant) -> bool {
        now >= self.rests_until && now.since(self.began) < self.spin
    }

    /// Ends the wait, which spun or slept.
    pub fn end(&mut self, now: Instant) {
        if now.since(self.began) <= self.limit {
            self.spin = self.limit;
        } else {
            self.spin /= 2;
            if self.spin < self.limit / 16 {
                self.spin = Duration::ZERO;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(100);

    /// Runs waits that end after `micros` microseconds; returns how many of them would have spun.
    fn waits(patience: &mut SpinPolicy, now: &mut Instant, count: u32, micros: u64) -> u32 {
        let mut spun = 0;
        for _ in 0..count {
            spun += u32::from(patience.begin(*now));
            *now += Duration::from_micros(micros);
            patience.end(*now);
        }
        spun
    }

    #[test]
    fn short_waits_spin_and_long_ones_sleep() {
        let (mut patience, mut now) = (SpinPolicy::new(LIMIT), Instant::ZERO);
        assert_eq!(waits(&mut patience, &mut now, 10, 50), 9);
        assert!(waits(&mut patience, &mut now, 100, 1000) < 6);
        assert_eq!(waits(&mut patience, &mut now, 10, 50), 9);
    }

    #[test]
    fn many_conversations_are_worth_no_spinning() {
        let (mut patience, mut now) = (SpinPolicy::new(LIMIT), Instant::ZERO);
        for partner in 0..640 {
            patience.met(partner % 64);
        }
        assert_eq!(waits(&mut patience, &mut now, 10, 5), 0);
        for partner in 0..64 {
            patience.met(partner % 2);
        }
        assert_eq!(waits(&mut patience, &mut now, 10, 5), 10);
    }

    /// Begins a wait that yields `count` times for `micros` microseconds each, and says how often it did so.
    fn yields(patience: &mut SpinPolicy, now: &mut Instant, count: u32, micros: u64) -> u32 {
        let mut done = 0;
        let mut spins = patience.begin(*now);
        while spins && done < count {
            let then = *now;
            *now += Duration::from_micros(micros);
            patience.yielded(then, *now);
            done += 1;
            spins = patience.goes_on(*now);
        }
        done
    }

    #[test]
    fn others_on_the_processor_are_worth_no_spinning() {
        let (mut patience, mut now) = (SpinPolicy::new(LIMIT), Instant::ZERO);
        waits(&mut patience, &mut now, 2, 5);
        assert_eq!(yields(&mut patience, &mut now, 10, 5), OTHERS_MAX);
        // 64 times the 15 us.
        assert_eq!(waits(&mut patience, &mut now, 192, 5), 0);
        assert_eq!(waits(&mut patience, &mut now, 10, 5), 10);
    }

    #[test]
    fn a_yield_to_who_computes_is_not_repeated_soon() {
        let (mut patience, mut now) = (SpinPolicy::new(LIMIT), Instant::ZERO);
        waits(&mut patience, &mut now, 2, 5);
        let began = now;
        let (mut vain, mut answers) = (0, 0);
        while now < began + Duration::from_secs(4) {
            vain += yields(&mut patience, &mut now, 10, 4_000);
            patience.end(now);
            answers += 1;
            waits(&mut patience, &mut now, 1, 50);
        }
        // 4 ms of each 260: 16 times in 4 seconds.
        assert!((14..=18).contains(&vain), "{vain} of {answers}");
    }

    #[test]
    fn who_yields_to_the_partner_goes_on() {
        let (mut patience, mut now) = (SpinPolicy::new(LIMIT), Instant::ZERO);
        waits(&mut patience, &mut now, 2, 5);
        for _ in 0..100 {
            assert_eq!(yields(&mut patience, &mut now, 2, 40), 2);
            patience.end(now);
        }
    }

    #[test]
    fn no_limit_no_spinning() {
        let (mut patience, mut now) = (SpinPolicy::new(Duration::ZERO), Instant::ZERO);
        assert_eq!(waits(&mut patience, &mut now, 10, 1), 0);
    }
}
