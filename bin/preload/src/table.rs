//! The table of descriptors: one word for each number, which every call reads in a couple of instructions.
//!
//! ```text
//!   0            the kernel's
//!   HIDDEN       this library's own: programs get EBADF
//!   RESERVED     closed by the program, and still open in the kernel ([`crate::table::reserved`])
//!   otherwise    CLOSE_ON_EXEC? | object number + 1
//! ```
//! Whether an object's descriptor closes on exec is kept here, because the kernel's descriptors of accepted
//! sockets are all CLOEXEC: neither accept(2) nor `F_SETFD` needs a system call for it.

pub mod reserved;

use crate::confinement::is_confined;
use crate::instruction::direct;
use crate::real::{last_errno, set_errno, sys};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

/// The descriptor numbers that can be Atoll's.
pub const FDS_MAX: usize = 1 << 20;
const HIDDEN: u32 = u32::MAX;
const RESERVED: u32 = u32::MAX - 1;
const CLOSE_ON_EXEC: u32 = 1 << 31;
const OBJECT: u32 = (1 << 30) - 1;

/// The table: four megabytes of zeros, of which only touched pages exist.
pub static FDS: [AtomicU32; FDS_MAX] = [const { AtomicU32::new(0) }; FDS_MAX];
/// One more than the highest number that was ever not the kernel's, for loops over all.
static END: AtomicU32 = AtomicU32::new(0);
/// The number of descriptors that are objects.
static USED: AtomicU32 = AtomicU32::new(0);

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fd {
    Kernel,
    /// The descriptor is the library's own.
    Hidden,
    Object(u32),
}

/// Looks a descriptor up. A reserved one is closed in the kernel, because the program is interested in it.
#[inline]
pub fn lookup(fd: i32) -> Fd {
    match FDS.get(fd as usize).map_or(0, |entry| entry.load(Ordering::Relaxed)) {
        0 => Fd::Kernel,
        HIDDEN => Fd::Hidden,
        RESERVED => {
            reserved::give_back();
            Fd::Kernel
        }
        n => Fd::Object((n & OBJECT) - 1),
    }
}

/// Returns the object behind a descriptor.
#[inline]
pub fn object_at(fd: i32) -> Option<u32> {
    match lookup(fd) {
        Fd::Object(object) => Some(object),
        _ => None,
    }
}

/// Returns whether an object's descriptor closes on exec.
pub fn closes_on_exec(fd: i32) -> bool {
    FDS.get(fd as usize).is_some_and(|entry| entry.load(Ordering::Relaxed) & CLOSE_ON_EXEC != 0)
}

/// Returns whether the program has any descriptor of ours.
pub fn any_objects() -> bool {
    USED.load(Ordering::Relaxed) != 0
}

/// Ties a descriptor to an object. Returns false for a number beyond the table.
pub fn set_object(fd: i32, object: u32, close_on_exec: bool) -> bool {
    set(fd, (object + 1) | if close_on_exec { CLOSE_ON_EXEC } else { 0 })
}

/// Sets whether an object's descriptor closes on exec.
pub fn set_close_on_exec(fd: i32, on: bool) {
    if let Fd::Object(object) = lookup(fd) {
        set_object(fd, object, on);
    }
}

/// Gives a number back to the kernel.
pub fn set_kernel(fd: i32) {
    set(fd, 0);
}

/// Marks a number as the library's own, for as long as a call waits for a connection that is to have it.
pub fn set_hidden(fd: i32) {
    set(fd, HIDDEN);
}

/// Marks a number that the program has closed, and the kernel has not.
pub fn set_reserved(fd: i32) {
    set(fd, RESERVED);
}

fn set(fd: i32, value: u32) -> bool {
    let Some(entry) = FDS.get(fd as usize) else { return false };
    let counts = |value: u32| value != 0 && value < RESERVED;
    let before = entry.swap(value, Ordering::Relaxed);
    match (counts(before), counts(value)) {
        (false, true) => {
            USED.fetch_add(1, Ordering::Relaxed);
        }
        (true, false) => {
            USED.fetch_sub(1, Ordering::Relaxed);
        }
        _ => {}
    }
    END.fetch_max(fd as u32 + 1, Ordering::Relaxed);
    true
}

/// Returns all descriptors from `first` to `last` that are objects, with their objects.
pub fn objects_between(first: u32, last: u32) -> impl Iterator<Item = (i32, u32)> {
    let end = END.load(Ordering::Relaxed).min(last.saturating_add(1));
    (first.min(end)..end).filter_map(|fd| object_at(fd as i32).map(|object| (fd as i32, object)))
}

/// Returns the next number from `from` on that programs must not touch.
pub fn next_hidden(from: u32) -> Option<u32> {
    (from..END.load(Ordering::Relaxed)).find(|fd| lookup(*fd as i32) == Fd::Hidden)
}

