//! poll(2) and select(2) over Atoll's sockets and the kernel's descriptors together.

use atoll_base::{Duration, Instant};
use atoll_sockets::Errno;
use atoll_sockets::client::object::{Body, Kind};
use atoll_sockets::watch::ALWAYS;
use libc::pollfd;

use crate::asking;
use crate::confinement::EVERY;
use crate::handlers::Ran;
use crate::hang_up;
use crate::lock::STATE;
use crate::real::{count_system_call, last_errno, sys};
use crate::sleepers::CANCELLED;
use crate::state::{State, asks};
use crate::stats;
use crate::table::reserved;
use crate::table::{Fd, lookup, object_at};
use crate::under_way::{Pinned, Sleep, Ticket};
use crate::wait::{OFFERED_AGAIN, met, spin_until_event, waited};
use crate::waiter::Waiter;

/// Returns whether any entry is Atoll's.
#[inline]
pub fn any_ours(fds: &[pollfd]) -> bool {
    fds.iter().any(|entry| lookup(entry.fd) != Fd::Kernel)
}

/// Runs poll(2) with at least one of Atoll's descriptors among `fds`. A `timeout` of `None` waits for ever.
pub fn poll(
    fds: &mut [pollfd],
    timeout: Option<Duration>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    let _call = stats::Call::new(stats::POLL);
    if asks() {
        let objects: Vec<u32> = fds.iter().filter_map(|entry| object_at(entry.fd)).collect();
        asking::look(&objects)?;
    }
    let mut kernel: Vec<pollfd> = Vec::new();
    for entry in fds.iter() {
        if STATE.with(|state| is_kernel_too(state, entry.fd)) {
            kernel.push(*entry);
        }
    }
    let at_once = timeout == Some(Duration::ZERO);
    let (ready, is_late, deadline) = STATE.with(|state| {
        state.client.drain();
        let objects = fds.iter().filter_map(|entry| object_at(entry.fd));
        let is_late = at_once && objects.fold(false, |late, object| late | state.client.accepts_late(object));
        let timeout = if is_late { Some(OFFERED_AGAIN) } else { timeout };
        (look_at(state, fds), is_late, timeout.map(|timeout| state.now() + timeout))
    });
    if ready > 0 || at_once && !is_late {
        if ready == 0 {
            hang_up::after_nothing();
        }
        if !kernel.is_empty() {
            poll_kernel(&mut kernel, Some(Duration::ZERO), std::ptr::null())?;
        }
        return Ok(merge(fds, &kernel));
    }
    if mask.is_null() {
        spin_until_event()?;
    }
    let mut ticket = Ticket::new(&deadline);
    let result = sleep(fds, &mut kernel, &mut ticket, deadline, mask);
    STATE.with(|state| state.end_call(ticket));
    waited();
    match result {
        Ok(0) | Err(Errno::EINTR) if is_late => {
            asking::hear_offers();
            STATE.with(|state| {
                state.client.drain();
                look_at(state, fds);
            });
            Ok(merge(fds, &[]))
        }
        result => result,
    }
}

