//! Finds the differences between an expected and a seen packet.

use crate::script::{Icmp, IpFacts, Message, Packet};

/// Returns the first field in which `seen` differs from `expected`. `flags` has the control bits that count.
pub fn difference(expected: &Message, seen: &Message, flags: u16) -> Option<&'static str> {
    match (expected, seen) {
        (Message::Tcp(expected), Message::Tcp(seen)) => {
            of_ip(&expected.ip, &seen.ip).or(of_segments(expected, seen, flags))
        }
        (Message::Udp(expected), Message::Udp(seen)) => {
            of_ip(&expected.ip, &seen.ip).or((expected.len != seen.len).then_some("the length"))
        }
        (Message::Icmp(expected), Message::Icmp(seen)) => {
            of_ip(&expected.ip, &seen.ip).or(of_icmp(expected, seen))
        }
        _ => Some("the protocol"),
    }
}

fn of_ip(expected: &IpFacts, seen: &IpFacts) -> Option<&'static str> {
    let (value, _) = seen.tos.unwrap_or_default();
    let differs = [
        ("ECN", expected.tos.is_some_and(|(wanted, mask)| mask == 3 && (wanted ^ value) & mask != 0)),
        ("ECN", expected.any_ect && !matches!(value & 3, 1 | 2)),
        ("the type of service", expected.tos.is_some_and(|(wanted, mask)| (wanted ^ value) & mask != 0)),
        ("the hop limit", expected.ttl.is_some() && expected.ttl != seen.ttl),
        ("the flow label", expected.flow_label.is_some() && expected.flow_label != seen.flow_label),
    ];
    first(&differs)
}

fn of_segments(expected: &Packet, seen: &Packet, flags: u16) -> Option<&'static str> {
    first(&[
        ("control bits", (expected.flags ^ seen.flags) & flags != 0),
        ("the sequence number", expected.seq != seen.seq),
        ("the length", expected.len != seen.len),
        ("the acknowledgement number", expected.ack.is_some() && expected.ack != seen.ack),
        ("the window", expected.window.is_some() && expected.window != seen.window),
        ("the urgent pointer", expected.urgent.is_some() && expected.urgent != seen.urgent),
        ("an option", expected.options.is_some() && expected.options != seen.options),
    ])
}

fn of_icmp(expected: &Icmp, seen: &Icmp) -> Option<&'static str> {
    first(&[
        ("the type", expected.kind != seen.kind),
        ("the code", expected.code != seen.code),
        ("the MTU", expected.mtu.is_some() && expected.mtu != seen.mtu),
        ("the packet that it is about", expected.echoed.is_some() && expected.echoed != seen.echoed),
    ])
}

fn first(differs: &[(&'static str, bool)]) -> Option<&'static str> {
    differs.iter().find_map(|(what, differs)| differs.then_some(*what))
}
