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
use std::ffi::c_int;

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
use crate::under_way::{Pinned, Sleep, Ticket};
use crate::waiter::Waiter;

/// How long accept(2) of a listener that does not block, and poll(2) without time, wait if connections may be
/// on offer in a moment: the replicas hear only now that this process accepts, or what was on offer is not
/// any more, because its time was over. Programs expect that what waits is there.
pub const OFFERED_AGAIN: Duration = Duration::from_millis(20);

/// Repeats `step` until it does not block any more. `object` is what it waits for; `None` means a reply.
///
/// Fails with EAGAIN when `timeout` passes, and with EINTR when a signal arrives that does not restart calls.
pub fn block<R>(
    object: Option<u32>,
    timeout: Option<Duration>,
    mut step: impl FnMut(&mut State) -> Result<R, Failure>,
) -> Result<R, Errno> {
    block_as(Wait { object, timeout, is_point: false, listener: None }, |state, _| step(state))
}

/// Does what [`block`] does, in a call that is a cancellation point: it fails with [`CANCELLED`] if the
/// thread is to be cancelled.
pub fn block_at_point<R>(
    object: u32,
    timeout: Option<Duration>,
    mut step: impl FnMut(&mut State) -> Result<R, Failure>,
) -> Result<R, Errno> {
    let wait = Wait { object: Some(object), timeout, is_point: true, listener: None };
    block_as(wait, |state, _| step(state))
}

/// Does what [`block_at_point`] does, in a call that waits for a connection of the listener `object` with the
/// descriptor `fd`. As on Linux, it has a number for the connection from the beginning: `step` gets that
/// number, and uses it if it returns a result.
pub fn block_with_number<R>(
    (fd, object): (c_int, u32),
    timeout: Option<Duration>,
    step: impl FnMut(&mut State, Option<c_int>) -> Result<R, Failure>,
) -> Result<R, Errno> {
    block_as(Wait { object: Some(object), timeout, is_point: true, listener: Some(fd) }, step)
}

/// What a call waits for.
#[derive(Clone, Copy)]
struct Wait {
    object: Option<u32>,
    timeout: Option<Duration>,
    /// Whether the call is a cancellation point.
    is_point: bool,
    /// The descriptor of the listener for a connection of which the call has a number.
    listener: Option<c_int>,
}

impl Wait {
    /// Begins the call, unless it is under way. Returns the number that it has for a connection.
    fn begin(&self, state: &mut State, ticket: &mut Ticket) -> Result<Option<c_int>, Errno> {
        state.begin_call(ticket, || Pinned::One(self.object));
        self.listener.map(|listener| state.number_of_call(*ticket, listener)).transpose()
    }
}

// The frame of this function says where the call is.
#[inline(never)]
fn block_as<R>(
    wait: Wait,
    mut step: impl FnMut(&mut State, Option<c_int>) -> Result<R, Failure>,
) -> Result<R, Errno> {
    let mut ticket = Ticket::new(&wait);
    let begun = STATE.with(|state| {
        wait.begin(state, &mut ticket)?;
        Ok(wait.timeout.map(|timeout| state.now() + timeout))
    });
    let result = begun.and_then(|deadline| {
        met(wait.object.unwrap_or(0));
        let result = block_on(wait, deadline, &mut ticket, &mut step);
        waited();
        result
    });
    STATE.with(|state| state.end_call(ticket));
    result
}

fn block_on<R>(
    wait: Wait,
    deadline: Option<Instant>,
    ticket: &mut Ticket,
    step: &mut impl FnMut(&mut State, Option<c_int>) -> Result<R, Failure>,
) -> Result<R, Errno> {
    let restarts = wait.timeout.is_none();
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
            look_twice(state, (&wait, deadline), ticket, step)
        });
        let (number, left) = match asleep {
            Ok(asleep) => asleep,
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
        STATE.with(|state| state.wake(*ticket));
        slept?;
    }
}

/// Looks, and once more when the call is noted as asleep. Returns where it is to sleep and for how long, or
/// what it has found.
fn look_twice<R>(
    state: &mut State,
    (wait, deadline): (&Wait, Option<Instant>),
    ticket: &mut Ticket,
    step: &mut impl FnMut(&mut State, Option<c_int>) -> Result<R, Failure>,
) -> Result<(c_int, Option<Duration>), Result<R, Failure>> {
    // The child of a fork in a handler knows nothing of the call.
    let connection = wait.begin(state, ticket).map_err(|errno| Err(errno.into()))?;
    let mut step = |state: &mut State| {
        let result = step(state, connection);
        if result.is_ok() {
            state.number_is_used(*ticket);
        }
        result
    };
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
    let Some((number, bell)) = state.place_of_call(*ticket, 0) else {
        return Err(Err(Errno::EBADF.into()));
    };
    state.sleep(*ticket, Sleep { bells: 1 << bell, bell: Some(bell), ..Sleep::default() });
    state.client.drain();
    // This is the second look: whoever publishes after it sees the sleep word.
    match step(state) {
        Err(Failure::WouldBlock) => {
            state.doze_off(*ticket, wait.is_point.then_some(number));
            Ok((number, state.nap(left)))
        }
        result => {
            state.wake(*ticket);
            Err(result)
        }
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
            patience.yielded(before, now);
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
