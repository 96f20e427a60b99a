//! Which threads have the C library's memory for threads. One that the program has made by clone(2), or for
//! which it has set another memory by arch_prctl(2), has not, and nothing of this library but the trap can
//! run in it.

use std::arch::asm;
use std::ffi::c_long;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::instruction::direct;

/// Whether there may be threads without the C library's memory.
static ANY_OTHERS: AtomicBool = AtomicBool::new(false);
/// Where glibc has a thread's number in its memory; 0 if that was not found.
static NUMBER_AT: AtomicUsize = AtomicUsize::new(0);

/// The words of glibc's memory of a thread in which its number is looked for.
const SEARCHED: std::ops::Range<usize> = 0x200..0x400;

/// Finds out what tells the C library's threads from others. Called once, by the constructor.
pub fn install() {
    let memory = first_word(0);
    // SAFETY: glibc's struct pthread is longer than what is looked at.
    let word = |at: usize| unsafe { *((memory + at) as *const u32) };
    let number = own_number();
    let at = SEARCHED.step_by(4).find(|at| i64::from(word(*at)) == number);
    NUMBER_AT.store(at.unwrap_or(0), Ordering::Relaxed);
}

/// Notes that a thread is made that is not the C library's, or loses its memory.
pub fn note_other() {
    ANY_OTHERS.store(true, Ordering::Relaxed);
}

/// Forgets the other threads of this process: the child of a fork has one, which is the C library's.
pub fn forget() {
    ANY_OTHERS.store(false, Ordering::Relaxed);
}

/// Returns whether this thread has not the C library's memory, or that of another thread.
#[inline]
pub fn is_other() -> bool {
    ANY_OTHERS.load(Ordering::Relaxed) && is_other_thread()
}

#[cold]
fn is_other_thread() -> bool {
    // glibc's tcbhead_t names itself twice.
    let memory = first_word(0);
    let at = NUMBER_AT.load(Ordering::Relaxed);
    if at == 0 || memory == 0 || first_word(16) != memory {
        return true;
    }
    // SAFETY: glibc's memory of a thread.
    i64::from(unsafe { *((memory + at) as *const u32) }) != own_number()
}

/// Returns a word of this thread's memory, 0 or 16 octets behind its start.
fn first_word(at: usize) -> usize {
    let word;
    // SAFETY: reads what the thread's own code would read there.
    unsafe {
        asm!("mov {word}, fs:[{at}]", word = out(reg) word, at = in(reg) at, options(nostack, readonly))
    };
    word
}

fn own_number() -> c_long {
    // SAFETY: only asks for a number.
    unsafe { direct(libc::SYS_gettid, [0; 6]) }
}
