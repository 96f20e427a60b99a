//! Describes packets in the notation of scripts.

use std::fmt::Write;

use super::Family;
use crate::parse::packet::{ACCURATE, FLAGS, ICMP_V4, ICMP_V6};
use crate::script::{Datagram, Echoed, Icmp, IpFacts, Message, Packet, Ports, TcpOption};

/// Returns a packet in the notation of scripts.
pub fn describe(message: &Message, family: Family) -> String {
    match message {
        Message::Tcp(packet) => segment(packet),
        Message::Udp(Datagram { ip, ports: between, len }) => {
            format!("{}udp {}({len})", facts(ip), ports(*between))
        }
        Message::Icmp(message) => icmp(message, family),
    }
}

fn facts(ip: &IpFacts) -> String {
    let mut parts = Vec::new();
    match ip.tos {
        Some((value, 3)) => parts.push(["noecn", "ect1", "ect0", "ce"][usize::from(value & 3)].to_owned()),
        Some((value, _)) if value & !3 != 0 => parts.push(format!("tos {value:#x}")),
        // In a packet from the wire, a value of 0 is not shown.
        Some((0, _)) => {}
        Some((value, _)) => parts.push(["", "ect1", "ect0", "ce"][usize::from(value & 3)].to_owned()),
        None if ip.any_ect => parts.push("ect01".to_owned()),
        None => {}
    }
    parts.extend(ip.ttl.map(|ttl| format!("ttl {ttl}")));
    parts.extend(ip.flow_label.map(|label| format!("flowlabel {label:#x}")));
    if parts.is_empty() { String::new() } else { format!("[{}] ", parts.join(", ")) }
}

fn ports(ports: Ports) -> String {
    ports.map(|(from, to)| format!("{from} > {to} ")).unwrap_or_default()
}

fn icmp(message: &Icmp, family: Family) -> String {
    let names: &[_] = if family == Family::V6 { &ICMP_V6 } else { &ICMP_V4 };
    let named = names.iter().find(|(.., kind, code)| (*kind, *code) == (message.kind, message.code));
    let mut text = match named {
        Some((kind, "", ..)) => format!("{}icmp {kind}", facts(&message.ip)),
        Some((kind, code, ..)) => format!("{}icmp {kind} {code}", facts(&message.ip)),
        None => format!("{}icmp type {} code {}", facts(&message.ip), message.kind, message.code),
    };
    if let Some(mtu) = message.mtu {
        let _ = write!(text, " mtu {mtu}");
    }
    match message.echoed {
        Some(Echoed::Tcp(seq, len)) => {
            let _ = write!(text, " [{seq}:{}({len})]", seq.wrapping_add(len.into()));
        }
        Some(Echoed::Udp(len)) => {
            let _ = write!(text, " [udp ({len})]");
        }
        None => {}
    }
    text
}

fn segment(packet: &Packet) -> String {
    let mut text = facts(&packet.ip) + &ports(packet.ports);
    let flags: String =
        FLAGS.iter().rev().filter(|(_, bit)| packet.flags & bit != 0).map(|(letter, _)| letter).collect();
    let flags = if flags.is_empty() { "-".to_owned() } else { flags };
    // The acknowledgement's dot comes last, as in tcpdump.
    let flags = if flags.contains('.') { flags.replace('.', "") + "." } else { flags };
    let _ = write!(text, "{flags} {}:{}({})", packet.seq, packet.seq.wrapping_add(packet.len), packet.len);
    if let Some(ack) = packet.ack {
        let _ = write!(text, " ack {ack}");
    }
    if let Some(window) = packet.window {
        let _ = write!(text, " win {window}");
    }
    if let Some(urgent) = packet.urgent {
        let _ = write!(text, " urg {urgent}");
    }
    match packet.options.as_deref() {
        None => text += " <...>",
        Some([]) => {}
        Some(options) => {
            let options: Vec<String> = options.iter().map(option).collect();
            let _ = write!(text, " <{}>", options.join(","));
        }
    }
    text
}

fn option(option: &TcpOption) -> String {
    let hex = |octets: &[u8]| octets.iter().map(|octet| format!("{octet:02x}")).collect::<String>();
    match option {
        TcpOption::Nop => "nop".to_owned(),
        TcpOption::End => "eol".to_owned(),
        TcpOption::Mss(mss) => format!("mss {mss}"),
        TcpOption::WindowScale(shift) => format!("wscale {shift}"),
        TcpOption::SackOk => "sackOK".to_owned(),
        TcpOption::Sack(blocks) => {
            let blocks: Vec<String> = blocks.iter().map(|(left, right)| format!("{left}:{right}")).collect();
            format!("sack {}", blocks.join(" "))
        }
        TcpOption::Timestamps { value, echo } => format!("TS val {value} ecr {echo}"),
        TcpOption::FastOpen(octets) => format!("FO {}", hex(octets)).trim_end().to_owned(),
        TcpOption::FastOpenExperimental(octets) => format!("FOEXP {}", hex(octets)).trim_end().to_owned(),
        TcpOption::AccurateEcn(kind, counters) => {
            let names = if *kind == ACCURATE[0] { ["e0b", "ceb", "e1b"] } else { ["e1b", "ceb", "e0b"] };
            let named = counters.iter().zip(names).map(|(counter, name)| format!(" {name} {counter}"));
            format!("ECN{}", named.collect::<String>())
        }
        TcpOption::Other(kind, octets) => format!("kind {kind} {octets:?}"),
    }
}
