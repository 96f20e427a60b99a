//! epoll(7) over Atoll's sockets and the kernel's descriptors together.
//!
//! Behind every instance is one of the kernel's, which has the kernel's descriptors. Atoll's are in a [`Set`]. A thread that finds
//! nothing sleeps in a third, hidden instance that holds the bells and the kernel's instance.

use atoll_base::{Duration, Instant};
use atoll_sockets::Errno;
use atoll_sockets::watch::{EDGE, EXCLUSIVE, Fired, Head, ONESHOT, WAKEUP};
use libc::epoll_event;

use crate::asking;
use crate::object::{Body, Kind, Object, Set};
use crate::real::sys;
use crate::settings::settings;
use crate::state::{NESTING_MAX, STATE, State};
use crate::stats;
use crate::table::{self, Fd, lookup};
use crate::urgent;
use crate::wait::{Waiter, count_system_call, last_errno, met, spin_until_event, waited};

/// How often the kernel's descriptors of a mixed set are looked at while Atoll's keep the program busy.
const KERNEL_EVERY: u64 = 50_000;
const KERNEL_CALLS: u32 = 64;
/// Data of the descriptor that interrupts threads that sleep in the kernel's instance.
const INTERRUPT: u64 = 0xa701_1be1_1a70_11be;

/// epoll_create1(2): an object beside a real instance.
pub fn create(fd: i32, close_on_exec: bool) {
    STATE.with(|state| {
        if state.refused.is_some() || (state.sessions.is_empty() && settings().socket.is_none()) {
            return;
        }
        let bell = state.new_bell();
        let set = Set {
            fd,
            members: Head::default(),
            ready: Head::default(),
            waiter: None,
            bell,
            bells: 1 << bell,
            has_sets: false,
            has_kernel: false,
            kernel_looked: 0,
            calls_since: 0,
            sleepers: 0,
            kernel_sleepers: 0,
            interrupt: None,
        };
        let number = state.objects.insert(Object::new(Body::Epoll(Box::new(set)), false));
        table::set_object(fd, number, close_on_exec);
    });
}

/// What a program wants of an interest list.
#[derive(Clone, Copy, Debug)]
pub struct Control {
    pub op: i32,
    /// The descriptor, and the events and data if there are any.
    pub fd: i32,
    pub event: Option<(u32, u64)>,
}

/// epoll_ctl(2) for an instance of Atoll's. `None`: the kernel is to be asked (as well).
pub fn control(epoll: u32, control: Control) -> Option<Result<(), Errno>> {
    let target = match lookup(control.fd) {
        Fd::Object(target) => target,
        Fd::Hidden => return Some(Err(Errno::EBADF)),
        Fd::Kernel => {
            if control.op == libc::EPOLL_CTL_ADD {
                STATE.with(|state| {
                    if let Some(set) = state.set_mut(epoll) {
                        set.has_kernel = true;
                    }
                });
            }
            return None;
        }
    };
    STATE.with(|state| {
        state.set(epoll)?;
        if target == epoll {
            return Some(Err(Errno::EINVAL));
        }
        let is_epoll = state.set(target).is_some();
        if is_epoll {
            // The kernel judges whether instances may be nested so, and reports what is ready among its own.
            let result = control_kernel(state, epoll, control);
            if result.is_err() {
                return Some(result);
            }
            if let Some(set) = state.set_mut(epoll) {
                set.has_kernel = true;
            }
        }
        Some(control_ours(state, epoll, target, control))
    })
}

fn control_kernel(state: &mut State, epoll: u32, Control { op, fd, event }: Control) -> Result<(), Errno> {
    let Some(set) = state.set(epoll) else { return Err(Errno::EINVAL) };
    let (events, u64) = event.unwrap_or((0, 0));
    let mut event = epoll_event { events, u64 };
    count_system_call();
    // SAFETY: two numbers and a valid event.
    match unsafe { sys!(libc::SYS_epoll_ctl, set.fd, op, fd, &raw mut event) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

fn control_ours(state: &mut State, epoll: u32, target: u32, control: Control) -> Result<(), Errno> {
    let Control { op, fd, event } = control;
    let head = state.watchers(target);
    let found = state.watches.find(&head, epoll, fd);
    match (op, found, event) {
        (libc::EPOLL_CTL_ADD, Some(_), _) => Err(Errno::EEXIST),
        (libc::EPOLL_CTL_ADD, None, Some((events, data))) => {
            check_exclusive(events, state.set(target).is_some())?;
            add(state, epoll, target, fd, events, data);
            Ok(())
        }
        (libc::EPOLL_CTL_MOD, Some(watch), Some((events, data))) => {
            // epoll_ctl(2): EPOLLEXCLUSIVE only with EPOLL_CTL_ADD.
            if (events | state.watches.get(watch).map_or(0, |w| w.events)) & EXCLUSIVE != 0 {
                return Err(Errno::EINVAL);
            }
            state.watches.modify(watch, events, data);
            look(state, epoll, target, watch);
            Ok(())
        }
        (libc::EPOLL_CTL_DEL, Some(watch), _) => {
            state.unwatch(watch);
            if state.watchers(target).is_empty() && !state.is_awaited(target) {
                state.stop_accepting(target);
            }
            Ok(())
        }
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, _, None) => Err(Errno::EFAULT),
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None, _) => Err(Errno::ENOENT),
        _ => Err(Errno::EINVAL),
    }
}

