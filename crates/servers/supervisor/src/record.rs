//! What the supervisor knows of one server, in whatever process it is: its incarnation, its lives, and
//! whether it was asked to leave.
//!
//! ```text
//!   started -> ready -> asked to leave -> left      the next incarnation is due at once
//!                    -> ended                       it is due after some time: see life.rs
//! ```
//!
//! A server that was asked to leave, and a starting server of a build on trial, have a deadline, after which
//! the supervisor kills them.

use atoll_base::{Duration, Instant};

use crate::{Judgement, Life, LifeRecovery, Running, Signs, Watch, Watchdog};

/// The supervisor's record of one server. Its incarnation, its numbers of crashes and moves, and whether it
/// serves and is to leave are persisted.
#[derive(Clone, Debug)]
pub struct ServerRecord {
    epoch: u32,
    life: Life,
    watch: Watch,
    /// Whether its last process died by its own fault.
    is_blamed: bool,
    /// Whether it was asked to leave, and has not left yet. It reads no more messages.
    is_leaving: bool,
    /// The time by which it must have left or, in an upgrade, be ready.
    due_by: Option<Instant>,
}

/// The persisted part of a [`ServerRecord`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    /// The server's last incarnation.
    pub epoch: u32,
    /// The value of [`Life::crashes`].
    pub crashes: u64,
    /// The value of [`Life::moves`].
    pub moves: u64,
    /// Whether the server has a process.
    pub is_there: bool,
    /// Whether that process has reported that it serves.
    pub is_ready: bool,
    /// Whether the server was asked to leave.
    pub is_leaving: bool,
}

/// The cause of a process's end, as far as the supervisor can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process itself.
    Own,
    /// Something else: a person, a shortage, or an unknown cause.
    Other,
}

impl ServerRecord {
    /// Creates the record of a server whose first process is about to be started.
    pub fn new(now: Instant) -> ServerRecord {
        ServerRecord::of(FIRST_EPOCH - 1, Life::new(now))
    }

    fn of(epoch: u32, life: Life) -> ServerRecord {
        ServerRecord {
            epoch,
            life,
            watch: Watch::default(),
            is_blamed: false,
            is_leaving: false,
            due_by: None,
        }
    }

    /// Restores a record that an earlier supervisor has left. A server without a process is due to be
    /// started.
    pub fn resume(now: Instant, past: Past) -> ServerRecord {
        let mut life = Life::new(now);
        (life.crashes, life.moves) = (past.crashes, past.moves);
        if !past.is_there {
            life.absent(now);
        } else if past.is_ready {
            life.ready(now);
        }
        let is_leaving = past.is_leaving && past.is_there;
        let due_by = is_leaving.then_some(now + LEAVE_TIME);
        ServerRecord { is_leaving, due_by, ..ServerRecord::of(past.epoch, life) }
    }

    /// Returns the incarnation of the server's process, or of the last one.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns the history of the server's lives.
    pub fn life(&self) -> &Life {
        &self.life
    }

    /// Returns whether the server serves.
    pub fn is_serving(&self) -> bool {
        self.life.is_serving()
    }

    /// Returns whether the server serves and reads messages; one that was asked to leave does not read any.
    pub fn hears(&self) -> bool {
        self.life.is_serving() && !self.is_leaving
    }

    /// Returns whether the server was asked to leave, and has not left yet.
    pub fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Returns whether its last process died by its own fault.
    pub fn is_blamed(&self) -> bool {
        self.is_blamed
    }

    /// Notes that the server has a process, as this incarnation.
    pub fn born(&mut self, epoch: u32) {
        self.epoch = epoch;
    }

    /// Notes that the server's process was started. `on_trial` says that it is of a build that has to prove
    /// itself, and must be ready within a deadline.
    pub fn started(&mut self, now: Instant, on_trial: bool) {
        self.life.started(now);
        if on_trial {
            self.due_by = Some(now + TRIAL_START_TIME);
        }
    }

