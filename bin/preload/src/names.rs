//! System calls that the C library makes by itself while it looks up names: getaddrinfo(3) and its kin.
//!
//! Its resolver calls the kernel past the C library's own symbols. So while a thread is in such a function,
//! the kernel turns each of its system calls into a SIGSYS (Syscall User Dispatch, prctl(2)), whose handler
//! does what `syscall(2)` of this library does ([`crate::symbols`]):
//!
//! ```text
//!   getaddrinfo       a function of the library: switches dispatch on, and sets the selector to BLOCK
//!     socket(2) ...   in the C library: SIGSYS
//!       trap          sets the selector to ALLOW, makes the call on the stack, writes its result into the
//!                     interrupted registers, sets the selector to BLOCK
//!       RETURN        rt_sigreturn by an instruction of the library's own, the only one that is let through
//!   ...               switches dispatch off
//! ```
//! A signal whose handler is the program's is put off while the selector is BLOCK, which is for microseconds
//! at a time, until the next such call; it then runs while the selector is ALLOW, and may call anything. A
//! handler that leaves by siglongjmp(3) leaves dispatch switched on with the selector ALLOW, which does
//! nothing.

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_void};
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::{siginfo_t, ucontext_t};

use crate::confinement::is_confined;
use crate::real::{last_errno, sys};
use crate::settings::settings;
use crate::signals::{bit, release_signals};

// linux/prctl.h.
const PR_SET_SYSCALL_USER_DISPATCH: c_int = 59;
const PR_SYS_DISPATCH_OFF: c_long = 0;
const PR_SYS_DISPATCH_ON: c_long = 1;
/// The values of the selector.
const ALLOW: u8 = 0;
const BLOCK: u8 = 1;

/// The code of a SIGSYS that dispatch causes: asm-generic/siginfo.h.
const SYS_USER_DISPATCH: c_int = 2;

/// The offset, in [`give_back`], of the instruction after `syscall`, where the kernel says that the call was
/// made.
const GATE: usize = 9;

/// A call as the trap carries it out: its number and its six words. Returns -1 with errno set if it fails.
pub type Calls = unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;

/// A signal handler.
pub type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// What [`install`] was given, before the first trap.
static CALLS: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static OTHER: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// What a thread has of a look-up.
struct Lookup {
    /// The kernel reads it at each system call of the thread.
    selector: Cell<u8>,
    /// The signal mask to restore, if a signal was put off.
    mask: Cell<Option<u64>>,
    /// Whether the thread is in a look-up; it stays if a handler leaves that by siglongjmp(3).
    is_under_way: Cell<bool>,
}

thread_local! {
    static LOOKUP: Lookup = const {
        Lookup { selector: Cell::new(ALLOW), mask: Cell::new(None), is_under_way: Cell::new(false) }
    };
}

/// Whether SIGSYS comes to [`trap`].
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

/// Returns whether SIGSYS comes to this library, whatever the program wants of it.
pub fn owns_sigsys() -> bool {
    IS_INSTALLED.load(Ordering::Acquire)
}

// ---- dispatch ----

/// Returns from a signal handler: rt_sigreturn(2). Its octets are those of the C library's function, by which
/// unwinders know a signal's frame.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn give_back() {
    core::arch::naked_asm!(
        ".byte 0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00", // mov rax, SYS_rt_sigreturn
        "syscall",
        "ud2",
    )
}

/// struct sigaction as the kernel has it.
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// Makes SIGSYS come to [`trap`], for good: `calls` makes system calls, `other` handles the signal if
/// something else has caused it. One thread at a time is here. Returns false if the kernel refuses.
pub fn install(calls: Calls, other: Handler) -> bool {
    const SA_RESTORER: u64 = 0x0400_0000;
    CALLS.store(calls as *mut c_void, Ordering::Relaxed);
    OTHER.store(other as *mut c_void, Ordering::Relaxed);
    let flags = (libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART) as u64 | SA_RESTORER;
    let (handler, restorer) = (trap as *const () as usize, give_back as *const () as usize);
    let action = KernelAction { handler, flags, restorer, mask: 0 };
    let nothing = std::ptr::null_mut::<KernelAction>();
    // SAFETY: a valid action; 8 is the size of the kernel's mask.
    let result = unsafe { sys!(libc::SYS_rt_sigaction, libc::SIGSYS, &raw const action, nothing, 8) };
    IS_INSTALLED.store(result == 0, Ordering::Release);
    result == 0
}

