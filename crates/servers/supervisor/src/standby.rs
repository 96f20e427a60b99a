//! Decides when a standby process is started. When a process of replicas dies, the standby takes its place:
//! it has been started and confined, and has memory of its own, but no replica.
//!
//! ```text
//!   a replica's process dies -> its replicas go to the standby, which gets the number of the dead process
//!   all replicas serve again -> after a while, another standby is started
//! ```
//!
//! There is at most one standby, of the build that all replicas are of; while they are not all of one build,
//! none is started. A standby is not persisted and ends with its supervisor, until it is given a replica:
//! then it is a process like others. If there is no standby, or it does not seem to be well, a process is
//! started as if standbys did not exist.

use atoll_base::{Duration, Instant};

use crate::Life;

/// Decides when a standby is to be started, and when it is to be checked. This state is lost with the
/// supervisor.
#[derive(Debug)]
pub struct Standby {
    /// The lives of the standbys, each until it was given a replica or ended.
    life: Life,
    /// The time before which no standby is started, because a server died or was not ready recently.
    rests_until: Instant,
    /// When the present standby is to be checked.
    look_at: Instant,
}

/// The present standby.
#[derive(Clone, Copy, Debug)]
pub struct There {
    /// Whether it is of the build that all replicas are of.
    pub is_of_build: bool,
    /// Whether it waits as it should, and has as much memory as it would need now ([`is_enough`]). This
    /// counts only when [`Standby::is_look_due`].
    pub is_fit: bool,
}

/// The action that the standby needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start a standby, then call [`Standby::started`] or [`Standby::not_started`].
    Start,
    /// Kill the standby, which has not become ready in time; [`Standby::died`] reports its end.
    Kill,
    /// Let the standby end, because it is of no use any more.
    Dismiss,
}

impl Standby {
    /// Creates the state of a stack that starts.
    pub fn new(now: Instant) -> Standby {
        let mut life = Life::new(now);
        life.absent(now);
        Standby { life, rests_until: now + REST, look_at: now }
    }

    /// Postpones the next start: whatever the replicas need goes first.
    fn disturbed(&mut self, now: Instant) {
        self.rests_until = now + REST;
    }

    /// Returns what is to be done. `there` is the present standby; `is_settled` says that all replicas serve
    /// and that no upgrade is about to change their build.
    pub fn poll(&mut self, now: Instant, is_settled: bool, there: Option<There>) -> Option<Action> {
        if !is_settled {
            self.disturbed(now);
            return None;
        }
        let Some(there) = there else { return self.is_due(now).then_some(Action::Start) };
        let is_of_use = there.is_of_build && (!self.looks(now) || there.is_fit);
        if !is_of_use {
            self.absent(now);
            return Some(Action::Dismiss);
        }
        self.life.is_overdue(now).then_some(Action::Kill)
    }

    /// Returns whether a standby is to be started, if there is none and all replicas serve.
    fn is_due(&self, now: Instant) -> bool {
        now >= self.rests_until && self.life.is_due(now)
    }

    /// Notes that a standby could not be started; parameters and result are those of [`Life::not_started`].
    pub fn not_started(&mut self, now: Instant, shortage: Option<String>) -> (Duration, bool) {
        self.life.not_started(now, shortage)
    }

    /// Notes that the standby has ended, and returns the time after which the next one is due.
    pub fn died(&mut self, now: Instant) -> Duration {
        self.life.died(now)
    }

    /// Notes that a standby was started.
    pub fn started(&mut self, now: Instant) {
        self.life.started(now);
        self.look_at = now + LOOK_EVERY;
    }

    /// Notes that the standby is ready.
    pub fn is_up(&mut self, now: Instant) {
        self.life.ready(now);
    }

    /// Notes that there is no standby any more: it was given a replica, or is to end.
    pub fn absent(&mut self, now: Instant) {
        self.life.absent(now);
        self.disturbed(now);
    }

    /// Returns whether it is time to check the present standby.
    pub fn is_look_due(&self, now: Instant) -> bool {
        now >= self.look_at
    }

    /// Returns whether it is time to check the standby, and if so sets the time of the next check.
    fn looks(&mut self, now: Instant) -> bool {
        let is_time = self.is_look_due(now);
        if is_time {
            self.look_at = now + LOOK_EVERY;
        }
        is_time
    }

    /// Returns when to poll again if nothing happens. `is_there` says whether there is a standby.
    pub fn next_timeout(&self, is_there: bool) -> Option<Instant> {
        if is_there {
            return Some(self.life.next_timeout().map_or(self.look_at, |until| until.min(self.look_at)));
        }
        Some(self.life.next_timeout()?.max(self.rests_until))
    }
}

/// Returns the bytes of memory for this number of connections, as a power of two, so that the result seldom
/// changes.
pub fn memory_for(connections: u64) -> u64 {
    connections
        .saturating_mul(CONNECTION_BYTES)
        .saturating_add(FEWEST_BYTES)
        .min(MOST_BYTES)
        .next_power_of_two()
}