    /// Notes that the server could not be started; parameters and result are those of [`Life::not_started`].
    pub fn not_started(&mut self, now: Instant, shortage: Option<String>) -> (Duration, bool) {
        self.life.not_started(now, shortage)
    }

    /// Notes that the server reports that it serves; the result is that of [`Life::ready`].
    pub fn ready(&mut self, now: Instant) -> Option<LifeRecovery> {
        (self.is_blamed, self.is_leaving, self.due_by) = (false, false, None);
        self.life.ready(now)
    }

    /// Notes that the server was asked to leave, and sets its deadline.
    pub fn asked_to_leave(&mut self, now: Instant) {
        (self.is_leaving, self.due_by) = (true, Some(now + LEAVE_TIME));
    }

    /// Notes that the server has left as it was asked to: the next incarnation is due now.
    pub fn left(&mut self, now: Instant) {
        self.life.left(now);
    }

    /// Notes that the server's process has ended, and returns the time after which the next one is due.
    /// `asked` says that the end was asked for; `on_trial` says that the process was of a build on trial,
    /// which is to blame then.
    pub fn ended(&mut self, now: Instant, fault: Fault, asked: bool, on_trial: bool) -> Duration {
        self.is_blamed |= fault == Fault::Own && !asked && !on_trial;
        if asked {
            self.life.left(now);
            return Duration::ZERO;
        }
        self.life.died(now)
    }

    /// Notes that the server has no process any more, so that no deadline applies.
    pub fn forget_process(&mut self) {
        (self.is_leaving, self.due_by) = (false, None);
    }

    /// Removes the deadline: the server continues as one of the build that the upgrade says.
    pub fn forget_deadline(&mut self) {
        self.due_by = None;
    }

    /// Returns whether the deadline to leave or to become ready has passed; this is reported once.
    pub fn take_late(&mut self, now: Instant) -> bool {
        self.due_by.take_if(|until| now >= *until).is_some()
    }

    /// Returns the time by which the server must have left or, on trial, be ready.
    pub fn due_by(&self) -> Option<Instant> {
        self.due_by
    }

    /// Returns whether it is time to start the server.
    pub fn is_due(&self, now: Instant) -> bool {
        self.life.is_due(now)
    }

    /// Returns whether the server has not become ready within [`READY_TIME`](crate::READY_TIME).
    pub fn is_overdue(&self, now: Instant) -> bool {
        self.life.is_overdue(now)
    }

    /// Returns when to check the server if nothing happens.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.life.next_timeout()
    }

    /// Lets the watchdog judge the server; `ask` asks the kernel about its process. A server that hangs is to
    /// blame, unless it was stopped from outside.
    pub fn look(&mut self, watchdog: Watchdog, signs: Signs, ask: impl Fn() -> Option<Running>) -> Judgement {
        let judgement = watchdog.look(&mut self.watch, signs, &ask);
        if judgement == Judgement::Hangs {
            self.is_blamed = ask().is_none_or(|running| !matches!(running.state, 'T' | 't'));
            self.watch = Watch::default();
        }
        judgement
    }
}

