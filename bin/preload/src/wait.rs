//! Lets a call sleep until its socket is ready, on a doorbell in an epoll instance ([`crate::waiter`]).
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

use crate::confinement::is_confined;
use crate::handlers::Ran;
use crate::hang_up;
use crate::lock::STATE;
use crate::real::count_system_call;
use crate::signals::{hold_signals, pending_signals, release_signals};
use crate::sleepers::CANCELLED;
use crate::state::State;
use crate::waiter::Waiter;

/// Repeats `step` until it does not block any more. `object` is what it waits for; `None` means a reply.
///
/// Fails with EAGAIN when `timeout` passes, and with EINTR when a signal arrives that does not restart calls.
pub fn block<R>(
    object: Option<u32>,
    timeout: Option<Duration>,
    step: impl FnMut(&mut State) -> Result<R, Failure>,
) -> Result<R, Errno> {
    block_as(Wait { object, timeout, is_point: false }, step)
}

/// Does what [`block`] does, in a call that is a cancellation point: it fails with [`CANCELLED`] if the
/// thread is to be cancelled.
pub fn block_at_point<R>(
    object: u32,
    timeout: Option<Duration>,
    step: impl FnMut(&mut State) -> Result<R, Failure>,
) -> Result<R, Errno> {
    block_as(Wait { object: Some(object), timeout, is_point: true }, step)
}

/// What a call waits for.
#[derive(Clone, Copy)]
struct Wait {
    object: Option<u32>,
    timeout: Option<Duration>,
    /// Whether the call is a cancellation point.
    is_point: bool,
}

fn block_as<R>(wait: Wait, mut step: impl FnMut(&mut State) -> Result<R, Failure>) -> Result<R, Errno> {
    let Wait { object, timeout, .. } = wait;
    let mut deadline: Option<Instant> = None;
    let mut waiter = STATE.with(|state| {
        deadline = timeout.map(|timeout| state.now() + timeout);
        if let Some(object) = object {
            state.client.pin(object);
        }
        state.take_waiter()
    });
    met(object.unwrap_or(0));
    let result = block_on(wait, deadline, &mut waiter, &mut step);
    waited();
    STATE.with(|state| {
        state.put_waiter(waiter);
        if let Some(object) = object {
            state.client.unpin(object);
        }
    });
    result
}

// structure: block_on: between two looks at what is awaited nothing may be left out
fn block_on<R>(
    wait: Wait,
    deadline: Option<Instant>,
    (waiter, bell): &mut (Waiter, u32),
    step: &mut impl FnMut(&mut State) -> Result<R, Failure>,
) -> Result<R, Errno> {
    let (bell, number) = (*bell, waiter.number());
    let (object, restarts) = (wait.object, wait.timeout.is_none());
    let mut handlers = Ran::now();
    if let Err(errno) = spin_until_event()
        && handlers.end_sleep(restarts)
    {
        return Err(errno);
    }
    loop {
        hang_up::mend();
        let asleep = STATE.with(|state| {
            state.client.drain();
            state.client.poll_due();
            if handlers.interrupt(restarts) {
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
            if wait.is_point && state.sleepers.is_requested() {
                return Err(Err(CANCELLED.into()));
            }
            waiter.watch(state.client.sessions(), 1 << bell);
            if let Some(object) = object {
                state.client.sleep_on(object, bell);
            }
            state.client.before_sleep(1 << bell);
            state.client.drain();
            // This is the second look: whoever publishes after it sees the sleep word.
            match step(state) {
                Err(Failure::WouldBlock) => {
                    state.client.doze_off();
                    if wait.is_point {
                        state.sleepers.enter(number);
                    }
                    Ok(state.nap(left))
                }
                result => {
                    state.client.after_sleep(1 << bell);
                    if let Some(object) = object {
                        state.client.sleep_no_more(object, bell);
                        state.client.drain();
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
        // A signal that has come since the call began has the same effect as one during the sleep.
        let slept = match handlers.interrupt(restarts) {
            true => Err(Errno::EINTR),
            false => match Waiter::sleep(number, left, std::ptr::null()) {
                Err(Errno::EINTR) if !handlers.end_sleep(restarts) => Ok(()),
                slept => slept.map(drop),
            },
        };
        STATE.with(|state| {
            state.client.after_sleep(1 << bell);
            if wait.is_point {
                state.sleepers.leave(number);
            }
            if let Some(object) = object {
                state.client.sleep_no_more(object, bell);
                state.client.drain();
            }
        });
        slept?;
    }
}

thread_local! {
    /// Whether this thread should spin. The value is taken out while it is used, since a signal handler may
    /// come in between.
    static SPIN: Cell<Option<SpinPolicy>> = const { Cell::new(None) };
}

/// Runs `act` with the spin policy of this thread. The caller does not hold the lock of the state.
fn with_spin_policy<R>(act: impl FnOnce(&mut SpinPolicy) -> R) -> R {
    let limit = || STATE.with(|state| state.client.own().map_or(0, |session| session.facts.spin_us));
    let mut patience = SPIN.take().unwrap_or_else(|| SpinPolicy::new(Duration::from_micros(limit().into())));
    let result = act(&mut patience);
    SPIN.set(Some(patience));
    result
}

/// Notes that there was something to do for `partner`, such as an object.
#[inline]
pub fn met(partner: u32) {
    if let Some(mut patience) = SPIN.take() {
        patience.met(partner);
        SPIN.set(Some(patience));
    }
}

/// Waits for an event without sleeping, as long as that is worth it. Fails with EINTR if a signal came, and
/// no event.
///
/// Signals are blocked meanwhile: a handler that ran unnoticed between two looks would leave the caller
/// asleep.
pub fn spin_until_event() -> Result<(), Errno> {
    if is_confined() {
        return Ok(());
    }
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
            crate::instruction::yield_now();
            ready = STATE.with(|state| {
                now = state.now();
                state.client.has_event()
            });
            patience.yielded(now.since(before));
        }
        let interrupted = !ready && pending_signals() & !held != 0;
        release_signals(held);
        if interrupted { Err(Errno::EINTR) } else { Ok(()) }
    })
}

/// Notes that the wait that began with [`spin_until_event`] is over.
pub fn waited() {
    let now = STATE.with(|state| state.now());
    with_spin_policy(|patience| patience.end(now));
}
