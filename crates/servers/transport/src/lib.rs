//! The transport server (TS, P1): the connections and datagram sockets of one replica, between frames and session arenas.
//!
//! Frames, commands and moments go in (`handle_*`); [`Transport::flush`] gives frames out, publishes positions to the
//! applications' slots and says whom to wake. Nothing here makes a system call: arenas are [`atoll_ipc::Memory`], the link is a
//! [`FrameSink`].
//!
//! ```text
//!   frames ----> input --+                      +--> output ----> FrameSink
//!   commands --> commands+--> entry (dirty) ----+--> publish ---> slots, event rings
//!   timers ----> wheel --+        ^             +--> bells
//!                                 |
//!                  accept <--> atoll_connmgr
//! ```
//! Everything that an application or a peer causes is first done here and only shown to others in `flush`, so that what is
//! shown can be recorded before (design 7).
//!
//! Storey 3: `no_std` + alloc.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

// structure: cycle of accept, adopt, blame, challenge, commands, config, datagram, ending, entry, fast_open, flows, fragment, list, options, output, phases, ports, postponed, pressure, receive, record, records, resets, session, time_wait, transport: each file has a part of the server's one struct

mod accept;
mod adopt;
mod balance;
mod blame;
mod challenge;
mod close;
mod commands;
mod config;
mod cookie;
mod datagram;
mod ending;
mod entry;
mod fast_open;
mod flows;
mod fragment;
mod input;
mod lazy;
mod lease;
mod list;
mod open;
mod options;
mod output;
mod pace;
mod past;
mod phases;
mod ports;
mod postponed;
mod pressure;
mod publish;
mod receive;
mod record;
mod records;
mod resets;
mod rings;
mod session;
mod sink;
mod slab;
mod stats;
mod time_wait;
mod transport;
mod unsent;
mod urgent;
mod users;

pub use adopt::{Adoption, Loss, Recovery};
pub use atoll_tcp::EcnMode;
pub use blame::Charge;
pub use config::{Config, Quota, Secrets};
pub use fast_open::FastOpenSides;
pub use lease::seal_pass;
pub use list::{Listing, SocketFacts};
pub use past::past;
pub use phases::{SAMPLE_EVERY, Stopwatch};
pub use sink::{FrameSink, Offload, TextRef};
pub use transport::Transport;

#[cfg(test)]
mod tests;
