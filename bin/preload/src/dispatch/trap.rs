//! The handler of SIGSYS: decides what becomes of a trapped system call, and sends the thread to a stub.
//!
//! It makes nothing itself. When the kernel returns from it, the signal's frame is gone, and the call is made
//! or carried out in the program's context: signals interrupt and restart it as they would otherwise.

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use atoll_base::KernelNetwork;
use libc::{siginfo_t, ucontext_t};

use super::clones::{Clone, Kind};
use super::{PROGRAM_DISPATCHES, Words, guests, leave_behind, masks, segment_around, stacks, stubs, threads};
use crate::instruction::{INSTRUCTION, direct};
use crate::settings::settings;
use crate::shadow::{self, ANY, LIBRARY_FS, PROGRAM_FS, SHADOWS, SHADOWS_LEN, Shadow};
use crate::table::{Fd, lookup};
use crate::thread::{self, way};
use crate::{handlers, netlink_end};

// asm-generic/siginfo.h: the call was dispatched.
const SYS_USER_DISPATCH: c_int = 2;
// linux/audit.h.
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
// asm/prctl.h.
const ARCH_SET_FS: c_long = 0x1002;
// linux/sched.h: struct clone_args.
const CLONE_ARGS_MIN: usize = 64;
const CLONE_ARGS_MAX: usize = 128;
const STACK_WORD: usize = 5;

/// struct sigaction as the kernel has it.
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

const SA_RESTORER: u64 = 0x0400_0000;

/// This library's text.
static OUR_TEXT: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Returns whether an instruction is this library's own (of rustix, which makes system calls itself).
fn is_our_own(address: usize) -> bool {
    let [start, end] = [&OUR_TEXT[0], &OUR_TEXT[1]].map(|bound| bound.load(Ordering::Relaxed));
    (start..end).contains(&address)
}

/// Lets SIGSYS come here. Returns false if that fails.
pub fn install() -> bool {
    let ours = segment_around(enter as *const () as usize);
    OUR_TEXT[0].store(ours.start, Ordering::Relaxed);
    OUR_TEXT[1].store(ours.end, Ordering::Relaxed);
    let flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK | libc::SA_RESTART;
    let faults = handlers::FAULTS.iter().fold(0, |faults, fault| faults | crate::signals::bit(*fault));
    set_action(&KernelAction {
        handler: enter as *const () as usize,
        flags: flags as u64 | SA_RESTORER,
        restorer: stubs::restore as *const () as usize,
        mask: !faults,
    })
}

/// Lets SIGSYS end the process again.
pub fn uninstall() {
    set_action(&KernelAction { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 });
}

fn set_action(action: &KernelAction) -> bool {
    let words = [libc::SIGSYS.into(), std::ptr::from_ref(action) as c_long, 0, 8, 0, 0];
    // SAFETY: the kernel's struct and the size of its mask.
    unsafe { direct(libc::SYS_rt_sigaction, words) == 0 }
}

/// Is called by the kernel for SIGSYS. It jumps to the program's handler if that is to run, and returns
/// otherwise.
#[unsafe(naked)]
unsafe extern "C" fn enter(_signal: c_int, _info: *mut siginfo_t, _context: *mut c_void) {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx", // aligns the stack as well
        "cmp byte ptr [rip + {any}], 0",
        "jne 4f",
        "3: call {sort}",
        "5: pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2: ret",
        "4: rdgsbase rcx", // the kernel restores all registers when this returns
        "lea r8, [rip + {shadows}]",
        "mov rax, rcx",
        "sub rax, r8",
        "cmp rax, {shadows_len}",
        "jae 3b",
        "rdfsbase r8",
        "mov rax, [rcx + {library_fs}]",
        "cmp r8, rax",
        "je 6f",
        "mov [rcx + {program_fs}], r8",
        "wrfsbase rax",
        "6: call {sort_of_guest}",
        "wrfsbase rdx",
        "jmp 5b",
        sort = sym sort,
        sort_of_guest = sym sort_of_guest,
        any = sym ANY,
        shadows = sym SHADOWS,
        shadows_len = const SHADOWS_LEN,
        library_fs = const LIBRARY_FS,
        program_fs = const PROGRAM_FS,
    )
}

