//! Sends a datagram that is larger than its path takes: in fragments, unless its socket forbids that (ip(7),
//! IP_MTU_DISCOVER; ipv6(7), IPV6_MTU_DISCOVER).

use alloc::vec;
use alloc::vec::Vec;

use atoll_base::{Addr, FourTuple, Instant};
use atoll_ip::{FRAGMENT_HEADERS_LEN_MAX, Ip, Outgoing, headers_len, parts};
use atoll_ipc::Memory;
use atoll_wire::{ethernet, udp};

use crate::next_hop::Way;
use crate::sink::{FrameSink, Offload, TextRef};

/// Whether and where the datagrams of a socket are fragmented (ip(7), `IP_MTU_DISCOVER`). The numbers are the
/// values of that option, and of the one for IPv6. Routers fragment IPv4 only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MtuDiscovery {
    /// This host and routers fragment datagrams.
    Dont = 0,
    /// This host fragments datagrams that are larger than the path's MTU.
    #[default]
    Want = 1,
    /// Datagrams are never fragmented: one that is larger than the path's MTU is refused.
    Do = 2,
    /// Datagrams are never fragmented, and only the link's MTU counts: the application probes the path.
    Probe = 3,
    /// Only routers fragment datagrams, and only the link's MTU counts.
    Interface = 4,
    /// As `Interface`, but this host also fragments datagrams.
    Omit = 5,
}

impl MtuDiscovery {
    /// Returns whether the socket believes what routers say of a path (`ip_sk_accept_pmtu`).
    pub(crate) const fn believes_paths(self) -> bool {
        !matches!(self, MtuDiscovery::Interface | MtuDiscovery::Omit)
    }
}

/// How one datagram is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The datagram fits into one packet.
    Whole {
        /// Whether routers must leave it whole.
        dont_fragment: bool,
    },
    /// The datagram is sent in packets of this size.
    Fragments(u16),
    /// The socket does not want the datagram fragmented.
    TooLong,
}

/// The progress of a datagram that the link took only in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The identification that its fragments share.
    id: u32,
    /// The octets that were sent.
    sent: usize,
}

impl MtuDiscovery {
    /// Returns the setting with this value of the option; `None` if there is none.
    pub(crate) const fn from_value(value: u32) -> Option<MtuDiscovery> {
        Some(match value {
            0 => MtuDiscovery::Dont,
            1 => MtuDiscovery::Want,
            2 => MtuDiscovery::Do,
            3 => MtuDiscovery::Probe,
            4 => MtuDiscovery::Interface,
            5 => MtuDiscovery::Omit,
            _ => return None,
        })
    }

    /// Decides how `len` octets of text are sent to `dst` over the outside link, in packets of at most `most`
    /// octets (`IPV6_MTU`).
    pub(crate) fn cut(self, ip: &Ip, now: Instant, dst: Addr, len: usize, most: u16) -> Cut {
        let path = match self {
            MtuDiscovery::Dont | MtuDiscovery::Want | MtuDiscovery::Do => ip.path_mtu(now, dst),
            MtuDiscovery::Probe | MtuDiscovery::Interface | MtuDiscovery::Omit => None,
        };
        let mtu = path.map_or(ip.mtu_for(dst), |path| path.mtu).min(most);
        let size = headers_len(dst) - ethernet::HEADER_LEN + udp::HEADER_LEN + len;
        let fits = size <= usize::from(mtu);
        match self {
            MtuDiscovery::Do | MtuDiscovery::Probe if fits => Cut::Whole { dont_fragment: true },
            MtuDiscovery::Want if fits => {
                Cut::Whole { dont_fragment: !path.is_some_and(|path| path.is_doubtful) }
            }
            _ if fits => Cut::Whole { dont_fragment: false },
            MtuDiscovery::Dont | MtuDiscovery::Want | MtuDiscovery::Omit => Cut::Fragments(mtu),
            MtuDiscovery::Do | MtuDiscovery::Probe | MtuDiscovery::Interface => Cut::TooLong,
        }
    }
}

// structure: send_fragments: a packet has as many facts
/// Sends `datagram`, the payload of `packet`, in packets of at most `mtu` octets. If the link is full,
/// returns the progress, with which this is called again for the same datagram when the link has room.
#[allow(clippy::too_many_arguments)] // As `send_segment`: parts of one frame.
pub(crate) fn send_fragments<M: Memory>(
    ip: &mut Ip,
    way: &Way,
    packet: &Outgoing,
    datagram: &[u8],
    progress: Option<Progress>,
    mtu: u16,
    out: &mut impl FrameSink<M>,
) -> Option<Progress> {
    debug_assert!(!way.internal, "the internal link takes packets of every size");
    let mut progress =
        progress.unwrap_or_else(|| Progress { id: ip.identify(packet.dst, packet.protocol), sent: 0 });
    for part in parts(packet.dst, datagram.len(), progress.sent, mtu) {
        let mut headers = [0; FRAGMENT_HEADERS_LEN_MAX];
        let len = ip.emit_fragment(&mut headers, packet, progress.id, &part);
        let slice = TextRef::Slice(&datagram[part.offset..part.offset + part.len]);
        if !out.send(&headers[..len], slice, Offload::default()) {
            return Some(progress);
        }
        ip.fragment_sent();
        progress.sent += part.len;
    }
    None
}

