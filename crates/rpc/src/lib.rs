//! Lets a server answer, and ask, other servers without ever blocking: a dispatcher over channels, and
//! microthreads (P3).
//!
//! This crate is on storey 2: it uses no clock, no thread and no system call. Time is an argument, and the
//! same calls at the same times in the same order have the same effects.
//!
//! ```text
//!   channel of each peer --> Dispatcher::turn --> handler of the message's kind: fn(&mut State, Incoming)
//!                               |                     Notice: nothing else
//!                               |                     Answer: returns the reply
//!                               |                     Thread: starts a microthread, which may call others
//!                               |                             and replies when it can
//!                               +--> a reply wakes the microthread that waits in CallRouter::call(..).await
//!   channel of each peer <-- Dispatcher::publish, once per batch
//! ```
//!
//! A microthread is a future: a state machine without a stack of its own, kept in a slot that is used again.
//! Nothing is allocated for a message, a call or a microthread once there were as many at a time before.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod calls;
mod dispatcher;
mod line;
mod router;
mod threads;

pub use dispatcher::{Dispatcher, Handler, Limits};
pub use line::{Counts, Incoming, PeerId, SendError};
pub use router::{Call, CallRouter, Yield};
pub use threads::{ThreadId, Threads, TooMany};

pub use calls::CallError;
