//! The program's signal handlers: sigaction(2). The kernel calls [`deliver`] for each of them, which calls
//! the handler at once, or when this thread is no longer in a section of the library ([`crate::critical`]).
//!
//! Dispositions without a handler (SIG_DFL, SIG_IGN) are the kernel's alone, but for SIGSEGV and SIGBUS by
//! default: they tell [`crate::reach`] of pointers that lead nowhere, and end the process otherwise. The
//! signals that the C library uses for itself, and handlers that a program sets by the system call itself, do
//! not come here.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use libc::{SIG_DFL, SIG_IGN, sigaction, siginfo_t, sigset_t, ucontext_t};

use crate::critical;
use crate::futex_lock::FutexLock;
use crate::instruction::{INSTRUCTION, direct};
use crate::real::{self, sys};
use crate::shadow::{self, ANY, LIBRARY_FS, PROGRAM_FS, SHADOWS, SHADOWS_LEN};
use crate::signals::{bit, hidden_signals, release_signals, signals_restart};

/// One more than the greatest number of a signal.
const SIGNALS: usize = 65;

/// The signals by which the kernel reports what an instruction has done. The instruction would be repeated
/// for ever if the handler ran later.
pub const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// What a program wants of a signal: struct sigaction with the kernel's mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wish {
    handler: usize,
    flags: c_int,
    mask: u64,
}

/// A [`Wish`] that one thread changes at a time, and that handlers read: its version is odd meanwhile.
struct Entry {
    version: AtomicU32,
    handler: AtomicUsize,
    flags: AtomicU32,
    mask: AtomicU64,
}

impl Entry {
    const fn new() -> Entry {
        Entry {
            version: AtomicU32::new(0),
            handler: AtomicUsize::new(SIG_DFL),
            flags: AtomicU32::new(0),
            mask: AtomicU64::new(0),
        }
    }

    fn read(&self) -> Wish {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let wish = Wish {
                handler: self.handler.load(Ordering::Relaxed),
                flags: self.flags.load(Ordering::Relaxed).cast_signed(),
                mask: self.mask.load(Ordering::Relaxed),
            };
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                return wish;
            }
            // Another thread is in the middle: this one cannot be, because it would run no handler.
            std::hint::spin_loop();
        }
    }

    /// The caller holds [`WRITER`].
    fn write(&self, wish: Wish) {
        self.version.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.handler.store(wish.handler, Ordering::Relaxed);
        self.flags.store(wish.flags.cast_unsigned(), Ordering::Relaxed);
        self.mask.store(wish.mask, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }
}

/// The signals that come here although the program has no handler of them, a bit each; see [`keep_faults`].
static KEPT: AtomicU64 = AtomicU64::new(0);

static ENTRIES: [Entry; SIGNALS] = [const { Entry::new() }; SIGNALS];
/// Held by whoever changes an entry.
pub static WRITER: FutexLock<()> = FutexLock::new(());

thread_local! {
    static RAN: Cell<Ran> = const { Cell::new(Ran { all: 0, interrupting: 0 }) };
}

/// How many handlers have run in a thread; the numbers wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The number of all handlers.
    all: u32,
    /// The number of those without SA_RESTART, which interrupt every call.
    interrupting: u32,
}

impl Ran {
    /// Returns how many handlers have run in this thread.
    pub fn now() -> Ran {
        RAN.get()
    }

    /// Returns whether handlers have run in this thread since the last look that end a call which sleeps.
    /// `restarts` says that it is a call that goes on after handlers with SA_RESTART: signal(7).
    pub fn interrupt(&mut self, restarts: bool) -> bool {
        let before = mem::replace(self, Ran::now());
        before.all != self.all && !(restarts && before.interrupting == self.interrupting)
    }

