//! The transport protocol of a socket.

use zerocopy::TryFromBytes;

use crate::layout::numbered;

/// Transport protocol of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, TryFromBytes)]
#[repr(u8)]
pub enum Protocol {
    /// Stream sockets.
    Tcp = 6,
    /// Datagram sockets.
    Udp = 17,
}

numbered!(Protocol);
