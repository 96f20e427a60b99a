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

use atoll_ipc::page::StackFacts;

/// Whether the stack has a way to `addr`: on its link, or by a gateway.
pub(crate) fn reaches(facts: &StackFacts, addr: u32) -> bool {
    let mask = u32::MAX.checked_shl(32 - u32::from(facts.prefix_len)).unwrap_or(0);
    facts.gateway != 0 || addr & mask == facts.addr & mask
}

extern "C" fn start() {
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
