//! Lets the processes of a family take turns in an arena that they share: one lock in the arena, which
//! survives its holder's death.
//!
//! ```text
//!   bits 0..29   thread number of the holder, in its own namespace; 0: nobody
//!   bit 29       the kernel does not know of the holder: others ask whether it is alive
//!   bit 30       the holder has died (FUTEX_OWNER_DIED)
//!   bit 31       somebody waits (FUTEX_WAITERS)
//! ```
//! The kernel is told of the lock as the C library tells it of a robust mutex (get_robust_list(2)): when a
//! thread that holds it ends, for whatever reason, the kernel sets bit 30 and wakes a waiter. That needs no
//! system call, and is reliable where a question would not be: the thread number may be another's by then, or
//! of another namespace, and the waiter may be the very process that has to reap the dead one. Each thread
//! has room for one such lock (the list's pending operation), which is enough: a second one at the same time,
//! or that of a thread without such a list, has bit 29.
//!
//! Nobody waits for the lock while it holds the lock of its process's state: the holder may be stopped, and
//! the other threads of the process have other sockets. A call that does not get the lock leaves the state,
//! waits ([`Missed::wait`]), and begins again.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, compiler_fence};

use atoll_base::Duration;
use atoll_shm::ShmMemory;
use atoll_sockets::client::platform::Before;

use crate::real::{last_errno, sys};

const NUMBER: u32 = (1 << 29) - 1;
const UNWATCHED: u32 = 1 << 29;
const DIED: u32 = libc::FUTEX_OWNER_DIED;
const WAITED_FOR: u32 = libc::FUTEX_WAITERS;

/// The longest sleep until a lock is free, because a hostile process may prevent the wake-up.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The lock that a thread did not get since the last [`take_missed`]: the address of its word, 0 if there is
/// none, and the word's value. Both are used under the lock of the process's state.
static MISSED: (AtomicUsize, AtomicU32) = (AtomicUsize::new(0), AtomicU32::new(0));

/// The lock while it is held; dropping it releases the lock.
#[derive(Debug)]
pub struct FamilyLock {
    memory: ShmMemory,
    at: usize,
    watched: bool,
}

impl FamilyLock {
    /// Takes the lock whose word is at `at`. Also returns whether the last holder has died. Returns `None`
    /// if another thread holds the lock after a moment: [`take_missed`] knows which one it is. The caller
    /// holds the lock of the process's state.
    pub fn acquire(memory: ShmMemory, at: usize) -> Option<(FamilyLock, Before)> {
        let Some(word) = memory.atomic32(at) else {
            return Some((FamilyLock { memory, at, watched: false }, Before::Done));
        };
        let watched = watch(word);
        match take(word, thread_number() | if watched { 0 } else { UNWATCHED }) {
            Ok(before) => Some((FamilyLock { memory, at, watched }, before)),
            Err(found) => {
                if watched {
                    unwatch();
                }
                MISSED.0.store(word.as_ptr() as usize, Ordering::Relaxed);
                MISSED.1.store(found, Ordering::Relaxed);
                None
            }
        }
    }
}

/// A lock that a thread did not get.
#[derive(Debug)]
pub struct Missed {
    address: usize,
    value: u32,
}

/// Returns the lock that a thread did not get since the last call. The caller holds the lock of the process's
/// state.
#[inline]
pub fn take_missed() -> Option<Missed> {
    let address = MISSED.0.load(Ordering::Relaxed);
    if address == 0 {
        return None;
    }
    MISSED.0.store(0, Ordering::Relaxed);
    Some(Missed { address, value: MISSED.1.load(Ordering::Relaxed) })
}

impl Missed {
    /// Waits until the lock may be free, for [`LOOK_EVERY`] at most, or until a signal comes. The caller does
    /// not hold the lock of the process's state. The arena may be gone by now.
    pub fn wait(self) {
        crate::instruction::futex_wait_at(self.address, self.value, Some(LOOK_EVERY));
    }
}

impl Drop for FamilyLock {
    fn drop(&mut self) {
        if let Some(word) = self.memory.atomic32(self.at)
            && word.swap(0, Ordering::Release) & WAITED_FOR != 0
        {
            crate::instruction::futex_wake(word, u32::MAX);
        }
        if self.watched {
            unwatch();
        }
    }
}

/// Takes a lock for the holder `me`. Returns how its last holder left it, or the word of a lock that another
/// thread still holds after [`SPINS`] looks, which says by then that somebody waits.
fn take(word: &AtomicU32, me: u32) -> Result<Before, u32> {
    let mut spins = 0;
    loop {
        let Err(found) = word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) else {
            return Ok(Before::Done);
        };
        if found & DIED != 0 || found & UNWATCHED != 0 && spins >= SPINS && is_gone(found & NUMBER) {
            let mine = me | found & WAITED_FOR;
            if word.compare_exchange(found, mine, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Ok(Before::Died);
            }
        } else if spins < SPINS {
            spins += 1;
            std::hint::spin_loop();
        } else {
            let waited = found | WAITED_FOR;
            if found == waited
                || found != 0
                    && word.compare_exchange(found, waited, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                return Err(waited);
            }
        }
    }
}

/// The number of looks before a thread gives up for now.
const SPINS: u32 = 200;

/// Returns whether there is no thread of that number in this namespace.
fn is_gone(number: u32) -> bool {
    // SAFETY: signal 0 only asks whether the thread exists.
    let asked = unsafe { sys!(libc::SYS_kill, number, 0) };
    asked < 0 && last_errno().0 == libc::ESRCH
}

