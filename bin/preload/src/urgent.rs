//! What are programs told of urgent octets beside poll(2)? recv(MSG_OOB), sockatmark(3), SIGURG. recv(2), tcp(7), fcntl(2).
//!
//! SIGURG is sent by the library, by whoever takes the replica's event. As soon as a socket has an owner there is a thread that does
//! nothing else, so that programs that sleep or compute hear of it, too. Handlers may use sockets: the signal comes when the main
//! thread, which the kernel prefers for it, does not hold the lock.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use atoll_ipc::command::Protocol;
use atoll_sockets::urgent::Urgent;
use atoll_sockets::{Errno, Failure};

use crate::object::{Kind, Object};
use crate::state::{STATE, State};
use crate::transfer::{Parts, Received};
use crate::wait::{Waiter, count_system_call, hold_signals, pending_signals, release_signals};

/// recv(2) with MSG_OOB.
pub fn receive(object: u32, parts: &Parts<'_>, flags: i32) -> Result<Received, Errno> {
    let found = STATE.with(|state| {
        match state.socket(object).map(|socket| (&socket.kind, socket.protocol)) {
            Some((Kind::Stream(..), _)) => {}
            // udp(7): there is nothing urgent about datagrams.
            Some((_, Protocol::Udp)) => return Ok(None),
            Some((Kind::Listening(_), _)) => return Err(Errno::ENOTCONN.into()),
            _ => return Err(Errno::EINVAL.into()),
        }
        let _family = state.family(object);
        let Some((stream, local, _)) = state.stream(object) else { return Err(Errno::EINVAL.into()) };
        stream.receive_urgent(local, flags & libc::MSG_PEEK != 0).map(Some)
    });
    match found {
        Ok(Some(Urgent::Octet(octet))) => {
            let mut target = parts.targets();
            let first = target.next();
            let received =
                Received { len: usize::from(first.is_some()), truncated: first.is_none(), ..Received::default() };
            if let Some(place) = first.and_then(|part| part.first_mut()).filter(|_| flags & libc::MSG_TRUNC == 0) {
                *place = octet;
            }
            Ok(Received { urgent: true, ..received })
        }
        Ok(Some(Urgent::End)) => Ok(Received::default()),
        Ok(None) => crate::transfer::receive(object, parts, flags & !libc::MSG_OOB),
        // recv(2): never waits for it, whatever the mode of the socket is.
        Err(Failure::WouldBlock) => Err(Errno::EAGAIN),
        Err(Failure::Error(errno)) => Err(errno),
    }
}

/// sockatmark(3), `SIOCATMARK`.
pub fn is_at_mark(object: u32) -> bool {
    STATE.with(|state| {
        let _family = state.family(object);
        state.stream(object).is_some_and(|(stream, local, _)| stream.is_at_mark(local))
    })
}

// ---- SIGURG ----

/// Who gets the signals of a socket: a process, a thread, or (negative) a process group. fcntl(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    pub id: i32,
    pub is_thread: bool,
}

/// `F_SETOWN`, `F_SETOWN_EX`, `SIOCSPGRP`.
pub fn set_owner(object: u32, owner: Owner) -> Result<(), Errno> {
    if owner.id != 0 {
        count_system_call();
        // SAFETY: numbers only. Signal 0 looks whether there is somebody.
        if unsafe { libc::kill(owner.id, 0) } < 0 && crate::wait::last_errno() != Errno::EPERM {
            return Err(crate::wait::last_errno());
        }
    }
    STATE.with(|state| {
        let Some(entry) = state.objects.get_mut(object) else { return Err(Errno::EBADF) };
        entry.owner = owner;
        state.owned.retain(|owned| *owned != object);
        if owner.id != 0 {
            state.owned.push(object);
        }
        state.restore_bell(object);
        Ok(())
    })?;
    if owner.id != 0 {
        watch();
    }
    Ok(())
}

/// `F_GETOWN`, `F_GETOWN_EX`, `SIOCGPGRP`.
pub fn owner(object: u32) -> Owner {
    STATE.with(|state| state.objects.get(object).map_or(Owner::default(), |entry| entry.owner))
}

/// There are signals to raise.
static DUE: AtomicBool = AtomicBool::new(false);
/// The thread that waits for urgent octets is there.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// Signals that were sent to this process.
static SENT: AtomicU32 = AtomicU32::new(0);

/// How many signals were sent so far: see [`interrupts`].
pub fn sent() -> u32 {
    SENT.load(Ordering::Relaxed)
}

/// Whether a signal was sent to this process since `before`, which is brought up to date, and this thread has got it: a call that
/// sleeps is interrupted, though the signal may have come at another moment.
pub fn interrupts(before: &mut u32) -> bool {
    // SAFETY: no arguments.
    std::mem::replace(before, sent()) != *before && unsafe { libc::gettid() == libc::getpid() }
}

