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
    /// The number of yields of this wait during which other processes ran.
    others: u32,
    /// The number of waits without spinning left, because others want the processor.
    modest: u32,
    /// The last partners, and the place of the next one.
    partners: [u32; PARTNERS],
    next: usize,
    /// The moving average of how often a partner is not one of the last, in 1/256.
    novelty: u32,
}

/// The number of conversations at a time up to which spinning pays.
const PARTNERS: usize = 4;
/// The time that a yield exceeds only if another process ran.
const ALONE: Duration = Duration::from_nanos(1_500);
/// The number of yields to others after which to stop spinning: there is work, or it is not coming soon.
const OTHERS_MAX: u32 = 3;
/// The number of waits that sleep at once after a vain attempt on a busy processor.
const MODEST: u32 = 64;

impl SpinPolicy {
    /// Creates a policy that spins for `limit` at most.
    pub const fn new(limit: Duration) -> SpinPolicy {
        SpinPolicy {
            limit,
            spin: Duration::ZERO,
            began: Instant::ZERO,
            others: 0,
            modest: 0,
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

    /// Begins a wait. Returns whether to spin at all.
    pub fn begin(&mut self, now: Instant) -> bool {
        (self.began, self.others) = (now, 0);
        if self.modest > 0 {
            self.modest -= 1;
            return false;
        }
        self.spin > Duration::ZERO && self.novelty < 64
    }

    /// Notes that the processor was offered to others for `time`.
    pub fn yielded(&mut self, time: Duration) {
        self.others += u32::from(time > ALONE);
        if self.others >= OTHERS_MAX {
            self.modest = MODEST;
        }
    }

    /// Returns whether to continue spinning, although no work has come so far.
    pub fn goes_on(&self, now: Instant) -> bool {
        self.modest == 0 && now.since(self.began) < self.spin
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

    #[test]
    fn others_on_the_processor_are_worth_no_spinning() {
        let (mut patience, mut now) = (SpinPolicy::new(LIMIT), Instant::ZERO);
        waits(&mut patience, &mut now, 2, 5);
        assert!(patience.begin(now));
        for _ in 0..OTHERS_MAX {
            assert!(patience.goes_on(now));
            patience.yielded(Duration::from_micros(5));
        }
        assert!(!patience.goes_on(now));
        assert_eq!(waits(&mut patience, &mut now, MODEST + 1, 5), 1);
    }

    #[test]
    fn no_limit_no_spinning() {
        let (mut patience, mut now) = (SpinPolicy::new(Duration::ZERO), Instant::ZERO);
        assert_eq!(waits(&mut patience, &mut now, 10, 1), 0);
    }
}
