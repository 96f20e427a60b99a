//! getifaddrs(3), if_nametoindex(3), if_nameindex(3): the interfaces of the stack.
//!
//! What these functions return is freed by functions of the C library that stay its own, so it is memory of
//! the C library's malloc: these are no functions that a signal handler may call (signal-safety(7)).

use std::ffi::{c_char, c_uint, c_void};
use std::{mem, ptr};

use atoll_sockets::Errno;
use atoll_sockets::view::{Interface, InterfaceAddress, View, netlink};
use libc::{if_nameindex as NameIndex, ifaddrs, sockaddr};

use super::{SCOPE, fail};
use crate::interfaces::view;
use crate::real;

/// An entry of the list that getifaddrs(3) returns, with everything that it points to.
#[repr(C)]
struct Entry {
    entry: ifaddrs,
    addr: libc::sockaddr_storage,
    mask: libc::sockaddr_storage,
    broadcast: libc::sockaddr_storage,
    name: [c_char; libc::IFNAMSIZ],
    /// `struct rtnl_link_stats` of linux/if_link.h.
    statistics: [u32; 24],
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getifaddrs(list: *mut *mut ifaddrs) -> libc::c_int {
    let view = match view() {
        Ok(Some(view)) => view,
        // SAFETY: passed on.
        Ok(None) => return unsafe { real::getifaddrs(list) },
        Err(errno) => return fail(errno),
    };
    if list.is_null() {
        return fail(Errno::EFAULT);
    }
    let entries = entries(&view);
    // freeifaddrs(3) frees the first entry, and with it all: the C library keeps its own list in one piece,
    // too.
    // SAFETY: memory for as many entries, which becomes the program's.
    let memory = unsafe { libc::malloc(entries.len() * size_of::<Entry>()) }.cast::<Entry>();
    if memory.is_null() {
        return fail(Errno::ENOMEM);
    }
    let count = entries.len();
    for (at, entry) in entries.into_iter().enumerate() {
        // SAFETY: inside the memory, which malloc has aligned for any type.
        unsafe {
            let place = memory.add(at);
            place.write(entry);
            join(place);
            if at + 1 < count {
                (*place).entry.ifa_next = memory.add(at + 1).cast();
            }
        }
    }
    // SAFETY: the program's pointer.
    unsafe { *list = memory.cast() };
    0
}

/// Lets an entry point to what it holds.
unsafe fn join(place: *mut Entry) {
    let family = |storage: &libc::sockaddr_storage| storage.ss_family != 0;
    // SAFETY: the caller's entry.
    unsafe {
        let entry = &mut *place;
        let pointer = |storage: *mut libc::sockaddr_storage, is_there| -> *mut sockaddr {
            if is_there { storage.cast() } else { ptr::null_mut() }
        };
        entry.entry.ifa_name = (&raw mut entry.name).cast();
        entry.entry.ifa_addr = pointer(&raw mut entry.addr, true);
        entry.entry.ifa_netmask = pointer(&raw mut entry.mask, family(&entry.mask));
        entry.entry.ifa_ifu = pointer(&raw mut entry.broadcast, family(&entry.broadcast));
        if i32::from(entry.addr.ss_family) == libc::AF_PACKET {
            entry.entry.ifa_data = (&raw mut entry.statistics).cast::<c_void>();
        }
    }
}

/// Returns the entries in the C library's order: links, IPv4 addresses, IPv6 addresses.
fn entries(view: &View) -> Vec<Entry> {
    let mut all: Vec<Entry> = view.interfaces.iter().map(link).collect();
    for v4 in [true, false] {
        for interface in &view.interfaces {
            all.extend(interface.family(v4).map(|own| address(interface, own)));
        }
    }
    all
}

fn empty(interface: &Interface) -> Entry {
    // SAFETY: all-zero is a valid value: null pointers and no families.
    let mut entry: Entry = unsafe { mem::zeroed() };
    entry.entry.ifa_flags = interface.flags;
    for (to, from) in entry.name.iter_mut().zip(interface.name.bytes()) {
        *to = from as c_char;
    }
    entry
}

fn link(interface: &Interface) -> Entry {
    let mut entry = empty(interface);
    let hardware = if interface.is_loopback() { libc::ARPHRD_LOOPBACK } else { libc::ARPHRD_ETHER };
    let link = |mac: [u8; 6]| libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: 0,
        sll_ifindex: interface.index as i32,
        sll_hatype: hardware,
        sll_pkttype: 0,
        sll_halen: mac.len() as u8,
        sll_addr: [mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], 0, 0],
    };
    let broadcast = if interface.is_loopback() { [0; 6] } else { [0xff; 6] };
    // SAFETY: the storage is large enough for any address.
    unsafe {
        (&raw mut entry.addr).cast::<libc::sockaddr_ll>().write(link(interface.mac));
        (&raw mut entry.broadcast).cast::<libc::sockaddr_ll>().write(link(broadcast));
    }
    entry.statistics = netlink::statistics(interface).map(|counted| counted as u32);
    entry
}

