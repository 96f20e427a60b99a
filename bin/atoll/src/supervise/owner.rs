//! Decides when a stack that was made for one program ends: after the program, the sessions of its children,
//! and what they sent.

use std::io;

use atoll_base::Instant;
use atoll_supervisor::{Activity, Drain, DrainStep};
use atoll_sys::unix::Channel;

/// The condition on which the stack ends.
pub enum Owner {
    /// People decide, by signals and `atoll down`.
    Nobody,
    /// The program of the `atoll run` at the other end decides, and still runs.
    Present(Channel),
    /// The program has ended.
    Gone(Gone),
}

/// The remainder after the program has ended.
pub struct Gone {
    /// The channel to the `atoll run`, while that waits.
    channel: Option<Channel>,
    drain: Drain,
}

impl Owner {
    /// Handles a readable channel: the `atoll run` reports that its program has ended, or has itself ended or
    /// lost interest. Returns a channel that need not be watched any more.
    pub fn spoke(&mut self, now: Instant) -> Option<Channel> {
        let (owner, closed) = match std::mem::replace(self, Owner::Nobody) {
            Owner::Present(channel) => match channel.receive(&mut [0; 256], &mut Vec::new()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => (Owner::Present(channel), None),
                Ok(1..) => (Owner::Gone(Gone { channel: Some(channel), drain: Drain::new(now) }), None),
                _ => (Owner::Gone(Gone { channel: None, drain: Drain::new(now) }), Some(channel)),
            },
            Owner::Gone(mut gone) => {
                let channel = gone.channel.take();
                (Owner::Gone(gone), channel)
            }
            Owner::Nobody => (Owner::Nobody, None),
        };
        *self = owner;
        closed
    }

    /// Returns the channel to the `atoll run`, if it still listens.
    pub fn channel(&self) -> Option<&Channel> {
        match self {
            Owner::Nobody => None,
            Owner::Present(channel) => Some(channel),
            Owner::Gone(gone) => gone.channel.as_ref(),
        }
    }

    /// Returns the longest time in milliseconds until the next call of [`Owner::wants_end`].
    pub fn look_again_ms(&self) -> Option<u32> {
        matches!(self, Owner::Gone(_)).then_some(LOOK_MS)
    }

    /// Returns whether the stack should end now.
    pub fn wants_end(&mut self, activity: Activity, now: Instant) -> bool {
        match self {
            Owner::Nobody | Owner::Present(_) => false,
            Owner::Gone(gone) => match gone.drain.poll(activity, now) {
                DrainStep::Wait => false,
                DrainStep::SayThatSessionsRemain => {
                    if let Some(channel) = &gone.channel {
                        let _ = channel.send(SESSIONS_REMAIN, &[]);
                    }
                    false
                }
                DrainStep::End => true,
            },
        }
    }
}

/// The message of the supervisor to `atoll run` that it need not wait for the end.
pub const SESSIONS_REMAIN: &[u8] = br#"{"sessions_remain":true}"#;
/// The time between two checks whether the stack is to end, in milliseconds.
const LOOK_MS: u32 = 20;

#[cfg(test)]
mod tests {
    use crate::clock;
    use atoll_base::Duration;
    use atoll_sys::unix::Blocking;

    use super::*;

    /// A time longer than any wait.
    const LONG: Duration = Duration::from_secs(1);
    const QUIET: Activity = Activity { sessions: 0, opened: 1, connections: 0, moved: 7 };

    fn gone() -> (Owner, Channel, Instant) {
        let (ours, theirs) = Channel::pair(Blocking::No).unwrap();
        let now = clock::now();
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
    fn children_keep_the_stack_and_their_parent_is_told_once() {
        let (mut owner, theirs, now) = gone();
        let sessions = Activity { sessions: 2, ..QUIET };
        assert!(!owner.wants_end(sessions, now) && !owner.wants_end(sessions, now + LONG * 9));
        let mut buffer = [0; 64];
        let len = theirs.receive(&mut buffer, &mut Vec::new()).unwrap();
        assert_eq!(&buffer[..len], SESSIONS_REMAIN);
        assert!(theirs.receive(&mut buffer, &mut Vec::new()).is_err());
        drop(theirs);
        assert!(owner.spoke(now).is_some(), "its channel needs no watching");
        assert!(owner.wants_end(QUIET, now + LONG * 10));
    }

    #[test]
    fn a_killed_parent_counts_as_ended() {
        let (ours, theirs) = Channel::pair(Blocking::No).unwrap();
        let mut owner = Owner::Present(ours);
        drop(theirs);
        assert!(owner.spoke(clock::now()).is_some());
        assert!(owner.look_again_ms().is_some() && owner.channel().is_none());
    }
}
