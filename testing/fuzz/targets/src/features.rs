//! What has an execution reached that none before has? Marks that targets leave, for a runner without
//! coverage instrumentation.
//!
//! A target marks what it sees of the state behind the code (which state a connection is in, why a segment
//! was dropped). The runner keeps an input that leaves a mark which was never seen, and mutates it further:
//! poor man's coverage guidance, on stable.

use std::cell::RefCell;

thread_local! {
    static MARKS: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// More marks in one execution are not remembered.
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

/// The marks since the last call, each below the number of kinds of marks.
pub(crate) fn take() -> Vec<u32> {
    MARKS.with_borrow_mut(std::mem::take)
}

/// Number of different marks.
pub(crate) const KINDS: usize = 1 << 20;
