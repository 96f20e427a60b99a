//! Passes a socket of ours over a unix socket: SCM_RIGHTS, unix(7), cmsg(3).
//!
//! A letter ([`crate::letter`]) is sent in place of the descriptor. The receiver joins the session that the
//! socket's slots are in, and asks for its port.
//!
//! | socket | what holds it until the receiver has it |
//! |---|---|
//! | without a port of its own: accepted connections, most others | the sender, until the receiver has noted in the slot that it has it, or ten seconds |
//! | with a port: listeners, what is bound | a session of its own, as a child of a fork would have it, whose connection to the supervisor is in the letter |
//! | new | nothing needs to |

use std::ffi::c_int;

use atoll_sockets::Errno;
use atoll_sockets::client::PassedPort;
use atoll_sockets::client::exec_state::PassedSocket;
use libc::{cmsghdr, msghdr, ssize_t};

use super::fail;
use crate::calls;
use crate::child_state::{NextProcess, Preparation, refit_limit};
use crate::confinement::is_confined;
use crate::letter::{self, Letter};
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

/// Returns whether a message has control messages, with which descriptors may come.
///
/// # Safety
/// `msg` is null or valid.
pub unsafe fn has_control(msg: *const msghdr) -> bool {
    // SAFETY: the caller's promise.
    unsafe { msg.as_ref() }.is_some_and(|msg| !msg.msg_control.is_null() && msg.msg_controllen > 0)
}

/// Runs sendmsg(2) on a socket of the kernel. Fails with ENOBUFS if a socket of the stack cannot be sent.
pub unsafe fn send(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program's message.
    let has_rights = table::any_objects() && unsafe { has_control(msg) };
    // SAFETY: as above.
    let places = if has_rights { unsafe { rights(msg) } } else { Vec::new() };
    // SAFETY: inside the program's message.
    let numbers = places.iter().map(|place| unsafe { place.read_unaligned() });
    let sockets: Vec<Option<u32>> = numbers.map(|number| object_at(number).filter(is_socket)).collect();
    // What holds ports lives until the letters are written, which have copies of its connection.
    let hold = hold_ports(sockets.iter().flatten().copied().filter(has_port).collect());
    let mut replaced: Vec<(*mut c_int, c_int, Internal)> = Vec::new();
    for (place, object) in places.iter().zip(&sockets) {
        let Some(object) = *object else { continue };
        // SAFETY: inside the program's message.
        let number = unsafe { place.read_unaligned() };
        let Some(letter) = write(number, object, hold.as_ref()) else {
            put_back(replaced);
            return fail(Errno::ENOBUFS) as ssize_t;
        };
        // The program's message is put right again below; the kernel copies it meanwhile.
        // SAFETY: as above.
        unsafe { place.write_unaligned(letter.number()) };
        replaced.push((*place, number, letter));
    }
    if let Some(hold) = hold {
        drop(hold);
        refit_limit();
    }
    // SAFETY: passed on.
    let result = unsafe { real::sendmsg(fd, msg, flags) };
    let errno = crate::real::last_errno();
    put_back(replaced);
    real::set_errno(errno);
    result
}

fn is_socket(object: &u32) -> bool {
    STATE.with(|state| state.client.socket(*object).is_some())
}

fn has_port(object: &u32) -> bool {
    STATE.with(|state| state.client.socket(*object).is_some_and(|socket| socket.lease != 0))
}

/// Puts the program's message right again.
fn put_back(replaced: Vec<(*mut c_int, c_int, Internal)>) {
    for (place, number, _letter) in replaced {
        // SAFETY: inside the program's message, which has not changed.
        unsafe { place.write_unaligned(number) };
    }
}