/// Returns whether this thread looks up a name. What fails then is for the C library to judge: it connects to
/// each address that it finds, for example, to see which of them can be reached (RFC 6724).
pub fn is_looking_up() -> bool {
    LOOKUP.with(|lookup| lookup.is_under_way.get())
}

/// Returns whether names are to be looked up over the stack, in this thread.
fn is_wanted() -> bool {
    settings().socket.is_some() && !is_confined() && !is_valgrind()
}

/// Returns whether valgrind(1) runs this program: its own system calls would be dispatched as well. This is
/// its client request RUNNING_ON_VALGRIND, which does nothing elsewhere.
#[cfg(target_arch = "x86_64")]
fn is_valgrind() -> bool {
    let request = [0x1001u64, 0, 0, 0, 0, 0];
    let mut answer = 0u64;
    // SAFETY: rotates a register by 128 bits in all, and exchanges one with itself.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            inout("rdx") answer, in("rax") request.as_ptr(), out("rdi") _,
        );
    }
    answer != 0
}

unsafe fn dispatch(mode: c_long, offset: usize, len: usize, selector: *mut u8) -> bool {
    // SAFETY: the caller's promise: the selector lives as long as the thread.
    unsafe { sys!(libc::SYS_prctl, PR_SET_SYSCALL_USER_DISPATCH, mode, offset, len, selector) == 0 }
}

/// Runs `look_up`, a function of the C library, so that its system calls come to this library. `install`
/// makes SIGSYS do so, and returns whether that works.
pub fn on_the_stack<R>(install: impl FnOnce() -> bool, look_up: impl FnOnce() -> R) -> R {
    let is_inside = LOOKUP.with(|lookup| lookup.selector.get() == BLOCK);
    if is_inside || !is_wanted() || !install() {
        return look_up();
    }
    let mut before = 0u64;
    let own = bit(libc::SIGSYS);
    // SAFETY: two masks of the kernel's size, 8.
    unsafe { sys!(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const own, &raw mut before, 8) };
    let selector = LOOKUP.with(|lookup| lookup.selector.as_ptr());
    let gate = give_back as *const () as usize + GATE;
    // SAFETY: a thread-local variable, which needs no destructor.
    let is_on = unsafe { dispatch(PR_SYS_DISPATCH_ON, gate, 1, selector) };
    if is_on {
        LOOKUP.with(|lookup| {
            lookup.is_under_way.set(true);
            lookup.selector.set(BLOCK);
        });
    }
    let result = look_up();
    LOOKUP.with(|lookup| {
        lookup.selector.set(ALLOW);
        lookup.is_under_way.set(false);
    });
    let errno = last_errno();
    if is_on {
        // SAFETY: no selector is named.
        unsafe { dispatch(PR_SYS_DISPATCH_OFF, 0, 0, std::ptr::null_mut()) };
    }
    if before & own != 0 {
        release_signals(before);
    }
    run_late_handlers();
    // SAFETY: a valid thread-local of the C library.
    unsafe { *libc::__errno_location() = errno.0 };
    result
}

/// Lets the signals be delivered that were put off.
fn run_late_handlers() {
    if let Some(mask) = LOOKUP.with(|lookup| lookup.mask.take()) {
        release_signals(mask);
    }
}

// ---- signals ----

