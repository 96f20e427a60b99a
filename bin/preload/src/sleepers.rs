//! The threads that sleep in cancellation points, and those that are to be cancelled:
//! [`crate::cancellation`].

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use atoll_sockets::Errno;
use atoll_sys::eventfd;
use libc::pthread_t;

use crate::beyond::with_room;
use crate::real::sys;
use crate::table::Internal;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// PTHREAD_CANCEL_ENABLE of the C library.
const ENABLE: c_int = 0;
/// PTHREAD_CANCEL_DISABLE.
const DISABLE: c_int = 1;

/// This is no errno, but ends a call of a thread that is to be cancelled.
pub const CANCELLED: Errno = Errno(-2);

/// The data of a descriptor whose only purpose is to wake threads that sleep in an epoll instance, which may
/// be the program's own.
pub const WAKE_TOKEN: u64 = 0xa701_1be1_1a70_11be;

/// The number of threads for which a request has come.
static REQUESTS: AtomicUsize = AtomicUsize::new(0);

/// Returns whether threads are to be cancelled that do not know it yet.
pub fn has_requests() -> bool {
    REQUESTS.load(Ordering::Relaxed) > 0
}

/// The threads that sleep in a cancellation point, and those that are to be cancelled.
#[derive(Debug)]
pub struct Sleepers {
    /// Each thread with the epoll instance in which it sleeps.
    asleep: Vec<(pthread_t, c_int)>,
    /// The threads for which a request has come that they have not met yet. Some may have ended.
    requested: Vec<pthread_t>,
    /// A descriptor that is always readable, as doorbells are.
    ready: Option<Internal>,
}

impl Sleepers {
    /// Creates the sleepers of a process of which no thread sleeps.
    pub const fn new() -> Sleepers {
        Sleepers { asleep: Vec::new(), requested: Vec::new(), ready: None }
    }

    /// Returns whether the running thread is to be cancelled now: its call ends with [`CANCELLED`].
    pub fn is_requested(&mut self) -> bool {
        if self.requested.is_empty() || !is_enabled() {
            return false;
        }
        self.forget_request()
    }

    /// Notes that the running thread sleeps in an epoll instance.
    pub fn enter(&mut self, epoll: c_int) {
        self.asleep.push((this_thread(), epoll));
    }

    /// Notes that the running thread, which slept in an epoll instance, is awake.
    pub fn leave(&mut self, epoll: c_int) {
        let this = (this_thread(), epoll);
        if let Some(at) = self.asleep.iter().rposition(|sleeper| *sleeper == this) {
            self.asleep.swap_remove(at);
        }
        if let (Some(ready), true) = (&self.ready, self.requested.contains(&this.0)) {
            change(epoll, libc::EPOLL_CTL_DEL, ready);
        }
    }

    /// Forgets the other threads, and requests: the child of a fork has one thread.
    pub fn clear(&mut self) {
        *self = Sleepers::new();
        REQUESTS.store(0, Ordering::Relaxed);
    }

    /// Notes that a thread is to be cancelled, and wakes it.
    pub fn request(&mut self, thread: pthread_t) {
        if !self.requested.contains(&thread) {
            self.requested.push(thread);
            REQUESTS.store(self.requested.len(), Ordering::Relaxed);
        }
        let mut places = self.asleep.iter().filter(|sleeper| sleeper.0 == thread).peekable();
        if places.peek().is_none() {
            return;
        }
        if self.ready.is_none() {
            self.ready = with_room(|room| eventfd::create().ok().map(|fd| room.keep(fd)));
        }
        if let Some(ready) = &self.ready {
            places.for_each(|(_, epoll)| change(*epoll, libc::EPOLL_CTL_ADD, ready));
        }
    }

    /// Forgets the request for the running thread. Returns whether there was one.
    pub fn forget_request(&mut self) -> bool {
        let this = this_thread();
        let before = self.requested.len();
        self.requested.retain(|thread| *thread != this);
        REQUESTS.store(self.requested.len(), Ordering::Relaxed);
        self.requested.len() < before
    }
}

fn change(epoll: c_int, operation: c_int, ready: &Internal) {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: WAKE_TOKEN };
    // SAFETY: numbers and a valid event.
    unsafe { sys!(libc::SYS_epoll_ctl, epoll, operation, ready.number(), &raw mut event) };
}

fn this_thread() -> pthread_t {
    // SAFETY: no arguments.
    unsafe { libc::pthread_self() }
}

/// Returns whether this thread may be cancelled: pthread_setcancelstate(3). Its type is deferred.
fn is_enabled() -> bool {
    let mut state = DISABLE;
    // SAFETY: a valid place for a number.
    unsafe {
        pthread_setcancelstate(DISABLE, &raw mut state);
        pthread_setcancelstate(state, std::ptr::null_mut());
    }
    state == ENABLE
}
