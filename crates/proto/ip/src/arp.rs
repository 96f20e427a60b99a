//! Resolves IPv4 addresses by ARP (RFC 826), and announces and defends our own address (RFC 5227).
//!
//! ARP proves nothing, so belief is rationed. A station is believed about itself when it asks for *our*
//! address, because it wants to talk to us, or when it answers a question of this stack. A claim that
//! contradicts a known station is at most a reason to ask that station (see `neighbours.rs`).

use atoll_base::Instant;
use atoll_wire::arp::{self, Operation, Packet};
use atoll_wire::ethernet::{self, EtherType};
use atoll_wire::{Mac, ParseError};

use crate::counters::Reason;
use crate::ip::{ANNOUNCE_INTERVAL, DEFEND_INTERVAL, Ip};
use crate::link::Link;
use crate::neighbours::{Basis, Claim};

impl Ip {
    /// Announces our IPv4 address to the link, now and once more after two seconds (RFC 5227 §2.3):
    /// neighbours that knew the address at another station learn the new one. Also starts duplicate address
    /// detection for the IPv6 addresses (RFC 4862 §5.4), router solicitation, and the DHCP client if the
    /// address comes by DHCP. One replica of a stack calls this when its link comes up.
    pub fn announce(&mut self, now: Instant) {
        self.announce_v4(now);
        self.start_v6(now);
        self.start_dhcp(now);
    }

    /// Announces the IPv4 address, if there is one, and schedules the second announcement.
    pub(crate) fn announce_v4(&mut self, now: Instant) {
        self.send_announcement();
        self.announcements.due = self.addresses.own().map(|_| now + ANNOUNCE_INTERVAL);
    }

    /// Judges the ARP packet behind an Ethernet header. `to` is the hardware destination of the frame.
    /// Returns the reason if the packet was dropped.
    #[inline(never)]
    pub(crate) fn handle_arp(&mut self, now: Instant, to: Mac, bytes: &[u8]) -> Result<(), Reason> {
        let (packet, _) = arp::parse(bytes).map_err(|error| match error {
            ParseError::Unsupported => Reason::ArpIgnored,
            _ => Reason::Malformed,
        })?;
        if !packet.sender_mac.is_station() || packet.sender_mac == self.common.mac() {
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
            Operation::Reply if for_us && to == self.common.mac() => self.handle_answer(now, &packet)?,
            _ if packet.sender_addr == packet.target_addr => self.handle_announcement(now, &packet),
            _ => return Err(Reason::ArpIgnored),
        }
        Ok(())
    }

    /// Answers a request for our address, and learns the sender's station.
    fn handle_question(&mut self, now: Instant, packet: &Packet) {
        // A probe (RFC 5227 §2.1.1) comes from 0.0.0.0, which is no neighbour: the probe is answered, and
        // nothing is learned from it.
        if self.addresses.is_neighbour(packet.sender_addr) {
            let claim = self.learn(now, packet.sender_addr, packet.sender_mac);
            self.pass_on(claim, packet);
        }
        let reply = Packet {
            operation: Operation::Reply,
            sender_mac: self.common.mac(),
            // The address that was asked for, which is ours.
            sender_addr: packet.target_addr,
            target_mac: packet.sender_mac,
            target_addr: packet.sender_addr,
        };
        if self.send_arp(packet.sender_mac, &reply) {
            self.common.count().arp_replies += 1;
        }
    }

    /// Handles an answer to a question of this replica or of another one: the device delivers it to one of
    /// them only.
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

    /// Handles an announcement: a station tells all others where an address is.
    fn handle_announcement(&mut self, now: Instant, packet: &Packet) {
        let claim = self.neighbours.doubt(now, packet.sender_addr, packet.sender_mac);
        self.pass_on(claim, packet);
    }

    /// Passes a claim that was heard on to the other replicas, which judge it for themselves, and asks the
    /// station that it contradicts.
    fn pass_on(&mut self, claim: Claim, packet: &Packet) {
        if let Claim::Ask { of } = claim {
            self.ask(packet.sender_addr, of);
        }
        if matches!(claim, Claim::Learned | Claim::Ask { .. }) {
            self.tell(packet.sender_addr, packet.sender_mac, Basis::Learned);
        }
    }

    /// Announces our address once more because another station claims it (RFC 5227 §2.4 (b)).
    fn handle_conflict(&mut self, now: Instant) {
        self.common.count().arp_conflicts += 1;
        if self.announcements.defended_at.is_none_or(|at| now.since(at) >= DEFEND_INTERVAL) {
            self.announcements.defended_at = Some(now);
            self.send_announcement();
        }
    }

    /// Asks for the station of `addr`. `of` is the station to ask, or the broadcast address. Does nothing as
    /// long as we have no address, because no sender address could be given.
    pub(crate) fn ask(&mut self, addr: u32, of: Mac) {
        if let Some(own) = self.addresses.own() {
            self.ask_as(own, addr, of);
        }
    }

    /// Asks whether any station has `addr`, which we are about to use (RFC 5227 §2.1.1).
    pub(crate) fn probe_v4(&mut self, addr: u32) {
        self.ask_as(0, addr, Mac::BROADCAST);
    }

    fn ask_as(&mut self, own: u32, addr: u32, of: Mac) {
        let question = Packet {
            operation: Operation::Request,
            sender_mac: self.common.mac(),
            sender_addr: own,
            target_mac: Mac::ZERO,
            target_addr: addr,
        };
        if self.send_arp(of, &question) {
            self.common.count().arp_requests += 1;
        }
    }

    /// Broadcasts an announcement: a request in which sender and target address are both ours (RFC 5227
    /// §2.3).
    pub(crate) fn send_announcement(&mut self) {
        if let Some(own) = self.addresses.own() {
            self.ask(own, Mac::BROADCAST);
        }
    }

    fn send_arp(&mut self, to: Mac, packet: &Packet) -> bool {
        let mut bytes = alloc::vec![0; FRAME_LEN];
        let header = ethernet::Header { dst: to, src: self.common.mac(), ethertype: EtherType::ARP };
        let at = ethernet::emit(&header, &mut bytes);
        arp::emit(packet, &mut bytes[at..]);
        self.common.queue(Link::Outside, bytes)
    }
}

const FRAME_LEN: usize = ethernet::HEADER_LEN + arp::PACKET_LEN;
