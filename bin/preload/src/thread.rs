//! The words of a thread that every call reaches, in memory that needs no function to be found.
//!
//! `thread_local!` of a shared library asks the C library for the address of its memory, in each function
//! that uses one (`__tls_get_addr`): the library might be loaded later than the thread was made. This one is
//! loaded with the program. So these words are at a distance from the thread's pointer that the loader writes
//! down once (ELF's initial-exec model, DF_STATIC_TLS).

use std::arch::{asm, global_asm};
use std::cell::Cell;

/// The ways by which a call of the program comes here, the numbers of [`Thread::way`].
pub mod way {
    /// By a function of the C library.
    pub const SYMBOL: u8 = 0;
    /// By an instruction that was rewritten.
    pub const REWRITTEN: u8 = 1;
    /// By a trap: Syscall User Dispatch.
    pub const TRAP: u8 = 2;
}

/// The words of a thread; all are 0 at first. Only the thread itself and its handlers reach them.
#[repr(C)]
pub struct Thread {
    /// The number of locks that are held, or waited for: [`crate::critical`].
    pub locks: Cell<u32>,
    /// The number of system calls that this library has made, for the count of calls without any.
    pub system_calls: Cell<u32>,
    /// Whether there is a signal mask to restore when no lock is held any more.
    pub keeps_mask: Cell<bool>,
    /// By which way the system call came that is being carried out: a number of [`way`].
    pub way: Cell<u8>,
    /// The mask to restore.
    pub mask: Cell<u64>,
    /// The signals that came although they should be blocked, a bit each.
    pub late: Cell<u64>,
}

const SIZE: usize = 32;
const _: () = assert!(size_of::<Thread>() == SIZE && align_of::<Thread>() <= 32);

global_asm!(
    ".pushsection .tbss.atoll_thread, \"awT\", @nobits",
    ".p2align 5",
    ".globl atoll_thread",
    ".hidden atoll_thread",
    ".type atoll_thread, @object",
    ".size atoll_thread, {size}",
    "atoll_thread:",
    ".zero {size}",
    ".popsection",
    size = const SIZE,
);

/// Returns the words of the running thread.
#[inline(always)]
pub fn current() -> &'static Thread {
    let at: *const Thread;
    // SAFETY: reads the distance and the thread's pointer, which stay as they are. The words live as long as
    // the thread, and zeros are valid for all of them; a reference to cells cannot be sent to another thread.
    unsafe {
        asm!(
            "mov {at}, qword ptr [rip + atoll_thread@GOTTPOFF]",
            "add {at}, qword ptr fs:[0]",
            at = out(reg) at,
            options(pure, nomem, nostack),
        );
        &*at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_words_of_its_own_which_begin_with_zeros() {
        current().locks.set(7);
        let other = std::thread::spawn(|| {
            let before = current().locks.replace(9);
            (before, std::ptr::from_ref(current()) as usize)
        });
        let (before, at) = other.join().unwrap();
        assert_eq!(before, 0);
        assert_ne!(at, std::ptr::from_ref(current()) as usize);
        assert_eq!(current().locks.replace(0), 7);
    }
}
