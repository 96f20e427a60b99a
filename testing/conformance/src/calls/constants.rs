//! The numbers of named constants.

use atoll_sockets::Errno;

use crate::script::Value;

/// Returns a number that is given by itself or by name.
pub fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => Some(*number),
        Value::List(values) if values.len() == 1 => number(values.first()?),
        Value::Symbol(names) => names.split('|').map(constant).try_fold(0, |all, one| Some(all | one?)),
        _ => None,
    }
}

/// Makes the body of a function from names to numbers, which are those of the system's headers.
macro_rules! by_name {
    ($name:expr; $($known:ident)*) => {
        match $name {
            // A flag may be the highest bit of an `int`.
            $(stringify!($known) => Some(i64::from(libc::$known as u32)),)*
            _ => None,
        }
    };
}

fn constant(name: &str) -> Option<i64> {
    let known = by_name! { name;
        AF_UNSPEC AF_INET AF_INET6 PF_INET PF_INET6
        SOCK_STREAM SOCK_DGRAM SOCK_NONBLOCK SOCK_CLOEXEC O_RDWR O_NONBLOCK SHUT_RD SHUT_WR SHUT_RDWR
        SOL_SOCKET SOL_IP SOL_IPV6 SOL_TCP SOL_UDP IPPROTO_IP IPPROTO_IPV6 IPPROTO_TCP IPPROTO_UDP
        IP_PMTUDISC_DONT IP_PMTUDISC_WANT IP_PMTUDISC_DO
        MSG_DONTWAIT MSG_EOR MSG_ERRQUEUE MSG_FASTOPEN MSG_MORE MSG_NOSIGNAL MSG_OOB MSG_PEEK MSG_TRUNC
        MSG_WAITALL MSG_ZEROCOPY
        POLLIN POLLPRI POLLOUT POLLERR POLLHUP POLLNVAL POLLRDNORM POLLWRNORM POLLRDHUP
        EPOLLIN EPOLLPRI EPOLLOUT EPOLLERR EPOLLHUP EPOLLRDNORM EPOLLWRNORM EPOLLRDHUP
        EPOLLEXCLUSIVE EPOLLONESHOT EPOLLET
    };
    known.or_else(|| errno(name).map(|errno| errno.0.into()))
}

macro_rules! errnos {
    ($($name:ident)*) => { &[$((stringify!($name), Errno::$name)),*] };
}

/// The errors that scripts may name.
const ERRNOS: &[(&str, Errno)] = errnos! {
    EAGAIN EBADF EINVAL EEXIST ENOENT EPIPE EADDRINUSE EADDRNOTAVAIL ECONNABORTED ECONNRESET EACCES
    ENOPROTOOPT EHOSTDOWN EPROTO EDESTADDRREQ EISCONN EMSGSIZE ENOTCONN ETIMEDOUT ECONNREFUSED
    EHOSTUNREACH ENETUNREACH EALREADY EINPROGRESS ENOBUFS ENOTSOCK EOPNOTSUPP
};

/// Returns the number of an error, by its name.
pub fn errno(name: &str) -> Option<Errno> {
    if name == "EWOULDBLOCK" {
        return Some(Errno::EAGAIN);
    }
    ERRNOS.iter().find_map(|(known, errno)| (*known == name).then_some(*errno))
}

/// Returns the name of an error.
pub fn errno_name(errno: Errno) -> String {
    let known = ERRNOS.iter().find_map(|(name, known)| (*known == errno).then_some(*name));
    known.map_or_else(|| errno.0.to_string(), str::to_owned)
}
