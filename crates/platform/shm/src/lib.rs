//! Shared memory for the layouts of `atoll-ipc`: [`Memory`] over a mapping of sealed memory.
//!
//! The `unsafe` of this crate rests on these invariants:
//!
//! 1. `base` and `len` describe a live `MAP_SHARED` mapping, because every [`ShmMemory`] holds a reference to
//!    it.
//! 2. An access inside the mapping never raises SIGBUS. The mapping is sealed against shrinking (checked by
//!    `Mapping::new`), or it is a page of the stack that no process with a descriptor for it cuts
//!    (`Mapping::of_views`).
//! 3. Every offset is checked against `len` and, for words, against alignment before a pointer is made of it.
//! 4. No reference into the memory is ever made: words are accessed through atomics, bytes through raw copies
//!    into or out of private memory. Another process may be writing the same bytes; torn bytes are judged
//!    after the copy.
//! 5. Stores go only to mappings with write access; on a read-only mapping they are dropped.

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::{fmt, io};

use atoll_ipc::Memory;
pub use atoll_sys::{Access, Prefault};
use atoll_sys::{Mapping, OutOfBounds};

/// A mapped region. Clones are handles to the same mapping, which is unmapped when the last of them is
/// dropped.
#[derive(Clone)]
pub struct ShmMemory {
    /// The address of the first octet: not null, so that a word is there or not by one comparison.
    base: NonNull<u8>,
    len: usize,
    /// The number of whole words of 4 octets, and of 8 octets.
    words32: usize,
    words64: usize,
    writable: bool,
    mapping: Arc<Mapping>,
}

// SAFETY: the mapping belongs to the process; every access is atomic or a raw copy that tolerates concurrent
// writers (invariant 4), which other threads are no different from.
unsafe impl Send for ShmMemory {}
// SAFETY: as above.
unsafe impl Sync for ShmMemory {}

impl ShmMemory {
    /// Maps the first `len` bytes of `fd`. `Mapping::new` describes the errors.
    pub fn map(fd: impl AsFd, len: usize, access: Access) -> io::Result<ShmMemory> {
        Ok(ShmMemory::of(Mapping::new(fd, len, access, Prefault::No)?))
    }

    /// Maps a page that the supervisor has sent. `Mapping::of_views` describes the errors.
    pub fn map_page(fd: impl AsFd, len: usize, access: Access) -> io::Result<ShmMemory> {
        Ok(ShmMemory::of(Mapping::of_views(fd, len, access)?))
    }

    /// Creates sealed memory of `len` bytes under a `name` that shows in `/proc/PID/maps`, and maps it for
    /// writing.
    pub fn create(name: &str, len: usize) -> io::Result<(std::os::fd::OwnedFd, ShmMemory)> {
        let (fd, mapping) = Mapping::create(name, len, Prefault::No)?;
        Ok((fd, ShmMemory::of(mapping)))
    }

    /// Creates sealed memory like [`ShmMemory::create`], but no other process can ever write to it: see
    /// `Mapping::create_own`.
    pub fn create_own(name: &str, len: usize) -> io::Result<(std::os::fd::OwnedFd, ShmMemory)> {
        let (fd, mapping) = Mapping::create_own(name, len)?;
        Ok((fd, ShmMemory::of(mapping)))
    }

    /// Copies `len` bytes from `from_at` of another region to `at`, without a private copy in between. If a
    /// range is out of bounds, nothing is copied. The regions are different mappings, so they do not overlap
    /// for this process.
    pub fn copy_from(&self, at: usize, from: &ShmMemory, from_at: usize, len: usize) {
        let (Ok(to), Ok(source)) = (self.range(at, len), from.range(from_at, len)) else {
            debug_assert!(false, "{len} bytes from {from_at} to {at}");
            return;
        };
        if self.writable && self.base != from.base {
            // SAFETY: both ranges are inside their mappings (invariants 1, 3), the target is writable (5),
            // and different mappings do not overlap; bytes that a peer writes meanwhile come out torn, which
            // is allowed (4).
            unsafe { std::ptr::copy_nonoverlapping(source, to, len) };
        }
    }

    fn of(mapping: Mapping) -> ShmMemory {
        ShmMemory {
            base: mapping.base(),
            len: mapping.len(),
            words32: mapping.len() / 4,
            words64: mapping.len() / 8,
            writable: mapping.access() == Access::ReadWrite,
            mapping: Arc::new(mapping),
        }
    }

    /// Returns the mapping, for gathering writes straight from shared memory and for punching holes.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Returns the address of `len` bytes from `at` on, for system calls that read or write them directly.
    /// Fails if they are not all inside the mapping.
    pub fn range(&self, at: usize, len: usize) -> Result<*mut u8, OutOfBounds> {
        self.mapping.range(at, len)
    }

    #[inline]
    fn word32(&self, at: usize) -> Option<&AtomicU32> {
        let inside = is_word_inside(at, 4, self.words32);
        debug_assert!(inside, "word at {at} of {}", self.len);
        if !inside {
            return None;
        }
        // SAFETY: `at + 4 <= len`, so the result is inside the mapping (invariants 1, 3).
        let word = unsafe { self.base.add(at) }.as_ptr();
        // SAFETY: aligned (mappings are page-aligned, `at` is a multiple of 4), live as long as `self`, and
        // accessed only atomically by everybody who treats it as a word.
        Some(unsafe { AtomicU32::from_ptr(word.cast()) })
    }