/// Where a thread goes on after its trap, or 0 for where the context says, and with which FS base.
#[repr(C)]
struct GoOn(usize, usize);

/// Decides about a SIGSYS of a guest, which came while the FS base was `fs`. The library's is in force now.
unsafe extern "C" fn sort_of_guest(
    _signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
    shadow: &Shadow,
    fs: usize,
) -> GoOn {
    // SAFETY: the kernel's arguments.
    let (code, context) = unsafe { ((*info).si_code, &mut *context.cast::<ucontext_t>()) };
    if code != SYS_USER_DISPATCH {
        return GoOn(handlers::sigsys(code), fs);
    }
    let mut registers = Registers(context);
    // SAFETY: as in `sort`.
    if unsafe { info.cast::<u32>().add(7).read() } != AUDIT_ARCH_X86_64 {
        registers.answer((-libc::ENOSYS).into());
        return GoOn(0, fs);
    }
    if fs == shadow.library_fs.load(Ordering::Relaxed) {
        registers.go_to(stubs::pass_on, 0);
        return GoOn(0, fs);
    }
    // SAFETY: a trapped call.
    let is_carried = unsafe { sort_call_of_guest(&mut registers, shadow) };
    let fs = if is_carried { &shadow.library_fs } else { &shadow.program_fs };
    GoOn(0, fs.load(Ordering::Relaxed))
}

/// Sends a call of a guest on its way. Returns whether it is carried out by the library.
unsafe fn sort_call_of_guest(registers: &mut Registers<'_>, shadow: &Shadow) -> bool {
    let number = registers.number();
    match number {
        libc::SYS_rt_sigreturn => registers.set(libc::REG_RIP, INSTRUCTION.load(Ordering::Relaxed) as usize),
        // SAFETY: the program's masks.
        libc::SYS_rt_sigprocmask => unsafe { registers.change_mask(false) },
        libc::SYS_arch_prctl => {
            let (option, word) = (registers.get(libc::REG_RDI), registers.get(libc::REG_RSI));
            // SAFETY: the program's pointer.
            match unsafe { guests::arch_prctl(shadow, option, word as usize) } {
                Some(result) => registers.answer(result),
                None => registers.go_to(stubs::pass_on, 0),
            }
        }
        // SAFETY: the program's arguments.
        libc::SYS_clone | libc::SYS_clone3 if unsafe { kind_of(registers) == Kind::Other } => {
            // SAFETY: as above.
            if unsafe { !make_thread(registers) } {
                registers.go_to(stubs::pass_on, 0);
            }
        }
        // SAFETY: the program's arguments.
        _ if guests::concerns_us(number) || unsafe { concerns_us(number, registers) } => {
            let sp = registers.get(libc::REG_RSP) as usize;
            let stack = stacks::choose_of_guest(shadow, sp, &registers.0.uc_stack);
            registers.carry_out(stubs::carry_out_of_guest, stack);
            return true;
        }
        _ => registers.go_to(stubs::pass_on, 0),
    }
    false
}

/// Decides about a SIGSYS. Returns the function to go on in, or 0 to return to where the context says.
unsafe extern "C" fn sort(_signal: c_int, info: *mut siginfo_t, context: *mut c_void) -> usize {
    // SAFETY: the kernel's arguments.
    let (code, context) = unsafe { ((*info).si_code, &mut *context.cast::<ucontext_t>()) };
    if code != SYS_USER_DISPATCH {
        return handlers::sigsys(code);
    }
    let mut registers = Registers(context);
    // SAFETY: the eighth word of what the kernel says of a SIGSYS is the architecture.
    if unsafe { info.cast::<u32>().add(7).read() } != AUDIT_ARCH_X86_64 {
        // A call as 32-bit programs make it has other numbers, which could not be made again from here.
        registers.answer((-libc::ENOSYS).into());
        return 0;
    }
    if is_our_own(registers.get(libc::REG_RIP) as usize) {
        registers.go_to(stubs::pass_on, 0);
        return 0;
    }
    if threads::is_other() {
        // SAFETY: a trapped call.
        unsafe { sort_of_other(registers) };
        return 0;
    }
    if PROGRAM_DISPATCHES.load(Ordering::Relaxed) && handlers::has_sigsys() {
        return handlers::sigsys(code);
    }
    let sp = registers.get(libc::REG_RSP) as usize;
    if !stacks::is_on(sp, &registers.0.uc_stack) {
        leave_behind(sp);
    }
    // SAFETY: a trapped call.
    unsafe { sort_call(registers) };
    0
}

