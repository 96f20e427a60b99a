//! Maps causes of failure to errno values. This is the project's only such table.

use atoll_ipc::datagram::Fault;
use atoll_ipc::{Cause, NetworkCause};

/// A Linux error number, as on x86-64 and AArch64 (asm-generic/errno.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// Why an operation did not finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The operation cannot be done now, but perhaps later.
    WouldBlock,
    /// The operation failed for good.
    Error(Errno),
}

impl Failure {
    /// Returns the error number of a call that does not wait.
    pub const fn errno(self) -> Errno {
        match self {
            Failure::WouldBlock => Errno::EAGAIN,
            Failure::Error(errno) => errno,
        }
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        Failure::Error(errno)
    }
}

macro_rules! errnos {
    ($($name:ident = $value:literal,)*) => {
        #[allow(missing_docs)] // errno(3) documents them.
        impl Errno { $(pub const $name: Errno = Errno($value);)* }
    };
}

errnos! {
    EINTR = 4, EIO = 5, EBADF = 9, EAGAIN = 11, ENOMEM = 12, EACCES = 13, EFAULT = 14, EEXIST = 17,
    ENODEV = 19, EINVAL = 22, EMFILE = 24,
    ENOTTY = 25, ENONET = 64, EHOSTDOWN = 112, EREMOTEIO = 121,
    ESPIPE = 29, EPIPE = 32, ENOENT = 2, EDOM = 33, EDEADLK = 35, ELOOP = 40, EPERM = 1, EPROTO = 71,
    ENOTSOCK = 88, EDESTADDRREQ = 89,
    EMSGSIZE = 90, ENOPROTOOPT = 92, EOPNOTSUPP = 95, EAFNOSUPPORT = 97, EADDRINUSE = 98, EADDRNOTAVAIL = 99,
    ENETDOWN = 100, ENETUNREACH = 101, ECONNABORTED = 103, ECONNRESET = 104, ENOBUFS = 105, EISCONN = 106,
    ENOTCONN = 107, ETIMEDOUT = 110, ECONNREFUSED = 111, EHOSTUNREACH = 113, EALREADY = 114,
    EINPROGRESS = 115,
}

impl Errno {
    /// Returns the errno of an error.
    pub fn of_fault(fault: &Fault) -> Errno {
        let cause = NetworkCause::of(fault.reporter.is_v4(), fault.kind, fault.code).cause;
        Errno::of(cause).unwrap_or(Errno::EHOSTUNREACH)
    }

    /// Returns the errno of a cause; `None` for [`Cause::None`].
    pub const fn of(cause: Cause) -> Option<Errno> {
        Some(match cause {
            Cause::None => return None,
            // connect(2): "A connect() on a stream socket found no one listening on the remote address."
            Cause::ConnectionRefused => Errno::ECONNREFUSED,
            // recv(2), tcp(7): the peer sent RST.
            Cause::ConnectionReset => Errno::ECONNRESET,
            // tcp(7): "The other end didn't acknowledge retransmitted data after some time."
            Cause::TimedOut => Errno::ETIMEDOUT,
            // ip(7): "No valid routing table entry matches the destination address ... caused by an ICMP
            // message".
            Cause::HostUnreachable => Errno::EHOSTUNREACH,
            // connect(2): "Network is unreachable."
            Cause::NetworkUnreachable => Errno::ENETUNREACH,
            // bind(2), listen(2): "The given address is already in use."
            Cause::AddressInUse => Errno::EADDRINUSE,
            // bind(2): "A nonexistent interface was requested or the requested address was not local."
            Cause::AddressNotAvailable => Errno::EADDRNOTAVAIL,
            // socket(7), send(2): "insufficient memory" for buffers and tables.
            Cause::NoBuffers => Errno::ENOBUFS,
            // send(2): "the size of the message to be sent made this impossible."
            Cause::MessageTooLong => Errno::EMSGSIZE,
            // bind(2), listen(2): invalid argument.
            Cause::Invalid => Errno::EINVAL,
            // bind(2): "The address is protected, and the user is not the superuser." Linux tells so of what
            // is administratively prohibited over IPv6, too.
            Cause::PermissionDenied => Errno::EACCES,
            // ip(7), and the kernel's tables, for what ICMP tells.
            Cause::NoProtocol => Errno::ENOPROTOOPT,
            Cause::RouteFailed => Errno::EOPNOTSUPP,
            Cause::HostDown => Errno::EHOSTDOWN,
            Cause::HostIsolated => Errno::ENONET,
            Cause::ProtocolError => Errno::EPROTO,
            Cause::SourceQuench => Errno::EREMOTEIO,
            // The connection is gone as if the peer had reset it; recv(2) knows no better name.
            Cause::Lost => Errno::ECONNRESET,
        })
    }
}
