//! What does the supervisor know of one server, whatever process it is in? Which incarnation it is, how it
//! lives, and whether it is to go.
//!
//! ```text
//!   started -> ready -> asked to leave -> left      the next incarnation is due at once
//!                    -> ended                       it is due after some time: see life.rs
//! ```
//! A server that was asked to leave, and one of a build on trial that was started, have a deadline; it is
//! killed when that passes.

use atoll_base::{Duration, Instant};

use crate::{Judgement, Life, LifeRecovery, Running, Signs, Watch, Watchdog};

/// What is known of one server. Persisted are its incarnation, how often it has died and moved, and whether
/// it serves and is to leave.
#[derive(Clone, Debug)]
pub struct ServerRecord {
    epoch: u32,
    life: Life,
    watch: Watch,
    /// Its last process has died by its own fault.
    is_blamed: bool,
    /// It was asked to leave, and has not yet. It hears nothing more.
    is_leaving: bool,
    /// Until when it is to have left or, in an upgrade, to be ready.
    due_by: Option<Instant>,
}

/// What is persisted of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    /// Its last incarnation.
    pub epoch: u32,
    /// [`Life::crashes`].
    pub crashes: u64,
    /// [`Life::moves`].
    pub moves: u64,
    /// Whether it has a process.
    pub is_there: bool,
    /// Whether that has said that it serves.
    pub is_ready: bool,
    /// Whether it was asked to leave.
    pub is_leaving: bool,
}

/// Whose doing the end of a process was, as far as one can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its own.
    Own,
    /// Somebody else's: a person's, a shortage's, or nobody knows.
    Other,
}

impl ServerRecord {
    /// Of a server whose first process is about to be started.
    pub fn new(now: Instant) -> ServerRecord {
        ServerRecord::of(FIRST_EPOCH - 1, Life::new(now))
    }

    fn of(epoch: u32, life: Life) -> ServerRecord {
        ServerRecord { epoch, life, watch: Watch::default(), is_blamed: false, is_leaving: false, due_by: None }
    }

    /// As another supervisor has left it. One without a process is to be started.
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

    /// The incarnation of its process, or of the last one.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// How it has lived.
    pub fn life(&self) -> &Life {
        &self.life
    }

    /// Whether it serves.
    pub fn is_serving(&self) -> bool {
        self.life.is_serving()
    }

    /// Whether it serves, and reads what it is told: who is asked to leave does not.
    pub fn hears(&self) -> bool {
        self.life.is_serving() && !self.is_leaving
    }

    /// Whether it was asked to leave, and has not yet.
    pub fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Whether its last process has died by its own fault.
    pub fn is_blamed(&self) -> bool {
        self.is_blamed
    }

    /// It has a process, as this incarnation.
    pub fn born(&mut self, epoch: u32) {
        self.epoch = epoch;
    }

    /// The process that it has now was started. `on_trial`: it is of a build that has to prove itself, and
    /// has to be ready soon.
    pub fn started(&mut self, now: Instant, on_trial: bool) {
        self.life.started(now);
        if on_trial {
            self.due_by = Some(now + TRIAL_START_TIME);
        }
    }

    /// It could not be started. As [`Life::not_started`].
    pub fn not_started(&mut self, now: Instant, shortage: Option<String>) -> (Duration, bool) {
        self.life.not_started(now, shortage)
    }

    /// It says that it serves. As [`Life::ready`].
    pub fn ready(&mut self, now: Instant) -> Option<LifeRecovery> {
        (self.is_blamed, self.is_leaving, self.due_by) = (false, false, None);
        self.life.ready(now)
    }

    /// It was asked to leave.
    pub fn asked_to_leave(&mut self, now: Instant) {
        (self.is_leaving, self.due_by) = (true, Some(now + LEAVE_TIME));
    }

    /// It has left, as it was asked to: the next one is due now.
    pub fn left(&mut self, now: Instant) {
        self.life.left(now);
    }

    /// Its process has ended. `asked`: its end was asked for; `on_trial`: it was of a build that has to prove
    /// itself, which is to blame then. Returns after what time the next one is due.
    pub fn ended(&mut self, now: Instant, fault: Fault, asked: bool, on_trial: bool) -> Duration {
        self.is_blamed |= fault == Fault::Own && !asked && !on_trial;
        if asked {
            self.life.left(now);
            return Duration::ZERO;
        }
        self.life.died(now)
    }

    /// It has no process any more, and nothing is waited for.
    pub fn forget_process(&mut self) {
        (self.is_leaving, self.due_by) = (false, None);
    }

    /// Nothing has to have happened by any time: it goes on as one of the build that the upgrade says.
    pub fn forget_deadline(&mut self) {
        self.due_by = None;
    }

    /// Whether it has not left, or become ready, in time. Said once.
    pub fn take_late(&mut self, now: Instant) -> bool {
        self.due_by.take_if(|until| now >= *until).is_some()
    }

    /// Until when it is to have left or, on trial, to be ready.
    pub fn due_by(&self) -> Option<Instant> {
        self.due_by
    }

    /// Whether it is time to start it.
    pub fn is_due(&self, now: Instant) -> bool {
        self.life.is_due(now)
    }

    /// Whether it has not become ready in the time that there is for that.
    pub fn is_overdue(&self, now: Instant) -> bool {
        self.life.is_overdue(now)
    }

    /// When it is to be looked after, if nothing happens.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.life.next_timeout()
    }

    /// A look of the watchdog. `ask`: the kernel. One that hangs by itself is to blame; who has stopped it is
    /// somebody else.
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
/// serves meanwhile, or nearly.
const LEAVE_TIME: Duration = Duration::from_secs(2);
/// How long one of a new build may take to become ready.
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
        // What one has done, the next one that dies before it serves has not undone.
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
        assert!(record.take_late(BEGIN + LEAVE_TIME) && !record.take_late(BEGIN + LEAVE_TIME), "it is said once");
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
        assert!(record.hears() && record.epoch() == 7 && record.life().crashes == 2 && record.life().moves == 1);
        let leaving = ServerRecord::resume(BEGIN, Past { is_leaving: true, ..past });
        assert!(leaving.is_leaving() && leaving.due_by() == Some(BEGIN + LEAVE_TIME));
        let starting = ServerRecord::resume(BEGIN, Past { is_ready: false, ..past });
        assert!(!starting.is_serving() && !starting.is_due(BEGIN));
        let absent = ServerRecord::resume(BEGIN, Past { is_there: false, is_leaving: true, ..past });
        assert!(absent.is_due(BEGIN) && !absent.is_leaving() && absent.due_by().is_none());
    }
}