/// The head of a thread's list of robust futexes, as the kernel defines it.
#[repr(C)]
struct RobustList {
    first: usize,
    /// The distance from an entry to its futex, in bytes.
    offset: isize,
    /// The entry that is being locked or unlocked; 0 if there is none.
    pending: AtomicUsize,
}

thread_local! {
    static THREAD: Cell<u32> = const { Cell::new(0) };
    /// The address of the list, 0 if the thread has none.
    static LIST: Cell<usize> = const { Cell::new(0) };
}

fn thread_number() -> u32 {
    if THREAD.get() == 0 {
        // SAFETY: no arguments.
        THREAD.set(unsafe { sys!(libc::SYS_gettid) } as u32);
        let (mut list, mut len) = (0usize, 0usize);
        // SAFETY: two words to be written.
        let found = unsafe { sys!(libc::SYS_get_robust_list, 0, &raw mut list, &raw mut len) };
        LIST.set(if found == 0 && len == size_of::<RobustList>() { list } else { 0 });
    }
    THREAD.get()
}

/// Asks for the thread number anew, because the child of a fork has another one. It asks at once: the child
/// may be about to forbid itself to ask (sshd(8) does).
pub fn renew_thread() {
    THREAD.set(0);
    thread_number();
}

fn list<'a>() -> Option<&'a RobustList> {
    thread_number();
    // SAFETY: the C library has given the kernel this list for the running thread, in memory that lives as
    // long as the thread. Others than the thread itself do not look at it, and it is reached here through an
    // atomic only.
    unsafe { (LIST.get() as *const RobustList).as_ref() }
}

/// Makes the kernel examine the lock when this thread ends. Returns false if that is impossible.
fn watch(word: &AtomicU32) -> bool {
    let Some(list) = list().filter(|list| list.pending.load(Ordering::Relaxed) == 0) else { return false };
    list.pending.store((word.as_ptr() as usize).wrapping_add_signed(-list.offset), Ordering::Relaxed);
    // The kernel sees what this thread has done, in its order.
    compiler_fence(Ordering::SeqCst);
    true
}

fn unwatch() {
    compiler_fence(Ordering::SeqCst);
    if let Some(list) = list() {
        list.pending.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_shm::Access;

    fn memory() -> ShmMemory {
        let fd = atoll_sys::create_memfd("lock", 4096).expect("a memfd");
        ShmMemory::map(&fd, 4096, Access::ReadWrite).expect("mapped")
    }

    /// Takes the lock, however long others hold it.
    fn acquire(memory: &ShmMemory, at: usize) -> (FamilyLock, Before) {
        loop {
            if let Some(taken) = FamilyLock::acquire(memory.clone(), at) {
                return taken;
            }
            let word = memory.atomic32(at).expect("a word");
            Missed { address: word.as_ptr() as usize, value: word.load(Ordering::Relaxed) }.wait();
        }
    }

    #[test]
    fn nobody_waits_for_a_lock_that_is_held_before_it_has_left_the_state() {
        let memory = memory();
        let (held, _) = acquire(&memory, 64);
        assert!(FamilyLock::acquire(memory.clone(), 64).is_none());
        assert_eq!(memory.atomic32(64).expect("a word").load(Ordering::Relaxed) & WAITED_FOR, WAITED_FOR);
        drop(held);
        let (_held, before) = FamilyLock::acquire(memory.clone(), 64).expect("free");
        assert_eq!(before, Before::Done);
        assert!(FamilyLock::acquire(memory.clone(), 128).is_some(), "another lock at the same time");
        // The arena of a lock may be gone when somebody waits for it.
        Missed { address: 8, value: 1 }.wait();
    }

    /// Runs `f` in a child, which is dead, and not waited for, when this returns.
    fn in_a_child(f: impl FnOnce()) -> i32 {
        // SAFETY: the child does what is said here, and dies.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            f();
            // SAFETY: ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        // SAFETY: a valid siginfo; the child stays a zombie.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let waited =
            unsafe { libc::waitid(libc::P_PID, child as u32, &raw mut info, libc::WEXITED | libc::WNOWAIT) };
        assert_eq!(waited, 0);
        child
    }

    #[test]
    fn the_lock_of_a_dead_process_is_taken_over_even_if_nobody_has_reaped_it() {
        let memory = memory();
        let child = in_a_child(|| std::mem::forget(FamilyLock::acquire(memory.clone(), 64)));
        assert_eq!(acquire(&memory, 64).1, Before::Died);
        assert_eq!(acquire(&memory, 64).1, Before::Done);
        // SAFETY: the child of above.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    }

    #[test]
    fn who_holds_two_locks_loses_both_with_its_life() {
        let memory = memory();
        let child = in_a_child(|| {
            std::mem::forget(FamilyLock::acquire(memory.clone(), 64));
            std::mem::forget(FamilyLock::acquire(memory.clone(), 128));
        });
        // SAFETY: the child of above. Of the second lock nothing is known before it is gone.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        for at in [64, 128] {
            assert_eq!(acquire(&memory, at).1, Before::Died);
        }
    }

    #[test]
    fn one_at_a_time_holds_it_and_all_get_it() {
        let memory = memory();
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let (lock, before) = acquire(&memory, 64);
                        assert_eq!((before, inside.fetch_add(1, Ordering::SeqCst)), (Before::Done, 0));
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(lock);
                    }
                });
            }
        });
    }
}
