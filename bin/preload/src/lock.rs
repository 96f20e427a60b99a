//! The one lock of the library's state in this process, and what a thread does when it releases the lock.
//!
//! Commands that found no room in a replica's ring wait in the session's outboxes
//! ([`atoll_sockets::outbox`]). The thread that sent them waits as well, but without the lock, so that other
//! threads go on. A call that needs a turn in an arena that several processes use ([`crate::family`]) waits
//! for it without the lock, too.
//!
//! ```text
//!   under the lock          push: on the ring; if that is full, into the outbox, and the client owes
//!   the lock is given back  the thread tries again each millisecond until there was room
//!   five seconds in which a replica took nothing     nobody waits for that replica any more
//!   it takes something                               the rest follows, in order
//! ```
//! A stack that has stopped for good never takes anything again, and its programs must still come to an end.
//! So what is sent while it stands still only waits in memory. Calls that sleep send it later, and so does
//! the next command.

use atoll_sockets::client::object::Owner;
use atoll_sockets::{Errno, Failure};

use crate::family::{Missed, take_missed};
use crate::futex_lock::FutexLock;
use crate::hang_up;
use crate::real::{count_system_call, sys};
use crate::signals::{bit, hold_signals, pending_signals, release_signals};
use crate::state::State;

/// The state of this process.
pub static STATE: StateLock = StateLock(FutexLock::new(State::new()));

/// The lock of the state. Code that runs while it is held is restricted: see [`FutexLock`].
pub struct StateLock(pub FutexLock<State>);

impl StateLock {
    /// Runs `f` with the state. It is not reentrant: `f` must not call a function of this library that locks.
    /// Afterwards it may wait until commands of this thread are sent, and handlers of SIGURG may run.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        self.with_or_missed(f).0
    }

    /// Does what [`StateLock::with`] does. Also returns whether another process of a family had its turn in
    /// an arena: that one has had a moment to finish by then.
    #[inline]
    fn with_or_missed<R>(&self, f: impl FnOnce(&mut State) -> R) -> (R, bool) {
        let (mut owes, mut has_signals, mut missed) = (false, false, None);
        let result = self.0.with(|state| {
            let result = f(state);
            (owes, has_signals) = (state.client.take_owed(), state.client.has_signals());
            missed = take_missed();
            result
        });
        let has_missed = missed.is_some();
        if owes | has_signals | has_missed {
            self.finish(owes, has_signals, missed);
        }
        (result, has_missed)
    }

    /// Runs `step` as [`StateLock::with`] does, and again while it would block and another process of a
    /// family has its turn, [`TURNS`] times at most: a call that must not block comes back nevertheless.
    #[inline]
    pub fn in_turn<R>(&self, mut step: impl FnMut(&mut State) -> Result<R, Failure>) -> Result<R, Failure> {
        for _ in 1..TURNS {
            match self.with_or_missed(&mut step) {
                (Err(Failure::WouldBlock), true) => {}
                (result, _) => return result,
            }
        }
        self.with(step)
    }

    /// Runs `step` as [`StateLock::with`] does, and again until it had its turn, for a call that cannot say
    /// that it would block: it waits as long as another process of the family is stopped in its turn.
    pub fn until_turn<R>(&self, mut step: impl FnMut(&mut State) -> Result<R, Failure>) -> Result<R, Errno> {
        loop {
            match self.with(&mut step) {
                Ok(result) => return Ok(result),
                Err(Failure::Error(errno)) => return Err(errno),
                Err(Failure::WouldBlock) => hang_up::mend(),
            }
        }
    }

    /// Does what a call has left to do without the lock.
    #[cold]
    fn finish(&self, owes: bool, has_signals: bool, missed: Option<Missed>) {
        if let Some(missed) = missed {
            missed.wait();
        }
        if owes {
            settle();
        }
        if has_signals {
            self.raise();
        }
    }

    /// Sends SIGURG to the owners that are to get it. The caller does not hold the lock.
    #[cold]
    fn raise(&self) {
        // SAFETY: no arguments.
        if unsafe { libc::gettid() == libc::getpid() } {
            for owner in self.0.with(|state| state.client.take_signals()) {
                // Handlers run before the call returns: here, without the lock.
                send_signal(owner);
            }
            return;
        }
        // The main thread gets a signal to the process. It does not hold the lock, which is held here, and
        // cannot take it before the handler, which runs as soon as the signal is not pending any more.
        let held = hold_signals();
        self.0.with(|state| {
            for owner in state.client.take_signals() {
                send_signal(owner);
                for _ in 0..DELIVERY_LOOKS {
                    if pending_signals() & bit(libc::SIGURG) == 0 {
                        break;
                    }
                    crate::instruction::yield_now();
                }
            }
        });
        release_signals(held);
    }
}

// ---- commands that wait ----

/// Waits until no command waits. Returns false if a replica takes nothing for too long. The caller does not
/// hold the lock.
pub fn settle() -> bool {
    for turn in 0u32.. {
        if turn % LOOK_EVERY == LOOK_EVERY - 1 {
            hang_up::look();
        }
        crate::instruction::yield_now();
        let (hopes, waits, missed) =
            STATE.0.with(|state| (state.client.send_waiting(), state.client.has_waiting(), take_missed()));
        if !waits {
            return true;
        }
        if !hopes {
            return false;
        }
        match missed {
            Some(missed) => missed.wait(),
            None => pause(),
        }
    }
    false
}

/// How often a step is run that another process of the family leaves no turn: about a tenth of a second.
const TURNS: u32 = 5;

/// After so many milliseconds in which there was no room, the stack may be gone.
const LOOK_EVERY: u32 = 20;

fn pause() {
    let pause = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    // SAFETY: a valid time. A signal ends it early, which does no harm.
    unsafe { sys!(libc::SYS_nanosleep, &raw const pause, std::ptr::null_mut::<libc::timespec>()) };
}

// ---- SIGURG ----

/// How often to check whether a signal was delivered. A thread that runs is interrupted within microseconds,
/// and one that does not run has its handler before anything else. If all threads block the signal, it stays
/// pending.
const DELIVERY_LOOKS: u32 = 10_000;

fn send_signal(owner: Owner) {
    count_system_call();
    // SAFETY: numbers only.
    unsafe {
        if owner.is_thread {
            libc::syscall(libc::SYS_tkill, owner.id, libc::SIGURG);
        } else {
            libc::kill(owner.id, libc::SIGURG);
        }
    }
}
