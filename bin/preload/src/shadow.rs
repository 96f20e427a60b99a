//! Guests: threads of the program that run without the memory which the C library has for its threads.
//!
//! A thread of a static program, of Go without cgo, or of a clone(2) that the program makes itself has memory
//! of its own behind the FS base, or none. The library needs the C library's. So such a thread is made by
//! pthread_create(3) ([`crate::dispatch::guests`]), and has two FS bases:
//!
//! ```text
//!   FS base       the program's while its code and its signal handlers run, the library's otherwise
//!   GS base       this thread's [`Shadow`], where both are; nothing else uses it
//! ```
//! Whoever enters the library from such a thread changes the FS base, and changes it back: the handler of
//! SIGSYS and its stubs ([`crate::dispatch`]), and what the kernel calls for a signal ([`crate::handlers`]).
//! The bases are read and written by instructions (FSGSBASE), which the processor and the kernel must know.
//!
//! A thread of the C library's has a shadow, too, where its calls come without a trap and its own stacks are
//! too short for them (Go with cgo): [`begin_own`]. It has one FS base.

use std::arch::asm;
use std::ffi::{c_long, c_void};
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::stack_t;

use crate::instruction::direct;

/// The most guests of a process. Their shadows take memory only where they are used.
const GUESTS_MAX: usize = 16_384;
/// The most threads of the C library's that have a shadow: [`begin_own`]. Those beyond are trapped.
const OWN_MAX: usize = 4096;

/// A thread's registers when it begins to run the program's code, in the order of the fields.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    pub rbx: usize,
    pub rbp: usize,
    pub r12: usize,
    pub r13: usize,
    pub r14: usize,
    pub r15: usize,
    pub rdi: usize,
    pub rsi: usize,
    pub rdx: usize,
    pub r8: usize,
    pub r9: usize,
    pub r10: usize,
    pub rsp: usize,
    pub rip: usize,
}

impl Registers {
    pub const ZERO: Registers = Registers {
        rbx: 0,
        rbp: 0,
        r12: 0,
        r13: 0,
        r14: 0,
        r15: 0,
        rdi: 0,
        rsi: 0,
        rdx: 0,
        r8: 0,
        r9: 0,
        r10: 0,
        rsp: 0,
        rip: 0,
    };
}

/// What the library keeps for a guest. Only the thread itself and its handlers reach it while it is taken.
#[repr(C, align(64))]
pub struct Shadow {
    /// The FS base of the C library's memory for this thread.
    pub library_fs: AtomicUsize,
    /// The FS base of the program, while that of the library is in force.
    pub program_fs: AtomicUsize,
    /// The end of the stack on which calls are carried out.
    pub stack: AtomicUsize,
    /// The lowest address of the stack for the handler of SIGSYS, while the program has none for signals: see
    /// [`Shadow::set_alternate`].
    pub alternate: AtomicUsize,
    /// The end and the length of the stack for signals that the kernel uses.
    pub signals: [AtomicUsize; 2],
    /// Whether the thread is to end when its call is over.
    pub is_ending: AtomicUsize,
    /// Whether the thread is the process's first one, which pthread_create(3) has not made.
    pub is_first: AtomicBool,
    /// The word to clear, and to wake on, when the thread ends: set_tid_address(2). 0: none.
    pub clear_at_end: AtomicUsize,
    /// The program's list of robust futexes, and the length of its head: set_robust_list(2).
    pub robust_list: [AtomicUsize; 2],
    /// The status with which the thread ends.
    pub status: AtomicUsize,
    is_taken: AtomicBool,
}

/// Where the fields are that assembly reaches.
pub const LIBRARY_FS: usize = offset_of!(Shadow, library_fs);
pub const PROGRAM_FS: usize = offset_of!(Shadow, program_fs);
pub const STACK: usize = offset_of!(Shadow, stack);
pub const IS_ENDING: usize = offset_of!(Shadow, is_ending);
pub const SIGNALS_END: usize = offset_of!(Shadow, signals);
pub const SIGNALS_LEN: usize = SIGNALS_END + size_of::<usize>();

