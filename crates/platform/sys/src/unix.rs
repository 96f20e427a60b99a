//! How do processes exchange messages and descriptors before they share memory? unix(7), SOCK_SEQPACKET.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use atoll_base::Duration;
use rustix::fs::{Mode, OFlags, open, unlink};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use rustix::process::geteuid;

/// How many descriptors one message can carry (SCM_MAX_FD).
pub const FDS_MAX: usize = 253;

/// Whether operations on a socket wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    /// They wait, up to [`Channel::set_timeouts`].
    Yes,
    /// They fail with `WouldBlock`.
    No,
}

/// Who is at the other end, as the kernel recorded it at connect time; `pid` may have ended and been reused since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process.
    pub pid: u32,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

impl Peer {
    /// Whether a process of user `own` may trust it with what it has to say: it is the same user's, or root's. Root trusts whomever it names.
    pub fn is_trusted_by(&self, own: u32) -> bool {
        own == 0 || self.uid == own || self.uid == 0
    }
}

/// A socket that waits for [`Channel`]s. The file stays when it is dropped, as with every unix socket.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Listens at `path`, of any length. A socket file that is there already is replaced: whoever held it is gone, or
    /// is being succeeded. bind(2), listen(2).
    pub fn bind(path: &Path, backlog: u32, blocking: Blocking) -> io::Result<Listener> {
        let socket = socket(blocking)?;
        let address = Address::new(path)?;
        match std::fs::symlink_metadata(path) {
            Ok(found) if std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()) => unlink(path)?,
            _ => {} // Something else in the way makes bind fail with AddrInUse.
        }
        net::bind(&socket, &address.address)?;
        net::listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
        Ok(Listener(socket))
    }

    /// The next peer; `WouldBlock` if there is none and the listener does not block. accept(2).
    pub fn accept(&self, blocking: Blocking) -> io::Result<Channel> {
        Ok(Channel(net::accept_with(&self.0, flags(blocking))?))
    }
}

