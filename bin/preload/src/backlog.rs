//! What if a replica takes commands more slowly than this process gives them? They wait in the session's outboxes
//! ([`atoll_sockets::outbox`]), and the thread that has given them waits as well, but without the lock: others go on.
//!
//! ```text
//!   under the lock          push: on the ring; if that is full, into the outbox        WAITING, and this thread OWES
//!   the lock is given back  whoever owes looks each millisecond whether there is room
//!   five seconds in which a replica took nothing                                       STALLED: nobody waits for it
//!   it takes something                                                                  the rest follows, in order
//! ```
//! A stack that has stopped for good takes nothing ever again, and its programs must still come to an end. So what is given
//! while it stands still only waits in memory. Calls that sleep look after it, and so does the next command.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use atoll_base::Duration;
use atoll_sockets::outbox::Sent;

use crate::real::sys;
use crate::state::{STATE, State};

/// How long a replica may take nothing before nobody waits for it any more.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is tried again.
pub const RETRY: Duration = Duration::from_millis(1);

/// Commands wait. Written under the lock of the state, like the next one.
static WAITING: AtomicBool = AtomicBool::new(false);
/// A replica has taken nothing for [`PATIENCE`].
static STALLED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// This thread has given a command that waits.
    static OWES: Cell<bool> = const { Cell::new(false) };
}

/// Whether commands wait.
#[inline]
pub fn is_there() -> bool {
    WAITING.load(Ordering::Relaxed)
}

/// What has become of a command of this thread, and of those that waited before it. Under the lock of the state, or in a session that is not
/// in it yet.
pub fn met(sent: Sent) {
    if sent != Sent::Nothing {
        // The replica takes something: it is worth waiting for again.
        STALLED.store(false, Ordering::Relaxed);
    }
    if sent != Sent::All {
        WAITING.store(true, Ordering::Relaxed);
        OWES.set(true);
    }
}

/// Sends what there is room for. Under the lock.
pub fn send(state: &mut State) -> Sent {
    let all = state.sessions.iter_mut().fold(Sent::All, |all, session| all.and(session.send_waiting()));
    if all != Sent::Nothing {
        STALLED.store(false, Ordering::Relaxed);
    }
    WAITING.store(all != Sent::All, Ordering::Relaxed);
    all
}

/// Waits, if this thread has given what could not be sent at once. Not under the lock.
#[inline]
pub fn wait_if_owed() {
    if is_there() {
        wait_for_own();
    }
}

#[cold]
fn wait_for_own() {
    if OWES.take() {
        settle();
    }
}

/// Waits until nothing waits. Returns whether that is so: not if a replica takes nothing for too long. Not under the lock.
pub fn settle() -> bool {
    let mut taken_at = STATE.with(|state| state.now());
    while is_there() && !STALLED.load(Ordering::Relaxed) {
        atoll_sys::sched::yield_now();
        let (sent, now) = STATE.with(|state| (send(state), state.now()));
        match sent {
            Sent::All => return true,
            Sent::Some => taken_at = now,
            Sent::Nothing if now.since(taken_at) >= PATIENCE => STALLED.store(true, Ordering::Relaxed),
            Sent::Nothing => pause(),
        }
    }
    !is_there()
}

fn pause() {
    let pause = libc::timespec { tv_sec: 0, tv_nsec: RETRY.as_nanos() as i64 };
    // SAFETY: a valid time. A signal ends it early, which does no harm.
    unsafe { sys!(libc::SYS_nanosleep, &raw const pause, std::ptr::null_mut::<libc::timespec>()) };
}

/// The child of a fork has nothing to send: what its parent has given, its parent sends.
pub fn reset_in_child() {
    OWES.set(false);
    WAITING.store(false, Ordering::Relaxed);
    STALLED.store(false, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_takes_something_again_is_waited_for_again() {
        met(Sent::Nothing);
        assert!(is_there() && OWES.take());
        STALLED.store(true, Ordering::Relaxed);
        assert!(!settle(), "nobody waits for it, and something does");
        // A command that found room, and took all that waited along.
        met(Sent::All);
        assert!(!STALLED.load(Ordering::Relaxed) && !OWES.get());
        assert!(settle(), "nothing waits any more");
    }
}
