//! The calls that a script may make, and their meaning.

mod constants;
mod options;
mod polls;

use atoll_base::{Addr, Endpoint};
use atoll_ipc::SocketOption;
use atoll_ipc::command::Protocol;
use atoll_sockets::{Errno, Failure};
use thiserror::Error;

use crate::host::{Control, Host, Known, Outcome, PORT};
use crate::script::{Call, Value};

pub use constants::{errno, errno_name, number};
use polls::{Polled, Waited};

/// The part of a call that the runner, or the stack, does not support.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Unsupported {
    /// The call as a whole.
    #[error("the call {0}")]
    Call(String),
    /// An argument, which is not of the kind that the call takes.
    #[error("argument {number} of {call}: {value:?}")]
    Argument {
        /// The name of the call.
        call: String,
        /// The number of the argument, from 1.
        number: usize,
        /// The argument; [`Value::Whatever`] if it is missing.
        value: Value,
    },
    /// The meaning of an argument of the call, such as its flags.
    #[error("the {part} of {call}")]
    Part {
        /// The meaning of the argument.
        part: &'static str,
        /// The name of the call.
        call: String,
    },
    /// A command of fcntl(2), a request of ioctl(2), or an option of setsockopt(2) or getsockopt(2).
    #[error("{call} {name}")]
    Name {
        /// The name of the call.
        call: &'static str,
        /// The name of what it asks for.
        name: String,
    },
    /// The value of this socket option.
    #[error("the value of {0}")]
    OptionValue(String),
    /// Sockets that are neither streams nor datagrams.
    #[error("sockets but streams and datagrams")]
    SocketKind,
    /// A close(2) that waits.
    #[error("SO_LINGER with a time")]
    LingerTime,
    /// The algorithm that TCP_CONGESTION names.
    #[error("that congestion control")]
    Congestion,
}

impl Unsupported {
    fn part(part: &'static str, call: &str) -> Unsupported {
        Unsupported::Part { part, call: call.into() }
    }
}

/// Returns argument `n` of a call, from 0, as a number.
fn number_at(call: &Call, n: usize) -> Result<i64, Unsupported> {
    let value = call.arguments.get(n).unwrap_or(&Value::Whatever);
    let wrong = || Unsupported::Argument { call: call.name.clone(), number: n + 1, value: value.clone() };
    number(value).ok_or_else(wrong)
}

/// An offset added to a value that differs from the expected one: no call returns that much.
pub const WRONG_VALUE: i64 = 1 << 40;

/// A call whose arguments are understood.
#[derive(Clone, Debug)]
pub enum Prepared {
    /// A call that changes nothing here.
    Nothing,
    /// socket(2).
    Socket {
        /// The protocol: TCP for streams, UDP for datagrams.
        protocol: Protocol,
        /// SOCK_NONBLOCK.
        nonblocking: bool,
    },
    /// bind(2); with `None`, to an address of the runner's choice.
    Bind(i32, Option<Endpoint>),
    /// listen(2).
    Listen(i32, u32),
    /// accept4(2).
    Accept {
        /// The descriptor of the listener.
        fd: i32,
        /// SOCK_NONBLOCK for the connection.
        nonblocking: bool,
        /// Whether the listener is non-blocking.
        now: bool,
    },
    /// connect(2): descriptor, whether it is non-blocking, and the address.
    Connect(i32, bool, Endpoint),
    /// read(2) and related calls.
    Read {
        /// The descriptor to read.
        fd: i32,
        /// The most octets to read.
        most: usize,
        /// MSG_PEEK.
        peek: bool,
        /// MSG_OOB.
        urgent: bool,
        /// Whether the call is non-blocking.
        now: bool,
    },
    /// write(2) and related calls.
    Write {
        /// The descriptor to write.
        fd: i32,
        /// The number of octets.
        len: usize,
        /// Whether the call is non-blocking.
        now: bool,
        /// MSG_OOB.
        urgent: bool,
        /// MSG_MORE.
        more: bool,
    },
    /// sendto(2) of a datagram: descriptor, octets, the address if the script names one, whether it is
    /// non-blocking.
    SendTo(i32, usize, Option<Endpoint>, bool),
    /// sendto(2) with MSG_FASTOPEN: descriptor, octets, whether it is non-blocking, and the address.
    SendFast(i32, usize, bool, Endpoint),
    /// TCP_FASTOPEN_CONNECT.
    FastOpenConnect(i32, bool),
    /// SO_OOBINLINE.
    UrgentInline(i32, bool),
    /// SIOCATMARK, with the expected value.
    AtMark(i32, i64),
    /// shutdown(2): descriptor, receiving, sending.
    Shutdown(i32, bool, bool),
    /// close(2).
    Close(i32),
    /// setsockopt(2).
    SetOption(i32, SocketOption, u32),
    /// getsockopt(2), with the expected value.
    Option(i32, Known, i64),
    /// TCP_CONGESTION, with the expected name.
    Congestion(i32, String),
    /// SO_LINGER.
    Linger(i32, bool),
    /// fcntl(F_SETFL): descriptor, O_NONBLOCK.
    SetFlags(i32, bool),
    /// fcntl(F_GETFL).
    GetFlags(i32),
    /// SIOCINQ, or SIOCOUTQ if the bool says so, with the expected value.
    Queued(i32, bool, i64),
    /// poll(2), with its time-out in milliseconds.
    Poll(Vec<Polled>, i64),
    /// epoll_create(2).
    CreateSet,
    /// epoll_ctl(2): set, operation, descriptor, events, data.
    Control(i32, Control, i32, u32, u64),
    /// epoll_wait(2).
    Wait {
        /// The epoll instance.
        set: i32,
        /// The expected events.
        waited: Vec<Waited>,
        /// The most events.
        max: usize,
        /// The time-out in milliseconds.
        timeout: i64,
    },
}

