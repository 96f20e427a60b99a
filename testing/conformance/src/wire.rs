//! How does a script's packet look on the wire, and a packet from the wire in a script?

mod describe;
mod neighbours;
mod options;
mod packet;

use atoll_base::{Addr, Endpoint};
use atoll_wire::Mac;

use crate::script::{Datagram, Icmp, Message, Packet};

pub use describe::describe;
pub use packet::{cut, frame, read};

/// Who talks to whom over IPv4: packetdrill's usual addresses.
pub const LOCAL: u32 = u32::from_be_bytes([192, 168, 0, 1]);
/// The other end.
pub const REMOTE: u32 = u32::from_be_bytes([192, 0, 2, 1]);
/// The router between them.
pub const GATEWAY: u32 = u32::from_be_bytes([192, 168, 0, 254]);
/// Bits of the network that both [`LOCAL`] and [`GATEWAY`] are on.
pub const PREFIX_LEN: u8 = 24;
/// The same over IPv6.
pub const LOCAL_V6: Addr = v6([0xfd3d, 0xfa7b, 0xd17d], 1);
/// The other end.
pub const REMOTE_V6: Addr = v6([0x2001, 0xdb8, 0], 1);
/// The router between them.
pub const GATEWAY_V6: Addr = v6([0xfd3d, 0xfa7b, 0xd17d], 2);
/// Bits of the network that both [`LOCAL_V6`] and [`GATEWAY_V6`] are on.
pub const PREFIX_LEN_V6: u8 = 48;
/// The stack's hardware address.
pub const LOCAL_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// The router's.
pub const GATEWAY_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);

const fn v6(prefix: [u16; 3], host: u8) -> Addr {
    let [a, b, c] = prefix;
    let ([a, b], [c, d], [e, f]) = (a.to_be_bytes(), b.to_be_bytes(), c.to_be_bytes());
    Addr::from_octets([a, b, c, d, e, f, 0, 0, 0, 0, 0, 0, 0, 0, 0, host])
}

/// What the two ends speak: `--ip_version`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
    /// IPv4, of sockets that speak IPv6.
    Mapped,
}

impl Family {
    /// The stack's address.
    pub const fn local(self) -> Addr {
        if matches!(self, Family::V6) { LOCAL_V6 } else { Addr::v4(LOCAL) }
    }

    /// The other end's.
    pub const fn remote(self) -> Addr {
        if matches!(self, Family::V6) { REMOTE_V6 } else { Addr::v4(REMOTE) }
    }

    /// What a socket of `domain` listens at that binds to any address.
    pub const fn any(self) -> Addr {
        if matches!(self, Family::V4) { Addr::V4_ANY } else { Addr::ANY }
    }
}

/// A packet with the endpoints of both ends, and numbers as on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Sender.
    pub from: Endpoint,
    /// Receiver.
    pub to: Endpoint,
    /// What it carries.
    pub message: Message,
}

/// What a frame from the stack is.
pub enum Frame {
    /// A packet to the other end.
    Sent(Sent),
    /// A question for a hardware address, and the answer.
    Question(Vec<u8>),
    /// Something else.
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

/// The message with another quoted packet than the one that a script has: an ICMP message about the packet
/// `quoted` that `from` has sent to `to`.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// Sender of the packet that the message is about.
    pub from: Endpoint,
    /// Its receiver.
    pub to: Endpoint,
    /// Its sequence number on the wire, if it is a segment.
    pub seq: u32,
}

#[cfg(test)]
mod tests;
