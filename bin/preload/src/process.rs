//! Handles sockets when a process forks, by pthread_atfork(3); see [`crate::child_state`].

use std::cell::UnsafeCell;

use crate::child_state::ChildState;
use crate::control::{CONTROL, Control};
use crate::family::forget_thread;
use crate::heap::HEAP;
use crate::lock::STATE;
use crate::stats;
use crate::urgent;

#[derive(Debug, Default)]
struct ForChild {
    child_state: Option<ChildState>,
    /// Without sockets: a connection for later, if the child could not connect by itself.
    kept: Option<Control>,
}
struct Prepared(UnsafeCell<ForChild>);
// SAFETY: written and read between `prepare` and `parent` or `child`, while the state's lock is held.
unsafe impl Sync for Prepared {}
static PREPARED: Prepared = Prepared(UnsafeCell::new(ForChild { child_state: None, kept: None }));

/// Registers the handlers. Called once, by the constructor.
pub fn install() {
    // SAFETY: three functions of the right type.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

extern "C" fn prepare() {
    STATE.0.acquire();
    prepare_child();
    // No other thread is in the middle of a question, or of an allocation, when the child begins.
    CONTROL.acquire();
    HEAP.acquire();
}

/// The caller holds the lock of the state.
fn prepare_child() {
    // SAFETY: the lock is held.
    let (prepared, state) = unsafe { (&mut *PREPARED.0.get(), STATE.0.held()) };
    let objects = state.client.held();
    let child_state = if objects.is_empty() { None } else { ChildState::prepare(state, &objects, false) };
    let kept = if child_state.is_none() { state.connection_for_next() } else { None };
    *prepared = ForChild { child_state, kept };
}

extern "C" fn parent() {
    HEAP.release();
    // SAFETY: the lock is held since `prepare`.
    let prepared = unsafe { &mut *PREPARED.0.get() };
    // This is the child's connection to the supervisor: while it is open anywhere, the child counts as alive.
    drop(std::mem::take(prepared));
    CONTROL.release();
    STATE.0.release();
}

extern "C" fn child() {
    HEAP.reset_in_child();
    // SAFETY: the lock was taken in `prepare` by the thread that forked, the only one here.
    let (prepared, state) = unsafe { (&mut *PREPARED.0.get(), STATE.0.held()) };
    CONTROL.reset_in_child();
    forget_thread();
    stats::reset();
    urgent::forget_watch();
    state.forget_threads();
    let ForChild { child_state, kept } = std::mem::take(prepared);
    // The connection that is open here is the parent's.
    state.kept = kept;
    match child_state {
        Some(child_state) => child_state.take_over(state),
        None if state.client.held().is_empty() => {
            // The parent's connection to the supervisor stands for the parent: it must not be held open here.
            state.client.drop_sessions();
            CONTROL.with(|own| *own = None);
        }
        // The supervisor is gone: nothing can be shared.
        None => state.drop_all(),
    }
    STATE.0.reset_in_child();
}
