//! Which calls may a script make, and what do they mean?

use atoll_ipc::{CONGESTION_NAMES, SocketOption};
use atoll_sockets::{Errno, Failure};

use crate::host::{Host, Outcome, PORT};
use crate::script::{Call, Value};

/// A call whose arguments are understood.
#[derive(Clone, Debug)]
pub enum Prepared {
    /// Something that changes nothing here.
    Nothing,
    /// socket(2).
    Socket {
        /// SOCK_NONBLOCK.
        nonblocking: bool,
    },
    /// bind(2).
    Bind(i32, u16),
    /// listen(2).
    Listen(i32, u32),
    /// accept4(2).
    Accept {
        /// Of the listener.
        fd: i32,
        /// SOCK_NONBLOCK for the connection.
        nonblocking: bool,
        /// The listener does not block.
        now: bool,
    },
    /// connect(2); the bool: it does not block.
    Connect(i32, bool),
    /// read(2) and its kin.
    Read {
        /// From where.
        fd: i32,
        /// Octets at most.
        most: usize,
        /// MSG_PEEK.
        peek: bool,
        /// MSG_OOB.
        urgent: bool,
        /// Does not block.
        now: bool,
    },
    /// write(2) and its kin: descriptor, octets, whether it does not block, MSG_OOB.
    Write(i32, usize, bool, bool),
    /// sendto(2) with MSG_FASTOPEN: descriptor, octets, whether it does not block.
    SendFast(i32, usize, bool),
    /// TCP_FASTOPEN_CONNECT.
    FastOpenConnect(i32, bool),
    /// SO_OOBINLINE.
    UrgentInline(i32, bool),
    /// SIOCATMARK that is to be this.
    AtMark(i32, i64),
    /// shutdown(2): descriptor, receiving, sending.
    Shutdown(i32, bool, bool),
    /// close(2).
    Close(i32),
    /// setsockopt(2).
    SetOption(i32, SocketOption, u32),
    /// SO_LINGER.
    Linger(i32, bool),
    /// fcntl(F_SETFL): descriptor, O_NONBLOCK.
    SetFlags(i32, bool),
    /// fcntl(F_GETFL).
    GetFlags(i32),
    /// SO_ERROR that is to be this.
    Error(i32, i64),
    /// SIOCINQ, or SIOCOUTQ if the bool says so, that is to be this.
    Queued(i32, bool, i64),
    /// poll(2) of one descriptor: events asked for, events that are to be there, whether it does not block.
    Poll(i32, u32, u32, bool),
}

impl Prepared {
    /// Whether the call returns at once whatever happens.
    pub fn is_nonblocking(&self) -> bool {
        match self {
            Prepared::Accept { now, .. } | Prepared::Read { now, .. } => *now,
            Prepared::Write(_, _, now, _)
            | Prepared::SendFast(_, _, now)
            | Prepared::Poll(_, _, _, now)
            | Prepared::Connect(_, now) => *now,
            _ => false,
        }
    }
}

/// Carries a call out, or tries again.
pub fn attempt(host: &mut Host, call: &Prepared) -> Outcome {
    match *call {
        Prepared::Nothing => Ok(0),
        Prepared::Socket { nonblocking } => host.socket(nonblocking),
        Prepared::Bind(fd, port) => host.bind(fd, port),
        Prepared::Listen(fd, backlog) => host.listen(fd, backlog),
        Prepared::Accept { fd, nonblocking, .. } => host.accept(fd, nonblocking),
        Prepared::Connect(fd, _) => host.connect(fd),
        Prepared::Read { fd, most, peek, urgent: true, .. } => host.read_urgent(fd, most, peek),
        Prepared::Read { fd, most, peek, .. } => host.read(fd, most, peek),
        Prepared::Write(fd, len, _, urgent) => host.write(fd, len, urgent),
        Prepared::SendFast(fd, len, now) => host.send_fast(fd, len, now),
        Prepared::FastOpenConnect(fd, on) => host.set_fast_open_connect(fd, on),
        Prepared::UrgentInline(fd, inline) => host.set_urgent_inline(fd, inline),
        Prepared::AtMark(fd, expected) => same(host.is_at_mark(fd)?, expected),
        Prepared::Shutdown(fd, receive, send) => host.shutdown(fd, receive, send),
        Prepared::Close(fd) => host.close(fd),
        Prepared::SetOption(fd, option, value) => host.set_option(fd, option, value),
        Prepared::Linger(fd, aborts) => host.set_aborts(fd, aborts),
        Prepared::SetFlags(fd, nonblocking) => host.set_nonblocking(fd, nonblocking),
        // O_RDWR, and O_NONBLOCK.
        Prepared::GetFlags(fd) => Ok(2 | if host.is_nonblocking(fd) { 0o4000 } else { 0 }),
        Prepared::Error(fd, expected) => same(host.take_error(fd)?, expected),
        Prepared::Queued(fd, outgoing, expected) => same(host.queued(fd, outgoing)?, expected),
        Prepared::Poll(fd, asked, expected, _) => {
            // POLLERR and POLLHUP are always asked for.
            match host.readiness(fd)? & (asked | 0x18) {
                0 if expected == 0 => Ok(0),
                0 => Err(Failure::WouldBlock),
                ready => same(ready.into(), expected.into()).map(|_| 1),
            }
        }
    }
}

