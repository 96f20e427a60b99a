//! The ways from a trapped system call back into the program.
//!
//! A stub begins with the program's registers as they were at its `syscall`, but for two that this
//! instruction changes anyway: `rcx` is the address behind it, as the kernel would leave it, and `r11` is
//! what [`super::trap`] has put there. No other register changes but `rax`, the flags and the vector
//! registers included. The 128 octets below the stack pointer are the program's (System V ABI, 3.2.2).

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{TEXT, TEXT_LEN, Words, carry, endings};
use crate::instruction::INSTRUCTION;
use crate::shadow::{ALL_LEN, ANY, IS_ENDING, PROGRAM_FS, Registers, SHADOWS, STACK};

/// The length of the processor's state: XSAVE's area, for all that is switched on.
static STATE_LEN: AtomicUsize = AtomicUsize::new(4096);

/// Notes how long the processor's state is.
pub fn note_size() {
    // Leaf 0xd: ebx is the length for what the system has switched on.
    let len = std::arch::x86_64::__cpuid_count(0xd, 0).ebx as usize;
    STATE_LEN.store(len.next_multiple_of(64).max(1024), Ordering::Relaxed);
}

/// Returns from a signal handler: the restorer of the handler of SIGSYS. The C library's own would be
/// dispatched in a thread that resolves names.
#[unsafe(naked)]
pub unsafe extern "C" fn restore() {
    core::arch::naked_asm!("mov eax, 15", "jmp qword ptr [rip + {gadget}]", gadget = sym INSTRUCTION)
}

/// Makes the program's call.
#[unsafe(naked)]
pub unsafe extern "C" fn pass_on() {
    core::arch::naked_asm!(
        "lea rsp, [rsp - 128]",
        "push rcx",
        "call qword ptr [rip + {gadget}]",
        "pop rcx",
        "lea rsp, [rsp + 128]",
        "jmp rcx",
        gadget = sym INSTRUCTION,
    )
}

/// Makes the program's clone(2) with a stack for the child, on which [`child`] finds what it needs. `r11` is
/// the child's stack pointer.
#[unsafe(naked)]
pub unsafe extern "C" fn clone() {
    core::arch::naked_asm!(
        "lea rsp, [rsp - 128]",
        "push rcx",
        "push rsi",
        "mov rsi, r11",
        "call qword ptr [rip + {gadget}]",
        "pop rsi",
        "pop rcx",
        "lea rsp, [rsp + 128]",
        "jmp rcx",
        gadget = sym INSTRUCTION,
    )
}

/// Makes the program's clone3(2). `r11` is the copy of its arguments in which the child's stack is shorter.
#[unsafe(naked)]
pub unsafe extern "C" fn clone3() {
    core::arch::naked_asm!(
        "lea rsp, [rsp - 128]",
        "push rcx",
        "push rdi",
        "mov rdi, r11",
        "call qword ptr [rip + {gadget}]",
        "pop rdi",
        "pop rcx",
        "lea rsp, [rsp + 128]",
        "jmp rcx",
        gadget = sym INSTRUCTION,
    )
}

/// Is where a child of [`clone`] or [`clone3`] begins: it dispatches, too, and goes on behind the program's
/// `syscall`. On its stack are what `rdi` and `rsi` were, and that address.
#[unsafe(naked)]
pub unsafe extern "C" fn child() {
    core::arch::naked_asm!(
        "pop rdi",
        "pop rsi",
        "push rdi",
        "push rsi",
        "push rdx",
        "push r10",
        "push r8",
        "mov eax, 157", // prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, the text, no selector)
        "mov edi, 59",
        "mov esi, 1",
        "mov rdx, [rip + {text}]",
        "mov r10, [rip + {len}]",
        "mov r8d, 0",
        "call qword ptr [rip + {gadget}]",
        "pop r8",
        "pop r10",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "cmp byte ptr [rip + {any}], 0", // its parent has the shadow
        "je 2f",
        "rdgsbase rcx",
        "lea r11, [rip + {shadows}]",
        "sub rcx, r11",
        "cmp rcx, {all_len}",
        "jae 2f",
        "mov ecx, 0",
        "wrgsbase rcx",
        "2: mov eax, 0",
        "pop rcx",
        "jmp rcx",
        gadget = sym INSTRUCTION,
        text = sym TEXT,
        len = sym TEXT_LEN,
        any = sym ANY,
        shadows = sym SHADOWS,
        all_len = const ALL_LEN,
    )
}

