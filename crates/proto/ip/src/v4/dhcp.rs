//! Carries out what the DHCP client asks for: datagrams, ARP probes, and the change of address.
//!
//! The first replica of a stack runs the client. The link server gives it all answers, and all ARP packets
//! about an address that is being probed.

use alloc::boxed::Box;
use alloc::vec;

use atoll_base::{Addr, Instant, Rng};
use atoll_wire::arp::{Operation, Packet};
use atoll_wire::dhcp::{CLIENT_PORT, SERVER_PORT};
use atoll_wire::ipv4::{self, Protocol};
use atoll_wire::{Mac, udp};

use super::arp::{self, Arp};
use super::input;
use super::network::Network;
use crate::common::Common;
use crate::counters::Reason;
use crate::dhcp::{Client, Output};
use crate::input::{Arrival, Received};
use crate::link::{Cast, Link};
use crate::output::{Outgoing, Route, TTL};

/// The DHCP client, in the replica that asks for an address; boxed, to keep it away from what packets need.
#[derive(Debug)]
pub(super) struct Dhcp {
    client: Option<Box<Client>>,
}

impl Dhcp {
    pub(super) fn new(client: Option<Client>) -> Dhcp {
        Dhcp { client: client.map(Box::new) }
    }

    pub(super) fn client(&self) -> Option<&Client> {
        self.client.as_deref()
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.client().and_then(Client::next_timeout)
    }

    /// Returns whether a datagram is the answer of a DHCP server to this replica.
    #[inline]
    pub(super) fn is_for(&self, link: Link, header: &ipv4::Header, bytes: &[u8]) -> bool {
        const PORTS: [u8; 4] = {
            let ([a, b], [c, d]) = (SERVER_PORT.to_be_bytes(), CLIENT_PORT.to_be_bytes());
            [a, b, c, d]
        };
        self.client.is_some()
            && link == Link::Outside
            && header.protocol == Protocol::UDP
            && !header.is_fragment()
            && bytes.starts_with(&PORTS)
    }

    /// Judges a datagram for which [`Dhcp::is_for`] holds; its destination may be an address that is not ours
    /// yet.
    #[inline(never)]
    pub(super) fn receive<'a>(
        &mut self,
        arrival: &Arrival<'a>,
        header: &ipv4::Header,
        bytes: &'a [u8],
        network: &mut Network,
        arp: &mut Arp,
        common: &mut Common,
    ) -> Result<Received<'a>, Reason> {
        if !network.addresses().is_source(Link::Outside, header.src) {
            return Err(Reason::Martian);
        }
        let Received::Udp { payload, .. } = input::udp(header, Cast::Unicast, bytes, arrival.offload)? else {
            return Err(Reason::Malformed);
        };
        let mut believed = false;
        self.act(arrival.now, network, arp, common, |client, rng| {
            believed = client.handle(arrival.now, arrival.from, payload, rng);
        });
        common.count().dhcp_ignored += u64::from(!believed);
        Ok(Received::Consumed)
    }

    /// Handles an ARP packet that shows that another station has the probed address; returns whether it does.
    pub(super) fn receive_arp(
        &mut self,
        now: Instant,
        packet: &Packet,
        network: &mut Network,
        arp: &mut Arp,
        common: &mut Common,
    ) -> bool {
        let Some(probed) = self.client().and_then(Client::probed) else { return false };
        let is_probe =
            packet.operation == Operation::Request && packet.sender_addr == 0 && packet.target_addr == probed;
        if packet.sender_addr != probed && !is_probe {
            return false;
        }
        common.count().arp_conflicts += 1;
        self.act(now, network, arp, common, |client, rng| client.handle_conflict(now, rng));
        true
    }

    /// Does what is due for the client at `now`.
    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        network: &mut Network,
        arp: &mut Arp,
        common: &mut Common,
    ) {
        if self.next_timeout().is_some_and(|due| due <= now) {
            self.act(now, network, arp, common, |client, rng| client.handle_timeout(now, rng));
        }
    }

    /// Calls `act` with the client, if there is one, and then carries out what the client asks for.
    pub(super) fn act(
        &mut self,
        now: Instant,
        network: &mut Network,
        arp: &mut Arp,
        common: &mut Common,
        act: impl FnOnce(&mut Client, &mut Rng),
    ) {
        let Some(client) = &mut self.client else { return };
        let before = client.state();
        act(client, common.rng());
        if client.state() != before {
            network.note();
        }
        while let Some(output) = client.poll() {
            match output {
                Output::Send { src, dst, message } => {
                    let dst_mac = match arp.route(now, network.addresses(), common, dst) {
                        Route::Via { mac } => Some(mac),
                        // Answers came from that station, whether it is the server's own or a relay's. The
                        // client repeats what is sent there in vain.
                        Route::Resolving | Route::Unreachable => client.station(),
                        Route::Local => None,
                    };
                    if let Some(dst_mac) = dst_mac {
                        send(common, src, dst, dst_mac, &message);
                    }
                }
                Output::Probe { addr } => arp::probe(common, addr),
                Output::Use(lease) => {
                    let before = network.addresses().own();
                    network.set(Some(lease.address), arp);
                    if network.addresses().own() != before {
                        arp.announce(now, network.addresses(), common);
                    }
                }
                Output::Lost => network.set(None, arp),
            }
        }
    }
}

/// Sends a DHCP message to the server's port of `dst`.
fn send(common: &mut Common, src: u32, dst: u32, dst_mac: Mac, message: &[u8]) {
    let mut datagram = vec![0; udp::HEADER_LEN];
    // The cast cannot truncate: messages are short.
    let payload_len = message.len() as u16;
    let header = udp::Header { src_port: CLIENT_PORT, dst_port: SERVER_PORT, payload_len, checksum: 0 };
    udp::emit(&header, &mut datagram);
    datagram.extend_from_slice(message);
    udp::seal(src, dst, &mut datagram);
    let packet = Outgoing {
        dst_mac,
        src: Addr::v4(src),
        dst: Addr::v4(dst),
        protocol: Protocol::UDP,
        payload_len: datagram.len(),
        tos: 0,
        ttl: TTL,
        dont_fragment: false,
    };
    common.send_small(&packet, &datagram);
}
