//! Tells programs about urgent octets, besides poll(2): recv(MSG_OOB), sockatmark(3), SIGURG. See recv(2),
//! tcp(7), fcntl(2).
//!
//! SIGURG is sent by the thread that takes the replica's event ([`crate::lock`]). As soon as a socket has an
//! owner, a thread is started that only waits for such events, so that programs that sleep or compute get the
//! signal, too. Handlers may use sockets: the signal comes when the main thread, which the kernel prefers for
//! it, does not hold the lock.
//!
//! That thread has the credentials of the one that has started it. When the program changes those of one
//! thread alone, it is replaced ([`renew_watch`]): it keeps no right that the program has given up.

use std::ffi::c_int;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};

use atoll_sockets::Errno;
use atoll_sockets::client::object::{Kind, Owner};
use atoll_sockets::urgent::Urgent;
use atoll_sys::eventfd;

use crate::beyond::with_room;
use crate::dispatch::is_resolving;
use crate::hang_up;
use crate::lock::STATE;
use crate::reach;
use crate::real::{count_system_call, last_errno, sys};
use crate::shadow;
use crate::signals::{hold_signals, release_signals, unblock_signal};
use crate::sleepers::WAKE_TOKEN;
use crate::transfer::{Parts, Received};
use crate::waiter::Waiter;

/// Receives an urgent octet of a stream socket: recv(2) with MSG_OOB.
pub fn receive(object: u32, parts: &Parts<'_>, flags: i32) -> Result<Received, Errno> {
    let found = STATE.in_turn(|state| {
        match state.client.socket(object).map(|socket| &socket.kind) {
            Some(Kind::Stream(..)) => {}
            Some(Kind::Listening(_)) => return Err(Errno::ENOTCONN.into()),
            _ => return Err(Errno::EINVAL.into()),
        }
        let _turn = state.client.turn(object)?;
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
            let place = first.and_then(|part| part.first_mut()).filter(|_| flags & libc::MSG_TRUNC == 0);
            place.map_or(Ok(()), |place| reach::put(place, octet))?;
            Ok(Received { urgent: true, ..received })
        }
        Ok(Urgent::End) => Ok(Received::default()),
        // recv(2): MSG_OOB never waits, whatever the mode of the socket is.
        Err(failure) => Err(failure.errno()),
    }
}

/// Returns whether the socket is at the urgent mark: sockatmark(3), `SIOCATMARK`.
pub fn is_at_mark(object: u32) -> bool {
    STATE.with(|state| state.client.stream(object).is_some_and(|(stream, local, _)| stream.is_at_mark(local)))
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

/// Goes on with the sockets of the program before this one whose owner this process is.
pub fn resume() {
    let id = std::process::id().cast_signed();
    if STATE.with(|state| state.client.resume_owner(id)) {
        watch();
    }
}

/// The signal by which the C library has all threads make a system call of setuid(3) and its kin.
const SIGSETXID: i32 = 33;

/// What the thread that waits for urgent octets is doing ([`WATCH`]).
#[derive(Clone, Copy)]
#[repr(u8)]
enum Watch {
    /// There is no such thread.
    None,
    /// It is being made.
    Begins,
    /// It waits.
    Runs,
    /// It is to end.
    Ends,
}

/// A [`Watch`].
static WATCH: AtomicU8 = AtomicU8::new(Watch::None as u8);
/// The thread, as pthread_t, while there is one.
static THREAD: AtomicU64 = AtomicU64::new(0);
/// The epoll instance in which it sleeps; -1 if it looks again and again.
static PLACE: AtomicI32 = AtomicI32::new(-1);

fn go_over(from: Watch, to: Watch) -> bool {
    WATCH.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

fn is(watch: Watch) -> bool {
    WATCH.load(Ordering::Acquire) == watch as u8
}

/// Notes that the child of a fork has no such thread.
pub fn forget_watch() {
    WATCH.store(Watch::None as u8, Ordering::Relaxed);
}

/// Starts the thread that waits for urgent octets, once. Without it, if there is no memory, only calls of the
/// program take the events.
fn watch() {
    // The new thread has all signals blocked.
    let held = hold_signals();
    if go_over(Watch::None, Watch::Begins) {
        start();
    }
    release_signals(held);
}

fn start() {
    let builder = std::thread::Builder::new().name("atoll-urgent".to_owned()).stack_size(128 << 10);
    match builder.spawn(keep_watch) {
        Ok(thread) => THREAD.store(thread.into_pthread_t(), Ordering::Release),
        Err(_) => forget_watch(),
    }
}

/// Has a thread with the credentials of the running one wait for urgent octets, if one waits. Call after a
/// change of credentials that the kernel makes for the running thread alone: capset(2), prctl(2), and
/// setuid(2) by number. The C library's setuid(3) makes its system call in all threads, and ends the program
/// if it succeeds in some and fails in others.
pub fn renew_watch() {
    // The C library may be in the midst of its own setuid(3): its system calls come here while a name is
    // resolved.
    if is(Watch::None) || is_resolving() {
        return;
    }
    let errno = last_errno();
    let held = hold_signals();
    while is(Watch::Begins) {
        // SAFETY: no arguments.
        unsafe { libc::sched_yield() };
    }
    if go_over(Watch::Runs, Watch::Ends) {
        end();
        WATCH.store(Watch::Begins as u8, Ordering::Release);
        start();
    }
    release_signals(held);
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = errno.0 };
}

/// Wakes the thread, which is to end, and waits until it has ended.
fn end() {
    let wake = with_room(|room| eventfd::create().ok().map(|fd| room.keep(fd)));
    if let Some(wake) = &wake {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: WAKE_TOKEN };
        let place = PLACE.load(Ordering::Relaxed);
        // SAFETY: numbers and a valid event.
        unsafe { sys!(libc::SYS_epoll_ctl, place, libc::EPOLL_CTL_ADD, wake.number(), &raw mut event) };
    }
    let mut result = std::ptr::null_mut();
    // SAFETY: the thread has not been joined, and a place for its result. pthread_join(3) could be cancelled.
    while unsafe { libc::pthread_tryjoin_np(THREAD.load(Ordering::Acquire), &raw mut result) } == libc::EBUSY
    {
        // SAFETY: no arguments.
        unsafe { libc::sched_yield() };
    }
}

fn keep_watch() {
    // The C library's setuid(3) waits until every thread has handled its signal.
    if !shadow::is_hosted() {
        unblock_signal(SIGSETXID);
    }
    let (mut waiter, bell) = STATE.with(|state| {
        let (waiter, bell) = state.take_waiter();
        state.client.set_urgent_bell(bell);
        (waiter, bell)
    });
    PLACE.store(waiter.number(), Ordering::Relaxed);
    WATCH.store(Watch::Runs as u8, Ordering::Release);
    while !is(Watch::Ends) {
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
    STATE.with(|state| {
        state.client.set_urgent_bell(0);
        state.client.drain();
        // The instance has what woke this thread.
        state.put_waiter((Waiter::new(), bell));
    });
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
