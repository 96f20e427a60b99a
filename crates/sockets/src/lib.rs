//! POSIX socket semantics without system calls: what a call on a socket does to the socket's slot, and what
//! it returns.
//!
//! This crate belongs to storey 3. Everything here runs on [`atoll_ipc::Memory`]; nothing blocks, and nothing
//! allocates per call. Operations finish, fail with an [`Errno`], or report that they would block;
//! `bin/preload` does the waiting.
//!
//! * [`client`]: everything that one process knows of its sockets
//! * [`port`]: the library's side of one session arena: commands out, events in, slots, send buffers
//! * [`stream`]: receive, send, shutdown and readiness of a connection
//! * [`urgent`]: urgent octets of a connection, and where reading stops
//! * [`ancillary`]: the control messages of datagrams
//! * [`copies`]: the completions of sends with MSG_ZEROCOPY
//! * [`datagram`]: receive, send and readiness of a datagram socket
//! * [`listener`]: connections on offer, and the claim (P4)
//! * [`asking`]: connections for applications that ask for each one (P4's naive accept)
//! * [`stamps`]: the times of datagrams (`SO_TIMESTAMP`)
//! * [`options`]: the table of socket options, and the values of one socket
//! * [`tcp_info`]: the octets of `TCP_INFO`
//! * [`watch`]: interest lists and ready lists of epoll
//! * [`view`]: the interfaces, addresses, routes and sockets of the stack in the kernel's formats
//! * [`errno`]: the errno of each cause of failure
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod ancillary;
pub mod asking;
pub mod client;
pub mod copies;
pub mod datagram;
pub mod errno;
pub mod listener;
pub mod options;
pub mod outbox;
pub mod port;
pub mod stamps;
pub mod stream;
pub mod tcp_info;
#[cfg(test)]
mod testing;
pub mod urgent;
pub mod view;
pub mod watch;

pub use errno::{Errno, Failure};