fn address(interface: &Interface, own: &InterfaceAddress) -> Entry {
    let mut entry = empty(interface);
    let write = |to: &mut libc::sockaddr_storage, addr: atoll_base::Addr| match own.addr.is_v4() {
        true => {
            let v4 = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: 0,
                sin_addr: libc::in_addr { s_addr: addr.to_v4().unwrap_or(0).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is large enough for any address.
            unsafe { (&raw mut *to).cast::<libc::sockaddr_in>().write(v4) };
        }
        false => {
            let v6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: 0,
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: addr.octets() },
                sin6_scope_id: if addr.is_link_local() { SCOPE } else { 0 },
            };
            // SAFETY: as above.
            unsafe { (&raw mut *to).cast::<libc::sockaddr_in6>().write(v6) };
        }
    };
    write(&mut entry.addr, own.addr);
    write(&mut entry.mask, own.mask());
    // The C library gives an address without a broadcast address its own there (`IFA_ADDRESS`), for IPv4.
    if own.addr.is_v4() {
        write(&mut entry.broadcast, own.broadcast().unwrap_or(own.addr));
    }
    entry
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn if_nametoindex(name: *const c_char) -> c_uint {
    let view = match view() {
        Ok(Some(view)) => view,
        // SAFETY: passed on.
        Ok(None) => return unsafe { real::if_nametoindex(name) },
        Err(errno) => return failed_index(errno),
    };
    // SAFETY: the program's text.
    let name = unsafe { std::ffi::CStr::from_ptr(name) };
    match view.named(name.to_bytes()) {
        Some(interface) => interface.index,
        None => failed_index(Errno::ENODEV),
    }
}

fn failed_index(errno: Errno) -> c_uint {
    fail(errno);
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn if_indextoname(index: c_uint, name: *mut c_char) -> *mut c_char {
    let found = match view() {
        Ok(Some(view)) => view.numbered(index).map(|it| it.name).ok_or(Errno(libc::ENXIO)),
        // SAFETY: passed on.
        Ok(None) => return unsafe { real::if_indextoname(index, name) },
        Err(errno) => Err(errno),
    };
    match found {
        Ok(text) => {
            // SAFETY: the program has room for IFNAMSIZ octets.
            unsafe {
                ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len());
                *name.add(text.len()) = 0;
            }
            name
        }
        Err(errno) => {
            fail(errno);
            ptr::null_mut()
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn if_nameindex() -> *mut NameIndex {
    let view = match view() {
        Ok(Some(view)) => view,
        // SAFETY: passed on.
        Ok(None) => return unsafe { real::if_nameindex() },
        Err(errno) => {
            fail(errno);
            return ptr::null_mut();
        }
    };
    let count = view.interfaces.len();
    // SAFETY: memory for as many entries and the last, empty one; calloc makes every name null.
    let memory = unsafe { libc::calloc(count + 1, size_of::<NameIndex>()) }.cast::<NameIndex>();
    if memory.is_null() {
        fail(Errno(libc::ENOBUFS));
        return ptr::null_mut();
    }
    for (at, interface) in view.interfaces.iter().enumerate() {
        let name: Vec<u8> = interface.name.bytes().chain([0]).collect();
        // SAFETY: inside the memory; the name ends with a zero, and if_freenameindex(3) frees its copy.
        unsafe {
            let copy = libc::strdup(name.as_ptr().cast());
            if copy.is_null() {
                break;
            }
            memory.add(at).write(NameIndex { if_index: interface.index, if_name: copy });
        }
    }
    memory
}
