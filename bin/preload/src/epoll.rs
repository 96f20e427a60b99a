//! epoll(7) over Atoll's sockets and the kernel's descriptors together.
//!
//! Behind every instance is one of the kernel's, which has the kernel's descriptors. Atoll's are in a
//! [`Set`]. A thread that finds nothing sleeps in a third, hidden instance that holds the bells and the
//! kernel's instance.

use atoll_base::{Duration, Instant};
use atoll_sockets::Errno;
use atoll_sockets::client::Change;
use atoll_sockets::client::object::{Body, Set};
use atoll_sockets::watch::Fired;
use libc::epoll_event;

use crate::asking;
use crate::beyond::with_room;
use crate::handlers::Ran;
use crate::hang_up;
use crate::lock::STATE;
use crate::platform::{Linux, Object};
use crate::real::{count_system_call, last_errno, sys};
use crate::settings::settings;
use crate::sleepers::{CANCELLED, WAKE_TOKEN};
use crate::state::{State, asks};
use crate::stats;
use crate::table::reserved;
use crate::table::{self, Fd, lookup};
use crate::under_way::{Pinned, Sleep, Ticket};
use crate::wait::{OFFERED_AGAIN, met, spin_until_event, waited};
use crate::waiter::{KernelSet, Waiter};

/// The kernel's descriptors of a mixed set are examined after so many nanoseconds, or so many calls, while
/// Atoll's keep the program busy.
const KERNEL_EVERY: u64 = 50_000;
const KERNEL_CALLS: u32 = 64;

/// Creates an object beside the kernel's instance `fd`: epoll_create1(2).
pub fn create(fd: i32, close_on_exec: bool) {
    STATE.with(|state| {
        if state.refused.is_some() || (state.client.own().is_none() && settings().socket.is_none()) {
            return;
        }
        let set = Set::new(state.client.new_bell(), KernelSet::new(fd));
        let number = state.client.insert(Object::new(Body::Epoll(Box::new(set)), false));
        table::set_object(fd, number, close_on_exec);
    });
}

/// The arguments of epoll_ctl(2).
#[derive(Clone, Copy, Debug)]
pub struct Control {
    pub op: i32,
    /// The descriptor; then the events and data, if there are any.
    pub fd: i32,
    pub event: Option<(u32, u64)>,
}

/// Changes the interest list of an instance of Atoll's: epoll_ctl(2). Returns `None` if the kernel is to be
/// asked.
pub fn control(epoll: u32, control: Control) -> Option<Result<(), Errno>> {
    let target = match lookup(control.fd) {
        Fd::Object(target) => target,
        Fd::Hidden => return Some(Err(Errno::EBADF)),
        Fd::Kernel => {
            STATE.with(|state| {
                if let Some(set) = state.client.set_mut(epoll) {
                    set.kernel.count(control.op);
                }
            });
            return None;
        }
    };
    STATE.with(|state| {
        state.client.set(epoll)?;
        if target == epoll {
            return Some(Err(Errno::EINVAL));
        }
        let is_epoll = state.client.set(target).is_some();
        if is_epoll {
            // The kernel judges whether instances may be nested so, and reports what is ready among its own.
            let result = control_kernel(state, epoll, control);
            if result.is_err() {
                return Some(result);
            }
            if let Some(set) = state.client.set_mut(epoll) {
                set.kernel.has_members = true;
            }
        }
        Some(control_ours(state, epoll, target, control))
    })
}

