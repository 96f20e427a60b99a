//! Finds processes of the stack that are stopped. A stopped process (SIGSTOP) does nothing until it is
//! continued, so it is replaced soon.
//!
//! To wait until the watchdog (`watchdog.rs`) finds that it hangs would cost seconds, and more because the
//! time-outs of peers double meanwhile. A process counts as stopped after two checks, because a whole job is
//! not stopped and continued at one moment. Processes are watched rather than servers, so starting processes,
//! standbys, and those that were asked to leave are included. A process under a debugger (traced) is left to
//! the watchdog.
//!
//! The kernel is polled. SIGCHLD would report stops, but only those of children, and the servers of an
//! earlier supervisor are not children of this one.

use std::collections::BTreeSet;

use atoll_base::{Duration, Instant};

/// Watches the processes of a stack. This state is lost with the supervisor.
#[derive(Debug)]
pub struct Stops {
    /// When the next look is due.
    due: Instant,
    /// The pids of the processes that were stopped at the last look.
    stopped: BTreeSet<u32>,
}

impl Stops {
    /// Creates a watch, or returns `None` if `hang_ms` is 0, which lets servers hang for ever.
    pub fn new(hang_ms: u32, now: Instant) -> Option<Stops> {
        (hang_ms > 0).then(|| Stops { due: now + LOOK_EVERY, stopped: BTreeSet::new() })
    }

    /// Returns when the next look is due.
    pub fn next_timeout(&self) -> Instant {
        self.due
    }

    /// Checks these processes, if it is time, and returns those that are stopped and also were at the last
    /// check. `state` returns the state of a process as in proc_pid_stat(5), or `None` if the process is
    /// gone.
    pub fn look(
        &mut self,
        now: Instant,
        pids: impl Iterator<Item = u32>,
        state: impl Fn(u32) -> Option<char>,
    ) -> BTreeSet<u32> {
        if now < self.due {
            return BTreeSet::new();
        }
        let stopped = pids.filter(|pid| state(*pid) == Some('T'));
        let (again, first): (_, BTreeSet<u32>) = stopped.partition(|pid| self.stopped.contains(pid));
        // The time counts from now and not from when the look was due, so that two looks never follow at
        // once.
        self.due = now + if first.is_empty() { LOOK_EVERY } else { LOOK_AGAIN };
        self.stopped = first;
        again
    }
}

/// The time between two looks. They are most of what the supervisor of an idle stack does, so they are rare.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The time until the next look if a process is stopped. Both times together are shorter than the initial
/// retransmission time-out of a peer, which is a second (RFC 6298 §2).
const LOOK_AGAIN: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a look for each of `states`, at its time. A text has the states of processes 1, 2 and so on, `-`
    /// if one is gone. Returns the stopped processes that each look finds.
    fn looks<const N: usize>(states: [&str; N]) -> [Vec<u32>; N] {
        let mut stops = Stops::new(2000, Instant::from_millis(100_000)).unwrap();
        states.map(|states| {
            let state = |pid: u32| states.chars().nth(pid as usize - 1).filter(|state| *state != '-');
            stops.look(stops.due, 1..=states.len() as u32, state).into_iter().collect()
        })
    }

    const NONE: Vec<u32> = Vec::new();

    #[test]
    fn who_is_stopped_at_two_looks_in_a_row_is_replaced() {
        assert_eq!(looks(["RST", "RTT", "RTS", "TSS"]), [NONE, vec![3], vec![2], NONE]);
        assert_eq!(looks(["T", "S", "T", "R", "T"]), [NONE; 5], "it goes on again and again");
    }

    #[test]
    fn who_has_not_ended_yet_is_not_killed_at_each_look() {
        assert_eq!(looks(["T", "T", "T", "T", "-"]), [NONE, vec![1], NONE, vec![1], NONE]);
    }

    #[test]
    fn who_stands_still_for_another_reason_is_left_alone() {
        // The processes work, sleep, wait for the kernel, are traced, dead, or gone.
        assert_eq!(looks(["RSDtZ-"; 3]), [NONE; 3]);
    }

    #[test]
    fn it_is_looked_again_soon_and_never_twice_at_once() {
        let start = Instant::from_millis(100_000);
        let mut stops = Stops::new(2000, start).unwrap();
        let mut look = |now, state| {
            let found = stops.look(now, [7].into_iter(), |_| Some(state)).len();
            (found, stops.due.since(start))
        };
        assert_eq!(look(start, 'T'), (0, LOOK_EVERY), "it is not time");
        assert_eq!(look(start + LOOK_EVERY, 'S'), (0, 2 * LOOK_EVERY));
        // This look is late.
        let late = 10 * LOOK_EVERY;
        assert_eq!(look(start + late, 'T'), (0, late + LOOK_AGAIN));
        assert_eq!(look(start + late + LOOK_AGAIN / 2, 'T'), (0, late + LOOK_AGAIN));
        assert_eq!(look(start + late + LOOK_AGAIN, 'T'), (1, late + LOOK_AGAIN + LOOK_EVERY));
    }

    #[test]
    fn without_a_limit_nobody_watches() {
        assert!(Stops::new(0, Instant::from_millis(100_000)).is_none());
    }
}
