//! IPv4 with ARP, ICMP, IGMP and DHCP.
//!
//! ```text
//!   in    own or DHCP's address? --> fragment? --> TCP, UDP      to the transport
//!         (network)                  (fragments)   ICMP          (icmp)  answered, or to the transport
//!                                                  IGMP, DHCP    (igmp, dhcp)
//!   out   meaning of the destination (network) --> next hop --> its station (arp)
//! ```

mod arp;
mod dhcp;
mod fragments;
mod icmp;
mod igmp;
mod input;
mod network;

use atoll_base::{Addr, Instant};
use atoll_wire::icmp::{HEADER_LEN, Message, code};
use atoll_wire::ipv4::{self, Protocol};
use atoll_wire::{ParseError, ethernet};

use crate::addresses::Addresses;
use crate::common::{self, Common};
use crate::config::{Config, V4Address};
use crate::counters::Reason;
use crate::dhcp::{Client, Lease};
use crate::fragments::Fragments;
use crate::icmp::Icmp;
use crate::input::{Arrival, Received};
use crate::link::{Cast, Link};
use crate::membership::Groups;
use crate::neighbours::NeighbourUpdate;
use crate::output::Route;
use arp::Arp;
use dhcp::Dhcp;
use network::Network;

/// The IPv4 family of one replica.
#[derive(Debug)]
pub(crate) struct V4 {
    network: Network,
    arp: Arp,
    groups: Groups<u32>,
    dhcp: Dhcp,
}

impl V4 {
    /// Creates the family for `config`. `key` must be unpredictable from outside.
    pub(crate) fn new(config: &Config, key: [u64; 2]) -> V4 {
        let address = config.address();
        let leads = config.sibling.0 == 0 && !config.apart;
        let asks = config.dhcp && leads;
        V4 {
            network: Network::new(address),
            arp: Arp::new(config.neighbours_max, address.and_then(|address| address.gateway), key),
            groups: Groups::new(leads),
            dhcp: Dhcp::new(asks.then(|| Client::new(config.mac, config.mtu))),
        }
    }

