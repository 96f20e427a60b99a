//! The two links of a replica, the frames that it sends over them by itself, and what a destination means
//! there.

use alloc::vec::Vec;

/// One of a replica's two links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Link {
    /// The TAP queue, device queue or shared-memory link to others.
    Outside,
    /// The link from the stack to itself: its own address and 127.0.0.0/8. There is no ARP on it.
    Inside,
}

/// A frame that [`Ip`](crate::Ip) wants sent: ARP, IGMP, an echo reply or an ICMP error. Its checksums are
/// complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The link to send it over.
    pub link: Link,
    /// The octets of the frame, from the Ethernet header on.
    pub bytes: Vec<u8>,
}

/// The kind of a destination: how many hosts it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cast {
    /// One host.
    Unicast,
    /// All hosts on the link: 255.255.255.255, or the last address of our prefix.
    Broadcast,
    /// The members of a multicast group: 224.0.0.0/4.
    Multicast,
}
