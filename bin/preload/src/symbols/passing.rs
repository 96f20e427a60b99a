//! Passes a socket of ours over a unix socket: SCM_RIGHTS, unix(7), cmsg(3).
//!
//! A memfd that names the session and slot is sent in place of the descriptor, and the receiver joins the
//! session. Until the receiver has confirmed that in the slot, or some time has passed, the sender stays a
//! holder, so that it may close what it has sent.

use std::ffi::c_int;

use atoll_sockets::client::exec_state::{HEADER_LEN, PASSED_MAX, PassedSocket};
use atoll_sockets::client::{PassedListener, Sender};
use libc::{cmsghdr, msghdr, ssize_t};

use crate::calls;
use crate::exec::{from_memfd, to_memfd};
use crate::lock::STATE;
use crate::real;
use crate::space;
use crate::supervisor::{self, SUPERVISOR};
use crate::table::{self, Internal, object_at};

/// Returns the places of the descriptors in the control messages of a message.
///
/// # Safety
/// `msg` is a valid message whose control messages are complete.
unsafe fn rights(msg: *const msghdr) -> Vec<*mut c_int> {
    let mut all = Vec::new();
    // SAFETY: the caller's promise, for this and each that follows.
    let mut header: *mut cmsghdr = unsafe { libc::CMSG_FIRSTHDR(msg) };
    while !header.is_null() {
        // SAFETY: inside the control messages.
        let (level, kind, len) = unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len) };
        // SAFETY: a constant.
        let head = unsafe { libc::CMSG_LEN(0) } as usize;
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS && len >= head {
            // SAFETY: as above.
            let data = unsafe { libc::CMSG_DATA(header) }.cast::<c_int>();
            // SAFETY: the message has as many bytes.
            all.extend((0..(len - head) / size_of::<c_int>()).map(|i| unsafe { data.add(i) }));
        }
        // SAFETY: as above.
        header = unsafe { libc::CMSG_NXTHDR(msg, header) };
    }
    all
}

/// Runs sendmsg(2) on a socket of the kernel.
pub unsafe fn send(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: null or the program's.
    let has_rights = table::any_objects() && !msg.is_null() && unsafe { !(*msg).msg_control.is_null() };
    // SAFETY: the program's message.
    let places = if has_rights { unsafe { rights(msg) } } else { Vec::new() };
    let mut replaced: Vec<(*mut c_int, c_int, Internal)> = Vec::new();
    for place in places {
        // SAFETY: inside the program's message.
        let number = unsafe { place.read_unaligned() };
        if let Some(letter) = object_at(number).and_then(letter) {
            // The program's message is put right again below; the kernel copies it meanwhile.
            // SAFETY: as above.
            unsafe { place.write_unaligned(letter.number()) };
            replaced.push((place, number, letter));
        }
    }
    // SAFETY: passed on.
    let result = unsafe { real::sendmsg(fd, msg, flags) };
    let errno = crate::real::last_errno();
    for (place, number, letter) in replaced {
        // SAFETY: as above.
        unsafe { place.write_unaligned(number) };
        drop(letter);
    }
    // SAFETY: a valid thread-local.
    unsafe { *libc::__errno_location() = errno.0 };
    result
}

/// Returns a memfd with what the receiver of a socket has to know.
fn letter(object: u32) -> Option<Internal> {
    STATE.with(|state| to_memfd(&state.client.pass(object)?.encode().ok()?))
}

/// Runs recvmsg(2) on a socket of the kernel.
pub unsafe fn receive(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: passed on.
    let result = unsafe { real::recvmsg(fd, msg, flags) };
    // SAFETY: the kernel has accepted it.
    if result < 0 || unsafe { (*msg).msg_control.is_null() || (*msg).msg_controllen == 0 } {
        return result;
    }
    // SAFETY: the kernel has filled it.
    for place in unsafe { rights(msg) } {
        // SAFETY: inside the message.
        let number = unsafe { place.read_unaligned() };
        if object_at(number).is_some() {
            continue;
        }
        // Programs send memfds of their own, too, which may be large.
        let is_letter = from_memfd(number, HEADER_LEN).is_some_and(|begin| PassedSocket::is_begun_by(&begin));
        if is_letter && let Some(octets) = from_memfd(number, PASSED_MAX + 1) {
            open(fd, number, &octets, flags & libc::MSG_CMSG_CLOEXEC != 0);
        }
    }
    result
}

/// Makes a socket of the letter that came in its place. If that fails, the program has a descriptor without
/// use.
fn open(channel: c_int, number: c_int, octets: &[u8], close_on_exec: bool) {
    let placeholder = real::kernel_socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
    if placeholder < 0 {
        return;
    }
    let cloexec = if close_on_exec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: two descriptors of ours.
    unsafe { real::sys!(libc::SYS_dup3, placeholder, number, cloexec) };
    table::close(placeholder);
    let taken = match PassedSocket::decode(octets) {
        Ok(passed) if passed.socket.is_listening() => take_listener(channel, passed),
        Ok(passed) => take(passed),
        Err(error) => {
            crate::complain(format_args!(
                "libatoll: a socket that another program has sent is lost: {error}\n"
            ));
            None
        }
    };
    if let Some(object) = taken
        && !table::set_object(number, object, close_on_exec)
    {
        STATE.with(|state| state.client.release(object));
    }
}

/// Takes a connection or a datagram socket, and joins its session for that.
fn take(passed: PassedSocket) -> Option<u32> {
    if !supervisor::join() {
        return None;
    }
    // Held to the end, so that a thread that forks meanwhile finds the session and its socket, or neither.
    SUPERVISOR.with(|connections| {
        let known = STATE.0.with(|state| state.client.session_of(passed.session).is_some());
        let joined = match (known, &connections.own) {
            (false, Some(control)) => {
                // The sender's arenas count against a limit of address space that this process has set.
                space::loosen();
                control.join(passed.session, passed.key).ok()
            }
            _ => None,
        };
        STATE.0.with(|state| {
            if let Some(joined) = joined.filter(|_| state.client.session_of(passed.session).is_none()) {
                state.client.add_session(joined);
            }
            let taken = state.client.take_passed(passed);
            space::refit(|| state.mapped());
            taken
        })
    })
}

/// Takes a listener that came over `channel`: this process listens there as well, as a forked child would.
/// All replicas know when this returns, so the sender may close its own.
fn take_listener(channel: c_int, passed: PassedSocket) -> Option<u32> {
    if !supervisor::join() {
        return None;
    }
    let sender = if is_trusted(channel) { Sender::Trusted } else { Sender::Stranger };
    match STATE.with(|state| state.client.take_passed_listener(passed, sender))? {
        PassedListener::Back(object) => Some(object),
        PassedListener::New(object) if calls::listen_again(object).is_ok() => Some(object),
        PassedListener::New(object) => {
            STATE.with(|state| state.client.release(object));
            None
        }
    }
}

/// Whether the peer of a unix socket is root, or the effective user of this process. unix(7), `SO_PEERCRED`.
fn is_trusted(channel: c_int) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: room for the credentials, and its size.
    let result = unsafe {
        real::getsockopt(channel, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut len)
    };
    // SAFETY: asks for a number.
    result == 0 && peer.pid != 0 && (peer.uid == 0 || peer.uid == unsafe { libc::geteuid() })
}
