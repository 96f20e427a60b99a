//! Notices that the stack is gone with all of its processes: nobody is left to say so then. The sign is the
//! hang-up of the connection to the supervisor. Its other end is also the guardian's, so it stays open when
//! one of the two dies, and whatever becomes of replicas (`docs/decisions/gone.md`).
//!
//! ```text
//!   a thread sleeps       the connection is in its epoll instance (`waiter`), for its hang-up alone
//!   a thread never does   each 64th call that finds nothing looks; so do calls that need the stack, and fork
//!   nobody calls          nothing is noticed before the next call
//! ```
//! What follows from it is in [`crate::gone`], which this module calls by a pointer: everything that sleeps
//! comes here, and what follows sleeps itself.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use atoll_base::{Duration, Instant};
use atoll_sys::Clock;

use crate::confinement::is_confined;
use crate::real::{count_system_call, sys};

/// How this process stands with its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// The stack is there, as far as this process knows, and has all its sockets.
    Fine = 0,
    /// The connection to the supervisor seems to have hung up.
    HungUp = 1,
    /// The stack is gone.
    Gone = 2,
    /// The process has joined again, and some sockets could not be registered.
    Partly = 3,
}

/// Whether a call needs the stack now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// It waits for something, and can wait for the stack as well.
    None,
    /// It needs the stack.
    Now,
}

static STATUS: AtomicU8 = AtomicU8::new(Status::Fine as u8);
/// The descriptor of the connection that stands for this process; -1 if there is none.
static CONNECTION: AtomicI32 = AtomicI32::new(-1);
/// How many such connections there have been.
static CONNECTIONS: AtomicU32 = AtomicU32::new(0);
/// Whether sockets wait for the stack.
static WAITS: AtomicBool = AtomicBool::new(false);
/// Whether a thread is joining again.
static IS_JOINING: AtomicBool = AtomicBool::new(false);
/// When to try next, in nanoseconds of the kernel's clock.
static TRY_AT: AtomicU64 = AtomicU64::new(0);
/// When the connection was last looked at for a call that needs the stack, in nanoseconds.
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
/// The number of calls that have found nothing.
static FOUND_NOTHING: AtomicU32 = AtomicU32::new(0);
/// What goes on after the end of the stack: the address of a `fn(Demand)`.
static MEND: AtomicUsize = AtomicUsize::new(0);

/// The shortest time that a thread sleeps while sockets wait for the stack.
const NAP_MIN: Duration = Duration::from_millis(10);
/// The time for which a call that needs the stack relies on the last look.
const TRUST: Duration = Duration::from_millis(10);
/// One of so many calls that find nothing looks.
const LOOK_EVERY: u32 = 64;

/// Sets what goes on after the end of the stack. Called once, by the constructor.
pub fn install(mend: fn(Demand)) {
    MEND.store(mend as usize, Ordering::Relaxed);
}

#[cold]
fn mend_now(demand: Demand) {
    let mend = MEND.load(Ordering::Relaxed);
    if mend != 0 {
        // SAFETY: `install` has put the function there.
        let mend: fn(Demand) = unsafe { std::mem::transmute(mend) };
        mend(demand);
    }
}

/// Notes that the connection `fd` stands for this process from now on.
pub fn watch(fd: i32) {
    CONNECTION.store(fd, Ordering::Relaxed);
    CONNECTIONS.fetch_add(1, Ordering::Relaxed);
    set_status(Status::Fine);
}

/// Notes that no connection stands for this process any more.
pub fn watch_nothing() {
    CONNECTION.store(-1, Ordering::Relaxed);
}

/// Returns the descriptor of the connection that stands for this process, with a number that differs for each
/// such connection; `None` if there is no connection.
pub fn connection() -> Option<(i32, u32)> {
    let fd = CONNECTION.load(Ordering::Relaxed);
    (fd >= 0).then(|| (fd, CONNECTIONS.load(Ordering::Relaxed)))
}

/// Returns how this process stands with its stack.
#[inline]
pub fn status() -> Status {
    match STATUS.load(Ordering::Relaxed) {
        0 => Status::Fine,
        1 => Status::HungUp,
        2 => Status::Gone,
        _ => Status::Partly,
    }
}

/// Sets how this process stands with its stack.
pub fn set_status(status: Status) {
    STATUS.store(status as u8, Ordering::Relaxed);
}

