//! Resolves IPv6 addresses by neighbour discovery (RFC 4861 §7), and detects duplicate addresses (RFC 4862
//! §5.4). As with ARP there is no proof, and belief is rationed in the same way (see `arp.rs`).

use atoll_base::{Addr, Instant};
use atoll_wire::Mac;
use atoll_wire::ethernet::{self, EtherType};
use atoll_wire::ipv4::Protocol;
use atoll_wire::ipv6::{self, multicast_mac};
use atoll_wire::nd::{self, Message, solicited_node};

use super::addresses::{ALL_NODES, State};
use crate::counters::Reason;
use crate::ip::Ip;
use crate::link::Link;
use crate::neighbours::Claim;

impl Ip {
    /// Handles a solicitation: another station asks for `target`.
    pub(super) fn handle_solicitation(
        &mut self,
        now: Instant,
        from: Mac,
        header: &ipv6::Header,
        target: Addr,
        source_mac: Option<Mac>,
    ) -> Result<(), Reason> {
        let Some(own) = self.v6.own.iter().find(|own| own.addr == target) else {
            return Err(Reason::NdIgnored);
        };
        let (tentative, usable) = (own.is_tentative(), own.state != State::Duplicate);
        if header.src == Addr::ANY {
            // RFC 4861 §7.1.1: a probe goes to the solicited-node group and names no station.
            if header.dst != solicited_node(target) || source_mac.is_some() {
                return Err(Reason::NdIgnored);
            }
            // RFC 4862 §5.4.3: if two stations probe the same address, neither gets it. Later ones are told
            // that it is taken.
            match tentative {
                true => self.handle_conflict_v6(target),
                false if usable => self.advertise(ALL_NODES, multicast_mac(ALL_NODES), target, false),
                false => {}
            }
            return Ok(());
        }
        if !usable {
            return Err(Reason::NdIgnored);
        }
        if self.is_neighbour_v6(header.src)
            && let Some(mac) = source_mac.filter(|mac| mac.is_station() && *mac != self.common.mac())
        {
            self.learn_v6(now, header.src, mac);
        }
        // The answer goes to the station that sent the question, as with ARP; that works for every replica.
        self.advertise(header.src, from, target, true);
        Ok(())
    }

    /// Handles an advertisement: a station tells us, or all hosts, where `target` is.
    pub(super) fn handle_advertisement(
        &mut self,
        now: Instant,
        header: &ipv6::Header,
        target: Addr,
        solicited: bool,
        overriding: bool,
        target_mac: Option<Mac>,
    ) -> Result<(), Reason> {
        // RFC 4861 §7.1.2: an advertisement to a group is not an answer.
        if solicited && header.dst.is_v6_multicast() {
            return Err(Reason::NdIgnored);
        }
        if let Some(own) = self.v6.own.iter().find(|own| own.addr == target) {
            if own.is_tentative() {
                self.handle_conflict_v6(target);
            } else {
                self.common.count().nd_conflicts += 1;
            }
            return Ok(());
        }
        // RFC 4861 §7.2.5: an answer to one station's question need not name the station again.
        let known = self.v6.neighbours.station(target);
        let Some(mac) = target_mac.or(known).filter(|mac| mac.is_station() && *mac != self.common.mac())
        else {
            return Err(Reason::NdIgnored);
        };
        if !self.is_neighbour_v6(target) {
            return Err(Reason::NdIgnored);
        }
        let claim = match (solicited, known == Some(mac)) {
            // RFC 4861 §7.2.5 lets an overriding advertisement replace what is known. DEVIATION: the known
            // station is asked first.
            (true, _) if overriding || known.is_none_or(|known| known == mac) => {
                self.v6.neighbours.answer(now, target, mac)
            }
            // The advertisement was not asked for, or is not meant to replace what is known.
            (false, false) if known.is_none() => self.v6.neighbours.answer(now, target, mac),
            (false, false) if overriding => self.v6.neighbours.doubt(now, target, mac),
            _ => Claim::Ignored,
        };
        if let Claim::Ask { of } = claim {
            self.ask_v6(target, of);
        }
        Ok(())
    }

