//! The transport protocol of a socket.

use zerocopy::TryFromBytes;

use crate::layout::numbered;

/// Transport protocol of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, TryFromBytes)]
#[repr(u8)]
pub enum Protocol {
    /// Datagram sockets of ICMP and ICMPv6, which send echo requests and receive the replies. The identifier
    /// of the requests takes the place of the port; the family of the socket says which of the two it is.
    Icmp = 1,
    /// Stream sockets.
    Tcp = 6,
    /// Datagram sockets.
    Udp = 17,
    /// Raw sockets of ICMP and ICMPv6, which receive every message for the stack and send what they like from
    /// its addresses. Their port is the number of the protocol ([`Protocol::raw_port`]), and all have it.
    Raw = 255,
}

/// The kinds of datagram sockets, as commands and ledgers write them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
pub enum DatagramKind {
    /// Sockets of [`Protocol::Udp`].
    #[default]
    Udp = 0,
    /// Sockets of [`Protocol::Icmp`].
    Icmp = 1,
    /// Sockets of [`Protocol::Raw`].
    Raw = 2,
}

numbered!(DatagramKind);

impl DatagramKind {
    /// Returns the protocol of the sockets.
    pub const fn protocol(self) -> Protocol {
        match self {
            DatagramKind::Udp => Protocol::Udp,
            DatagramKind::Icmp => Protocol::Icmp,
            DatagramKind::Raw => Protocol::Raw,
        }
    }
}

numbered!(Protocol);

impl Protocol {
    /// Returns whether sockets of the protocol are datagram sockets.
    pub const fn is_datagram(self) -> bool {
        self.datagram_kind().is_some()
    }

    /// Returns the kind of datagram sockets of the protocol; `None` for streams.
    pub const fn datagram_kind(self) -> Option<DatagramKind> {
        match self {
            Protocol::Icmp => Some(DatagramKind::Icmp),
            Protocol::Tcp => None,
            Protocol::Udp => Some(DatagramKind::Udp),
            Protocol::Raw => Some(DatagramKind::Raw),
        }
    }

    /// Returns whether the sockets send messages of ICMP, whose receivers have no ports.
    pub const fn is_icmp(self) -> bool {
        matches!(self, Protocol::Icmp | Protocol::Raw)
    }

    /// Returns the port of a raw socket of this family: the number of ICMP or ICMPv6, which getsockname(2)
    /// names on Linux, too.
    pub const fn raw_port(v6: bool) -> u16 {
        if v6 { 58 } else { 1 }
    }

    /// Returns whether messages of ICMPv6 of this type are about groups and neighbours of the link (RFC 2710,
    /// RFC 3810, RFC 4861). The stack alone sends these: every replica believes what its own address says.
    pub const fn is_of_link(kind: u8) -> bool {
        matches!(kind, 130..=137 | 143)
    }

    /// Returns the protocol's name in lists of sockets.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Icmp => "icmp",
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Raw => "raw",
        }
    }
}
