//! What errors of ICMP and ICMPv6 mean to sockets, as Linux has it: `icmp_err_convert` of net/ipv4/icmp.c,
//! and `icmpv6_err_convert` with `tab_unreach` of net/ipv6/icmp.c. This is the project's only such table.

use crate::Cause;

/// What an error of ICMP or ICMPv6 means to the socket whose packet it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkCause {
    /// Why the packet was lost.
    pub cause: Cause,
    /// Whether a connected datagram socket is told that has not asked for errors (`IP_RECVERR`): the
    /// condition is not expected to pass.
    pub is_hard: bool,
}

impl NetworkCause {
    /// Returns the meaning of a message of ICMP (`is_v4`) or ICMPv6 with this type and code.
    ///
    /// Whether "fragmentation needed" and "packet too big" are hard depends on the socket's path MTU
    /// discovery; here they are hard for ICMP, and not for ICMPv6.
    pub const fn of(is_v4: bool, kind: u8, code: u8) -> NetworkCause {
        if is_v4 { of_v4(kind, code) } else { of_v6(kind, code) }
    }
}

const fn soft(cause: Cause) -> NetworkCause {
    NetworkCause { cause, is_hard: false }
}

const fn hard(cause: Cause) -> NetworkCause {
    NetworkCause { cause, is_hard: true }
}

const fn of_v4(kind: u8, code: u8) -> NetworkCause {
    match (kind, code) {
        (UNREACHABLE, 0 | 11) => soft(Cause::NetworkUnreachable),
        (UNREACHABLE, 2) => hard(Cause::NoProtocol),
        (UNREACHABLE, 3) => hard(Cause::ConnectionRefused),
        (UNREACHABLE, 4) => hard(Cause::MessageTooLong),
        (UNREACHABLE, 5) => soft(Cause::RouteFailed),
        (UNREACHABLE, 6 | 9) => hard(Cause::NetworkUnreachable),
        (UNREACHABLE, 7) => hard(Cause::HostDown),
        (UNREACHABLE, 8) => hard(Cause::HostIsolated),
        (UNREACHABLE, 10 | 13..=15) => hard(Cause::HostUnreachable),
        (SOURCE_QUENCH, _) => soft(Cause::SourceQuench),
        (PARAMETER_PROBLEM, _) => hard(Cause::ProtocolError),
        // Host unreachable, also for a type of service, and time exceeded.
        _ => soft(Cause::HostUnreachable),
    }
}

const fn of_v6(kind: u8, code: u8) -> NetworkCause {
    match (kind, code) {
        (UNREACHABLE_V6, 0) => soft(Cause::NetworkUnreachable),
        // Prohibited, by a policy for sources, by a route that rejects.
        (UNREACHABLE_V6, 1 | 5 | 6) => hard(Cause::PermissionDenied),
        (UNREACHABLE_V6, 2 | 3) | (TIME_EXCEEDED_V6, _) => soft(Cause::HostUnreachable),
        (UNREACHABLE_V6, 4) => hard(Cause::ConnectionRefused),
        (PACKET_TOO_BIG, _) => soft(Cause::MessageTooLong),
        (UNREACHABLE_V6 | PARAMETER_PROBLEM_V6, _) => hard(Cause::ProtocolError),
        // RFC 4443 §2.4 (a): an error of an unknown type is passed on.
        _ => soft(Cause::ProtocolError),
    }
}

/// The types of ICMP (RFC 792).
const UNREACHABLE: u8 = 3;
const SOURCE_QUENCH: u8 = 4;
const PARAMETER_PROBLEM: u8 = 12;
/// The types of ICMPv6 (RFC 4443).
const UNREACHABLE_V6: u8 = 1;
const PACKET_TOO_BIG: u8 = 2;
const TIME_EXCEEDED_V6: u8 = 3;
const PARAMETER_PROBLEM_V6: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// `icmp_err_convert`, line by line.
    const UNREACHABLE_CODES: [(Cause, bool); 16] = [
        (Cause::NetworkUnreachable, false),
        (Cause::HostUnreachable, false),
        (Cause::NoProtocol, true),
        (Cause::ConnectionRefused, true),
        (Cause::MessageTooLong, true),
        (Cause::RouteFailed, false),
        (Cause::NetworkUnreachable, true),
        (Cause::HostDown, true),
        (Cause::HostIsolated, true),
        (Cause::NetworkUnreachable, true),
        (Cause::HostUnreachable, true),
        (Cause::NetworkUnreachable, false),
        (Cause::HostUnreachable, false),
        (Cause::HostUnreachable, true),
        (Cause::HostUnreachable, true),
        (Cause::HostUnreachable, true),
    ];

    /// `tab_unreach`, line by line.
    const UNREACHABLE_CODES_V6: [(Cause, bool); 7] = [
        (Cause::NetworkUnreachable, false),
        (Cause::PermissionDenied, true),
        (Cause::HostUnreachable, false),
        (Cause::HostUnreachable, false),
        (Cause::ConnectionRefused, true),
        (Cause::PermissionDenied, true),
        (Cause::PermissionDenied, true),
    ];

    #[test]
    fn every_code_means_what_it_means_on_linux() {
        let of = |is_v4, kind, code| {
            let NetworkCause { cause, is_hard } = NetworkCause::of(is_v4, kind, code);
            (cause, is_hard)
        };
        for (code, meaning) in UNREACHABLE_CODES.into_iter().enumerate() {
            assert_eq!(of(true, 3, code as u8), meaning, "ICMP, code {code}");
        }
        for (code, meaning) in UNREACHABLE_CODES_V6.into_iter().enumerate() {
            assert_eq!(of(false, 1, code as u8), meaning, "ICMPv6, code {code}");
        }
        for code in 0..=u8::MAX {
            assert_eq!(of(true, 4, code), (Cause::SourceQuench, false));
            assert_eq!(of(true, 11, code), (Cause::HostUnreachable, false));
            assert_eq!(of(true, 12, code), (Cause::ProtocolError, true));
            assert_eq!(of(false, 2, code), (Cause::MessageTooLong, false));
            assert_eq!(of(false, 3, code), (Cause::HostUnreachable, false));
            assert_eq!(of(false, 4, code), (Cause::ProtocolError, true));
            assert_eq!(of(false, 100, code), (Cause::ProtocolError, false));
            if code >= 7 {
                assert_eq!(of(false, 1, code), (Cause::ProtocolError, true));
            }
        }
    }
}
