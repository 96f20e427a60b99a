//! Resolves IPv6 addresses by neighbour discovery (RFC 4861 §7), detects duplicate addresses (RFC 4862 §5.4),
//! and receives redirects (RFC 4861 §8). As with ARP there is no proof, and belief is rationed in the same
//! way (see `v4/arp.rs`).

use alloc::vec::Vec;

use atoll_base::{Addr, Instant};
use atoll_wire::Mac;
use atoll_wire::ipv4::Protocol;
use atoll_wire::ipv6::multicast_mac;
use atoll_wire::nd::{self, Message, solicited_node};

use super::addresses::{ALL_NODES, State, cast};
use super::input::Packet;
use super::network::Network;
use crate::common::Common;
use crate::counters::Reason;
use crate::link::Cast;
use crate::neighbours::{Claim, Due, Lookup, Neighbours};
use crate::output::{Outgoing, Route};

/// The neighbours of the IPv6 addresses.
#[derive(Debug)]
pub(super) struct Discovery {
    neighbours: Neighbours<Addr>,
}

/// A neighbour advertisement (RFC 4861 §4.4).
#[derive(Clone, Copy, Debug)]
pub(super) struct Advertisement {
    pub(super) target: Addr,
    pub(super) router: bool,
    pub(super) solicited: bool,
    pub(super) overriding: bool,
    pub(super) target_mac: Option<Mac>,
}

impl Discovery {
    /// Creates the part without any neighbour. `gateway` is kept longest; `key` must be secret.
    pub(super) fn new(neighbours_max: usize, gateway: Option<Addr>, key: [u64; 2]) -> Discovery {
        Discovery { neighbours: Neighbours::new(neighbours_max, gateway, key) }
    }

    pub(super) const fn neighbours(&self) -> &Neighbours<Addr> {
        &self.neighbours
    }

    /// Returns the route to `dst`, and asks for the neighbour if it is not known.
    #[inline]
    pub(super) fn route(&mut self, now: Instant, network: &Network, common: &mut Common, dst: Addr) -> Route {
        if dst == Addr::LOOPBACK || network.is_own(dst) {
            return if common.config().loopback { Route::Local } else { Route::Unreachable };
        }
        match cast(dst) {
            Some(Cast::Unicast) => {}
            Some(_) if !network.is_spoken() => return Route::Unreachable,
            Some(_) => return Route::Via { mac: multicast_mac(dst) },
            None => return Route::Unreachable,
        }
        let Some(next_hop) = network.next_hop(&self.neighbours, dst) else { return Route::Unreachable };
        match self.neighbours.lookup(now, next_hop) {
            Lookup::Known(mac) => Route::Via { mac },
            Lookup::Resolving => Route::Resolving,
            Lookup::Failed => Route::Unreachable,
            Lookup::Absent => self.resolve(now, network, common, next_hop),
        }
    }

    #[cold]
    fn resolve(&mut self, now: Instant, network: &Network, common: &mut Common, next_hop: Addr) -> Route {
        if !network.is_neighbour(next_hop) {
            return Route::Unreachable;
        }
        let evicted = self.neighbours.resolve(now, next_hop);
        common.count().neighbours_evicted += u64::from(evicted);
        ask(network, common, next_hop, Mac::BROADCAST);
        Route::Resolving
    }

