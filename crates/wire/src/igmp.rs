//! IGMP, by which a host joins groups: version 3 (RFC 3376), and 2 (RFC 2236) and 1 (RFC 1112) for older
//! routers.

use crate::{ParseError, checksum, ipv4};

/// Bytes of a message of versions 1 and 2, and of the head of a report of version 3.
pub const HEADER_LEN: usize = 8;

/// Bytes of a [`Record`] without sources: the only ones that are written here.
pub const RECORD_LEN: usize = 8;

/// Bytes of the IPv4 header of a message, which has the router alert option (RFC 2113), so that routers
/// process reports that are not addressed to them.
pub const IP_HEADER_LEN: usize = ipv4::HEADER_LEN + ROUTER_ALERT.len();

/// The address of reports of version 3 (RFC 3376 §4.2.14).
pub const REPORTS: u32 = 0xe000_0016;
/// The address of messages that a group was left (RFC 2236 §3).
pub const ALL_ROUTERS: u32 = 0xe000_0002;
/// The group that every host is in, and which is not reported (RFC 1112 §4).
pub const ALL_SYSTEMS: u32 = 0xe000_0001;

/// The content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A router asks which hosts are members of `group`; 0 asks about all groups.
    Query {
        /// The version of the router: 1, 2 or 3.
        version: u8,
        /// The group that is asked for.
        group: u32,
        /// The time within which the answer is wanted, in tenths of a second.
        max_response: u32,
    },
    /// A member reports its group in version 1 or 2.
    Report {
        /// The version, 1 or 2.
        version: u8,
        /// The group of the member.
        group: u32,
    },
    /// A member leaves its group (version 2).
    Leave {
        /// The group that is left.
        group: u32,
    },
    /// A report of version 3, or another message, which is not for hosts.
    Other,
}

/// The content of a record for one group in a report of version 3 (RFC 3376 §4.2.12), always without sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The record answers a query: everything to the group is wanted.
    IsExclude = 2,
    /// The record reports a change: nothing to the group is wanted any more.
    ToInclude = 3,
    /// The record reports a change: everything to the group is wanted.
    ToExclude = 4,
}

/// One group in a report of version 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The content of the record.
    pub kind: Kind,
    /// The group.
    pub group: u32,
}

/// Reads the message that fills `bytes` (an IPv4 payload without padding) and verifies its checksum.
pub fn parse(bytes: &[u8]) -> Result<Message, ParseError> {
    let Some(&[kind, code, _, _, a, b, c, d]) = bytes.first_chunk() else {
        return Err(ParseError::Truncated);
    };
    if !checksum::sum(bytes).is_valid() {
        return Err(ParseError::BadChecksum);
    }
    let group = u32::from_be_bytes([a, b, c, d]);
    Ok(match kind {
        // RFC 3376 §7.1: length and code distinguish the versions. Lengths in between are invalid.
        QUERY if bytes.len() >= QUERY_V3_LEN => {
            Message::Query { version: 3, group, max_response: decoded(code) }
        }
        QUERY if bytes.len() > HEADER_LEN => return Err(ParseError::BadLength),
        // RFC 2236 §4: version 1 means ten seconds and says zero.
        QUERY if code == 0 => Message::Query { version: 1, group, max_response: 100 },
        QUERY => Message::Query { version: 2, group, max_response: code.into() },
        REPORT_V1 => Message::Report { version: 1, group },
        REPORT_V2 => Message::Report { version: 2, group },
        LEAVE => Message::Leave { group },
        _ => Message::Other,
    })
}

/// Writes a message of version 1 or 2, or a query of version 2, at the start of `out`; returns its length.
/// Returns `None` for messages that hosts do not send. Panics if `out` is shorter than [`HEADER_LEN`].
pub fn emit(message: &Message, out: &mut [u8]) -> Option<usize> {
    let (kind, group) = match *message {
        Message::Report { version: 1, group } => (REPORT_V1, group),
        Message::Report { group, .. } => (REPORT_V2, group),
        Message::Leave { group } => (LEAVE, group),
        Message::Query { .. } | Message::Other => return None,
    };
    let out = &mut out[..HEADER_LEN];
    out.copy_from_slice(&[kind, 0, 0, 0, 0, 0, 0, 0]);
    out[4..].copy_from_slice(&group.to_be_bytes());
    seal(out);
    Some(HEADER_LEN)
}

/// Writes a report of version 3 at the start of `out`; returns its length. Panics if `out` is too short for
/// the records, of which there are at most 65535.
pub fn emit_report(records: impl ExactSizeIterator<Item = Record>, out: &mut [u8]) -> usize {
    let count = records.len();
    debug_assert!(count <= usize::from(u16::MAX));
    let out = &mut out[..HEADER_LEN + count * RECORD_LEN];
    let (head, rest) = out.split_at_mut(HEADER_LEN);
    head.copy_from_slice(&[REPORT_V3, 0, 0, 0, 0, 0, 0, 0]);
    head[6..].copy_from_slice(&(count as u16).to_be_bytes());
    for (record, place) in records.zip(rest.chunks_exact_mut(RECORD_LEN)) {
        place[..4].copy_from_slice(&[record.kind as u8, 0, 0, 0]);
        place[4..].copy_from_slice(&record.group.to_be_bytes());
    }
    seal(out);
    out.len()
}

