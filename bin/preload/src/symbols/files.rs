//! open(2), openat(2) and fopen(3) of files in /proc/net, with the fortified names; other paths are passed
//! on.

use std::ffi::{c_char, c_int};

use libc::{FILE, mode_t};

use super::fail;
use crate::table::reserved;
use crate::{proc_net, real};

/// Opens a file of ours; `None` if the path is another one.
unsafe fn ours(path: *const c_char, flags: c_int) -> Option<c_int> {
    reserved::give_back();
    // SAFETY: the program's path.
    unsafe { proc_net::open(path, flags) }.map(|opened| opened.unwrap_or_else(fail))
}

/// Defines functions that open a path: `NAME [directory] [mode]`, each argument if the function has it.
macro_rules! opens {
    ($($name:ident [$($directory:ident)?] [$($mode:ident)?];)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($directory: c_int,)? path: *const c_char, flags: c_int $(, $mode: mode_t)?
        ) -> c_int {
            // SAFETY: the program's path.
            match unsafe { ours(path, flags) } {
                Some(fd) => fd,
                // SAFETY: passed on; what a program leaves out is not looked at.
                None => unsafe { real::$name($($directory,)? path, flags $(, $mode)?) },
            }
        }
    )* };
}

opens! {
    open [] [mode];
    open64 [] [mode];
    openat [directory] [mode];
    openat64 [directory] [mode];
    __open_2 [] [];
    __open64_2 [] [];
    __openat_2 [directory] [];
    __openat64_2 [directory] [];
}

/// Opens a file of ours as a stream; `None` if the path is another one.
unsafe fn stream(path: *const c_char, mode: *const c_char) -> Option<*mut FILE> {
    // SAFETY: the program's mode.
    let words = unsafe { std::ffi::CStr::from_ptr(mode) }.to_bytes();
    let access =
        if words.first() == Some(&b'r') && !words.contains(&b'+') { libc::O_RDONLY } else { libc::O_RDWR };
    let flags = access | if words.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    // SAFETY: the program's path.
    let fd = unsafe { ours(path, flags) }?;
    if fd < 0 {
        return Some(std::ptr::null_mut());
    }
    // SAFETY: a new descriptor, and the program's mode.
    let stream = unsafe { real::fdopen(fd, mode) };
    if stream.is_null() {
        crate::table::close(fd);
    }
    Some(stream)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the program's path and mode, here and below.
    match unsafe { stream(path, mode) } {
        Some(stream) => stream,
        // SAFETY: passed on.
        None => unsafe { real::fopen(path, mode) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: as for `fopen`.
    match unsafe { stream(path, mode) } {
        Some(stream) => stream,
        // SAFETY: passed on.
        None => unsafe { real::fopen64(path, mode) },
    }
}