/// Notes that the connection seems to have hung up: [`mend`] confirms that.
pub fn note_hang_up() {
    if status() != Status::Gone {
        set_status(Status::HungUp);
    }
}

/// Goes on after the end of the stack, if that was noticed. Called before a call sleeps; the caller holds no
/// lock.
#[inline]
pub fn mend() {
    if status() != Status::Fine {
        mend_now(Demand::None);
    }
}

/// Looks, sometimes, whether the stack is there: a call of a program that never sleeps has found nothing. The
/// caller holds no lock.
#[inline]
pub fn after_nothing() {
    // Two threads may count one call: it does not matter which of them looks.
    let count = FOUND_NOTHING.load(Ordering::Relaxed).wrapping_add(1);
    FOUND_NOTHING.store(count, Ordering::Relaxed);
    if count.is_multiple_of(LOOK_EVERY) {
        look();
    }
}

/// Looks whether the stack is there, and goes on if it is gone. The caller holds no lock.
#[cold]
pub fn look() {
    if connection().is_some_and(|(fd, _)| is_hung_up(fd)) {
        note_hang_up();
    }
    mend();
}

/// Looks whether the stack is there, before a call that needs it: one that is back is joined at once. The
/// caller holds no lock.
pub fn before_use() {
    if status() == Status::Fine {
        let Some((fd, _)) = connection() else { return };
        let now = now();
        if now.since(Instant::from_nanos(LOOKED_AT.load(Ordering::Relaxed))) < TRUST {
            return;
        }
        LOOKED_AT.store(now.as_nanos(), Ordering::Relaxed);
        if !is_hung_up(fd) {
            return;
        }
        note_hang_up();
    }
    mend_now(Demand::Now);
}

/// Looks whether the stack is there before a fork or exec, because what is prepared for the next process
/// needs it. The caller holds no lock.
pub fn before_child() {
    LOOKED_AT.store(0, Ordering::Relaxed);
    before_use();
}

/// Notes how the child of a fork stands, whose threads were left behind.
pub fn begin_child(is_gone: bool, waits: bool) {
    if is_gone {
        watch_nothing();
    }
    let joined = if waits { Status::Partly } else { Status::Fine };
    set_status(if is_gone { Status::Gone } else { joined });
    set_waits(waits);
    IS_JOINING.store(false, Ordering::Relaxed);
}

// ---- joining again ----

/// Sets whether sockets wait for the stack.
pub fn set_waits(waits: bool) {
    WAITS.store(waits, Ordering::Relaxed);
}

/// Returns whether sockets wait for the stack.
pub fn waits() -> bool {
    WAITS.load(Ordering::Relaxed)
}

/// Puts the next attempt to join again off.
pub fn put_off(pause: Duration) {
    TRY_AT.store((now() + pause).as_nanos(), Ordering::Relaxed);
}

/// Returns whether it is time to try again.
pub fn is_due() -> bool {
    now().as_nanos() >= TRY_AT.load(Ordering::Relaxed)
}

/// Begins to join again. Returns false if another thread is about it. The caller calls [`end_joining`].
pub fn begin_joining() -> bool {
    !IS_JOINING.swap(true, Ordering::Acquire)
}

/// Ends what [`begin_joining`] began.
pub fn end_joining() {
    IS_JOINING.store(false, Ordering::Release);
}

/// Returns how long a thread that has `left` (`None`: for ever) may sleep until it is to try to join again.
pub fn nap(left: Option<Duration>) -> Option<Duration> {
    if status() == Status::Fine || !waits() || is_confined() {
        return left;
    }
    let most = Instant::from_nanos(TRY_AT.load(Ordering::Relaxed)).since(now()).max(NAP_MIN);
    Some(left.map_or(most, |left| left.min(most)))
}

fn now() -> Instant {
    Clock::kernel().now()
}

/// Returns whether nobody has the other end of a connection any more.
pub fn is_hung_up(fd: i32) -> bool {
    let mut entry = libc::pollfd { fd, events: 0, revents: 0 };
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    count_system_call();
    // SAFETY: one entry, a valid time, and no mask; 8 is the size of the kernel's signal set.
    let count = unsafe {
        sys!(libc::SYS_ppoll, &raw mut entry, 1, &raw const now, std::ptr::null::<libc::sigset_t>(), 8)
    };
    count > 0 && entry.revents & libc::POLLHUP != 0
}
