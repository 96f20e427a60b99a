//! How are stations asked for, answered, and believed? RFC 826; announcements and conflicts by RFC 5227.
//!
//! ARP has no proof, so belief is rationed. A station is believed about itself when it asks *us* (it wants to
//! talk to us), or when it answers a question that this stack asked; but what contradicts a station that is
//! known is at most a reason to ask that one (see `neighbours.rs`).

use atoll_base::Instant;
use atoll_wire::arp::{self, Operation, Packet};
use atoll_wire::ethernet::{self, EtherType};
use atoll_wire::{Mac, ParseError};

use crate::counters::Reason;
use crate::ip::{ANNOUNCE_INTERVAL, DEFEND_INTERVAL, Frame, Ip, Link};
use crate::neighbours::{Basis, Claim};

impl Ip {
    /// Announces our address to the link, now and once more after two seconds (RFC 5227 §2.3). Called by one
    /// replica of a stack, when its link comes up: neighbours that knew the address under another station
    /// learn the new one. IPv6 addresses are tried out (RFC 4862 §5.4), routers asked for, and servers of
    /// DHCP, if those are to give an address.
    pub fn announce(&mut self, now: Instant) {
        self.announce_v4(now);
        self.start_v6(now);
        self.start_dhcp(now);
    }

    /// The IPv4 address, if there is one.
    pub(crate) fn announce_v4(&mut self, now: Instant) {
        self.send_announcement();
        self.announcements.due = self.addresses.own().map(|_| now + ANNOUNCE_INTERVAL);
    }

    /// Judges the ARP packet behind an Ethernet header. `to`: its hardware destination.
    #[inline(never)]
    pub(crate) fn handle_arp(&mut self, now: Instant, to: Mac, bytes: &[u8]) -> Result<(), Reason> {
        let (packet, _) = arp::parse(bytes).map_err(|error| match error {
            ParseError::Unsupported => Reason::ArpIgnored,
            _ => Reason::Malformed,
        })?;
        if !packet.sender_mac.is_station() || packet.sender_mac == self.config.mac {
            return Err(Reason::ArpIgnored);
        }
        if self.handle_arp_for_dhcp(now, &packet) {
            return Ok(());
        }
        if self.addresses.is_own(packet.sender_addr) {
            self.handle_conflict(now);
            return Err(Reason::ArpIgnored);
        }
        let for_us = self.addresses.is_own(packet.target_addr);
        match packet.operation {
            Operation::Request if for_us => self.handle_question(now, &packet),
            Operation::Reply if for_us && to == self.config.mac => self.handle_answer(now, &packet)?,
            _ if packet.sender_addr == packet.target_addr => self.handle_announcement(now, &packet),
            _ => return Err(Reason::ArpIgnored),
        }
        Ok(())
    }

    /// Somebody asks for us: answer, and take note of who asks.
    fn handle_question(&mut self, now: Instant, packet: &Packet) {
        // A probe (RFC 5227 §2.1.1) comes from 0.0.0.0, which is no neighbour: it is answered and teaches
        // nothing.
        if self.addresses.is_neighbour(packet.sender_addr) {
            let claim = self.learn(now, packet.sender_addr, packet.sender_mac);
            self.pass_on(claim, packet);
        }
        let reply = Packet {
            operation: Operation::Reply,
            sender_mac: self.config.mac,
            // What was asked for: ours.
            sender_addr: packet.target_addr,
            target_mac: packet.sender_mac,
            target_addr: packet.sender_addr,
        };
        if self.send_arp(packet.sender_mac, &reply) {
            self.counters.arp_replies += 1;
        }
    }

    /// Somebody answers us, or another replica: the device delivers to one of us only.
    fn handle_answer(&mut self, now: Instant, packet: &Packet) -> Result<(), Reason> {
        let (addr, mac) = (packet.sender_addr, packet.sender_mac);
        if !self.addresses.is_neighbour(addr) {
            return Err(Reason::ArpIgnored);
        }
        match self.neighbours.answer(now, addr, mac) {
            Claim::Confirmed | Claim::Ignored => self.tell(addr, mac, Basis::Overheard),
            claim => self.pass_on(claim, packet),
        }
        Ok(())
    }

    /// Somebody tells everybody where it is.
    fn handle_announcement(&mut self, now: Instant, packet: &Packet) {
        let claim = self.neighbours.doubt(now, packet.sender_addr, packet.sender_mac);
        self.pass_on(claim, packet);
    }

    /// What follows from a claim that was heard: the other replicas hear of it, and judge it for themselves;
    /// the station that it contradicts is asked.
    fn pass_on(&mut self, claim: Claim, packet: &Packet) {
        if let Claim::Ask { of } = claim {
            self.ask(packet.sender_addr, of);
        }
        if matches!(claim, Claim::Learned | Claim::Ask { .. }) {
            self.tell(packet.sender_addr, packet.sender_mac, Basis::Learned);
        }
    }

    /// Another station claims our address: say once more that it is ours (RFC 5227 §2.4 (b)).
    fn handle_conflict(&mut self, now: Instant) {
        self.counters.arp_conflicts += 1;
        if self.announcements.defended_at.is_none_or(|at| now.since(at) >= DEFEND_INTERVAL) {
            self.announcements.defended_at = Some(now);
            self.send_announcement();
        }
    }

    /// Asks `of` (one station, or everybody) for `addr`. Without an address of our own there is nobody to ask
    /// for.
    pub(crate) fn ask(&mut self, addr: u32, of: Mac) {
        if let Some(own) = self.addresses.own() {
            self.ask_as(own, addr, of);
        }
    }

    /// Asks whether anybody has `addr`, which is to be ours (RFC 5227 §2.1.1).
    pub(crate) fn probe_v4(&mut self, addr: u32) {
        self.ask_as(0, addr, Mac::BROADCAST);
    }

    fn ask_as(&mut self, own: u32, addr: u32, of: Mac) {
        let question = Packet {
            operation: Operation::Request,
            sender_mac: self.config.mac,
            sender_addr: own,
            target_mac: Mac::ZERO,
            target_addr: addr,
        };
        if self.send_arp(of, &question) {
            self.counters.arp_requests += 1;
        }
    }

    /// RFC 5227 §2.3: a request in which sender and target address are both ours.
    pub(crate) fn send_announcement(&mut self) {
        if let Some(own) = self.addresses.own() {
            self.ask(own, Mac::BROADCAST);
        }
    }

    fn send_arp(&mut self, to: Mac, packet: &Packet) -> bool {
        let mut bytes = alloc::vec![0; FRAME_LEN];
        let header = ethernet::Header { dst: to, src: self.config.mac, ethertype: EtherType::ARP };
        let at = ethernet::emit(&header, &mut bytes);
        arp::emit(packet, &mut bytes[at..]);
        self.queue(Frame { link: Link::Outside, bytes })
    }
}

const FRAME_LEN: usize = ethernet::HEADER_LEN + arp::PACKET_LEN;
