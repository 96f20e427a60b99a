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
    let found = |first, bytes: &[u8]| {
        let Upper { protocol, at, named_at, fragment, .. } = walked(first, bytes).unwrap();
        assert_eq!(fragment, None);
        (protocol, at, named_at)
    };
    assert_eq!(found(6, &[]), (Protocol::TCP, 0, 6));
    // The packet has hop-by-hop options with a router alert, destination options with padding, and a routing
    // header without segments left.
    let mut bytes = Vec::from([60, 0, 5, 2, 0, 0, 1, 0]);
    bytes.extend([43, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend([58, 0, 4, 0, 0, 0, 0, 0]);
    assert_eq!(found(0, &bytes), (Protocol::ICMPV6, 32, 40 + 24));
    for cut in 0..bytes.len() {
        assert_eq!(walked(0, &bytes[..cut]), Err(ExtensionError::Malformed), "{cut}");
    }
    assert_eq!(walked(59, &[]), Err(ExtensionError::Discard));
}

#[test]
fn routers_are_called_by_an_option_for_every_hop() {
    // covers: RFC 2711 §2.1
    let calls =
        |first, options: [u8; 6]| walked(first, &[&[58, 0][..], &options].concat()).unwrap().alerts_mld;
    assert!(calls(0, [5, 2, 0, 0, 1, 0]) && calls(0, [1, 0, 5, 2, 0, 0]));
    for (first, options) in
        [(0, [1, 4, 0, 0, 0, 0]), (0, [5, 2, 0, 1, 1, 0]), (0, [5, 4, 0, 0, 0, 0]), (60, [5, 2, 0, 0, 1, 0])]
    {
        assert!(!calls(first, options), "{first} {options:?}");
    }
    assert!(!walked(58, &[]).unwrap().alerts_mld);
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
    assert_eq!(
        walked(44, &[44, 0, 0, 0, 0, 0, 0, 9, 17, 0, 0, 0, 0, 0, 0, 9]),
        Err(ExtensionError::Malformed)
    );
}

/// Returns an IPv6 packet with this payload.
fn packet(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::from([0; HEADER_LEN]);
    emit(&Header { payload_len: payload.len() as u16, traffic_class: 0x41, ..header(first) }, &mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn a_first_fragment_holds_all_headers() {
    // covers: RFC 7112 §5
    let options = [17, 0, 1, 4, 0, 0, 0, 0];
    let text = [&options[..], &[7; 8]].concat();
    assert_eq!(
        first_fragment(Protocol(60), &text).map(|upper| (upper.protocol, upper.at)),
        Ok((Protocol::UDP, 8))
    );
    for cut in 0..text.len() {
        assert_eq!(first_fragment(Protocol(60), &text[..cut]), Err(FirstError::Incomplete), "{cut}");
    }
    assert_eq!(first_fragment(Protocol::TCP, &[0; 19]), Err(FirstError::Incomplete));
    assert!(first_fragment(Protocol::TCP, &[0; 20]).is_ok() && first_fragment(Protocol(132), &[]).is_ok());
    // A fragment inside a fragment is malformed.
    for more in [0, 1] {
        let inner = [&[17, 0, 0, more, 0, 0, 0, 9][..], &[0; 8]].concat();
        assert_eq!(first_fragment(Protocol(44), &inner), Err(FirstError::Malformed));
    }
    // A faulty option is reported when the packet is whole.
    assert!(first_fragment(Protocol(60), &[17, 0, 0x9e, 4, 0, 0, 0, 0]).is_ok());
}

#[test]
fn a_whole_packet_has_no_fragment_header() {
    let options = [44, 0, 1, 4, 0, 0, 0, 0];
    let mut head = [0; FRAGMENT_LEN];
    let fragment = Fragment { offset: 0, more: true, id: 0xdead_beef };
    assert_eq!(emit_fragment(Protocol::UDP, &fragment, &mut head), FRAGMENT_LEN);
    assert_eq!(head, [17, 0, 0, 1, 0xde, 0xad, 0xbe, 0xef]);
    for congested in [false, true] {
        // The packet has the first fragment's header, and the text of all fragments.
        let mut bytes = packet(60, &[&options[..], &head, &[1, 2, 3, 4, 5, 6, 7, 8]].concat());
        bytes.extend([9; 100]);
        let hole = make_whole(&mut bytes, congested).unwrap();
        bytes.drain(hole);
        let (found, at) = parse(&bytes).unwrap();
        assert_eq!((found.payload_len, found.traffic_class), (116, if congested { 0x43 } else { 0x41 }));
        let upper = upper(&found, &bytes[at..]).unwrap();
        assert_eq!((upper.protocol, upper.at, upper.fragment), (Protocol::UDP, 8, None));
        assert_eq!(bytes[at + 8..][..9], [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }
    let mut plain = packet(44, &[&head[..], &[0; 8]].concat());
    let hole = make_whole(&mut plain, false).unwrap();
    assert_eq!((hole, plain[6]), (40..48, 17));
    let mut long = packet(44, &head);
    long.resize(HEADER_LEN + FRAGMENT_LEN + 65_536, 0);
    assert_eq!(make_whole(&mut long, false), Err(ParseError::BadLength));
    assert_eq!(make_whole(&mut packet(6, &[0; 20]), false), Err(ParseError::Unsupported));
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
    fn parse_undoes_emit(
        src: [u8; 16], dst: [u8; 16], next: u8, class: u8, label in 0u32..1 << 20, hops: u8,
    ) {
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
        let _ = first_fragment(Protocol(first), &bytes);
        let _ = make_whole(&mut bytes.clone(), true);
    }
}