/// 0 if a value is the one that the script has; otherwise an error that no script expects.
fn same(value: i64, expected: i64) -> Outcome {
    if value == expected { Ok(0) } else { Err(Errno(i32::try_from(-1 - value).unwrap_or(i32::MIN)).into()) }
}

/// A number, by itself or by name.
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
        "SHUT_RD" => 0,
        "SHUT_WR" | "SOCK_STREAM" | "SOL_SOCKET" | "POLLIN" | "MSG_OOB" => 1,
        "SHUT_RDWR" | "O_RDWR" | "MSG_PEEK" | "AF_INET" | "POLLPRI" => 2,
        "POLLOUT" => 4,
        "POLLERR" => 8,
        "POLLHUP" => 0x10,
        "POLLRDNORM" | "MSG_DONTWAIT" => 0x40,
        "POLLWRNORM" => 0x100,
        "POLLRDHUP" => 0x2000,
        "MSG_NOSIGNAL" => 0x4000,
        "MSG_FASTOPEN" => 0x2000_0000,
        "O_NONBLOCK" | "SOCK_NONBLOCK" => 0o4000,
        "SOCK_CLOEXEC" => 0o2_000_000,
        "IPPROTO_TCP" | "SOL_TCP" => 6,
        _ => return errno(name).map(|errno| errno.0.into()),
    })
}

const ERRNOS: [(&str, Errno); 18] = [
    ("EAGAIN", Errno::EAGAIN),
    ("EWOULDBLOCK", Errno::EAGAIN),
    ("EBADF", Errno::EBADF),
    ("EINVAL", Errno::EINVAL),
    ("EPIPE", Errno::EPIPE),
    ("EADDRINUSE", Errno::EADDRINUSE),
    ("ECONNABORTED", Errno::ECONNABORTED),
    ("ECONNRESET", Errno::ECONNRESET),
    ("EISCONN", Errno::EISCONN),
    ("ENOTCONN", Errno::ENOTCONN),
    ("ETIMEDOUT", Errno::ETIMEDOUT),
    ("ECONNREFUSED", Errno::ECONNREFUSED),
    ("EHOSTUNREACH", Errno::EHOSTUNREACH),
    ("ENETUNREACH", Errno::ENETUNREACH),
    ("EALREADY", Errno::EALREADY),
    ("EINPROGRESS", Errno::EINPROGRESS),
    ("ENOBUFS", Errno::ENOBUFS),
    ("ENOTSOCK", Errno::ENOTSOCK),
];

/// The number of an error, by its name.
pub fn errno(name: &str) -> Option<Errno> {
    ERRNOS.iter().find_map(|(known, errno)| (*known == name).then_some(*errno))
}

/// The name of an error.
pub fn errno_name(errno: Errno) -> String {
    if errno.0 < 0 {
        // See `same`.
        return format!("(what was asked for is {})", -1 - errno.0);
    }
    let known = ERRNOS.iter().find_map(|(name, known)| (*known == errno).then_some(*name));
    known.map_or_else(|| errno.0.to_string(), str::to_owned)
}

