//! How do processes exchange messages and descriptors before they share memory? unix(7), SOCK_SEQPACKET.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use atoll_base::Duration;
use rustix::fs::{Mode, OFlags, open, unlink};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, UCred, sockopt,
};

use rustix::process::{getegid, geteuid, getpid};

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

/// A process as the kernel recorded it: at connect time ([`Channel::peer`]), or when it sent a message
/// ([`Channel::receive_from`]). `pid` may have ended and been reused since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process; 0 if it has no number in this pid namespace.
    pub pid: u32,
    /// User: the effective one at connect time. With a message it is the real one, or one that the sender
    /// named and may become ([`Channel::send_as_effective`]).
    pub uid: u32,
    /// Group, likewise.
    pub gid: u32,
}

impl Peer {
    /// Whether a process of user `own` may trust it with what it has to say: it is the same user's, or
    /// root's. Root trusts whomever it names.
    pub fn is_trusted_by(&self, own: u32) -> bool {
        own == 0 || self.uid == own || self.uid == 0
    }
}

/// A socket that waits for [`Channel`]s. The file stays when it is dropped, as with every unix socket.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Listens at `path`, of any length. A socket file that is there already is replaced: whoever held it is
    /// gone, or is being succeeded. bind(2), listen(2).
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

    /// Connects to `path` if this user or root listens there; otherwise fails with `PermissionDenied`: a name
    /// in a folder that is open to all may lead to anybody. Connecting, and later each blocking operation,
    /// fails with `WouldBlock` after `timeout`: connect(2) waits while the backlog of the listener is full.
    pub fn connect_to_own(path: &Path, timeout: Duration) -> io::Result<Channel> {
        let channel = Channel(socket(Blocking::Yes)?);
        channel.set_timeouts(timeout)?;
        let address = Address::new(path)?;
        uninterrupted(timeout, || Ok(net::connect(&channel.0, &address.address)?))?;
        match channel.peer()?.is_trusted_by(geteuid().as_raw()) {
            true => Ok(channel),
            false => Err(Errno::ACCESS.into()),
        }
    }

    /// Lets nobody pass descriptors to this end, or to those that are accepted from it: closing what somebody
    /// else has opened can take as long as that one likes. SO_PASSRIGHTS, unix(7); kernels before 6.16 have
    /// no such option, and let them come.
    pub fn refuse_descriptors(fd: impl AsFd) -> io::Result<()> {
        const SO_PASSRIGHTS: libc::c_int = 83;
        let no: libc::c_int = 0;
        let (fd, value) = (fd.as_fd().as_raw_fd(), &raw const no);
        // SAFETY: the value is an int, as the length says, and outlives the call; the descriptor is open
        // while it is borrowed.
        let set = unsafe {
            libc::syscall(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, SO_PASSRIGHTS, value, size_of_val(&no))
        };
        match io::Error::last_os_error() {
            _ if set == 0 => Ok(()),
            error if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
            error => Err(error),
        }
    }

    /// Lets operations at this end fail with `WouldBlock` from now on. fcntl(2), O_NONBLOCK.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(&self.0)?;
        Ok(rustix::fs::fcntl_setfl(&self.0, flags | OFlags::NONBLOCK)?)
    }

    /// Two ends of a new connection. socketpair(2).
    pub fn pair(blocking: Blocking) -> io::Result<(Channel, Channel)> {
        let (a, b) = net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags(blocking), None)?;
        Ok((Channel(a), Channel(b)))
    }

    /// Sends one message of at least one byte with at most [`FDS_MAX`] descriptors, all or nothing. A message
    /// without bytes is `InvalidInput`, because the receiver could not tell it from the end. sendmsg(2).
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

    /// As [`Channel::send`] without descriptors, and names the effective user and group of this process as
    /// the sender's: without that, who asks for credentials is told the real ones. SCM_CREDENTIALS, unix(7).
    pub fn send_as_effective(&self, message: &[u8]) -> io::Result<()> {
        match self.send_with(message, UCred { pid: getpid(), uid: geteuid(), gid: getegid() }) {
            // A user that has no number in the user namespace of this process cannot be named.
            Err(Errno::INVAL | Errno::PERM) => self.send(message, &[]),
            sent => Ok(sent?),
        }
    }

    /// As [`Channel::send_as_effective`], but names `uid`: for tests. `PermissionDenied` if this process may
    /// not become that one.
    #[doc(hidden)]
    pub fn send_as(&self, message: &[u8], uid: u32) -> io::Result<()> {
        let sender = UCred { pid: getpid(), uid: rustix::process::Uid::from_raw(uid), gid: getegid() };
        Ok(self.send_with(message, sender)?)
    }

    fn send_with(&self, message: &[u8], sender: UCred) -> rustix::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let pushed = control.push(SendAncillaryMessage::ScmCredentials(sender));
        debug_assert!(pushed, "the space was sized for it");
        net::sendmsg(&self.0, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL).map(drop)
    }

    /// Has the kernel say of each message who sent it, also of those that wait already; what is accepted from
    /// a listener has it, too. SO_PASSCRED, unix(7).
    pub fn ask_for_senders(fd: impl AsFd) -> io::Result<()> {
        Ok(sockopt::set_socket_passcred(fd, true)?)
    }

    /// Receives one message into `buffer` and appends its descriptors (CLOEXEC) to `fds`; returns its length,
    /// 0 at the end of the connection. recvmsg(2).
    ///
    /// A message longer than `buffer`, or one of which descriptors were lost (our descriptor table is full),
    /// is `InvalidData`: it is gone, its descriptors are closed, and the channel can be used further.
    pub fn receive(&self, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = net::recvmsg(&self.0, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
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

    /// As [`Channel::receive`] at an end with [`Channel::set_timeouts`], but goes on when a signal was
    /// handled meanwhile: with a timeout the kernel restarts no call, whatever SA_RESTART says (signal(7)).
    /// For `timeout` at least, and at most about twice as long.
    pub fn receive_within(&self, timeout: Duration, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        uninterrupted(timeout, || self.receive(buffer, fds))
    }

    /// As [`Channel::receive`], and says who sent it; `None` unless [`Channel::ask_for_senders`] was called
    /// before. To be used then: for rustix a sender without a number in this pid namespace cannot be.
    pub fn receive_from(&self, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<(usize, Option<Peer>)> {
        self.receive_with(buffer, fds, 0)
    }

    fn receive_with(
        &self,
        buffer: &mut [u8],
        fds: &mut Vec<OwnedFd>,
        flags: libc::c_int,
    ) -> io::Result<(usize, Option<Peer>)> {
        // SAFETY: a function of a number.
        const SPACE: usize =
            unsafe { libc::CMSG_SPACE((FDS_MAX * size_of::<libc::c_int>()) as u32) + libc::CMSG_SPACE(CREDENTIALS) }
                as usize;
        // Aligned as headers of control messages have to be.
        let mut space = [MaybeUninit::<u64>::uninit(); SPACE.div_ceil(8)];
        let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: a message header of zeros has nothing in it.
        let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.msg_iov = &raw mut vector;
        header.msg_iovlen = 1;
        header.msg_control = space.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&space) as _;
        let (fd, flags) = (self.0.as_raw_fd(), flags | libc::MSG_CMSG_CLOEXEC);
        // SAFETY: the header, and all that it points to, outlives the call. By number, because a library that
        // replaces recvmsg(2) uses this.
        let len = unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut header, flags) };
        let Ok(len) = usize::try_from(len) else { return Err(io::Error::last_os_error()) };
        let (mut sender, mut received) = (None, Vec::new());
        // SAFETY: the kernel has filled the header and the space that it names.
        let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
        // SAFETY: a header inside that space, or none.
        while let Some(message) = unsafe { next.as_ref() } {
            // SAFETY: `next` is a header, and data follows it.
            let data = unsafe { libc::CMSG_DATA(next) };
            // SAFETY: a function of a number.
            let octets = message.cmsg_len.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
            match (message.cmsg_level, message.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for at in 0..octets / size_of::<libc::c_int>() {
                        // SAFETY: the kernel has put as many numbers of descriptors there, which are nobody
                        // else's.
                        received
                            .push(unsafe { OwnedFd::from_raw_fd(data.cast::<libc::c_int>().add(at).read_unaligned()) });
                    }
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if octets >= CREDENTIALS as usize => {
                    // SAFETY: as many octets are there, and every pattern of them is valid.
                    sender = Some(peer(unsafe { data.cast::<libc::ucred>().read_unaligned() }));
                }
                _ => {}
            }
            // SAFETY: as above.
            next = unsafe { libc::CMSG_NXTHDR(&raw const header, next) };
        }
        if header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "message or its descriptors were cut off"));
        }
        fds.append(&mut received);
        Ok((len, sender))
    }

    /// As [`Channel::receive_from`], but the message stays where it is: the descriptors are duplicates, and
    /// what is `InvalidData` is there again.
    pub fn look_from(&self, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<(usize, Option<Peer>)> {
        self.receive_with(buffer, fds, libc::MSG_PEEK)
    }

    /// Who connected, or who listens. SO_PEERCRED, socket(7).
    pub fn peer(&self) -> io::Result<Peer> {
        // Not by rustix, for which a process without a number in this pid namespace cannot be.
        let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = CREDENTIALS;
        let (fd, level, name) = (self.0.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED);
        // SAFETY: the value has as many octets as the length says, and both outlive the call.
        let got = unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, &raw mut credentials, &raw mut len) };
        if got == 0 { Ok(peer(credentials)) } else { Err(io::Error::last_os_error()) }
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

/// Repeats a call that fails with EINTR. Signals that come faster than it works end it with EAGAIN after
/// `timeout`.
fn uninterrupted<T>(timeout: Duration, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let end = std::time::Instant::now() + timeout;
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                if std::time::Instant::now() >= end {
                    return Err(Errno::AGAIN.into());
                }
            }
            result => return result,
        }
    }
}

/// Octets of a `ucred`.
const CREDENTIALS: u32 = size_of::<libc::ucred>() as u32;

fn peer(credentials: libc::ucred) -> Peer {
    Peer { pid: credentials.pid.cast_unsigned(), uid: credentials.uid, gid: credentials.gid }
}

/// Whether a descriptor is an end of a [`Channel`].
pub fn is_channel(fd: impl AsFd) -> bool {
    let fd = fd.as_fd();
    sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX) && sockopt::socket_type(fd) == Ok(SocketType::SEQPACKET)
}

/// Whether there is anything at `path`, as this process sees it. stat(2).
pub fn is_visible(path: &Path) -> bool {
    rustix::fs::stat(path).is_ok()
}

/// The address of a socket file. A path that does not fit into `sun_path` (108 bytes) is reached through the
/// directory, which then has to stay open.
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
