//! Files of /proc/net for programs on the stack: open(2) gives a file with what the stack shows at that
//! moment.
//!
//! The file is a memfd, opened for reading only. So a program that reads it again from its beginning reads
//! what it has read before, where the kernel's files would be made anew.

use std::ffi::{CStr, c_char, c_int};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use atoll_ipc::listing::{self, SocketEntry};
use atoll_sockets::Errno;
use atoll_sockets::view::proc_net::{self, File};

use crate::control::{Control, Reason};
use crate::interfaces::view;
use crate::real::{count_system_call, last_errno, sys};
use crate::settings::settings;
use crate::supervisor::SUPERVISOR;

/// Opens a file of /proc/net that shows the stack: open(2). `None` means that the path is another one, or the
/// program is on no stack. Fails with ENOENT for a file about which the stack knows nothing, and with EACCES
/// for writing.
///
/// # Safety
/// `path` is null or text that ends with a zero.
pub unsafe fn open(path: *const c_char, flags: c_int) -> Option<Result<c_int, Errno>> {
    const PROC: &[u8] = b"/proc/";
    if path.is_null() {
        return None;
    }
    // Most paths differ in the first octets.
    // SAFETY: each octet is read only if none before it ends the text.
    let is_there = PROC.iter().enumerate().all(|(at, octet)| unsafe { *path.cast::<u8>().add(at) } == *octet);
    if !is_there || settings().socket.is_none() {
        return None;
    }
    // SAFETY: the caller's promise.
    let file = proc_net::file(unsafe { CStr::from_ptr(path) }.to_bytes())?;
    let view = match view() {
        Ok(view) => view?,
        Err(errno) => return Some(Err(errno)),
    };
    let Some(file) = file else { return Some(Err(Errno::ENOENT)) };
    if flags & libc::O_ACCMODE != libc::O_RDONLY {
        return Some(Err(Errno::EACCES));
    }
    if flags & libc::O_DIRECTORY != 0 {
        return Some(Err(Errno(libc::ENOTDIR)));
    }
    let text = match file {
        File::Plain(file) => Ok(proc_net::plain(&view, file)),
        File::Sockets { udp, v6 } => sockets().map(|entries| proc_net::sockets(&entries, udp, v6)),
    };
    Some(text.and_then(|text| give(text.as_bytes(), flags)))
}

/// Returns the sockets of the whole stack. The caller holds no lock.
fn sockets() -> Result<Vec<SocketEntry>, Errno> {
    // The list comes over a connection of its own: it may be long, and other threads have questions.
    let begun = SUPERVISOR.with(|connections| connections.another(Control::ask_for_sockets));
    let (control, mut list) = begun.map_err(Reason::errno)?;
    while !list.is_whole {
        control.more_sockets(&mut list).map_err(Reason::errno)?;
    }
    listing::merge(&mut list.entries);
    Ok(list.entries)
}

/// Returns a descriptor of the lowest number, from which these octets can be read.
fn give(octets: &[u8], flags: c_int) -> Result<c_int, Errno> {
    count_system_call();
    // SAFETY: makes a descriptor; the name is a constant.
    let memory = unsafe { sys!(libc::SYS_memfd_create, c"proc".as_ptr(), libc::MFD_CLOEXEC) };
    if memory < 0 {
        return Err(last_errno());
    }
    // SAFETY: just created, owned by nobody else.
    let memory = unsafe { OwnedFd::from_raw_fd(memory as c_int) };
    let mut file = std::fs::File::from(memory);
    file.write_all(octets).map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))?;
    let path = format!("/proc/self/fd/{}\0", file.as_raw_fd());
    let flags = libc::O_RDONLY | (flags & (libc::O_CLOEXEC | libc::O_NONBLOCK));
    // SAFETY: makes a descriptor; the path ends with a zero.
    let fd = unsafe { sys!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) };
    if fd < 0 {
        return Err(last_errno());
    }
    // The program gets the lower number.
    let (fd, own) = (fd as c_int, file.as_raw_fd());
    // SAFETY: moves the new descriptor to a number of ours, which is dropped then.
    let moved = unsafe { sys!(libc::SYS_dup3, fd, own, flags & libc::O_CLOEXEC) };
    if moved < 0 {
        return Ok(fd);
    }
    std::mem::forget(file);
    crate::table::close(fd);
    Ok(own)
}
