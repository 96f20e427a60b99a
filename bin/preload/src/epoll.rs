//! epoll(7), poll(2) and select(2) over Atoll's sockets and the kernel's descriptors together.

use atoll_base::{Duration, Instant};
use atoll_ipc::Memory;
use atoll_sockets::Errno;
use atoll_sockets::watch::{ALWAYS, EXCLUSIVE, Fired, Head};
use libc::{epoll_event, pollfd};

use crate::calls::last_errno;
use crate::real;
use crate::state::{Body, Fd, Kind, Object, STATE, Set, Sleeper, State, lookup, set_fd};
use crate::wait::{BELL_DATA, add_bells, fall_asleep_on, now, spin, thread_epoll, wake_up_from};

/// How often the kernel's descriptors of a mixed set are looked at while Atoll's keep the program busy.
const KERNEL_EVERY: Duration = Duration::from_micros(50);
const KERNEL_CALLS: u32 = 64;

/// epoll_create1(2): a real instance, and an object beside it.
pub fn create(fd: i32) {
    STATE.with(|state| {
        if !state.join() {
            return;
        }
        let bell = state.new_bell();
        add_bells(state, fd, bell);
        let set = Set {
            fd,
            members: Head::default(),
            ready: Head::default(),
            bell,
            kernel_members: 0,
            kernel_looked: 0,
            calls_since: 0,
        };
        let object = Object { descriptors: 1, nonblocking: false, body: Body::Epoll(set), watchers: Head::default() };
        let number = state.objects.insert(object);
        set_fd(fd, Some(number));
    });
}

/// epoll_ctl(2) for an instance of Atoll's. `None`: the kernel is to be asked.
pub fn control(epoll: u32, op: i32, fd: i32, event: Option<(u32, u64)>) -> Option<Result<(), Errno>> {
    let target = match lookup(fd) {
        Fd::Object(target) if STATE.with(|state| state.socket(target).is_some()) => target,
        Fd::Hidden => return Some(Err(Errno::EBADF)),
        _ => {
            // The kernel's descriptors, and epoll instances in epoll instances, by their real descriptors.
            if op != libc::EPOLL_CTL_MOD {
                STATE.with(|state| {
                    if let Some(set) = state.set_mut(epoll) {
                        let n = &mut set.kernel_members;
                        *n = if op == libc::EPOLL_CTL_ADD { *n + 1 } else { n.saturating_sub(1) };
                    }
                });
            }
            return None;
        }
    };
    Some(STATE.with(|state| {
        state.calls += 1;
        let head = state.objects.get(target).map(|o| o.watchers).unwrap_or_default();
        let found = state.watches.find(&head, epoll, fd);
        match (op, found, event) {
            (libc::EPOLL_CTL_ADD, Some(_), _) => Err(Errno::EEXIST),
            (libc::EPOLL_CTL_ADD, None, Some((events, data))) => {
                let mut of_target = head;
                let Some(mut members) = state.set_mut(epoll).map(|set| set.members) else { return Err(Errno::EINVAL) };
                let watch = state.watches.add((epoll, &mut members), (target, &mut of_target), fd, events, data);
                let mut bell = 0;
                if let Some(set) = state.set_mut(epoll) {
                    set.members = members;
                    bell = set.bell;
                }
                if let Some(object) = state.objects.get_mut(target) {
                    object.watchers = of_target;
                }
                if let Some(socket) = state.socket_mut(target) {
                    socket.bell = bell;
                    if matches!(socket.kind, Kind::Listening(_)) {
                        state.accept_connections(target);
                    }
                }
                state.set_bell(target, bell);
                look(state, epoll, target, watch);
                Ok(())
            }
            (libc::EPOLL_CTL_MOD, Some(watch), Some((events, data))) => {
                let was = state.watches.get(watch).map_or(0, |w| w.events);
                if (events | was) & EXCLUSIVE != 0 {
                    return Err(Errno::EINVAL); // epoll_ctl(2): only with EPOLL_CTL_ADD.
                }
                state.watches.modify(watch, events, data);
                look(state, epoll, target, watch);
                Ok(())
            }
            (libc::EPOLL_CTL_DEL, Some(watch), _) => {
                state.unwatch(watch);
                let unwatched = state.objects.get(target).is_some_and(|o| o.watchers.is_empty());
                if unwatched && state.socket(target).is_some_and(|s| matches!(s.kind, Kind::Listening(_))) {
                    state.stop_accepting(target);
                }
                Ok(())
            }
            (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, _, None) => Err(Errno::EFAULT),
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None, _) => Err(Errno::ENOENT),
            _ => Err(Errno::EINVAL),
        }
    }))
}

