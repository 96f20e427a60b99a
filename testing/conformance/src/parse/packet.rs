//! Reads the packets of a script, such as
//! `< [ect0] 40000 > 8080 P. 1:1001(1000) ack 1 win 257 <nop,nop,TS val 1 ecr 2>`.

use super::{Cursor, Result};
use crate::script::{Datagram, Echoed, Icmp, IpFacts, Message, Packet, Ports, TcpOption};

/// The letters of control bits in packetdrill's notation, and their bits.
pub(crate) const FLAGS: [(char, u16); 9] = [
    ('F', 0x001),
    ('S', 0x002),
    ('R', 0x004),
    ('P', 0x008),
    ('.', 0x010),
    ('U', 0x020),
    ('E', 0x040),
    ('W', 0x080),
    ('A', 0x100),
];

/// The kinds of the options of accurate ECN (RFC 9768 §3.2.3): with ECT(0) first, and with ECT(1) first.
pub(crate) const ACCURATE: [u8; 2] = [172, 174];
/// The kind of an experimental option (RFC 6994), and the identifier of a Fast Open cookie.
pub(crate) const EXPERIMENTAL: (u8, [u8; 2]) = (254, [0xf9, 0x89]);

/// The names of ICMP types and codes, with IPv4's numbers (packetdrill's `icmp_packet.c`).
pub(crate) const ICMP_V4: [(&str, &str, u8, u8); 29] = [
    ("echo_reply", "", 0, 0),
    ("unreachable", "net_unreachable", 3, 0),
    ("unreachable", "host_unreachable", 3, 1),
    ("unreachable", "protocol_unreachable", 3, 2),
    ("unreachable", "port_unreachable", 3, 3),
    ("unreachable", "frag_needed", 3, 4),
    ("unreachable", "source_route_failed", 3, 5),
    ("unreachable", "net_unknown", 3, 6),
    ("unreachable", "host_unknown", 3, 7),
    ("unreachable", "source_host_isolated", 3, 8),
    ("unreachable", "net_prohibited", 3, 9),
    ("unreachable", "host_prohibited", 3, 10),
    ("unreachable", "net_unreachable_for_tos", 3, 11),
    ("unreachable", "host_unreachable_for_tos", 3, 12),
    ("unreachable", "packet_filtered", 3, 13),
    ("unreachable", "precedence_violation", 3, 14),
    ("unreachable", "precedence_cutoff", 3, 15),
    ("source_quench", "", 4, 0),
    ("redirect", "", 5, 0),
    ("echo_request", "", 8, 0),
    ("time_exceeded", "exceeded_in_transit", 11, 0),
    ("time_exceeded", "exceeded_reassembly", 11, 1),
    ("parameter_problem", "", 12, 0),
    ("timestamp_request", "", 13, 0),
    ("timestamp_reply", "", 14, 0),
    ("information_request", "", 15, 0),
    ("information_reply", "", 16, 0),
    ("address_mask_request", "", 17, 0),
    ("address_mask_reply", "", 18, 0),
];
/// The names of ICMPv6 types and codes, with their numbers (packetdrill's `icmp_packet.c`).
pub(crate) const ICMP_V6: [(&str, &str, u8, u8); 11] = [
    ("unreachable", "no_route", 1, 0),
    ("unreachable", "admin_prohibited", 1, 1),
    ("unreachable", "not_neighbour", 1, 2),
    ("unreachable", "address_unreachable", 1, 3),
    ("unreachable", "port_unreachable", 1, 4),
    ("packet_too_big", "", 2, 0),
    ("time_exceeded", "exceeded_in_transit", 3, 0),
    ("time_exceeded", "exceeded_reassembly", 3, 1),
    ("parameter_problem", "header_field", 4, 0),
    ("parameter_problem", "unknown_next_header", 4, 1),
    ("parameter_problem", "unknown_option", 4, 2),
];