/// Handles SIGSYS: makes the system call that this thread was about to make.
unsafe extern "C" fn trap(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's arguments.
    if unsafe { (*info).si_code } != SYS_USER_DISPATCH {
        // SAFETY: a function of this type, stored by `install`.
        let other: Handler = unsafe { mem::transmute(OTHER.load(Ordering::Relaxed)) };
        // SAFETY: as above.
        return unsafe { other(signal, info, context) };
    }
    let errno = LOOKUP.with(|lookup| {
        lookup.selector.set(ALLOW);
        last_errno()
    });
    // SAFETY: as above.
    let context = unsafe { &mut *context.cast::<ucontext_t>() };
    // A handler that was put off returns to the function that it interrupted first.
    let returns = context.uc_mcontext.gregs[libc::REG_RAX as usize] == libc::SYS_rt_sigreturn;
    if let Some(mask) = LOOKUP.with(|lookup| if returns { None } else { lookup.mask.take() }) {
        // SAFETY: the kernel's mask is the first word of the C library's.
        unsafe { (&raw mut context.uc_sigmask).cast::<u64>().write(mask) };
        release_signals(mask & !bit(libc::SIGSYS));
    }
    // SAFETY: the registers of a thread that was about to make a system call.
    let goes_on = unsafe { carry_out(&mut context.uc_mcontext.gregs) };
    // SAFETY: a valid thread-local of the C library.
    unsafe { *libc::__errno_location() = errno.0 };
    if goes_on {
        LOOKUP.with(|lookup| lookup.selector.set(BLOCK));
    }
}

/// Makes the system call that the registers describe. Returns false if it is to be made where it stands, and
/// dispatch ends with it: a call that makes a process or a thread, or does not return.
unsafe fn carry_out(registers: &mut [i64; 23]) -> bool {
    const LEN: i64 = 2; // of `syscall`
    let at = |register: c_int| registers[register as usize];
    let words = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9];
    let [a, b, c, d, e, f] = words.map(at);
    let number = at(libc::REG_RAX);
    let result = match number {
        libc::SYS_rt_sigreturn => {
            registers[libc::REG_RIP as usize] = give_back as *const () as usize as i64;
            return true;
        }
        libc::SYS_fork | libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3 => {
            registers[libc::REG_RIP as usize] -= LEN;
            return false;
        }
        libc::SYS_execve | libc::SYS_execveat | libc::SYS_exit | libc::SYS_exit_group => {
            registers[libc::REG_RIP as usize] -= LEN;
            return false;
        }
        // SIGSYS stays unblocked, or the next call would end the process.
        libc::SYS_rt_sigprocmask if a as c_int != libc::SIG_UNBLOCK && b != 0 && d == 8 => {
            // SAFETY: the C library's set.
            let set = unsafe { (b as *const u64).read_unaligned() } & !bit(libc::SIGSYS);
            // SAFETY: as above.
            unsafe { sys!(number, a, &raw const set, c, d) }
        }
        _ => {
            // SAFETY: a function of this type, stored by `install`.
            let calls: Calls = unsafe { mem::transmute(CALLS.load(Ordering::Relaxed)) };
            // SAFETY: the words are what the C library gives to this call.
            unsafe { calls(number, a, b, c, d, e, f) }
        }
    };
    registers[libc::REG_RAX as usize] = if result == -1 { -i64::from(last_errno().0) } else { result };
    true
}

/// Returns whether a signal has interrupted a look-up where its handler must not run, because the calls of
/// that would come to the trap. None of this thread's do until [`go_on`]; not at all, if that is not called.
pub fn pause() -> bool {
    LOOKUP.with(|lookup| lookup.selector.replace(ALLOW) == BLOCK)
}

/// Goes on with a look-up after [`pause`]. `mask` is restored, and so the handler runs, at its next call.
pub fn go_on(mask: u64) {
    LOOKUP.with(|lookup| {
        lookup.mask.set(Some(lookup.mask.get().unwrap_or(mask)));
        lookup.selector.set(BLOCK);
    });
}
