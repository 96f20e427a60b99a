//! IPv6 with neighbour discovery, ICMPv6 and MLD.
//!
//! All replicas of a stack receive every router and neighbour advertisement (the link server passes copies
//! on), draw the same conclusions, and so have the same addresses. One of them, the leader, speaks for the
//! stack unasked: it solicits, probes and reports.
//!
//! ```text
//!   in    own address or group? --> extensions, fragment? --> TCP, UDP    to the transport
//!         (network, listeners)      (fragments)               ICMPv6      (icmp)  answered, or to the transport
//!                                                             ND, MLD     (neighbour, router, listeners)
//!   out   meaning of the destination, next hop (network) --> its station (neighbour)
//! ```
//! Deliberately absent: filters by source (RFC 3810 §4), and sending extension headers other than fragment
//! headers and the one that MLD requires.

mod addresses;
mod fragments;
mod icmp;
mod input;
mod listeners;
mod neighbour;
mod network;
mod redirects;
mod router;

use atoll_base::{Addr, Instant};
use atoll_wire::icmpv6::{self, Message, code};
use atoll_wire::ipv4::Protocol;
use atoll_wire::ipv6::{self, ExtensionError};
use atoll_wire::{ethernet, mld, nd};

use crate::common::{self, Common};
use crate::config::Config;
use crate::counters::Reason;
use crate::fragments::Fragments;
use crate::icmp::Icmp;
use crate::input::{Arrival, Received};
use crate::link::{Cast, Link};
use crate::membership::Groups;
use crate::output::Route;
use crate::paths::Paths;
use input::{Packet, is_discovery};
use listeners::Listeners;
use neighbour::{Advertisement, Discovery};
use network::Network;
use router::Solicitations;

pub use addresses::{OwnAddress, State};

/// The IPv6 family of one replica.
#[derive(Debug)]
pub(crate) struct V6 {
    network: Network,
    discovery: Discovery,
    listeners: Listeners,
    solicitations: Solicitations,
}

impl V6 {
    /// Creates the family for `config`. `key` must be unpredictable from outside.
    pub(crate) fn new(config: &Config, key: [u64; 2], now: Instant) -> V6 {
        let gateway = config.v6.as_ref().and_then(|v6| v6.gateway);
        let mut v6 = V6 {
            network: Network::new(config, now),
            discovery: Discovery::new(config.neighbours_max, gateway, key),
            listeners: Listeners::new(),
            solicitations: Solicitations::new(),
        };
        if !config.apart {
            v6.listeners.listen_to(now, v6.network.own());
        }
        v6
    }