    /// Returns what [`Ran::interrupt`] does, for a call whose sleep has failed with EINTR. If no known
    /// handler has run since the last look, the program has set one by the system call itself.
    pub fn end_sleep(&mut self, restarts: bool) -> bool {
        let before = mem::replace(self, Ran::now());
        let goes_on =
            if before.all == self.all { signals_restart() } else { before.interrupting == self.interrupting };
        !(restarts && goes_on)
    }
}

/// Sets the action of a signal, and tells the one before: sigaction(2).
///
/// # Safety
/// The pointers are null or valid.
pub unsafe fn set(signal: c_int, new: *const sigaction, old: *mut sigaction) -> c_int {
    let entry = usize::try_from(signal).ok().and_then(|signal| ENTRIES.get(signal));
    let deliver = deliver as *const () as usize;
    // SAFETY: the caller's promise.
    let wanted = (!new.is_null()).then(|| unsafe { new.read() });
    let is_handler =
        |action: &sigaction| ![SIG_DFL, SIG_IGN, libc::SIG_ERR, deliver].contains(&action.sa_sigaction);
    let Some(entry) = entry else {
        // SAFETY: the caller's promise.
        return unsafe { real::sigaction(signal, new, old) };
    };
    if hidden_signals() & bit(signal) != 0 {
        // SAFETY: the caller's promise.
        unsafe { set_hidden(entry, wanted, old) };
        return 0;
    }
    WRITER.with(|()| {
        let before = entry.read();
        let action = wanted.map(|action| {
            let is_kept = action.sa_sigaction == SIG_DFL && KEPT.load(Ordering::Relaxed) & bit(signal) != 0;
            if !is_handler(&action) && !is_kept {
                return action;
            }
            entry.write(Wish {
                handler: action.sa_sigaction,
                flags: action.sa_flags,
                mask: word(&action.sa_mask),
            });
            if is_kept {
                return default_of_kept();
            }
            let flags = action.sa_flags & !(libc::SA_NODEFER | libc::SA_RESETHAND) | libc::SA_SIGINFO;
            sigaction { sa_sigaction: deliver, sa_mask: all_signals(), sa_flags: flags, ..action }
        });
        // SAFETY: all-zero is a valid value.
        let mut kernels: sigaction = unsafe { mem::zeroed() };
        let action = action.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: both are valid, or null.
        let result = unsafe { set_kernels(signal, action, &raw mut kernels) };
        if result < 0 {
            entry.write(before);
        } else if !old.is_null() {
            if kernels.sa_sigaction == deliver {
                kernels.sa_sigaction = before.handler;
                kernels.sa_flags = before.flags;
                kernels.sa_mask = of_word(before.mask);
            }
            // SAFETY: the caller's promise.
            unsafe { old.write(kernels) };
        }
        result
    })
}

/// Has SIGSEGV and SIGBUS come here also where the program has no handler of them, for [`crate::reach`].
pub fn keep_faults() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        WRITER.with(|()| {
            // SAFETY: all-zero is a valid value.
            let mut kernels: sigaction = unsafe { mem::zeroed() };
            // SAFETY: the target is valid.
            unsafe { real::sigaction(signal, std::ptr::null(), &raw mut kernels) };
            // Who ignores a fault ends by it, and a handler that is not known here is the program's alone.
            if kernels.sa_sigaction == SIG_DFL {
                KEPT.fetch_or(bit(signal), Ordering::Relaxed);
                ENTRIES[signal as usize].write(Wish { handler: SIG_DFL, flags: 0, mask: 0 });
                // SAFETY: the action is valid.
                unsafe { real::sigaction(signal, &default_of_kept(), std::ptr::null_mut()) };
            }
        });
    }
}

/// Returns the kernel's action for a kept signal that the program wants to have its default.
fn default_of_kept() -> sigaction {
    // SAFETY: all-zero is a valid value.
    let empty: sigaction = unsafe { mem::zeroed() };
    let flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    sigaction {
        sa_sigaction: deliver as *const () as usize,
        sa_mask: all_signals(),
        sa_flags: flags,
        ..empty
    }
}

