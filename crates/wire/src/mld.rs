//! Multicast listener discovery, by which a host joins groups: version 2 (RFC 3810), and 1 (RFC 2710) for
//! older routers.

use atoll_base::Addr;

use crate::icmpv6;
use crate::ipv6;
use crate::{ParseError, ipv4::Protocol};

/// The options in front of every message: hop-by-hop with a router alert (RFC 3810 §5, RFC 2711).
pub const ROUTER_ALERT: [u8; 8] = [Protocol::ICMPV6.0, 0, 5, 2, 0, 0, 1, 0];

/// All routers that support version 2 (RFC 3810 §5.2.14), to which reports are sent.
pub const ROUTERS: Addr = Addr::from_octets([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x16]);

/// All routers on the link, to which version 1 reports that a group was left.
pub const ALL_ROUTERS: Addr = Addr::from_octets([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);

/// Type of queries.
pub const QUERY: u8 = 130;
/// Type of reports of version 1.
pub const REPORT_V1: u8 = 131;
/// Type of the message of version 1 that a group was left.
pub const DONE: u8 = 132;
const REPORT: u8 = 143;
/// Bytes of a message of version 1.
pub const LEN_V1: usize = 24;
/// The minimum size of a query of version 2 in bytes.
const QUERY_LEN: usize = 28;

/// A query, or a message of version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A router asks for listeners.
    Query {
        /// The version of the router: 1 or 2.
        version: u8,
        /// The group in question; unspecified for all.
        group: Addr,
        /// The time over which answers are to be spread, in milliseconds.
        max_response_ms: u32,
    },
    /// A host listens to a group.
    Report {
        /// The group of the listener.
        group: Addr,
    },
    /// A host stopped listening to a group.
    Done {
        /// The group that was left.
        group: Addr,
    },
}

/// The content of a report for one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Record {
    /// The host listens, as it did before (MODE_IS_EXCLUDE {}).
    Listening = 2,
    /// The host stopped listening (CHANGE_TO_INCLUDE_MODE {}).
    Left = 3,
    /// The host listens from now on (CHANGE_TO_EXCLUDE_MODE {}).
    Joined = 4,
}

/// Reads the message in `bytes`, an ICMPv6 message whose checksum has been verified. Fails with
/// [`ParseError::Unsupported`] for reports of version 2, which are not for hosts.
pub fn parse(bytes: &[u8]) -> Result<Message, ParseError> {
    let &[kind, _, _, _, a, b, _, _, ref rest @ ..] = bytes else { return Err(ParseError::Unsupported) };
    let group = rest.first_chunk().map(|octets| Addr::from_octets(*octets)).ok_or(ParseError::Truncated)?;
    let code = u16::from_be_bytes([a, b]);
    // RFC 3810 §8.1: the length distinguishes the versions. Lengths in between are invalid.
    let version = match bytes.len() {
        LEN_V1 => 1,
        QUERY_LEN.. => 2,
        _ if kind == QUERY => return Err(ParseError::BadLength),
        _ => 1,
    };
    Ok(match kind {
        QUERY => {
            // RFC 3810 §5.1.3: in version 2, it is a floating-point number beyond 32767.
            let max_response_ms = match code {
                0x8000.. if version == 2 => (u32::from(code & 0xfff) | 0x1000) << (((code >> 12) & 7) + 3),
                _ => u32::from(code),
            };
            Message::Query { version, group, max_response_ms }
        }
        REPORT_V1 => Message::Report { group },
        DONE => Message::Done { group },
        _ => return Err(ParseError::Unsupported),
    })
}

/// Writes a version 1 report, or the message that a group was left, from `src` at the start of `out`; returns
/// its destination. The message's length is [`LEN_V1`]; panics if `out` is shorter. Returns `None` for
/// messages that hosts do not send.
pub fn emit_v1(src: Addr, message: &Message, out: &mut [u8]) -> Option<Addr> {
    let (kind, group, dst) = match *message {
        Message::Report { group } => (REPORT_V1, group, group),
        Message::Done { group } => (DONE, group, ALL_ROUTERS),
        Message::Query { .. } => return None,
    };
    let out = &mut out[..LEN_V1];
    out.fill(0);
    out[0] = kind;
    out[8..].copy_from_slice(&group.octets());
    icmpv6::seal(src, dst, out);
    Some(dst)
}