    /// Begins the leader's work: joins the groups of the own addresses, probes the addresses, and solicits
    /// routers.
    pub(crate) fn start(&mut self, now: Instant, common: &mut Common) {
        if !self.network.is_spoken() {
            return;
        }
        // RFC 4862 §5.4.2: a host joins the group of an address before it probes the address.
        self.listeners.listen_to(now, self.network.own());
        self.listeners.groups_mut().speak(now);
        self.listeners.expire(now, self.network.own(), common);
        // An address that a predecessor has probed is ours.
        for own in self.network.own().iter().filter(|own| own.is_tentative()) {
            neighbour::probe(common, own.addr);
        }
        if self.network.obeys_routers() {
            self.solicitations.start(now, &self.network, common);
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
        paths: &Paths,
    ) -> Result<Received<'a>, Reason> {
        let link = arrival.link;
        if link == Link::Outside && !self.network.is_spoken() {
            return Err(Reason::UnknownEtherType);
        }
        let packet = arrival.frame.get(ethernet::HEADER_LEN..).unwrap_or_default();
        let (header, at) = ipv6::parse(packet).map_err(|_| Reason::Malformed)?;
        let payload = packet.get(at..at + usize::from(header.payload_len)).ok_or(Reason::Malformed)?;
        let cast = judge_addresses(arrival, &header, &self.network, self.listeners.groups())?;
        let to_one = cast == Cast::Unicast;
        let upper = match ipv6::upper(&header, payload) {
            Ok(upper) => upper,
            Err(ExtensionError::Malformed) => return Err(Reason::Malformed),
            Err(ExtensionError::Discard) => return Err(Reason::Extension),
            Err(ExtensionError::Problem { code, pointer, even_to_groups }) => {
                if to_one || even_to_groups {
                    let message = Message::ParameterProblem { code, pointer };
                    self.report(arrival.now, common, icmp, link, arrival.frame, message);
                }
                return Err(Reason::Extension);
            }
        };
        let packet = || Packet { arrival, header: &header, payload, upper: &upper };
        if common.config().apart && !input::is_for_transport(link, &upper, payload) {
            if upper.protocol == Protocol::ICMPV6 && upper.fragment.is_none() {
                let _ = note_message(&packet(), common);
            }
            return Err(Reason::NotForTransport);
        }
        match upper.fragment {
            // RFC 6946: such a fragment is the whole packet, whatever else has the same identification.
            Some(fragment) if fragment.is_atomic() => common.count().atomic_fragments += 1,
            Some(_) => return fragments::receive(&packet(), &self.network, common, icmp, fragments),
            None => {}
        }
        let text = payload.get(upper.at..).ok_or(Reason::Malformed)?;
        if upper.protocol == Protocol::ICMPV6 {
            // RFC 6980 §5: neighbour discovery is not fragmented.
            if upper.fragment.is_some() && is_discovery(Some(text)) {
                return Err(Reason::NdIgnored);
            }
            return self.receive_icmp(&packet(), text, common, icmp, paths);
        }
        // Only neighbour discovery uses the unspecified address.
        if header.src == Addr::ANY {
            return Err(Reason::Martian);
        }
        match upper.protocol {
            Protocol::TCP if to_one => input::tcp(&header, text, arrival.offload),
            Protocol::UDP => input::udp(&header, cast, text, arrival.offload),
            // No other protocol is spoken with groups.
            _ if !to_one => Err(Reason::Broadcast),
            _ => {
                let pointer = upper.named_at as u32;
                let message = Message::ParameterProblem { code: code::UNRECOGNIZED_NEXT_HEADER, pointer };
                self.report(arrival.now, common, icmp, link, arrival.frame, message);
                Err(Reason::UnknownProtocol)
            }
        }
    }

