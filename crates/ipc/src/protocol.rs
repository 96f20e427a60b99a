//! The transport protocol of a socket.

/// Transport protocol of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Protocol {
    /// Stream sockets.
    Tcp = 6,
    /// Datagram sockets.
    Udp = 17,
}

impl Protocol {
    /// Returns the protocol with this IP protocol number, if it is one of these.
    pub const fn from_u8(n: u8) -> Option<Protocol> {
        match n {
            6 => Some(Protocol::Tcp),
            17 => Some(Protocol::Udp),
            _ => None,
        }
    }
}
