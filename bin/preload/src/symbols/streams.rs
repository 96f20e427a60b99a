//! fdopen(3), and stdin, stdout and stderr. stdio reads and writes inside the C library, so a stream on a
//! socket of ours gets its own functions.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{FILE, size_t, ssize_t};

use super::{descriptors, octets};
use crate::lock::STATE;
use crate::streams::STREAMS;
use crate::{real, table};

/// The `cookie_io_functions_t` of stdio.h.
#[repr(C)]
struct Functions {
    read: Option<unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t>,
    write: Option<unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t>,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

static ANY: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn read(cookie: *mut c_void, buf: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: memory of the C library.
    unsafe { octets::read(cookie as usize as c_int, buf.cast(), len) }
}

unsafe extern "C" fn write(cookie: *mut c_void, buf: *const c_char, len: size_t) -> ssize_t {
    // SAFETY: memory of the C library. fopencookie(3): 0, not -1, says that it failed.
    unsafe { octets::write(cookie as usize as c_int, buf.cast(), len) }.max(0)
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    let fd = cookie as usize as c_int;
    STREAMS.with(|streams| streams.retain(|(_, of)| *of != fd));
    // SAFETY: the stream's descriptor.
    unsafe { descriptors::close(fd) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    let is_socket =
        table::object_at(fd).is_some_and(|object| STATE.with(|state| state.client.socket(object).is_some()));
    if !is_socket {
        // SAFETY: passed on.
        return unsafe { real::fdopen(fd, mode) };
    }
    // SAFETY: the program's mode.
    unsafe { open(fd, mode) }
}

/// Opens a stream with functions of ours.
unsafe fn open(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions = Functions { read: Some(read), write: Some(write), seek: None, close: Some(close) };
    // SAFETY: the caller's mode; the cookie is a number.
    let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
    if !stream.is_null() {
        STREAMS.with(|streams| streams.push((stream as usize, fd)));
        ANY.store(true, Ordering::Relaxed);
    }
    stream
}

/// Replaces the standard stream of number 0, 1 or 2, which has become a socket, by one of ours. In the GNU C
/// library the three are variables ("Standard Streams" in its manual). The new stream follows the number,
/// whatever that becomes later.
pub fn replace_standard(fd: c_int) {
    let (variable, mode) = match fd {
        0 => (&raw mut stdin, c"r"),
        1 => (&raw mut stdout, c"w"),
        2 => (&raw mut stderr, c"w"),
        _ => return,
    };
    if STREAMS.with(|streams| streams.iter().any(|(_, of)| *of == fd)) {
        return;
    }
    // SAFETY: variables and functions of the C library; stdio has no lock on the variables themselves, so a
    // program that changes descriptors 0 to 2 while other threads print has a race of its own.
    unsafe {
        let stream = open(fd, mode.as_ptr());
        if stream.is_null() {
            return;
        }
        if fd == 2 {
            libc::setvbuf(stream, std::ptr::null_mut(), libc::_IONBF, 0);
        }
        *variable = stream;
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fileno(stream: *mut FILE) -> c_int {
    if ANY.load(Ordering::Relaxed) {
        let known =
            STREAMS.with(|streams| streams.iter().find(|(s, _)| *s == stream as usize).map(|(_, fd)| *fd));
        if let Some(fd) = known {
            return fd;
        }
    }
    // SAFETY: passed on.
    unsafe { real::fileno(stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fileno_unlocked(stream: *mut FILE) -> c_int {
    // SAFETY: passed on.
    unsafe { fileno(stream) }
}