/// The registers of a thread at a trapped call.
struct Registers<'a>(&'a mut ucontext_t);

impl Registers<'_> {
    fn get(&self, register: c_int) -> c_long {
        self.0.uc_mcontext.gregs[register as usize]
    }

    fn set(&mut self, register: c_int, value: usize) {
        self.0.uc_mcontext.gregs[register as usize] = value as c_long;
    }

    fn number(&self) -> c_long {
        self.get(libc::REG_RAX)
    }

    /// Goes on in a stub, which finds `extra` in `r11`.
    fn go_to(&mut self, stub: unsafe extern "C" fn(), extra: usize) {
        self.set(libc::REG_RCX, self.get(libc::REG_RIP) as usize);
        self.set(libc::REG_R11, extra);
        self.set(libc::REG_RIP, stub as *const () as usize);
    }

    /// Goes on in a stub that carries the call out on a stack.
    fn carry_out(&mut self, stub: unsafe extern "C" fn(), stack: usize) {
        thread::current().way.set(way::TRAP);
        self.go_to(stub, stack);
    }

    /// Returns the call.
    fn call(&self) -> Words {
        let registers =
            [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9];
        Words { number: self.number(), words: registers.map(|register| self.get(register)) }
    }

    fn answer(&mut self, result: c_long) {
        self.set(libc::REG_RAX, result as usize);
    }

    /// Changes the signal mask that is in force when the handler returns.
    unsafe fn change_mask(&mut self, is_other: bool) {
        if self.get(libc::REG_R10) != 8 {
            return self.answer((-libc::EINVAL).into());
        }
        let how = self.get(libc::REG_RDI) as c_int;
        let (set, old) = (self.get(libc::REG_RSI) as *const u64, self.get(libc::REG_RDX) as *mut u64);
        let mask = (&raw mut self.0.uc_sigmask).cast::<u64>();
        // SAFETY: the kernel's mask is the first word of the C library's; the program's masks.
        let result = unsafe { masks::change_trapped(&mut *mask, how, set, old, is_other) };
        self.answer(result.into());
    }
}

/// Returns what a clone(2) makes.
unsafe fn kind_of(registers: &Registers<'_>) -> Kind {
    // SAFETY: the program's arguments.
    unsafe { Clone::read(&registers.call()) }.map_or(Kind::Process, |clone| clone.kind())
}

/// Goes on with a clone(2) of a thread of the C library's if the child shares the memory, and cannot be a
/// guest. Returns false for others.
unsafe fn makes_other(registers: &mut Registers<'_>) -> bool {
    // SAFETY: the program's arguments.
    let is_thread = unsafe { kind_of(registers) == Kind::Thread };
    let makes_guest = is_thread && shadow::is_possible() && !shadow::is_gs_in_use();
    // SAFETY: as above.
    !makes_guest && unsafe { make_thread(registers) }
}

