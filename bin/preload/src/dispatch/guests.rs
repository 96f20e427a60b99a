//! Threads that the program makes by clone(2): each is made by pthread_create(3), so that it has the C
//! library's memory, and then goes on in the program's code as a guest ([`crate::shadow`]).
//!
//! ```text
//!   the program's thread                  the new one
//!   clone(2) is carried out:
//!     blocks all signals
//!     pthread_create                      begin: dispatches, takes its shadow
//!     waits                  <-------     its number is known
//!     restores the mask                   the program's mask, the program's registers
//!   ...                                   exit(2): it ends, on the C library's stack
//! ```
//! What becomes of them at their end is in [`super::endings`].

use std::arch::asm;
use std::cell::Cell;
use std::ffi::{c_int, c_long, c_void};
use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};

use super::clones::Clone;
use super::endings::own_number;
use super::{begin_thread, masks, stacks, stubs};
use crate::instruction::{futex_wait, futex_wake};
use crate::real;
use crate::shadow::{self, ALTERNATE_LEN, Registers, STACK_LEN, Shadow, failed};
use crate::signals::{hold_signals, release_signals};

/// What a new thread gets. It lives until [`Start::number`] is not 0.
#[repr(C)]
struct Start {
    clone: Clone,
    registers: Registers,
    shadow: &'static Shadow,
    mask: u64,
    believed: u64,
    /// The number of the thread, once that does not need this any more.
    number: AtomicU32,
}

/// Makes a thread. Returns its number, or a negative errno. Called while a call of a guest, or of a thread of
/// the C library's, is carried out. `program_fs` is the FS base of the program in this thread.
///
/// # Safety
/// The registers are those of a program's thread, with a stack of its own; the pointers are valid.
pub unsafe fn create(clone: Clone, registers: Registers, program_fs: usize) -> c_long {
    let Some(shadow) = Shadow::take() else { return failed(libc::EAGAIN) };
    let fs = if clone.has(libc::CLONE_SETTLS) { clone.memory } else { program_fs };
    shadow.program_fs.store(fs, Ordering::Relaxed);
    let registers = Registers { rsp: clone.stack, ..registers };
    let (mask, believed) = (hold_signals(), masks::believed());
    let start = Start { clone, registers, shadow, mask, believed, number: AtomicU32::new(0) };
    let result = start_thread(&start);
    let number = match result {
        0 => wait_for(&start.number),
        _ => {
            shadow.free();
            failed(result)
        }
    };
    release_signals(mask);
    number
}

fn wait_for(number: &AtomicU32) -> c_long {
    loop {
        match number.load(Ordering::Acquire) {
            0 => futex_wait(number, 0, None),
            number => return number.into(),
        }
    }
}

/// Calls pthread_create(3). Returns an errno.
fn start_thread(start: &Start) -> c_int {
    // SAFETY: all-zero is overwritten by the C library's function.
    let mut attributes: libc::pthread_attr_t = unsafe { mem::zeroed() };
    let mut thread = 0;
    // SAFETY: the attributes are initialised first; the function runs with the start, which outlives its use
    // there.
    unsafe {
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setdetachstate(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED);
        // The C library's memory for the thread is there as well.
        let len = STACK_LEN + ALTERNATE_LEN + (64 << 10);
        libc::pthread_attr_setstacksize(&raw mut attributes, len);
        let function = mem::transmute::<
            unsafe extern "C" fn(*mut c_void) -> *mut c_void,
            extern "C" fn(*mut c_void) -> *mut c_void,
        >(begin_guest);
        let argument = std::ptr::from_ref(start).cast_mut().cast();
        let result = real::pthread_create(&raw mut thread, &raw const attributes, function, argument);
        libc::pthread_attr_destroy(&raw mut attributes);
        result
    }
}

/// Is what pthread_create(3) calls for a guest. It keeps what the C library's function expects to find again,
/// and goes on as [`begin`] says.
#[unsafe(naked)]
unsafe extern "C" fn begin_guest(_start: *mut c_void) -> *mut c_void {
    core::arch::naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "sub rsp, 8",
        "mov rsi, rsp",
        "call {begin}",
        "mov rdi, rax",
        "mov rsi, rdx",
        "jmp {enter}",
        begin = sym begin,
        enter = sym stubs::enter_program,
    )
}

/// Two words that are returned in two registers.
#[repr(C)]
struct Two(*const Shadow, *const Registers);

