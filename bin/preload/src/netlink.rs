//! AF_NETLINK sockets of programs on the stack: netlink(7), rtnetlink(7).
//!
//! ```text
//!   program's descriptor   one end of a pair of unix sockets: poll(2), recv(2) and dup(2) are the kernel's
//!   this library           the other end: what the program sends is answered into it at once
//! ```
//! What a socket is called, and where its packets come from, is answered as netlink would. A socket is known
//! by its inode, so it is found under every number that it is duplicated to, and in children.
//!
//! NETLINK_ROUTE shows the stack. Protocols that show or change the kernel's own network otherwise do not
//! exist: programs such as ss(8) then read /proc/net. Protocols that are not about the network are the
//! kernel's.

use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use atoll_sockets::Errno;
use atoll_sockets::view::netlink;
use libc::{
    NETLINK_ADD_MEMBERSHIP, NETLINK_CAP_ACK, NETLINK_DROP_MEMBERSHIP, NETLINK_EXT_ACK, NETLINK_FIB_LOOKUP,
    NETLINK_NETFILTER, NETLINK_NO_ENOBUFS, NETLINK_SOCK_DIAG, NETLINK_XFRM, sockaddr, sockaddr_nl, socklen_t,
};

use crate::beyond::with_room;
use crate::interfaces::{file_status, view};
use crate::lock::STATE;
use crate::netlink_end::{Netlink, port_of};
use crate::real::{count_system_call, last_errno, sys};
use crate::settings::settings;
use crate::transfer::Parts;

/// Whether this process has netlink sockets: other programs pay nothing for them.
static ANY: AtomicBool = AtomicBool::new(false);

/// The most octets that a program may send at once, as with the kernel's usual buffer.
const PACKET_MAX: usize = 212_992;

