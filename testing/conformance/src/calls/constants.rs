//! The numbers that names stand for.

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

fn constant(name: &str) -> Option<i64> {
    Some(match name {
        "AF_UNSPEC" | "SHUT_RD" | "IP_PMTUDISC_DONT" => 0,
        "SHUT_WR" | "SOCK_STREAM" | "SOL_SOCKET" | "POLLIN" | "EPOLLIN" | "MSG_OOB" | "IP_PMTUDISC_WANT" => 1,
        "SHUT_RDWR" | "O_RDWR" | "MSG_PEEK" | "AF_INET" | "PF_INET" | "POLLPRI" | "EPOLLPRI"
        | "SOCK_DGRAM" | "IP_PMTUDISC_DO" => 2,
        "POLLOUT" | "EPOLLOUT" => 4,
        "POLLERR" | "EPOLLERR" => 8,
        "AF_INET6" | "PF_INET6" => 10,
        "POLLHUP" | "EPOLLHUP" => 0x10,
        "POLLNVAL" | "MSG_TRUNC" => 0x20,
        "POLLRDNORM" | "EPOLLRDNORM" | "MSG_DONTWAIT" => 0x40,
        "MSG_EOR" => 0x80,
        "POLLWRNORM" | "EPOLLWRNORM" | "MSG_WAITALL" => 0x100,
        "POLLRDHUP" | "EPOLLRDHUP" | "MSG_ERRQUEUE" => 0x2000,
        "MSG_NOSIGNAL" => 0x4000,
        "MSG_MORE" => 0x8000,
        "MSG_ZEROCOPY" => 0x400_0000,
        "MSG_FASTOPEN" => 0x2000_0000,
        "EPOLLEXCLUSIVE" => 1 << 28,
        "EPOLLONESHOT" => 1 << 30,
        "EPOLLET" => 1 << 31,
        "O_NONBLOCK" | "SOCK_NONBLOCK" => 0o4000,
        "SOCK_CLOEXEC" => 0o2_000_000,
        "IPPROTO_IP" | "SOL_IP" => 0,
        "IPPROTO_TCP" | "SOL_TCP" => 6,
        "IPPROTO_UDP" | "SOL_UDP" => 17,
        "IPPROTO_IPV6" | "SOL_IPV6" => 41,
        _ => return errno(name).map(|errno| errno.0.into()),
    })
}

const ERRNOS: [(&str, Errno); 24] = [
    ("EAGAIN", Errno::EAGAIN),
    ("EWOULDBLOCK", Errno::EAGAIN),
    ("EBADF", Errno::EBADF),
    ("EINVAL", Errno::EINVAL),
    ("EEXIST", Errno::EEXIST),
    ("ENOENT", Errno::ENOENT),
    ("EPIPE", Errno::EPIPE),
    ("EADDRINUSE", Errno::EADDRINUSE),
    ("EADDRNOTAVAIL", Errno::EADDRNOTAVAIL),
    ("ECONNABORTED", Errno::ECONNABORTED),
    ("ECONNRESET", Errno::ECONNRESET),
    ("EDESTADDRREQ", Errno::EDESTADDRREQ),
    ("EISCONN", Errno::EISCONN),
    ("EMSGSIZE", Errno::EMSGSIZE),
    ("ENOTCONN", Errno::ENOTCONN),
    ("ETIMEDOUT", Errno::ETIMEDOUT),
    ("ECONNREFUSED", Errno::ECONNREFUSED),
    ("EHOSTUNREACH", Errno::EHOSTUNREACH),
    ("ENETUNREACH", Errno::ENETUNREACH),
    ("EALREADY", Errno::EALREADY),
    ("EINPROGRESS", Errno::EINPROGRESS),
    ("ENOBUFS", Errno::ENOBUFS),
    ("ENOTSOCK", Errno::ENOTSOCK),
    ("EOPNOTSUPP", Errno::EOPNOTSUPP),
];

/// Returns the number of an error, by its name.
pub fn errno(name: &str) -> Option<Errno> {
    ERRNOS.iter().find_map(|(known, errno)| (*known == name).then_some(*errno))
}

/// Returns the name of an error.
pub fn errno_name(errno: Errno) -> String {
    let known = ERRNOS.iter().find_map(|(name, known)| (*known == errno).then_some(*name));
    known.map_or_else(|| errno.0.to_string(), str::to_owned)
}