fn control_kernel(state: &mut State, epoll: u32, Control { op, fd, event }: Control) -> Result<(), Errno> {
    let Some(set) = state.client.set(epoll) else { return Err(Errno::EINVAL) };
    let (events, u64) = event.unwrap_or((0, 0));
    let mut event = epoll_event { events, u64 };
    count_system_call();
    // SAFETY: two numbers and a valid event.
    match unsafe { sys!(libc::SYS_epoll_ctl, set.kernel.fd, op, fd, &raw mut event) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

fn control_ours(state: &mut State, epoll: u32, target: u32, control: Control) -> Result<(), Errno> {
    let Control { op, fd, event } = control;
    let change = match (op, event) {
        (libc::EPOLL_CTL_ADD, Some((events, data))) => Change::Add(events, data),
        (libc::EPOLL_CTL_MOD, Some((events, data))) => Change::Modify(events, data),
        (libc::EPOLL_CTL_DEL, _) => Change::Delete,
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, None) => return Err(Errno::EFAULT),
        _ => return Err(Errno::EINVAL),
    };
    state.client.control(epoll, target, fd, change)?;
    let is_interrupted = |set: &Set<Linux>| {
        set.kernel.sleepers > 0 && set.kernel.interrupt.is_none() && !set.members.is_empty()
    };
    if state.client.set(epoll).is_some_and(is_interrupted) {
        interrupt_kernel_sleepers(state, epoll);
    }
    Ok(())
}

/// Wakes threads that sleep in the kernel's instance of a set that had no member of ours until now, so that
/// they sleep on both.
fn interrupt_kernel_sleepers(state: &mut State, epoll: u32) {
    let made = with_room(|room| atoll_sys::eventfd::create().map(|eventfd| room.keep(eventfd)));
    let Ok(interrupt) = made else { return };
    let _ = atoll_sys::eventfd::ring(&interrupt);
    let Some(set) = state.client.set_mut(epoll) else { return };
    let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: WAKE_TOKEN };
    // SAFETY: two numbers and a valid event.
    unsafe {
        sys!(libc::SYS_epoll_ctl, set.kernel.fd, libc::EPOLL_CTL_ADD, interrupt.number(), &raw mut event)
    };
    set.kernel.interrupt = Some(interrupt);
}

/// Returns how many events one call can find at most, which is the number of the members.
pub fn most_events(epoll: u32) -> usize {
    STATE.with(|state| {
        let most = |set: &Set<Linux>| set.members.len().saturating_add(set.kernel.added);
        state.client.set(epoll).map_or(0, most) as usize
    })
}

/// Waits for events of an instance of Atoll's: epoll_wait(2).
pub fn wait(
    epoll: u32,
    events: &mut [epoll_event],
    timeout: Option<Duration>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    let _call = stats::Call::new(stats::EPOLL_WAIT);
    if asks() {
        asking::look(&[])?;
    }
    let first = STATE.with(|state| look_once(state, epoll, events, timeout == Some(Duration::ZERO)))?;
    let count = match first {
        Look { count, kernel: Some(fd), .. } => {
            count + ask_kernel(fd, &mut events[count..], 0, std::ptr::null())?
        }
        Look { count, kernel: None, .. } => count,
    };
    if count > 0 {
        return Ok(count);
    }
    if timeout == Some(Duration::ZERO) {
        if first.is_late {
            return match wait_for_events(epoll, events, Some(OFFERED_AGAIN), mask) {
                Ok(0) | Err(Errno::EINTR) => {
                    asking::hear_offers();
                    STATE.with(|state| look_once(state, epoll, events, false)).map(|look| look.count)
                }
                found => found,
            };
        }
        hang_up::after_nothing();
        return Ok(0);
    }
    wait_for_events(epoll, events, timeout, mask)
}