/// Raises what is due. Not under the lock.
#[inline]
pub fn raise_if_due() {
    if DUE.load(Ordering::Relaxed) {
        raise();
    }
}

#[cold]
fn raise() {
    // SAFETY: no arguments.
    if unsafe { libc::gettid() == libc::getpid() } {
        for owner in STATE.with(State::take_signals) {
            // Handlers run before the call returns: here, without the lock.
            send(owner);
        }
        return;
    }
    // The main thread gets a signal to the process. While the lock is held here it does not hold it; and it does not take it either
    // before the handler, because that runs as soon as the signal is not pending any more.
    let held = hold_signals();
    STATE.acquire();
    // SAFETY: the lock was just taken.
    for owner in unsafe { STATE.held() }.take_signals() {
        send(owner);
        for _ in 0..DELIVERY_LOOKS {
            if pending_signals() & 1 << (libc::SIGURG - 1) == 0 {
                break;
            }
            atoll_sys::sched::yield_now();
        }
    }
    STATE.release();
    release_signals(held);
}

/// How often to look whether a signal was delivered. A thread that runs elsewhere is interrupted within microseconds, one that does not
/// run has its handler before anything else; threads that all block it may wait for it as long as they like.
const DELIVERY_LOOKS: u32 = 10_000;

fn send(owner: Owner) {
    count_system_call();
    // SAFETY: numbers only.
    unsafe {
        if owner.is_thread {
            libc::syscall(libc::SYS_tkill, owner.id, libc::SIGURG);
        } else {
            libc::kill(owner.id, libc::SIGURG);
        }
    }
}

/// Starts the thread that waits for urgent octets, once. Without it (no memory, say) those that call hear of them.
fn watch() {
    if WATCHED.swap(true, Ordering::Relaxed) {
        return;
    }
    // It has no business with signals.
    let held = hold_signals();
    let started = std::thread::Builder::new().name("atoll-urgent".to_owned()).stack_size(128 << 10).spawn(keep_watch);
    release_signals(held);
    if started.is_err() {
        WATCHED.store(false, Ordering::Relaxed);
    }
}

fn keep_watch() {
    let taken = STATE.with(|state| {
        let (waiter, bell) = state.take_waiter()?;
        state.urgent_bell = bell;
        for at in 0..state.owned.len() {
            state.set_bell(state.owned[at], bell);
        }
        Some((waiter, bell))
    });
    let Some((mut waiter, bell)) = taken else { return };
    loop {
        STATE.with(|state| {
            waiter.watch(&state.sessions, 1 << bell);
            state.fall_asleep(1 << bell);
            state.drain();
            state.doze_off();
        });
        let _ = Waiter::sleep(waiter.number(), None, std::ptr::null());
        STATE.with(|state| {
            state.wake_up(1 << bell);
            state.drain();
        });
    }
}

impl State {
    /// The mark of a connection may have moved: its owner hears of it, once.
    pub fn tell_owner(&mut self, object: u32) {
        if !self.owned.contains(&object) {
            return;
        }
        let Some(owner) = self.objects.get(object).map(|entry| entry.owner) else { return };
        let mark = self.stream(object).and_then(|(stream, ..)| stream.slot().mark());
        let Some(Object { told, .. }) = self.objects.get_mut(object) else { return };
        if mark.is_some() && *told != mark {
            *told = mark;
            self.signals.push(owner);
            DUE.store(true, Ordering::Relaxed);
        }
    }

    fn take_signals(&mut self) -> Vec<Owner> {
        DUE.store(false, Ordering::Relaxed);
        // SAFETY: no arguments.
        let own = unsafe { libc::getpid() };
        let count = self.signals.iter().filter(|owner| owner.id == own).count();
        SENT.fetch_add(count as u32, Ordering::Relaxed);
        std::mem::take(&mut self.signals)
    }

    /// After a fork: the owners of what was inherited hear of it from the parent, and its watch is not here.
    pub fn forget_owners(&mut self) {
        self.owned.clear();
        self.signals.clear();
        self.urgent_bell = 0;
        WATCHED.store(false, Ordering::Relaxed);
    }
}

/// The struct of `F_SETOWN_EX`.
#[repr(C)]
pub struct OwnerEx {
    kind: c_int,
    id: c_int,
}

impl OwnerEx {
    /// The owner that a program means.
    pub fn owner(&self) -> Result<Owner, Errno> {
        match self.kind {
            0 | 1 => Ok(Owner { id: self.id, is_thread: self.kind == 0 }),
            2 => Ok(Owner { id: -self.id, is_thread: false }),
            _ => Err(Errno::EINVAL),
        }
    }

    /// What a program is told.
    pub fn of(owner: Owner) -> OwnerEx {
        let kind = if owner.id < 0 { 2 } else { c_int::from(!owner.is_thread) };
        OwnerEx { kind, id: owner.id.abs() }
    }
}
