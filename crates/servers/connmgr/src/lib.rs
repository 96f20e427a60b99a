//! The connection manager (CM, P1): who may use a port, who listens, who accepts, and which acceptor gets a connection.
//!
//! Sans-IO: requests go in as calls, answers come back as values. It names connections by numbers that it does not interpret, and
//! knows nothing of TCP; the transport server does what it decides. The calls are the messages that components in separate
//! processes will exchange.
//!
//! Survives no crash: leases and listeners are registered again by the libraries that hold them.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod leases;
mod listeners;

pub use leases::{BindRequest, Leases};
pub use listeners::{Established, ListenRequest, Listener, Listeners, Refused};
