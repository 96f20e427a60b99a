//! The place where a thread sleeps: an epoll instance that holds doorbells.
//!
//! A doorbell is an eventfd that replicas ring (`atoll_sys::eventfd`) while its sleep word is odd. Sleepers
//! watch it edge-triggered, each in an epoll instance of its own. So no sleeper changes its state, and all
//! that share a doorbell wake together.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use atoll_base::Duration;
use atoll_sockets::Errno;
use atoll_sockets::client::platform::Platform;
use atoll_sockets::client::session::Session;
use atoll_sys::epoll::Epoll;
use atoll_sys::eventfd;

use crate::beyond::with_room;
use crate::confinement::{EVERY, is_confined};
use crate::hang_up;
use crate::real::{count_system_call, last_errno, sys};
use crate::table::Internal;
use crate::table::reserved;

/// An epoll instance with doorbells in it, in which a thread sleeps.
#[derive(Debug)]
pub struct Waiter {
    /// The instance; `None` in a process that is confined, or may open no more descriptors: it looks again
    /// and again instead of sleeping.
    epoll: Option<Internal>,
    /// The doorbells of each session (by key) that are in the instance, a bit each.
    known: Vec<(u64, u16)>,
    /// The number of the connection to the supervisor that is in the instance; 0 if none is.
    connection: u32,
}

/// The token of doorbells; tokens of other members are smaller.
const BELL_TOKEN: u64 = u64::MAX;
/// The token of the connection to the supervisor, whose hang-up means that the stack is gone.
const CONNECTION_TOKEN: u64 = u64::MAX - 1;

impl Waiter {
    /// Creates a place to sleep without doorbells. If there are no more descriptors, its sleeper looks again
    /// and again, as one in a confined process does.
    pub fn new() -> Waiter {
        if is_confined() {
            return Waiter { epoll: None, known: Vec::new(), connection: 0 };
        }
        let epoll = with_room(|room| {
            let epoll = Epoll::new().ok()?;
            let number = epoll.as_fd().as_raw_fd();
            std::mem::forget(epoll);
            // SAFETY: just created, and forgotten by its first owner.
            Some(room.keep(unsafe { OwnedFd::from_raw_fd(number) }))
        });
        Waiter { epoll, known: Vec::new(), connection: 0 }
    }

    /// Returns whether another call may sleep here.
    pub fn is_lasting(&self) -> bool {
        self.epoll.is_some() || is_confined()
    }

    /// Returns the descriptor number of the epoll instance; -1 if there is none.
    pub fn number(&self) -> i32 {
        self.epoll.as_ref().map_or(-1, Internal::number)
    }

    /// Adds a descriptor of the kernel, level-triggered.
    pub fn add(&self, fd: i32, token: u64) {
        self.add_for(fd, libc::EPOLLIN as u32, token);
    }

