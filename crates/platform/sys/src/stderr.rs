//! Writes to standard error without ever waiting for its reader (pipe(7), tty(4), unix(7)).

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fstat, ftruncate, open, stat};
use rustix::io::{Errno, write};
use rustix::net::{SendFlags, send};
use rustix::stdio::stderr;

/// The standard error of this process, for writes that do not wait.
///
/// O_NONBLOCK is never set on it, because that flag belongs to the open file, which other processes share,
/// for example the shell.
#[derive(Debug)]
pub struct ErrorOutput(Way);

#[derive(Debug)]
enum Way {
    /// A file, or something else that does not wait.
    Direct,
    /// A pipe or terminal, opened again with O_NONBLOCK for this process alone.
    Own(OwnedFd),
    Socket,
    /// Something that cannot be opened again: it is polled for room before each write. Other writers may take
    /// the room meanwhile.
    Asked,
}

impl ErrorOutput {
    /// Finds out what standard error is. Needs /proc, and the rights to open a pipe or terminal again.
    pub fn open() -> ErrorOutput {
        let kind = fstat(stderr()).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let never_waits = || fcntl_getfl(stderr()).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
        ErrorOutput(match kind {
            Ok(FileType::RegularFile) | Err(_) => Way::Direct,
            Ok(FileType::Socket) => Way::Socket,
            Ok(_) if never_waits() => Way::Direct,
            Ok(_) => {
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                open("/proc/self/fd/2", flags, Mode::empty()).map_or(Way::Asked, Way::Own)
            }
        })
    }

    /// Returns standard error without opening a descriptor, for use inside a foreign program. It is polled
    /// for room and for a reader before each write, so that a program that does not ignore SIGPIPE does not
    /// die of it.
    pub fn asking() -> ErrorOutput {
        ErrorOutput(Way::Asked)
    }

    /// Writes as much as fits, and returns how many bytes that was. Fails with EAGAIN if nothing fits
    /// (write(2)).
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let written = match &self.0 {
                Way::Direct => write(stderr(), bytes),
                Way::Own(own) => write(own, bytes),
                Way::Socket => send(stderr(), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
                Way::Asked => write_if_ready(bytes),
            };
            match written {
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    /// Returns the size of standard error in bytes if it is the file at `path`, and `None` otherwise.
    pub fn size_of(&self, path: &Path) -> Option<u64> {
        let (own, named) = (fstat(stderr()).ok()?, stat(path).ok()?);
        let is_it = own.st_ino == named.st_ino && own.st_dev == named.st_dev;
        let is_file = FileType::from_raw_mode(own.st_mode) == FileType::RegularFile;
        (is_it && is_file).then(|| u64::try_from(own.st_size).unwrap_or(0))
    }

    /// Empties standard error if it is a file (ftruncate(2)). Writers that have opened it with O_APPEND
    /// continue at its beginning.
    pub fn truncate(&self) -> io::Result<()> {
        Ok(ftruncate(stderr(), 0)?)
    }
}

fn write_if_ready(bytes: &[u8]) -> rustix::io::Result<usize> {
    let mut set = [PollFd::from_borrowed_fd(stderr(), PollFlags::OUT)];
    poll(&mut set, Some(&NO_TIME))?;
    match set[0].revents() {
        found if found.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) => Err(Errno::PIPE),
        found if found.contains(PollFlags::OUT) => write(stderr(), bytes),
        _ => Err(Errno::AGAIN),
    }
}

const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
