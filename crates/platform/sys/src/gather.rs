//! Writes bytes to a device straight from memory that other processes are writing: writev(2) over a list of
//! parts that never become slices.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};

use crate::Mapping;

/// The most parts that one [`Gather`] can hold.
pub const PARTS_MAX: usize = 8;

/// A list of byte ranges to be written with one system call, in private or in shared memory.
///
/// The kernel copies the shared parts while their owner may be changing them, and sends what it has read.
/// This process never reads those bytes, so a changing byte can do no harm here.
pub struct Gather<'memory> {
    parts: [libc::iovec; PARTS_MAX],
    used: usize,
    bytes: usize,
    memory: PhantomData<&'memory [u8]>,
}

impl<'memory> Gather<'memory> {
    /// Creates an empty list.
    #[inline]
    pub const fn new() -> Gather<'memory> {
        const EMPTY: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Gather { parts: [EMPTY; PARTS_MAX], used: 0, bytes: 0, memory: PhantomData }
    }

    /// Appends private bytes, such as headers. An empty slice takes no part.
    #[inline]
    pub fn push_slice(&mut self, bytes: &'memory [u8]) -> Result<(), GatherError> {
        self.push(bytes.as_ptr(), bytes.len())
    }

    /// Appends `len` bytes of `mapping` from `offset` on, without reading them. A length of 0 takes no part.
    #[inline]
    pub fn push_mapping(
        &mut self,
        mapping: &'memory Mapping,
        offset: usize,
        len: usize,
    ) -> Result<(), GatherError> {
        let address = mapping.range(offset, len).map_err(|_| GatherError::OutOfBounds)?;
        self.push(address, len)
    }

    /// Returns the number of bytes in all parts together.
    #[inline]
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Returns whether there is nothing to write.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Writes all parts to `fd` as one message, and returns how many bytes the kernel took (writev(2)).
    #[inline]
    pub fn write_to(&self, fd: impl AsFd) -> io::Result<usize> {
        let fd = fd.as_fd().as_raw_fd();
        // SAFETY: the first `used` entries describe memory that is readable while `self` lives (module
        // invariant 3); the kernel only reads it; a descriptor has no rule beyond being open, which the
        // borrow guarantees.
        let written = unsafe { libc::syscall(libc::SYS_writev, fd, self.parts.as_ptr(), self.used) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    #[inline]
    fn push(&mut self, address: *const u8, len: usize) -> Result<(), GatherError> {
        if len == 0 {
            return Ok(());
        }
        let part = self.parts.get_mut(self.used).ok_or(GatherError::TooManyParts)?;
        *part = libc::iovec { iov_base: address.cast_mut().cast(), iov_len: len };
        self.used += 1;
        self.bytes += len;
        Ok(())
    }
}

impl Default for Gather<'_> {
    fn default() -> Self {
        Gather::new()
    }
}

impl fmt::Debug for Gather<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather").field("parts", &self.used).field("bytes", &self.bytes).finish()
    }
}

/// The reason why a part was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GatherError {
    /// The range leaves the mapping: the process that named it is wrong or hostile.
    #[error("range outside the mapped memory")]
    OutOfBounds,
    /// The list already has [`PARTS_MAX`] parts.
    #[error("more than {PARTS_MAX} parts in one write")]
    TooManyParts,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Prefault;

    #[test]
    fn private_and_shared_parts_arrive_in_order() {
        let (_fd, mapping) = Mapping::create("atoll-test", 4096, Prefault::No).unwrap();
        // SAFETY: the mapping is writable, and nothing else uses it.
        unsafe { mapping.range(100, 5).unwrap().copy_from(b"world".as_ptr(), 5) };
        let mut gather = Gather::new();
        gather.push_slice(b"hello ").unwrap();
        gather.push_slice(b"").unwrap();
        gather.push_mapping(&mapping, 100, 5).unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        assert_eq!(gather.write_to(&writer).unwrap(), 11);
        let mut buffer = [0; 32];
        let n = rustix::io::read(&reader, &mut buffer).unwrap();
        assert_eq!(&buffer[..n], b"hello world");
    }

    #[test]
    fn ranges_outside_the_mapping_and_too_many_parts_are_refused() {
        let (_fd, mapping) = Mapping::create("atoll-test", 4096, Prefault::No).unwrap();
        let mut gather = Gather::new();
        assert_eq!(gather.push_mapping(&mapping, 4000, 97), Err(GatherError::OutOfBounds));
        assert_eq!(gather.push_mapping(&mapping, usize::MAX, 2), Err(GatherError::OutOfBounds));
        for _ in 0..PARTS_MAX {
            gather.push_slice(b"x").unwrap();
        }
        assert_eq!(gather.push_slice(b"x"), Err(GatherError::TooManyParts));
        assert_eq!(gather.len(), PARTS_MAX);
    }
}