/// Decides about a kept signal: goes on after a look at memory that is not there ([`crate::reach`]), and lets
/// the signal end the process if that is its default. Returns whether the handler is not to be asked.
unsafe fn keeps(signal: c_int, info: *mut siginfo_t, context: *mut c_void) -> bool {
    // SAFETY: the kernel's arguments.
    let (code, context) = unsafe { ((*info).si_code, &mut *context.cast::<ucontext_t>()) };
    let instruction = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    if let Some(end) = crate::reach::after_fault(*instruction as usize).filter(|_| code > 0) {
        *instruction = end as i64;
        return true;
    }
    if ENTRIES[signal as usize].read().handler != SIG_DFL {
        return false;
    }
    // SAFETY: all-zero is SIG_DFL. The signal comes again: the instruction is repeated, or it is sent.
    unsafe {
        real::sigaction(signal, &mem::zeroed(), std::ptr::null_mut());
        if code <= 0 {
            send_again(signal, info);
        }
    }
    true
}

/// The signals that the C library keeps for itself, and that a guest's C library uses for itself as well: see
/// [`release_reserved`].
const RESERVED: [c_int; 2] = [32, 33];

/// Sets what the kernel does about a signal.
unsafe fn set_kernels(signal: c_int, new: *const sigaction, old: *mut sigaction) -> c_int {
    if !RESERVED.contains(&signal) || shadow::current().is_none() {
        // SAFETY: the caller's promise.
        return unsafe { real::sigaction(signal, new, old) };
    }
    const SA_RESTORER: usize = 0x0400_0000;
    /// Is struct sigaction as the kernel has it: handler, flags, restorer, mask.
    type Kernels = [usize; 4];
    // SAFETY: the caller's promise.
    let wanted = unsafe { new.as_ref() }.map(|new| -> Kernels {
        let flags = new.sa_flags.cast_unsigned() as usize | SA_RESTORER;
        [new.sa_sigaction, flags, restore as *const () as usize, word(&new.sa_mask) as usize]
    });
    let mut before: Kernels = [0; 4];
    let wanted = wanted.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let words = [signal.into(), wanted as i64, &raw mut before as i64, 8, 0, 0];
    // SAFETY: the kernel's structs and the size of its mask.
    if unsafe { direct(libc::SYS_rt_sigaction, words) } < 0 {
        return -1;
    }
    // SAFETY: the caller's promise.
    unsafe {
        ((*old).sa_sigaction, (*old).sa_flags) = (before[0], before[1] as c_int);
        (*old).sa_mask = of_word(before[3] as u64);
    }
    0
}

/// Returns from a signal handler, by an instruction that is not dispatched.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn restore() {
    core::arch::naked_asm!("mov eax, 15", "jmp qword ptr [rip + {gadget}]", gadget = sym INSTRUCTION)
}

/// Takes the C library's own signals away from it, because they are those of a static program's C library
/// now. This one would use them for pthread_cancel(3) and setuid(2) of its own program, which there is none.
pub fn release_reserved() {
    for signal in RESERVED {
        let default = [0usize; 4];
        let words = [signal.into(), default.as_ptr() as i64, 0, 8, 0, 0];
        // SAFETY: the kernel's struct, and the size of its mask.
        unsafe { direct(libc::SYS_rt_sigaction, words) };
    }
}

/// Sets what the program wants of a signal that the kernel gives to this library.
///
/// # Safety
/// `old` is null or valid.
unsafe fn set_hidden(entry: &Entry, wanted: Option<sigaction>, old: *mut sigaction) {
    WRITER.with(|()| {
        let before = entry.read();
        if let Some(action) = wanted {
            let (handler, flags) = (action.sa_sigaction, action.sa_flags);
            entry.write(Wish { handler, flags, mask: word(&action.sa_mask) });
        }
        if !old.is_null() {
            // SAFETY: all-zero is a valid value; the caller's promise.
            unsafe {
                let mut action: sigaction = mem::zeroed();
                (action.sa_sigaction, action.sa_flags) = (before.handler, before.flags);
                action.sa_mask = of_word(before.mask);
                old.write(action);
            }
        }
    });
}