    /// Judges the packet behind the Ethernet header of a frame.
    #[inline]
    pub(crate) fn receive<'a>(
        &mut self,
        arrival: &Arrival<'a>,
        common: &mut Common,
        icmp: &mut Icmp,
        fragments: &mut Fragments,
    ) -> Result<Received<'a>, Reason> {
        let packet = arrival.frame.get(ethernet::HEADER_LEN..).unwrap_or_default();
        let (header, at) = ipv4::parse(packet)?;
        let payload = packet.get(at..at + usize::from(header.payload_len)).ok_or(Reason::Malformed)?;
        let V4 { network, arp, groups, dhcp } = self;
        let cast = match judge_addresses(arrival, &header, network.addresses(), groups) {
            Ok(cast) => cast,
            Err(_) if dhcp.is_for(arrival.link, &header, payload) => {
                return dhcp.receive(arrival, &header, payload, network, arp, common);
            }
            Err(reason) => return Err(reason),
        };
        if common.config().apart && !input::is_for_transport(arrival.link, &header, payload) {
            if header.protocol == Protocol::ICMP && !header.is_fragment() {
                note_message(common, &header, at, payload);
            }
            return Err(Reason::NotForTransport);
        }
        if header.is_fragment() {
            return fragments::receive(arrival, &header, at, payload, fragments, common);
        }
        match header.protocol {
            Protocol::TCP if cast == Cast::Unicast => input::tcp(&header, payload, arrival.offload),
            Protocol::UDP if dhcp.is_for(arrival.link, &header, payload) => {
                dhcp.receive(arrival, &header, payload, network, arp, common)
            }
            Protocol::UDP => input::udp(&header, cast, payload, arrival.offload),
            Protocol::ICMP => {
                note_message(common, &header, at, payload);
                // RFC 1122 §3.2.2.6: an echo request to a broadcast may be ignored; this keeps the stack from
                // amplifying attacks.
                if cast != Cast::Unicast {
                    return Err(Reason::Broadcast);
                }
                icmp::receive(arrival, &header, payload, network, icmp, common)
            }
            Protocol::IGMP => igmp::receive(arrival, &header, payload, network.addresses(), groups, common),
            // RFC 1122 §4.2.3.10, §3.2.2: no other protocol is spoken with groups.
            _ if cast != Cast::Unicast => Err(Reason::Broadcast),
            _ => {
                // RFC 1122 §3.2.2.1: a host that does not speak a protocol says so.
                let message = Message::Unreachable { code: code::PROTOCOL, next_hop_mtu: 0 };
                self.report(arrival.now, common, icmp, arrival.link, arrival.frame, message);
                Err(Reason::UnknownProtocol)
            }
        }
    }

    /// Judges the ARP packet behind the Ethernet header of a frame from the outside link.
    #[inline(never)]
    pub(crate) fn receive_arp<'a>(
        &mut self,
        arrival: &Arrival<'a>,
        common: &mut Common,
    ) -> Result<Received<'a>, Reason> {
        let bytes = arrival.frame.get(ethernet::HEADER_LEN..).unwrap_or_default();
        let (packet, _) = atoll_wire::arp::parse(bytes).map_err(|error| match error {
            ParseError::Unsupported => Reason::ArpIgnored,
            _ => Reason::Malformed,
        })?;
        if !common.is_other_station(packet.sender_mac) {
            return Err(Reason::ArpIgnored);
        }
        let V4 { network, arp, dhcp, .. } = self;
        if !dhcp.receive_arp(arrival.now, &packet, network, arp, common) {
            arp.receive(arrival.now, network.addresses(), common, arrival.to, &packet)?;
        }
        Ok(Received::Consumed)
    }

    /// Sends the error `message` about `frame`, or counts that it may not be sent.
    #[inline(never)]
    pub(crate) fn report(
        &self,
        now: Instant,
        common: &mut Common,
        icmp: &mut Icmp,
        link: Link,
        frame: &[u8],
        message: Message,
    ) {
        let mtu = self.network.mtu(common.config().mtu);
        let error = icmp::error_about(frame, link, message, self.network.addresses(), mtu);
        icmp.report(now, common, error);
    }

    /// Returns the route to `dst`, and asks for the neighbour if it is not known.
    #[inline]
    pub(crate) fn route(&mut self, now: Instant, common: &mut Common, dst: u32) -> Route {
        self.arp.route(now, self.network.addresses(), common, dst)
    }

    /// Returns the neighbour that takes packets for `dst`, if it is reached over the outside link.
    pub(crate) fn next_hop(&self, dst: u32) -> Option<Addr> {
        let addresses = self.network.addresses();
        let is_outside = !addresses.is_own(dst) && addresses.cast(dst) == Some(Cast::Unicast);
        if is_outside { addresses.next_hop(dst).map(Addr::v4) } else { None }
    }

    /// Announces the address, or has the DHCP client ask for one; see [`Ip::announce`](crate::Ip::announce).
    pub(crate) fn announce(&mut self, now: Instant, common: &mut Common) {
        self.arp.announce(now, self.network.addresses(), common);
    }

    /// Starts the DHCP client, if there is one.
    pub(crate) fn start_dhcp(&mut self, now: Instant, common: &mut Common) {
        self.dhcp.act(now, &mut self.network, &mut self.arp, common, |client, rng| client.start(now, rng));
    }

    /// Continues a lease that a predecessor got.
    pub(crate) fn resume(&mut self, now: Instant, common: &mut Common, lease: &Lease) {
        self.dhcp.act(now, &mut self.network, &mut self.arp, common, |client, _| client.resume(now, lease));
    }

    /// Releases the address to the server, if it came from one.
    pub(crate) fn release(&mut self, now: Instant, common: &mut Common) {
        self.dhcp.act(now, &mut self.network, &mut self.arp, common, |client, _| client.release());
    }

    /// Does what is due at `now`.
    pub(crate) fn handle_timeout(&mut self, now: Instant, common: &mut Common) {
        self.arp.expire(now, self.network.addresses(), common);
        self.dhcp.handle_timeout(now, &mut self.network, &mut self.arp, common);
        self.arp.announce_again(now, self.network.addresses(), common);
        igmp::expire(now, &mut self.groups, self.network.addresses().own(), common);
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let all = [self.arp.next_timeout(), self.groups.next_timeout(), self.dhcp.next_timeout()];
        all.into_iter().flatten().min()
    }

    /// Changes the address to another one, or to none.
    pub(crate) fn set_address(&mut self, address: Option<V4Address>) {
        self.network.set(address, &mut self.arp);
    }

    /// Notes that something about DHCP has changed.
    pub(crate) fn note(&mut self) {
        self.network.note();
    }

    /// Applies a neighbour update from another replica.
    pub(crate) fn handle_neighbour(&mut self, now: Instant, common: &mut Common, update: NeighbourUpdate) {
        self.arp.handle_update(now, self.network.addresses(), common, update);
    }

    /// Notes that packets through `hop` have arrived.
    pub(crate) fn progress(&mut self, now: Instant, hop: u32, settles: bool) {
        self.arp.progress(now, hop, settles);
    }

    pub(crate) fn poll_update(&mut self) -> Option<NeighbourUpdate> {
        self.arp.poll_update()
    }

    pub(crate) fn poll_failed(&mut self) -> Option<u32> {
        self.arp.poll_failed()
    }

    /// Returns the own address, and what others mean as seen from it.
    #[inline]
    pub(crate) const fn network(&self) -> &Network {
        &self.network
    }

    /// Returns a number that grows whenever a route, the address or the state of DHCP may have changed.
    pub(crate) const fn generation(&self) -> u64 {
        self.arp.generation() + self.network.news()
    }

    pub(crate) fn dhcp(&self) -> Option<&Client> {
        self.dhcp.client()
    }

    /// Returns the groups that sockets are in.
    pub(crate) const fn groups(&self) -> &Groups<u32> {
        &self.groups
    }

    pub(crate) const fn groups_mut(&mut self) -> &mut Groups<u32> {
        &mut self.groups
    }

    pub(crate) fn check_invariants(&self, common: &Common) {
        self.network.check_invariants();
        self.arp.check_invariants(common);
        self.groups.check_invariants();
    }
}

