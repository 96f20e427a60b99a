//! Limits how fast a process or a user can begin sessions. Each session costs the supervisor and all replicas
//! memory to map and unmap, so a loop of attaching and leaving makes work for all of them, also if none of
//! the sessions lasts. A request beyond the limit is not refused but stays in its socket until it is due.
//!
//! A server that forks for each connection begins a session with each child, and shall not meet the limit:
//! the rate is about what one process can fork, and a session is so cheap that this takes a part of a
//! replica's time only (docs/decisions/quotas.md has both numbers).
//!
//! Root has no limit as a user, as with resource limits, but each process of root has one. A process in
//! another pid namespace counts with its user.

use std::collections::BTreeMap;

use crate::Caller;
use atoll_base::{Duration, Instant};

/// The cost of beginning a session, in the unit of [`JOIN_COST`].
pub const ATTACH_COST: u32 = 4;
/// The cost of becoming a member of an existing session.
pub const JOIN_COST: u32 = 1;

/// The sessions that a process may begin at once after a time of rest, and in each second from then on.
const AT_ONCE: u32 = 1024;
const PER_SECOND: u32 = 2048;
/// The number of remembered processes and users at which those that owe nothing are dropped.
const REMEMBERED: usize = 1024;

/// A limit: the cost that is allowed at once after a time of rest, and the cost per second from then on.
#[derive(Clone, Copy, Debug)]
struct Rate {
    burst: u32,
    per_second: u32,
}

impl Rate {
    /// Returns the limit of so many sessions.
    const fn of(at_once: u32, per_second: u32) -> Rate {
        Rate { burst: at_once * ATTACH_COST, per_second: per_second * ATTACH_COST }
    }

    /// Returns the time after which `cost` has been paid for.
    fn time(self, cost: u32) -> Duration {
        Duration::from_secs(1) * cost / self.per_second
    }

    /// Returns when `cost` may be incurred by a process or user that has paid for everything at `paid`.
    fn due(self, paid: Instant, now: Instant, cost: u32) -> Instant {
        let credit = self.time(self.burst.saturating_sub(cost));
        paid.max(now) - credit
    }
}

/// The recent costs of processes and users.
#[derive(Debug)]
pub struct Pace {
    of_process: Rate,
    of_user: Rate,
    /// The time at which each process, by user and pid, has paid for everything that it had.
    processes: BTreeMap<(u32, u32), Instant>,
    users: BTreeMap<u32, Instant>,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace::of(AT_ONCE, PER_SECOND)
    }
}

impl Pace {
    /// Creates the pace at which a process may begin so many sessions at once, and so many a second from then
    /// on, and the processes of a user together twice as many.
    pub fn of(at_once: u32, per_second: u32) -> Pace {
        let (of_process, of_user) = (Rate::of(at_once, per_second), Rate::of(2 * at_once, 2 * per_second));
        Pace { of_process, of_user, processes: BTreeMap::new(), users: BTreeMap::new() }
    }

    /// Charges `cost` to `caller`, or returns in `Err` the moment before which the caller may not incur it.
    pub fn ask(&mut self, caller: &Caller, now: Instant, cost: u32) -> Result<(), Instant> {
        let process = (caller.pid != 0).then_some((caller.uid, caller.pid));
        let is_user_limited = caller.uid != 0 || process.is_none();
        let of_process = process.map(|process| self.processes.get(&process).copied().unwrap_or(now));
        let of_user = is_user_limited.then(|| self.users.get(&caller.uid).copied().unwrap_or(now));
        let due = [(self.of_process, of_process), (self.of_user, of_user)];
        let due = due.into_iter().filter_map(|(rate, paid)| Some(rate.due(paid?, now, cost))).max();
        if let Some(due) = due.filter(|due| *due > now) {
            return Err(due);
        }
        self.forget(now);
        if let (Some(process), Some(paid)) = (process, of_process) {
            self.processes.insert(process, paid.max(now) + self.of_process.time(cost));
        }
        if let Some(paid) = of_user {
            self.users.insert(caller.uid, paid.max(now) + self.of_user.time(cost));
        }
        Ok(())
    }

