//! When does a stack end that was made for one program? After the program, the sessions of its children, and
//! what they sent.

use atoll_base::{Duration, Instant};

/// What is waited for after the program.
#[derive(Clone, Debug)]
pub struct Drain {
    has_said: bool,
    moved: u64,
    moved_at: Instant,
}

/// What the stack is doing.
#[derive(Clone, Copy, Debug)]
pub struct Activity {
    /// Open sessions.
    pub sessions: usize,
    /// Sessions opened since the start.
    pub opened: u64,
    /// Connections that exist, as the replicas say.
    pub connections: u64,
    /// A number that changes when anything is sent or received.
    pub moved: u64,
}

/// What follows from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainStep {
    /// Look again soon.
    Wait,
    /// Tell who waits for the end that sessions remain, once: programs that went into the background need not
    /// be waited for.
    SayThatSessionsRemain,
    /// The stack ends.
    End,
}

impl Drain {
    /// The program has ended.
    pub fn new(now: Instant) -> Drain {
        Drain { has_said: false, moved: 0, moved_at: now }
    }

    /// Looks at what the stack is doing.
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
/// Replicas publish their counters every 50 ms: this long after the last session, "no connection" is to be
/// believed.
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
        assert_eq!(drain.poll(QUIET, BEGIN + IDLE * 9 + SETTLE / 2), DrainStep::Wait, "what they sent is on its way");
        assert_eq!(drain.poll(QUIET, BEGIN + IDLE * 9 + SETTLE), DrainStep::End);
    }
}
