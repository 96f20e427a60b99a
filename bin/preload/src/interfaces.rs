//! Answers questions about interfaces, addresses and routes with those of the stack, for the programs on it:
//! ioctl(2) of any socket, getifaddrs(3), if_nametoindex(3). [`crate::netlink`] and [`crate::proc_net`] do so
//! for AF_NETLINK and /proc/net.
//!
//! Whoever asks joins the stack first. A program that cannot join gets an error, or hears of the kernel's
//! network if that serves what the stack does not (`atoll run --kernel-network`).

use std::ffi::{c_int, c_ulong, c_void};

use atoll_sockets::Errno;
use atoll_sockets::view::View;
use atoll_sockets::view::request::{self, REQUEST_BYTES, SIOCGIFCONF};

use crate::control::Reason;
use crate::lock::STATE;
use crate::real::{count_system_call, sys};
use crate::settings::settings;
use crate::{supervisor, table};

/// Returns what the stack shows now; `None` for a program that is not on a stack. Fails for a program that
/// is to be on one and cannot join, unless the kernel's network serves the rest. The caller holds no lock.
pub fn view() -> Result<Option<View>, Errno> {
    if settings().socket.is_none() {
        return Ok(None);
    }
    let has_joined = supervisor::join();
    STATE.with(|state| match state.client.own() {
        Some(session) => Ok(Some(session.view(state.now()))),
        None if !has_joined && !settings().kernel_network.has_rest() => {
            Err(state.refused.map_or(Errno::ENETDOWN, Reason::errno))
        }
        None => Ok(None),
    })
}

/// Returns what the kernel knows of a descriptor: fstat(2).
pub fn file_status(fd: c_int) -> Option<libc::stat> {
    count_system_call();
    // SAFETY: all-zero is a valid value.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: fills the struct.
    let result = unsafe { sys!(libc::SYS_fstat, fd, &raw mut status) };
    (result == 0).then_some(status)
}

/// The `struct ifconf` of netdevice(7).
#[repr(C)]
struct List {
    len: c_int,
    entries: *mut [u8; REQUEST_BYTES],
}

/// Answers ioctl(2) if it is about interfaces, and the descriptor is a socket of a program on the stack.
/// `None` means that the kernel answers.
///
/// # Safety
/// `argument` is null or what netdevice(7) wants for the request.
pub unsafe fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> Option<Result<(), Errno>> {
    // The kernel looks at 32 bits only.
    let request = u64::from(request as u32);
    if !request::is_about_interfaces(request) || settings().socket.is_none() {
        return None;
    }
    let family = family_of(fd)?;
    let view = match view() {
        Ok(view) => view?,
        Err(errno) => return Some(Err(errno)),
    };
    if family != libc::AF_INET && request::is_of_ipv4(request) {
        return Some(Err(Errno::ENOTTY));
    }
    if argument.is_null() {
        return Some(Err(Errno::EFAULT));
    }
    if request == SIOCGIFCONF {
        // SAFETY: the program's struct.
        return Some(unsafe { list(&view, argument.cast()) });
    }
    // SAFETY: the program's `struct ifreq`, which need not be aligned.
    let mut entry = unsafe { argument.cast::<[u8; REQUEST_BYTES]>().read_unaligned() };
    Some(request::answer(&view, request, &mut entry).map(|()| {
        // SAFETY: as above.
        unsafe { argument.cast::<[u8; REQUEST_BYTES]>().write_unaligned(entry) };
    }))
}

/// Returns the family of a socket; `None` for what is no socket.
fn family_of(fd: c_int) -> Option<c_int> {
    let v6 = table::object_at(fd)
        .and_then(|object| STATE.with(|state| state.client.socket(object).map(|socket| socket.v6)));
    if let Some(v6) = v6 {
        return Some(if v6 { libc::AF_INET6 } else { libc::AF_INET });
    }
    let (mut family, mut len): (c_int, libc::socklen_t) = (0, size_of::<c_int>() as libc::socklen_t);
    let (level, name) = (libc::SOL_SOCKET, libc::SO_DOMAIN);
    count_system_call();
    // SAFETY: room for a number.
    let result = unsafe { sys!(libc::SYS_getsockopt, fd, level, name, &raw mut family, &raw mut len) };
    (result == 0).then_some(family)
}

/// Answers SIOCGIFCONF: as many whole entries as there is room for, or, without room, how much it takes.
unsafe fn list(view: &View, into: *mut List) -> Result<(), Errno> {
    let entries = request::list(view);
    // SAFETY: the caller's struct.
    let List { len, entries: room } = unsafe { into.read_unaligned() };
    if len < 0 {
        return Err(Errno::EINVAL);
    }
    let fitting =
        if room.is_null() { entries.len() } else { entries.len().min(len as usize / REQUEST_BYTES) };
    if !room.is_null() {
        for (at, entry) in entries.iter().take(fitting).enumerate() {
            // SAFETY: the program's memory has `len` octets.
            unsafe { room.add(at).write_unaligned(*entry) };
        }
    }
    // SAFETY: the program's struct.
    unsafe { (&raw mut (*into).len).write_unaligned((fitting * REQUEST_BYTES) as c_int) };
    Ok(())
}
