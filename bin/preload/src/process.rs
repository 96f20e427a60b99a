//! What happens to sockets when a process forks? pthread_atfork(3); see [`crate::child_state`].

use std::cell::UnsafeCell;

use crate::backlog;
use crate::child_state::ChildState;
use crate::family::forget_thread;
use crate::session::Control;
use crate::state::{STATE, State};
use crate::stats;

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

/// Registers the handlers. Once, from the constructor.
pub fn install() {
    // SAFETY: three functions of the right type.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

/// Objects that a child has to hold: those that are more than placeholders.
fn to_be_held(state: &State) -> Vec<u32> {
    let is_held = |object: &u32| state.socket(*object).is_some_and(|s| s.lease != 0 || !s.places().is_empty());
    state.objects.indices().into_iter().filter(is_held).collect()
}

extern "C" fn prepare() {
    STATE.acquire();
    // SAFETY: the lock is held.
    let (prepared, state) = unsafe { (&mut *PREPARED.0.get(), STATE.held()) };
    let objects = to_be_held(state);
    let child_state = if objects.is_empty() { None } else { ChildState::prepare(state, &objects, false) };
    let kept = if child_state.is_none() { state.connection_for_next() } else { None };
    *prepared = ForChild { child_state, kept };
}

extern "C" fn parent() {
    // SAFETY: the lock is held since `prepare`.
    let prepared = unsafe { &mut *PREPARED.0.get() };
    // The child's connection to the supervisor: as long as it is open anywhere, the child counts as alive.
    drop(std::mem::take(prepared));
    STATE.release();
}

extern "C" fn child() {
    // SAFETY: the lock was taken in `prepare` by the thread that forked, the only one here.
    let (prepared, state) = unsafe { (&mut *PREPARED.0.get(), STATE.held()) };
    forget_thread();
    backlog::reset_in_child();
    stats::reset();
    state.forget_threads();
    let ForChild { child_state, kept } = std::mem::take(prepared);
    // The one that is open here is the parent's.
    state.kept = kept;
    match child_state {
        Some(child_state) => child_state.take_over(state),
        None if to_be_held(state).is_empty() => {
            // The parent's connection to the supervisor stands for the parent: it must not be held open here.
            state.sessions.clear();
            state.control = None;
        }
        // The supervisor is not there: nothing can be shared.
        None => state.drop_all(),
    }
    STATE.reset_in_child();
}
