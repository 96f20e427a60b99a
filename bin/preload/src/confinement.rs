//! Whether this process has forbidden itself system calls: seccomp(2).
//!
//! What its filter lets through is its own business, and a call that it does not let through ends the
//! process, or the program is told of it. So a confined process makes none that a program which reads and
//! writes sockets does not make anyway: it does not wait on doorbells (epoll), and looks at its sockets every
//! millisecond instead.

use std::sync::atomic::{AtomicBool, Ordering};

use atoll_base::Duration;

/// How often a confined process that waits looks whether there is something.
pub const EVERY: Duration = Duration::from_millis(1);

static IS_CONFINED: AtomicBool = AtomicBool::new(false);

/// Returns whether this process has installed a filter for system calls, or its parent had when it forked.
pub fn is_confined() -> bool {
    IS_CONFINED.load(Ordering::Relaxed)
}

/// Notes that this process has installed a filter for system calls.
pub fn confine() {
    IS_CONFINED.store(true, Ordering::Relaxed);
}
