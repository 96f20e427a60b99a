//! When is a server that has died started again? At once; but one that dies again and again is given more and
//! more time, so that the rest of the stack is not kept busy by it.
//!
//! ```text
//!             ready                 died
//!   Starting -------> Serving ---------------> Down
//!      |  ^                                    |  ^
//!      |  +------------- started <------ due --+  |
//!      +---------------- died, or not ready ------+
//! ```

use crate::{RecoveryReport, RecoveryTimes, ServerState};
use atoll_base::{Duration, Instant};

/// The lives of one server, one after another. Lost with the supervisor.
#[derive(Clone, Debug)]
pub struct Life {
    phase: Phase,
    /// Lives in a row that were short, less those that were neither short nor long.
    short_lives: u32,
    /// Starts in a row that ended before the server was ready, by its own fault.
    vain_starts: u32,
    /// Why it cannot be started for now: the system is short of something.
    lacks: Option<String>,
    /// Ends that nobody asked for, since the stack started.
    pub crashes: u64,
    /// How long the last recovery took.
    pub last: Option<Recovery>,
    /// Times that it went on in another process without having died: it was asked to hand over.
    pub moves: u64,
    /// How long nobody served at the last of them.
    last_move: Option<Duration>,
    /// Its last process has handed over.
    is_moving: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Its process runs, but does not serve yet. `died`: since when nobody has served; `None` before the
    /// first life.
    Starting { since: Instant, died: Option<Instant> },
    /// It serves.
    Serving { since: Instant },
    /// There is none. The next one is due.
    Down { died: Instant, due: Instant },
}

/// How long a recovery took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// From the moment that the death was noticed until the new process was started.
    pub start: Duration,
    /// From then until it was ready.
    pub ready: Duration,
    /// It had not died: it was asked to hand over.
    pub is_move: bool,
}

impl Recovery {
    /// In all.
    pub fn total(&self) -> Duration {
        self.start + self.ready
    }
}

impl Life {
    /// Its first process was started.
    pub fn new(now: Instant) -> Life {
        let phase = Phase::Starting { since: now, died: None };
        Life {
            phase,
            short_lives: 0,
            vain_starts: 0,
            lacks: None,
            crashes: 0,
            last: None,
            moves: 0,
            last_move: None,
            is_moving: false,
        }
    }

    /// Its process has ended. Returns after what time the next one is due.
    pub fn died(&mut self, now: Instant) -> Duration {
        self.is_moving = false;
        let (died, lived) = match self.phase {
            Phase::Starting { died, .. } => {
                self.vain_starts += 1;
                (died.unwrap_or(now), None)
            }
            Phase::Serving { since } => (now, Some(now.since(since))),
            Phase::Down { died, due } => return due.since(died),
        };
        self.crashes += 1;
        self.fall(now, died, lived)
    }

    /// It has handed over, as it was asked to: the next one is due now.
    pub fn left(&mut self, now: Instant) {
        self.absent(now);
        self.is_moving = true;
    }

    /// It has no process, for what reason ever: the next one is due now.
    pub fn absent(&mut self, now: Instant) {
        self.phase = Phase::Down { died: now, due: now };
    }

    /// Its process could not be started. `shortage`: what was to be done when the system was short of
    /// something, if that is the reason. Returns after what time it is tried again, and whether the failure
    /// is news: the same shortage is told once.
    pub fn not_started(&mut self, now: Instant, shortage: Option<String>) -> (Duration, bool) {
        let is_news = if shortage.is_some() {
            std::mem::replace(&mut self.lacks, shortage).is_none()
        } else {
            self.vain_starts += 1;
            self.lacks = None;
            true
        };
        (self.postpone(now), is_news)
    }

    fn postpone(&mut self, now: Instant) -> Duration {
        let died = if let Phase::Down { died, .. } = self.phase { died } else { now };
        self.fall(now, died, None)
    }

    /// `lived`: `None` if it has never served.
    fn fall(&mut self, now: Instant, died: Instant, lived: Option<Duration>) -> Duration {
        let delay = match lived {
            Some(lived) if lived >= LONG_LIFE => {
                self.short_lives = 0;
                Duration::ZERO
            }
            Some(lived) if lived >= SHORT_LIFE => {
                // Down for longer than it would live is worse than a start or two in a second.
                self.short_lives = self.short_lives.saturating_sub(1);
                self.delay()
            }
            _ => {
                let delay = self.delay();
                self.short_lives = (self.short_lives + 1).min(SHORT_LIVES_MAX);
                delay
            }
        };
        self.phase = Phase::Down { died, due: now + delay };
        delay
    }

