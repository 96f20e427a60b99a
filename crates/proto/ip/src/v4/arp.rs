//! Resolves IPv4 addresses by ARP (RFC 826), and announces and defends our own address (RFC 5227).
//!
//! ARP proves nothing, so belief is rationed. A station is believed about itself when it asks for *our*
//! address, because it wants to talk to us, or when it answers a question of this stack. A claim that
//! contradicts a known station is at most a reason to ask that station (see `neighbours.rs`).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use atoll_base::{Duration, Instant};
use atoll_wire::Mac;
use atoll_wire::arp::{self, Operation, Packet};
use atoll_wire::ethernet::{self, EtherType};

use crate::addresses::{Addresses, is_loopback, multicast_mac};
use crate::common::Common;
use crate::counters::Reason;
use crate::link::{Cast, Link};
use crate::neighbours::{Basis, Claim, Due, Lookup, NeighbourUpdate, Neighbours};
use crate::output::Route;

/// The neighbours of the IPv4 address, and what other stations learn about the address.
#[derive(Debug)]
pub(super) struct Arp {
    neighbours: Neighbours<u32>,
    /// When the next announcement is sent (RFC 5227 §2.3).
    announce_at: Option<Instant>,
    /// When we last defended our address against a station that claimed it (RFC 5227 §2.4).
    defended_at: Option<Instant>,
    /// The updates for the other replicas.
    updates: VecDeque<NeighbourUpdate>,
    /// The neighbours that did not answer, which the owner has not yet polled.
    failed: VecDeque<u32>,
}

impl Arp {
    /// Creates the part without any neighbour. `key` must be secret.
    pub(super) fn new(neighbours_max: usize, gateway: Option<u32>, key: [u64; 2]) -> Arp {
        Arp {
            neighbours: Neighbours::new(neighbours_max, gateway, key),
            announce_at: None,
            defended_at: None,
            updates: VecDeque::new(),
            failed: VecDeque::new(),
        }
    }

    /// Returns the route to `dst`, and asks for the neighbour if it is not known.
    #[inline]
    pub(super) fn route(
        &mut self,
        now: Instant,
        addresses: &Addresses,
        common: &mut Common,
        dst: u32,
    ) -> Route {
        if addresses.is_own(dst) || is_loopback(dst) {
            return if common.config().loopback { Route::Local } else { Route::Unreachable };
        }
        match addresses.cast(dst) {
            Some(Cast::Unicast) => {}
            Some(Cast::Broadcast) => return Route::Via { mac: Mac::BROADCAST },
            Some(Cast::Multicast) => return Route::Via { mac: multicast_mac(dst) },
            None => return Route::Unreachable,
        }
        let Some(next_hop) = addresses.next_hop(dst) else { return Route::Unreachable };
        match self.neighbours.lookup(now, next_hop) {
            Lookup::Known(mac) => Route::Via { mac },
            Lookup::Resolving => Route::Resolving,
            Lookup::Failed => Route::Unreachable,
            Lookup::Absent => self.resolve(now, addresses, common, next_hop),
        }
    }

    #[cold]
    fn resolve(&mut self, now: Instant, addresses: &Addresses, common: &mut Common, next_hop: u32) -> Route {
        if !addresses.is_neighbour(next_hop) {
            return Route::Unreachable;
        }
        let evicted = self.neighbours.resolve(now, next_hop);
        common.count().neighbours_evicted += u64::from(evicted);
        ask(addresses, common, next_hop, Mac::BROADCAST);
        Route::Resolving
    }

    /// Forgets all neighbours, because the network has changed; `gateway` is the new one.
    pub(super) fn forget(&mut self, gateway: Option<u32>) {
        self.neighbours.clear(gateway);
        self.announce_at = None;
    }

    /// Announces our address, if there is one, and schedules the second announcement (RFC 5227 §2.3).
    pub(super) fn announce(&mut self, now: Instant, addresses: &Addresses, common: &mut Common) {
        announce(addresses, common);
        self.announce_at = addresses.own().map(|_| now + ANNOUNCE_INTERVAL);
    }

