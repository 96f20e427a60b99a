//! libatoll.so: the socket API of Atoll for unmodified programs (P6, N2). Loaded by LD_PRELOAD; `ATOLL_SOCKET` names the stack.
//!
//! * [`symbols`]: the C library's names
//! * [`calls`], [`transfer`], [`epoll`], [`poll`], [`options`]: what they do on Atoll's sockets
//! * [`table`]: what a number names; [`object`]: sockets and epoll instances; [`state`]: all of it, and what events do
//! * [`session`]: what is shared with replicas; [`wait`]: how calls sleep
//! * [`heir`], [`process`], [`exec`]: children, and programs that take our place
//! * [`real`]: the C library behind us; [`lock`]: the one lock; [`stats`]: the share of calls without system call
//!
//! Environment: `ATOLL_SOCKET` (path of the supervisor's socket; unset: everything is the kernel's), `ATOLL_REQUIRED=1` (sockets
//! fail rather than be the kernel's if the stack cannot be joined), `ATOLL_KERNEL=CIDR,...` (destinations that are the
//! kernel's), `ATOLL_STATS=1` (counters at the end), `ATOLL_INHERIT` (set by this library over exec).
//!
//! Invariants that its `unsafe` rests on:
//! 1. Pointers from the program are as valid as the C library's functions of the same name want them.
//! 2. Shared memory is reached through `atoll_shm` only; `send_file` lets the kernel write to ranges that it has checked.
//! 3. State is reached under its lock, which is never held across a call that may sleep or call back into the program.
//!    A signal handler that interrupts the library must therefore not use Atoll's sockets; the kernel's it may.

mod calls;
mod epoll;
mod exec;
mod heir;
mod lock;
mod object;
mod options;
mod poll;
mod process;
mod real;
mod session;
mod state;
mod stats;
mod symbols;
mod table;
mod transfer;
mod wait;

use std::sync::OnceLock;

/// Whether destinations at `addr` were reserved for the kernel by `ATOLL_KERNEL`.
pub(crate) fn is_kernels(addr: u32) -> bool {
    static NETWORKS: OnceLock<Vec<(u32, u32)>> = OnceLock::new();
    let networks = NETWORKS.get_or_init(|| {
        let list = std::env::var("ATOLL_KERNEL").unwrap_or_default();
        list.split(',').filter_map(network).collect()
    });
    networks.iter().any(|(network, mask)| addr & mask == *network)
}

/// A network and its mask from `ADDRESS/PREFIX`.
fn network(text: &str) -> Option<(u32, u32)> {
    let (addr, prefix) = text.trim().split_once('/').unwrap_or((text.trim(), "32"));
    let addr = u32::from(addr.parse::<std::net::Ipv4Addr>().ok()?);
    let mask = u32::MAX.checked_shl(32u32.checked_sub(prefix.parse().ok()?)?).unwrap_or(0);
    Some((addr & mask, mask))
}

extern "C" fn start() {
    process::install();
    exec::restore();
}

extern "C" fn end() {
    state::STATE.with(|state| stats::publish(state));
    if std::env::var_os("ATOLL_STATS").is_some_and(|value| value == "1")
        && let Some(report) = stats::report()
    {
        eprint!("{report}");
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

#[cfg(test)]
mod tests {
    #[test]
    fn networks_are_read() {
        assert_eq!(super::network("10.1.2.3/8"), Some((0x0a00_0000, 0xff00_0000)));
        assert_eq!(super::network("10.1.2.3"), Some((0x0a01_0203, u32::MAX)));
        assert_eq!(super::network("0.0.0.0/0"), Some((0, 0)));
        assert_eq!(super::network("nonsense"), None);
    }
}
