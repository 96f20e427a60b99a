//! The IP layer of one replica as one sans-IO state machine, [`Ip`]: IPv4 with ARP, ICMP, IGMP and DHCP, and
//! IPv6 with neighbour discovery.
//!
//! Frames and times go in (`handle_*`); facts, frames and updates come out (`poll_*`). Nothing here reads a
//! clock, draws randomness or logs. Every replica has its own [`Ip`]; they agree about neighbours by
//! [`NeighbourUpdate`] messages (N8). `ip.rs` shows the parts, and the order in which a packet passes them.
//!
//! Deliberately absent: IP options (skipped), filters by source (RFC 3376 §3), redirects of IPv4, forwarding.
//!
//! Storey 2: `no_std` + alloc.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod addresses;
mod common;
mod config;
mod counters;
mod dhcp;
mod fragments;
mod half;
mod icmp;
mod identifications;
mod input;
mod ip;
mod link;
mod membership;
mod neighbours;
mod output;
mod past;
mod paths;
mod rate;
mod reassembly;
mod v4;
mod v6;

pub use common::Message as IcmpMessage;
pub use config::{BadConfig, Config, V4Address, V6Config};
pub use counters::{Counters, Reason};
pub use dhcp::{
    Client as DhcpClient, Lease as DhcpLease, News as DhcpNews, Output as DhcpOutput, State as DhcpState,
};
pub use half::{Request, Told};
pub use icmp::{ErrorKind, NetworkError};
pub use input::{ChecksumOffload, ChecksumState, Received};
pub use ip::Ip;
pub use link::{Cast, Frame, Link};
pub use neighbours::{Basis, NeighbourUpdate};
pub use output::{
    FRAGMENT_HEADERS_LEN_MAX, HEADERS_LEN, HEADERS_LEN_MAX, Outgoing, Part, Route, TTL, headers_len, parts,
};
pub use past::Past;
pub use paths::{PathMtu, PathUpdate};
pub use reassembly::{Expired, Fragment, FragmentKey, Limits, Outcome, Reassembly, Refusal, Whole};
pub use v6::{OwnAddress, State as AddressState};
