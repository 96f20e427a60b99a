//! Counters of what has happened, and the reasons for which frames are dropped.

use alloc::collections::VecDeque;

use atoll_wire::ParseError;

/// Why a frame was dropped. None of these is an error of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Reason {
    /// The frame is shorter than its headers say, or they contradict its contents.
    Malformed,
    /// The frame is addressed to another station, or its source is a group.
    NotOurStation,
    /// The frame carries neither IPv4 nor ARP, nor IPv6 where that is spoken.
    UnknownEtherType,
    /// A header checksum, or the checksum of TCP, UDP or ICMP, does not match.
    BadChecksum,
    /// The packet is addressed to another host.
    NotOurAddress,
    /// The source is an address that no sender can have on that link (RFC 1812 §5.3.7).
    Martian,
    /// A fragment that cannot belong to any packet, or that contradicts those before it.
    FragmentMalformed,
    /// A fragment that splits headers (RFC 1858, RFC 3128, RFC 7112).
    FragmentTiny,
    /// A fragment that overlaps another in part, whose packet is discarded (RFC 5722).
    FragmentOverlap,
    /// A fragment that had arrived already.
    FragmentDuplicate,
    /// The packet goes to a multicast group that no socket here has joined.
    Multicast,
    /// The packet goes to all hosts, but its protocol is only spoken with one host; or it goes to one host,
    /// but in a hardware broadcast (RFC 1122 §3.3.6).
    Broadcast,
    /// The protocol is neither TCP, UDP nor ICMP; the packet is answered with "protocol unreachable".
    UnknownProtocol,
    /// An ICMP message that needs no answer and reports nothing that is acted upon.
    IcmpIgnored,
    /// An ICMP error about a packet that the stack cannot have sent.
    IcmpNotAboutUs,
    /// An echo request beyond the rate that is answered (`ECHO_PER_SECOND`).
    EchoLimit,
    /// An IGMP message that is not for hosts or not for this replica, or that was not sent on this link.
    IgmpIgnored,
    /// An ARP packet about others, or with a claim that is not believed.
    ArpIgnored,
    /// A message of neighbour or listener discovery about others, or with a claim that is not believed.
    NdIgnored,
    /// An IPv6 extension header that is unknown and may not be skipped.
    Extension,
    /// The packet came to the part that stays with a transport server, but is for the IP server.
    NotForTransport,
}

// structure: Counters: a field for each counter
/// All counters of one [`Ip`](crate::Ip). Counters only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames handled.
    pub frames_in: u64,
    /// TCP segments passed up.
    pub tcp_in: u64,
    /// UDP datagrams passed up.
    pub udp_in: u64,
    /// ICMP errors passed up.
    pub errors_in: u64,
    /// Echo requests answered.
    pub echoes: u64,
    /// ICMP errors sent.
    pub errors_out: u64,
    /// ICMP errors not sent, because of the rate limit or because RFC 1122 §3.2.2 forbids them.
    pub errors_suppressed: u64,
    /// ARP requests sent.
    pub arp_requests: u64,
    /// ARP requests answered.
    pub arp_replies: u64,
    /// ARP packets that claimed our address for another station (RFC 5227 §2.4).
    pub arp_conflicts: u64,
    /// DHCP messages not believed: meant for others, no answer to what was asked, or a lease that no host
    /// could use.
    pub dhcp_ignored: u64,
    /// Neighbour solicitations sent.
    pub nd_solicitations: u64,
    /// Neighbour advertisements sent.
    pub nd_advertisements: u64,
    /// Own addresses that another station has or wants as well (RFC 4862 §5.4).
    pub nd_conflicts: u64,
    /// Router advertisements accepted.
    pub router_advertisements: u64,
    /// Redirects accepted.
    pub redirects: u64,
    /// Reports about multicast groups sent.
    pub listener_reports: u64,
    /// Packets with a fragment header that consist of one fragment only (RFC 6946).
    pub atomic_fragments: u64,
    /// Neighbours that did not answer.
    pub neighbours_failed: u64,
    /// Neighbours evicted to make room for others.
    pub neighbours_evicted: u64,
    /// Fragments received.
    pub fragments_in: u64,
    /// Packets reassembled.
    pub reassembled: u64,
    /// Packets given up because their fragments did not all arrive in time.
    pub reassembly_timeouts: u64,
    /// Fragments sent.
    pub fragments_out: u64,
    /// IGMP messages sent.
    pub igmp_out: u64,
    /// Own frames and updates dropped because too many waited to be polled.
    pub overflows: u64,
    dropped: [u64; Reason::ALL.len()],
}

impl Counters {
    /// Returns how many frames were dropped for `reason`.
    pub const fn dropped(&self, reason: Reason) -> u64 {
        self.dropped[reason as usize]
    }

    pub(crate) const fn drop(&mut self, reason: Reason) {
        self.dropped[reason as usize] += 1;
    }

    /// Appends to a queue of at most `max` items, or counts the overflow. Returns whether there was room.
    pub(crate) fn push<T>(&mut self, queue: &mut VecDeque<T>, item: T, max: usize) -> bool {
        let room = queue.len() < max;
        if room {
            queue.push_back(item);
        } else {
            self.overflows += 1;
        }
        room
    }
}

impl From<ParseError> for Reason {
    fn from(error: ParseError) -> Reason {
        match error {
            ParseError::BadChecksum => Reason::BadChecksum,
            _ => Reason::Malformed,
        }
    }
}

impl Reason {
    /// All reasons, in the order of their discriminants.
    pub const ALL: [Reason; 21] = [
        Reason::Malformed,
        Reason::NotOurStation,
        Reason::UnknownEtherType,
        Reason::BadChecksum,
        Reason::NotOurAddress,
        Reason::Martian,
        Reason::FragmentMalformed,
        Reason::FragmentTiny,
        Reason::FragmentOverlap,
        Reason::FragmentDuplicate,
        Reason::Multicast,
        Reason::Broadcast,
        Reason::UnknownProtocol,
        Reason::IcmpIgnored,
        Reason::IcmpNotAboutUs,
        Reason::EchoLimit,
        Reason::IgmpIgnored,
        Reason::ArpIgnored,
        Reason::NdIgnored,
        Reason::Extension,
        Reason::NotForTransport,
    ];

    /// Returns the name of the reason in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Malformed => "malformed",
            Reason::NotOurStation => "not_our_station",
            Reason::UnknownEtherType => "unknown_ethertype",
            Reason::BadChecksum => "bad_checksum",
            Reason::NotOurAddress => "not_our_address",
            Reason::Martian => "martian",
            Reason::FragmentMalformed => "fragment_malformed",
            Reason::FragmentTiny => "fragment_tiny",
            Reason::FragmentOverlap => "fragment_overlap",
            Reason::FragmentDuplicate => "fragment_duplicate",
            Reason::Multicast => "multicast",
            Reason::Broadcast => "broadcast",
            Reason::UnknownProtocol => "unknown_protocol",
            Reason::IcmpIgnored => "icmp_ignored",
            Reason::IcmpNotAboutUs => "icmp_not_about_us",
            Reason::EchoLimit => "echo_limit",
            Reason::IgmpIgnored => "igmp_ignored",
            Reason::ArpIgnored => "arp_ignored",
            Reason::NdIgnored => "nd_ignored",
            Reason::Extension => "extension",
            Reason::NotForTransport => "not_for_transport",
        }
    }
}

const _: () = {
    let mut i = 0;
    while i < Reason::ALL.len() {
        assert!(Reason::ALL[i] as usize == i);
        i += 1;
    }
};
