//! execve(2), posix_spawn(3), vfork(2): runs other programs, with the sockets that they inherit. See
//! [`crate::exec`].

use std::ffi::{c_char, c_int, c_long, c_ulong};

use libc::{FILE, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use crate::beyond::with_own_limit;
use crate::confinement::confine;
use crate::exec::{Guidance, NextProgram, survivors, with_sockets};
use crate::hosting::{Start, Strings};
use crate::lock::STATE;
use crate::process::fork_by;
use crate::real::sys;
use crate::spawn_actions::sockets_after;
use crate::state::is_away;
use crate::supervisor::{SUPERVISOR, keep_connection};
use crate::unserved::{self, Makes, Program};
use crate::{real, table, urgent};

unsafe extern "C" {
    static environ: Strings;
}

/// Returns the environment of this process.
fn environment() -> Strings {
    // SAFETY: a pointer of the C library; whoever changes it while it executes a program has a race of its
    // own.
    unsafe { environ }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: passed on.
    unsafe {
        with_sockets(envp, |envp| {
            unserved::exec(Program::at(path), argv, envp, || real::execve(path, argv, envp))
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: passed on.
    unsafe { execve(path, argv, environment()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: passed on.
    unsafe {
        with_sockets(envp, |envp| {
            unserved::exec(Program::named(file), argv, envp, || real::execvpe(file, argv, envp))
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, argv: Strings) -> c_int {
    // SAFETY: passed on.
    unsafe { execvpe(file, argv, environment()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int {
    let program = Program { directory: fd, flags: libc::AT_EMPTY_PATH, ..Program::at(c"".as_ptr()) };
    // SAFETY: passed on.
    unsafe {
        with_sockets(envp, |envp| unserved::exec(program, argv, envp, || real::fexecve(fd, argv, envp)))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    directory: c_int,
    path: *const c_char,
    argv: Strings,
    envp: Strings,
    flags: c_int,
) -> c_int {
    let program = Program { directory, flags, ..Program::at(path) };
    // An older C library has no such function.
    // SAFETY: passed on.
    let exec = |envp| unsafe { sys!(libc::SYS_execveat, directory, path, argv, envp, flags) as c_int };
    // SAFETY: passed on.
    unsafe { with_sockets(envp, |envp| unserved::exec(program, argv, envp, || exec(envp))) }
}

/// The variadic functions. Their arguments after the first are laid out on the stack as an array, as the
/// other functions want them. On other architectures the C library's own functions run, and sockets do not
/// survive them.
#[cfg(target_arch = "x86_64")]
mod variadic {
    use super::{Strings, c_char, c_int, execv, execve, execvp};

    macro_rules! spread {
        ($name:ident, $target:path) => {
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name(path: *const c_char, first: *const c_char) -> c_int {
                core::arch::naked_asm!(
                    "pop rax",  // the return address; what the caller put on the stack lies behind it
                    "push r9",
                    "push r8",
                    "push rcx",
                    "push rdx",
                    "push rsi",
                    "mov rsi, rsp",
                    "push rax", // aligns the stack as well
                    "call {target}",
                    "pop rcx",
                    "add rsp, 40",
                    "jmp rcx",
                    target = sym $target,
                )
            }
        };
    }

    spread!(execl, execv);
    spread!(execlp, execvp);
    spread!(execle, with_environment);

    /// Runs execle(3): the environment follows the null pointer that ends the arguments.
    unsafe extern "C" fn with_environment(path: *const c_char, argv: Strings) -> c_int {
        let mut at = argv;
        // SAFETY: the arguments end with a null pointer.
        while unsafe { !(*at).is_null() } {
            // SAFETY: as above.
            at = unsafe { at.add(1) };
        }
        // SAFETY: execle(3): one more argument follows.
        let envp = unsafe { *at.add(1) };
        // SAFETY: passed on.
        unsafe { execve(path, argv, envp.cast()) }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    argv: *const *mut c_char,
    envp: *const *mut c_char,
) -> c_int {
    // SAFETY: passed on.
    let run = |start: Start| unsafe {
        real::posix_spawn(pid, start.path, actions, attributes, start.argv.cast(), start.envp.cast())
    };
    let start = Start { path, argv: argv.cast(), envp: envp.cast() };
    // SAFETY: passed on.
    unsafe { spawn(Program::at(path).after(actions), Makes::Process, start, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    argv: *const *mut c_char,
    envp: *const *mut c_char,
) -> c_int {
    // SAFETY: passed on.
    let run = |start: Start| unsafe {
        real::posix_spawnp(pid, start.path, actions, attributes, start.argv.cast(), start.envp.cast())
    };
    let start = Start { path: file, argv: argv.cast(), envp: envp.cast() };
    // SAFETY: passed on.
    unsafe { spawn(Program::named(file).after(actions), Makes::Process, start, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pidfd_spawn(
    pidfd: *mut c_int,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    argv: *const *mut c_char,
    envp: *const *mut c_char,
) -> c_int {
    // SAFETY: passed on.
    let run = |start: Start| unsafe {
        real::pidfd_spawn(pidfd, start.path, actions, attributes, start.argv.cast(), start.envp.cast())
    };
    let start = Start { path, argv: argv.cast(), envp: envp.cast() };
    // SAFETY: passed on.
    unsafe { spawn(Program::at(path).after(actions), Makes::Descriptor, start, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pidfd_spawnp(
    pidfd: *mut c_int,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    argv: *const *mut c_char,
    envp: *const *mut c_char,
) -> c_int {
    // SAFETY: passed on.
    let run = |start: Start| unsafe {
        real::pidfd_spawnp(pidfd, start.path, actions, attributes, start.argv.cast(), start.envp.cast())
    };
    let start = Start { path: file, argv: argv.cast(), envp: envp.cast() };
    // SAFETY: passed on.
    unsafe { spawn(Program::named(file).after(actions), Makes::Descriptor, start, run) }
}

/// Starts a program with the sockets that it inherits: `spawn` does it, with another environment.
///
/// # Safety
/// As for posix_spawn(3).
unsafe fn spawn(program: Program, makes: Makes, start: Start, spawn: impl FnOnce(Start) -> c_int) -> c_int {
    let spawn = |envp| {
        let start = Start { envp, ..start };
        // SAFETY: the caller's promise.
        unsafe { unserved::spawn(program, makes, start, |start| with_own_limit(|| spawn(start))) }
    };
    let sockets = || {
        survivors();
        // SAFETY: null or the program's.
        unsafe { sockets_after(program.actions) }
    };
    let next = match table::any_objects() {
        // SAFETY: the program's environment.
        true => unsafe { NextProgram::prepare(sockets, start.envp) },
        false => None,
    };
    let Some(next) = next else {
        // SAFETY: the program's environment.
        return match unsafe { Guidance::prepare(start.envp, format!("-{}", std::process::id())) } {
            Some(guidance) => spawn(guidance.environment()),
            None => spawn(start.envp),
        };
    };
    let result = spawn(next.environment());
    if result == 0 {
        next.given();
    } else {
        next.take_back();
    }
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    // SAFETY: passed on.
    unserved::shell(-1, Makes::Process, || unsafe { real::system(command) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: passed on.
    unserved::shell(std::ptr::null_mut(), Makes::Descriptor, || unsafe { real::popen(command, mode) })
}

/// What prctl(2) changes of the credentials of the running thread alone.
const OF_CREDENTIALS: [c_int; 5] = [
    libc::PR_SET_KEEPCAPS,
    libc::PR_SET_SECUREBITS,
    libc::PR_CAPBSET_DROP,
    libc::PR_CAP_AMBIENT,
    libc::PR_SET_NO_NEW_PRIVS,
];

/// Passes on prctl(2), and notes that a filter for system calls is installed, or that this thread has other
/// credentials.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    // SAFETY: passed on. The C library's function passes on as many words, whatever the option takes.
    let result = unsafe { real::prctl(option, a, b, c, d) };
    if option == libc::PR_SET_SECCOMP && result == 0 {
        confine();
    }
    if result == 0 {
        crate::dispatch::note_program(option, a);
    }
    if OF_CREDENTIALS.contains(&option) {
        urgent::renew_watch();
    }
    result
}

/// Keeps a connection before chroot(2): the stack's socket may not be visible afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chroot(path: *const c_char) -> c_int {
    keep_connection();
    // SAFETY: passed on.
    unsafe { real::chroot(path) }
}

/// Keeps a connection before unshare(2) of mounts or users: the stack's socket may not be visible afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    if flags & (libc::CLONE_NEWNS | libc::CLONE_NEWUSER) != 0 {
        keep_connection();
    }
    // SAFETY: passed on.
    unsafe { real::unshare(flags) }
}

/// Keeps a connection before setns(2): the stack's socket may not be visible afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    keep_connection();
    // SAFETY: passed on.
    unsafe { real::setns(fd, kind) }
}

/// Makes a child as fork(3) does, but without what other libraries have registered for that: _Fork(3). It may
/// be called in signal handlers, and its child may use sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> pid_t {
    // SAFETY: no arguments.
    fork_by(|| c_long::from(unsafe { real::_Fork() })) as pid_t
}

/// With sockets of ours vfork(2) is fork(2), as POSIX allows, because a child that shares our memory would
/// change the state of its parent. Otherwise it is the C library's, which returns twice and so cannot be
/// called, only jumped to.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn vfork() -> pid_t {
    core::arch::naked_asm!(
        "push rbx",
        "call {choose}",
        "pop rbx",
        "jmp rax",
        choose = sym choose_fork,
    )
}

/// Returns the function that a vfork is to be.
#[cfg(target_arch = "x86_64")]
extern "C" fn choose_fork() -> *const std::ffi::c_void {
    // A child that is to get a connection of its own has to have memory of its own, too.
    let needs_connection = || {
        STATE.with(|state| state.client.own().is_some())
            || SUPERVISOR.with(|connections| connections.kept().is_some())
    };
    if table::any_objects() || is_away() && needs_connection() {
        return libc::fork as *const std::ffi::c_void;
    }
    real::vfork_address()
}