/// Returns whether the program has a handler of SIGSYS, although the kernel gives that to this library.
pub fn has_sigsys() -> bool {
    ![SIG_DFL, SIG_IGN].contains(&ENTRIES[libc::SIGSYS as usize].read().handler)
}

/// Notes what the program before this one has left of a signal that the kernel is to give to this library.
pub fn note_inherited(signal: c_int) {
    // SAFETY: all-zero is a valid value.
    let mut kernels: sigaction = unsafe { mem::zeroed() };
    // SAFETY: the target is valid.
    unsafe { real::sigaction(signal, std::ptr::null(), &raw mut kernels) };
    let wish = Wish { handler: kernels.sa_sigaction, flags: kernels.sa_flags, mask: word(&kernels.sa_mask) };
    WRITER.with(|()| ENTRIES[signal as usize].write(wish));
}

/// Decides about a SIGSYS that is the program's. Returns the function that goes on with it, 0 if it is
/// ignored. Without a handler the signal ends
/// the process.
pub fn sigsys(code: c_int) -> usize {
    match ENTRIES[libc::SIGSYS as usize].read().handler {
        SIG_IGN if code <= 0 => 0,
        SIG_DFL | SIG_IGN => {
            // SAFETY: all-zero is SIG_DFL. The signal comes again, and ends the process.
            unsafe { real::sigaction(libc::SIGSYS, &mem::zeroed(), std::ptr::null_mut()) };
            crate::signals::send_to_self(libc::SIGSYS);
            0
        }
        _ => deliver as *const () as usize,
    }
}

/// Returns the kernel's part of a set: the signals up to 64, a bit each.
fn word(set: &sigset_t) -> u64 {
    // SAFETY: the set is longer than the kernel's.
    unsafe { std::ptr::from_ref(set).cast::<u64>().read() }
}

fn of_word(word: u64) -> sigset_t {
    // SAFETY: all-zero is a valid value, and longer than the kernel's set.
    unsafe {
        let mut set: sigset_t = mem::zeroed();
        (&raw mut set).cast::<u64>().write(word);
        set
    }
}

/// Returns the mask under which [`deliver`] begins: all signals but those that are never blocked.
fn all_signals() -> sigset_t {
    of_word(!hidden_signals())
}

/// Is called by the kernel for each signal that has a handler, with all signals blocked. It jumps to the
/// program's handler, which may leave by an exception, siglongjmp(3) or pthread_exit(3): no function of this
/// library is on the stack then.
///
/// In a guest ([`crate::shadow`]) the handler runs with the program's FS base. If it has interrupted the
/// library, it returns to where the library's is put back.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn deliver(_signal: c_int, _info: *mut siginfo_t, _context: *mut c_void) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdx", // aligns the stack as well
        ".cfi_adjust_cfa_offset 8",
        "cmp byte ptr [rip + {any}], 0",
        "jne 4f",
        "3: call {prepare}",
        "5: pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2: ret",
        ".cfi_adjust_cfa_offset 24",
        "4: rdgsbase rbx", // the kernel restores all registers when the handler returns
        "lea rcx, [rip + {shadows}]",
        "mov rax, rbx",
        "sub rax, rcx",
        "cmp rax, {shadows_len}",
        "jae 3b",
        "rdfsbase r12",
        "mov rax, [rbx + {library_fs}]",
        "cmp r12, rax",
        "jne 6f",
        "lea rcx, [rip + {restore}]",
        "mov [rsp + 24], rcx", // the handler's return address
        "mov r12, [rbx + {program_fs}]",
        "6: wrfsbase rax",
        "call {prepare}",
        "wrfsbase r12",
        "jmp 5b",
        ".cfi_endproc",
        prepare = sym prepare,
        any = sym ANY,
        shadows = sym SHADOWS,
        shadows_len = const SHADOWS_LEN,
        library_fs = const LIBRARY_FS,
        program_fs = const PROGRAM_FS,
        restore = sym restore_into_library,
    )
}

