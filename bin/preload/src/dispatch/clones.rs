//! What a clone(2) or clone3(2) asks for.

use std::ffi::{c_int, c_long};

use super::Words;
use crate::shadow::Registers;

/// The octets of struct clone_args that are looked at (linux/sched.h), and those that it has at least.
const ARGUMENTS: usize = 128;
const ARGUMENTS_MIN: usize = 64;

/// struct clone_args.
pub type Arguments = [u64; ARGUMENTS / 8];

/// Where fields of struct clone_args are, in words.
pub const FLAGS: usize = 0;
pub const STACK: usize = 5;
pub const STACK_LEN: usize = 6;
pub const MEMORY: usize = 7;
const CHILD_NUMBER: usize = 2;
const PARENT_NUMBER: usize = 3;
const SIGNAL: usize = 4;

/// A clone(2) or clone3(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clone {
    pub flags: u64,
    /// The signal at the child's end.
    pub signal: u64,
    /// The child's stack pointer; 0 if it goes on with a copy of its parent's stack.
    pub stack: usize,
    /// Where to write the child's number, for `CLONE_PARENT_SETTID`.
    pub parent_number: usize,
    /// Where to write it for `CLONE_CHILD_SETTID`, and what to clear for `CLONE_CHILD_CLEARTID`.
    pub child_number: usize,
    /// The FS base, for `CLONE_SETTLS`.
    pub memory: usize,
}

/// What becomes of a clone(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A thread of this process, with a stack of its own.
    Thread,
    /// A process with memory of its own, or one for which the parent waits, as of vfork(2).
    Process,
    /// Something else that shares the memory.
    Other,
}

impl Clone {
    /// Reads the arguments of a call; `None` if they are too short for a clone3(2).
    ///
    /// # Safety
    /// The words are those of a clone(2) or clone3(2).
    pub unsafe fn read(call: &Words) -> Option<Clone> {
        let [first, second, third, fourth, fifth, _] = call.words;
        if call.number == libc::SYS_clone {
            return Some(Clone {
                flags: first as u64 & !0xff,
                signal: first as u64 & 0xff,
                stack: second as usize,
                parent_number: third as usize,
                child_number: fourth as usize,
                memory: fifth as usize,
            });
        }
        // SAFETY: the caller's promise.
        let arguments = unsafe { arguments(first as *const u8, second as usize) }?;
        let word = |at: usize| arguments[at] as usize;
        Some(Clone {
            flags: arguments[FLAGS],
            signal: arguments[SIGNAL],
            stack: if arguments[STACK] == 0 { 0 } else { word(STACK).wrapping_add(word(STACK_LEN)) },
            parent_number: word(PARENT_NUMBER),
            child_number: word(CHILD_NUMBER),
            memory: word(MEMORY),
        })
    }

    pub fn has(&self, flag: c_int) -> bool {
        self.flags & u64::from(flag.cast_unsigned()) != 0
    }

    pub fn kind(&self) -> Kind {
        const OF_THREADS: c_int =
            libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_FS | libc::CLONE_FILES;
        const OTHERS: c_int = libc::CLONE_SYSVSEM
            | libc::CLONE_SETTLS
            | libc::CLONE_PARENT_SETTID
            | libc::CLONE_CHILD_SETTID
            | libc::CLONE_CHILD_CLEARTID
            | libc::CLONE_DETACHED
            | libc::CLONE_PTRACE;
        let required = u64::from(OF_THREADS.cast_unsigned());
        if self.flags & required == required
            && self.flags & !(required | u64::from(OTHERS.cast_unsigned())) == 0
            && self.stack != 0
        {
            return Kind::Thread;
        }
        let is_vfork = self.has(libc::CLONE_VFORK) && !self.has(libc::CLONE_THREAD);
        if is_vfork || !self.has(libc::CLONE_VM) { Kind::Process } else { Kind::Other }
    }
}

/// Returns a copy of a struct clone_args of the program's, with zeros behind it; `None` if it is too short.
///
/// # Safety
/// It is as long as `len` says.
pub unsafe fn arguments(at: *const u8, len: usize) -> Option<Arguments> {
    let mut words = [0; ARGUMENTS / 8];
    if at.is_null() || len < ARGUMENTS_MIN {
        return None;
    }
    // SAFETY: the caller's promise; there is room for as many.
    unsafe { std::ptr::copy_nonoverlapping(at, words.as_mut_ptr().cast::<u8>(), len.min(ARGUMENTS)) };
    Some(words)
}

/// Returns the registers of the program at a call.
///
/// # Safety
/// The call is where a stub has put it: [`super::stubs::Frame`].
pub unsafe fn registers(call: *const Words) -> Registers {
    // SAFETY: the caller's promise.
    unsafe { &*call.cast::<super::stubs::Frame>() }.registers()
}

/// Changes the stack pointer with which the program goes on after a call.
///
/// # Safety
/// The call is where a stub has put it.
pub unsafe fn set_stack(call: *mut Words, sp: usize) {
    // SAFETY: the caller's promise.
    unsafe { (*call.cast::<super::stubs::Frame>()).sp = sp };
}

/// Returns whether a call is a clone(2) or clone3(2).
pub fn is_clone(number: c_long) -> bool {
    number == libc::SYS_clone || number == libc::SYS_clone3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(number: c_long, words: [c_long; 6]) -> Option<Clone> {
        // SAFETY: the tests' words are valid.
        unsafe { Clone::read(&Words { number, words }) }
    }

    #[test]
    fn what_a_thread_is_and_what_a_process() {
        // Go 1.26, musl 1.2 and glibc 2.36 make threads with these flags.
        for flags in [0x0005_0f00, 0x007d_0f00, 0x003d_0f00] {
            assert_eq!(read(libc::SYS_clone, [flags, 0x1000, 0, 0, 0, 0]).unwrap().kind(), Kind::Thread);
            assert_eq!(read(libc::SYS_clone, [flags, 0, 0, 0, 0, 0]).unwrap().kind(), Kind::Other);
            // Another table of descriptors, and a thread in a new time namespace.
            for odd in [flags & !c_long::from(libc::CLONE_FILES), flags | 0x80] {
                let is_thread = read(libc::SYS_clone, [odd, 0x1000, 0, 0, 0, 0]).unwrap().kind();
                assert_eq!(is_thread == Kind::Thread, odd == flags | 0x80, "{odd:#x}");
            }
        }
        for flags in [17, 0x0120_0011, 0x4111, 0x0000_4011] {
            assert_eq!(read(libc::SYS_clone, [flags, 0, 0, 0, 0, 0]).unwrap().kind(), Kind::Process);
        }
    }

    #[test]
    fn the_stack_of_clone3_is_its_end() {
        let mut arguments: Arguments = [0; 16];
        (arguments[FLAGS], arguments[STACK], arguments[STACK_LEN]) = (0x003d_0f00, 0x5000, 0x1000);
        let words = |len| [arguments.as_ptr() as c_long, len, 0, 0, 0, 0];
        let clone = read(libc::SYS_clone3, words(88)).unwrap();
        assert_eq!((clone.stack, clone.kind()), (0x6000, Kind::Thread));
        assert_eq!(read(libc::SYS_clone3, words(63)), None);
        assert_eq!(read(libc::SYS_clone3, [0, 88, 0, 0, 0, 0]), None);
    }
}
