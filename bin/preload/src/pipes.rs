//! Pipes of the program, between which and sockets of the stack octets move: pipe(7), splice(2).
//!
//! The library moves octets while it holds its lock, so it must not wait for a pipe then. Where a pipe may
//! make its users wait, they pass through a pipe of the library's own, because splice(2) between two pipes
//! can be told to wait for neither:
//!
//! ```text
//!   a pipe with O_NONBLOCK   read(2), write(2)
//!   any other                splice(2) --> Between --> read(2)      write(2) --> Between --> splice(2)
//! ```
//! preadv2(2) with RWF_NOWAIT is no way: splice(2) takes that ability from a pipe for good, and pipes have it
//! since Linux 6.4 only.

use std::ffi::{c_int, c_long};
use std::os::fd::{FromRawFd, OwnedFd};

use atoll_sockets::Errno;

use crate::beyond::with_room;
use crate::handlers::Ran;
use crate::real::{self, count_system_call, last_errno, sys};
use crate::table::Internal;

/// One end of a pipe of the program.
pub struct Pipe {
    fd: c_int,
    /// Whether the calls of its users wait (no O_NONBLOCK).
    pub blocks: bool,
}

/// A pipe of the library's own that makes nobody wait, and is empty between two calls.
pub struct Between {
    out: Internal,
    into: Internal,
}

impl Between {
    /// Makes a pipe.
    fn new() -> Result<Between, Errno> {
        let mut ends = [-1; 2];
        with_room(|room| {
            count_system_call();
            // SAFETY: room for both numbers.
            if unsafe { sys!(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } < 0 {
                return Err(last_errno());
            }
            // SAFETY: both are new, and nobody else's.
            let [out, into] = ends.map(|end| room.keep(unsafe { OwnedFd::from_raw_fd(end) }));
            Ok(Between { out, into })
        })
    }

    /// Takes `len` octets out of the pipe that could not go on.
    fn discard(&self, mut len: usize) {
        let mut octets = [0; 4096];
        while len > 0
            && let now = octets.len().min(len)
            && let Ok(read @ 1..) = read(self.out.number(), octets.as_mut_ptr(), now)
        {
            len -= read;
        }
    }
}

impl Pipe {
    /// Returns the end of a pipe at a descriptor that is open for `access`: `O_RDONLY` or `O_WRONLY`. Fails
    /// with EBADF if none is, and with EINVAL for what is no pipe. `is_offset` says that the call names an
    /// offset of it, which pipes do not have (ESPIPE).
    pub fn at(fd: c_int, access: c_int, is_offset: bool) -> Result<Pipe, Errno> {
        // SAFETY: asks about a descriptor.
        let (flags, size) = unsafe {
            let flags = sys!(libc::SYS_fcntl, fd, libc::F_GETFL) as c_int;
            (flags, sys!(libc::SYS_fcntl, fd, libc::F_GETPIPE_SZ))
        };
        if flags < 0 || flags & libc::O_PATH != 0 {
            return Err(Errno::EBADF);
        }
        if size >= 0 && is_offset {
            return Err(Errno::ESPIPE);
        }
        if ![access, libc::O_RDWR].contains(&(flags & libc::O_ACCMODE)) {
            return Err(Errno::EBADF);
        }
        if size < 0 {
            return Err(Errno::EINVAL);
        }
        Ok(Pipe { fd, blocks: flags & libc::O_NONBLOCK == 0 })
    }

    /// Waits for an event of poll(2), and returns those that are there. With `dont_wait` there may be none.
    /// The caller holds no lock, and nothing that has to be dropped: this is a cancellation point.
    pub fn wait(&self, event: i16, dont_wait: bool) -> Result<i16, Errno> {
        let mut handlers = Ran::now();
        loop {
            let mut entry = libc::pollfd { fd: self.fd, events: event, revents: 0 };
            count_system_call();
            // SAFETY: one valid entry.
            if unsafe { real::poll(&raw mut entry, 1, if dont_wait { 0 } else { -1 }) } >= 0 {
                return Ok(entry.revents);
            }
            match last_errno() {
                Errno::EINTR if !handlers.end_sleep(true) => {}
                errno => return Err(errno),
            }
        }
    }

    /// Returns the pipe that octets have to pass through, if this one blocks.
    pub fn between(&self) -> Result<Option<Between>, Errno> {
        self.blocks.then(Between::new).transpose()
    }

