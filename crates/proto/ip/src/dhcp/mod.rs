//! Gets the stack's IPv4 address from a DHCP server: carries out what [`Client`] asks for (datagrams, ARP
//! probes, the change of address).
//!
//! The first replica of a stack runs the client. The link server gives it all answers, and all ARP packets
//! about an address that is being probed.

mod client;
mod lease;

use alloc::string::String;
use alloc::vec::Vec;

use atoll_base::{Addr, Instant};
use atoll_wire::arp::{Operation, Packet};
use atoll_wire::dhcp::{CLIENT_PORT, SERVER_PORT};
use atoll_wire::ethernet;
use atoll_wire::ipv4::{self, Protocol};
use atoll_wire::{Mac, udp};

use crate::counters::Reason;
use crate::input::{self, ChecksumOffload, Received};
use crate::ip::Ip;
use crate::link::Cast;
use crate::link::Link;
use crate::output::{HEADERS_LEN, Outgoing, Route, TTL};

pub use client::{Client, Output, State};
pub use lease::Lease;

/// What is known of DHCP, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// The state of the client.
    pub state: State,
    /// The server that gave the address; 0 as long as there is none.
    pub server: u32,
    /// The DNS resolvers that the server named.
    pub dns: Vec<u32>,
    /// The domain that the server named; empty if none.
    pub domain: String,
}

impl Ip {
    /// Returns the DHCP client; `None` if this replica does not run one.
    pub fn dhcp(&self) -> Option<&Client> {
        self.dhcp.as_deref()
    }

    /// Returns what is known of DHCP; `None` if neither this replica nor its IP server runs a client.
    pub fn dhcp_news(&self) -> Option<News> {
        let Some(client) = self.dhcp() else { return self.half.as_ref().and_then(|half| half.dhcp.clone()) };
        let known = client.lease();
        Some(News {
            state: client.state(),
            server: known.map_or(0, |lease| lease.server),
            dns: known.map(|lease| lease.dns.clone()).unwrap_or_default(),
            domain: known.map(|lease| lease.domain.clone()).unwrap_or_default(),
        })
    }

    /// Releases the address to the server, if it came from one. Call when the stack ends.
    pub fn release(&mut self, now: Instant) {
        self.with_client(now, |client, _| client.release());
    }

    /// Continues a lease that a predecessor got.
    pub(crate) fn resume_dhcp(&mut self, now: Instant, lease: &Lease) {
        self.with_client(now, |client, _| client.resume(now, lease));
    }

    pub(crate) fn start_dhcp(&mut self, now: Instant) {
        self.with_client(now, |client, rng| client.start(now, rng));
    }

    /// Does what is due for the client at `now`.
    pub(crate) fn handle_timeout_dhcp(&mut self, now: Instant) {
        if self.dhcp.as_deref().and_then(Client::next_timeout).is_some_and(|due| due <= now) {
            self.with_client(now, |client, rng| client.handle_timeout(now, rng));
        }
    }

    /// Returns whether a datagram is the answer of a DHCP server to this replica.
    #[inline]
    pub(crate) fn is_for_dhcp(&self, link: Link, header: &ipv4::Header, bytes: &[u8]) -> bool {
        const PORTS: [u8; 4] = {
            let ([a, b], [c, d]) = (SERVER_PORT.to_be_bytes(), CLIENT_PORT.to_be_bytes());
            [a, b, c, d]
        };
        self.dhcp.is_some()
            && link == Link::Outside
            && header.protocol == Protocol::UDP
            && !header.is_fragment()
            && bytes.starts_with(&PORTS)
    }

    /// Judges a datagram for which [`Ip::is_for_dhcp`] holds; its destination may be an address that is not
    /// ours yet.
    #[inline(never)]
    pub(crate) fn handle_dhcp<'a>(
        &mut self,
        now: Instant,
        from: Mac,
        header: &ipv4::Header,
        bytes: &'a [u8],
        offload: ChecksumOffload,
    ) -> Result<Received<'a>, Reason> {
        if !self.addresses.is_source(Link::Outside, header.src) {
            return Err(Reason::Martian);
        }
        let Received::Udp { payload, .. } = input::udp(header, Cast::Unicast, bytes, offload)? else {
            return Err(Reason::Malformed);
        };
        let mut believed = false;
        self.with_client(now, |client, rng| believed = client.handle(now, from, payload, rng));
        self.common.count().dhcp_ignored += u64::from(!believed);
        Ok(Received::Consumed)
    }

    /// Handles an ARP packet that shows that another station has the probed address; returns whether it does.
    pub(crate) fn handle_arp_for_dhcp(&mut self, now: Instant, packet: &Packet) -> bool {
        let Some(probed) = self.dhcp.as_deref().and_then(Client::probed) else { return false };
        let is_probe =
            packet.operation == Operation::Request && packet.sender_addr == 0 && packet.target_addr == probed;
        if packet.sender_addr != probed && !is_probe {
            return false;
        }
        self.common.count().arp_conflicts += 1;
        self.with_client(now, |client, rng| client.handle_conflict(now, rng));
        true
    }

    /// Calls `act` with the client, and then carries out what the client asks for.
    fn with_client(&mut self, now: Instant, act: impl FnOnce(&mut Client, &mut atoll_base::Rng)) {
        let Some(mut client) = self.dhcp.take() else { return };
        let before = client.state();
        act(&mut client, self.common.rng());
        if client.state() != before {
            self.v4.note();
        }
        while let Some(output) = client.poll() {
            match output {
                Output::Send { src, dst, message } => self.send_dhcp(now, &client, src, dst, &message),
                Output::Probe { addr } => self.probe_v4(addr),
                Output::Use(lease) => {
                    let before = self.addr();
                    self.set_v4_address(Some(lease.address));
                    if self.addr() != before {
                        self.announce_v4(now);
                    }
                }
                Output::Lost => self.set_v4_address(None),
            }
        }
        self.dhcp = Some(client);
        self.check_invariants();
    }

    fn send_dhcp(&mut self, now: Instant, client: &Client, src: u32, dst: u32, message: &[u8]) {
        let mac = match self.route(now, dst) {
            Route::Via { mac } => Some(mac),
            // Answers came from that station, whether it is the server's own or a relay's. The client repeats
            // what is sent there in vain.
            Route::Resolving | Route::Unreachable => client.station(),
            Route::Local => None,
        };
        let Some(dst_mac) = mac else { return };
        let mut bytes = alloc::vec![0; HEADERS_LEN + udp::HEADER_LEN];
        let packet = Outgoing {
            dst_mac,
            src: Addr::v4(src),
            dst: Addr::v4(dst),
            protocol: Protocol::UDP,
            payload_len: udp::HEADER_LEN + message.len(),
            tos: 0,
            ttl: TTL,
            dont_fragment: false,
        };
        let at = self.emit_headers(&mut bytes, &packet);
        // The cast cannot truncate: messages are short.
        let payload_len = message.len() as u16;
        let header = udp::Header { src_port: CLIENT_PORT, dst_port: SERVER_PORT, payload_len, checksum: 0 };
        udp::emit(&header, &mut bytes[at..]);
        bytes.extend_from_slice(message);
        udp::seal(src, dst, &mut bytes[at..]);
        debug_assert_eq!(at, ethernet::HEADER_LEN + ipv4::HEADER_LEN);
        self.common.queue(Link::Outside, bytes);
    }
}

#[cfg(test)]
mod tests;
