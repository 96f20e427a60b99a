//! syscall(2): system calls by their numbers.
//!
//! libuv, liburing, Perl's `syscall` and others make calls by number that have a function in the C library,
//! which would go past the functions of this library: they are led to them. A call that has none, or does not
//! concern sockets, descriptors, children or handlers, is passed on.

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::mem;

use atoll_sockets::Errno;
use libc::sigaction;

use super::descriptors as d;
use super::files as f;
use super::limits as l;
use super::octets as o;
use super::positioned as p;
use super::processes as c;
use super::sockets as s;
use super::waiting as w;
use super::{fail, guests, handlers, users};
use crate::cancellation::without_cancellation;
use crate::confinement::confine;
use crate::dispatch::{Words, masks};
use crate::real::sys;
use crate::settings::settings;
use crate::stats::by_instruction;
use crate::table::reserved;
use crate::{process, real, shadow, urgent};

// linux/seccomp.h.
const SECCOMP_SET_MODE_STRICT: c_long = 0;
const SECCOMP_SET_MODE_FILTER: c_long = 1;

/// A system call: its number and its six words.
#[derive(Clone, Copy)]
struct Call {
    number: c_long,
    words: [c_long; 6],
}

impl Call {
    /// Returns a word as a number that the kernel takes 32 bits of.
    fn int(&self, at: usize) -> c_int {
        self.words[at] as c_int
    }

    fn unsigned(&self, at: usize) -> c_uint {
        self.words[at] as c_uint
    }

    fn size(&self, at: usize) -> usize {
        self.words[at] as usize
    }

    fn pointer<T>(&self, at: usize) -> *mut T {
        self.words[at] as *mut T
    }

    /// Makes the call.
    unsafe fn pass_on(&self) -> c_long {
        let [a, b, c, d, e, f] = self.words;
        // SAFETY: the caller's promise.
        unsafe { real::syscall(self.number, a, b, c, d, e, f) }
    }
}

// structure: syscall: syscall(2) has as many
/// Makes a system call, or what this library does in its place: syscall(2).
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    // SAFETY: passed on.
    unsafe { make(&Call { number, words: [a, b, c, d, e, f] }) }
}

/// Makes a call, or what this library does in its place.
unsafe fn make(call: &Call) -> c_long {
    // SAFETY: passed on; each family returns `None` for calls of others.
    unsafe {
        of_octets(call)
            .or_else(|| of_sockets(call))
            .or_else(|| of_descriptors(call))
            .or_else(|| of_waiting(call))
            .or_else(|| of_processes(call))
            .or_else(|| of_privileges(call))
            .or_else(|| of_files(call))
            .unwrap_or_else(|| {
                reserved::give_back();
                call.pass_on()
            })
    }
}

/// Carries out a system call that was dispatched, and returns what the kernel would: a negative errno if it
/// fails. The C library's errno stays as it is.
///
/// # Safety
/// As for the system call, which is where a stub of [`crate::dispatch`] has put it.
pub unsafe fn carry_out(call: *mut Words) -> c_long {
    // SAFETY: a valid thread-local of the C library.
    let errno = unsafe { &mut *libc::__errno_location() };
    let before = mem::replace(errno, 0);
    // SAFETY: the caller's promise.
    let result = without_cancellation(|| unsafe {
        let mut changed = call.read();
        if let Some(result) = guests::make(&mut changed, call) {
            // It is what the kernel would return already.
            *libc::__errno_location() = 0;
            return result;
        }
        by_instruction(|| make(&Call { number: changed.number, words: changed.words }))
    });
    match mem::replace(errno, before) {
        0 => result,
        failed if result == -1 => (-failed).into(),
        _ => result,
    }
}

