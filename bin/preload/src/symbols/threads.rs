//! pthread_cancel(3), pthread_setcanceltype(3).

use std::ffi::c_int;

use libc::pthread_t;

use crate::cancellation;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cancel(thread: pthread_t) -> c_int {
    // SAFETY: passed on.
    unsafe { cancellation::cancel(thread) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int {
    // SAFETY: passed on.
    unsafe { cancellation::set_type(kind, old) }
}
