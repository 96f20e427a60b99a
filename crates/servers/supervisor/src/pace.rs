//! How fast may a process, or a user, begin sessions? Each costs the supervisor and all replicas some memory
//! to map and to take apart, so a loop of attaching and leaving is work for all. Who is too fast waits: his
//! request stays in its socket until its time has come, so that a server that forks for each connection is
//! slowed down and not refused.
//!
//! Root has no limit as a user, as with resource limits, but each of his processes has. A process in another
//! pid namespace counts with its user.

use std::collections::BTreeMap;

use crate::Caller;
use atoll_base::{Duration, Instant};

/// What beginning a session costs.
pub const ATTACH_COST: u32 = 4;
/// What becoming a member of a session that there is costs.
pub const JOIN_COST: u32 = 1;

/// How much at once after a while of nothing, and how much in a second from then on: of a process and of a
/// user.
const OF_PROCESS: Rate = Rate { burst: 512 * ATTACH_COST, per_second: 256 * ATTACH_COST };
const OF_USER: Rate = Rate { burst: 1024 * ATTACH_COST, per_second: 512 * ATTACH_COST };
/// Those that are remembered before it is looked who needs it no more.
const REMEMBERED: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct Rate {
    burst: u32,
    per_second: u32,
}

impl Rate {
    /// How long it takes to pay for so much.
    fn time(self, cost: u32) -> Duration {
        Duration::from_secs(1) * cost / self.per_second
    }

    /// When so much may be had by one who has paid for all at `paid`.
    fn due(self, paid: Instant, now: Instant, cost: u32) -> Instant {
        let credit = self.time(self.burst.saturating_sub(cost));
        paid.max(now) - credit
    }
}

/// Who has begun how much lately.
#[derive(Debug, Default)]
pub struct Pace {
    /// When each has paid for what he has had.
    processes: BTreeMap<(u32, u32), Instant>,
    users: BTreeMap<u32, Instant>,
}

impl Pace {
    /// `caller` wants something of this cost. `Err`: not before that moment.
    pub fn ask(&mut self, caller: &Caller, now: Instant, cost: u32) -> Result<(), Instant> {
        let process = (caller.pid != 0).then_some((caller.uid, caller.pid));
        let is_user_limited = caller.uid != 0 || process.is_none();
        let of_process = process.map(|process| self.processes.get(&process).copied().unwrap_or(now));
        let of_user = is_user_limited.then(|| self.users.get(&caller.uid).copied().unwrap_or(now));
        let due = [(OF_PROCESS, of_process), (OF_USER, of_user)];
        let due = due.into_iter().filter_map(|(rate, paid)| Some(rate.due(paid?, now, cost))).max();
        if let Some(due) = due.filter(|due| *due > now) {
            return Err(due);
        }
        self.forget(now);
        if let (Some(process), Some(paid)) = (process, of_process) {
            self.processes.insert(process, paid.max(now) + OF_PROCESS.time(cost));
        }
        if let Some(paid) = of_user {
            self.users.insert(caller.uid, paid.max(now) + OF_USER.time(cost));
        }
        Ok(())
    }

    /// Whoever has paid for all is as one who has had nothing.
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

    /// How many sessions somebody gets who asks for as many as he can, in so many seconds after the first
    /// moment.
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
        assert!((500..=513).contains(&at_once) && (512 + 2550..=512 + 2570).contains(&count), "{at_once} {count}");
        // The others of his, and of others, are none the worse for it.
        assert_eq!(pace.ask(&caller(7, 2), begin + Duration::from_secs(10), ATTACH_COST), Ok(()));
        assert_eq!(pace.ask(&caller(8, 1), begin + Duration::from_secs(10), ATTACH_COST), Ok(()));
        // A while of nothing, and all is as before.
        let (again, _) = taken(&mut pace, begin + Duration::from_secs(20), 1, |_| caller(7, 1));
        assert!((500..=513).contains(&again), "{again}");
    }

    #[test]
    fn all_processes_of_a_user_together_have_a_limit_but_those_of_root() {
        let begin = Instant::from_millis(100_000);
        let (at_once, count) = taken(&mut Pace::default(), begin, 10, |n| caller(7, 1 + n));
        assert!((1000..=1025).contains(&at_once) && (1024 + 5110..=1024 + 5130).contains(&count), "{at_once} {count}");
        let mut pace = Pace::default();
        assert!((0..20_000).all(|n| pace.ask(&caller(0, 1 + n), begin, ATTACH_COST).is_ok()));
        // Those without a number are one.
        let (at_once, _) = taken(&mut pace, begin, 1, |_| caller(0, 0));
        assert!((1000..=1025).contains(&at_once), "{at_once}");
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