/// Waits for events after a look that has found none.
fn wait_for_events(
    epoll: u32,
    events: &mut [epoll_event],
    timeout: Option<Duration>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    let mut ticket = Ticket::new(&timeout);
    let (deadline, only_kernel, mut result) = STATE.with(|state| {
        state.begin_call(&mut ticket, || Pinned::One(Some(epoll)));
        let result = if state.sleepers.is_requested() { Err(CANCELLED) } else { Ok(0) };
        let is_only_kernel = |set: &&mut Set<Linux>| result.is_ok() && set.members.is_empty();
        let only_kernel = state.client.set_mut(epoll).filter(is_only_kernel).map(|set| {
            set.kernel.sleepers += 1;
            set.kernel.fd
        });
        if let Some(fd) = only_kernel {
            state.sleep(ticket, Sleep { kernel_set: Some(epoll), ..Sleep::default() });
            state.doze_off(ticket, Some(fd));
        }
        (timeout.map(|timeout| state.now() + timeout), only_kernel, result)
    });
    if let Some(fd) = only_kernel {
        // The thread sleeps in the kernel's instance, because there is nothing else in the set.
        reserved::before_sleep();
        result = ask_kernel(fd, events, millis(timeout), mask);
        STATE.with(|state| state.wake(ticket));
    }
    if result == Ok(0) && STATE.with(|state| deadline.is_none_or(|at| at > state.now())) {
        let spun = if mask.is_null() { spin_until_event() } else { Ok(()) };
        result = spun.and_then(|()| wait_in_set((epoll, &mut ticket), events, deadline, mask));
        waited();
    }
    STATE.with(|state| state.end_call(ticket));
    result
}

/// The result of one look at a set.
struct Look {
    count: usize,
    /// The kernel's instance, if that is to be examined too.
    kernel: Option<i32>,
    /// Whether this process accepts connections of a listener only since this look.
    is_late: bool,
}

fn look_once(
    state: &mut State,
    epoll: u32,
    events: &mut [epoll_event],
    at_once: bool,
) -> Result<Look, Errno> {
    state.client.drain();
    let is_late = state.client.accept_watched(epoll);
    let count = collect(state, epoll, events);
    let Some(set) = state.client.set_mut(epoll) else { return Err(Errno::EINVAL) };
    if !set.kernel.has_members || (count == 0 && !at_once) {
        return Ok(Look { count, kernel: None, is_late });
    }
    set.kernel.calls_since += 1;
    let fd = set.kernel.fd;
    let (calls, looked) = (set.kernel.calls_since, set.kernel.asked_at);
    let now = state.now().as_nanos();
    let due = calls >= KERNEL_CALLS || now.saturating_sub(looked) > KERNEL_EVERY;
    if !(due || count == 0) || count == events.len() {
        return Ok(Look { count, kernel: None, is_late });
    }
    if let Some(set) = state.client.set_mut(epoll) {
        set.kernel.asked_at = now;
        set.kernel.calls_since = 0;
    }
    Ok(Look { count, kernel: Some(fd), is_late })
}

fn wait_in_set(
    (epoll, ticket): (u32, &mut Ticket),
    events: &mut [epoll_event],
    deadline: Option<Instant>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    let mut handlers = Ran::now();
    loop {
        hang_up::mend();
        // The result is place to sleep, kernel's instance, bells and time left, or what was found.
        let asleep = STATE.with(|state| {
            state.client.drain();
            let left = deadline.map(|at| at.since(state.now()));
            state.client.poll_due();
            let count = collect(state, epoll, events);
            if count > 0 || left == Some(Duration::ZERO) {
                return Err(Ok(count));
            }
            if state.sleepers.is_requested() {
                return Err(Err(CANCELLED));
            }
            if asks() {
                state.client.ask_before_sleep_in_set();
            }
            let Some(bells) = prepare_to_sleep(state, epoll) else { return Err(Err(Errno::EBADF)) };
            state.begin_call(ticket, || Pinned::One(Some(epoll)));
            state.sleep(*ticket, Sleep { bells, ..Sleep::default() });
            state.client.drain();
            state.client.accept_watched(epoll);
            let count = collect(state, epoll, events);
            if count > 0 {
                state.wake(*ticket);
                return Err(Ok(count));
            }
            stats::publish(&state.client);
            let nap = state.nap(left);
            let Some((number, fd)) = note_sleeper(state, epoll, *ticket) else {
                return Err(Err(Errno::EBADF));
            };
            Ok((number, fd, nap))
        });
        let (number, fd, left) = match asleep {
            Ok(asleep) => asleep,
            Err(found) => return found,
        };
        // A signal that has come since the call began has the same effect as one during the sleep.
        let is_late = handlers.interrupt(false);
        let slept = if is_late { Err(Errno::EINTR) } else { Waiter::sleep_beside(number, fd, left, mask) };
        STATE.with(|state| state.wake(*ticket));
        if slept? {
            let count = ask_kernel(fd, events, 0, std::ptr::null())?;
            if count > 0 {
                // Both kinds of a mixed set get their turn.
                let more = STATE.with(|state| {
                    if let Some(set) = state.client.set_mut(epoll) {
                        set.kernel.has_members = true;
                    }
                    state.client.drain();
                    collect(state, epoll, &mut events[count..])
                });
                return Ok(count + more);
            }
        }
    }
}

