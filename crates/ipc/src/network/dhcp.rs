//! The published state of a replica's DHCP client: a part of [`Network`](super::Network)'s record.

use alloc::string::String;
use alloc::vec::Vec;

use zerocopy::TryFromBytes;

use crate::layout::{numbered, record};

/// The maximum number of published resolvers.
const DNS_MAX: usize = 4;
/// The maximum length of the domain in octets (RFC 1035 §2.3.4).
const DOMAIN_MAX: usize = 253;

/// The state of the DHCP client, and what its server sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DhcpFacts {
    /// The state of the client.
    pub state: DhcpState,
    /// The server that gave the address; 0 as long as there is none.
    pub server: u32,
    /// Resolvers that the server named.
    pub dns: Vec<u32>,
    /// The domain that the server named, of letters, digits, dots, `-` and `_`; empty for none.
    pub domain: String,
}

/// The state of a DHCP client (RFC 2131, figure 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
pub enum DhcpState {
    /// The client waits before it asks again.
    #[default]
    Init = 0,
    /// The client has asked which servers can give an address.
    Selecting = 1,
    /// The client has asked for an address.
    Requesting = 2,
    /// The client checks whether another host has the address.
    Probing = 3,
    /// The client has an address.
    Bound = 4,
    /// The client has an address, and asks its server for more time.
    Renewing = 5,
    /// The client has an address, and asks all servers for more time.
    Rebinding = 6,
}

numbered!(DhcpState else Init);

impl DhcpState {
    /// Returns the name of the state as in `atoll status --json`.
    pub const fn name(self) -> &'static str {
        match self {
            DhcpState::Init => "init",
            DhcpState::Selecting => "selecting",
            DhcpState::Requesting => "requesting",
            DhcpState::Probing => "probing",
            DhcpState::Bound => "bound",
            DhcpState::Renewing => "renewing",
            DhcpState::Rebinding => "rebinding",
        }
    }
}

record! {
    /// The state of the DHCP client as it is published.
    pub(crate) struct DhcpRecord {
        server: u32,
        /// The state plus one; 0 for no client.
        state: u8,
        dns_len: u8,
        domain_len: u8; 1 unused,
        dns: [u32; DNS_MAX],
        domain: [u8; DOMAIN_MAX]; 3 unused,
    }
}

impl DhcpRecord {
    pub(super) fn of(facts: Option<&DhcpFacts>) -> DhcpRecord {
        let mut domain = [0; DOMAIN_MAX];
        let none = DhcpRecord { server: 0, state: 0, dns_len: 0, domain_len: 0, dns: [0; DNS_MAX], domain };
        let Some(facts) = facts else { return none };
        let (dns, dns_len) = super::first(&facts.dns);
        let (name, _) = facts.domain.as_bytes().split_at(facts.domain.len().min(DOMAIN_MAX));
        domain[..name.len()].copy_from_slice(name);
        // Cannot truncate: the name is at most `DOMAIN_MAX` octets long.
        let (server, state, domain_len) = (facts.server, facts.state as u8 + 1, name.len() as u8);
        DhcpRecord { server, state, dns_len, domain_len, dns, domain }
    }

    /// Returns what the record says, if there is a client; an impossible domain reads as none.
    pub(super) fn facts(self) -> Option<DhcpFacts> {
        let state = DhcpState::from_u8(self.state.checked_sub(1)?);
        let name = &self.domain[..usize::from(self.domain_len).min(DOMAIN_MAX)];
        let is_fine = |octet: &u8| octet.is_ascii_alphanumeric() || matches!(octet, b'.' | b'-' | b'_');
        Some(DhcpFacts {
            state,
            server: self.server,
            dns: self.dns.into_iter().take(self.dns_len.into()).collect(),
            domain: if name.iter().all(is_fine) {
                String::from_utf8_lossy(name).into_owned()
            } else {
                String::new()
            },
        })
    }
}
