//! The C library's names. Each looks its descriptor up and passes the kernel's on; see the manual page of each.
//!
//! # Safety
//! The safety rules of every function here are those of the C library's function of the same name.
#![allow(clippy::missing_safety_doc, missing_docs)]

use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use std::mem;

use atoll_base::{Duration, Endpoint};
use atoll_ipc::command::Protocol;
use atoll_sockets::Errno;
use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t, sockaddr, sockaddr_in,
    sockaddr_in6, sockaddr_storage, socklen_t, ssize_t, timespec, timeval,
};

use crate::calls;
use crate::epoll;
use crate::options;
use crate::real;
use crate::state::{Body, Fd, Kind, Object, STATE, lookup, objects_between, set_fd};
use crate::transfer::{self, Parts};

fn fail(errno: Errno) -> c_int {
    // SAFETY: a valid thread-local of the C library.
    unsafe { *libc::__errno_location() = errno.0 };
    -1
}

fn answer(result: Result<(), Errno>) -> c_int {
    result.map_or_else(fail, |()| 0)
}

fn length(result: Result<usize, Errno>) -> ssize_t {
    result.map_or_else(|errno| fail(errno) as ssize_t, |n| n as ssize_t)
}

/// An IPv4 endpoint in a program's address, plain or mapped into IPv6 (RFC 4291 §2.5.5.2).
unsafe fn endpoint_of(addr: *const sockaddr, len: socklen_t) -> Option<Endpoint> {
    if addr.is_null() || (len as usize) < mem::size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: at least the family can be read.
    match i32::from(unsafe { (*addr).sa_family }) {
        libc::AF_INET if len as usize >= mem::size_of::<sockaddr_in>() => {
            // SAFETY: long enough; perhaps not aligned.
            let v4 = unsafe { addr.cast::<sockaddr_in>().read_unaligned() };
            Some(Endpoint::new(u32::from_be(v4.sin_addr.s_addr), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 if len as usize >= mem::size_of::<sockaddr_in6>() => {
            // SAFETY: as above.
            let v6 = unsafe { addr.cast::<sockaddr_in6>().read_unaligned() };
            let port = u16::from_be(v6.sin6_port);
            match v6.sin6_addr.s6_addr {
                [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => {
                    Some(Endpoint::new(u32::from_be_bytes([a, b, c, d]), port))
                }
                [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] => Some(Endpoint::new(0, port)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Writes an address as accept(2) does: cut to `*len`, which becomes its full length.
unsafe fn write_address(endpoint: Endpoint, v6: bool, addr: *mut sockaddr, len: *mut socklen_t) {
    if addr.is_null() || len.is_null() {
        return;
    }
    // SAFETY: all-zero is a valid value.
    let mut storage: sockaddr_storage = unsafe { mem::zeroed() };
    let full = if v6 {
        let mut bytes = [0; 16];
        bytes[10..12].fill(0xff);
        bytes[12..].copy_from_slice(&endpoint.addr.to_be_bytes());
        if endpoint.addr == 0 {
            bytes = [0; 16];
        }
        let v6 = sockaddr_in6 {
            sin6_family: libc::AF_INET6 as u16,
            sin6_port: endpoint.port.to_be(),
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: bytes },
            sin6_scope_id: 0,
        };
        // SAFETY: the storage is large enough for any address.
        unsafe { (&raw mut storage).cast::<sockaddr_in6>().write(v6) };
        mem::size_of::<sockaddr_in6>()
    } else {
        let v4 = sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: endpoint.port.to_be(),
            sin_addr: libc::in_addr { s_addr: endpoint.addr.to_be() },
            sin_zero: [0; 8],
        };
        // SAFETY: as above.
        unsafe { (&raw mut storage).cast::<sockaddr_in>().write(v4) };
        mem::size_of::<sockaddr_in>()
    };
    // SAFETY: the caller's `len` is valid, and `addr` holds as many bytes.
    unsafe {
        let room = (*len as usize).min(full);
        std::ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), addr.cast::<u8>(), room);
        *len = full as socklen_t;
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: passed on.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    if fd < 0 {
        return fd;
    }
    let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
    let what = match (domain, kind & 0xf, protocol) {
        (libc::AF_INET, libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => Some((Protocol::Tcp, false)),
        (libc::AF_INET, libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => Some((Protocol::Udp, false)),
        (libc::AF_INET6, libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => Some((Protocol::Tcp, true)),
        _ => None,
    };
    if let Some((protocol, v6)) = what {
        calls::socket(fd, protocol, v6, nonblocking);
    }
    fd
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    let Fd::Object(object) = lookup(fd) else {
        // SAFETY: passed on.
        return unsafe { real::bind(fd, addr, len) };
    };
    // SAFETY: the program's address.
    let endpoint = unsafe { endpoint_of(addr, len) };
    let ours = endpoint.filter(|e| {
        STATE.with(|state| {
            let socket = state.socket(object);
            let v6_only = socket.is_some_and(|s| s.v6 && s.options.v6_only);
            !v6_only && (e.addr == 0 || state.sessions[0].is_own(e.addr))
        })
    });
    match ours {
        Some(endpoint) => answer(calls::bind(object, endpoint)),
        None => {
            calls::to_kernel(fd, object);
            // SAFETY: passed on.
            unsafe { real::bind(fd, addr, len) }
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    match lookup(fd) {
        Fd::Object(object) => answer(calls::listen(object, backlog)),
        // SAFETY: passed on.
        _ => unsafe { real::listen(fd, backlog) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: passed on.
    unsafe { accept4(fd, addr, len, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    let Fd::Object(object) = lookup(fd) else {
        // SAFETY: passed on.
        return unsafe { real::accept4(fd, addr, len, flags) };
    };
    let listening = STATE.with(|state| {
        state.calls += 1;
        state.socket(object).map(|s| (matches!(s.kind, Kind::Listening(_)), s.protocol))
    });
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return fail(Errno::EINVAL);
    }
    match listening {
        Some((_, Protocol::Udp)) => return fail(Errno::EOPNOTSUPP),
        Some((true, _)) => {}
        _ => return fail(Errno::EINVAL),
    }
    match calls::accept(object, flags & libc::SOCK_NONBLOCK != 0, flags & libc::SOCK_CLOEXEC != 0) {
        Ok((child, peer, v6)) => {
            // SAFETY: the program's memory.
            unsafe { write_address(peer, v6, addr, len) };
            child
        }
        Err(errno) => fail(errno),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    let Fd::Object(object) = lookup(fd) else {
        // SAFETY: passed on.
        return unsafe { real::connect(fd, addr, len) };
    };
    // SAFETY: the program's address.
    let endpoint = unsafe { endpoint_of(addr, len) };
    let ours = endpoint.filter(|e| {
        STATE.with(|state| {
            let Some(socket) = state.socket(object) else { return false };
            let decided = !matches!(socket.kind, Kind::Fresh);
            let udp = socket.protocol == Protocol::Udp;
            let own = state.sessions[0].is_own(e.addr) || e.addr == 0;
            decided
                || if own {
                    state.sessions[0].has_port(udp, e.port)
                } else {
                    crate::reaches(&state.sessions[0].facts, e.addr)
                }
        })
    });
    match ours {
        Some(endpoint) => {
            let endpoint = if endpoint.addr == 0 { Endpoint::new(0x7f00_0001, endpoint.port) } else { endpoint };
            answer(calls::connect(object, endpoint))
        }
        None => {
            calls::to_kernel(fd, object);
            // SAFETY: passed on.
            unsafe { real::connect(fd, addr, len) }
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let Fd::Object(object) = lookup(fd) else {
        // SAFETY: passed on.
        return unsafe { real::getsockname(fd, addr, len) };
    };
    let known = STATE.with(|state| {
        let v6 = state.socket(object)?.v6;
        Some((calls::local_of(state, object), v6))
    });
    let Some((local, v6)) = known else { return fail(Errno::ENOTSOCK) };
    // SAFETY: the program's memory.
    unsafe { write_address(local, v6, addr, len) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let Fd::Object(object) = lookup(fd) else {
        // SAFETY: passed on.
        return unsafe { real::getpeername(fd, addr, len) };
    };
    let v6 = STATE.with(|state| state.socket(object).is_some_and(|s| s.v6));
    match STATE.with(|state| calls::peer_of(state, object)) {
        Ok(peer) => {
            // SAFETY: the program's memory.
            unsafe { write_address(peer, v6, addr, len) };
            0
        }
        Err(errno) => fail(errno),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let Fd::Object(object) = lookup(fd) else {
        // SAFETY: passed on.
        return unsafe { real::getsockopt(fd, level, name, value, len) };
    };
    if value.is_null() || len.is_null() {
        return fail(Errno::EFAULT);
    }
    // SAFETY: not null.
    if unsafe { *len } as i32 <= 0 {
        return fail(Errno::EINVAL);
    }
    match options::get(object, level, name) {
        Ok(bytes) => {
            // SAFETY: the program's memory, `*len` bytes of it.
            unsafe {
                let room = (*len as usize).min(bytes.len());
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast::<u8>(), room);
                *len = room as socklen_t;
            }
            0
        }
        Err(errno) => fail(errno),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let Fd::Object(object) = lookup(fd) else {
        // SAFETY: passed on.
        return unsafe { real::setsockopt(fd, level, name, value, len) };
    };
    let fresh = STATE.with(|state| {
        state.calls += 1;
        state.socket(object).is_some_and(|s| matches!(s.kind, Kind::Fresh))
    });
    // SAFETY: the program's memory.
    let bytes =
        if value.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len as usize) } };
    let ours = options::set(object, level, name, bytes);
    if fresh {
        // The kernel may still get this socket, and knows options that we do not.
        // SAFETY: passed on.
        return unsafe { real::setsockopt(fd, level, name, value, len) };
    }
    answer(ours)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    match lookup(fd) {
        Fd::Object(object) => answer(calls::shutdown(object, how)),
        // SAFETY: passed on.
        _ => unsafe { real::shutdown(fd, how) },
    }
}

/// One part.
fn part(buf: *const c_void, len: size_t) -> [iovec; 1] {
    [iovec { iov_base: buf.cast_mut(), iov_len: len }]
}

/// The program's parts; `None` for a count that makes no sense.
unsafe fn parts_of<'a>(iov: *const iovec, count: usize) -> Option<Parts<'a>> {
    if count > 1024 || (iov.is_null() && count > 0) {
        return None;
    }
    // SAFETY: the program's memory.
    Some(Parts(if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(iov, count) } }))
}

/// A socket of ours, for calls on octets; epoll instances are the kernel's there.
#[inline]
fn socket_at(fd: c_int) -> Option<u32> {
    match lookup(fd) {
        Fd::Object(object) => Some(object),
        _ => None,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    match socket_at(fd) {
        Some(object) => length(transfer::receive(object, &Parts(&part(buf, len)), 0).map(|r| r.len)),
        // SAFETY: passed on.
        None => unsafe { real::read(fd, buf, len) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, _room: size_t) -> ssize_t {
    // SAFETY: passed on.
    unsafe { read(fd, buf, len) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    match socket_at(fd) {
        Some(object) => length(transfer::send(object, &Parts(&part(buf, len)), 0, None)),
        // SAFETY: passed on.
        None => unsafe { real::write(fd, buf, len) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    let Some(object) = socket_at(fd) else {
        // SAFETY: passed on.
        return unsafe { real::readv(fd, iov, count) };
    };
    // SAFETY: the program's memory.
    match unsafe { parts_of(iov, count as usize) } {
        Some(parts) => length(transfer::receive(object, &parts, 0).map(|r| r.len)),
        None => length(Err(Errno::EINVAL)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    let Some(object) = socket_at(fd) else {
        // SAFETY: passed on.
        return unsafe { real::writev(fd, iov, count) };
    };
    // SAFETY: the program's memory.
    match unsafe { parts_of(iov, count as usize) } {
        Some(parts) => length(transfer::send(object, &parts, 0, None)),
        None => length(Err(Errno::EINVAL)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    match socket_at(fd) {
        Some(object) => length(transfer::receive(object, &Parts(&part(buf, len)), flags).map(|r| r.len)),
        // SAFETY: passed on.
        None => unsafe { real::recv(fd, buf, len, flags) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, _room: size_t, flags: c_int) -> ssize_t {
    // SAFETY: passed on.
    unsafe { recv(fd, buf, len, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    match socket_at(fd) {
        Some(object) => length(transfer::send(object, &Parts(&part(buf, len)), flags, None)),
        // SAFETY: passed on.
        None => unsafe { real::send(fd, buf, len, flags) },
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
    let Some(object) = socket_at(fd) else {
        // SAFETY: passed on.
        return unsafe { real::recvfrom(fd, buf, len, flags, addr, alen) };
    };
    match transfer::receive(object, &Parts(&part(buf, len)), flags) {
        Ok(received) => {
            match received.peer {
                // SAFETY: the program's memory.
                Some(peer) => unsafe { write_address(peer, false, addr, alen) },
                // SAFETY: a length that is not null; connections name no peer here.
                None if !alen.is_null() => unsafe { *alen = 0 },
                None => {}
            }
            received.len as ssize_t
        }
        Err(errno) => length(Err(errno)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    _room: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    alen: *mut socklen_t,
) -> ssize_t {
    // SAFETY: passed on.
    unsafe { recvfrom(fd, buf, len, flags, addr, alen) }
}

/// Whether a datagram without connection to `peer` is the kernel's: a fresh socket and a destination that is not ours.
fn goes_to_kernel(object: u32, peer: Endpoint) -> bool {
    STATE.with(|state| {
        let Some(socket) = state.socket(object) else { return true };
        if !matches!(socket.kind, Kind::Fresh) || socket.protocol == Protocol::Tcp {
            return false;
        }
        let session = &state.sessions[0];
        if session.is_own(peer.addr) {
            !session.has_port(true, peer.port)
        } else {
            !crate::reaches(&session.facts, peer.addr)
        }
    })
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
    let Some(object) = socket_at(fd) else {
        // SAFETY: passed on.
        return unsafe { real::sendto(fd, buf, len, flags, addr, alen) };
    };
    // SAFETY: the program's address.
    let peer = unsafe { endpoint_of(addr, alen) };
    if let Some(peer) = peer
        && goes_to_kernel(object, peer)
    {
        calls::to_kernel(fd, object);
        // SAFETY: passed on.
        return unsafe { real::sendto(fd, buf, len, flags, addr, alen) };
    }
    let tcp = STATE.with(|state| state.socket(object).is_some_and(|s| s.protocol == Protocol::Tcp));
    length(transfer::send(object, &Parts(&part(buf, len)), flags, peer.filter(|_| !tcp)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    let Some(object) = socket_at(fd) else {
        // SAFETY: passed on.
        return unsafe { real::recvmsg(fd, msg, flags) };
    };
    // SAFETY: the program's message.
    let msg = unsafe { &mut *msg };
    // SAFETY: its parts.
    let Some(parts) = (unsafe { parts_of(msg.msg_iov, msg.msg_iovlen) }) else { return length(Err(Errno::EMSGSIZE)) };
    match transfer::receive(object, &parts, flags) {
        Ok(received) => {
            match received.peer {
                // SAFETY: the program's memory.
                Some(peer) => unsafe {
                    write_address(peer, false, msg.msg_name.cast(), &raw mut msg.msg_namelen);
                },
                None => msg.msg_namelen = 0,
            }
            msg.msg_controllen = 0;
            msg.msg_flags = if received.truncated { libc::MSG_TRUNC } else { 0 };
            received.len as ssize_t
        }
        Err(errno) => length(Err(errno)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    let Some(object) = socket_at(fd) else {
        // SAFETY: passed on.
        return unsafe { real::sendmsg(fd, msg, flags) };
    };
    // SAFETY: the program's message.
    let message = unsafe { &*msg };
    // SAFETY: its address, if it has one.
    let peer = unsafe { endpoint_of(message.msg_name.cast(), message.msg_namelen) };
    if let Some(peer) = peer
        && goes_to_kernel(object, peer)
    {
        calls::to_kernel(fd, object);
        // SAFETY: passed on.
        return unsafe { real::sendmsg(fd, msg, flags) };
    }
    // SAFETY: its parts.
    let Some(parts) = (unsafe { parts_of(message.msg_iov, message.msg_iovlen) }) else {
        return length(Err(Errno::EMSGSIZE));
    };
    let tcp = STATE.with(|state| state.socket(object).is_some_and(|s| s.protocol == Protocol::Tcp));
    length(transfer::send(object, &parts, flags, peer.filter(|_| !tcp)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    msgs: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if socket_at(fd).is_none() {
        // SAFETY: passed on.
        return unsafe { real::recvmmsg(fd, msgs, count, flags, timeout) };
    }
    const WAITFORONE: c_int = 0x10000;
    let mut done = 0;
    while done < count {
        let more = if done > 0 && flags & WAITFORONE != 0 { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: `done < count` entries.
        let entry = unsafe { &mut *msgs.add(done as usize) };
        // SAFETY: the program's message.
        let n = unsafe { recvmsg(fd, &raw mut entry.msg_hdr, (flags & !WAITFORONE) | more) };
        if n < 0 {
            break;
        }
        entry.msg_len = n as c_uint;
        done += 1;
    }
    if done == 0 && count > 0 { -1 } else { done as c_int }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if socket_at(fd).is_none() {
        // SAFETY: passed on.
        return unsafe { real::sendmmsg(fd, msgs, count, flags) };
    }
    let mut done = 0;
    while done < count {
        // SAFETY: `done < count` entries.
        let entry = unsafe { &mut *msgs.add(done as usize) };
        // SAFETY: the program's message.
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
    let Some(object) = socket_at(out) else {
        // SAFETY: passed on.
        return unsafe { real::sendfile(out, input, offset, count) };
    };
    // SAFETY: null or the program's.
    let mut from = unsafe { offset.as_ref() }.copied();
    let result = transfer::send_file(object, input, &mut from, count);
    if let Some(from) = from {
        // SAFETY: not null, since it was read above.
        unsafe { *offset = from };
    }
    length(result)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: passed on; off_t has 64 bits.
    unsafe { sendfile(out, input, offset, count) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    match lookup(fd) {
        Fd::Kernel => {}
        Fd::Hidden => return fail(Errno::EBADF),
        Fd::Object(object) => {
            if !calls::close(fd, object) {
                return 0;
            }
        }
    }
    // SAFETY: passed on.
    unsafe { real::close(fd) }
}

/// syscall(2): some programs (libuv among them) close descriptors this way; a number that the kernel gives out again must not
/// be taken for the socket that had it before.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if number == libc::SYS_close
        && let Ok(fd) = c_int::try_from(a)
        && matches!(lookup(fd), Fd::Object(_))
    {
        // SAFETY: passed on.
        return unsafe { close(fd) }.into();
    }
    // SAFETY: passed on.
    unsafe { real::syscall(number, a, b, c, d, e, f) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOEXEC: c_int = 4;
    if flags & CLOEXEC == 0 {
        for (fd, object) in objects_between(first, last) {
            if calls::close(fd, object) {
                // SAFETY: the program wants it closed.
                unsafe { real::close(fd) };
            }
        }
    }
    // Around our own descriptors, and around numbers kept for accepted connections.
    let mut from = first;
    let pool = STATE.with(|state| state.pool.clone());
    let mut fd = first;
    let end = last.min(1 << 20);
    while fd <= end {
        if lookup(fd as c_int) == Fd::Hidden || pool.contains(&(fd as c_int)) {
            if fd > from {
                // SAFETY: a range without descriptors of ours.
                unsafe { real::close_range(from, fd - 1, flags) };
            }
            from = fd + 1;
        }
        fd += 1;
    }
    // SAFETY: as above.
    if from <= last { unsafe { real::close_range(from, last, flags) } } else { 0 }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: passed on.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

/// A descriptor that the kernel made of another one names the same object.
fn share(old: c_int, new: c_int) {
    if let Fd::Object(object) = lookup(old)
        && new >= 0
    {
        STATE.with(|state| {
            if let Some(entry) = state.objects.get_mut(object) {
                entry.descriptors += 1;
            }
            if let Some(socket) = state.socket_mut(object) {
                // Numbers of sockets that are duplicated do not go back to the pool.
                socket.pooled = false;
            }
        });
        set_fd(new, Some(object));
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    if lookup(fd) == Fd::Hidden {
        return fail(Errno::EBADF);
    }
    // SAFETY: passed on.
    let new = unsafe { real::dup(fd) };
    share(fd, new);
    new
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: passed on.
    unsafe { duplicate(old, new, 0, true) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: passed on.
    unsafe { duplicate(old, new, flags, false) }
}

unsafe fn duplicate(old: c_int, new: c_int, flags: c_int, two: bool) -> c_int {
    let raw = || {
        // SAFETY: passed on.
        if two { unsafe { real::dup2(old, new) } } else { unsafe { real::dup3(old, new, flags) } }
    };
    if old == new {
        return raw();
    }
    if lookup(old) == Fd::Hidden || lookup(new) == Fd::Hidden {
        return fail(Errno::EBADF);
    }
    let before = lookup(new);
    let result = raw();
    if result >= 0 {
        if let Fd::Object(object) = before {
            set_fd(new, None);
            STATE.with(|state| state.release(object));
        }
        STATE.with(|state| state.pool.retain(|fd| *fd != new));
        share(old, new);
    }
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    let Fd::Object(object) = lookup(fd) else {
        if lookup(fd) == Fd::Hidden {
            return fail(Errno::EBADF);
        }
        // SAFETY: passed on.
        return unsafe { real::fcntl(fd, command, argument) };
    };
    let kind = STATE.with(|state| state.socket(object).map(|s| matches!(s.kind, Kind::Fresh)));
    match (command, kind) {
        (libc::F_DUPFD | libc::F_DUPFD_CLOEXEC, _) => {
            // SAFETY: passed on.
            let new = unsafe { real::fcntl(fd, command, argument) };
            share(fd, new);
            new
        }
        (libc::F_SETFL, Some(fresh)) => {
            let nonblocking = argument as usize as c_int & libc::O_NONBLOCK != 0;
            STATE.with(|state| {
                if let Some(entry) = state.objects.get_mut(object) {
                    entry.nonblocking = nonblocking;
                }
            });
            if fresh {
                // SAFETY: passed on; the kernel may still get this socket.
                unsafe { real::fcntl(fd, command, argument) }
            } else {
                0
            }
        }
        (libc::F_GETFL, Some(_)) => {
            let nonblocking = STATE.with(|state| state.objects.get(object).is_some_and(|o| o.nonblocking));
            libc::O_RDWR | if nonblocking { libc::O_NONBLOCK } else { 0 }
        }
        // SAFETY: passed on.
        _ => unsafe { real::fcntl(fd, command, argument) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: passed on.
    unsafe { fcntl(fd, command, argument) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let Fd::Object(object) = lookup(fd) else {
        // SAFETY: passed on.
        return unsafe { real::ioctl(fd, request, argument) };
    };
    let decided = STATE.with(|state| state.socket(object).is_some_and(|s| !matches!(s.kind, Kind::Fresh)));
    match request {
        libc::FIONBIO if !argument.is_null() => {
            // SAFETY: the program's int.
            let on = unsafe { *argument.cast::<c_int>() } != 0;
            STATE.with(|state| {
                if let Some(entry) = state.objects.get_mut(object) {
                    entry.nonblocking = on;
                }
            });
            // SAFETY: passed on while the kernel may still get it.
            if decided { 0 } else { unsafe { real::ioctl(fd, request, argument) } }
        }
        libc::FIONREAD | libc::TIOCOUTQ if decided && !argument.is_null() => {
            let n = STATE.with(|state| {
                if let Some((stream, ..)) = state.stream(object) {
                    return if request == libc::FIONREAD { stream.unread() } else { stream.unacknowledged() };
                }
                let Some(Kind::Datagram { places, .. }) = state.socket(object).map(|s| &s.kind) else { return 0 };
                let waiting = |place| state.datagrams(place).and_then(|d| d.waiting()).map(|w| w.len as u64);
                places.iter().find_map(|place| waiting(*place)).unwrap_or(0)
            });
            // SAFETY: the program's int.
            unsafe { *argument.cast::<c_int>() = c_int::try_from(n).unwrap_or(c_int::MAX) };
            0
        }
        // SAFETY: passed on.
        _ => unsafe { real::ioctl(fd, request, argument) },
    }
}

fn any_ours(fds: &[pollfd]) -> bool {
    fds.iter().any(|entry| matches!(lookup(entry.fd), Fd::Object(object) if is_decided(object)))
}

/// Sockets that are nothing yet are looked at by the kernel, and so are epoll instances.
fn is_decided(object: u32) -> bool {
    STATE.with(|state| match state.objects.get(object).map(|o| &o.body) {
        Some(Body::Socket(socket)) => !matches!(socket.kind, Kind::Fresh),
        Some(Body::Epoll(set)) => !set.members.is_empty(),
        None => false,
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the program's memory.
    let entries =
        if fds.is_null() { &mut [][..] } else { unsafe { std::slice::from_raw_parts_mut(fds, count as usize) } };
    if !any_ours(entries) {
        // SAFETY: passed on.
        return unsafe { real::poll(fds, count, timeout) };
    }
    let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
    epoll::poll(entries, timeout, std::ptr::null()).map_or_else(fail, |n| n as c_int)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, _room: size_t) -> c_int {
    // SAFETY: passed on.
    unsafe { poll(fds, count, timeout) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's memory.
    let entries =
        if fds.is_null() { &mut [][..] } else { unsafe { std::slice::from_raw_parts_mut(fds, count as usize) } };
    if !any_ours(entries) {
        // SAFETY: passed on.
        return unsafe { real::ppoll(fds, count, timeout, mask) };
    }
    // SAFETY: null or the program's.
    let timeout = unsafe { timeout.as_ref() }.map(|t| Duration::new(t.tv_sec as u64, t.tv_nsec as u32));
    epoll::poll(entries, timeout, mask).map_or_else(fail, |n| n as c_int)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    _room: size_t,
) -> c_int {
    // SAFETY: passed on.
    unsafe { ppoll(fds, count, timeout, mask) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the program's sets.
    let mut entries = unsafe { entries_of(count, read, write, except) };
    if !any_ours(&entries) {
        // SAFETY: passed on.
        return unsafe { real::select(count, read, write, except, timeout) };
    }
    // SAFETY: null or the program's.
    let wait = unsafe { timeout.as_ref() }.map(|t| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000));
    match epoll::poll(&mut entries, wait, std::ptr::null()) {
        // SAFETY: the program's sets.
        Ok(_) => unsafe { write_sets(&entries, count, read, write, except) },
        Err(errno) => fail(errno),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's sets.
    let mut entries = unsafe { entries_of(count, read, write, except) };
    if !any_ours(&entries) {
        // SAFETY: passed on.
        return unsafe { real::pselect(count, read, write, except, timeout, mask) };
    }
    // SAFETY: null or the program's.
    let wait = unsafe { timeout.as_ref() }.map(|t| Duration::new(t.tv_sec as u64, t.tv_nsec as u32));
    match epoll::poll(&mut entries, wait, mask) {
        // SAFETY: the program's sets.
        Ok(_) => unsafe { write_sets(&entries, count, read, write, except) },
        Err(errno) => fail(errno),
    }
}

const SELECT: [(i16, i16); 3] = [
    (libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR),
    (libc::POLLOUT, libc::POLLOUT | libc::POLLERR),
    (libc::POLLPRI, libc::POLLPRI),
];

unsafe fn entries_of(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set) -> Vec<pollfd> {
    let mut entries = Vec::new();
    for fd in 0..count.clamp(0, libc::FD_SETSIZE as c_int) {
        let mut events = 0;
        for (set, (bit, _)) in [read, write, except].into_iter().zip(SELECT) {
            // SAFETY: null or a set of the program; `fd` is below FD_SETSIZE.
            if !set.is_null() && unsafe { libc::FD_ISSET(fd, set) } {
                events |= bit;
            }
        }
        if events != 0 {
            entries.push(pollfd { fd, events, revents: 0 });
        }
    }
    entries
}

unsafe fn write_sets(
    entries: &[pollfd],
    _count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
) -> c_int {
    if entries.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
        return fail(Errno::EBADF);
    }
    let mut bits = 0;
    for (set, (wanted, shown)) in [read, write, except].into_iter().zip(SELECT) {
        if set.is_null() {
            continue;
        }
        // SAFETY: a set of the program.
        unsafe { libc::FD_ZERO(set) };
        for entry in entries.iter().filter(|e| e.events & wanted != 0 && e.revents & shown != 0) {
            // SAFETY: as above; below FD_SETSIZE.
            unsafe { libc::FD_SET(entry.fd, set) };
            bits += 1;
        }
    }
    bits
}

/// vfork(2) as fork(2): a child that shared our memory could not close or duplicate descriptors without disturbing its parent.
/// (posix_spawn(3) closes and duplicates inside the C library, and does not come here.)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> libc::pid_t {
    // SAFETY: passed on.
    unsafe { libc::fork() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: passed on.
    let fd = unsafe { real::epoll_create1(flags) };
    if fd >= 0 {
        epoll::create(fd);
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
    if let Fd::Object(set) = lookup(epfd)
        && STATE.with(|state| matches!(state.objects.get(set), Some(Object { body: Body::Epoll(_), .. })))
    {
        // SAFETY: null or the program's.
        let wanted = unsafe { event.as_ref() }.map(|e| (e.events, e.u64));
        if let Some(result) = epoll::control(set, op, fd, wanted) {
            return answer(result);
        }
    }
    // SAFETY: passed on.
    unsafe { real::epoll_ctl(epfd, op, fd, event) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
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
    if let Fd::Object(set) = lookup(epfd)
        && max > 0
        && !events.is_null()
    {
        // SAFETY: the program's memory.
        let room = unsafe { std::slice::from_raw_parts_mut(events, max as usize) };
        return epoll::wait(set, room, timeout, mask).map_or_else(fail, |n| n as c_int);
    }
    // SAFETY: passed on.
    unsafe { real::epoll_pwait(epfd, events, max, timeout, mask) }
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
    let millis = unsafe { timeout.as_ref() }
        .map_or(-1, |t| t.tv_sec.saturating_mul(1000).saturating_add((t.tv_nsec + 999_999) / 1_000_000) as c_int);
    // SAFETY: passed on.
    unsafe { epoll_pwait(epfd, events, max, millis, mask) }
}
