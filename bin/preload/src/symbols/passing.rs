//! Passes a socket of ours over a unix socket: SCM_RIGHTS, unix(7), cmsg(3).
//!
//! A memfd that names the session and slot is sent in place of the descriptor, and the receiver joins the
//! session. Until the receiver has confirmed that in the slot, or some time has passed, the sender stays a
//! holder, so that it may close what it has sent.

use std::ffi::c_int;

use atoll_sockets::client::object::{Body, Kind};
use libc::{cmsghdr, msghdr, ssize_t};

use crate::calls;
use crate::exec::{Words, adopt_socket, from_memfd, to_memfd, write_socket};
use crate::lock::STATE;
use crate::platform::{Client, Object};
use crate::real;
use crate::state::State;
use crate::supervisor::{self, SUPERVISOR};
use crate::table::{self, Internal, object_at};

const MAGIC: u64 = u64::from_le_bytes(*b"atollfd2");

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
    STATE.with(|state| {
        let client = &mut state.client;
        let socket = client.socket(object)?;
        // A listener has no slot: the receiver listens for itself.
        if !matches!(socket.kind, Kind::Listening(_)) {
            client.before_passing(object)?;
        }
        let socket = client.socket(object)?;
        let session = client.sessions().get(socket.places().first().map_or(0, |place| place.session))?;
        let mut words = vec![MAGIC, u64::from(session.id), session.key];
        write_socket(&mut words, socket, client.is_nonblocking(object), |_| 0);
        to_memfd(&words)
    })
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
        if let Some(words) = from_memfd(number).filter(|words| words.first() == Some(&MAGIC)) {
            open(fd, number, &words[1..], flags & libc::MSG_CMSG_CLOEXEC != 0);
        }
    }
    result
}

/// Makes a socket of the letter that came in its place. If that fails, the program has a descriptor without
/// use.
fn open(channel: c_int, number: c_int, words: &[u64], close_on_exec: bool) {
    let placeholder = real::kernel_socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
    if placeholder < 0 {
        return;
    }
    let cloexec = if close_on_exec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: two descriptors of ours.
    unsafe { real::sys!(libc::SYS_dup3, placeholder, number, cloexec) };
    table::close(placeholder);
    let [session, key, socket @ ..] = words else { return };
    let Ok(id) = u32::try_from(*session) else { return };
    if Words(socket).socket().is_some_and(|object| is_listener(&object)) {
        open_listener(channel, number, socket, close_on_exec);
        return;
    }
    let known = |client: &Client| client.sessions().iter().position(|session| session.id == id);
    if !supervisor::join() {
        return;
    }
    // Held to the end, so that a thread that forks meanwhile finds the session and its socket, or neither.
    SUPERVISOR.with(|connections| {
        let joined = match (STATE.0.with(|state| known(&state.client)), &connections.own) {
            (Some(_), _) => None,
            (None, Some(control)) => control.join(id, *key).ok(),
            (None, None) => None,
        };
        STATE.0.with(|state| {
            let index = known(&state.client).or_else(|| Some(state.client.add_session(joined?)));
            if let Some(index) = index {
                place(state, number, index, socket, close_on_exec);
            }
        });
    });
}

/// Puts a socket that has come into its place, with the session of this index here.
fn place(state: &mut State, number: c_int, index: usize, words: &[u64], close_on_exec: bool) {
    let Some(mut object) = Words(words).socket() else { return };
    let mut places = Vec::new();
    if let Body::Socket(socket) = &mut object.body {
        // The port stays the sender's.
        socket.lease = 0;
        socket.places_mut().iter_mut().for_each(|place| place.session = index);
        places.extend_from_slice(socket.places());
    }
    places.iter().for_each(|place| state.client.receive_passed(*place));
    if index == 0 {
        // The socket has come back to its sender: this is as if it had been duplicated.
        let (Some(place), Some(session)) = (places.first(), state.client.own()) else { return };
        let Some(replica) = session.replicas().get(place.replica) else { return };
        let user = replica.user(place.slot);
        if let Some(entry) = state.client.object_mut(user) {
            entry.descriptors += 1;
            table::set_object(number, user, close_on_exec);
            return;
        }
    }
    adopt_socket(state, object, [number].into_iter());
    table::set_close_on_exec(number, close_on_exec);
}

fn is_listener(object: &Object) -> bool {
    matches!(&object.body, Body::Socket(socket) if matches!(socket.kind, Kind::Listening(_)))
}

/// A listener that came over `channel`: this process listens there as well, as a forked child would. All
/// replicas know when this returns, so the sender may close its own.
fn open_listener(channel: c_int, number: c_int, words: &[u64], close_on_exec: bool) {
    if !supervisor::join() {
        return;
    }
    let asked = STATE.with(|state| {
        let object = Words(words).socket()?;
        let Body::Socket(socket) = &object.body else { return None };
        if let Some(user) = state.client.holder_of(socket.lease) {
            // It has come back to where it was sent: as if it had been duplicated.
            if let Some(entry) = state.client.object_mut(user) {
                entry.descriptors += 1;
                table::set_object(number, user, close_on_exec);
            }
            return None;
        }
        // Low ports are for who may have them: what came may be forged (`Client::bind_passed`).
        if socket.local.port < LOW_PORTS_END && !is_trusted(channel) {
            return None;
        }
        let user = state.client.insert_inherited(object);
        state.client.bind_passed(user).then_some(user).or_else(|| {
            state.client.release(user);
            None
        })
    });
    let Some(user) = asked else { return };
    let listens = calls::listen_again(user);
    STATE.with(|state| {
        if listens.is_err() || !table::set_object(number, user, close_on_exec) {
            state.client.release(user);
        }
    });
}

/// Ports below are privileged, unless the stack says otherwise.
const LOW_PORTS_END: u16 = 1024;

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