impl Prepared {
    /// Returns whether the call returns at once whatever happens.
    pub fn is_nonblocking(&self) -> bool {
        match self {
            Prepared::Accept { now, .. } | Prepared::Read { now, .. } | Prepared::Write { now, .. } => *now,
            Prepared::SendTo(.., now) | Prepared::SendFast(_, _, now, _) | Prepared::Connect(_, now, _) => {
                *now
            }
            Prepared::Poll(_, timeout) | Prepared::Wait { timeout, .. } => *timeout == 0,
            _ => false,
        }
    }

    /// Returns after how many milliseconds the call gives up, if it does.
    pub fn timeout(&self) -> Option<u64> {
        match self {
            // A time-out of a day or more means for ever.
            Prepared::Poll(_, timeout) | Prepared::Wait { timeout, .. } => {
                u64::try_from(*timeout).ok().filter(|millis| *millis < 86_400_000)
            }
            _ => None,
        }
    }
}

/// Carries a call out, or tries it again. `gives_up` says that its time-out has expired.
pub fn attempt(host: &mut Host, call: &Prepared, gives_up: bool) -> Outcome {
    match call {
        Prepared::Poll(polled, _) => return polls::try_poll(host, polled, gives_up),
        Prepared::Wait { set, waited, max, .. } => {
            return polls::try_wait(host, *set, *max, waited, gives_up);
        }
        Prepared::Congestion(fd, expected) => {
            return Ok(if host.congestion(*fd)? == expected { 0 } else { WRONG_VALUE });
        }
        _ => {}
    }
    match *call {
        Prepared::Socket { protocol, nonblocking } => host.socket(protocol, nonblocking),
        Prepared::Bind(fd, local) => host.bind(fd, local),
        Prepared::Listen(fd, backlog) => host.listen(fd, backlog),
        Prepared::Accept { fd, nonblocking, .. } => host.accept(fd, nonblocking),
        Prepared::Connect(fd, _, remote) => host.connect(fd, remote),
        Prepared::Read { fd, most, peek, urgent: true, .. } => host.read_urgent(fd, most, peek),
        Prepared::Read { fd, most, peek, .. } => host.read(fd, most, peek),
        Prepared::Write { fd, len, urgent, more, .. } => host.write(fd, len, urgent, more),
        Prepared::SendTo(fd, len, to, _) => host.send_datagram(fd, len, to),
        Prepared::SendFast(fd, len, now, remote) => host.send_fast(fd, len, now, remote),
        Prepared::FastOpenConnect(fd, on) => host.set_fast_open_connect(fd, on),
        Prepared::UrgentInline(fd, inline) => host.set_urgent_inline(fd, inline),
        Prepared::AtMark(fd, expected) => same(host.is_at_mark(fd)?, expected),
        Prepared::Shutdown(fd, receive, send) => host.shutdown(fd, receive, send),
        Prepared::Close(fd) => host.close(fd),
        Prepared::SetOption(fd, option, value) => host.set_option(fd, option, value),
        Prepared::Option(fd, option, expected) => same(host.option(fd, option)?, expected),
        Prepared::Linger(fd, aborts) => host.set_aborts(fd, aborts),
        Prepared::SetFlags(fd, nonblocking) => host.set_nonblocking(fd, nonblocking),
        Prepared::GetFlags(fd) => {
            Ok(i64::from(libc::O_RDWR) | if host.is_nonblocking(fd) { NONBLOCK } else { 0 })
        }
        Prepared::Queued(fd, outgoing, expected) => same(host.queued(fd, outgoing)?, expected),
        Prepared::CreateSet => host.create_set(),
        Prepared::Control(set, op, fd, events, data) => host.control(set, op, fd, events, data),
        Prepared::Nothing | Prepared::Poll(..) | Prepared::Wait { .. } | Prepared::Congestion(..) => Ok(0),
    }
}

