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

use std::cell::Cell;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::signals::{bit, release_signals, send_to_self};

/// What a thread holds. Only the thread itself and its handlers reach it.
struct Section {
    /// The number of locks that are held, or waited for.
    depth: Cell<u32>,
    /// The signal mask to restore, if a signal has come.
    mask: Cell<Option<u64>>,
    /// The signals that came although they should be blocked, a bit each. valgrind(1), which delivers signals
    /// itself, does not use the mask that a handler leaves: a signal that was sent again would come again, at
    /// the same instruction, for ever.
    late: Cell<u64>,
}

thread_local! {
    static SECTION: Section =
        const { Section { depth: Cell::new(0), mask: Cell::new(None), late: Cell::new(0) } };
}

/// Begins a section. Sections may be nested.
#[inline]
pub fn enter() {
    SECTION.with(|section| section.depth.set(section.depth.get() + 1));
    // A handler that interrupts this thread sees memory in program order.
    compiler_fence(Ordering::SeqCst);
}

/// Ends a section. If it was the outermost one, handlers of signals that came meanwhile run before this
/// returns.
#[inline]
pub fn leave() {
    compiler_fence(Ordering::SeqCst);
    SECTION.with(|section| {
        let depth = section.depth.get() - 1;
        section.depth.set(depth);
        compiler_fence(Ordering::SeqCst);
        if depth == 0 && section.mask.get().is_some() {
            run_handlers(section);
        }
    });
}

#[cold]
fn run_handlers(section: &Section) {
    // No other signal can come before the mask is restored: all are blocked.
    if let Some(mask) = section.mask.take() {
        release_signals(mask);
    }
    let late = section.late.take();
    (1..=64).filter(|signal| late & bit(*signal) != 0).for_each(send_to_self);
}

/// Returns whether this thread is in a section.
pub fn is_inside() -> bool {
    SECTION.with(|section| section.depth.get() > 0)
}

/// Keeps the signal mask of this thread, which is in a section, until the section ends.
pub fn keep_mask(mask: u64) {
    SECTION.with(|section| section.mask.set(Some(mask)));
}

/// Notes that a signal has come although the mask of this thread is kept, so that it is sent again when the
/// section ends. Returns false if no mask is kept.
pub fn note_late(signal: i32) -> bool {
    SECTION.with(|section| {
        if section.mask.get().is_none() {
            return false;
        }
        section.late.set(section.late.get() | bit(signal));
        true
    })
}
