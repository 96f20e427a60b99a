//! Cancellation points: pthread_cancel(3) of a thread that is in a call on Atoll's sockets
//! ([`crate::sleepers`]).
//!
//! ```text
//!   canceller                                     thread
//!   the C library marks the thread                a call begins: pthread_testcancel
//!   under the lock: notes the thread, and         under the lock: notes where it sleeps, unless it is noted
//!     makes the place where it sleeps readable    sleeps, wakes, looks: ends the call with CANCELLED
//!                                                 pthread_testcancel, with nothing held any more
//! ```
//! A thread is never ended in the middle of a call: what a call holds is given back first, and octets or a
//! connection that it has taken are its result. So nothing has to be undone while the stack is unwound.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use atoll_sockets::Errno;
use libc::pthread_t;

use crate::lock::STATE;
use crate::real;
use crate::sleepers::{CANCELLED, has_requests};

unsafe extern "C" {
    fn pthread_testcancel();
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// PTHREAD_CANCEL_DEFERRED of the C library.
const DEFERRED: c_int = 0;

/// Whether this process cancels threads, or has some that may be cancelled at any time.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Runs a call that is a cancellation point: pthreads(7). Requests of before act first, and while the call
/// sleeps. The caller holds no lock, and nothing that has to be dropped.
// It is a part of its caller, as is what acts on requests: where a build unwinds for panics, the end of a
// thread may not pass a call that is in the way.
#[inline(always)]
pub fn point<R>(mut call: impl FnMut() -> Result<R, Errno>) -> Result<R, Errno> {
    loop {
        let result = if IS_USED.load(Ordering::Relaxed) { deferred(&mut call) } else { call() };
        match result {
            Err(CANCELLED) => {}
            result => return result,
        }
    }
}

/// Runs a call in which requests act at its begin only, also if they act at any time otherwise.
#[inline(always)]
fn deferred<R>(call: &mut impl FnMut() -> Result<R, Errno>) -> Result<R, Errno> {
    let mut before = DEFERRED;
    // SAFETY: a valid place for a number; all requests that have come act here.
    unsafe {
        real::pthread_setcanceltype(DEFERRED, &raw mut before);
        if has_requests() {
            STATE.with(|state| state.sleepers.forget_request());
        }
        pthread_testcancel();
    }
    let result = call();
    if before != DEFERRED {
        // SAFETY: as above.
        unsafe { real::pthread_setcanceltype(before, &raw mut before) };
    }
    result
}

/// Runs a call that is no cancellation point: a system call by an instruction. Requests act afterwards.
pub fn without_cancellation<R>(call: impl FnOnce() -> R) -> R {
    /// PTHREAD_CANCEL_DISABLE of the C library.
    const DISABLED: c_int = 1;
    if !IS_USED.load(Ordering::Relaxed) {
        return call();
    }
    let mut before = 0;
    // SAFETY: a valid place for a number.
    unsafe { pthread_setcancelstate(DISABLED, &raw mut before) };
    let result = call();
    // SAFETY: as above.
    unsafe { pthread_setcancelstate(before, &raw mut before) };
    result
}

/// Sets when requests act on this thread: pthread_setcanceltype(3).
///
/// # Safety
/// `old` is null or valid.
pub unsafe fn set_type(kind: c_int, old: *mut c_int) -> c_int {
    if kind != DEFERRED {
        IS_USED.store(true, Ordering::Relaxed);
    }
    // SAFETY: the caller's promise.
    unsafe { real::pthread_setcanceltype(kind, old) }
}

/// Cancels a thread: pthread_cancel(3).
///
/// # Safety
/// The thread has not been joined.
pub unsafe fn cancel(thread: pthread_t) -> c_int {
    IS_USED.store(true, Ordering::Relaxed);
    // SAFETY: the caller's promise.
    let result = unsafe { real::pthread_cancel(thread) };
    if result == 0 {
        STATE.with(|state| state.sleepers.request(thread));
    }
    result
}
