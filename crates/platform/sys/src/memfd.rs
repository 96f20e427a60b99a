//! Creates and maps memory that several processes share (memfd_create(2), mmap(2)).

use std::ffi::c_long;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use crate::instruction::call;

/// Creates `len` bytes of zeroed shareable memory (memfd_create(2)); `name` shows up in `/proc/PID/maps`. The
/// descriptor is CLOEXEC.
///
/// Only its owner may open it again; otherwise any user could open a memfd through /proc/self/fd. The size is
/// sealed for good (`F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL`, fcntl(2)). So a process that gets the
/// descriptor can neither cut the memory that others use, nor add a write seal that keeps a restarted server
/// from mapping it again.
pub fn create_memfd(name: &str, len: usize) -> io::Result<OwnedFd> {
    let fd = private_memfd(name, len)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Creates memory that only its owner may open again, without seals.
fn private_memfd(name: &str, len: usize) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
    ftruncate(&fd, len as u64)?;
    Ok(fd)
}

/// Returns the seals of a file (fcntl(2)).
fn seals_of(fd: BorrowedFd<'_>) -> io::Result<SealFlags> {
    // SAFETY: asks about an open descriptor.
    let seals = unsafe { call(libc::SYS_fcntl, [fd.as_raw_fd().into(), libc::F_GET_SEALS.into()])? };
    Ok(SealFlags::from_bits_retain(seals as u32))
}

/// Returns the facts of a file (fstat(2)).
#[cfg(target_arch = "x86_64")]
fn status_of(fd: BorrowedFd<'_>) -> io::Result<libc::stat> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: an open descriptor, and room for what the kernel writes, which has this layout on x86-64.
    unsafe { call(libc::SYS_fstat, [fd.as_raw_fd().into(), status.as_mut_ptr() as c_long])? };
    // SAFETY: the kernel has written all of it.
    Ok(unsafe { status.assume_init() })
}

/// Returns the facts of a file (fstat(2)).
#[cfg(not(target_arch = "x86_64"))]
fn status_of(fd: BorrowedFd<'_>) -> io::Result<rustix::fs::Stat> {
    Ok(rustix::fs::fstat(fd)?)
}

/// Returns the size of a page of memory in bytes.
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// The accesses that a [`Mapping`] permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The memory may only be read.
    ReadOnly,
    /// The memory may be read and written.
    ReadWrite,
}

/// Whether the pages of a [`Mapping`] exist before they are first touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefault {
    /// All pages are allocated and mapped at once (MAP_POPULATE), so that there are no page faults later.
    Yes,
    /// Pages are allocated when they are first touched, so that memory is used only where it is needed.
    No,
}

/// A shared mapping of sealed memory, unmapped on drop.
///
/// Other processes write to it at any time, so it gives out pointers and lengths and never a slice. Reading
/// through [`Mapping::as_ptr`] is the caller's `unsafe`, and its rules are those of the memory's layout (see
/// atoll-shm).
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    access: Access,
}