/// Returns whether a process with `memory` bytes of its own is of use where `wanted` bytes are needed now.
pub fn is_enough(memory: u64, wanted: u64) -> bool {
    // The first few connections are no reason to replace a standby. One that is too large is replaced only if
    // it is more than four times too large, because the need may soon grow again.
    wanted <= memory.max(SMALL_BYTES) && wanted >= memory / 4
}

/// How long all replicas serve before a standby is started: less than the time between two deaths that are
/// both answered at once.
const REST: Duration = Duration::from_millis(100);
/// The time between two checks of the standby.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The most bytes that a connection takes of a replica's own memory while it is adopted.
const CONNECTION_BYTES: u64 = 1 << 10;
/// The bytes that a replica without connections takes.
const FEWEST_BYTES: u64 = 2 << 20;
/// A process that needs no more than this many bytes makes do with any standby: the rest is quickly
/// allocated.
const SMALL_BYTES: u64 = 2 * FEWEST_BYTES;
/// The most bytes that a standby holds ready.
const MOST_BYTES: u64 = 64 << 20;
const _: () = assert!(MOST_BYTES.is_power_of_two());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::READY_TIME;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn one_is_started_when_nobody_has_died_for_a_while() {
        let now = Instant::from_millis(100_000);
        let mut standby = Standby::new(now);
        assert!(!standby.is_due(now + REST - MS) && standby.is_due(now + REST));
        assert_eq!(standby.next_timeout(false), Some(now + REST));
        standby.disturbed(now + REST);
        assert!(!standby.is_due(now + 2 * REST - MS) && standby.is_due(now + 2 * REST));
        let now = now + 2 * REST;
        standby.started(now);
        assert!(!standby.is_due(now + REST), "it is on its way");
        assert_eq!(standby.next_timeout(true), Some(now + LOOK_EVERY));
        assert!(standby.life.is_overdue(now + READY_TIME), "but not for ever");
        standby.is_up(now + 5 * MS);
        assert!(!standby.life.is_overdue(now + READY_TIME));
        assert!(!standby.looks(now + LOOK_EVERY - MS) && standby.looks(now + LOOK_EVERY));
        assert!(!standby.looks(now + LOOK_EVERY + MS), "not at once again");
        // The standby is needed.
        standby.absent(now + 2 * LOOK_EVERY);
        assert!(!standby.is_due(now + 2 * LOOK_EVERY) && standby.is_due(now + 2 * LOOK_EVERY + REST));
    }

    #[test]
    fn one_that_dies_again_and_again_is_missed_for_longer_and_longer() {
        let mut now = Instant::from_millis(100_000) + REST;
        let mut standby = Standby::new(now - REST);
        let mut delays = Vec::new();
        for life in 0..10 {
            standby.started(now);
            if life % 2 == 0 {
                standby.is_up(now);
            }
            delays.push(standby.life.died(now + MS).as_millis());
            let due = standby.next_timeout(false).expect("another one");
            assert!(standby.is_due(due) && !standby.is_due(due - MS) || due <= now + MS);
            now = due.max(now + MS);
        }
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 320, 640, 1280, 2560]);
        assert!(standby.next_timeout(false).is_some(), "it is never given up");
    }

    #[test]
    fn memory_is_held_ready_for_the_connections_that_there_are_within_limits() {
        assert_eq!(
            [0, 2 << 10, 10_000, 40_000, 1 << 20, u64::MAX].map(|n| memory_for(n) >> 20),
            [2, 4, 16, 64, 64, 64]
        );
    }

    #[test]
    fn memory_that_is_too_small_or_much_too_large_is_of_no_use() {
        let mib = |memory: u64, wanted: u64| is_enough(memory << 20, wanted << 20);
        assert!(mib(2, 4) && !mib(2, 8), "the first connections are no reason");
        assert!(mib(8, 8) && !mib(8, 16) && mib(16, 4) && !mib(32, 4));
    }

    #[test]
    fn what_is_to_be_done_follows_from_who_is_there() {
        let mut now = Instant::from_millis(100_000);
        let mut standby = Standby::new(now);
        let fit = |is_of_build, is_fit| Some(There { is_of_build, is_fit });
        assert_eq!(standby.poll(now + REST, false, None), None, "replicas go first");
        assert_eq!(standby.poll(now + REST, true, None), None, "and have time");
        now += 2 * REST;
        assert_eq!(standby.poll(now, true, None), Some(Action::Start));
        standby.started(now);
        assert_eq!(standby.poll(now, true, fit(true, false)), None, "it is not looked at");
        assert_eq!(standby.poll(now + READY_TIME, true, fit(true, true)), Some(Action::Kill));
        standby.is_up(now + READY_TIME);
        assert_eq!(standby.poll(now + READY_TIME, true, fit(true, true)), None);
        assert_eq!(
            standby.poll(now + READY_TIME + LOOK_EVERY, true, fit(true, false)),
            Some(Action::Dismiss)
        );
        now += READY_TIME + 2 * LOOK_EVERY;
        assert_eq!(standby.poll(now, true, None), Some(Action::Start));
        standby.started(now);
        standby.is_up(now);
        assert_eq!(
            standby.poll(now, true, fit(false, true)),
            Some(Action::Dismiss),
            "it is of another build"
        );
    }
}