/// Begins a guest, in a thread of the C library's whose signals are blocked. `stack` is the end of the stack
/// on which its calls are carried out. Returns its shadow, and the registers to go on with.
unsafe extern "C" fn begin(start: *mut c_void, stack: usize) -> Two {
    // SAFETY: the thread that has made this one waits until its number is written.
    let start = unsafe { &*start.cast::<Start>() };
    let (shadow, mask, clone) = (start.shadow, start.mask, start.clone);
    begin_thread();
    masks::set_believed(start.believed);
    shadow.stack.store(stack, Ordering::Relaxed);
    // SAFETY: the shadow was taken for this thread, whose stack is longer than that.
    unsafe {
        shadow.begin_alternate(stack - STACK_LEN - ALTERNATE_LEN);
        shadow.enter();
    }
    let number = own_number();
    for (flag, at) in
        [(libc::CLONE_PARENT_SETTID, clone.parent_number), (libc::CLONE_CHILD_SETTID, clone.child_number)]
    {
        if clone.has(flag) {
            // SAFETY: the program's pointer.
            unsafe { (at as *mut u32).write(number) };
        }
    }
    if clone.has(libc::CLONE_CHILD_CLEARTID) {
        shadow.clear_at_end.store(clone.child_number, Ordering::Relaxed);
    }
    let registers = keep_registers(start.registers);
    start.number.store(number, Ordering::Release);
    futex_wake(&start.number, 1);
    release_signals(mask);
    Two(shadow, registers)
}

thread_local! {
    /// The registers with which this thread has begun.
    static REGISTERS: Cell<Registers> = const { Cell::new(Registers::ZERO) };
}

/// Keeps registers where they stay until the thread ends.
fn keep_registers(registers: Registers) -> *const Registers {
    REGISTERS.set(registers);
    REGISTERS.with(|place| place.as_ptr().cast_const())
}

/// Makes the process's first thread a guest, and goes on in the program, with `octets` at the end of its
/// stack, to which the stack pointer in the registers points. Returns an errno if that is impossible.
///
/// # Safety
/// This thread is the C library's. What is on its stack above `octets` stays; nothing below is needed.
pub unsafe fn enter_first(registers: Registers, octets: &[u8]) -> c_int {
    let Some(shadow) = Shadow::take() else { return libc::EAGAIN };
    let (Some(stack), Some(alternate)) = (stacks::private(), stacks::map(ALTERNATE_LEN)) else {
        return libc::ENOMEM;
    };
    shadow.stack.store(*stack.end(), Ordering::Relaxed);
    shadow.is_first.store(true, Ordering::Relaxed);
    // SAFETY: the shadow was taken for this thread; the memory is nobody else's.
    unsafe {
        shadow.begin_alternate(alternate);
        shadow.enter();
    }
    let registers = keep_registers(registers);
    // SAFETY: the caller's promise; this function does not return.
    unsafe {
        asm!(
            "jmp {enter}",
            enter = sym stubs::enter_first,
            in("rdi") shadow,
            in("rsi") registers,
            in("rdx") octets.len(),
            in("rcx") octets.as_ptr(),
            options(noreturn),
        )
    }
}

/// Makes a thread of the C library's a guest, because the program is about to set another FS base for it, by
/// arch_prctl(2). Returns whether that is possible.
pub fn adopt(fs: usize) -> bool {
    if fs >= ADDRESSES || !shadow::is_possible() || shadow::is_gs_in_use() {
        return false;
    }
    let (Some(stack), Some(alternate)) = (stacks::private(), stacks::map(ALTERNATE_LEN)) else {
        return false;
    };
    let Some(shadow) = Shadow::take() else { return false };
    shadow::end_own();
    shadow.stack.store(*stack.end(), Ordering::Relaxed);
    // It takes the place of the program's once that is given up.
    shadow.alternate.store(alternate, Ordering::Relaxed);
    // What ends the thread is the business of who has made it.
    shadow.is_first.store(true, Ordering::Relaxed);
    // SAFETY: the shadow was taken for this thread.
    unsafe { shadow.enter() };
    // Until the kernel has set the other one.
    shadow.program_fs.store(shadow.library_fs.load(Ordering::Relaxed), Ordering::Relaxed);
    true
}

/// The end of the addresses that programs have: TASK_SIZE_MAX of Linux, with 47 bits.
const ADDRESSES: usize = (1 << 47) - 4096;

/// Makes an arch_prctl(2) of a guest. Returns `None` if it is the kernel's.
///
/// # Safety
/// The program's pointer is valid.
pub unsafe fn arch_prctl(shadow: &Shadow, option: c_long, word: usize) -> Option<c_long> {
    // asm/prctl.h.
    const SET_GS: c_long = 0x1001;
    const SET_FS: c_long = 0x1002;
    const GET_FS: c_long = 0x1003;
    const GET_GS: c_long = 0x1004;
    match option {
        SET_FS if word >= ADDRESSES => return Some(failed(libc::EPERM)),
        SET_FS => shadow.program_fs.store(word, Ordering::Relaxed),
        // This library uses it.
        SET_GS => return Some(failed(libc::EPERM)),
        GET_FS | GET_GS => {
            let base = if option == GET_FS { shadow.program_fs.load(Ordering::Relaxed) } else { 0 };
            // SAFETY: the caller's promise.
            unsafe { (word as *mut usize).write_unaligned(base) };
        }
        _ => return None,
    }
    Some(0)
}

/// Returns whether this library has something to do with a call of a guest, whatever its words are.
pub fn concerns_us(number: c_long) -> bool {
    const CONCERN_US: [c_long; 6] = [
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_set_tid_address,
        libc::SYS_set_robust_list,
        libc::SYS_get_robust_list,
        libc::SYS_sigaltstack,
    ];
    CONCERN_US.contains(&number) || number == libc::SYS_brk && shadow::is_hosted()
}
