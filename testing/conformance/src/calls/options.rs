//! The socket options that a script may set and query.

use atoll_ipc::{CONGESTION_NAMES, SocketOption};

use super::constants::number;
use super::{Prepared, Unsupported};
use crate::host::Known;
use crate::script::Value;

/// Interprets setsockopt(2) of `name`.
pub fn set(fd: i32, name: &str, value: &Value) -> Result<Prepared, Unsupported> {
    let wrong_value = || Unsupported::OptionValue(name.into());
    if name == "SO_LINGER" {
        let (on, time) = linger(value).ok_or_else(wrong_value)?;
        return if on != 0 && time != 0 {
            Err(Unsupported::LingerTime)
        } else {
            Ok(Prepared::Linger(fd, on != 0))
        };
    }
    if name == "TCP_CONGESTION" {
        let value = match value {
            Value::Text(name) => CONGESTION_NAMES.iter().position(|known| known == name),
            _ => None,
        };
        let value = value.ok_or(Unsupported::Congestion)? as u32;
        return Ok(Prepared::SetOption(fd, SocketOption::Congestion, value));
    }
    let number = number(value).ok_or_else(wrong_value)?;
    // A negative value has its high bits set, as in the library.
    let bits = number as u32;
    let (option, number) = match name {
        // Every bind may take the port of a connection that has ended; the others are hints.
        "SO_REUSEADDR" | "SO_REUSEPORT" | "SO_MARK" | "SO_PRIORITY" => return Ok(Prepared::Nothing),
        // TCP always does path MTU discovery, as in the library.
        "IP_MTU_DISCOVER" => return Ok(Prepared::Nothing),
        "TCP_FASTOPEN_CONNECT" => return Ok(Prepared::FastOpenConnect(fd, bits != 0)),
        "SO_OOBINLINE" => return Ok(Prepared::UrgentInline(fd, bits != 0)),
        // socket(7): the kernel doubles the size; the stack gets the effective one.
        "SO_SNDBUF" => (SocketOption::SendBuffer, bits.saturating_mul(2)),
        "SO_RCVBUF" => (SocketOption::ReceiveBuffer, bits.saturating_mul(2)),
        _ => {
            let unknown = || Unsupported::Name { call: "setsockopt", name: name.into() };
            (known(name).ok_or_else(unknown)?.0, bits)
        }
    };
    Ok(Prepared::SetOption(fd, option, number))
}

/// Reads `{onoff=1, linger=0}`.
fn linger(value: &Value) -> Option<(i64, i64)> {
    let Value::Fields(fields) = value else { return None };
    let of = |n: usize| fields.get(n).and_then(|(_, value)| number(value)).unwrap_or(0);
    Some((of(0), of(1)))
}

/// Interprets getsockopt(2) of `name` with the expected `value`.
pub fn get(fd: i32, name: &str, value: &Value) -> Result<Prepared, Unsupported> {
    let wrong_value = || Unsupported::OptionValue(name.into());
    if name == "TCP_CONGESTION" {
        let Value::Text(expected) = value else { return Err(wrong_value()) };
        return Ok(Prepared::Congestion(fd, expected.clone()));
    }
    let option = match name {
        "SO_ERROR" => Known::Error,
        "TCP_MAXSEG" => Known::MaxSegment,
        "SO_SNDBUF" => Known::Buffer(SocketOption::SendBuffer),
        "SO_RCVBUF" => Known::Buffer(SocketOption::ReceiveBuffer),
        "SO_TYPE" => Known::Fixed(1),
        _ => {
            let unknown = || Unsupported::Name { call: "getsockopt", name: name.into() };
            let (option, default) = known(name).ok_or_else(unknown)?;
            Known::Set(option, default)
        }
    };
    let expected = number(value).ok_or_else(wrong_value)?;
    Ok(Prepared::Option(fd, option, expected))
}

/// Returns the option that the replica gets, and its value if it was never set.
fn known(name: &str) -> Option<(SocketOption, i64)> {
    Some(match name {
        "SO_KEEPALIVE" => (SocketOption::KeepAlive, 0),
        "SO_MAX_PACING_RATE" => (SocketOption::MaxPacingRate, 0xffff_ffff),
        "TCP_FASTOPEN" => (SocketOption::FastOpen, 0),
        "TCP_NODELAY" => (SocketOption::NoDelay, 0),
        "TCP_CORK" => (SocketOption::Cork, 0),
        "TCP_QUICKACK" => (SocketOption::QuickAck, 0),
        "TCP_MAXSEG" => (SocketOption::MaxSegment, 536),
        "TCP_KEEPIDLE" => (SocketOption::KeepIdle, 7200),
        "TCP_KEEPINTVL" => (SocketOption::KeepInterval, 75),
        "TCP_KEEPCNT" => (SocketOption::KeepCount, 9),
        "TCP_USER_TIMEOUT" => (SocketOption::UserTimeout, 0),
        "TCP_LINGER2" => (SocketOption::Linger2, 60),
        "TCP_SYNCNT" => (SocketOption::SynCount, 6),
        "TCP_DEFER_ACCEPT" => (SocketOption::DeferAccept, 0),
        "TCP_NOTSENT_LOWAT" => (SocketOption::UnsentLow, 0),
        "IP_TOS" => (SocketOption::TypeOfService, 0),
        "IP_TTL" => (SocketOption::TimeToLive, 64),
        "IPV6_TCLASS" => (SocketOption::TrafficClass, 0),
        "IPV6_UNICAST_HOPS" => (SocketOption::UnicastHops, 64),
        _ => return None,
    })
}
