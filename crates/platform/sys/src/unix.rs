//! Exchanges messages and descriptors between processes that do not share memory yet (unix(7),
//! SOCK_SEQPACKET).

use std::ffi::{OsString, c_int, c_long};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use atoll_base::Duration;
use rustix::fs::{Mode, OFlags, open, unlink};
use rustix::io::Errno;
use rustix::net::addr::SocketAddrArg;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::instruction::call;

/// The most descriptors that one message can carry (SCM_MAX_FD).
pub const FDS_MAX: usize = 253;

/// Whether operations on a socket wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    /// Operations wait, at most as long as [`Channel::set_timeouts`] says.
    Yes,
    /// Operations that would wait fail with `WouldBlock`.
    No,
}

/// A process as the kernel recorded it: at connect time ([`Channel::peer`]), or when it sent a message
/// ([`Channel::receive_from`]). The process may have ended since, and its number may be another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process number; 0 if the process has none in this pid namespace.
    pub pid: u32,
    /// The user: the effective one at connect time. With a message it is the real one, or one that the sender
    /// named and may become ([`Channel::send_as_effective`]).
    pub uid: u32,
    /// The group: the effective one at connect time, the real or a named one with a message.
    pub gid: u32,
}

impl Peer {
    /// Returns whether a process of user `own` may trust this one with its messages: it is of the same user,
    /// or of root. Root trusts every process that it addresses.
    pub fn is_trusted_by(&self, own: u32) -> bool {
        own == 0 || self.uid == own || self.uid == 0
    }
}

/// A socket that waits for [`Channel`]s. Dropping it does not remove the socket file, as with every unix
/// socket.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Listens at `path`, which may have any length (bind(2), listen(2)). A socket file that exists is
    /// replaced: its owner is gone, or is being succeeded. Fails with `AddrInUse` if there is another kind of
    /// file.
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

    /// Accepts the next connection (accept(2)). Fails with `WouldBlock` if there is none and the listener
    /// does not block.
    pub fn accept(&self, blocking: Blocking) -> io::Result<Channel> {
        Ok(Channel(net::accept_with(&self.0, flags(blocking))?))
    }
}