    /// Nothing the first time, then twice as long each time.
    fn delay(&self) -> Duration {
        match self.short_lives {
            0 => Duration::ZERO,
            n => FIRST_DELAY.saturating_mul(1 << (n - 1).min(20)).min(LAST_DELAY),
        }
    }

    /// Whether it is time to start it.
    pub fn is_due(&self, now: Instant) -> bool {
        matches!(self.phase, Phase::Down { due, .. } if now >= due)
    }

    /// A process of it was started.
    pub fn started(&mut self, now: Instant) {
        let died = if let Phase::Down { died, .. } = self.phase { Some(died) } else { None };
        self.phase = Phase::Starting { since: now, died };
    }

    /// It serves. Returns what that has taken, if it was not its first life.
    pub fn ready(&mut self, now: Instant) -> Option<Recovery> {
        let Phase::Starting { since, died } = self.phase else { return None };
        self.phase = Phase::Serving { since: now };
        self.vain_starts = 0;
        self.lacks = None;
        let (start, ready) = (since.since(died?), now.since(since));
        let recovery = Recovery { start, ready, is_move: std::mem::take(&mut self.is_moving) };
        if recovery.is_move {
            self.moves += 1;
            self.last_move = Some(recovery.total());
        } else {
            self.last = Some(recovery);
        }
        Some(recovery)
    }

    /// Whether it serves.
    pub fn is_serving(&self) -> bool {
        matches!(self.phase, Phase::Serving { .. })
    }

    /// What `atoll status` shows of it.
    pub fn report(&self) -> RecoveryReport {
        let state = match self.phase {
            Phase::Starting { .. } => ServerState::Starting,
            Phase::Serving { .. } => ServerState::Serving,
            Phase::Down { .. } => ServerState::Down,
        };
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let times = |last: Recovery| {
            let (start_us, ready_us) = (micros(last.start), micros(last.ready));
            RecoveryTimes { start_us, ready_us, total_us: start_us + ready_us }
        };
        RecoveryReport {
            state,
            crashes: self.crashes,
            last: self.last.map(times),
            moves: self.moves,
            last_move_us: self.last_move.map(micros),
            lacks: self.lacks.clone(),
        }
    }

    /// Whether it has not become ready in the time that there is for that.
    pub fn is_overdue(&self, now: Instant) -> bool {
        matches!(self.phase, Phase::Starting { since, .. } if now >= since + READY_TIME)
    }

    /// Whether there is no use in trying on: each time it has died, or could not be started, by its own
    /// fault. A shortage passes.
    pub fn is_hopeless(&self) -> bool {
        self.vain_starts >= VAIN_STARTS_MAX
    }

    /// When to ask again, if nothing happens.
    pub fn next_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Starting { since, .. } => Some(since + READY_TIME),
            Phase::Serving { .. } => None,
            Phase::Down { due, .. } => Some(due),
        }
    }
}

