//! Counts the calls that the library resolved without any system call (N2), by kind. `atoll status` shows the
//! counters, and so does the program's end with `ATOLL_STATS=1`.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::dispatch;
use crate::platform::Client;
use crate::thread::{self, way};

/// The index of a kind of call.
pub type Kind = usize;

pub const SOCKET: Kind = 0;
pub const ACCEPT: Kind = 1;
pub const CONNECT: Kind = 2;
pub const RECEIVE: Kind = 3;
pub const SEND: Kind = 4;
pub const EPOLL_WAIT: Kind = 5;
pub const EPOLL_CTL: Kind = 6;
pub const POLL: Kind = 7;
pub const CLOSE: Kind = 8;
pub const OPTION: Kind = 9;
pub const OTHER: Kind = 10;
const NAMES: [&str; 11] = [
    "socket/bind/listen",
    "accept",
    "connect",
    "receive",
    "send",
    "epoll_wait",
    "epoll_ctl",
    "poll/select",
    "close",
    "options",
    "other",
];

/// For each kind: all calls, and those that made a system call. There is no read-modify-write: threads may
/// lose a count, but no call pays for one.
static COUNTS: [[AtomicU64; 2]; NAMES.len()] = [const { [const { AtomicU64::new(0) }; 2] }; NAMES.len()];

/// The calls that came by an instruction of the program's own: all of them, and those that cost a trap.
static BY_INSTRUCTION: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Carries out a system call that came by an instruction. If it is for an object of this library, the first
/// [`Call`] counts the way; what the call leads to in the library is not the program's.
pub fn by_instruction<R>(carry_out: impl FnOnce() -> R) -> R {
    let thread = thread::current();
    thread.way.set(thread.way.get().max(way::REWRITTEN));
    let result = carry_out();
    thread.way.set(way::SYMBOL);
    result
}

fn add_one(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// One call of the program on an object of this library, which is counted when it ends.
pub struct Call {
    kind: Kind,
    before: u32,
}

impl Call {
    #[inline]
    pub fn new(kind: Kind) -> Call {
        let thread = thread::current();
        if thread.way.get() != way::SYMBOL {
            count_way(thread.way.replace(way::SYMBOL));
        }
        Call { kind, before: thread.system_calls.get() }
    }
}

impl Drop for Call {
    #[inline]
    fn drop(&mut self) {
        let [calls, with] = &COUNTS[self.kind];
        add_one(calls);
        if thread::current().system_calls.get() != self.before {
            add_one(with);
        }
    }
}

#[cold]
fn count_way(way: u8) {
    let [all, trapped] = &BY_INSTRUCTION;
    add_one(all);
    if way == way::TRAP {
        add_one(trapped);
    }
}

fn totals() -> (u64, u64) {
    COUNTS.iter().fold((0, 0), |(calls, with), one| {
        (calls + one[0].load(Ordering::Relaxed), with + one[1].load(Ordering::Relaxed))
    })
}

/// Puts the counters where `atoll status` finds them. Called before sleeping, and at the end.
pub fn publish(client: &Client) {
    if let Some(replica) = client.own().and_then(|session| session.replicas().first()) {
        let (calls, with) = totals();
        replica.port().set_counters(calls, with);
        let [by_instruction, by_trap] = BY_INSTRUCTION.each_ref().map(|count| count.load(Ordering::Relaxed));
        replica.port().set_ways(by_instruction, by_trap);
        replica.port().set_interception(dispatch::interception() as u8);
    }
}

/// Sets all counters to zero: the child of a fork counts its own calls.
pub fn reset() {
    for one in COUNTS.iter().flatten().chain(&BY_INSTRUCTION) {
        one.store(0, Ordering::Relaxed);
    }
}

/// Returns the counters as text; `None` if no call was counted.
pub fn report() -> Option<String> {
    let (calls, with) = totals();
    if calls == 0 {
        return None;
    }
    let share = |calls: u64, with: u64| calls.saturating_sub(with) as f64 * 100.0 / calls as f64;
    let mut text = format!(
        "libatoll: pid {}: {calls} calls, {:.2} % without a system call\n",
        std::process::id(),
        share(calls, with)
    );
    for (name, [calls, with]) in NAMES.iter().zip(&COUNTS) {
        let (calls, with) = (calls.load(Ordering::Relaxed), with.load(Ordering::Relaxed));
        if calls > 0 {
            text += &format!("libatoll:   {name:20} {calls:12} {:7.2} %\n", share(calls, with));
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted() -> [u64; 2] {
        BY_INSTRUCTION.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    #[test]
    fn a_call_for_an_object_counts_its_way_once_and_other_calls_do_not() {
        let [all, trapped] = counted();
        drop(Call::new(OTHER));
        thread::current().way.set(way::TRAP);
        by_instruction(|| ());
        drop(Call::new(OTHER));
        assert_eq!(counted(), [all, trapped], "a trapped call that is for no object, and a function");
        by_instruction(|| drop(Call::new(OTHER)));
        assert_eq!(counted(), [all + 1, trapped]);
        thread::current().way.set(way::TRAP);
        by_instruction(|| (Call::new(SEND), Call::new(OTHER)));
        assert_eq!(counted(), [all + 2, trapped + 1], "what a call leads to is not the program's");
    }
}
