//! Notices the end of a process early, by a word that the kernel marks (get_robust_list(2)).
//!
//! A pidfd reports the end of a process when the kernel has freed its memory, which takes a millisecond or,
//! with much memory, many. The word is marked before that, and after the last instruction of the program.
//! Another process that can write the word may mark it, too: ask the kernel whether the process has ended.

use std::io;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use rustix::process::getpid;
use rustix::thread::gettid;

use crate::futex;

/// The head of a thread's list of robust futexes, as the kernel defines it.
#[repr(C)]
struct RobustList {
    first: usize,
    /// The offset from an entry to its futex.
    offset: isize,
    /// The entry that is being locked or unlocked; 0 if there is none.
    pending: AtomicUsize,
}

/// Makes the kernel mark the word when the calling thread ends, and wake the waiter in [`await_mark`]. The
/// thread must not use robust mutexes, and can have only one such word, which has to stay where it is as long
/// as the thread lives.
///
/// Fails with ENOSYS if the thread has no list of robust futexes.
pub fn mark_at_end(word: &AtomicU32) -> io::Result<()> {
    let (mut list, mut len): (*const RobustList, usize) = (std::ptr::null(), 0);
    // SAFETY: the call writes two words, which outlive it.
    let found = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut list, &raw mut len) };
    // SAFETY: the C library has given the kernel this list for the running thread, in memory that lives as
    // long as the thread. No other thread reads it, and it is accessed here only through an atomic.
    let list = unsafe { list.as_ref() }.filter(|_| found == 0 && len == size_of::<RobustList>());
    let list = list.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSYS))?;
    word.store(gettid().as_raw_nonzero().get().cast_unsigned() | libc::FUTEX_WAITERS, Ordering::Release);
    list.pending.store((word.as_ptr() as usize).wrapping_add_signed(-list.offset), Ordering::Release);
    Ok(())
}

