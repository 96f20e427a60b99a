//! Reserved descriptors: numbers of closed connections, for those that are accepted next.
//!
//! A connection that is accepted needs a descriptor of the kernel, which costs a system call, and so does
//! closing it. A busy server does both all the time. So the kernel's descriptor of a connection that the
//! program closes stays open for a moment, and the next accept(2) takes it over.
//!
//! ```text
//!   close  --put-->  SLOTS  --take-->  accept
//!                      |
//!                  give_back: the kernel closes them
//! ```
//! The program shall not notice. On Linux a closed number is free at once: calls on it fail with EBADF, and
//! the lowest free number is the next. Therefore:
//!
//! * Every call of the program that makes, closes or examines a descriptor of the kernel gives all of them
//!   back first. What remains is a program that accepts, reads, writes and closes connections, and does
//!   nothing else.
//! * A thread that sleeps gives them back if no connection was accepted since a thread slept last, so that
//!   other processes do not see them for long in `/proc/PID/fd`.
//! * A number is taken only if no lower one is free, as far as the library has seen ([`TAKEN_BELOW`]).
//!
//! All of this is atomic words, without a lock: threads that open files do not wait for those that accept.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use crate::real::count_system_call;
use crate::table;

/// The most reserved descriptors. More make nothing cheaper: a busy server closes about as many connections
/// as it accepts.
const SLOTS_MAX: usize = 16;

/// The numbers, each plus one; 0 is an empty slot.
#[repr(align(64))]
struct Slots([AtomicI32; SLOTS_MAX]);

static SLOTS: Slots = Slots([const { AtomicI32::new(0) }; SLOTS_MAX]);

/// The number of slots in use, or soon in use.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// All numbers below this one are open, as far as the library has seen. The C library opens and closes some
/// descriptors itself: what it opens does no harm here, and what it closes goes unnoticed.
static TAKEN_BELOW: AtomicI32 = AtomicI32::new(0);

/// Whether a connection was accepted since a thread slept last.
static IS_BUSY: AtomicBool = AtomicBool::new(false);

/// Gives the reserved descriptors back if the program is not busy with connections. The running thread is
/// about to sleep.
#[inline]
pub fn before_sleep() {
    if COUNT.load(Ordering::Relaxed) != 0 && !IS_BUSY.swap(false, Ordering::Relaxed) {
        give_all_back();
    }
}

/// Lets the kernel close all reserved descriptors. Returns whether there may have been any.
#[inline]
pub fn give_back() -> bool {
    let is_any = COUNT.load(Ordering::Relaxed) != 0;
    if is_any {
        give_all_back();
    }
    is_any
}

#[cold]
fn give_all_back() {
    for slot in &SLOTS.0 {
        if let Some(fd) = empty(slot) {
            // In this order: once it is closed, another thread may have it.
            table::set_kernel(fd);
            count_system_call();
            table::close(fd);
            note_free(fd);
        }
    }
}

fn empty(slot: &AtomicI32) -> Option<i32> {
    let number = slot.swap(0, Ordering::AcqRel);
    if number == 0 {
        return None;
    }
    COUNT.fetch_sub(1, Ordering::Relaxed);
    Some(number - 1)
}

/// Reserves the number of a connection that the program has closed. Returns false if there are enough.
pub fn put(fd: i32) -> bool {
    // Counted first, so that nobody overlooks it.
    COUNT.fetch_add(1, Ordering::Relaxed);
    table::set_reserved(fd);
    let is_put = SLOTS.0.iter().any(|slot| {
        slot.load(Ordering::Relaxed) == 0
            && slot.compare_exchange(0, fd + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    });
    if !is_put {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
    is_put
}

/// Takes the lowest reserved number; `None` if there is none, or if a lower number may be free.
pub fn take() -> Option<i32> {
    while COUNT.load(Ordering::Relaxed) != 0 {
        let numbers = SLOTS.0.iter().map(|slot| (slot.load(Ordering::Relaxed), slot));
        let (number, slot) = numbers.filter(|(number, _)| *number != 0).min_by_key(|(number, _)| *number)?;
        if number > TAKEN_BELOW.load(Ordering::Relaxed) {
            return None;
        }
        if slot.compare_exchange(number, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            COUNT.fetch_sub(1, Ordering::Relaxed);
            IS_BUSY.store(true, Ordering::Relaxed);
            return Some(number - 1);
        }
    }
    None
}

/// Makes a descriptor by `make`, which gives it the lowest number that is free in the kernel, and notes that.
pub fn lowest(make: impl FnOnce() -> i32) -> i32 {
    let before = TAKEN_BELOW.load(Ordering::Relaxed);
    let fd = make();
    if fd >= 0 {
        IS_BUSY.store(true, Ordering::Relaxed);
        // If another thread has closed a lower number meanwhile, that counts.
        let _ = TAKEN_BELOW.compare_exchange(before, fd + 1, Ordering::Relaxed, Ordering::Relaxed);
    }
    fd
}

/// Notes that the kernel has closed a number.
#[inline]
pub fn note_free(fd: i32) {
    TAKEN_BELOW.fetch_min(fd, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, because the numbers are those of the whole process.
    #[test]
    fn the_lowest_number_comes_first_and_all_can_be_given_back() {
        let open = || {
            // SAFETY: makes a descriptor.
            unsafe { libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 300) }
        };
        let numbers: Vec<i32> = (0..SLOTS_MAX + 1).map(|_| open()).collect();
        lowest(|| numbers[SLOTS_MAX]);
        let (kept, over) = numbers.split_at(SLOTS_MAX);
        assert!(kept.iter().rev().all(|fd| put(*fd)));
        assert!(!put(over[0]), "there are enough");
        assert_eq!((take(), take()), (Some(kept[0]), Some(kept[1])));
        // The program has closed a lower number meanwhile.
        note_free(kept[1]);
        assert_eq!(take(), None, "a lower number is free");
        let count = || COUNT.load(Ordering::Relaxed) as usize;
        before_sleep();
        assert_eq!(count(), SLOTS_MAX - 2, "connections were accepted");
        before_sleep();
        assert_eq!(count(), 0, "none was accepted since");
        let is_open = |fd: &&i32| {
            // SAFETY: asks about a number.
            unsafe { libc::fcntl(**fd, libc::F_GETFD) >= 0 }
        };
        assert_eq!(kept.iter().filter(is_open).count(), 2, "those that were taken");
        lowest(|| over[0]);
        assert_eq!(take(), None, "none is left");
        [kept[0], kept[1], over[0]].into_iter().for_each(table::close);
    }
}
