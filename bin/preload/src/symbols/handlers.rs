//! sigaction(2), signal(2), siginterrupt(3), sigaltstack(2): see [`crate::handlers`].

use std::ffi::c_int;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{SA_NODEFER, SA_RESETHAND, SA_RESTART, SIG_ERR, sighandler_t};

use crate::signals::bit;
use crate::{handlers, real, shadow};

/// The signals that interrupt calls although signal(2) set their handlers, a bit each: siginterrupt(3).
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { handlers::set(signal, new, old) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { handlers::set(signal, new, old) }
}

/// Changes the alternate stack of this thread. Calls that come without a trap know it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaltstack(new: *const libc::stack_t, old: *mut libc::stack_t) -> c_int {
    shadow::end_own();
    // SAFETY: passed on.
    unsafe { real::sigaltstack(new, old) }
}

fn set(signal: c_int, handler: sighandler_t, flags: c_int) -> sighandler_t {
    // SAFETY: all-zero is a valid value.
    let (mut new, mut old): (libc::sigaction, libc::sigaction) = unsafe { mem::zeroed() };
    (new.sa_sigaction, new.sa_flags) = (handler, flags);
    // SAFETY: both are valid.
    if unsafe { handlers::set(signal, &raw const new, &raw mut old) } < 0 {
        return SIG_ERR;
    }
    old.sa_sigaction
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    let interrupts = INTERRUPTING.load(Ordering::Relaxed) & bit(signal) != 0;
    set(signal, handler, if interrupts { 0 } else { SA_RESTART })
}

/// signal(2) under its other names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's promise.
    unsafe { signal(number, handler) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's promise.
    unsafe { signal(number, handler) }
}

/// signal(2) of System V: the handler runs once, and its signal is not blocked meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    set(signal, handler, SA_RESETHAND | SA_NODEFER)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    set(signal, handler, SA_RESETHAND | SA_NODEFER)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    // SAFETY: all-zero is a valid value.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: valid, or null.
    if unsafe { handlers::set(signal, std::ptr::null(), &raw mut action) } < 0 {
        return -1;
    }
    if interrupts == 0 {
        INTERRUPTING.fetch_and(!bit(signal), Ordering::Relaxed);
        action.sa_flags |= SA_RESTART;
    } else {
        INTERRUPTING.fetch_or(bit(signal), Ordering::Relaxed);
        action.sa_flags &= !SA_RESTART;
    }
    // SAFETY: as above.
    unsafe { handlers::set(signal, &raw const action, std::ptr::null_mut()) }
}