/// One end of a connection that keeps message boundaries and carries descriptors.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    /// Connects to the listener at `path` (connect(2)).
    pub fn connect(path: &Path, blocking: Blocking) -> io::Result<Channel> {
        let socket = socket(blocking)?;
        Address::new(path)?.connect(&socket)?;
        Ok(Channel(socket))
    }

    /// Connects to `path` if this user or root listens there, and fails with `PermissionDenied` otherwise,
    /// because any user may create a name in a directory that is open to all. Connecting, and each later
    /// blocking operation, fails with `WouldBlock` after `timeout`: connect(2) waits while the backlog of the
    /// listener is full.
    pub fn connect_to_own(path: &Path, timeout: Duration) -> io::Result<Channel> {
        let channel = Channel::unconnected()?;
        channel.reach_own(path, timeout)?;
        Ok(channel)
    }

    /// Creates an end that is not connected yet (socket(2)).
    pub fn unconnected() -> io::Result<Channel> {
        Ok(Channel(socket(Blocking::Yes)?))
    }

    /// Connects an end that is not connected yet, as [`Channel::connect_to_own`] does.
    pub fn reach_own(&self, path: &Path, timeout: Duration) -> io::Result<()> {
        self.set_timeouts(timeout)?;
        let address = Address::new(path)?;
        uninterrupted(timeout, || address.connect(&self.0))?;
        match self.peer()?.is_trusted_by(number_of(libc::SYS_geteuid)) {
            true => Ok(()),
            false => Err(Errno::ACCESS.into()),
        }
    }

    /// Waits until there is something to receive, or the other end is gone (poll(2)). Fails with `WouldBlock`
    /// after `timeout`, or at most about twice as long if signals come.
    pub fn wait_to_receive(&self, timeout: Duration) -> io::Result<()> {
        let time = kernel_time(timeout);
        let ready = uninterrupted(timeout, || {
            let mut entry = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // The kernel writes what is left of the time.
            let mut left = time;
            let words = [&raw mut entry as c_long, 1, &raw mut left as c_long, 0, 0];
            // SAFETY: one entry, a time, and no mask.
            unsafe { call(libc::SYS_ppoll, words) }
        })?;
        if ready > 0 { Ok(()) } else { Err(Errno::AGAIN.into()) }
    }

    /// Refuses descriptors sent to this end, or to connections accepted from it (SO_PASSRIGHTS, unix(7)):
    /// closing what another process has opened can take as long as that process likes. Kernels before 6.16 do
    /// not have this option, and let descriptors come; that is not an error.
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

    /// Makes operations at this end fail with `WouldBlock` instead of waiting (fcntl(2), O_NONBLOCK).
    pub fn set_nonblocking(&self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(&self.0)?;
        Ok(rustix::fs::fcntl_setfl(&self.0, flags | OFlags::NONBLOCK)?)
    }

    /// Creates a connection and returns its two ends (socketpair(2)).
    pub fn pair(blocking: Blocking) -> io::Result<(Channel, Channel)> {
        let (a, b) = net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags(blocking), None)?;
        Ok((Channel(a), Channel(b)))
    }

    /// Sends one message of at least one byte with at most [`FDS_MAX`] descriptors, all or nothing
    /// (sendmsg(2)). Fails with `InvalidInput` for an empty message, which would look like the end to the
    /// receiver, and for too many descriptors.
    pub fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if message.is_empty() || fds.len() > FDS_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "empty message or too many descriptors"));
        }
        let numbers: Vec<c_int> = fds.iter().map(|fd| fd.as_raw_fd()).collect();
        self.send_with(message, libc::SCM_RIGHTS, &numbers)
    }

    /// Sends one message without descriptors, and names the effective user and group of this process as the
    /// sender's (SCM_CREDENTIALS, unix(7)): a receiver that asks for credentials gets the real ones
    /// otherwise.
    pub fn send_as_effective(&self, message: &[u8]) -> io::Result<()> {
        match self.send_named(message, number_of(libc::SYS_geteuid)) {
            // A user that has no number in the user namespace of this process cannot be named.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EPERM)) => {
                self.send(message, &[])
            }
            sent => sent,
        }
    }

    /// Sends one message and names `uid` as the sender's user; for tests. Fails with `PermissionDenied` if
    /// this process may not become that user.
    #[doc(hidden)]
    pub fn send_as(&self, message: &[u8], uid: u32) -> io::Result<()> {
        self.send_named(message, uid)
    }

    fn send_named(&self, message: &[u8], uid: u32) -> io::Result<()> {
        let (pid, gid) = (number_of(libc::SYS_getpid).cast_signed(), number_of(libc::SYS_getegid));
        self.send_with(message, libc::SCM_CREDENTIALS, &[libc::ucred { pid, uid, gid }])
    }

    /// Sends one message with a control message of this type, unless `values` is empty. The values are plain
    /// numbers, at most as many octets as [`FDS_MAX`] descriptors.
    fn send_with<T: Copy>(&self, message: &[u8], kind: c_int, values: &[T]) -> io::Result<()> {
        let mut space = [0u64; RIGHTS_SPACE.div_ceil(8)];
        let mut vector = libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
        // SAFETY: a message header of zeros is valid and empty.
        let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.msg_iov = &raw mut vector;
        header.msg_iovlen = 1;
        let octets = size_of_val(values) as u32;
        // SAFETY: the results depend only on a number.
        let (len, with_padding) = unsafe { (libc::CMSG_LEN(octets), libc::CMSG_SPACE(octets)) };
        if !values.is_empty() && with_padding as usize <= size_of_val(&space) {
            header.msg_control = space.as_mut_ptr().cast();
            header.msg_controllen = with_padding as _;
            let control = space.as_mut_ptr().cast::<libc::cmsghdr>();
            // SAFETY: the space begins with a header, is aligned for it, and has room for the values.
            unsafe {
                (*control).cmsg_level = libc::SOL_SOCKET;
                (*control).cmsg_type = kind;
                (*control).cmsg_len = len as _;
                std::ptr::copy_nonoverlapping(values.as_ptr(), libc::CMSG_DATA(control).cast(), values.len());
            }
        }
        let words = [self.0.as_raw_fd().into(), &raw const header as c_long, libc::MSG_NOSIGNAL.into()];
        // SAFETY: the header, and all that it points to, outlives the call, which only reads it.
        unsafe { call(libc::SYS_sendmsg, words).map(drop) }
    }

    /// Makes the kernel report the sender of each message, also of messages that wait already; connections
    /// accepted from a listener inherit this (SO_PASSCRED, unix(7)).
    pub fn ask_for_senders(fd: impl AsFd) -> io::Result<()> {
        Ok(sockopt::set_socket_passcred(fd, true)?)
    }

    /// Receives one message into `buffer` and appends its descriptors (CLOEXEC) to `fds` (recvmsg(2)).
    /// Returns its length in bytes, 0 at the end of the connection.
    ///
    /// Fails with `InvalidData` if the message is longer than `buffer`, or descriptors were lost because the
    /// descriptor table of this process is full. The message is lost then and its descriptors are closed, but
    /// the channel can still be used.
    pub fn receive(&self, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        self.receive_with(buffer, fds, 0).map(|(len, _)| len)
    }

    /// Receives like [`Channel::receive`], at an end with [`Channel::set_timeouts`], but continues after a
    /// signal was handled: with a timeout the kernel restarts no call, whatever SA_RESTART says (signal(7)).
    /// Waits for `timeout` at least, and at most about twice as long.
    pub fn receive_within(
        &self,
        timeout: Duration,
        buffer: &mut [u8],
        fds: &mut Vec<OwnedFd>,
    ) -> io::Result<usize> {
        uninterrupted(timeout, || self.receive(buffer, fds))
    }

    /// Receives like [`Channel::receive`], and also returns the sender; `None` unless
    /// [`Channel::ask_for_senders`] was called before.
    pub fn receive_from(
        &self,
        buffer: &mut [u8],
        fds: &mut Vec<OwnedFd>,
    ) -> io::Result<(usize, Option<Peer>)> {
        self.receive_with(buffer, fds, 0)
    }

    fn receive_with(
        &self,
        buffer: &mut [u8],
        fds: &mut Vec<OwnedFd>,
        flags: libc::c_int,
    ) -> io::Result<(usize, Option<Peer>)> {
        // SAFETY: the result depends only on a number.
        const SPACE: usize = RIGHTS_SPACE + unsafe { libc::CMSG_SPACE(CREDENTIALS) } as usize;
        // The space is aligned as headers of control messages have to be.
        let mut space = [MaybeUninit::<u64>::uninit(); SPACE.div_ceil(8)];
        let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: a message header of zeros is valid and empty.
        let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.msg_iov = &raw mut vector;
        header.msg_iovlen = 1;
        header.msg_control = space.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&space) as _;
        let flags = flags | libc::MSG_CMSG_CLOEXEC;
        let words = [self.0.as_raw_fd().into(), &raw mut header as c_long, flags.into()];
        // SAFETY: the header, and all that it points to, outlives the call.
        let len = unsafe { call(libc::SYS_recvmsg, words)? } as usize;
        let (mut sender, mut received) = (None, Vec::new());
        // SAFETY: the kernel has filled the header and the space that it names.
        let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
        // SAFETY: `next` is null, or points to a header inside that space.
        while let Some(message) = unsafe { next.as_ref() } {
            // SAFETY: `next` is a header, and data follows it.
            let data = unsafe { libc::CMSG_DATA(next) };
            // SAFETY: the result depends only on a number.
            let octets = message.cmsg_len.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
            match (message.cmsg_level, message.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for at in 0..octets / size_of::<libc::c_int>() {
                        // SAFETY: the kernel has put as many numbers of new descriptors there, which have no
                        // other owner.
                        received.push(unsafe {
                            OwnedFd::from_raw_fd(data.cast::<libc::c_int>().add(at).read_unaligned())
                        });
                    }
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if octets >= CREDENTIALS as usize => {
                    // SAFETY: there are as many octets, and every pattern of them is valid.
                    sender = Some(peer(unsafe { data.cast::<libc::ucred>().read_unaligned() }));
                }
                _ => {}
            }
            // SAFETY: `next` is a header in the space that the kernel has filled.
            next = unsafe { libc::CMSG_NXTHDR(&raw const header, next) };
        }
        if header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "message or its descriptors were cut off",
            ));
        }
        fds.append(&mut received);
        Ok((len, sender))
    }

    /// Receives like [`Channel::receive_from`], but leaves the message in the socket: the descriptors are
    /// duplicates, and a message that is `InvalidData` stays as well.
    pub fn look_from(&self, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<(usize, Option<Peer>)> {
        self.receive_with(buffer, fds, libc::MSG_PEEK)
    }

    /// Returns the process that connected, or the one that listens (SO_PEERCRED, socket(7)).
    pub fn peer(&self) -> io::Result<Peer> {
        // rustix cannot represent a process without a number in this pid namespace.
        let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = CREDENTIALS;
        let (value, len) = (&raw mut credentials as c_long, &raw mut len as c_long);
        let (level, name) = (libc::SOL_SOCKET.into(), libc::SO_PEERCRED.into());
        // SAFETY: the value has as many octets as the length says, and both outlive the call.
        unsafe { call(libc::SYS_getsockopt, [self.0.as_raw_fd().into(), level, name, value, len])? };
        Ok(peer(credentials))
    }

    /// Makes blocking operations fail with `WouldBlock` after `timeout` (SO_RCVTIMEO, SO_SNDTIMEO,
    /// socket(7)).
    pub fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        let time = kernel_time(timeout);
        // The kernel takes microseconds.
        let time = libc::timeval { tv_sec: time.tv_sec, tv_usec: (time.tv_nsec / 1000) as _ };
        let (value, len) = (&raw const time as c_long, size_of_val(&time) as c_long);
        for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            let words = [self.0.as_raw_fd().into(), libc::SOL_SOCKET.into(), name.into(), value, len];
            // SAFETY: the value has as many octets as the length says, and outlives the call.
            unsafe { call(libc::SYS_setsockopt, words)? };
        }
        Ok(())
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
    /// Takes over the end of a connection, which was inherited or received.
    fn from(fd: OwnedFd) -> Channel {
        Channel(fd)
    }
}

