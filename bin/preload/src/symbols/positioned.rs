//! preadv2(2) and pwritev2(2). A socket has no position: with the position -1 they are readv(2) and writev(2)
//! with flags, and with any other they fail, as on Linux.

use std::ffi::c_int;

use atoll_sockets::Errno;
use libc::{iovec, off_t, ssize_t};

use super::octets::{receive_parts, send_parts};
use super::{length, parts_of};
use crate::real;
use crate::table::object_at;
use crate::transfer::Parts;

/// The flags that mean something for files only, and are allowed on sockets (linux/fs.h): `RWF_HIPRI`,
/// `RWF_DSYNC`, `RWF_SYNC`, `RWF_APPEND`, `RWF_NOAPPEND`, `RWF_NOSIGNAL`.
const OTHERS: c_int = 0x01 | 0x02 | 0x04 | 0x10 | 0x20 | NO_SIGNAL;
const NO_WAIT: c_int = 0x08;
const NO_SIGNAL: c_int = 0x100;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn preadv2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
) -> ssize_t {
    let Some(object) = object_at(fd) else {
        // SAFETY: passed on.
        return unsafe { real::preadv2(fd, iov, count, at, flags) };
    };
    // SAFETY: the program's memory.
    let parts = unsafe { checked(iov, count, at, flags) };
    length(parts.and_then(|(parts, flags)| receive_parts(object, &parts, flags)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn preadv64v2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: passed on; off_t has 64 bits.
    unsafe { preadv2(fd, iov, count, at, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
) -> ssize_t {
    let Some(object) = object_at(fd) else {
        // SAFETY: passed on.
        return unsafe { real::pwritev2(fd, iov, count, at, flags) };
    };
    // SAFETY: the program's memory.
    let parts = unsafe { checked(iov, count, at, flags) };
    length(parts.and_then(|(parts, flags)| send_parts(object, &parts, flags)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev64v2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: passed on; off_t has 64 bits.
    unsafe { pwritev2(fd, iov, count, at, flags) }
}

/// Returns the parts of a call, and the flags of recv(2) and send(2) for it.
///
/// # Safety
/// As for [`parts_of`].
unsafe fn checked<'a>(
    iov: *const iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
) -> Result<(Parts<'a>, c_int), Errno> {
    match at {
        -1 => {}
        ..-1 => return Err(Errno::EINVAL),
        _ => return Err(Errno::ESPIPE),
    }
    // SAFETY: the caller's promise.
    let parts = unsafe { parts_of(iov, count as usize, Errno::EINVAL) }?;
    // Of nothing, nothing else is looked at.
    if flags & !(OTHERS | NO_WAIT) != 0 && parts.len() > 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let waits = if flags & NO_WAIT == 0 { 0 } else { libc::MSG_DONTWAIT };
    let signals = if flags & NO_SIGNAL == 0 { 0 } else { libc::MSG_NOSIGNAL };
    Ok((parts, waits | signals))
}
