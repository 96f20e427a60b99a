use proptest::prelude::*;

use super::*;

const US: Addr = Addr::from_octets([0x20; 16]);
const PEER: Addr = Addr::from_octets([0x21; 16]);
const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

fn again(message: Message) -> Result<Message, ParseError> {
    let mut out = [0; MESSAGE_LEN_MAX];
    let len = emit(PEER, US, &message, &mut out);
    assert!(icmpv6::parse(PEER, US, &out[..len]).is_ok());
    parse(&out[..len])
}

#[test]
fn every_message_survives_the_wire() {
    let mut advertisement = RouterAdvertisement {
        hop_limit: 64,
        router_lifetime: 1800,
        source_mac: Some(MAC),
        mtu: Some(1400),
        ..Default::default()
    };
    advertisement.prefixes.push(PrefixInformation {
        prefix: US,
        len: 64,
        on_link: true,
        autonomous: false,
        valid_lifetime: u32::MAX,
        preferred_lifetime: 7,
    });
    for message in [
        Message::RouterSolicitation { source_mac: None },
        Message::RouterSolicitation { source_mac: Some(MAC) },
        Message::RouterAdvertisement(advertisement),
        Message::NeighbourSolicitation { target: US, source_mac: Some(MAC) },
        Message::NeighbourAdvertisement {
            target: US,
            router: true,
            solicited: false,
            overriding: true,
            target_mac: Some(MAC),
        },
    ] {
        assert_eq!(again(message), Ok(message));
    }
}

#[test]
fn options_without_length_and_groups_as_targets_are_refused() {
    // covers: RFC 4861 §7.1.1
    let mut out = [0; MESSAGE_LEN_MAX];
    let len = emit(PEER, US, &Message::NeighbourSolicitation { target: US, source_mac: Some(MAC) }, &mut out);
    out[1] = 1;
    assert_eq!(parse(&out[..len]), Err(ParseError::Unsupported), "of another code");
    out[1] = 0;
    out[25] = 0;
    assert_eq!(parse(&out[..len]), Err(ParseError::BadLength));
    out[25] = 2;
    assert_eq!(parse(&out[..len]), Err(ParseError::BadLength));
    let group = Addr::from_octets([0xff; 16]);
    assert_eq!(
        again(Message::NeighbourSolicitation { target: group, source_mac: None }),
        Err(ParseError::BadLength)
    );
}

#[test]
fn the_solicited_node_group_is_that_of_rfc_4291() {
    let addr: Addr = "4037::1:800:200e:8c6c".parse::<core::net::Ipv6Addr>().unwrap().into();
    let group: Addr = "ff02::1:ff0e:8c6c".parse::<core::net::Ipv6Addr>().unwrap().into();
    assert_eq!(solicited_node(addr), group);
    assert_eq!(crate::ipv6::multicast_mac(group), Mac([0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c]));
}

#[test]
fn too_many_prefixes_are_left_out() {
    let mut advertisement = RouterAdvertisement::default();
    (0..20).for_each(|_| advertisement.prefixes.push(PrefixInformation::default()));
    assert_eq!(advertisement.prefixes.as_slice().len(), PREFIXES_MAX);
    assert_eq!(
        again(Message::RouterAdvertisement(advertisement)),
        Ok(Message::RouterAdvertisement(advertisement))
    );
}

proptest! {
    #[test]
    fn junk_is_judged_without_panic(kind in 130u8..140, bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        if let Ok(message) = parse(&bytes) {
            prop_assert_eq!(again(message), Ok(message));
        }
    }
}
