//! A value behind a lock. Without contention, locking and unlocking cost one atomic operation each.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::critical;

/// A value behind a futex lock, whose word is 0 if free, 1 if held, and 2 if held and waited for.
pub struct FutexLock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through `with` and `held`, whose callers hold the lock.
unsafe impl<T: Send> Sync for FutexLock<T> {}

impl<T> FutexLock<T> {
    /// Creates an unlocked value.
    pub const fn new(value: T) -> FutexLock<T> {
        FutexLock { word: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Runs `f` with the value. It is not reentrant: `f` must not take the lock.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        self.acquire();
        // SAFETY: the lock is held, so this is the only reference.
        let result = f(unsafe { &mut *self.value.get() });
        self.release();
        result
    }

    /// Takes the lock and keeps it (over fork). No signal handler of the program runs in this thread until
    /// the lock is released.
    #[inline]
    pub fn acquire(&self) {
        critical::enter();
        if self.word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.acquire_slowly();
        }
    }

    #[cold]
    fn acquire_slowly(&self) {
        for _ in 0..100 {
            if self.word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
            std::hint::spin_loop();
        }
        while self.word.swap(2, Ordering::Acquire) != 0 {
            crate::instruction::futex_wait(&self.word, 2, None);
        }
    }

    /// Returns the value.
    ///
    /// # Safety
    /// The caller holds the lock, by [`FutexLock::acquire`], and no other reference from here.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn held(&self) -> &mut T {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.value.get() }
    }

    /// Releases the lock.
    #[inline]
    pub fn release(&self) {
        if self.word.swap(0, Ordering::Release) == 2 {
            crate::instruction::futex_wake(&self.word, 1);
        }
        critical::leave();
    }

    /// Releases the lock in the child of a fork, where those who wait for it are not there. It was acquired
    /// by the thread that forked.
    pub fn reset_in_child(&self) {
        self.word.store(0, Ordering::Release);
        critical::leave();
    }
}
