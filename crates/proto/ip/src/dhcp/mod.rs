//! How is an IPv4 address got from a DHCP server? [`Client`] decides; `v4/dhcp.rs` carries out what it asks
//! for.

mod client;
mod lease;

use alloc::string::String;
use alloc::vec::Vec;

pub use client::{Client, Output, State};
pub use lease::Lease;

/// The state of DHCP, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// The state of the client.
    pub state: State,
    /// The server that gave the address; 0 as long as there is none.
    pub server: u32,
    /// The DNS resolvers that the server named.
    pub dns: Vec<u32>,
    /// The domain that the server named; empty if none.
    pub domain: String,
}

impl News {
    /// Returns what `client` knows.
    pub(crate) fn of(client: &Client) -> News {
        let known = client.lease();
        News {
            state: client.state(),
            server: known.map_or(0, |lease| lease.server),
            dns: known.map(|lease| lease.dns.clone()).unwrap_or_default(),
            domain: known.map(|lease| lease.domain.clone()).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests;
