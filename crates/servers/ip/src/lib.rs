//! The IP server (N6): what is IP's own business, for transport servers in other processes.
//!
//! ```text
//!   link --frames--> IpServer: ARP, ND, echo, fragments ... --whole packets, checked once--> the TS that owns the flow
//!   link <--frames-- IpServer: who is the neighbour?        <--frames without a station----- a TS that it serves
//! ```
//! Where IP is in the process of the TS, none of this is there: the TS has all of `Ip`, and calls it. Where
//! it is not, the TS has a half of `Ip` ([`atoll_ip::Told`]) and a [`Client`], and the IP server the whole.
//!
//! Storey 3: no system calls; devices and rings live in `bin/atoll`.
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
pub use facts::{network_of, stats_of};
pub use server::{Config, Egress, IpServer, Party};