/// Returns 0 if a value is the expected one; otherwise a value that no script expects.
fn same(value: i64, expected: i64) -> Outcome {
    Ok(if value == expected { 0 } else { WRONG_VALUE + value })
}

/// Returns the text of a call's result.
pub fn shown(outcome: Result<i64, Failure>) -> String {
    match outcome {
        Ok(value @ WRONG_VALUE..) => format!("(what was asked for is {})", value - WRONG_VALUE),
        Ok(value) => value.to_string(),
        Err(Failure::Error(errno)) => format!("-1 {}", errno_name(errno)),
        Err(Failure::WouldBlock) => format!("-1 {}", errno_name(Errno::EAGAIN)),
    }
}

/// Interprets a call.
pub fn prepare(host: &Host, call: &Call) -> Result<Prepared, Unsupported> {
    let argument = |n: usize| call.arguments.get(n).unwrap_or(&Value::Whatever);
    let wanted = |n: usize| number_at(call, n);
    let part = |part| Unsupported::part(part, &call.name);
    let fd = || wanted(0).map(|fd| host.descriptor(fd as i32));
    let symbol = |n: usize| match argument(n) {
        Value::Symbol(name) => name.as_str(),
        _ => "",
    };
    // Absent flags are 0.
    let flags = |n: usize, known: i64| {
        let flags = if call.arguments.len() > n { wanted(n)? } else { 0 };
        if flags & !known == 0 { Ok(flags) } else { Err(part("flags")) }
    };
    Ok(match call.name.as_str() {
        "socket" => {
            let kind = wanted(1)?;
            let protocol = match kind & 0xf {
                1 => Protocol::Tcp,
                2 => Protocol::Udp,
                _ => return Err(Unsupported::SocketKind),
            };
            Prepared::Socket { protocol, nonblocking: kind & NONBLOCK != 0 }
        }
        "bind" => Prepared::Bind(fd()?, address(host, argument(1)).ok_or_else(|| part("address"))?),
        "listen" => Prepared::Listen(fd()?, u32::try_from(wanted(1)?).unwrap_or(0)),
        "accept" | "accept4" => {
            let of = fd()?;
            let nonblocking = flags(3, NONBLOCK)? & NONBLOCK != 0;
            Prepared::Accept { fd: of, nonblocking, now: host.is_nonblocking(of) }
        }
        "connect" => {
            let of = fd()?;
            Prepared::Connect(
                of,
                host.is_nonblocking(of),
                remote(host, argument(1)).ok_or_else(|| part("address"))?,
            )
        }
        "read" | "recv" | "recvfrom" => {
            received(host, fd()?, wanted(2)?, flags(3, NOW | PEEK | OOB | NO_SIGNAL)?)
        }
        "write" | "send" => {
            sent(host, fd()?, wanted(2)?, flags(3, NOW | OOB | FAST | NO_SIGNAL | MORE)?, None)
        }
        "sendto" => {
            let to = match argument(4) {
                Value::Whatever if wanted(0).is_ok_and(|fd| host.is_datagram(host.descriptor(fd as i32))) => {
                    Some(host.someone())
                }
                Value::Whatever => None,
                named => Some(remote(host, named).ok_or_else(|| part("address"))?),
            };
            sent(host, fd()?, wanted(2)?, flags(3, NOW | OOB | FAST | NO_SIGNAL | MORE)?, to)
        }
        "writev" | "readv" => {
            let len = total(argument(1)).ok_or_else(|| part("vectors"))?;
            if call.name == "readv" { received(host, fd()?, len, 0) } else { sent(host, fd()?, len, 0, None) }
        }
        "shutdown" => {
            let how = wanted(1)?;
            Prepared::Shutdown(fd()?, how != 1, how != 0)
        }
        "close" => Prepared::Close(fd()?),
        "fcntl" => match symbol(1) {
            "F_GETFL" => Prepared::GetFlags(fd()?),
            "F_SETFL" => Prepared::SetFlags(fd()?, wanted(2)? & NONBLOCK != 0),
            other => return Err(Unsupported::Name { call: "fcntl", name: other.into() }),
        },
        "ioctl" => {
            let outgoing = match symbol(1) {
                "SIOCINQ" | "FIONREAD" => false,
                "SIOCOUTQ" => true,
                "SIOCATMARK" => return Ok(Prepared::AtMark(fd()?, wanted(2)?)),
                other => return Err(Unsupported::Name { call: "ioctl", name: other.into() }),
            };
            Prepared::Queued(fd()?, outgoing, wanted(2)?)
        }
        "sendmsg" | "recvmsg" => {
            let len = message_len(argument(1)).ok_or_else(|| part("message"))?;
            if call.name == "recvmsg" {
                received(host, fd()?, len, flags(2, NOW | PEEK | OOB | NO_SIGNAL)?)
            } else {
                sent(host, fd()?, len, flags(2, NOW | OOB | FAST | NO_SIGNAL | MORE)?, None)
            }
        }
        "poll" => polls::poll(host, call)?,
        "epoll_create" | "epoll_create1" => Prepared::CreateSet,
        "epoll_ctl" => polls::control(host, call)?,
        "epoll_wait" => polls::wait(host, call)?,
        "setsockopt" => options::set(fd()?, symbol(2), argument(3))?,
        "getsockopt" => options::get(fd()?, symbol(2), argument(3))?,
        other => return Err(Unsupported::Call(other.into())),
    })
}