    /// Learns that `addr` itself has claimed `mac`: it is believed if nothing else is known; otherwise the
    /// known station is asked.
    pub(super) fn learn_v6(&mut self, now: Instant, addr: Addr, mac: Mac) {
        let (claim, evicted) = self.v6.neighbours.learn(now, addr, mac);
        self.common.count().neighbours_evicted += u64::from(evicted);
        if let Claim::Ask { of } = claim {
            self.ask_v6(addr, of);
        }
    }

    /// Gives up a tentative address because another station has it or wants it (RFC 4862 §5.4.5).
    fn handle_conflict_v6(&mut self, addr: Addr) {
        self.common.count().nd_conflicts += 1;
        if let Some(own) = self.v6.own.iter_mut().find(|own| own.addr == addr) {
            own.state = State::Duplicate;
        }
        self.v6.generation += 1;
        self.v6.rearm();
    }

    /// Asks for the station of `addr`. `of` is the station to ask, or [`Mac::BROADCAST`] for all.
    pub(crate) fn ask_v6(&mut self, addr: Addr, of: Mac) {
        let Some(src) = self.source_for(addr) else { return };
        // RFC 4429 §3.2: a tentative address must not get into the caches of others.
        let tentative = self.v6.own.iter().any(|own| own.addr == src && own.is_tentative());
        let source_mac = (!tentative).then_some(self.common.mac());
        let (dst, mac) = match of.is_broadcast() {
            true => (solicited_node(addr), multicast_mac(solicited_node(addr))),
            false => (addr, of),
        };
        if self.send_nd(src, dst, mac, &Message::NeighbourSolicitation { target: addr, source_mac }) {
            self.common.count().nd_solicitations += 1;
        }
    }

    /// Asks whether any station has `addr`, which we are about to use (RFC 4862 §5.4.2).
    pub(super) fn probe(&mut self, addr: Addr) {
        let group = solicited_node(addr);
        let message = Message::NeighbourSolicitation { target: addr, source_mac: None };
        if self.send_nd(Addr::ANY, group, multicast_mac(group), &message) {
            self.common.count().nd_solicitations += 1;
        }
    }

    /// Advertises that `target` is ours.
    fn advertise(&mut self, dst: Addr, to: Mac, target: Addr, solicited: bool) {
        // RFC 4429 §3.3: a tentative address does not replace that of another station.
        let overriding = !self.v6.own.iter().any(|own| own.addr == target && own.is_tentative());
        let target_mac = Some(self.common.mac());
        let message =
            Message::NeighbourAdvertisement { target, router: false, solicited, overriding, target_mac };
        if self.send_nd(target, dst, to, &message) {
            self.common.count().nd_advertisements += 1;
        }
    }

    /// Queues a message of neighbour discovery.
    pub(super) fn send_nd(&mut self, src: Addr, dst: Addr, mac: Mac, message: &Message) -> bool {
        let mut text = [0; nd::MESSAGE_LEN_MAX];
        let len = nd::emit(src, dst, message, &mut text);
        self.send_v6(src, dst, mac, nd::HOP_LIMIT, Protocol::ICMPV6, &text[..len])
    }

    /// Queues a packet of neighbour or listener discovery for the outside link.
    pub(super) fn send_v6(
        &mut self,
        src: Addr,
        dst: Addr,
        mac: Mac,
        hop_limit: u8,
        next_header: Protocol,
        payload: &[u8],
    ) -> bool {
        let mut bytes = alloc::vec![0; ethernet::HEADER_LEN + ipv6::HEADER_LEN];
        let header = ethernet::Header { dst: mac, src: self.common.mac(), ethertype: EtherType::IPV6 };
        let at = ethernet::emit(&header, &mut bytes);
        // The cast cannot truncate: these messages are short.
        let payload_len = payload.len() as u16;
        let header =
            ipv6::Header { src, dst, next_header, payload_len, traffic_class: 0, flow_label: 0, hop_limit };
        ipv6::emit(&header, &mut bytes[at..]);
        bytes.extend_from_slice(payload);
        self.common.queue(Link::Outside, bytes)
    }
}
