//! Converts what an IP server knows of the network to a message and back. The moment until which an address
//! is tested concerns only the IP server, and is not kept.

use alloc::boxed::Box;
use alloc::vec::Vec;

use atoll_base::Instant;
use atoll_ip::{AddressState, DhcpNews, DhcpState, OwnAddress, Told};
use atoll_ipc::ip::NetworkNews;
use atoll_ipc::network::{self, AddressFacts, DhcpFacts, Network, PrefixFacts};

use crate::facts::{address_facts, dhcp_facts, v4_address, v4_facts};

pub(crate) fn encode(told: &Told) -> Box<NetworkNews> {
    let network = Network {
        v4: told.v4.as_ref().map(v4_facts),
        dhcp: told.dhcp.as_ref().map(dhcp_facts),
        addresses: told.addresses.iter().map(address_facts).collect(),
        on_link: told
            .on_link
            .iter()
            .map(|&(prefix, len)| PrefixFacts { prefix, len, until: u64::MAX })
            .collect(),
        routers: Vec::new(),
    };
    Box::new(NetworkNews {
        network,
        routers: told.routers.clone(),
        mtu_v6: told.mtu_v6,
        hop_limit: told.hop_limit,
    })
}

/// Converts a message; its receiver has to judge the values.
pub(crate) fn decode(news: &NetworkNews) -> Told {
    Told {
        v4: news.network.v4.map(v4_address),
        dhcp: news.network.dhcp.as_ref().map(dhcp_news),
        addresses: news.network.addresses.iter().map(own_address).collect(),
        on_link: news.network.on_link.iter().map(|facts| (facts.prefix, facts.len)).collect(),
        routers: news.routers.clone(),
        mtu_v6: news.mtu_v6,
        hop_limit: news.hop_limit,
    }
}

fn own_address(own: &AddressFacts) -> OwnAddress {
    OwnAddress {
        addr: own.addr,
        prefix_len: own.prefix_len,
        state: match own.state {
            network::AddressState::Tentative => AddressState::Tentative { until: Instant::FAR_FUTURE },
            network::AddressState::Preferred => AddressState::Preferred,
            network::AddressState::Deprecated => AddressState::Deprecated,
            network::AddressState::Duplicate => AddressState::Duplicate,
        },
        dynamic: own.dynamic,
        preferred_until: Instant::from_nanos(own.preferred_until),
        valid_until: Instant::from_nanos(own.valid_until),
    }
}

fn dhcp_news(facts: &DhcpFacts) -> DhcpNews {
    DhcpNews {
        state: match facts.state {
            network::DhcpState::Init => DhcpState::Init,
            network::DhcpState::Selecting => DhcpState::Selecting,
            network::DhcpState::Requesting => DhcpState::Requesting,
            network::DhcpState::Probing => DhcpState::Probing,
            network::DhcpState::Bound => DhcpState::Bound,
            network::DhcpState::Renewing => DhcpState::Renewing,
            network::DhcpState::Rebinding => DhcpState::Rebinding,
        },
        server: facts.server,
        dns: facts.dns.clone(),
        domain: facts.domain.clone(),
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec::Vec;

    use atoll_base::Addr;

    use atoll_ip::V4Address;

    use super::*;

    #[test]
    fn what_is_told_survives_the_message() {
        let addr = |n: u8| Addr::from_octets([n; 16]);
        let own = |n: u8, state| OwnAddress {
            addr: addr(n),
            prefix_len: 64,
            state,
            dynamic: n & 1 == 1,
            preferred_until: Instant::from_millis(n.into()),
            valid_until: Instant::FAR_FUTURE,
        };
        let told = Told {
            v4: Some(V4Address { gateway: Some(7), mtu: 1400, ..V4Address::new(0xc612_0001, 24) }),
            dhcp: Some(DhcpNews {
                state: DhcpState::Renewing,
                server: 9,
                dns: Vec::from([1, 2]),
                domain: "example.org".to_string(),
            }),
            addresses: Vec::from([
                own(0x20, AddressState::Tentative { until: Instant::FAR_FUTURE }),
                own(0x21, AddressState::Preferred),
                own(0x22, AddressState::Deprecated),
                own(0x23, AddressState::Duplicate),
            ]),
            on_link: Vec::from([(addr(0x20), 64), (addr(0x21), 0)]),
            routers: Vec::from([addr(0x24)]),
            mtu_v6: 1400,
            hop_limit: 3,
        };
        assert_eq!(decode(&encode(&told)), told);
        let nothing = Told { v4: None, dhcp: None, ..told };
        assert_eq!(decode(&encode(&nothing)), nothing);
    }
}