const OOB: i64 = libc::MSG_OOB as i64;
const PEEK: i64 = libc::MSG_PEEK as i64;
const NOW: i64 = libc::MSG_DONTWAIT as i64;
const NO_SIGNAL: i64 = libc::MSG_NOSIGNAL as i64;
const MORE: i64 = libc::MSG_MORE as i64;
const FAST: i64 = libc::MSG_FASTOPEN as i64;
const NONBLOCK: i64 = libc::O_NONBLOCK as i64;

fn received(host: &Host, fd: i32, most: i64, flags: i64) -> Prepared {
    let now = flags & NOW != 0 || host.is_nonblocking(fd);
    let most = usize::try_from(most).unwrap_or(0);
    Prepared::Read { fd, most, peek: flags & PEEK != 0, urgent: flags & OOB != 0, now }
}

fn sent(host: &Host, fd: i32, len: i64, flags: i64, to: Option<Endpoint>) -> Prepared {
    let now = flags & NOW != 0 || host.is_nonblocking(fd);
    let len = usize::try_from(len).unwrap_or(0);
    if host.is_datagram(fd) {
        return Prepared::SendTo(fd, len, to, now);
    }
    if flags & FAST != 0 {
        return Prepared::SendFast(fd, len, now, to.unwrap_or(Endpoint::at(host.family().remote(), PORT)));
    }
    Prepared::Write { fd, len, now, urgent: flags & OOB != 0, more: flags & MORE != 0 }
}

/// Returns an address: `Some(None)` if the runner chooses it, `None` if it is not understood.
fn address(host: &Host, address: &Value) -> Option<Option<Endpoint>> {
    let Value::Fields(fields) = address else { return matches!(address, Value::Whatever).then_some(None) };
    let of = |wanted: [&str; 2]| {
        fields.iter().find(|(name, _)| wanted.contains(&name.as_str())).map(|(_, value)| value)
    };
    let port = u16::try_from(number(of(["sin_port", "sin6_port"])?)?).ok()?;
    let addr = match of(["sin_addr", "sin6_addr"]) {
        Some(Value::Text(text)) => match text.parse::<std::net::IpAddr>().ok()? {
            std::net::IpAddr::V4(addr) if addr.is_unspecified() => host.family().any(),
            std::net::IpAddr::V4(addr) => Addr::v4(addr.into()),
            std::net::IpAddr::V6(addr) => Addr::from_octets(addr.octets()),
        },
        Some(Value::Symbol(name)) if name == "INADDR_ANY" => host.family().any(),
        _ => host.family().any(),
    };
    Some(Some(Endpoint::at(addr, port)))
}

/// Returns the address of the other end.
fn remote(host: &Host, value: &Value) -> Option<Endpoint> {
    let chosen = Endpoint::at(host.family().remote(), PORT);
    let named = address(host, value)?.unwrap_or(chosen);
    // Whatever address a script connects to, the other end has it.
    Some(if named.addr.is_unspecified() { Endpoint::at(chosen.addr, named.port) } else { named })
}

/// Returns whether a call returns a descriptor.
pub fn gives_descriptor(name: &str) -> bool {
    matches!(name, "socket" | "accept" | "accept4" | "epoll_create" | "epoll_create1")
}

/// Returns the total octets of all vectors.
fn total(vectors: &Value) -> Option<i64> {
    let Value::List(vectors) = vectors else { return None };
    let lens = vectors.iter().map(|vector| match vector {
        Value::Fields(fields) => number(&fields.last()?.1).filter(|len| *len >= 0),
        _ => None,
    });
    lens.sum()
}

/// Returns the octets of a message without control messages, for which only the vectors count.
fn message_len(message: &Value) -> Option<i64> {
    let Value::Fields(fields) = message else { return None };
    let of = |wanted: &str| fields.iter().find_map(|(name, value)| (name == wanted).then_some(value));
    if of("msg_control").is_some_and(|control| *control != Value::List(Vec::new())) {
        return None;
    }
    total(of("msg_iov")?)
}
