//! The state of this process besides its sockets: whether it has joined a stack, reserved descriptors, and
//! places to sleep.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use atoll_base::Instant;
use atoll_sockets::Errno;
use atoll_sockets::client::object::Body;
use atoll_sys::Clock;

use crate::confinement::is_confined;
use crate::control::Reason;
use crate::netlink_end::Netlink;
use crate::platform::{Client, Session, StackClock};
use crate::real::{count_system_call, last_errno};
use crate::settings::settings;
use crate::sleepers::Sleepers;
use crate::table::{self, Internal};
use crate::under_way::UnderWay;
use crate::waiter::Waiter;

/// The most descriptor numbers kept for accepted connections.
const SPARE_MAX: usize = 256;

/// The whole state of this process, behind one lock ([`crate::lock`]).
pub struct State {
    /// The sockets and epoll instances, and what is shared with the stack.
    pub client: Client,
    /// Why the stack could not be joined; all sockets are the kernel's then.
    pub refused: Option<Reason>,
    /// The places to sleep that no thread uses, each with its doorbell.
    pub free_waiters: Vec<(Waiter, u32)>,
    /// Descriptor numbers for accepted connections.
    pub reserved: Reserved,
    /// The calls that wait.
    pub under_way: UnderWay,
    /// The threads that sleep in cancellation points.
    pub sleepers: Sleepers,
    /// The AF_NETLINK sockets that this library answers.
    pub netlinks: Vec<Netlink>,
}

/// Descriptor numbers kept for accepted connections.
pub struct Reserved {
    /// The numbers, of which the lowest is taken first.
    numbers: BinaryHeap<Reverse<i32>>,
    /// The kernel's socket that they are duplicates of.
    placeholder: Option<Internal>,
    /// How many are created at once.
    batch: usize,
}

/// Whether the process, or one before it, has changed its view of the file system.
pub static SHUT_IN: AtomicBool = AtomicBool::new(false);

/// The effective user and group, in this order, with which the process has joined its stack; all bits if it
/// has not.
static JOINED_AS: AtomicU64 = AtomicU64::new(u64::MAX);

/// Notes that this process has joined its stack as the user that it is now.
pub fn note_user() {
    JOINED_AS.store(user_now(), Ordering::Relaxed);
}

fn user_now() -> u64 {
    // SAFETY: only ask for numbers.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    u64::from(uid) << 32 | u64::from(gid)
}

fn has_changed_user() -> bool {
    let joined_as = JOINED_AS.load(Ordering::Relaxed);
    joined_as != u64::MAX && joined_as != user_now()
}

/// Returns whether the next program or a child may not be able to connect by itself: it may not see the
/// socket, or be a user who is not let in. It needs no lock, because most programs never need more.
pub fn is_away() -> bool {
    SHUT_IN.load(Ordering::Relaxed) || !settings().sees_socket() || has_changed_user()
}

/// Whether the stack wants to be asked for each connection.
static ASKS: AtomicBool = AtomicBool::new(false);

/// Returns whether this process asks for each connection (P4's naive accept). Relaxed suffices: the flag is
/// set when the process joins its stack, before there is any listener.
#[inline]
pub fn asks() -> bool {
    ASKS.load(Ordering::Relaxed)
}

impl State {
    /// Creates the state of a process that has joined no stack.
    pub const fn new() -> State {
        State {
            client: Client::new(),
            refused: None,
            free_waiters: Vec::new(),
            reserved: Reserved { numbers: BinaryHeap::new(), placeholder: None, batch: 4 },
            under_way: UnderWay::new(),
            sleepers: Sleepers::new(),
            netlinks: Vec::new(),
        }
    }

    /// Returns whether the process has joined its stack; `None` if it has not asked yet. See
    /// [`crate::supervisor::join`].
    pub fn has_joined(&self) -> Option<bool> {
        if self.client.own().is_some() { Some(true) } else { self.refused.map(|_| false) }
    }