/// Returns the size in bytes of a report about `groups` groups, without the header and the options of IPv6.
pub const fn report_len(groups: usize) -> usize {
    8 + 20 * groups
}

/// Writes a report from `src` to [`ROUTERS`] at the start of `out`; returns its length. Panics if `out` is
/// shorter than [`report_len`].
pub fn emit_report(src: Addr, groups: &[(Addr, Record)], out: &mut [u8]) -> usize {
    let len = report_len(groups.len());
    let out = &mut out[..len];
    out.fill(0);
    out[0] = REPORT;
    out[6..8].copy_from_slice(&(groups.len() as u16).to_be_bytes());
    for ((group, record), place) in groups.iter().zip(out[8..].chunks_exact_mut(20)) {
        place[0] = *record as u8;
        place[4..].copy_from_slice(&group.octets());
    }
    icmpv6::seal(src, ROUTERS, out);
    len
}

/// The maximum number of groups in one report, which fits the smallest link.
pub const GROUPS_MAX: usize = (ipv6::MTU_MIN as usize - ipv6::HEADER_LEN - ROUTER_ALERT.len() - 8) / 20;

#[cfg(test)]
mod tests {
    use super::*;

    const US: Addr = Addr::from_octets([0xfe; 16]);

    #[test]
    fn a_report_is_laid_out_as_rfc_3810_draws_it() {
        let group = Addr::from_octets([0xff; 16]);
        let mut out = [0xaa; report_len(2)];
        let len = emit_report(US, &[(group, Record::Joined), (ROUTERS, Record::Left)], &mut out);
        assert_eq!(len, 48);
        assert_eq!((out[0], out[1], &out[4..12]), (143, 0, &[0, 0, 0, 2, 4, 0, 0, 0][..]));
        assert_eq!((&out[12..28], out[28]), (&[0xff; 16][..], 3));
        assert!(icmpv6::parse(US, ROUTERS, &out).is_ok());
    }

    #[test]
    fn queries_say_how_long_an_answer_may_take() {
        let mut bytes = [0; 28];
        (bytes[0], bytes[4], bytes[5]) = (QUERY, 0x27, 0x10);
        let query =
            |version, max_response_ms| Ok(Message::Query { version, group: Addr::ANY, max_response_ms });
        assert_eq!(parse(&bytes), query(2, 10_000));
        (bytes[4], bytes[5]) = (0x80, 0);
        assert_eq!(parse(&bytes), query(2, 32768));
        // Version 1 is shorter, and knows plain numbers only.
        (bytes[4], bytes[5]) = (0x90, 0);
        assert_eq!(parse(&bytes[..24]), query(1, 0x9000));
        assert_eq!(parse(&bytes[..26]), Err(ParseError::BadLength));
        assert_eq!(parse(&bytes[..20]), Err(ParseError::Truncated));
        // covers: RFC 3810 §5.1.1: the code is not looked at.
        bytes[1] = 1;
        assert_eq!(parse(&bytes[..24]), query(1, 0x9000));
        let mut rng = atoll_base::Rng::new(1);
        for _ in 0..10_000 {
            let mut bytes = [0; 32];
            bytes.fill_with(|| rng.next_u32() as u8);
            bytes[0] = 130 + rng.below(3) as u8;
            let _ = parse(&bytes[..rng.below(33) as usize]);
        }
    }

    #[test]
    fn version_1_says_one_thing_at_a_time() {
        let group = Addr::from_octets([0xff; 16]);
        for (message, expected) in
            [(Message::Report { group }, group), (Message::Done { group }, ALL_ROUTERS)]
        {
            let mut out = [0xaa; LEN_V1];
            assert_eq!(emit_v1(US, &message, &mut out), Some(expected));
            assert!(icmpv6::parse(US, expected, &out).is_ok());
            assert_eq!(parse(&out), Ok(message));
        }
    }
}