unsafe fn of_octets(call: &Call) -> Option<c_long> {
    let (fd, n) = (call.int(0), call);
    // SAFETY: the words are what the kernel's call of this number takes.
    let result = unsafe {
        match call.number {
            libc::SYS_read => o::read(fd, n.pointer(1), n.size(2)),
            libc::SYS_write => o::write(fd, n.pointer::<c_void>(1), n.size(2)),
            libc::SYS_readv => o::readv(fd, n.pointer(1), n.int(2)),
            libc::SYS_writev => o::writev(fd, n.pointer(1), n.int(2)),
            // The fifth word would be the upper half of the position on a system of 32 bits.
            libc::SYS_preadv2 => p::preadv2(fd, n.pointer(1), n.int(2), n.words[3], n.int(5)),
            libc::SYS_pwritev2 => p::pwritev2(fd, n.pointer(1), n.int(2), n.words[3], n.int(5)),
            libc::SYS_recvfrom => {
                o::recvfrom(fd, n.pointer(1), n.size(2), n.int(3), n.pointer(4), n.pointer(5))
            }
            libc::SYS_sendto => {
                o::sendto(fd, n.pointer::<c_void>(1), n.size(2), n.int(3), n.pointer(4), n.unsigned(5))
            }
            libc::SYS_recvmsg => o::recvmsg(fd, n.pointer(1), n.int(2)),
            libc::SYS_sendmsg => o::sendmsg(fd, n.pointer(1), n.int(2)),
            libc::SYS_recvmmsg => {
                o::recvmmsg(fd, n.pointer(1), n.unsigned(2), n.int(3), n.pointer(4)) as isize
            }
            libc::SYS_sendmmsg => o::sendmmsg(fd, n.pointer(1), n.unsigned(2), n.int(3)) as isize,
            libc::SYS_sendfile => o::sendfile(fd, n.int(1), n.pointer(2), n.size(3)),
            libc::SYS_splice => o::splice(fd, n.pointer(1), n.int(2), n.pointer(3), n.size(4), n.unsigned(5)),
            _ => return None,
        }
    };
    Some(result as c_long)
}

/// Makes the calls that change who this process is, or what it sees of the file system.
unsafe fn of_privileges(call: &Call) -> Option<c_long> {
    let n = call;
    // SAFETY: the words are what the kernel's call of this number takes.
    let result = unsafe {
        match call.number {
            libc::SYS_chroot => c::chroot(n.pointer(0)).into(),
            // The C library has no function for it.
            libc::SYS_pivot_root => {
                crate::supervisor::keep_connection();
                n.pass_on()
            }
            libc::SYS_unshare => c::unshare(n.int(0)).into(),
            libc::SYS_setns => c::setns(n.int(0), n.int(1)).into(),
            // The C library's functions change all threads, the system calls one.
            libc::SYS_setuid | libc::SYS_setreuid | libc::SYS_setresuid => {
                users::before_change();
                let result = n.pass_on();
                urgent::renew_watch();
                result
            }
            libc::SYS_setgid | libc::SYS_setregid | libc::SYS_setresgid | libc::SYS_setgroups => {
                let result = n.pass_on();
                urgent::renew_watch();
                result
            }
            libc::SYS_capset => users::capset(n.pointer(0), n.pointer(1)).into(),
            _ => return None,
        }
    };
    Some(result)
}

unsafe fn of_files(call: &Call) -> Option<c_long> {
    let n = call;
    // SAFETY: the words are what the kernel's call of this number takes.
    let result = unsafe {
        match call.number {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => f::open(n.pointer::<c_char>(0), n.int(1), n.unsigned(2)),
            libc::SYS_openat => f::openat(n.int(0), n.pointer::<c_char>(1), n.int(2), n.unsigned(3)),
            _ => return None,
        }
    };
    Some(result.into())
}

unsafe fn of_sockets(call: &Call) -> Option<c_long> {
    let (fd, n) = (call.int(0), call);
    // SAFETY: the words are what the kernel's call of this number takes.
    let result = unsafe {
        match call.number {
            libc::SYS_socket => s::socket(fd, n.int(1), n.int(2)),
            libc::SYS_bind => s::bind(fd, n.pointer(1), n.unsigned(2)),
            libc::SYS_listen => s::listen(fd, n.int(1)),
            libc::SYS_accept => s::accept(fd, n.pointer(1), n.pointer(2)),
            libc::SYS_accept4 => s::accept4(fd, n.pointer(1), n.pointer(2), n.int(3)),
            libc::SYS_connect => s::connect(fd, n.pointer(1), n.unsigned(2)),
            libc::SYS_getsockname => s::getsockname(fd, n.pointer(1), n.pointer(2)),
            libc::SYS_getpeername => s::getpeername(fd, n.pointer(1), n.pointer(2)),
            libc::SYS_getsockopt => s::getsockopt(fd, n.int(1), n.int(2), n.pointer(3), n.pointer(4)),
            libc::SYS_setsockopt => {
                s::setsockopt(fd, n.int(1), n.int(2), n.pointer::<c_void>(3), n.unsigned(4))
            }
            libc::SYS_shutdown => s::shutdown(fd, n.int(1)),
            _ => return None,
        }
    };
    Some(result.into())
}

