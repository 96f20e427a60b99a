//! Says what a network error tells the application whose packet it is about: ip(7), `IP_RECVERR`.

use atoll_base::Addr;
use atoll_ip::{ErrorKind, NetworkError};
use atoll_ipc::datagram::{Fault, Quotation};
use atoll_wire::icmp::{self, code};
use atoll_wire::icmpv6;

/// Returns what the application learns of an error.
pub(super) fn fault_of(error: &NetworkError) -> Fault {
    let is_v4 = error.tuple.remote.addr.is_v4();
    let (kind, code) = if is_v4 { of_v4(error.kind) } else { of_v6(error.kind) };
    let info = match error.kind {
        ErrorKind::FragNeeded { mtu } => mtu.into(),
        _ => 0,
    };
    Fault { reporter: error.reporter, info, kind, code, quoted: Quotation(error.quoted), came: 0 }
}

/// Returns what the application learns of a packet whose neighbour does not answer, which this host itself
/// reports, as Linux does (arp_error_report, ndisc_error_report). `head` are its first octets.
pub(super) fn unanswered(own: Addr, head: [u8; 8]) -> Fault {
    let kind = ErrorKind::Unreachable { code: code::HOST };
    let (kind, code) = if own.is_v4() { of_v4(kind) } else { of_v6(kind) };
    Fault { reporter: own, info: 0, kind, code, quoted: Quotation(head), came: 0 }
}

fn of_v4(kind: ErrorKind) -> (u8, u8) {
    match kind {
        ErrorKind::FragNeeded { .. } => (icmp::UNREACHABLE, code::FRAGMENTATION_NEEDED),
        ErrorKind::Unreachable { code } => (icmp::UNREACHABLE, code),
        ErrorKind::TimeExceeded { code } => (icmp::TIME_EXCEEDED, code),
        ErrorKind::Problem => (icmp::PARAMETER_PROBLEM, 0),
    }
}

/// Returns type and code of an error of IPv6, whose code was translated to that of ICMP: what IPv6 tells
/// apart and ICMP does not is an unreachable address.
fn of_v6(kind: ErrorKind) -> (u8, u8) {
    match kind {
        ErrorKind::FragNeeded { .. } => (icmpv6::PACKET_TOO_BIG, 0),
        ErrorKind::Unreachable { code: code::PROTOCOL } => {
            (icmpv6::PARAMETER_PROBLEM, icmpv6::code::UNRECOGNIZED_NEXT_HEADER)
        }
        ErrorKind::Unreachable { code } => (
            icmpv6::UNREACHABLE,
            match code {
                code::NET => icmpv6::code::NO_ROUTE,
                code::ADMINISTRATIVELY_PROHIBITED => icmpv6::code::PROHIBITED,
                code::PORT => icmpv6::code::PORT,
                _ => icmpv6::code::ADDRESS,
            },
        ),
        ErrorKind::TimeExceeded { code } => (icmpv6::TIME_EXCEEDED, code),
        ErrorKind::Problem => (icmpv6::PARAMETER_PROBLEM, 0),
    }
}
