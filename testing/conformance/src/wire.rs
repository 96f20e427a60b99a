//! Packets of a script on the wire, and packets of the wire in a script.

mod describe;
mod neighbours;
mod options;
mod packet;

use atoll_base::{Addr, Endpoint};
use atoll_wire::Mac;

use crate::script::{Datagram, Icmp, Message, Packet};

pub use describe::describe;
pub use packet::{cut, frame, read};

/// The stack's IPv4 address: packetdrill's usual one.
pub const LOCAL: u32 = u32::from_be_bytes([192, 168, 0, 1]);
/// The IPv4 address of the other end.
pub const REMOTE: u32 = u32::from_be_bytes([192, 0, 2, 1]);
/// The IPv4 address of the router between them.
pub const GATEWAY: u32 = u32::from_be_bytes([192, 168, 0, 254]);
/// The prefix length of the network that both [`LOCAL`] and [`GATEWAY`] are on, in bits.
pub const PREFIX_LEN: u8 = 24;
/// The stack's IPv6 address: packetdrill's usual one.
pub const LOCAL_V6: Addr = v6([0xfd3d, 0xfa7b, 0xd17d], 1);
/// The IPv6 address of the other end.
pub const REMOTE_V6: Addr = v6([0x2001, 0xdb8, 0], 1);
/// The IPv6 address of the router between them.
pub const GATEWAY_V6: Addr = v6([0xfd3d, 0xfa7b, 0xd17d], 2);
/// The prefix length of the network that both [`LOCAL_V6`] and [`GATEWAY_V6`] are on, in bits.
pub const PREFIX_LEN_V6: u8 = 48;
/// The stack's hardware address.
pub const LOCAL_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// The router's hardware address.
pub const GATEWAY_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);

const fn v6(prefix: [u16; 3], host: u8) -> Addr {
    let [a, b, c] = prefix;
    let ([a, b], [c, d], [e, f]) = (a.to_be_bytes(), b.to_be_bytes(), c.to_be_bytes());
    Addr::from_octets([a, b, c, d, e, f, 0, 0, 0, 0, 0, 0, 0, 0, 0, host])
}

/// The address family of the two ends: `--ip_version`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
    /// IPv4, spoken by IPv6 sockets.
    Mapped,
}

impl Family {
    /// Returns the stack's address.
    pub const fn local(self) -> Addr {
        if matches!(self, Family::V6) { LOCAL_V6 } else { Addr::v4(LOCAL) }
    }

    /// Returns the address of the other end.
    pub const fn remote(self) -> Addr {
        if matches!(self, Family::V6) { REMOTE_V6 } else { Addr::v4(REMOTE) }
    }

    /// Returns the unspecified address, at which a socket of this family listens for all.
    pub const fn any(self) -> Addr {
        if matches!(self, Family::V4) { Addr::V4_ANY } else { Addr::ANY }
    }
}

/// A packet with the endpoints of both ends, and numbers as on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The sender.
    pub from: Endpoint,
    /// The receiver.
    pub to: Endpoint,
    /// The contents of the packet.
    pub message: Message,
}

/// The kind of a frame from the stack.
pub enum Frame {
    /// A packet to the other end.
    Sent(Sent),
    /// A question for a hardware address; it has the frame that answers it.
    Question(Vec<u8>),
    /// Any other frame.
    Other,
}

impl From<Packet> for Message {
    fn from(packet: Packet) -> Message {
        Message::Tcp(packet)
    }
}

impl From<Datagram> for Message {
    fn from(datagram: Datagram) -> Message {
        Message::Udp(datagram)
    }
}

impl From<Icmp> for Message {
    fn from(icmp: Icmp) -> Message {
        Message::Icmp(icmp)
    }
}

/// The quoted packet of an ICMP message on the wire, instead of the one in the script: the packet that `from`
/// has sent to `to`.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// The sender of the packet that the message is about.
    pub from: Endpoint,
    /// The receiver of that packet.
    pub to: Endpoint,
    /// The sequence number of that packet on the wire, if it is a segment.
    pub seq: u32,
}

#[cfg(test)]
mod tests;
