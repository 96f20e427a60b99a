//! Calls of guests ([`crate::shadow`]) that have no function in the C library, or concern what the kernel
//! knows of the C library instead of the program: threads, children, the end of both, and what a static
//! program sees of itself.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::sync::atomic::Ordering;

use crate::dispatch::clones::{self, Clone, Kind};
use crate::dispatch::{Words, guests};
use crate::real::{last_errno, sys};
use crate::shadow::{self, Shadow, failed};
use crate::signals::hold_signals;
use crate::{host, process, real};

// linux/prctl.h.
const PR_SET_SYSCALL_USER_DISPATCH: c_int = 59;

/// Makes a call that a trap has brought; `None` if it is to be made as any other, and perhaps changed for
/// that. `at` is where a stub has put it. Returns what the kernel would.
pub unsafe fn make(call: &mut Words, at: *mut Words) -> Option<c_long> {
    let shadow = shadow::current();
    if clones::is_clone(call.number) {
        // SAFETY: the program's call.
        return unsafe { clone(call, at, shadow) };
    }
    let shadow = shadow?;
    let [first, second, third, ..] = call.words;
    let word =
        |of: &std::sync::atomic::AtomicUsize, value: c_long| of.store(value as usize, Ordering::Relaxed);
    Some(match call.number {
        libc::SYS_exit => {
            hold_signals();
            word(&shadow.status, first);
            // The stub goes on in `dispatch::guests::end`.
            shadow.is_ending.store(1, Ordering::Relaxed);
            0
        }
        libc::SYS_exit_group => {
            crate::end();
            // SAFETY: ends the process.
            unsafe { sys!(libc::SYS_exit_group, first) }
        }
        // SAFETY: the program's pointers.
        libc::SYS_sigaltstack => unsafe { shadow.set_alternate(first as *const _, second as *mut _) },
        libc::SYS_set_tid_address => {
            word(&shadow.clear_at_end, first);
            // SAFETY: no arguments.
            unsafe { sys!(libc::SYS_gettid) }
        }
        libc::SYS_set_robust_list if second as usize != size_of::<[usize; 3]>() => failed(libc::EINVAL),
        libc::SYS_set_robust_list => {
            word(&shadow.robust_list[0], first);
            word(&shadow.robust_list[1], second);
            0
        }
        // SAFETY: no arguments.
        libc::SYS_get_robust_list if first == 0 || first == unsafe { sys!(libc::SYS_gettid) } => {
            let [list, len] = [0, 1].map(|at| shadow.robust_list[at].load(Ordering::Relaxed));
            // SAFETY: the program's pointers.
            unsafe {
                (second as *mut usize).write_unaligned(list);
                (third as *mut usize).write_unaligned(len);
            }
            0
        }
        // As on a kernel without it: this library uses it.
        libc::SYS_prctl if first as c_int == PR_SET_SYSCALL_USER_DISPATCH => failed(libc::EINVAL),
        // SAFETY: the program's call.
        _ if shadow::is_hosted() => return unsafe { of_hosted(call) },
        _ => return None,
    })
}

/// Makes a call of a static program that concerns its break or its file.
unsafe fn of_hosted(call: &mut Words) -> Option<c_long> {
    let [first, second, third, fourth, _, _] = call.words;
    // SAFETY: the program's path.
    let is_own = |path: c_long| unsafe { host::is_own_program(path as *const c_char) };
    let opened = || host::path_of_program().as_ptr() as c_long;
    match call.number {
        libc::SYS_brk => return Some(host::set_break(first as usize)),
        libc::SYS_open if is_own(first) => call.words[0] = opened(),
        libc::SYS_openat if is_own(second) => call.words[1] = opened(),
        libc::SYS_readlink if is_own(first) => {
            // SAFETY: the program's buffer.
            return Some(unsafe { read_link(opened(), second, third) });
        }
        libc::SYS_readlinkat if is_own(second) => {
            // SAFETY: as above.
            return Some(unsafe { read_link(opened(), third, fourth) });
        }
        libc::SYS_execve if is_own(first) => {
            let (program, flags) = (host::program().into(), libc::AT_EMPTY_PATH.into());
            call.number = libc::SYS_execveat;
            call.words = [program, c"".as_ptr() as c_long, second, third, flags, 0];
        }
        _ => return None,
    }
    None
}

unsafe fn read_link(path: c_long, buffer: c_long, len: c_long) -> c_long {
    // SAFETY: the caller's promise; the C library's function fails with -1.
    match unsafe { sys!(libc::SYS_readlink, path, buffer, len) } {
        -1 => failed(last_errno().0),
        len => len,
    }
}