/// Returns from a program's signal handler into the library, in a guest: puts the library's FS base back.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn restore_into_library() {
    core::arch::naked_asm!(
        "rdgsbase rcx",
        "mov rcx, [rcx + {library_fs}]",
        "wrfsbase rcx",
        "mov eax, 15", // rt_sigreturn(2)
        "jmp qword ptr [rip + {instruction}]",
        library_fs = const LIBRARY_FS,
        instruction = sym INSTRUCTION,
    )
}

/// Decides about a signal that has come. Returns the program's handler, with the mask that it wants set, or 0
/// if none is to run now.
unsafe extern "C" fn prepare(signal: c_int, info: *mut siginfo_t, context: *mut c_void) -> usize {
    // SAFETY: the kernel's arguments.
    if matches!(signal, libc::SIGSEGV | libc::SIGBUS) && unsafe { keeps(signal, info, context) } {
        return 0;
    }
    // SAFETY: a valid thread-local of the C library.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel's arguments; its mask is the first word of the C library's.
    let (mask, code) = unsafe { (&raw mut (*context.cast::<ucontext_t>()).uc_sigmask, (*info).si_code) };
    let mask = mask.cast::<u64>();
    let is_fault = FAULTS.contains(&signal) && code > 0;
    let mut handler = 0;
    // SAFETY: as above. The kernel restores the mask when the handler returns.
    unsafe {
        if !critical::is_inside() || is_fault {
            handler = begin(signal, mask.read());
        } else if critical::note_late(signal) {
        } else if send_again(signal, info) {
            critical::keep_mask(mask.read());
            mask.write(!FAULTS.iter().fold(0, |faults, fault| faults | bit(*fault)) | bit(signal));
        } else {
            handler = begin(signal, mask.read());
        }
        *libc::__errno_location() = errno;
    }
    handler
}

/// Sends a signal that is blocked now to this thread again, with what the kernel has said of it.
unsafe fn send_again(signal: c_int, info: *mut siginfo_t) -> bool {
    // SAFETY: no arguments.
    let (process, thread) = unsafe { (sys!(libc::SYS_getpid), sys!(libc::SYS_gettid)) };
    // SAFETY: the kernel's own description. If there is no room for it (RLIMIT_SIGPENDING), the number alone.
    unsafe {
        sys!(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info) == 0
            || sys!(libc::SYS_tgkill, process, thread, signal) == 0
    }
}

/// Begins the program's handler of a signal: sets the mask that it wants, over `mask`. Returns its address; 0
/// if there is none any more.
unsafe fn begin(signal: c_int, mask: u64) -> usize {
    let wish = ENTRIES[signal as usize].read();
    if wish.handler == SIG_DFL {
        return 0;
    }
    let Ran { all, interrupting } = RAN.get();
    let interrupts = u32::from(wish.flags & libc::SA_RESTART == 0);
    RAN.set(Ran { all: all.wrapping_add(1), interrupting: interrupting.wrapping_add(interrupts) });
    if wish.flags & libc::SA_RESETHAND != 0 {
        // SAFETY: all-zero is SIG_DFL.
        unsafe { real::sigaction(signal, &mem::zeroed(), std::ptr::null_mut()) };
    }
    let own = if wish.flags & libc::SA_NODEFER == 0 { bit(signal) } else { 0 };
    release_signals(mask | wish.mask | own);
    wish.handler
}

#[cfg(test)]
mod tests;
