//! How does a call sleep until its socket is ready? On bells, in an epoll instance.
//!
//! A bell is an eventfd that replicas ring (`atoll_sys::eventfd`) while its sleep word is odd. Sleepers watch it edge-triggered, each in an
//! epoll instance of their own, so that no sleeper touches it and all who share a bell wake together:
//!
//! ```text
//!   sleeper                                replica
//!   sleep word := next odd number          pushes its event
//!   fence                                  fence
//!   drains events, looks once more         sleep word odd and not rung yet? rings
//!   sleeps in epoll_wait
//! ```

use std::cell::Cell;

use atoll_base::{Duration, Instant, SpinPolicy};
use atoll_sockets::{Errno, Failure};
use atoll_sys::epoll::Epoll;
use atoll_sys::eventfd;

use crate::real::sys;
use crate::session::{SYSTEM_CALLS, Session};
use crate::state::{STATE, State};
use crate::table::Internal;
use crate::urgent;

/// A place to sleep: an epoll instance with bells in it.
#[derive(Debug)]
pub struct Waiter {
    epoll: Internal,
    /// Bells of each session (by number) that are in the instance.
    known: Vec<(u32, u16)>,
}

/// Token of a bell; tokens of other members are below.
pub const BELL_TOKEN: u64 = u64::MAX;

impl Waiter {
    /// A place to sleep, on nothing yet.
    pub fn new() -> Option<Waiter> {
        let epoll = Epoll::new().ok()?;
        let fd = rustix_fd(epoll);
        Some(Waiter { epoll: Internal::new(fd), known: Vec::new() })
    }

    /// The epoll instance.
    pub fn number(&self) -> i32 {
        self.epoll.number()
    }

