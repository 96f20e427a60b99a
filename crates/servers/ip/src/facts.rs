//! Converts what `Ip` knows of the network and of itself to the types of pages and messages.

use atoll_base::Instant;
use atoll_ip::{DhcpNews, Ip, OwnAddress, Reason, V4Address};
use atoll_ipc::network::{
    AddressFacts, AddressState, DhcpFacts, DhcpState, Network, PrefixFacts, RouterFacts, V4Facts,
};
use atoll_ipc::page::Stat;

/// Returns the addresses of the stack, and what they reach.
pub fn network_of(ip: &Ip) -> Network {
    let v4 = ip.v4_address().map(|own| V4Facts { mtu: ip.mtu(), ..v4_facts(own) });
    let dhcp = ip.dhcp_news().as_ref().map(dhcp_facts);
    let addresses = ip.v6_addresses().iter().map(address_facts).collect();
    let on_link =
        ip.v6_on_link().map(|(prefix, len, until)| PrefixFacts { prefix, len, until: until.as_nanos() });
    let routers = ip.v6_routers().map(|(addr, until)| RouterFacts { addr, until: until.as_nanos() });
    Network { v4, dhcp, addresses, on_link: on_link.collect(), routers: routers.collect() }
}

/// Returns the IPv4 address as a message has it.
pub const fn v4_facts(own: &V4Address) -> V4Facts {
    V4Facts {
        addr: own.addr,
        prefix_len: own.prefix_len,
        gateway: match own.gateway {
            Some(gateway) => gateway,
            None => 0,
        },
        mtu: own.mtu,
        valid_until: own.valid_until.as_nanos(),
    }
}

/// Returns the IPv4 address of a message, whose receiver has to judge it.
pub fn v4_address(own: V4Facts) -> V4Address {
    V4Address {
        addr: own.addr,
        prefix_len: own.prefix_len,
        gateway: Some(own.gateway).filter(|gateway| *gateway != 0),
        mtu: own.mtu,
        valid_until: Instant::from_nanos(own.valid_until),
    }
}

pub(crate) fn dhcp_facts(news: &DhcpNews) -> DhcpFacts {
    DhcpFacts {
        state: DhcpState::from_u8(news.state as u8),
        server: news.server,
        dns: news.dns.clone(),
        domain: news.domain.clone(),
    }
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
