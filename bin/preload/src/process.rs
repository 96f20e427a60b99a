//! Handles sockets when a process forks, by pthread_atfork(3); see [`crate::child_state`].

use std::cell::UnsafeCell;
use std::ffi::c_long;

use crate::beyond::LIMIT;
use crate::child_state::{NextProcess, Preparation, refit_limit};
use crate::dispatch;
use crate::family::renew_thread;
use crate::handlers::WRITER;
use crate::hang_up;
use crate::heap::HEAP;
use crate::host::BREAK;
use crate::lock::STATE;
use crate::real::last_errno;
use crate::space;
use crate::stats;
use crate::streams::STREAMS;
use crate::supervisor::SUPERVISOR;
use crate::table::reserved;
use crate::urgent;

struct Prepared(UnsafeCell<Option<Preparation>>);
// SAFETY: written and read between `prepare` and `parent` or `child`, while `SUPERVISOR` is held.
unsafe impl Sync for Prepared {}
static PREPARED: Prepared = Prepared(UnsafeCell::new(None));

/// Registers the handlers. Called once, by the constructor.
pub fn install() {
    // SAFETY: three functions of the right type.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

/// Runs a system call that makes a child with a copy of this process's memory, and returns in both. The child
/// is prepared as that of fork(3) is.
pub fn fork_by(make: impl FnOnce() -> c_long) -> c_long {
    prepare();
    let result = make();
    let errno = last_errno();
    if result == 0 {
        child()
    } else {
        parent()
    }
    // SAFETY: a valid thread-local of the C library.
    unsafe { *libc::__errno_location() = errno.0 };
    result
}

extern "C" fn prepare() {
    hang_up::before_child();
    // No other thread is in the middle of anything under a lock when the child begins.
    SUPERVISOR.acquire();
    space::loosen();
    prepare_child();
    // Nobody reserves one while the lock of the state is held.
    reserved::give_back();
    STREAMS.acquire();
    WRITER.acquire();
    BREAK.acquire();
    LIMIT.acquire();
    HEAP.acquire();
}

/// The caller holds `SUPERVISOR`. The lock of the state is held from here on, too, but not while anybody is
/// asked.
fn prepare_child() {
    // SAFETY: the lock is held.
    let connections = unsafe { SUPERVISOR.held() };
    connections.forget_others();
    let preparation = Preparation::prepare(connections, NextProcess::Child, |state| state.client.held());
    // SAFETY: the lock is held.
    unsafe { *PREPARED.0.get() = Some(preparation) };
}

extern "C" fn parent() {
    HEAP.release();
    LIMIT.release();
    BREAK.release();
    WRITER.release();
    STREAMS.release();
    STATE.0.release();
    // SAFETY: the lock is held since `prepare`.
    let prepared = unsafe { &mut *PREPARED.0.get() };
    // This is the child's connection to the supervisor: while it is open anywhere, the child counts as alive.
    if let Some(child_state) = prepared.take().and_then(|preparation| preparation.child_state) {
        child_state.given();
    }
    SUPERVISOR.release();
    refit_limit();
}

extern "C" fn child() {
    HEAP.reset_in_child();
    LIMIT.reset_in_child();
    BREAK.reset_in_child();
    WRITER.reset_in_child();
    STREAMS.reset_in_child();
    // SAFETY: these locks were taken in `prepare` by the thread that forked, the only one here.
    let (prepared, connections, state) =
        unsafe { (&mut *PREPARED.0.get(), SUPERVISOR.held(), STATE.0.held()) };
    renew_thread();
    stats::reset();
    urgent::forget_watch();
    state.forget_threads();
    let Preparation { child_state, kept, .. } = prepared.take().unwrap_or_default();
    // The connections that are open here are the parent's, and stand for the parent: they must not be held
    // open here.
    connections.own = None;
    connections.keep(kept);
    match child_state {
        Some(child_state) => child_state.take_over(state, connections),
        // The child waits for the next stack as its parent does.
        None if state.client.is_stack_gone() => {}
        None if state.client.held().is_empty() => state.client.drop_sessions(),
        // The supervisor is gone: nothing can be shared.
        None => state.drop_all(),
    }
    hang_up::begin_child(state.client.is_stack_gone(), !state.client.waiting_for_stack().is_empty());
    // Signal handlers that were put off run when the last lock is free: they may make calls by instructions.
    dispatch::begin_child();
    STATE.0.reset_in_child();
    SUPERVISOR.reset_in_child();
    refit_limit();
}
