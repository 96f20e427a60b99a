//! libatoll.so: the socket API of Atoll for unmodified programs (P6, N2). It is loaded by LD_PRELOAD;
//! `ATOLL_SOCKET` names the stack.
//!
//! * [`symbols`]: the C library's names
//! * [`calls`], [`transfer`], [`epoll`], [`poll`], [`options`]: what they do on Atoll's sockets
//! * [`octets`]: the path that a send or receive takes; [`fast_open`]: text that is sent along with a SYN
//! * [`urgent`]: urgent octets, and the signal for them
//! * [`table`]: what a descriptor number names; [`state`], [`streams`]: the state of the process besides its
//!   sockets; [`lock`], [`futex_lock`]: the lock of the state
//! * [`platform`]: what the client ([`atoll_sockets::client`], which makes all decisions) stands on;
//!   [`family`]: the lock of an arena that several processes use
//! * [`supervisor`]: how the supervisor is asked; [`control`]: a connection to it
//! * [`wait`], [`waiter`]: how calls sleep; [`under_way`], [`call_state`]: what they hold meanwhile;
//!   [`hang_up`], [`gone`]: a stack that is gone
//! * [`child_state`], [`process`], [`exec`]: children, and programs that take our place
//! * [`space`]: limits of address space
//! * [`shadow`]: threads whose memory is not the C library's; [`host`], [`hosting`]: static programs
//! * [`unserved`]: programs that load no library; [`spawn_actions`]: what posix_spawn(3) does in a child
//! * [`cancellation`], [`sleepers`]: threads that are cancelled; [`confinement`]: processes under seccomp
//! * [`dispatch`]: system calls that are made past the C library's functions; [`instruction`]: this library's
//!   own
//! * [`handlers`], [`critical`]: when the program's signal handlers run; [`heap`]: the library's own memory;
//!   [`thread`]: words of each thread
//! * [`reach`]: pointers of the program that lead nowhere
//! * [`interfaces`], [`netlink`], [`netlink_end`], [`proc_net`]: what a program is shown of the network
//! * [`real`]: the C library's own functions; [`settings`]: the environment; [`stats`]: the share of calls
//!   without system call
//!
//! Environment:
//! * `ATOLL_SOCKET`: the path of the supervisor's socket; if unset, all sockets are the kernel's
//! * `ATOLL_KERNEL_NETWORK`: what is served by the kernel's network ([`atoll_base::KernelNetwork`])
//! * `ATOLL_VERBOSE=1`: each program says by which way its calls come here
//! * `ATOLL_STATS=1`: counters are written at the end of the program
//! * `ATOLL_HOST`: the dynamic program in whose place static ones are executed; if unset, these are not
//!   served
//!
//! Programs that are executed with an environment without these variables get them nevertheless.
//!
//! * `ATOLL_PROGRAM`: the static program to be, in the host's environment
//! * `ATOLL_INHERIT` and `ATOLL_CONNECTION`: set by this library over exec, for sockets, and for a connection
//!   if the socket's path may not be visible
//!
//! Invariants that its `unsafe` rests on:
//! 1. Pointers from the program are as valid as the C library's functions of the same name want them; what a
//!    system call would be given is looked at before ([`reach`]).
//! 2. Shared memory is reached through `atoll_shm` only; `send_file` lets the kernel write to ranges that it
//!    has checked.
//! 3. State is reached under its lock, which is never held across a call that may sleep or call back into the
//!    program. No signal handler of the program runs in a thread that holds a lock of the library.

#![warn(clippy::print_stderr)]

mod asking;
mod beyond;
mod call_state;
mod calls;
mod cancellation;
mod child_state;
mod confinement;
mod control;
mod critical;
mod dispatch;
mod epoll;
mod exec;
mod family;
mod fast_open;
mod futex_lock;
mod gone;
mod groups;
mod handlers;
mod hang_up;
mod heap;
mod host;
mod hosting;
mod instruction;
mod interfaces;
mod letter;
mod lock;
mod netlink;
mod netlink_end;
mod octets;
mod options;
mod pipes;
mod platform;
mod poll;
mod proc_net;
mod process;
mod reach;
mod real;
mod settings;
mod shadow;
mod signals;
mod sleepers;
mod space;
mod spawn_actions;
mod splice;
mod state;
mod stats;
mod streams;
mod supervisor;
mod symbols;
mod table;
mod thread;
mod transfer;
mod under_way;
mod unserved;
mod urgent;
mod wait;
mod waiter;

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

/// Writes to the program's standard error if that has a reader. The program neither waits nor dies if there
/// is none: `eprintln!` would panic, and SIGPIPE would kill it.
fn complain(text: std::fmt::Arguments<'_>) {
    let _ = atoll_sys::stderr::ErrorOutput::asking().write(text.to_string().as_bytes());
}

/// Writes a line to standard error, the first time.
fn complain_once(is_told: &AtomicBool, text: std::fmt::Arguments<'_>) {
    if !is_told.swap(true, Ordering::Relaxed) {
        complain(text);
    }
}

/// The constructor. The C library calls it as it calls `main`.
unsafe extern "C" fn start(_count: c_int, arguments: *const *const c_char) {
    settings::settings();
    process::install();
    call_state::install();
    hang_up::install(gone::mend);
    dispatch::start(symbols::carry_out);
    // SAFETY: the C library calls constructors before anything of the program.
    unsafe { dispatch::rewriting::rewrite_loaded() };
    if settings::settings().socket.is_some() {
        handlers::keep_faults();
    }
    say_how();
    if exec::restore() {
        (0..3).filter(|fd| table::object_at(*fd).is_some()).for_each(symbols::streams::replace_standard);
    }
    // SAFETY: the C library's arguments, which are the kernel's.
    unsafe { host::run(arguments) };
}

/// Says by which way this program's calls come to the library, if the user wants to know: `atoll run -v`.
fn say_how() {
    let settings = settings::settings();
    if settings.verbose && settings.socket.is_some() {
        let name = std::env::args_os().next().unwrap_or_default();
        let (name, pid) = (name.display(), std::process::id());
        let how = dispatch::interception().description();
        complain(format_args!("libatoll: {name} ({pid}) is served {how}\n"));
    }
}

extern "C" fn end() {
    lock::STATE.with(|state| stats::publish(&state.client));
    if settings::settings().stats
        && let Some(report) = stats::report()
    {
        complain(format_args!("{report}"));
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: unsafe extern "C" fn(c_int, *const *const c_char) = start;
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