/// Notes that the running thread sleeps in a set. Returns the descriptors of its place to sleep and of the
/// kernel's instance.
fn note_sleeper(state: &mut State, epoll: u32, ticket: Ticket) -> Option<(i32, i32)> {
    let set = state.client.set_mut(epoll)?;
    let (number, fd) = (set.kernel.waiter.as_ref().map_or(-1, Waiter::number), set.kernel.fd);
    state.sleep_in_set(ticket, epoll);
    state.doze_off(ticket, Some(number));
    Some((number, fd))
}

/// Makes sure that the set has a place to sleep that knows all doorbells. Returns the doorbells, a bit each.
fn prepare_to_sleep(state: &mut State, epoll: u32) -> Option<u16> {
    let set = state.client.set_mut(epoll)?;
    let (bells, fd) = (set.bells, set.kernel.fd);
    // The waiter is out of the set while the sessions are examined.
    let mut waiter = match set.kernel.waiter.take().filter(Waiter::is_lasting) {
        Some(waiter) => waiter,
        None => {
            let waiter = Waiter::new();
            waiter.add(fd, 0);
            waiter
        }
    };
    waiter.watch(state.client.sessions(), bells);
    state.client.set_mut(epoll)?.kernel.waiter = Some(waiter);
    Some(bells)
}

fn collect(state: &mut State, epoll: u32, events: &mut [epoll_event]) -> usize {
    let mut count = 0;
    state.client.collect(epoll, events.len(), |Fired { events: bits, data }| {
        events[count] = epoll_event { events: bits, u64: data };
        count += 1;
        met(data as u32);
    });
    count
}

/// Collects events of the kernel's descriptors.
fn ask_kernel(
    fd: i32,
    events: &mut [epoll_event],
    millis: i32,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    let max = i32::try_from(events.len()).unwrap_or(i32::MAX);
    count_system_call();
    // SAFETY: `events` is valid for `max` entries; the mask is null or the program's. 8: size of the kernel's
    // signal set.
    let count = unsafe { sys!(libc::SYS_epoll_pwait, fd, events.as_mut_ptr(), max, millis, mask, 8) };
    if count < 0 {
        return Err(last_errno());
    }
    let mut kept = 0;
    for i in 0..count as usize {
        if events[i].u64 != WAKE_TOKEN {
            events[kept] = events[i];
            kept += 1;
        }
    }
    Ok(kept)
}

fn millis(timeout: Option<Duration>) -> i32 {
    timeout.map_or(-1, |left| i32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX))
}

/// Moves the watches of a socket that becomes the kernel's to the kernel's instances.
pub fn move_to_kernel(state: &mut State, object: u32) {
    let watches =
        state.client.watches_on(object).map(|watch| (watch.set, watch.fd, watch.events, watch.data));
    for (set, fd, events, data) in watches.collect::<Vec<_>>() {
        let _ =
            control_kernel(state, set, Control { op: libc::EPOLL_CTL_ADD, fd, event: Some((events, data)) });
        if let Some(set) = state.client.set_mut(set) {
            set.kernel.count(libc::EPOLL_CTL_ADD);
        }
    }
    state.client.unwatch_all(object);
}