/// Sends a call of a thread of the C library's on its way.
unsafe fn sort_call(mut registers: Registers<'_>) {
    match registers.number() {
        libc::SYS_rt_sigreturn => registers.set(libc::REG_RIP, INSTRUCTION.load(Ordering::Relaxed) as usize),
        // SAFETY: the program's masks.
        libc::SYS_rt_sigprocmask => unsafe { registers.change_mask(false) },
        // SAFETY: the program's arguments.
        libc::SYS_clone | libc::SYS_clone3 if unsafe { makes_other(&mut registers) } => {}
        libc::SYS_arch_prctl if registers.get(libc::REG_RDI) == ARCH_SET_FS => {
            if !guests::adopt(registers.get(libc::REG_RSI) as usize) {
                threads::note_other();
            }
            registers.go_to(stubs::pass_on, 0);
        }
        libc::SYS_sigaltstack => {
            shadow::end_own();
            registers.go_to(stubs::pass_on, 0);
        }
        // SAFETY: the program's arguments.
        number if unsafe { concerns_us(number, &registers) } => {
            let stack = stacks::choose(registers.get(libc::REG_RSP) as usize, &registers.0.uc_stack);
            registers.carry_out(stubs::carry_out, stack);
        }
        _ => registers.go_to(stubs::pass_on, 0),
    }
}

/// Whether a thread that is not the C library's has asked for a socket.
static OTHER_REFUSED: AtomicBool = AtomicBool::new(false);

/// Sends a call of a thread on its way that is not the C library's: sockets are refused there, because
/// nothing else of this library can run in it, and the host's network is not what the program was put on a
/// stack for.
unsafe fn sort_of_other(mut registers: Registers<'_>) {
    match registers.number() {
        libc::SYS_rt_sigreturn => registers.set(libc::REG_RIP, INSTRUCTION.load(Ordering::Relaxed) as usize),
        // SAFETY: the program's masks.
        libc::SYS_rt_sigprocmask => unsafe { registers.change_mask(true) },
        // SAFETY: the program's arguments.
        libc::SYS_clone | libc::SYS_clone3 if unsafe { make_thread(&mut registers) } => {}
        libc::SYS_rt_sigaction if registers.get(libc::REG_RDI) == libc::SIGSYS.into() => registers.answer(0),
        libc::SYS_io_uring_setup => registers.answer((-libc::ENOSYS).into()),
        libc::SYS_socket if is_closed(registers.get(libc::REG_RDI) as c_int) => {
            if !OTHER_REFUSED.swap(true, Ordering::Relaxed) {
                const TEXT: &str = "libatoll: a thread that is not the C library's has no sockets of the \
                                    stack; see docs/limits.md\n";
                let words = [2, TEXT.as_ptr() as c_long, TEXT.len() as c_long, 0, 0, 0];
                // SAFETY: text of ours.
                unsafe { direct(libc::SYS_write, words) };
            }
            registers.answer((-libc::EACCES).into());
        }
        _ => registers.go_to(stubs::pass_on, 0),
    }
}

/// Returns whether sockets of a family are the stack's, or nobody's.
fn is_closed(family: c_int) -> bool {
    matches!(family, libc::AF_INET | libc::AF_INET6) && settings().kernel_network == KernelNetwork::default()
}

/// Goes on with a clone(2) or clone3(2) of a child that shares the memory and has a stack of its own: what
/// [`stubs::child`] needs is put on that. Returns false for other calls.
unsafe fn make_thread(registers: &mut Registers<'_>) -> bool {
    let (first, second) = (registers.get(libc::REG_RDI), registers.get(libc::REG_RSI));
    let is_clone = registers.number() == libc::SYS_clone;
    let len = (second as usize).min(CLONE_ARGS_MAX);
    // SAFETY: the program's struct is as long as it says; its first word are the flags.
    let arguments = unsafe { first_words(first as *const u64, if is_clone { 0 } else { len }) };
    let (flags, top) = match is_clone {
        true => (first as u64, second as usize),
        false => (arguments[0], (arguments[STACK_WORD] + arguments[STACK_WORD + 1]) as usize),
    };
    if flags & libc::CLONE_VM as u64 == 0 || top == 0 || !is_clone && arguments[STACK_WORD] == 0 {
        return false;
    }
    threads::note_other();
    let child = stubs::child as *const () as usize;
    let left = [child, first as usize, second as usize, registers.get(libc::REG_RIP) as usize];
    let sp = top - size_of_val(&left);
    // SAFETY: the child's stack, which the child will use.
    unsafe { (sp as *mut [usize; 4]).write_unaligned(left) };
    if is_clone {
        registers.go_to(stubs::clone, sp);
        return true;
    }
    let mut shorter = arguments;
    shorter[STACK_WORD + 1] -= size_of_val(&left) as u64;
    // The kernel reads it before the child exists, so it may be where the child's stack grows.
    let copy = (sp - CLONE_ARGS_MAX) & !7;
    // SAFETY: as above.
    unsafe { (copy as *mut [u64; CLONE_ARGS_MAX / 8]).write(shorter) };
    registers.set(libc::REG_RSI, len);
    registers.go_to(stubs::clone3, copy);
    true
}

