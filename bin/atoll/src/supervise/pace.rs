//! How fast may a process, or a user, begin sessions? Each costs the supervisor and all replicas some memory to map and to take apart, so a loop of
//! attaching and leaving is work for all. Who is too fast waits: his request stays in its socket until its time has come, so that a server that forks for
//! each connection is slowed down and not refused.
//!
//! Root has no limit as a user, as with resource limits, but each of his processes has. A process in another pid namespace counts with its user.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use atoll_sys::unix::Peer;

/// What beginning a session costs, and becoming a member of one that there is.
pub const ATTACH: u32 = 4;
pub const JOIN: u32 = 1;

/// How much at once after a while of nothing, and how much in a second from then on: of a process and of a user.
const OF_PROCESS: Rate = Rate { burst: 512 * ATTACH, per_second: 256 * ATTACH };
const OF_USER: Rate = Rate { burst: 1024 * ATTACH, per_second: 512 * ATTACH };
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
        paid.max(now).checked_sub(credit).unwrap_or(now)
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
    /// `peer` wants something of this cost. `Err`: not before that moment.
    pub fn ask(&mut self, peer: &Peer, now: Instant, cost: u32) -> Result<(), Instant> {
        let process = (peer.pid != 0).then_some((peer.uid, peer.pid));
        let is_user_limited = peer.uid != 0 || process.is_none();
        let of_process = process.map(|process| self.processes.get(&process).copied().unwrap_or(now));
        let of_user = is_user_limited.then(|| self.users.get(&peer.uid).copied().unwrap_or(now));
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
            self.users.insert(peer.uid, paid.max(now) + OF_USER.time(cost));
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

    fn peer(uid: u32, pid: u32) -> Peer {
        Peer { pid, uid, gid: uid }
    }

    /// How many sessions somebody gets who asks for as many as he can, in so many seconds after the first moment.
    fn taken(pace: &mut Pace, begin: Instant, seconds: u32, who: impl Fn(u32) -> Peer) -> (u32, u32) {
        let (mut now, mut count, mut at_once) = (begin, 0, 0);
        while now < begin + Duration::from_secs(1) * seconds {
            match pace.ask(&who(count), now, ATTACH) {
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
        let (mut pace, begin) = (Pace::default(), Instant::now());
        let (at_once, count) = taken(&mut pace, begin, 10, |_| peer(7, 1));
        assert!((500..=513).contains(&at_once) && (512 + 2550..=512 + 2570).contains(&count), "{at_once} {count}");
        // The others of his, and of others, are none the worse for it.
        assert_eq!(pace.ask(&peer(7, 2), begin + Duration::from_secs(10), ATTACH), Ok(()));
        assert_eq!(pace.ask(&peer(8, 1), begin + Duration::from_secs(10), ATTACH), Ok(()));
        // A while of nothing, and all is as before.
        let (again, _) = taken(&mut pace, begin + Duration::from_secs(20), 1, |_| peer(7, 1));
        assert!((500..=513).contains(&again), "{again}");
    }

    #[test]
    fn all_processes_of_a_user_together_have_a_limit_but_those_of_root() {
        let begin = Instant::now();
        let (at_once, count) = taken(&mut Pace::default(), begin, 10, |n| peer(7, 1 + n));
        assert!((1000..=1025).contains(&at_once) && (1024 + 5110..=1024 + 5130).contains(&count), "{at_once} {count}");
        let mut pace = Pace::default();
        assert!((0..20_000).all(|n| pace.ask(&peer(0, 1 + n), begin, ATTACH).is_ok()));
        // Those without a number are one.
        let (at_once, _) = taken(&mut pace, begin, 1, |_| peer(0, 0));
        assert!((1000..=1025).contains(&at_once), "{at_once}");
    }

    #[test]
    fn who_has_asked_once_is_not_remembered_for_ever() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        for n in 0..100_000 {
            assert_eq!(pace.ask(&peer(n, 1 + n), now, JOIN), Ok(()));
            now += Duration::from_millis(1);
        }
        assert!(pace.processes.len() + pace.users.len() <= REMEMBERED + 1);
    }
}
