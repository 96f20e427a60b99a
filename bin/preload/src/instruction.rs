//! The instruction by which this library makes system calls that are not to be dispatched to itself
//! ([`crate::dispatch`]), and that leave the C library's errno alone.

use std::ffi::{c_int, c_long};
use std::ptr;
use std::sync::atomic::AtomicU32;

use atoll_base::Duration;
pub use atoll_sys::instruction::{INSTRUCTION, direct};
use libc::timespec;

/// Lets another thread run first: sched_yield(2).
#[inline]
pub fn yield_now() {
    // SAFETY: no arguments.
    unsafe { direct(libc::SYS_sched_yield, [0; 6]) };
}

/// Wakes the processes that watch a doorbell; see [`atoll_sys::eventfd`].
pub fn ring(bell: c_int) {
    let mut count = [0u8; 8];
    let words = [bell.into(), count.as_mut_ptr() as c_long, count.len() as c_long, 0, 0, 0];
    // SAFETY: a descriptor of ours, and room for its counter.
    unsafe { direct(libc::SYS_read, words) };
}

/// Sleeps while a word of shared memory is as expected: futex(2). Returns also for no reason.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    futex_wait_at(word.as_ptr() as usize, expected, timeout);
}

/// Sleeps while the word at an address is as expected. Returns at once if there is no such word any more.
pub fn futex_wait_at(address: usize, expected: u32, timeout: Option<Duration>) {
    let timeout = timeout.map(|t| timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    let (word, operation) = (address as c_long, libc::FUTEX_WAIT.into());
    // SAFETY: the kernel reads the word, and fails with EFAULT if it cannot; a time or null.
    unsafe { direct(libc::SYS_futex, [word, operation, expected.into(), timeout as c_long, 0, 0]) };
}

/// Wakes at most so many threads that sleep on a word: futex(2).
pub fn futex_wake(word: &AtomicU32, count: u32) {
    // The kernel takes a signed count.
    let count = count.min(i32::MAX as u32);
    let (word, operation) = (word.as_ptr() as c_long, libc::FUTEX_WAKE.into());
    // SAFETY: a word that outlives the call.
    unsafe { direct(libc::SYS_futex, [word, operation, count.into(), 0, 0, 0]) };
}