    /// Drops the processes and users that have paid for everything, which are as good as new ones, if many
    /// are remembered.
    fn forget(&mut self, now: Instant) {
        if self.processes.len() + self.users.len() >= REMEMBERED {
            self.processes.retain(|_, paid| *paid > now);
            self.users.retain(|_, paid| *paid > now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(uid: u32, pid: u32) -> Caller {
        Caller { uid, pid }
    }

    /// Asks for as many sessions as possible for `seconds` seconds. Returns how many were granted at the
    /// first moment, and in all.
    fn taken(pace: &mut Pace, begin: Instant, seconds: u32, who: impl Fn(u32) -> Caller) -> (u32, u32) {
        let (mut now, mut count, mut at_once) = (begin, 0, 0);
        while now < begin + Duration::from_secs(1) * seconds {
            match pace.ask(&who(count), now, ATTACH_COST) {
                Ok(()) => count += 1,
                Err(due) => {
                    assert!(due > now && due < now + Duration::from_secs(1));
                    now = due;
                }
            }
            at_once += u32::from(now == begin);
        }
        (at_once, count)
    }

    #[test]
    fn a_process_gets_a_lot_at_once_and_so_much_a_second_from_then_on() {
        let (mut pace, begin) = (Pace::default(), Instant::from_millis(100_000));
        let (at_once, count) = taken(&mut pace, begin, 10, |_| caller(7, 1));
        assert!(
            (1020..=1025).contains(&at_once) && (1024 + 20_470..=1024 + 20_490).contains(&count),
            "{at_once} {count}"
        );
        // Other processes of this user, and other users, are not affected.
        assert_eq!(pace.ask(&caller(7, 2), begin + Duration::from_secs(10), ATTACH_COST), Ok(()));
        assert_eq!(pace.ask(&caller(8, 1), begin + Duration::from_secs(10), ATTACH_COST), Ok(()));
        // After a time of rest the full burst is available again.
        let (again, _) = taken(&mut pace, begin + Duration::from_secs(20), 1, |_| caller(7, 1));
        assert!((1020..=1025).contains(&again), "{again}");
    }

    /// A server that forks for each connection, 1800 times a second: what PostgreSQL and CGI servers do under
    /// load, and more than fork(2) allows on one of the measured processors.
    #[test]
    fn a_server_that_forks_for_each_connection_never_waits() {
        let (mut pace, mut now) = (Pace::default(), Instant::from_millis(100_000));
        for _ in 0..20_000 {
            assert_eq!(pace.ask(&caller(7, 1), now, ATTACH_COST), Ok(()));
            now += Duration::from_micros(555);
        }
    }

    #[test]
    fn all_processes_of_a_user_together_have_a_limit_but_those_of_root() {
        let begin = Instant::from_millis(100_000);
        let (at_once, count) = taken(&mut Pace::default(), begin, 10, |n| caller(7, 1 + n));
        assert!(
            (2040..=2049).contains(&at_once) && (2048 + 40_950..=2048 + 40_970).contains(&count),
            "{at_once} {count}"
        );
        let mut pace = Pace::default();
        assert!((0..20_000).all(|n| pace.ask(&caller(0, 1 + n), begin, ATTACH_COST).is_ok()));
        // Processes without a number count as one.
        let (at_once, _) = taken(&mut pace, begin, 1, |_| caller(0, 0));
        assert!((2040..=2049).contains(&at_once), "{at_once}");
    }

    #[test]
    fn who_has_asked_once_is_not_remembered_for_ever() {
        let (mut pace, mut now) = (Pace::default(), Instant::from_millis(100_000));
        for n in 0..100_000 {
            assert_eq!(pace.ask(&caller(n, 1 + n), now, JOIN_COST), Ok(()));
            now += Duration::from_millis(1);
        }
        assert!(pace.processes.len() + pace.users.len() <= REMEMBERED + 1);
    }
}