/// Returns the first octets of a struct of words, and zeros behind them; all zeros if it is too short for a
/// clone3(2).
unsafe fn first_words(start: *const u64, len: usize) -> [u64; CLONE_ARGS_MAX / 8] {
    let mut words = [0u64; CLONE_ARGS_MAX / 8];
    if len >= CLONE_ARGS_MIN && !start.is_null() {
        // SAFETY: the caller's promise; there is room for as many.
        unsafe { std::ptr::copy_nonoverlapping(start.cast::<u8>(), words.as_mut_ptr().cast::<u8>(), len) };
    }
    words
}

/// Returns whether this library has something to do with a call. It may say so of calls that turn out to be
/// the kernel's.
unsafe fn concerns_us(number: c_long, registers: &Registers<'_>) -> bool {
    let word = |register| registers.get(register);
    match number {
        libc::SYS_read | libc::SYS_readv | libc::SYS_close => {
            lookup(word(libc::REG_RDI) as c_int) != Fd::Kernel
        }
        libc::SYS_write | libc::SYS_writev => {
            lookup(word(libc::REG_RDI) as c_int) != Fd::Kernel || netlink_end::any()
        }
        // SAFETY: the program's paths.
        libc::SYS_open => unsafe { is_in_proc(word(libc::REG_RDI) as *const u8) },
        // SAFETY: as above.
        libc::SYS_openat => unsafe { is_in_proc(word(libc::REG_RSI) as *const u8) },
        // SAFETY: as above.
        libc::SYS_readlink => unsafe { shadow::is_hosted() && is_in_proc(word(libc::REG_RDI) as *const u8) },
        // SAFETY: as above.
        libc::SYS_readlinkat => unsafe {
            shadow::is_hosted() && is_in_proc(word(libc::REG_RSI) as *const u8)
        },
        _ => always_concerns_us(number),
    }
}

/// Returns whether this library has something to do with a call, whatever its words are.
pub fn always_concerns_us(number: c_long) -> bool {
    FREQUENT.contains(&number) || OTHERS.contains(&number)
}

unsafe fn is_in_proc(path: *const u8) -> bool {
    // SAFETY: each octet is read only if none before it ends the text.
    !path.is_null() && b"/proc/".iter().enumerate().all(|(at, octet)| unsafe { *path.add(at) } == *octet)
}

/// The calls that [`crate::symbols`] knows, whatever their words are, and that programs make often:
/// [`super::rewriting`] leads them here without a trap.
pub const FREQUENT: [c_long; 29] = [
    libc::SYS_socket,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendfile,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
];

/// The other calls that [`crate::symbols`] knows, whatever their words are.
const OTHERS: [c_long; 33] = [
    libc::SYS_splice,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_pidfd_getfd,
    libc::SYS_epoll_create,
    libc::SYS_io_uring_setup,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_rt_sigaction,
    libc::SYS_prctl,
    libc::SYS_getrlimit,
    libc::SYS_setrlimit,
    libc::SYS_prlimit64,
    libc::SYS_mlockall,
    libc::SYS_seccomp,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_setuid,
    libc::SYS_setreuid,
    libc::SYS_setresuid,
    libc::SYS_setgid,
    libc::SYS_setregid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
];
