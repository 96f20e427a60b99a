use super::*;
use crate::output::HEADERS_LEN;
use crate::{Outgoing, TTL};

fn outgoing(protocol: Protocol, dont_fragment: bool) -> Outgoing {
    Outgoing {
        dst_mac: MAC_PEER,
        src: US.into(),
        dst: PEER.into(),
        protocol,
        payload_len: 20,
        tos: 2,
        ttl: TTL,
        dont_fragment,
    }
}

#[test]
fn destinations_are_routed() {
    let mut ip = ip();
    receive(&mut ip, &question(PEER, MAC_PEER, US));
    receive(&mut ip, &question(GATEWAY, MAC_OTHER, US));
    for (dst, route) in [
        (US, Route::Local),
        (0x7f00_0001, Route::Local),
        (PEER, Route::Via { mac: MAC_PEER }),
        (FAR, Route::Via { mac: MAC_OTHER }),
        (0xc612_00ff, Route::Via { mac: Mac::BROADCAST }),
        (0xffff_ffff, Route::Via { mac: Mac::BROADCAST }),
        (0xe000_00fb, Route::Via { mac: Mac([1, 0, 0x5e, 0, 0, 0xfb]) }),
        (0xc612_0000, Route::Unreachable),
        (0, Route::Unreachable),
        (0xf000_0001, Route::Unreachable),
    ] {
        assert_eq!(ip.route(at(0), dst), route, "{dst:08x}");
    }
}

#[test]
fn without_gateway_or_inside_link_some_addresses_cannot_be_reached() {
    let config = Config { loopback: false, ..Config::new(MAC_US, US, 24) };
    let mut ip = Ip::new(config, 1, Instant::ZERO).unwrap();
    assert_eq!([FAR, US, 0x7f00_0001].map(|dst| ip.route(at(0), dst)), [Route::Unreachable; 3]);
    assert_eq!(ip.poll_frame(), None);
}

#[test]
fn headers_are_what_they_were_asked_to_be() {
    let mut ip = ip();
    let mut bytes = [0; HEADERS_LEN + 20];
    assert_eq!(ip.emit_headers(&mut bytes, &outgoing(Protocol::TCP, true)), HEADERS_LEN);
    let (ethernet, len) = ethernet::parse(&bytes).unwrap();
    assert_eq!(ethernet, ethernet::Header { dst: MAC_PEER, src: MAC_US, ethertype: EtherType::IPV4 });
    let expected = ipv4::Header {
        src: US,
        dst: PEER,
        protocol: Protocol::TCP,
        payload_len: 20,
        tos: 2,
        ttl: TTL,
        id: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
    };
    assert_eq!(ipv4::parse(&bytes[len..]), Ok((expected, 20)));
}

#[test]
fn packets_that_may_be_fragmented_are_told_apart() {
    let mut ip = ip();
    let mut ids = Vec::new();
    for _ in 0..1000 {
        let mut bytes = [0; HEADERS_LEN + 20];
        ip.emit_headers(&mut bytes, &outgoing(Protocol::UDP, false));
        ids.push(ipv4::parse(&bytes[14..]).unwrap().0.id);
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 1000);
}

#[test]
fn the_next_hop_names_who_failed() {
    let ip = ip();
    assert_eq!(
        [PEER, FAR, US, 0xffff_ffff].map(|dst| ip.next_hop(dst)),
        [Some(Addr::v4(PEER)), Some(Addr::v4(GATEWAY)), None, None]
    );
}
