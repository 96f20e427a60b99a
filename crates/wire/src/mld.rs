//! Which groups does a host listen to? Multicast listener discovery, version 2: RFC 3810. Reports are written, queries read.

use atoll_base::Addr;

use crate::icmpv6;
use crate::ipv6;
use crate::{ParseError, ipv4::Protocol};

/// The options that stand before every message: hop-by-hop with a router alert (RFC 3810 §5, RFC 2711).
pub const ROUTER_ALERT: [u8; 8] = [Protocol::ICMPV6.0, 0, 5, 2, 0, 0, 1, 0];

/// All routers that speak version 2 (RFC 3810 §5.2.14): where reports go.
pub const ROUTERS: Addr = Addr::from_octets([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x16]);

/// Type of queries.
pub const QUERY: u8 = 130;
const REPORT: u8 = 143;

/// A router's question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// The group that it is about; unspecified: all.
    pub group: Addr,
    /// Answers are to be spread over so many milliseconds.
    pub max_response_ms: u32,
}

/// What a report says about a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Record {
    /// We listen, as we did before (MODE_IS_EXCLUDE {}).
    Listening = 2,
    /// We no longer listen (CHANGE_TO_INCLUDE_MODE {}).
    Left = 3,
    /// We listen from now on (CHANGE_TO_EXCLUDE_MODE {}).
    Joined = 4,
}

/// Reads the query in `bytes`, an ICMPv6 message whose checksum has been verified.
pub fn parse_query(bytes: &[u8]) -> Result<Query, ParseError> {
    let &[QUERY, 0, _, _, a, b, _, _, ref rest @ ..] = bytes else { return Err(ParseError::Unsupported) };
    let group = rest.first_chunk().map(|octets| Addr::from_octets(*octets)).ok_or(ParseError::Truncated)?;
    let code = u16::from_be_bytes([a, b]);
    // RFC 3810 §5.1.3: beyond 32767 it is a floating-point number. Version 1 knows plain ones only, of the same meaning.
    let max_response_ms = match code {
        0..=0x7fff => u32::from(code),
        _ => (u32::from(code & 0xfff) | 0x1000) << (((code >> 12) & 7) + 3),
    };
    Ok(Query { group, max_response_ms })
}

/// Bytes of a report about `groups` groups, without the header and the options of IPv6.
pub const fn report_len(groups: usize) -> usize {
    8 + 20 * groups
}

/// Writes a report from `src` to [`ROUTERS`] at the start of `out`; returns its length. Panics if `out` is shorter than
/// [`report_len`].
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

/// Most groups of one report: it fits the smallest link.
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
        assert_eq!(parse_query(&bytes), Ok(Query { group: Addr::ANY, max_response_ms: 10_000 }));
        (bytes[4], bytes[5]) = (0x80, 0);
        assert_eq!(parse_query(&bytes).map(|query| query.max_response_ms), Ok(32768));
        assert_eq!(parse_query(&bytes[..20]), Err(ParseError::Truncated));
        bytes[1] = 1;
        assert!(parse_query(&bytes).is_err());
        let mut rng = atoll_base::Rng::new(1);
        for _ in 0..10_000 {
            let mut bytes = [0; 32];
            bytes.fill_with(|| rng.next_u32() as u8);
            bytes[0] = QUERY;
            let _ = parse_query(&bytes[..rng.below(33) as usize]);
        }
    }
}