unsafe fn of_descriptors(call: &Call) -> Option<c_long> {
    let (fd, n) = (call.int(0), call);
    // SAFETY: the words are what the kernel's call of this number takes.
    let result = unsafe {
        match call.number {
            libc::SYS_close => d::close(fd),
            libc::SYS_close_range => d::close_range(n.unsigned(0), n.unsigned(1), n.int(2)),
            libc::SYS_dup => d::dup(fd),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => d::dup2(fd, n.int(1)),
            libc::SYS_dup3 => d::dup3(fd, n.int(1), n.int(2)),
            libc::SYS_fcntl => d::fcntl(fd, n.int(1), n.pointer(2)),
            libc::SYS_pidfd_getfd => d::pidfd_getfd(fd, n.int(1), n.unsigned(2)),
            libc::SYS_ioctl => d::ioctl(fd, n.words[1] as c_ulong, n.pointer(2)),
            _ => return None,
        }
    };
    Some(result.into())
}

/// The last argument of pselect6(2).
#[repr(C)]
struct MaskOfSelect {
    mask: *const libc::sigset_t,
    len: usize,
}

unsafe fn of_waiting(call: &Call) -> Option<c_long> {
    let (fd, n) = (call.int(0), call);
    // SAFETY: the words are what the kernel's call of this number takes. The kernel's signal set is the begin
    // of the C library's, and no more of it is looked at.
    let result = unsafe {
        match call.number {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => w::poll(n.pointer(0), n.words[1] as c_ulong, n.int(2)),
            libc::SYS_ppoll => w::ppoll(n.pointer(0), n.words[1] as c_ulong, n.pointer(2), n.pointer(3)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => w::select(fd, n.pointer(1), n.pointer(2), n.pointer(3), n.pointer(4)),
            libc::SYS_pselect6 => {
                let mask = n.pointer::<MaskOfSelect>(5).as_ref().map_or(std::ptr::null(), |last| last.mask);
                w::pselect(fd, n.pointer(1), n.pointer(2), n.pointer(3), n.pointer(4), mask)
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create => w::epoll_create(fd),
            libc::SYS_epoll_create1 => w::epoll_create1(fd),
            libc::SYS_epoll_ctl => w::epoll_ctl(fd, n.int(1), n.int(2), n.pointer(3)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => w::epoll_wait(fd, n.pointer(1), n.int(2), n.int(3)),
            libc::SYS_epoll_pwait => w::epoll_pwait(fd, n.pointer(1), n.int(2), n.int(3), n.pointer(4)),
            libc::SYS_epoll_pwait2 => w::epoll_pwait2(fd, n.pointer(1), n.int(2), n.pointer(3), n.pointer(4)),
            // Rings know nothing of Atoll's sockets: a program that is told that there are none goes on with
            // calls (libuv, and all that asks liburing whether it works).
            libc::SYS_io_uring_setup if settings().socket.is_some() => fail(Errno(libc::ENOSYS)),
            _ => return None,
        }
    };
    Some(result.into())
}

unsafe fn of_processes(call: &Call) -> Option<c_long> {
    let n = call;
    // SAFETY: the words are what the kernel's call of this number takes.
    let result = unsafe {
        match call.number {
            // A vfork cannot return twice through this function.
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork | libc::SYS_vfork => libc::fork().into(),
            libc::SYS_clone if is_a_fork(n.words[0], n.words[1]) => process::fork_by(|| n.pass_on()),
            // A vfork: the parent waits, and the child has memory of its own.
            libc::SYS_clone if is_a_vfork(n.words[0], n.words[1]) => {
                let [flags, stack, a, b, c, d] = n.words;
                let words = [flags & !c_long::from(libc::CLONE_VM), stack, a, b, c, d];
                process::fork_by(|| Call { number: n.number, words }.pass_on())
            }
            libc::SYS_clone3 => {
                let flags = n.pointer::<u64>(0).as_ref().map_or(0, |flags| *flags);
                // struct clone_args: the stack is the sixth word.
                let stack = if n.size(1) >= 64 && flags != 0 { *n.pointer::<u64>(0).add(5) } else { 0 };
                if n.size(1) < 64 {
                    return None;
                }
                if is_a_fork(flags as c_long, stack as c_long) {
                    return Some(process::fork_by(|| n.pass_on()));
                }
                if !is_a_vfork(flags as c_long, stack as c_long) {
                    return None;
                }
                fork_by_clone3(n)
            }
            libc::SYS_execve => c::execve(n.pointer(0), n.pointer(1), n.pointer(2)).into(),
            libc::SYS_execveat => {
                c::execveat(n.int(0), n.pointer(1), n.pointer(2), n.pointer(3), n.int(4)).into()
            }
            libc::SYS_rt_sigprocmask if n.size(3) == 8 => {
                change_mask(n.int(0), n.pointer(1), n.pointer(2)).into()
            }
            libc::SYS_sigaltstack => handlers::sigaltstack(n.pointer(0), n.pointer(1)).into(),
            // The C library keeps two signals for itself, but in a guest.
            libc::SYS_rt_sigaction
                if n.size(3) == 8 && (![32, 33].contains(&n.int(0)) || shadow::current().is_some()) =>
            {
                set_action(n.int(0), n.pointer(1), n.pointer(2)).into()
            }
            libc::SYS_prctl => {
                c::prctl(n.int(0), n.words[1] as _, n.words[2] as _, n.words[3] as _, n.words[4] as _).into()
            }
            libc::SYS_seccomp => {
                let result = n.pass_on();
                // It may return the number of a descriptor, or of a thread that is in the way.
                if matches!(n.words[0], SECCOMP_SET_MODE_STRICT | SECCOMP_SET_MODE_FILTER) && result >= 0 {
                    confine();
                }
                result
            }
            libc::SYS_getrlimit => l::getrlimit(n.int(0), n.pointer(1)).into(),
            libc::SYS_setrlimit => l::setrlimit(n.int(0), n.pointer(1)).into(),
            libc::SYS_prlimit64 => l::prlimit(n.int(0), n.int(1), n.pointer(2), n.pointer(3)).into(),
            libc::SYS_mlockall => l::mlockall(n.int(0)).into(),
            _ => return None,
        }
    };
    Some(result)
}

/// Returns whether a clone(2) makes a process with memory of its own, which goes on where its parent does.
fn is_a_fork(flags: c_long, stack: c_long) -> bool {
    flags & c_long::from(libc::CLONE_VM) == 0 && stack == 0
}

/// Returns whether a clone(2) makes a process that shares the memory and the stack until it executes a
/// program or ends. Its return address would be overwritten before the parent returns.
fn is_a_vfork(flags: c_long, stack: c_long) -> bool {
    let both = c_long::from(libc::CLONE_VM | libc::CLONE_VFORK);
    flags & both == both && stack == 0
}

/// Makes a clone3(2) that is a vfork with a child that has memory of its own.
unsafe fn fork_by_clone3(call: &Call) -> c_long {
    let mut words = [0u64; 16];
    let len = call.size(1).min(size_of_val(&words));
    // SAFETY: the program's struct is as long as it says.
    unsafe { std::ptr::copy_nonoverlapping(call.pointer::<u8>(0), words.as_mut_ptr().cast::<u8>(), len) };
    words[0] &= !(libc::CLONE_VM as u64);
    let [.., a, b, c, d] = call.words;
    let words = [words.as_ptr() as c_long, len as c_long, a, b, c, d];
    // SAFETY: the struct is valid while the call reads it.
    process::fork_by(|| unsafe { Call { number: call.number, words }.pass_on() })
}

/// Makes an rt_sigprocmask(2) by number.
unsafe fn change_mask(how: c_int, set: *const u64, old: *mut u64) -> c_int {
    let make = |set: *const u64| {
        let mut before = 0u64;
        // SAFETY: two masks of the kernel's size, or null.
        let result = unsafe { sys!(libc::SYS_rt_sigprocmask, how, set, &raw mut before, 8) };
        (result == 0).then_some(before)
    };
    // SAFETY: the program's mask.
    let Some(before) = (unsafe { masks::change(how, set, make) }) else { return -1 };
    // SAFETY: null or the program's.
    if let Some(old) = unsafe { old.as_mut() } {
        *old = before;
    }
    0
}

/// struct sigaction as the kernel has it.
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: c_ulong,
    restorer: usize,
    mask: u64,
}

unsafe fn set_action(signal: c_int, new: *const KernelAction, old: *mut KernelAction) -> c_int {
    // SAFETY: all-zero is a valid value.
    let (mut action, mut before): (sigaction, sigaction) = unsafe { mem::zeroed() };
    // SAFETY: null or the program's.
    if let Some(new) = unsafe { new.as_ref() } {
        (action.sa_sigaction, action.sa_flags) = (new.handler, new.flags as c_int);
        // SAFETY: the C library's set is longer.
        unsafe { (&raw mut action.sa_mask).cast::<u64>().write(new.mask) };
    }
    let wanted = if new.is_null() { std::ptr::null() } else { &raw const action };
    // SAFETY: valid, or null.
    let result = unsafe { handlers::sigaction(signal, wanted, &raw mut before) };
    // SAFETY: null or the program's.
    if let Some(old) = unsafe { old.as_mut() }.filter(|_| result == 0) {
        // SAFETY: the C library's set is longer.
        let mask = unsafe { (&raw const before.sa_mask).cast::<u64>().read() };
        let flags = before.sa_flags as c_ulong;
        *old = KernelAction { handler: before.sa_sigaction, flags, restorer: 0, mask };
    }
    result
}
