//! Spin or sleep? Who waits for one more message of a conversation that goes back and forth should spin:
//! waking costs more than the answer takes. Who serves many should sleep: work gathers meanwhile, and is
//! cheaper by the batch.
//!
//! How long to spin follows the kernel's haltpoll governor (Documentation/virt/guest-halt-polling.rst): a
//! wait that ended soon makes the next one spin, a long one makes it sleep earlier. To this come two signs
//! that spinning is wrong: many conversations at a time, and others that want the processor.

use crate::{Duration, Instant};

/// Who waits, and how well it went so far.
#[derive(Clone, Debug)]
pub struct SpinPolicy {
    /// Spinning never takes longer than this; zero: there is none.
    limit: Duration,
    /// How long the next wait spins.
    spin: Duration,
    began: Instant,
    /// Yields of this wait during which others ran.
    others: u32,
    /// Waits without spinning left, because others want the processor.
    modest: u32,
    /// The last partners, and the place of the next.
    partners: [u32; PARTNERS],
    next: usize,
    /// How often a partner is not one of the last, in 1/256: a moving average.
    novelty: u32,
}

/// So few conversations at a time are worth spinning for.
const PARTNERS: usize = 4;
/// Less time than this passes in a yield only if nobody else ran.
const ALONE: Duration = Duration::from_nanos(1_500);
/// After so many yields to others there is work, or it is not coming soon.
const OTHERS_MAX: u32 = 3;
/// After a vain attempt on a busy processor, so many waits sleep at once.
const MODEST: u32 = 64;

impl SpinPolicy {
    /// Spins for `limit` at most.
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

    /// There was something to do for `partner`: any number that tells conversations apart.
    #[inline]
    pub fn met(&mut self, partner: u32) {
        let is_new = !self.partners.contains(&partner);
        if is_new {
            self.partners[self.next] = partner;
            self.next = (self.next + 1) % PARTNERS;
        }
        self.novelty = self.novelty - self.novelty / 16 + if is_new { 16 } else { 0 };
    }

    /// A wait begins. Returns whether to spin at all.
    pub fn begin(&mut self, now: Instant) -> bool {
        (self.began, self.others) = (now, 0);
        if self.modest > 0 {
            self.modest -= 1;
            return false;
        }
        self.spin > Duration::ZERO && self.novelty < 64
    }

    /// The processor was offered to others for `time`.
    pub fn yielded(&mut self, time: Duration) {
        self.others += u32::from(time > ALONE);
        if self.others >= OTHERS_MAX {
            self.modest = MODEST;
        }
    }

    /// Whether to go on spinning after all that was in vain.
    pub fn goes_on(&self, now: Instant) -> bool {
        self.modest == 0 && now.since(self.began) < self.spin
    }

    /// The wait has ended, by spinning or by sleep.
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

    /// Waits that end after `micros`; returns how many of them would have spun.
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