/// The first incarnation of every server.
pub const FIRST_EPOCH: u32 = 1;
/// How long a replica may take to leave, or a server to hand over: its ledger may have to be written anew. It
/// serves during nearly all of this time.
const LEAVE_TIME: Duration = Duration::from_secs(2);
/// How long a server of a new build may take to become ready.
const TRIAL_START_TIME: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const BEGIN: Instant = Instant::from_millis(100_000);

    fn serving() -> ServerRecord {
        let mut record = ServerRecord::new(BEGIN);
        record.born(FIRST_EPOCH);
        assert_eq!(record.ready(BEGIN), None);
        record
    }

    #[test]
    fn who_died_by_its_own_fault_is_blamed_until_the_next_one_serves() {
        for (fault, asked, on_trial, blamed) in [
            (Fault::Own, false, false, true),
            (Fault::Other, false, false, false),
            (Fault::Own, true, false, false),
            (Fault::Own, false, true, false),
        ] {
            let mut record = serving();
            assert_eq!(record.ended(BEGIN + MS, fault, asked, on_trial), Duration::ZERO);
            record.forget_process();
            assert_eq!(record.is_blamed(), blamed, "{fault:?} {asked} {on_trial}");
            assert_eq!(record.life().crashes, u64::from(!asked));
            record.started(BEGIN + 2 * MS, false);
            let recovery = record.ready(BEGIN + 3 * MS).expect("it is one");
            assert_eq!((recovery.is_move, record.is_blamed()), (asked, false));
        }
        // The blame for one death remains when the next process dies before it serves.
        let mut record = serving();
        record.ended(BEGIN + MS, Fault::Own, false, false);
        record.started(BEGIN + MS, false);
        record.ended(BEGIN + 2 * MS, Fault::Other, false, false);
        assert!(record.is_blamed());
    }

    #[test]
    fn who_is_asked_to_leave_hears_nothing_more_and_has_some_time() {
        let mut record = serving();
        record.asked_to_leave(BEGIN);
        assert!(record.is_serving() && record.is_leaving() && !record.hears());
        assert_eq!(record.due_by(), Some(BEGIN + LEAVE_TIME));
        assert!(!record.take_late(BEGIN + LEAVE_TIME - MS));
        assert!(
            record.take_late(BEGIN + LEAVE_TIME) && !record.take_late(BEGIN + LEAVE_TIME),
            "it is said once"
        );
        record.left(BEGIN + LEAVE_TIME);
        record.forget_process();
        assert!(!record.is_leaving() && record.is_due(BEGIN + LEAVE_TIME));
        assert_eq!(record.life().crashes, 0);
    }

    #[test]
    fn one_on_trial_has_to_be_ready_soon() {
        let mut record = serving();
        record.ended(BEGIN, Fault::Other, true, false);
        record.started(BEGIN, true);
        assert!(!record.take_late(BEGIN + TRIAL_START_TIME - MS));
        assert_eq!(record.due_by(), Some(BEGIN + TRIAL_START_TIME));
        record.ready(BEGIN + MS);
        assert!(!record.take_late(BEGIN + TRIAL_START_TIME));
        let mut other = serving();
        other.ended(BEGIN, Fault::Other, true, false);
        other.started(BEGIN, false);
        assert_eq!(other.due_by(), None, "one of the old build has proved itself");
    }

    #[test]
    fn one_that_hangs_is_blamed_unless_somebody_has_stopped_it() {
        let watchdog = Watchdog::new(2000).expect("it watches");
        let signs = Signs { heartbeat: 7, sleep_word: 2 };
        for (state, blamed) in [('S', true), ('t', false)] {
            let mut record = serving();
            let looks = (0..).map(|_| record.look(watchdog, signs, || Some(Running { state, used_ms: 0 })));
            assert!(looks.take(6).any(|judgement| judgement == Judgement::Hangs));
            assert_eq!(record.is_blamed(), blamed);
        }
    }

    #[test]
    fn what_another_supervisor_has_left_goes_on() {
        let past = Past { epoch: 7, crashes: 2, moves: 1, is_there: true, is_ready: true, is_leaving: false };
        let record = ServerRecord::resume(BEGIN, past);
        assert!(
            record.hears() && record.epoch() == 7 && record.life().crashes == 2 && record.life().moves == 1
        );
        let leaving = ServerRecord::resume(BEGIN, Past { is_leaving: true, ..past });
        assert!(leaving.is_leaving() && leaving.due_by() == Some(BEGIN + LEAVE_TIME));
        let starting = ServerRecord::resume(BEGIN, Past { is_ready: false, ..past });
        assert!(!starting.is_serving() && !starting.is_due(BEGIN));
        let absent = ServerRecord::resume(BEGIN, Past { is_there: false, is_leaving: true, ..past });
        assert!(absent.is_due(BEGIN) && !absent.is_leaving() && absent.due_by().is_none());
    }
}
