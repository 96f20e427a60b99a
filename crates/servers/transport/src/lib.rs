//! The transport server (TS, P1): the connections and datagram sockets of one replica, between frames and applications.
//!
//! Sans-IO: frames, commands and moments go in ([`Transport::handle_frame`], [`Transport::handle_commands`],
//! [`Transport::handle_timers`]); one [`Transport::flush`] per batch sends segments, publishes positions, and pushes events. Nothing
//! leaves before the batch is done.
//!
//! ```text
//!   frame > Ip > flow table > Connection --+                    +--> FrameSink (headers, and text by place in the arena)
//!   command ring > Session > slot ---------+-- touched list --flush--> slots, event rings, bells to ring
//!   wheel ---------------------------------+
//! ```
//!
//! Survives no crash yet: connections of a dead incarnation are lost (what the arenas hold is not, see ARCHITECTURE.md).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod accept;
mod commands;
mod config;
mod connections;
mod control;
mod datagrams;
mod flush;
mod frames;
mod list;
mod ports;
mod session;
mod sink;
mod stats;
mod transport;

pub use config::{Config, Secrets};
pub use list::SocketFacts;
pub use sink::{FrameSink, Offload, TextRef};
pub use transport::Transport;

#[cfg(test)]
mod tests;
