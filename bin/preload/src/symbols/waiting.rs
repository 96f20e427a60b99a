//! poll(2), select(2), epoll(7).

use std::ffi::c_int;

use atoll_base::Duration;
use atoll_sockets::Errno;
use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use super::{answer, count, fail};
use crate::cancellation::point;
use crate::lock::STATE;
use crate::poll::{any_ours, poll as poll_ours};
use crate::table::object_at;
use crate::{epoll, real, stats};

/// Returns the program's entries.
unsafe fn entries<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    if fds.is_null() {
        return &mut [];
    }
    // SAFETY: the program's memory.
    unsafe { std::slice::from_raw_parts_mut(fds, count as usize) }
}

/// Converts a time that a program gives; EINVAL for an invalid one.
unsafe fn time(timeout: *const timespec) -> Result<Option<Duration>, Errno> {
    // SAFETY: null or the program's.
    match unsafe { timeout.as_ref() } {
        None => Ok(None),
        Some(t) if t.tv_sec < 0 || !(0..1_000_000_000).contains(&t.tv_nsec) => Err(Errno::EINVAL),
        Some(t) => Ok(Some(Duration::new(t.tv_sec as u64, t.tv_nsec as u32))),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, number: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the program's memory.
    let all = unsafe { entries(fds, number) };
    if !any_ours(all) {
        // SAFETY: passed on.
        return unsafe { real::poll(fds, number, timeout) };
    }
    let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
    count(point(|| poll_ours(all, timeout, std::ptr::null())))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    number: nfds_t,
    timeout: c_int,
    _room: size_t,
) -> c_int {
    // SAFETY: passed on.
    unsafe { poll(fds, number, timeout) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    number: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's memory.
    let all = unsafe { entries(fds, number) };
    if !any_ours(all) {
        // SAFETY: passed on.
        return unsafe { real::ppoll(fds, number, timeout, mask) };
    }
    // SAFETY: null or the program's.
    match unsafe { time(timeout) } {
        Ok(timeout) => count(point(|| poll_ours(all, timeout, mask))),
        Err(errno) => fail(errno),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    number: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    _room: size_t,
) -> c_int {
    // SAFETY: passed on.
    unsafe { ppoll(fds, number, timeout, mask) }
}

/// The three sets of select(2).
#[derive(Clone, Copy)]
struct Sets([*mut fd_set; 3]);

/// For each set: the events that it asks for, and those that set its bit (fs/select.c).
const SELECT: [(i16, i16); 3] = [
    (libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR),
    (libc::POLLOUT, libc::POLLOUT | libc::POLLERR),
    (libc::POLLPRI, libc::POLLPRI),
];

/// The number of bits of one word of a set.
const WORD: usize = 64;

impl Sets {
    /// Returns the entries of the sets, which may be longer than `fd_set`: programs allocate larger ones.
    unsafe fn entries(self, number: c_int) -> Vec<pollfd> {
        let mut all = Vec::new();
        for fd in 0..usize::try_from(number).unwrap_or(0) {
            let mut events = 0;
            for (set, (bit, _)) in self.0.into_iter().zip(SELECT) {
                // SAFETY: null or a set of at least `number` bits.
                if !set.is_null() && unsafe { *set.cast::<u64>().add(fd / WORD) } & 1 << (fd % WORD) != 0 {
                    events |= bit;
                }
            }
            if events != 0 {
                all.push(pollfd { fd: fd as c_int, events, revents: 0 });
            }
        }
        all
    }

    unsafe fn write(self, number: c_int, all: &[pollfd]) -> c_int {
        if all.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
            return fail(Errno::EBADF);
        }
        let mut bits = 0;
        for (set, (wanted, shown)) in self.0.into_iter().zip(SELECT).filter(|(set, _)| !set.is_null()) {
            let words = set.cast::<u64>();
            for word in 0..(number.max(0) as usize).div_ceil(WORD) {
                // SAFETY: a set of at least `number` bits.
                unsafe { *words.add(word) = 0 };
            }
            for entry in all.iter().filter(|e| e.events & wanted != 0 && e.revents & shown != 0) {
                let fd = entry.fd as usize;
                // SAFETY: as above; entries are below `number`.
                unsafe { *words.add(fd / WORD) |= 1 << (fd % WORD) };
                bits += 1;
            }
        }
        bits
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    number: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = Sets([read, write, except]);
    // SAFETY: the program's sets.
    let mut all = if crate::table::any_objects() { unsafe { sets.entries(number) } } else { Vec::new() };
    if !any_ours(&all) {
        // SAFETY: passed on.
        return unsafe { real::select(number, read, write, except, timeout) };
    }
    // SAFETY: null or the program's.
    let asked = unsafe { timeout.as_ref() };
    if asked.is_some_and(|t| t.tv_sec < 0 || t.tv_usec < 0) {
        return fail(Errno::EINVAL);
    }
    let wait = asked.map(|t| {
        Duration::from_secs(t.tv_sec as u64).saturating_add(Duration::from_micros(t.tv_usec as u64))
    });
    let until = wait.map(|wait| STATE.with(|state| state.now()) + wait);
    let result = point(|| poll_ours(&mut all, wait, std::ptr::null()));
    if let Some(until) = until {
        // select(2): on Linux, timeout is modified to reflect the amount of time not slept.
        let left = until.since(STATE.with(|state| state.now()));
        // SAFETY: not null, since it was read above.
        unsafe {
            *timeout = timeval { tv_sec: left.as_secs() as i64, tv_usec: i64::from(left.subsec_micros()) }
        };
    }
    match result {
        // SAFETY: the program's sets.
        Ok(_) => unsafe { sets.write(number, &all) },
        Err(errno) => fail(errno),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    number: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = Sets([read, write, except]);
    // SAFETY: the program's sets.
    let mut all = if crate::table::any_objects() { unsafe { sets.entries(number) } } else { Vec::new() };
    if !any_ours(&all) {
        // SAFETY: passed on.
        return unsafe { real::pselect(number, read, write, except, timeout, mask) };
    }
    // SAFETY: null or the program's.
    let wait = match unsafe { time(timeout) } {
        Ok(wait) => wait,
        Err(errno) => return fail(errno),
    };
    match point(|| poll_ours(&mut all, wait, mask)) {
        // SAFETY: the program's sets.
        Ok(_) => unsafe { sets.write(number, &all) },
        Err(errno) => fail(errno),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: passed on.
    let fd = unsafe { real::epoll_create1(flags) };
    if fd >= 0 {
        epoll::create(fd, flags & libc::EPOLL_CLOEXEC != 0);
    }
    fd
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    if size <= 0 {
        return fail(Errno::EINVAL);
    }
    // SAFETY: passed on.
    unsafe { epoll_create1(0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    if let Some(set) = object_at(epfd) {
        let _call = stats::Call::new(stats::EPOLL_CTL);
        // SAFETY: null or the program's.
        let wanted = if event.is_null() { None } else { Some(unsafe { event.read_unaligned() }) };
        let control = epoll::Control { op, fd, event: wanted.map(|e| (e.events, e.u64)) };
        if let Some(result) = epoll::control(set, control) {
            return answer(result);
        }
        crate::real::count_system_call();
    }
    // SAFETY: passed on.
    unsafe { real::epoll_ctl(epfd, op, fd, event) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: passed on.
    unsafe { epoll_pwait(epfd, events, max, timeout, std::ptr::null()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    match object_at(epfd) {
        // SAFETY: the program's memory.
        Some(set) => unsafe {
            wait(set, events, max, u64::try_from(timeout).ok().map(Duration::from_millis), mask)
        },
        // SAFETY: passed on.
        None => unsafe { real::epoll_pwait(epfd, events, max, timeout, mask) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: null or the program's.
    let time = match unsafe { time(timeout) } {
        Ok(time) => time,
        Err(errno) => return fail(errno),
    };
    match object_at(epfd) {
        // SAFETY: the program's memory.
        Some(set) => unsafe { wait(set, events, max, time, mask) },
        None => {
            let millis =
                time.map_or(-1, |t| c_int::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX));
            // SAFETY: passed on.
            unsafe { real::epoll_pwait(epfd, events, max, millis, mask) }
        }
    }
}

unsafe fn wait(
    set: u32,
    events: *mut epoll_event,
    max: c_int,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> c_int {
    if max <= 0 {
        return fail(Errno::EINVAL);
    }
    if events.is_null() {
        return fail(Errno::EFAULT);
    }
    // SAFETY: the program's memory.
    let room = unsafe { std::slice::from_raw_parts_mut(events, max as usize) };
    count(point(|| epoll::wait(set, room, timeout, mask)))
}
