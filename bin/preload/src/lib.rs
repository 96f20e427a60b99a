//! libatoll.so: the socket API of Atoll for unmodified programs (P6, N2). Loaded by LD_PRELOAD; `ATOLL_SOCKET` names the stack.
//!
//! * [`symbols`]: the C library's names
//! * [`calls`], [`transfer`], [`epoll`], [`options`]: what they do on Atoll's sockets
//! * [`state`], [`session`]: what this process knows; [`wait`]: how it sleeps; [`process`]: fork
//! * [`real`]: the C library behind us; [`lock`]: the one lock
//!
//! Invariants that its `unsafe` rests on:
//! 1. Pointers from the program are as valid as the C library's functions of the same name want them.
//! 2. Shared memory is reached through `atoll_shm` only; `send_file` lets the kernel write to ranges that it has checked.
//! 3. State is reached under its lock, which is never held across a call that may sleep or call back into the program.

mod calls;
mod epoll;
mod lock;
mod options;
mod process;
mod real;
mod session;
mod state;
mod symbols;
mod transfer;
mod wait;

use std::sync::atomic::{AtomicU32, Ordering};

use atoll_ipc::page::StackFacts;

/// The process whose state this is: a vfork child shares our memory and must not touch it.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Whether this is a vfork or posix_spawn child that shares our memory.
pub(crate) fn is_foreign_process() -> bool {
    // SAFETY: a system call without arguments; glibc does not cache it, so a vfork child gets its own number.
    let pid = unsafe { libc::syscall(libc::SYS_getpid) } as u32;
    let owner = OWNER.load(Ordering::Relaxed);
    owner != 0 && owner != pid
}

/// This process is the owner of the state now: at start, and in a forked child.
pub(crate) fn own() {
    // SAFETY: as above.
    OWNER.store(unsafe { libc::syscall(libc::SYS_getpid) } as u32, Ordering::Relaxed);
}

/// Whether the stack has a way to `addr`: on its link, or by a gateway.
pub(crate) fn reaches(facts: &StackFacts, addr: u32) -> bool {
    let mask = u32::MAX.checked_shl(32 - u32::from(facts.prefix_len)).unwrap_or(0);
    facts.gateway != 0 || addr & mask == facts.addr & mask
}

extern "C" fn start() {
    own();
    process::install();
}

extern "C" fn end() {
    if std::env::var_os("ATOLL_STATS").is_some() {
        state::STATE.with(|state| {
            if !state.sessions.is_empty() && state.calls > 0 {
                let without = state.calls.saturating_sub(state.system_calls);
                eprintln!(
                    "libatoll: {} calls, {:.2} % without a system call",
                    state.calls,
                    without as f64 * 100.0 / state.calls as f64
                );
            }
        });
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
