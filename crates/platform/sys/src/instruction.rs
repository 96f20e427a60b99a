//! System calls by an instruction whose place can be chosen.
//!
//! The preload library dispatches the calls that a program makes by instructions of its own to itself
//! (Syscall User Dispatch), and so would be interrupted by a signal for each call that rustix makes by an
//! instruction inside that library: about 3 us. So calls that programs wait for often (those of a fork) are
//! made by [`direct`], whose instruction is one that is let through once there is one.

use std::ffi::c_long;
use std::io;
use std::sync::atomic::AtomicPtr;

/// Where the instruction is, and a `ret` behind it: here, until there is one that is let through.
pub static INSTRUCTION: AtomicPtr<()> = AtomicPtr::new(own as *mut ());

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn own() {
    core::arch::naked_asm!("syscall", "ret")
}

#[cfg(not(target_arch = "x86_64"))]
unsafe extern "C" fn own() {}

/// Makes a system call that no thread has dispatched to the preload library. Returns a negative errno if it
/// fails, and does not touch the C library's.
///
/// # Safety
/// As for the system call.
#[cfg(target_arch = "x86_64")]
pub unsafe fn direct(number: c_long, words: [c_long; 6]) -> c_long {
    let result;
    // SAFETY: the instruction is followed by a `ret`; the caller's promise.
    unsafe {
        core::arch::asm!(
            "call {gadget}",
            gadget = in(reg) INSTRUCTION.load(std::sync::atomic::Ordering::Relaxed),
            inlateout("rax") number => result,
            in("rdi") words[0],
            in("rsi") words[1],
            in("rdx") words[2],
            in("r10") words[3],
            in("r8") words[4],
            in("r9") words[5],
            out("rcx") _,
            out("r11") _,
        );
    }
    result
}

/// Makes a system call by the C library, because there is no dispatching on this architecture.
///
/// # Safety
/// As for the system call.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn direct(number: c_long, words: [c_long; 6]) -> c_long {
    let [a, b, c, d, e, f] = words;
    // SAFETY: the caller's promise.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    match result {
        0.. => result,
        _ => -c_long::from(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
    }
}

/// Makes a system call as [`direct`] does. Returns its result, or its errno as an error.
///
/// # Safety
/// As for the system call.
pub(crate) unsafe fn call<const N: usize>(number: c_long, arguments: [c_long; N]) -> io::Result<c_long> {
    let mut words = [0; 6];
    words[..N].copy_from_slice(&arguments);
    // SAFETY: the caller's promise.
    match unsafe { direct(number, words) } {
        // An address that mmap(2) returns is never among the last 4095 numbers.
        result @ -4095..=-1 => Err(io::Error::from_raw_os_error(-result as i32)),
        result => Ok(result),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_returns_what_the_kernel_does_and_leaves_errno_alone() {
        // SAFETY: no arguments.
        assert_eq!(unsafe { call(libc::SYS_getpid, []) }.unwrap(), std::process::id() as c_long);
        // SAFETY: a valid thread-local of the C library.
        unsafe { *libc::__errno_location() = 77 };
        // SAFETY: no descriptor has this number.
        let refused = unsafe { call(libc::SYS_close, [-1]) };
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EBADF));
        // SAFETY: as above.
        assert_eq!(unsafe { *libc::__errno_location() }, 77);
    }
}