/// Writes a letter about the socket that a descriptor names. Returns `None` if that fails.
fn write(number: c_int, object: u32, hold: Option<&Preparation>) -> Option<Internal> {
    let connection = hold.filter(|_| has_port(&object)).and_then(|hold| hold.child_state.as_ref());
    let connection = connection.map(|child_state| child_state.control.descriptor());
    let octets = STATE.with(|state| state.client.pass(object)?.encode().ok())?;
    letter::write(&octets, number, connection)
}

/// Prepares what a child would have of sockets with ports. Without it, if the stack grants no session, they
/// are the sender's until the receiver has them. A process that has forbidden itself system calls does not
/// ask.
fn hold_ports(objects: Vec<u32>) -> Option<Preparation> {
    if objects.is_empty() || is_confined() {
        return None;
    }
    SUPERVISOR.with(|connections| {
        space::loosen();
        let prepared = Preparation::prepare(connections, NextProcess::Child, |_| objects.clone());
        STATE.0.release();
        Some(prepared)
    })
}

/// Runs recvmsg(2) on a socket of the kernel.
pub unsafe fn receive(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: passed on.
    let result = unsafe { real::recvmsg(fd, msg, flags) };
    // SAFETY: the kernel has accepted it.
    if result < 0 || unsafe { !has_control(msg) } {
        return result;
    }
    // SAFETY: the kernel has filled it.
    for place in unsafe { rights(msg) } {
        // SAFETY: inside the message.
        let number = unsafe { place.read_unaligned() };
        if object_at(number).is_none()
            && let Some(letter) = letter::read(number)
        {
            open(number, letter, flags & libc::MSG_CMSG_CLOEXEC != 0);
        }
    }
    result
}

/// Makes a socket of the letter that came in its place. If that fails, the program has a socket of the kernel
/// without use.
fn open(number: c_int, letter: Letter, close_on_exec: bool) {
    let passed = match PassedSocket::decode(&letter.octets) {
        Ok(passed) => Some(passed),
        Err(error) => {
            crate::complain(format_args!(
                "libatoll: a socket that another program has sent is lost: {error}\n"
            ));
            None
        }
    };
    let cloexec = if close_on_exec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: two descriptors, of which one was just received for the program.
    unsafe { real::sys!(libc::SYS_dup3, letter.kernel.number(), number, cloexec) };
    if let Some(object) = passed.and_then(take)
        && !table::set_object(number, object, close_on_exec)
    {
        STATE.with(|state| state.client.release(object));
    }
    // Only now the receiver holds the port itself.
    drop(letter.hold);
}

/// Takes a socket that another process has sent. All replicas know of it when this returns, so the sender may
/// close its own.
fn take(passed: PassedSocket) -> Option<u32> {
    if !supervisor::join() {
        return None;
    }
    let lease = passed.socket.lease();
    if passed.socket.places().is_empty() {
        let is_listening = passed.socket.is_listening();
        let object = match STATE.with(|state| state.client.take_passed_port(passed))? {
            PassedPort::Back(object) => return Some(object),
            PassedPort::New(object) => object,
        };
        let has_port = lease == 0 || ask_for_port(object, lease);
        if has_port && (!is_listening || calls::listen_again(object).is_ok()) {
            return Some(object);
        }
        STATE.with(|state| state.client.release(object));
        return None;
    }
    let object = take_slots(passed)?;
    let is_new = STATE.with(|state| state.client.holder_of(lease).is_none());
    if lease != 0 && is_new {
        // Without the port it goes on as well, until its sender closes it.
        ask_for_port(object, lease);
    }
    Some(object)
}

/// Takes a connection or a datagram socket, and joins its session for that.
fn take_slots(passed: PassedSocket) -> Option<u32> {
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

/// Makes this process a holder of a received socket's port. Returns whether it is.
fn ask_for_port(object: u32, lease: u64) -> bool {
    let Some(token) = STATE.with(|state| state.client.ask_for_passed_port(object, lease)) else {
        return false;
    };
    let Ok(answer) = calls::answer(token) else { return false };
    STATE.with(|state| state.client.finish_passed_port(object, lease, &answer));
    true
}
