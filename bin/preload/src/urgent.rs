//! Tells programs about urgent octets, besides poll(2): recv(MSG_OOB), sockatmark(3), SIGURG. See recv(2),
//! tcp(7), fcntl(2).
//!
//! SIGURG is sent by the thread that takes the replica's event ([`crate::lock`]). As soon as a socket has an
//! owner, a thread is started that only waits for such events, so that programs that sleep or compute get the
//! signal, too. Handlers may use sockets: the signal comes when the main thread, which the kernel prefers for
//! it, does not hold the lock.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use atoll_sockets::client::object::{Kind, Owner};
use atoll_sockets::urgent::Urgent;
use atoll_sockets::{Errno, Failure};

use crate::hang_up;
use crate::lock::STATE;
use crate::real::{count_system_call, last_errno};
use crate::signals::{hold_signals, release_signals};
use crate::transfer::{Parts, Received};
use crate::waiter::Waiter;

/// Receives an urgent octet of a stream socket: recv(2) with MSG_OOB.
pub fn receive(object: u32, parts: &Parts<'_>, flags: i32) -> Result<Received, Errno> {
    let found = STATE.with(|state| {
        match state.client.socket(object).map(|socket| &socket.kind) {
            Some(Kind::Stream(..)) => {}
            Some(Kind::Listening(_)) => return Err(Errno::ENOTCONN.into()),
            _ => return Err(Errno::EINVAL.into()),
        }
        let _family = state.client.family(object);
        let Some((stream, local, _)) = state.client.stream(object) else { return Err(Errno::EINVAL.into()) };
        stream.receive_urgent(local, flags & libc::MSG_PEEK != 0)
    });
    match found {
        Ok(Urgent::Octet(octet)) => {
            let mut target = parts.targets();
            let first = target.next();
            let received = Received {
                len: usize::from(first.is_some()),
                truncated: first.is_none(),
                ..Received::default()
            };
            if let Some(place) =
                first.and_then(|part| part.first_mut()).filter(|_| flags & libc::MSG_TRUNC == 0)
            {
                *place = octet;
            }
            Ok(Received { urgent: true, ..received })
        }
        Ok(Urgent::End) => Ok(Received::default()),
        // recv(2): MSG_OOB never waits, whatever the mode of the socket is.
        Err(Failure::WouldBlock) => Err(Errno::EAGAIN),
        Err(Failure::Error(errno)) => Err(errno),
    }
}

/// Returns whether the socket is at the urgent mark: sockatmark(3), `SIOCATMARK`.
pub fn is_at_mark(object: u32) -> bool {
    STATE.with(|state| {
        let _family = state.client.family(object);
        state.client.stream(object).is_some_and(|(stream, local, _)| stream.is_at_mark(local))
    })
}

// ---- SIGURG ----

/// Sets the owner of a socket: `F_SETOWN`, `F_SETOWN_EX`, `SIOCSPGRP`. Fails if the owner does not exist.
pub fn set_owner(object: u32, owner: Owner) -> Result<(), Errno> {
    if owner.id != 0 {
        count_system_call();
        // SAFETY: numbers only. Signal 0 looks whether there is somebody.
        if unsafe { libc::kill(owner.id, 0) } < 0 && last_errno() != Errno::EPERM {
            return Err(last_errno());
        }
    }
    if !STATE.with(|state| state.client.set_owner(object, owner)) {
        return Err(Errno::EBADF);
    }
    if owner.id != 0 {
        watch();
    }
    Ok(())
}

/// Returns the owner of a socket: `F_GETOWN`, `F_GETOWN_EX`, `SIOCGPGRP`.
pub fn owner(object: u32) -> Owner {
    STATE.with(|state| state.client.object(object).map_or(Owner::default(), |entry| entry.owner))
}

/// Whether the thread that waits for urgent octets is running.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// Notes that the child of a fork has no such thread.
pub fn forget_watch() {
    WATCHED.store(false, Ordering::Relaxed);
}

/// Starts the thread that waits for urgent octets, once. Without it, if there is no memory, only calls of the
/// program take the events.
fn watch() {
    if WATCHED.swap(true, Ordering::Relaxed) {
        return;
    }
    // The new thread has all signals blocked.
    let held = hold_signals();
    let started =
        std::thread::Builder::new().name("atoll-urgent".to_owned()).stack_size(128 << 10).spawn(keep_watch);
    release_signals(held);
    if started.is_err() {
        WATCHED.store(false, Ordering::Relaxed);
    }
}

fn keep_watch() {
    let (mut waiter, bell) = STATE.with(|state| {
        let (waiter, bell) = state.take_waiter();
        state.client.set_urgent_bell(bell);
        (waiter, bell)
    });
    loop {
        hang_up::mend();
        STATE.with(|state| {
            waiter.watch(state.client.sessions(), 1 << bell);
            state.client.before_sleep(1 << bell);
            state.client.drain();
            state.client.doze_off();
        });
        let _ = Waiter::sleep(waiter.number(), None, std::ptr::null());
        STATE.with(|state| {
            state.client.after_sleep(1 << bell);
            state.client.drain();
        });
    }
}

/// The struct of `F_SETOWN_EX`, `struct f_owner_ex`.
#[repr(C)]
pub struct OwnerEx {
    kind: c_int,
    id: c_int,
}

impl OwnerEx {
    /// Returns the owner that a program names; EINVAL for an unknown kind.
    pub fn owner(&self) -> Result<Owner, Errno> {
        match self.kind {
            0 | 1 => Ok(Owner { id: self.id, is_thread: self.kind == 0 }),
            2 => Ok(Owner { id: -self.id, is_thread: false }),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Returns the struct that names an owner to a program.
    pub fn of(owner: Owner) -> OwnerEx {
        let kind = if owner.id < 0 { 2 } else { c_int::from(!owner.is_thread) };
        OwnerEx { kind, id: owner.id.abs() }
    }
}