    /// Judges the ICMPv6 message `text` of a packet.
    #[inline(never)]
    fn receive_icmp<'a>(
        &mut self,
        packet: &Packet<'_, 'a>,
        text: &'a [u8],
        common: &mut Common,
        icmp: &mut Icmp,
        paths: &Paths,
    ) -> Result<Received<'a>, Reason> {
        let Packet { arrival, header, upper, .. } = *packet;
        let (message, head) = note_message(packet, common)?;
        if let Message::Other { kind, .. } = message
            && arrival.link == Link::Outside
            && !message.is_error()
        {
            return match kind {
                // RFC 3810 §6.2: a query carries the router alert option.
                mld::QUERY if !upper.alerts_mld => Err(Reason::NdIgnored),
                mld::QUERY | mld::REPORT_V1 | mld::DONE => self.listeners.receive(packet, common, text),
                kind if nd::KINDS.contains(&kind) => self.receive_discovery(packet, common, text),
                _ => Err(Reason::IcmpIgnored),
            }
            .map(|()| Received::Consumed);
        }
        if header.src == Addr::ANY {
            return Err(Reason::Martian);
        }
        let body = text.get(head..).unwrap_or_default();
        match message {
            // DEVIATION: RFC 4443 §4.2 wants requests to groups answered as well. As with IPv4, not answering
            // them keeps the stack from amplifying attacks.
            Message::EchoRequest { id, seq } if !header.dst.is_v6_multicast() => {
                let link_mtu = self.network.mtu();
                let mtu = paths.get(arrival.now, header.src).map_or(link_mtu, |path| path.mtu);
                let message = Message::EchoReply { id, seq };
                let reply = icmp::echo_reply(packet, message, body, self.network.hop_limit(), mtu);
                icmp.answer_echo(arrival.now, common, link_mtu, &reply).map(|()| Received::Consumed)
            }
            Message::EchoReply { id, .. } if !header.dst.is_v6_multicast() => Ok(Received::EchoReply {
                src: header.src,
                dst: header.dst,
                id,
                tos: header.traffic_class,
                ttl: header.hop_limit,
                message: text,
            }),
            _ => icmp::receive_error(packet, message, body, &self.network),
        }
    }

    /// Judges a message of neighbour discovery whose checksum was verified.
    #[inline(never)]
    fn receive_discovery(
        &mut self,
        packet: &Packet<'_, '_>,
        common: &mut Common,
        text: &[u8],
    ) -> Result<(), Reason> {
        // RFC 4861 §11.2: a message that a router may have forwarded is not believed.
        if packet.header.hop_limit != nd::HOP_LIMIT || packet.arrival.from == common.mac() {
            return Err(Reason::NdIgnored);
        }
        let V6 { network, discovery, .. } = self;
        match nd::parse(text).map_err(|_| Reason::Malformed)? {
            nd::Message::NeighbourSolicitation { target, source_mac } => {
                discovery.handle_solicitation(packet, network, common, target, source_mac)
            }
            nd::Message::NeighbourAdvertisement { target, router, solicited, overriding, target_mac } => {
                let advertisement = Advertisement { target, router, solicited, overriding, target_mac };
                discovery.handle_advertisement(packet, network, common, &advertisement)
            }
            nd::Message::RouterAdvertisement(advertisement) => {
                self.handle_router(packet, common, &advertisement)
            }
            nd::Message::Redirect { target, destination, target_mac } => {
                discovery.handle_redirect(packet, network, common, target, destination, target_mac)
            }
            // The stack is not a router.
            nd::Message::RouterSolicitation { .. } => Err(Reason::NdIgnored),
        }
    }

    /// Applies a router advertisement, if it is valid and autoconfiguration is on.
    fn handle_router(
        &mut self,
        packet: &Packet<'_, '_>,
        common: &mut Common,
        advertisement: &nd::RouterAdvertisement,
    ) -> Result<(), Reason> {
        let (now, router) = (packet.arrival.now, packet.header.src);
        let V6 { network, discovery, listeners, solicitations } = self;
        if !network.obeys_routers() || !router.is_link_local() {
            return Err(Reason::NdIgnored);
        }
        common.count().router_advertisements += 1;
        let new = network.advertise(now, router, advertisement, common.mac(), common.config().mtu);
        if let Some(mac) = advertisement.source_mac.filter(|mac| common.is_other_station(*mac))
            && network.is_neighbour(router)
        {
            discovery.learn(now, network, common, router, mac);
        }
        if !new.is_empty() {
            listeners.listen_to(now, network.own());
        }
        if listeners.groups().speaks() {
            new.into_iter().for_each(|addr| neighbour::probe(common, addr));
        }
        // RFC 4861 §6.3.7: an answer from a router ends the questions.
        if advertisement.router_lifetime > 0 {
            solicitations.stop();
        }
        Ok(())
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
        icmp.report(now, common, icmp::error_about(frame, link, message, &self.network));
    }

    /// Returns the route to `dst`, and asks for the neighbour if it is not known.
    #[inline]
    pub(crate) fn route(&mut self, now: Instant, common: &mut Common, dst: Addr) -> Route {
        self.discovery.route(now, &self.network, common, dst)
    }

    /// Returns the neighbour that takes packets for `dst`, if that is not our own address.
    pub(crate) fn next_hop(&self, dst: Addr) -> Option<Addr> {
        let is_own = self.network.is_ours(Link::Inside, dst);
        if is_own { None } else { self.network.next_hop(self.discovery.neighbours(), dst) }
    }

    /// Does what is due at `now`.
    pub(crate) fn handle_timeout(&mut self, now: Instant, common: &mut Common) {
        let V6 { network, discovery, listeners, solicitations } = self;
        discovery.expire(now, network, common);
        if network.next_due() <= now && network.expire(now) {
            listeners.listen_to(now, network.own());
        }
        solicitations.expire(now, network, common);
        listeners.expire(now, network.own(), common);
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let due = self.network.next_due().min(self.solicitations.due());
        let due = (due != Instant::FAR_FUTURE).then_some(due);
        let all = [due, self.discovery.neighbours().next_due(), self.groups().next_timeout()];
        all.into_iter().flatten().min()
    }

    /// Continues with the addresses, prefixes and routers that a predecessor knew.
    pub(crate) fn resume(
        &mut self,
        now: Instant,
        common: &Common,
        own: &[OwnAddress],
        on_link: &[(Addr, u8, Instant)],
        routers: &[(Addr, Instant)],
    ) {
        if self.network.is_configured() {
            self.network.resume(now, common.mac(), own, on_link, routers);
            self.listeners.listen_to(now, self.network.own());
        }
    }

    /// Takes over the addresses that an IP server has sent, if IPv6 is configured on the link.
    pub(crate) fn replace(&mut self, own: &[OwnAddress], on_link: &[(Addr, u8)], routers: &[Addr]) {
        if self.network.is_configured() {
            self.network.replace(own, on_link, routers);
        }
    }

    /// Sets the size of packets and the hop limit that an IP server has sent, if IPv6 is configured on the
    /// link.
    pub(crate) fn set_limits(&mut self, common: &Common, mtu: u16, hop_limit: u8) {
        if self.network.is_configured() {
            self.network.set_limits(mtu, common.config().mtu, hop_limit);
        }
    }

    /// Notes that routes may have changed.
    pub(crate) fn change_routes(&mut self) {
        self.network.change();
    }

    /// Joins a socket to `group`. Returns `false` if there are too many groups, or IPv6 is not spoken there.
    pub(crate) fn join_group(&mut self, now: Instant, link: Link, group: Addr) -> bool {
        (link == Link::Inside || self.network.is_spoken())
            && self.listeners.groups_mut().join(now, link, group)
    }

    /// Removes a socket from a group that it had joined.
    pub(crate) fn leave_group(&mut self, now: Instant, link: Link, group: Addr) {
        self.listeners.groups_mut().leave(now, link, group);
    }

    /// Returns the groups that sockets and neighbour discovery are in.
    pub(crate) const fn groups(&self) -> &Groups<Addr> {
        self.listeners.groups()
    }

    /// Notes that packets through `hop` have arrived.
    pub(crate) fn progress(&mut self, now: Instant, hop: Addr, settles: bool) {
        self.discovery.progress(now, hop, settles);
    }

    /// Returns what is known of the network.
    pub(crate) const fn network(&self) -> &Network {
        &self.network
    }

    /// Returns a number that grows whenever a route or an own address may have changed.
    pub(crate) const fn generation(&self) -> u64 {
        self.network.generation() + self.discovery.neighbours().generation()
    }

    /// Returns the number of redirects.
    #[cfg(test)]
    pub(crate) fn redirects(&self) -> usize {
        self.network.redirects()
    }

    pub(crate) fn check_invariants(&self) {
        self.discovery.neighbours().check_invariants();
        self.groups().check_invariants();
    }
}

