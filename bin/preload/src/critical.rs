//! Sections of the library in which no signal handler of the program runs: while a lock is held.
//!
//! A handler may call whatever signal-safety(7) allows, among others `recv`, `poll` and `fork`, and it may
//! leave by `siglongjmp`. If it interrupted a thread that holds a lock of the library, its call would wait
//! for that thread, for ever. So it runs as soon as the thread holds no lock any more:
//!
//! ```text
//!   enter                       a thread takes its first lock
//!   a signal comes              handlers.rs: sends it to this thread again, which blocks all signals now
//!   leave                       the last lock is free: the mask is restored, and the handler runs
//! ```
//! Without a signal this costs no system call.

use std::sync::atomic::{Ordering, compiler_fence};

use crate::signals::{bit, release_signals, send_to_self};
use crate::thread::{self, Thread};

/// Begins a section. Sections may be nested.
#[inline]
pub fn enter() {
    let thread = thread::current();
    thread.locks.set(thread.locks.get() + 1);
    // A handler that interrupts this thread sees memory in program order.
    compiler_fence(Ordering::SeqCst);
}

/// Ends a section. If it was the outermost one, handlers of signals that came meanwhile run before this
/// returns.
#[inline]
pub fn leave() {
    compiler_fence(Ordering::SeqCst);
    let thread = thread::current();
    let locks = thread.locks.get() - 1;
    thread.locks.set(locks);
    compiler_fence(Ordering::SeqCst);
    if locks == 0 && thread.keeps_mask.get() {
        run_handlers(thread);
    }
}

#[cold]
fn run_handlers(thread: &Thread) {
    // No other signal can come before the mask is restored: all are blocked.
    if thread.keeps_mask.take() {
        release_signals(thread.mask.get());
    }
    let late = thread.late.take();
    (1..=64).filter(|signal| late & bit(*signal) != 0).for_each(send_to_self);
}

/// Returns whether this thread is in a section.
pub fn is_inside() -> bool {
    thread::current().locks.get() > 0
}

/// Keeps the signal mask of this thread, which is in a section, until the section ends.
pub fn keep_mask(mask: u64) {
    let thread = thread::current();
    thread.mask.set(mask);
    thread.keeps_mask.set(true);
}

/// Notes that a signal has come although the mask of this thread is kept, so that it is sent again when the
/// section ends. Returns false if no mask is kept. valgrind(1), which delivers signals itself, does not use
/// the mask that a handler leaves: a signal that was sent again would come again, at the same instruction,
/// for ever.
pub fn note_late(signal: i32) -> bool {
    let thread = thread::current();
    if !thread.keeps_mask.get() {
        return false;
    }
    thread.late.set(thread.late.get() | bit(signal));
    true
}