/// Notes a message of ICMP, the payload of a packet with a header of `at` octets. As on Linux, raw sockets
/// get it whatever its checksum is, but nothing that is shorter than a header (icmp_filter).
fn note_message(common: &mut Common, header: &ipv4::Header, at: usize, payload: &[u8]) {
    let Some([kind, ..]) = payload.first_chunk::<HEADER_LEN>() else { return };
    common.note_message(common::Message {
        src: Addr::v4(header.src),
        dst: Addr::v4(header.dst),
        tos: header.tos,
        ttl: header.ttl,
        kind: *kind,
        at: ethernet::HEADER_LEN..ethernet::HEADER_LEN + at + payload.len(),
    });
}

/// Returns what the destination means, after checking that the packet may have come from its source and is
/// for us; otherwise the reason to drop it.
#[inline]
fn judge_addresses(
    arrival: &Arrival<'_>,
    header: &ipv4::Header,
    addresses: &Addresses,
    groups: &Groups<u32>,
) -> Result<Cast, Reason> {
    let link = arrival.link;
    let cast = if addresses.is_ours(link, header.dst) {
        Cast::Unicast
    } else {
        match (link, addresses.cast(header.dst)) {
            (Link::Outside, Some(Cast::Broadcast)) => Cast::Broadcast,
            (_, Some(Cast::Multicast)) if groups.has(link, header.dst) => Cast::Multicast,
            (_, Some(Cast::Multicast)) => return Err(Reason::Multicast),
            _ => return Err(Reason::NotOurAddress),
        }
    };
    // RFC 4541 §2.1.1: switches without an address of their own query for groups.
    let is_querier = header.src == 0 && header.protocol == Protocol::IGMP;
    if !is_querier && !addresses.is_source(link, header.src) {
        return Err(Reason::Martian);
    }
    // RFC 1122 §3.3.6: a packet to one host in a frame to all is to be discarded.
    if cast == Cast::Unicast && arrival.to.is_group() {
        return Err(Reason::Broadcast);
    }
    Ok(cast)
}