/// Notes a message of ICMPv6 whose checksum is right (rawv6_rcv), and returns it with the length of its
/// header.
fn note_message(packet: &Packet<'_, '_>, common: &mut Common) -> Result<(Message, usize), Reason> {
    let Packet { header, payload, upper, .. } = *packet;
    let text = payload.get(upper.at..).ok_or(Reason::Malformed)?;
    let parsed = icmpv6::parse(header.src, header.dst, text)?;
    let end = ethernet::HEADER_LEN + ipv6::HEADER_LEN + payload.len();
    common.note_message(common::Message {
        src: header.src,
        dst: header.dst,
        tos: header.traffic_class,
        ttl: header.hop_limit,
        kind: text.first().copied().unwrap_or_default(),
        at: end - text.len()..end,
    });
    Ok(parsed)
}

/// Returns what the destination means, after checking that the packet may have come from its source and is
/// for us; otherwise the reason to drop it.
#[inline]
fn judge_addresses(
    arrival: &Arrival<'_>,
    header: &ipv6::Header,
    network: &Network,
    groups: &Groups<Addr>,
) -> Result<Cast, Reason> {
    let link = arrival.link;
    if !network.is_ours(link, header.dst) {
        return Err(match (link, addresses::cast(header.dst)) {
            // An address of ours is accepted as the source: if another host has it as well, neighbour
            // discovery has to find out.
            (Link::Outside, Some(Cast::Multicast)) if groups.has(link, header.dst) => {
                let may_be = header.src == Addr::ANY || addresses::cast(header.src) == Some(Cast::Unicast);
                return if may_be { Ok(Cast::Multicast) } else { Err(Reason::Martian) };
            }
            (Link::Inside, Some(Cast::Multicast)) if groups.has(link, header.dst) => {
                let may_be = network.is_source(link, header.src);
                return if may_be { Ok(Cast::Multicast) } else { Err(Reason::Martian) };
            }
            (_, Some(Cast::Multicast)) => Reason::Multicast,
            _ => Reason::NotOurAddress,
        });
    }
    if !network.is_source(link, header.src) && (header.src != Addr::ANY || link == Link::Inside) {
        return Err(Reason::Martian);
    }
    if arrival.to.is_group() {
        return Err(Reason::Broadcast);
    }
    Ok(Cast::Unicast)
}

#[cfg(test)]
mod tests;