/// One end of a connection that keeps message boundaries and carries descriptors.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    /// Connects to the listener at `path`. connect(2).
    pub fn connect(path: &Path, blocking: Blocking) -> io::Result<Channel> {
        let socket = socket(blocking)?;
        net::connect(&socket, &Address::new(path)?.address)?;
        Ok(Channel(socket))
    }

    /// The same, if this user or root listens there; otherwise `PermissionDenied`: a name in a folder that is open to all may lead to
    /// anybody.
    pub fn connect_to_own(path: &Path, blocking: Blocking) -> io::Result<Channel> {
        let channel = Channel::connect(path, blocking)?;
        match channel.peer()?.is_trusted_by(geteuid().as_raw()) {
            true => Ok(channel),
            false => Err(Errno::ACCESS.into()),
        }
    }

    /// Lets nobody pass descriptors to this end, or to those that are accepted from it: closing what somebody else has opened can take as
    /// long as that one likes. SO_PASSRIGHTS, unix(7); kernels before 6.16 have no such option, and let them come.
    pub fn refuse_descriptors(fd: impl AsFd) -> io::Result<()> {
        const SO_PASSRIGHTS: libc::c_int = 83;
        let no: libc::c_int = 0;
        let (fd, value) = (fd.as_fd().as_raw_fd(), &raw const no);
        // SAFETY: the value is an int, as the length says, and outlives the call; the descriptor is open while it is borrowed.
        let set = unsafe {
            libc::syscall(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, SO_PASSRIGHTS, value, size_of_val(&no))
        };
        match io::Error::last_os_error() {
            _ if set == 0 => Ok(()),
            error if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
            error => Err(error),
        }
    }

    /// Two ends of a new connection. socketpair(2).
    pub fn pair(blocking: Blocking) -> io::Result<(Channel, Channel)> {
        let (a, b) = net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags(blocking), None)?;
        Ok((Channel(a), Channel(b)))
    }

    /// Sends one message of at least one byte with at most [`FDS_MAX`] descriptors, all or nothing. A message without
    /// bytes is `InvalidInput`, because the receiver could not tell it from the end. sendmsg(2).
    pub fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if message.is_empty() || fds.len() > FDS_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "empty message or too many descriptors"));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            let pushed = control.push(SendAncillaryMessage::ScmRights(fds));
            debug_assert!(pushed, "the space was sized for FDS_MAX");
        }
        net::sendmsg(&self.0, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives one message into `buffer` and appends its descriptors (CLOEXEC) to `fds`; returns its length, 0 at the
    /// end of the connection. recvmsg(2).
    ///
    /// A message longer than `buffer`, or one of which descriptors were lost (our descriptor table is full), is
    /// `InvalidData`: it is gone, its descriptors are closed, and the channel can be used further.
    pub fn receive(&self, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        self.receive_with(buffer, fds, RecvFlags::empty())
    }

    fn receive_with(&self, buffer: &mut [u8], fds: &mut Vec<OwnedFd>, flags: RecvFlags) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received =
            net::recvmsg(&self.0, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC | flags)?;
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "message or its descriptors were cut off"));
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        Ok(received.bytes)
    }

    /// The first octet of the next message, which stays where it is; `None` at the end of the connection. recvmsg(2), MSG_PEEK.
    pub fn peek(&self) -> io::Result<Option<u8>> {
        let mut first = [0];
        let (_, len) = net::recv(&self.0, &mut first[..], RecvFlags::PEEK)?;
        Ok((len > 0).then_some(first[0]))
    }

    /// As [`Channel::receive`], but the message stays where it is: the descriptors are duplicates, and what is `InvalidData` is there again.
    pub fn look(&self, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        self.receive_with(buffer, fds, RecvFlags::PEEK)
    }

    /// Who connected, or who listens. SO_PEERCRED, socket(7).
    pub fn peer(&self) -> io::Result<Peer> {
        let credentials = sockopt::socket_peercred(&self.0)?;
        Ok(Peer {
            pid: credentials.pid.as_raw_nonzero().get().cast_unsigned(),
            uid: credentials.uid.as_raw(),
            gid: credentials.gid.as_raw(),
        })
    }

    /// Lets blocking operations fail with `WouldBlock` after `timeout`. SO_RCVTIMEO, SO_SNDTIMEO, socket(7).
    pub fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Recv, Some(timeout))?;
        Ok(sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Send, Some(timeout))?)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Channel {
    /// Takes over an end that was inherited or received.
    fn from(fd: OwnedFd) -> Channel {
        Channel(fd)
    }
}

impl From<OwnedFd> for Listener {
    /// Takes over a listening socket that was inherited or received.
    fn from(fd: OwnedFd) -> Listener {
        Listener(fd)
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> OwnedFd {
        channel.0
    }
}

impl From<Listener> for OwnedFd {
    fn from(listener: Listener) -> OwnedFd {
        listener.0
    }
}

/// The address of a socket file. A path that does not fit into `sun_path` (108 bytes) is reached through the directory,
/// which then has to stay open.
struct Address {
    address: SocketAddrUnix,
    _directory: Option<OwnedFd>,
}

impl Address {
    fn new(path: &Path) -> io::Result<Address> {
        if let Ok(address) = SocketAddrUnix::new(path) {
            return Ok(Address { address, _directory: None });
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a path of a socket"));
        };
        let directory = open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut short = OsString::from(format!("/proc/self/fd/{}/", directory.as_raw_fd()));
        short.push(name);
        Ok(Address { address: SocketAddrUnix::new(Path::new(&short))?, _directory: Some(directory) })
    }
}

fn socket(blocking: Blocking) -> io::Result<OwnedFd> {
    Ok(net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags(blocking), None)?)
}

fn flags(blocking: Blocking) -> SocketFlags {
    match blocking {
        Blocking::Yes => SocketFlags::CLOEXEC,
        Blocking::No => SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
    }
}

#[cfg(test)]
mod tests;
