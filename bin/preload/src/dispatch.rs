//! Syscall User Dispatch: system calls that the program makes past the C library's functions, by an
//! instruction of its own, come to this library by a signal (prctl(2), PR_SET_SYSCALL_USER_DISPATCH).
//!
//! ```text
//!   syscall instruction in      what happens
//!   the C library               the kernel makes the call: this is the fast path, and this library's own
//!   anywhere else               SIGSYS: `trap` sends the thread to a stub
//!                                 `pass_on`    makes the call with the C library's instruction
//!                                              (also for this library's own calls)
//!                                 `carry_out`  calls what the C library's function of that name would
//! ```
//! The kernel lets one range of addresses through for each thread. It is the C library's text. While a thread
//! resolves a name ([`resolving`]) it is one instruction in it, so that the C library's own calls come here,
//! too.
//!
//! * [`trap`]: decides what becomes of a call; [`stubs`]: the ways back into the program
//! * [`threads`]: which threads have the C library's memory; [`masks`]: SIGSYS is never blocked
//! * [`rewriting`], [`sites`]: calls of static programs, and of those of Go, that come
//!   here without a trap
//! * [`guests`]: threads of the program that have memory of their own besides; [`clones`]: what makes
//!   them; [`endings`]: their ends
//!
//! Where the kernel has no Syscall User Dispatch, or the C library's text is not as expected, all of this
//! does nothing.

pub mod clones;
mod endings;
pub mod guests;
pub mod masks;
pub mod rewriting;
mod sites;
mod stacks;
mod stubs;
mod threads;
mod trap;

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use atoll_sys::interception::Interception;

use crate::confinement::is_confined;
use crate::handlers;
use crate::instruction::{INSTRUCTION, direct};
use crate::settings::settings;
use crate::shadow;
use crate::signals::{bit, keep_unblocked};

// linux/prctl.h.
const PR_SET_SYSCALL_USER_DISPATCH: c_int = 59;
const PR_SYS_DISPATCH_ON: c_ulong = 1;

/// The length of `syscall; ret`.
const GADGET_LEN: usize = 3;
/// The C library's text; its length is 0 if this process dispatches nothing.
static TEXT: AtomicUsize = AtomicUsize::new(0);
static TEXT_LEN: AtomicUsize = AtomicUsize::new(0);
/// Whether the program dispatches system calls itself, in some thread (wine).
static PROGRAM_DISPATCHES: AtomicBool = AtomicBool::new(false);

/// What a thread resolves.
struct Resolving {
    /// How many calls that resolve names it is in.
    depth: Cell<u32>,
    /// Whether the C library's own calls are dispatched.
    is_narrow: Cell<bool>,
    /// Where its stack was when the outermost of these calls began.
    since: Cell<usize>,
}

thread_local! {
    static RESOLVING: Resolving =
        const { Resolving { depth: Cell::new(0), is_narrow: Cell::new(false), since: Cell::new(0) } };
}

/// Begins to dispatch, in a process on a stack. Called once, by the constructor. `carry_out` makes a call as
/// the C library's function of the same name would, and returns what the kernel would.
pub fn start(carry_out: unsafe fn(*mut Words) -> c_long) {
    if settings().socket.is_none() || !std::is_x86_feature_detected!("xsave") || is_valgrind() {
        return;
    }
    let Some((gadget, text)) = find_gadget() else { return };
    TEXT.store(text.start, Ordering::Relaxed);
    TEXT_LEN.store(text.len(), Ordering::Relaxed);
    let before = INSTRUCTION.swap(gadget as *mut (), Ordering::Relaxed);
    stubs::note_size();
    stacks::install();
    threads::install();
    CARRY_OUT.store(carry_out as usize, Ordering::Relaxed);
    handlers::note_inherited(libc::SIGSYS);
    if trap::install() {
        keep_unblocked(bit(libc::SIGSYS));
        begin_thread();
        if IS_ON.load(Ordering::Relaxed) {
            return;
        }
        trap::uninstall();
    }
    TEXT_LEN.store(0, Ordering::Relaxed);
    INSTRUCTION.store(before, Ordering::Relaxed);
}

/// Whether this process dispatches.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// Returns whether this process dispatches the program's calls.
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Returns by which way the calls of this process reach the library.
pub fn interception() -> Interception {
    if is_confined() {
        Interception::Confined
    } else if PROGRAM_DISPATCHES.load(Ordering::Relaxed) {
        Interception::OwnDispatch
    } else if is_on() {
        Interception::Dispatch
    } else if is_valgrind() {
        Interception::Valgrind
    } else {
        Interception::Symbols
    }
}

/// Begins to dispatch in this thread, which the kernel has just made: it dispatches in none by itself.
pub fn begin_thread() {
    if TEXT_LEN.load(Ordering::Relaxed) == 0 || is_confined() {
        return;
    }
    masks::begin_thread();
    forget_resolving();
    if let_through(TEXT.load(Ordering::Relaxed), TEXT_LEN.load(Ordering::Relaxed)) {
        IS_ON.store(true, Ordering::Relaxed);
    }
}

/// Begins to dispatch in the child of a fork.
pub fn begin_child() {
    threads::forget();
    shadow::keep_own();
    begin_thread();
}

/// Lets system calls of this thread through that instructions in a range make. Returns false if the kernel
/// cannot do that.
fn let_through(start: usize, len: usize) -> bool {
    let words = [PR_SET_SYSCALL_USER_DISPATCH as c_long, PR_SYS_DISPATCH_ON as c_long, start as c_long];
    let [option, on, start] = words;
    // SAFETY: the range is the C library's, or a part of it; there is no selector.
    unsafe { direct(libc::SYS_prctl, [option, on, start, len as c_long, 0, 0]) == 0 }
}