/// Queues a watch for what is ready already.
fn look(state: &mut State, epoll: u32, target: u32, watch: u32) {
    // What was published after this is an event, because the bell is set.
    state.sessions[0].replicas[0].port.memory().fence();
    let ready = state.readiness(target);
    let State { watches, objects, .. } = state;
    if let Some(Object { body: Body::Epoll(set), .. }) = objects.get_mut(epoll) {
        watches.queue(watch, ready, &mut set.ready);
    }
}

/// epoll_wait(2) for an instance of Atoll's.
pub fn wait(
    epoll: u32,
    events: &mut [epoll_event],
    timeout_ms: i32,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    let mut deadline: Option<Instant> = None;
    let mut spun = false;
    loop {
        let mut count = 0;
        let (fd, look_at_kernel, bell) = STATE.with(|state| {
            state.calls += 1;
            state.drain();
            count = collect(state, epoll, events);
            let now = now(state);
            let Some(set) = state.set_mut(epoll) else { return (-1, false, 0) };
            set.calls_since += 1;
            let due = set.kernel_members > 0
                && (set.calls_since >= KERNEL_CALLS
                    || now.as_nanos().saturating_sub(set.kernel_looked) > KERNEL_EVERY.as_nanos() as u64);
            let look = (due || (count == 0 && timeout_ms == 0 && set.kernel_members > 0)) && count < events.len();
            if look {
                set.kernel_looked = now.as_nanos();
                set.calls_since = 0;
            }
            let (fd, bell) = (set.fd, set.bell);
            if look {
                state.system_calls += 1;
            }
            (fd, look, bell)
        });
        if fd < 0 {
            return Err(Errno::EINVAL); // epoll_wait(2): not an epoll descriptor.
        }
        if look_at_kernel {
            count += ask_kernel(fd, &mut events[count..], 0, std::ptr::null())?;
        }
        if count > 0 || timeout_ms == 0 {
            return Ok(count);
        }
        let left = STATE.with(|state| {
            let now = now(state);
            if timeout_ms < 0 {
                return None;
            }
            let at = *deadline.get_or_insert(now + Duration::from_millis(timeout_ms as u64));
            Some(at.since(now))
        });
        if left == Some(Duration::ZERO) {
            return Ok(0);
        }
        if !spun && spin() {
            continue;
        }
        spun = true;
        let ready = STATE.with(|state| {
            state.system_calls += 1;
            fall_asleep_on(state, bell);
            state.drain();
            let ready = collect(state, epoll, events);
            if ready > 0 {
                wake_up_from(state, bell);
            } else {
                state.publish_counters();
            }
            ready
        });
        if ready > 0 {
            return Ok(ready);
        }
        let millis = left.map_or(-1, |left| i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
        let result = ask_kernel(fd, events, millis, mask);
        STATE.with(|state| wake_up_from(state, bell));
        match result {
            Ok(0) => {}
            result => {
                // Both kinds of a mixed set get their turn.
                let count = result?;
                let more = STATE.with(|state| {
                    state.drain();
                    collect(state, epoll, &mut events[count..])
                });
                return Ok(count + more);
            }
        }
    }
}

fn collect(state: &mut State, epoll: u32, events: &mut [epoll_event]) -> usize {
    if events.is_empty() {
        return 0;
    }
    let Some(mut ready) = state.set_mut(epoll).map(|set| std::mem::take(&mut set.ready)) else { return 0 };
    if ready.is_empty() {
        return 0;
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
        },
    );
    state.watches = watches;
    if let Some(set) = state.set_mut(epoll) {
        set.ready = ready;
    }
    count
}

/// Events of the kernel's descriptors, without those of the bell.
fn ask_kernel(fd: i32, events: &mut [epoll_event], millis: i32, mask: *const libc::sigset_t) -> Result<usize, Errno> {
    let max = i32::try_from(events.len()).unwrap_or(i32::MAX);
    // SAFETY: `events` is valid for `max` entries; the mask is null or the program's.
    let count = unsafe { real::epoll_pwait(fd, events.as_mut_ptr(), max, millis, mask) };
    if count < 0 {
        return Err(last_errno());
    }
    let mut kept = 0;
    for i in 0..count as usize {
        if events[i].u64 != BELL_DATA {
            events[kept] = events[i];
            kept += 1;
        }
    }
    Ok(kept)
}

