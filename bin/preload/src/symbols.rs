//! The C library's functions, under their names. Each looks its descriptor up, and passes a call on the
//! kernel's to the C library. What they do is in the manual page of each.
//!
//! * [`sockets`]: socket to shutdown, and options; [`octets`], [`positioned`]: what reads and writes;
//!   [`descriptors`]: what numbers name
//! * [`waiting`]: poll, select, epoll; [`processes`]: exec, spawn, vfork; [`streams`]: stdio; [`passing`]:
//!   SCM_RIGHTS; [`users`]: setuid; [`handlers`]: sigaction; [`threads`]: pthread_create;
//!   [`limits`]: setrlimit; [`numbers`]: syscall; [`interfaces`], [`files`]: the network that programs see;
//!   [`names`]: getaddrinfo; [`guests`]: calls of threads that are not the C library's; [`kernels`]: what the
//!   program sees of its numbers
//!
//! # Safety
//! The safety rules of every function here are those of the C library's function of the same name.

// structure: cycle of descriptors, octets, sockets, streams: the C library's functions stand for each other

mod descriptors;
mod files;
mod guests;
mod handlers;
mod interfaces;
mod kernels;
mod limits;
mod names;
mod numbers;
mod octets;
mod passing;
mod positioned;
mod processes;
mod sockets;
pub mod streams;
mod threads;
mod users;
mod waiting;

use std::ffi::c_int;
use std::mem;

use atoll_base::{Addr, Endpoint};
use atoll_sockets::Errno;
use libc::{iovec, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t, ssize_t};

use crate::reach;
use crate::transfer::Parts;

pub use numbers::carry_out;

/// Fails as the C library does: sets errno and returns -1.
pub(crate) fn fail(errno: Errno) -> c_int {
    // SAFETY: a valid thread-local of the C library.
    unsafe { *libc::__errno_location() = errno.0 };
    -1
}

pub(crate) fn answer(result: Result<(), Errno>) -> c_int {
    result.map_or_else(fail, |()| 0)
}

fn count(result: Result<usize, Errno>) -> c_int {
    result.map_or_else(fail, |n| c_int::try_from(n).unwrap_or(c_int::MAX))
}

#[inline]
fn length(result: Result<usize, Errno>) -> ssize_t {
    result.map_or_else(|errno| fail(errno) as ssize_t, |n| n as ssize_t)
}

/// The least octets of an address of AF_INET6: without a scope (Linux's `SIN6_LEN_RFC2133`).
const V6_LEAST: usize = 24;

/// An address that a program gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address {
    /// The address is of AF_INET or (`v6`) AF_INET6; IPv4 addresses mapped into IPv6 (RFC 4291 §2.5.5.2)
    /// become IPv4 addresses.
    Ours { endpoint: Endpoint, v6: bool },
    /// The address is link-local without its link: connect(2) and bind(2) fail (ipv6(7)).
    NoScope,
    /// The family is AF_UNSPEC.
    Unspecified,
    /// The address is of another family, or too short.
    Other,
}

impl Address {
    /// # Safety
    /// `addr` is null or valid for `len` bytes.
    unsafe fn read(addr: *const sockaddr, len: socklen_t) -> Address {
        if addr.is_null() || (len as usize) < mem::size_of::<libc::sa_family_t>() {
            return Address::Other;
        }
        // SAFETY: at least the family can be read.
        match i32::from(unsafe { (&raw const (*addr).sa_family).read_unaligned() }) {
            libc::AF_INET if len as usize >= mem::size_of::<sockaddr_in>() => {
                // SAFETY: long enough; perhaps not aligned.
                let v4 = unsafe { addr.cast::<sockaddr_in>().read_unaligned() };
                let endpoint = Endpoint::new(u32::from_be(v4.sin_addr.s_addr), u16::from_be(v4.sin_port));
                Address::Ours { endpoint, v6: false }
            }
            libc::AF_INET6 if len as usize >= V6_LEAST => {
                // SAFETY: all-zero is a valid value.
                let mut v6: sockaddr_in6 = unsafe { mem::zeroed() };
                let len = (len as usize).min(mem::size_of::<sockaddr_in6>());
                // SAFETY: as above; the name holds as many octets.
                unsafe { std::ptr::copy_nonoverlapping(addr.cast::<u8>(), (&raw mut v6).cast(), len) };
                let addr = Addr::from_octets(v6.sin6_addr.s6_addr);
                match addr.is_link_local() && v6.sin6_scope_id == 0 {
                    true => Address::NoScope,
                    false => {
                        Address::Ours { endpoint: Endpoint::at(addr, u16::from_be(v6.sin6_port)), v6: true }
                    }
                }
            }
            libc::AF_UNSPEC => Address::Unspecified,
            _ => Address::Other,
        }
    }