/// Runs a function of the C library that resolves names with its own system calls dispatched, too.
pub fn resolving<R>(function: impl FnOnce() -> R) -> R {
    if !is_on() || is_confined() || PROGRAM_DISPATCHES.load(Ordering::Relaxed) {
        return function();
    }
    let here = 0u8;
    let here = std::ptr::from_ref(&here) as usize;
    leave_behind(here);
    let depth = RESOLVING.with(|resolving| {
        if resolving.depth.get() == 0 {
            resolving.since.set(here);
        }
        resolving.depth.replace(resolving.depth.get() + 1)
    });
    narrow();
    let result = function();
    RESOLVING.with(|resolving| resolving.depth.set(depth));
    if depth == 0 {
        widen();
    }
    result
}

/// Returns whether this thread resolves a name. What fails then is for the C library to judge: it connects to
/// each address that it finds, for example, to see which of them can be reached (RFC 6724).
pub fn is_resolving() -> bool {
    RESOLVING.with(|resolving| resolving.depth.get() > 0)
}

/// Ends what this thread resolves if a handler has left that by siglongjmp(3): the stack is higher now.
fn leave_behind(sp: usize) {
    let is_left = RESOLVING.with(|resolving| resolving.depth.get() > 0 && sp > resolving.since.get());
    if is_left {
        forget_resolving();
        widen();
    }
}

fn forget_resolving() {
    RESOLVING.with(|resolving| {
        resolving.depth.set(0);
        resolving.is_narrow.set(false);
    });
}

/// Has the C library's calls dispatched, too.
fn narrow() {
    RESOLVING.with(|resolving| resolving.is_narrow.set(true));
    let_through(INSTRUCTION.load(Ordering::Relaxed) as usize, GADGET_LEN);
}

fn widen() {
    let_through(TEXT.load(Ordering::Relaxed), TEXT_LEN.load(Ordering::Relaxed));
    RESOLVING.with(|resolving| resolving.is_narrow.set(false));
}

/// Runs a part of this library, whose system calls are its own, whatever this thread does otherwise.
fn as_ourselves<R>(act: impl FnOnce() -> R) -> R {
    if !RESOLVING.with(|resolving| resolving.is_narrow.get()) {
        return act();
    }
    widen();
    let result = act();
    narrow();
    result
}

/// A system call: its number and its six words.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    pub number: c_long,
    pub words: [c_long; 6],
}

/// What carries out a call: the address of an `unsafe fn(*mut Words) -> c_long`.
static CARRY_OUT: AtomicUsize = AtomicUsize::new(0);

/// Carries out a call. Called by a stub, in the program's context.
unsafe extern "C" fn carry(call: *mut Words) -> c_long {
    // SAFETY: `start` has put the function there.
    let carry_out: unsafe fn(*mut Words) -> c_long =
        unsafe { std::mem::transmute(CARRY_OUT.load(Ordering::Relaxed)) };
    // SAFETY: the program's call.
    as_ourselves(|| unsafe { carry_out(call) })
}

/// Notes that the program has said itself what of this thread is dispatched: from now on that holds.
pub fn note_program(option: c_int, mode: c_ulong) {
    if option == PR_SET_SYSCALL_USER_DISPATCH && mode == PR_SYS_DISPATCH_ON {
        PROGRAM_DISPATCHES.store(true, Ordering::Relaxed);
    }
}

/// Returns the segment of an object that an address is in; an empty one if it is in none.
fn segment_around(address: usize) -> std::ops::Range<usize> {
    let mut found = Found { address, text: 0..0 };
    // SAFETY: the function is called before this returns, with the data that it expects.
    unsafe { libc::dl_iterate_phdr(Some(note_text), (&raw mut found).cast()) };
    found.text
}

/// Returns whether valgrind(1) runs this program: its own system calls would be dispatched as well. This is
/// its client request RUNNING_ON_VALGRIND, which does nothing elsewhere.
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

/// Finds `syscall; ret` in a function of the C library, and the library's text around it.
fn find_gadget() -> Option<(usize, std::ops::Range<usize>)> {
    const CODE: [u8; GADGET_LEN] = [0x0f, 0x05, 0xc3];
    // SAFETY: a valid name.
    let function = unsafe { libc::dlsym(libc::RTLD_NEXT, c"getppid".as_ptr()) } as usize;
    if function == 0 {
        return None;
    }
    let text = segment_around(function);
    let most = text.end.saturating_sub(function).min(32);
    // SAFETY: the C library's text is mapped, and can be read.
    let code = unsafe { std::slice::from_raw_parts(function as *const u8, most) };
    let at = code.windows(GADGET_LEN).position(|window| window == CODE)?;
    Some((function + at, text))
}

/// An address, and the segment that it is in.
struct Found {
    address: usize,
    text: std::ops::Range<usize>,
}

unsafe extern "C" fn note_text(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
    // SAFETY: the C library's description of an object, and what `find_gadget` has given.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<Found>()) };
    // SAFETY: as many headers as the object has.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
        let start = (info.dlpi_addr + header.p_vaddr) as usize;
        let segment = start..start + header.p_memsz as usize;
        if header.p_flags & libc::PF_X != 0 && segment.contains(&found.address) {
            found.text = segment;
            return 1;
        }
    }
    0
}
