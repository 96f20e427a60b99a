//! The state of this process besides its sockets: whether it has joined a stack, numbers for connections, and
//! places to sleep.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use atoll_base::{Duration, Instant};
use atoll_sockets::Errno;
use atoll_sockets::client::object::Body;
use atoll_sys::Clock;

use crate::beyond::with_room;
use crate::confinement::is_confined;
use crate::control::Reason;
use crate::dispatch;
use crate::hang_up;
use crate::netlink_end::Netlink;
use crate::platform::{Client, Session, StackClock};
use crate::real::{count_system_call, kernel_socket, last_errno};
use crate::settings::settings;
use crate::sleepers::Sleepers;
use crate::table::reserved;
use crate::table::{self, Fd, Internal};
use crate::waiter::Waiter;

/// The whole state of this process, behind one lock ([`crate::lock`]).
pub struct State {
    /// The sockets and epoll instances, and what is shared with the stack.
    pub client: Client,
    /// Why the stack could not be joined; all sockets are the kernel's then.
    pub refused: Option<Reason>,
    /// The places to sleep that no thread uses, each with its doorbell.
    pub free_waiters: Vec<(Waiter, u32)>,
    /// The kernel's socket of which the descriptors of accepted connections are duplicates. It is never used;
    /// fstat(2) reports a socket, and close(2) costs little.
    placeholder: Option<Internal>,
    /// The numbers of threads that wait in accept(2), which have them before there is a connection.
    promised: Vec<i32>,
    /// The threads that sleep in cancellation points.
    pub sleepers: Sleepers,
    /// The AF_NETLINK sockets that this library answers.
    pub netlinks: Vec<Netlink>,
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
            placeholder: None,
            promised: Vec::new(),
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

    /// Returns how long a thread that has `left` (`None`: for ever) may sleep until there is something to do
    /// that nobody rings for.
    pub fn nap(&self, left: Option<Duration>) -> Option<Duration> {
        hang_up::nap(self.client.nap(left))
    }

    /// Returns a place to sleep for the length of a call, with its doorbell.
    pub fn take_waiter(&mut self) -> (Waiter, u32) {
        match self.free_waiters.pop() {
            Some(waiter) if !is_confined() => waiter,
            _ => (Waiter::new(), self.client.new_bell()),
        }
    }

    /// Takes a place to sleep back, for the next call.
    pub fn put_waiter(&mut self, waiter: (Waiter, u32)) {
        if waiter.0.is_lasting() {
            self.free_waiters.push(waiter);
        }
    }

    /// Takes the lowest free number for a connection of the listener `listener`; fails with EMFILE where
    /// accept(2) does.
    pub fn take_number(&mut self, listener: i32) -> Result<i32, Errno> {
        if let Some(fd) = reserved::take() {
            return Ok(fd);
        }
        if self.placeholder.is_none() {
            self.placeholder = Some(placeholder(listener)?);
        }
        let placeholder = self.placeholder.as_ref().map_or(listener, Internal::number);
        count_system_call();
        let mut fd = reserved::lowest(|| table::duplicate(placeholder, 0));
        if fd < 0 && reserved::give_back() {
            fd = reserved::lowest(|| table::duplicate(placeholder, 0));
        }
        match fd {
            ..0 => Err(last_errno()),
            _ if fd as usize >= table::FDS_MAX => {
                table::close(fd);
                Err(Errno::EMFILE)
            }
            _ => Ok(fd),
        }
    }

    /// Takes the lowest free number for a call that waits for a connection of `listener`. Others than that
    /// call cannot use it.
    pub fn promise_number(&mut self, listener: i32) -> Result<i32, Errno> {
        let fd = self.take_number(listener)?;
        table::set_hidden(fd);
        self.promised.push(fd);
        Ok(fd)
    }

    /// Ends what [`State::promise_number`] began. The number is free if no connection has it.
    pub fn end_promise(&mut self, fd: i32) {
        self.promised.retain(|promised| *promised != fd);
        if table::lookup(fd) == Fd::Hidden {
            put_number(fd);
        }
    }

    /// Forgets the other threads of this process: the child of a fork has one.
    pub fn forget_threads(&mut self) {
        std::mem::take(&mut self.promised).into_iter().for_each(put_number);
        self.free_waiters.clear();
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
    if let Some(replica) = session.replicas().first() {
        replica.port().set_interception(dispatch::interception() as u8);
    }
    let mut seed = [0; 8];
    let _ = atoll_sys::process::random(&mut seed);
    (session, clock, u64::from_ne_bytes(seed))
}

/// Creates the kernel's socket that is behind accepted connections. In a process that has forbidden itself
/// system calls it is the socket `like`, which costs no socket(2).
fn placeholder(like: i32) -> Result<Internal, Errno> {
    with_room(|room| {
        let fd = match is_confined() {
            true => table::duplicate(like, 0),
            false => kernel_socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0),
        };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: just created, owned by nobody else.
        Ok(room.keep(unsafe { OwnedFd::from_raw_fd(fd) }))
    })
}

/// Gives a number back that was taken for a connection which did not come.
pub fn put_number(fd: i32) {
    table::set_kernel(fd);
    count_system_call();
    table::close(fd);
    reserved::note_free(fd);
}