/// The length of a stack on which calls of a guest are carried out.
pub const STACK_LEN: usize = 256 << 10;
/// The length of a guest's stack for the handler of SIGSYS. Handlers of the program with SA_ONSTACK run
/// there, too, if it has no stack for them.
pub const ALTERNATE_LEN: usize = 64 << 10;

/// The shadows: first those of guests, then those of the C library's threads. Their addresses tell a GS base
/// of ours from one that a program has set for itself.
pub static SHADOWS: [Shadow; GUESTS_MAX + OWN_MAX] = [const { Shadow::new() }; GUESTS_MAX + OWN_MAX];
/// The octets of those of guests, and of all.
pub const SHADOWS_LEN: usize = size_of::<[Shadow; GUESTS_MAX]>();
pub const ALL_LEN: usize = size_of::<[Shadow; GUESTS_MAX + OWN_MAX]>();

/// How many of those of guests, and of the others, have ever been taken, from the first.
static USED: AtomicUsize = AtomicUsize::new(0);
static OWN_USED: AtomicUsize = AtomicUsize::new(0);

/// Whether there are shadows, or were: only then is the GS base read.
pub static ANY: AtomicBool = AtomicBool::new(false);

impl Shadow {
    const fn new() -> Shadow {
        Shadow {
            library_fs: AtomicUsize::new(0),
            program_fs: AtomicUsize::new(0),
            stack: AtomicUsize::new(0),
            alternate: AtomicUsize::new(0),
            signals: [const { AtomicUsize::new(0) }; 2],
            is_ending: AtomicUsize::new(0),
            is_first: AtomicBool::new(false),
            clear_at_end: AtomicUsize::new(0),
            robust_list: [const { AtomicUsize::new(0) }; 2],
            status: AtomicUsize::new(0),
            is_taken: AtomicBool::new(false),
        }
    }

