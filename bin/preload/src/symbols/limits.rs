//! getrlimit(2), setrlimit(2), prlimit(2), for the address space of this process ([`crate::space`]) and its
//! descriptors ([`crate::beyond`]), and mlockall(2).

use std::ffi::c_int;

use libc::{pid_t, rlimit, rlimit64};

use super::answer;
use crate::beyond::with_own_limit;
use crate::lock::STATE;
use crate::settings::settings;
use crate::{real, space};

/// RLIMIT_AS.
const ADDRESS_SPACE: c_int = libc::RLIMIT_AS as c_int;

/// RLIMIT_NOFILE.
const DESCRIPTORS: c_int = libc::RLIMIT_NOFILE as c_int;

/// Runs a call that gets or sets a limit while the library has not changed it.
fn settled<R>(resource: c_int, call: impl FnOnce() -> R) -> R {
    if resource == DESCRIPTORS { with_own_limit(call) } else { call() }
}

unsafe fn get(old: *mut rlimit) -> c_int {
    answer(space::limit().map(|limit| {
        // SAFETY: the caller's promise.
        if let Some(old) = unsafe { old.as_mut() } {
            *old = limit;
        }
    }))
}

fn change(limit: rlimit) -> c_int {
    answer(space::set_limit(limit, STATE.with(|state| state.mapped())))
}

unsafe fn set(new: *const rlimit) -> c_int {
    // SAFETY: the caller's promise.
    change(unsafe { *new })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrlimit(resource: c_int, old: *mut rlimit) -> c_int {
    if resource == ADDRESS_SPACE && !old.is_null() {
        // SAFETY: the caller's promise.
        return unsafe { get(old) };
    }
    // SAFETY: passed on.
    settled(resource, || unsafe { real::getrlimit(resource, old) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrlimit64(resource: c_int, old: *mut rlimit64) -> c_int {
    // SAFETY: passed on; both are the same on 64-bit machines.
    unsafe { getrlimit(resource, old.cast()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(resource: c_int, new: *const rlimit) -> c_int {
    if resource == ADDRESS_SPACE && !new.is_null() {
        // SAFETY: the caller's promise.
        return unsafe { set(new) };
    }
    // SAFETY: passed on.
    settled(resource, || unsafe { real::setrlimit(resource, new) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit64(resource: c_int, new: *const rlimit64) -> c_int {
    // SAFETY: passed on; both are the same on 64-bit machines.
    unsafe { setrlimit(resource, new.cast()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(pid: pid_t, resource: c_int, new: *const rlimit, old: *mut rlimit) -> c_int {
    // SAFETY: only asks for the number.
    let is_own = pid == 0 || pid == unsafe { libc::getpid() };
    if resource != ADDRESS_SPACE || !is_own {
        // SAFETY: passed on.
        return settled(resource, || unsafe { real::prlimit(pid, resource, new, old) });
    }
    // SAFETY: null or the program's.
    let wanted = unsafe { new.as_ref() }.copied();
    let result = if old.is_null() {
        0
    } else {
        // SAFETY: not null, so the program's.
        unsafe { get(old) }
    };
    match wanted {
        Some(wanted) if result == 0 => change(wanted),
        _ => result,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit64(
    pid: pid_t,
    resource: c_int,
    new: *const rlimit64,
    old: *mut rlimit64,
) -> c_int {
    // SAFETY: passed on; both are the same on 64-bit machines.
    unsafe { prlimit(pid, resource, new.cast(), old.cast()) }
}

/// Locks what is mapped: mlockall(2). Arenas would take all their gigabytes of memory at once otherwise, so
/// in a program on a stack a page is locked when it is first touched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    let is_valid = flags & (libc::MCL_CURRENT | libc::MCL_FUTURE) != 0;
    let more = if is_valid && settings().socket.is_some() { libc::MCL_ONFAULT } else { 0 };
    // SAFETY: numbers only.
    unsafe { real::mlockall(flags | more) }
}
