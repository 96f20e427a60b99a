//! Descriptors of the library's own, beyond those that the program may have: getrlimit(2), RLIMIT_NOFILE.
//!
//! A new descriptor gets the lowest free number, and fails with EMFILE if that is not below the soft limit.
//! One that has its number keeps it, whatever the limit becomes. So the library raises the limit for the
//! moment in which it makes descriptors, and moves these to numbers that the program cannot reach: it
//! neither meets them, nor do they count against its limit.
//!
//! | soft limit | where the library's descriptors are |
//! |---|---|
//! | up to [`FIRST_MAX`] | from the limit on |
//! | larger | from [`FIRST_MAX`] on: the kernel's table of descriptors is as large as the highest number, and every fork copies it |
//! | as large as the hard limit, without CAP_SYS_RESOURCE | in the last quarter below it, or from [`FIRST_MAX`] on |
//!
//! The program shall not see the raised limit, so calls that get or set it wait, and so do those that make a
//! process or execute a program ([`LIMIT`]). A process that has forbidden itself system calls leaves the
//! limit as it is.

use std::ffi::c_long;
use std::os::fd::{IntoRawFd, OwnedFd};

use libc::rlimit;

use crate::confinement::is_confined;
use crate::futex_lock::FutexLock;
use crate::instruction::direct;
use crate::real::last_errno;
use crate::table::{self, Internal};

/// The highest number at which the library's descriptors begin.
const FIRST_MAX: u64 = 1024;

/// The number of descriptors by which the limit is raised.
const ROOM: u64 = 4096;

/// The lock that is held while the limit is raised. It is taken after all others but that of the heap.
pub static LIMIT: FutexLock<()> = FutexLock::new(());

/// The permission to make descriptors of the library's own.
pub struct Room {
    /// The lowest number that they may have.
    first: i32,
}

impl Room {
    /// Makes a new descriptor the library's own, and moves it to its place. If that fails, it stays where it
    /// is.
    pub fn keep(&self, fd: OwnedFd) -> Internal {
        let low = fd.into_raw_fd();
        let kept = self.place(low);
        if kept.number() != low {
            table::close(low);
        }
        kept
    }

    /// Makes new descriptors the library's own, as [`Room::keep`] does. What is closed has consecutive
    /// numbers for the most part, and then takes one call.
    pub fn keep_all(&self, fds: Vec<OwnedFd>) -> Vec<Internal> {
        let lows: Vec<i32> = fds.into_iter().map(IntoRawFd::into_raw_fd).collect();
        let kept: Vec<Internal> = lows.iter().map(|low| self.place(*low)).collect();
        let moved = lows.iter().zip(&kept).filter(|(low, kept)| kept.number() != **low);
        let moved: Vec<i32> = moved.map(|(low, _)| *low).collect();
        for run in moved.chunk_by(|one, next| one + 1 == *next) {
            table::close_all(run[0], run.len() as i32);
        }
        kept
    }

    /// Duplicates a new descriptor to its place, unless it is there already, or there is no more room.
    fn place(&self, low: i32) -> Internal {
        let high = if low >= self.first { -1 } else { table::duplicate(low, self.first) };
        Internal::at(if high >= 0 { high } else { low })
    }
}

/// Runs `make`, which makes descriptors of the library's own and takes no lock but that of the heap, with
/// room for them.
pub fn with_room<R>(make: impl FnOnce(&Room) -> R) -> R {
    if is_confined() {
        return make(&Room { first: first_below(limit().rlim_cur) });
    }
    LIMIT.with(|()| {
        let before = limit();
        let is_raised = raise(before);
        let first =
            if is_raised { before.rlim_cur.min(FIRST_MAX) as i32 } else { first_below(before.rlim_cur) };
        let result = make(&Room { first });
        if is_raised {
            let errno = last_errno();
            set_limit(before);
            // SAFETY: a valid thread-local of the C library.
            unsafe { *libc::__errno_location() = errno.0 };
        }
        result
    })
}

/// Runs a call that sees the limit, or makes a process that has it, while it is as the program has set it.
pub fn with_own_limit<R>(call: impl FnOnce() -> R) -> R {
    LIMIT.with(|()| call())
}

/// Returns where descriptors begin that have to be below the limit: all programs use low numbers, and few
/// count up to the limit.
fn first_below(soft: u64) -> i32 {
    (soft / 4 * 3).min(FIRST_MAX) as i32
}

/// Raises the soft limit, and the hard one if it has to be and may be. Returns whether there is room now.
fn raise(before: rlimit) -> bool {
    let wanted = before.rlim_cur.saturating_add(ROOM);
    if wanted <= before.rlim_max {
        return set_limit(rlimit { rlim_cur: wanted, ..before });
    }
    set_limit(rlimit { rlim_cur: wanted, rlim_max: wanted })
        || before.rlim_cur < before.rlim_max && set_limit(rlimit { rlim_cur: before.rlim_max, ..before })
}

fn limit() -> rlimit {
    let mut limit = rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: asks about this process; the target is valid.
    unsafe { prlimit(std::ptr::null(), &raw mut limit) };
    limit
}

fn set_limit(limit: rlimit) -> bool {
    // SAFETY: the new limit is valid.
    unsafe { prlimit(&raw const limit, std::ptr::null_mut()) == 0 }
}

/// Calls prlimit(2) for this process by the instruction that is let through even where the C library's own
/// calls are dispatched: dispatched, it would wait for [`LIMIT`], which its caller holds.
unsafe fn prlimit(new: *const rlimit, old: *mut rlimit) -> c_long {
    let words = [0, libc::RLIMIT_NOFILE.into(), new as c_long, old as c_long, 0, 0];
    // SAFETY: the caller's promise: each is null or valid.
    unsafe { direct(libc::SYS_prlimit64, words) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn descriptors_of_the_library_are_beyond_the_limit_which_stays_as_it_is() {
        let before = limit();
        let file = || OwnedFd::from(std::fs::File::open("/dev/null").expect("it can be opened"));
        let low = file();
        let number = low.as_raw_fd();
        // The test may be run with any limits, by any user.
        let is_raisable = LIMIT.with(|()| {
            let is_raised = raise(before);
            set_limit(before);
            is_raised
        });
        let kept = with_room(|room| room.keep(low));
        let first =
            if is_raisable { before.rlim_cur.min(FIRST_MAX) as i32 } else { first_below(before.rlim_cur) };
        assert!(kept.number() >= first, "{} {first}", kept.number());
        assert_ne!(kept.number(), number);
        let after = limit();
        assert_eq!((after.rlim_cur, after.rlim_max), (before.rlim_cur, before.rlim_max));
    }
}