/// Makes the process write the number of the signal to `word` when it dies by its own fault: SIGSEGV, SIGBUS,
/// SIGILL, SIGFPE, SIGTRAP, SIGABRT (sigaction(2)). A signal from another process is not its own fault, and
/// may not be deadly, so it does not change the word. The process dies as it would without this. Call it
/// once, and while handlers of these signals can still be changed.
pub fn report_faults_to(word: &'static AtomicU32) -> io::Result<()> {
    // Relaxed, here and below: the handler runs in this thread.
    WORD.store(std::ptr::from_ref(word).cast_mut(), Ordering::Relaxed);
    for (signal, before) in FAULTS.iter().zip(&BEFORE) {
        // SAFETY: all-zero is a valid `sigaction`: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: `action` is valid, and the call writes it.
        if unsafe { libc::sigaction(*signal, std::ptr::null(), &mut action) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // This is the standard library's handler, which reports a stack overflow; it takes all three
        // arguments.
        if action.sa_flags & libc::SA_SIGINFO != 0 {
            before.store(action.sa_sigaction, Ordering::Relaxed);
        }
        // Without an earlier handler the fault happens again when this one returns, and is deadly then.
        let once = if before.load(Ordering::Relaxed) == 0 { libc::SA_RESETHAND } else { 0 };
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | once;
        action.sa_sigaction = fault as extern "C" fn(_, _, _) as libc::sighandler_t;
        // SAFETY: `action` is valid and outlives the call; `fault` does only what a signal handler may.
        if unsafe { libc::sigaction(*signal, &action, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT];
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
/// The handlers that were installed before; 0 if there was none.
static BEFORE: [AtomicUsize; FAULTS.len()] = [const { AtomicUsize::new(0) }; FAULTS.len()];

/// Handles a fault: writes the number of the signal, and leaves the rest to the earlier handler.
extern "C" fn fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: SA_SIGINFO makes the kernel pass a valid siginfo_t, alive while the handler runs.
    let own = unsafe { info.as_ref() }.is_some_and(is_own);
    // SAFETY: the pointer is null, or made from a reference that lives for ever.
    if let Some(word) = unsafe { WORD.load(Ordering::Relaxed).as_ref() }.filter(|_| own) {
        word.store(signal.cast_unsigned(), Ordering::Release);
    }
    let at = FAULTS.iter().position(|fault| *fault == signal);
    let before = at.and_then(|at| BEFORE.get(at)).map_or(0, |before| before.load(Ordering::Relaxed));
    if before != 0 {
        type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: this was the handler of this signal, with SA_SIGINFO.
        let before: Handler = unsafe { std::mem::transmute::<usize, Handler>(before) };
        before(signal, info, context);
    } else if signal == libc::SIGABRT {
        // SIGABRT does not come again when the handler returns, so it is raised again.
        // SAFETY: the handler is not installed any more, so the signal is deadly now.
        unsafe { libc::raise(signal) };
    }
}

/// Returns whether the process itself has caused the signal, by an instruction or by raising it
/// (sigaction(2), si_code).
fn is_own(info: &libc::siginfo_t) -> bool {
    // SAFETY: if a process has sent the signal (a code not above 0), its number is there.
    info.si_code > 0 || unsafe { info.si_pid() } == getpid().as_raw_nonzero().get()
}

/// Sleeps until the word is marked, and returns true. Returns false if it was changed again and again, but
/// not by the kernel.
pub fn await_mark(word: &AtomicU32) -> io::Result<bool> {
    for _ in 0..LOOKS {
        let value = word.load(Ordering::Acquire);
        if value & libc::FUTEX_OWNER_DIED != 0 {
            return Ok(true);
        }
        futex::wait(word, value, None)?;
    }
    Ok(false)
}

/// The most changes of the word that are examined. Only the kernel should change it, and signals are few.
const LOOKS: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_is_marked_when_its_thread_ends() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let (sender, go) = std::sync::mpsc::channel::<()>();
            let word = &word;
            let thread = scope.spawn(move || {
                mark_at_end(word).unwrap();
                let _ = go.recv();
            });
            while word.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            let waits = scope.spawn(|| await_mark(word).unwrap());
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!waits.is_finished());
            drop(sender);
            thread.join().unwrap();
            assert!(waits.join().unwrap());
        });
    }

    /// This test runs in child processes, which die.
    #[test]
    fn a_fault_is_told_and_deadly_all_the_same() {
        const INSIDE: &str = "ATOLL_TEST_FAULT";
        const NAME: &str = "ending::tests::a_fault_is_told_and_deadly_all_the_same";
        if let Ok(kind) = std::env::var(INSIDE) {
            let file = crate::create_memfd("fault", 4096).unwrap();
            let mapping =
                crate::Mapping::new(&file, 4096, crate::Access::ReadWrite, crate::Prefault::No).unwrap();
            let mapping = Box::leak(Box::new(mapping));
            // SAFETY: the word is aligned, and mapped for as long as the process lives.
            let word: &'static AtomicU32 = unsafe { AtomicU32::from_ptr(mapping.as_ptr().cast()) };
            report_faults_to(word).unwrap();
            // A child of this process dies by the fault, so that this one can look at the word.
            // SAFETY: the child does only what follows, and dies.
            let child = unsafe { libc::fork() };
            if child == 0 {
                match kind.as_str() {
                    // SAFETY: the write kills the child.
                    "segv" => unsafe { std::ptr::null_mut::<u32>().write_volatile(1) },
                    "abort" => std::process::abort(),
                    // SAFETY: the signal kills the child.
                    "sent" => drop(unsafe { libc::kill(libc::getpid(), libc::SIGABRT) }),
                    // SAFETY: the child only waits for signals of its parent.
                    "outside" => drop(unsafe { (libc::pause(), libc::pause()) }),
                    // SAFETY: the signal kills the child.
                    _ => drop(unsafe { libc::kill(libc::getpid(), libc::SIGKILL) }),
                }
                // SAFETY: this ends a child that has not died.
                unsafe { libc::_exit(0) };
            }
            let mut status = 0;
            // The standard library's handler ignores the first signal, and is not installed any more after
            // that.
            // SAFETY: the child was not reaped yet, and `status` is valid.
            while kind == "outside" && unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
                // SAFETY: the child was not reaped yet, so the number is its own.
                unsafe { libc::kill(child, libc::SIGSEGV) };
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            // SAFETY: the call below gets a valid `status`.
            if kind != "outside" {
                // SAFETY: `status` is valid.
                unsafe { libc::waitpid(child, &mut status, 0) };
            }
            println!("told {} died {}", word.load(Ordering::Acquire), libc::WTERMSIG(status));
            return;
        }
        for (kind, expected) in [
            ("segv", "told 11 died 11"),
            ("abort", "told 6 died 6"),
            ("sent", "told 6 died 6"),
            ("kill", "told 0 died 9"),
            ("outside", "told 0 died 11"),
        ] {
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            let done = again.args(["--exact", NAME, "--nocapture"]).env(INSIDE, kind).output().unwrap();
            let said = String::from_utf8_lossy(&done.stdout);
            assert!(said.contains(expected), "{kind}: {said}");
        }
    }

    #[test]
    fn who_only_plays_with_the_word_is_not_waited_for_for_ever() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| await_mark(&word).unwrap());
            while !waits.is_finished() {
                // The word is never marked.
                word.fetch_add(1, Ordering::Release);
                let _ = futex::wake(&word, 1);
                std::thread::yield_now();
            }
            assert!(!waits.join().unwrap());
        });
    }
}
