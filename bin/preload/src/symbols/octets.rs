//! read(2), write(2), recv(2), send(2) and similar calls, with the fortified names.

use std::ffi::{c_int, c_uint, c_void};

use atoll_base::Endpoint;
use atoll_ipc::command::Protocol;
use atoll_sockets::Errno;
use atoll_sockets::ancillary::{Addressed, Written};
use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};

use super::sockets::{goes_to_kernel, server};
use super::{Address, fail, length, parts_of, passing, write_address};
use crate::lock::STATE;
use crate::settings::settings;
use crate::table::{Fd, lookup, object_at};
use crate::transfer::{self, Parts};
use crate::{calls, cancellation, netlink, reach, real, splice};

/// The kernel's `MAX_RW_COUNT`: no call moves more octets.
const OCTETS_MAX: usize = 0x7fff_f000;

/// Returns one part.
#[inline]
fn part(buf: *const c_void, len: size_t) -> [iovec; 1] {
    [iovec { iov_base: buf.cast_mut(), iov_len: len.min(OCTETS_MAX) }]
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    match object_at(fd) {
        // sock_read_iter: nothing is looked at.
        Some(_) if len == 0 => 0,
        Some(object) => length(crate::octets::receive(object, &Parts(&part(buf, len)), 0).map(|r| r.len)),
        // SAFETY: passed on.
        None => unsafe { real::read(fd, buf, len) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    check(len, room);
    // SAFETY: passed on.
    unsafe { read(fd, buf, len) }
}

/// Checks as a fortified function does: a call that claims more memory than there is ends the program.
fn check(len: size_t, room: size_t) {
    if len > room {
        // SAFETY: ends the process.
        unsafe { libc::abort() };
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    match object_at(fd) {
        Some(object) => length(crate::octets::send(object, &Parts(&part(buf, len)), 0, Addressed::default())),
        // SAFETY: the program's memory.
        None => match unsafe { netlink::send(fd, &Parts(&part(buf, len)), std::ptr::null(), 0) } {
            Some(sent) => length(sent),
            // SAFETY: passed on.
            None => unsafe { real::write(fd, buf, len) },
        },
    }
}

/// Receives octets into the parts of a call. If these have no room, nothing is looked at (vfs_readv).
// A part of its caller, as `transfer::receive` is.
#[inline(always)]
pub(super) fn receive_parts(object: u32, parts: &Parts<'_>, flags: c_int) -> Result<usize, Errno> {
    match parts.len() {
        0 => Ok(0),
        _ => crate::octets::receive(object, parts, flags).map(|received| received.len),
    }
}

/// Sends the parts of a call. If these hold nothing, nothing is looked at (vfs_writev).
#[inline(always)]
pub(super) fn send_parts(object: u32, parts: &Parts<'_>, flags: c_int) -> Result<usize, Errno> {
    match parts.len() {
        0 => Ok(0),
        _ => crate::octets::send(object, parts, flags, Addressed::default()),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    let Some(object) = object_at(fd) else {
        // SAFETY: passed on.
        return unsafe { real::readv(fd, iov, count) };
    };
    // SAFETY: the program's memory.
    let parts = unsafe { parts_of(iov, count as usize, Errno::EINVAL) };
    length(parts.and_then(|parts| receive_parts(object, &parts, 0)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    let Some(object) = object_at(fd) else {
        if netlink::is_at(fd) {
            // SAFETY: the program's memory.
            return unsafe { write_netlink(fd, iov, count) };
        }
        // SAFETY: passed on.
        return unsafe { real::writev(fd, iov, count) };
    };
    // SAFETY: the program's memory.
    let parts = unsafe { parts_of(iov, count as usize, Errno::EINVAL) };
    length(parts.and_then(|parts| send_parts(object, &parts, 0)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    match object_at(fd) {
        Some(object) => length(crate::octets::receive(object, &Parts(&part(buf, len)), flags).map(|r| r.len)),
        // SAFETY: passed on.
        None => unsafe { real::recv(fd, buf, len, flags) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    check(len, room);
    // SAFETY: passed on.
    unsafe { recv(fd, buf, len, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    match object_at(fd) {
        Some(object) => {
            length(crate::octets::send(object, &Parts(&part(buf, len)), flags, Addressed::default()))
        }
        // SAFETY: the program's memory.
        None => match unsafe { netlink::send(fd, &Parts(&part(buf, len)), std::ptr::null(), 0) } {
            Some(sent) => length(sent),
            // SAFETY: passed on.
            None => unsafe { real::send(fd, buf, len, flags) },
        },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    alen: *mut socklen_t,
) -> ssize_t {
    let Some(object) = object_at(fd) else {
        // SAFETY: passed on.
        let received = unsafe { real::recvfrom(fd, buf, len, flags, addr, alen) };
        if received >= 0 && !addr.is_null() {
            // SAFETY: the program's memory.
            unsafe { netlink::write_name(fd, false, addr, alen) };
        }
        return received;
    };
    match crate::octets::receive(object, &Parts(&part(buf, len)), flags) {
        Ok(received) => {
            let named = match received.peer {
                Some((peer, v6)) => write_address(peer, v6, addr, alen),
                // Connections name no peer here.
                // SAFETY: any octets are a number.
                None if !addr.is_null() => unsafe { reach::get(alen) }.and_then(|room| match room {
                    0..=0x7fff_ffff => reach::put(alen, 0),
                    _ => Err(Errno::EINVAL),
                }),
                None => Ok(()),
            };
            length(named.map(|()| received.len))
        }
        Err(errno) => length(Err(errno)),
    }
}

// structure: __recvfrom_chk: the C library's function has as many
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    alen: *mut socklen_t,
) -> ssize_t {
    check(len, room);
    // SAFETY: passed on.
    unsafe { recvfrom(fd, buf, len, flags, addr, alen) }
}

/// Returns the destination of a datagram, as the address of the call says. `Err` means that the call fails
/// or, if it is `None`, that the socket is the kernel's.
///
/// # Safety
/// As for [`Address::read`].
unsafe fn receiver(
    object: u32,
    addr: *const sockaddr,
    len: socklen_t,
    flags: c_int,
) -> Result<Option<Endpoint>, Option<Errno>> {
    if addr.is_null() {
        return Ok(None);
    }
    Address::check(addr, len).map_err(Some)?;
    let known = STATE.with(|state| {
        let socket = state.client.socket(object)?;
        let v6_only = socket.is_v6_only() || socket.is_bound_to_v6();
        Some((socket.protocol, socket.v6, v6_only, socket.is_bound_to_v4()))
    });
    let Some((protocol, v6_socket, v6_only, v4_only)) = known else { return Ok(None) };
    if protocol == Protocol::Tcp {
        // send(2): the address is ignored if there is a connection; with MSG_FASTOPEN there is none yet.
        if flags & libc::MSG_FASTOPEN == 0 {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        return server(object, unsafe { Address::read(addr, len) });
    }
    // SAFETY: the caller's promise.
    match unsafe { Address::read(addr, len) } {
        // udpv6_sendmsg: an AF_INET6 socket takes addresses of both kinds.
        Address::Ours { endpoint, v6 } if v6_socket == v6 || v6_socket && protocol == Protocol::Udp => {
            match goes_to_kernel(object, endpoint) {
                Ok(true) => return Err(None),
                Ok(false) => {}
                Err(errno) => return Err(Some(errno)),
            }
            if let Some(errno) = family_refused(protocol, endpoint, v6_only, v4_only) {
                return Err(Some(errno));
            }
            // rawv6_sendmsg
            if protocol == Protocol::Raw
                && v6_socket
                && ![0, Protocol::raw_port(true)].contains(&endpoint.port)
            {
                return Err(Some(Errno::EINVAL));
            }
            let here = endpoint.addr.is_unspecified();
            Ok(Some(if here {
                Endpoint::at(endpoint.addr.loopback_of_family(), endpoint.port)
            } else {
                endpoint
            }))
        }
        Address::NoScope if v6_socket => Err(Some(Errno::EINVAL)),
        // udpv6_sendmsg: as without an address.
        Address::Unspecified if v6_socket && protocol == Protocol::Udp => Ok(None),
        // udp_sendmsg: as an address of AF_INET, which has a port.
        Address::Unspecified if protocol == Protocol::Udp && address_port(addr, len) == Some(0) => {
            Err(Some(Errno::EINVAL))
        }
        _ if v6_socket && protocol == Protocol::Udp => Err(Some(Errno::EINVAL)),
        _ => Err(Some(if (len as usize) < size_of::<libc::sockaddr_in>() {
            Errno::EINVAL
        } else {
            Errno::EAFNOSUPPORT
        })),
    }
}

/// Returns why a socket does not send to receivers of this family, if it does not.
fn family_refused(protocol: Protocol, to: Endpoint, v6_only: bool, v4_only: bool) -> Option<Errno> {
    match to.addr.is_v4() {
        // ping_v6_sendmsg
        true if protocol == Protocol::Icmp && v6_only => Some(Errno::EINVAL),
        true if v6_only => Some(Errno::ENETUNREACH),
        false if v4_only && !to.addr.is_unspecified() => Some(Errno::EAFNOSUPPORT),
        _ => None,
    }
}

/// Returns the port of an address that is laid out as one of AF_INET, if it is long enough for that.
fn address_port(addr: *const sockaddr, len: socklen_t) -> Option<u16> {
    if (len as usize) < size_of::<libc::sockaddr_in>() {
        return None;
    }
    // SAFETY: any octets are an address.
    let name = unsafe { reach::get(addr.cast::<libc::sockaddr_in>()) };
    name.ok().map(|name| u16::from_be(name.sin_port))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    addr: *const sockaddr,
    alen: socklen_t,
) -> ssize_t {
    let Some(object) = object_at(fd) else {
        // SAFETY: the program's memory.
        return match unsafe { netlink::send(fd, &Parts(&part(buf, len)), addr, alen) } {
            Some(sent) => length(sent),
            // SAFETY: passed on.
            None => unsafe { real::sendto(fd, buf, len, flags, addr, alen) },
        };
    };
    // SAFETY: the program's address.
    match unsafe { receiver(object, addr, alen, flags) } {
        Ok(peer) => length(crate::octets::send(object, &Parts(&part(buf, len)), flags, Addressed::to(peer))),
        Err(Some(errno)) => length(Err(errno)),
        Err(None) => {
            calls::to_kernel(object);
            // SAFETY: passed on.
            unsafe { real::sendto(fd, buf, len, flags, addr, alen) }
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    let Some(object) = object_at(fd) else {
        if netlink::is_at(fd) {
            // SAFETY: the program's message.
            return unsafe { receive_netlink(fd, msg, flags) };
        }
        // SAFETY: passed on.
        return unsafe { passing::receive(fd, msg, flags) };
    };
    if !reach::can_read(msg, size_of::<msghdr>()) {
        return length(Err(Errno::EFAULT));
    }
    // SAFETY: the program's message.
    let msg = unsafe { &mut *msg };
    // SAFETY: its parts.
    let parts = match unsafe { parts_of(msg.msg_iov, msg.msg_iovlen, Errno::EMSGSIZE) } {
        Ok(parts) => parts,
        Err(errno) => return length(Err(errno)),
    };
    match crate::octets::receive(object, &parts, flags) {
        // As on Linux, what was received is lost then.
        Ok(_) if !reach::can_write(msg, size_of::<msghdr>()) => length(Err(Errno::EFAULT)),
        Ok(received) => {
            let named = match received.peer {
                Some((peer, v6)) => write_address(peer, v6, msg.msg_name.cast(), &raw mut msg.msg_namelen),
                None => {
                    msg.msg_namelen = 0;
                    Ok(())
                }
            };
            if let Err(errno) = named {
                return length(Err(errno));
            }
            // SAFETY: the program's room for control messages.
            let control = unsafe { write_control(object, &received, msg) };
            msg.msg_controllen = control.len;
            let truncated = if received.truncated { libc::MSG_TRUNC } else { 0 };
            let truncated = truncated | if control.truncated { libc::MSG_CTRUNC } else { 0 };
            let queued = if received.queued.is_some() { libc::MSG_ERRQUEUE } else { 0 };
            msg.msg_flags = truncated | queued | if received.urgent { libc::MSG_OOB } else { 0 };
            received.len as ssize_t
        }
        Err(errno) => length(Err(errno)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    let Some(object) = object_at(fd) else {
        if netlink::is_at(fd) && reach::can_read(msg, size_of::<msghdr>()) {
            // SAFETY: the program's message.
            return unsafe { send_netlink(fd, &*msg) };
        }
        // SAFETY: passed on.
        return unsafe { passing::send(fd, msg, flags) };
    };
    if !reach::can_read(msg, size_of::<msghdr>()) {
        return length(Err(Errno::EFAULT));
    }
    // SAFETY: the program's message.
    let message = unsafe { &*msg };
    // SAFETY: its address, if it has one.
    let peer = match unsafe { receiver(object, message.msg_name.cast(), message.msg_namelen, flags) } {
        Ok(peer) => peer,
        Err(Some(errno)) => return length(Err(errno)),
        Err(None) => {
            calls::to_kernel(object);
            // SAFETY: passed on.
            return unsafe { real::sendmsg(fd, msg, flags) };
        }
    };
    // SAFETY: its parts.
    let parts = match unsafe { parts_of(message.msg_iov, message.msg_iovlen, Errno::EMSGSIZE) } {
        Ok(parts) => parts,
        Err(errno) => return length(Err(errno)),
    };
    let control: &[u8] = match message.msg_controllen == 0 {
        true => &[],
        // ____sys_sendmsg
        false if message.msg_controllen > i32::MAX as usize => return length(Err(Errno::ENOBUFS)),
        false if !reach::can_read(message.msg_control, message.msg_controllen) => {
            return length(Err(Errno::EFAULT));
        }
        // SAFETY: the program's control messages.
        false => unsafe { std::slice::from_raw_parts(message.msg_control.cast(), message.msg_controllen) },
    };
    length(crate::octets::send(object, &parts, flags, Addressed { peer, control }))
}

/// Writes the control messages of what was received where the program wants them.
///
/// # Safety
/// `msg` has as much room for control messages as it says, if any.
unsafe fn write_control(object: u32, received: &transfer::Received, msg: &msghdr) -> Written {
    let has_some = received.details.is_some() || received.segment.is_some() || received.queued.is_some();
    // A connection may tell what it still has (TCP_INQ).
    if !has_some && msg.msg_controllen == 0 {
        return Written::default();
    }
    let is_there = msg.msg_controllen > 0 && reach::can_write(msg.msg_control, msg.msg_controllen);
    let out: &mut [u8] = match !is_there {
        true => &mut [],
        // SAFETY: the caller's promise.
        false => unsafe { std::slice::from_raw_parts_mut(msg.msg_control.cast(), msg.msg_controllen) },
    };
    STATE.with(|state| state.client.write_control(object, received, out))
}

/// Runs writev(2) on a socket of netlink.
unsafe fn write_netlink(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the program's memory.
    let parts = match unsafe { parts_of(iov, count as usize, Errno::EINVAL) } {
        Ok(parts) => parts,
        Err(errno) => return length(Err(errno)),
    };
    // SAFETY: as above.
    let sent = unsafe { netlink::send(fd, &parts, std::ptr::null(), 0) };
    length(sent.unwrap_or(Err(Errno::EBADF)))
}

/// Runs sendmsg(2) on a socket of netlink.
unsafe fn send_netlink(fd: c_int, msg: &msghdr) -> ssize_t {
    // SAFETY: the program's parts.
    let parts = match unsafe { parts_of(msg.msg_iov, msg.msg_iovlen, Errno::EMSGSIZE) } {
        Ok(parts) => parts,
        Err(errno) => return length(Err(errno)),
    };
    // SAFETY: the program's memory.
    let sent = unsafe { netlink::send(fd, &parts, msg.msg_name.cast(), msg.msg_namelen) };
    length(sent.unwrap_or(Err(Errno::EBADF)))
}

/// Runs recvmsg(2) on a socket of netlink: the kernel has the packets, but does not know where they are from.
unsafe fn receive_netlink(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program's message.
    let room = if reach::can_read(msg, size_of::<msghdr>()) { unsafe { (*msg).msg_namelen } } else { 0 };
    // SAFETY: passed on.
    let received = unsafe { real::recvmsg(fd, msg, flags) };
    if received >= 0 {
        // SAFETY: the kernel has accepted the message.
        unsafe {
            (*msg).msg_namelen = room;
            netlink::write_name(fd, false, (*msg).msg_name.cast(), &raw mut (*msg).msg_namelen);
        }
    }
    received
}

/// Returns whether messages of a socket of the kernel may carry sockets of the stack.
unsafe fn any_control(msgs: *const mmsghdr, count: c_uint) -> bool {
    if settings().socket.is_none() || msgs.is_null() {
        return false;
    }
    // sendmmsg(2): no more than 1024 are taken.
    let count = count.min(1024) as usize;
    // Of messages that are nowhere the kernel says so.
    if !reach::can_read(msgs, count * size_of::<mmsghdr>()) {
        return false;
    }
    // SAFETY: the caller's promise.
    let msgs = unsafe { std::slice::from_raw_parts(msgs, count) };
    // SAFETY: as above.
    msgs.iter().any(|entry| unsafe { passing::has_control(&raw const entry.msg_hdr) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    msgs: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: the program's messages.
    if object_at(fd).is_none() && !netlink::is_at(fd) && unsafe { !any_control(msgs, count) } {
        // SAFETY: passed on.
        return unsafe { real::recvmmsg(fd, msgs, count, flags, timeout) };
    }
    // SAFETY: any octets are a time.
    let timeout = match (!timeout.is_null()).then(|| unsafe { reach::get(timeout) }).transpose() {
        Ok(timeout) => timeout,
        Err(errno) => return fail(errno),
    };
    if timeout.is_some_and(|time| time.tv_sec < 0 || !(0..1_000_000_000).contains(&time.tv_nsec)) {
        return fail(Errno::EINVAL);
    }
    // do_recvmmsg: an error that waits comes first.
    let error = object_at(fd).and_then(|object| {
        STATE.with(|state| state.client.stream(object).is_some().then(|| state.client.take_error(object))?)
    });
    if let Some(errno) = error {
        return fail(errno);
    }
    let now = || STATE.with(|state| state.now());
    let deadline = timeout.map(|t| now() + atoll_base::Duration::new(t.tv_sec as u64, t.tv_nsec as u32));
    let mut done = 0;
    while done < count {
        let more = if done > 0 && flags & libc::MSG_WAITFORONE != 0 { libc::MSG_DONTWAIT } else { 0 };
        let entry = msgs.wrapping_add(done as usize);
        if !reach::can_read(entry, size_of::<mmsghdr>()) {
            fail(Errno::EFAULT);
            break;
        }
        // SAFETY: the program's message.
        let entry = unsafe { &mut *entry };
        // SAFETY: as above.
        let n = unsafe { recvmsg(fd, &raw mut entry.msg_hdr, (flags & !libc::MSG_WAITFORONE) | more) };
        if n < 0 {
            if done > 0 {
                put_error_back(fd);
            }
            break;
        }
        entry.msg_len = n as c_uint;
        done += 1;
        // recvmmsg(2): the time is examined only after each datagram.
        if deadline.is_some_and(|deadline| now() >= deadline) {
            break;
        }
    }
    if done == 0 && count > 0 { -1 } else { done as c_int }
}

/// Lets the next call on a datagram socket fail with what a part of recvmmsg(2) has failed with, which itself
/// tells how many datagrams came before (do_recvmmsg).
fn put_error_back(fd: c_int) {
    let number = real::last_errno().0;
    if matches!(number, libc::EAGAIN | libc::EINTR) {
        return;
    }
    STATE.with(|state| {
        if let Some(object) = object_at(fd) {
            state.client.put_error_back(object, Errno(number));
        }
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    // SAFETY: the program's messages.
    if object_at(fd).is_none() && !netlink::is_at(fd) && unsafe { !any_control(msgs, count) } {
        // SAFETY: passed on.
        return unsafe { real::sendmmsg(fd, msgs, count, flags) };
    }
    let mut done = 0;
    while done < count {
        let entry = msgs.wrapping_add(done as usize);
        if !reach::can_write(entry, size_of::<mmsghdr>()) {
            fail(Errno::EFAULT);
            break;
        }
        // SAFETY: the program's message.
        let entry = unsafe { &mut *entry };
        // SAFETY: as above.
        let n = unsafe { sendmsg(fd, &raw const entry.msg_hdr, flags) };
        if n < 0 {
            break;
        }
        entry.msg_len = n as c_uint;
        done += 1;
    }
    if done == 0 && count > 0 { -1 } else { done as c_int }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    if lookup(out) == Fd::Kernel && lookup(input) == Fd::Kernel {
        // SAFETY: passed on.
        return unsafe { real::sendfile(out, input, offset, count) };
    }
    // SAFETY: any octets are an offset.
    let mut from = match (!offset.is_null()).then(|| unsafe { reach::get(offset) }).transpose() {
        Ok(from) => from,
        Err(errno) => return length(Err(errno)),
    };
    let result = cancellation::point(|| splice::send_file(out, input, &mut from, count));
    let told = from.map_or(Ok(()), |from| reach::put(offset, from));
    length(told.and(result))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: passed on; off_t has 64 bits.
    unsafe { sendfile(out, input, offset, count) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice(
    from: c_int,
    at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    if lookup(from) == Fd::Kernel && lookup(to) == Fd::Kernel {
        // SAFETY: passed on.
        return unsafe { real::splice(from, at, to, to_at, len, flags) };
    }
    // SAFETY: the program's offsets.
    length(cancellation::point(|| unsafe { splice::splice((from, at), (to, to_at), len, flags) }))
}
