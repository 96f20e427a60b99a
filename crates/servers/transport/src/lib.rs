//! The transport server (TS, P1): the connections and datagram sockets of one replica, between frames and
//! session arenas.
//!
//! Frames, commands and moments go in (`handle_*`); [`Transport::flush`] gives frames out, publishes
//! positions to the applications' slots, and says which processes to wake. Nothing here makes a system call:
//! arenas are [`atoll_ipc::Memory`], the link is a [`FrameSink`].
//!
//! ```text
//!   frames ----> input --+                          +--> output ----> FrameSink
//!   commands --> commands+--> connections (dirty) --+--> publish ---> slots, event rings
//!   timers ----> timers -+        ^                 +--> bells
//!                                 |
//!                  accept <--> atoll_connmgr
//! ```
//! Everything that an application or a peer causes is first done here and only shown to others in `flush`, so
//! that what is shown can be recorded before (decision 7).
//!
//! The server is a struct of parts, each with private fields (`transport.rs`). The order in which a round
//! uses them is in `round.rs`. A procedure that needs nearly all parts is a method of the server in a file
//! above it, and calls only go down.
//!
//! Storey 3: `no_std` + alloc.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod accept;
mod adopt;
mod aftermath;
mod applications;
mod balance;
mod blame;
mod calendar;
mod challenge;
mod close;
mod commands;
mod config;
mod connections;
mod datagram;
mod datagrams;
mod departures;
mod durability;
mod egress;
mod ending;
mod entry;
mod facts;
mod fast_open;
mod flows;
mod fragment;
mod handshakes;
mod holding;
mod input;
mod keep;
mod lazy;
mod lease;
mod list;
mod load;
mod names;
mod next_hop;
mod offer;
mod open;
mod options;
mod output;
mod owners;
mod pace;
mod passive;
mod past;
mod phases;
mod ports;
mod postponed;
mod pressure;
mod publish;
mod receive;
mod record;
mod release;
mod resets;
mod resume;
mod rings;
mod round;
mod session;
mod sink;
mod standing;
mod stats;
mod time_wait;
mod timers;
mod transport;
mod turn;
mod unsent;
mod urgent;
mod users;
mod view;

pub use aftermath::{Adoption, Charge, Loss, Recovery};
pub use atoll_tcp::EcnMode;
pub use calendar::Calendar;
pub use config::{Config, Quota, Secrets};
pub use facts::SocketFacts;
pub use fast_open::FastOpenSides;
pub use lease::seal_pass;
pub use list::Listing;
pub use past::past;
pub use phases::{SAMPLE_EVERY, Stopwatch};
pub use sink::{FrameSink, Offload, TextRef};
pub use transport::Transport;

#[cfg(test)]
mod tests;