// SAFETY: the mapping belongs to the process, not to a thread, and this type gives out no references to it.
unsafe impl Send for Mapping {}
// SAFETY: the mapping belongs to the process; no method of `&Mapping` reads or writes the memory, except that
// `punch_hole` asks the kernel to.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `fd` (mmap(2), MAP_SHARED).
    ///
    /// Fails with `InvalidInput` if `len` is 0, if the file is shorter, or if it is not sealed against
    /// shrinking: otherwise another process with the descriptor could make accesses raise SIGBUS.
    pub fn new(fd: impl AsFd, len: usize, access: Access, prefault: Prefault) -> io::Result<Mapping> {
        let fd = fd.as_fd();
        if !seals_of(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
            return Err(invalid("memory to map is not sealed against shrinking"));
        }
        Mapping::of(fd, len, access, prefault)
    }

    /// Maps a page of the stack: either memory that [`Mapping::new`] accepts, or a file of [`crate::Views`],
    /// which cannot be sealed. Only a process with its descriptor for writing could cut such a file: the
    /// supervisor, and the server whose page it is, which has no system call for it. So use this only for
    /// descriptors that the supervisor gave.
    ///
    /// Fails with `InvalidInput` if `fd` is neither, if `len` is 0, or if the file is shorter.
    pub fn of_views(fd: impl AsFd, len: usize, access: Access) -> io::Result<Mapping> {
        let fd = fd.as_fd();
        // Files of a disk have no seals at all. A file that has a name can be opened by it.
        let is_view = |seals| seals == SealFlags::SEAL && status_of(fd).is_ok_and(|stat| stat.st_nlink == 0);
        if !seals_of(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK) || is_view(seals)) {
            return Err(invalid("memory to map is no page of a stack"));
        }
        Mapping::of(fd, len, access, Prefault::No)
    }

    fn of(fd: BorrowedFd<'_>, len: usize, access: Access, prefault: Prefault) -> io::Result<Mapping> {
        if len == 0 || usize::try_from(status_of(fd)?.st_size).is_ok_and(|size| size < len) {
            return Err(invalid("memory to map is empty or shorter than expected"));
        }
        let protection = match access {
            Access::ReadOnly => libc::PROT_READ,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        let flags = match prefault {
            Prefault::Yes => libc::MAP_SHARED | libc::MAP_POPULATE,
            Prefault::No => libc::MAP_SHARED,
        };
        let words = [0, len as c_long, protection.into(), flags.into(), fd.as_raw_fd().into(), 0];
        // SAFETY: the address is left to the kernel (null hint, no MAP_FIXED), so no existing mapping is
        // touched.
        let base = unsafe { call(libc::SYS_mmap, words)? } as *mut u8;
        let base = NonNull::new(base).expect("mmap never returns null on success");
        Ok(Mapping { base, len, access })
    }

    /// Creates memory as [`create_memfd`] does, and maps all of it for reading and writing.
    pub fn create(name: &str, len: usize, prefault: Prefault) -> io::Result<(OwnedFd, Mapping)> {
        let fd = create_memfd(name, len)?;
        let mapping = Mapping::new(&fd, len, Access::ReadWrite, prefault)?;
        Ok((fd, mapping))
    }

    /// Creates memory that only this mapping can write. Other processes that get the descriptor, or open it
    /// again through /proc, may map it only for reading, and so may a later process of the same program. This
    /// is by `F_SEAL_FUTURE_WRITE` (fcntl(2)), which kernels before 5.1 do not have; there every process with
    /// the descriptor can write.
    pub fn create_own(name: &str, len: usize) -> io::Result<(OwnedFd, Mapping)> {
        let fd = private_memfd(name, len)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        let mapping = Mapping::new(&fd, len, Access::ReadWrite, Prefault::No)?;
        match fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE) {
            Ok(()) | Err(Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
        fcntl_add_seals(&fd, SealFlags::SEAL)?;
        Ok((fd, mapping))
    }

    /// Returns [`Mapping::as_ptr`], which is never null.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the address of the first byte. It is valid for `len()` bytes while `self` lives, and writable
    /// only with [`Access::ReadWrite`].
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the length in bytes, which is never 0.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the accesses that the mapping permits.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the address of `len` bytes from `offset` on, or an error if they do not lie inside the
    /// mapping.
    #[inline]
    pub fn range(&self, offset: usize, len: usize) -> Result<*mut u8, OutOfBounds> {
        match offset.checked_add(len) {
            // SAFETY: `offset <= offset + len <= self.len`, so the result stays inside the mapping or one
            // past its end.
            Some(end) if end <= self.len => Ok(unsafe { self.base.as_ptr().add(offset) }),
            _ => Err(OutOfBounds),
        }
    }

    /// Frees the memory of the whole pages inside `range` (madvise(2), MADV_REMOVE); they read as zeros
    /// afterwards, in all processes. Bytes of partly covered pages stay. Touching such a page, even by
    /// reading, allocates it again.
    ///
    /// Fails with `InvalidInput` if `range` leaves the mapping, and with EACCES on a read-only mapping.
    pub fn punch_hole(&self, range: Range<usize>) -> io::Result<()> {
        if range.start > range.end || range.end > self.len {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, OutOfBounds));
        }
        let page = page_size();
        let (start, end) = (range.start.next_multiple_of(page), range.end / page * page);
        if start >= end {
            return Ok(());
        }
        // SAFETY: `start < end <= self.len`, so the address lies inside the mapping.
        let address = unsafe { self.base.as_ptr().add(start) };
        // SAFETY: the pages are inside this mapping; zeroing them is one more writer of memory that is never
        // referenced.
        unsafe { madvise(address.cast(), end - start, Advice::LinuxRemove)? };
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mmap returned `base` and `len`, which are unmapped only here; a caller that kept a pointer
        // has broken its rule.
        let _ = unsafe { call(libc::SYS_munmap, [self.base.as_ptr() as c_long, self.len as c_long]) };
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping")
            .field("len", &self.len)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

/// The error that a range does not lie inside the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("range outside the mapped memory")]
pub struct OutOfBounds;

#[cfg(test)]
mod tests;
