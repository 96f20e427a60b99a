//! Marks that targets leave, which show what an execution has reached that none before has: for a runner
//! without coverage instrumentation.
//!
//! A target marks what it sees of the state behind the code (the state of a connection, why a segment was
//! dropped). The runner keeps an input that leaves a mark which was never seen before, and mutates it
//! further. That is a simple kind of coverage guidance, on the stable compiler.

use std::cell::RefCell;

thread_local! {
    static MARKS: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// The most marks of one execution that are kept.
const MARKS_MAX: usize = 4096;

/// Marks that `value` of `kind` was seen.
pub(crate) fn mark(kind: u8, value: u64) {
    let mixed = (value ^ u64::from(kind) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    MARKS.with_borrow_mut(|marks| {
        if marks.len() < MARKS_MAX {
            marks.push((mixed >> 44) as u32);
        }
    });
}

/// Returns the marks since the last call, each below the number of kinds of marks.
pub(crate) fn take() -> Vec<u32> {
    MARKS.with_borrow_mut(std::mem::take)
}

/// The number of different marks.
pub(crate) const KINDS: usize = 1 << 20;
