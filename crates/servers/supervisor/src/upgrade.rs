//! The order in which servers of another build take over, and in which those of the old build come back.
//!
//! ```text
//!   On     replace the first server; when it has served for a while, the next ones, one after the other;
//!          when all have served for some seconds: confirm
//!   Back   as soon as one of the new build ends by itself or does not become ready:
//!          restore all that were replaced, the last one first
//! ```
//!
//! Until the upgrade is confirmed, the new build writes a ledger that the old one reads: every server can go
//! back at any moment.

use atoll_base::{Duration, Instant};

/// The state of an upgrade. It is lost with the supervisor: servers of the new build stay then, and continue
/// to write the ledger that the old build reads.
#[derive(Debug)]
pub struct Upgrade {
    /// The state of each server, by number.
    servers: Vec<Stand>,
    course: Course,
    /// When a server last became ready.
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stand {
    /// The build of the server's process, or of its next process if it has none.
    side: Side,
    /// Whether the server was asked to hand over to the other build, and has not ended yet.
    leaves: bool,
}

/// One of the two builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The build that was running before.
    Old,
    /// The build that takes over.
    New,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Course {
    On,
    Back(String),
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask this server to hand over to a process of this build.
    Exchange(usize, Side),
    /// The new build stays.
    Confirm,
    /// The old build runs everywhere again; the text is the reason.
    Failed(String),
}

impl Upgrade {
    /// Starts an upgrade of `servers` servers, all of which are of the old build.
    pub fn new(servers: usize, now: Instant) -> Upgrade {
        let stand = Stand { side: Side::Old, leaves: false };
        Upgrade { servers: vec![stand; servers], course: Course::On, since: now }
    }

    /// Returns what is to be done now. `is_serving` says whether the process of a server is ready.
    pub fn next(&mut self, now: Instant, is_serving: impl Fn(usize) -> bool) -> Option<Step> {
        let settled =
            (0..self.servers.len()).all(|server| is_serving(server) && !self.servers[server].leaves);
        if !settled || self.due().is_some_and(|due| now < due) {
            return None;
        }
        let of = |side: Side| move |stand: &Stand| stand.side == side;
        let (server, side) = match &self.course {
            Course::On => match self.servers.iter().position(of(Side::Old)) {
                Some(server) => (server, Side::New),
                None => return Some(Step::Confirm),
            },
            Course::Back(reason) => match self.servers.iter().rposition(of(Side::New)) {
                Some(server) => (server, Side::Old),
                None => return Some(Step::Failed(reason.clone())),
            },
        };
        self.servers[server].leaves = true;
        Some(Step::Exchange(server, side))
    }

    /// Returns when to call `next` again if nothing happens.
    pub fn due(&self) -> Option<Instant> {
        let replaced = self.servers.iter().filter(|stand| stand.side == Side::New).count();
        match self.course {
            Course::Back(_) => None,
            Course::On if replaced == self.servers.len() => Some(self.since + TRIAL),
            Course::On if replaced == 1 => Some(self.since + FIRST_TRIAL),
            Course::On => None,
        }
    }

    /// Notes that a server became ready at `now`.
    pub fn ready(&mut self, now: Instant) {
        self.since = now;
    }

    /// Notes that the process of a server has ended. `how` describes the end for people; `can_go_on` says
    /// whether the other build can continue what the process left. Returns the build of the server's next
    /// process, and whether the end was asked for.
    pub fn ended(&mut self, server: usize, how: &str, can_go_on: bool) -> (Side, bool) {
        let Some(stand) = self.servers.get_mut(server) else { return (Side::Old, false) };
        let asked = std::mem::take(&mut stand.leaves);
        match (stand.side, asked) {
            (Side::Old, true) if can_go_on => stand.side = Side::New,
            (Side::Old, true) => {
                self.turn_back(format!("{how}, and the new build could not read what it has left"))
            }
            // The old build can always read what the new one writes.
            (Side::New, _) => {
                stand.side = Side::Old;
                if !asked {
                    self.turn_back(format!("{how}, and is of the new build"));
                }
            }
            (Side::Old, false) => {}
        }
        (self.servers[server].side, asked)
    }