/// Understands a call.
///
/// # Errors
/// With what is not understood.
pub fn prepare(host: &Host, call: &Call) -> Result<Prepared, String> {
    let argument = |n: usize| call.arguments.get(n).unwrap_or(&Value::Whatever);
    let wanted =
        |n: usize| number(argument(n)).ok_or_else(|| format!("argument {} of {}: {:?}", n + 1, call.name, argument(n)));
    let fd = || wanted(0).map(|fd| host.descriptor(fd as i32));
    let symbol = |n: usize| match argument(n) {
        Value::Symbol(name) => name.as_str(),
        _ => "",
    };
    // Flags that are absent are 0.
    let flags = |n: usize, known: i64| {
        let flags = if call.arguments.len() > n { wanted(n)? } else { 0 };
        if flags & !known == 0 { Ok(flags) } else { Err(format!("the flags of {}", call.name)) }
    };
    const NOW: i64 = 0x40;
    const OOB: i64 = 1;
    const FAST: i64 = 0x2000_0000;
    const PEEK: i64 = 2;
    const NONBLOCK: i64 = 0o4000;
    Ok(match call.name.as_str() {
        "socket" => {
            let kind = wanted(1)?;
            if kind & 0xf != 1 || !matches!(argument(0), Value::Whatever) && wanted(0) != Ok(2) {
                return Err("sockets but streams over IPv4".to_owned());
            }
            Prepared::Socket { nonblocking: kind & NONBLOCK != 0 }
        }
        "bind" => Prepared::Bind(fd()?, port(argument(1)).ok_or("the address of bind")?),
        "listen" => Prepared::Listen(fd()?, u32::try_from(wanted(1)?).unwrap_or(0)),
        "accept" | "accept4" => {
            let of = fd()?;
            let nonblocking = flags(3, NONBLOCK)? & NONBLOCK != 0;
            Prepared::Accept { fd: of, nonblocking, now: host.is_nonblocking(of) }
        }
        "connect" => {
            let of = fd()?;
            if port(argument(1)) != Some(PORT) {
                return Err("the address of connect".to_owned());
            }
            Prepared::Connect(of, host.is_nonblocking(of))
        }
        "read" | "recv" | "recvfrom" => {
            let (of, most, flags) = (fd()?, wanted(2)?, flags(3, NOW | PEEK | OOB | 0x4000)?);
            let now = flags & NOW != 0 || host.is_nonblocking(of);
            let most = usize::try_from(most).unwrap_or(0);
            Prepared::Read { fd: of, most, peek: flags & PEEK != 0, urgent: flags & OOB != 0, now }
        }
        "write" | "send" | "sendto" => {
            let (of, len, flags) = (fd()?, wanted(2)?, flags(3, NOW | OOB | FAST | 0x4000)?);
            let now = flags & NOW != 0 || host.is_nonblocking(of);
            if flags & FAST != 0 {
                return Ok(Prepared::SendFast(of, usize::try_from(len).unwrap_or(0), now));
            }
            Prepared::Write(of, usize::try_from(len).unwrap_or(0), now, flags & OOB != 0)
        }
        "writev" | "readv" => {
            let of = fd()?;
            let len = total(argument(1)).ok_or_else(|| format!("the vectors of {}", call.name))?;
            let now = host.is_nonblocking(of);
            if call.name == "readv" {
                Prepared::Read { fd: of, most: len, peek: false, urgent: false, now }
            } else {
                Prepared::Write(of, len, now, false)
            }
        }
        "shutdown" => {
            let how = wanted(1)?;
            Prepared::Shutdown(fd()?, how != 1, how != 0)
        }
        "close" => Prepared::Close(fd()?),
        "fcntl" => match symbol(1) {
            "F_GETFL" => Prepared::GetFlags(fd()?),
            "F_SETFL" => Prepared::SetFlags(fd()?, wanted(2)? & NONBLOCK != 0),
            other => return Err(format!("fcntl {other}")),
        },
        "ioctl" => {
            let outgoing = match symbol(1) {
                "SIOCINQ" | "FIONREAD" => false,
                "SIOCOUTQ" => true,
                "SIOCATMARK" => return Ok(Prepared::AtMark(fd()?, wanted(2)?)),
                other => return Err(format!("ioctl {other}")),
            };
            Prepared::Queued(fd()?, outgoing, wanted(2)?)
        }
        "sendmsg" | "recvmsg" => {
            let (of, flags) = (fd()?, flags(2, NOW | PEEK | OOB | 0x4000)?);
            let len = message_len(argument(1)).ok_or_else(|| format!("the message of {}", call.name))?;
            let now = flags & NOW != 0 || host.is_nonblocking(of);
            if call.name == "recvmsg" {
                Prepared::Read { fd: of, most: len, peek: flags & PEEK != 0, urgent: flags & OOB != 0, now }
            } else {
                Prepared::Write(of, len, now, flags & OOB != 0)
            }
        }
        "poll" => match poll(argument(0), wanted(2)?).ok_or("poll but of one descriptor")? {
            Prepared::Poll(of, asked, expected, now) => Prepared::Poll(host.descriptor(of), asked, expected, now),
            other => other,
        },
        "setsockopt" => set_option(fd()?, symbol(2), argument(3))?,
        "getsockopt" => match symbol(2) {
            "SO_ERROR" => Prepared::Error(fd()?, wanted(3)?),
            other => return Err(format!("getsockopt {other}")),
        },
        other => return Err(format!("the call {other}")),
    })
}