impl Cursor<'_> {
    /// Reads the packet behind the direction.
    pub(super) fn message(&mut self) -> Result<Message> {
        self.skip();
        for what in ["ipv4", "ipv6", "gre", "mpls", "raw"] {
            if self.rest().starts_with(what) {
                return self.unsupported(&format!("packets of {what}"));
            }
        }
        // In older scripts, the quoted packet of an ICMP message comes first.
        let mut echoed = None;
        if self
            .rest()
            .strip_prefix('[')
            .is_some_and(|rest| rest.trim_start().starts_with(|c: char| c.is_ascii_digit()))
        {
            self.expect("[")?;
            echoed = Some(self.echoed()?);
            self.expect("]")?;
            self.skip();
        }
        let ip = self.ip_facts()?;
        if self.takes_word("icmp") {
            let icmp = self.icmp()?;
            return Ok(Message::Icmp(Icmp { ip, echoed: icmp.echoed.or(echoed), ..icmp }));
        }
        if echoed.is_some() {
            return self.wrong("`icmp`");
        }
        if self.takes_word("udp") {
            let ports = self.ports()?;
            self.expect("(")?;
            let len = self.number()?;
            self.expect(")")?;
            return Ok(Message::Udp(Datagram { ip, ports, len }));
        }
        let ports = self.ports()?;
        Ok(Message::Tcp(Packet { ip, ports, ..self.segment()? }))
    }

    /// Reads `[ect0]`, `[tos 0x4]`, `[ttl 63]`, `[flowlabel 0x1]`, or several of them.
    fn ip_facts(&mut self) -> Result<IpFacts> {
        let mut facts = IpFacts::default();
        let close = match self.rest().chars().next() {
            Some('[') => "]",
            Some('(') => ")",
            _ => return Ok(facts),
        };
        self.at += 1;
        loop {
            match self.word() {
                "noecn" => facts.tos = Some((0, 3)),
                "ect1" => facts.tos = Some((1, 3)),
                "ect0" => facts.tos = Some((2, 3)),
                "ce" => facts.tos = Some((3, 3)),
                "ect01" => facts.any_ect = true,
                "tos" => facts.tos = Some((self.number()?, 0xff)),
                "ttl" => facts.ttl = Some(self.number()?),
                "flowlabel" => facts.flow_label = Some(self.number()?),
                other => return self.unsupported(&format!("`{other}` of the IP header")),
            }
            if !self.takes(",") {
                self.expect(close)?;
                return Ok(facts);
            }
        }
    }

    /// Reads `40000 > 8080`, if there are ports.
    fn ports(&mut self) -> Result<Ports> {
        self.skip();
        let before = self.at;
        let digits = self.take_while(|c| c.is_ascii_digit());
        if digits.is_empty() || !self.takes(">") {
            self.at = before;
            return Ok(None);
        }
        let Ok(from) = digits.parse() else { return self.wrong("a port") };
        Ok(Some((from, self.number()?)))
    }

    /// Reads `icmp unreachable frag_needed mtu 1200 [1:1461(1460)]`, behind `icmp`.
    fn icmp(&mut self) -> Result<Icmp> {
        let kind = self.word().to_owned();
        let before = self.at;
        let word = self.word();
        // A code stands on the same line, in front of everything else.
        let is_code = self.text[before..self.at].trim_start_matches([' ', '\t']) == word
            && !matches!(word, "mtu" | "id");
        let code = if !is_code || word.starts_with(|c: char| c.is_ascii_digit()) {
            self.at = before;
            String::new()
        } else {
            word.to_owned()
        };
        let Some((kind, code)) = self.icmp_numbers(&kind, &code) else {
            return self.unsupported(&format!("icmp {kind} {code}"));
        };
        let mut icmp = Icmp { kind, code, ..Icmp::default() };
        if self.takes_word("mtu") {
            icmp.mtu = Some(self.number()?);
        }
        if self.takes_word("id") {
            return self.unsupported("ICMP identifiers");
        }
        if self.same_line('[') && self.takes("[") {
            icmp.echoed = Some(self.echoed()?);
            self.expect("]")?;
        }
        Ok(icmp)
    }

    /// Returns type and code, given by names or numbers (`type_3`, `code_1`); an absent code is 0.
    fn icmp_numbers(&self, kind: &str, code: &str) -> Option<(u8, u8)> {
        let names: &[_] = if self.is_v6 { &ICMP_V6 } else { &ICMP_V4 };
        let of_kind = names.iter().find(|(name, ..)| *name == kind).map(|(.., kind, _)| *kind);
        let kind_number = of_kind.or_else(|| kind.strip_prefix("type_")?.parse().ok())?;
        if code.is_empty() {
            return Some((kind_number, 0));
        }
        let of_code = names.iter().find(|(a, b, ..)| *a == kind && *b == code).map(|(.., code)| *code);
        Some((kind_number, of_code.or_else(|| code.strip_prefix("code_")?.parse().ok())?))
    }

    fn echoed(&mut self) -> Result<Echoed> {
        if self.takes_word("udp") {
            self.expect("(")?;
            let len = self.number()?;
            self.expect(")")?;
            return Ok(Echoed::Udp(len));
        }
        let (seq, len) = self.sequence()?;
        let Ok(len) = u16::try_from(len) else { return self.wrong("a length") };
        Ok(Echoed::Tcp(seq, len))
    }

    /// Reads `1:1001(1000)`; returns the first number, and the length.
    fn sequence(&mut self) -> Result<(u32, u32)> {
        let seq: u32 = self.number()?;
        self.expect(":")?;
        let end: u32 = self.number()?;
        self.expect("(")?;
        let len: u32 = self.number()?;
        self.expect(")")?;
        if seq.wrapping_add(len) != end {
            return Err(self.trouble(format!("{seq}:{end} are not {len} octets"), false));
        }
        Ok((seq, len))
    }

    fn segment(&mut self) -> Result<Packet> {
        let mut packet = Packet::default();
        self.skip();
        let letters = self.take_while(|c| !c.is_whitespace());
        for c in letters.chars() {
            match FLAGS.iter().find(|(letter, _)| *letter == c) {
                Some((_, bit)) => packet.flags |= bit,
                None if c == '-' => {}
                // The digit is the counter of accurate ECN: three bits, of which CWR is the middle one.
                None if ('0'..='7').contains(&c) => packet.flags |= (c as u16 - '0' as u16) << 6,
                None => return self.unsupported(&format!("`{letters}` as control bits")),
            }
        }
        (packet.seq, packet.len) = self.sequence()?;
        if packet.len > u32::from(u16::MAX) {
            return self.wrong("a shorter segment");
        }
        if self.takes_word("ack") {
            packet.ack = Some(self.number()?);
        }
        if self.takes_word("win") {
            packet.window = Some(self.number()?);
        }
        if self.takes_word("urg") {
            packet.urgent = Some(self.number()?);
        }
        packet.options = Some(Vec::new());
        // The `<` must be on the same line: in front of the next event it is a direction.
        if self.same_line('<') && self.takes("<") {
            packet.options = self.options()?;
        }
        Ok(packet)
    }

    fn same_line(&self, wanted: char) -> bool {
        self.rest().trim_start_matches([' ', '\t']).starts_with(wanted)
    }

    fn options(&mut self) -> Result<Option<Vec<TcpOption>>> {
        if self.takes("...") {
            self.expect(">")?;
            return Ok(None);
        }
        let mut options = Vec::new();
        loop {
            options.push(match self.word() {
                "nop" => TcpOption::Nop,
                "eol" => TcpOption::End,
                "sackOK" => TcpOption::SackOk,
                "mss" => TcpOption::Mss(self.number()?),
                "wscale" => TcpOption::WindowScale(self.number()?),
                "sack" => TcpOption::Sack(self.blocks()?),
                "TS" => {
                    let _ = self.takes_word("val");
                    let value = self.number()?;
                    let _ = self.takes_word("ecr");
                    TcpOption::Timestamps { value, echo: self.number()? }
                }
                "FO" => TcpOption::FastOpen(self.cookie()?),
                "FOEXP" => TcpOption::FastOpenExperimental(self.cookie()?),
                "ECN" => self.accurate_ecn()?,
                other => return self.unsupported(&format!("the TCP option `{other}`")),
            });
            if self.takes(">") {
                let octets: usize = options.iter().map(TcpOption::octets).sum();
                let text = format!("{octets} octets of options do not fit a header");
                return if octets <= 40 { Ok(Some(options)) } else { Err(self.trouble(text, false)) };
            }
            self.expect(",")?;
        }
    }

    fn blocks(&mut self) -> Result<Vec<(u32, u32)>> {
        let mut blocks = Vec::new();
        loop {
            let left = self.number()?;
            self.expect(":")?;
            blocks.push((left, self.number()?));
            self.skip();
            if !self.rest().starts_with(|c: char| c.is_ascii_digit()) {
                return Ok(blocks);
            }
        }
    }

    /// Reads `ECN e1b 1 ceb 0 e0b 1`; the first name decides which of the two options it is.
    fn accurate_ecn(&mut self) -> Result<TcpOption> {
        let names = ["e0b", "ceb", "e1b"];
        let mut order = None;
        let mut counters = Vec::new();
        loop {
            self.skip();
            let Some(name) = names.iter().position(|name| self.rest().starts_with(name)) else { break };
            let expected = match *order.get_or_insert(usize::from(name == 2)) {
                0 => counters.len(),
                _ => 2 - counters.len().min(2),
            };
            if name != expected || counters.len() == 3 {
                return self.wrong("the next counter");
            }
            self.at += 3;
            let counter: u32 = self.number()?;
            counters.push(counter & 0x00ff_ffff);
        }
        Ok(TcpOption::AccurateEcn(ACCURATE[order.unwrap_or(0)], counters))
    }

    /// Reads the digits of a cookie, or none; `TFO_COOKIE` is the one that the stack gives to the other end.
    fn cookie(&mut self) -> Result<Vec<u8>> {
        let digits = self.word();
        if digits == "TFO_COOKIE" {
            return Ok(crate::host::cookie_of_peer(self.is_v6));
        }
        let octets =
            (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok());
        octets
            .collect::<Option<Vec<u8>>>()
            .ok_or_else(|| self.trouble("a cookie has an even number of digits", false))
    }
}