    /// Checks an address as move_addr_to_kernel() of the kernel does, before it is read.
    fn check(addr: *const sockaddr, len: socklen_t) -> Result<(), Errno> {
        if len as usize > mem::size_of::<sockaddr_storage>() {
            return Err(Errno::EINVAL);
        }
        if reach::can_read(addr, len as usize) { Ok(()) } else { Err(Errno::EFAULT) }
    }

    /// Reads an address for bind(2): one of AF_UNSPEC that is all zero is that of AF_INET (inet_bind).
    ///
    /// # Safety
    /// As for [`Address::read`].
    unsafe fn read_to_bind(addr: *const sockaddr, len: socklen_t) -> Address {
        // SAFETY: the caller's promise.
        match unsafe { Address::read(addr, len) } {
            Address::Unspecified if len as usize >= mem::size_of::<sockaddr_in>() => {
                // SAFETY: long enough; perhaps not aligned.
                let v4 = unsafe { addr.cast::<sockaddr_in>().read_unaligned() };
                let endpoint = Endpoint::new(u32::from_be(v4.sin_addr.s_addr), u16::from_be(v4.sin_port));
                if v4.sin_addr.s_addr == 0 {
                    Address::Ours { endpoint, v6: false }
                } else {
                    Address::Unspecified
                }
            }
            address => address,
        }
    }

    /// Returns why an address of `len` octets is none for a socket: the length is looked at first, then the
    /// family (inet_bind, tcp_v4_connect and their kin).
    fn why_not(self, socket_v6: bool, len: socklen_t) -> Errno {
        let least = if socket_v6 { V6_LEAST } else { mem::size_of::<sockaddr_in>() };
        if (len as usize) < least || self == Address::NoScope { Errno::EINVAL } else { Errno::EAFNOSUPPORT }
    }

    /// Returns the endpoint, if the socket is of the same family.
    fn endpoint(self, socket_v6: bool) -> Option<Endpoint> {
        match self {
            Address::Ours { endpoint, v6 } if v6 == socket_v6 => Some(endpoint),
            _ => None,
        }
    }
}

/// The number of the stack's link as programs see it: that of the first link after `lo`. Programs may give
/// any number, since a stack has one link.
const SCOPE: u32 = 2;

/// Writes an address as accept(2) does: cut to `*len`, which becomes its full length. Does nothing if the
/// program wants none.
fn write_address(
    endpoint: Endpoint,
    v6: bool,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<(), Errno> {
    if addr.is_null() { Ok(()) } else { give_address(endpoint, v6, addr, len) }
}

/// Writes an address as [`write_address`] does, for calls that fail without room for one.
fn give_address(endpoint: Endpoint, v6: bool, addr: *mut sockaddr, len: *mut socklen_t) -> Result<(), Errno> {
    // SAFETY: any octets are a number.
    let room = unsafe { reach::get(len) }?;
    if room > i32::MAX as u32 {
        return Err(Errno::EINVAL);
    }
    // SAFETY: all-zero is a valid value.
    let mut storage: sockaddr_storage = unsafe { mem::zeroed() };
    let full = if v6 {
        let v6 = sockaddr_in6 {
            sin6_family: libc::AF_INET6 as u16,
            sin6_port: endpoint.port.to_be(),
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: endpoint.addr.octets() },
            sin6_scope_id: if endpoint.addr.is_link_local() { SCOPE } else { 0 },
        };
        // SAFETY: the storage is large enough for any address.
        unsafe { (&raw mut storage).cast::<sockaddr_in6>().write(v6) };
        mem::size_of::<sockaddr_in6>()
    } else {
        let v4 = sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: endpoint.port.to_be(),
            sin_addr: libc::in_addr { s_addr: endpoint.addr.to_v4().unwrap_or_default().to_be() },
            sin_zero: [0; 8],
        };
        // SAFETY: as above.
        unsafe { (&raw mut storage).cast::<sockaddr_in>().write(v4) };
        mem::size_of::<sockaddr_in>()
    };
    let room = (room as usize).min(full);
    if !reach::can_write(addr, room) {
        return Err(Errno::EFAULT);
    }
    // SAFETY: `addr` holds as many bytes.
    unsafe { std::ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), addr.cast::<u8>(), room) };
    reach::put(len, full as socklen_t)
}

/// Returns the program's parts. Fails with `many` if there are more of them than a call takes.
///
/// # Safety
/// The memory does not change during the call.
unsafe fn parts_of<'a>(iov: *const iovec, count: usize, many: Errno) -> Result<Parts<'a>, Errno> {
    if count > 1024 {
        return Err(many);
    }
    if !reach::can_read(iov, count * mem::size_of::<iovec>()) {
        return Err(Errno::EFAULT);
    }
    // SAFETY: the caller's promise.
    Ok(Parts(if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(iov, count) } }))
}
