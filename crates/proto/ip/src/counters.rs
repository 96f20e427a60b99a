//! What has happened, and why was a frame dropped?

/// Why a frame was dropped. None of these is an error of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Reason {
    /// Shorter than its headers, or not what they say.
    Malformed,
    /// Addressed to another station, or from a group.
    NotOurStation,
    /// Neither IPv4 nor ARP, nor IPv6 where that is spoken.
    UnknownEtherType,
    /// A header checksum, or the checksum of TCP, UDP or ICMP, does not match.
    BadChecksum,
    /// Addressed to another host.
    NotOurAddress,
    /// From an address that no sender can have there (RFC 1812 §5.3.7).
    Martian,
    /// A fragment that no packet can have, or not together with those before it.
    FragmentMalformed,
    /// A fragment that tears headers apart (RFC 1858, RFC 3128, RFC 7112).
    FragmentTiny,
    /// A fragment that covers another in part: its packet is discarded (RFC 5722).
    FragmentOverlap,
    /// A fragment that was there already.
    FragmentDuplicate,
    /// To a multicast group that nobody here has joined.
    Multicast,
    /// To everyone, but of a protocol that is spoken with one host only; or to one host, but over a hardware
    /// broadcast (RFC 1122 §3.3.6).
    Broadcast,
    /// Neither TCP, UDP nor ICMP; answered with "protocol unreachable".
    UnknownProtocol,
    /// ICMP that asks for nothing and tells nothing we act upon.
    IcmpIgnored,
    /// An ICMP error about a packet that was never ours.
    IcmpNotAboutUs,
    /// More echo requests than are answered (see `ECHO_PER_SECOND`).
    EchoLimit,
    /// IGMP that is not for hosts, not for this replica, or from far away.
    IgmpIgnored,
    /// ARP about others, or claiming what it may not.
    ArpIgnored,
    /// Neighbour or listener discovery about others, or claiming what it may not.
    NdIgnored,
    /// An extension header of IPv6 that we do not understand and that does not let us pass over it.
    Extension,
    /// Came to the half that stays with a transport server, although it is the other's business.
    NotForTransport,
}

// structure: Counters: a field for each counter
/// Everything counted by one [`Ip`](crate::Ip). Counters only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames handled.
    pub frames_in: u64,
    /// Segments given up to TCP.
    pub tcp_in: u64,
    /// Datagrams given up to UDP.
    pub udp_in: u64,
    /// ICMP errors given up.
    pub errors_in: u64,
    /// Echo requests answered.
    pub echoes: u64,
    /// ICMP errors sent.
    pub errors_out: u64,
    /// ICMP errors not sent: too many, or RFC 1122 §3.2.2 forbids them.
    pub errors_suppressed: u64,
    /// ARP requests sent.
    pub arp_requests: u64,
    /// ARP requests answered.
    pub arp_replies: u64,
    /// ARP packets that claimed our address for another station (RFC 5227 §2.4).
    pub arp_conflicts: u64,
    /// Answers of DHCP servers that were not believed: for others, not what was asked for, or nothing that a
    /// host could live by.
    pub dhcp_ignored: u64,
    /// Neighbour solicitations sent.
    pub nd_solicitations: u64,
    /// Neighbour advertisements sent.
    pub nd_advertisements: u64,
    /// Addresses of ours that another station has or wants, too (RFC 4862 §5.4).
    pub nd_conflicts: u64,
    /// Router advertisements obeyed.
    pub router_advertisements: u64,
    /// Redirects obeyed.
    pub redirects: u64,
    /// Reports about multicast groups sent.
    pub listener_reports: u64,
    /// Packets that came as their only fragment (RFC 6946).
    pub atomic_fragments: u64,
    /// Neighbours that did not answer.
    pub neighbours_failed: u64,
    /// Neighbours that made room for others.
    pub neighbours_evicted: u64,
    /// Fragments received.
    pub fragments_in: u64,
    /// Packets that became whole.
    pub reassembled: u64,
    /// Packets whose fragments did not all arrive in time.
    pub reassembly_timeouts: u64,
    /// Fragments sent.
    pub fragments_out: u64,
    /// IGMP messages sent.
    pub igmp_out: u64,
    /// Own frames and news dropped because nobody fetched them in time.
    pub overflows: u64,
    dropped: [u64; Reason::ALL.len()],
}

impl Counters {
    /// Frames dropped for `reason`.
    pub const fn dropped(&self, reason: Reason) -> u64 {
        self.dropped[reason as usize]
    }

    pub(crate) const fn drop(&mut self, reason: Reason) {
        self.dropped[reason as usize] += 1;
    }
}

impl Reason {
    /// Every reason, in the order of their numbers.
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

    /// The reason as metrics name it.
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
