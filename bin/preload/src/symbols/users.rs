//! setuid(2) and similar calls. A socket belongs to the user that has made it, as on Linux, even if the
//! process changes its user before the socket has a port.
//!
//! If a program changes its user by the system call itself, such a socket belongs to the user that binds it.

use std::ffi::{c_int, c_void};

use libc::uid_t;

use crate::{real, supervisor, table, urgent};

pub fn before_change() {
    if table::any_objects() {
        supervisor::before_user_changes();
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setuid(uid: uid_t) -> c_int {
    before_change();
    // SAFETY: passed on.
    unsafe { real::setuid(uid) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn seteuid(uid: uid_t) -> c_int {
    before_change();
    // SAFETY: passed on.
    unsafe { real::seteuid(uid) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setreuid(real: uid_t, effective: uid_t) -> c_int {
    before_change();
    // SAFETY: passed on.
    unsafe { real::setreuid(real, effective) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int {
    before_change();
    // SAFETY: passed on.
    unsafe { real::setresuid(real, effective, saved) }
}

/// Passes on capset(2), which is for the running thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn capset(header: *mut c_void, data: *const c_void) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real::capset(header, data) };
    urgent::renew_watch();
    result
}
