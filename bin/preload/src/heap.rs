//! The memory that the library allocates for itself.
//!
//! It does not come from the program's `malloc`: a signal handler may call `recv` or `write` while it
//! interrupts the program inside `malloc` (signal-safety(7)), and would wait for the C library's lock for
//! ever.

use std::alloc::{GlobalAlloc, Layout};

use dlmalloc::Dlmalloc;

use crate::futex_lock::FutexLock;

/// The heap of the library, from pages of its own.
pub static HEAP: FutexLock<Dlmalloc> = FutexLock::new(Dlmalloc::new());

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

struct Allocator;

// SAFETY: dlmalloc is an allocator, and its functions are told the size and alignment of the layout.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        HEAP.with(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        HEAP.with(|heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        HEAP.with(|heap| unsafe { heap.free(at, layout.size(), layout.align()) });
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        HEAP.with(|heap| unsafe { heap.realloc(at, layout.size(), layout.align(), size) })
    }
}
