//! Converts what `Ip` knows of the network and of itself to the types of pages and messages.

use atoll_ip::{Ip, OwnAddress, Reason};
use atoll_ipc::network::{
    AddressFacts, AddressState, DhcpFacts, DhcpState, Network, PrefixFacts, RouterFacts, V4Facts,
};
use atoll_ipc::page::Stat;

/// Returns the addresses of the stack, and what they reach.
pub fn network_of(ip: &Ip) -> Network {
    let v4 = ip.v4_address().map(|own| V4Facts {
        addr: own.addr,
        prefix_len: own.prefix_len,
        gateway: own.gateway.unwrap_or(0),
        mtu: ip.mtu(),
        valid_until: own.valid_until.as_nanos(),
    });
    let dhcp = ip.dhcp_news().map(|news| DhcpFacts {
        state: DhcpState::from_u8(news.state as u8),
        server: news.server,
        dns: news.dns,
        domain: news.domain,
    });
    let addresses = ip.v6_addresses().iter().map(address_facts).collect();
    let on_link =
        ip.v6_on_link().map(|(prefix, len, until)| PrefixFacts { prefix, len, until: until.as_nanos() });
    let routers = ip.v6_routers().map(|(addr, until)| RouterFacts { addr, until: until.as_nanos() });
    Network { v4, dhcp, addresses, on_link: on_link.collect(), routers: routers.collect() }
}

pub(crate) fn address_facts(own: &OwnAddress) -> AddressFacts {
    AddressFacts {
        addr: own.addr,
        prefix_len: own.prefix_len,
        state: match own.state {
            atoll_ip::AddressState::Tentative { .. } => AddressState::Tentative,
            atoll_ip::AddressState::Preferred => AddressState::Preferred,
            atoll_ip::AddressState::Deprecated => AddressState::Deprecated,
            atoll_ip::AddressState::Duplicate => AddressState::Duplicate,
        },
        dynamic: own.dynamic,
        preferred_until: own.preferred_until.as_nanos(),
        valid_until: own.valid_until.as_nanos(),
    }
}

/// Returns the counters of IP.
pub fn stats_of(ip: &Ip) -> [(Stat, u64); 12] {
    let counters = ip.counters();
    [
        (Stat::FramesDropped, Reason::ALL.iter().map(|reason| counters.dropped(*reason)).sum()),
        (Stat::FragmentsIn, counters.fragments_in),
        (Stat::FragmentsOut, counters.fragments_out),
        (Stat::Reassembled, counters.reassembled),
        (Stat::ReassemblyTimeouts, counters.reassembly_timeouts),
        (Stat::ReassemblyEvictions, ip.reassembly_evictions()),
        (Stat::FragmentsMalformed, counters.dropped(Reason::FragmentMalformed)),
        (Stat::FragmentsTiny, counters.dropped(Reason::FragmentTiny)),
        (Stat::FragmentsOverlapping, counters.dropped(Reason::FragmentOverlap)),
        (Stat::FragmentsDuplicate, counters.dropped(Reason::FragmentDuplicate)),
        (Stat::DhcpIgnored, counters.dhcp_ignored),
        (Stat::ArpConflicts, counters.arp_conflicts),
    ]
}