/// epoll_ctl(2): which flags go with EPOLLEXCLUSIVE.
fn check_exclusive(events: u32, is_epoll: bool) -> Result<(), Errno> {
    const ALLOWED: u32 = 0x1f | EDGE | WAKEUP | EXCLUSIVE;
    if events & EXCLUSIVE != 0 && (is_epoll || events & ONESHOT != 0 || events & !ALLOWED != 0) {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

fn add(state: &mut State, epoll: u32, target: u32, fd: i32, events: u32, data: u64) {
    let mut of_target = state.watchers(target);
    let is_set = state.set(target).is_some();
    let (target_bells, mut new_bells) = (state.set(target).map_or(0, |set| set.bells), 0);
    let Some(mut members) = state.set(epoll).map(|set| set.members) else { return };
    let watch = state.watches.add((epoll, &mut members), (target, &mut of_target), fd, events, data);
    let mut bell = 0;
    let (mut wake, mut interrupt) = (false, false);
    if let Some(set) = state.set_mut(epoll) {
        new_bells = target_bells & !set.bells;
        set.bells |= target_bells;
        set.has_sets |= is_set;
        set.members = members;
        bell = set.bell;
        // Whoever sleeps in it already does not know the new member's bells.
        wake = set.sleepers > 0 && new_bells != 0;
        interrupt = set.kernel_sleepers > 0 && set.interrupt.is_none();
    }
    if let Some(object) = state.objects.get_mut(target) {
        object.watchers = of_target;
    }
    if let Some(socket) = state.socket_mut(target) {
        socket.bell = bell;
        let is_listening = matches!(socket.kind, Kind::Listening(_));
        state.set_bell(target, bell);
        if is_listening {
            state.accept_connections(target);
        }
    }
    if new_bells != 0 {
        spread_bells(state, epoll, new_bells, 0);
    }
    look(state, epoll, target, watch);
    if wake && let Some(session) = state.sessions.first() {
        session.ring(bell);
    }
    if interrupt {
        interrupt_kernel_sleepers(state, epoll);
    }
}

/// Instances that an instance is in sleep on the bells of all its members.
fn spread_bells(state: &mut State, epoll: u32, bells: u16, depth: u32) {
    let mut watch = state.watches.first(&state.watchers(epoll));
    while let Some(outer) = state.watches.get(watch).map(|w| w.set) {
        watch = state.watches.next_of_target(watch);
        if let Some(set) = state.set_mut(outer)
            && bells & !set.bells != 0
            && depth < NESTING_MAX
        {
            set.bells |= bells;
            let (bell, asleep) = (set.bell, set.sleepers > 0);
            if asleep && let Some(session) = state.sessions.first() {
                session.ring(bell);
            }
            spread_bells(state, outer, bells, depth + 1);
        }
    }
}

/// Threads sleep in the kernel's instance of a set that had no member of ours until now: they are to come back.
fn interrupt_kernel_sleepers(state: &mut State, epoll: u32) {
    let Ok(eventfd) = atoll_sys::eventfd::create() else { return };
    let _ = atoll_sys::eventfd::ring(&eventfd);
    let Some(set) = state.set_mut(epoll) else { return };
    let interrupt = table::Internal::new(eventfd);
    let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: INTERRUPT };
    // SAFETY: two numbers and a valid event.
    unsafe { sys!(libc::SYS_epoll_ctl, set.fd, libc::EPOLL_CTL_ADD, interrupt.number(), &raw mut event) };
    set.interrupt = Some(interrupt);
}

/// Queues a watch for what is ready already.
pub fn look(state: &mut State, epoll: u32, target: u32, watch: u32) {
    // What was published after the bell was set comes as an event, or is seen here.
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    state.prune(target, 0);
    let ready = state.readiness(target);
    let State { watches, objects, .. } = state;
    let Some(Object { body: Body::Epoll(set), watchers, .. }) = objects.get_mut(epoll) else { return };
    if !watches.queue(watch, ready, &mut set.ready) {
        return;
    }
    let (is_nested, asleep) = (!watchers.is_empty(), set.sleepers > 0);
    if is_nested {
        state.announce(epoll, 1);
    }
    if asleep {
        state.wake_set(epoll);
    }
}

/// epoll_wait(2) for an instance of Atoll's.
pub fn wait(
    epoll: u32,
    events: &mut [epoll_event],
    timeout: Option<Duration>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    let _call = stats::Call::new(stats::EPOLL_WAIT);
    if asking::is_on() {
        asking::look(&[])?;
    }
    let first = STATE.with(|state| look_once(state, epoll, events, timeout == Some(Duration::ZERO)))?;
    let count = match first {
        Look { count, kernel: Some(fd) } => count + ask_kernel(fd, &mut events[count..], 0, std::ptr::null())?,
        Look { count, kernel: None } => count,
    };
    if count > 0 || timeout == Some(Duration::ZERO) {
        return Ok(count);
    }
    let (mut deadline, only_kernel) = STATE.with(|state| {
        let only_kernel = state.set_mut(epoll).filter(|set| set.members.is_empty()).map(|set| {
            set.kernel_sleepers += 1;
            set.fd
        });
        state.pin(epoll);
        (timeout.map(|timeout| state.now() + timeout), only_kernel)
    });
    let mut result = Ok(0);
    if let Some(fd) = only_kernel {
        result = wait_in_kernel(epoll, fd, events, timeout, mask);
    }
    if result == Ok(0) && STATE.with(|state| deadline.is_none_or(|at| at > state.now())) {
        let spun = if mask.is_null() { spin_until_event() } else { Ok(()) };
        result = spun.and_then(|()| wait_in_set(epoll, events, &mut deadline, mask));
        waited();
    }
    STATE.with(|state| state.unpin(epoll));
    result
}

/// What one look has found.
struct Look {
    count: usize,
    /// The kernel's instance, if it is to be looked at too.
    kernel: Option<i32>,
}

fn look_once(state: &mut State, epoll: u32, events: &mut [epoll_event], at_once: bool) -> Result<Look, Errno> {
    state.drain();
    state.accept_watched(epoll);
    let count = collect(state, epoll, events);
    let Some(set) = state.set_mut(epoll) else { return Err(Errno::EINVAL) };
    if !set.has_kernel || (count == 0 && !at_once) {
        return Ok(Look { count, kernel: None });
    }
    set.calls_since += 1;
    let fd = set.fd;
    let (calls, looked) = (set.calls_since, set.kernel_looked);
    let now = state.now().as_nanos();
    let due = calls >= KERNEL_CALLS || now.saturating_sub(looked) > KERNEL_EVERY;
    if !(due || count == 0) || count == events.len() {
        return Ok(Look { count, kernel: None });
    }
    if let Some(set) = state.set_mut(epoll) {
        set.kernel_looked = now;
        set.calls_since = 0;
    }
    Ok(Look { count, kernel: Some(fd) })
}

/// Sleeps in the kernel's instance, because there is nothing else in the set.
fn wait_in_kernel(
    epoll: u32,
    fd: i32,
    events: &mut [epoll_event],
    timeout: Option<Duration>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    let result = ask_kernel(fd, events, millis(timeout), mask);
    STATE.with(|state| {
        if let Some(set) = state.set_mut(epoll) {
            set.kernel_sleepers -= 1;
            if set.kernel_sleepers == 0 {
                set.interrupt = None;
            }
        }
    });
    result
}

fn wait_in_set(
    epoll: u32,
    events: &mut [epoll_event],
    deadline: &mut Option<Instant>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    let mut signals = urgent::sent();
    loop {
        // (place to sleep, bells, time left), or what was found.
        let asleep = STATE.with(|state| {
            state.drain();
            let left = deadline.map(|at| at.since(state.now()));
            state.look_if_due();
            let count = collect(state, epoll, events);
            if count > 0 || left == Some(Duration::ZERO) {
                return Err(Ok(count));
            }
            if asking::is_on() {
                asking::before_sleep_in_set(state);
            }
            let Some(bells) = prepare_to_sleep(state, epoll) else { return Err(Err(Errno::EMFILE)) };
            state.fall_asleep(bells);
            state.drain();
            state.accept_watched(epoll);
            let count = collect(state, epoll, events);
            if count > 0 {
                state.wake_up(bells);
                return Err(Ok(count));
            }
            stats::publish(state);
            state.doze_off();
            let nap = state.nap(left);
            let Some(set) = state.set_mut(epoll) else { return Err(Err(Errno::EBADF)) };
            set.sleepers += 1;
            Ok((set.waiter.as_ref().map_or(-1, Waiter::number), set.fd, bells, nap))
        });
        let (number, fd, bells, left) = match asleep {
            Ok(asleep) => asleep,
            Err(found) => return found,
        };
        // A handler of SIGURG has run in this thread: as if it had come during the sleep.
        let is_late = urgent::interrupts(&mut signals);
        let slept = if is_late { Err(Errno::EINTR) } else { Waiter::sleep(number, left, mask) };
        STATE.with(|state| {
            state.wake_up(bells);
            if let Some(set) = state.set_mut(epoll) {
                set.sleepers = set.sleepers.saturating_sub(1);
            }
        });
        if slept? {
            let count = ask_kernel(fd, events, 0, std::ptr::null())?;
            if count > 0 {
                // Both kinds of a mixed set get their turn.
                let more = STATE.with(|state| {
                    if let Some(set) = state.set_mut(epoll) {
                        set.has_kernel = true;
                    }
                    state.drain();
                    collect(state, epoll, &mut events[count..])
                });
                return Ok(count + more);
            }
        }
    }
}

/// Makes sure that the set has a place to sleep that knows all bells. Returns the bells.
fn prepare_to_sleep(state: &mut State, epoll: u32) -> Option<u16> {
    let State { objects, sessions, .. } = state;
    let Some(Object { body: Body::Epoll(set), .. }) = objects.get_mut(epoll) else { return None };
    if set.waiter.is_none() {
        let waiter = Waiter::new()?;
        waiter.add(set.fd, 0);
        set.waiter = Some(waiter);
    }
    set.waiter.as_mut()?.watch(sessions, set.bells);
    Some(set.bells)
}

fn collect(state: &mut State, epoll: u32, events: &mut [epoll_event]) -> usize {
    if events.is_empty() {
        return 0;
    }
    let Some((mut ready, has_sets)) = state.set(epoll).map(|set| (set.ready, set.has_sets)) else { return 0 };
    if ready.is_empty() {
        return 0;
    }
    if has_sets {
        state.prune(epoll, 0);
        ready = state.set(epoll).map_or(ready, |set| set.ready);
    }
    let mut watches = std::mem::take(&mut state.watches);
    let mut count = 0;
    watches.collect(
        &mut ready,
        events.len(),
        |target| state.readiness(target),
        |Fired { events: bits, data }| {
            events[count] = epoll_event { events: bits, u64: data };
            count += 1;
            met(data as u32);
        },
    );
    state.watches = watches;
    if let Some(set) = state.set_mut(epoll) {
        set.ready = ready;
    }
    count
}

/// Events of the kernel's descriptors.
fn ask_kernel(fd: i32, events: &mut [epoll_event], millis: i32, mask: *const libc::sigset_t) -> Result<usize, Errno> {
    let max = i32::try_from(events.len()).unwrap_or(i32::MAX);
    count_system_call();
    // SAFETY: `events` is valid for `max` entries; the mask is null or the program's. 8: size of the kernel's signal set.
    let count = unsafe { sys!(libc::SYS_epoll_pwait, fd, events.as_mut_ptr(), max, millis, mask, 8) };
    if count < 0 {
        return Err(last_errno());
    }
    let mut kept = 0;
    for i in 0..count as usize {
        if events[i].u64 != INTERRUPT {
            events[kept] = events[i];
            kept += 1;
        }
    }
    Ok(kept)
}

fn millis(timeout: Option<Duration>) -> i32 {
    timeout.map_or(-1, |left| i32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX))
}

/// A socket becomes the kernel's: its watches move to the kernel's instances.
pub fn move_to_kernel(state: &mut State, object: u32) {
    let mut watch = state.watches.first(&state.watchers(object));
    while let Some((set, fd, events, data)) = state.watches.get(watch).map(|w| (w.set, w.fd, w.events, w.data)) {
        let next = state.watches.next_of_target(watch);
        let _ = control_kernel(state, set, Control { op: libc::EPOLL_CTL_ADD, fd, event: Some((events, data)) });
        if let Some(set) = state.set_mut(set) {
            set.has_kernel = true;
        }
        watch = next;
    }
    state.unwatch_all(object);
}
