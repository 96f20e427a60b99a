//! Looks at memory of the program before it is used, so that a pointer that leads nowhere is EFAULT, as of a
//! system call, and no SIGSEGV in this library: docs/decisions/pointers.md.
//!
//! An octet of each page is read, or written as it is, by [`look`] and [`touch`]. Where that faults, the
//! library's handler of SIGSEGV and SIGBUS ([`crate::handlers`]) goes on at [`fail`].

use std::ffi::c_void;

use atoll_sockets::Errno;

const PAGE: usize = 4096;

/// Reads an octet. Its first instruction is the one that may fault.
#[unsafe(naked)]
unsafe extern "C" fn look(_octet: usize) -> u32 {
    core::arch::naked_asm!("movzx eax, byte ptr [rdi]", "xor eax, eax", "ret")
}

/// Writes an octet as it is. Its first instruction is the one that may fault. It is atomic: another thread
/// may write there while this one waits in the call.
#[unsafe(naked)]
unsafe extern "C" fn touch(_octet: usize) -> u32 {
    core::arch::naked_asm!("lock or byte ptr [rdi], 0", "xor eax, eax", "ret")
}

/// Writes an octet as it is, which is written by the call next. Its first instruction is the one that may
/// fault.
#[unsafe(naked)]
unsafe extern "C" fn touch_target(_octet: usize) -> u32 {
    core::arch::naked_asm!("or byte ptr [rdi], 0", "xor eax, eax", "ret")
}

/// Is the end of [`look`], [`touch`] and [`touch_target`] after a fault.
#[unsafe(naked)]
unsafe extern "C" fn fail() -> u32 {
    core::arch::naked_asm!("mov eax, 1", "ret")
}

/// Returns where a thread goes on that has faulted at an instruction, if that looks at the program's memory.
pub fn after_fault(instruction: usize) -> Option<usize> {
    let looks = [look as *const () as usize, touch as *const () as usize, touch_target as *const () as usize];
    looks.contains(&instruction).then_some(fail as *const () as usize)
}

/// Returns how many octets from `start` on are there, at most `len`, going by an octet of each page.
#[inline]
fn reach(start: usize, len: usize, is_there: impl Fn(usize) -> bool) -> usize {
    if len == 0 || !is_there(start) {
        return 0;
    }
    let last = start.saturating_add(len - 1);
    let mut end = start | (PAGE - 1);
    while end < last {
        if !is_there(end + 1) {
            return end + 1 - start;
        }
        end = (end + 1) | (PAGE - 1);
    }
    last - start + 1
}

/// Returns whether `len` octets can be read.
#[inline]
pub fn can_read<T>(start: *const T, len: usize) -> bool {
    // SAFETY: a fault ends the function.
    reach(start as usize, len, |at| unsafe { look(at) } == 0) == len
}

/// Returns whether `len` octets can be written, which the call does next, to each of them.
#[inline]
pub fn can_overwrite<T>(start: *mut T, len: usize) -> bool {
    // SAFETY: a fault ends the function.
    reach(start as usize, len, |at| unsafe { touch_target(at) } == 0) == len
}

/// Returns whether `len` octets can be written.
#[inline]
pub fn can_write<T>(start: *mut T, len: usize) -> bool {
    writable(start, len) == len
}

/// Returns how many octets from `start` on can be written, at most `len`.
#[inline]
pub fn writable<T>(start: *mut T, len: usize) -> usize {
    // SAFETY: a fault ends the function.
    reach(start as usize, len, |at| unsafe { touch(at) } == 0)
}

/// Reads a value, which need not be aligned. Fails with EFAULT if it is nowhere.
///
/// # Safety
/// Any octets are a `T`.
#[inline]
pub unsafe fn get<T: Copy>(from: *const T) -> Result<T, Errno> {
    if !can_read(from, size_of::<T>()) {
        return Err(Errno::EFAULT);
    }
    // SAFETY: it was looked at; the caller's promise.
    Ok(unsafe { from.read_unaligned() })
}

/// Writes a value, which need not be aligned. Fails with EFAULT if there is no place.
#[inline]
pub fn put<T>(to: *mut T, value: T) -> Result<(), Errno> {
    if !can_write(to, size_of::<T>()) {
        return Err(Errno::EFAULT);
    }
    // SAFETY: it was touched.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Returns whether no program has memory at an address: access_ok() of the kernel.
pub fn is_beyond(address: *const c_void, len: usize) -> bool {
    const TASK_SIZE_MAX: usize = 0x7fff_ffff_f000;
    (address as usize).checked_add(len).is_none_or(|end| end > TASK_SIZE_MAX)
}

#[cfg(test)]
mod tests;
