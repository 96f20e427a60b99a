//! When does a stack end that was made for one program? After the program, the sessions of its children, and what they sent.

use std::io;
use std::time::{Duration, Instant};

use atoll_sys::unix::Channel;

/// Who decides when the stack ends.
pub enum Owner {
    /// People, by signals and `atoll down`.
    Nobody,
    /// The program of the `atoll run` at the other end, which is still there.
    Present(Channel),
    /// The program has ended.
    Gone(Drain),
}

/// What is waited for after the program.
pub struct Drain {
    /// The `atoll run`, while it waits.
    channel: Option<Channel>,
    told: bool,
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

impl Owner {
    /// Its channel is readable: the `atoll run` says that its program has ended, or has itself ended or lost interest.
    /// Returns a channel that needs no watching any more.
    pub fn spoke(&mut self, now: Instant) -> Option<Channel> {
        let (owner, closed) = match std::mem::replace(self, Owner::Nobody) {
            Owner::Present(channel) => match channel.receive(&mut [0; 256], &mut Vec::new()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => (Owner::Present(channel), None),
                Ok(1..) => (Owner::Gone(Drain::new(Some(channel), now)), None),
                _ => (Owner::Gone(Drain::new(None, now)), Some(channel)),
            },
            Owner::Gone(mut drain) => {
                let channel = drain.channel.take();
                (Owner::Gone(drain), channel)
            }
            Owner::Nobody => (Owner::Nobody, None),
        };
        *self = owner;
        closed
    }

    /// The `atoll run`, if it still listens.
    pub fn channel(&self) -> Option<&Channel> {
        match self {
            Owner::Nobody => None,
            Owner::Present(channel) => Some(channel),
            Owner::Gone(drain) => drain.channel.as_ref(),
        }
    }

    /// How long to wait at most before [`Owner::wants_end`] is asked again.
    pub fn look_again_ms(&self) -> Option<u32> {
        matches!(self, Owner::Gone(_)).then_some(LOOK_MS)
    }

    /// Whether the stack should end now.
    pub fn wants_end(&mut self, activity: Activity, now: Instant) -> bool {
        match self {
            Owner::Nobody | Owner::Present(_) => false,
            Owner::Gone(drain) => drain.is_done(activity, now),
        }
    }
}

impl Drain {
    fn new(channel: Option<Channel>, now: Instant) -> Drain {
        Drain { channel, told: false, moved: 0, moved_at: now }
    }

    fn is_done(&mut self, activity: Activity, now: Instant) -> bool {
        if activity.sessions > 0 {
            // Programs that went into the background. `atoll run` need not wait for them.
            if let (Some(channel), false) = (&self.channel, self.told) {
                let _ = channel.send(SESSIONS_REMAIN, &[]);
            }
            self.told = true;
            (self.moved, self.moved_at) = (activity.moved, now);
            return false;
        }
        if activity.moved != self.moved {
            (self.moved, self.moved_at) = (activity.moved, now);
        }
        let quiet = now.saturating_duration_since(self.moved_at);
        activity.opened == 0 || quiet >= IDLE || quiet >= SETTLE && activity.connections == 0
    }
}

/// What the supervisor tells `atoll run` when it need not wait for the end.
pub const SESSIONS_REMAIN: &[u8] = br#"{"sessions_remain":true}"#;
/// How long nothing may move after the last session closed before what is left is given up: more than two
/// retransmissions at their usual pace.
const IDLE: Duration = Duration::from_secs(1);
/// Replicas publish their counters every 50 ms: this long after the last session, "no connection" is to be believed.
const SETTLE: Duration = Duration::from_millis(120);
const LOOK_MS: u32 = 20;

#[cfg(test)]
mod tests {
    use atoll_sys::unix::Blocking;

    use super::*;

    const QUIET: Activity = Activity { sessions: 0, opened: 1, connections: 0, moved: 7 };

    fn gone() -> (Owner, Channel, Instant) {
        let (ours, theirs) = Channel::pair(Blocking::No).unwrap();
        let now = Instant::now();
        let mut owner = Owner::Present(ours);
        assert!(!owner.wants_end(QUIET, now) && owner.look_again_ms().is_none());
        theirs.send(b"ended", &[]).unwrap();
        assert!(owner.spoke(now).is_none());
        (owner, theirs, now)
    }

    #[test]
    fn a_program_without_sockets_is_not_waited_for() {
        let (mut owner, _theirs, now) = gone();
        assert!(owner.wants_end(Activity { opened: 0, ..QUIET }, now));
    }

    #[test]
    fn what_was_sent_has_time_to_arrive() {
        let (mut owner, _theirs, now) = gone();
        let busy = Activity { connections: 1, ..QUIET };
        assert!(!owner.wants_end(busy, now));
        assert!(!owner.wants_end(busy, now + IDLE / 2));
        assert!(!owner.wants_end(Activity { moved: 8, ..busy }, now + IDLE), "it moved");
        assert!(owner.wants_end(Activity { moved: 8, ..busy }, now + IDLE * 2), "nothing moves any more");
        assert!(owner.wants_end(Activity { moved: 8, ..QUIET }, now + IDLE + SETTLE), "nothing is left");
    }

    #[test]
    fn children_keep_the_stack_and_their_parent_is_told_once() {
        let (mut owner, theirs, now) = gone();
        let sessions = Activity { sessions: 2, ..QUIET };
        assert!(!owner.wants_end(sessions, now) && !owner.wants_end(sessions, now + IDLE * 9));
        let mut buffer = [0; 64];
        let len = theirs.receive(&mut buffer, &mut Vec::new()).unwrap();
        assert_eq!(&buffer[..len], SESSIONS_REMAIN);
        assert!(theirs.receive(&mut buffer, &mut Vec::new()).is_err());
        drop(theirs);
        assert!(owner.spoke(now).is_some(), "its channel needs no watching");
        assert!(owner.wants_end(QUIET, now + IDLE * 10));
    }

    #[test]
    fn a_killed_parent_counts_as_ended() {
        let (ours, theirs) = Channel::pair(Blocking::No).unwrap();
        let mut owner = Owner::Present(ours);
        drop(theirs);
        assert!(owner.spoke(Instant::now()).is_some());
        assert!(owner.look_again_ms().is_some() && owner.channel().is_none());
    }
}
