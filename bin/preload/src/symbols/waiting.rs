//! poll(2), select(2), epoll(7).

use std::ffi::c_int;
use std::mem::ManuallyDrop;

use atoll_base::Duration;
use atoll_sockets::Errno;
use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use super::{answer, count, fail};
use crate::cancellation::point;
use crate::instruction::direct;
use crate::lock::STATE;
use crate::poll::{any_ours, poll as poll_ours};
use crate::table::{Fd, lookup, object_at};
use crate::{epoll, reach, real, stats};

/// The number of entries up to which it is not asked how many descriptors there may be.
const ENTRIES: nfds_t = 256;

/// Returns the program's entries; none if the kernel is to say what is wrong with them.
unsafe fn entries<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    let is_too_many = || {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a struct to be filled.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
        count > limit.rlim_cur
    };
    if fds.is_null()
        || count > ENTRIES && is_too_many()
        || !reach::can_write(fds, count as usize * size_of::<pollfd>())
    {
        return &mut [];
    }
    // SAFETY: the program's memory.
    unsafe { std::slice::from_raw_parts_mut(fds, count as usize) }
}

/// Converts a time that a program gives; EINVAL for an invalid one.
unsafe fn time(timeout: *const timespec) -> Result<Option<Duration>, Errno> {
    // SAFETY: any octets are a time.
    match (!timeout.is_null()).then(|| unsafe { reach::get(timeout) }).transpose()? {
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
/// The number of bits of an `fd_set`.
const SET: usize = libc::FD_SETSIZE;

impl Sets {
    /// Returns a word of a set, which need not be aligned; `None` if there is no set, or it is not so long.
    fn word(set: *mut fd_set, word: usize) -> Option<u64> {
        // SAFETY: any octets are a number.
        (!set.is_null()).then(|| unsafe { reach::get(set.cast::<u64>().wrapping_add(word)) })?.ok()
    }

    /// Returns the number of bits of the sets that count. Sets may be longer than `fd_set`, but need not be,
    /// although programs say that theirs have as many bits as there may be descriptors: Linux looks at no
    /// bits beyond its table of descriptors, which is not longer than what is open asks for. The library's
    /// own descriptors are far up in it.
    fn bits(self, number: c_int) -> usize {
        let number = usize::try_from(number).unwrap_or(0);
        if number <= SET {
            return number;
        }
        // SAFETY: a struct to be filled.
        let limit = unsafe {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
        };
        let mut bits = SET;
        for word in SET / WORD..number.min(limit).div_ceil(WORD) {
            let all = self.0.iter().fold(0, |all, set| all | Self::word(*set, word).unwrap_or(0));
            let numbers = (0..WORD).filter(|bit| all & 1 << bit != 0).map(|bit| word * WORD + bit);
            bits = numbers.filter(|fd| is_open(*fd as c_int)).fold(bits, |bits, fd| bits.max(fd + 1));
        }
        bits.min(number)
    }

    /// Returns the entries of the sets. Fails if there is no memory for a set.
    fn entries(self, bits: usize) -> Result<Vec<pollfd>, Errno> {
        let mut all: Vec<pollfd> = Vec::new();
        let len = bits.div_ceil(WORD) * (WORD / 8);
        if !self.0.iter().all(|set| set.is_null() || reach::can_write(*set, len)) {
            return Err(Errno::EFAULT);
        }
        for at in 0..bits.div_ceil(WORD) {
            let words = self.0.map(|set| Self::word(set, at).unwrap_or(0));
            let mut any = words.iter().fold(0, |any, word| any | word);
            while any != 0 {
                let bit = any.trailing_zeros() as usize;
                any &= any - 1;
                let asked = words.iter().zip(SELECT).filter(|(word, _)| **word & 1 << bit != 0);
                let events = asked.fold(0, |events, (_, (wanted, _))| events | wanted);
                if at * WORD + bit < bits {
                    all.push(pollfd { fd: (at * WORD + bit) as c_int, events, revents: 0 });
                }
            }
        }
        Ok(all)
    }

    /// Writes what was found to the sets.
    fn write(self, bits: usize, all: &[pollfd]) -> c_int {
        if all.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
            return fail(Errno::EBADF);
        }
        let mut count = 0;
        for (set, (wanted, shown)) in self.0.into_iter().zip(SELECT).filter(|(set, _)| !set.is_null()) {
            let mut found =
                all.iter().filter(|e| e.events & wanted != 0 && e.revents & shown != 0).peekable();
            for at in 0..bits.div_ceil(WORD) {
                let mut word = 0u64;
                while let Some(entry) = found.next_if(|entry| entry.fd as usize / WORD == at) {
                    word |= 1 << (entry.fd as usize % WORD);
                    count += 1;
                }
                if let Err(errno) = reach::put(set.cast::<u64>().wrapping_add(at), word) {
                    return fail(errno);
                }
            }
        }
        count
    }
}

/// Returns whether a number is a descriptor of the program.
fn is_open(fd: c_int) -> bool {
    match lookup(fd) {
        Fd::Object(_) => true,
        Fd::Hidden => false,
        // SAFETY: numbers only.
        Fd::Kernel => unsafe { direct(libc::SYS_fcntl, [fd.into(), libc::F_GETFD.into(), 0, 0, 0, 0]) >= 0 },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn select(
    number: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = Sets([read, write, except]);
    let bits = sets.bits(number);
    let all = if crate::table::any_objects() { sets.entries(bits).unwrap_or_default() } else { Vec::new() };
    if !any_ours(&all) {
        let number = number.min(bits as c_int);
        // SAFETY: passed on.
        return unsafe { real::select(number, read, write, except, timeout) };
    }
    // SAFETY: any octets are a time.
    let asked = match (!timeout.is_null()).then(|| unsafe { reach::get(timeout) }).transpose() {
        Ok(asked) => asked,
        Err(errno) => return fail(errno),
    };
    if asked.is_some_and(|t| t.tv_sec < 0 || t.tv_usec < 0) {
        return fail(Errno::EINVAL);
    }
    let wait = asked.map(|t| {
        Duration::from_secs(t.tv_sec as u64).saturating_add(Duration::from_micros(t.tv_usec as u64))
    });
    let until = wait.map(|wait| STATE.with(|state| state.now()) + wait);
    // A thread that is cancelled leaves this frame without dropping anything.
    let mut all = ManuallyDrop::new(all);
    let result = point(|| poll_ours(&mut all, wait, std::ptr::null()));
    let all = ManuallyDrop::into_inner(all);
    if let Some(until) = until {
        // select(2): on Linux, timeout is modified to reflect the amount of time not slept.
        let left = until.since(STATE.with(|state| state.now()));
        let left = timeval { tv_sec: left.as_secs() as i64, tv_usec: i64::from(left.subsec_micros()) };
        // As on Linux, a time that cannot be written is no error.
        let _ = reach::put(timeout, left);
    }
    match result {
        Ok(_) => sets.write(bits, &all),
        Err(errno) => fail(errno),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pselect(
    number: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = Sets([read, write, except]);
    let bits = sets.bits(number);
    let all = if crate::table::any_objects() { sets.entries(bits).unwrap_or_default() } else { Vec::new() };
    if !any_ours(&all) {
        let number = number.min(bits as c_int);
        // SAFETY: passed on.
        return unsafe { real::pselect(number, read, write, except, timeout, mask) };
    }
    // SAFETY: null or the program's.
    let wait = match unsafe { time(timeout) } {
        Ok(wait) => wait,
        Err(errno) => return fail(errno),
    };
    // As in select.
    let mut all = ManuallyDrop::new(all);
    let result = point(|| poll_ours(&mut all, wait, mask));
    let all = ManuallyDrop::into_inner(all);
    match result {
        Ok(_) => sets.write(bits, &all),
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
        // SAFETY: any octets are an event. Of one that is nowhere the kernel says so.
        let wanted = unsafe { reach::get(event) }.ok();
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
            wait((epfd, set), events, max, u64::try_from(timeout).ok().map(Duration::from_millis), mask)
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
        Some(set) => unsafe { wait((epfd, set), events, max, time, mask) },
        None => {
            let millis =
                time.map_or(-1, |t| c_int::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX));
            // SAFETY: passed on.
            unsafe { real::epoll_pwait(epfd, events, max, millis, mask) }
        }
    }
}

unsafe fn wait(
    (epfd, set): (c_int, u32),
    events: *mut epoll_event,
    max: c_int,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> c_int {
    // fs/eventpoll.c: EP_MAX_EVENTS.
    if max <= 0 || max as usize > i32::MAX as usize / size_of::<epoll_event>() {
        return fail(Errno::EINVAL);
    }
    let octets = max as usize * size_of::<epoll_event>();
    if reach::is_beyond(events.cast(), octets) {
        return fail(Errno::EFAULT);
    }
    // Memory for events is looked at for as many as there may be: looking costs a moment for each page.
    let wanted = if octets > EVENTS_OCTETS {
        octets.min(EVENTS_OCTETS.max(epoll::most_events(set).saturating_mul(size_of::<epoll_event>())))
    } else {
        octets
    };
    let there = reach::writable(events, wanted) / size_of::<epoll_event>();
    if there == 0 {
        return wait_without_room(epfd, timeout, mask);
    }
    // SAFETY: the program's memory.
    let room = unsafe { std::slice::from_raw_parts_mut(events, there) };
    count(point(|| epoll::wait(set, room, timeout, mask)))
}

/// The octets of memory for events that are looked at, whatever a set has.
const EVENTS_OCTETS: usize = 4 * 4096;

/// Waits for events that the program has no memory for: none is taken, and the call fails if there is one.
fn wait_without_room(epfd: c_int, timeout: Option<Duration>, mask: *const sigset_t) -> c_int {
    let mut entry = [pollfd { fd: epfd, events: libc::POLLIN, revents: 0 }];
    match point(|| poll_ours(&mut entry, timeout, mask)) {
        Ok(0) => 0,
        Ok(_) => fail(Errno::EFAULT),
        Err(errno) => fail(errno),
    }
}
