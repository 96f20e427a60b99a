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

use crate::confinement::{EVERY, is_confined};
use crate::real::{count_system_call, last_errno, sys};
use crate::table::Internal;

/// An epoll instance with doorbells in it, in which a thread sleeps.
#[derive(Debug)]
pub struct Waiter {
    /// The instance; `None` in a confined process, which looks again and again instead of sleeping.
    epoll: Option<Internal>,
    /// The doorbells of each session (by number) that are in the instance, a bit each.
    known: Vec<(u32, u16)>,
}

/// The token of doorbells; tokens of other members are smaller.
const BELL_TOKEN: u64 = u64::MAX;

impl Waiter {
    /// Creates a place to sleep without doorbells. Returns `None` if there are no more descriptors.
    pub fn new() -> Option<Waiter> {
        if is_confined() {
            return Some(Waiter { epoll: None, known: Vec::new() });
        }
        let epoll = Epoll::new().ok()?;
        let number = epoll.as_fd().as_raw_fd();
        std::mem::forget(epoll);
        // SAFETY: just created, and forgotten by its first owner.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        Some(Waiter { epoll: Some(Internal::new(fd)), known: Vec::new() })
    }

    /// Returns the descriptor number of the epoll instance; -1 if there is none.
    pub fn number(&self) -> i32 {
        self.epoll.as_ref().map_or(-1, Internal::number)
    }

    /// Adds a descriptor of the kernel, level-triggered.
    pub fn add(&self, fd: i32, token: u64) {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        // SAFETY: two numbers and a valid event.
        unsafe { sys!(libc::SYS_epoll_ctl, self.number(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    }

    /// Makes sure that `bells` of all sessions are in the instance, and the family's doorbell of shared
    /// sessions.
    pub fn watch<P: Platform<Bell = Internal>>(&mut self, sessions: &[Session<P>], bells: u16) {
        if self.epoll.is_none() {
            return;
        }
        for session in sessions {
            let wanted = bells | u16::from(session.shared);
            let at = self.known.iter().position(|(id, _)| *id == session.id);
            let known = at.map_or(0, |at| self.known[at].1);
            for (bell, fd) in session.bells().iter().enumerate() {
                if (wanted & !known) >> bell & 1 == 1 {
                    let mut event = libc::epoll_event { events: eventfd::WATCHED.bits(), u64: BELL_TOKEN };
                    // SAFETY: two numbers and a valid event.
                    unsafe {
                        sys!(
                            libc::SYS_epoll_ctl,
                            self.number(),
                            libc::EPOLL_CTL_ADD,
                            fd.number(),
                            &raw mut event
                        )
                    };
                }
            }
            match at {
                Some(at) => self.known[at].1 |= wanted,
                None => self.known.push((session.id, wanted)),
            }
        }
    }

    /// Sleeps in the instance `epoll`, or, if that is -1, until it is time to look again. Returns whether the
    /// member with `token` 0 is ready; fails with EINTR if a signal came.
    pub fn sleep(epoll: i32, left: Option<Duration>, mask: *const libc::sigset_t) -> Result<bool, Errno> {
        if epoll < 0 {
            return sleep_until_next_look(left, mask).map(|()| false);
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
        Ok(events[..count as usize].iter().any(|event| event.u64 == 0))
    }
}

/// Sleeps until it is time to look again, `left` at most. Fails with EINTR if a signal came.
fn sleep_until_next_look(left: Option<Duration>, mask: *const libc::sigset_t) -> Result<(), Errno> {
    let nap = left.map_or(EVERY, |left| left.min(EVERY));
    let time = libc::timespec { tv_sec: 0, tv_nsec: nap.subsec_nanos().into() };
    count_system_call();
    // SAFETY: no entries, a valid time, and the mask, which is null or the program's. 8: size of the kernel's
    // signal set.
    let result =
        unsafe { sys!(libc::SYS_ppoll, std::ptr::null::<libc::pollfd>(), 0, &raw const time, mask, 8) };
    if result < 0 { Err(last_errno()) } else { Ok(()) }
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
            asked_at: 0,
            calls_since: 0,
            sleepers: 0,
            interrupt: None,
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