/// Returns a datagram of UDP with its checksum, which covers all fragments and is in the first, so that no
/// link can complete it: the text is copied and read here.
pub(crate) fn sealed<M: Memory>(tuple: &FourTuple, text: &TextRef<'_, M>) -> Vec<u8> {
    let mut datagram = vec![0; udp::HEADER_LEN + text.len()];
    let header = udp::Header {
        src_port: tuple.local.port,
        dst_port: tuple.remote.port,
        // It is at most DATAGRAM_MAX.
        payload_len: text.len() as u16,
        checksum: 0,
    };
    udp::emit(&header, &mut datagram);
    text.copy_to(&mut datagram[udp::HEADER_LEN..]);
    udp::seal(tuple.local.addr, tuple.remote.addr, &mut datagram);
    datagram
}

#[cfg(test)]
mod tests {
    use super::*;

    use atoll_ip::{Config, V6Config};
    use atoll_wire::Mac;

    const FAR: u32 = 0x0808_0808;
    const FAR_V6: Addr = Addr::from_octets([0x20; 16]);

    /// Returns how datagrams of some lengths are sent, with a path MTU of `told` octets behind a link of
    /// 1500.
    fn cuts_to(dst: Addr, discovery: MtuDiscovery, told: u16, lengths: [usize; 3]) -> [Cut; 3] {
        let v6 =
            V6Config { address: Some((Addr::from_octets([0x21; 16]), 64)), gateway: None, autoconf: false };
        let config = Config { v6: Some(v6), ..Config::new(Mac([2, 0, 0, 0, 0, 1]), 0xc612_0001, 24) };
        let mut ip = Ip::new(config, 1, Instant::ZERO).expect("a valid network");
        ip.learn_path_mtu(Instant::ZERO, dst, told);
        lengths.map(|len| discovery.cut(&ip, Instant::ZERO, dst, len, u16::MAX))
    }

    fn cuts(discovery: MtuDiscovery, told: u16) -> [Cut; 3] {
        cuts_to(Addr::v4(FAR), discovery, told, [500, 1400, 2000])
    }

    #[test]
    fn each_discovery_cuts_as_linux_does() {
        let whole = |dont_fragment| Cut::Whole { dont_fragment };
        let (small, large) = (Cut::Fragments(1000), Cut::Fragments(1500));
        for (discovery, expected) in [
            (MtuDiscovery::Dont, [whole(false), small, small]),
            (MtuDiscovery::Want, [whole(true), small, small]),
            (MtuDiscovery::Do, [whole(true), Cut::TooLong, Cut::TooLong]),
            (MtuDiscovery::Probe, [whole(true), whole(true), Cut::TooLong]),
            (MtuDiscovery::Interface, [whole(false), whole(false), Cut::TooLong]),
            (MtuDiscovery::Omit, [whole(false), whole(false), large]),
        ] {
            assert_eq!(cuts(discovery, 1000), expected, "{discovery:?}");
        }
    }

    #[test]
    fn each_discovery_of_ipv6_cuts_as_linux_does() {
        let whole = |dont_fragment| Cut::Whole { dont_fragment };
        let (small, large) = (Cut::Fragments(1300), Cut::Fragments(1500));
        for (discovery, expected) in [
            (MtuDiscovery::Dont, [whole(false), small, small]),
            (MtuDiscovery::Want, [whole(true), small, small]),
            (MtuDiscovery::Do, [whole(true), Cut::TooLong, Cut::TooLong]),
            (MtuDiscovery::Probe, [whole(true), whole(true), Cut::TooLong]),
            (MtuDiscovery::Interface, [whole(false), whole(false), Cut::TooLong]),
            (MtuDiscovery::Omit, [whole(false), whole(false), large]),
        ] {
            assert_eq!(cuts_to(FAR_V6, discovery, 1300, [1252, 1253, 1453]), expected, "{discovery:?}");
        }
    }

    #[test]
    fn the_largest_packet_that_is_wanted_counts_as_the_path_does() {
        let v6 =
            V6Config { address: Some((Addr::from_octets([0x21; 16]), 64)), gateway: None, autoconf: false };
        let config = Config { v6: Some(v6), ..Config::new(Mac([2, 0, 0, 0, 0, 1]), 0xc612_0001, 24) };
        let ip = Ip::new(config, 1, Instant::ZERO).expect("a valid network");
        let cut = |discovery: MtuDiscovery, len| discovery.cut(&ip, Instant::ZERO, FAR_V6, len, 1280);
        // 40 octets of IPv6 and 8 of UDP.
        assert_eq!(cut(MtuDiscovery::Want, 1232), Cut::Whole { dont_fragment: true });
        assert_eq!(cut(MtuDiscovery::Want, 1233), Cut::Fragments(1280));
        assert_eq!(cut(MtuDiscovery::Omit, 1233), Cut::Fragments(1280));
        assert_eq!(cut(MtuDiscovery::Do, 1233), Cut::TooLong);
        assert_eq!(cut(MtuDiscovery::Probe, 1233), Cut::TooLong);
    }

    #[test]
    fn a_path_that_is_too_narrow_to_be_believed_may_fragment() {
        let narrow = Cut::Fragments(552);
        assert_eq!(cuts(MtuDiscovery::Want, 100), [Cut::Whole { dont_fragment: false }, narrow, narrow]);
    }

    #[test]
    fn values_are_those_of_the_socket_api() {
        for value in 0..=5 {
            assert_eq!(MtuDiscovery::from_value(value).map(|discovery| discovery as u32), Some(value));
        }
        assert_eq!(MtuDiscovery::from_value(6), None);
    }
}