    /// Handles a solicitation: another station asks for `target`.
    pub(super) fn handle_solicitation(
        &mut self,
        packet: &Packet<'_, '_>,
        network: &mut Network,
        common: &mut Common,
        target: Addr,
        source_mac: Option<Mac>,
    ) -> Result<(), Reason> {
        let header = packet.header;
        let Some(own) = network.own_address(target) else { return Err(Reason::NdIgnored) };
        let (tentative, usable) = (own.is_tentative(), own.state != State::Duplicate);
        if header.src == Addr::ANY {
            // RFC 4861 §7.1.1: a probe goes to the solicited-node group and names no station.
            if header.dst != solicited_node(target) || source_mac.is_some() {
                return Err(Reason::NdIgnored);
            }
            // RFC 4862 §5.4.3: if two stations probe the same address, neither gets it. Later ones get an
            // advertisement that it is taken.
            match tentative {
                true => handle_conflict(network, common, target),
                false if usable => {
                    advertise(network, common, ALL_NODES, multicast_mac(ALL_NODES), target, false);
                }
                false => {}
            }
            return Ok(());
        }
        if !usable {
            return Err(Reason::NdIgnored);
        }
        if network.is_neighbour(header.src)
            && let Some(mac) = source_mac.filter(|mac| common.is_other_station(*mac))
        {
            self.learn(packet.arrival.now, network, common, header.src, mac);
        }
        // The answer goes to the station that sent the question, as with ARP; that works for every replica.
        advertise(network, common, header.src, packet.arrival.from, target, true);
        Ok(())
    }

    /// Handles an advertisement, in which a station says to this host, or to all hosts, where its target is.
    pub(super) fn handle_advertisement(
        &mut self,
        packet: &Packet<'_, '_>,
        network: &mut Network,
        common: &mut Common,
        advertisement: &Advertisement,
    ) -> Result<(), Reason> {
        let Advertisement { target, router, solicited, overriding, target_mac } = *advertisement;
        let now = packet.arrival.now;
        let counts = overriding || target_mac.is_none() || self.neighbours.station(target) == target_mac;
        // RFC 4861 §7.1.2: an advertisement to a group is not an answer.
        if solicited && packet.header.dst.is_v6_multicast() {
            return Err(Reason::NdIgnored);
        }
        if let Some(own) = network.own_address(target) {
            if own.is_tentative() {
                handle_conflict(network, common, target);
            } else {
                common.count().nd_conflicts += 1;
            }
        } else {
            // RFC 4861 §7.2.5: an answer to one station's question need not name the station again.
            let known = self.neighbours.station(target);
            let mac = target_mac.or(known).filter(|mac| common.is_other_station(*mac));
            let mac = mac.filter(|_| network.is_neighbour(target)).ok_or(Reason::NdIgnored)?;
            let claim = match (solicited, known == Some(mac)) {
                // RFC 4861 §7.2.5 lets an overriding advertisement replace what is known. DEVIATION: the
                // known station is asked first.
                (true, _) if overriding || known.is_none_or(|known| known == mac) => {
                    self.neighbours.answer(now, target, mac)
                }
                // The advertisement was not asked for, or is not meant to replace what is known.
                (false, false) if known.is_none() => self.neighbours.answer(now, target, mac),
                (false, false) if overriding => self.neighbours.doubt(now, target, mac),
                _ => Claim::Ignored,
            };
            if let Claim::Ask { of } = claim {
                ask(network, common, target, of);
            }
        }
        if !router && counts {
            network.forget_router(target);
        }
        Ok(())
    }

    /// Handles a redirect: a router says that `destination` is better reached by `target`.
    pub(super) fn handle_redirect(
        &mut self,
        packet: &Packet<'_, '_>,
        network: &mut Network,
        common: &mut Common,
        target: Addr,
        destination: Addr,
        target_mac: Option<Mac>,
    ) -> Result<(), Reason> {
        let (header, now) = (packet.header, packet.arrival.now);
        // RFC 4861 §8.1: a redirect comes from the router that is used for this destination now, and names a
        // neighbour.
        let is_for_us = network.is_own(header.dst);
        let is_neighbour = target.is_link_local() || target == destination;
        let is_from_router =
            header.src.is_link_local() && network.next_hop(&self.neighbours, destination) == Some(header.src);
        let is_host = |addr: Addr| cast(addr) == Some(Cast::Unicast) && !network.is_own(addr);
        if !is_for_us || !is_neighbour || !is_from_router || !is_host(destination) || !is_host(target) {
            return Err(Reason::NdIgnored);
        }
        network.redirect(now, destination, target);
        common.count().redirects += 1;
        if let Some(mac) = target_mac.filter(|mac| common.is_other_station(*mac)) {
            match self.neighbours.station(target) {
                None => self.learn(now, network, common, target, mac),
                // The router contradicts what is known: the known station is asked.
                Some(_) => {
                    if let Claim::Ask { of } = self.neighbours.doubt(now, target, mac) {
                        ask(network, common, target, of);
                    }
                }
            }
        }
        Ok(())
    }