    /// Returns how many bytes of address space the arenas take that this process has mapped.
    pub fn mapped(&self) -> u64 {
        self.client.sessions().iter().map(|session| session.arena_bytes() as u64).sum()
    }

    /// Returns the current time, of the stack's clock if there is a stack.
    #[inline]
    pub fn now(&self) -> Instant {
        if self.client.own().is_some() { self.client.now() } else { Clock::kernel().now() }
    }

    /// Returns a place to sleep for the length of a call, with its doorbell; `None` if there are no more
    /// descriptors.
    pub fn take_waiter(&mut self) -> Option<(Waiter, u32)> {
        match self.free_waiters.pop() {
            Some(waiter) if !is_confined() => Some(waiter),
            _ => {
                let bell = self.client.new_bell();
                Some((Waiter::new()?, bell))
            }
        }
    }

    /// Forgets the other threads of this process: the child of a fork has one.
    pub fn forget_threads(&mut self) {
        self.free_waiters.clear();
        self.under_way.clear();
        self.sleepers.clear();
        for object in self.client.indices() {
            if let Some(Body::Epoll(set)) = self.client.object_mut(object).map(|object| &mut object.body) {
                set.kernel.forget_threads();
            }
        }
        self.client.forget_threads();
    }

    /// Drops everything of Atoll in this process, because the stack cannot be joined any more.
    pub fn drop_all(&mut self) {
        for (fd, _) in table::objects_between(0, u32::MAX).collect::<Vec<_>>() {
            table::set_kernel(fd);
        }
        self.client.drop_all();
    }
}

/// Makes a session a process's own. Returns it with its clock and a random seed.
pub fn own(session: Session) -> (Session, StackClock, u64) {
    ASKS.store(session.facts.naive_accept, Ordering::Relaxed);
    let clock = StackClock::of(&session);
    let mut seed = [0; 8];
    let _ = atoll_sys::process::random(&mut seed);
    (session, clock, u64::from_ne_bytes(seed))
}

impl Reserved {
    /// Makes sure that there is a number. If there is none, it creates some, as duplicates of a socket that
    /// is never used, so that fstat(2) reports a socket. `like` is any socket. Fails if no descriptor can be
    /// created.
    pub fn refill(&mut self, like: i32) -> Result<(), Errno> {
        if !self.numbers.is_empty() {
            return Ok(());
        }
        if self.placeholder.is_none() {
            let fd = table::duplicate(like, 3);
            if fd < 0 {
                return Err(last_errno());
            }
            // SAFETY: just created, owned by nobody else.
            self.placeholder = Some(Internal::new(unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }));
        }
        let Some(placeholder) = self.placeholder.as_ref().map(Internal::number) else {
            return Err(Errno::EMFILE);
        };
        for _ in 0..self.batch {
            count_system_call();
            let fd = table::duplicate(placeholder, 3);
            if fd < 0 {
                break;
            }
            if (fd as usize) < table::FDS_MAX {
                table::set_spare(fd);
                self.numbers.push(Reverse(fd));
            } else {
                table::close(fd);
            }
        }
        self.batch = (self.batch * 2).min(64);
        if self.numbers.is_empty() { Err(last_errno()) } else { Ok(()) }
    }

    /// Takes the lowest number.
    pub fn take(&mut self) -> Option<i32> {
        self.numbers.pop().map(|Reverse(fd)| fd)
    }

    /// Keeps the number that a connection had. Returns false if there are enough.
    pub fn put(&mut self, fd: i32) -> bool {
        if self.numbers.len() >= SPARE_MAX {
            return false;
        }
        table::set_spare(fd);
        self.numbers.push(Reverse(fd));
        true
    }

    /// Forgets a number, because the program uses it itself.
    pub fn give_up(&mut self, fd: i32) {
        self.numbers.retain(|reserved| reserved.0 != fd);
    }
}
