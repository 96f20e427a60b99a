//! Stacks on which calls are carried out for threads whose own may be too short.
//!
//! A thread that has an alternate signal stack (sigaltstack(2)) says that its own may have no room for a
//! handler: the stacks of goroutines have a few hundred octets to spare. A call of such a thread is carried
//! out on a stack that is made when it is first needed. A thread without has had room for the trap's handler
//! on its own stack, and its calls are carried out there, below.

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::instruction::direct;
use crate::shadow::{self, STACK_LEN, Shadow};

/// The length of a stack. The kernel gives memory for what is used of it.
const LEN: usize = STACK_LEN;
/// What is left out at its lower end, so that an overflow is a fault.
const GUARD: usize = 4096;

thread_local! {
    /// The lowest address of this thread's stack; 0 if it has none.
    static STACK: Cell<usize> = const { Cell::new(0) };
}

/// The key whose destructor gives a thread's stack back, plus 1; 0 if there is none.
static KEY: AtomicU32 = AtomicU32::new(0);
/// Below this number setting a key's value allocates no memory: glibc's PTHREAD_KEY_2NDLEVEL_SIZE.
const KEYS_WITH_ROOM: u32 = 32;

/// Makes what gives stacks back at the end of their threads. Called once, by the constructor.
pub fn install() {
    let mut key = 0;
    // SAFETY: a valid place, and a function that may be called with any value.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(give_back)) } == 0 && key < KEYS_WITH_ROOM {
        KEY.store(key + 1, Ordering::Relaxed);
    }
}

unsafe extern "C" fn give_back(stack: *mut libc::c_void) {
    if STACK.get() == stack as usize {
        shadow::end_own();
        STACK.set(0);
        // SAFETY: this thread's, which is on its own stack.
        unsafe { direct(libc::SYS_munmap, [stack as i64, LEN as i64, 0, 0, 0, 0]) };
    }
}

/// Returns the stack pointer with which a call is carried out that was made at `sp`, by a thread with this
/// alternate stack. Where calls come without a trap, the thread's next ones do so.
pub fn choose(sp: usize, alternate: &libc::stack_t) -> usize {
    // The red zone is the program's.
    let below = (sp - 128) & !63;
    if is_off(alternate) || is_on(sp, alternate) {
        // On the alternate stack it stays there: for the kernel that is in use only while the stack pointer
        // is inside, and the next handler would begin at its end.
        return below;
    }
    match private() {
        Some(stack) if !stack.contains(&sp) => {
            shadow::begin_own(*stack.end(), alternate);
            *stack.end()
        }
        _ => below,
    }
}

/// Returns the stack pointer with which a call of a guest is carried out, as [`choose`] does: each guest has
/// a stack of the library's.
pub fn choose_of_guest(shadow: &Shadow, sp: usize, alternate: &libc::stack_t) -> usize {
    match is_on(sp, alternate) || shadow.is_on_stack(sp) {
        true => (sp - 128) & !63,
        false => shadow.stack.load(Ordering::Relaxed),
    }
}

fn is_off(alternate: &libc::stack_t) -> bool {
    alternate.ss_flags & libc::SS_DISABLE != 0 || alternate.ss_size == 0
}

/// Returns whether a stack pointer is on an alternate stack.
pub fn is_on(sp: usize, alternate: &libc::stack_t) -> bool {
    let first = alternate.ss_sp as usize;
    !is_off(alternate) && (first..=first + alternate.ss_size).contains(&sp)
}

/// Returns this thread's stack, which it makes at the first call; `None` if there is no memory.
pub fn private() -> Option<RangeInclusive<usize>> {
    let mut stack = STACK.get();
    if stack == 0 {
        let key = KEY.load(Ordering::Relaxed).checked_sub(1)?;
        stack = map(LEN)?;
        // SAFETY: the lowest page of it; a valid key.
        unsafe {
            direct(libc::SYS_mprotect, [stack as i64, GUARD as i64, 0, 0, 0, 0]);
            libc::pthread_setspecific(key, stack as *const libc::c_void);
        }
        STACK.set(stack);
    }
    Some(stack + GUARD..=stack + LEN)
}

/// Maps memory for a stack. Returns its lowest address.
pub fn map(len: usize) -> Option<usize> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    let words = [0, len as i64, access.into(), kind.into(), -1, 0];
    // SAFETY: new memory.
    usize::try_from(unsafe { direct(libc::SYS_mmap, words) }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alternate(first: usize, len: usize, flags: i32) -> libc::stack_t {
        libc::stack_t { ss_sp: first as *mut libc::c_void, ss_flags: flags, ss_size: len }
    }

    #[test]
    fn only_threads_with_an_alternate_stack_that_they_are_not_on_get_one_of_ours() {
        install();
        let here = 0x7000_0000_1234;
        let below = (here - 128) & !63;
        assert_eq!(choose(here, &alternate(0, 0, 0)), below);
        assert_eq!(choose(here, &alternate(0x1000, 0x1000, libc::SS_DISABLE)), below);
        assert_eq!(choose(here, &alternate(here - 0x1000, 0x2000, 0)), below);
        let ours = choose(here, &alternate(0x1000, 0x1000, 0));
        assert_ne!(ours, below);
        assert_eq!(ours, choose(here, &alternate(0x1000, 0x1000, 0)), "a thread has one");
        let inside = ours - 4096;
        assert_eq!(choose(inside, &alternate(0x1000, 0x1000, 0)), (inside - 128) & !63);
        // SAFETY: the last octets of it.
        unsafe { ((ours - 8) as *mut u64).write(1) };
    }
}
