//! The published state of a replica's DHCP client: a part of [`Network`](super::Network)'s record.
//!
//! ```text
//!   server u32 | state u8 + 1, or 0 for no client; count of resolvers u8; length of the domain u8; 0
//!   | resolvers, u32 each | domain
//! ```

use alloc::string::String;
use alloc::vec::Vec;

use crate::memory::Memory;

/// The maximum number of published resolvers.
const DNS_MAX: usize = 4;
/// The maximum length of the domain in octets (RFC 1035 §2.3.4).
const DOMAIN_MAX: usize = 253;
const DOMAIN: usize = 8 + DNS_MAX * 4;
/// The size of the record in bytes.
pub(super) const BYTES: usize = (DOMAIN + DOMAIN_MAX).next_multiple_of(8);

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

impl DhcpState {
    /// Returns the state with this number; the first one if there is none.
    pub const fn from_u8(n: u8) -> DhcpState {
        match n {
            1 => DhcpState::Selecting,
            2 => DhcpState::Requesting,
            3 => DhcpState::Probing,
            4 => DhcpState::Bound,
            5 => DhcpState::Renewing,
            6 => DhcpState::Rebinding,
            _ => DhcpState::Init,
        }
    }

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

impl DhcpFacts {
    pub(super) fn read<M: Memory>(m: &M, at: usize) -> Option<DhcpFacts> {
        let mut bytes = [0; 4];
        m.read(at + 4, &mut bytes);
        let [state, dns, domain, _] = bytes;
        let state = DhcpState::from_u8(state.checked_sub(1)?);
        let mut name = [0; DOMAIN_MAX];
        let name = &mut name[..usize::from(domain).min(DOMAIN_MAX)];
        m.read(at + DOMAIN, name);
        let is_fine = |octet: &u8| octet.is_ascii_alphanumeric() || matches!(octet, b'.' | b'-' | b'_');
        Some(DhcpFacts {
            state,
            server: m.load32(at),
            dns: (0..usize::from(dns).min(DNS_MAX)).map(|i| m.load32(at + 8 + i * 4)).collect(),
            domain: if name.iter().all(is_fine) {
                String::from_utf8_lossy(name).into_owned()
            } else {
                String::new()
            },
        })
    }

    pub(super) fn store<M: Memory>(facts: Option<&DhcpFacts>, m: &M, at: usize) {
        let Some(facts) = facts else { return m.write(at + 4, &[0; 4]) };
        let (dns, domain) = (facts.dns.len().min(DNS_MAX), facts.domain.len().min(DOMAIN_MAX));
        m.store32(at, facts.server);
        m.write(at + 4, &[facts.state as u8 + 1, dns as u8, domain as u8, 0]);
        for (i, server) in facts.dns.iter().take(dns).enumerate() {
            m.store32(at + 8 + i * 4, *server);
        }
        m.write(at + DOMAIN, &facts.domain.as_bytes()[..domain]);
    }
}
