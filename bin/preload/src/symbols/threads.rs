//! pthread_create(3), pthread_cancel(3), pthread_setcanceltype(3), pthread_sigmask(3): threads, what ends
//! them, and which signals they block.

use std::ffi::{c_int, c_void};

use atoll_sockets::Errno;
use libc::{pthread_t, sigset_t};

use super::fail;
use crate::dispatch::{self, masks};
use crate::{cancellation, real};

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

/// What a new thread is to run.
struct Start {
    function: *const c_void,
    argument: *mut c_void,
}

/// Begins a thread: prepares it, and goes on in the program's function, as if that had been called.
#[unsafe(naked)]
extern "C" fn begin(_start: *mut c_void) -> *mut c_void {
    core::arch::naked_asm!(
        "sub rsp, 8",
        "call {prepare}",
        "add rsp, 8",
        "mov rdi, rdx",
        "jmp rax",
        prepare = sym prepare,
    )
}

/// The same for thrd_create(3): the function is another type's, and the registers are the same.
#[unsafe(naked)]
extern "C" fn begin_thrd(_start: *mut c_void) -> c_int {
    core::arch::naked_asm!("jmp {begin}", begin = sym begin)
}

/// Two words that are returned in two registers.
#[repr(C)]
struct Two(*const c_void, *mut c_void);

/// Prepares a thread. Returns what it is to run, and the argument.
extern "C" fn prepare(start: *mut Start) -> Two {
    // SAFETY: made for this thread by whoever has created it.
    let start = unsafe { Box::from_raw(start) };
    dispatch::begin_thread();
    Two(start.function, start.argument)
}

/// Creates a thread by `create`, which gets what the thread begins with.
fn create(
    function: *const c_void,
    argument: *mut c_void,
    create: impl FnOnce(*mut c_void) -> c_int,
) -> c_int {
    let start = Box::into_raw(Box::new(Start { function, argument }));
    let result = create(start.cast());
    if result != 0 {
        // SAFETY: no thread has got it.
        drop(unsafe { Box::from_raw(start) });
    }
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    if !dispatch::is_on() {
        // SAFETY: passed on.
        return unsafe { real::pthread_create(thread, attributes, start, argument) };
    }
    // SAFETY: passed on, but for the function.
    create(start as *const c_void, argument, |start| unsafe {
        real::pthread_create(thread, attributes, begin, start)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn thrd_create(
    thread: *mut pthread_t,
    start: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
) -> c_int {
    if !dispatch::is_on() {
        // SAFETY: passed on.
        return unsafe { real::thrd_create(thread, start, argument) };
    }
    // SAFETY: passed on, but for the function.
    create(start as *const c_void, argument, |start| unsafe { real::thrd_create(thread, begin_thrd, start) })
}

/// Changes the mask of this thread. Returns an errno.
unsafe fn mask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    let mut failed = 0;
    let change = |set: *const u64| {
        // SAFETY: all-zero is a valid value; the kernel's mask is the first word of the C library's.
        unsafe {
            let (mut wanted, mut before): (sigset_t, sigset_t) = std::mem::zeroed();
            if let Some(set) = set.as_ref() {
                (&raw mut wanted).cast::<u64>().write(*set);
            }
            let wanted = if set.is_null() { std::ptr::null() } else { &raw const wanted };
            failed = real::pthread_sigmask(how, wanted, &raw mut before);
            (failed == 0).then(|| (&raw const before).cast::<u64>().read())
        }
    };
    // SAFETY: null or the program's; the kernel's mask is the first word.
    let before = unsafe { masks::change(how, set.cast(), change) };
    if let Some(before) = before.filter(|_| !old.is_null()) {
        // SAFETY: the program's.
        unsafe {
            old.write(std::mem::zeroed());
            old.cast::<u64>().write(before);
        }
    }
    failed
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_sigmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: passed on.
    unsafe { mask(how, set, old) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigprocmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: passed on.
    match unsafe { mask(how, set, old) } {
        0 => 0,
        errno => fail(Errno(errno)),
    }
}
