//! How does a call sleep until its socket is ready? On a bell, in an epoll instance of its thread.

use std::cell::Cell;

use atoll_base::{Duration, Instant};
use atoll_ipc::Memory;
use atoll_sockets::{Errno, Failure};

use crate::real;
use crate::state::{Body, Object, STATE, Sleeper, State};

thread_local! {
    /// Real epoll instance of this thread with its bell's eventfd, and the bell; -1: none yet.
    static MINE: Cell<(i32, u32, u32)> = const { Cell::new((-1, 0, 0)) };
}

/// Data of the bell in a real epoll instance.
pub const BELL_DATA: u64 = 0xa701_1be1_1a70_11be;

/// The current time of the stack's clock.
pub fn now(state: &State) -> Instant {
    state.clock.as_ref().map_or(Instant::ZERO, |clock| clock.now())
}

/// Repeats `step` until it does not block any more. `object`: what it waits for; `None`: a reply.
///
/// Fails with EAGAIN when `timeout` passes, with EINTR when a signal arrives.
pub fn block<R>(
    object: Option<u32>,
    timeout: Option<Duration>,
    mut step: impl FnMut(&mut State) -> Result<R, Failure>,
) -> Result<R, Errno> {
    let mut deadline = None;
    loop {
        let first = STATE.with(|state| {
            let result = step(state);
            if !matches!(result, Err(Failure::WouldBlock)) {
                return Some(result);
            }
            state.drain();
            match step(state) {
                Err(Failure::WouldBlock) => {
                    deadline = deadline.or_else(|| timeout.map(|timeout| now(state) + timeout));
                    None
                }
                result => Some(result),
            }
        });
        match first {
            Some(Ok(value)) => return Ok(value),
            Some(Err(Failure::Error(errno))) => return Err(errno),
            _ => {}
        }
        if spin() {
            continue;
        }
        let (epoll, bell) = thread_epoll();
        let asleep = STATE.with(|state| {
            state.system_calls += 1;
            go_to_sleep(state, object, bell);
            state.drain();
            // Look once more: whoever published after this sees the sleep word.
            match step(state) {
                Err(Failure::WouldBlock) => Ok(deadline.map(|at: Instant| at.since(now(state)))),
                result => {
                    wake_up(state, object, bell);
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
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let millis = left.map_or(-1, |left| i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
        // SAFETY: `event` is one valid entry; the instance belongs to this thread.
        let count = unsafe { real::epoll_pwait(epoll, &raw mut event, 1, millis, std::ptr::null()) };
        let interrupted = count < 0;
        STATE.with(|state| wake_up(state, object, bell));
        if interrupted && (timeout.is_some() || !restarts()) {
            return Err(Errno::EINTR);
        }
        if let Some(at) = deadline
            && STATE.with(|state| now(state)) >= at
        {
            return STATE.with(|state| {
                state.drain();
                match step(state) {
                    Ok(value) => Ok(value),
                    Err(Failure::Error(errno)) => Err(errno),
                    Err(Failure::WouldBlock) => Err(Errno::EAGAIN),
                }
            });
        }
    }
}

/// Whether an interrupted call goes on, as signal(7) wants it for handlers installed with SA_RESTART.
///
/// Nothing says which signal it was; it goes on if all handlers of this process want that.
fn restarts() -> bool {
    (1..32).all(|signal| {
        // SAFETY: all-zero is a valid value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: only asks; `action` is valid.
        let known = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) } == 0;
        let handled = known && action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
        !handled || action.sa_flags & libc::SA_RESTART != 0
    })
}

/// Spins for as long as the stack says, giving the core to others meanwhile. Returns whether an event came.
pub fn spin() -> bool {
    let Some(until) = STATE.with(|state| {
        let spin = u64::from(state.sessions.first().map_or(0, |session| session.facts.spin_us));
        (spin > 0).then(|| now(state) + Duration::from_micros(spin))
    }) else {
        return false;
    };
    loop {
        atoll_sys::sched::yield_now();
        let (ready, over) = STATE.with(|state| {
            let ready = state.sessions.iter().any(|s| s.replicas.iter().any(|r| r.port.has_event()));
            (ready, now(state) >= until)
        });
        if ready || over {
            return ready;
        }
    }
}

fn go_to_sleep(state: &mut State, object: Option<u32>, bell: u32) {
    if let Some(object) = object {
        state.set_bell(object, bell);
        state.sleepers.push(Sleeper { object, bell });
    }
    fall_asleep_on(state, bell);
}

fn wake_up(state: &mut State, object: Option<u32>, bell: u32) {
    if let Some(object) = object {
        if let Some(at) = state.sleepers.iter().position(|s| s.object == object && s.bell == bell) {
            state.sleepers.swap_remove(at);
        }
        // Back to the bell of the epoll instance that watches it, if one does; what came meanwhile is drained next.
        let own = state.socket(object).map_or(0, |socket| socket.bell);
        state.set_bell(object, own);
    }
    wake_up_from(state, bell);
    state.drain();
}

/// Announces to all replicas that `bell` is wanted.
pub fn fall_asleep_on(state: &mut State, bell: u32) {
    state.bell_users[bell as usize] += 1;
    for session in &state.sessions {
        session.set_asleep(bell, true);
        session.replicas[0].port.memory().fence();
    }
}

/// Takes it back, when nobody else of this process sleeps on it.
pub fn wake_up_from(state: &mut State, bell: u32) {
    let users = &mut state.bell_users[bell as usize];
    *users -= 1;
    if *users == 0 {
        for session in &state.sessions {
            session.set_asleep(bell, false);
        }
    } else {
        // The ringers remember the word for which they rang: a new word lets them ring again for the others.
        for session in &state.sessions {
            session.set_asleep(bell, false);
            session.set_asleep(bell, true);
        }
    }
}

/// This thread's epoll instance and bell.
pub fn thread_epoll() -> (i32, u32) {
    let (fd, bell, sessions) = MINE.get();
    let pid = std::process::id();
    if fd >= 0 && sessions == pid {
        return (fd, bell);
    }
    // SAFETY: creates a descriptor.
    let fd = unsafe { real::epoll_create1(libc::EPOLL_CLOEXEC) };
    let bell = STATE.with(|state| {
        let bell = state.new_bell();
        add_bells(state, fd, bell);
        bell
    });
    let fd = out_of_the_way(fd);
    MINE.set((fd, bell, pid));
    (fd, bell)
}

/// Adds the eventfds of `bell` of all sessions, edge-triggered: they need not be read.
pub fn add_bells(state: &State, epoll: i32, bell: u32) {
    for session in &state.sessions {
        use std::os::fd::AsRawFd;
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: BELL_DATA };
        let fd = session.bells[bell as usize].as_raw_fd();
        // SAFETY: two open descriptors and a valid event.
        unsafe { real::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    }
}

fn out_of_the_way(fd: i32) -> i32 {
    use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
    if fd < 0 {
        return fd;
    }
    // SAFETY: just created, owned by nobody else.
    crate::session::out_of_the_way(unsafe { OwnedFd::from_raw_fd(fd) }).into_raw_fd()
}

/// Whether calls on the object do not wait.
pub fn is_nonblocking(state: &State, object: u32) -> bool {
    state
        .objects
        .get(object)
        .is_some_and(|Object { nonblocking, body, .. }| *nonblocking && matches!(body, Body::Socket(_)))
}