/// Creates an AF_NETLINK socket: socket(2). `None` means that the kernel does. Fails with EPROTONOSUPPORT for
/// protocols that would show another network than the stack's.
pub fn socket(kind: c_int, protocol: c_int) -> Option<Result<c_int, Errno>> {
    let is_route = protocol == libc::NETLINK_ROUTE;
    let is_refused =
        matches!(protocol, NETLINK_SOCK_DIAG | NETLINK_XFRM | NETLINK_FIB_LOOKUP | NETLINK_NETFILTER);
    if settings().socket.is_none() || !(is_route || is_refused) {
        return None;
    }
    match view() {
        Ok(view) => drop(view?),
        Err(errno) => return Some(Err(errno)),
    }
    let flags = kind & (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    match kind & !flags {
        libc::SOCK_RAW | libc::SOCK_DGRAM if is_route => Some(create(kind & !flags, flags)),
        libc::SOCK_RAW | libc::SOCK_DGRAM => Some(Err(Errno(libc::EPROTONOSUPPORT))),
        _ => Some(Err(Errno(libc::ESOCKTNOSUPPORT))),
    }
}

fn create(kind: c_int, flags: c_int) -> Result<c_int, Errno> {
    let mut ends = [-1; 2];
    count_system_call();
    // SAFETY: makes two descriptors.
    let made = unsafe {
        sys!(libc::SYS_socketpair, libc::AF_UNIX, libc::SOCK_SEQPACKET | flags, 0, ends.as_mut_ptr())
    };
    if made < 0 {
        return Err(last_errno());
    }
    // SAFETY: just created, owned by nobody else.
    let other = unsafe { OwnedFd::from_raw_fd(ends[1]) };
    let other = with_room(|room| room.keep(other));
    let inode = file_status(ends[0]).map_or(0, |status| status.st_ino);
    STATE.with(|state| {
        state.netlinks.retain(|netlink| !netlink.has_ended());
        state.netlinks.push(Netlink { inode, other, kind, port: 0, caps_errors: false });
        ANY.store(true, Ordering::Relaxed);
    });
    Ok(ends[0])
}

/// Runs `f` with the netlink socket behind a descriptor; `None` if it is no such socket.
fn with<R>(fd: c_int, f: impl FnOnce(&mut Netlink) -> R) -> Option<R> {
    if !ANY.load(Ordering::Relaxed) {
        return None;
    }
    let inode = file_status(fd).filter(|status| status.st_mode & libc::S_IFMT == libc::S_IFSOCK)?.st_ino;
    STATE.with(|state| {
        let at = state.netlinks.iter().position(|netlink| netlink.inode == inode)?;
        let port = port_of(&state.netlinks, at);
        let netlink = state.netlinks.get_mut(at)?;
        netlink.port = port;
        Some(f(netlink))
    })
}

/// Returns whether the process has had a netlink socket of this library.
pub fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Returns whether the descriptor is a netlink socket of this library.
#[inline]
pub fn is_at(fd: c_int) -> bool {
    ANY.load(Ordering::Relaxed) && with(fd, |_| ()).is_some()
}

/// Answers what the program sends: sendmsg(2). `None` for other sockets. `to` is null or an address.
///
/// # Safety
/// `to` is null or valid for `len` octets.
pub unsafe fn send(
    fd: c_int,
    parts: &Parts<'_>,
    to: *const sockaddr,
    len: socklen_t,
) -> Option<Result<usize, Errno>> {
    if !is_at(fd) {
        return None;
    }
    if !to.is_null() {
        // SAFETY: the caller's promise.
        match unsafe { address(to, len) } {
            Ok(to) if to.nl_groups != 0 => return Some(Err(Errno::EPERM)),
            Ok(to) if to.nl_pid != 0 => return Some(Err(Errno::ECONNREFUSED)),
            Ok(_) => {}
            Err(errno) => return Some(Err(errno)),
        }
    }
    if parts.0.iter().map(|part| part.iov_len).fold(0, usize::saturating_add) > PACKET_MAX {
        return Some(Err(Errno::EMSGSIZE));
    }
    let mut packet = Vec::new();
    for part in parts.0.iter().filter(|part| part.iov_len > 0) {
        // SAFETY: the program's memory.
        packet.extend_from_slice(unsafe { std::slice::from_raw_parts(part.iov_base.cast(), part.iov_len) });
    }
    let view = match view() {
        Ok(Some(view)) => view,
        Ok(None) => return Some(Err(Errno::ENETDOWN)),
        Err(errno) => return Some(Err(errno)),
    };
    with(fd, |netlink| {
        for datagram in netlink::answer(&view, &packet, netlink.port, netlink.caps_errors) {
            netlink.give(&datagram)?;
        }
        Ok(packet.len())
    })
}

/// Reads an address of netlink.
///
/// # Safety
/// `addr` is valid for `len` octets.
unsafe fn address(addr: *const sockaddr, len: socklen_t) -> Result<sockaddr_nl, Errno> {
    if addr.is_null() || (len as usize) < size_of::<sockaddr_nl>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: long enough; perhaps not aligned.
    let found = unsafe { addr.cast::<sockaddr_nl>().read_unaligned() };
    if i32::from(found.nl_family) == libc::AF_NETLINK { Ok(found) } else { Err(Errno::EINVAL) }
}

/// Gives a socket its number: bind(2). Groups are refused with EPERM, because their events would not come.
///
/// # Safety
/// `addr` is null or valid for `len` octets.
pub unsafe fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Option<Result<(), Errno>> {
    with(fd, |netlink| {
        // SAFETY: the caller's promise.
        let wanted = unsafe { address(addr, len) }?;
        if wanted.nl_groups != 0 {
            return Err(Errno::EPERM);
        }
        if wanted.nl_pid != 0 {
            netlink.port = wanted.nl_pid;
        }
        Ok(())
    })
}

/// Sets where a socket sends to: connect(2). There is nobody but the stack.
///
/// # Safety
/// `addr` is null or valid for `len` octets.
pub unsafe fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Option<Result<(), Errno>> {
    with(fd, |_| {
        // SAFETY: the caller's promise.
        match unsafe { address(addr, len) }? {
            to if to.nl_groups != 0 => Err(Errno::EPERM),
            to if to.nl_pid != 0 => Err(Errno::ECONNREFUSED),
            _ => Ok(()),
        }
    })
}

/// Writes the address of a socket (`own`), or of the stack, which answers it: getsockname(2), getpeername(2),
/// recvmsg(2). Returns whether this is a netlink socket.
///
/// # Safety
/// `addr` is null, or `len` is valid, and `addr` is for `*len` octets.
pub unsafe fn write_name(fd: c_int, own: bool, addr: *mut sockaddr, len: *mut socklen_t) -> bool {
    let Some(port) = with(fd, |netlink| if own { netlink.port } else { 0 }) else { return false };
    if addr.is_null() || len.is_null() {
        return true;
    }
    // SAFETY: all-zero is a valid value.
    let mut name: sockaddr_nl = unsafe { std::mem::zeroed() };
    (name.nl_family, name.nl_pid) = (libc::AF_NETLINK as u16, port);
    // SAFETY: the caller's promise.
    unsafe {
        let room = (*len as usize).min(size_of::<sockaddr_nl>());
        std::ptr::copy_nonoverlapping((&raw const name).cast::<u8>(), addr.cast::<u8>(), room);
        *len = size_of::<sockaddr_nl>() as socklen_t;
    }
    true
}

/// Sets an option of netlink: setsockopt(2). `None` for other sockets and levels. What does not act is
/// refused with ENOPROTOOPT, as by an older kernel, and groups with EPERM.
///
/// # Safety
/// `value` is null or valid for `len` octets.
pub unsafe fn set_option(
    fd: c_int,
    (level, name): (c_int, c_int),
    value: *const c_void,
    len: socklen_t,
) -> Option<Result<(), Errno>> {
    if level != libc::SOL_NETLINK {
        return None;
    }
    with(fd, |netlink| {
        if value.is_null() || (len as usize) < size_of::<c_int>() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: long enough; perhaps not aligned.
        let on = unsafe { value.cast::<c_int>().read_unaligned() } != 0;
        match name {
            NETLINK_ADD_MEMBERSHIP => Err(Errno::EPERM),
            NETLINK_CAP_ACK => {
                netlink.caps_errors = on;
                Ok(())
            }
            // There is never more to say of an error, no answer is lost in silence, and there is no group
            // to leave.
            NETLINK_EXT_ACK | NETLINK_NO_ENOBUFS | NETLINK_DROP_MEMBERSHIP => Ok(()),
            _ => Err(Errno::ENOPROTOOPT),
        }
    })
}

/// Returns an option of a socket that the unix socket behind it would answer otherwise: getsockopt(2).
pub fn option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let asks =
        level == libc::SOL_SOCKET && matches!(name, libc::SO_DOMAIN | libc::SO_TYPE | libc::SO_PROTOCOL);
    asks.then(|| with(fd, |netlink| netlink.kind)).flatten().map(|kind| match name {
        libc::SO_DOMAIN => libc::AF_NETLINK,
        libc::SO_TYPE => kind,
        _ => libc::NETLINK_ROUTE,
    })
}