    /// Returns the build of a server's process.
    pub fn side(&self, server: usize) -> Side {
        self.servers.get(server).map_or(Side::Old, |stand| stand.side)
    }

    fn turn_back(&mut self, reason: String) {
        if self.course == Course::On {
            self.course = Course::Back(reason);
        }
    }
}

/// How long the first server of a new build serves alone.
const FIRST_TRIAL: Duration = Duration::from_secs(1);
/// How long all servers of the new build serve until the upgrade is confirmed.
const TRIAL: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Three servers, which all serve except while they are exchanged.
    struct Bench {
        upgrade: Upgrade,
        now: Instant,
    }

    impl Bench {
        fn new() -> Bench {
            let now = Instant::from_millis(100_000);
            Bench { upgrade: Upgrade::new(3, now), now }
        }

        /// Returns the next step, after waiting until it is due.
        fn step(&mut self) -> Step {
            if let Some(due) = self.upgrade.due().filter(|due| *due > self.now) {
                assert_eq!(self.upgrade.next(due - MS, |_| true), None, "it waits");
                self.now = due;
            }
            self.upgrade.next(self.now, |_| true).expect("something is to be done")
        }

        fn exchanges(&mut self, server: usize, side: Side) {
            assert_eq!(self.step(), Step::Exchange(server, side));
            assert_eq!(self.upgrade.next(self.now, |_| true), None, "one after the other");
            assert_eq!(self.upgrade.ended(server, "it has left", true), (side, true));
            assert_eq!(
                self.upgrade.next(self.now, |other| other != server),
                None,
                "the next one is not ready"
            );
            self.upgrade.ready(self.now);
        }
    }

    #[test]
    fn servers_are_replaced_one_after_the_other_and_the_first_serves_alone_for_a_while() {
        let mut bench = Bench::new();
        let began = bench.now;
        bench.exchanges(0, Side::New);
        bench.exchanges(1, Side::New);
        assert_eq!(bench.now, began + FIRST_TRIAL);
        // A server of the old build that dies does not stop the upgrade.
        assert_eq!(bench.upgrade.ended(2, "somebody has killed it", true), (Side::Old, false));
        bench.exchanges(2, Side::New);
        assert_eq!(bench.step(), Step::Confirm);
        assert_eq!(bench.now, began + FIRST_TRIAL + TRIAL);
    }

    #[test]
    fn when_one_of_the_new_build_dies_the_old_one_comes_back_everywhere() {
        let mut bench = Bench::new();
        (0..3).for_each(|server| bench.exchanges(server, Side::New));
        assert_eq!(bench.upgrade.ended(1, "replica 1 was ended by SIGSEGV", true), (Side::Old, false));
        bench.upgrade.ready(bench.now);
        bench.exchanges(2, Side::Old);
        // Another server dies on the way back.
        assert_eq!(bench.upgrade.ended(0, "replica 0 is gone", true), (Side::Old, false));
        bench.upgrade.ready(bench.now);
        let reason = "replica 1 was ended by SIGSEGV, and is of the new build";
        assert_eq!(bench.step(), Step::Failed(reason.into()));
        assert!((0..3).all(|server| bench.upgrade.side(server) == Side::Old));
    }

    #[test]
    fn one_that_was_replaced_by_something_that_does_not_start_is_back_at_once() {
        let mut bench = Bench::new();
        assert_eq!(bench.step(), Step::Exchange(0, Side::New));
        assert_eq!(bench.upgrade.ended(0, "left", true), (Side::New, true));
        assert_eq!(bench.upgrade.ended(0, "replica 0 ended with status 1", true), (Side::Old, false));
        assert_eq!(
            bench.step(),
            Step::Failed("replica 0 ended with status 1, and is of the new build".into())
        );
    }

    #[test]
    fn what_the_new_build_cannot_read_stays_with_the_old_one() {
        let mut bench = Bench::new();
        bench.exchanges(0, Side::New);
        assert_eq!(bench.step(), Step::Exchange(1, Side::New));
        // It was killed because it took too long to convert its ledger.
        assert_eq!(bench.upgrade.ended(1, "replica 1 was ended by SIGKILL", false), (Side::Old, true));
        bench.exchanges(0, Side::Old);
        assert!(matches!(bench.step(), Step::Failed(reason) if reason.contains("could not read")));
    }
}
