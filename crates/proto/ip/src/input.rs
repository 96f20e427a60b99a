//! What is a frame when it arrives, and what has it turned out to be?

use atoll_base::{Addr, Endpoint, Instant};
use atoll_wire::Mac;

use crate::counters::Reason;
use crate::icmp::NetworkError;
use crate::link::{Cast, Link};

/// A frame as it arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival<'a> {
    pub(crate) now: Instant,
    pub(crate) link: Link,
    /// The station that sent the frame.
    pub(crate) from: Mac,
    /// The station or group that the frame is for.
    pub(crate) to: Mac,
    /// The octets of the frame, from the Ethernet header on.
    pub(crate) frame: &'a [u8],
    pub(crate) offload: ChecksumOffload,
}

/// The link's statement about the transport checksum of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChecksumOffload {
    /// The link has verified the checksum (vnet `DATA_VALID`).
    Valid,
    /// The checksum was never computed, because the frame did not leave the machine (vnet `NEEDS_CSUM`). It
    /// is trusted.
    Partial,
    /// The link says nothing about the checksum.
    Unknown,
}

/// The state of a transport checksum that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChecksumState {
    /// The checksum is right, as verified here or by the link, or the datagram has none.
    Verified,
    /// The field holds the sum of the pseudo header only. Code that forwards the frame must forward this
    /// state.
    Partial,
}

/// The meaning of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// A segment for TCP, from one host to us.
    Tcp {
        /// Source address.
        src: Addr,
        /// Destination address: one of ours.
        dst: Addr,
        /// DSCP and ECN ([`atoll_wire::ipv4::Ecn::from_tos`]).
        tos: u8,
        /// The TTL or hop limit with which the packet arrived.
        ttl: u8,
        /// The TCP header and payload. They are larger than the MTU where the link has merged segments (GRO).
        segment: &'a [u8],
        /// The state of its checksum.
        checksum: ChecksumState,
    },
    /// A datagram for UDP.
    Udp {
        /// The source of the datagram.
        src: Endpoint,
        /// The destination of the datagram: one of our addresses, a group that we are in, or a broadcast.
        dst: Endpoint,
        /// Whether the datagram goes to one host, a group or all.
        cast: Cast,
        /// DSCP and ECN.
        tos: u8,
        /// The TTL or hop limit with which the packet arrived.
        ttl: u8,
        /// The payload, without the UDP header; several datagrams one after another where the link has merged
        /// them (USO).
        payload: &'a [u8],
        /// The state of its checksum.
        checksum: ChecksumState,
    },
    /// A reply of one host to an echo request, which was perhaps ours. Its checksum was verified.
    EchoReply {
        /// The host that replies.
        src: Addr,
        /// Destination address: one of ours.
        dst: Addr,
        /// The identifier of the request.
        id: u16,
        /// DSCP and ECN.
        tos: u8,
        /// The TTL or hop limit with which the packet arrived.
        ttl: u8,
        /// The whole ICMP message.
        message: &'a [u8],
    },
    /// An ICMP error about a packet of ours, and what it quotes of the packet behind
    /// [`NetworkError::quoted`].
    Error(NetworkError, &'a [u8]),
    /// ARP, IGMP, DHCP, an echo request or a fragment, which was handled. There may be frames and updates to
    /// poll.
    Consumed,
    /// The frame was not for us or not valid, and is counted. There may be a frame to poll.
    Dropped(Reason),
}

impl ChecksumOffload {
    /// Returns what is known of a checksum, which `is_valid` verifies if the link says nothing about it.
    #[inline]
    pub(crate) fn judge(self, is_valid: impl FnOnce() -> bool) -> Result<ChecksumState, Reason> {
        match self {
            ChecksumOffload::Valid => Ok(ChecksumState::Verified),
            ChecksumOffload::Partial => Ok(ChecksumState::Partial),
            ChecksumOffload::Unknown if is_valid() => Ok(ChecksumState::Verified),
            ChecksumOffload::Unknown => Err(Reason::BadChecksum),
        }
    }
}
