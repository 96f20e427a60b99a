//! The scheduling policy of a process of servers, chosen by what it serves.
//!
//! Many conversations at a time are served best in batches: under SCHED_BATCH the program that rings a
//! doorbell goes on, and more work gathers meanwhile. A conversation back and forth has nothing to gather.
//! Beside programs that compute, a server that wakes under SCHED_BATCH waits for the end of their slice, some
//! milliseconds, for each answer. Under SCHED_OTHER it preempts them, as the kernel's own stack does, which
//! runs as part of whoever sends.

use std::io;

use atoll_base::{Duration, Instant};
use atoll_sys::sched::{self, Policy};

/// The least time between two changes: a change costs about as much as a wake-up.
const PAUSE: Duration = Duration::from_millis(5);

/// The policy of the process, and when it was chosen.
#[derive(Debug)]
pub struct Scheduling {
    /// The policy; `None` if the process keeps the one that it was started with.
    policy: Option<Policy>,
    changed: Instant,
}

impl Scheduling {
    /// Begins with SCHED_BATCH, if the process chooses a policy at all.
    pub fn new(chooses: bool, now: Instant) -> io::Result<Scheduling> {
        if chooses {
            sched::set_policy(Policy::Batch)?;
        }
        Ok(Scheduling { policy: chooses.then_some(Policy::Batch), changed: now })
    }

    /// Decides which policy is right for a process before it sleeps; `many` says whether one of its servers
    /// has many conversations. Returns it if it is another one than before.
    fn decide(&mut self, many: bool, now: Instant) -> Option<Policy> {
        let policy = if many { Policy::Batch } else { Policy::Other };
        if self.policy? == policy || now.since(self.changed) < PAUSE {
            return None;
        }
        (self.policy, self.changed) = (Some(policy), now);
        self.policy
    }

    /// Sets the policy that is right for a process that is about to sleep. One that cannot be set stays as it
    /// was.
    pub fn before_sleep(&mut self, many: bool, now: Instant) {
        if let Some(policy) = self.decide(many, now) {
            let _ = sched::set_policy(policy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_conversations_preempt_and_many_do_not() {
        let mut now = Instant::ZERO;
        let mut scheduling = Scheduling { policy: Some(Policy::Batch), changed: now };
        now += PAUSE;
        assert_eq!(scheduling.decide(true, now), None);
        assert_eq!(scheduling.decide(false, now), Some(Policy::Other));
        // It does not change to and fro at each sleep.
        now += Duration::from_millis(1);
        assert_eq!(scheduling.decide(true, now), None);
        now += PAUSE;
        assert_eq!(scheduling.decide(true, now), Some(Policy::Batch));
    }

    #[test]
    fn a_policy_that_was_given_stays() {
        let mut scheduling = Scheduling { policy: None, changed: Instant::ZERO };
        assert_eq!(scheduling.decide(false, Instant::ZERO + Duration::from_secs(1)), None);
    }
}