    /// Learns that `addr` itself has claimed `mac`: it is believed if nothing else is known; otherwise the
    /// known station is asked.
    pub(super) fn learn(
        &mut self,
        now: Instant,
        network: &Network,
        common: &mut Common,
        addr: Addr,
        mac: Mac,
    ) {
        let (claim, evicted) = self.neighbours.learn(now, addr, mac);
        common.count().neighbours_evicted += u64::from(evicted);
        if let Claim::Ask { of } = claim {
            ask(network, common, addr, of);
        }
    }

    /// Notes that packets through `hop` have arrived; see [`Neighbours::progress`].
    pub(super) fn progress(&mut self, now: Instant, hop: Addr, settles: bool) {
        self.neighbours.progress(now, hop, settles);
    }

    /// Asks neighbours again, gives them up and forgets them, as far as that is due at `now`.
    pub(super) fn expire(&mut self, now: Instant, network: &mut Network, common: &mut Common) {
        let mut due = Vec::new();
        self.neighbours.expire(now, |what| due.push(what));
        for what in due {
            match what {
                Due::Ask { addr, of } => ask(network, common, addr, of),
                Due::Failed { addr } => {
                    common.count().neighbours_failed += 1;
                    network.forget_redirects(addr);
                }
            }
        }
    }
}

/// Gives up a tentative address because another station has it or wants it (RFC 4862 §5.4.5).
fn handle_conflict(network: &mut Network, common: &mut Common, addr: Addr) {
    common.count().nd_conflicts += 1;
    network.give_up(addr);
}

/// Asks for the station of `addr`. `of` is the station to ask, or [`Mac::BROADCAST`] for all.
fn ask(network: &Network, common: &mut Common, addr: Addr, of: Mac) {
    let Some(src) = network.source_for(addr) else { return };
    // RFC 4429 §3.2: a tentative address must not get into the caches of others.
    let source_mac = (!network.is_tentative(src)).then_some(common.mac());
    let (dst, mac) = match of.is_broadcast() {
        true => (solicited_node(addr), multicast_mac(solicited_node(addr))),
        false => (addr, of),
    };
    if send(common, src, dst, mac, &Message::NeighbourSolicitation { target: addr, source_mac }) {
        common.count().nd_solicitations += 1;
    }
}

/// Asks whether any station has `addr`, which we are about to use (RFC 4862 §5.4.2).
pub(super) fn probe(common: &mut Common, addr: Addr) {
    let group = solicited_node(addr);
    let message = Message::NeighbourSolicitation { target: addr, source_mac: None };
    if send(common, Addr::ANY, group, multicast_mac(group), &message) {
        common.count().nd_solicitations += 1;
    }
}

/// Advertises that `target` is ours.
fn advertise(network: &Network, common: &mut Common, dst: Addr, to: Mac, target: Addr, solicited: bool) {
    // RFC 4429 §3.3: a tentative address does not replace that of another station.
    let overriding = !network.is_tentative(target);
    let target_mac = Some(common.mac());
    let message =
        Message::NeighbourAdvertisement { target, router: false, solicited, overriding, target_mac };
    if send(common, target, dst, to, &message) {
        common.count().nd_advertisements += 1;
    }
}

/// Queues a message of neighbour discovery.
pub(super) fn send(common: &mut Common, src: Addr, dst: Addr, dst_mac: Mac, message: &Message) -> bool {
    let mut text = [0; nd::MESSAGE_LEN_MAX];
    let payload_len = nd::emit(src, dst, message, &mut text);
    let packet = Outgoing {
        dst_mac,
        src,
        dst,
        protocol: Protocol::ICMPV6,
        payload_len,
        tos: 0,
        ttl: nd::HOP_LIMIT,
        dont_fragment: true,
    };
    common.send_small(&packet, &text[..payload_len])
}