/// Defines a stub that calls [`carry`] with the program's call, on the stack whose end is in `r11`: what it
/// does before and after, besides. The call is a [`Frame`].
macro_rules! carries_out {
    ($name:ident, [$($ending:literal),*], [$($leaving:literal),*], $($operand:tt)*) => {
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "xchg rsp, r11",
                "push r11",
                "push rcx",
                "pushfq",
                "push rbx", // what functions keep is here for the child of a clone(2)
                "push r12",
                "push r13",
                "push r14",
                "push r15",
                "push rbp",
                "mov rbp, rsp",
                "push r9", // from here on this is a `Words`
                "push r8",
                "push r10",
                "push rdx",
                "push rsi",
                "push rdi",
                "push rax",
                "cld",
                "mov rdi, rsp",
                "sub rsp, [rip + {len}]",
                "and rsp, -64",
                "mov ecx, 8", // XSAVE wants the header to be zero
                "xor eax, eax",
                "2: mov [rsp + 504 + rcx * 8], rax",
                "dec ecx",
                "jnz 2b",
                "mov eax, 0xe7", // x87, SSE, AVX, AVX-512
                "xor edx, edx",
                "xsave64 [rsp]",
                "call {carry}",
                $($ending,)*
                "mov [rbp - 56], rax",
                "mov eax, 0xe7",
                "xor edx, edx",
                "xrstor64 [rsp]",
                "lea rsp, [rbp - 56]",
                "pop rax",
                "pop rdi",
                "pop rsi",
                "pop rdx",
                "pop r10",
                "pop r8",
                "pop r9",
                "pop rbp",
                "lea rsp, [rsp + 40]",
                "popfq",
                $($leaving,)*
                "pop rcx",
                "pop rsp",
                "jmp rcx",
                len = sym STATE_LEN,
                carry = sym carry,
                $($operand)*
            )
        }
    };
}

/// What [`carries_out`] has on the stack while it calls [`carry`].
#[repr(C)]
pub struct Frame {
    words: Words,
    rbp: usize,
    r15: usize,
    r14: usize,
    r13: usize,
    r12: usize,
    rbx: usize,
    flags: usize,
    rip: usize,
    /// The program's stack pointer when it goes on.
    pub sp: usize,
}

impl Frame {
    /// Returns the registers with which the program goes on.
    pub fn registers(&self) -> Registers {
        let [rdi, rsi, rdx, r10, r8, r9] = self.words.words.map(|word| word as usize);
        let Frame { rbp, r15, r14, r13, r12, rbx, rip, sp, .. } = *self;
        Registers { rbx, rbp, r12, r13, r14, r15, rdi, rsi, rdx, r8, r9, r10, rsp: sp, rip }
    }
}

carries_out! { carry_out, [], [], }

// For a guest: the library's FS base is in force at the begin, and the program's at the end. A thread that is
// to end goes on in [`end_guest`].
carries_out! {
    carry_out_of_guest,
    ["rdgsbase rcx", "cmp qword ptr [rcx + {is_ending}], 0", "jne {end}"],
    ["rdgsbase rcx", "mov rcx, [rcx + {program_fs}]", "wrfsbase rcx"],
    is_ending = const IS_ENDING, end = sym end_guest, program_fs = const PROGRAM_FS,
}

/// Goes on in the program's code, in a guest, with the [`crate::shadow::Registers`] at `rsi`, and zero as the
/// result of a call. `rdi` is the thread's shadow, and the FS base the library's.
#[unsafe(naked)]
pub unsafe extern "C" fn enter_program() {
    core::arch::naked_asm!(
        "mov r11, rsi",
        "mov rcx, [rdi + {program_fs}]",
        "mov rbx, [r11]",
        "mov rbp, [r11 + 8]",
        "mov r12, [r11 + 16]",
        "mov r13, [r11 + 24]",
        "mov r14, [r11 + 32]",
        "mov r15, [r11 + 40]",
        "mov rdi, [r11 + 48]",
        "mov rsi, [r11 + 56]",
        "mov rdx, [r11 + 64]",
        "mov r8, [r11 + 72]",
        "mov r9, [r11 + 80]",
        "mov r10, [r11 + 88]",
        "mov rsp, [r11 + 96]",
        "wrfsbase rcx",
        "mov rcx, [r11 + 104]",
        "xor eax, eax",
        "jmp rcx",
        program_fs = const PROGRAM_FS,
    )
}

/// Copies `rdx` octets from `rcx` to where the stack pointer in the [`crate::shadow::Registers`] at `rsi` is,
/// and goes on as [`enter_program`]. What is there may be the stack of whoever calls this.
#[unsafe(naked)]
pub unsafe extern "C" fn enter_first() {
    core::arch::naked_asm!(
        "mov rsp, [rsi + 96]",
        "mov r8, rdi",
        "mov r9, rsi",
        "mov rdi, rsp",
        "mov rsi, rcx",
        "mov rcx, rdx",
        "cld",
        "rep movsb",
        "mov rdi, r8",
        "mov rsi, r9",
        "jmp {enter}",
        enter = sym enter_program,
    )
}

/// Returns from the function in which a guest begins: the thread ends. `rcx` is its shadow.
#[unsafe(naked)]
pub unsafe extern "C" fn end_guest() {
    core::arch::naked_asm!(
        "mov rsp, [rcx + {stack}]",
        "mov rdi, rcx",
        "call {end}",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "xor eax, eax",
        "ret",
        stack = const STACK,
        end = sym endings::end,
    )
}