/// How long a server may take to start.
pub const READY_TIME: Duration = Duration::from_secs(10);
/// Starts without success after which a supervisor is given up.
pub const VAIN_STARTS_MAX: u32 = 10;
/// Who lives for less has died of what was there when it came.
const SHORT_LIFE: Duration = Duration::from_millis(500);
/// Who lives for so long has died of something new.
const LONG_LIFE: Duration = Duration::from_secs(10);
const FIRST_DELAY: Duration = Duration::from_millis(10);
const LAST_DELAY: Duration = Duration::from_secs(5);
/// So many lead to the last delay; more do not count.
const SHORT_LIVES_MAX: u32 = 10;
const _: () = assert!(FIRST_DELAY.as_millis() << (SHORT_LIVES_MAX - 1) >= LAST_DELAY.as_millis());

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Dies after having served for `lived`; returns the delay until the next start, and its moment.
    fn die(life: &mut Life, now: Instant, lived: Duration) -> (Duration, Instant) {
        life.ready(now);
        let delay = life.died(now + lived);
        let due = now + lived + delay;
        assert!(life.is_due(due) && (delay.is_zero() || !life.is_due(due - MS)));
        life.started(due);
        (delay, due)
    }

    #[test]
    fn who_dies_at_once_again_and_again_waits_longer_and_longer() {
        let mut now = Instant::from_millis(100_000);
        let mut life = Life::new(now);
        let mut delays = Vec::new();
        for _ in 0..12 {
            let (delay, due) = die(&mut life, now, 5 * MS);
            delays.push(delay.as_millis());
            now = due;
        }
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000]);
        assert_eq!(life.crashes, 12);
        assert!(!life.is_hopeless(), "it has been ready each time");
        // Neither short nor long: it waits for less and less.
        let mut delays = Vec::new();
        let mut due = now;
        for _ in 0..11 {
            let (delay, next) = die(&mut life, due, 2 * SHORT_LIFE);
            delays.push(delay.as_millis());
            due = next;
        }
        assert_eq!(delays, [2560, 1280, 640, 320, 160, 80, 40, 20, 10, 0, 0]);
        die(&mut life, due, 5 * MS);
        let (delay, due) = die(&mut life, due, LONG_LIFE);
        assert_eq!(delay, Duration::ZERO);
        assert_eq!(die(&mut life, due, 5 * MS).0, Duration::ZERO, "the first time again");
    }

    #[test]
    fn who_dies_now_and_then_is_back_at_once() {
        let mut now = Instant::from_millis(100_000);
        let mut life = Life::new(now);
        for _ in 0..100 {
            let (delay, due) = die(&mut life, now, SHORT_LIFE);
            assert_eq!(delay, Duration::ZERO);
            now = due;
        }
    }

    #[test]
    fn who_cannot_start_is_given_up() {
        let mut now = Instant::from_millis(100_000);
        let mut life = Life::new(now);
        die(&mut life, now, LONG_LIFE);
        for vain in 0..VAIN_STARTS_MAX {
            assert!(!life.is_hopeless());
            now += LAST_DELAY;
            // By turns: the process ends before it is ready, or there is none.
            let delay = if vain % 2 == 0 { life.died(now) } else { life.not_started(now, None).0 };
            now += delay;
            life.started(now);
        }
        assert!(life.is_hopeless());
        life.ready(now);
        assert!(!life.is_hopeless());
    }

    #[test]
    fn who_cannot_start_for_want_of_something_is_not_given_up_and_says_so_once() {
        let mut now = Instant::from_millis(100_000);
        let mut life = Life::new(now);
        die(&mut life, now, LONG_LIFE);
        life.died(now);
        let lack = || Some("starting it: Too many open files".to_owned());
        for vain in 0..3 * VAIN_STARTS_MAX {
            let (delay, is_news) = life.not_started(now, lack());
            assert_eq!(is_news, vain == 0);
            assert!(delay <= LAST_DELAY && !life.is_hopeless());
            now += delay;
        }
        assert!(life.report().lacks.is_some_and(|why| why.contains("starting it: Too many open files")));
        life.started(now);
        life.ready(now);
        assert_eq!(life.report().lacks, None, "it has passed");
        assert!(life.not_started(now, lack()).1, "and is news again");
    }

    #[test]
    fn a_recovery_is_timed_from_the_death_on() {
        let now = Instant::from_millis(100_000);
        let mut life = Life::new(now);
        assert_eq!(life.ready(now + MS), None, "a first start is none");
        life.died(now + 10 * MS);
        life.died(now + 11 * MS);
        assert_eq!((life.crashes, life.report().state), (1, ServerState::Down), "it is noticed twice");
        life.started(now + 12 * MS);
        assert!(!life.is_overdue(now + 13 * MS) && life.is_overdue(now + 12 * MS + READY_TIME));
        // The second one dies, too.
        let delay = life.died(now + 14 * MS);
        life.started(now + 14 * MS + delay);
        let recovery = life.ready(now + 40 * MS).expect("it is one");
        assert_eq!((recovery.start, recovery.ready), (4 * MS + delay, 26 * MS - delay));
        assert_eq!((recovery.total(), life.last), (30 * MS, Some(recovery)));
        assert!(life.is_serving() && life.next_timeout().is_none());
        // Whoever leaves because he was asked to has not crashed, and nobody waits before the next one comes.
        life.left(now + 41 * MS);
        assert!(life.is_due(now + 41 * MS));
        life.started(now + 42 * MS);
        assert!(life.ready(now + 43 * MS).is_some_and(|back| back.is_move && back.total() == 2 * MS));
        assert_eq!((life.crashes, life.last), (2, Some(recovery)), "it is no recovery");
        assert_eq!((life.moves, life.report().last_move_us), (1, Some(2000)));
        // If the next one dies before it serves, it is one.
        life.left(now + 44 * MS);
        life.started(now + 44 * MS);
        let delay = life.died(now + 45 * MS);
        life.started(now + 45 * MS + delay);
        assert!(life.ready(now + 60 * MS).is_some_and(|back| !back.is_move));
        assert_eq!((life.crashes, life.moves), (3, 1));
    }
}