    #[inline]
    fn word64(&self, at: usize) -> Option<&AtomicU64> {
        let inside = is_word_inside(at, 8, self.words64);
        debug_assert!(inside, "double word at {at} of {}", self.len);
        if !inside {
            return None;
        }
        // SAFETY: `at + 8 <= len`, so the result is inside the mapping (invariants 1, 3).
        let word = unsafe { self.base.add(at) }.as_ptr();
        // SAFETY: aligned, live as long as `self`, and accessed only atomically by everybody who treats it as
        // a word.
        Some(unsafe { AtomicU64::from_ptr(word.cast()) })
    }

    /// Returns a word to be read and waited for, even if this process may not write to it: a store to a
    /// read-only mapping raises SIGSEGV. `None` if `at` is out of range or not aligned.
    pub fn watched32(&self, at: usize) -> Option<&AtomicU32> {
        self.word32(at)
    }

    /// Returns a word as an atomic, for futexes and locks. `None` if `at` is out of range or not aligned, or
    /// if the mapping is read-only.
    pub fn atomic32(&self, at: usize) -> Option<&AtomicU32> {
        if self.writable { self.word32(at) } else { None }
    }
}

/// Returns whether the word of `size` octets (a power of two) at an offset is aligned, and one of the first
/// `count` of its size. Calls of programs do this a few dozen times each, so it is one comparison: the bits
/// that an aligned offset does not have become the highest ones.
#[inline]
const fn is_word_inside(at: usize, size: usize, count: usize) -> bool {
    at.rotate_right(size.trailing_zeros()) < count
}

impl Memory for ShmMemory {
    #[inline]
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn load32(&self, at: usize) -> u32 {
        self.word32(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    #[inline]
    fn load32_acquire(&self, at: usize) -> u32 {
        self.word32(at).map_or(0, |word| word.load(Ordering::Acquire))
    }

    #[inline]
    fn store32(&self, at: usize, value: u32) {
        if let Some(word) = self.atomic32(at) {
            word.store(value, Ordering::Relaxed);
        }
    }

    #[inline]
    fn store32_release(&self, at: usize, value: u32) {
        if let Some(word) = self.atomic32(at) {
            word.store(value, Ordering::Release);
        }
    }

    #[inline]
    fn load64(&self, at: usize) -> u64 {
        self.word64(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    #[inline]
    fn load64_acquire(&self, at: usize) -> u64 {
        self.word64(at).map_or(0, |word| word.load(Ordering::Acquire))
    }

    #[inline]
    fn store64(&self, at: usize, value: u64) {
        if let Some(word) = self.word64(at).filter(|_| self.writable) {
            word.store(value, Ordering::Relaxed);
        }
    }

    #[inline]
    fn store64_release(&self, at: usize, value: u64) {
        if let Some(word) = self.word64(at).filter(|_| self.writable) {
            word.store(value, Ordering::Release);
        }
    }

    #[inline]
    fn fetch_and64(&self, at: usize, value: u64) -> u64 {
        self.word64(at).filter(|_| self.writable).map_or(0, |word| word.fetch_and(value, Ordering::SeqCst))
    }

    #[inline]
    fn fetch_or64(&self, at: usize, value: u64) -> u64 {
        self.word64(at).filter(|_| self.writable).map_or(0, |word| word.fetch_or(value, Ordering::SeqCst))
    }

    #[inline]
    fn next_odd32(&self, at: usize) {
        if let Some(word) = self.atomic32(at) {
            let _ =
                word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| Some(word.wrapping_add(1) | 1));
        }
    }

    #[inline]
    fn read(&self, at: usize, out: &mut [u8]) {
        match self.range(at, out.len()) {
            // SAFETY: the source is `out.len()` bytes inside the mapping (invariants 1, 3); the destination
            // is private and therefore does not overlap it; bytes that a peer writes meanwhile come out torn,
            // which is allowed.
            Ok(from) => unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) },
            Err(_) => {
                debug_assert!(false, "{} bytes at {at} of {}", out.len(), self.len);
                out.fill(0);
            }
        }
    }

    #[inline]
    fn write(&self, at: usize, bytes: &[u8]) {
        match self.range(at, bytes.len()) {
            // SAFETY: the destination is `bytes.len()` writable bytes inside the mapping (invariants 1, 3,
            // 5); the source is private and does not overlap it.
            Ok(to) if self.writable => unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len())
            },
            _ => debug_assert!(false, "{} bytes at {at} of {}", bytes.len(), self.len),
        }
    }

    fn discard(&self, at: usize, len: usize) {
        // Only whole pages are given back; the rest stays.
        let (first, last) = (at.next_multiple_of(PAGE), at.saturating_add(len) / PAGE * PAGE);
        if self.writable && first < last {
            let _ = self.mapping.punch_hole(first..last);
        }
    }

    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn prefetch(&self, at: usize, len: usize) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let Ok(from) = self.range(at, len) else { return };
        for line in (0..len).step_by(64) {
            // SAFETY: a hint, which reads nothing and faults nowhere; SSE is part of x86-64.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(line).cast_const().cast()) };
        }
    }
}

/// The page size of shared memory in bytes; larger pages are not used for it.
const PAGE: usize = 4096;

impl fmt::Debug for ShmMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmMemory").field("len", &self.len).field("writable", &self.writable).finish()
    }
}

#[cfg(test)]
mod tests;
