//! close(2), dup(2), fcntl(2), ioctl(2): what numbers name.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::sync::atomic::AtomicBool;

use atoll_sockets::Errno;
use atoll_sockets::client::object::Owner;
use atoll_sockets::client::object::{Kind, Socket};
use atoll_sockets::stamps::Form;
use atoll_sockets::view::request::SIOCOUTQNSD;

use super::sockets::SIOCATMARK;
use super::{answer, fail, streams};
use crate::calls::Closed;
use crate::lock::STATE;
use crate::real::sys;
use crate::settings::settings;
use crate::table::reserved;
use crate::table::{self, Fd, lookup};
use crate::urgent::{self, OwnerEx};
use crate::{calls, interfaces, options, reach, real, stats};

// fcntl.h, linux/sockios.h.
const F_SETOWN_EX: c_int = 15;
const F_GETOWN_EX: c_int = 16;
const FIOSETOWN: c_ulong = 0x8901;
const SIOCSPGRP: c_ulong = 0x8902;
const FIOGETOWN: c_ulong = 0x8903;
const SIOCGPGRP: c_ulong = 0x8904;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    let closed = match lookup(fd) {
        Fd::Kernel => None,
        Fd::Hidden => return fail(Errno::EBADF),
        Fd::Object(object) => {
            let closed = calls::close(fd, object);
            if !closed.is_in_kernel {
                closed.linger();
                return 0;
            }
            Some(closed)
        }
    };
    reserved::give_back();
    // SAFETY: passed on.
    let result = unsafe { real::close(fd) };
    if fd >= 0 {
        reserved::note_free(fd);
    }
    closed.into_iter().for_each(Closed::linger);
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const UNSHARE: c_int = libc::CLOSE_RANGE_UNSHARE as c_int;
    const CLOEXEC: c_int = libc::CLOSE_RANGE_CLOEXEC as c_int;
    if first > last || flags & !(UNSHARE | CLOEXEC) != 0 {
        return fail(Errno::EINVAL);
    }
    reserved::give_back();
    let mut all_closed = Vec::new();
    for (fd, object) in table::objects_between(first, last).collect::<Vec<_>>() {
        if flags & CLOEXEC != 0 {
            table::set_close_on_exec(fd, true);
            continue;
        }
        let closed = calls::close(fd, object);
        if closed.is_in_kernel {
            table::close(fd);
        }
        all_closed.push(closed);
    }
    // Connections that were just closed are among them.
    reserved::give_back();
    reserved::note_free(i32::try_from(first).unwrap_or(i32::MAX));
    // SAFETY: passed on.
    let result = unsafe { close_range_of_kernel(first, last, flags) };
    all_closed.into_iter().for_each(Closed::linger);
    result
}