    /// Takes up to `len` octets out of the pipe, to `target`. Fails with EAGAIN if it is empty; 0 means that
    /// nobody writes to it any more.
    pub fn take(&self, between: Option<&Between>, target: *mut u8, len: usize) -> Result<usize, Errno> {
        let Some(between) = between else { return read(self.fd, target, len) };
        match splice(self.fd, between.into.number(), len)? {
            0 => Ok(0),
            len => read(between.out.number(), target, len),
        }
    }

    /// Puts octets into the pipe, as many as it has room for, and returns how many. Fails with EAGAIN if it
    /// is full.
    pub fn put(&self, between: Option<&Between>, octets: &[u8]) -> Result<usize, Errno> {
        let Some(between) = between else { return write(self.fd, octets) };
        let len = write(between.into.number(), octets)?;
        let moved = splice(between.out.number(), self.fd, len);
        between.discard(len - moved.unwrap_or(0).min(len));
        moved
    }

    /// Copies up to `len` octets of the pipe, and leaves them there.
    pub fn peek(&self, len: usize) -> Result<Vec<u8>, Errno> {
        let between = Between::new()?;
        count_system_call();
        let flags = libc::SPLICE_F_NONBLOCK;
        // SAFETY: numbers only.
        let len = told(unsafe { sys!(libc::SYS_tee, self.fd, between.into.number(), len, flags) })?;
        let mut octets = vec![0; len];
        let len = if len > 0 { read(between.out.number(), octets.as_mut_ptr(), len)? } else { 0 };
        octets.truncate(len);
        Ok(octets)
    }
}

/// Returns what a system call has returned.
fn told(result: c_long) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| last_errno())
}

fn read(fd: c_int, target: *mut u8, len: usize) -> Result<usize, Errno> {
    count_system_call();
    // SAFETY: the caller has `len` octets there, for this call alone.
    told(unsafe { sys!(libc::SYS_read, fd, target, len) })
}

fn write(fd: c_int, octets: &[u8]) -> Result<usize, Errno> {
    count_system_call();
    // SAFETY: the octets are there.
    told(unsafe { sys!(libc::SYS_write, fd, octets.as_ptr(), octets.len()) })
}

/// Moves up to `len` octets from one pipe to another, and waits for neither.
fn splice(from: c_int, to: c_int, len: usize) -> Result<usize, Errno> {
    count_system_call();
    let flags = libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE;
    // SAFETY: numbers and null pointers only.
    told(unsafe { sys!(libc::SYS_splice, from, 0, to, 0, len, flags) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    /// Returns both ends of a pipe, and what the library sees of them.
    fn pipe(flags: c_int) -> ((Pipe, OwnedFd), (Pipe, OwnedFd)) {
        let mut ends = [-1; 2];
        // SAFETY: room for both numbers.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), flags) }, 0);
        // SAFETY: both are new.
        let [out, into] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        let at = |end: &OwnedFd, access| Pipe::at(end.as_raw_fd(), access, false).expect("it is a pipe");
        ((at(&out, libc::O_RDONLY), out), (at(&into, libc::O_WRONLY), into))
    }

    #[test]
    fn nobody_waits_for_a_pipe_and_no_octet_is_lost() {
        for flags in [0, libc::O_NONBLOCK] {
            let ((out, _reader), (into, writer)) = pipe(flags);
            let through = into.between().expect("descriptors are left");
            let mut target = vec![0; 1 << 20];
            assert_eq!(out.take(through.as_ref(), target.as_mut_ptr(), 10), Err(Errno::EAGAIN));
            let octets: Vec<u8> = (0..1u32 << 18).flat_map(u32::to_ne_bytes).collect();
            let (mut sent, mut received) = (0, 0);
            while received < octets.len() {
                // More is put than there is room for: the rest is put again.
                while let Ok(now) = into.put(through.as_ref(), &octets[sent..]) {
                    sent += now;
                    if now == 0 {
                        break;
                    }
                }
                assert!(
                    sent == octets.len() || into.put(through.as_ref(), &octets[..1]) == Err(Errno::EAGAIN)
                );
                let now = out.take(through.as_ref(), target[received..].as_mut_ptr(), 3000);
                received += now.expect("there are octets");
            }
            assert!(target == octets);
            drop(writer);
            assert_eq!(out.take(through.as_ref(), target.as_mut_ptr(), 10), Ok(0));
        }
    }
}