    /// Judges an ARP packet from another station, in a frame to `to`. Returns the reason if the packet was
    /// dropped.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        addresses: &Addresses,
        common: &mut Common,
        to: Mac,
        packet: &Packet,
    ) -> Result<(), Reason> {
        if addresses.is_own(packet.sender_addr) {
            self.handle_conflict(now, addresses, common);
            return Err(Reason::ArpIgnored);
        }
        let for_us = addresses.is_own(packet.target_addr);
        match packet.operation {
            Operation::Request if for_us => self.handle_question(now, addresses, common, packet),
            // The answer is to a question of this replica or of another one: the device delivers it to one of
            // them only.
            Operation::Reply if for_us && to == common.mac() => {
                if !addresses.is_neighbour(packet.sender_addr) {
                    return Err(Reason::ArpIgnored);
                }
                match self.neighbours.answer(now, packet.sender_addr, packet.sender_mac) {
                    Claim::Confirmed | Claim::Ignored => self.tell(common, packet, Basis::Overheard),
                    claim => self.pass_on(addresses, common, claim, packet),
                }
            }
            // An announcement: a station sends its address to all others.
            _ if packet.sender_addr == packet.target_addr => {
                let claim = self.neighbours.doubt(now, packet.sender_addr, packet.sender_mac);
                self.pass_on(addresses, common, claim, packet);
            }
            _ => return Err(Reason::ArpIgnored),
        }
        Ok(())
    }

    /// Answers a request for our address, and learns the sender's station.
    fn handle_question(&mut self, now: Instant, addresses: &Addresses, common: &mut Common, packet: &Packet) {
        // A probe (RFC 5227 §2.1.1) comes from 0.0.0.0, which is no neighbour: the probe is answered, and
        // nothing is learned from it.
        if addresses.is_neighbour(packet.sender_addr) {
            let claim = self.learn(now, common, packet.sender_addr, packet.sender_mac);
            self.pass_on(addresses, common, claim, packet);
        }
        let reply = Packet {
            operation: Operation::Reply,
            sender_mac: common.mac(),
            // The address that was asked for, which is ours.
            sender_addr: packet.target_addr,
            target_mac: packet.sender_mac,
            target_addr: packet.sender_addr,
        };
        if send(common, packet.sender_mac, &reply) {
            common.count().arp_replies += 1;
        }
    }

    /// Announces our address once more because another station claims it (RFC 5227 §2.4 (b)).
    fn handle_conflict(&mut self, now: Instant, addresses: &Addresses, common: &mut Common) {
        common.count().arp_conflicts += 1;
        if self.defended_at.is_none_or(|at| now.since(at) >= DEFEND_INTERVAL) {
            self.defended_at = Some(now);
            announce(addresses, common);
        }
    }

    /// Learns `mac` for `addr` from a source that needs no confirmation. Returns what became of the claim.
    fn learn(&mut self, now: Instant, common: &mut Common, addr: u32, mac: Mac) -> Claim {
        let (claim, evicted) = self.neighbours.learn(now, addr, mac);
        common.count().neighbours_evicted += u64::from(evicted);
        claim
    }

    /// Passes a received claim on to the other replicas, which judge it for themselves, and asks the station
    /// that it contradicts.
    fn pass_on(&mut self, addresses: &Addresses, common: &mut Common, claim: Claim, packet: &Packet) {
        if let Claim::Ask { of } = claim {
            ask(addresses, common, packet.sender_addr, of);
        }
        if matches!(claim, Claim::Learned | Claim::Ask { .. }) {
            self.tell(common, packet, Basis::Learned);
        }
    }

    /// Queues what a packet has said of its sender for the other replicas.
    fn tell(&mut self, common: &mut Common, packet: &Packet, basis: Basis) {
        let update = NeighbourUpdate { addr: packet.sender_addr, mac: packet.sender_mac, basis };
        common.push(&mut self.updates, update);
    }

    /// Applies a neighbour update from another replica, after checking it. Updates about addresses that are
    /// no neighbours of ours are ignored.
    pub(super) fn handle_update(
        &mut self,
        now: Instant,
        addresses: &Addresses,
        common: &mut Common,
        update: NeighbourUpdate,
    ) {
        let NeighbourUpdate { addr, mac, basis } = update;
        if !common.is_other_station(mac) || !addresses.is_neighbour(addr) {
            return;
        }
        let claim = match basis {
            Basis::Learned => self.learn(now, common, addr, mac),
            Basis::Overheard => self.neighbours.answer(now, addr, mac),
        };
        if let Claim::Ask { of } = claim {
            ask(addresses, common, addr, of);
        }
    }

    /// Notes that packets through `hop` have arrived; see [`Neighbours::progress`].
    pub(super) fn progress(&mut self, now: Instant, hop: u32, settles: bool) {
        self.neighbours.progress(now, hop, settles);
    }

    /// Asks neighbours again, gives them up and forgets them, as far as that is due at `now`.
    pub(super) fn expire(&mut self, now: Instant, addresses: &Addresses, common: &mut Common) {
        let mut due = Vec::new();
        self.neighbours.expire(now, |what| due.push(what));
        for what in due {
            match what {
                Due::Ask { addr, of } => ask(addresses, common, addr, of),
                Due::Failed { addr } => {
                    let max = common.config().neighbours_max;
                    common.count().neighbours_failed += 1;
                    common.count().push(&mut self.failed, addr, max);
                }
            }
        }
    }

    /// Announces our address a second time when that is due.
    pub(super) fn announce_again(&mut self, now: Instant, addresses: &Addresses, common: &mut Common) {
        if self.announce_at.is_some_and(|due| due <= now) {
            self.announce_at = None;
            announce(addresses, common);
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        [self.neighbours.next_due(), self.announce_at].into_iter().flatten().min()
    }

    pub(super) const fn generation(&self) -> u64 {
        self.neighbours.generation()
    }

    pub(super) fn poll_update(&mut self) -> Option<NeighbourUpdate> {
        self.updates.pop_front()
    }

    pub(super) fn poll_failed(&mut self) -> Option<u32> {
        self.failed.pop_front()
    }

    pub(super) fn check_invariants(&self, common: &Common) {
        self.neighbours.check_invariants();
        assert!(self.updates.len() <= common.config().frames_max);
        assert!(self.failed.len() <= common.config().neighbours_max);
    }
}

