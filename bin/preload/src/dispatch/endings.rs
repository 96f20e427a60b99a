//! The end of a guest ([`super::guests`]): exit(2).
//!
//! What the kernel does when a thread ends is done here, because the C library has the kernel do it for its
//! own memory: the list of robust futexes is walked, and the word of set_tid_address(2) is cleared. From then
//! on nothing of the thread uses memory of the program.

use std::ffi::c_long;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::instruction::{direct, futex_wake};
use crate::shadow::{self, Shadow};

/// Ends a guest that has called exit(2): on the stack of the library, with all signals blocked.
pub unsafe extern "C" fn end(shadow: &Shadow) {
    let off = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: a valid struct. The program may use its alternate stack for something else now.
    unsafe { direct(libc::SYS_sigaltstack, [&raw const off as c_long, 0, 0, 0, 0, 0]) };
    let [list, len] = [0, 1].map(|at| shadow.robust_list[at].load(Ordering::Relaxed));
    if list != 0 && len == size_of::<[usize; 3]>() {
        // SAFETY: the program's list.
        unsafe { leave_robust_futexes(list) };
    }
    let word = shadow.clear_at_end.load(Ordering::Relaxed) as *const AtomicU32;
    if !word.is_null() {
        let words = [word as c_long, libc::FUTEX_WAKE.into(), 1, 0, 0, 0];
        // SAFETY: the program's word, until it is cleared; the kernel checks the address.
        unsafe {
            (*word).store(0, Ordering::Release);
            direct(libc::SYS_futex, words);
        }
    }
    let status = shadow.status.load(Ordering::Relaxed) as c_long;
    let is_first = shadow.is_first.load(Ordering::Relaxed);
    // SAFETY: the thread does not go back into the program.
    unsafe { shadow::leave(shadow) };
    if is_first {
        // SAFETY: ends this thread.
        unsafe { direct(libc::SYS_exit, [status, 0, 0, 0, 0, 0]) };
    }
}

/// Marks the robust futexes that this thread holds as those of a dead one: exit_robust_list of Linux.
unsafe fn leave_robust_futexes(head: usize) {
    /// ROBUST_LIST_LIMIT of Linux.
    const MOST: usize = 2048;
    let number = own_number();
    // SAFETY: the head has three words: the first entry, the distance to the futex, and the pending entry.
    let [first, offset, pending] = [0, 1, 2].map(|at| unsafe { (head as *const usize).add(at).read() });
    let mut entry = first;
    for _ in 0..MOST {
        if entry & !1 == head {
            break;
        }
        // SAFETY: an entry of the program's list begins with the address of the next one.
        let next = unsafe { ((entry & !1) as *const usize).read() };
        if entry & !1 != pending & !1 {
            // SAFETY: a futex of the program's.
            unsafe { leave_futex((entry & !1).wrapping_add(offset), number) };
        }
        entry = next;
    }
    if pending & !1 != 0 {
        // SAFETY: as above.
        unsafe { leave_futex((pending & !1).wrapping_add(offset), number) };
    }
}

unsafe fn leave_futex(at: usize, number: u32) {
    // linux/futex.h.
    const WAITERS: u32 = 1 << 31;
    const DIED: u32 = 1 << 30;
    const NUMBER: u32 = DIED - 1;
    // SAFETY: the caller's promise.
    let word = unsafe { &*(at as *const AtomicU32) };
    let mark = |value: u32| (value & NUMBER == number).then_some(value & WAITERS | DIED);
    if let Ok(before) = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, mark)
        && before & WAITERS != 0
    {
        futex_wake(word, 1);
    }
}

/// Returns the number of the running thread.
pub fn own_number() -> u32 {
    // SAFETY: no arguments.
    unsafe { direct(libc::SYS_gettid, [0; 6]) as u32 }
}
