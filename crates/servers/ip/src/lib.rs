//! The IP server (N6): runs IP itself, for transport servers in other processes.
//!
//! ```text
//!   link --frames--> IpServer: ARP, ND, echo, fragments --whole, checked packets--> the flow's TS
//!   link <--frames-- IpServer: who is the neighbour? <--frames without a station--  a TS that it serves
//! ```
//! If IP is in the process of the TS, none of this is used: the TS has all of `Ip`, and calls it. Otherwise
//! the TS has a half of `Ip` ([`atoll_ip::Told`]) and a [`Client`], and the IP server has the whole.
//!
//! Storey 3: there are no system calls here; devices and rings live in `bin/atoll`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod client;
mod facts;
mod members;
mod news;
mod server;
mod waiting;

pub use client::Client;
pub use facts::{network_of, stats_of, v4_address, v4_facts};
pub use server::{Config, Egress, IpServer, Party};