/// Writes the IPv4 header of a message of `len` octets from `src` to `dst`: TTL 1, precedence 6, router alert
/// (RFC 3376 §4). Returns [`IP_HEADER_LEN`]; panics if `out` is shorter than that.
pub fn emit_ip_header(src: u32, dst: u32, id: u16, len: usize, out: &mut [u8]) -> usize {
    let header = ipv4::Header {
        src,
        dst,
        protocol: ipv4::Protocol::IGMP,
        // The option counts as payload for what writes a header without options.
        payload_len: (ROUTER_ALERT.len() + len) as u16,
        tos: 0xc0,
        ttl: 1,
        id,
        ..ipv4::Header::default()
    };
    let out = &mut out[..IP_HEADER_LEN];
    ipv4::emit(&header, out);
    out[ipv4::HEADER_LEN..].copy_from_slice(&ROUTER_ALERT);
    out[0] = 0x46;
    out[10..12].fill(0);
    let sum = checksum::sum(out).finish();
    out[10..12].copy_from_slice(&sum.to_be_bytes());
    IP_HEADER_LEN
}

fn seal(out: &mut [u8]) {
    let sum = checksum::sum(out).finish();
    out[2..4].copy_from_slice(&sum.to_be_bytes());
}

/// Decodes a time, which is a floating-point number from 128 on (RFC 3376 §4.1.1).
const fn decoded(code: u8) -> u32 {
    match code {
        0..=127 => code as u32,
        _ => ((code as u32 & 0xf) | 0x10) << ((code as u32 >> 4 & 7) + 3),
    }
}

const QUERY: u8 = 0x11;
const REPORT_V1: u8 = 0x12;
const REPORT_V2: u8 = 0x16;
const LEAVE: u8 = 0x17;
const REPORT_V3: u8 = 0x22;
const QUERY_V3_LEN: usize = 12;
const ROUTER_ALERT: [u8; 4] = [0x94, 4, 0, 0];

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(bytes: &[u8]) -> std::vec::Vec<u8> {
        let mut bytes = bytes.to_vec();
        seal(&mut bytes);
        bytes
    }

    #[test]
    fn queries_are_told_apart_by_length_and_code() {
        // RFC 3376 §7.1.
        let query = |version, max_response| Ok(Message::Query { version, group: 0xe000_00fb, max_response });
        for (code, extra, expected) in [
            (0, 0, query(1, 100)),
            (25, 0, query(2, 25)),
            (25, 4, query(3, 25)),
            (0x80, 4, query(3, 128)),
            (0xff, 8, query(3, 31744)),
            (25, 1, Err(ParseError::BadLength)),
        ] {
            let mut bytes = std::vec![QUERY, code, 0, 0, 0xe0, 0, 0, 0xfb];
            bytes.resize(8 + extra, 0);
            assert_eq!(parse(&sealed(&bytes)), expected, "{code} {extra}");
        }
    }

    #[test]
    fn damage_is_noticed() {
        let good = sealed(&[REPORT_V2, 0, 0, 0, 0xe0, 0, 0, 0xfb]);
        for bit in 0..64 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&bytes), Err(ParseError::BadChecksum));
        }
        assert_eq!(parse(&good[..7]), Err(ParseError::Truncated));
    }

    #[test]
    fn what_hosts_say_is_read_back() {
        for message in [
            Message::Report { version: 1, group: 0xefff_0001 },
            Message::Report { version: 2, group: 0xefff_0001 },
            Message::Leave { group: 0xefff_0001 },
        ] {
            let mut out = [0; HEADER_LEN];
            assert_eq!(emit(&message, &mut out), Some(HEADER_LEN));
            assert_eq!(parse(&out), Ok(message));
        }
    }

    #[test]
    fn a_report_lists_its_groups() {
        let records = [
            Record { kind: Kind::ToExclude, group: 0xe000_00fb },
            Record { kind: Kind::ToInclude, group: 0xefff_0001 },
        ];
        let mut out = [0xee; 24];
        assert_eq!(emit_report(records.into_iter(), &mut out), 24);
        assert_eq!(out[..2], [0x22, 0]);
        assert_eq!(out[4..], [0, 0, 0, 2, 4, 0, 0, 0, 0xe0, 0, 0, 0xfb, 3, 0, 0, 0, 0xef, 0xff, 0, 1]);
        assert_eq!(parse(&out), Ok(Message::Other));
    }

    #[test]
    fn the_header_alerts_routers() {
        let mut out = [0; IP_HEADER_LEN + 8];
        assert_eq!(emit_ip_header(1, REPORTS, 7, 8, &mut out), IP_HEADER_LEN);
        let (header, len) = ipv4::parse(&out).unwrap();
        assert_eq!((len, header.payload_len, header.ttl, header.dst), (24, 8, 1, REPORTS));
        assert_eq!(out[20..24], [0x94, 4, 0, 0]);
    }
}