    /// Adds a descriptor of the kernel, level-triggered.
    pub fn add(&self, fd: i32, token: u64) {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        // SAFETY: two numbers and a valid event.
        unsafe { sys!(libc::SYS_epoll_ctl, self.number(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    }

    /// Makes sure that `bells` of all sessions are in the instance; of shared ones, the family's bell as well.
    pub fn watch(&mut self, sessions: &[Session], bells: u16) {
        for session in sessions {
            let wanted = bells | u16::from(session.shared);
            let at = self.known.iter().position(|(id, _)| *id == session.id);
            let known = at.map_or(0, |at| self.known[at].1);
            for bell in bits(wanted & !known) {
                let mut event = libc::epoll_event { events: eventfd::WATCHED.bits(), u64: BELL_TOKEN };
                let fd = session.bells[bell as usize].number();
                // SAFETY: two numbers and a valid event.
                unsafe { sys!(libc::SYS_epoll_ctl, self.number(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
            }
            match at {
                Some(at) => self.known[at].1 |= wanted,
                None => self.known.push((session.id, wanted)),
            }
        }
    }

    /// Sleeps. Returns whether the member with `token` 0 is ready, or EINTR.
    pub fn sleep(epoll: i32, left: Option<Duration>, mask: *const libc::sigset_t) -> Result<bool, Errno> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        let millis = left.map_or(-1, |left| i32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
        count_system_call();
        // SAFETY: room for as many events as are told; the mask is null or the program's. 8: size of the kernel's signal set.
        let count = unsafe { sys!(libc::SYS_epoll_pwait, epoll, events.as_mut_ptr(), events.len(), millis, mask, 8) };
        if count < 0 {
            return Err(last_errno());
        }
        Ok(events[..count as usize].iter().any(|event| event.u64 == 0))
    }
}

fn rustix_fd(epoll: Epoll) -> std::os::fd::OwnedFd {
    use std::os::fd::{AsFd, AsRawFd, FromRawFd};
    let number = epoll.as_fd().as_raw_fd();
    std::mem::forget(epoll);
    // SAFETY: just created, and forgotten by its first owner.
    unsafe { std::os::fd::OwnedFd::from_raw_fd(number) }
}

/// The numbers of the bits that are set.
pub fn bits(mut mask: u16) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = mask.trailing_zeros();
        (mask != 0).then(|| {
            mask &= mask - 1;
            bit
        })
    })
}

/// Counts a system call of this thread.
#[inline]
pub fn count_system_call() {
    SYSTEM_CALLS.set(SYSTEM_CALLS.get().wrapping_add(1));
}

/// The last error of the C library in this thread.
pub fn last_errno() -> Errno {
    // SAFETY: a valid thread-local.
    Errno(unsafe { *libc::__errno_location() })
}

/// Repeats `step` until it does not block any more. `object`: what it waits for; `None`: a reply.
///
/// Fails with EAGAIN when `timeout` passes, with EINTR when a signal arrives that does not restart calls.
pub fn block<R>(
    object: Option<u32>,
    timeout: Option<Duration>,
    mut step: impl FnMut(&mut State) -> Result<R, Failure>,
) -> Result<R, Errno> {
    let mut deadline: Option<Instant> = None;
    let first = STATE.with(|state| {
        deadline = timeout.map(|timeout| state.now() + timeout);
        if let Some(object) = object {
            state.pin(object);
        }
        state.take_waiter()
    });
    let Some(mut waiter) = first else {
        if let Some(object) = object {
            STATE.with(|state| state.unpin(object));
        }
        return Err(Errno::EMFILE);
    };
    met(object.unwrap_or(0));
    let result = block_on(object, deadline, timeout.is_none(), &mut waiter, &mut step);
    waited();
    STATE.with(|state| {
        state.free_waiters.push(waiter);
        if let Some(object) = object {
            state.unpin(object);
        }
    });
    result
}

// structure: block_on: between two looks at what is awaited nothing may be left out
fn block_on<R>(
    object: Option<u32>,
    deadline: Option<Instant>,
    restarts: bool,
    (waiter, bell): &mut (Waiter, u32),
    step: &mut impl FnMut(&mut State) -> Result<R, Failure>,
) -> Result<R, Errno> {
    let (bell, number) = (*bell, waiter.number());
    let mut signals = urgent::sent();
    if let Err(errno) = spin_until_event()
        && !(restarts && signals_restart())
    {
        return Err(errno);
    }
    loop {
        let asleep = STATE.with(|state| {
            state.drain();
            state.look_if_due();
            if urgent::interrupts(&mut signals) && !(restarts && signals_restart()) {
                return Err(Err(Errno::EINTR.into()));
            }
            match step(state) {
                Err(Failure::WouldBlock) => {}
                result => return Err(result),
            }
            let left = deadline.map(|at| at.since(state.now()));
            if left == Some(Duration::ZERO) {
                return Err(Err(Errno::EAGAIN.into()));
            }
            waiter.watch(&state.sessions, 1 << bell);
            if let Some(object) = object {
                state.sleep_on(object, bell);
            }
            state.fall_asleep(1 << bell);
            state.drain();
            // Look once more: whoever publishes after this sees the sleep word.
            match step(state) {
                Err(Failure::WouldBlock) => {
                    state.doze_off();
                    Ok(state.nap(left))
                }
                result => {
                    state.wake_up(1 << bell);
                    if let Some(object) = object {
                        state.sleep_no_more(object, bell);
                    }
                    Err(result)
                }
            }
        });
        let left = match asleep {
            Ok(left) => left,
            Err(Ok(value)) => return Ok(value),
            Err(Err(Failure::Error(errno))) => return Err(errno),
            Err(Err(Failure::WouldBlock)) => continue,
        };
        // A handler of SIGURG has run in this thread: as if it had come during the sleep.
        let is_late = urgent::interrupts(&mut signals);
        let slept = if is_late { Err(Errno::EINTR) } else { Waiter::sleep(number, left, std::ptr::null()).map(drop) };
        STATE.with(|state| {
            state.wake_up(1 << bell);
            if let Some(object) = object {
                state.sleep_no_more(object, bell);
            }
        });
        if let Err(errno) = slept
            && !(errno == Errno::EINTR && restarts && signals_restart())
        {
            return Err(errno);
        }
    }
}

thread_local! {
    /// Whether this thread should spin. Taken while it is used, since a signal handler may come in between.
    static SPIN: Cell<Option<SpinPolicy>> = const { Cell::new(None) };
}

/// Not under the lock of the state.
fn with_spin_policy<R>(act: impl FnOnce(&mut SpinPolicy) -> R) -> R {
    let limit = || STATE.with(|state| state.sessions.first().map_or(0, |session| session.facts.spin_us));
    let mut patience = SPIN.take().unwrap_or_else(|| SpinPolicy::new(Duration::from_micros(limit().into())));
    let result = act(&mut patience);
    SPIN.set(Some(patience));
    result
}

/// There was something to do for `partner`, such as an object.
#[inline]
pub fn met(partner: u32) {
    if let Some(mut patience) = SPIN.take() {
        patience.met(partner);
        SPIN.set(Some(patience));
    }
}

/// Waits for an event without sleeping, for as long as that is worth it. Fails with EINTR if a signal came, and no event.
///
/// Signals are held back meanwhile: a handler that ran unnoticed between two looks would leave the caller asleep.
pub fn spin_until_event() -> Result<(), Errno> {
    with_spin_policy(|patience| {
        let mut now = STATE.with(|state| state.now());
        if !patience.begin(now) {
            return Ok(());
        }
        let held = hold_signals();
        let mut ready = false;
        while !ready && patience.goes_on(now) {
            let before = now;
            count_system_call();
            atoll_sys::sched::yield_now();
            ready = STATE.with(|state| {
                now = state.now();
                state.has_event()
            });
            patience.yielded(now.since(before));
        }
        let interrupted = !ready && pending_signals() & !held != 0;
        release_signals(held);
        if interrupted { Err(Errno::EINTR) } else { Ok(()) }
    })
}

/// The wait that began with [`spin_until_event`] is over.
pub fn waited() {
    let now = STATE.with(|state| state.now());
    with_spin_policy(|patience| patience.end(now));
}

/// Blocks all signals; returns the mask of before. sigprocmask(2).
pub fn hold_signals() -> u64 {
    let (all, mut before) = (u64::MAX, 0u64);
    // SAFETY: two masks of the kernel's size, 8.
    unsafe { sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, &raw mut before, 8) };
    before
}

pub fn release_signals(before: u64) {
    // SAFETY: a mask of the kernel's size, 8.
    unsafe { sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const before, std::ptr::null_mut::<u64>(), 8) };
}

/// The signals that wait to be delivered. sigpending(2).
pub fn pending_signals() -> u64 {
    let mut pending = 0u64;
    // SAFETY: a mask of the kernel's size, 8.
    unsafe { sys!(libc::SYS_rt_sigpending, &raw mut pending, 8) };
    pending
}

/// Whether an interrupted call is to go on: all signals that have handlers restart calls (signal(7), SA_RESTART). Which of them
/// has come cannot be told; if any asks for interruption, EINTR is the safer answer, which programs have to expect anyway.
fn signals_restart() -> bool {
    (1..=64).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP, 32, 33].contains(signal)).all(|signal| {
        // struct sigaction as the kernel has it: handler, flags, restorer, mask.
        let mut action = [0u64; 4];
        // SAFETY: room for the kernel's struct; 8 is the size of its signal set.
        let known = unsafe { sys!(libc::SYS_rt_sigaction, signal, std::ptr::null::<u64>(), action.as_mut_ptr(), 8) };
        known != 0 || action[0] <= 1 || action[1] & libc::SA_RESTART as u64 != 0
    })
}
