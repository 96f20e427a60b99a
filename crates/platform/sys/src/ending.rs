//! Who hears first that a process ends? Who waits on a word that the kernel marks: get_robust_list(2).
//!
//! A pidfd tells that a process has ended, which it has when the kernel has taken its memory apart: a millisecond or more, with much memory many. The word is
//! marked before that, and after the last instruction of the program. It may also be marked by whoever else can write it: what the kernel
//! says of the process has to be asked.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rustix::thread::gettid;

use crate::futex;

/// The head of a thread's list of robust futexes, as the kernel defines it.
#[repr(C)]
struct RobustList {
    first: usize,
    /// From an entry to its futex.
    offset: isize,
    /// The entry that is being locked or unlocked; 0: none.
    pending: AtomicUsize,
}

/// The kernel marks the word when the calling thread ends, and wakes who waits in [`await_mark`]. For a thread that uses no robust mutexes, and one
/// word. The word has to stay where it is for as long as the thread lives.
///
/// Fails with ENOSYS where there are no such lists.
pub fn mark_at_end(word: &AtomicU32) -> io::Result<()> {
    let (mut list, mut len): (*const RobustList, usize) = (std::ptr::null(), 0);
    // SAFETY: two words to be written, which outlive the call.
    let found = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut list, &raw mut len) };
    // SAFETY: the C library has given the kernel this list for the running thread, in memory that lives as long as the thread. Others than the
    // thread itself do not look at it, and it is reached here through an atomic only.
    let list = unsafe { list.as_ref() }.filter(|_| found == 0 && len == size_of::<RobustList>());
    let list = list.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSYS))?;
    word.store(gettid().as_raw_nonzero().get().cast_unsigned() | libc::FUTEX_WAITERS, Ordering::Release);
    list.pending.store((word.as_ptr() as usize).wrapping_add_signed(-list.offset), Ordering::Release);
    Ok(())
}

/// Sleeps until the word is marked. `false`: it was changed again and again, but not by the kernel.
pub fn await_mark(word: &AtomicU32) -> io::Result<bool> {
    for _ in 0..LOOKS {
        let value = word.load(Ordering::Acquire);
        if value & libc::FUTEX_OWNER_DIED != 0 {
            return Ok(true);
        }
        futex::wait(word, value, None)?;
    }
    Ok(false)
}

/// Nothing but the kernel changes the word, and signals are few.
const LOOKS: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_is_marked_when_its_thread_ends() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let (sender, go) = std::sync::mpsc::channel::<()>();
            let word = &word;
            let thread = scope.spawn(move || {
                mark_at_end(word).unwrap();
                let _ = go.recv();
            });
            while word.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            let waits = scope.spawn(|| await_mark(word).unwrap());
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!waits.is_finished());
            drop(sender);
            thread.join().unwrap();
            assert!(waits.join().unwrap());
        });
    }

    #[test]
    fn who_only_plays_with_the_word_is_not_waited_for_for_ever() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| await_mark(&word).unwrap());
            while !waits.is_finished() {
                // Never marked.
                word.fetch_add(1, Ordering::Release);
                let _ = futex::wake(&word, 1);
                std::thread::yield_now();
            }
            assert!(!waits.join().unwrap());
        });
    }
}
