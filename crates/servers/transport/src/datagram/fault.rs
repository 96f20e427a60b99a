//! Says what a network error tells the application whose packet it is about: ip(7), `IP_RECVERR`.

use atoll_base::Addr;
use atoll_ip::{ErrorKind, NetworkError};
use atoll_ipc::NetworkCause;
use atoll_ipc::command::Protocol;
use atoll_ipc::datagram::{Fault, Quotation};
use atoll_wire::icmp::{self, code};
use atoll_wire::icmpv6;

use crate::fragment::MtuDiscovery;

/// Returns what the application learns of an error.
pub(super) fn fault_of(error: &NetworkError) -> Fault {
    let (kind, code, info) = message_of(error.kind, error.tuple.remote.addr.is_v4());
    Fault { reporter: error.reporter, info, kind, code, quoted: Quotation(error.quoted), came: 0 }
}

/// Returns what the application learns of a packet whose neighbour does not answer, which this host itself
/// reports, as Linux does (arp_error_report, ndisc_error_report). `head` are its first octets.
pub(super) fn unanswered(own: Addr, head: [u8; 8]) -> Fault {
    let (kind, code, info) = message_of(ErrorKind::unanswered(own.is_v4()), own.is_v4());
    Fault { reporter: own, info, kind, code, quoted: Quotation(head), came: 0 }
}

/// Returns what an error means to a datagram socket of `protocol` with this path MTU discovery; `None` if no
/// such socket hears of it (`__udp4_lib_err`, `__udp6_lib_err`, `ping_err`, `raw_err`, `rawv6_err`).
pub(super) fn cause_of(
    error: &NetworkError,
    protocol: Protocol,
    discovery: MtuDiscovery,
) -> Option<NetworkCause> {
    let is_v4 = error.tuple.remote.addr.is_v4();
    let (kind, code, _) = message_of(error.kind, is_v4);
    let meaning = NetworkCause::of(is_v4, kind, code);
    if !matches!(error.kind, ErrorKind::FragNeeded { .. }) {
        let is_quench = is_v4 && kind == icmp::SOURCE_QUENCH;
        return Some(meaning).filter(|_| !is_quench || protocol == Protocol::Icmp);
    }
    let is_hard = match (protocol, is_v4) {
        (Protocol::Raw, true) => discovery != MtuDiscovery::Dont,
        (Protocol::Raw, false) => discovery == MtuDiscovery::Do,
        (_, true) if discovery == MtuDiscovery::Dont => return None,
        (_, true) => true,
        (Protocol::Icmp, false) => false,
        (_, false) if !discovery.believes_paths() => return None,
        (_, false) => discovery != MtuDiscovery::Dont,
    };
    Some(NetworkCause { is_hard, ..meaning })
}

/// Returns type, code and additional word of the message that reports an error.
const fn message_of(kind: ErrorKind, is_v4: bool) -> (u8, u8, u32) {
    match kind {
        ErrorKind::FragNeeded { mtu } if is_v4 => (icmp::UNREACHABLE, code::FRAGMENTATION_NEEDED, mtu as u32),
        ErrorKind::FragNeeded { mtu } => (icmpv6::PACKET_TOO_BIG, 0, mtu as u32),
        ErrorKind::Lost { kind, code, info } => (kind, code, info),
    }
}