/// Asks for the station of `addr`. `of` is the station to ask, or the broadcast address. Does nothing as long
/// as we have no address, because no sender address could be given.
fn ask(addresses: &Addresses, common: &mut Common, addr: u32, of: Mac) {
    if let Some(own) = addresses.own() {
        ask_as(common, own, addr, of);
    }
}

/// Broadcasts an announcement: a request in which sender and target address are both ours (RFC 5227 §2.3).
fn announce(addresses: &Addresses, common: &mut Common) {
    if let Some(own) = addresses.own() {
        ask_as(common, own, own, Mac::BROADCAST);
    }
}

/// Asks whether any station has `addr`, which we are about to use (RFC 5227 §2.1.1).
pub(super) fn probe(common: &mut Common, addr: u32) {
    ask_as(common, 0, addr, Mac::BROADCAST);
}

fn ask_as(common: &mut Common, own: u32, addr: u32, of: Mac) {
    let question = Packet {
        operation: Operation::Request,
        sender_mac: common.mac(),
        sender_addr: own,
        target_mac: Mac::ZERO,
        target_addr: addr,
    };
    if send(common, of, &question) {
        common.count().arp_requests += 1;
    }
}

fn send(common: &mut Common, to: Mac, packet: &Packet) -> bool {
    let mut bytes = alloc::vec![0; FRAME_LEN];
    let header = ethernet::Header { dst: to, src: common.mac(), ethertype: EtherType::ARP };
    let at = ethernet::emit(&header, &mut bytes);
    arp::emit(packet, &mut bytes[at..]);
    common.queue(Link::Outside, bytes)
}

const FRAME_LEN: usize = ethernet::HEADER_LEN + arp::PACKET_LEN;

/// The time between two announcements (ANNOUNCE_INTERVAL, RFC 5227 §1.1).
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// The shortest time between two defences of our address (DEFEND_INTERVAL, RFC 5227 §1.1).
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);