fn port(address: &Value) -> Option<u16> {
    let Value::Fields(fields) = address else { return matches!(address, Value::Whatever).then_some(PORT) };
    let (_, port) = fields.iter().find(|(name, _)| name == "sin_port")?;
    number(port)?.try_into().ok()
}

/// Octets of all vectors.
fn total(vectors: &Value) -> Option<usize> {
    let Value::List(vectors) = vectors else { return None };
    let lens = vectors.iter().map(|vector| match vector {
        Value::Fields(fields) => usize::try_from(number(&fields.last()?.1)?).ok(),
        _ => None,
    });
    lens.sum()
}

/// Whether a call returns a descriptor.
pub fn gives_descriptor(name: &str) -> bool {
    matches!(name, "socket" | "accept" | "accept4")
}

/// Octets of a message without control messages, whose vectors alone count.
fn message_len(message: &Value) -> Option<usize> {
    let Value::Fields(fields) = message else { return None };
    let of = |wanted: &str| fields.iter().find_map(|(name, value)| (name == wanted).then_some(value));
    if of("msg_control").is_some() {
        return None;
    }
    total(of("msg_iov")?)
}

fn poll(descriptors: &Value, timeout: i64) -> Option<Prepared> {
    let Value::List(descriptors) = descriptors else { return None };
    let [Value::Fields(fields)] = descriptors.as_slice() else { return None };
    let of = |wanted: &str| {
        let value = fields.iter().find_map(|(name, value)| (name == wanted).then_some(value));
        value.map_or(Some(0), number)
    };
    let (fd, events, revents) = (of("fd")?, of("events")?, of("revents")?);
    Some(Prepared::Poll(fd as i32, events as u32, revents as u32, timeout == 0))
}

fn set_option(fd: i32, name: &str, value: &Value) -> Result<Prepared, String> {
    if name == "SO_LINGER" {
        let Value::Fields(fields) = value else { return Err("the value of SO_LINGER".to_owned()) };
        let of = |n: usize| fields.get(n).and_then(|(_, value)| number(value)).unwrap_or(0);
        return if of(0) != 0 && of(1) != 0 {
            Err("SO_LINGER with a time".to_owned())
        } else {
            Ok(Prepared::Linger(fd, of(0) != 0))
        };
    }
    if name == "TCP_CONGESTION" {
        let value = match value {
            Value::Text(name) => CONGESTION_NAMES.iter().position(|known| known == name),
            _ => None,
        };
        let value = value.ok_or_else(|| "that congestion control".to_owned())? as u32;
        return Ok(Prepared::SetOption(fd, SocketOption::Congestion, value));
    }
    let number = number(value).and_then(|value| u32::try_from(value).ok());
    let number = number.ok_or_else(|| format!("the value of {name}"))?;
    let (option, number) = match name {
        // Every bind is allowed to take the port of what has ended.
        "SO_REUSEADDR" => return Ok(Prepared::Nothing),
        "TCP_FASTOPEN_CONNECT" => return Ok(Prepared::FastOpenConnect(fd, number != 0)),
        "TCP_FASTOPEN" => (SocketOption::FastOpen, number),
        "SO_OOBINLINE" => return Ok(Prepared::UrgentInline(fd, number != 0)),
        // socket(7): the kernel doubles it; the stack is told the size that counts.
        "SO_SNDBUF" => (SocketOption::SendBuffer, number.saturating_mul(2)),
        "SO_RCVBUF" => (SocketOption::ReceiveBuffer, number.saturating_mul(2)),
        "SO_KEEPALIVE" => (SocketOption::KeepAlive, number),
        "TCP_NODELAY" => (SocketOption::NoDelay, number),
        "TCP_CORK" => (SocketOption::Cork, number),
        "TCP_QUICKACK" => (SocketOption::QuickAck, number),
        "TCP_MAXSEG" => (SocketOption::MaxSegment, number),
        "TCP_KEEPIDLE" => (SocketOption::KeepIdle, number),
        "TCP_KEEPINTVL" => (SocketOption::KeepInterval, number),
        "TCP_KEEPCNT" => (SocketOption::KeepCount, number),
        "TCP_USER_TIMEOUT" => (SocketOption::UserTimeout, number),
        "TCP_LINGER2" => (SocketOption::Linger2, number),
        "TCP_DEFER_ACCEPT" => (SocketOption::DeferAccept, number),
        _ => return Err(format!("setsockopt {name}")),
    };
    Ok(Prepared::SetOption(fd, option, number))
}