    /// Takes a free shadow of a guest, with nothing in it; `None` if there are too many guests.
    pub fn take() -> Option<&'static Shadow> {
        let (at, shadow) = SHADOWS[..GUESTS_MAX].iter().enumerate().find(|(_, shadow)| shadow.try_take())?;
        USED.fetch_max(at + 1, Ordering::Relaxed);
        let [list, len] = &shadow.robust_list;
        for word in [&shadow.program_fs, &shadow.stack, &shadow.is_ending, &shadow.clear_at_end, list, len] {
            word.store(0, Ordering::Relaxed);
        }
        shadow.is_first.store(false, Ordering::Relaxed);
        ANY.store(true, Ordering::Relaxed);
        Some(shadow)
    }

    fn try_take(&self) -> bool {
        !self.is_taken.load(Ordering::Relaxed) && !self.is_taken.swap(true, Ordering::Acquire)
    }

    /// Gives the shadow back.
    pub fn free(&self) {
        self.is_taken.store(false, Ordering::Release);
    }

    /// Makes this the shadow of the running thread, which has the C library's memory.
    ///
    /// # Safety
    /// [`is_possible`]; nobody else has the shadow.
    pub unsafe fn enter(&'static self) {
        self.library_fs.store(fs_base(), Ordering::Relaxed);
        // SAFETY: the caller's promise; nothing in this thread uses the GS base.
        unsafe { set_gs_base(std::ptr::from_ref(self) as usize) };
    }

    /// Changes the stack for signals of the running thread: sigaltstack(2). Where the program has none, one
    /// of this library's takes its place, because the program's own stacks may be too short for the handler
    /// of SIGSYS: musl's posix_spawn(3) has 5 KiB. Returns what the kernel does.
    ///
    /// # Safety
    /// The pointers are null or valid.
    pub unsafe fn set_alternate(&self, new: *const stack_t, old: *mut stack_t) -> c_long {
        let ours = self.alternate.load(Ordering::Relaxed);
        let ours = stack_t { ss_sp: ours as *mut c_void, ss_flags: 0, ss_size: ALTERNATE_LEN };
        // SAFETY: the caller's promise.
        let new = match unsafe { new.as_ref() } {
            Some(new) if new.ss_flags & libc::SS_DISABLE != 0 => &raw const ours,
            Some(new) => std::ptr::from_ref(new),
            None => std::ptr::null(),
        };
        let mut before = ours;
        let words = [new as c_long, &raw mut before as c_long, 0, 0, 0, 0];
        // SAFETY: valid, or null. Memory of ours lives as long as the thread.
        let result = unsafe { direct(libc::SYS_sigaltstack, words) };
        // SAFETY: as above.
        let now = unsafe { new.as_ref() }.filter(|_| result == 0);
        if let Some(now) = now {
            self.note_signals(now);
        }
        if result == 0 && !old.is_null() {
            if before.ss_sp == ours.ss_sp {
                let none = stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
                before = none;
            }
            // SAFETY: the caller's promise.
            unsafe { old.write_unaligned(before) };
        }
        result
    }

    fn note_signals(&self, stack: &stack_t) {
        self.signals[0].store(stack.ss_sp as usize + stack.ss_size, Ordering::Relaxed);
        self.signals[1].store(stack.ss_size, Ordering::Relaxed);
    }

    /// Takes the memory at an address as this library's stack for signals, in the running thread.
    ///
    /// # Safety
    /// There are [`ALTERNATE_LEN`] octets, for as long as the thread lives.
    pub unsafe fn begin_alternate(&self, at: usize) {
        self.alternate.store(at, Ordering::Relaxed);
        let none = stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        // SAFETY: a valid struct; the caller's promise.
        unsafe { self.set_alternate(&raw const none, std::ptr::null_mut()) };
    }

    /// Returns whether a stack pointer is on the stack of this guest's calls.
    pub fn is_on_stack(&self, sp: usize) -> bool {
        let end = self.stack.load(Ordering::Relaxed);
        (end.saturating_sub(STACK_LEN)..=end).contains(&sp)
    }
}

/// Whether the whole program is a guest: a static one, in the place of another program.
static IS_HOSTED: AtomicBool = AtomicBool::new(false);

/// Notes that this process is a static program, in the place of another one.
pub fn note_hosted() {
    IS_HOSTED.store(true, Ordering::Relaxed);
}

/// Returns whether this process is a static program, in the place of another one.
pub fn is_hosted() -> bool {
    IS_HOSTED.load(Ordering::Relaxed)
}

/// Returns the shadow to which the GS base points, and its number.
#[inline]
fn at_gs_base() -> Option<(usize, &'static Shadow)> {
    if !ANY.load(Ordering::Relaxed) {
        return None;
    }
    let at = gs_base().wrapping_sub(SHADOWS.as_ptr() as usize);
    let number = at / size_of::<Shadow>();
    let shadow = SHADOWS.get(number).filter(|_| at.is_multiple_of(size_of::<Shadow>()))?;
    Some((number, shadow))
}

/// Returns the shadow of the running thread; `None` if it is no guest.
#[inline]
pub fn current() -> Option<&'static Shadow> {
    at_gs_base().filter(|(number, _)| *number < GUESTS_MAX).map(|(_, shadow)| shadow)
}

/// Returns the shadow of the running thread if it is one of the C library's.
fn own() -> Option<&'static Shadow> {
    at_gs_base().filter(|(number, _)| *number >= GUESTS_MAX).map(|(_, shadow)| shadow)
}

/// Whether calls of this process come without a trap ([`crate::dispatch::rewriting`]).
static IS_OWN_ALLOWED: AtomicBool = AtomicBool::new(false);

/// Allows [`begin_own`]. The caller has seen that guests are possible.
pub fn allow_own() {
    IS_OWN_ALLOWED.store(true, Ordering::Relaxed);
}