/// poll(2) with at least one socket of Atoll's among `fds`. `timeout`: `None` waits for ever.
pub fn poll(fds: &mut [pollfd], timeout: Option<Duration>, mask: *const libc::sigset_t) -> Result<usize, Errno> {
    let objects: Vec<Option<u32>> = fds
        .iter()
        .map(|entry| match lookup(entry.fd) {
            Fd::Object(object) => Some(object),
            _ => None,
        })
        .collect();
    let (epoll, bell) = thread_epoll();
    let mut kernel: Vec<pollfd> =
        fds.iter().zip(&objects).filter(|(_, object)| object.is_none()).map(|(entry, _)| *entry).collect();
    let has_kernel = !kernel.is_empty();
    kernel.push(pollfd { fd: epoll, events: libc::POLLIN, revents: 0 });
    let mut deadline = None;
    loop {
        let ready = STATE.with(|state| {
            state.calls += 1;
            state.drain();
            deadline = deadline.or_else(|| timeout.map(|timeout| now(state) + timeout));
            look_at(state, fds, &objects)
        });
        let left = STATE.with(|state| deadline.map(|at: Instant| at.since(now(state))));
        let sleepless = ready > 0 || left == Some(Duration::ZERO);
        if sleepless {
            if has_kernel {
                poll_kernel(&mut kernel, Some(Duration::ZERO), mask)?;
            }
            return Ok(ready + merge(fds, &objects, &kernel));
        }
        let ready = STATE.with(|state| {
            state.system_calls += 1;
            for object in objects.iter().flatten() {
                state.set_bell(*object, bell);
                state.sleepers.push(Sleeper { object: *object, bell });
            }
            fall_asleep_on(state, bell);
            state.drain();
            look_at(state, fds, &objects)
        });
        let result = if ready > 0 { Ok(0) } else { poll_kernel(&mut kernel, left, mask) };
        STATE.with(|state| {
            state.sleepers.retain(|s| s.bell != bell || !objects.contains(&Some(s.object)));
            for object in objects.iter().flatten() {
                let own = state.socket(*object).map_or(0, |socket| socket.bell);
                state.set_bell(*object, own);
            }
            wake_up_from(state, bell);
        });
        if kernel.last().is_some_and(|own| own.revents != 0) {
            let mut event = epoll_event { events: 0, u64: 0 };
            // SAFETY: one valid entry; takes the bell's event, so that it can come again.
            unsafe { real::epoll_pwait(epoll, &raw mut event, 1, 0, std::ptr::null()) };
        }
        let of_kernel = kernel[..kernel.len() - 1].iter().filter(|entry| entry.revents != 0).count();
        result?;
        if of_kernel > 0 {
            let ready = STATE.with(|state| look_at(state, fds, &objects));
            return Ok(ready + merge(fds, &objects, &kernel));
        }
    }
}

fn look_at(state: &mut State, fds: &mut [pollfd], objects: &[Option<u32>]) -> usize {
    let mut count = 0;
    for (entry, object) in fds.iter_mut().zip(objects) {
        let Some(object) = object else { continue };
        if let Some(socket) = state.socket(*object)
            && matches!(socket.kind, Kind::Listening(_))
        {
            state.accept_connections(*object);
        }
        let wanted = u32::from(entry.events as u16) | ALWAYS | 0x20;
        entry.revents = (state.readiness(*object) & wanted) as u16 as i16;
        count += usize::from(entry.revents != 0);
    }
    count
}

fn poll_kernel(kernel: &mut [pollfd], left: Option<Duration>, mask: *const libc::sigset_t) -> Result<usize, Errno> {
    let spec = left.map(|left| libc::timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    });
    let spec = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the entries are valid, the time is null or valid, the mask is null or the program's.
    let count = unsafe { real::ppoll(kernel.as_mut_ptr(), kernel.len() as u64, spec, mask) };
    if count < 0 { Err(last_errno()) } else { Ok(count as usize) }
}

/// Copies what the kernel said about its descriptors to the program's entries; returns how many are ready.
fn merge(fds: &mut [pollfd], objects: &[Option<u32>], kernel: &[pollfd]) -> usize {
    let mut count = 0;
    let mut from = kernel.iter();
    for (entry, _) in fds.iter_mut().zip(objects).filter(|(_, object)| object.is_none()) {
        let Some(got) = from.next() else { break };
        entry.revents = got.revents;
        count += usize::from(got.revents != 0);
    }
    count
}