/// A descriptor of this library, which programs do not meet and cannot use. It is closed on drop, past the
/// `close` of this library.
#[derive(Debug)]
pub struct Internal(RawFd);

impl Internal {
    /// Notes that a number is the library's own. [`crate::beyond`] moves it to its place before.
    pub fn at(fd: RawFd) -> Internal {
        set(fd, HIDDEN);
        Internal(fd)
    }

    /// Wraps a descriptor that was inherited over exec, at its number.
    pub fn inherited(fd: RawFd) -> Internal {
        // SAFETY: sets a flag of a descriptor.
        unsafe { sys!(libc::SYS_fcntl, fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        set(fd, HIDDEN);
        Internal(fd)
    }

    /// Closes descriptors together: those with consecutive numbers by one call.
    pub fn close_all(descriptors: Vec<Internal>) {
        let numbers: Vec<RawFd> = descriptors.iter().map(Internal::number).collect();
        for descriptor in descriptors {
            set(descriptor.0, 0);
            std::mem::forget(descriptor);
        }
        for run in numbers.chunk_by(|one, next| one + 1 == *next) {
            close_all(run[0], run.len() as i32);
        }
    }

    /// Forgets a descriptor that another process has, which shares the memory of this one, and no
    /// descriptors.
    pub fn disown(self) {
        // A call that succeeds leaves errno alone.
        let errno = last_errno();
        // SAFETY: asks for a flag.
        if unsafe { sys!(libc::SYS_fcntl, self.0, libc::F_GETFD) } < 0 {
            set(self.0, 0);
        }
        set_errno(errno);
        std::mem::forget(self);
    }

    /// Sets whether the next program image gets the descriptor.
    pub fn set_inheritable(&self, inheritable: bool) {
        let flags = if inheritable { 0 } else { libc::FD_CLOEXEC };
        // SAFETY: sets a flag of a descriptor.
        unsafe { sys!(libc::SYS_fcntl, self.0, libc::F_SETFD, flags) };
    }

    /// Returns the descriptor's number.
    pub fn number(&self) -> RawFd {
        self.0
    }
}

impl Drop for Internal {
    fn drop(&mut self) {
        set(self.0, 0);
        close(self.0);
    }
}

impl AsFd for Internal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open while `self` lives.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

impl AsRawFd for Internal {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

/// Closes a descriptor by close(2), past the `close` of this library.
pub fn close(fd: RawFd) {
    // SAFETY: the caller's descriptor.
    unsafe { sys!(libc::SYS_close, fd) };
}

/// Closes `count` descriptors from `first` on, all of which are the caller's.
pub fn close_all(first: RawFd, count: i32) {
    let last = first + count - 1;
    // close_range(2) is new in Linux 5.9, and a process that forbids itself calls may not know of it.
    if count > 1 && !is_confined() {
        // SAFETY: the caller's descriptors.
        if unsafe { direct(libc::SYS_close_range, [first.into(), last.into(), 0, 0, 0, 0]) } == 0 {
            return;
        }
    }
    (first..=last).for_each(close);
}

/// Duplicates a descriptor to a number of at least `from`, CLOEXEC. Returns a negative number if that fails.
pub fn duplicate(fd: RawFd, from: RawFd) -> RawFd {
    // SAFETY: makes a descriptor.
    unsafe { sys!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, from) as RawFd }
}

/// Sets or clears FD_CLOEXEC of the kernel's descriptor.
pub fn set_kernel_cloexec(fd: RawFd, on: bool) {
    // SAFETY: sets a flag of a descriptor.
    unsafe { sys!(libc::SYS_fcntl, fd, libc::F_SETFD, if on { libc::FD_CLOEXEC } else { 0 }) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_closed_together_and_those_between_them_are_not() {
        // Numbers that no other test of this process uses.
        let at = |number: i32| {
            // SAFETY: makes a descriptor, or examines one.
            unsafe { libc::fcntl(0, libc::F_DUPFD_CLOEXEC, number) }
        };
        let is_open = |number: i32| {
            // SAFETY: asks about a number.
            unsafe { libc::fcntl(number, libc::F_GETFD) >= 0 }
        };
        let numbers: Vec<i32> = (700..706).map(at).collect();
        assert_eq!(numbers, [700, 701, 702, 703, 704, 705]);
        let (stays, ours) = (703, [700, 701, 702, 704, 705]);
        Internal::close_all(ours.map(Internal::at).into());
        assert!(is_open(stays) && !ours.into_iter().any(is_open));
        assert!(ours.iter().all(|number| lookup(*number) == Fd::Kernel));
        close(stays);
        Internal::close_all(Vec::new());
    }
}