/// Gives the running thread, which is the C library's, a shadow: from now on its calls can be carried out on
/// the stack that ends at `stack` without a trap. `signals` is its alternate signal stack. Does nothing where
/// no calls come so, if the program uses the GS base, or if too many threads have a shadow.
///
/// The shadow is another thread's where the kernel copies the GS base to a new one; its FS base tells.
pub fn begin_own(stack: usize, signals: &stack_t) {
    if !IS_OWN_ALLOWED.load(Ordering::Relaxed) {
        return;
    }
    if let Some(own) = own() {
        if own.library_fs.load(Ordering::Relaxed) == fs_base() {
            own.note_signals(signals);
            return;
        }
        // SAFETY: a copy of the creator's, which keeps it.
        unsafe { set_gs_base(0) };
    }
    if gs_base() != 0 {
        return;
    }
    let mut free = SHADOWS[GUESTS_MAX..].iter().enumerate();
    let Some((at, shadow)) = free.find(|(_, shadow)| shadow.try_take()) else { return };
    OWN_USED.fetch_max(at + 1, Ordering::Relaxed);
    shadow.stack.store(stack, Ordering::Relaxed);
    shadow.note_signals(signals);
    ANY.store(true, Ordering::Relaxed);
    // SAFETY: taken just now; guests are possible.
    unsafe { shadow.enter() };
}

/// Takes the shadow of a thread of the C library's away, because its stacks change: its next call is trapped.
pub fn end_own() {
    let Some(own) = own() else { return };
    // SAFETY: nothing else uses it.
    unsafe { set_gs_base(0) };
    if own.library_fs.load(Ordering::Relaxed) == fs_base() {
        own.free();
    }
}

/// Ends what this thread is as a guest.
///
/// # Safety
/// The thread is a guest, and the FS base is the library's.
pub unsafe fn leave(shadow: &Shadow) {
    // SAFETY: nothing in this thread uses it any more.
    unsafe { set_gs_base(0) };
    shadow.free();
}

/// Frees the shadows of the other threads, which the child of a fork does not have.
pub fn keep_own() {
    if !ANY.load(Ordering::Relaxed) {
        return;
    }
    let kept = current().or_else(own).map_or(std::ptr::null(), std::ptr::from_ref);
    // Pages that were never used are not touched.
    let used = SHADOWS.iter().take(USED.load(Ordering::Relaxed));
    let own_used = SHADOWS[GUESTS_MAX..].iter().take(OWN_USED.load(Ordering::Relaxed));
    used.chain(own_used).filter(|shadow| !std::ptr::eq(*shadow, kept)).for_each(Shadow::free);
}

/// Returns whether guests are possible: the kernel has switched FSGSBASE on.
pub fn is_possible() -> bool {
    // asm/hwcap2.h.
    const HWCAP2_FSGSBASE: u64 = 1 << 1;
    // SAFETY: only asks.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & HWCAP2_FSGSBASE != 0 }
}

/// Returns whether a program uses the GS base of this thread itself.
pub fn is_gs_in_use() -> bool {
    gs_base() != 0 && own().is_none()
}

/// Returns the FS base of the running thread, which has seen that guests are possible.
pub fn fs_base() -> usize {
    let base;
    // SAFETY: reads a register; the caller has seen that the instruction exists.
    unsafe { asm!("rdfsbase {}", out(reg) base, options(nostack, nomem)) };
    base
}

fn gs_base() -> usize {
    let base;
    // SAFETY: as above.
    unsafe { asm!("rdgsbase {}", out(reg) base, options(nostack, nomem)) };
    base
}

unsafe fn set_gs_base(base: usize) {
    // SAFETY: the caller's promise.
    unsafe { asm!("wrgsbase {}", in(reg) base, options(nostack, nomem)) };
}

/// The errno of a call as the kernel returns it.
pub fn failed(errno: i32) -> c_long {
    (-errno).into()
}
