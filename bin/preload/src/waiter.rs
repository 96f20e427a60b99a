//! Where does a thread sleep? In an epoll instance that holds doorbells.
//!
//! A doorbell is an eventfd that replicas ring (`atoll_sys::eventfd`) while its sleep word is odd. Sleepers
//! watch it edge-triggered, each in an epoll instance of its own, so that no sleeper touches it and all that
//! share a doorbell wake together.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use atoll_base::Duration;
use atoll_sockets::Errno;
use atoll_sockets::client::platform::Platform;
use atoll_sockets::client::session::Session;
use atoll_sys::epoll::Epoll;
use atoll_sys::eventfd;

use crate::real::{count_system_call, last_errno, sys};
use crate::table::Internal;

/// A place to sleep: an epoll instance with doorbells in it.
#[derive(Debug)]
pub struct Waiter {
    epoll: Internal,
    /// Doorbells of each session (by number) that are in the instance.
    known: Vec<(u32, u16)>,
}

/// Token of a doorbell; tokens of other members are below.
const BELL_TOKEN: u64 = u64::MAX;

impl Waiter {
    /// Creates a place to sleep that knows no doorbell yet. `None`: there are no more descriptors.
    pub fn new() -> Option<Waiter> {
        let epoll = Epoll::new().ok()?;
        let number = epoll.as_fd().as_raw_fd();
        std::mem::forget(epoll);
        // SAFETY: just created, and forgotten by its first owner.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        Some(Waiter { epoll: Internal::new(fd), known: Vec::new() })
    }

    /// The number of the epoll instance.
    pub fn number(&self) -> i32 {
        self.epoll.number()
    }

    /// Adds a descriptor of the kernel, level-triggered.
    pub fn add(&self, fd: i32, token: u64) {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        // SAFETY: two numbers and a valid event.
        unsafe { sys!(libc::SYS_epoll_ctl, self.number(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    }

    /// Makes sure that `bells` of all sessions are in the instance; of shared ones, the family's doorbell as
    /// well.
    pub fn watch<P: Platform<Bell = Internal>>(&mut self, sessions: &[Session<P>], bells: u16) {
        for session in sessions {
            let wanted = bells | u16::from(session.shared);
            let at = self.known.iter().position(|(id, _)| *id == session.id);
            let known = at.map_or(0, |at| self.known[at].1);
            for (bell, fd) in session.bells().iter().enumerate() {
                if (wanted & !known) >> bell & 1 == 1 {
                    let mut event = libc::epoll_event { events: eventfd::WATCHED.bits(), u64: BELL_TOKEN };
                    // SAFETY: two numbers and a valid event.
                    unsafe {
                        sys!(libc::SYS_epoll_ctl, self.number(), libc::EPOLL_CTL_ADD, fd.number(), &raw mut event)
                    };
                }
            }
            match at {
                Some(at) => self.known[at].1 |= wanted,
                None => self.known.push((session.id, wanted)),
            }
        }
    }

    /// Sleeps. Returns whether the member with `token` 0 is ready, or EINTR.
    pub fn sleep(epoll: i32, left: Option<Duration>, mask: *const libc::sigset_t) -> Result<bool, Errno> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        let millis = left.map_or(-1, |left| i32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
        count_system_call();
        // SAFETY: room for as many events as are told; the mask is null or the program's. 8: size of the
        // kernel's signal set.
        let count = unsafe { sys!(libc::SYS_epoll_pwait, epoll, events.as_mut_ptr(), events.len(), millis, mask, 8) };
        if count < 0 {
            return Err(last_errno());
        }
        Ok(events[..count as usize].iter().any(|event| event.u64 == 0))
    }
}

/// What an epoll instance has besides its Atoll sockets: the kernel's instance behind it, which has the
/// kernel's descriptors.
#[derive(Debug)]
pub struct KernelSet {
    /// The kernel's instance.
    pub fd: i32,
    /// Where `epoll_wait` sleeps: on the doorbells and on the kernel's instance.
    pub waiter: Option<Waiter>,
    /// Whether the kernel's instance may have members.
    pub has_members: bool,
    /// When the kernel's instance was last asked, in nanoseconds.
    pub asked_at: u64,
    /// Calls of `epoll_wait` since.
    pub calls_since: u32,
    /// Threads that sleep in the kernel's instance, because there was nothing else.
    pub sleepers: u32,
    /// The descriptor that wakes those when there is.
    pub interrupt: Option<Internal>,
}

impl KernelSet {
    /// The kernel's instance `fd`, without members.
    pub fn new(fd: i32) -> KernelSet {
        KernelSet { fd, waiter: None, has_members: false, asked_at: 0, calls_since: 0, sleepers: 0, interrupt: None }
    }

    /// The threads that slept in it are gone: the child of a fork has one thread.
    pub fn forget_threads(&mut self) {
        (self.waiter, self.sleepers, self.interrupt) = (None, 0, None);
    }
}
