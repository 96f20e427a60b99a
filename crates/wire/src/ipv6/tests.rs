use std::vec::Vec;

use proptest::prelude::*;

use super::*;

fn header(next_header: u8) -> Header {
    Header {
        src: Addr::from_octets([0x20; 16]),
        dst: Addr::from_octets([0xfe; 16]),
        next_header: Protocol(next_header),
        hop_limit: 64,
        ..Header::default()
    }
}

fn walked(first: u8, payload: &[u8]) -> Result<Upper, ExtensionError> {
    upper(&header(first), payload)
}

#[test]
fn a_header_is_laid_out_as_rfc_8200_draws_it() {
    let mut out = [0; HEADER_LEN];
    let packet = Header { payload_len: 0x1234, traffic_class: 0xab, flow_label: 0xcdef0, ..header(6) };
    emit(&packet, &mut out);
    assert_eq!(out[..8], [0x6a, 0xbc, 0xde, 0xf0, 0x12, 0x34, 6, 64]);
    assert_eq!((out[8], out[24]), (0x20, 0xfe));
    assert_eq!(parse_quoted(&out), Ok((packet, 40)));
    assert_eq!(parse(&out), Err(ParseError::Truncated));
    out[0] = 0x45;
    assert_eq!(parse(&out), Err(ParseError::Unsupported));
}

#[test]
fn the_way_to_the_text_leads_over_extension_headers() {
    let plain = Upper { protocol: Protocol::TCP, at: 0, fragment: None };
    assert_eq!(walked(6, &[]), Ok(plain));
    // Hop-by-hop with a router alert, destination options with padding, a routing header whose way has been gone.
    let mut bytes = Vec::from([60, 0, 5, 2, 0, 0, 1, 0]);
    bytes.extend([43, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend([58, 0, 4, 0, 0, 0, 0, 0]);
    assert_eq!(walked(0, &bytes), Ok(Upper { protocol: Protocol::ICMPV6, at: 32, fragment: None }));
    for cut in 0..bytes.len() {
        assert_eq!(walked(0, &bytes[..cut]), Err(ExtensionError::Malformed), "{cut}");
    }
    assert_eq!(walked(59, &[]), Err(ExtensionError::Discard));
}

#[test]
fn fragments_are_told_from_atomic_ones() {
    // covers: RFC 6946 §4
    let atomic = [17, 0, 0, 0, 0, 0, 0, 9];
    let found = walked(44, &atomic).unwrap();
    assert_eq!((found.protocol, found.at), (Protocol::UDP, 8));
    assert!(found.fragment.is_some_and(|fragment| fragment.is_atomic() && fragment.id == 9));
    let first = walked(44, &[17, 0, 0, 1, 0, 0, 0, 9]).unwrap();
    assert!(first.fragment.is_some_and(|fragment| !fragment.is_atomic()));
    // What looks like an extension header in a later fragment is text.
    let later = walked(44, &[0, 0, 0, 8, 0, 0, 0, 9, 1, 2]).unwrap();
    assert_eq!((later.protocol, later.at), (Protocol(0), 8));
    assert_eq!(walked(44, &[44, 0, 0, 0, 0, 0, 0, 9, 17, 0, 0, 0, 0, 0, 0, 9]), Err(ExtensionError::Malformed));
}

#[test]
fn unknown_options_say_themselves_what_becomes_of_the_packet() {
    let with = |kind| walked(60, &[6, 0, kind, 4, 0, 0, 0, 0]);
    assert!(with(0x1e).is_ok());
    assert_eq!(with(0x5e), Err(ExtensionError::Discard));
    let problem = |even_to_groups| Err(ExtensionError::Problem { code: 2, pointer: 42, even_to_groups });
    assert_eq!(with(0x9e), problem(true));
    assert_eq!(with(0xde), problem(false));
    assert_eq!(walked(60, &[6, 0, 1, 9, 0, 0, 0, 0]), Err(ExtensionError::Malformed));
}

#[test]
fn ways_that_are_not_gone_and_misplaced_headers_are_problems() {
    // covers: RFC 5095 §3
    let routed = walked(43, &[6, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(routed, Err(ExtensionError::Problem { code: 0, pointer: 42, even_to_groups: false }));
    let late = walked(60, &[0, 0, 1, 4, 0, 0, 0, 0, 6, 0, 1, 4, 0, 0, 0, 0]);
    assert_eq!(late, Err(ExtensionError::Problem { code: 1, pointer: 40, even_to_groups: false }));
}

#[test]
fn chains_without_end_are_cut() {
    let chain = [60, 0, 1, 4, 0, 0, 0, 0].repeat(100);
    assert_eq!(walked(60, &chain), Err(ExtensionError::Malformed));
    let mut options = Vec::from([6, 31]);
    options.extend([1, 0].repeat(127));
    assert_eq!(walked(60, &options), Err(ExtensionError::Malformed));
    let mut zeros = Vec::from([6, 31]);
    zeros.extend([0; 254]);
    assert!(walked(60, &zeros).is_ok());
}

proptest! {
    #[test]
    fn parse_undoes_emit(src: [u8; 16], dst: [u8; 16], next: u8, class: u8, label in 0u32..1 << 20, hops: u8) {
        let packet = Header {
            src: Addr::from_octets(src), dst: Addr::from_octets(dst), next_header: Protocol(next),
            payload_len: 7, traffic_class: class, flow_label: label, hop_limit: hops,
        };
        let mut out = [0; HEADER_LEN + 7];
        emit(&packet, &mut out);
        prop_assert_eq!(parse(&out), Ok((packet, HEADER_LEN)));
    }

    #[test]
    fn junk_is_judged_without_panic(first: u8, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(found) = walked(first, &bytes) {
            prop_assert!(found.at <= bytes.len());
        }
        let _ = parse(&bytes);
    }
}
