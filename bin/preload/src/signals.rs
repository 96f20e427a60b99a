//! Signals of the running thread: blocking them, which are pending, and whether they restart calls.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::real::sys;

/// What is between the frame of a call and that of a handler that interrupts it, at least: the red zone, and
/// what the kernel saves (struct rt_sigframe with the state of x87 and SSE), in octets.
pub const FRAME_OF_SIGNAL: usize = 1024;

/// The signals that are never blocked in this process, a bit each; see [`crate::dispatch::masks`].
static HIDDEN: AtomicU64 = AtomicU64::new(0);

/// Lets signals never be blocked from now on.
pub fn keep_unblocked(signals: u64) {
    HIDDEN.store(signals, Ordering::Relaxed);
}

/// Returns the signals that are never blocked, a bit each.
pub fn hidden_signals() -> u64 {
    HIDDEN.load(Ordering::Relaxed)
}

/// Returns the bit of a signal in the kernel's masks; 0 for numbers that no signal has.
pub fn bit(signal: i32) -> u64 {
    u32::try_from(signal - 1).ok().and_then(|shift| 1u64.checked_shl(shift)).unwrap_or(0)
}

/// Sends a signal to the running thread: tgkill(2).
pub fn send_to_self(signal: i32) {
    // SAFETY: numbers only.
    unsafe { sys!(libc::SYS_tgkill, sys!(libc::SYS_getpid), sys!(libc::SYS_gettid), signal) };
}

/// Blocks all signals but those that are never blocked: sigprocmask(2). Returns the mask from before.
pub fn hold_signals() -> u64 {
    let (all, mut before) = (!hidden_signals(), 0u64);
    // SAFETY: two masks of the kernel's size, 8.
    unsafe { sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, &raw mut before, 8) };
    before
}

/// Restores the mask from before [`hold_signals`].
pub fn release_signals(before: u64) {
    let before = before & !hidden_signals();
    // SAFETY: a mask of the kernel's size, 8.
    unsafe {
        sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const before, std::ptr::null_mut::<u64>(), 8)
    };
}

/// Lets the running thread take a signal.
pub fn unblock_signal(signal: i32) {
    let mask = bit(signal);
    // SAFETY: a mask of the kernel's size, 8.
    unsafe {
        sys!(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const mask, std::ptr::null_mut::<u64>(), 8)
    };
}

/// Returns the signals that wait to be delivered, a bit each: sigpending(2).
pub fn pending_signals() -> u64 {
    let mut pending = 0u64;
    // SAFETY: a mask of the kernel's size, 8.
    unsafe { sys!(libc::SYS_rt_sigpending, &raw mut pending, 8) };
    pending
}

/// Returns whether an interrupted call is to go on: all signals that have handlers restart calls (signal(7),
/// SA_RESTART). It is unknown which of them has come. If any of them interrupts calls, EINTR is the safer
/// answer, which programs have to expect anyway.
pub fn signals_restart() -> bool {
    (1..=64).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP, 32, 33].contains(signal)).all(|signal| {
        // This is struct sigaction as the kernel has it: handler, flags, restorer, mask.
        let mut action = [0u64; 4];
        // SAFETY: room for the kernel's struct; 8 is the size of its signal set.
        let known =
            unsafe { sys!(libc::SYS_rt_sigaction, signal, std::ptr::null::<u64>(), action.as_mut_ptr(), 8) };
        known != 0 || action[0] <= 1 || action[1] & libc::SA_RESTART as u64 != 0
    })
}