fn sleep(
    fds: &mut [pollfd],
    kernel: &mut Vec<pollfd>,
    ticket: &mut Ticket,
    deadline: Option<Instant>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    // The place to sleep is the last entry.
    let own = kernel.len();
    kernel.push(pollfd { fd: -1, events: libc::POLLIN, revents: 0 });
    let mut handlers = Ran::now();
    loop {
        hang_up::mend();
        let asleep = STATE.with(|state| {
            state.begin_call(ticket, || {
                Pinned::Many(fds.iter().filter_map(|entry| object_at(entry.fd)).collect())
            });
            let bells = fds
                .iter()
                .filter_map(|entry| state.client.set(object_at(entry.fd)?))
                .fold(0, |all, set| all | set.bells);
            let Some((number, bell)) = state.place_of_call(*ticket, bells) else { return Err(Errno::EBADF) };
            let bells = bells | 1 << bell;
            kernel[own].fd = number;
            state.sleep(*ticket, Sleep { bells, bell: Some(bell), ..Sleep::default() });
            state.client.drain();
            let left = deadline.map(|at| at.since(state.now()));
            state.client.poll_due();
            if look_at(state, fds) > 0 || left == Some(Duration::ZERO) {
                state.wake(*ticket);
                return Ok(None);
            }
            if state.sleepers.is_requested() {
                state.wake(*ticket);
                return Err(CANCELLED);
            }
            stats::publish(&state.client);
            state.doze_off(*ticket, Some(number));
            Ok(Some(state.nap(left)))
        });
        let Some(left) = asleep? else {
            if own > 0 {
                poll_kernel(&mut kernel[..own], Some(Duration::ZERO), std::ptr::null())?;
            }
            return Ok(merge(fds, &kernel[..own]));
        };
        reserved::before_sleep();
        // Without a doorbell among the descriptors the thread wakes up soon, and checks again.
        if kernel[own].fd < 0 {
            hang_up::after_nothing();
        }
        let left = if kernel[own].fd < 0 { Some(left.map_or(EVERY, |left| left.min(EVERY))) } else { left };
        let slept =
            if handlers.interrupt(false) { Err(Errno::EINTR) } else { poll_kernel(kernel, left, mask) };
        if kernel[own].revents != 0 {
            // This takes the bell's event, so that it can come again.
            let _ = Waiter::sleep(kernel[own].fd, Some(Duration::ZERO), std::ptr::null());
        }
        let ready = STATE.with(|state| {
            state.wake(*ticket);
            look_at(state, fds)
        });
        slept?;
        if ready > 0 || kernel[..own].iter().any(|entry| entry.revents != 0) {
            return Ok(merge(fds, &kernel[..own]));
        }
    }
}

/// Returns whether the kernel has to examine a descriptor: its own ones, and epoll instances, which may have
/// members of both kinds.
fn is_kernel_too(state: &State, fd: i32) -> bool {
    match lookup(fd) {
        Fd::Kernel => true,
        Fd::Hidden => false,
        Fd::Object(object) => {
            state.client.object(object).is_some_and(|object| matches!(object.body, Body::Epoll(_)))
        }
    }
}

fn look_at(state: &mut State, fds: &mut [pollfd]) -> usize {
    let mut count = 0;
    for entry in fds {
        entry.revents = 0;
        match lookup(entry.fd) {
            Fd::Kernel => continue,
            Fd::Hidden => entry.revents = libc::POLLNVAL,
            Fd::Object(object) => {
                if let Some(Kind::Listening(_)) = state.client.socket(object).map(|socket| &socket.kind) {
                    state.client.accept_connections(object);
                } else {
                    state.client.accept_watched(object);
                }
                state.client.prune(object);
                let wanted = u32::from(entry.events as u16) | ALWAYS | 0x20;
                entry.revents = (state.client.readiness(object) & wanted) as u16 as i16;
            }
        }
        if entry.revents != 0 {
            met(entry.fd as u32);
            count += 1;
        }
    }
    count
}

fn poll_kernel(
    kernel: &mut [pollfd],
    left: Option<Duration>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    let mut spec = left.map(|left| libc::timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    });
    let spec = spec.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    count_system_call();
    // SAFETY: the entries are valid, the time is null or valid, the mask is null or the program's. 8: size of
    // the kernel's signal set.
    let count = unsafe { sys!(libc::SYS_ppoll, kernel.as_mut_ptr(), kernel.len(), spec, mask, 8) };
    if count < 0 { Err(last_errno()) } else { Ok(count as usize) }
}

/// Merges the kernel's answers into ours, and counts the entries that have any.
fn merge(fds: &mut [pollfd], kernel: &[pollfd]) -> usize {
    let mut from = kernel.iter();
    let mut next = from.next();
    let mut count = 0;
    for entry in fds.iter_mut() {
        if let Some(got) = next
            && got.fd == entry.fd
            && got.events == entry.events
        {
            entry.revents |= got.revents;
            next = from.next();
        }
        count += usize::from(entry.revents != 0);
    }
    count
}
