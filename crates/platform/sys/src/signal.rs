//! Delivers signals to an event loop, through a handler that writes them to a socket (sigaction(2),
//! signal-safety(7)).
//!
//! signalfd(2) is not used because it needs the signals blocked, and programs started later would inherit the
//! mask over execve(2), which resets handlers.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

pub use rustix::process::Signal;

/// The descriptor that the handler writes to; -1 until [`Signals::catch`] was called. It is never closed.
static OUTPUT: AtomicI32 = AtomicI32::new(-1);

/// The signals that have arrived, as a descriptor that can be polled.
#[derive(Debug)]
pub struct Signals(OwnedFd);

/// A signal that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caught {
    /// The number of the signal.
    pub signal: i32,
    /// Whether the kernel sent the signal by itself. For SIGINT, SIGQUIT and SIGTSTP that means a key of the
    /// terminal, whose signal has gone to all processes of the foreground group.
    pub by_kernel: bool,
}

impl Signals {
    /// Makes `signals` come out of [`Signals::next`] from now on, instead of having their default effect in
    /// this process. Signals that are ignored stay ignored, here and in programs started from here: nohup(1)
    /// relies on that.
    ///
    /// Fails with `AlreadyExists` if it was called before in this process. The signals stay caught when the
    /// value is dropped.
    pub fn catch(signals: &[Signal]) -> io::Result<Signals> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (input, output) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        // Relaxed: the handlers are installed afterwards, by system calls of this thread.
        if OUTPUT.compare_exchange(-1, output.as_raw_fd(), Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "signals are caught already"));
        }
        mem::forget(output);
        for signal in signals {
            // SAFETY: all-zero is a valid `sigaction`: no flags, an empty mask.
            let mut action: libc::sigaction = unsafe { mem::zeroed() };
            // SAFETY: a null pointer changes nothing; the present action is written to `action`, which is
            // valid.
            if unsafe { libc::sigaction(signal.as_raw(), ptr::null(), &mut action) } != 0 {
                return Err(io::Error::last_os_error());
            }
            if action.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            action.sa_sigaction = pass_on as extern "C" fn(_, _, _) as libc::sighandler_t;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            // SAFETY: `action` is valid and outlives the call; `pass_on` does only what a signal handler may.
            if unsafe { libc::sigaction(signal.as_raw(), &action, ptr::null_mut()) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Signals(input))
    }

    /// Returns the next signal, or `None` if none waits.
    pub fn next(&self) -> io::Result<Option<Caught>> {
        let mut message = [0; 2];
        match rustix::io::read(&self.0, &mut message) {
            Ok(2) => Ok(Some(Caught { signal: i32::from(message[0]), by_kernel: message[1] == 1 })),
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Lets a write to a pipe whose reader has gone end the process quietly, as in any program of a pipeline
/// (signal(7)). Rust ignores SIGPIPE otherwise.
pub fn die_of_broken_pipes() {
    // SAFETY: SIG_DFL is a valid disposition, and no handler of this process is replaced.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

impl AsFd for Signals {
    /// Returns the descriptor, which is readable when a signal has arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Handles a signal. A full socket loses it, as the kernel loses one that is pending already.
extern "C" fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: SA_SIGINFO makes the kernel pass a valid siginfo_t, alive while the handler runs.
    let by_kernel = unsafe { (*info).si_code } == libc::SI_KERNEL;
    let message = [signal as u8, u8::from(by_kernel)];
    // SAFETY: the number is that of an open socket that is never closed (forgotten in `catch`).
    let output = unsafe { BorrowedFd::borrow_raw(OUTPUT.load(Ordering::Relaxed)) };
    // This bare system call does not touch the errno of the interrupted code.
    let _ = rustix::io::write(output, &message);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_comes_out_once_and_signals_are_caught_once_per_process() {
        let signals = Signals::catch(&[Signal::USR2]).unwrap();
        assert_eq!(signals.next().unwrap(), None);
        rustix::process::kill_process(rustix::process::getpid(), Signal::USR2).unwrap();
        // Any thread may take the signal, a moment later.
        let caught = loop {
            if let Some(caught) = signals.next().unwrap() {
                break caught;
            }
            std::thread::yield_now();
        };
        assert_eq!(caught, Caught { signal: libc::SIGUSR2, by_kernel: false });
        assert_eq!(signals.next().unwrap(), None);
        assert_eq!(Signals::catch(&[]).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }
}
