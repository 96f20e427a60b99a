//! Converts what a predecessor's page says about its network for the network layer.

use alloc::vec::Vec;

use atoll_base::{Duration, Instant};
use atoll_ip::{DhcpLease, OwnAddress, Past, V4Address};
use atoll_ipc::network::{AddressState, Network};

/// Returns what [`Ip::resume`](atoll_ip::Ip::resume) continues at `now`. A page that was never written is
/// empty.
pub fn past(network: &Network, now: Instant) -> Past {
    let moment =
        |nanos: u64| if nanos == u64::MAX { Instant::FAR_FUTURE } else { Instant::from_nanos(nanos) };
    let v4 = network.v4.map(|own| V4Address {
        addr: own.addr,
        prefix_len: own.prefix_len,
        gateway: (own.gateway != 0).then_some(own.gateway),
        mtu: own.mtu,
        valid_until: moment(own.valid_until),
    });
    let lease = network.dhcp.as_ref().zip(v4).map(|(dhcp, address)| {
        DhcpLease::resumed(now, address, dhcp.server, dhcp.dns.clone(), dhcp.domain.clone())
    });
    let address = |own: &atoll_ipc::network::AddressFacts| OwnAddress {
        addr: own.addr,
        prefix_len: own.prefix_len,
        state: match own.state {
            // The address was not tested for long enough: the test begins anew.
            AddressState::Tentative => atoll_ip::AddressState::Tentative { until: now + TRIAL },
            AddressState::Preferred => atoll_ip::AddressState::Preferred,
            AddressState::Deprecated => atoll_ip::AddressState::Deprecated,
            AddressState::Duplicate => atoll_ip::AddressState::Duplicate,
        },
        dynamic: own.dynamic,
        preferred_until: moment(own.preferred_until),
        valid_until: moment(own.valid_until),
    };
    let on_link: Vec<_> =
        network.on_link.iter().map(|facts| (facts.prefix, facts.len, moment(facts.until))).collect();
    Past {
        v4,
        lease,
        addresses: network.addresses.iter().map(address).collect(),
        on_link,
        routers: network.routers.iter().map(|router| (router.addr, moment(router.until))).collect(),
    }
}

/// The time of the test: RETRANS_TIMER of RFC 4861 §10.
const TRIAL: Duration = Duration::from_secs(1);
