//! One queue of a TAP device: how frames get in and out.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use atoll_sys::Gather;
use rustix::io::{Errno, read, write};

/// The length of the `virtio_net_hdr` before each frame, in bytes. With the Ethernet header that makes 24, so
/// the IP header is aligned to 8 bytes if the buffer is. (The 12-byte form adds a count of buffers, which TAP
/// does not use.)
pub const VNET_HEADER_LEN: usize = 10;

/// The largest frame that a queue gives or takes, in bytes, with its vnet header: the largest IP packet,
/// Ethernet, one VLAN tag.
pub const FRAME_LEN_MAX: usize = VNET_HEADER_LEN + 14 + 4 + 65_535;

/// One queue of a [`crate::Tap`], nonblocking. To sleep, wait until the descriptor is readable.
///
/// The queue survives the process if another one (the supervisor) holds a copy of the descriptor: frames then
/// wait in the queue.
#[derive(Debug)]
pub struct Queue {
    fd: OwnedFd,
}

impl Queue {
    /// Makes a queue of a descriptor that a [`crate::Tap`] gave, in this process or in another one.
    pub fn from_fd(fd: OwnedFd) -> Queue {
        Queue { fd }
    }

    /// Returns the descriptor, to pass it on.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Takes the next frame out, with its vnet header first, and returns its length in bytes; `None` if there
    /// is none. Takes about 220 ns.
    ///
    /// `buf` has to have [`FRAME_LEN_MAX`] bytes, because the kernel truncates a longer frame silently.
    /// Without TSO and USO the MTU plus 28 suffices. Fails with EBADFD once the device is gone.
    #[inline]
    pub fn receive(&mut self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match read(&self.fd, &mut *buf) {
                Ok(len) => return Ok(Some(len)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Puts a frame in: vnet header, headers and payload, in one piece or in several, in private or shared
    /// memory.
    ///
    /// The kernel processes the frame (up to the receiving socket) before this returns, which takes 300 ns
    /// and more.
    #[inline]
    pub fn send(&mut self, frame: &Gather<'_>) -> io::Result<SendOutcome> {
        outcome(frame.write_to(&self.fd))
    }

    /// Puts a frame in like [`Queue::send`], for a frame in one piece.
    #[inline]
    pub fn send_bytes(&mut self, frame: &[u8]) -> io::Result<SendOutcome> {
        outcome(write(&self.fd, frame).map_err(io::Error::from))
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<OwnedFd> for Queue {
    fn from(fd: OwnedFd) -> Queue {
        Queue::from_fd(fd)
    }
}

/// The kernel's treatment of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum SendOutcome {
    /// The kernel has taken the frame. Whether it is received is not known, as on every link.
    Sent,
    /// The kernel has no memory for the frame now: keep it and try again later, or count it as lost.
    NoRoom,
    /// The link is down, and the frame is lost.
    LinkDown,
    /// The frame or its vnet header is not valid, and the frame is lost; the code that built it has a bug.
    Refused,
}

#[inline]
fn outcome(result: io::Result<usize>) -> io::Result<SendOutcome> {
    let error = match result {
        Ok(_) => return Ok(SendOutcome::Sent),
        Err(error) => error,
    };
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => Ok(SendOutcome::NoRoom),
        Some(libc::EIO) => Ok(SendOutcome::LinkDown),
        Some(libc::EINVAL | libc::EMSGSIZE) => Ok(SendOutcome::Refused),
        _ => Err(error),
    }
}
