//! One lock for the library's state in this process, and what a thread does when it gives the lock back.
//!
//! Commands that found no room in a replica's ring wait in the session's outboxes
//! ([`atoll_sockets::outbox`]), and the thread that gave them waits as well, but without the lock: other
//! threads go on.
//!
//! ```text
//!   under the lock          push: on the ring; if that is full, into the outbox, and the client owes
//!   the lock is given back  the thread tries again each millisecond until there was room
//!   five seconds in which a replica took nothing     nobody waits for that replica any more
//!   it takes something                               the rest follows, in order
//! ```
//! A stack that has stopped for good takes nothing ever again, and its programs must still come to an end. So
//! what is given while it stands still only waits in memory. Calls that sleep look after it, and so does the
//! next command.

use std::sync::atomic::{AtomicU32, Ordering};

use atoll_sockets::client::object::Owner;

use crate::futex_lock::FutexLock;
use crate::real::{count_system_call, sys};
use crate::signals::{hold_signals, pending_signals, release_signals};
use crate::state::State;

/// The state of this process.
pub static STATE: StateLock = StateLock(FutexLock::new(State::new()));

/// The lock of the state; while it is held, see [`FutexLock`].
pub struct StateLock(pub FutexLock<State>);

impl StateLock {
    /// Runs `f` with the state. Not reentrant: `f` must not call a function of this library that locks.
    /// Afterwards it may wait until commands of this thread are sent, and handlers of SIGURG may run.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let (result, owes, has_signals) = self.0.with(|state| {
            let result = f(state);
            (result, state.client.take_owed(), state.client.has_signals())
        });
        if owes {
            settle();
        }
        if has_signals {
            self.raise();
        }
        result
    }

    /// Sends SIGURG to the owners that are to get it. Not under the lock.
    #[cold]
    fn raise(&self) {
        // SAFETY: no arguments.
        if unsafe { libc::gettid() == libc::getpid() } {
            for owner in self.0.with(take_signals) {
                // Handlers run before the call returns: here, without the lock.
                send_signal(owner);
            }
            return;
        }
        // The main thread gets a signal to the process. While the lock is held here it does not hold it; and
        // it does not take it either before the handler, because that runs as soon as the signal is not
        // pending any more.
        let held = hold_signals();
        self.0.with(|state| {
            for owner in take_signals(state) {
                send_signal(owner);
                for _ in 0..DELIVERY_LOOKS {
                    if pending_signals() & 1 << (libc::SIGURG - 1) == 0 {
                        break;
                    }
                    atoll_sys::sched::yield_now();
                }
            }
        });
        release_signals(held);
    }
}

// ---- commands that wait ----

/// Waits until no command waits. Returns whether that is so: not if a replica takes nothing for too long. Not
/// under the lock.
pub fn settle() -> bool {
    loop {
        atoll_sys::sched::yield_now();
        let (hopes, waits) = STATE.0.with(|state| (state.client.send_waiting(), state.client.has_waiting()));
        if !waits {
            return true;
        }
        if !hopes {
            return false;
        }
        pause();
    }
}

fn pause() {
    let pause = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    // SAFETY: a valid time. A signal ends it early, which does no harm.
    unsafe { sys!(libc::SYS_nanosleep, &raw const pause, std::ptr::null_mut::<libc::timespec>()) };
}

// ---- SIGURG ----

/// How often to look whether a signal was delivered. A thread that runs elsewhere is interrupted within
/// microseconds, one that does not run has its handler before anything else; threads that all block it may
/// wait for it as long as they like.
const DELIVERY_LOOKS: u32 = 10_000;

/// SIGURGs that were sent to this process.
static SENT: AtomicU32 = AtomicU32::new(0);

/// How many SIGURGs were sent to this process so far: see [`interrupts`].
pub fn signals_sent() -> u32 {
    SENT.load(Ordering::Relaxed)
}

/// Whether SIGURG was sent to this process since `before`, which is brought up to date, and this thread has
/// got it: a call that sleeps is interrupted, though the signal may have come at another moment.
pub fn interrupts(before: &mut u32) -> bool {
    // SAFETY: no arguments.
    std::mem::replace(before, signals_sent()) != *before && unsafe { libc::gettid() == libc::getpid() }
}

fn take_signals(state: &mut State) -> Vec<Owner> {
    let owners = state.client.take_signals();
    // SAFETY: no arguments.
    let own = unsafe { libc::getpid() };
    let count = owners.iter().filter(|owner| owner.id == own).count();
    SENT.fetch_add(count as u32, Ordering::Relaxed);
    owners
}

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
