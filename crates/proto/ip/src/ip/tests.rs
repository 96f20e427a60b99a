//! Tests of what one replica does with frames, seen from the wire.

mod arp;
mod icmp;
mod input;
mod output;

use std::vec::Vec;

use atoll_base::Instant;
use atoll_wire::arp::{self as wire_arp, Operation, Packet};
use atoll_wire::ethernet::{self, EtherType};
use atoll_wire::ipv4::{self, Protocol};
use atoll_wire::{checksum, udp};

use super::*;
use crate::{Basis, ChecksumOffload, Reason, Received, Route};

pub(crate) const US: u32 = 0xc612_0001;
pub(crate) const PEER: u32 = 0xc612_0002;
pub(crate) const GATEWAY: u32 = 0xc612_00fe;
pub(crate) const FAR: u32 = 0x0808_0808;
pub(crate) const MAC_US: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub(crate) const MAC_PEER: Mac = Mac([2, 0, 0, 0, 0, 2]);
pub(crate) const MAC_OTHER: Mac = Mac([2, 0, 0, 0, 0, 3]);

pub(crate) fn config() -> Config {
    Config { gateway: Some(GATEWAY), ..Config::new(MAC_US, US, 24) }
}

pub(crate) fn ip() -> Ip {
    Ip::new(config(), 42, Instant::ZERO).unwrap()
}

pub(crate) fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// A packet from the peer to us over the outside link; tests change what they are about.
#[derive(Clone)]
pub(crate) struct Build {
    pub(crate) dst_mac: Mac,
    pub(crate) src_mac: Mac,
    pub(crate) header: ipv4::Header,
    pub(crate) payload: Vec<u8>,
}

pub(crate) fn packet(protocol: Protocol, payload: &[u8]) -> Build {
    let header = ipv4::Header { src: PEER, dst: US, protocol, ttl: 64, ..ipv4::Header::default() };
    Build { dst_mac: MAC_US, src_mac: MAC_PEER, header, payload: payload.to_vec() }
}

pub(crate) fn tcp_packet() -> Build {
    let mut build =
        packet(Protocol::TCP, &[0x9c, 0x40, 0, 80, 1, 2, 3, 4, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
    build.seal_tcp();
    build
}

pub(crate) fn udp_packet(text: &[u8]) -> Build {
    let mut bytes = std::vec![0; udp::HEADER_LEN];
    bytes.extend_from_slice(text);
    let header = udp::Header { src_port: 4000, dst_port: 53, payload_len: text.len() as u16, checksum: 0 };
    udp::emit(&header, &mut bytes);
    udp::seal(PEER, US, &mut bytes);
    packet(Protocol::UDP, &bytes)
}

impl Build {
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Build)) -> Build {
        change(&mut self);
        self
    }

    pub(crate) fn seal_tcp(&mut self) {
        self.payload[16..18].fill(0);
        let pseudo = checksum::pseudo_header(self.header.src, self.header.dst, 6, self.payload.len());
        let checksum = pseudo.bytes(&self.payload).finish();
        self.payload[16..18].copy_from_slice(&checksum.to_be_bytes());
    }

    pub(crate) fn frame(&self) -> Vec<u8> {
        let mut bytes = std::vec![0; 34];
        let ethernet = ethernet::Header { dst: self.dst_mac, src: self.src_mac, ethertype: EtherType::IPV4 };
        let at = ethernet::emit(&ethernet, &mut bytes);
        let header = ipv4::Header { payload_len: self.payload.len() as u16, ..self.header };
        ipv4::emit(&header, &mut bytes[at..]);
        bytes.extend_from_slice(&self.payload);
        bytes
    }
}

pub(crate) fn receive<'a>(ip: &mut Ip, frame: &'a [u8]) -> Received<'a> {
    ip.handle_frame(at(0), Link::Outside, frame, ChecksumOffload::Unknown)
}

pub(crate) fn arp_frame(dst_mac: Mac, packet: &Packet) -> Vec<u8> {
    let mut bytes = std::vec![0; 42];
    let header = ethernet::Header { dst: dst_mac, src: packet.sender_mac, ethertype: EtherType::ARP };
    let at = ethernet::emit(&header, &mut bytes);
    wire_arp::emit(packet, &mut bytes[at..]);
    bytes
}

pub(crate) fn question(from: u32, mac: Mac, target_addr: u32) -> Vec<u8> {
    let packet = Packet {
        operation: Operation::Request,
        sender_mac: mac,
        sender_addr: from,
        target_mac: Mac::ZERO,
        target_addr,
    };
    arp_frame(Mac::BROADCAST, &packet)
}

pub(crate) fn answer(from: u32, mac: Mac) -> Vec<u8> {
    let packet = Packet {
        operation: Operation::Reply,
        sender_mac: mac,
        sender_addr: from,
        target_mac: MAC_US,
        target_addr: US,
    };
    arp_frame(MAC_US, &packet)
}

/// Returns the next frame, which must be ARP: its hardware destination and content.
pub(crate) fn next_arp(ip: &mut Ip) -> Option<(Mac, Packet)> {
    let frame = ip.poll_frame()?;
    assert_eq!(frame.link, Link::Outside);
    let (header, at) = ethernet::parse(&frame.bytes).unwrap();
    assert_eq!((header.ethertype, header.src), (EtherType::ARP, MAC_US));
    Some((header.dst, wire_arp::parse(&frame.bytes[at..]).unwrap().0))
}
