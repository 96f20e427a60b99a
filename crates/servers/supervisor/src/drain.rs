//! Decides when a stack that was made for one program ends: after the program has exited, the sessions of its
//! children have closed, and what they sent has left.

use atoll_base::{Duration, Instant};

/// Waits for what remains of a stack's work after its program has exited.
#[derive(Clone, Debug)]
pub struct Drain {
    has_said: bool,
    moved: u64,
    moved_at: Instant,
}

/// The activity of the stack at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Activity {
    /// The number of open sessions.
    pub sessions: usize,
    /// The number of sessions opened since the start.
    pub opened: u64,
    /// The number of existing connections, as reported by the replicas.
    pub connections: u64,
    /// A number that changes when anything is sent or received.
    pub moved: u64,
}

/// The supervisor's next step while it drains the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainStep {
    /// Poll again soon.
    Wait,
    /// Report that sessions remain, then poll again. This is returned once: the user may not want to wait for
    /// programs that went into the background.
    SayThatSessionsRemain,
    /// End the stack.
    End,
}

impl Drain {
    /// Starts to drain at `now`, when the program has exited.
    pub fn new(now: Instant) -> Drain {
        Drain { has_said: false, moved: 0, moved_at: now }
    }

    /// Returns the next step, given what the stack is doing at `now`.
    pub fn poll(&mut self, activity: Activity, now: Instant) -> DrainStep {
        if activity.sessions > 0 {
            (self.moved, self.moved_at) = (activity.moved, now);
            let has_said = std::mem::replace(&mut self.has_said, true);
            return if has_said { DrainStep::Wait } else { DrainStep::SayThatSessionsRemain };
        }
        if activity.moved != self.moved {
            (self.moved, self.moved_at) = (activity.moved, now);
        }
        let quiet = now.since(self.moved_at);
        let is_done = activity.opened == 0 || quiet >= IDLE || quiet >= SETTLE && activity.connections == 0;
        if is_done { DrainStep::End } else { DrainStep::Wait }
    }
}

/// How long nothing may move after the last session closed before what is left is given up: more than two
/// retransmissions at their usual pace.
const IDLE: Duration = Duration::from_secs(1);
/// How long after the last session closed a report of no connections is trusted; replicas publish their
/// counters every 50 ms.
const SETTLE: Duration = Duration::from_millis(120);

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Activity = Activity { sessions: 0, opened: 1, connections: 0, moved: 7 };
    const BEGIN: Instant = Instant::from_millis(100_000);

    #[test]
    fn a_program_without_sockets_is_not_waited_for() {
        assert_eq!(Drain::new(BEGIN).poll(Activity { opened: 0, ..QUIET }, BEGIN), DrainStep::End);
    }

    #[test]
    fn what_was_sent_has_time_to_arrive() {
        let mut drain = Drain::new(BEGIN);
        let mut ends = |activity, after| drain.poll(activity, BEGIN + after) == DrainStep::End;
        let busy = Activity { connections: 1, ..QUIET };
        assert!(!ends(busy, Duration::ZERO));
        assert!(!ends(busy, IDLE / 2));
        assert!(!ends(Activity { moved: 8, ..busy }, IDLE), "it moved");
        assert!(ends(Activity { moved: 8, ..busy }, IDLE * 2), "nothing moves any more");
        assert!(ends(Activity { moved: 8, ..QUIET }, IDLE + SETTLE), "nothing is left");
    }

    #[test]
    fn children_keep_the_stack_and_that_is_said_once() {
        let mut drain = Drain::new(BEGIN);
        let sessions = Activity { sessions: 2, ..QUIET };
        assert_eq!(drain.poll(sessions, BEGIN), DrainStep::SayThatSessionsRemain);
        assert_eq!(drain.poll(sessions, BEGIN + IDLE * 9), DrainStep::Wait);
        assert_eq!(
            drain.poll(QUIET, BEGIN + IDLE * 9 + SETTLE / 2),
            DrainStep::Wait,
            "what they sent is on its way"
        );
        assert_eq!(drain.poll(QUIET, BEGIN + IDLE * 9 + SETTLE), DrainStep::End);
    }
}