impl From<OwnedFd> for Listener {
    /// Takes over a listening socket, which was inherited or received.
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

/// Repeats a call that fails with EINTR. If signals come faster than the call works, it fails with EAGAIN
/// after `timeout`.
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

/// Returns a duration as the kernel takes it.
fn kernel_time(duration: Duration) -> libc::timespec {
    let tv_sec = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    libc::timespec { tv_sec, tv_nsec: duration.subsec_nanos().into() }
}

/// Returns what a system call without arguments returns, which cannot fail: the number of a process, user or
/// group.
fn number_of(system_call: c_long) -> u32 {
    // SAFETY: no arguments.
    unsafe { call(system_call, []) }.map_or(0, |number| number as u32)
}

/// The space for a control message with [`FDS_MAX`] descriptors, in bytes.
// SAFETY: the result depends only on a number.
const RIGHTS_SPACE: usize = unsafe { libc::CMSG_SPACE((FDS_MAX * size_of::<c_int>()) as u32) } as usize;

/// The size of a `ucred` in bytes.
const CREDENTIALS: u32 = size_of::<libc::ucred>() as u32;

fn peer(credentials: libc::ucred) -> Peer {
    Peer { pid: credentials.pid.cast_unsigned(), uid: credentials.uid, gid: credentials.gid }
}

/// Returns whether a descriptor is an end of a [`Channel`].
pub fn is_channel(fd: impl AsFd) -> bool {
    let fd = fd.as_fd();
    sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(fd) == Ok(SocketType::SEQPACKET)
}

/// Returns whether anything exists at `path`, as this process sees it (stat(2)).
pub fn is_visible(path: &Path) -> bool {
    rustix::fs::stat(path).is_ok()
}

/// The address of a socket file. A path that does not fit into `sun_path` (108 bytes) is reached through its
/// directory, which has to stay open then.
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

impl Address {
    fn connect(&self, socket: &OwnedFd) -> io::Result<()> {
        // SAFETY: the address is used only during the call, which only reads it.
        unsafe {
            self.address.with_sockaddr(|address, len| {
                call(libc::SYS_connect, [socket.as_raw_fd().into(), address as c_long, len.into()]).map(drop)
            })
        }
    }
}

fn socket(blocking: Blocking) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | flags(blocking).bits().cast_signed();
    // SAFETY: makes a descriptor.
    let fd = unsafe { call(libc::SYS_socket, [libc::AF_UNIX.into(), kind.into(), 0])? };
    // SAFETY: the kernel has just created it for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

fn flags(blocking: Blocking) -> SocketFlags {
    match blocking {
        Blocking::Yes => SocketFlags::CLOEXEC,
        Blocking::No => SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
    }
}

#[cfg(test)]
mod tests;