/// Makes a clone(2) or clone3(2). Returns `None` for those of threads of the C library's that make no guest.
unsafe fn clone(call: &Words, at: *mut Words, shadow: Option<&Shadow>) -> Option<c_long> {
    // SAFETY: the program's call.
    let Some(clone) = (unsafe { Clone::read(call) }) else {
        return shadow.is_some().then(|| failed(libc::EINVAL));
    };
    match (clone.kind(), shadow) {
        (Kind::Thread, _) => {
            let fs = shadow.map(|shadow| shadow.program_fs.load(Ordering::Relaxed));
            // SAFETY: a stub has put the call there.
            Some(unsafe { guests::create(clone, clones::registers(at), fs.unwrap_or_else(shadow::fs_base)) })
        }
        // SAFETY: the program's call.
        (_, Some(shadow)) => Some(unsafe { make_process(call, at, &clone, shadow) }),
        (_, None) => None,
    }
}

/// Makes a child process of a guest. Its memory is always a copy: what a child of vfork(2) does in the time
/// till it executes a program would change the state that this library has of its parent.
unsafe fn make_process(call: &Words, at: *mut Words, clone: &Clone, shadow: &Shadow) -> c_long {
    let result = match is_plain(clone) {
        // SAFETY: a call of the program's, which holds nothing of this library.
        true => unsafe { libc::fork() }.into(),
        // SAFETY: the program's pointers.
        false => process::fork_by(|| unsafe { make_copy(call) }),
    };
    match result {
        -1 => return failed(last_errno().0),
        // SAFETY: the program's pointers.
        0 => unsafe { begin_process(at, clone, shadow) },
        child if is_plain(clone) && clone.has(libc::CLONE_PARENT_SETTID) => {
            // SAFETY: the program's pointer.
            unsafe { (clone.parent_number as *mut u32).write(child as u32) };
        }
        _ => {}
    }
    result
}

/// Does in a child what its clone(2) asks for, and what its parent has done for itself.
unsafe fn begin_process(at: *mut Words, clone: &Clone, shadow: &Shadow) {
    if clone.stack != 0 {
        // SAFETY: a stub has put the call there.
        unsafe { clones::set_stack(at, clone.stack) };
    }
    if clone.has(libc::CLONE_SETTLS) {
        shadow.program_fs.store(clone.memory, Ordering::Relaxed);
    }
    if clone.has(libc::CLONE_CHILD_SETTID) {
        // SAFETY: the program's pointer.
        unsafe { (clone.child_number as *mut u32).write(sys!(libc::SYS_gettid) as u32) };
    }
    let clears = clone.has(libc::CLONE_CHILD_CLEARTID);
    shadow.clear_at_end.store(if clears { clone.child_number } else { 0 }, Ordering::Relaxed);
    shadow.robust_list[0].store(0, Ordering::Relaxed);
    shadow.is_first.store(true, Ordering::Relaxed);
}

/// Returns whether a child is one that fork(3) of the C library makes, but for what is done here.
fn is_plain(clone: &Clone) -> bool {
    const DONE: c_int = libc::CLONE_SETTLS
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_SETTID
        | libc::CLONE_CHILD_CLEARTID;
    clone.signal == libc::SIGCHLD as u64 && clone.flags & !u64::from(DONE.cast_unsigned()) == 0
}

/// Makes the program's clone(2) or clone3(2), of a child with a copy of the memory, of the stack too. Returns
/// what the C library's syscall(2) does.
unsafe fn make_copy(call: &Words) -> c_long {
    let left_out = (libc::CLONE_VM | libc::CLONE_SETTLS).cast_unsigned();
    let [first, second, third, fourth, ..] = call.words;
    if call.number == libc::SYS_clone {
        let flags = first & !c_long::from(left_out);
        // SAFETY: the program's pointers.
        return unsafe { real::syscall(call.number, flags, 0, third, fourth, 0, 0) };
    }
    // SAFETY: it has been read before.
    let Some(mut words) = (unsafe { clones::arguments(first as *const u8, second as usize) }) else {
        return -1;
    };
    words[clones::FLAGS] &= !u64::from(left_out);
    (words[clones::STACK], words[clones::STACK_LEN], words[clones::MEMORY]) = (0, 0, 0);
    let len = (second as usize).min(size_of_val(&words));
    // SAFETY: the struct is valid while the call reads it.
    unsafe { sys!(libc::SYS_clone3, words.as_ptr().cast::<c_void>(), len) }
}
