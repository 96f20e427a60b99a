use std::sync::Mutex;

use super::*;
use crate::signals::pending_signals;

static COUNT: AtomicU32 = AtomicU32::new(0);
static VALUE: AtomicUsize = AtomicUsize::new(0);
static SHARED: FutexLock<u64> = FutexLock::new(0);
/// Handlers and their counts are the process's.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

unsafe extern "C" fn count(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    COUNT.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel's description of the signal.
    VALUE.store(unsafe { (*info).si_value().sival_ptr as usize }, Ordering::Relaxed);
}

unsafe extern "C" fn lock(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    SHARED.with(|number| *number += 1);
    COUNT.fetch_add(1, Ordering::Relaxed);
}

fn action(handler: unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void), flags: c_int) -> sigaction {
    // SAFETY: all-zero is a valid value.
    let empty: sigaction = unsafe { mem::zeroed() };
    sigaction { sa_sigaction: handler as *const () as usize, sa_flags: flags, ..empty }
}

fn install(signal: c_int, action: &sigaction) -> sigaction {
    // SAFETY: all-zero is a valid value.
    let mut old: sigaction = unsafe { mem::zeroed() };
    // SAFETY: both are valid.
    assert_eq!(unsafe { set(signal, action, &raw mut old) }, 0);
    old
}

fn raise(signal: c_int, value: usize) {
    let value = libc::sigval { sival_ptr: value as *mut c_void };
    // SAFETY: numbers.
    unsafe { assert_eq!(libc::pthread_sigqueue(libc::pthread_self(), signal, value), 0) };
}

fn blocked() -> u64 {
    // SAFETY: a mask to be written.
    unsafe {
        let mut set: sigset_t = mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut set);
        word(&set)
    }
}

#[test]
fn a_handler_runs_when_the_last_lock_is_free() {
    let _turn = ONE_AT_A_TIME.lock();
    install(libc::SIGUSR1, &action(count, libc::SA_SIGINFO));
    COUNT.store(0, Ordering::Relaxed);
    let (mask, mut ran) = (blocked(), Ran::now());
    critical::enter();
    critical::enter();
    raise(libc::SIGUSR1, 0x5a5a);
    assert_eq!(COUNT.load(Ordering::Relaxed), 0);
    critical::leave();
    assert_eq!((COUNT.load(Ordering::Relaxed), ran.interrupt(false)), (0, false));
    critical::leave();
    assert_eq!((COUNT.load(Ordering::Relaxed), VALUE.load(Ordering::Relaxed)), (1, 0x5a5a));
    assert_eq!((ran.interrupt(true), ran.interrupt(true)), (true, false));
    assert_eq!(blocked(), mask, "the mask is as it was");
    raise(libc::SIGUSR1, 7);
    assert_eq!((COUNT.load(Ordering::Relaxed), VALUE.load(Ordering::Relaxed)), (2, 7));
}

/// The mask of a thread that is in a section is not what the library has asked for.
#[test]
fn a_signal_that_comes_again_waits_for_the_end_of_the_section() {
    let _turn = ONE_AT_A_TIME.lock();
    install(libc::SIGUSR1, &action(count, libc::SA_SIGINFO));
    COUNT.store(0, Ordering::Relaxed);
    let mask = blocked();
    critical::enter();
    raise(libc::SIGUSR1, 1);
    assert_ne!(pending_signals() & bit(libc::SIGUSR1), 0);
    release_signals(mask);
    assert_eq!((COUNT.load(Ordering::Relaxed), pending_signals() & bit(libc::SIGUSR1)), (0, 0));
    critical::leave();
    assert_eq!((COUNT.load(Ordering::Relaxed), blocked()), (1, mask));
}

#[test]
fn a_program_sees_its_own_actions() {
    let _turn = ONE_AT_A_TIME.lock();
    let mut wanted = action(count, libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_NODEFER);
    wanted.sa_mask = of_word(bit(libc::SIGUSR1) | bit(64));
    install(libc::SIGUSR2, &wanted);
    let old = install(libc::SIGUSR2, &action(lock, libc::SA_SIGINFO));
    assert_eq!((old.sa_sigaction, old.sa_flags & !0x0400_0000), (wanted.sa_sigaction, wanted.sa_flags));
    assert_eq!(word(&old.sa_mask), word(&wanted.sa_mask));
    // SAFETY: all-zero is SIG_DFL.
    let default: sigaction = unsafe { mem::zeroed() };
    assert_eq!(install(libc::SIGUSR2, &default).sa_sigaction, lock as *const () as usize);
    assert_eq!(install(libc::SIGUSR2, &default).sa_sigaction, SIG_DFL);
    for signal in [0, -1, 65, libc::SIGKILL] {
        // SAFETY: a valid action.
        assert_eq!(unsafe { set(signal, &raw const wanted, std::ptr::null_mut()) }, -1, "{signal}");
    }
}

#[test]
fn flags_and_masks_act() {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn see(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
        SEEN.store(blocked(), Ordering::Relaxed);
    }
    let _turn = ONE_AT_A_TIME.lock();
    let before = blocked();
    let mut wanted = action(see, libc::SA_RESETHAND | libc::SA_RESTART);
    wanted.sa_mask = of_word(bit(libc::SIGUSR1));
    let mut ran = Ran::now();
    install(libc::SIGUSR2, &wanted);
    raise(libc::SIGUSR2, 0);
    assert_eq!(SEEN.load(Ordering::Relaxed), before | bit(libc::SIGUSR1) | bit(libc::SIGUSR2));
    assert!(!ran.interrupt(true), "calls go on after a handler with SA_RESTART");
    wanted.sa_flags = libc::SA_NODEFER;
    assert_eq!(install(libc::SIGUSR2, &wanted).sa_sigaction, SIG_DFL, "it was reset");
    raise(libc::SIGUSR2, 0);
    assert_eq!(SEEN.load(Ordering::Relaxed), before | bit(libc::SIGUSR1));
}

/// Signals interrupt a thread at any instruction, and a handler that takes the lock that the thread
/// takes all the time.
#[test]
fn a_handler_may_take_the_lock_that_it_interrupts() {
    const SIGNALS_SENT: u32 = 500;
    let _turn = ONE_AT_A_TIME.lock();
    install(libc::SIGUSR1, &action(lock, libc::SA_SIGINFO));
    COUNT.store(0, Ordering::Relaxed);
    // SAFETY: numbers, and a handle of this thread, which outlives the other one.
    let thread = unsafe { libc::pthread_self() } as usize;
    let sender = std::thread::spawn(move || {
        for sent in 1..=SIGNALS_SENT {
            // SAFETY: as above.
            unsafe { libc::pthread_kill(thread as libc::pthread_t, libc::SIGUSR1) };
            while COUNT.load(Ordering::Relaxed) < sent {
                std::thread::yield_now();
            }
        }
    });
    let mut own = 0;
    while !sender.is_finished() {
        SHARED.with(|number| *number += 1);
        // The heap has a lock, too.
        drop(std::hint::black_box(vec![0u8; 100]));
        own += 1;
    }
    sender.join().expect("it ends");
    assert_eq!(SHARED.with(|number| *number), own + u64::from(SIGNALS_SENT));
}
