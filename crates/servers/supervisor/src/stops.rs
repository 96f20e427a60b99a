//! Which processes of the stack are stopped? One that is (SIGSTOP) does nothing until somebody lets it go on:
//! it is replaced at once.
//!
//! Waiting until it hangs (watchdog.rs) would cost seconds, and peers, whose time-outs double meanwhile, some
//! more. It is looked twice, because whoever stops a whole job and lets it go on does not do so at one
//! moment. It is a matter of processes, not of servers: so those that start, stand by, or were asked to leave
//! are seen, too. Who is traced (a debugger) has the time that everybody has who gives no sign of life.
//!
//! The kernel is asked again and again. It would tell, by SIGCHLD, but only of children, which the servers of
//! an earlier supervisor are not.

use std::collections::BTreeSet;

use atoll_base::{Duration, Instant};

/// The watch over the processes of a stack. Lost with the supervisor.
#[derive(Debug)]
pub struct Stops {
    /// When the next look is due.
    due: Instant,
    /// Those that were stopped at the last one, by pid.
    stopped: BTreeSet<u32>,
}

impl Stops {
    /// A watch; `None` if servers may stand still for as long as they like.
    pub fn new(hang_ms: u32, now: Instant) -> Option<Stops> {
        (hang_ms > 0).then(|| Stops { due: now + LOOK_EVERY, stopped: BTreeSet::new() })
    }

    /// When the next look is due.
    pub fn next_timeout(&self) -> Instant {
        self.due
    }

    /// Looks at these processes, if it is time. `state`: of one, as in proc_pid_stat(5); none if it is gone.
    /// Returns those that are stopped, and were at the last look.
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
        // Not from when it was due: who was late does not look twice at once.
        self.due = now + if first.is_empty() { LOOK_EVERY } else { LOOK_AGAIN };
        self.stopped = first;
        again
    }
}

/// How often it is looked. Not more often, because this is most of what the supervisor of an idle stack does.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How soon again if somebody is stopped. In all that is less than a peer waits before it sends again if it
/// knows no better (RFC 6298 §2: a second).
const LOOK_AGAIN: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    /// A look for each of `states`, at its time: those of processes 1, 2 ..., `-` if one is gone. Returns
    /// what they find.
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
        // At work, asleep, waiting for the kernel, traced, dead, gone.
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
        // Late.
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