    fn add_for(&self, fd: i32, events: u32, token: u64) {
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: two numbers and a valid event.
        unsafe { sys!(libc::SYS_epoll_ctl, self.number(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    }

    /// Makes sure that `bells` of all sessions are in the instance, and the family's doorbell of shared
    /// sessions; and the connection to the supervisor, for its hang-up alone.
    pub fn watch<P: Platform<Bell = Internal>>(&mut self, sessions: &[Session<P>], bells: u16) {
        if self.epoll.is_none() {
            return;
        }
        if let Some((fd, number)) = hang_up::connection()
            && number != self.connection
        {
            self.connection = number;
            // The descriptors of sessions before are closed, and out of the instance.
            self.known.retain(|(key, _)| sessions.iter().any(|session| session.key == *key));
            self.add_for(fd, libc::EPOLLET as u32, CONNECTION_TOKEN);
        }
        for session in sessions {
            let wanted = bells | u16::from(session.shared);
            let at = self.known.iter().position(|(key, _)| *key == session.key);
            let known = at.map_or(0, |at| self.known[at].1);
            for (bell, fd) in session.bells().iter().enumerate() {
                if (wanted & !known) >> bell & 1 == 1 {
                    self.add_for(fd.number(), eventfd::WATCHED.bits(), BELL_TOKEN);
                }
            }
            match at {
                Some(at) => self.known[at].1 |= wanted,
                None => self.known.push((session.key, wanted)),
            }
        }
    }

    /// Sleeps in the instance `epoll`, or, if that is -1, until it is time to look again. Returns whether the
    /// member with `token` 0 is ready; fails with EINTR if a signal came.
    pub fn sleep(epoll: i32, left: Option<Duration>, mask: *const libc::sigset_t) -> Result<bool, Errno> {
        Waiter::sleep_beside(epoll, -1, left, mask)
    }

    /// Sleeps as [`Waiter::sleep`] does. `member` is the descriptor of the member with `token` 0, which is
    /// watched also where there is no instance; -1 if there is none.
    pub fn sleep_beside(
        epoll: i32,
        member: i32,
        left: Option<Duration>,
        mask: *const libc::sigset_t,
    ) -> Result<bool, Errno> {
        reserved::before_sleep();
        if epoll < 0 {
            return sleep_until_next_look(member, left, mask);
        }
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        let millis =
            left.map_or(-1, |left| i32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
        count_system_call();
        // SAFETY: room for as many events as are told; the mask is null or the program's. 8: size of the
        // kernel's signal set.
        let count =
            unsafe { sys!(libc::SYS_epoll_pwait, epoll, events.as_mut_ptr(), events.len(), millis, mask, 8) };
        if count < 0 {
            return Err(last_errno());
        }
        let events = &events[..count as usize];
        if events.iter().any(|event| event.u64 == CONNECTION_TOKEN) {
            hang_up::note_hang_up();
        }
        Ok(events.iter().any(|event| event.u64 == 0))
    }
}

/// Sleeps until it is time to look again, `left` at most, or `member` is ready. Returns whether it is; fails
/// with EINTR if a signal came.
fn sleep_until_next_look(
    member: i32,
    left: Option<Duration>,
    mask: *const libc::sigset_t,
) -> Result<bool, Errno> {
    let nap = left.map_or(EVERY, |left| left.min(EVERY));
    let time = libc::timespec { tv_sec: 0, tv_nsec: nap.subsec_nanos().into() };
    let mut entry = libc::pollfd { fd: member, events: libc::POLLIN, revents: 0 };
    count_system_call();
    // ppoll(2) refuses more entries than RLIMIT_NOFILE allows descriptors, which may be 0.
    let entries = usize::from(member >= 0);
    // SAFETY: one entry or none, a valid time, and the mask, which is null or the program's. 8: size of the
    // kernel's signal set.
    let result = unsafe { sys!(libc::SYS_ppoll, &raw mut entry, entries, &raw const time, mask, 8) };
    hang_up::after_nothing();
    if result < 0 { Err(last_errno()) } else { Ok(result > 0) }
}

/// The part of an epoll instance beside its Atoll sockets: the kernel's instance, which has the kernel's
/// descriptors.
#[derive(Debug)]
pub struct KernelSet {
    /// The descriptor of the kernel's instance.
    pub fd: i32,
    /// The place where `epoll_wait` sleeps, with the doorbells and the kernel's instance.
    pub waiter: Option<Waiter>,
    /// Whether the kernel's instance may have members.
    pub has_members: bool,
    /// How many descriptors were added to the kernel's instance and not deleted: it has no more members.
    pub added: u32,
    /// When the kernel's instance was last asked, in nanoseconds.
    pub asked_at: u64,
    /// The number of calls of `epoll_wait` since then.
    pub calls_since: u32,
    /// The number of threads that sleep in the kernel's instance, because it was all there was.
    pub sleepers: u32,
    /// The descriptor that wakes those threads when an Atoll socket is added.
    pub interrupt: Option<Internal>,
}

impl KernelSet {
    /// Creates the part for the kernel's instance `fd`, which has no members.
    pub fn new(fd: i32) -> KernelSet {
        KernelSet {
            fd,
            waiter: None,
            has_members: false,
            added: 0,
            asked_at: 0,
            calls_since: 0,
            sleepers: 0,
            interrupt: None,
        }
    }

    /// Counts a change of the kernel's instance. One that fails counts too: the number is only a bound.
    pub fn count(&mut self, op: i32) {
        match op {
            libc::EPOLL_CTL_ADD => {
                self.has_members = true;
                self.added += 1;
            }
            libc::EPOLL_CTL_DEL => self.added = self.added.saturating_sub(1),
            _ => {}
        }
    }

    /// Notes that a thread does not sleep in the kernel's instance any more.
    pub fn leave(&mut self) {
        self.sleepers = self.sleepers.saturating_sub(1);
        if self.sleepers == 0 {
            self.interrupt = None;
        }
    }

    /// Forgets the threads that slept in it: the child of a fork has one thread.
    pub fn forget_threads(&mut self) {
        (self.waiter, self.sleepers, self.interrupt) = (None, 0, None);
    }
}
