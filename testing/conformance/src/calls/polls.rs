//! The calls poll(2) and epoll(7) of a script.

use atoll_sockets::Failure;

use super::constants::number;
use super::{Prepared, Unsupported, number_at};
use crate::host::{Control, Host};
use crate::script::{Call, Value};

/// The events that are always requested.
const ALWAYS: u32 = (libc::POLLERR | libc::POLLHUP) as u32;

/// One descriptor of poll(2): its number, the requested events, and the expected ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polled {
    fd: i32,
    asked: u32,
    expected: u32,
}

/// A result that epoll_wait(2) must return: the events, and the data where the script has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    events: u32,
    data: Option<u64>,
}

fn field(value: &Value, wanted: &str) -> Option<i64> {
    let Value::Fields(fields) = value else { return None };
    fields.iter().find_map(|(name, value)| (name == wanted).then_some(value)).and_then(number)
}

/// Interprets poll(2).
pub fn poll(host: &Host, call: &Call) -> Result<Prepared, Unsupported> {
    let wrong = || Unsupported::part("descriptors", &call.name);
    let Some(Value::List(descriptors)) = call.arguments.first() else { return Err(wrong()) };
    let polled = descriptors.iter().map(|one| {
        let fd = host.descriptor(field(one, "fd")? as i32);
        Some(Polled {
            fd,
            asked: field(one, "events").unwrap_or(0) as u32,
            expected: field(one, "revents").unwrap_or(0) as u32,
        })
    });
    let polled = polled.collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
    Ok(Prepared::Poll(polled, number_at(call, 2)?))
}

/// Polls once. `gives_up` says that the time-out has expired.
pub fn try_poll(host: &mut Host, polled: &[Polled], gives_up: bool) -> Result<i64, Failure> {
    let mut ready = Vec::new();
    for one in polled {
        ready.push(host.readiness(one.fd).unwrap_or(0x20) & (one.asked | ALWAYS | 0x20));
    }
    let count = ready.iter().filter(|bits| **bits != 0).count() as i64;
    if count == 0 && !gives_up {
        return Err(Failure::WouldBlock);
    }
    Ok(match polled.iter().zip(&ready).find(|(one, bits)| one.expected != **bits) {
        // No script expects that value, which shows what was found.
        Some((_, bits)) => super::WRONG_VALUE + i64::from(*bits),
        None => count,
    })
}

/// Interprets epoll_ctl(2).
pub fn control(host: &Host, call: &Call) -> Result<Prepared, Unsupported> {
    let wrong = |part| Unsupported::part(part, &call.name);
    let op = match call.arguments.get(1) {
        Some(Value::Symbol(name)) if name == "EPOLL_CTL_ADD" => Control::Add,
        Some(Value::Symbol(name)) if name == "EPOLL_CTL_MOD" => Control::Modify,
        Some(Value::Symbol(name)) if name == "EPOLL_CTL_DEL" => Control::Remove,
        _ => return Err(wrong("operation")),
    };
    let (set, fd) = (number_at(call, 0)? as i32, number_at(call, 2)? as i32);
    let (mut events, mut given) = (0, 0);
    if op != Control::Remove {
        let event = call.arguments.get(3).ok_or_else(|| wrong("event"))?;
        events = field(event, "events").ok_or_else(|| wrong("events"))? as u32;
        given = data(event).unwrap_or(0);
    }
    Ok(Prepared::Control(host.descriptor(set), op, host.descriptor(fd), events, given))
}

fn data(event: &Value) -> Option<u64> {
    ["fd", "ptr", "u32", "u64"].into_iter().find_map(|name| field(event, name)).map(|data| data as u64)
}

/// Interprets epoll_wait(2): `epoll_wait(5, {events=EPOLLIN, fd=4}, 1, 0)`, or a list of events.
pub fn wait(host: &Host, call: &Call) -> Result<Prepared, Unsupported> {
    let wrong = || Unsupported::part("events", &call.name);
    let events: &[Value] = match call.arguments.get(1) {
        Some(Value::List(events)) => events,
        Some(one @ Value::Fields(_)) => std::slice::from_ref(one),
        Some(Value::Whatever) => &[],
        _ => return Err(wrong()),
    };
    let waited = events.iter().map(|event| {
        let events = field(event, "events")? as u32;
        Some(Waited { events, data: data(event) })
    });
    let waited = waited.collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
    let set = host.descriptor(number_at(call, 0)? as i32);
    let max = usize::try_from(number_at(call, 2)?).unwrap_or(0);
    Ok(Prepared::Wait { set, waited, max, timeout: number_at(call, 3)? })
}

/// Collects events once. `gives_up` says that the time-out has expired.
pub fn try_wait(
    host: &mut Host,
    set: i32,
    max: usize,
    waited: &[Waited],
    gives_up: bool,
) -> Result<i64, Failure> {
    let fired = host.collect(set, max)?;
    if fired.is_empty() && !gives_up {
        return Err(Failure::WouldBlock);
    }
    let differs = waited.iter().zip(&fired).find(|(wanted, seen)| {
        wanted.events != seen.events || wanted.data.is_some_and(|data| data != seen.data)
    });
    Ok(match differs {
        Some((_, seen)) => super::WRONG_VALUE + i64::from(seen.events),
        None => fired.len() as i64,
    })
}
