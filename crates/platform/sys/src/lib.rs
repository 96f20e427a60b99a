//! Every system call that the project makes, as small safe functions that return `io::Result` or a RAII type.
//!
//! This crate is on storey 4, where `unsafe` is allowed. Calls go through rustix's `linux_raw` backend
//! wherever it has them: those are plain `syscall` instructions, so that the preload library can use this
//! crate without running into its own interposers. The exceptions are [`process`] (posix_spawn), [`signal`],
//! [`sched::set_policy`], [`heap`], [`users`] (getpwnam_r and others), [`Gather`], [`unix::Channel`],
//! [`Views`] and [`ending`] (`syscall(2)`), [`Mapping`] and [`unix::Channel`] where programs wait for them
//! often ([`instruction`]), the `netlink` module, `filesystem` and `seccomp`, which
//! serve servers only, and whatever the standard library does to drop an `OwnedFd` (`close`).
//!
//! # Invariants that the `unsafe` blocks rely on
//! 1. A [`Mapping`] covers `[as_ptr(), as_ptr() + len())` from construction to drop, and the file behind it
//!    is sealed against shrinking, or a file of [`Views`] that only the supervisor and the server of a page
//!    could cut, so that an access in range cannot raise SIGBUS because another process truncated the file.
//! 2. Mapped memory is shared with processes that are not trusted: this crate hands out raw pointers and lets
//!    the kernel read (`Gather`), but never makes a reference to it.
//! 3. A [`Gather`] borrows every slice and mapping it points into, so its parts are readable while it lives.
//! 4. A descriptor number becomes an `OwnedFd` only when the kernel has just created it for this process, or
//!    once per process in [`process::take_inherited`].

mod clock;
pub mod ending;
pub mod epoll;
pub mod eventfd;
#[cfg(feature = "privileges")]
pub mod filesystem;
pub mod futex;
mod gather;
pub mod heap;
pub mod instruction;
pub mod interception;
pub mod internet;
mod memfd;
#[cfg(feature = "netlink")]
pub mod netlink;
pub mod netns;
#[cfg(feature = "privileges")]
pub mod privileges;
pub mod process;
pub mod program;
pub mod sched;
#[cfg(feature = "privileges")]
pub mod seccomp;
pub mod signal;
pub mod stderr;
pub mod timer;
pub mod unix;
pub mod users;
mod views;

pub use clock::{Calibration, Clock, processor_time, time_of_day};
pub use gather::{Gather, GatherError, PARTS_MAX};
pub use memfd::{Access, Mapping, OutOfBounds, Prefault, create_memfd, page_size};
pub use views::{View, Views};
