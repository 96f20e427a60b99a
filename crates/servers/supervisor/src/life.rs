//! Decides when a server that has died is started again. The first start comes at once; later ones wait ever
//! longer, so that a server that dies again and again does not keep the rest of the stack busy.
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

/// The lives of one server, one after another. This state is lost with the supervisor.
#[derive(Clone, Debug)]
pub struct Life {
    phase: Phase,
    /// The number of short lives in a row, less one for each life that was neither short nor long.
    short_lives: u32,
    /// The number of starts in a row that failed, by the server's own fault, before it was ready.
    vain_starts: u32,
    /// The reason why the server cannot be started for now, if the system is short of something.
    lacks: Option<String>,
    /// The number of ends that were not requested, since the stack started.
    pub crashes: u64,
    /// The duration of the last recovery.
    pub last: Option<Recovery>,
    /// How often the server moved to another process without having died, because it was asked to hand over.
    pub moves: u64,
    /// The time without service during the last move.
    last_move: Option<Duration>,
    /// Whether its last process has handed over.
    is_moving: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The server's process runs, but does not serve yet. `died` is when the server last stopped serving; it
    /// is `None` before the first life.
    Starting { since: Instant, died: Option<Instant> },
    /// The server serves.
    Serving { since: Instant },
    /// The server has no process; the next one is due at `due`.
    Down { died: Instant, due: Instant },
}

/// The duration of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The time from when the death was noticed until the new process was started.
    pub start: Duration,
    /// The time from the start of the new process until it was ready.
    pub ready: Duration,
    /// Whether the server had not died, but was asked to hand over.
    pub is_move: bool,
}

impl Recovery {
    /// Returns the time from the death until the new process was ready.
    pub fn total(&self) -> Duration {
        self.start + self.ready
    }
}

impl Life {
    /// Creates the state of a server whose first process was started at `now`.
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

    /// Notes that the server's process has ended, and returns the time after which the next one is due.
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

    /// Notes that the server has handed over as it was asked to: the next process is due now.
    pub fn left(&mut self, now: Instant) {
        self.absent(now);
        self.is_moving = true;
    }

    /// Notes that the server has no process, for whatever reason: the next one is due now.
    pub fn absent(&mut self, now: Instant) {
        self.phase = Phase::Down { died: now, due: now };
    }

    /// Notes that the server's process could not be started. `shortage` is what was attempted when the system
    /// was short of something, if that is the reason. Returns the time after which to try again, and whether
    /// the failure is to be reported: a shortage that lasts is reported once.
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

    /// Postpones the next start, and returns the delay. `lived` is how long the server served, or `None` if
    /// it never did.
    fn fall(&mut self, now: Instant, died: Instant, lived: Option<Duration>) -> Duration {
        let delay = match lived {
            Some(lived) if lived >= LONG_LIFE => {
                self.short_lives = 0;
                Duration::ZERO
            }
            Some(lived) if lived >= SHORT_LIFE => {
                // To be down for longer than it would live is worse than a start or two in a second.
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

    /// Returns the delay of the next start: zero the first time, then twice as long each time.
    fn delay(&self) -> Duration {
        match self.short_lives {
            0 => Duration::ZERO,
            n => FIRST_DELAY.saturating_mul(1 << (n - 1).min(20)).min(LAST_DELAY),
        }
    }

    /// Returns whether it is time to start the server.
    pub fn is_due(&self, now: Instant) -> bool {
        matches!(self.phase, Phase::Down { due, .. } if now >= due)
    }

    /// Notes that a process of the server was started.
    pub fn started(&mut self, now: Instant) {
        let died = if let Phase::Down { died, .. } = self.phase { Some(died) } else { None };
        self.phase = Phase::Starting { since: now, died };
    }

    /// Notes that the server serves. Returns the times of the recovery, unless this is its first life.
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

    /// Returns whether the server serves.
    pub fn is_serving(&self) -> bool {
        matches!(self.phase, Phase::Serving { .. })
    }

    /// Returns what `atoll status` shows of the server's lives.
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

    /// Returns whether the server has not become ready within [`READY_TIME`].
    pub fn is_overdue(&self, now: Instant) -> bool {
        matches!(self.phase, Phase::Starting { since, .. } if now >= since + READY_TIME)
    }

    /// Returns whether there is no use in further starts, because each of the last ones failed by the
    /// server's own fault. Shortages do not count, because they pass.
    pub fn is_hopeless(&self) -> bool {
        self.vain_starts >= VAIN_STARTS_MAX
    }

    /// Returns when to check the server again if nothing happens.
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
/// The number of failed starts in a row after which a supervisor gives up.
pub const VAIN_STARTS_MAX: u32 = 10;
/// A server that serves for less than this probably died of a cause that was there when it started.
const SHORT_LIFE: Duration = Duration::from_millis(500);
/// A server that serves for at least this long died of a new cause.
const LONG_LIFE: Duration = Duration::from_secs(10);
const FIRST_DELAY: Duration = Duration::from_millis(10);
const LAST_DELAY: Duration = Duration::from_secs(5);
/// The number of short lives that leads to the last delay; more do not count.
const SHORT_LIVES_MAX: u32 = 10;
const _: () = assert!(FIRST_DELAY.as_millis() << (SHORT_LIVES_MAX - 1) >= LAST_DELAY.as_millis());

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Lets the server die after having served for `lived`; returns the delay of the next start, and its
    /// moment.
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
        // Lives that are neither short nor long make the delay shorter and shorter.
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
            // In turns, the process ends before it is ready, or cannot be started.
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
        // The second process dies, too.
        let delay = life.died(now + 14 * MS);
        life.started(now + 14 * MS + delay);
        let recovery = life.ready(now + 40 * MS).expect("it is one");
        assert_eq!((recovery.start, recovery.ready), (4 * MS + delay, 26 * MS - delay));
        assert_eq!((recovery.total(), life.last), (30 * MS, Some(recovery)));
        assert!(life.is_serving() && life.next_timeout().is_none());
        // A server that leaves as it was asked to has not crashed, and the next process is due at once.
        life.left(now + 41 * MS);
        assert!(life.is_due(now + 41 * MS));
        life.started(now + 42 * MS);
        assert!(life.ready(now + 43 * MS).is_some_and(|back| back.is_move && back.total() == 2 * MS));
        assert_eq!((life.crashes, life.last), (2, Some(recovery)), "it is no recovery");
        assert_eq!((life.moves, life.report().last_move_us), (1, Some(2000)));
        // If the next process dies before it serves, that is a crash.
        life.left(now + 44 * MS);
        life.started(now + 44 * MS);
        let delay = life.died(now + 45 * MS);
        life.started(now + 45 * MS + delay);
        assert!(life.ready(now + 60 * MS).is_some_and(|back| !back.is_move));
        assert_eq!((life.crashes, life.moves), (3, 1));
    }
}
