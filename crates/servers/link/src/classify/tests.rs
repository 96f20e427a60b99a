use std::vec::Vec;

use atoll_base::Rng;
use atoll_wire::Mac;

use super::*;

const CLIENT: Endpoint = Endpoint::new(0xc612_0001, 40000);
const SERVER: Endpoint = Endpoint::new(0xc612_0002, 80);

fn packet(src: u32, dst: u32, protocol: Protocol, payload: &[u8]) -> Vec<u8> {
    let header = ipv4::Header {
        src,
        dst,
        protocol,
        payload_len: payload.len() as u16,
        tos: 0,
        ttl: 64,
        id: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
    };
    let mut bytes = std::vec![0; ipv4::HEADER_LEN];
    ipv4::emit(&header, &mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

fn frame(packet: &[u8]) -> Vec<u8> {
    let mut bytes = std::vec![0; ethernet::HEADER_LEN];
    let header =
        ethernet::Header { dst: Mac([2, 0, 0, 0, 0, 2]), src: Mac([2, 0, 0, 0, 0, 1]), ethertype: EtherType::IPV4 };
    ethernet::emit(&header, &mut bytes);
    bytes.extend_from_slice(packet);
    bytes
}

fn ports(a: u16, b: u16) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..2].copy_from_slice(&a.to_be_bytes());
    bytes[2..4].copy_from_slice(&b.to_be_bytes());
    bytes
}

#[test]
fn a_segment_belongs_to_its_four_tuple() {
    let bytes = frame(&packet(CLIENT.addr, SERVER.addr, Protocol::TCP, &ports(CLIENT.port, SERVER.port)));
    assert_eq!(classify(&bytes), Class::Flow(FourTuple { local: SERVER, remote: CLIENT }));
}

#[test]
fn all_fragments_of_a_packet_meet() {
    for (offset, more) in [(0, true), (185, true), (370, false)] {
        for protocol in [Protocol::TCP, Protocol::UDP, Protocol::ICMP] {
            let mut bytes = packet(CLIENT.addr, SERVER.addr, protocol, &ports(CLIENT.port, SERVER.port + offset));
            let header = ipv4::Header {
                id: 77,
                more_fragments: more,
                fragment_offset: offset,
                ..ipv4::parse(&bytes).unwrap().0
            };
            ipv4::emit(&header, &mut bytes);
            let (remote, local) = (Endpoint::new(CLIENT.addr, 77), Endpoint::new(SERVER.addr, protocol.0.into()));
            assert_eq!(classify(&frame(&bytes)), Class::Flow(FourTuple { local, remote }));
        }
    }
}

#[test]
fn an_icmp_error_belongs_to_the_flow_it_quotes() {
    let ours = packet(SERVER.addr, CLIENT.addr, Protocol::TCP, &ports(SERVER.port, CLIENT.port));
    let mut error = std::vec![3, 1, 0, 0, 0, 0, 0, 0];
    error.extend_from_slice(&ours);
    let sum = atoll_wire::checksum::sum(&error).finish();
    error[2..4].copy_from_slice(&sum.to_be_bytes());
    let bytes = frame(&packet(0xc612_00fe, SERVER.addr, Protocol::ICMP, &error));
    assert_eq!(classify(&bytes), Class::Flow(FourTuple { local: SERVER, remote: CLIENT }));
}

#[test]
fn noise_never_panics() {
    let mut rng = Rng::new(6);
    let good = frame(&packet(CLIENT.addr, SERVER.addr, Protocol::ICMP, &ports(1, 2)));
    for _ in 0..100_000 {
        let mut bytes = good.clone();
        bytes.truncate(rng.below(bytes.len() as u32 + 1) as usize);
        for _ in 0..rng.below(6) {
            let at = rng.below(bytes.len() as u32) as usize;
            if let Some(byte) = bytes.get_mut(at) {
                *byte = rng.next_u32() as u8;
            }
        }
        let _ = classify(&bytes);
    }
}