/// Closes the kernel's descriptors of a range, around our own.
unsafe fn close_range_of_kernel(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let mut from = first;
    loop {
        let hidden = table::next_hidden(from).filter(|hidden| *hidden <= last);
        let to = hidden.map_or(last, |hidden| hidden.wrapping_sub(1));
        if hidden.is_none_or(|hidden| hidden > from) {
            // SAFETY: a range without descriptors of ours.
            let result = unsafe { real::close_range(from, to, flags) };
            if result < 0 {
                return result;
            }
        }
        match hidden {
            Some(hidden) if hidden < last => from = hidden + 1,
            _ => return 0,
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: passed on.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

/// Lets a descriptor that the kernel has duplicated name the same object.
fn share(old: c_int, new: c_int, close_on_exec: bool) {
    if let Fd::Object(object) = lookup(old)
        && new >= 0
    {
        STATE.with(|state| {
            if let Some(entry) = state.client.object_mut(object) {
                entry.descriptors += 1;
            }
            if let Some(socket) = state.client.socket_mut(object) {
                // Numbers of sockets that are duplicated are not reserved.
                socket.pooled = false;
            }
        });
        table::set_object(new, object, close_on_exec);
        streams::replace_standard(new);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    if lookup(fd) == Fd::Hidden {
        return fail(Errno::EBADF);
    }
    reserved::give_back();
    // SAFETY: passed on.
    let new = unsafe { real::dup(fd) };
    share(fd, new, false);
    new
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if old == new {
        // SAFETY: passed on.
        return if lookup(old) == Fd::Hidden { fail(Errno::EBADF) } else { unsafe { real::dup2(old, new) } };
    }
    // SAFETY: passed on.
    duplicate(old, new, false, || unsafe { real::dup2(old, new) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: passed on.
    duplicate(old, new, flags & libc::O_CLOEXEC != 0, || unsafe { real::dup3(old, new, flags) })
}

fn duplicate(old: c_int, new: c_int, close_on_exec: bool, make: impl FnOnce() -> c_int) -> c_int {
    if lookup(old) == Fd::Hidden || lookup(new) == Fd::Hidden {
        return fail(Errno::EBADF);
    }
    reserved::give_back();
    let result = make();
    if result >= 0 && old != new {
        let lingering = match lookup(new) {
            Fd::Object(object) => {
                let lingering = calls::start_lingering(object);
                table::set_kernel(new);
                STATE.with(|state| state.client.release(object));
                lingering
            }
            _ => None,
        };
        share(old, new, close_on_exec);
        lingering.into_iter().for_each(calls::linger);
    }
    result
}

/// Notes that the C library has put other files behind the standard descriptors.
fn forget_standard() {
    for fd in 0..3 {
        if let Fd::Object(object) = lookup(fd) {
            table::set_kernel(fd);
            STATE.with(|state| state.client.release(object));
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn daemon(keeps_folder: c_int, keeps_descriptors: c_int) -> c_int {
    // SAFETY: passed on. The functions for fork(2) have run in the child that returns.
    let result = unsafe { real::daemon(keeps_folder, keeps_descriptors) };
    if result == 0 && keeps_descriptors == 0 {
        forget_standard();
    }
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn login_tty(fd: c_int) -> c_int {
    reserved::give_back();
    // SAFETY: passed on.
    let result = unsafe { real::login_tty(fd) };
    if result == 0 {
        forget_standard();
    }
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkpty(
    master: *mut c_int,
    name: *mut c_char,
    terminal: *const libc::termios,
    size: *const libc::winsize,
) -> libc::pid_t {
    reserved::give_back();
    // SAFETY: passed on.
    let child = unsafe { real::forkpty(master, name, terminal, size) };
    if child == 0 {
        forget_standard();
    }
    child
}

/// Takes a descriptor out of another process. A socket of the stack cannot be taken: what its process knows
/// of it would not come with the kernel's socket behind it, which is of no use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pidfd_getfd(pidfd: c_int, target: c_int, flags: c_uint) -> c_int {
    reserved::give_back();
    // An older C library has no such function.
    // SAFETY: numbers only.
    let fd = unsafe { sys!(libc::SYS_pidfd_getfd, pidfd, target, flags) } as c_int;
    if fd < 0 || settings().socket.is_none() || settings().kernel_network.has_rest() || !is_unused(fd) {
        return fd;
    }
    static IS_TOLD: AtomicBool = AtomicBool::new(false);
    crate::complain_once(
        &IS_TOLD,
        format_args!("libatoll: a socket of the stack cannot be taken out of its process (pidfd_getfd)\n"),
    );
    table::close(fd);
    fail(Errno::EOPNOTSUPP)
}

/// Returns whether a descriptor is a socket of the Internet families that has no port: the kernel's behind a
/// socket of the stack.
fn is_unused(fd: c_int) -> bool {
    // SAFETY: all-zero is a valid value.
    let mut address: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: room for an address, and its size. Both families have the port at the same place.
    let named = unsafe { real::getsockname(fd, (&raw mut address).cast(), &raw mut len) };
    let is_internet = [libc::AF_INET, libc::AF_INET6].contains(&address.sin6_family.into());
    named == 0 && is_internet && address.sin6_port == 0
}

// structure: fcntl: one arm for each request
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    let object = match lookup(fd) {
        Fd::Object(object) => object,
        Fd::Hidden => return fail(Errno::EBADF),
        Fd::Kernel => {
            reserved::give_back();
            // SAFETY: passed on.
            return unsafe { real::fcntl(fd, command, argument) };
        }
    };
    let _call = stats::Call::new(stats::OTHER);
    let number = argument as usize as c_int;
    match command {
        libc::F_GETFD => return if table::closes_on_exec(fd) { libc::FD_CLOEXEC } else { 0 },
        libc::F_SETFD => {
            // exec examines our flag, and then sets the kernel's accordingly.
            table::set_close_on_exec(fd, number & libc::FD_CLOEXEC != 0);
            let is_pooled =
                STATE.with(|state| state.client.socket(object).is_some_and(|socket| socket.pooled));
            if is_pooled {
                return 0;
            }
        }
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            reserved::give_back();
            // SAFETY: passed on.
            let new = unsafe { real::fcntl(fd, command, argument) };
            share(fd, new, command == libc::F_DUPFD_CLOEXEC);
            return new;
        }
        libc::F_GETOWN => return urgent::owner(object).id,
        F_GETOWN_EX if !argument.is_null() => {
            // SAFETY: the program's struct.
            unsafe { argument.cast::<OwnerEx>().write(OwnerEx::of(urgent::owner(object))) };
            return 0;
        }
        _ => {}
    }
    let is_fresh =
        STATE.with(|state| state.client.socket(object).map(|socket| matches!(socket.kind, Kind::Fresh)));
    match (command, is_fresh) {
        (libc::F_SETOWN | F_SETOWN_EX, Some(is_fresh)) => {
            let owner = match command {
                libc::F_SETOWN => Ok(Owner { id: number, is_thread: false }),
                // SAFETY: null or the program's struct.
                _ => unsafe { argument.cast::<OwnerEx>().as_ref() }
                    .ok_or(Errno::EFAULT)
                    .and_then(OwnerEx::owner),
            };
            let result = owner.and_then(|owner| urgent::set_owner(object, owner));
            if result.is_err() || !is_fresh {
                return answer(result);
            }
        }
        // A socket has no such way to be read and written.
        (libc::F_SETFL, Some(_)) if number & libc::O_DIRECT != 0 => return fail(Errno::EINVAL),
        (libc::F_SETFL, Some(is_fresh)) => {
            set_nonblocking(object, number & libc::O_NONBLOCK != 0);
            if !is_fresh {
                return 0;
            }
        }
        (libc::F_GETFL, Some(_)) => {
            let nonblocking = STATE.with(|state| state.client.is_nonblocking(object));
            return libc::O_RDWR | if nonblocking { libc::O_NONBLOCK } else { 0 };
        }
        _ => {}
    }
    crate::real::count_system_call();
    // SAFETY: passed on; the kernel may still get this socket.
    unsafe { real::fcntl(fd, command, argument) }
}

fn set_nonblocking(object: u32, nonblocking: bool) {
    STATE.with(|state| {
        if let Some(entry) = state.client.object_mut(object) {
            entry.nonblocking = nonblocking;
        }
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: passed on.
    unsafe { fcntl(fd, command, argument) }
}

/// asm-generic/sockios.h, linux/sockios.h: the older numbers, and those of times of 64 bits, which these are
/// on a 64-bit system anyway.
const SIOCGSTAMP: c_ulong = 0x8906;
const SIOCGSTAMPNS: c_ulong = 0x8907;
const SIOCGSTAMP_NEW: c_ulong = 0x8010_8906;
const SIOCGSTAMPNS_NEW: c_ulong = 0x8010_8907;

/// Writes when the last datagram came that a socket has received: `SIOCGSTAMP`, `SIOCGSTAMPNS`.
fn stamp(object: u32, form: Form, argument: *mut c_void) -> c_int {
    let moment = STATE.with(|state| state.client.stamp(object));
    answer(moment.and_then(|moment| reach::put(argument.cast(), form.encode(moment))))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the program's argument.
    if let Some(result) = unsafe { interfaces::ioctl(fd, request, argument) } {
        return answer(result);
    }
    let socket = table::object_at(fd).and_then(|object| {
        STATE.with(|state| {
            let socket = state.client.socket(object)?;
            let is_datagram = socket.protocol.is_datagram();
            Some((
                object,
                matches!(socket.kind, Kind::Fresh),
                matches!(socket.kind, Kind::Listening(_)),
                is_datagram,
            ))
        })
    });
    let Some((object, is_fresh, is_listening, is_datagram)) = socket else {
        // SAFETY: passed on.
        return unsafe { real::ioctl(fd, request, argument) };
    };
    let _call = stats::Call::new(stats::OTHER);
    match request {
        libc::FIONBIO if !argument.is_null() => {
            // SAFETY: any octets are a number.
            match unsafe { reach::get(argument.cast::<c_int>()) } {
                Ok(on) => set_nonblocking(object, on != 0),
                Err(errno) => return fail(errno),
            }
            if !is_fresh {
                return 0;
            }
        }
        libc::FIOCLEX | libc::FIONCLEX => {
            table::set_close_on_exec(fd, request == libc::FIOCLEX);
            if STATE.with(|state| state.client.socket(object).is_some_and(|socket| socket.pooled)) {
                return 0;
            }
        }
        // udp(7): there is nothing urgent about datagrams.
        SIOCATMARK if is_datagram && !argument.is_null() => return fail(Errno::ENOTTY),
        libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD if is_listening => return fail(Errno::EINVAL),
        SIOCATMARK if !argument.is_null() => {
            return answer(reach::put(argument.cast::<c_int>(), urgent::is_at_mark(object).into()));
        }
        FIOSETOWN | SIOCSPGRP if !argument.is_null() => {
            // SAFETY: any octets are a number.
            let id = unsafe { reach::get(argument.cast::<c_int>()) };
            return answer(id.and_then(|id| urgent::set_owner(object, Owner { id, is_thread: false })));
        }
        FIOGETOWN | SIOCGPGRP if !argument.is_null() => {
            return answer(reach::put(argument.cast::<c_int>(), urgent::owner(object).id));
        }
        SIOCGSTAMP | SIOCGSTAMP_NEW => return stamp(object, Form::Micros, argument),
        SIOCGSTAMPNS | SIOCGSTAMPNS_NEW => return stamp(object, Form::Nanos, argument),
        SIOCOUTQNSD if is_datagram => return fail(Errno::ENOTTY),
        libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD if !is_fresh && !argument.is_null() => {
            let waiting = match request {
                libc::FIONREAD => unread(object),
                _ => options::queued(object, request == SIOCOUTQNSD),
            };
            let told = c_int::try_from(waiting).unwrap_or(c_int::MAX);
            return answer(reach::put(argument.cast::<c_int>(), told));
        }
        _ => {}
    }
    crate::real::count_system_call();
    // SAFETY: passed on.
    unsafe { real::ioctl(fd, request, argument) }
}

/// Returns the octets that wait to be read.
fn unread(object: u32) -> u64 {
    STATE.with(|state| {
        state.client.drain();
        if let Some((stream, local, _)) = state.client.stream(object) {
            return stream.unread(local);
        }
        let Some(Socket { kind: Kind::Datagram(datagram), .. }) = state.client.socket(object) else {
            return 0;
        };
        let first = |place| state.client.datagrams(place)?.first_datagram().map(|waiting| waiting.len as u64);
        datagram.places.iter().find_map(|place| first(*place)).unwrap_or(0)
    })
}
